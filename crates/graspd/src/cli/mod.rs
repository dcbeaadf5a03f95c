//! Commands of the operator. Most of them talk to the running server through its admin socket.
//!
//! - [`call`]: one call to the server. [`table`]: columns. [`progress`]: how far something is.
//! - [`mod@reference`]: documents that are made of the code.
//! - One file per command, with its `command()` for the command line and its `run()`, both named in [`COMMANDS`].
//!
//! Every command takes `--json`: one object, or one object per line for lists. The exit status is 0 when it went well, 1
//! when it failed, 2 when it was called wrongly and 3 when no server answers.

mod backup;
pub(crate) mod call;
mod check;
mod event;
mod ngit_grasp;
pub(crate) mod progress;
mod purgatory;
mod reference;
mod relays;
mod reload;
mod repos;
mod status;
mod sync;
pub(crate) mod table;
mod transfer;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use self::call::{Body, Line};
use crate::config;
use crate::config::ConfigErrors;

/// One command.
struct Declared {
    command: fn() -> Command,
    run: fn(&Context<'_>, &ArgMatches) -> Result<(), Failure>,
}

/// All commands, in the order in which help lists them.
const COMMANDS: &[Declared] = &[
    Declared { command: status::command, run: status::run },
    Declared { command: relays::command, run: relays::run },
    Declared { command: repos::command, run: repos::run },
    Declared { command: purgatory::command, run: purgatory::run },
    Declared { command: sync::command, run: sync::run },
    Declared { command: reload::command, run: reload::run },
    Declared { command: check::command, run: check::run },
    Declared { command: backup::backup_command, run: backup::backup },
    Declared { command: backup::restore_command, run: backup::restore },
    Declared { command: backup::verify_command, run: backup::verify },
    Declared { command: transfer::export_command, run: transfer::export },
    Declared { command: transfer::import_command, run: transfer::import },
    Declared { command: ngit_grasp::command, run: ngit_grasp::run },
    Declared { command: event::key_command, run: event::run_key },
    Declared { command: event::event_command, run: event::run_event },
    Declared { command: reference::commands_command, run: reference::run_commands },
    Declared { command: reference::metrics_command, run: reference::run_metrics },
];

/// The whole command line of `graspd`.
pub(crate) fn command() -> Command {
    config::command().subcommands(COMMANDS.iter().map(|declared| config::quietly((declared.command)())))
}

/// Runs the command that was given, if it is one of these.
pub(crate) fn run(matches: &ArgMatches) -> Option<ExitCode> {
    let (name, arguments) = matches.subcommand()?;
    let declared = COMMANDS.iter().find(|declared| (declared.command)().get_name() == name)?;
    Some(match (declared.run)(&Context { matches }, arguments) {
        Ok(()) | Err(Failure::Unread) => ExitCode::SUCCESS,
        Err(failure) => {
            // A relay's own words may be in it.
            let lines: Vec<String> = failure.to_string().lines().map(table::plain).collect();
            eprintln!("graspd {name}: {}", lines.join("\n"));
            failure.code()
        }
    })
}

/// The argument `--json`.
pub(crate) fn json_argument() -> Arg {
    Arg::new("json").long("json").help("Print JSON instead of text for people").action(ArgAction::SetTrue)
}

/// Reads a path. It is made absolute: whoever works with it may work in another folder.
pub(crate) fn path_value() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// What a command was started with.
pub(crate) struct Context<'a> {
    matches: &'a ArgMatches,
}

impl Context<'_> {
    /// Where the server is reached.
    pub(crate) fn socket(&self) -> Result<PathBuf, Failure> {
        config::admin_socket(self.matches).map_err(Failure::Settings)?.ok_or_else(|| {
            let text = "ADMIN_SOCKET is off, so that no command can reach the server; set it to a path and start the \
                        server again";
            Failure::Usage(text.to_owned())
        })
    }

    /// Asks the server for something: see [`call::call`].
    pub(crate) fn call(
        &self,
        verb: &str,
        body: Body,
        on_line: &mut dyn FnMut(Line) -> Result<(), Failure>,
    ) -> Result<Value, Failure> {
        call::call(&self.socket()?, verb, body, on_line)
    }

    /// The settings that a server would have that is started here and like this.
    pub(crate) fn settings(&self) -> Result<config::Loaded, Failure> {
        config::load(self.matches).map_err(Failure::Settings)
    }
}

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// No server answers.
    #[error(
        "no server answers at {} ({why}).\n\
         Is it running? `systemctl status graspd` or the terminal that it was started in says so; `graspd serve` starts it.\n\
         If it runs with other settings, say where it is: the same --config, --admin-socket PATH or NGIT_ADMIN_SOCKET.",
        socket.display()
    )]
    NotRunning { socket: PathBuf, why: std::io::Error },
    /// The server says why not.
    #[error("{text}")]
    Refused { code: String, text: String },
    /// Something went wrong here.
    #[error("{0}")]
    Failed(String),
    /// It was called wrongly.
    #[error("{0}")]
    Usage(String),
    /// The settings cannot be read.
    #[error("{0}")]
    Settings(ConfigErrors),
    /// Whoever reads what is printed has seen enough.
    #[error("nobody reads this any more")]
    Unread,
}

impl Failure {
    fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Unread => 0,
            Self::Refused { .. } | Self::Failed(_) => 1,
            Self::Usage(_) | Self::Settings(_) => 2,
            Self::NotRunning { .. } => 3,
        })
    }
}

/// Prints text and a line break.
pub(crate) fn say(text: impl std::fmt::Display) -> Result<(), Failure> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Ok(()) => Ok(()),
        Err(problem) if problem.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::Unread),
        Err(problem) => Err(Failure::Failed(format!("cannot print: {problem}"))),
    }
}

/// For commands whose exit status is their answer: it is the same when nobody reads what they print.
pub(crate) fn or_unread(said: Result<(), Failure>) -> Result<(), Failure> {
    match said {
        Err(Failure::Unread) => Ok(()),
        said => said,
    }
}

/// The text of a JSON value; nothing if it is none.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The number of a JSON value; zero if it is none.
pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Words with commas between, without those that are empty.
pub(crate) fn list<'t>(words: impl IntoIterator<Item = &'t str>) -> String {
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Does not react to lines: for answers that are one object.
pub(crate) fn one_object(_: Line) -> Result<(), Failure> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_command_teaches() {
        for declared in COMMANDS.iter().filter(|declared| !(declared.command)().is_hide_set()) {
            let name = (declared.command)().get_name().to_owned();
            let mut whole = command();
            whole.build();
            let command = whole.find_subcommand_mut(&name).expect("declared");
            assert!(command.get_about().is_some(), "{name}");
            let help = command.render_long_help().to_string();
            for expected in ["Example", &format!("graspd {name}"), "--json", "--admin-socket"] {
                assert!(help.contains(expected), "{name} does not say {expected}: {help}");
            }
            assert!(!help.contains("--relay-filter-limit"), "{name} shows settings that do not concern it");
        }
    }
}
