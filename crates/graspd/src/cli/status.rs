//! `graspd status`: health and main numbers of the server.

use std::collections::BTreeMap;

use clap::Args;

use super::table::Table;
use super::{CommandContext, CommandError, ignore_closed_output, print_result};
use crate::admin::api::{Nothing, STATUS, StatusDocument};
use crate::text_format::{bytes, count, duration};

/// Show the state of the running server: health checks, events, relays, purgatory, disk and memory
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd status                     the state of the server with the settings of this folder\n  \
    graspd status --json | jq .disk   the same as JSON, as at /status.json\n\n\
    The exit status is 0 if all health checks pass and 1 if one fails, so that scripts can use it.")]
pub(super) struct StatusArgs {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl StatusArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let status = context.call(STATUS, &Nothing {})?;
        ignore_closed_output(print_result(self.json, &status, summary))?;
        if status.ready {
            return Ok(());
        }
        let failing = status.checks.iter().filter(|(_, check)| !check.ok).map(|(name, _)| name.replace('_', " "));
        Err(CommandError::Failed(format!("failing health checks: {}", failing.collect::<Vec<_>>().join(", "))))
    }
}

/// Returns a summary that fits on a screen.
fn summary(status: &StatusDocument) -> String {
    let mut facts = Table::of_facts();
    facts.fact("service", format!("{} (graspd {})", status.name, status.version));
    facts.fact("state", if status.ready { "ready" } else { "NOT READY" });
    for (name, check) in &status.checks {
        let word = if check.ok { "ok" } else { "FAILED" };
        facts.fact(&format!("  {}", name.replace('_', " ")), format!("{word}: {}", check.detail));
    }
    facts.fact("uptime", duration(status.uptime_seconds));
    facts.fact("repositories", count(status.repositories as u64));
    let (served, held) = (count(status.events.served), count(status.events.held));
    facts.fact("events", format!("{served} served, {held} waiting for git data"));
    facts.fact("websockets", count(status.websockets.try_into().unwrap_or(0)));
    facts.fact("relays", relays(status));
    if let Some(fetch) = &status.fetch {
        let (queue, in_flight) = (count(fetch.queue as u64), count(fetch.in_flight as u64));
        let objects = count(fetch.objects);
        let text = format!("{queue} repositories wanted, {in_flight} fetches running, {objects} objects fetched");
        facts.fact("missing git data", text);
    }
    facts.fact("memory", bytes(status.memory.resident_bytes));
    if let Some(budget) = status.budgets.get("disk_bytes") {
        facts.fact("disk budget", format!("{} of {}", bytes(budget.used), bytes(budget.limit)));
    }
    for (volume, space) in &status.disk.volumes {
        let text = format!("{} free, minimum {}", bytes(space.free), bytes(space.reserve));
        facts.fact(&format!("disk, {volume}"), text);
    }
    for (kind, used) in status.disk.bytes_by_kind.iter().flatten() {
        facts.fact(&format!("  {kind}"), bytes(*used));
    }
    let mut text = facts.to_string();
    if status.sync.is_some() {
        text += "\nSee also `graspd relays`, `graspd repos` and `graspd purgatory`.";
    }
    text
}

/// Returns the number of relays by state.
fn relays(status: &StatusDocument) -> String {
    let Some(sync) = &status.sync else { return "sync is off: SYNC_ENABLE is false".to_owned() };
    let mut states = BTreeMap::<&str, u64>::new();
    for relay in status.relays.iter().flatten() {
        *states.entry(if relay.paused { "paused" } else { &relay.state }).or_default() += 1;
    }
    let states: Vec<String> =
        states.iter().map(|(state, many)| format!("{many} {}", state.replace('_', " "))).collect();
    let all = count(sync.relays as u64);
    if states.is_empty() { all } else { format!("{all}: {}", states.join(", ")) }
}
