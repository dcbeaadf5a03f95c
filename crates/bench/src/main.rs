//! Command-line entry point of `grasp-bench`.

use anyhow::{Context, Result};
use clap::Parser;
use grasp_bench::cli::{Cli, Command, CorpusArgs};
use grasp_bench::corpus::Corpus;
use grasp_bench::git::{Git, GitCommand};
use grasp_bench::live::Live;
use grasp_bench::load::Load;
use grasp_bench::neg::{Holding, Neg};
use grasp_bench::sync::{Sync, SyncCommand};
use grasp_bench::target::Target;
use grasp_bench::{report, verify};

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
            let target = Target::from(args.target);
            let corpus = generate(args.corpus)?;
            let figures = Load::from(args.publishing).run(&target, &corpus).await?;
            report::print("load", &target.name, &figures)
        }
        Command::Req(args) => {
            let corpus = generate(args.corpus)?;
            let runs = args.runs();
            let target = Target::from(args.target);
            for run in runs {
                report::print("req", &target.name, &run.run(&target, &corpus).await?)?;
            }
            Ok(())
        }
        Command::Live(args) => {
            let target = Target::from(args.target);
            let figures = Live::from(args.delivery).run(&target).await?;
            report::print("live", &target.name, &figures)
        }
        Command::Neg(args) => {
            let target = Target::from(args.target);
            let corpus = generate(args.corpus)?;
            for holding in Holding::ALL {
                let run = Neg { holding, frame_limit: args.frame_limit };
                report::print("neg", &target.name, &run.run(&target, &corpus).await?)?;
            }
            Ok(())
        }
        Command::Idle(args) => {
            let idle = args.run();
            let target = Target::from(args.target);
            report::print("idle", &target.name, &idle.run(&target).await?)
        }
        Command::Verify(args) => report::print("verify", "none", &verify::run(&generate(args)?)?),
        Command::Git(git) => Box::pin(git.run()).await,
        Command::Sync(sync) => Box::pin(sync.run()).await,
        Command::Archive(args) => Box::pin(Sync { command: SyncCommand::Archive(args) }.run()).await,
        Command::Bots(args) => Box::pin(Git { command: GitCommand::Bots(args) }.run()).await,
        Command::Start(args) => Box::pin(Sync { command: SyncCommand::Start(args) }.run()).await,
        #[cfg(feature = "compare")]
        Command::Compare(compare) => compare.run().await,
        #[cfg(feature = "compare")]
        Command::BuilderRelay(relay) => relay.run().await,
    }
}

fn generate(args: CorpusArgs) -> Result<Corpus> {
    Corpus::generate(args.seed, args.events)
}
