//! What the operator wants, and does not want, by name: moderation lists, the archive (GRASP-05), read-only.
//!
//! The order of evaluation is G1-09's: what is banned is banned, whatever else speaks for it; then come announcements
//! that name this service (those of the whitelist, if there is one), then the archive, then the maintainer exception.

use std::collections::BTreeSet;
use std::fmt;

use crate::nostr::PublicKey;
use crate::nostr::event::{Event, EventId};
use crate::repo::{Announcement, Identifier, RepoId, Service};

/// One line of a list of repositories.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Entry {
    /// `npub`: all repositories of a key.
    Owner(PublicKey),
    /// `npub/identifier`: one repository.
    Repository(RepoId),
    /// `identifier`: all repositories of a name, whosever they are.
    Name(Identifier),
}

/// Why a line is no entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadEntry {
    /// What should be a public key is none.
    Key,
    /// What should be a private key's public half is the private key itself.
    Secret,
    /// What should name a repository cannot.
    Identifier,
    /// It is neither a public key nor the id of an event.
    Author,
}

impl fmt::Display for BadEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "has no public key (npub1… or 64 hex digits) before the slash",
            Self::Secret => "is a private key; it is not shown here, and whoever has read this file has it now",
            Self::Identifier => "cannot name a repository",
            Self::Author => "is neither a public key (npub1… or 64 hex digits) nor the id of an event (note1…)",
        })
    }
}

impl Entry {
    /// Reads `npub`, `npub/identifier` or `identifier`; keys may be written in hex.
    pub fn read(text: &str) -> Result<Self, BadEntry> {
        if text.starts_with("nsec1") {
            return Err(BadEntry::Secret);
        }
        if let Some((owner, identifier)) = text.split_once('/') {
            let owner = public_key(owner).ok_or(BadEntry::Key)?;
            let identifier = Identifier::new(identifier).ok_or(BadEntry::Identifier)?;
            return Ok(Self::Repository(RepoId { owner, identifier }));
        }
        match public_key(text) {
            Some(owner) => Ok(Self::Owner(owner)),
            // A misspelt key must not silently become a name that nobody has.
            None if text.starts_with("npub1") => Err(BadEntry::Key),
            None => Identifier::new(text).map(Self::Name).ok_or(BadEntry::Identifier),
        }
    }
}

fn public_key(text: &str) -> Option<PublicKey> {
    PublicKey::from_npub(text).or_else(|| PublicKey::from_hex(text))
}

/// A list of repositories.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Entries {
    owners: BTreeSet<PublicKey>,
    repositories: BTreeSet<RepoId>,
    names: BTreeSet<Identifier>,
}

impl Entries {
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

    /// Whether all that another list says is said here.
    fn includes(&self, other: &Self) -> bool {
        self.owners.is_superset(&other.owners)
            && self.repositories.is_superset(&other.repositories)
            && self.names.is_superset(&other.names)
    }
}

impl FromIterator<Entry> for Entries {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let mut list = Self::default();
        for entry in entries {
            match entry {
                Entry::Owner(owner) => drop(list.owners.insert(owner)),
                Entry::Repository(repo) => drop(list.repositories.insert(repo)),
                Entry::Name(name) => drop(list.names.insert(name)),
            }
        }
        list
    }
}

/// Events that are not wanted, whatever their kind.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Unwanted {
    /// All of these authors.
    pub authors: BTreeSet<PublicKey>,
    /// These.
    pub events: BTreeSet<EventId>,
}

impl Unwanted {
    /// Reads a public key (`npub1…` or hex) or the id of an event (`note1…`, or hex: 64 digits may be either, so both are
    /// meant).
    pub fn add(&mut self, text: &str) -> Result<(), BadEntry> {
        if text.starts_with("nsec1") {
            return Err(BadEntry::Secret);
        }
        if let Some(author) = PublicKey::from_npub(text) {
            self.authors.insert(author);
        } else if let Some(id) = EventId::from_note(text) {
            self.events.insert(id);
        } else if let Some(id) = EventId::from_hex(text) {
            // Nobody can tell them apart, and nobody's key is the id of somebody else's event.
            self.authors.insert(PublicKey(id.0));
            self.events.insert(id);
        } else {
            return Err(BadEntry::Author);
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
pub enum Archive {
    /// None.
    #[default]
    Nothing,
    /// All that are heard of.
    Everything,
    /// Those of a list.
    Listed(Entries),
    /// Those that these GRASP services host.
    Services(Vec<Service>),
}

impl Archive {
    /// Whether a repository is to be kept, whoever hosts it.
    #[must_use]
    pub fn keeps(&self, announcement: &Announcement) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Listed(list) => list.contains(&announcement.repo),
            Self::Services(services) => services.iter().any(|service| service.hosts(announcement)),
        }
    }

    /// Whether it keeps anything.
    #[must_use]
    pub fn is_on(&self) -> bool {
        *self != Self::Nothing
    }
}

/// What the operator wants and does not want, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Lists {
    /// If there is one: of the repositories that name this service, only these are taken in.
    pub wanted: Option<Entries>,
    /// Repositories that have no place here.
    pub banned: Entries,
    /// Authors and events that have no place here.
    pub unwanted: Unwanted,
    /// What is kept although it does not name this service.
    pub archive: Archive,
    /// Whether nobody may push: what changes comes by sync.
    pub read_only: bool,
}

impl Lists {
    /// Whether a repository has no place here.
    #[must_use]
    pub fn bans(&self, repo: &RepoId) -> bool {
        self.banned.contains(repo)
    }

    /// Whether an event has no place here, for its author's sake or its own.
    #[must_use]
    pub fn bans_event(&self, author: PublicKey, id: EventId) -> bool {
        self.unwanted.authors.contains(&author) || self.unwanted.events.contains(&id)
    }

    /// The same, of a whole event.
    #[must_use]
    pub(super) fn unwanted(&self, event: &Event) -> bool {
        self.bans_event(event.pubkey, event.id)
    }

    /// Whether these rules may take in what others did not: then whatever was refused must be looked at again.
    #[must_use]
    pub fn may_take_more_than(&self, old: &Self) -> bool {
        let whitelisted = match (&self.wanted, &old.wanted) {
            (None, old) => old.is_none(),
            (Some(_), None) => true,
            (Some(new), Some(old)) => old.includes(new),
        };
        let banned = self.banned.includes(&old.banned);
        let unwanted = self.unwanted.authors.is_superset(&old.unwanted.authors)
            && self.unwanted.events.is_superset(&old.unwanted.events);
        let archived = match (&self.archive, &old.archive) {
            (Archive::Nothing, _) | (_, Archive::Everything) => true,
            (Archive::Listed(new), Archive::Listed(old)) => old.includes(new),
            (Archive::Services(new), Archive::Services(old)) => new.iter().all(|service| old.contains(service)),
            _ => false,
        };
        let writable = self.read_only || !old.read_only;
        !(whitelisted && banned && unwanted && archived && writable)
    }
}
