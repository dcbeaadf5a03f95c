//! Compact representation of rows: dependencies in one allocation, relays as numbers.

use std::collections::BTreeMap;

use bitcoin_hashes::sha256;

use super::row::Dependency;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::{Coordinate, EventId};
use crate::repo::Identifier;
use crate::sync::relay_url::RelayUrl;

/// A list of dependencies, encoded into one byte string.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PackedDependencies(Box<[u8]>);

impl PackedDependencies {
    pub(super) fn new(dependencies: &[Dependency]) -> Self {
        let mut bytes = Vec::new();
        for dependency in dependencies {
            write(&mut bytes, dependency);
        }
        Self(bytes.into_boxed_slice())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Dependency> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || read(&mut rest))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the hash key of a dependency. Collisions are resolved by comparing the dependencies of the row.
pub(super) fn key(dependency: &Dependency) -> u64 {
    let mut bytes = Vec::new();
    write(&mut bytes, dependency);
    let hash = sha256::Hash::hash(&bytes).to_byte_array();
    hash.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

fn write(bytes: &mut Vec<u8>, dependency: &Dependency) {
    match dependency {
        Dependency::Event(id) => {
            bytes.push(0);
            bytes.extend_from_slice(&id.0);
        }
        Dependency::Coordinate(coordinate) => {
            bytes.push(1);
            write_coordinate(bytes, coordinate);
        }
        Dependency::Identifier(name) => {
            bytes.push(2);
            write_text(bytes, name.as_str());
        }
        Dependency::OwnCoordinate(coordinate) => {
            bytes.push(3);
            write_coordinate(bytes, coordinate);
        }
        Dependency::Author(author) => {
            bytes.push(4);
            bytes.extend_from_slice(&author.0);
        }
    }
}

fn write_coordinate(bytes: &mut Vec<u8>, coordinate: &Coordinate) {
    bytes.extend_from_slice(&coordinate.kind.to_be_bytes());
    bytes.extend_from_slice(&coordinate.pubkey.0);
    write_text(bytes, &coordinate.d);
}

/// Appends a text with its length. Texts of a row are at most as long as an identifier. A longer text of a lookup gets
/// the maximum length and therefore matches no row.
fn write_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn read(rest: &mut &[u8]) -> Option<Dependency> {
    let [tag] = take(rest)?;
    match tag {
        0 => take(rest).map(EventId).map(Dependency::Event),
        1 => read_coordinate(rest).map(Dependency::Coordinate),
        2 => Identifier::new(read_text(rest)?).map(Dependency::Identifier),
        3 => read_coordinate(rest).map(Dependency::OwnCoordinate),
        4 => take(rest).map(PublicKey).map(Dependency::Author),
        _ => None,
    }
}

fn read_coordinate(rest: &mut &[u8]) -> Option<Coordinate> {
    let kind = u16::from_be_bytes(take(rest)?);
    let pubkey = PublicKey(take(rest)?);
    Some(Coordinate { kind, pubkey, d: read_text(rest)?.to_owned() })
}

fn read_text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = u16::from_be_bytes(take(rest)?);
    let (text, behind) = rest.split_at_checked(usize::from(length))?;
    *rest = behind;
    std::str::from_utf8(text).ok()
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*taken)
}

/// Assigns small numbers to relay URLs. A number is reused when no row uses it any more.
#[derive(Debug, Default)]
pub(super) struct RelayNumbers {
    numbers: BTreeMap<RelayUrl, u16>,
    /// By number: the URL and the number of rows that use it.
    urls: Vec<(RelayUrl, usize)>,
    free: Vec<u16>,
}

/// Numbers of the relays that offered the event of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OfferingRelays([u16; limits::MAX_REJECTED_RELAYS]);

const NONE: u16 = u16::MAX;

impl OfferingRelays {
    pub(super) const EMPTY: Self = Self([NONE; limits::MAX_REJECTED_RELAYS]);

    pub(super) fn contains(self, number: u16) -> bool {
        number != NONE && self.0.contains(&number)
    }
}

impl RelayNumbers {
    pub(super) fn number(&self, url: &RelayUrl) -> Option<u16> {
        self.numbers.get(url).copied()
    }

    /// Adds a relay to a row. Returns `false` if the row has it already or is full.
    pub(super) fn add(&mut self, offers: &mut OfferingRelays, url: &RelayUrl) -> bool {
        if self.number(url).is_some_and(|number| offers.contains(number)) {
            return false;
        }
        let Some(place) = offers.0.iter_mut().find(|number| **number == NONE) else { return false };
        let Some(number) = self.take(url) else { return false };
        *place = number;
        true
    }

    /// Returns the number of a relay, a new one if necessary, and counts its use. `None` if all 65,535 numbers are in
    /// use.
    fn take(&mut self, url: &RelayUrl) -> Option<u16> {
        let number = match self.number(url) {
            Some(number) => number,
            None => {
                let number = match self.free.pop() {
                    Some(number) => {
                        self.urls[usize::from(number)] = (url.clone(), 0);
                        number
                    }
                    None => {
                        let number = u16::try_from(self.urls.len()).ok().filter(|number| *number != NONE)?;
                        self.urls.push((url.clone(), 0));
                        number
                    }
                };
                self.numbers.insert(url.clone(), number);
                number
            }
        };
        self.urls[usize::from(number)].1 += 1;
        Some(number)
    }

    pub(super) fn urls(&self, offers: OfferingRelays) -> Vec<RelayUrl> {
        let numbers = offers.0.into_iter().filter(|number| *number != NONE);
        numbers.map(|number| self.urls[usize::from(number)].0.clone()).collect()
    }

    /// Releases the relay numbers of a removed row.
    pub(super) fn release(&mut self, offers: OfferingRelays) {
        for number in offers.0.into_iter().filter(|number| *number != NONE) {
            let (url, count) = &mut self.urls[usize::from(number)];
            *count -= 1;
            if *count == 0 {
                self.numbers.remove(url);
                self.free.push(number);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}
