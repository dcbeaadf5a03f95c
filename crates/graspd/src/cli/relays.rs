//! `graspd relays`: lists the relays that are followed, and retries, pauses, resumes or forgets one.

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use super::table::{Align, Table};
use super::{
    CommandContext, CommandError, comma_separated, ignore_lines, json_argument, json_number, json_text, print_line,
};
use crate::admin::client::{RequestBody, ResponseLine};
use crate::text_format::{count, duration, terminal_safe};

/// Maximum number of characters of a reason in the table.
const MAX_REASON_CHARS: usize = 60;

pub(super) fn command() -> Command {
    let relay_command =
        |name, about, long: &'static str| Command::new(name).about(about).long_about(long).arg(url_argument());
    Command::new("relays")
        .about("List the relays that are followed; retry, pause, resume or forget one")
        .long_about(
            "Lists the relays that are followed. Columns: STATE of the connection; HEALTH of the relay; REPOS that \
             are completely synced / that list the relay; LAG, how far this server may be behind the relay; SLOTS, \
             requests in use / allowed; NEXT TRY, when it is contacted again; NEW, new events received from it; WHY, \
             the reason of the last failure.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd relays                              list the relays\n  \
             graspd relays --json | jq -r .url          print their URLs\n  \
             graspd relays retry wss://relay.example    connect now, without waiting for the end of the backoff\n  \
             graspd relays pause wss://relay.example    disconnect until `resume`, even after a restart",
        )
        .arg(json_argument().global(true))
        .subcommand(Command::new("list").about("List the relays that are followed (this is the default)"))
        .subcommand(relay_command(
            "retry",
            "Connect to a relay now, whatever its health",
            "Connects to a relay now, whatever its health: ends its backoff, and tries a relay again that has \
             rejected this server.",
        ))
        .subcommand(relay_command(
            "pause",
            "Disconnect from a relay until it is resumed",
            "Disconnects from a relay and does not use it until `graspd relays resume`, even after a restart of the \
             server.",
        ))
        .subcommand(relay_command(
            "resume",
            "Use a paused relay again",
            "Ends a pause: the server connects to the relay again.",
        ))
        .subcommand(relay_command(
            "forget",
            "Discard everything learned about a relay, and start again",
            "Discards what was learned about a relay (health, limits, totals), disconnects, and starts again if a \
             repository still lists the relay. Events that came from it stay. `graspd sync` then compares everything.",
        ))
}

pub(super) fn url_argument() -> Arg {
    Arg::new("relay").value_name("URL").help("The relay, such as wss://relay.example").required(true)
}

pub(super) fn run(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    match arguments.subcommand() {
        Some((action @ ("retry" | "pause" | "resume" | "forget"), arguments)) => {
            send_command(context, action, arguments)
        }
        _ => show(context, arguments.get_flag("json") || has_json_flag_after_subcommand(arguments)),
    }
}

/// Returns whether `--json` is given after the subcommand.
fn has_json_flag_after_subcommand(arguments: &ArgMatches) -> bool {
    arguments.subcommand().is_some_and(|(_, below)| below.get_flag("json"))
}

fn send_command(context: &CommandContext<'_>, action: &str, arguments: &ArgMatches) -> Result<(), CommandError> {
    let relay = arguments.get_one::<String>("relay");
    let done = context.call(
        &format!("relay_{action}"),
        RequestBody::Arguments(json!({ "relay": relay })),
        &mut ignore_lines,
    )?;
    if arguments.get_flag("json") {
        return print_line(&done);
    }
    let url = terminal_safe(json_text(&done["url"]));
    let what = match action {
        "retry" => "connecting now",
        "pause" => "paused until `graspd relays resume`, even after a restart",
        "resume" => "resumed",
        _ => "discarded what was learned; the relay is used again if a repository or a setting lists it",
    };
    print_line(format!("{url}: {what}."))
}

fn show(context: &CommandContext<'_>, as_json: bool) -> Result<(), CommandError> {
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
        ResponseLine::Item(relay) if as_json => print_line(relay),
        ResponseLine::Item(relay) => {
            table.row(row(&relay));
            Ok(())
        }
        ResponseLine::Progress { .. } => Ok(()),
    };
    context.call("relays", RequestBody::none(), &mut on_line)?;
    match (as_json, table.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => print_line("No relay is followed: no repository lists another relay, and none is configured."),
        (false, false) => print_line(table),
    }
}

fn row(relay: &Value) -> [String; 9] {
    let state = match relay {
        _ if relay["is_self"] == true => "this service".to_owned(),
        _ if relay["paused"] == true => "paused".to_owned(),
        _ => json_text(&relay["state"]).replace('_', " "),
    };
    let seconds = |name: &str| relay[name].as_u64().map_or("-".to_owned(), duration);
    let subscriptions = &relay["subscriptions"];
    let used = json_number(&subscriptions["live"]) + json_number(&subscriptions["requests"]);
    let slots = relay["limits"]["slots"].as_u64().map_or(used.to_string(), |slots| format!("{used}/{slots}"));
    let next = relay["quiet_seconds"].as_u64().or(relay["retry_in_seconds"].as_u64());
    let next = if relay["paused"] == true { None } else { next };
    let why: String = json_text(&relay["why"]).chars().take(MAX_REASON_CHARS).collect();
    [
        json_text(&relay["url"]).to_owned(),
        state,
        json_text(&relay["health"]).replace('_', " "),
        format!("{}/{}", count(json_number(&relay["covered"])), count(json_number(&relay["repositories"]))),
        seconds("lag_seconds"),
        slots,
        next.map_or("-".to_owned(), duration),
        count(json_number(&relay["events_received"])),
        comma_separated([why.as_str(), if relay["bootstrap"] == true { "(configured)" } else { "" }]),
    ]
}
