//! `graspd sync`: reconciles everything with a relay, now.

use clap::{ArgMatches, Command};
use serde_json::json;

use super::call::{Body, Line};
use super::progress::Progress;
use super::relays::url_argument;
use super::table::plain;
use super::{Context, Failure, json_argument, number, say, text};
use crate::web::status::format::count;

pub(super) fn command() -> Command {
    Command::new("sync")
        .about("Reconcile everything with a relay now, and show how far that is")
        .long_about(
            "Reconciles everything that is followed with a relay, now, and follows that to its end. The exit status is 0 \
             when everything that the relay has is here, and 1 when the relay failed. Ctrl-C ends the command, not what it \
             has begun.",
        )
        .after_long_help("Example:\n  graspd sync wss://relay.example")
        .arg(url_argument())
        .arg(json_argument())
}

pub(super) fn run(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let as_json = arguments.get_flag("json");
    let relay = arguments.get_one::<String>("relay");
    let mut progress = Progress::new();
    let mut on_line = |line| {
        match line {
            Line::Progress { what, done, total } if as_json => {
                say(json!({ "progress": { "what": what, "done": done, "total": total } }))?;
            }
            Line::Progress { what, done, total } => progress.show(&what, done, total),
            Line::Item(_) => {}
        }
        Ok(())
    };
    let done = context.call("sync", Body::Arguments(json!({ "relay": relay })), &mut on_line)?;
    drop(progress);
    if as_json {
        return say(&done);
    }
    let (events, repositories) = (number(&done["events"]), number(&done["repositories"]));
    let url = plain(text(&done["url"]));
    say(format!(
        "Everything of {} repositories that {url} has is here; {} events were new.",
        count(repositories),
        count(events)
    ))
}
