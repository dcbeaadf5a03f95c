//! The commands of `graspd` other than `serve` and `config`. Most of them send a request to the running server through
//! its admin socket.
//!
//! - One file per command, with its `command()` for the command line and its `run()`, both listed in [`COMMANDS`].
//! - [`table`]: tables with aligned columns. [`mod@reference`]: reference pages generated from the code.
//!
//! Every command has `--json`, which prints one object, or one object per line for lists. The exit status is 0 for
//! success, 1 for a failure, 2 for wrong usage or invalid settings, and 3 if no server is running.
//!
//! Runs on the main thread of a short-lived process. May use every other folder.

mod backup;
mod check;
mod completions;
mod event;
mod man;
mod ngit_grasp;
mod purgatory;
mod reference;
mod relays;
mod reload;
mod repos;
mod status;
mod sync;
mod table;
mod transfer;
mod version;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use crate::admin::client::{AdminClient, CommandError, RequestBody, ResponseLine};
use crate::config;
use crate::text_format::terminal_safe;

pub(crate) use version::matches;

/// One command: its definition and the function that runs it.
struct CommandSpec {
    command: fn() -> Command,
    run: fn(&CommandContext<'_>, &ArgMatches) -> Result<(), CommandError>,
}

/// All commands, in the order of the help.
const COMMANDS: &[CommandSpec] = &[
    CommandSpec { command: status::command, run: status::run },
    CommandSpec { command: relays::command, run: relays::run },
    CommandSpec { command: repos::command, run: repos::run },
    CommandSpec { command: purgatory::command, run: purgatory::run },
    CommandSpec { command: sync::command, run: sync::run },
    CommandSpec { command: reload::command, run: reload::run },
    CommandSpec { command: check::command, run: check::run },
    CommandSpec { command: backup::backup_command, run: backup::backup },
    CommandSpec { command: backup::restore_command, run: backup::restore },
    CommandSpec { command: backup::verify_command, run: backup::verify },
    CommandSpec { command: transfer::export_command, run: transfer::export },
    CommandSpec { command: transfer::import_command, run: transfer::import },
    CommandSpec { command: ngit_grasp::command, run: ngit_grasp::run },
    CommandSpec { command: event::key_command, run: event::run_key },
    CommandSpec { command: event::event_command, run: event::run_event },
    CommandSpec { command: reference::commands_command, run: reference::run_commands },
    CommandSpec { command: reference::metrics_command, run: reference::run_metrics },
];

/// Commands that print text derived from the command line itself. They read no settings, use no server and have no
/// `--json`.
const GENERATORS: &[CommandSpec] = &[
    CommandSpec { command: completions::command, run: completions::run },
    CommandSpec { command: man::command, run: man::run },
];

/// Returns the whole command line of `graspd`.
pub(crate) fn command() -> Command {
    let generators = GENERATORS.iter().map(|spec| config::with_only_hidden_settings((spec.command)()));
    config::command()
        .subcommands(COMMANDS.iter().map(|spec| config::with_hidden_settings((spec.command)())))
        .subcommands(generators)
}

/// Runs the given command, if it is one of these.
pub(crate) fn run(matches: &ArgMatches) -> Option<ExitCode> {
    let (name, arguments) = matches.subcommand()?;
    let spec = COMMANDS.iter().chain(GENERATORS).find(|spec| (spec.command)().get_name() == name)?;
    Some(match (spec.run)(&CommandContext { matches }, arguments) {
        Ok(()) | Err(CommandError::OutputClosed) => ExitCode::SUCCESS,
        Err(failure) => {
            // The text can contain a message of a remote relay.
            let lines: Vec<String> = failure.to_string().lines().map(terminal_safe).collect();
            eprintln!("graspd {name}: {}", lines.join("\n"));
            failure.code()
        }
    })
}

/// The argument `--json`.
pub(crate) fn json_argument() -> Arg {
    Arg::new("json").long("json").help("Print JSON instead of text").action(ArgAction::SetTrue)
}

/// Parses a path and makes it absolute, because the server or git may use it in another folder.
pub(crate) fn absolute_path_value() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// The parsed command line that a command was started with.
pub(crate) struct CommandContext<'a> {
    matches: &'a ArgMatches,
}

impl CommandContext<'_> {
    /// Returns a client of the server that has these settings.
    pub(crate) fn client(&self) -> Result<AdminClient, CommandError> {
        Ok(AdminClient::new(config::admin_socket(self.matches).map_err(CommandError::Settings)?))
    }

    /// Sends one request to the server; see [`AdminClient::call`].
    pub(crate) fn call(
        &self,
        verb: &str,
        body: RequestBody,
        on_line: &mut dyn FnMut(ResponseLine) -> Result<(), CommandError>,
    ) -> Result<Value, CommandError> {
        self.client()?.call(verb, body, on_line)
    }

    /// Returns the settings that a server started with this command line would have.
    pub(crate) fn settings(&self) -> Result<config::LoadedConfig, CommandError> {
        config::load(self.matches).map_err(CommandError::Settings)
    }
}

/// Prints a line to standard output.
pub(crate) fn print_line(text: impl std::fmt::Display) -> Result<(), CommandError> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Ok(()) => Ok(()),
        Err(problem) if problem.kind() == std::io::ErrorKind::BrokenPipe => Err(CommandError::OutputClosed),
        Err(problem) => Err(CommandError::Failed(format!("cannot write to standard output: {problem}"))),
    }
}

/// Ignores that standard output is closed, for commands whose exit status is their result.
pub(crate) fn ignore_closed_output(result: Result<(), CommandError>) -> Result<(), CommandError> {
    match result {
        Err(CommandError::OutputClosed) => Ok(()),
        result => result,
    }
}

/// Returns the text of a JSON value; empty if it is not a text.
pub(crate) fn json_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the number of a JSON value; zero if it is not a number.
pub(crate) fn json_number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Joins the words that are not empty with commas.
pub(crate) fn comma_separated<'t>(words: impl IntoIterator<Item = &'t str>) -> String {
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Ignores the lines of a response, for requests that are answered with one object.
pub(crate) fn ignore_lines(_: ResponseLine) -> Result<(), CommandError> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn every_command_has_help_with_an_example() {
        for spec in COMMANDS.iter().filter(|spec| !(spec.command)().is_hide_set()) {
            let name = (spec.command)().get_name().to_owned();
            let mut whole = command();
            whole.build();
            let command = whole.find_subcommand_mut(&name).expect("declared");
            assert!(command.get_about().is_some(), "{name}");
            let help = command.render_long_help().to_string();
            for expected in ["Example", &format!("graspd {name}"), "--json", "--admin-socket"] {
                assert!(help.contains(expected), "the help of {name} does not contain {expected}: {help}");
            }
            assert!(!help.contains("--relay-filter-limit"), "the help of {name} contains unrelated settings");
        }
    }
}
