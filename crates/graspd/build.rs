//! Sets `NGIT_BUILD_REVISION` for the compiler: its value in the environment, or the commit of the checkout, or
//! `unknown`.

use std::path::Path;
use std::process::Command;

/// Runs git and returns its output.
fn git(arguments: &[&str]) -> Option<String> {
    // The checkout may belong to another user; nothing but its revision is read.
    let output = Command::new("git").args(["-c", "safe.directory=*"]).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=NGIT_BUILD_REVISION");
    let mut revision = std::env::var("NGIT_BUILD_REVISION").ok().filter(|text| !text.is_empty());
    // A source archive can be inside the checkout of another project.
    if revision.is_none() && Path::new("../../.git").exists() {
        revision = git(&["rev-parse", "--short=12", "HEAD"]);
        // The reflog is written whenever the commit changes. A missing file must not be watched, because cargo would
        // then build again every time.
        for name in ["HEAD", "logs/HEAD"] {
            if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
                println!("cargo::rerun-if-changed={path}");
            }
        }
    }
    println!("cargo::rustc-env=NGIT_BUILD_REVISION={}", revision.as_deref().unwrap_or("unknown"));
}
