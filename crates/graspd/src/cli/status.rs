//! `graspd status`: health and main numbers of the server.

use clap::{ArgMatches, Command};
use serde_json::Value;

use super::table::{Align, Table};
use super::{
    CommandContext, CommandError, ignore_closed_output, ignore_lines, json_argument, json_number, json_text, print_line,
};
use crate::admin::client::RequestBody;
use crate::text_format::{bytes, count, duration};

pub(super) fn command() -> Command {
    Command::new("status")
        .about("Show the state of the running server: health checks, events, relays, purgatory, disk and memory")
        .after_long_help(
            "Examples:\n  \
             graspd status                     the state of the server with the settings of this folder\n  \
             graspd status --json | jq .disk   the same as JSON, as at /status.json\n\n\
             The exit status is 0 if all health checks pass and 1 if one fails, so that scripts can use it.",
        )
        .arg(json_argument())
}

pub(super) fn run(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let status = context.call("status", RequestBody::none(), &mut ignore_lines)?;
    if arguments.get_flag("json") {
        ignore_closed_output(print_line(&status))?;
    } else {
        ignore_closed_output(print_line(summary(&status)))?;
    }
    if status["ready"] == true {
        return Ok(());
    }
    let failing = checks(&status).filter(|(_, check)| check["ok"] != true).map(|(name, _)| name.replace('_', " "));
    Err(CommandError::Failed(format!("failing health checks: {}", failing.collect::<Vec<_>>().join(", "))))
}

fn checks(status: &Value) -> impl Iterator<Item = (&String, &Value)> {
    status["checks"].as_object().into_iter().flatten()
}

/// Returns a summary that fits on a screen.
fn summary(status: &Value) -> String {
    let mut facts = Table::new(&[("", Align::Left), ("", Align::Left)]);
    let mut fact = |name: &str, value: String| facts.row([name.to_owned(), value]);
    fact("service", format!("{} (graspd {})", json_text(&status["name"]), json_text(&status["version"])));
    fact("state", if status["ready"] == true { "ready".to_owned() } else { "NOT READY".to_owned() });
    for (name, check) in checks(status) {
        let word = if check["ok"] == true { "ok" } else { "FAILED" };
        fact(&format!("  {}", name.replace('_', " ")), format!("{word}: {}", json_text(&check["detail"])));
    }
    fact("uptime", duration(json_number(&status["uptime_seconds"])));
    fact("repositories", count(json_number(&status["repositories"])));
    let events = &status["events"];
    fact(
        "events",
        format!(
            "{} served, {} waiting for git data",
            count(json_number(&events["served"])),
            count(json_number(&events["held"]))
        ),
    );
    fact("websockets", count(json_number(&status["websockets"])));
    fact("relays", relays(status));
    if let Some(fetch) = status["hunt"].as_object() {
        let part = |name: &str| count(fetch.get(name).map_or(0, json_number));
        let text = format!(
            "{} repositories wanted, {} fetches running, {} objects fetched",
            part("queue"),
            part("in_flight"),
            part("objects")
        );
        fact("missing git data", text);
    }
    fact("memory", bytes(json_number(&status["memory"]["resident_bytes"])));
    let budget = &status["budgets"]["disk_bytes"];
    if budget.is_object() {
        fact(
            "disk budget",
            format!("{} of {}", bytes(json_number(&budget["used"])), bytes(json_number(&budget["limit"]))),
        );
    }
    for (volume, space) in status["disk"]["volumes"].as_object().into_iter().flatten() {
        let text =
            format!("{} free, minimum {}", bytes(json_number(&space["free"])), bytes(json_number(&space["mark"])));
        fact(&format!("disk, {volume}"), text);
    }
    for (kind, used) in status["disk"]["use"].as_object().into_iter().flatten() {
        fact(&format!("  {kind}"), bytes(json_number(used)));
    }
    let mut lines: Vec<String> = facts.to_string().lines().skip(1).map(str::to_owned).collect();
    if status["sync"].is_object() {
        lines.push("See also `graspd relays`, `graspd repos` and `graspd purgatory`.".to_owned());
    }
    lines.join("\n")
}

/// Returns the number of relays by state.
fn relays(status: &Value) -> String {
    let Some(sync) = status["sync"].as_object() else { return "sync is off: SYNC_ENABLE is false".to_owned() };
    let all = sync.get("relays").map_or(0, json_number);
    let mut states = std::collections::BTreeMap::<&str, u64>::new();
    for relay in status["relays"].as_array().into_iter().flatten() {
        let word = if relay["paused"] == true { "paused" } else { json_text(&relay["state"]) };
        *states.entry(word).or_default() += 1;
    }
    let states: Vec<String> =
        states.iter().map(|(state, many)| format!("{many} {}", state.replace('_', " "))).collect();
    if states.is_empty() { count(all) } else { format!("{}: {}", count(all), states.join(", ")) }
}
