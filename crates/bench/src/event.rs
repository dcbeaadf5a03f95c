//! An event before and after its signature.

use std::sync::LazyLock;

use anyhow::Result;
use nostr::event::{Event, EventId, Kind, Tag};
use nostr::key::{Keys, SecretKey};
use nostr::types::Timestamp;
use secp256k1::{Secp256k1, SignOnly};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use crate::random::Random;

/// Building a context takes longer than a signature, so all threads share one.
static SIGNING: LazyLock<Secp256k1<SignOnly>> = LazyLock::new(Secp256k1::signing_only);

/// Someone who signs.
#[derive(Debug, Clone)]
pub struct Author {
    keys: Keys,
    /// The public key in hex, as tags carry it.
    pub public_key: String,
}

impl Author {
    /// The author numbered `index` of a seed.
    pub fn of(seed: u64, index: u64) -> Result<Self> {
        let keys = Keys::new(SecretKey::from_slice(&Random::new(seed, index).bytes())?);
        Ok(Self { public_key: keys.public_key().to_hex(), keys })
    }

    /// Signs a draft. BIP-340 without fresh randomness: the same draft always gives the same bytes.
    pub fn sign(&self, draft: Draft) -> Result<SignedEvent> {
        let created_at = Timestamp::from(draft.created_at);
        let kind = Kind::from(draft.kind);
        let tags = draft.tags.into_iter().map(Tag::parse).collect::<Result<Vec<_>, _>>()?;
        let unsigned = nostr::event::UnsignedEvent::new(self.keys.public_key(), created_at, kind, tags, draft.content);
        let id = unsigned.compute_id();
        let signature = self.keys.sign_schnorr_with_aux_rand(&SIGNING, id.as_bytes(), &[0; 32]);
        // `add_signature` would verify what was just signed, at twice the price of signing.
        let event = Event::new(id, unsigned.pubkey, created_at, kind, unsigned.tags, unsigned.content, signature);
        Ok(SignedEvent {
            id,
            kind: draft.kind,
            created_at: draft.created_at,
            message: format!(r#"["EVENT",{}]"#, serde_json::to_string(&event)?).into(),
        })
    }
}

/// What an author decides about an event.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The kind.
    pub kind: u16,
    /// Seconds since 1970.
    pub created_at: u64,
    /// Tags; none may be empty.
    pub tags: Vec<Vec<String>>,
    /// The content.
    pub content: String,
}

/// An event ready to be sent. Only what the runs need is kept, so that a million of them fit in memory.
#[derive(Debug, Clone)]
pub struct SignedEvent {
    /// The id.
    pub id: EventId,
    /// The kind.
    pub kind: u16,
    /// Seconds since 1970.
    pub created_at: u64,
    /// The whole `["EVENT",…]` message. Cloning shares the bytes.
    pub message: Utf8Bytes,
}

impl SignedEvent {
    /// The event object inside the message.
    pub fn json(&self) -> &str {
        let message = self.message.as_str();
        message.strip_prefix(r#"["EVENT","#).and_then(|rest| rest.strip_suffix(']')).unwrap_or(message)
    }
}
