//! Command-line arguments.

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};

#[cfg(feature = "compare")]
use crate::compare::BuilderRelay;
#[cfg(feature = "compare")]
use crate::compare::Compare;
use crate::git::{BotsArgs, GitCommand};
use crate::idle::Idle;
use crate::live::Live;
use crate::load::Load;
use crate::req::{Req, Shape};
use crate::sync::{StartArgs, SyncArgs, SyncCommand};
use crate::target::Target;

/// Load generator for nostr relays and git servers
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
#[command(
    long_about = "Load generator for nostr relays and git servers.\n\n\
        It publishes a generated NIP-34 corpus (repositories, issues, patches, comments) to any relay, queries it, and \
        measures. A seed always gives the same events, so `req` and `neg` know what `load` has published. All events \
        are signed before the measured time starts.\n\n\
        Results are lines of JSON on standard output; progress goes to standard error. With --pid of a relay on this \
        machine, results include its CPU time per event and its memory. These are the most reliable figures, because \
        load generator and relay share the cores.",
    after_long_help = "Examples:\n  \
        grasp-bench load --url ws://127.0.0.1:7334 --events 20000\n  \
        grasp-bench req  --url ws://127.0.0.1:7334 --events 20000\n  \
        grasp-bench live --url ws://127.0.0.1:7334 --subscribers 1000\n  \
        grasp-bench neg  --url ws://127.0.0.1:7334 --events 20000"
)]
pub struct Cli {
    /// Measurement to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Measurement to run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish the corpus and count rejected events by reason
    #[command(after_help = "Example: grasp-bench load --url ws://127.0.0.1:7334 --events 20000 --connections 8 \
        --pipeline 64 --pid $(pidof graspd)\n\nEvents of one repository are sent in order on one connection. The relay \
        must accept events of any author; graspd does with NGIT_POLICY=open.")]
    Load(LoadArgs),
    /// Query events by id, by repository and by kind
    #[command(
        after_help = "Example: grasp-bench req --url ws://127.0.0.1:7334 --events 20000 --shape thread --queries \
        1000\n\nUse the same --events and --seed as for `load`. A `short` above zero means that the relay returned \
        fewer events than were published."
    )]
    Req(ReqArgs),
    /// Publish to many subscribers and measure the delivery times
    #[command(after_help = "Example: grasp-bench live --url ws://127.0.0.1:7334 --subscribers 1000 --publish 200 \
        --per-second 20\n\nThe events are new in every run, because relays do not deliver known events again. A \
        rate that is too high for relay and load generator measures queueing, which grows with the length of the run.")]
    Live(LiveArgs),
    /// Reconcile with NIP-77 with an empty, a 90 % and a complete local set
    #[command(after_help = "Example: grasp-bench neg --url ws://127.0.0.1:7334 --events 20000 --frame-limit 60000\n\n\
        The relay should have the corpus of this seed and no other; then `correct` shows whether it reported the \
        right difference.")]
    Neg(NegArgs),
    /// Hold idle connections and measure the memory of each
    #[command(
        after_help = "Example: grasp-bench idle --url ws://127.0.0.1:7334 --connections 5000 --pid $(pidof graspd)"
    )]
    Idle(IdleArgs),
    /// Check ids and signatures on one thread: the minimum CPU time to accept an event
    #[command(after_help = "Example: grasp-bench verify --events 20000")]
    Verify(CorpusArgs),
    /// Measure git over HTTP: ref advertisements, fetches, clones, pushes
    #[command(subcommand)]
    Git(GitCommand),
    /// Measure how graspd syncs from other relays
    #[command(
        subcommand,
        after_help = "Example: grasp-bench sync all --graspd target/release/graspd --corpus /tmp/sync-corpus\n\n\
        The servers use fixed loopback addresses, which are part of the events (127.77.0.1 and others), so only one \
        run is possible at a time."
    )]
    Sync(SyncCommand),
    /// Measure how an empty server copies all events and git data of another one, compared with git clones
    Archive(SyncArgs),
    /// Start a server with many repositories and measure the time until it is ready
    #[command(after_help = "Example: grasp-bench start --graspd target/release/graspd --corpus /tmp/start-corpus\n\n\
        The first run creates the repositories, which takes a while. Cold starts need root, to drop the kernel's file \
        cache before each of them.")]
    Start(StartArgs),
    /// Request web pages like crawlers while users push and clone; measure the cost and the effect on users
    #[command(after_help = "Example: grasp-bench bots --graspd target/release/graspd --dir /var/tmp --minutes 2")]
    Bots(BotsArgs),
    /// Measure graspd and an independent relay one after the other and print the ratios
    #[cfg(feature = "compare")]
    Compare(Compare),
    /// Run the independent relay (started by `compare`)
    #[cfg(feature = "compare")]
    #[command(hide = true)]
    BuilderRelay(BuilderRelay),
}

/// Arguments that select the corpus.
#[derive(Debug, Clone, Copy, Args)]
pub struct CorpusArgs {
    /// Number of events, one hundred per repository
    #[arg(long, default_value_t = 20_000, value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub events: u64,
    /// Seed of the corpus
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Arguments of `load`.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Relay to measure.
    #[command(flatten)]
    pub target: Target,
    /// Events to publish.
    #[command(flatten)]
    pub corpus: CorpusArgs,
    /// Connections and pipeline depth.
    #[command(flatten)]
    pub load: Load,
}

/// Arguments of `req`.
#[derive(Debug, Clone, Args)]
pub struct ReqArgs {
    /// Relay to measure.
    #[command(flatten)]
    pub target: Target,
    /// Events that the relay has.
    #[command(flatten)]
    pub corpus: CorpusArgs,
    /// Query shape; all shapes in sequence if omitted
    #[arg(long)]
    pub shape: Option<Shape>,
    /// Queries and connections.
    #[command(flatten)]
    pub req: Req,
}

impl ReqArgs {
    /// Returns the selected query shapes.
    pub fn shapes(&self) -> Vec<Shape> {
        self.shape.map_or_else(|| Shape::ALL.to_vec(), |shape| vec![shape])
    }
}

/// Arguments of `live`.
#[derive(Debug, Clone, Args)]
pub struct LiveArgs {
    /// Relay to measure.
    #[command(flatten)]
    pub target: Target,
    /// Subscribers and events.
    #[command(flatten)]
    pub live: Live,
}

/// Arguments of `neg`.
#[derive(Debug, Clone, Args)]
pub struct NegArgs {
    /// Relay to measure.
    #[command(flatten)]
    pub target: Target,
    /// Events that the relay has.
    #[command(flatten)]
    pub corpus: CorpusArgs,
    /// Maximum size of a message to the relay, in bytes before hex encoding; 0 for no limit, else at least 4096
    #[arg(long, default_value_t = 0)]
    pub frame_limit: u64,
}

/// Arguments of `idle`.
#[derive(Debug, Clone, Args)]
pub struct IdleArgs {
    /// Relay to measure.
    #[command(flatten)]
    pub target: Target,
    /// Connections to hold.
    #[command(flatten)]
    pub idle: Idle,
}

/// Parser of a number above zero.
pub(crate) fn positive() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn req_runs_every_shape_by_default() {
        let runs = |line: &str| match Cli::parse_from(line.split(' ')).command {
            Command::Req(args) => args.shapes(),
            other => panic!("{other:?} is not req"),
        };
        assert_eq!(runs("grasp-bench req --url ws://127.0.0.1:1"), Shape::ALL);
        assert_eq!(runs("grasp-bench req --url ws://127.0.0.1:1 --shape kinds"), [Shape::Kinds]);
    }
}
