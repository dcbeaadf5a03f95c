//! The operator's lists: banned repositories, authors and events, the whitelist, the archive (GRASP-05), and read-only
//! mode.
//!
//! Order of evaluation of an announcement (docs/protocol.md#order-of-evaluation): a ban overrides everything else; then
//! announcements that name this service (only whitelisted ones, if there is a whitelist), then the archive, then the
//! maintainer exception.

use std::collections::BTreeSet;

use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::{PublicKey, keys, kinds};
use crate::repo::{Announcement, Identifier, RepoId, ServiceAddress};

/// One entry of a list of repositories.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RepoListEntry {
    /// `npub`: all repositories of a key.
    Owner(PublicKey),
    /// `npub/identifier`: one repository.
    Repository(RepoId),
    /// `identifier`: all repositories with this identifier.
    Identifier(Identifier),
}

/// Why a text is not a valid list entry. `Display` is the predicate of a sentence whose subject is the entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ListEntryError {
    /// The part that should be a public key is not valid.
    #[error("does not start with a valid public key (npub1… or 64 hex digits)")]
    InvalidKey,
    /// The entry is a private key.
    #[error("is a private key; it is not shown here, but everyone who can read this file knows it: replace the key")]
    PrivateKey,
    /// The part that should be an identifier is not valid.
    #[error("cannot name a repository")]
    InvalidIdentifier,
    /// The naddr is not valid or not that of an announcement.
    #[error("is not the address of a repository (a valid naddr1… of kind 30617)")]
    InvalidAddress,
    /// The entry is an event or a profile, but the list contains repositories.
    #[error("is an event or a profile; expected a repository (npub1…, npub1…/identifier, naddr1… or identifier)")]
    NotRepository,
    /// The entry is neither a public key nor an event id.
    #[error("is neither a public key (npub1… or 64 hex digits) nor an event (note1…, nevent1… or 64 hex digits)")]
    NotAuthorOrEvent,
}

impl RepoListEntry {
    /// Parses `npub`, `npub/identifier`, `naddr` or `identifier`. Keys may also be hexadecimal.
    ///
    /// # Errors
    ///
    /// Returns the reason why the text is not a valid entry.
    pub fn parse(text: &str) -> Result<Self, ListEntryError> {
        if text.starts_with("nsec1") {
            return Err(ListEntryError::PrivateKey);
        }
        if let Some((owner, identifier)) = text.split_once('/') {
            let owner = public_key(owner).ok_or(ListEntryError::InvalidKey)?;
            let identifier = Identifier::new(identifier).ok_or(ListEntryError::InvalidIdentifier)?;
            return Ok(Self::Repository(RepoId { owner, identifier }));
        }
        match public_key(text) {
            Some(owner) => Ok(Self::Owner(owner)),
            None if text.starts_with("naddr1") => {
                let address = Coordinate::from_naddr(text).filter(|address| address.kind == kinds::ANNOUNCEMENT);
                let repo = address.as_ref().and_then(RepoId::from_coordinate);
                repo.map(Self::Repository).ok_or(ListEntryError::InvalidAddress)
            }
            // A misspelt key, or an event, must not be accepted as an identifier that no repository has.
            None if text.starts_with("npub1") => Err(ListEntryError::InvalidKey),
            None if keys::is_bech32(&["note", "nevent", "nprofile"], text) => Err(ListEntryError::NotRepository),
            None => Identifier::new(text).map(Self::Identifier).ok_or(ListEntryError::InvalidIdentifier),
        }
    }
}

fn public_key(text: &str) -> Option<PublicKey> {
    PublicKey::from_npub(text).or_else(|| PublicKey::from_hex(text))
}

/// A list of repositories.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct RepoList {
    owners: BTreeSet<PublicKey>,
    repositories: BTreeSet<RepoId>,
    identifiers: BTreeSet<Identifier>,
}

impl RepoList {
    /// Whether an entry matches the repository.
    #[must_use]
    pub fn contains(&self, repo: &RepoId) -> bool {
        self.owners.contains(&repo.owner)
            || self.identifiers.contains(&repo.identifier)
            || self.repositories.contains(repo)
    }

    /// Whether the list has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owners.len() + self.repositories.len() + self.identifiers.len()
    }

    /// Iterates over the single repositories in the list.
    pub(in crate::admission) fn repositories(&self) -> impl Iterator<Item = &RepoId> {
        self.repositories.iter()
    }

    /// Whether the list contains all entries of another list.
    fn contains_all(&self, other: &Self) -> bool {
        self.owners.is_superset(&other.owners)
            && self.repositories.is_superset(&other.repositories)
            && self.identifiers.is_superset(&other.identifiers)
    }
}

impl FromIterator<RepoListEntry> for RepoList {
    fn from_iter<I: IntoIterator<Item = RepoListEntry>>(entries: I) -> Self {
        let mut list = Self::default();
        for entry in entries {
            match entry {
                RepoListEntry::Owner(owner) => drop(list.owners.insert(owner)),
                RepoListEntry::Repository(repo) => drop(list.repositories.insert(repo)),
                RepoListEntry::Identifier(identifier) => drop(list.identifiers.insert(identifier)),
            }
        }
        list
    }
}

/// Banned authors and events, of any kind.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct BannedEvents {
    /// All events of these authors are banned.
    pub authors: BTreeSet<PublicKey>,
    /// These events are banned.
    pub events: BTreeSet<EventId>,
}

impl BannedEvents {
    /// Adds a public key (`npub1…` or hexadecimal) or an event id (`note1…`, `nevent1…` or hexadecimal). 64 hexadecimal
    /// digits may be either, so both are banned.
    ///
    /// # Errors
    ///
    /// Returns the reason why the text is not a valid entry.
    pub fn add(&mut self, text: &str) -> Result<(), ListEntryError> {
        if text.starts_with("nsec1") {
            return Err(ListEntryError::PrivateKey);
        }
        if let Some(author) = PublicKey::from_npub(text) {
            self.authors.insert(author);
        } else if let Some(id) = EventId::from_note(text).or_else(|| EventId::from_nevent(text)) {
            self.events.insert(id);
        } else if let Some(id) = EventId::from_hex(text) {
            // Keys and ids cannot be told apart. Banning both does no harm, because no key is equal to the id of
            // another event.
            self.authors.insert(PublicKey(id.0));
            self.events.insert(id);
        } else {
            return Err(ListEntryError::NotAuthorOrEvent);
        }
        Ok(())
    }

    /// Whether nothing is banned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.authors.is_empty() && self.events.is_empty()
    }
}

/// Which repositories are archived, that is, hosted although their announcements do not name this service (GRASP-05).
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub enum ArchiveScope {
    /// No repository.
    #[default]
    Nothing,
    /// Every repository that sync finds.
    Everything,
    /// The repositories in a list.
    Listed(RepoList),
    /// The repositories that have a clone URL at one of these GRASP services.
    Services(Vec<ServiceAddress>),
}

impl ArchiveScope {
    /// Whether a repository is archived.
    #[must_use]
    pub fn includes(&self, announcement: &Announcement) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Listed(list) => list.contains(&announcement.repo),
            Self::Services(services) => services.iter().any(|service| service.has_clone_of(announcement)),
        }
    }

    /// Whether any repository can be archived.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        *self != Self::Nothing
    }
}

/// The operator's lists.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct ModerationLists {
    /// If set, only these of the repositories that name this service are accepted.
    pub whitelist: Option<RepoList>,
    /// Repositories that are not accepted and are removed.
    pub banned_repos: RepoList,
    /// Authors and events that are not accepted and are removed.
    pub banned_events: BannedEvents,
    /// Repositories that are hosted although their announcements do not name this service.
    pub archive: ArchiveScope,
    /// Whether pushes to repositories that do not name this service are rejected. Their data changes by sync only.
    pub is_read_only: bool,
}

impl ModerationLists {
    /// Whether a repository is banned.
    #[must_use]
    pub fn is_repo_banned(&self, repo: &RepoId) -> bool {
        self.banned_repos.contains(repo)
    }

    /// Whether an event is banned, by its id or by its author.
    #[must_use]
    pub fn is_event_banned(&self, author: PublicKey, id: EventId) -> bool {
        self.banned_events.authors.contains(&author) || self.banned_events.events.contains(&id)
    }

    /// Whether an event is banned, by its id or by its author.
    #[must_use]
    pub(super) fn is_banned(&self, event: &Event) -> bool {
        self.is_event_banned(event.pubkey, event.id)
    }

    /// Whether these lists may accept events that the old lists rejected. Then rejected events must be considered
    /// again.
    #[must_use]
    pub fn may_accept_more_than(&self, old: &Self) -> bool {
        let whitelist_is_narrower = match (&self.whitelist, &old.whitelist) {
            (None, old) => old.is_none(),
            (Some(_), None) => true,
            (Some(new), Some(old)) => old.contains_all(new),
        };
        let bans_same_repos = self.banned_repos.contains_all(&old.banned_repos);
        let bans_same_events = self.banned_events.authors.is_superset(&old.banned_events.authors)
            && self.banned_events.events.is_superset(&old.banned_events.events);
        let archive_is_narrower = match (&self.archive, &old.archive) {
            (ArchiveScope::Nothing, _) | (_, ArchiveScope::Everything) => true,
            (ArchiveScope::Listed(new), ArchiveScope::Listed(old)) => old.contains_all(new),
            (ArchiveScope::Services(new), ArchiveScope::Services(old)) => {
                new.iter().all(|service| old.contains(service))
            }
            _ => false,
        };
        let writes_are_narrower = self.is_read_only || !old.is_read_only;
        !(whitelist_is_narrower && bans_same_repos && bans_same_events && archive_is_narrower && writes_are_narrower)
    }
}

#[cfg(test)]
mod tests {
    use nostr::event::{EventId as Id, Kind};
    use nostr::key::PublicKey as Key;
    use nostr::nips::nip01::Coordinate as Address;
    use nostr::nips::nip19::{Nip19Coordinate, Nip19Event, Nip19Profile, ToBech32};
    use nostr::types::RelayUrl;

    use super::*;

    fn key() -> Key {
        Key::from_hex(&"11".repeat(32)).expect("a key")
    }

    fn relays() -> Vec<RelayUrl> {
        vec![RelayUrl::parse("wss://relay.example/path").expect("a relay")]
    }

    fn naddr(kind: u16, d: &str) -> String {
        let address = Address::new(Kind::from(kind), key()).identifier(d);
        Nip19Coordinate::new(address, relays()).to_bech32().expect("an address")
    }

    #[test]
    fn entries_are_parsed_from_naddr() {
        let repo = RepoId {
            owner: PublicKey::from_hex(&"11".repeat(32)).expect("a key"),
            identifier: Identifier::new("my 🚀 repo").expect("valid"),
        };
        let good = naddr(30_617, "my 🚀 repo");
        assert_eq!(RepoListEntry::parse(&good), Ok(RepoListEntry::Repository(repo)));
        let (event, cut) = (naddr(30_023, "my 🚀 repo"), &good[..good.len() - 1]);
        for bad in [event.as_str(), cut, &naddr(30_618, "x"), &naddr(30_617, ""), &good.replace('q', "p"), "naddr1"] {
            assert_eq!(RepoListEntry::parse(bad), Err(ListEntryError::InvalidAddress), "{bad}");
        }
        let nevent = Nip19Event::new(Id::from_byte_array([7; 32])).to_bech32().expect("an event");
        let nprofile = Nip19Profile::new(key(), relays()).to_bech32().expect("a profile");
        for bad in [nevent, nprofile] {
            assert_eq!(RepoListEntry::parse(&bad), Err(ListEntryError::NotRepository), "{bad}");
        }
        let identifier = RepoListEntry::Identifier(Identifier::new("note1taker").expect("valid"));
        assert_eq!(
            RepoListEntry::parse("note1taker"),
            Ok(identifier),
            "a valid identifier that looks like an event id"
        );
    }

    #[test]
    fn banned_events_are_parsed_from_nevent() {
        let id = Id::from_byte_array([7; 32]);
        let bare = Nip19Event::new(id);
        let full = Nip19Event::new(id).author(key()).kind(Kind::from(1_621)).relays(relays());
        for event in [bare, full] {
            let text = event.to_bech32().expect("an event");
            let mut banned_events = BannedEvents::default();
            assert_eq!(banned_events.add(&text), Ok(()));
            assert_eq!(
                banned_events,
                BannedEvents { events: BTreeSet::from([EventId([7; 32])]), ..BannedEvents::default() }
            );
            for bad in [&text[..text.len() - 1], &text.replace('q', "p"), &naddr(30_617, "x"), "nevent1"] {
                assert_eq!(BannedEvents::default().add(bad), Err(ListEntryError::NotAuthorOrEvent), "{bad}");
            }
        }
    }
}
