//! Keys that sign real events, the same ones in every run.

use std::fmt;
use std::sync::{Arc, LazyLock};

use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{Event, EventId, PublicKey, SignedEvent, kinds, signed_event};
use grasp_core::repo::{Identifier, RepoId, ServiceAddress};
use grasp_core::time::Timestamp;
use secp256k1::{Keypair, Secp256k1, SecretKey, SignOnly};

/// The signing tables; they depend on nothing and cost more than a signature.
static SECP: LazyLock<Secp256k1<SignOnly>> = LazyLock::new(Secp256k1::signing_only);

/// Somebody who signs events.
#[derive(Clone, PartialEq, Eq)]
pub struct Author {
    pair: Keypair,
    key: PublicKey,
}

impl Author {
    /// The author of this number.
    #[must_use]
    pub fn new(n: u8) -> Self {
        Self::of_crowd(0, n)
    }

    /// The author of this number in one of many crowds, of which the first is that of [`new`](Self::new).
    #[must_use]
    pub fn of_crowd(crowd: u8, n: u8) -> Self {
        let mut secret = [1_u8; 32];
        secret[30] = secret[30].wrapping_add(crowd);
        secret[31] = n;
        let secret = SecretKey::from_slice(&secret).expect("far below the order of the curve");
        let pair = Keypair::from_secret_key(&SECP, &secret);
        Self { pair, key: PublicKey(pair.x_only_public_key().0.serialize()) }
    }

    /// The public key.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// The public key in hex.
    #[must_use]
    pub fn hex(&self) -> String {
        self.key.to_string()
    }

    /// `kind:key:d`.
    #[must_use]
    pub fn coordinate(&self, kind: u16, d: &str) -> String {
        Coordinate { kind, pubkey: self.key, d: d.to_owned() }.to_string()
    }

    /// The coordinate of an announcement.
    #[must_use]
    pub fn repo(&self, d: &str) -> String {
        self.coordinate(kinds::ANNOUNCEMENT, d)
    }

    /// The repository of an announcement. Panics if `d` cannot name one.
    #[must_use]
    pub fn repo_id(&self, d: &str) -> RepoId {
        RepoId { owner: self.key, identifier: Identifier::new(d).expect("names a repository") }
    }

    /// Signs an event: its id and signature are right, and the same in every run.
    #[must_use]
    pub fn sign(&self, kind: u16, created_at: u64, tags: &[&[&str]], content: &str) -> Arc<SignedEvent> {
        let tags = tags.iter().map(|tag| tag.iter().map(|value| (*value).to_owned()).collect()).collect();
        self.sign_owned(kind, created_at, tags, content)
    }

    /// [`sign`](Self::sign) for tags that were put together.
    #[must_use]
    pub fn sign_owned(&self, kind: u16, created_at: u64, tags: Vec<Vec<String>>, content: &str) -> Arc<SignedEvent> {
        let mut event = Event {
            id: EventId([0; 32]),
            pubkey: self.key,
            created_at: Timestamp(created_at),
            kind,
            tags,
            content: content.to_owned(),
            sig: [0; 64],
        };
        event.id = EventId(signed_event::compute_id(&event));
        event.sig = SECP.sign_schnorr_no_aux_rand(&event.id.0, &self.pair).to_byte_array();
        Arc::new(SignedEvent::from_trusted(event))
    }

    /// An announcement that names a service in `clone` and `relays`: the repository is to be hosted there.
    #[must_use]
    pub fn listed(
        &self,
        service: &ServiceAddress,
        d: &str,
        created_at: u64,
        maintainers: &[&Author],
    ) -> Arc<SignedEvent> {
        self.listed_with(service, d, created_at, vec![maintainers_tag(maintainers)])
    }

    /// [`listed`](Self::listed) with tags of one's own instead of maintainers.
    #[must_use]
    pub fn listed_with(
        &self,
        service: &ServiceAddress,
        d: &str,
        created_at: u64,
        more: Vec<Vec<String>>,
    ) -> Arc<SignedEvent> {
        let at = format!("{}{}", service.domain(), service.base());
        let path = Identifier::new(d).map(|_| self.repo_id(d).path()).unwrap_or_default();
        let mut tags = owned(&[
            &["d", d],
            &["clone", &format!("https://{at}/{path}")],
            &["relays", "wss://elsewhere.example", &format!("wss://{at}")],
        ]);
        tags.extend(more);
        self.sign_owned(kinds::ANNOUNCEMENT, created_at, tags, "")
    }

    /// An announcement of a repository that lives elsewhere.
    #[must_use]
    pub fn unlisted(&self, d: &str, created_at: u64, maintainers: &[&Author]) -> Arc<SignedEvent> {
        self.unlisted_with(d, created_at, vec![maintainers_tag(maintainers)])
    }

    /// [`unlisted`](Self::unlisted) with tags of one's own instead of maintainers.
    #[must_use]
    pub fn unlisted_with(&self, d: &str, created_at: u64, more: Vec<Vec<String>>) -> Arc<SignedEvent> {
        let mut tags =
            owned(&[&["d", d], &["clone", "https://elsewhere.example/x.git"], &["relays", "wss://elsewhere.example"]]);
        tags.extend(more);
        self.sign_owned(kinds::ANNOUNCEMENT, created_at, tags, "")
    }

    /// A state that declares refs.
    #[must_use]
    pub fn state(&self, d: &str, created_at: u64, refs: &[(&str, &str)]) -> Arc<SignedEvent> {
        let mut tags = owned(&[&["d", d]]);
        tags.extend(refs.iter().map(|(name, oid)| vec![(*name).to_owned(), (*oid).to_owned()]));
        self.sign_owned(kinds::STATE, created_at, tags, "")
    }

    /// A pull request that offers a commit to repositories, given by coordinate.
    #[must_use]
    pub fn pull_request(&self, created_at: u64, repos: &[&str], commit: &str) -> Arc<SignedEvent> {
        let mut tags = owned(&[&["c", commit], &["clone", "https://elsewhere.example/fork.git"]]);
        tags.extend(repos.iter().map(|repo| vec!["a".to_owned(), (*repo).to_owned()]));
        self.sign_owned(kinds::PULL_REQUEST, created_at, tags, "please merge")
    }

    /// An issue of a repository, given by coordinate.
    #[must_use]
    pub fn issue(&self, created_at: u64, repo: &str) -> Arc<SignedEvent> {
        self.sign(kinds::ISSUE, created_at, &[&["a", repo], &["subject", "broken"]], "it does not work")
    }

    /// A comment (NIP-22) on an event.
    #[must_use]
    pub fn comment(&self, created_at: u64, root: &SignedEvent) -> Arc<SignedEvent> {
        let id = root.id.to_string();
        self.sign(1111, created_at, &[&["E", &id], &["K", &root.kind.to_string()], &["e", &id]], "me too")
    }

    /// A plain note with these tags.
    #[must_use]
    pub fn note(&self, created_at: u64, tags: &[&[&str]], content: &str) -> Arc<SignedEvent> {
        self.sign(1, created_at, tags, content)
    }

    /// A deletion request with these tags (`e` and `a`).
    #[must_use]
    pub fn deletion(&self, created_at: u64, tags: &[&[&str]]) -> Arc<SignedEvent> {
        self.sign(kinds::DELETION, created_at, tags, "")
    }

    /// A deletion request for events by id.
    #[must_use]
    pub fn delete(&self, created_at: u64, events: &[&SignedEvent]) -> Arc<SignedEvent> {
        let tags = events.iter().map(|event| vec!["e".to_owned(), event.id.to_string()]).collect();
        self.sign_owned(kinds::DELETION, created_at, tags, "")
    }

    /// A request to vanish from relays.
    #[must_use]
    pub fn vanish(&self, created_at: u64, relays: &[&str]) -> Arc<SignedEvent> {
        let tags = relays.iter().map(|relay| vec!["relay".to_owned(), (*relay).to_owned()]).collect();
        self.sign_owned(kinds::VANISH, created_at, tags, "")
    }
}

impl fmt::Debug for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.key)
    }
}

/// Tags as events have them.
#[must_use]
pub fn owned(tags: &[&[&str]]) -> Vec<Vec<String>> {
    tags.iter().map(|tag| tag.iter().map(|value| (*value).to_owned()).collect()).collect()
}

/// A `maintainers` tag.
#[must_use]
pub fn maintainers_tag(maintainers: &[&Author]) -> Vec<String> {
    std::iter::once("maintainers".to_owned()).chain(maintainers.iter().map(|author| author.hex())).collect()
}

/// Two versions that differ in a word, the one with the lower id first: of the same second, that one wins.
#[must_use]
pub fn pair(make: impl Fn(&str) -> Arc<SignedEvent>) -> (Arc<SignedEvent>, Arc<SignedEvent>) {
    let (one, other) = (make("one"), make("other"));
    if one.id < other.id { (one, other) } else { (other, one) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grasp_core::nostr::Verifier;

    #[test]
    fn signatures_are_real_and_the_same_in_every_run() {
        let mut verifier = Verifier::default();
        for n in [0, 1, 255] {
            let author = Author::new(n);
            let event = author.note(7, &[&["t", "x\n\"y\""]], "é🚀");
            assert_eq!(verifier.verify(event.event().clone()), Ok(SignedEvent::from_trusted(event.event().clone())));
            assert_eq!(event, Author::new(n).note(7, &[&["t", "x\n\"y\""]], "é🚀"));
        }
    }
}
