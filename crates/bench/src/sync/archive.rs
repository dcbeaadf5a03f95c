//! `archive`: an empty server copies all events and git data of another one, compared with `git clone --mirror`.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use grasp_core::nostr::kinds::PULL_REQUEST;
use serde::Serialize;
use serde_json::json;
use tokio::time::sleep;

use super::corpus::Project;
use super::publish::{count, publish, served, wait_until_count};
use super::result_table::print_progress;
use super::server::{GraspdServer, POLL_INTERVAL, ServerPlan, create_empty_folder};
use super::world::{FOLLOWER, SOURCE, SYNC_TIMEOUT, SyncSetup, seconds};
use crate::connection::{Connection, Traffic};
use crate::event::{Draft, SignedEvent};
use crate::git::installed_git;
use crate::machine;
use crate::process_usage::rounded;
use crate::repository::{YEAR, YEAR_START, tag};

/// Every tenth repository has a pull request.
const PULL_REQUEST_EVERY: usize = 10;

/// Maximum number of concurrent fetches or clones.
const CONCURRENT: usize = 8;

/// Result of `archive`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ArchiveFigures {
    /// Number of repositories.
    pub(super) repositories: u64,
    /// Events served at the end, including pull requests.
    pub(super) events: u64,
    /// Number of pull requests.
    pub(super) pull_requests: u64,
    /// Time from the first connection until everything was served.
    pub(super) served_seconds: f64,
    /// Requests for git data.
    pub(super) fetches: u64,
    /// Duration of one `git clone --mirror` per repository, with the same concurrency.
    pub(super) mirror_seconds: f64,
    /// `served_seconds` divided by `mirror_seconds`.
    pub(super) ratio: f64,
    /// CPU time of the follower, without its children.
    pub(super) follower_cpu_seconds: f64,
    /// Cores used by all processes of the machine.
    pub(super) busy_cores: f64,
    /// Warnings and errors in the log of the follower.
    #[serde(rename = "complaints")]
    pub(super) warnings: Vec<String>,
}

/// Runs both measurements.
pub(super) async fn run(setup: &SyncSetup) -> Result<ArchiveFigures> {
    let limits = |concurrent: &'static str, rate: &'static str| {
        vec![(concurrent, CONCURRENT.to_string()), (rate, "6000".to_owned())]
    };
    let (source, proxy) = setup.source_with(limits("GIT_PEER_CONCURRENT", "GIT_PEER_RATE_LIMIT")).await?;
    let pulls = sign_pull_requests(setup)?;
    let pull_requests = pulls.len() as u64;
    publish(source.address, &[pulls]).await.context("pull requests")?;
    wait_until_count(&source, &json!({ "kinds": [PULL_REQUEST] }), pull_requests).await?;

    let mirror_seconds = clone_all(setup, &source).await?;
    print_progress(&format!("git clone --mirror: {mirror_seconds} s"));

    proxy.reset();
    let settings = limits("SYNC_DOMAIN_CONCURRENT", "SYNC_DOMAIN_RATE_LIMIT");
    let plan = ServerPlan { settings, ..setup.empty("archive", FOLLOWER)? };
    let (busy, started) = (machine::busy_time()?, Instant::now());
    let follower = plan.syncing_from(vec![format!("ws://{SOURCE}")]).start()?;
    let events = setup.corpus.size.events();
    let at = wait_until_served(&follower, events, pull_requests).await?;
    let busy = machine::busy_time()?.saturating_sub(busy).as_secs_f64() / started.elapsed().as_secs_f64();
    let traffic = proxy.traffic();
    let served_seconds = seconds(traffic.first_connection_at, at);
    Ok(ArchiveFigures {
        repositories: setup.corpus.size.repositories,
        events: events + pull_requests,
        pull_requests,
        served_seconds,
        fetches: traffic.fetches,
        mirror_seconds,
        ratio: rounded(served_seconds / mirror_seconds),
        follower_cpu_seconds: rounded(follower.process().cpu_time()?.as_secs_f64()),
        busy_cores: rounded(busy),
        warnings: follower.warnings(),
    })
}

/// Signs pull requests for some of the repositories.
fn sign_pull_requests(setup: &SyncSetup) -> Result<Vec<SignedEvent>> {
    let projects = setup.corpus.projects.iter().step_by(PULL_REQUEST_EVERY);
    projects.map(|project| sign_pull_request(project, setup.pull_request_commit())).collect()
}

fn sign_pull_request(project: &Project, commit: &str) -> Result<SignedEvent> {
    let tags = vec![
        tag(["a", &project.coordinate()]),
        tag(["p", &project.owner.public_key]),
        tag(["subject", "an offer"]),
        tag(["c", commit]),
    ];
    project.owner.sign(Draft {
        kind: PULL_REQUEST,
        created_at: YEAR_START + YEAR,
        tags,
        content: "please merge".into(),
    })
}

/// Clones every repository with git and returns the duration.
async fn clone_all(setup: &SyncSetup, source: &GraspdServer) -> Result<f64> {
    let folder = create_empty_folder(&setup.path("mirrors"), "git")?;
    let started = Instant::now();
    let clones = stream::iter(&setup.corpus.projects).map(|project| {
        let url = format!("http://{}/{}/{}.git", source.address, project.npub, project.identifier);
        let mut git = installed_git::git(&folder);
        git.args(["clone", "--quiet", "--mirror", &url, &project.identifier]);
        installed_git::run_timed(git)
    });
    clones.buffer_unordered(CONCURRENT).try_collect::<Vec<_>>().await?;
    // The clones are kept until the next run, because creating files is slow after thousands of files were removed.
    Ok(rounded(started.elapsed().as_secs_f64()))
}

/// Waits until a server serves everything.
async fn wait_until_served(server: &GraspdServer, events: u64, pull_requests: u64) -> Result<Instant> {
    let mut connection = Connection::open(&server.url()?, Traffic::Light).await?;
    let started = Instant::now();
    let mut shown = Instant::now();
    loop {
        let all = served(&mut connection).await?;
        let pulls = count(&mut connection, &json!({ "kinds": [PULL_REQUEST] })).await?;
        if all >= events && pulls >= pull_requests {
            return Ok(Instant::now());
        }
        if shown.elapsed().as_secs() >= 5 {
            shown = Instant::now();
            print_progress(&format!("{all} of {events} events, {pulls} of {pull_requests} pull requests"));
        }
        if started.elapsed() > SYNC_TIMEOUT {
            bail!("{all} of {events} events, {pulls} of {pull_requests} pull requests; {:#?}", server.warnings());
        }
        sleep(5 * POLL_INTERVAL).await;
    }
}
