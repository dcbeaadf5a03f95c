//! Checks on the source tree itself: which folder of `graspd` may use which, that ARCHITECTURE.md names every folder,
//! and that names and texts use no private vocabulary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of `crates/graspd/src` from top to bottom, each with the modules that it may use. A module may only use
/// modules that follow it in this table, so dependencies go one way.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    // `main.rs` declares the modules and starts a command or the server.
    ("main", &[]),
    (
        "server",
        &[
            "backup",
            "admin",
            "web",
            "relay",
            "fetch",
            "sync",
            "git",
            "reload",
            "writer",
            "repos",
            "monitor",
            "http",
            "metrics",
            "net",
            "config",
            "clock",
            "data_lock",
            "repo_row_migration",
            "sd_notify",
            "socket_activation",
            "store_check",
        ],
    ),
    (
        "cli",
        &[
            "backup",
            "admin",
            "http",
            "metrics",
            "net",
            "config",
            "clock",
            "date",
            "random",
            "store_check",
            "text_format",
        ],
    ),
    ("backup", &["admin", "config", "clock", "data_lock", "repo_row_migration", "store_check", "text_format"]),
    ("admin", &["web", "fetch", "sync", "reload", "writer", "repos", "http", "config", "clock"]),
    (
        "web",
        &[
            "fetch",
            "sync",
            "git",
            "writer",
            "repos",
            "monitor",
            "http",
            "metrics",
            "config",
            "clock",
            "date",
            "text_format",
        ],
    ),
    ("relay", &["writer", "http", "metrics", "config", "clock", "random"]),
    ("fetch", &["git", "writer", "repos", "http", "metrics", "net", "config", "clock", "date", "random"]),
    ("sync", &["writer", "metrics", "net", "config", "clock", "random"]),
    ("git", &["writer", "repos", "monitor", "http", "metrics", "config", "random"]),
    ("reload", &["writer", "logging", "config", "sd_notify"]),
    ("writer", &["repos", "monitor", "metrics", "config", "clock"]),
    ("repos", &[]),
    ("monitor", &["http", "metrics", "config", "clock"]),
    ("http", &["config", "clock"]),
    ("metrics", &["config"]),
    ("net", &[]),
    ("logging", &["config"]),
    ("config", &[]),
    ("clock", &[]),
    ("data_lock", &[]),
    ("date", &[]),
    ("random", &[]),
    ("repo_row_migration", &[]),
    ("store_check", &["sd_notify"]),
    ("sd_notify", &[]),
    ("socket_activation", &[]),
    // Formatting of amounts, for pages, commands and progress output.
    ("text_format", &[]),
];

/// Targets of log lines.
const TARGETS: [&str; 8] = ["sync", "git", "relay", "writer", "http", "fetch", "admin", "store"];

/// Words that this project does not use, in identifiers, paths and texts: metaphors and personifications that a reader
/// could not know. A plural counts too.
const BANNED: &[&str] = &[
    "house",
    "room",
    "door",
    "hand",
    "desk",
    "post",
    "postbox",
    "mail",
    "mailbox",
    "letter",
    "vault",
    "larder",
    "quarry",
    "quarries",
    "grave",
    "tale",
    "cast",
    "persona",
    "picture",
    "sight",
    "sighting",
    "manner",
    "patience",
    "limbo",
    "librarian",
    "watchman",
    "surveyor",
    "rulebook",
    "leaflet",
    "registrar",
    "hunter",
    "nobody",
    "somebody",
    "whoever",
    "everybody",
    "mend",
    "mended",
    "errand",
    "stranger",
];

/// Banned words that the field uses with another meaning.
const ALLOWED_WORDS: &[(&str, &str)] = &[("letter", "NIP-01 has single-letter tags")];

/// Phrases of the field that contain a banned word.
const EXCEPTIONS: &[&str] = &[
    // HTTP.
    "POST",
    // What is done or written without a tool.
    "by hand",
    "hand-written",
    // The names of other projects' crates, variables and files.
    "postgres",
    "http.postBuffer",
    // A stable error code.
    "E-PR-ROOM",
    // A function of the HTTP library.
    "Request::post",
    // Texts of remote relays.
    "_to post_",
    " to post ",
    "unlimited for everybody",
    // Part of events in the simulator; their ids, and with them the known seeds, would change.
    "tale-{index}",
];

/// Files whose text is not checked.
const UNCHECKED: &[&str] = &["Cargo.lock", "LICENSE", "crates/graspd/tests/it/source_tree.rs", "CHANGELOG.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// All files below a folder, without build output and hidden folders other than `.ci`.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            if name == ".ci" || !(name.starts_with('.') || name == "target" || name == "data" || name == "node_modules")
            {
                files(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("below the workspace").to_string_lossy().into_owned()
}

/// The modules of graspd that a source text uses: every name after `crate::`, in `use` lists too.
fn used(text: &str, modules: &BTreeSet<&str>) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default().to_owned(),
            None => rest.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect(),
        };
        for name in names.split(|character: char| !(character.is_alphanumeric() || character == '_')) {
            if modules.contains(name) {
                used.insert(name.to_owned());
            }
        }
    }
    used
}

#[test]
fn dependencies_between_feature_folders_go_one_way() {
    let source = root().join("crates/graspd/src");
    let order: Vec<&str> = DEPENDENCIES.iter().map(|(module, _)| *module).collect();
    let modules: BTreeSet<&str> = order.iter().copied().collect();
    for (at, (module, allowed)) in DEPENDENCIES.iter().enumerate() {
        for name in *allowed {
            assert!(
                order[at + 1..].contains(name),
                "`{module}` may not use `{name}`: it does not follow it in the table"
            );
        }
    }
    let mut found = Vec::new();
    files(&source, &mut found);
    let mut wrong = Vec::new();
    let mut seen = BTreeMap::<&str, BTreeSet<String>>::new();
    for file in found.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let path = file.strip_prefix(&source).expect("a source").to_string_lossy().into_owned();
        let module = path.split('/').next().expect("a name").trim_end_matches(".rs").to_owned();
        let Some((module, allowed)) = DEPENDENCIES.iter().find(|(name, _)| *name == module) else {
            panic!("`{module}` is missing in the table of dependencies");
        };
        // Tests inside a module may use anything.
        if path.contains("/tests") {
            continue;
        }
        let text = fs::read_to_string(file).expect("a source");
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for name in used(&code.join("\n"), &modules) {
            if name != *module && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{path} uses crate::{name}"));
            }
            seen.entry(module).or_default().insert(name);
        }
    }
    assert!(wrong.is_empty(), "not allowed by the table of dependencies:\n{}", wrong.join("\n"));
    for (module, allowed) in DEPENDENCIES {
        let unused: Vec<_> =
            allowed.iter().filter(|name| !seen.get(module).is_some_and(|seen| seen.contains(**name))).collect();
        assert!(unused.is_empty(), "the table allows `{module}` to use {unused:?}, which it does not");
    }
}

/// A header that says what the folder may use (`May use …`) lists exactly the modules of the table.
#[test]
fn module_headers_agree_with_the_table_of_dependencies() {
    let mut checked = 0;
    for (module, allowed) in DEPENDENCIES {
        let file = root().join("crates/graspd/src").join(module).join("mod.rs");
        let Ok(text) = fs::read_to_string(file) else { continue };
        let header: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
        let header = header.join(" ");
        let list = match (header.split_once("May use `"), header.contains("May use no other folder")) {
            (Some((_, list)), _) => format!("`{}", list.split('.').next().unwrap_or_default()),
            (None, true) => String::new(),
            (None, false) => continue,
        };
        let named: BTreeSet<&str> = list.split('`').skip(1).step_by(2).collect();
        assert_eq!(named, allowed.iter().copied().collect(), "the header of `{module}`");
        checked += 1;
    }
    assert!(checked > 10, "only {checked} headers say what their folder may use");
}

#[test]
fn architecture_names_every_source_folder_and_no_other() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let mut folders = BTreeSet::new();
    for name in ["bench", "core", "git", "graspd", "sim", "store"] {
        folders.insert(format!("crates/{name}"));
        let source = root().join("crates").join(name).join("src");
        for entry in fs::read_dir(source).expect("sources").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                let folder = entry.file_name().expect("a name").to_string_lossy().into_owned();
                folders.insert(format!("crates/{name}/src/{folder}"));
            }
        }
    }
    let named: BTreeSet<String> = text
        .split(|character: char| character.is_whitespace() || "`()[],;".contains(character))
        .map(|word| word.trim_end_matches(['/', '.', ':']))
        .filter(|word| word.starts_with("crates/"))
        .map(str::to_owned)
        .collect();
    for path in &named {
        assert!(root().join(path).exists(), "ARCHITECTURE.md names {path}, which does not exist");
    }
    let missing: Vec<_> = folders.difference(&named).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not name {missing:?}");
}

/// Paths of source files in documents exist. The pages for maintainers shorten `crates/core/src/` to `core/`, and so
/// on.
#[test]
fn documents_name_only_paths_that_exist() {
    let mut found = Vec::new();
    files(&root().join("docs"), &mut found);
    found.extend(["README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md"].map(|name| root().join(name)));
    let mut wrong = Vec::new();
    for file in found.iter().filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(file).expect("a document");
        let short = ["core", "store", "git", "graspd", "sim", "bench"];
        for path in text.split('`').filter(|word| !word.contains(|character: char| " <*…".contains(character))) {
            let path = path.trim_end_matches('/');
            let (first, rest) = path.split_once('/').unwrap_or((path, ""));
            let exists = match first {
                "crates" | "docs" | "deploy" | ".ci" => root().join(path).exists(),
                // A folder or a file of a crate. `git/…` may also be a folder of graspd or of the data on disk.
                _ if short.contains(&first) && first != "git" && !rest.is_empty() => {
                    let source = root().join("crates").join(first).join("src");
                    source.join(rest).exists()
                        || source.join(format!("{rest}.rs")).exists()
                        || root().join(path).exists()
                }
                _ => true,
            };
            if !exists {
                wrong.push(format!("{}: `{path}`", relative(file)));
            }
        }
    }
    assert!(wrong.is_empty(), "these paths do not exist:\n{}", wrong.join("\n"));
}

/// The compose example trusts the address of its proxy and no other container, shows the status page to the machine
/// itself only, and passes the commit to the build.
#[test]
fn compose_example_trusts_only_its_proxy() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a file");
    let (compose, dockerfile) = (read("deploy/compose.yml"), read("Dockerfile"));
    let value = |name: &str| {
        let line = compose.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("{name} is missing")).trim().to_owned()
    };
    assert_eq!(value("NGIT_TRUSTED_PROXY_CIDRS"), format!("{}/32", value("ipv4_address")));
    let port = value("NGIT_METRICS_BIND_ADDRESS").rsplit_once(':').expect("a port").1.to_owned();
    assert!(compose.contains(&format!("- \"127.0.0.1:{port}:{port}\"")), "the monitoring port is not published");
    assert_eq!(value("NGIT_BUILD_REVISION"), "${NGIT_BUILD_REVISION:-}");
    assert!(dockerfile.contains("\nARG NGIT_BUILD_REVISION\n"), "the build does not know the commit");
}

/// The codes of rejected pushes are a stable interface; docs/explanation.md lists all of them and no other.
#[test]
fn documentation_lists_every_code_of_a_rejected_push() {
    let codes = |text: &str, quote: char| -> BTreeSet<String> {
        let quoted = text.split(quote).filter(|part| part.starts_with("E-") && !part.contains(' ') && *part != "E-…");
        quoted.map(str::to_owned).collect()
    };
    let mut in_code = BTreeSet::new();
    for path in [
        "crates/core/src/admission/push.rs",
        "crates/git/src/receive/commands.rs",
        "crates/git/src/receive/pack_error.rs",
        "crates/graspd/src/git/receive_pack.rs",
    ] {
        let text = fs::read_to_string(root().join(path)).expect("a source");
        in_code.extend(codes(text.split("#[cfg(test)]").next().unwrap_or_default(), '"'));
    }
    let text = fs::read_to_string(root().join("docs/explanation.md")).expect("docs/explanation.md");
    assert_eq!(codes(&text, '`'), in_code);
}

/// Every message that docs/logs.md lists is in the code.
#[test]
fn documented_log_messages_exist() {
    let mut found = Vec::new();
    files(&root().join("crates/graspd/src"), &mut found);
    let code: String = found.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let text = fs::read_to_string(root().join("docs/logs.md")).expect("docs/logs.md");
    let rows = text.lines().filter(|line| line.starts_with("| ")).map(|line| line.split('|').collect::<Vec<_>>());
    let mut checked = 0;
    for cells in rows {
        // The column of messages follows that of targets. Only tables of messages have three columns.
        let Some(at) = cells.iter().position(|cell| TARGETS.iter().any(|target| cell.trim() == format!("`{target}`")))
        else {
            continue;
        };
        if cells.len() < 5 {
            continue;
        }
        for message in cells[at + 1].split('`').skip(1).step_by(2) {
            assert!(code.contains(&format!("\"{message}\"")), "docs/logs.md lists `{message}`");
            checked += 1;
        }
    }
    assert!(checked > 20, "only {checked} messages found");
}

/// Every bug in docs/track-record.md has a test, and the tests that it names exist.
#[test]
fn track_record_names_only_existing_tests() {
    let mut found = Vec::new();
    files(&root().join("crates"), &mut found);
    let sources = found.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    let mut tests = BTreeSet::new();
    for text in sources.filter_map(|file| fs::read_to_string(file).ok()) {
        for after in text.split("test]\n").skip(1) {
            let name = after.split_once("fn ").and_then(|(_, name)| name.split('(').next());
            tests.extend(name.map(str::to_owned));
        }
    }
    let text = fs::read_to_string(root().join("docs/track-record.md")).expect("docs/track-record.md");
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Bug "));
    let mut checked = 0;
    for row in rows {
        let cell = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let named: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test is named for: {row}");
        for name in named {
            assert!(tests.contains(name), "docs/track-record.md names {name}, which does not exist");
            checked += 1;
        }
    }
    assert!(checked > 40, "only {checked} tests found");
}

/// Log lines have fixed targets, so that filters do not depend on module paths.
#[test]
fn every_log_line_has_a_fixed_target() {
    let mut found = Vec::new();
    files(&root().join("crates"), &mut found);
    let mut wrong = Vec::new();
    for file in found.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let path = relative(file);
        if !path.contains("/src/") {
            continue;
        }
        let text = fs::read_to_string(file).expect("a source");
        for level in ["trace", "debug", "info", "warn", "error"] {
            for (at, _) in text.match_indices(&format!("{level}!(")) {
                let is_macro = !text[..at].ends_with(|character: char| character.is_alphanumeric() || character == '_');
                let arguments = text[at + level.len() + 2..].trim_start();
                let target = arguments.strip_prefix("target: \"").and_then(|rest| rest.split('"').next());
                if is_macro && !target.is_some_and(|target| TARGETS.contains(&target)) {
                    wrong.push(format!("{path}: {level}!({}", arguments.lines().next().unwrap_or_default()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "log lines without a fixed target:\n{}", wrong.join("\n"));
}

/// The words of a text: identifiers are split at underscores and at capital letters.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut previous = ' ';
    for character in text.chars().chain([' ']) {
        let begins = character.is_ascii_uppercase() && previous.is_ascii_lowercase();
        if (!character.is_ascii_alphabetic() || begins) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if character.is_ascii_alphabetic() {
            word.push(character.to_ascii_lowercase());
        }
        previous = character;
    }
    words
}

fn banned(text: &str) -> Option<String> {
    let mut text = text.to_owned();
    for exception in EXCEPTIONS {
        text = text.replace(exception, "");
    }
    let is_listed = |word: &str| BANNED.contains(&word) && ALLOWED_WORDS.iter().all(|(allowed, _)| *allowed != word);
    let is_banned = |word: &str| is_listed(word) || word.strip_suffix('s').is_some_and(is_listed);
    words(&text).into_iter().find(|word| is_banned(word))
}

#[test]
fn names_and_texts_use_no_private_vocabulary() {
    let mut found = Vec::new();
    files(&root(), &mut found);
    let mut hits = Vec::new();
    for file in found {
        let path = relative(&file);
        if UNCHECKED.contains(&path.as_str()) {
            continue;
        }
        if let Some(word) = banned(&path) {
            hits.push(format!("{path}: `{word}` in the path"));
        }
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for (line, text) in text.lines().enumerate() {
            if let Some(word) = banned(text) {
                hits.push(format!(
                    "{path}:{}: `{word}` in: {}",
                    line + 1,
                    text.trim().chars().take(100).collect::<String>()
                ));
            }
        }
    }
    let shown = hits.iter().take(40).cloned().collect::<Vec<_>>().join("\n");
    assert!(hits.is_empty(), "{} places use words that a newcomer would have to look up:\n{shown}", hits.len());
}

#[test]
fn the_vocabulary_check_finds_words_in_identifiers() {
    for text in ["fn open_door()", "struct GitHouse;", "// The rooms", "let Larder = 1;", "nobody knows"] {
        assert!(banned(text).is_some(), "{text}");
    }
    for text in ["POST /push", "handle", "shorthand", "a postgres server", "edit it by hand", "castle"] {
        assert!(banned(text).is_none(), "{text}: {:?}", banned(text));
    }
}
