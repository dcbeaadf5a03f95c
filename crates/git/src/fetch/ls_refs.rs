//! What of a server's refs matters: whether they show the objects that are sought, and what else may lead to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use grasp_core::limits;
use grasp_core::nostr::hex;

use super::packet_reader::Packets;
use super::ref_advertisement::BadGreeting;
use super::words;
use crate::pktline::Packet;

/// Who is told of a server's refs.
pub trait Hearer {
    /// A ref: its name, the object that it points to, and what that is a tag of.
    fn hear(&mut self, name: &str, oid: &str, peeled: Option<&str>);

    /// What the ref that was heard last is a tag of, as v0 says it.
    fn peel(&mut self, name: &str, peeled: &str);
}

/// The refs of a server, as far as they matter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    sought: BTreeSet<String>,
    /// What the names of refs begin with that may lead to what is sought.
    prefixes: Vec<String>,
    /// Sought objects that refs point to.
    shown: BTreeSet<String>,
    /// Sought objects that tags are tags of, with the tag.
    tagged: BTreeMap<String, String>,
    /// Other objects that refs of the right names point to.
    others: BTreeSet<String>,
    /// The last ref, of which it may follow what it is a tag of.
    last: Option<(String, String)>,
}

impl Listing {
    /// An empty one: what is sought, and which other refs may lead to it.
    #[must_use]
    pub fn new(sought: impl IntoIterator<Item = String>, prefixes: impl IntoIterator<Item = String>) -> Self {
        Self {
            sought: sought.into_iter().collect(),
            prefixes: prefixes.into_iter().collect(),
            shown: BTreeSet::new(),
            tagged: BTreeMap::new(),
            others: BTreeSet::new(),
            last: None,
        }
    }

    /// What the server should be asked for: the refs that show what is sought, and where they do not show all of it, every
    /// ref that may lead to the rest.
    #[must_use]
    pub fn wants(&self) -> Vec<String> {
        let tagged = self.tagged.iter().filter(|(oid, _)| !self.shown.contains(*oid));
        let mut wants: BTreeSet<&String> = self.shown.iter().chain(tagged.map(|(_, tag)| tag)).collect();
        let is_shown = |oid: &String| self.shown.contains(oid) || self.tagged.contains_key(oid);
        if !self.sought.iter().all(is_shown) {
            wants.extend(&self.others);
        }
        wants.into_iter().cloned().collect()
    }

    fn tag(&mut self, oid: &str, peeled: &str) {
        if self.sought.contains(peeled) {
            self.tagged.entry(peeled.to_owned()).or_insert_with(|| oid.to_owned());
        }
    }
}

impl Hearer for Listing {
    fn hear(&mut self, name: &str, oid: &str, peeled: Option<&str>) {
        if self.sought.contains(oid) {
            self.shown.insert(oid.to_owned());
        } else if self.others.len() < limits::MAX_REQUESTED_REFS
            && name.len() <= limits::MAX_REF_NAME_BYTES
            && self.prefixes.iter().any(|prefix| name.starts_with(prefix))
        {
            self.others.insert(oid.to_owned());
        }
        match peeled {
            Some(peeled) => self.tag(oid, peeled),
            None => self.last = Some((name.to_owned(), oid.to_owned())),
        }
    }

    fn peel(&mut self, name: &str, peeled: &str) {
        if let Some((_, oid)) = self.last.take().filter(|(last, _)| last == name) {
            self.tag(&oid, peeled);
        }
    }
}

/// Reads the answer to `ls-refs` as it comes.
#[derive(Debug)]
pub struct ListParser<H> {
    packets: Packets,
    listing: H,
    done: bool,
}

impl<H: Hearer> ListParser<H> {
    /// One that tells this one.
    #[must_use]
    pub fn new(listing: H) -> Self {
        Self { packets: Packets::default(), listing, done: false }
    }

    /// Takes some bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), BadGreeting> {
        if self.done {
            return Ok(());
        }
        let (listing, done) = (&mut self.listing, &mut self.done);
        self.packets.feed(bytes, |packet| {
            let line = match (packet, packet.line()) {
                (Packet::Flush, _) => {
                    *done = true;
                    return Ok(ControlFlow::Break(()));
                }
                (_, Some(line)) => line,
                _ => return Err(BadGreeting::Line("a delimiter".to_owned())),
            };
            if let Some(why) = line.strip_prefix(b"ERR ") {
                return Err(BadGreeting::Refused(words(why)));
            }
            // A branch without a commit.
            if !line.starts_with(b"unborn ") {
                let (oid, rest) = name_and_oid(line).ok_or_else(|| BadGreeting::Line(words(line)))?;
                let mut parts = rest.split(' ');
                let name = parts.next().unwrap_or_default();
                listing.hear(name, oid, parts.find_map(|part| part.strip_prefix("peeled:")));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    /// There is no more to come.
    pub fn finish(self) -> Result<H, BadGreeting> {
        if self.done { Ok(self.listing) } else { Err(BadGreeting::Truncated) }
    }
}

/// The two parts of a line: an object id, and what follows it.
pub(super) fn name_and_oid(line: &[u8]) -> Option<(&str, &str)> {
    let (oid, rest) = line.split_at_checked(41)?;
    let oid = std::str::from_utf8(oid).ok()?.strip_suffix(' ')?;
    // A name that is no text belongs to a ref that matters to nobody.
    let rest = std::str::from_utf8(rest).unwrap_or("?");
    hex::decode::<20>(oid).map(|_| (oid, rest))
}

/// Whether this is the id that stands for no object.
pub(super) fn is_zero(oid: &str) -> bool {
    oid.bytes().all(|digit| digit == b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pktline;

    fn oid(digit: char) -> String {
        digit.to_string().repeat(40)
    }

    fn listing(sought: &[char]) -> Listing {
        let prefixes = ["refs/heads/", "refs/tags/", "refs/nostr/1"].map(str::to_owned);
        Listing::new(sought.iter().map(|digit| oid(*digit)), prefixes)
    }

    fn read(sought: &[char], lines: &[String]) -> Result<Vec<String>, BadGreeting> {
        let mut bytes = Vec::new();
        lines.iter().for_each(|line| pktline::push_line(&mut bytes, line));
        pktline::push_flush(&mut bytes);
        let mut parser = ListParser::new(listing(sought));
        bytes.chunks(5).try_for_each(|part| parser.feed(part))?;
        Ok(parser.finish()?.wants())
    }

    #[test]
    fn what_is_shown_is_enough_or_everything_is_asked_for() {
        let lines = [
            format!("{} refs/heads/main", oid('a')),
            format!("{} refs/nostr/1", oid('b')),
            format!("{} refs/tags/v1 peeled:{}", oid('c'), oid('d')),
            format!("{} refs/pull/1", oid('e')),
            "unborn HEAD symref-target:refs/heads/x".to_owned(),
        ];
        let wants = |sought: &[char]| read(sought, &lines).expect("a list");
        assert_eq!(wants(&['a']), [oid('a')]);
        assert_eq!(wants(&['a', 'b']), [oid('a'), oid('b')]);
        assert_eq!(wants(&['d']), [oid('c')], "the tag brings it");
        assert_eq!(wants(&['e']), [oid('e')], "whatever its name");
        assert_eq!(wants(&['f']), [oid('a'), oid('b'), oid('c')]);
        assert_eq!(wants(&['e', 'f']), [oid('a'), oid('b'), oid('c'), oid('e')]);
        assert_eq!(read(&['a'], &[]), Ok(vec![]));
    }

    #[test]
    fn v0_says_behind_a_tag_what_it_is_a_tag_of() {
        let mut list = listing(&['d']);
        list.hear("refs/tags/v1", &oid('c'), None);
        list.peel("refs/tags/v2", &oid('d'));
        assert_eq!(list.wants(), [oid('c')], "of another, so it only may lead there");
        list.hear("refs/tags/v3", &oid('b'), None);
        list.peel("refs/tags/v3", &oid('d'));
        assert_eq!(list.wants(), [oid('b')]);
        list.hear("refs/heads/main", &oid('d'), None);
        assert_eq!(list.wants(), [oid('d')], "the object itself is nearer");
    }

    #[test]
    fn a_million_refs_take_no_memory() {
        let mut list = listing(&['f']);
        for number in 0..10 * limits::MAX_REQUESTED_REFS {
            list.hear("refs/heads/x", &format!("{number:040x}"), None);
        }
        list.hear(&format!("refs/heads/{}", "x".repeat(limits::MAX_REF_NAME_BYTES)), &oid('e'), None);
        assert_eq!(list.wants().len(), limits::MAX_REQUESTED_REFS);
        list.hear("refs/heads/y", &oid('f'), None);
        assert_eq!(list.wants(), [oid('f')]);
    }

    #[test]
    fn what_is_no_list() {
        for line in ["nonsense".to_owned(), format!("{} refs/heads/x", "g".repeat(40)), "ERR no".to_owned()] {
            assert!(read(&['a'], std::slice::from_ref(&line)).is_err(), "{line}");
        }
        assert_eq!(ListParser::new(listing(&['a'])).finish(), Err(BadGreeting::Truncated));
    }
}
