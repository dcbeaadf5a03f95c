//! `graspd purgatory`: lists the events that wait for git data; retries the fetch, or drops an event.

use clap::{Args, Subcommand};

use super::table::Column;
use super::{CommandContext, CommandError, print_result};
use crate::admin::api::{HeldItem, HeldRequest, Nothing, PURGATORY, PURGATORY_DROP, PURGATORY_RETRY};
use crate::text_format::{count, duration, terminal_safe};

/// Number of digits of an object id or event id in the table.
const SHOWN_DIGITS: usize = 12;

/// List the events that wait for git data; fetch it now, or drop an event
///
/// Lists the events in purgatory: events that are not served yet, because the git data that they refer to is missing.
/// Shows what each event needs, where that is fetched from, when the next attempt is, and when the event expires.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd purgatory                     list the events\n  \
    graspd purgatory retry               fetch all missing git data now\n  \
    graspd purgatory retry ngit          fetch what the repositories with the name ngit need\n  \
    graspd purgatory drop 3bf0c63fcb93   drop one event")]
pub(super) struct PurgatoryArgs {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Option<PurgatoryAction>,
}

#[derive(Subcommand)]
enum PurgatoryAction {
    /// List the events that wait for git data (this is the default)
    List,
    /// Fetch missing git data now instead of at the next round
    ///
    /// Fetches missing git data now instead of at the next round. The limits of the git servers still apply: a server
    /// that has asked for a pause is contacted after it.
    Retry {
        /// Only for this event, or for the repositories of this name; without it for all
        #[arg(value_name = "ID|NAME")]
        what: Option<String>,
    },
    /// Drop a held event
    ///
    /// Drops a held event, also from the disk. The server does not remember it: clients can publish it again, and sync
    /// fetches it again from a relay that has it. To reject it for good, add it to EVENT_BLACKLIST.
    Drop {
        /// Id of the event, or enough of its first digits to be unique
        #[arg(value_name = "ID")]
        what: String,
    },
}

const COLUMNS: &[Column<HeldItem>] = &[
    Column::text("EVENT", |held| shortened(&held.id)),
    Column::text("KIND", |held| held.kind.replace('_', " ")),
    Column::text("REPOSITORY", |held| held.names.join(", ")),
    Column::text("NEEDS", needs),
    Column::text("SOURCE", sources),
    Column::number("NEXT TRY", |held| match &held.search {
        Some(search) => search.next_in_seconds.map_or("now".to_owned(), duration),
        None => "-".to_owned(),
    }),
    Column::number("EXPIRES IN", |held| {
        let left = duration(held.left_seconds);
        if held.dormant { format!("{left} (dormant)") } else { left }
    }),
];

impl PurgatoryArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        match self.action {
            None | Some(PurgatoryAction::List) => {
                context.print_list(PURGATORY, &Nothing {}, self.json, COLUMNS, "No event waits for git data.").map(drop)
            }
            Some(PurgatoryAction::Retry { what }) => {
                let done = context.call(PURGATORY_RETRY, &HeldRequest { what })?;
                print_result(self.json, &done, |done| match done.count {
                    0 => "No git data is missing that could be fetched from another server.".to_owned(),
                    1 => "Fetching the missing git data of one repository.".to_owned(),
                    many => format!("Fetching the missing git data of {many} repositories."),
                })
            }
            Some(PurgatoryAction::Drop { what }) => {
                let done = context.call(PURGATORY_DROP, &HeldRequest { what: Some(what) })?;
                print_result(self.json, &done, |done| {
                    let HeldItem { kind, id, names, .. } = &done.dropped;
                    let names = terminal_safe(&names.join(", "));
                    format!("Dropped: the {} {id} of {names}.", kind.replace('_', " "))
                })
            }
        }
    }
}

fn shortened(id: &str) -> String {
    id.chars().take(SHOWN_DIGITS).collect()
}

/// Returns what an event needs: the first missing object, and the number of objects.
fn needs(held: &HeldItem) -> String {
    let search = held.search.as_ref();
    let first = search.and_then(|search| search.examples.first()).or(held.objects.first()).map(|id| shortened(id));
    match (held.needs, search.map(|search| search.missing), first) {
        (0, _, _) => "a repository state with its git data".to_owned(),
        (1, _, Some(first)) => first,
        (_, Some(missing @ 1..), Some(first)) => format!("{first} … ({} missing)", count(missing as u64)),
        (needs, _, Some(first)) => format!("{first} … ({} objects)", count(needs as u64)),
        (needs, _, None) => format!("{} objects", count(needs as u64)),
    }
}

/// Returns where the data is fetched from: the first source, its last result, and the number of other sources.
fn sources(held: &HeldItem) -> String {
    let all = held.search.as_ref().map_or(&[][..], |search| &search.sources);
    let Some(first) = all.iter().find(|source| source.asking).or(all.first()) else { return "none".to_owned() };
    let host = first.url.split("://").last().and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let how = match &first.outcome {
        _ if first.asking => " (fetching)".to_owned(),
        _ if first.waiting => " (waiting for its limit)".to_owned(),
        Some(outcome) => format!(" ({})", outcome.replace('_', " ")),
        None => String::new(),
    };
    let more = if all.len() > 1 { format!(" and {} more", all.len() - 1) } else { String::new() };
    format!("{host}{how}{more}")
}
