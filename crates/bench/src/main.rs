//! Command-line entry point of `grasp-bench`.

use anyhow::{Context, Result, bail};
use clap::Parser;
use grasp_bench::cli::{Cli, Command, CorpusArgs};
use grasp_bench::corpus::Corpus;
use grasp_bench::neg::{Holding, Neg};
use grasp_bench::{git, report, sync, verify};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<()> {
    let cli = Cli::parse();
    // Every connection needs a file descriptor, and many systems allow only 1024 by default.
    rlimit::increase_nofile_limit(u64::MAX).context("cannot raise the open file limit")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(Box::pin(run(cli.command)))
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Load(args) => {
            let target = args.target;
            let corpus = generate(args.corpus)?;
            let figures = args.load.run(&target, &corpus).await?;
            report::print("load", &target.name, &figures)
        }
        Command::Req(args) => {
            let corpus = generate(args.corpus)?;
            for shape in args.shapes() {
                let figures = args.req.run(shape, &args.target, &corpus).await?;
                report::print("req", &args.target.name, &figures)?;
            }
            Ok(())
        }
        Command::Live(args) => {
            let target = args.target;
            let figures = args.live.run(&target).await?;
            report::print("live", &target.name, &figures)
        }
        Command::Neg(args) => {
            let target = args.target;
            let corpus = generate(args.corpus)?;
            for holding in Holding::ALL {
                let run = Neg { holding, frame_limit: args.frame_limit };
                report::print("neg", &target.name, &run.run(&target, &corpus).await?)?;
            }
            Ok(())
        }
        Command::Idle(args) => {
            let target = args.target;
            report::print("idle", &target.name, &args.idle.run(&target).await?)
        }
        Command::Verify(args) => report::print("verify", "none", &verify::run(&generate(args)?)?),
        Command::Git(command) => until_signal(command.run()).await,
        Command::Sync(command) => until_signal(command.run()).await,
        Command::Archive(args) => until_signal(sync::archive(&args)).await,
        Command::Bots(args) => until_signal(git::bots(args)).await,
        Command::Start(args) => until_signal(sync::start(&args)).await,
        #[cfg(feature = "compare")]
        Command::Compare(compare) => until_signal(compare.run()).await,
        #[cfg(feature = "compare")]
        Command::BuilderRelay(relay) => relay.run().await,
    }
}

/// Runs a measurement that starts servers. SIGTERM and SIGINT end it normally, so that the servers are stopped.
async fn until_signal(run: impl Future<Output = Result<()>>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        result = Box::pin(run) => result,
        _ = terminate.recv() => bail!("terminated"),
        _ = interrupt.recv() => bail!("interrupted"),
    }
}

fn generate(args: CorpusArgs) -> Result<Corpus> {
    Corpus::generate(args.seed, args.events)
}
