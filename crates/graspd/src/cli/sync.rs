//! `graspd sync`: reconciles all repositories with one relay.

use clap::Args;
use serde_json::json;

use super::relays::RelayArgs;
use super::{CommandContext, CommandError, print_json, print_result};
use crate::admin::api::SYNC;
use crate::admin::client::ResponseLine;
use crate::backup::progress::Progress;
use crate::text_format::{count, terminal_safe};

/// Reconcile all repositories with a relay now, and show the progress
///
/// Compares everything that the repositories here need with what a relay has, fetches what is missing, and waits until
/// that is done. The exit status is 0 if everything that the relay has is here, and 1 if the relay failed. Ctrl-C ends
/// the command; the server finishes the work.
#[derive(Args)]
#[command(after_long_help = "Example:\n  graspd sync wss://relay.example")]
pub(super) struct SyncArgs {
    #[command(flatten)]
    relay: RelayArgs,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl SyncArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let mut shown = Progress::new();
        let done = context.client()?.call(SYNC, &self.relay.into_request(), |line| {
            match line {
                ResponseLine::Progress(progress) if self.json => print_json(&json!({ "progress": progress }))?,
                ResponseLine::Progress(progress) => shown.show(&progress.what, progress.done, progress.total),
                ResponseLine::Item(_) => {}
            }
            Ok(())
        })?;
        drop(shown);
        print_result(self.json, &done, |done| {
            let (repositories, url, events) =
                (count(done.repositories as u64), terminal_safe(&done.url), count(done.events));
            format!("Done: {repositories} repositories have everything that {url} has; {events} new events.")
        })
    }
}
