//! Shared setup of sync measurements: a source with all data, and a follower that syncs from it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::SyncArgs;
use super::corpus::{CorpusSize, SyncCorpus};
use super::counting_proxy::CountingProxy;
use super::folders::TemplateRepo;
use super::publish::{publish, wait_until_count};
use super::server::{GraspdServer, ServerPlan, create_empty_folder};
use crate::event::SignedEvent;
use crate::progress::Progress;
use crate::repository::{ANNOUNCEMENT, COMMENT, ISSUE, STATE};

/// Address of the source in events. The proxy listens there.
pub(super) const SOURCE: &str = "127.77.0.1:7701";

/// Address of the follower in events. It is never dialled.
pub(super) const FOLLOWER: &str = "127.77.0.2:7702";

/// Time within which a follower must reach any state.
pub(super) const SYNC_TIMEOUT: Duration = Duration::from_secs(900);

/// Data shared by all measurements.
#[derive(Debug)]
pub(super) struct SyncSetup {
    /// The events.
    pub(super) corpus: SyncCorpus,
    /// The graspd binary.
    pub(super) binary: PathBuf,
    template: TemplateRepo,
    folder: PathBuf,
}

impl SyncSetup {
    /// Creates or opens the corpus folder.
    pub(super) fn prepare(args: &SyncArgs) -> Result<Self> {
        fs::create_dir_all(&args.corpus).with_context(|| format!("cannot create {}", args.corpus.display()))?;
        let folder = args.corpus.canonicalize()?;
        let binary = args.graspd.canonicalize().with_context(|| format!("cannot find {}", args.graspd.display()))?;
        let template = TemplateRepo::open_or_create(&folder)?;
        let size = CorpusSize { seed: args.seed, repositories: args.repositories, roots: args.roots };
        let corpus = SyncCorpus::load_or_sign(&folder, size, &template.commit)?;
        Ok(Self { corpus, binary, template, folder })
    }

    /// Prepares a server with an empty store and the git data of all repositories.
    pub(super) async fn with_git_data(&self, name: &str, domain: &str) -> Result<ServerPlan> {
        let plan = self.empty(name, domain)?;
        // The first start creates the store and the git folder with its id. A folder with repositories and without an id
        // would be refused.
        plan.start()?.stop().await?;
        let progress = Progress::start(format!("git folders of the {name}"), self.corpus.size.repositories);
        for project in &self.corpus.projects {
            self.template.copy_to(&plan.git_folder(), project)?;
            progress.advance(1);
        }
        Ok(plan)
    }

    /// Prepares a server without any data.
    pub(super) fn empty(&self, name: &str, domain: &str) -> Result<ServerPlan> {
        let (folder, binary, domain) =
            (create_empty_folder(&self.folder, name)?, self.binary.clone(), domain.to_owned());
        Ok(ServerPlan { binary, folder, domain, bootstrap: None, settings: Vec::new() })
    }

    /// Returns the commit of pull requests.
    pub(super) fn pull_request_commit(&self) -> &str {
        &self.template.pull_request_commit
    }

    /// Returns a path in the corpus folder, for data that is kept between runs.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Publishes the corpus on a server, with `relays` as the relays of each repository.
    pub(super) async fn fill(&self, server: &GraspdServer, relays: impl Fn(usize) -> Vec<String>) -> Result<()> {
        let CorpusSize { repositories, roots, .. } = self.corpus.size;
        publish(server.address, &self.announcements_and_states(relays)?).await.context("announcements")?;
        wait_until_count(server, &json!({ "kinds": [ANNOUNCEMENT, STATE] }), 2 * repositories).await?;
        publish(server.address, &self.corpus.discussions).await.context("issues and comments")?;
        wait_until_count(server, &json!({ "kinds": [ISSUE, COMMENT] }), 2 * repositories * roots).await
    }

    /// Returns the announcement and the state of every repository.
    fn announcements_and_states(&self, relays: impl Fn(usize) -> Vec<String>) -> Result<Vec<Vec<SignedEvent>>> {
        let mut lists = Vec::new();
        for (index, (project, state)) in self.corpus.projects.iter().zip(&self.corpus.states).enumerate() {
            let relays = relays(index);
            let relays: Vec<&str> = relays.iter().map(String::as_str).collect();
            lists.push(vec![project.announcement(&[SOURCE, FOLLOWER], &relays)?, state.clone()]);
        }
        Ok(lists)
    }

    /// Returns all events, repository by repository.
    #[cfg(feature = "compare")]
    pub(super) fn all_events(&self, relays: impl Fn(usize) -> Vec<String>) -> Result<Vec<Vec<SignedEvent>>> {
        let mut lists = self.announcements_and_states(relays)?;
        for (list, discussions) in lists.iter_mut().zip(&self.corpus.discussions) {
            list.extend(discussions.iter().cloned());
        }
        Ok(lists)
    }

    /// Returns the relays in announcements when there are two servers.
    pub(super) fn both_servers(_: usize) -> Vec<String> {
        vec![SOURCE.to_owned(), FOLLOWER.to_owned()]
    }

    /// Starts a source with all data, and the proxy to it.
    pub(super) async fn source(&self) -> Result<(GraspdServer, CountingProxy)> {
        self.source_with(Vec::new()).await
    }

    /// Starts a source with additional settings.
    pub(super) async fn source_with(
        &self,
        settings: Vec<(&'static str, String)>,
    ) -> Result<(GraspdServer, CountingProxy)> {
        let source = ServerPlan { settings, ..self.with_git_data("source", SOURCE).await? }.start()?;
        self.fill(&source, Self::both_servers).await?;
        let proxy = CountingProxy::start(SOURCE, source.address).await?;
        Ok((source, proxy))
    }
}

/// Returns the seconds between two times.
pub(super) fn seconds(from: Option<Instant>, to: Instant) -> f64 {
    from.map_or(0.0, |from| crate::process_usage::rounded(to.saturating_duration_since(from).as_secs_f64()))
}
