//! Kind 30617: a repository exists, here is where, and these keep it.

use super::id::{Identifier, RepoId};
use super::maintainers::Roles;
use super::service::Service;
use crate::limits;
use crate::nostr::event::{Event, Stamp};

/// What the house remembers of an announcement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// Whose, and its name.
    pub repo: RepoId,
    /// Which version.
    pub stamp: Stamp,
    /// Whether it names this service in `clone` and `relays`.
    pub listed: bool,
    /// Whether the operator keeps the repository, whatever it names (GRASP-05).
    pub archived: bool,
    /// Whether it was taken in only because somebody hosted here names its author as a maintainer. It goes with the last
    /// such name. One that is merely not listed (any more: the service's own name may change) is left alone.
    pub exception: bool,
    /// Who keeps it, by its author's word.
    pub roles: Roles,
    /// Git servers that have it.
    pub clone: Vec<String>,
    /// Relays that have its events, this service not among them.
    pub relays: Vec<String>,
}

/// The first few URLs that are no longer than URLs are.
pub(super) fn sensible<'a>(urls: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    urls.filter(|url| url.len() <= limits::MAX_URL_BYTES).take(limits::MAX_URLS)
}

impl Announcement {
    /// Whether the repository is hosted here because of it.
    #[must_use]
    pub fn is_hosted(&self) -> bool {
        self.listed || self.archived
    }

    /// Reads an announcement, without the operator's opinion; `None` if its `d` tag cannot name a repository.
    #[must_use]
    pub fn read(event: &Event, service: &Service) -> Option<Self> {
        let repo = RepoId { owner: event.pubkey, identifier: Identifier::new(event.tag("d")?)? };
        let others = event.all_values("relays").filter(|relay| !service.is_own_relay(relay));
        Some(Self {
            listed: service.is_listed(event, &repo),
            archived: false,
            exception: false,
            stamp: event.stamp(),
            roles: Roles::read(event),
            clone: sensible(event.all_values("clone")).map(str::to_owned).collect(),
            relays: sensible(others).map(str::to_owned).collect(),
            repo,
        })
    }
}
