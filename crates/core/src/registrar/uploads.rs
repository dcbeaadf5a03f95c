//! Uploads to `refs/nostr/<event id>` that nobody has signed yet. Anybody can make them, so they are few and short-lived.

use std::collections::{BTreeMap, BTreeSet};

use super::io::Upload;
use crate::limits;
use crate::nostr::event::EventId;
use crate::repo::Site;
use crate::time::Moment;

/// All uploads that wait for their events.
#[derive(Clone, Debug, Default)]
pub struct Uploads {
    waiting: BTreeMap<EventId, BTreeMap<Site, (Upload, Moment)>>,
    deadlines: BTreeSet<(Moment, EventId, Site)>,
    by_network: BTreeMap<Option<String>, Share>,
    total: Share,
    /// The highest folder number that was ever in use.
    last_parcel: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    count: usize,
    bytes: u64,
}

impl Share {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: u64) {
        self.count -= 1;
        self.bytes -= bytes;
    }

    fn has_room(self, bytes: u64, most: usize, most_bytes: u64) -> bool {
        self.count < most && self.bytes.saturating_add(bytes) <= most_bytes
    }
}

impl Uploads {
    /// Whether there is room for one more of this size from this network. Loopback has no budget of its own.
    #[must_use]
    pub fn has_room(&self, network: &Option<String>, bytes: u64) -> bool {
        let share = self.by_network.get(network).copied().unwrap_or_default();
        let free = share.has_room(bytes, limits::MAX_UPLOADS_PER_NETWORK, limits::MAX_UPLOAD_BYTES_PER_NETWORK);
        (network.is_none() || free) && self.total.has_room(bytes, limits::MAX_UPLOADS, limits::MAX_UPLOAD_BYTES)
    }

    /// A folder number that no upload has had.
    pub fn next_parcel(&mut self) -> u64 {
        self.last_parcel += 1;
        self.last_parcel
    }

    /// Takes one in and gives back the one that it replaces.
    pub fn put(&mut self, upload: Upload, deadline: Moment) -> Option<Upload> {
        let replaced = self.take(upload.event, &upload.site);
        self.last_parcel = self.last_parcel.max(upload.parcel);
        self.by_network.entry(upload.network.clone()).or_default().add(upload.bytes);
        self.total.add(upload.bytes);
        self.deadlines.insert((deadline, upload.event, upload.site.clone()));
        let of_event = self.waiting.entry(upload.event).or_default();
        of_event.insert(upload.site.clone(), (upload, deadline));
        replaced
    }

    /// Lets one go.
    pub fn take(&mut self, event: EventId, site: &Site) -> Option<Upload> {
        let of_event = self.waiting.get_mut(&event)?;
        let (upload, deadline) = of_event.remove(site)?;
        if of_event.is_empty() {
            self.waiting.remove(&event);
        }
        self.deadlines.remove(&(deadline, event, site.clone()));
        self.total.remove(upload.bytes);
        if let Some(share) = self.by_network.get_mut(&upload.network) {
            share.remove(upload.bytes);
            if share.count == 0 {
                self.by_network.remove(&upload.network);
            }
        }
        Some(upload)
    }

    /// The upload for an event at a site.
    #[must_use]
    pub fn get(&self, event: EventId, site: &Site) -> Option<&Upload> {
        self.waiting.get(&event)?.get(site).map(|(upload, _)| upload)
    }

    /// All uploads for an event, wherever they are.
    pub fn of_event(&self, event: EventId) -> impl Iterator<Item = &Upload> {
        self.waiting.get(&event).into_iter().flatten().map(|(_, (upload, _))| upload)
    }

    /// All uploads.
    pub fn iter(&self) -> impl Iterator<Item = &Upload> {
        self.waiting.values().flat_map(BTreeMap::values).map(|(upload, _)| upload)
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|(deadline, _, _)| *deadline)
    }

    /// One whose time is over.
    #[must_use]
    pub fn overdue(&self, now: Moment) -> Option<(EventId, Site)> {
        let (_, event, site) = self.deadlines.first().filter(|(deadline, _, _)| *deadline <= now)?;
        Some((*event, site.clone()))
    }
}
