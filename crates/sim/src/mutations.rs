//! Mutation tests: deliberate bugs in the state machines, each of which the invariants must detect.
//!
//! `crates/sim/mutations/*.toml` lists the mutations of each machine. A mutation has a `name`, the sentence `bug`, the
//! `seeds` that detect it, and at least one `edit`: in `file`, below `crates/core/src`, the text `old`, which must occur
//! exactly once, becomes `new`, in which `MUTATED` stands for "this mutation is active".
//!
//! [`build`] copies the source to `target/mutations`, applies all edits at once and builds that copy. The environment
//! variable [`ACTIVE`] selects the mutation that is active in a process, so one build serves all of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use serde::Deserialize;

/// Environment variable with the name of the active mutation.
pub const ACTIVE: &str = "GRASP_SIM_MUTATION";

/// The lists of mutations, with the names of their worlds.
const LISTS: [(&str, &str); 2] =
    [("fetch", include_str!("../mutations/fetch.toml")), ("sync", include_str!("../mutations/sync.toml"))];

/// The module that is added to the copy of `grasp-core`.
const SWITCH: &str = r#"//! Which mutation is active.

/// Returns whether the mutation with this name is active in this process.
pub fn is_active(name: &str) -> bool {
    static ACTIVE: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| std::env::var("GRASP_SIM_MUTATION").unwrap_or_default());
    *ACTIVE == name
}
"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutation: Vec<Mutation>,
}

/// A deliberate bug.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// Name of the world that runs it.
    #[serde(skip)]
    pub world: &'static str,
    /// Its name.
    pub name: String,
    /// What goes wrong.
    pub bug: String,
    /// Seeds that detect it.
    pub seeds: Vec<u64>,
    edit: Vec<Edit>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    file: PathBuf,
    old: String,
    new: String,
}

/// Returns all mutations.
pub fn all() -> Vec<Mutation> {
    let mutations = LISTS.iter().flat_map(|(world, text)| {
        let list: List = toml::from_str(text).unwrap_or_else(|error| panic!("mutations/{world}.toml: {error}"));
        list.mutation.into_iter().map(|mutation| Mutation { world, ..mutation })
    });
    mutations.collect()
}

/// Applies all edits of the mutations to the source files below `core_src`. Returns the changed files.
///
/// # Errors
///
/// Names every mutation whose old text does not occur exactly once, or overlaps with that of another one.
pub fn apply(mutations: &[Mutation], core_src: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let mut edits: Vec<(&Mutation, &Edit)> =
        mutations.iter().flat_map(|mutation| mutation.edit.iter().map(move |edit| (mutation, edit))).collect();
    edits.sort_by_key(|(_, edit)| &edit.file);
    let (mut files, mut errors) = (Vec::new(), Vec::new());
    for edits in edits.chunk_by(|(_, left), (_, right)| left.file == right.file) {
        let path = core_src.join(&edits[0].1.file);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut places = Vec::new();
        for (mutation, edit) in edits {
            match text.match_indices(&edit.old).map(|(at, _)| at).collect::<Vec<_>>()[..] {
                [at] => places.push((at, at + edit.old.len(), *mutation, *edit)),
                ref found => errors.push(format!(
                    "{}: the old text must occur once, not {} times, in {}: {}",
                    mutation.name,
                    found.len(),
                    path.display(),
                    edit.old.trim()
                )),
            }
        }
        places.sort_by_key(|(start, ..)| *start);
        let overlaps = places.windows(2).filter(|pair| pair[0].1 > pair[1].0);
        errors.extend(overlaps.map(|pair| format!("{} and {} edit the same text", pair[0].2.name, pair[1].2.name)));
        let mut mutated = text.clone();
        for (start, end, mutation, edit) in places.into_iter().rev() {
            let is_active = format!("crate::mutation::is_active({:?})", mutation.name);
            mutated.replace_range(start..end, &edit.new.replace("MUTATED", &is_active));
        }
        files.push((edits[0].1.file.clone(), mutated));
    }
    if errors.is_empty() { Ok(files) } else { Err(errors.join("\n")) }
}

/// Builds a copy of this program with all mutations in it. Returns the path of the program.
///
/// # Errors
///
/// Returns a text if an edit cannot be applied, or the copy cannot be written or built.
pub fn build(mutations: &[Mutation]) -> Result<PathBuf, String> {
    let root = workspace();
    let copy = root.join("target/mutations");
    write_copy(mutations, &root, &copy).map_err(|error| format!("cannot write {}: {error}", copy.display()))?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Some mutations leave code without use.
    cargo.args(["build", "--quiet", "--package", "grasp-sim"]).current_dir(&copy).env("RUSTFLAGS", "--allow=warnings");
    let status = cargo.env("CARGO_TARGET_DIR", copy.join("target")).status().map_err(|error| error.to_string())?;
    if status.success() {
        Ok(copy.join("target/debug/grasp-sim"))
    } else {
        Err(format!("cannot build the copy in {}", copy.display()))
    }
}

/// Returns the folder of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn write_copy(mutations: &[Mutation], root: &Path, copy: &Path) -> io::Result<()> {
    for name in ["core", "sim"] {
        let to = copy.join("crates").join(name);
        if to.exists() {
            fs::remove_dir_all(&to)?;
        }
        copy_folder(&root.join("crates").join(name), &to)?;
    }
    fs::copy(root.join("Cargo.lock"), copy.join("Cargo.lock"))?;
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let lines = manifest.lines().filter(|line| !line.starts_with("default-members"));
    fs::write(copy.join("Cargo.toml"), lines.collect::<Vec<_>>().join("\n"))?;
    let core_src = copy.join("crates/core/src");
    for (file, text) in apply(mutations, &core_src).map_err(io::Error::other)? {
        fs::write(core_src.join(file), text)?;
    }
    fs::write(core_src.join("mutation.rs"), SWITCH)?;
    let lib = fs::read_to_string(core_src.join("lib.rs"))?;
    fs::write(core_src.join("lib.rs"), format!("{lib}\npub mod mutation;\n"))
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
