//! The refs of one repository as files and on the wire.
//!
//! The store has the refs of each repository. From them, `HEAD` and one sorted, peeled `packed-refs` are written, so that
//! git can work with the repository. There are no loose refs and no reflogs, and no git process writes refs. A file is
//! replaced by a rename, so that a reader, including git, sees either the old refs or the new ones. It is not synced to
//! disk: what a crash leaves behind is compared with the store and written again.

use std::path::Path;
use std::{fs, io};

use grasp_core::repo::ref_name;
use grasp_core::repo::state::is_oid;
pub use grasp_core::repo::{RefTarget, Refs};

use crate::files::{read_text, replace_file_unsynced};
use crate::pktline;

/// Reads the refs of a repository folder. Missing files mean no refs.
///
/// # Errors
/// If a file cannot be read, or if a line is not a ref with an object id.
pub fn read_refs(folder: &Path) -> io::Result<Refs> {
    let mut refs = Refs::default();
    if let Some(head) = read_text(&folder.join("HEAD"))?.trim_end().strip_prefix("ref: ") {
        refs.set_head(head);
    }
    let text = read_text(&folder.join("packed-refs"))?;
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).peekable();
    while let Some(line) = lines.next() {
        let Some((oid, name)) = line.split_once(' ').filter(|(oid, name)| is_ref(oid, name)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "packed-refs has a line that is not a ref"));
        };
        let peeled = lines.next_if(|line| line.starts_with('^')).map(|line| line[1..].to_owned());
        let peeled = peeled.filter(|oid| is_ref(oid, name));
        refs.set(name, RefTarget { oid: oid.to_owned(), peeled });
    }
    Ok(refs)
}

fn is_ref(oid: &str, name: &str) -> bool {
    oid.len() == 40 && is_oid(oid) && ref_name::is_valid(name)
}

/// Makes the ref files of a repository folder equal to `refs`. Returns whether they were different.
pub fn write_refs(folder: &Path, refs: &Refs) -> io::Result<bool> {
    let mut is_changed = false;
    for (name, text) in [("packed-refs", refs.to_string()), ("HEAD", format!("ref: {}\n", refs.head()))] {
        // Without refs, the file need not exist.
        let is_missing = name == "packed-refs" && refs.is_empty() && !folder.join(name).try_exists()?;
        // A file that cannot be read is replaced, too.
        if !is_missing && fs::read(folder.join(name)).ok().as_deref() != Some(text.as_bytes()) {
            replace_file_unsynced(folder, name, text.as_bytes())?;
            is_changed = true;
        }
    }
    Ok(is_changed)
}

/// Appends the ref lines of a v0 or v1 advertisement. The capabilities follow the first ref, or a placeholder line
/// if the repository is empty.
pub fn write_advertisement(refs: &Refs, out: &mut Vec<u8>, capabilities: &str) {
    let mut capabilities = Some(match refs.head_oid() {
        Some(_) => format!("symref=HEAD:{} {capabilities}", refs.head()),
        None => capabilities.to_owned(),
    });
    let mut line = |oid: &str, name: &str| match capabilities.take() {
        Some(capabilities) => pktline::push(out, &[format!("{oid} {name}\0{capabilities}\n").as_bytes()]),
        None => pktline::push(out, &[format!("{oid} {name}\n").as_bytes()]),
    };
    if let Some(oid) = refs.head_oid() {
        line(oid, "HEAD");
    }
    for (name, target) in refs.iter() {
        line(&target.oid, name);
        if let Some(peeled) = &target.peeled {
            line(peeled, &format!("{name}^{{}}"));
        }
    }
    if refs.is_empty() {
        line(&"0".repeat(40), "capabilities^{}");
    }
    pktline::push_flush(out);
}

/// Appends the response to a v2 `ls-refs` command.
pub fn write_ls_refs(refs: &Refs, out: &mut Vec<u8>, request: &LsRefsRequest) {
    let prefixes = minimal_prefixes(&request.prefixes);
    let wanted = |name: &str| {
        let before = prefixes.partition_point(|prefix| *prefix <= name);
        prefixes.is_empty() || prefixes[..before].last().is_some_and(|prefix| name.starts_with(prefix))
    };
    if wanted("HEAD") {
        let symref = if request.symrefs { format!(" symref-target:{}", refs.head()) } else { String::new() };
        match refs.head_oid() {
            Some(oid) => pktline::push_line(out, &format!("{oid} HEAD{symref}")),
            // Without the target the line would have no content.
            None if request.unborn && request.symrefs => pktline::push_line(out, &format!("unborn HEAD{symref}")),
            None => {}
        }
    }
    for (name, target) in refs.iter().filter(|(name, _)| wanted(name)) {
        let peeled = target.peeled.as_ref().filter(|_| request.peel).map(|peeled| format!(" peeled:{peeled}"));
        pktline::push_line(out, &format!("{} {name}{}", target.oid, peeled.unwrap_or_default()));
    }
    pktline::push_flush(out);
}

/// The arguments of a v2 `ls-refs` command.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LsRefsRequest {
    /// Include the peeled objects of tags.
    pub peel: bool,
    /// Include the branch that HEAD names.
    pub symrefs: bool,
    /// Include HEAD even if its branch does not exist; only together with `symrefs`.
    pub unborn: bool,
    /// Only list names that begin with one of these; empty means all.
    pub prefixes: Vec<String>,
}

/// Returns the prefixes that do not begin with another prefix, sorted. The last one that is not greater than a name is
/// then the only one that the name can begin with, so a name is matched by binary search, however many prefixes a
/// client sends.
fn minimal_prefixes(prefixes: &[String]) -> Vec<&str> {
    let mut sorted: Vec<&str> = prefixes.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.dedup_by(|later, kept| later.starts_with(*kept));
    sorted
}
