//! `graspd status`: how the server is.

use clap::{ArgMatches, Command};
use serde_json::Value;

use super::call::Body;
use super::table::{Align, Table, plain};
use super::{Context, Failure, json_argument, number, one_object, or_unread, say, text};
use crate::web::status::format::{bytes, count, duration};

pub(super) fn command() -> Command {
    Command::new("status")
        .about("Say how the running server is: health, events, relays, what waits, disk and memory")
        .after_long_help(
            "Examples:\n  \
             graspd status                     how the server of this folder is\n  \
             graspd status --json | jq .disk   the same for programs, as at /status.json\n\n\
             The exit status is 0 when everything is well and 1 when a check fails, so that a script can ask.",
        )
        .arg(json_argument())
}

pub(super) fn run(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let status = context.call("status", Body::none(), &mut one_object)?;
    if arguments.get_flag("json") {
        or_unread(say(&status))?;
    } else {
        or_unread(say(summary(&status)))?;
    }
    if status["ready"] == true {
        return Ok(());
    }
    let failing = checks(&status).filter(|(_, check)| check["ok"] != true).map(|(name, _)| name.replace('_', " "));
    Err(Failure::Failed(format!("not well: {}", failing.collect::<Vec<_>>().join(", "))))
}

fn checks(status: &Value) -> impl Iterator<Item = (&String, &Value)> {
    status["checks"].as_object().into_iter().flatten()
}

/// Everything that fits on a screen.
fn summary(status: &Value) -> String {
    let mut facts = Table::new(&[("", Align::Left), ("", Align::Left)]);
    let mut fact = |name: &str, value: String| facts.row([name.to_owned(), value]);
    fact("service", format!("{} (graspd {})", text(&status["name"]), text(&status["version"])));
    fact("state", if status["ready"] == true { "ready".to_owned() } else { "NOT READY".to_owned() });
    for (name, check) in checks(status) {
        let word = if check["ok"] == true { "ok" } else { "FAILS" };
        fact(&format!("  {}", name.replace('_', " ")), format!("{word}: {}", text(&check["detail"])));
    }
    fact("up for", duration(number(&status["uptime_seconds"])));
    fact("repositories", count(number(&status["repositories"])));
    let events = &status["events"];
    fact(
        "events",
        format!("{}, and {} that wait for git data", count(number(&events["served"])), count(number(&events["held"]))),
    );
    fact("websockets", count(number(&status["websockets"])));
    fact("relays", relays(status));
    if let Some(hunt) = status["hunt"].as_object() {
        let part = |name: &str| count(hunt.get(name).map_or(0, number));
        let text = format!(
            "{} repositories sought, {} fetches under way, {} objects found",
            part("queue"),
            part("in_flight"),
            part("objects")
        );
        fact("search", text);
    }
    fact("memory", bytes(number(&status["memory"]["resident_bytes"])));
    let budget = &status["budgets"]["disk_bytes"];
    if budget.is_object() {
        fact("disk budget", format!("{} of {}", bytes(number(&budget["used"])), bytes(number(&budget["limit"]))));
    }
    for (volume, space) in status["disk"]["volumes"].as_object().into_iter().flatten() {
        let text =
            format!("{} free, nothing new below {}", bytes(number(&space["free"])), bytes(number(&space["mark"])));
        fact(&format!("disk, {volume}"), text);
    }
    for (kind, used) in status["disk"]["use"].as_object().into_iter().flatten() {
        fact(&format!("  {kind}"), bytes(number(used)));
    }
    let mut lines: Vec<String> = facts.to_string().lines().skip(1).map(str::to_owned).collect();
    if status["sync"].is_object() {
        lines.push(plain("`graspd relays`, `graspd repos` and `graspd purgatory` say more."));
    }
    lines.join("\n")
}

/// How many relays are how.
fn relays(status: &Value) -> String {
    let Some(sync) = status["sync"].as_object() else { return "not followed: SYNC_ENABLE is false".to_owned() };
    let all = sync.get("relays").map_or(0, number);
    let mut states = std::collections::BTreeMap::<&str, u64>::new();
    for relay in status["relays"].as_array().into_iter().flatten() {
        let word = if relay["paused"] == true { "paused" } else { text(&relay["state"]) };
        *states.entry(word).or_default() += 1;
    }
    let states: Vec<String> =
        states.iter().map(|(state, many)| format!("{many} {}", state.replace('_', " "))).collect();
    if states.is_empty() { count(all) } else { format!("{}: {}", count(all), states.join(", ")) }
}
