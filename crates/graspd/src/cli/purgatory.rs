//! `graspd purgatory`: what waits for git data.

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use super::call::{Body, Line};
use super::table::{Align, Table, plain};
use super::{Context, Failure, json_argument, list, number, one_object, say, text};
use crate::web::status::format::{count, duration};

/// Digits of an object's or event's name that are shown.
const DIGITS: usize = 12;

pub(super) fn command() -> Command {
    Command::new("purgatory")
        .about("List the events that wait for git data; look for it now, or drop one")
        .long_about(
            "Lists the events that are held because the git data that they name is not here: what each needs, where that is \
             looked for, when next, and when it gives up.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd purgatory                     list them\n  \
             graspd purgatory retry               look for everything that is missing, now\n  \
             graspd purgatory retry ngit          look for what repositories called ngit lack\n  \
             graspd purgatory drop 3bf0c63fcb93   let one event go",
        )
        .arg(json_argument().global(true))
        .subcommand(Command::new("list").about("List the events that wait for git data (this is the default)"))
        .subcommand(
            Command::new("retry")
                .about("Look for missing git data now instead of at the next round")
                .long_about(
                    "Looks for missing git data now instead of at the next round. The limits of other servers are kept: \
                     those that want to be left in peace are asked when that is over.",
                )
                .arg(Arg::new("what").value_name("ID|NAME").help("An event, or the name of repositories; else everything")),
        )
        .subcommand(
            Command::new("drop")
                .about("Let a held event go")
                .long_about(
                    "Lets a held event go, on disk, too. Nothing is remembered of it: whoever still has it may offer it \
                     again, and a relay that is followed will. To keep it away, put it on the blacklist.",
                )
                .arg(
                    Arg::new("what")
                        .value_name("ID")
                        .help("The event, or enough digits of its id to tell it from others")
                        .required(true),
                ),
        )
}

pub(super) fn run(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let below = arguments.subcommand();
    let as_json = arguments.get_flag("json") || below.is_some_and(|(_, below)| below.get_flag("json"));
    let what = |below: &ArgMatches| Body::Arguments(json!({ "what": below.get_one::<String>("what") }));
    match below {
        Some(("retry", below)) => {
            let done = context.call("purgatory_retry", what(below), &mut one_object)?;
            if as_json {
                return say(done);
            }
            match number(&done["count"]) {
                0 => say("Nothing is missing that could be looked for elsewhere."),
                1 => say("What one repository lacks is being looked for."),
                many => say(format!("What {many} repositories lack is being looked for.")),
            }
        }
        Some(("drop", below)) => {
            let done = context.call("purgatory_drop", what(below), &mut one_object)?;
            if as_json {
                return say(done);
            }
            let dropped = &done["dropped"];
            let kind = text(&dropped["kind"]).replace('_', " ");
            say(format!("Dropped: the {kind} {} of {}.", text(&dropped["id"]), plain(&names(dropped))))
        }
        _ => show(context, as_json),
    }
}

fn names(held: &Value) -> String {
    list(held["names"].as_array().into_iter().flatten().map(text))
}

fn show(context: &Context<'_>, as_json: bool) -> Result<(), Failure> {
    let mut table = Table::new(&[
        ("EVENT", Align::Left),
        ("KIND", Align::Left),
        ("REPOSITORY", Align::Left),
        ("NEEDS", Align::Left),
        ("LOOKED FOR AT", Align::Left),
        ("NEXT TRY", Align::Right),
        ("GIVES UP IN", Align::Right),
    ]);
    let mut on_line = |line| match line {
        Line::Item(held) if as_json => say(held),
        Line::Item(held) => {
            table.row(row(&held));
            Ok(())
        }
        Line::Progress { .. } => Ok(()),
    };
    context.call("purgatory", Body::none(), &mut on_line)?;
    match (as_json, table.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => say("Nothing waits for git data."),
        (false, false) => say(table),
    }
}

fn row(held: &Value) -> [String; 7] {
    let short = |text: &str| text.chars().take(DIGITS).collect::<String>();
    let search = &held["search"];
    let first = search["examples"][0].as_str().or(held["objects"][0].as_str()).map(short);
    let needs = match (number(&held["needs"]), search["missing"].as_u64(), first) {
        (0, _, _) => "a state with its git data".to_owned(),
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
    let left = duration(number(&held["left_seconds"]));
    [
        short(text(&held["id"])),
        text(&held["kind"]).replace('_', " "),
        names(held),
        needs,
        places(search),
        next,
        if held["dormant"] == true { format!("{left} (dormant)") } else { left },
    ]
}

/// Where it is looked for: the first place, how it went there, and how many more there are.
fn places(search: &Value) -> String {
    let all = search["places"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(first) = all.iter().find(|place| place["asking"] == true).or(all.first()) else {
        return "nowhere".to_owned();
    };
    let url = text(&first["url"]).split("://").last().unwrap_or_default();
    let host = url.split('/').next().unwrap_or_default();
    let how = match (&first["outcome"], first["asking"] == true, first["waiting"] == true) {
        (_, true, _) => " (being asked)".to_owned(),
        (_, _, true) => " (waits for it)".to_owned(),
        (Value::String(outcome), ..) => format!(" ({})", outcome.replace('_', " ")),
        _ => String::new(),
    };
    let more = if all.len() > 1 { format!(" and {} more", all.len() - 1) } else { String::new() };
    format!("{host}{how}{more}")
}
