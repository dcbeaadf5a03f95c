//! `graspd sync`: reconciles all repositories with one relay.

use clap::{ArgMatches, Command};
use serde_json::json;

use super::relays::url_argument;
use super::{CommandContext, CommandError, json_argument, json_number, json_text, print_line};
use crate::admin::client::{RequestBody, ResponseLine};
use crate::backup::progress::Progress;
use crate::text_format::{count, terminal_safe};

pub(super) fn command() -> Command {
    Command::new("sync")
        .about("Reconcile all repositories with a relay now, and show the progress")
        .long_about(
            "Compares everything that the repositories here need with what a relay has, fetches what is missing, and \
             waits until that is done. The exit status is 0 if everything that the relay has is here, and 1 if the \
             relay failed. Ctrl-C ends the command; the server finishes the work.",
        )
        .after_long_help("Example:\n  graspd sync wss://relay.example")
        .arg(url_argument())
        .arg(json_argument())
}

pub(super) fn run(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let as_json = arguments.get_flag("json");
    let relay = arguments.get_one::<String>("relay");
    let mut progress = Progress::new();
    let mut on_line = |line| {
        match line {
            ResponseLine::Progress { what, done, total } if as_json => {
                print_line(json!({ "progress": { "what": what, "done": done, "total": total } }))?;
            }
            ResponseLine::Progress { what, done, total } => progress.show(&what, done, total),
            ResponseLine::Item(_) => {}
        }
        Ok(())
    };
    let done = context.call("sync", RequestBody::Arguments(json!({ "relay": relay })), &mut on_line)?;
    drop(progress);
    if as_json {
        return print_line(&done);
    }
    let (events, repositories) = (json_number(&done["events"]), json_number(&done["repositories"]));
    let url = terminal_safe(json_text(&done["url"]));
    print_line(format!(
        "Done: {} repositories have everything that {url} has; {} new events.",
        count(repositories),
        count(events)
    ))
}
