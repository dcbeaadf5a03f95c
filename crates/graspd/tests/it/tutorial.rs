//! The tutorial, executed: its commands in their order, in one shell, with the real git.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::support::{Server, command};

const TUTORIAL: &str = include_str!("../../../../docs/tutorial.md");

/// What is to be done with the lines of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// They are run, and succeed.
    Run,
    /// They are run, and the last of them fails with the words of the next block of text.
    Fails,
    /// They start the server, which the test does.
    Starts,
    /// They need what is not there.
    Skipped,
}

/// A block of shell or of text.
struct Block {
    language: String,
    how: How,
    text: String,
}

/// The blocks of a document.
fn blocks(document: &str) -> Vec<Block> {
    let (mut blocks, mut how) = (Vec::new(), How::Run);
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(remark) = line.strip_prefix("<!-- run: ").and_then(|rest| rest.strip_suffix(" -->")) {
            how = match remark {
                "by the test itself" => How::Starts,
                "and it fails" => How::Fails,
                other if other.starts_with("not, because ") => How::Skipped,
                other => panic!("what does `{other}` mean?"),
            };
        } else if let Some(language) = line.strip_prefix("```") {
            let text = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
            blocks.push(Block { language: language.to_owned(), how, text });
            how = How::Run;
        }
    }
    blocks
}

/// Two states of the same second are not one after the other. People are not that fast.
const NEXT_SECOND: &str = "then=$(date +%s); until [ $(date +%s) -gt $then ]; do sleep 0.05; done\n";

/// One script of everything that is run. It says where it is, so that a failure has a place.
fn script(blocks: &[Block], address: &str) -> String {
    let mut script = "set -eu -o pipefail\n".to_owned();
    for (number, block) in blocks.iter().enumerate().filter(|(_, block)| block.language == "sh") {
        let text = block.text.replace("127.0.0.1:7334", address);
        if text.contains("graspd event") {
            script.push_str(NEXT_SECOND);
        }
        match block.how {
            How::Run => script.push_str(&format!("echo '== block {number}'\n{text}")),
            How::Fails => script.push_str(&format!(
                "echo '== block {number}'\nif ( {} ) 2>refused.txt; then echo 'it was not refused'; exit 1; fi\n\
                 cat refused.txt\nmv refused.txt ..\n",
                text.trim_end()
            )),
            How::Starts | How::Skipped => {}
        }
    }
    script + "echo '== the end'\n"
}

#[test]
fn the_tutorial_does_what_it_says() {
    let blocks = blocks(TUTORIAL);
    let shell = |how: How| blocks.iter().filter(move |block| block.language == "sh" && block.how == how);
    // Nothing that should be run is left out.
    assert_eq!((shell(How::Starts).count(), shell(How::Skipped).count(), shell(How::Fails).count()), (1, 1, 1));
    assert!(shell(How::Run).count() >= 12, "the tutorial has become short, or is not understood");
    for block in shell(How::Skipped) {
        assert!(block.text.starts_with("ngit "), "only ngit is left out: {}", block.text);
        eprintln!("not run:\n{}", block.text);
    }
    let lines: Vec<&str> = shell(How::Starts).flat_map(|block| block.text.lines()).collect();
    assert_eq!(lines, ["cargo build --release", "export PATH=\"$PWD/target/release:$PATH\"", "graspd"]);

    // Without any setting but a free port, in a folder of its own.
    let folder = tempfile::TempDir::new().expect("a folder");
    let server = Server::spawn(command(folder.path(), &[]));
    let address = server.address.to_string();
    for line in &server.welcome {
        let word = line.split_whitespace().next().expect("a word");
        let told = blocks.iter().filter(|block| block.language == "text").any(|block| block.text.contains(word));
        assert!(told, "the tutorial does not tell of `{line}`");
    }

    let said = run(folder.path(), &script(&blocks, &address), &address);
    assert!(said.ends_with("== the end\n"), "{said}");
    assert!(said.contains("purgatory: won't be served until git data arrives"), "{said}");
    let refusal = blocks.iter().find(|block| block.language == "text" && block.text.contains("remote rejected"));
    let refusal = refusal.expect("the refusal is told").text.trim().to_owned();
    let refused = fs::read_to_string(folder.path().join("refused.txt")).expect("git said something");
    assert!(refused.contains(&refusal), "{refused}");
    // What the tutorial promises at its end: all four events are served, and the pull request's commit is there.
    let served = server.connect().query(&[json!({"kinds": [30617, 30618, 1618]})]);
    assert_eq!(served.len(), 3, "an announcement, the newer state, a pull request: {said}");
    let last = said.lines().rfind(|line| line.contains("refs/nostr/")).expect("it is listed");
    assert!(served.iter().any(|id| last.ends_with(id)), "{last}");
}

/// Runs a script with nothing around it but the programs; gives everything that was said.
fn run(folder: &Path, script: &str, address: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_graspd")).parent().expect("a folder");
    let path = std::env::var("PATH").expect("a search path");
    fs::write(folder.join("tutorial.sh"), script).expect("a file");
    let mut bash = Command::new("bash");
    bash.args(["-c", "bash tutorial.sh 2>&1"]).current_dir(folder).env_clear();
    bash.env("PATH", format!("{}:{path}", program.display())).env("HOME", folder).env("LC_ALL", "C");
    bash.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0").env("no_proxy", "127.0.0.1");
    for role in ["AUTHOR", "COMMITTER"] {
        bash.env(format!("GIT_{role}_NAME"), "You").env(format!("GIT_{role}_EMAIL"), "you@example.com");
    }
    let output = bash.output().expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "with a server at {address}:\n{said}");
    said
}
