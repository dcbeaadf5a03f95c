//! Parses the response to `ls-refs`, and selects the refs of a server that lead to wanted objects.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::limits;
use grasp_core::nostr::hex;

use super::excerpt;
use super::packet_reader::PacketReader;
use super::ref_advertisement::RefListError;
use crate::pktline::Packet;

/// Receives the refs of a server as they are parsed.
pub trait RefVisitor {
    /// Handles a ref: its name, the object that it points to, and the object that this leads to if it is a tag.
    fn visit_ref(&mut self, name: &str, oid: &str, peeled: Option<&str>);

    /// Handles the peeled object of the ref before, which v0 sends in its own line.
    fn visit_peeled(&mut self, name: &str, peeled: &str);
}

/// Selects the objects to request from a server so that its response contains the wanted objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WantSelector {
    wanted: BTreeSet<String>,
    /// Prefixes of the names of refs that may lead to wanted objects.
    prefixes: Vec<String>,
    /// Wanted objects that refs point to.
    direct: BTreeSet<String>,
    /// Wanted objects that tags lead to, each with the tag object.
    tagged: BTreeMap<String, String>,
    /// Other objects that refs with one of the prefixes point to.
    others: BTreeSet<String>,
    /// The last ref, whose peeled object may follow.
    last: Option<(String, String)>,
}

impl WantSelector {
    /// Starts a selection of refs that lead to the wanted objects. Refs with one of the prefixes may lead to objects
    /// that no ref points to.
    #[must_use]
    pub fn new(wanted: impl IntoIterator<Item = String>, prefixes: impl IntoIterator<Item = String>) -> Self {
        Self {
            wanted: wanted.into_iter().collect(),
            prefixes: prefixes.into_iter().collect(),
            direct: BTreeSet::new(),
            tagged: BTreeMap::new(),
            others: BTreeSet::new(),
            last: None,
        }
    }

    /// Returns the objects to request: those refs that point or lead to wanted objects, and, if that does not cover all
    /// wanted objects, every ref that may lead to the rest.
    #[must_use]
    pub fn wants(&self) -> Vec<String> {
        let tagged = self.tagged.iter().filter(|(oid, _)| !self.direct.contains(*oid));
        let mut wants: BTreeSet<&String> = self.direct.iter().chain(tagged.map(|(_, tag)| tag)).collect();
        let is_covered = |oid: &String| self.direct.contains(oid) || self.tagged.contains_key(oid);
        if !self.wanted.iter().all(is_covered) {
            wants.extend(&self.others);
        }
        wants.into_iter().cloned().collect()
    }

    fn add_tag(&mut self, oid: &str, peeled: &str) {
        if self.wanted.contains(peeled) {
            self.tagged.entry(peeled.to_owned()).or_insert_with(|| oid.to_owned());
        }
    }
}

impl RefVisitor for WantSelector {
    fn visit_ref(&mut self, name: &str, oid: &str, peeled: Option<&str>) {
        if self.wanted.contains(oid) {
            self.direct.insert(oid.to_owned());
        } else if self.others.len() < limits::MAX_REQUESTED_REFS
            && name.len() <= limits::MAX_REF_NAME_BYTES
            && self.prefixes.iter().any(|prefix| name.starts_with(prefix))
        {
            self.others.insert(oid.to_owned());
        }
        match peeled {
            Some(peeled) => self.add_tag(oid, peeled),
            None => self.last = Some((name.to_owned(), oid.to_owned())),
        }
    }

    fn visit_peeled(&mut self, name: &str, peeled: &str) {
        if let Some((_, oid)) = self.last.take().filter(|(last, _)| last == name) {
            self.add_tag(&oid, peeled);
        }
    }
}

/// Parses the response to `ls-refs` from chunks of any size.
#[derive(Debug)]
pub struct LsRefsParser<V> {
    packets: PacketReader,
    visitor: V,
    is_done: bool,
}

impl<V: RefVisitor> LsRefsParser<V> {
    /// Returns a parser that passes the refs to a visitor.
    #[must_use]
    pub fn new(visitor: V) -> Self {
        Self { packets: PacketReader::default(), visitor, is_done: false }
    }

    /// Parses the next bytes.
    ///
    /// # Errors
    /// If the response is malformed, or if the server reports an error.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), RefListError> {
        if self.is_done {
            return Ok(());
        }
        let (visitor, is_done) = (&mut self.visitor, &mut self.is_done);
        self.packets.feed(bytes, |packet| {
            let line = match (packet, packet.line()) {
                (Packet::Flush, _) => {
                    *is_done = true;
                    return Ok(true);
                }
                (_, Some(line)) => line,
                _ => return Err(RefListError::UnexpectedLine("a delimiter".to_owned())),
            };
            if let Some(reason) = line.strip_prefix(b"ERR ") {
                return Err(RefListError::Rejected(excerpt(reason)));
            }
            // A branch without a commit is ignored.
            if !line.starts_with(b"unborn ") {
                let (oid, rest) = split_ref_line(line).ok_or_else(|| RefListError::UnexpectedLine(excerpt(line)))?;
                let mut parts = rest.split(' ');
                let name = parts.next().unwrap_or_default();
                visitor.visit_ref(name, oid, parts.find_map(|part| part.strip_prefix("peeled:")));
            }
            Ok(false)
        })?;
        Ok(())
    }

    /// Ends the response and returns the visitor.
    ///
    /// # Errors
    /// If the response is incomplete.
    pub fn finish(self) -> Result<V, RefListError> {
        if self.is_done { Ok(self.visitor) } else { Err(RefListError::Truncated) }
    }
}

/// Splits a line into the object id and what follows it.
pub(super) fn split_ref_line(line: &[u8]) -> Option<(&str, &str)> {
    let (oid, rest) = line.split_at_checked(41)?;
    let oid = std::str::from_utf8(oid).ok()?.strip_suffix(' ')?;
    // No state can declare a name that is not UTF-8, so such a name need not be kept.
    let rest = std::str::from_utf8(rest).unwrap_or("?");
    hex::decode::<20>(oid).map(|_| (oid, rest))
}

/// Returns whether this is the id that stands for no object.
pub(super) fn is_zero_oid(oid: &str) -> bool {
    oid.bytes().all(|digit| digit == b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pktline;

    fn oid(digit: char) -> String {
        digit.to_string().repeat(40)
    }

    fn selector(wanted: &[char]) -> WantSelector {
        let prefixes = ["refs/heads/", "refs/tags/", "refs/nostr/1"].map(str::to_owned);
        WantSelector::new(wanted.iter().map(|digit| oid(*digit)), prefixes)
    }

    fn select(wanted: &[char], lines: &[String]) -> Result<Vec<String>, RefListError> {
        let mut bytes = Vec::new();
        lines.iter().for_each(|line| pktline::push_line(&mut bytes, line));
        pktline::push_flush(&mut bytes);
        let mut parser = LsRefsParser::new(selector(wanted));
        bytes.chunks(5).try_for_each(|part| parser.feed(part))?;
        Ok(parser.finish()?.wants())
    }

    #[test]
    fn refs_to_wanted_objects_are_requested_or_else_all_refs() {
        let lines = [
            format!("{} refs/heads/main", oid('a')),
            format!("{} refs/nostr/1", oid('b')),
            format!("{} refs/tags/v1 peeled:{}", oid('c'), oid('d')),
            format!("{} refs/pull/1", oid('e')),
            "unborn HEAD symref-target:refs/heads/x".to_owned(),
        ];
        let wants = |wanted: &[char]| select(wanted, &lines).expect("a valid list");
        assert_eq!(wants(&['a']), [oid('a')]);
        assert_eq!(wants(&['a', 'b']), [oid('a'), oid('b')]);
        assert_eq!(wants(&['d']), [oid('c')], "the tag leads to it");
        assert_eq!(wants(&['e']), [oid('e')], "the name does not matter");
        assert_eq!(wants(&['f']), [oid('a'), oid('b'), oid('c')]);
        assert_eq!(wants(&['e', 'f']), [oid('a'), oid('b'), oid('c'), oid('e')]);
        assert_eq!(select(&['a'], &[]), Ok(vec![]));
    }

    #[test]
    fn peeled_object_of_v0_belongs_to_the_ref_before_it() {
        let mut selector = selector(&['d']);
        selector.visit_ref("refs/tags/v1", &oid('c'), None);
        selector.visit_peeled("refs/tags/v2", &oid('d'));
        assert_eq!(selector.wants(), [oid('c')], "the peeled object is that of another ref");
        selector.visit_ref("refs/tags/v3", &oid('b'), None);
        selector.visit_peeled("refs/tags/v3", &oid('d'));
        assert_eq!(selector.wants(), [oid('b')]);
        selector.visit_ref("refs/heads/main", &oid('d'), None);
        assert_eq!(selector.wants(), [oid('d')], "a ref to the object itself is preferred");
    }

    #[test]
    fn memory_is_bounded_for_any_number_of_refs() {
        let mut selector = selector(&['f']);
        for number in 0..10 * limits::MAX_REQUESTED_REFS {
            selector.visit_ref("refs/heads/x", &format!("{number:040x}"), None);
        }
        selector.visit_ref(&format!("refs/heads/{}", "x".repeat(limits::MAX_REF_NAME_BYTES)), &oid('e'), None);
        assert_eq!(selector.wants().len(), limits::MAX_REQUESTED_REFS);
        selector.visit_ref("refs/heads/y", &oid('f'), None);
        assert_eq!(selector.wants(), [oid('f')]);
    }

    #[test]
    fn invalid_and_incomplete_lists_are_rejected() {
        for line in ["nonsense".to_owned(), format!("{} refs/heads/x", "g".repeat(40)), "ERR no".to_owned()] {
            assert!(select(&['a'], std::slice::from_ref(&line)).is_err(), "{line}");
        }
        assert_eq!(LsRefsParser::new(selector(&['a'])).finish(), Err(RefListError::Truncated));
    }
}
