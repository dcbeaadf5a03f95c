//! Tells the program which commit it is made of: what `NGIT_BUILD_REVISION` says, or the checkout. A tarball knows of none.

use std::path::Path;
use std::process::Command;

/// What git says of the checkout.
fn git(arguments: &[&str]) -> Option<String> {
    // The checkout may be somebody else's: only its name is read.
    let output = Command::new("git").args(["-c", "safe.directory=*"]).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=NGIT_BUILD_REVISION");
    let mut revision = std::env::var("NGIT_BUILD_REVISION").ok().filter(|text| !text.is_empty());
    // A tarball may lie within somebody else's checkout.
    if revision.is_none() && Path::new("../../.git").exists() {
        revision = git(&["rev-parse", "--short=12", "HEAD"]);
        // The log is written whenever another commit is checked out or made. What is watched and is not there would be
        // built again every time.
        for name in ["HEAD", "logs/HEAD"] {
            if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
                println!("cargo::rerun-if-changed={path}");
            }
        }
    }
    println!("cargo::rustc-env=NGIT_BUILD_REVISION={}", revision.as_deref().unwrap_or("unknown"));
}
