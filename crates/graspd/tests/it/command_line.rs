//! Version line, completion scripts and manual pages of the program.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Commands that scripts and pages must name. The unit tests of the program compare with all of them.
const COMMANDS: &[&str] =
    &["serve", "config", "settings", "status", "relays", "repos", "check", "backup", "completions", "man"];

fn graspd(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_graspd")).args(arguments).output().expect("cannot run graspd")
}

/// Runs graspd and returns its standard output.
fn stdout(arguments: &[&str]) -> String {
    let output = graspd(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    String::from_utf8(output.stdout).expect("not UTF-8")
}

/// Returns whether a program is in a folder of `PATH`.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[test]
fn version_names_program_commit_and_git() {
    let installed = Command::new("git").arg("--version").output().expect("cannot run git").stdout;
    let installed = String::from_utf8(installed).expect("not UTF-8");
    let git = installed.trim().replacen("git version ", "git ", 1);
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("NGIT_BUILD_REVISION"));
    for flag in ["--version", "-V"] {
        assert_eq!(stdout(&[flag]), format!("graspd {version} (commit {commit}, {git})\n"));
    }
}

#[test]
fn version_says_that_git_is_missing() {
    let empty = TempDir::new().expect("cannot create a temporary folder");
    let output = Command::new(env!("CARGO_BIN_EXE_graspd"))
        .arg("--version")
        .env("PATH", empty.path())
        .output()
        .expect("cannot run the program");
    assert!(output.status.success());
    let line = String::from_utf8(output.stdout).expect("not UTF-8");
    assert!(line.ends_with(", git not found)\n"), "{line}");
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&["completions", shell]);
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let output = graspd(&["completions", "tcsh"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("possible values: bash, elvish, fish, powershell, zsh"), "{text}");
}

/// Runs a line of bash without start-up files, and returns what it prints.
fn bash(line: &str, script: &Path) -> String {
    let output = Command::new("bash")
        .args(["--noprofile", "--norc", "-c", line, "bash"])
        .arg(script)
        .output()
        .expect("cannot run bash");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
    String::from_utf8(output.stdout).expect("not UTF-8")
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let script = folder.path().join("graspd.bash");
    fs::write(&script, stdout(&["completions", "bash"])).expect("cannot write");
    let registered = bash("source \"$1\"; complete -p graspd", &script);
    assert!(registered.contains("-F _graspd") && registered.trim_end().ends_with("graspd"), "{registered}");
    // What bash calls when TAB is pressed: the function, with the words of the line and the index of the last one.
    let offered = |words: &str| -> Vec<String> {
        let line = format!(
            "source \"$1\"; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _graspd graspd \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        bash(&line, &script).lines().map(str::to_owned).collect()
    };
    assert_eq!(offered("graspd stat"), ["status"]);
    assert_eq!(offered("graspd relays ret"), ["retry"]);
    assert_eq!(offered("graspd --bind-a"), ["--bind-address"]);
    assert_eq!(offered("graspd status --admin"), ["--admin-socket"]);
    assert_eq!(offered("graspd completions z"), ["zsh"]);
}

#[test]
fn other_shells_can_read_their_scripts() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    for (shell, arguments) in [("zsh", &["-n"][..]), ("fish", &["--no-execute"])] {
        if !is_installed(shell) {
            continue;
        }
        let script = folder.path().join(shell);
        fs::write(&script, stdout(&["completions", shell])).expect("cannot write");
        let output = Command::new(shell).args(arguments).arg(&script).output().expect("cannot run the shell");
        assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Formats a page as `man` shows it, and returns its text. Warnings are failures.
fn formatted(page: &Path) -> String {
    let output = Command::new("man")
        .args([OsStr::new("--warnings"), OsStr::new("--local-file"), page.as_os_str()])
        .env("MANWIDTH", "200")
        .env("LC_ALL", "C.UTF-8")
        .env("GROFF_NO_SGR", "1")
        .output()
        .expect("cannot run man");
    assert!(output.status.success(), "{}", page.display());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{}", page.display());
    // Bold and underlined letters are overstruck: the letter, a backspace, the letter.
    let letters: Vec<char> = String::from_utf8(output.stdout).expect("not UTF-8").chars().collect();
    let mut text = String::new();
    for letter in letters {
        match letter {
            '\u{8}' => drop(text.pop()),
            letter => text.push(letter),
        }
    }
    text
}

#[test]
fn manual_pages_exist_for_every_command() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let pages = folder.path().join("share/man1");
    assert_eq!(stdout(&["man", "--all", pages.to_str().expect("not UTF-8")]), "");
    let mut names: Vec<String> = fs::read_dir(&pages)
        .expect("cannot list the folder")
        .map(|entry| entry.expect("cannot read the folder entry").file_name().into_string().expect("not UTF-8"))
        .collect();
    names.sort();
    let page = fs::read_to_string(pages.join("graspd.1")).expect("no page");
    assert_eq!(page, stdout(&["man"]), "the printed page is the page of the program");
    for command in COMMANDS {
        assert!(names.contains(&format!("graspd-{command}.1")), "{command}: {names:?}");
        assert!(page.replace('\\', "").contains(&format!("graspd-{command}(1)")), "{command}");
    }
    assert!(names.contains(&"graspd-relays-retry.1".to_owned()), "{names:?}");
    assert!(!names.contains(&"graspd-commands.1".to_owned()), "hidden commands have no page: {names:?}");

    // Slim container images replace `man` with a script that prints a hint.
    let is_real = is_installed("man")
        && Command::new("man").arg("--version").output().is_ok_and(|output| output.stdout.starts_with(b"man "));
    if is_real {
        for name in &names {
            let text = formatted(&pages.join(name));
            let command = name.trim_end_matches(".1");
            let source = concat!("graspd ", env!("CARGO_PKG_VERSION"));
            for expected in ["NAME", "SYNOPSIS", "DESCRIPTION", &format!("{command} - "), source] {
                assert!(text.contains(expected), "{name} lacks {expected}: {text}");
            }
        }
    }
}
