//! Clones and fetches with gitoxide: gitoxide-client version | clone URL FOLDER DEPTH | fetch FOLDER
//!
//! A depth of 0 clones everything. gitoxide has neither pushes nor partial clones.

use std::error::Error;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use gix::progress::Discard;
use gix::remote::{Direction, fetch::Shallow};

/// The version in Cargo.toml.
const GIX_VERSION: &str = "0.90.0";

static INTERRUPT: AtomicBool = AtomicBool::new(false);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["version"] => println!("gix {GIX_VERSION}"),
        ["clone", url, folder, depth] => clone(url, Path::new(folder), depth.parse()?)?,
        ["fetch", folder] => fetch(Path::new(folder))?,
        _ => return Err("usage: version | clone URL FOLDER DEPTH | fetch FOLDER".into()),
    }
    Ok(())
}

fn clone(url: &str, folder: &Path, depth: u32) -> Result<(), Box<dyn Error>> {
    let shallow = NonZeroU32::new(depth).map_or(Shallow::NoChange, Shallow::DepthAtRemote);
    let mut prepared = gix::prepare_clone(url, folder)?.with_shallow(shallow);
    let (mut checkout, _) = prepared.fetch_then_checkout(Discard, &INTERRUPT)?;
    checkout.main_worktree(Discard, &INTERRUPT)?;
    Ok(())
}

fn fetch(folder: &Path) -> Result<(), Box<dyn Error>> {
    let repository = gix::open(folder)?;
    let remote = repository.find_remote("origin")?;
    let connection = remote.connect(Direction::Fetch)?;
    connection.prepare_fetch(Discard, Default::default())?.receive(Discard, &INTERRUPT)?;
    Ok(())
}
