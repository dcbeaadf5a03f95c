//! Event drafts and signed events.

use std::sync::LazyLock;

use anyhow::Result;
use nostr::event::{Event, EventId, Kind, Tag};
use nostr::key::{Keys, SecretKey};
use nostr::types::Timestamp;
use secp256k1::{Secp256k1, SignOnly};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use crate::random::Random;

/// Shared signing context: creating one takes longer than a signature.
static SIGNING: LazyLock<Secp256k1<SignOnly>> = LazyLock::new(Secp256k1::signing_only);

/// A key pair that signs events.
#[derive(Debug, Clone)]
pub struct Author {
    keys: Keys,
    /// The public key in hex, as in tags.
    pub public_key: String,
}

impl Author {
    /// Derives author number `index` of a seed.
    pub fn from_seed(seed: u64, index: u64) -> Result<Self> {
        let keys = Keys::new(SecretKey::from_slice(&Random::new(seed, index).bytes())?);
        Ok(Self { public_key: keys.public_key().to_hex(), keys })
    }

    /// Signs a draft. BIP-340 signature without auxiliary randomness: the same draft always gives the same bytes.
    pub fn sign(&self, draft: Draft) -> Result<SignedEvent> {
        let created_at = Timestamp::from(draft.created_at);
        let kind = Kind::from(draft.kind);
        let tags = draft.tags.into_iter().map(Tag::parse).collect::<Result<Vec<_>, _>>()?;
        let unsigned = nostr::event::UnsignedEvent::new(self.keys.public_key(), created_at, kind, tags, draft.content);
        let id = unsigned.compute_id();
        let signature = self.keys.sign_schnorr_with_aux_rand(&SIGNING, id.as_bytes(), &[0; 32]);
        // `add_signature` would verify the new signature, which takes twice as long as signing.
        let event = Event::new(id, unsigned.pubkey, created_at, kind, unsigned.tags, unsigned.content, signature);
        Ok(SignedEvent {
            id,
            kind: draft.kind,
            created_at: draft.created_at,
            message: format!(r#"["EVENT",{}]"#, serde_json::to_string(&event)?).into(),
        })
    }
}

/// Content of an event before it is signed.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Event kind.
    pub kind: u16,
    /// Unix timestamp.
    pub created_at: u64,
    /// Tags. None may be empty.
    pub tags: Vec<Vec<String>>,
    /// Content.
    pub content: String,
}

/// A signed event, ready to be sent. Only the fields that the runs need are kept, so that a million events fit in
/// memory.
#[derive(Debug, Clone)]
pub struct SignedEvent {
    /// Event id.
    pub id: EventId,
    /// Event kind.
    pub kind: u16,
    /// Unix timestamp.
    pub created_at: u64,
    /// The complete `["EVENT",…]` message. Clones share the bytes.
    pub message: Utf8Bytes,
}

impl SignedEvent {
    /// Returns the event object inside the message.
    pub fn json(&self) -> &str {
        let message = self.message.as_str();
        message.strip_prefix(r#"["EVENT","#).and_then(|rest| rest.strip_suffix(']')).unwrap_or(message)
    }
}
