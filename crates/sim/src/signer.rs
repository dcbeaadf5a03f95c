//! Keys that sign real events, identical in every run.

use std::fmt;
use std::sync::{Arc, LazyLock};

use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{Event, EventId, PublicKey, SignedEvent, kinds, signed_event};
use grasp_core::repo::{Identifier, RepoId, ServiceAddress};
use grasp_core::time::Timestamp;
use secp256k1::{Keypair, Secp256k1, SecretKey, SignOnly};

/// Precomputed tables, which cost more than a signature and do not depend on the key.
static SECP: LazyLock<Secp256k1<SignOnly>> = LazyLock::new(Secp256k1::signing_only);

/// A key pair that signs events.
#[derive(Clone, PartialEq, Eq)]
pub struct Author {
    keypair: Keypair,
    key: PublicKey,
}

impl Author {
    /// Returns the author with this number.
    pub fn new(number: u8) -> Self {
        Self::in_group(0, number)
    }

    /// Returns the author with this number in one of many groups. Group 0 has the authors of [`new`](Self::new).
    pub fn in_group(group: u8, number: u8) -> Self {
        let mut secret = [1_u8; 32];
        secret[30] = secret[30].wrapping_add(group);
        secret[31] = number;
        let secret = SecretKey::from_slice(&secret).expect("below the order of the curve");
        let keypair = Keypair::from_secret_key(&SECP, &secret);
        Self { keypair, key: PublicKey(keypair.x_only_public_key().0.serialize()) }
    }

    /// Returns the public key.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// Returns the public key in hex.
    pub fn hex(&self) -> String {
        self.key.to_string()
    }

    /// Returns the coordinate `kind:key:d`.
    pub fn coordinate(&self, kind: u16, d: &str) -> String {
        Coordinate { kind, pubkey: self.key, d: d.to_owned() }.to_string()
    }

    /// Returns the coordinate of the announcement with identifier `d`.
    pub fn repo(&self, d: &str) -> String {
        self.coordinate(kinds::ANNOUNCEMENT, d)
    }

    /// Returns the repository with identifier `d`. Panics if `d` is not a valid identifier.
    pub fn repo_id(&self, d: &str) -> RepoId {
        RepoId { owner: self.key, identifier: Identifier::new(d).expect("valid identifier") }
    }

    /// Signs an event. Id and signature are valid, and identical in every run.
    pub fn sign(&self, kind: u16, created_at: u64, tags: &[&[&str]], content: &str) -> Arc<SignedEvent> {
        let tags = tags.iter().map(|tag| tag.iter().map(|value| (*value).to_owned()).collect()).collect();
        self.sign_owned(kind, created_at, tags, content)
    }

    /// Signs an event with owned tags; see [`sign`](Self::sign).
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
        event.sig = SECP.sign_schnorr_no_aux_rand(&event.id.0, &self.keypair).to_byte_array();
        Arc::new(SignedEvent::from_trusted(event))
    }

    /// Signs an announcement that lists a service in `clone` and `relays`, so that the service hosts the repository.
    pub fn announcement(
        &self,
        service: &ServiceAddress,
        d: &str,
        created_at: u64,
        maintainers: &[&Author],
    ) -> Arc<SignedEvent> {
        self.announcement_with(service, d, created_at, vec![maintainers_tag(maintainers)])
    }

    /// Signs an [`announcement`](Self::announcement) with other tags instead of maintainers.
    pub fn announcement_with(
        &self,
        service: &ServiceAddress,
        d: &str,
        created_at: u64,
        more: Vec<Vec<String>>,
    ) -> Arc<SignedEvent> {
        let at = format!("{}{}", service.domain(), service.base());
        let path = Identifier::new(d).map(|_| self.repo_id(d).path()).unwrap_or_default();
        let mut tags = owned_tags(&[
            &["d", d],
            &["clone", &format!("https://{at}/{path}")],
            &["relays", "wss://elsewhere.example", &format!("wss://{at}")],
        ]);
        tags.extend(more);
        self.sign_owned(kinds::ANNOUNCEMENT, created_at, tags, "")
    }

    /// Signs an announcement that lists only other services.
    pub fn announcement_elsewhere(&self, d: &str, created_at: u64, maintainers: &[&Author]) -> Arc<SignedEvent> {
        self.announcement_elsewhere_with(d, created_at, vec![maintainers_tag(maintainers)])
    }

    /// Signs an [`announcement_elsewhere`](Self::announcement_elsewhere) with other tags instead of maintainers.
    pub fn announcement_elsewhere_with(&self, d: &str, created_at: u64, more: Vec<Vec<String>>) -> Arc<SignedEvent> {
        let mut tags = owned_tags(&[
            &["d", d],
            &["clone", "https://elsewhere.example/x.git"],
            &["relays", "wss://elsewhere.example"],
        ]);
        tags.extend(more);
        self.sign_owned(kinds::ANNOUNCEMENT, created_at, tags, "")
    }

    /// Signs a state with these refs.
    pub fn state(&self, d: &str, created_at: u64, refs: &[(&str, &str)]) -> Arc<SignedEvent> {
        let mut tags = owned_tags(&[&["d", d]]);
        tags.extend(refs.iter().map(|(name, oid)| vec![(*name).to_owned(), (*oid).to_owned()]));
        self.sign_owned(kinds::STATE, created_at, tags, "")
    }

    /// Signs a pull request that offers a commit to repositories, given by coordinate.
    pub fn pull_request(&self, created_at: u64, repos: &[&str], commit: &str) -> Arc<SignedEvent> {
        let mut tags = owned_tags(&[&["c", commit], &["clone", "https://elsewhere.example/fork.git"]]);
        tags.extend(repos.iter().map(|repo| vec!["a".to_owned(), (*repo).to_owned()]));
        self.sign_owned(kinds::PULL_REQUEST, created_at, tags, "please merge")
    }

    /// Signs an issue of a repository, given by coordinate.
    pub fn issue(&self, created_at: u64, repo: &str) -> Arc<SignedEvent> {
        self.sign(kinds::ISSUE, created_at, &[&["a", repo], &["subject", "broken"]], "it does not work")
    }

    /// Signs a comment (NIP-22) on an event.
    pub fn comment(&self, created_at: u64, root: &SignedEvent) -> Arc<SignedEvent> {
        let id = root.id.to_string();
        self.sign(1111, created_at, &[&["E", &id], &["K", &root.kind.to_string()], &["e", &id]], "me too")
    }

    /// Signs a text note with these tags.
    pub fn note(&self, created_at: u64, tags: &[&[&str]], content: &str) -> Arc<SignedEvent> {
        self.sign(1, created_at, tags, content)
    }

    /// Signs a deletion request with these tags (`e` and `a`).
    pub fn deletion(&self, created_at: u64, tags: &[&[&str]]) -> Arc<SignedEvent> {
        self.sign(kinds::DELETION, created_at, tags, "")
    }

    /// Signs a deletion request for events by id.
    pub fn delete(&self, created_at: u64, events: &[&SignedEvent]) -> Arc<SignedEvent> {
        let tags = events.iter().map(|event| vec!["e".to_owned(), event.id.to_string()]).collect();
        self.sign_owned(kinds::DELETION, created_at, tags, "")
    }

    /// Signs a request to vanish (NIP-62) from relays.
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

/// Converts tags to the form that events have.
pub fn owned_tags(tags: &[&[&str]]) -> Vec<Vec<String>> {
    tags.iter().map(|tag| tag.iter().map(|value| (*value).to_owned()).collect()).collect()
}

/// Returns a `maintainers` tag.
pub fn maintainers_tag(maintainers: &[&Author]) -> Vec<String> {
    std::iter::once("maintainers".to_owned()).chain(maintainers.iter().map(|author| author.hex())).collect()
}

/// Returns two versions of an event that differ in a word, the one with the lower id first. If both have the same time,
/// that one supersedes the other.
pub fn tied_versions(make: impl Fn(&str) -> Arc<SignedEvent>) -> (Arc<SignedEvent>, Arc<SignedEvent>) {
    let (first, second) = (make("one"), make("other"));
    if first.id < second.id { (first, second) } else { (second, first) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grasp_core::nostr::Verifier;

    #[test]
    fn signatures_are_valid_and_deterministic() {
        let mut verifier = Verifier::default();
        for number in [0, 1, 255] {
            let author = Author::new(number);
            let event = author.note(7, &[&["t", "x\n\"y\""]], "é🚀");
            assert_eq!(verifier.verify(event.event().clone()), Ok(SignedEvent::from_trusted(event.event().clone())));
            assert_eq!(event, Author::new(number).note(7, &[&["t", "x\n\"y\""]], "é🚀"));
        }
    }
}
