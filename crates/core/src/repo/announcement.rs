//! Repository announcements (kind 30617): where a repository is hosted and who maintains it.

use super::id::{Identifier, RepoId};
use super::maintainers::MaintainerRoles;
use super::service::ServiceAddress;
use crate::limits;
use crate::nostr::event::{Event, EventVersion};

/// The part of an announcement that is kept in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The announced repository: the event's author and its `d` tag.
    pub repo: RepoId,
    /// The event's timestamp and id.
    pub version: EventVersion,
    /// Whether it names this service in `clone` and `relays`.
    pub is_listed: bool,
    /// Whether the operator archives the repository, whatever services the announcement names (GRASP-05).
    pub is_archived: bool,
    /// Whether the announcement was accepted only because a maintainer of a hosted repository names its author
    /// (docs/protocol.md#maintainer-exception). It is removed when the last such listing is gone. An announcement that
    /// is not listed for another reason, for example because the service's own name has changed, is kept.
    pub is_exception: bool,
    /// The maintainers that the announcement lists.
    pub roles: MaintainerRoles,
    /// URLs of git servers that have the repository.
    pub clone: Vec<String>,
    /// URLs of relays that have its events, without this service.
    pub relays: Vec<String>,
}

/// Returns the first [`limits::MAX_ANNOUNCED_URLS`] URLs that are not longer than [`limits::MAX_URL_BYTES`].
pub(super) fn usable_urls<'a>(urls: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    urls.filter(|url| url.len() <= limits::MAX_URL_BYTES).take(limits::MAX_ANNOUNCED_URLS)
}

impl Announcement {
    /// Whether this announcement makes this service host the repository.
    #[must_use]
    pub fn is_hosted(&self) -> bool {
        self.is_listed || self.is_archived
    }

    /// Parses an announcement, or returns `None` if its `d` tag is not a valid identifier. `is_archived` and
    /// `is_exception` depend on the operator's settings and on other events, and are `false` here.
    #[must_use]
    pub fn from_event(event: &Event, service: &ServiceAddress) -> Option<Self> {
        let repo = RepoId { owner: event.pubkey, identifier: Identifier::new(event.tag("d")?)? };
        let others = event.all_values("relays").filter(|relay| !service.is_own_relay_url(relay));
        Some(Self {
            is_listed: service.is_named_in(event, &repo),
            is_archived: false,
            is_exception: false,
            version: event.version(),
            roles: MaintainerRoles::from_event(event),
            clone: usable_urls(event.all_values("clone")).map(str::to_owned).collect(),
            relays: usable_urls(others).map(str::to_owned).collect(),
            repo,
        })
    }
}
