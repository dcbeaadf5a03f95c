//! Compares a server's refs with the expected ones.

use std::collections::BTreeMap;

use super::ls_refs::RefVisitor;

/// The differences between expected refs and a server's refs. Other refs of the server take no memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefDiff {
    missing: BTreeMap<String, String>,
    differing: usize,
}

impl RefDiff {
    /// Starts a comparison with the expected refs and their objects.
    #[must_use]
    pub fn new(expected: BTreeMap<String, String>) -> Self {
        Self { missing: expected, differing: 0 }
    }

    /// Returns how many expected refs the server does not have, and how many point to another object.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.missing.len(), self.differing)
    }
}

impl RefVisitor for RefDiff {
    /// If a ref is listed twice, the first line counts.
    fn visit_ref(&mut self, name: &str, oid: &str, _peeled: Option<&str>) {
        if let Some(expected) = self.missing.remove(name) {
            self.differing += usize::from(expected != oid);
        }
    }

    fn visit_peeled(&mut self, _name: &str, _peeled: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::LsRefsParser;
    use crate::pktline;

    #[test]
    fn each_ref_counts_once_and_only_with_its_own_object() {
        let oid = |digit: char| digit.to_string().repeat(40);
        let refs = [("refs/heads/main", 'a'), ("refs/heads/x", 'b'), ("refs/tags/v1", 'c'), ("refs/tags/v2", 'd')];
        let refs = refs.map(|(name, digit)| (name.to_owned(), oid(digit)));
        let mut bytes = Vec::new();
        for line in [
            format!("{} HEAD", oid('a')),
            format!("{} refs/heads/main", oid('a')),
            format!("{} refs/heads/main", oid('f')),
            format!("{} refs/heads/more", oid('b')),
            format!("{} refs/heads/x", oid('f')),
            // Another tag object, which leads to the same commit.
            format!("{} refs/tags/v1 peeled:{}", oid('e'), oid('c')),
        ] {
            pktline::push_line(&mut bytes, &line);
        }
        pktline::push_flush(&mut bytes);
        let mut parser = LsRefsParser::new(RefDiff::new(refs.into()));
        parser.feed(&bytes).expect("a valid list");
        assert_eq!(parser.finish().expect("a complete list").counts(), (1, 2));
    }
}
