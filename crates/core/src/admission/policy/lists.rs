//! What the operator wants, and does not want, by name: moderation lists, the archive (GRASP-05), read-only.
//!
//! The order of evaluation is G1-09's: what is banned is banned, whatever else speaks for it; then come announcements
//! that name this service (those of the whitelist, if there is one), then the archive, then the maintainer exception.

use std::collections::BTreeSet;
use std::fmt;

use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::{PublicKey, keys, kinds};
use crate::repo::{Announcement, Identifier, RepoId, ServiceAddress};

/// One line of a list of repositories.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RepoListEntry {
    /// `npub`: all repositories of a key.
    Owner(PublicKey),
    /// `npub/identifier`: one repository.
    Repository(RepoId),
    /// `identifier`: all repositories of a name, whosever they are.
    Name(Identifier),
}

/// Why a line is no entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListEntryError {
    /// What should be a public key is none.
    Key,
    /// What should be a private key's public half is the private key itself.
    Secret,
    /// What should name a repository cannot.
    Identifier,
    /// What should be the address of a repository is none.
    Address,
    /// It is an event, and only repositories are asked for.
    Event,
    /// It is neither a public key nor the id of an event.
    Author,
}

impl fmt::Display for ListEntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "has no public key (npub1… or 64 hex digits) before the slash",
            Self::Secret => "is a private key; it is not shown here, and whoever has read this file has it now",
            Self::Identifier => "cannot name a repository",
            Self::Address => "is not the address of a repository (a sound naddr1… of kind 30617)",
            Self::Event => "is an event or a profile; here are repositories (npub1…, npub1…/identifier, naddr1… or identifier)",
            Self::Author => {
                "is neither a public key (npub1… or 64 hex digits) nor an event (a sound note1… or nevent1…, or 64 hex digits)"
            }
        })
    }
}

impl RepoListEntry {
    /// Reads `npub`, `npub/identifier`, `naddr` or `identifier`; keys may be written in hex.
    pub fn parse(text: &str) -> Result<Self, ListEntryError> {
        if text.starts_with("nsec1") {
            return Err(ListEntryError::Secret);
        }
        if let Some((owner, identifier)) = text.split_once('/') {
            let owner = public_key(owner).ok_or(ListEntryError::Key)?;
            let identifier = Identifier::new(identifier).ok_or(ListEntryError::Identifier)?;
            return Ok(Self::Repository(RepoId { owner, identifier }));
        }
        match public_key(text) {
            Some(owner) => Ok(Self::Owner(owner)),
            None if text.starts_with("naddr1") => {
                let address = Coordinate::from_naddr(text).filter(|address| address.kind == kinds::ANNOUNCEMENT);
                let repo = address.as_ref().and_then(RepoId::from_coordinate);
                repo.map(Self::Repository).ok_or(ListEntryError::Address)
            }
            // What is misspelt, or something else, must not silently become a name that nobody has.
            None if text.starts_with("npub1") => Err(ListEntryError::Key),
            None if keys::is_bech32(&["note", "nevent", "nprofile"], text) => Err(ListEntryError::Event),
            None => Identifier::new(text).map(Self::Name).ok_or(ListEntryError::Identifier),
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
    names: BTreeSet<Identifier>,
}

impl RepoList {
    /// Whether a repository is meant.
    #[must_use]
    pub fn contains(&self, repo: &RepoId) -> bool {
        self.owners.contains(&repo.owner) || self.names.contains(&repo.identifier) || self.repositories.contains(repo)
    }

    /// Whether it means nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many lines it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owners.len() + self.repositories.len() + self.names.len()
    }

    /// Those that are meant one by one.
    pub(in crate::admission) fn repositories(&self) -> impl Iterator<Item = &RepoId> {
        self.repositories.iter()
    }

    /// Whether all that another list says is said here.
    fn contains_all(&self, other: &Self) -> bool {
        self.owners.is_superset(&other.owners)
            && self.repositories.is_superset(&other.repositories)
            && self.names.is_superset(&other.names)
    }
}

impl FromIterator<RepoListEntry> for RepoList {
    fn from_iter<I: IntoIterator<Item = RepoListEntry>>(entries: I) -> Self {
        let mut list = Self::default();
        for entry in entries {
            match entry {
                RepoListEntry::Owner(owner) => drop(list.owners.insert(owner)),
                RepoListEntry::Repository(repo) => drop(list.repositories.insert(repo)),
                RepoListEntry::Name(name) => drop(list.names.insert(name)),
            }
        }
        list
    }
}

/// Events that are not wanted, whatever their kind.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct BannedEvents {
    /// All of these authors.
    pub authors: BTreeSet<PublicKey>,
    /// These.
    pub events: BTreeSet<EventId>,
}

impl BannedEvents {
    /// Reads a public key (`npub1…` or hex) or the id of an event (`note1…`, `nevent1…`, or hex: 64 digits may be either, so
    /// both are meant).
    pub fn add(&mut self, text: &str) -> Result<(), ListEntryError> {
        if text.starts_with("nsec1") {
            return Err(ListEntryError::Secret);
        }
        if let Some(author) = PublicKey::from_npub(text) {
            self.authors.insert(author);
        } else if let Some(id) = EventId::from_note(text).or_else(|| EventId::from_nevent(text)) {
            self.events.insert(id);
        } else if let Some(id) = EventId::from_hex(text) {
            // Nobody can tell them apart, and nobody's key is the id of somebody else's event.
            self.authors.insert(PublicKey(id.0));
            self.events.insert(id);
        } else {
            return Err(ListEntryError::Author);
        }
        Ok(())
    }

    /// Whether it means nobody and nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.authors.is_empty() && self.events.is_empty()
    }
}

/// Which repositories are kept here although their announcements do not name this service (GRASP-05).
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub enum ArchiveScope {
    /// None.
    #[default]
    Nothing,
    /// All that are heard of.
    Everything,
    /// Those of a list.
    Listed(RepoList),
    /// Those that these GRASP services host.
    Services(Vec<ServiceAddress>),
}

impl ArchiveScope {
    /// Whether a repository is to be kept, whoever hosts it.
    #[must_use]
    pub fn includes(&self, announcement: &Announcement) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Listed(list) => list.contains(&announcement.repo),
            Self::Services(services) => services.iter().any(|service| service.is_named_by(announcement)),
        }
    }

    /// Whether it keeps anything.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        *self != Self::Nothing
    }
}

/// What the operator wants and does not want, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct ModerationLists {
    /// If there is one: of the repositories that name this service, only these are taken in.
    pub whitelist: Option<RepoList>,
    /// Repositories that have no place here.
    pub banned_repos: RepoList,
    /// Authors and events that have no place here.
    pub banned_events: BannedEvents,
    /// What is kept although it does not name this service.
    pub archive: ArchiveScope,
    /// Whether nobody may push: what changes comes by sync.
    pub is_read_only: bool,
}

impl ModerationLists {
    /// Whether a repository has no place here.
    #[must_use]
    pub fn is_repo_banned(&self, repo: &RepoId) -> bool {
        self.banned_repos.contains(repo)
    }

    /// Whether an event has no place here, for its author's sake or its own.
    #[must_use]
    pub fn is_event_banned(&self, author: PublicKey, id: EventId) -> bool {
        self.banned_events.authors.contains(&author) || self.banned_events.events.contains(&id)
    }

    /// The same, of a whole event.
    #[must_use]
    pub(super) fn is_banned(&self, event: &Event) -> bool {
        self.is_event_banned(event.pubkey, event.id)
    }

    /// Whether these rules may take in what others did not: then whatever was refused must be looked at again.
    #[must_use]
    pub fn may_accept_more_than(&self, old: &Self) -> bool {
        let whitelisted = match (&self.whitelist, &old.whitelist) {
            (None, old) => old.is_none(),
            (Some(_), None) => true,
            (Some(new), Some(old)) => old.contains_all(new),
        };
        let banned = self.banned_repos.contains_all(&old.banned_repos);
        let banned_events = self.banned_events.authors.is_superset(&old.banned_events.authors)
            && self.banned_events.events.is_superset(&old.banned_events.events);
        let archived = match (&self.archive, &old.archive) {
            (ArchiveScope::Nothing, _) | (_, ArchiveScope::Everything) => true,
            (ArchiveScope::Listed(new), ArchiveScope::Listed(old)) => old.contains_all(new),
            (ArchiveScope::Services(new), ArchiveScope::Services(old)) => {
                new.iter().all(|service| old.contains(service))
            }
            _ => false,
        };
        let writable = self.is_read_only || !old.is_read_only;
        !(whitelisted && banned && banned_events && archived && writable)
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
            identifier: Identifier::new("my 🚀 repo").expect("a name"),
        };
        let good = naddr(30_617, "my 🚀 repo");
        assert_eq!(RepoListEntry::parse(&good), Ok(RepoListEntry::Repository(repo)));
        let (event, cut) = (naddr(30_023, "my 🚀 repo"), &good[..good.len() - 1]);
        for bad in [event.as_str(), cut, &naddr(30_618, "x"), &naddr(30_617, ""), &good.replace('q', "p"), "naddr1"] {
            assert_eq!(RepoListEntry::parse(bad), Err(ListEntryError::Address), "{bad}");
        }
        let nevent = Nip19Event::new(Id::from_byte_array([7; 32])).to_bech32().expect("an event");
        let nprofile = Nip19Profile::new(key(), relays()).to_bech32().expect("a profile");
        for bad in [nevent, nprofile] {
            assert_eq!(RepoListEntry::parse(&bad), Err(ListEntryError::Event), "{bad}");
        }
        let name = RepoListEntry::Name(Identifier::new("note1taker").expect("a name"));
        assert_eq!(RepoListEntry::parse("note1taker"), Ok(name), "some are called so");
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
                assert_eq!(BannedEvents::default().add(bad), Err(ListEntryError::Author), "{bad}");
            }
        }
    }
}
