//! Two servers: a source that has everything, and a follower that is to have it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::SyncArgs;
use super::corpus::{Corpus, Extent};
use super::folders::Original;
use super::publish::{publish, until_served};
use super::server::{Follows, Plan, Server, fresh};
use super::wire::Wire;
use crate::event::SignedEvent;
use crate::progress::Progress;
use crate::repository::{ANNOUNCEMENT, COMMENT, ISSUE, STATE};

/// Where the follower finds the source, and what events call the source. It is the near end of the wire.
pub(super) const SOURCE: &str = "127.77.0.1:7701";

/// What events call the follower. Nobody dials it.
pub(super) const FOLLOWER: &str = "127.77.0.2:7702";

/// How long the follower may take for anything.
pub(super) const PATIENCE: Duration = Duration::from_secs(900);

/// Everything that measurements share.
#[derive(Debug)]
pub(super) struct World {
    /// What there is.
    pub(super) corpus: Corpus,
    /// The program.
    pub(super) binary: PathBuf,
    original: Original,
    folder: PathBuf,
}

impl World {
    /// Signs what must be signed.
    pub(super) fn prepare(args: &SyncArgs) -> Result<Self> {
        fs::create_dir_all(&args.corpus).with_context(|| format!("cannot make {}", args.corpus.display()))?;
        let folder = args.corpus.canonicalize()?;
        let binary = args.graspd.canonicalize().with_context(|| format!("no {}", args.graspd.display()))?;
        let original = Original::have(&folder)?;
        let extent = Extent { seed: args.seed, repositories: args.repositories, roots: args.roots };
        let corpus = Corpus::have(&folder, extent, &original.commit)?;
        Ok(Self { corpus, binary, original, folder })
    }

    /// A server with an empty store, whose git data is there.
    pub(super) fn newborn(&self, name: &str, domain: &str) -> Result<Plan> {
        let plan = self.empty(name, domain)?;
        let progress = Progress::start(format!("git folders of the {name}"), self.corpus.extent.repositories);
        for project in &self.corpus.projects {
            self.original.put(&plan.git(), project)?;
            progress.advance(1);
        }
        Ok(plan)
    }

    /// A server that has nothing at all.
    pub(super) fn empty(&self, name: &str, domain: &str) -> Result<Plan> {
        let (folder, binary, domain) = (fresh(&self.folder, name)?, self.binary.clone(), domain.to_owned());
        Ok(Plan { binary, folder, domain, follows: Follows::Nobody, settings: Vec::new() })
    }

    /// The commit that pull requests offer.
    pub(super) fn offer(&self) -> &str {
        &self.original.offer
    }

    /// Where something is kept over runs.
    pub(super) fn shelf(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Brings the corpus onto a server, announced at some relays.
    pub(super) async fn fill(&self, server: &Server, relays: impl Fn(usize) -> Vec<String>) -> Result<()> {
        let url = server.url()?;
        let Extent { repositories, roots, .. } = self.corpus.extent;
        publish(&url, self.announced(relays)?).await.context("announcements")?;
        until_served(server, &json!({ "kinds": [ANNOUNCEMENT, STATE] }), 2 * repositories).await?;
        publish(&url, self.corpus.talk.clone()).await.context("issues and comments")?;
        until_served(server, &json!({ "kinds": [ISSUE, COMMENT] }), 2 * repositories * roots).await
    }

    /// The announcement and the state of every repository.
    fn announced(&self, relays: impl Fn(usize) -> Vec<String>) -> Result<Vec<Vec<SignedEvent>>> {
        let mut lists = Vec::new();
        for (index, (project, state)) in self.corpus.projects.iter().zip(&self.corpus.states).enumerate() {
            let relays = relays(index);
            let relays: Vec<&str> = relays.iter().map(String::as_str).collect();
            lists.push(vec![project.announcement(&[SOURCE, FOLLOWER], &relays)?, state.clone()]);
        }
        Ok(lists)
    }

    /// Everything, repository by repository.
    #[cfg(feature = "compare")]
    pub(super) fn lists(&self, relays: impl Fn(usize) -> Vec<String>) -> Result<Vec<Vec<SignedEvent>>> {
        let mut lists = self.announced(relays)?;
        for (list, talk) in lists.iter_mut().zip(&self.corpus.talk) {
            list.extend(talk.iter().cloned());
        }
        Ok(lists)
    }

    /// The relays that all announcements name when there are two servers.
    pub(super) fn both(_: usize) -> Vec<String> {
        vec![SOURCE.to_owned(), FOLLOWER.to_owned()]
    }

    /// A source that has everything, and the wire to it.
    pub(super) async fn source(&self) -> Result<(Server, Wire)> {
        self.source_with(Vec::new()).await
    }

    /// The same, with further settings.
    pub(super) async fn source_with(&self, settings: Vec<(&'static str, String)>) -> Result<(Server, Wire)> {
        let source = Plan { settings, ..self.newborn("source", SOURCE)? }.start()?;
        self.fill(&source, Self::both).await?;
        let wire = Wire::lay(SOURCE, source.address).await?;
        Ok((source, wire))
    }
}

/// Seconds between two moments.
pub(super) fn seconds(from: Option<Instant>, to: Instant) -> f64 {
    from.map_or(0.0, |from| crate::process_usage::rounded(to.saturating_duration_since(from).as_secs_f64()))
}
