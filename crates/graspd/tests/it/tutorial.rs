//! Runs the commands of docs/tutorial.md in order, in one shell, with the real git.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::support::{Server, command};

const TUTORIAL: &str = include_str!("../../../../docs/tutorial.md");

/// How the test treats a block of the tutorial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BlockMode {
    /// Run; must succeed.
    Run,
    /// Run; the last command must fail with the text of the next text block.
    Fails,
    /// Starts the server, which the test does itself.
    Starts,
    /// Needs programs that are not installed.
    Skipped,
}

/// A fenced code block: shell or text.
struct TutorialBlock {
    language: String,
    mode: BlockMode,
    text: String,
}

/// Returns the code blocks of a document.
fn blocks(document: &str) -> Vec<TutorialBlock> {
    let (mut blocks, mut mode) = (Vec::new(), BlockMode::Run);
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(remark) = line.strip_prefix("<!-- run: ").and_then(|rest| rest.strip_suffix(" -->")) {
            mode = match remark {
                "by the test itself" => BlockMode::Starts,
                "and it fails" => BlockMode::Fails,
                other if other.starts_with("not, because ") => BlockMode::Skipped,
                other => panic!("unknown run mode `{other}`"),
            };
        } else if let Some(language) = line.strip_prefix("```") {
            let text = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
            blocks.push(TutorialBlock { language: language.to_owned(), mode, text });
            mode = BlockMode::Run;
        }
    }
    blocks
}

/// Waits for the next second, because of two states of the same second the later one does not always win.
const NEXT_SECOND: &str = "then=$(date +%s); until [ $(date +%s) -gt $then ]; do sleep 0.05; done\n";

/// Returns one script of all blocks that are run. It prints the number of each block, to locate failures.
fn script(blocks: &[TutorialBlock], address: &str) -> String {
    let mut script = "set -eu -o pipefail\n".to_owned();
    for (number, block) in blocks.iter().enumerate().filter(|(_, block)| block.language == "sh") {
        let text = block.text.replace("127.0.0.1:7334", address);
        if text.contains("graspd event") {
            script.push_str(NEXT_SECOND);
        }
        match block.mode {
            BlockMode::Run => script.push_str(&format!("echo '== block {number}'\n{text}")),
            BlockMode::Fails => script.push_str(&format!(
                "echo '== block {number}'\nif ( {} ) 2>rejected.txt; then echo 'the push was accepted'; exit 1; fi\n\
                 cat rejected.txt\nmv rejected.txt ..\n",
                text.trim_end()
            )),
            BlockMode::Starts | BlockMode::Skipped => {}
        }
    }
    script + "echo '== the end'\n"
}

#[test]
fn tutorial_commands_work() {
    let blocks = blocks(TUTORIAL);
    let shell = |mode: BlockMode| blocks.iter().filter(move |block| block.language == "sh" && block.mode == mode);
    // All other blocks are run.
    assert_eq!(
        (shell(BlockMode::Starts).count(), shell(BlockMode::Skipped).count(), shell(BlockMode::Fails).count()),
        (1, 1, 1)
    );
    assert!(shell(BlockMode::Run).count() >= 12, "the tutorial has too few blocks, or was not parsed");
    for block in shell(BlockMode::Skipped) {
        assert!(block.text.starts_with("ngit "), "only ngit commands may be skipped: {}", block.text);
        eprintln!("not run:\n{}", block.text);
    }
    let lines: Vec<&str> = shell(BlockMode::Starts).flat_map(|block| block.text.lines()).collect();
    assert_eq!(lines, ["cargo build --release", "export PATH=\"$PWD/target/release:$PATH\"", "graspd"]);

    // Without settings, except a free port, in a folder of its own.
    let folder = tempfile::TempDir::new().expect("cannot create a temporary folder");
    let server = Server::spawn(command(folder.path(), &[]));
    let address = server.address.to_string();
    for line in &server.startup_output {
        let word = line.split_whitespace().next().expect("no word");
        let is_mentioned =
            blocks.iter().filter(|block| block.language == "text").any(|block| block.text.contains(word));
        assert!(is_mentioned, "the tutorial does not mention `{line}`");
    }

    let printed = run(folder.path(), &script(&blocks, &address), &address);
    assert!(printed.ends_with("== the end\n"), "{printed}");
    assert!(printed.contains("purgatory: won't be served until git data arrives"), "{printed}");
    let rejection = blocks.iter().find(|block| block.language == "text" && block.text.contains("remote rejected"));
    let rejection = rejection.expect("the tutorial does not show the rejection").text.trim().to_owned();
    let rejected = fs::read_to_string(folder.path().join("rejected.txt")).expect("git printed something");
    assert!(rejected.contains(&rejection), "{rejected}");
    // As the end of the tutorial says: the events are served, and the commit of the pull request is stored.
    let served = server.connect().query(&[json!({"kinds": [30617, 30618, 1618]})]);
    assert_eq!(served.len(), 3, "an announcement, the newer state, a pull request: {printed}");
    let last = printed.lines().rfind(|line| line.contains("refs/nostr/")).expect("no pull request ref is listed");
    assert!(served.iter().any(|id| last.ends_with(id)), "{last}");
}

/// Runs a script with a minimal environment; returns everything that was printed.
fn run(folder: &Path, script: &str, address: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_graspd")).parent().expect("no folder");
    let path = std::env::var("PATH").expect("no search path");
    fs::write(folder.join("tutorial.sh"), script).expect("cannot write");
    let mut bash = Command::new("bash");
    bash.args(["-c", "bash tutorial.sh 2>&1"]).current_dir(folder).env_clear();
    bash.env("PATH", format!("{}:{path}", program.display())).env("HOME", folder).env("LC_ALL", "C");
    bash.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0").env("no_proxy", "127.0.0.1");
    for role in ["AUTHOR", "COMMITTER"] {
        bash.env(format!("GIT_{role}_NAME"), "You").env(format!("GIT_{role}_EMAIL"), "you@example.com");
    }
    let output = bash.output().expect("cannot run bash");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "with a server at {address}:\n{printed}");
    printed
}
