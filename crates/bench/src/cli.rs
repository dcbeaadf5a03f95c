//! The command line.

use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};

#[cfg(feature = "compare")]
use crate::compare::BuilderRelay;
#[cfg(feature = "compare")]
use crate::compare::Compare;
use crate::git::{BotsArgs, Git};
use crate::idle::Idle;
use crate::live::Live;
use crate::load::Load;
use crate::process::Process;
use crate::req::{Req, Shape};
use crate::sync::{StartArgs, Sync, SyncArgs};
use crate::target::{RelayUrl, Target};

/// Load generator and comparer for nostr relays.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
#[command(
    long_about = "Load generator and comparer for nostr relays.\n\n\
        It publishes a generated NIP-34 corpus (repositories, issues, patches, comments) to any relay, asks for it \
        again, and measures. One seed always gives the same events, so `req` and `neg` know what `load` has published \
        without asking. Everything is signed before the clock starts.\n\n\
        Results are lines of JSON on standard output, one each; progress goes to standard error. Give --pid of a relay \
        on this machine to learn its CPU time per event and its memory: generator and relay share the cores, so that \
        is the figure to trust.",
    after_long_help = "A first session:\n  \
        grasp-bench load --url ws://127.0.0.1:7334 --events 20000\n  \
        grasp-bench req  --url ws://127.0.0.1:7334 --events 20000\n  \
        grasp-bench live --url ws://127.0.0.1:7334 --subscribers 1000\n  \
        grasp-bench neg  --url ws://127.0.0.1:7334 --events 20000"
)]
pub struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub command: Command,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish the corpus; count refusals by reason
    #[command(after_help = "Example: grasp-bench load --url ws://127.0.0.1:7334 --events 20000 --connections 8 \
        --pipeline 64 --pid $(pidof graspd)\n\nEvents of one repository stay in order on one connection. The relay must \
        accept strangers: graspd does so with NGIT_POLICY=open.")]
    Load(LoadArgs),
    /// Ask for events by id, by repository and by kind
    #[command(
        after_help = "Example: grasp-bench req --url ws://127.0.0.1:7334 --events 20000 --shape thread --queries \
        1000\n\nGive the --events and --seed that were loaded. A `short` above zero means that the relay returned less \
        than was published."
    )]
    Req(ReqArgs),
    /// Publish to many subscribers; measure the time to each
    #[command(after_help = "Example: grasp-bench live --url ws://127.0.0.1:7334 --subscribers 1000 --publish 200 \
        --per-second 20\n\nThe events are new in every run, for relays are silent about those they know. A pace \
        that relay and generator together cannot hold measures queues, which grow with the length of the run.")]
    Live(LiveArgs),
    /// Reconcile with NIP-77: from nothing, from nine tenths, from everything
    #[command(after_help = "Example: grasp-bench neg --url ws://127.0.0.1:7334 --events 20000 --frame-limit 60000\n\n\
        The relay should hold the corpus of this seed and no other; then `correct` says whether the difference it \
        reported is the true one.")]
    Neg(NegArgs),
    /// Hold silent connections; measure the memory of each
    #[command(
        after_help = "Example: grasp-bench idle --url ws://127.0.0.1:7334 --connections 5000 --pid $(pidof graspd)"
    )]
    Idle(IdleArgs),
    /// Check ids and signatures on one thread: the least that taking an event can cost
    #[command(after_help = "Example: grasp-bench verify --events 20000")]
    Verify(CorpusArgs),
    /// Measure git over HTTP: advertisements, fetches, clones, pushes
    Git(Git),
    /// Measure how graspd follows other relays
    #[command(
        after_help = "Example: grasp-bench sync all --graspd target/release/graspd --corpus /tmp/sync-corpus\n\n\
        The servers listen on addresses of the loopback network that events name (127.77.0.1 and others), so only one \
        run is possible at a time."
    )]
    Sync(Sync),
    /// An empty server takes over everything, git data included; beside it the real git clones the same
    Archive(SyncArgs),
    /// Start a server with many repositories; measure how soon it is ready
    #[command(after_help = "Example: grasp-bench start --graspd target/release/graspd --corpus /tmp/start-corpus\n\n\
        The first run makes the repositories, which takes a while. As root, the system's cache of files is emptied before \
        every cold start.")]
    Start(StartArgs),
    /// Crawl the pages while people push and clone; measure what the pages cost and what people notice
    #[command(after_help = "Example: grasp-bench bots --graspd target/release/graspd --dir /var/tmp --minutes 2")]
    Bots(BotsArgs),
    /// Measure graspd and an independent relay in turn; print the ratios
    #[cfg(feature = "compare")]
    Compare(Compare),
    /// Run the independent relay (started by `compare`)
    #[cfg(feature = "compare")]
    #[command(hide = true)]
    BuilderRelay(BuilderRelay),
}

/// Which relay.
#[derive(Debug, Clone, Args)]
pub struct TargetArgs {
    /// Address of the relay, without TLS
    #[arg(long, value_name = "ws://HOST:PORT")]
    pub url: RelayUrl,
    /// Process id of the relay: adds its CPU time and memory to the results
    #[arg(long)]
    pub pid: Option<u32>,
    /// What the results call the relay
    #[arg(long, default_value = "relay")]
    pub name: String,
}

impl From<TargetArgs> for Target {
    fn from(args: TargetArgs) -> Self {
        Self { url: args.url, name: args.name, process: args.pid.map(Process::Pid) }
    }
}

/// Which events.
#[derive(Debug, Clone, Copy, Args)]
pub struct CorpusArgs {
    /// Events of the corpus, a hundred to a repository
    #[arg(long, default_value_t = 20_000, value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub events: u64,
    /// Seed of the corpus
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// How `load` publishes.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Which events.
    #[command(flatten)]
    pub corpus: CorpusArgs,
    /// How.
    #[command(flatten)]
    pub publishing: PublishingArgs,
}

/// Connections and their depth.
#[derive(Debug, Clone, Copy, Args)]
pub struct PublishingArgs {
    /// Connections that publish
    #[arg(long, default_value_t = 8, value_parser = positive())]
    pub connections: usize,
    /// Events that a connection may have without a verdict
    #[arg(long, default_value_t = 64, value_parser = positive().range(1..=1024))]
    pub pipeline: usize,
}

impl From<PublishingArgs> for Load {
    fn from(args: PublishingArgs) -> Self {
        Self { connections: args.connections, pipeline: args.pipeline }
    }
}

/// How `req` asks.
#[derive(Debug, Clone, Args)]
pub struct ReqArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Which events.
    #[command(flatten)]
    pub corpus: CorpusArgs,
    /// What to ask; all shapes, one after the other, unless given
    #[arg(long)]
    pub shape: Option<Shape>,
    /// Queries of each shape
    #[arg(long, default_value_t = 1000, value_parser = positive())]
    pub queries: usize,
    /// Connections that ask, each one query at a time
    #[arg(long, default_value_t = 4, value_parser = positive())]
    pub connections: usize,
}

impl ReqArgs {
    /// The runs that were asked for.
    pub fn runs(&self) -> Vec<Req> {
        let shapes = self.shape.map_or_else(|| Shape::ALL.to_vec(), |shape| vec![shape]);
        let run = |shape| Req { shape, queries: self.queries, connections: self.connections, seed: self.corpus.seed };
        shapes.into_iter().map(run).collect()
    }
}

/// How `live` publishes and listens.
#[derive(Debug, Clone, Args)]
pub struct LiveArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How.
    #[command(flatten)]
    pub delivery: DeliveryArgs,
}

/// Subscribers, and what they wait for.
#[derive(Debug, Clone, Copy, Args)]
pub struct DeliveryArgs {
    /// Connections that wait, each with a subscription
    #[arg(long, default_value_t = 1000, value_parser = positive())]
    pub subscribers: usize,
    /// Events to publish
    #[arg(long, default_value_t = 200, value_parser = positive())]
    pub publish: usize,
    /// Events published per second
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub per_second: u32,
}

impl From<DeliveryArgs> for Live {
    fn from(args: DeliveryArgs) -> Self {
        Self { subscribers: args.subscribers, events: args.publish, per_second: args.per_second }
    }
}

/// How `neg` reconciles.
#[derive(Debug, Clone, Args)]
pub struct NegArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Which events.
    #[command(flatten)]
    pub corpus: CorpusArgs,
    /// Most bytes in one of our messages, before hex; 0 for no limit, else at least 4096
    #[arg(long, default_value_t = 0)]
    pub frame_limit: u64,
}

/// How `idle` waits.
#[derive(Debug, Clone, Args)]
pub struct IdleArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Connections to hold
    #[arg(long, default_value_t = 5000, value_parser = positive())]
    pub connections: usize,
    /// Seconds to hold them before memory is read
    #[arg(long, default_value_t = 3)]
    pub hold_secs: u64,
}

impl IdleArgs {
    /// The run that was asked for.
    pub fn run(&self) -> Idle {
        Idle { connections: self.connections, hold: Duration::from_secs(self.hold_secs) }
    }
}

fn positive() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn req_asks_every_shape_unless_told() {
        let runs = |line: &str| match Cli::parse_from(line.split(' ')).command {
            Command::Req(args) => args.runs().iter().map(|run| run.shape).collect::<Vec<_>>(),
            other => panic!("{other:?} is not req"),
        };
        assert_eq!(runs("grasp-bench req --url ws://127.0.0.1:1"), Shape::ALL);
        assert_eq!(runs("grasp-bench req --url ws://127.0.0.1:1 --shape kinds"), [Shape::Kinds]);
    }
}
