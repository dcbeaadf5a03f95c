//! graspd: a nostr relay and a git host in one, for repositories that live on several such servers at once.
//!
//! - [`config`]: what the operator wants. [`cli`]: commands that talk to a running server, which answers in [`admin`].
//! - [`rooms`]: starts everything and ends it. [`lock`]: for one process at a time. [`reload`]: settings that change.
//! - [`inherited`]: sockets that were handed over. [`notify`]: words to whoever supervises the process.
//! - [`door`]: what listens. [`hands`]: what acts. [`meter`]: what is measured. [`outbound`]: the way out.
//! - [`reload`]: settings that change while it runs.
//! - [`vault`]: backups, and what comes from elsewhere.

#![allow(clippy::print_stdout, reason = "a program speaks to whoever started it")]

mod admin;
mod backup;
mod cli;
mod clock;
mod config;
mod data_lock;
mod fetch;
mod git;
mod http;
mod metrics;
mod monitor;
mod net;
mod relay;
mod reload;
mod repos;
mod sd_notify;
mod server;
mod socket_activation;
mod sync;
mod web;
mod writer;

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let matches = cli::command().get_matches();
    if let Some(ended) = cli::run(&matches) {
        return ended;
    }
    let printing = matches.subcommand().filter(|(name, _)| *name == "config").map(|(_, config)| config.clone());
    if printing.as_ref().is_some_and(|config| config.get_flag("reference")) {
        print!("{}", config::reference());
        return ExitCode::SUCCESS;
    }
    let config::LoadedConfig { config, warnings } = match config::load(&matches) {
        Ok(loaded) => loaded,
        Err(errors) => {
            eprintln!("graspd: {errors}");
            return ExitCode::from(2);
        }
    };
    if let Some(printing) = printing {
        for warning in warnings {
            eprintln!("graspd: warning: {warning}");
        }
        print!("{}", config::show(&config, printing.get_flag("json")));
        return ExitCode::SUCCESS;
    }
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&config.log_level))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter_reloading();
    let filter = log.reload_handle();
    log.init();
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let reload_sources = reload::ReloadSources {
        read: Box::new(move || config::load(&matches)),
        set_log_level: Box::new(move |level| {
            filter.reload(EnvFilter::new(level)).map_err(|problem| problem.to_string())
        }),
    };
    match server::run(config, reload_sources) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("graspd: {problem:#}");
            ExitCode::FAILURE
        }
    }
}
