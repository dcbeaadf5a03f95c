//! Events and git data at one moment.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use grasp_core::nostr::hex;
use grasp_git::backup::Links;
use grasp_git::layout::Layout;
use grasp_store::{Counts, DiskUse, Store};
use serde_json::{Value, json};

use super::Tell;
use crate::cli::call::{Body, Line};
use crate::cli::{Context, Failure};
use crate::config::{Config, Policy};
use crate::data_lock::Locks;

/// How long somebody else is waited for.
const BUSY: Duration = Duration::from_secs(5);

/// A moment that this process has made. Dropping it removes it.
pub(crate) struct Taken {
    links: Links,
    counts: Counts,
    store: String,
    service: Served,
}

/// What the data means: whoever looks at it may have other settings than the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Served {
    /// The name of the service, and the path below it.
    pub(crate) domain: String,
    pub(crate) base_path: String,
    /// Whether it is a general relay.
    pub(crate) open: bool,
    /// Whether listed maintainers must list back.
    pub(crate) strict: bool,
    /// Whether there are submissions.
    pub(crate) submissions: bool,
}

/// A moment on the disk: `events/` and `git/` in one folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Scene {
    /// The folder.
    pub(crate) folder: PathBuf,
    /// Served events.
    pub(crate) served: u64,
    /// Held events.
    pub(crate) held: u64,
    /// The last sequence number.
    pub(crate) last_seq: u64,
    /// Repositories with git data.
    pub(crate) repositories: u64,
    /// The id of the store.
    pub(crate) store: String,
    /// The file of the owner's key, if there is one.
    pub(crate) key: Option<PathBuf>,
    /// What it means.
    pub(crate) service: Served,
}

/// Makes a moment: links to all git data and a copy of the store. While links are made somebody may wait for it, so that
/// nobody is told of them, but it stops when it is not `wanted`.
pub(crate) fn take(
    store: &Store,
    layout: &Layout,
    (service, reserve): (Served, u64),
    wanted: &dyn Fn() -> Result<()>,
    tell: &mut Tell<'_>,
) -> Result<Taken> {
    let needed = store.file_bytes()?.saturating_add(reserve);
    let free = DiskUse::of(layout.root())?.free;
    if free < needed {
        bail!(
            "the copy of the event store needs {needed} bytes on the disk of {}, {free} are free",
            layout.root().display()
        );
    }
    tell("linking repositories", 0, None)?;
    // In this order: see `grasp_git::backup`.
    let still = layout.hold_removals();
    let moment = store.moment()?;
    let links = still.link_all(|_| wanted())?;
    drop(still);
    let counts = moment.counts()?;
    let events = links.folder().join("events");
    std::fs::create_dir(&events)?;
    moment.write_to(&events, |done| tell("copying rows of the event store", done, Some(counts.rows)))?;
    Ok(Taken { links, counts, store: hex::encode(&moment.store_id()), service })
}

impl Taken {
    /// What others must know of it.
    pub(crate) fn scene(&self, config: &Config) -> Scene {
        Scene {
            folder: self.links.folder().to_owned(),
            served: self.counts.served,
            held: self.counts.held,
            last_seq: self.counts.last_seq,
            repositories: self.links.repositories,
            store: self.store.clone(),
            key: Some(config.owner_file()).filter(|key| key.exists()),
            service: self.service.clone(),
        }
    }
}

impl Served {
    /// As the settings say.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            domain: config.domain.clone(),
            base_path: config.base_path.clone(),
            open: matches!(config.policy, Policy::Open),
            strict: config.strict_maintainers,
            submissions: config.submissions,
        }
    }

    /// Makes settings mean the same.
    pub(crate) fn adopt(&self, config: &mut Config) {
        config.domain.clone_from(&self.domain);
        config.base_path.clone_from(&self.base_path);
        config.policy = if self.open { Policy::Open } else { Policy::Grasp };
        config.strict_maintainers = self.strict;
        config.submissions = self.submissions;
    }

    /// As it is told and written.
    pub(crate) fn value(&self) -> Value {
        json!({
            "domain": self.domain,
            "base_path": self.base_path,
            "open": self.open,
            "strict_maintainers": self.strict,
            "submissions": self.submissions,
        })
    }

    pub(crate) fn read(value: &Value) -> Option<Self> {
        Some(Self {
            domain: value["domain"].as_str()?.to_owned(),
            base_path: value["base_path"].as_str()?.to_owned(),
            open: value["open"].as_bool()?,
            strict: value["strict_maintainers"].as_bool()?,
            submissions: value["submissions"].as_bool()?,
        })
    }
}

impl Scene {
    /// As it goes over the admin socket.
    pub(crate) fn value(&self) -> Value {
        json!({
            "folder": self.folder,
            "served": self.served,
            "held": self.held,
            "last_seq": self.last_seq,
            "repositories": self.repositories,
            "store": self.store,
            "key": self.key,
            "service": self.service.value(),
        })
    }

    fn read(value: &Value) -> Option<Self> {
        Some(Self {
            folder: PathBuf::from(value["folder"].as_str()?),
            served: value["served"].as_u64()?,
            held: value["held"].as_u64()?,
            last_seq: value["last_seq"].as_u64()?,
            repositories: value["repositories"].as_u64()?,
            store: value["store"].as_str()?.to_owned(),
            key: value["key"].as_str().map(PathBuf::from),
            service: Served::read(&value["service"])?,
        })
    }
}

/// Makes a moment of the server that these settings describe, whether it runs or not, and does something with it. `tell`
/// hears how far the server is.
pub(crate) fn with<T>(
    context: &Context<'_>,
    config: &Config,
    tell: &mut Tell<'_>,
    work: impl FnOnce(&Scene, &mut Tell<'_>) -> Result<T>,
) -> Result<T, Failure> {
    let mut work = Some(work);
    let mut result = None;
    let called = patiently(|| {
        context.call("snapshot", Body::none(), &mut |line| {
            match line {
                Line::Progress { what, done, total } => tell(&what, done, total).map_err(failed)?,
                Line::Item(item) => {
                    let scene = Scene::read(&item).ok_or_else(|| {
                        Failure::Failed("the server says what this version does not understand".to_owned())
                    })?;
                    result = work.take().map(|work| work(&scene, tell));
                    // Hanging up tells the server that it is not needed any more.
                    return Err(Failure::Failed(String::new()));
                }
            }
            Ok(())
        })
    });
    if let Some(result) = result {
        return result.map_err(failed);
    }
    let silence = match called {
        // Also if there is no socket at all: the lock tells whether a server runs.
        Err(Failure::NotRunning { socket, .. }) => format!("no server answers at {}", socket.display()),
        Err(Failure::Usage(_)) => "no server can be asked, because ADMIN_SOCKET is off".to_owned(),
        Err(other) => return Err(other),
        Ok(_) => return Err(Failure::Failed("the server has made no moment".to_owned())),
    };
    let work = work.take().ok_or_else(|| Failure::Failed("the server has broken off".to_owned()))?;
    stopped(config, &silence, tell, work).map_err(failed)
}

/// Tries again for a while what must be alone: the server may not have noticed yet that an earlier command is gone.
pub(super) fn patiently<T>(mut call: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let until = Instant::now() + BUSY;
    loop {
        match call() {
            Err(Failure::Refused { code, .. }) if code == "busy" && Instant::now() < until => {
                std::thread::sleep(BUSY / 50);
            }
            result => return result,
        }
    }
}

/// The same for a server that does not run.
fn stopped<T>(
    config: &Config,
    silence: &str,
    tell: &mut Tell<'_>,
    work: impl FnOnce(&Scene, &mut Tell<'_>) -> Result<T>,
) -> Result<T> {
    let events = config.relay_data_path.join("events");
    if !events.join("data.mdb").exists() {
        bail!(
            "no server answers, and {} has no events: give the settings of the server, such as --config or \
             --relay-data-path",
            config.relay_data_path.display()
        );
    }
    let _locks = Locks::take(&config.relay_data_path, &config.git_data_path).with_context(|| {
        format!("{silence}; if one runs, say where its socket is with --admin-socket or NGIT_ADMIN_SOCKET")
    })?;
    refuse_unfinished(&config.relay_data_path)?;
    // Whoever runs this may be another user than the server is: nothing is made that stays.
    let layout = Layout::look(&config.git_data_path)
        .with_context(|| format!("cannot use the folder {}", config.git_data_path.display()))?;
    let store = Store::open_unchanging(&events)?;
    let means = (Served::of(config), config.store_reserve_bytes);
    let taken = take(&store, &layout, means, &|| Ok(()), tell)?;
    work(&taken.scene(config), tell)
}

/// A folder into which a restore has not come to its end is nobody's server.
pub(crate) fn refuse_unfinished(relay: &Path) -> Result<()> {
    if relay.join(super::UNFINISHED).exists() {
        bail!(
            "a restore into {} was interrupted: run `graspd restore` again, which begins anew, or empty the data folders",
            relay.display()
        );
    }
    Ok(())
}

pub(crate) fn failed(problem: anyhow::Error) -> Failure {
    match problem.downcast::<Failure>() {
        Ok(failure) => failure,
        Err(problem) => Failure::Failed(format!("{problem:#}")),
    }
}
