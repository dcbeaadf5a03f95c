//! `snapshot`: a consistent copy of events and git data on disk, which exists while the client is connected.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use grasp_core::admission::policy::AdmissionMode;
use grasp_core::nostr::hex;
use grasp_git::backup::HardLinkSnapshot;
use grasp_git::layout::Layout;
use grasp_store::{DiskSpace, Store};

use super::AdminState;
use super::api::{JobProgress, Nothing, ServiceSettings, SnapshotContent, SnapshotInfo};
use super::deferred_events::{self, DeferredEvents};
use super::wire::{AdminError, ResponseWriter};
use crate::config::Config;

/// Receives the progress of a long operation: what is done, how much of it, and the total if it is known. An error
/// stops the operation.
pub(crate) type ProgressFn<'t> = dyn FnMut(&str, u64, Option<u64>) -> Result<()> + 't;

/// Creates a snapshot, sends its description, and removes it when the client disconnects. Pushes and events continue
/// meanwhile; removals of git data wait while the links are made.
pub(super) async fn snapshot(
    admin: &Arc<AdminState>,
    writer: ResponseWriter<SnapshotInfo>,
) -> Result<Nothing, AdminError> {
    let _exclusive = admin.begin_exclusive("a backup or a verification")?;
    let (store, layout) = (admin.store.clone(), admin.layout.clone());
    let config = &admin.config;
    let (service_and_reserve, progress_writer) =
        ((ServiceSettings::from_config(config), config.store_reserve_bytes), writer.clone());
    let relay_folder = config.relay_data_path.clone();
    let work = move || {
        let cancelled = |_: AdminError| anyhow!("the client has disconnected");
        let check_wanted = || progress_writer.check_open().map_err(cancelled);
        let mut on_progress = |what: &str, done, total| {
            let progress = JobProgress { what: what.to_owned(), done, total };
            progress_writer.send_progress_blocking(&progress).map_err(cancelled)
        };
        take_snapshot(&store, &layout, &relay_folder, service_and_reserve, &check_wanted, &mut on_progress)
    };
    let snapshot = tokio::task::spawn_blocking(work).await.map_err(AdminError::failed)?.map_err(AdminError::failed)?;
    writer.send_item(&snapshot.info(config)).await?;
    writer.closed().await;
    // Removing many files can take long.
    let _ = tokio::task::spawn_blocking(move || drop(snapshot)).await;
    Ok(Nothing {})
}

/// A snapshot that this process has created. Dropping it removes it.
pub(crate) struct Snapshot {
    links: HardLinkSnapshot,
    content: SnapshotContent,
}

/// Creates a snapshot: hard links to all git data, and a copy of the store. Removals wait while the links are made, so
/// there is no progress output then, but `check_wanted` can stop it.
pub(crate) fn take_snapshot(
    store: &Store,
    layout: &Layout,
    relay_folder: &Path,
    (service, reserve): (ServiceSettings, u64),
    check_wanted: &dyn Fn() -> Result<()>,
    on_progress: &mut ProgressFn<'_>,
) -> Result<Snapshot> {
    let needed = store.file_bytes()?.saturating_add(reserve);
    let free = DiskSpace::read(layout.root())?.free;
    if free < needed {
        bail!(
            "the copy of the event store needs {needed} bytes on the disk of {}, but only {free} are free",
            layout.root().display()
        );
    }
    on_progress("linking repositories", 0, None)?;
    // This order makes the snapshot consistent: see `grasp_git::backup`.
    let removals_held = layout.pause_removals();
    // Opened before: an event that is accepted meanwhile is in the file, or in the store.
    let deferred = DeferredEvents::open_file(relay_folder)?;
    let store_snapshot = store.snapshot()?;
    let links = removals_held.link_all(|_| check_wanted())?;
    drop(removals_held);
    let counts = store_snapshot.counts()?;
    if let Some(mut deferred) = deferred {
        let mut copy = File::create(links.folder().join(deferred_events::FILE_NAME))?;
        std::io::copy(&mut deferred, &mut copy)?;
    }
    let events = links.folder().join("events");
    std::fs::create_dir(&events)?;
    store_snapshot.copy_to(&events, |done| on_progress("copying rows of the event store", done, Some(counts.rows)))?;
    let content = SnapshotContent {
        served: counts.served,
        held: counts.held,
        last_seq: counts.last_seq,
        repositories: links.repositories,
        store: hex::encode(&store_snapshot.store_id()),
        service,
    };
    Ok(Snapshot { links, content })
}

impl Snapshot {
    /// Returns the description of the snapshot.
    pub(crate) fn info(&self, config: &Config) -> SnapshotInfo {
        SnapshotInfo {
            folder: self.links.folder().to_owned(),
            key: Some(config.owner_file()).filter(|key| key.exists()),
            data_folders: [&config.relay_data_path, &config.git_data_path]
                .into_iter()
                .filter_map(|folder| folder.canonicalize().ok())
                .collect(),
            content: self.content.clone(),
        }
    }
}

impl ServiceSettings {
    /// Takes the values from the settings.
    pub(crate) fn from_config(config: &Config) -> Self {
        Self {
            domain: config.domain.clone(),
            base_path: config.base_path.clone(),
            is_open_relay: matches!(config.policy, AdmissionMode::Open),
            strict_maintainers: config.strict_maintainers,
            submissions: config.submissions,
        }
    }

    /// Overwrites these values in other settings.
    pub(crate) fn apply_to(&self, config: &mut Config) {
        config.domain.clone_from(&self.domain);
        config.base_path.clone_from(&self.base_path);
        config.policy = if self.is_open_relay { AdmissionMode::Open } else { AdmissionMode::Grasp };
        config.strict_maintainers = self.strict_maintainers;
        config.submissions = self.submissions;
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The keys and values are part of the socket protocol, and `service` is part of the manifest of a backup.
    #[test]
    fn json_of_a_snapshot_is_stable() {
        let service = ServiceSettings {
            domain: "code.example".to_owned(),
            base_path: "/x".to_owned(),
            is_open_relay: true,
            strict_maintainers: false,
            submissions: true,
        };
        let content =
            SnapshotContent { served: 1, held: 2, last_seq: 3, repositories: 4, store: "ab".to_owned(), service };
        let (folder, key) = (PathBuf::from("/srv/snapshot"), Some(PathBuf::from("/srv/key")));
        let info = SnapshotInfo { folder, key, data_folders: vec![PathBuf::from("/srv/relay")], content };
        let text = serde_json::json!(info).to_string();
        assert_eq!(
            text,
            r#"{"data_folders":["/srv/relay"],"folder":"/srv/snapshot","held":2,"key":"/srv/key","last_seq":3,"repositories":4,"served":1,"service":{"base_path":"/x","domain":"code.example","open":true,"strict_maintainers":false,"submissions":true},"store":"ab"}"#
        );
        assert_eq!(serde_json::from_str::<SnapshotInfo>(&text).expect("a snapshot"), info);
    }
}
