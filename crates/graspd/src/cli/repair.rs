//! `graspd repair`: checks repositories for damage and repairs them.

use clap::Args;
use serde_json::json;

use super::{CommandContext, CommandError, print_json, print_line, print_result};
use crate::admin::api::{REPAIR, RepairItem, RepairRequest};
use crate::admin::client::ResponseLine;
use crate::backup::progress::Progress;
use crate::text_format::{count, terminal_safe};

/// Check repositories for damage, repair them, and fetch what is missing
///
/// Checks every pack, and everything that refs need, of the repositories of a running server. A damaged index is written
/// again. A damaged pack is moved to the folder `damaged` of the git data; its readable objects are kept. If objects are
/// missing afterwards, the repository is degraded: clones fail with an explanation until the objects were fetched from
/// another git server of the announcement, or until a maintainer pushes all refs again.
///
/// The server checks each repository once a week by itself. The exit status is 1 if a repository is degraded or could
/// not be checked.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd repair             all repositories\n  \
    graspd repair ngit        the repositories with the name ngit\n  \
    graspd repair --json      all repositories, as JSON")]
pub(super) struct RepairArgs {
    /// Only repositories of this name, or the repository of this path
    name: Option<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl RepairArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let mut shown = Progress::new();
        let (mut failures, mut items) = (0, Vec::new());
        let request = RepairRequest { name: self.name };
        let done = context.client()?.call(REPAIR, &request, |line| {
            match line {
                ResponseLine::Progress(progress) if self.json => print_json(&json!({ "progress": progress }))?,
                ResponseLine::Progress(progress) => shown.show(&progress.what, progress.done, progress.total),
                ResponseLine::Item(item) => {
                    failures += usize::from(item.error.is_some());
                    match self.json {
                        true => print_json(&item)?,
                        false => items.push(item),
                    }
                }
            }
            Ok(())
        })?;
        drop(shown);
        for item in &items {
            print_line(describe(item))?;
        }
        print_result(self.json, &done, |done| {
            let [repositories, damaged, degraded] =
                [done.repositories, done.damaged, done.degraded].map(|number| count(number as u64));
            format!("{repositories} repositories checked, {damaged} with damage, {degraded} degraded.")
        })?;
        match (done.degraded, failures) {
            (0, 0) => Ok(()),
            (_, 0) => Err(CommandError::Failed("some repositories are degraded; their objects are fetched".to_owned())),
            _ => Err(CommandError::Failed("some repositories could not be checked".to_owned())),
        }
    }
}

/// Describes what was found in a repository, on one line.
fn describe(item: &RepairItem) -> String {
    let mut parts = Vec::new();
    for pack in &item.indexed_packs {
        parts.push(format!("index of {pack} repaired"));
    }
    for pack in &item.missing_packs {
        parts.push(format!("{pack} is missing"));
    }
    for pack in &item.damaged_packs {
        parts.push(format!("{pack} was damaged and moved away"));
    }
    if item.missing_objects > 0 {
        parts.push(format!("{} refs lack objects", count(item.missing_objects as u64)));
    }
    if let Some(reason) = &item.degraded {
        parts.push(format!("degraded: {}", terminal_safe(reason)));
    }
    if let Some(error) = &item.error {
        parts.push(format!("could not be checked: {}", terminal_safe(error)));
    }
    format!("{}: {}", terminal_safe(&item.path), parts.join("; "))
}
