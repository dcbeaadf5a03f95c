//! graspd, a GRASP server: a nostr relay and a git server for repositories that are announced on nostr.
//!
//! - [`cli`]: commands; [`backup`]: backup, restore, export and import; [`admin`]: the API that commands use.
//! - [`server`]: start, wiring and shutdown; [`reload`]: settings that change while the server runs.
//! - [`relay`], [`git`], [`web`]: what clients use; [`sync`], [`fetch`]: events and git data from other servers.
//! - [`writer`]: the thread that decides and stores; [`repos`]: the refs and objects that are served.
//! - [`http`], [`metrics`], [`monitor`], [`net`], [`config`]: used by all of them.
//! - [`logging`], [`clock`], [`data_lock`], [`sd_notify`], [`socket_activation`], [`store_check`]: the process and
//!   the system.
//! - [`text_format`]: formatting of amounts.

#![allow(clippy::print_stdout, reason = "commands print to standard output")]

mod admin;
mod backup;
mod cli;
mod clock;
mod config;
mod data_lock;
mod date;
mod fetch;
mod git;
mod http;
mod logging;
mod metrics;
mod monitor;
mod net;
mod random;
mod relay;
mod reload;
mod repo_row_migration;
mod repos;
mod sd_notify;
mod server;
mod socket_activation;
mod store_check;
mod sync;
mod text_format;
mod web;
mod writer;

use std::process::ExitCode;

fn main() -> ExitCode {
    let matches = match cli::matches() {
        Ok(matches) => matches,
        Err(status) => return status,
    };
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
    let set_log_level = logging::start(config.log_format, &config.log_level);
    for warning in warnings {
        tracing::warn!(target: "admin", warning, "problem in the settings");
    }
    let reload_sources = reload::ReloadSources { read: Box::new(move || config::load(&matches)), set_log_level };
    match server::run(config, reload_sources) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("graspd: {}", describe(&problem));
            ExitCode::FAILURE
        }
    }
}

/// Returns the message of an error and of its causes, each once: many messages contain their cause.
fn describe(problem: &anyhow::Error) -> String {
    let mut text = problem.to_string();
    for cause in problem.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
