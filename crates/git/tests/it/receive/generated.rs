//! Generated histories and packs: the same for the same seed, valid or with one fault.

use std::collections::{BTreeMap, BTreeSet};

use sha1::{Digest, Sha1};

use super::pack_builder::{BLOB, COMMIT, PackBuilder, REF_DELTA, TAG, TREE, delta};

pub(crate) type Oid = [u8; 20];

/// A deterministic random number generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }
}

pub(crate) fn hex(oid: &Oid) -> String {
    oid.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An object, and the objects that it refers to.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) kind: u8,
    pub(crate) content: Vec<u8>,
    links: Vec<Oid>,
}

/// A file, folder, symbolic link or submodule.
#[derive(Clone)]
enum Node {
    Leaf { mode: &'static str, oid: Oid },
    Folder(BTreeMap<String, Node>),
}

/// A commit with its files.
#[derive(Clone)]
pub(crate) struct Commit {
    pub(crate) oid: Oid,
    files: BTreeMap<String, Node>,
}

/// What is wrong with or unusual about the root tree of a commit.
pub(crate) const TREE_FAULTS: [&str; 34] = [
    "unsorted",
    "duplicate",
    "file and folder",
    "folder sorted as file",
    "truncated",
    "junk",
    "null id",
    "missing blob",
    "missing tree",
    "blob as tree",
    "tree as blob",
    "mode 100664",
    "mode 040000",
    "mode 644",
    "mode 100600",
    "mode 0",
    "name ",
    "name .",
    "name ..",
    "name .git",
    "name .GIT",
    "name a/b",
    "name git~1",
    "name .gitmodules",
    "name .git\u{200c}",
    "name a\\.git",
    "name .gitattributes:long",
    "name .gitattributes:link",
    "name .gitignore:link",
    "name .mailmap:link",
    "name .gitattributes:tree",
    "name .gitmodules:bad",
    "name x*300",
    "name .git.",
];

/// What is wrong with or unusual about a commit.
pub(crate) const COMMIT_FAULTS: [&str; 24] = [
    "no tree",
    "upper-case tree",
    "short tree",
    "tree is a blob",
    "missing parent",
    "parent is a tree",
    "no author",
    "two authors",
    "no committer",
    "no space before date",
    "no date",
    "padded date",
    "overflow",
    "bad zone",
    "no zone",
    "no address",
    "open address",
    "no name",
    "bad name",
    "null in message",
    "null in header",
    "no end",
    "no empty line",
    "committer first",
];

/// What is wrong with or unusual about a tag.
pub(crate) const TAG_FAULTS: [&str; 12] = [
    "no object",
    "no type",
    "unknown type",
    "wrong type",
    "no tag",
    "bad tag name",
    "no tagger",
    "bad tagger",
    "extra field",
    "missing object",
    "null in message",
    "of a tree",
];

/// The objects of a repository, and those that are pushed to it.
pub(crate) struct History {
    pub(crate) random: Random,
    pub(crate) objects: BTreeMap<Oid, Object>,
    time: u64,
}

impl History {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Random(seed), objects: BTreeMap::new(), time: 1_700_000_000 }
    }

    pub(crate) fn add(&mut self, kind: u8, content: Vec<u8>, links: Vec<Oid>) -> Oid {
        let name = ["commit", "tree", "blob", "tag"][usize::from(kind) - 1];
        let mut hash = Sha1::new();
        hash.update(format!("{name} {}\0", content.len()));
        hash.update(&content);
        let oid: Oid = hash.finalize().into();
        self.objects.insert(oid, Object { kind, content, links });
        oid
    }

    fn blob(&mut self) -> Oid {
        let lines = self.random.below(30);
        let content: String = (0..lines).map(|_| format!("line {}\n", self.random.next() % 1_000)).collect();
        self.add(BLOB, content.into_bytes(), Vec::new())
    }

    fn leaf(&mut self) -> Node {
        let (oid, mode) = match self.random.below(12) {
            0 => (self.add(BLOB, b"target/path".to_vec(), Vec::new()), "120000"),
            1 => ([self.random.below(255) as u8 + 1; 20], "160000"),
            2 | 3 => (self.blob(), "100755"),
            _ => (self.blob(), "100644"),
        };
        Node::Leaf { mode, oid }
    }

    fn file_name(&mut self) -> String {
        let names = ["a", "a.b", "a-b", "ab", "b", "lib", "lib.rs", "src", "ä", "README", ".github", "x y", "Z", "0"];
        (*self.random.pick(&names)).to_owned()
    }

    /// Changes some files.
    fn edit(&mut self, files: &mut BTreeMap<String, Node>, depth: usize) {
        for _ in 0..=self.random.below(3) {
            let name = self.file_name();
            match self.random.below(10) {
                0 => drop(files.remove(&name)),
                1..=4 if depth < 3 => {
                    let mut folder = match files.remove(&name) {
                        Some(Node::Folder(folder)) => folder,
                        _ => BTreeMap::new(),
                    };
                    self.edit(&mut folder, depth + 1);
                    if !folder.is_empty() {
                        files.insert(name, Node::Folder(folder));
                    }
                }
                5 if depth == 0 => {
                    let special = *self.random.pick(&[".gitignore", ".gitattributes", ".mailmap"]);
                    let oid = self.blob();
                    files.insert(special.to_owned(), Node::Leaf { mode: "100644", oid });
                }
                6 => {
                    // A file moves.
                    if let Some((_, moved)) = files.pop_first() {
                        files.insert(name, moved);
                    }
                }
                _ => drop({
                    let leaf = self.leaf();
                    files.insert(name, leaf)
                }),
            }
        }
    }

    fn write_tree(&mut self, files: &BTreeMap<String, Node>, fault: Option<&str>) -> Oid {
        let mut entries: Vec<(String, Vec<u8>, Oid)> = Vec::new();
        for (name, node) in files {
            let (mode, oid) = match node {
                Node::Leaf { mode, oid } => ((*mode).to_owned(), *oid),
                Node::Folder(folder) => ("40000".to_owned(), self.write_tree(folder, None)),
            };
            entries.push((mode, name.clone().into_bytes(), oid));
        }
        let (blob, tree) = (self.add(BLOB, b"x".to_vec(), Vec::new()), self.add(TREE, Vec::new(), Vec::new()));
        let mut add = |mode: &str, name: &str, oid| entries.push((mode.to_owned(), name.as_bytes().to_vec(), oid));
        match fault.unwrap_or_default() {
            "duplicate" => (0..2).for_each(|_| add("100644", "twice", blob)),
            "file and folder" => {
                add("100644", "both", blob);
                add("100644", "both-", blob);
                add("40000", "both", tree);
            }
            "null id" => add("100644", "null", [0; 20]),
            "missing blob" => add("100644", "missing", [7; 20]),
            "missing tree" => add("40000", "missing", [7; 20]),
            "blob as tree" => add("40000", "kind", blob),
            "tree as blob" => add("100644", "kind", tree),
            "name .gitattributes:long" => {
                let blob = self.add(BLOB, vec![b'x'; 3_000], Vec::new());
                entries.push(("100644".to_owned(), b".gitattributes".to_vec(), blob));
            }
            "name .gitmodules:bad" => {
                let text = b"[submodule \"x\"]\n\turl = -x\n\tpath = ../x\n".to_vec();
                let blob = self.add(BLOB, text, Vec::new());
                entries.push(("100644".to_owned(), b".gitmodules".to_vec(), blob));
            }
            "name x*300" => add("100644", &"x".repeat(300), blob),
            "folder sorted as file" => {
                add("40000", "folder", tree);
                add("100644", "folder-x", blob);
            }
            fault => {
                if let Some(mode) = fault.strip_prefix("mode ") {
                    let oid = if mode == "040000" { tree } else { blob };
                    add(mode, "mode", oid);
                } else if let Some(name) = fault.strip_prefix("name ") {
                    match name.split_once(':') {
                        Some((name, "link")) => add("120000", name, blob),
                        Some((name, _)) => add("40000", name, tree),
                        None => add("100644", name, blob),
                    }
                }
            }
        }
        let is_folder = |mode: &str| mode.trim_start_matches('0') == "40000";
        entries.sort_by_key(|(mode, name, _)| {
            let mut key = name.clone();
            key.push(if is_folder(mode) && fault != Some("folder sorted as file") { b'/' } else { 0 });
            key
        });
        if fault == Some("unsorted") {
            entries.reverse();
        }
        let mut content: Vec<u8> = Vec::new();
        for (mode, name, oid) in &entries {
            content.extend_from_slice(mode.as_bytes());
            content.push(b' ');
            content.extend_from_slice(name);
            content.push(0);
            content.extend_from_slice(oid);
        }
        match fault {
            Some("truncated") => content.truncate(content.len().saturating_sub(5)),
            Some("junk") => content.extend_from_slice(b"100644 junk"),
            _ => {}
        }
        let links = entries.iter().filter(|(mode, ..)| mode != "160000").map(|(.., oid)| *oid).collect();
        self.add(TREE, content, links)
    }

    /// Commits a change of the files of the first parent.
    pub(crate) fn commit(&mut self, parents: &[&Commit], tree_fault: Option<&str>, fault: Option<&str>) -> Commit {
        let mut files = parents.first().map(|parent| parent.files.clone()).unwrap_or_default();
        if self.random.chance(92) {
            self.edit(&mut files, 0);
        } else if let Some(parent) = parents.last() {
            files = parent.files.clone();
        }
        let mut tree = self.write_tree(&files, tree_fault);
        let mut parents: Vec<Oid> = parents.iter().map(|parent| parent.oid).collect();
        let fault = fault.unwrap_or_default();
        match fault {
            "tree is a blob" => tree = self.blob(),
            "missing parent" => parents.push([9; 20]),
            "parent is a tree" => parents.push(tree),
            _ => {}
        }
        self.time += 60;
        let time = self.time;
        let mut head: Vec<String> = Vec::new();
        match fault {
            "no tree" => {}
            "upper-case tree" => head.push(format!("tree {}", hex(&tree).to_uppercase())),
            "short tree" => head.push(format!("tree {}", &hex(&tree)[1..])),
            _ => head.push(format!("tree {}", hex(&tree))),
        }
        head.extend(parents.iter().map(|parent| format!("parent {}", hex(parent))));
        let person = match fault {
            "no space before date" => format!("A U Thor <a@example>{time} +0000"),
            "no date" => "A U Thor <a@example> +0000".to_owned(),
            "padded date" => format!("A U Thor <a@example> 0{time} +0000"),
            "overflow" => "A U Thor <a@example> 99999999999999999999999 +0000".to_owned(),
            "bad zone" => format!("A U Thor <a@example> {time} +51800"),
            "no zone" => format!("A U Thor <a@example> {time}"),
            "no address" => format!("A U Thor {time} +0000"),
            "open address" => format!("A U Thor <a@example {time} +0000"),
            "no name" => format!("<a@example> {time} +0000"),
            "bad name" => format!("A > Thor <a@example> {time} +0000"),
            _ => format!("A U Thor <a@example> {time} +0000"),
        };
        let (author, committer) = (format!("author {person}"), format!("committer {person}"));
        match fault {
            "no author" => head.push(committer),
            "two authors" => head.extend([author.clone(), author, committer]),
            "no committer" => head.push(author),
            "committer first" => head.extend([committer, author]),
            _ => head.extend([author, committer]),
        }
        if self.random.chance(20) {
            head.push("gpgsig -----BEGIN PGP SIGNATURE-----\n \n abc\n -----END PGP SIGNATURE-----".to_owned());
        }
        let mut text = head.join("\n");
        match fault {
            "null in header" => text.push_str("\nx \0\n\nmessage\n"),
            "null in message" => text.push_str("\n\nmess\0age\n"),
            "no end" => {}
            "no empty line" => text.push('\n'),
            _ => text.push_str(&format!("\n\nmessage {}", self.random.below(1_000))),
        }
        let links = [tree].into_iter().chain(parents).collect();
        Commit { oid: self.add(COMMIT, text.into_bytes(), links), files }
    }

    /// Tags an object.
    pub(crate) fn tag(&mut self, of: Oid, fault: Option<&str>) -> Oid {
        let fault = fault.unwrap_or_default();
        let (mut of, mut kind) = (of, "commit");
        match fault {
            "unknown type" => kind = "thing",
            "wrong type" => kind = "tree",
            "missing object" => of = [5; 20],
            "of a tree" => (of, kind) = (self.add(TREE, Vec::new(), Vec::new()), "tree"),
            _ => {}
        }
        let mut lines = vec![format!("object {}", hex(&of)), format!("type {kind}"), "tag v1.0".to_owned()];
        lines.push("tagger A U Thor <a@example> 1700000000 +0000".to_owned());
        match fault {
            "no object" => drop(lines.remove(0)),
            "no type" => drop(lines.remove(1)),
            "no tag" => drop(lines.remove(2)),
            "bad tag name" => lines[2] = "tag a..b".to_owned(),
            "no tagger" => drop(lines.remove(3)),
            "bad tagger" => lines[3] = "tagger A U Thor 1700000000".to_owned(),
            "extra field" => lines.push("extra field".to_owned()),
            _ => {}
        }
        let end = if fault == "null in message" { "\n\na\0b\n" } else { "\n\nmessage\n" };
        self.add(TAG, (lines.join("\n") + end).into_bytes(), vec![of])
    }

    /// Returns everything that some objects lead to, as far as it exists.
    pub(crate) fn reachable(&self, tips: &[Oid]) -> BTreeSet<Oid> {
        let (mut found, mut stack) = (BTreeSet::new(), tips.to_vec());
        while let Some(oid) = stack.pop() {
            let Some(object) = self.objects.get(&oid) else { continue };
            if found.insert(oid) {
                stack.extend(&object.links);
            }
        }
        found
    }

    /// Packs objects: some as deltas, also against objects outside the pack.
    pub(crate) fn pack(&mut self, oids: &[Oid], outside: &[Oid]) -> Vec<u8> {
        let (mut builder, mut packed): (_, Vec<(Oid, usize)>) = (PackBuilder::new(), Vec::new());
        let mut order = oids.to_vec();
        for nth in (1..order.len()).rev() {
            order.swap(nth, self.random.below(nth + 1));
        }
        // A delta may have a base that comes later, if that one is not a delta.
        let whole: BTreeSet<Oid> = order.iter().copied().filter(|_| self.random.chance(50)).collect();
        for oid in &order {
            let object = self.objects[oid].clone();
            let is_similar = |other: &&Oid| self.objects[*other].kind == object.kind && *other != oid;
            let candidates: Vec<Oid> = match self.random.below(3) {
                0 => outside.iter().filter(is_similar).copied().collect(),
                1 => whole.iter().filter(is_similar).copied().collect(),
                _ => packed.iter().map(|(oid, _)| oid).filter(is_similar).copied().collect(),
            };
            let base =
                if whole.contains(oid) || candidates.is_empty() { None } else { Some(*self.random.pick(&candidates)) };
            let made = base.map(|base| (base, delta(&self.objects[&base].content, &object.content)));
            let offset = match made.filter(|(_, delta)| delta.len() >= 4) {
                Some((base, delta)) => match packed.iter().find(|(other, _)| *other == base) {
                    Some((_, offset)) if self.random.chance(70) => builder.ofs_delta(*offset, &delta),
                    _ => builder.object(REF_DELTA, delta.len() as u64, &base, &delta),
                },
                None => builder.object(object.kind, object.content.len() as u64, b"", &object.content),
            };
            packed.push((*oid, offset));
        }
        builder.finish()
    }
}
