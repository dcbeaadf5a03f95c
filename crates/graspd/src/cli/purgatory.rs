//! `graspd purgatory`: lists the events that wait for git data; retries the fetch, or drops an event.

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use super::table::{Align, Table};
use super::{
    CommandContext, CommandError, comma_separated, ignore_lines, json_argument, json_number, json_text, print_line,
};
use crate::admin::client::{RequestBody, ResponseLine};
use crate::text_format::{count, duration, terminal_safe};

/// Number of digits of an object id or event id in the table.
const SHOWN_DIGITS: usize = 12;

pub(super) fn command() -> Command {
    Command::new("purgatory")
        .about("List the events that wait for git data; fetch it now, or drop an event")
        .long_about(
            "Lists the events in purgatory: events that are not served yet, because the git data that they refer to \
             is missing. Shows what each event needs, where that is fetched from, when the next attempt is, and when \
             the event expires.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd purgatory                     list the events\n  \
             graspd purgatory retry               fetch all missing git data now\n  \
             graspd purgatory retry ngit          fetch what the repositories with the name ngit need\n  \
             graspd purgatory drop 3bf0c63fcb93   drop one event",
        )
        .arg(json_argument().global(true))
        .subcommand(Command::new("list").about("List the events that wait for git data (this is the default)"))
        .subcommand(
            Command::new("retry")
                .about("Fetch missing git data now instead of at the next round")
                .long_about(
                    "Fetches missing git data now instead of at the next round. The limits of the git servers still \
                     apply: a server that has asked for a pause is contacted after it.",
                )
                .arg(
                    Arg::new("what")
                        .value_name("ID|NAME")
                        .help("Only for this event, or for the repositories of this name; without it for all"),
                ),
        )
        .subcommand(
            Command::new("drop")
                .about("Drop a held event")
                .long_about(
                    "Drops a held event, also from the disk. The server does not remember it: clients can publish it \
                     again, and sync fetches it again from a relay that has it. To reject it for good, add it to \
                     EVENT_BLACKLIST.",
                )
                .arg(
                    Arg::new("what")
                        .value_name("ID")
                        .help("Id of the event, or enough of its first digits to be unique")
                        .required(true),
                ),
        )
}

pub(super) fn run(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let below = arguments.subcommand();
    let as_json = arguments.get_flag("json") || below.is_some_and(|(_, below)| below.get_flag("json"));
    let what = |below: &ArgMatches| RequestBody::Arguments(json!({ "what": below.get_one::<String>("what") }));
    match below {
        Some(("retry", below)) => {
            let done = context.call("purgatory_retry", what(below), &mut ignore_lines)?;
            if as_json {
                return print_line(done);
            }
            match json_number(&done["count"]) {
                0 => print_line("No git data is missing that could be fetched from another server."),
                1 => print_line("Fetching the missing git data of one repository."),
                many => print_line(format!("Fetching the missing git data of {many} repositories.")),
            }
        }
        Some(("drop", below)) => {
            let done = context.call("purgatory_drop", what(below), &mut ignore_lines)?;
            if as_json {
                return print_line(done);
            }
            let dropped = &done["dropped"];
            let kind = json_text(&dropped["kind"]).replace('_', " ");
            print_line(format!(
                "Dropped: the {kind} {} of {}.",
                json_text(&dropped["id"]),
                terminal_safe(&names(dropped))
            ))
        }
        _ => show(context, as_json),
    }
}

fn names(held: &Value) -> String {
    comma_separated(held["names"].as_array().into_iter().flatten().map(json_text))
}

fn show(context: &CommandContext<'_>, as_json: bool) -> Result<(), CommandError> {
    let mut table = Table::new(&[
        ("EVENT", Align::Left),
        ("KIND", Align::Left),
        ("REPOSITORY", Align::Left),
        ("NEEDS", Align::Left),
        ("SOURCE", Align::Left),
        ("NEXT TRY", Align::Right),
        ("EXPIRES IN", Align::Right),
    ]);
    let mut on_line = |line| match line {
        ResponseLine::Item(held) if as_json => print_line(held),
        ResponseLine::Item(held) => {
            table.row(row(&held));
            Ok(())
        }
        ResponseLine::Progress { .. } => Ok(()),
    };
    context.call("purgatory", RequestBody::none(), &mut on_line)?;
    match (as_json, table.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => print_line("No event waits for git data."),
        (false, false) => print_line(table),
    }
}

fn row(held: &Value) -> [String; 7] {
    let short = |text: &str| text.chars().take(SHOWN_DIGITS).collect::<String>();
    let search = &held["search"];
    let first = search["examples"][0].as_str().or(held["objects"][0].as_str()).map(short);
    let needs = match (json_number(&held["needs"]), search["missing"].as_u64(), first) {
        (0, _, _) => "a repository state with its git data".to_owned(),
        (1, _, Some(first)) => first,
        (_, Some(missing @ 1..), Some(first)) => format!("{first} … ({} missing)", count(missing)),
        (needs, _, Some(first)) => format!("{first} … ({} objects)", count(needs)),
        (needs, _, None) => format!("{} objects", count(needs)),
    };
    let next = match &search["next_in_seconds"] {
        Value::Number(seconds) => duration(seconds.as_u64().unwrap_or(0)),
        _ if search.is_object() => "now".to_owned(),
        _ => "-".to_owned(),
    };
    let left = duration(json_number(&held["left_seconds"]));
    [
        short(json_text(&held["id"])),
        json_text(&held["kind"]).replace('_', " "),
        names(held),
        needs,
        sources(search),
        next,
        if held["dormant"] == true { format!("{left} (dormant)") } else { left },
    ]
}

/// Returns where the data is fetched from: the first source, its last result, and the number of other sources.
fn sources(search: &Value) -> String {
    let all = search["places"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(first) = all.iter().find(|place| place["asking"] == true).or(all.first()) else {
        return "none".to_owned();
    };
    let url = json_text(&first["url"]).split("://").last().unwrap_or_default();
    let host = url.split('/').next().unwrap_or_default();
    let how = match (&first["outcome"], first["asking"] == true, first["waiting"] == true) {
        (_, true, _) => " (fetching)".to_owned(),
        (_, _, true) => " (waiting for its limit)".to_owned(),
        (Value::String(outcome), ..) => format!(" ({})", outcome.replace('_', " ")),
        _ => String::new(),
    };
    let more = if all.len() > 1 { format!(" and {} more", all.len() - 1) } else { String::new() };
    format!("{host}{how}{more}")
}
