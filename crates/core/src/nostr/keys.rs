//! Public keys: 32 bytes, encoded as hex in events and as `npub1…` in paths. Also the bech32 decoding of NIP-19.

use std::collections::BTreeMap;
use std::fmt;

use bech32::primitives::decode::CheckedHrpstring;
use bech32::{Bech32, Hrp};

use super::hex;

/// The human-readable part of a public key in bech32 (NIP-19).
const NPUB: Hrp = Hrp::parse_unchecked("npub");

/// A nostr public key (x-only, 32 bytes). It may not be a point on the curve; signature verification detects that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Parses 64 lower-case hex digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        hex::decode(text).map(Self)
    }

    /// Parses the canonical `npub1…` form: lower case and a valid checksum. Other forms are not accepted in paths, see
    /// `docs/protocol.md#identifiers-and-paths`.
    #[must_use]
    pub fn from_npub(text: &str) -> Option<Self> {
        decode_bech32(NPUB.as_str(), text).map(Self)
    }

    /// Returns the `npub1…` form.
    #[must_use]
    pub fn npub(&self) -> String {
        // Cannot fail: 32 bytes and a fixed prefix are far below the length limit of bech32.
        bech32::encode::<Bech32>(NPUB, &self.0).unwrap_or_default()
    }
}

/// Decodes 32 bytes of canonical bech32 (lower case, valid checksum) with the given human-readable prefix.
pub(super) fn decode_bech32(prefix: &str, text: &str) -> Option<[u8; 32]> {
    let (found, bytes) = bech32::decode(text).ok()?;
    let bytes: [u8; 32] = bytes.try_into().ok().filter(|_| found.as_str() == prefix)?;
    (bech32::encode::<Bech32>(found, &bytes).is_ok_and(|canonical| canonical == text)).then_some(bytes)
}

/// Decodes the TLV fields of NIP-19 from bech32 with the given human-readable prefix. Of several fields with the same
/// number the first is returned.
pub(super) fn decode_tlv(prefix: &str, text: &str) -> Option<BTreeMap<u8, Vec<u8>>> {
    let checked = CheckedHrpstring::new::<Bech32>(text).ok().filter(|checked| checked.hrp().as_str() == prefix)?;
    let bytes: Vec<u8> = checked.byte_iter().collect();
    let mut rest = bytes.as_slice();
    let mut fields = BTreeMap::new();
    while let [number, len, behind @ ..] = rest {
        let (value, others) = behind.split_at_checked(usize::from(*len))?;
        fields.entry(*number).or_insert_with(|| value.to_vec());
        rest = others;
    }
    rest.is_empty().then_some(fields)
}

/// Returns whether a text is valid bech32 with one of these prefixes.
pub(crate) fn is_bech32(prefixes: &[&str], text: &str) -> bool {
    CheckedHrpstring::new::<Bech32>(text).is_ok_and(|checked| prefixes.contains(&checked.hrp().as_str()))
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0[..4]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_npub_is_accepted() {
        let key = PublicKey::from_hex("7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e").expect("hex");
        let npub = key.npub();
        assert_eq!(npub, "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg");
        assert_eq!(PublicKey::from_npub(&npub), Some(key));
        assert_eq!(PublicKey::from_npub(&npub.to_uppercase()), None);
        assert_eq!(PublicKey::from_npub(&key.to_string()), None);
        assert_eq!(PublicKey::from_npub("npub1test"), None);
        assert_eq!(PublicKey::from_npub(&format!("nostr:{npub}")), None);
        assert_eq!(PublicKey::from_npub(&npub.replace('g', "q")), None);
    }
}
