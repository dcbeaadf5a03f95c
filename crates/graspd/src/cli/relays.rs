//! `graspd relays`: lists the relays that are followed, and retries, pauses, resumes or forgets one.

use clap::{Args, Subcommand};

use super::table::Column;
use super::{CommandContext, CommandError, print_result};
use crate::admin::api::{
    Nothing, RELAY_FORGET, RELAY_PAUSE, RELAY_RESUME, RELAY_RETRY, RELAYS, RelayDocument, RelayRequest,
};
use crate::text_format::{count, duration, terminal_safe};

/// Maximum number of characters of a reason in the table.
const MAX_REASON_CHARS: usize = 60;

/// List the relays that are followed; retry, pause, resume or forget one
///
/// Lists the relays that are followed. Columns: STATE of the connection; HEALTH of the relay; REPOS that are completely
/// synced / that list the relay; LAG, how far this server may be behind the relay; SLOTS, requests in use / allowed;
/// NEXT TRY, when it is contacted again; NEW, new events received from it; WHY, the reason of the last failure.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd relays                              list the relays\n  \
    graspd relays --json | jq -r .url          print their URLs\n  \
    graspd relays retry wss://relay.example    connect now, without waiting for the end of the backoff\n  \
    graspd relays pause wss://relay.example    disconnect until `resume`, even after a restart")]
pub(super) struct RelaysArgs {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Option<RelaysAction>,
}

#[derive(Subcommand)]
enum RelaysAction {
    /// List the relays that are followed (this is the default)
    List,
    /// Connect to a relay now, whatever its health
    ///
    /// Connects to a relay now, whatever its health: ends its backoff, and tries a relay again that has rejected this
    /// server.
    Retry(RelayArgs),
    /// Disconnect from a relay until it is resumed
    ///
    /// Disconnects from a relay and does not use it until `graspd relays resume`, even after a restart of the server.
    Pause(RelayArgs),
    /// Use a paused relay again
    ///
    /// Ends a pause: the server connects to the relay again.
    Resume(RelayArgs),
    /// Discard everything learned about a relay, and start again
    ///
    /// Discards what was learned about a relay (health, limits, totals), disconnects, and starts again if a repository
    /// still lists the relay. Events that came from it stay. `graspd sync` then compares everything.
    Forget(RelayArgs),
}

#[derive(Args)]
pub(super) struct RelayArgs {
    /// The relay, such as wss://relay.example
    #[arg(value_name = "URL")]
    relay: String,
}

impl RelayArgs {
    pub(super) fn into_request(self) -> RelayRequest {
        RelayRequest { relay: self.relay }
    }
}

const COLUMNS: &[Column<RelayDocument>] = &[
    Column::text("RELAY", |relay| relay.url.clone()),
    Column::text("STATE", |relay| match relay {
        _ if relay.is_self => "this service".to_owned(),
        _ if relay.paused => "paused".to_owned(),
        _ => relay.state.replace('_', " "),
    }),
    Column::text("HEALTH", |relay| relay.health.replace('_', " ")),
    Column::number("REPOS", |relay| format!("{}/{}", count(relay.covered as u64), count(relay.repositories as u64))),
    Column::number("LAG", |relay| relay.lag_seconds.map_or("-".to_owned(), duration)),
    Column::number("SLOTS", |relay| {
        let used = relay.subscriptions.live + relay.subscriptions.requests;
        relay.limits.slots.map_or(used.to_string(), |slots| format!("{used}/{slots}"))
    }),
    Column::number("NEXT TRY", |relay| {
        let next = relay.quiet_seconds.or(relay.retry_in_seconds).filter(|_| !relay.paused);
        next.map_or("-".to_owned(), duration)
    }),
    Column::number("NEW", |relay| count(relay.events_received)),
    Column::text("WHY", |relay| {
        let why: String = relay.why.iter().flat_map(|why| why.chars()).take(MAX_REASON_CHARS).collect();
        match (why.is_empty(), relay.bootstrap) {
            (_, false) => why,
            (true, true) => "(configured)".to_owned(),
            (false, true) => format!("{why}, (configured)"),
        }
    }),
];

impl RelaysArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let (endpoint, relay, what) = match self.action {
            None | Some(RelaysAction::List) => {
                let if_empty = "No relay is followed: no repository lists another relay, and none is configured.";
                return context.print_list(RELAYS, &Nothing {}, self.json, COLUMNS, if_empty).map(drop);
            }
            Some(RelaysAction::Retry(relay)) => (RELAY_RETRY, relay, "connecting now"),
            Some(RelaysAction::Pause(relay)) => {
                (RELAY_PAUSE, relay, "paused until `graspd relays resume`, even after a restart")
            }
            Some(RelaysAction::Resume(relay)) => (RELAY_RESUME, relay, "resumed"),
            Some(RelaysAction::Forget(relay)) => {
                let what = "discarded what was learned; the relay is used again if a repository or a setting lists it";
                (RELAY_FORGET, relay, what)
            }
        };
        let done = context.call(endpoint, &relay.into_request())?;
        print_result(self.json, &done, |done| format!("{}: {what}.", terminal_safe(&done.url)))
    }
}
