//! Whether a server's refs are those that it should have.

use std::collections::BTreeMap;

use super::ls_refs::Hearer;

/// What a server should have, less what it was heard to have. What else it has takes no memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inventory {
    missing: BTreeMap<String, String>,
    differing: usize,
}

impl Inventory {
    /// The refs that it should have, with the objects that they should point to.
    #[must_use]
    pub fn new(refs: BTreeMap<String, String>) -> Self {
        Self { missing: refs, differing: 0 }
    }

    /// How many of them it does not have at all, and how many it has elsewhere.
    #[must_use]
    pub fn lacks(&self) -> (usize, usize) {
        (self.missing.len(), self.differing)
    }
}

impl Hearer for Inventory {
    /// The first that is said of a ref counts.
    fn hear(&mut self, name: &str, oid: &str, _peeled: Option<&str>) {
        if let Some(wanted) = self.missing.remove(name) {
            self.differing += usize::from(wanted != oid);
        }
    }

    fn peel(&mut self, _name: &str, _peeled: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::ListParser;
    use crate::pktline;

    #[test]
    fn each_ref_counts_once_and_only_at_its_object() {
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
            // The tag is another, though it is one of the same commit.
            format!("{} refs/tags/v1 peeled:{}", oid('e'), oid('c')),
        ] {
            pktline::push_line(&mut bytes, &line);
        }
        pktline::push_flush(&mut bytes);
        let mut parser = ListParser::new(Inventory::new(refs.into()));
        parser.feed(&bytes).expect("a list");
        assert_eq!(parser.finish().expect("an end").lacks(), (1, 2));
    }
}
