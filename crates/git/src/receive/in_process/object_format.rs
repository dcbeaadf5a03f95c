//! The format of single objects, as `git index-pack --strict` checks it.
//!
//! Objects that git itself writes are accepted, and so is what old or other programs write in the same form. Git accepts
//! more than this: it is asked about everything else.

use grasp_core::nostr::hex;

use super::Link;
use crate::objects::{OID_BYTES, ObjectKind};

/// Digits of a time in seconds. Git accepts some more.
const MAX_TIME_DIGITS: usize = 12;

/// Bytes of a file name: file systems do not allow more. Git before 2.43 accepts any number.
const MAX_NAME_BYTES: usize = 255;

/// Bytes of a line of `.gitattributes`, with which git rejects the file.
const ATTRIBUTES_LINE_BYTES: usize = 2_048;

/// What the objects of a pack refer to.
#[derive(Debug, Default)]
pub(super) struct References {
    /// All objects that must exist.
    pub(super) links: Vec<Link>,
    /// Blobs that are `.gitattributes` files, whose content has a format.
    pub(super) attributes: Vec<[u8; OID_BYTES]>,
}

/// Checks an object and returns what it refers to. `None` if it is not an ordinary object.
pub(super) fn check_object(kind: ObjectKind, content: &[u8]) -> Option<References> {
    let mut references = References::default();
    match kind {
        ObjectKind::Commit => check_commit(content, &mut references.links)?,
        ObjectKind::Tree => check_tree(content, &mut references)?,
        ObjectKind::Tag => check_tag(content, &mut references.links)?,
        ObjectKind::Blob => {}
    }
    Some(references)
}

/// Returns whether the content of a `.gitattributes` file is accepted.
pub(super) fn is_valid_attributes(content: &[u8]) -> bool {
    content.split(|byte| *byte == b'\n').all(|line| line.len() < ATTRIBUTES_LINE_BYTES)
}

/// Returns the tree of a commit of a pool, whose format has been checked before.
pub(super) fn tree_of_commit(content: &[u8]) -> Option<[u8; OID_BYTES]> {
    let mut rest = content;
    take_oid(&mut rest, b"tree ")
}

/// Returns the parents of a commit of a pool, and its time.
pub(super) fn parents_of_commit(content: &[u8]) -> Option<(Vec<[u8; OID_BYTES]>, u64)> {
    let (mut rest, mut parents) = (content, Vec::new());
    take_oid(&mut rest, b"tree ")?;
    while rest.starts_with(b"parent ") {
        parents.push(take_oid(&mut rest, b"parent ")?);
    }
    take_line(&mut rest)?.strip_prefix(b"author ")?;
    let committer = take_line(&mut rest)?.strip_prefix(b"committer ")?;
    let after_email = committer.rsplit(|byte| *byte == b'>').next()?;
    let time = std::str::from_utf8(after_email).ok()?.split_whitespace().next()?;
    Some((parents, time.parse().ok()?))
}

/// Returns the object of a tag.
pub(super) fn target_of_tag(content: &[u8]) -> Option<Link> {
    let mut rest = content;
    let oid = take_oid(&mut rest, b"object ")?;
    let kind = std::str::from_utf8(take_line(&mut rest)?.strip_prefix(b"type ")?).ok()?;
    Some(Link { oid, kind: ObjectKind::from_name(kind)? })
}

fn check_commit(content: &[u8], links: &mut Vec<Link>) -> Option<()> {
    let mut rest = content;
    links.push(Link { oid: take_oid(&mut rest, b"tree ")?, kind: ObjectKind::Tree });
    while rest.starts_with(b"parent ") {
        links.push(Link { oid: take_oid(&mut rest, b"parent ")?, kind: ObjectKind::Commit });
    }
    check_person(&mut rest, b"author ")?;
    check_person(&mut rest, b"committer ")?;
    // Other fields may follow. An empty line ends them, and the commit has no null byte.
    let is_complete = rest.starts_with(b"\n") || rest.windows(2).any(|pair| pair == b"\n\n");
    (is_complete && !content.contains(&0)).then_some(())
}

fn check_tag(content: &[u8], links: &mut Vec<Link>) -> Option<()> {
    links.push(target_of_tag(content)?);
    let mut rest = content;
    let (_object, _type) = (take_line(&mut rest)?, take_line(&mut rest)?);
    let name = take_line(&mut rest)?.strip_prefix(b"tag ")?;
    check_person(&mut rest, b"tagger ")?;
    (is_ordinary_ref_name(name) && rest.starts_with(b"\n") && !content.contains(&0)).then_some(())
}

/// Returns whether a name is certainly a valid ref name.
fn is_ordinary_ref_name(name: &[u8]) -> bool {
    let is_ordinary = |part: &[u8]| {
        part.first().is_some_and(u8::is_ascii_alphanumeric)
            && part.last().is_some_and(u8::is_ascii_alphanumeric)
            && part.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_+.".contains(byte))
            && !part.windows(2).any(|pair| pair == b"..")
            && !part.ends_with(b".lock")
    };
    name.split(|byte| *byte == b'/').all(is_ordinary)
}

/// Takes a line, and returns it without its end.
fn take_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let (line, after) = rest.split_at(end);
    *rest = &after[1..];
    Some(line)
}

/// Takes a line that has a field and an object id.
fn take_oid(rest: &mut &[u8], field: &[u8]) -> Option<[u8; OID_BYTES]> {
    let oid = take_line(rest)?.strip_prefix(field)?;
    // Git also reads upper-case digits, and then the same object would have several texts.
    let is_lower_case = !oid.iter().any(u8::is_ascii_uppercase);
    hex::decode(std::str::from_utf8(oid).ok()?).filter(|_| is_lower_case)
}

/// Takes a line that has a field, a name, an address and a time.
fn check_person(rest: &mut &[u8], field: &[u8]) -> Option<()> {
    let person = take_line(rest)?.strip_prefix(field)?;
    let is_bracket = |byte: &u8| matches!(byte, b'<' | b'>');
    let (name, email) = person.split_at(person.iter().position(is_bracket)?);
    let email = email.strip_prefix(b"<").filter(|_| name.ends_with(b" "))?;
    let (_, time) = email.split_at(email.iter().position(is_bracket)?);
    let time = time.strip_prefix(b"> ")?;
    let (seconds, zone) = time.split_at(time.iter().position(|byte| *byte == b' ')?);
    let are_digits = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    let is_time = match seconds {
        [] | [b'0', _, ..] => false,
        seconds => seconds.len() <= MAX_TIME_DIGITS && are_digits(seconds),
    };
    let is_zone = matches!(zone, [b' ', b'+' | b'-', digits @ ..] if digits.len() == 4 && are_digits(digits));
    (is_time && is_zone).then_some(())
}

/// An entry of a tree.
pub(super) struct TreeEntry<'a> {
    pub(super) name: &'a [u8],
    pub(super) mode: EntryMode,
    pub(super) oid: [u8; OID_BYTES],
}

/// The modes that git writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryMode {
    Folder,
    File,
    SymbolicLink,
    Submodule,
}

impl EntryMode {
    fn read(mode: &[u8]) -> Option<Self> {
        Some(match mode {
            b"40000" => Self::Folder,
            b"100644" | b"100755" => Self::File,
            b"120000" => Self::SymbolicLink,
            b"160000" => Self::Submodule,
            _ => return None,
        })
    }

    /// Returns the type of the object. The commit of a submodule belongs to another repository.
    pub(super) fn kind(self) -> Option<ObjectKind> {
        match self {
            Self::Folder => Some(ObjectKind::Tree),
            Self::File | Self::SymbolicLink => Some(ObjectKind::Blob),
            Self::Submodule => None,
        }
    }
}

/// Takes an entry from the beginning of the rest of a tree.
pub(super) fn take_tree_entry<'a>(rest: &mut &'a [u8]) -> Option<TreeEntry<'a>> {
    let (mode, after) = rest.split_at(rest.iter().position(|byte| *byte == b' ')?);
    let after = &after[1..];
    let (name, after) = after.split_at(after.iter().position(|byte| *byte == 0)?);
    let (oid, after) = after[1..].split_first_chunk()?;
    *rest = after;
    Some(TreeEntry { name, mode: EntryMode::read(mode)?, oid: *oid })
}

fn check_tree(content: &[u8], references: &mut References) -> Option<()> {
    let (mut rest, mut names) = (content, Vec::new());
    let mut last: Option<TreeEntry<'_>> = None;
    while !rest.is_empty() {
        let entry = take_tree_entry(&mut rest)?;
        if entry.oid == [0; OID_BYTES] || last.is_some_and(|last| !is_sorted(&last, &entry)) {
            return None;
        }
        match classify_name(entry.name)? {
            NameClass::Ordinary => {}
            NameClass::OnlyFile if entry.mode == EntryMode::File => {}
            NameClass::Attributes if entry.mode == EntryMode::File => references.attributes.push(entry.oid),
            NameClass::OnlyFile | NameClass::Attributes => return None,
        }
        references.links.extend(entry.mode.kind().map(|kind| Link { oid: entry.oid, kind }));
        names.push(entry.name);
        last = Some(entry);
    }
    // A file and a folder of the same name are not next to each other.
    names.sort_unstable();
    (!names.windows(2).any(|pair| pair[0] == pair[1])).then_some(())
}

/// Returns whether two entries are in git's order, in which the name of a folder ends with a slash.
fn is_sorted(first: &TreeEntry<'_>, second: &TreeEntry<'_>) -> bool {
    let end = |entry: &TreeEntry<'_>| if entry.mode == EntryMode::Folder { b'/' } else { 0 };
    let with_end = |entry: &TreeEntry<'_>| entry.name.iter().copied().chain([end(entry)]).collect::<Vec<u8>>();
    match first.name.iter().zip(second.name).find(|(first, second)| first != second) {
        Some((first, second)) => first < second,
        None => with_end(first) < with_end(second),
    }
}

/// What git checks about an entry because of its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NameClass {
    Ordinary,
    /// `.gitignore` and `.mailmap`, which must not be symbolic links.
    OnlyFile,
    /// `.gitattributes`, whose content is checked too.
    Attributes,
}

/// Classifies the name of an entry. `None` for names that git rejects, for `.gitmodules`, and for names that may mean one
/// of these on another file system: with other letter case, with characters that are ignored, or as a short name (`~`).
fn classify_name(name: &[u8]) -> Option<NameClass> {
    let is_unusual = |byte: &u8| matches!(byte, b'/' | b'\\' | b'~') || byte.is_ascii_control();
    if matches!(name, b"" | b"." | b"..") || name.len() > MAX_NAME_BYTES || name.iter().any(is_unusual) {
        return None;
    }
    match name {
        b".gitignore" | b".mailmap" => return Some(NameClass::OnlyFile),
        b".gitattributes" => return Some(NameClass::Attributes),
        _ => {}
    }
    // What is left of a name that begins with one of the special names decides.
    let ascii: Vec<u8> = name.iter().filter(|byte| byte.is_ascii()).map(u8::to_ascii_lowercase).collect();
    let is_special = |special: &&[u8]| {
        let rest = ascii.strip_prefix(*special);
        rest.is_some_and(|rest| ascii.len() < name.len() || !rest.first().is_some_and(u8::is_ascii_alphanumeric))
    };
    let specials: [&[u8]; 5] = [b".gitmodules", b".gitattributes", b".gitignore", b".mailmap", b".git"];
    // Usual names such as `.git-blame-ignore-revs`.
    let is_usual = ascii.len() == name.len() && (ascii.starts_with(b".git-") || ascii.starts_with(b".git_"));
    (is_usual || !specials.iter().any(is_special)).then_some(NameClass::Ordinary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_may_be_special_are_left_to_git() {
        for ordinary in
            ["a", "a b", "ü", ".github", ".gitlab-ci.yml", ".gitkeep", ".git-blame-ignore-revs", "git", "..."]
        {
            assert_eq!(classify_name(ordinary.as_bytes()), Some(NameClass::Ordinary), "{ordinary}");
        }
        assert_eq!(classify_name(b".gitignore"), Some(NameClass::OnlyFile));
        assert_eq!(classify_name(b".mailmap"), Some(NameClass::OnlyFile));
        assert_eq!(classify_name(b".gitattributes"), Some(NameClass::Attributes));
        for unusual in [
            "",
            ".",
            "..",
            "a/b",
            "a\\b",
            "git~1",
            "GITMOD~1",
            "gi7eba~1",
            ".git",
            ".GIT",
            ".git ",
            ".git.",
            ".git:x",
            ".gitmodules",
            ".GitModules",
            ".gitmodules.",
            ".gitmodules ",
            ".gitattributes ",
            ".GITIGNORE",
            ".gi\u{200c}t",
            ".git\u{200c}",
            ".gitmod\u{200d}ules",
            ".git\u{200c}ignore",
            ".mai\u{200c}lmap",
            ".Mailmap",
            "a\nb",
        ] {
            assert_eq!(classify_name(unusual.as_bytes()), None, "{unusual:?}");
        }
        assert_eq!(classify_name(b".git\xff"), None);
        assert_eq!(classify_name(&[b'x'; 256]), None);
    }

    #[test]
    fn people_need_a_name_an_address_and_a_time() {
        let check = |person: &str| check_person(&mut format!("author {person}\n").as_bytes(), b"author ").is_some();
        for valid in ["a <b> 0 +0000", "a b <> 1234567890 -0130", " <x> 999999999999 +9999", "ä <ö@ü> 5 -0000"] {
            assert!(check(valid), "{valid}");
        }
        for invalid in [
            "",
            "a",
            "<b> 0 +0000",
            "a<b> 0 +0000",
            "a <b>0 +0000",
            "a <b> 00 +0000",
            "a <b> 01 +0000",
            "a <b>  1 +0000",
            "a <b> 1",
            "a <b> 1 ",
            "a <b> 1 0000",
            "a <b> 1 +000",
            "a <b> 1 +00000",
            "a <b> 1 +0000 ",
            "a <b <c> 1 +0000",
            "a> <b> 1 +0000",
            "a <b> -1 +0000",
            "a <b> 1x +0000",
            "a <b> 9999999999999 +0000",
            "a <b>> 1 +0000",
        ] {
            assert!(!check(invalid), "{invalid}");
        }
    }
}
