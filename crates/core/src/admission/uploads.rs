//! Uploads to `refs/nostr/<event id>` that nobody has signed yet. Anybody can make them, so they are few and short-lived.

use std::collections::{BTreeMap, BTreeSet};

use super::io::Upload;
use crate::disk_budget::Weight;
use crate::limits;
use crate::nostr::event::EventId;
use crate::repo::{Identifier, Site};
use crate::time::Moment;

/// All uploads that wait for their events.
#[derive(Clone, Debug, Default)]
pub struct Uploads {
    waiting: BTreeMap<EventId, BTreeMap<Site, (Upload, Moment)>>,
    deadlines: BTreeSet<(Moment, EventId, Site)>,
    by_name: BTreeMap<Identifier, BTreeSet<(EventId, Site)>>,
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

    fn has_room(self, count: usize, bytes: u64, most: usize, most_bytes: u64) -> bool {
        self.count.saturating_add(count) <= most && self.bytes.saturating_add(bytes) <= most_bytes
    }
}

impl Uploads {
    /// Whether there is room for so many more of this size in all from this network; there always is for none. Loopback
    /// has no budget of its own.
    #[must_use]
    pub fn has_room(&self, network: &Option<String>, count: usize, bytes: u64) -> bool {
        let share = self.by_network.get(network).copied().unwrap_or_default();
        let free = share.has_room(count, bytes, limits::MAX_UPLOADS_PER_NETWORK, limits::MAX_UPLOAD_BYTES_PER_NETWORK);
        let room = self.total.has_room(count, bytes, limits::MAX_UPLOADS, limits::MAX_UPLOAD_BYTES);
        count == 0 || (room && (network.is_none() || free))
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
        let of_name = self.by_name.entry(upload.site.identifier().clone()).or_default();
        of_name.insert((upload.event, upload.site.clone()));
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
        if let Some(of_name) = self.by_name.get_mut(site.identifier()) {
            of_name.remove(&(event, site.clone()));
            if of_name.is_empty() {
                self.by_name.remove(site.identifier());
            }
        }
        self.total.remove(upload.bytes);
        if let Some(share) = self.by_network.get_mut(&upload.network) {
            share.remove(upload.bytes);
            if share.count == 0 {
                self.by_network.remove(&upload.network);
            }
        }
        Some(upload)
    }

    /// Lets one wait longer.
    pub fn postpone(&mut self, event: EventId, site: &Site, until: Moment) {
        let Some((_, deadline)) = self.waiting.get_mut(&event).and_then(|of_event| of_event.get_mut(site)) else {
            return;
        };
        self.deadlines.remove(&(*deadline, event, site.clone()));
        *deadline = until;
        self.deadlines.insert((until, event, site.clone()));
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

    /// The events of all uploads to repositories of a name.
    pub fn of_name(&self, identifier: &Identifier) -> impl Iterator<Item = EventId> {
        self.by_name.get(identifier).into_iter().flatten().map(|(event, _)| *event)
    }

    /// Bytes that wait at a site, and at all sites of its owner.
    #[must_use]
    pub fn weigh(&self, site: &Site) -> Weight {
        let of_owner = self.iter().filter(|upload| upload.site.repo().owner == site.repo().owner);
        of_owner.fold(Weight::default(), |weight, upload| {
            let repository = if upload.site == *site { upload.bytes } else { 0 };
            weight + Weight { repository, key: upload.bytes }
        })
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
