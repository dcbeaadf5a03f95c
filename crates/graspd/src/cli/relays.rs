//! `graspd relays`: the relays that are followed, and what the operator can want of one.

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use super::call::{Body, Line};
use super::table::{Align, Table, plain};
use super::{Context, Failure, json_argument, list, number, one_object, say, text};
use crate::web::status::format::{count, duration};

/// Characters of a reason that fit beside everything else.
const WHY: usize = 60;

pub(super) fn command() -> Command {
    let one = |name, about, long: &'static str| Command::new(name).about(about).long_about(long).arg(url_argument());
    Command::new("relays")
        .about("List the relays that are followed; retry, pause, resume or forget one")
        .long_about(
            "Lists the relays that are followed: where each connection stands, how the relay is, when it is tried again \
             and why, for how long something of it may be missing here, how many repositories are complete, and which of \
             its slots for requests are in use.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd relays                              list them\n  \
             graspd relays --json | jq -r .url          their URLs\n  \
             graspd relays retry wss://relay.example    dial one now that is resting after failures\n  \
             graspd relays pause wss://relay.example    leave one alone until `resume`, also after a restart",
        )
        .arg(json_argument().global(true))
        .subcommand(Command::new("list").about("List the relays that are followed (this is the default)"))
        .subcommand(one(
            "retry",
            "Dial a relay now, whatever its health",
            "Dials a relay now, whatever its health: a backoff, and a relay that wanted nothing to do with us, are forgiven.",
        ))
        .subcommand(one(
            "pause",
            "Leave a relay alone until told otherwise",
            "Hangs up and leaves a relay alone until `graspd relays resume`, also after a restart of the server.",
        ))
        .subcommand(one("resume", "No longer leave a relay alone", "No longer leaves a relay alone: it is dialled again."))
        .subcommand(one(
            "forget",
            "Forget how a relay has been, and meet it anew",
            "Forgets how a relay has been (its health, the limits that it taught us, its totals), hangs up, and meets it anew \
             if a repository still names it. What came from it stays; `graspd sync` compares everything.",
        ))
}

pub(super) fn url_argument() -> Arg {
    Arg::new("relay").value_name("URL").help("The relay, such as wss://relay.example").required(true)
}

pub(super) fn run(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    match arguments.subcommand() {
        Some((order @ ("retry" | "pause" | "resume" | "forget"), arguments)) => give(context, order, arguments),
        _ => show(context, arguments.get_flag("json") || json_below(arguments)),
    }
}

/// Whether `--json` stands behind the subcommand.
fn json_below(arguments: &ArgMatches) -> bool {
    arguments.subcommand().is_some_and(|(_, below)| below.get_flag("json"))
}

fn give(context: &Context<'_>, order: &str, arguments: &ArgMatches) -> Result<(), Failure> {
    let relay = arguments.get_one::<String>("relay");
    let done = context.call(&format!("relay_{order}"), Body::Arguments(json!({ "relay": relay })), &mut one_object)?;
    if arguments.get_flag("json") {
        return say(&done);
    }
    let url = plain(text(&done["url"]));
    let what = match order {
        "retry" => "is being dialled",
        "pause" => "is left alone until `graspd relays resume`, also after a restart",
        "resume" => "is followed again",
        _ => "is forgotten; whoever names it makes it known again",
    };
    say(format!("{url} {what}."))
}

fn show(context: &Context<'_>, as_json: bool) -> Result<(), Failure> {
    let mut table = Table::new(&[
        ("RELAY", Align::Left),
        ("STATE", Align::Left),
        ("HEALTH", Align::Left),
        ("REPOS", Align::Right),
        ("LAG", Align::Right),
        ("SLOTS", Align::Right),
        ("NEXT TRY", Align::Right),
        ("NEW", Align::Right),
        ("WHY", Align::Left),
    ]);
    let mut on_line = |line| match line {
        Line::Item(relay) if as_json => say(relay),
        Line::Item(relay) => {
            table.row(row(&relay));
            Ok(())
        }
        Line::Progress { .. } => Ok(()),
    };
    context.call("relays", Body::none(), &mut on_line)?;
    match (as_json, table.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => say("No relay is followed: no repository names another one, and none is configured."),
        (false, false) => say(table),
    }
}

fn row(relay: &Value) -> [String; 9] {
    let state = match relay {
        _ if relay["is_self"] == true => "this service".to_owned(),
        _ if relay["paused"] == true => "paused".to_owned(),
        _ => text(&relay["state"]).replace('_', " "),
    };
    let seconds = |name: &str| relay[name].as_u64().map_or("-".to_owned(), duration);
    let subscriptions = &relay["subscriptions"];
    let used = number(&subscriptions["live"]) + number(&subscriptions["requests"]);
    let slots = relay["limits"]["slots"].as_u64().map_or(used.to_string(), |slots| format!("{used}/{slots}"));
    let next = relay["quiet_seconds"].as_u64().or(relay["retry_in_seconds"].as_u64());
    let next = if relay["paused"] == true { None } else { next };
    let why: String = text(&relay["why"]).chars().take(WHY).collect();
    [
        text(&relay["url"]).to_owned(),
        state,
        text(&relay["health"]).replace('_', " "),
        format!("{}/{}", count(number(&relay["covered"])), count(number(&relay["repositories"]))),
        seconds("lag_seconds"),
        slots,
        next.map_or("-".to_owned(), duration),
        count(number(&relay["events_received"])),
        list([why.as_str(), if relay["bootstrap"] == true { "(configured)" } else { "" }]),
    ]
}
