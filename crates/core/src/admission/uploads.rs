//! Uploads to `refs/nostr/<event id>` whose event is not known yet. Any client can create them, so their number, size
//! and lifetime are bounded (docs/protocol.md#pull-request-refs).

use std::collections::{BTreeMap, BTreeSet};

use super::io::PendingUpload;
use crate::disk_budget::GitUsage;
use crate::limits;
use crate::nostr::event::EventId;
use crate::repo::{Identifier, RepoPath};
use crate::time::MonoTime;

/// All uploads whose event is not known yet.
#[derive(Clone, Debug, Default)]
pub struct PendingUploads {
    uploads: BTreeMap<EventId, BTreeMap<RepoPath, (PendingUpload, MonoTime)>>,
    deadlines: BTreeSet<(MonoTime, EventId, RepoPath)>,
    uploads_by_identifier: BTreeMap<Identifier, BTreeSet<(EventId, RepoPath)>>,
    by_network: BTreeMap<Option<String>, UploadUsage>,
    total: UploadUsage,
    /// The highest folder number that was ever used.
    last_folder: u64,
}

/// Number and size of uploads.
#[derive(Clone, Copy, Debug, Default)]
struct UploadUsage {
    count: usize,
    bytes: u64,
}

impl UploadUsage {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: u64) {
        self.count -= 1;
        self.bytes -= bytes;
    }

    fn has_capacity(self, count: usize, bytes: u64, max_count: usize, max_bytes: u64) -> bool {
        self.count.saturating_add(count) <= max_count && self.bytes.saturating_add(bytes) <= max_bytes
    }
}

impl PendingUploads {
    /// Whether `count` more uploads with `bytes` in total are accepted from this network. Zero uploads are always
    /// accepted. Loopback (`None`) has no limit of its own.
    #[must_use]
    pub fn has_capacity(&self, network: &Option<String>, count: usize, bytes: u64) -> bool {
        let usage = self.by_network.get(network).copied().unwrap_or_default();
        let has_network_capacity =
            usage.has_capacity(count, bytes, limits::MAX_UPLOADS_PER_NETWORK, limits::MAX_UPLOAD_BYTES_PER_NETWORK);
        let has_total_capacity = self.total.has_capacity(count, bytes, limits::MAX_UPLOADS, limits::MAX_UPLOAD_BYTES);
        count == 0 || (has_total_capacity && (network.is_none() || has_network_capacity))
    }

    /// Returns a folder number that no upload has used.
    pub fn next_folder(&mut self) -> u64 {
        self.last_folder += 1;
        self.last_folder
    }

    /// Adds an upload and returns the one that it replaces.
    pub fn insert(&mut self, upload: PendingUpload, deadline: MonoTime) -> Option<PendingUpload> {
        let replaced = self.remove(upload.event, &upload.repo_path);
        self.last_folder = self.last_folder.max(upload.folder);
        self.by_network.entry(upload.network.clone()).or_default().add(upload.bytes);
        self.total.add(upload.bytes);
        self.deadlines.insert((deadline, upload.event, upload.repo_path.clone()));
        let same_identifier = self.uploads_by_identifier.entry(upload.repo_path.identifier().clone()).or_default();
        same_identifier.insert((upload.event, upload.repo_path.clone()));
        let same_event = self.uploads.entry(upload.event).or_default();
        same_event.insert(upload.repo_path.clone(), (upload, deadline));
        replaced
    }

    /// Removes and returns an upload.
    pub fn remove(&mut self, event: EventId, repo_path: &RepoPath) -> Option<PendingUpload> {
        let same_event = self.uploads.get_mut(&event)?;
        let (upload, deadline) = same_event.remove(repo_path)?;
        if same_event.is_empty() {
            self.uploads.remove(&event);
        }
        self.deadlines.remove(&(deadline, event, repo_path.clone()));
        if let Some(same_identifier) = self.uploads_by_identifier.get_mut(repo_path.identifier()) {
            same_identifier.remove(&(event, repo_path.clone()));
            if same_identifier.is_empty() {
                self.uploads_by_identifier.remove(repo_path.identifier());
            }
        }
        self.total.remove(upload.bytes);
        if let Some(usage) = self.by_network.get_mut(&upload.network) {
            usage.remove(upload.bytes);
            if usage.count == 0 {
                self.by_network.remove(&upload.network);
            }
        }
        Some(upload)
    }

    /// Changes the deadline of an upload.
    pub fn set_deadline(&mut self, event: EventId, repo_path: &RepoPath, until: MonoTime) {
        let Some((_, deadline)) = self.uploads.get_mut(&event).and_then(|same_event| same_event.get_mut(repo_path))
        else {
            return;
        };
        self.deadlines.remove(&(*deadline, event, repo_path.clone()));
        *deadline = until;
        self.deadlines.insert((until, event, repo_path.clone()));
    }

    /// Returns the upload for an event to a repository.
    #[must_use]
    pub fn get(&self, event: EventId, repo_path: &RepoPath) -> Option<&PendingUpload> {
        self.uploads.get(&event)?.get(repo_path).map(|(upload, _)| upload)
    }

    /// Iterates over all uploads for an event, to any repository.
    pub fn by_event(&self, event: EventId) -> impl Iterator<Item = &PendingUpload> {
        self.uploads.get(&event).into_iter().flatten().map(|(_, (upload, _))| upload)
    }

    /// Iterates over the events of all uploads to repositories with an identifier.
    pub fn by_identifier(&self, identifier: &Identifier) -> impl Iterator<Item = EventId> {
        self.uploads_by_identifier.get(identifier).into_iter().flatten().map(|(event, _)| *event)
    }

    /// Returns the size of the uploads to a repository, and to all repositories of its owner.
    #[must_use]
    pub fn disk_usage(&self, repo_path: &RepoPath) -> GitUsage {
        let same_owner = self.iter().filter(|upload| upload.repo_path.repo().owner == repo_path.repo().owner);
        same_owner.fold(GitUsage::default(), |usage, upload| {
            let repository_bytes = if upload.repo_path == *repo_path { upload.bytes } else { 0 };
            usage + GitUsage { repository_bytes, owner_bytes: upload.bytes }
        })
    }

    /// Iterates over all uploads.
    pub fn iter(&self) -> impl Iterator<Item = &PendingUpload> {
        self.uploads.values().flat_map(BTreeMap::values).map(|(upload, _)| upload)
    }

    /// Returns the earliest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoTime> {
        self.deadlines.first().map(|(deadline, _, _)| *deadline)
    }

    /// Returns an upload whose deadline has passed, if there is one.
    #[must_use]
    pub fn next_expired(&self, now: MonoTime) -> Option<(EventId, RepoPath)> {
        let (_, event, repo_path) = self.deadlines.first().filter(|(deadline, _, _)| *deadline <= now)?;
        Some((*event, repo_path.clone()))
    }
}
