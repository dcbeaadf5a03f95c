//! The commands of `graspd` other than `serve` and `config`. Most of them send a request to the running server through
//! its admin socket.
//!
//! - One file per command, with a struct for its arguments that has a method `run`, listed in [`CliCommand`]. The doc
//!   comments of these structs and of their fields are the help.
//! - [`table`]: tables with aligned columns. [`mod@reference`]: reference pages generated from the code.
//!
//! Most commands have `--json`, which prints one object, or one object per line for lists. The exit status is 0 for
//! success, 1 for a failure, 2 for wrong usage or invalid settings, and 3 if no server is running.
//!
//! Runs on the main thread of a short-lived process. May use `backup`, `admin`, `http`, `metrics`, `net`,
//! `config`, `clock`, `date`, `random`, `store_check` and `text_format`.

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
mod repair;
mod repos;
mod server_settings;
mod status;
mod sync;
mod table;
mod transfer;
mod version;

use std::cell::OnceCell;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use self::table::{Column, Table};
use crate::admin::api::Endpoint;
use crate::admin::client::{AdminClient, CommandError, ResponseLine};
use crate::config;
use crate::config::MetricsLimits;
use crate::metrics::Metrics;
use crate::text_format::terminal_safe;

pub(crate) use version::matches;

/// All commands, in the order of the help.
#[derive(Subcommand)]
enum CliCommand {
    Status(status::StatusArgs),
    Relays(relays::RelaysArgs),
    Repos(repos::ReposArgs),
    Purgatory(purgatory::PurgatoryArgs),
    Sync(sync::SyncArgs),
    Repair(repair::RepairArgs),
    Reload(reload::ReloadArgs),
    Check(check::CheckArgs),
    Backup(backup::BackupArgs),
    Restore(backup::RestoreArgs),
    Verify(backup::VerifyArgs),
    Export(transfer::ExportArgs),
    Import(transfer::ImportArgs),
    ImportNgitGrasp(ngit_grasp::ImportNgitGraspArgs),
    Key(event::KeyArgs),
    Event(event::EventArgs),
    /// Read everything in an event store once, to find damage; the server starts this command
    #[command(hide = true)]
    CheckStore(backup::CheckStoreArgs),
    /// Print the reference of all commands
    #[command(hide = true)]
    Commands(reference::ReferenceArgs),
    /// Print the reference of all metrics
    #[command(hide = true)]
    Metrics(reference::ReferenceArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// Commands that print text derived from the command line itself. They read no settings, use no server and have no
/// `--json`.
const GENERATORS: [&str; 2] = ["completions", "man"];

/// Returns the whole command line of `graspd`.
pub(crate) fn command() -> Command {
    let declared = CliCommand::augment_subcommands(Command::new("graspd"));
    let commands = declared.get_subcommands().cloned().map(with_separate_help).map(|command| {
        if GENERATORS.contains(&command.get_name()) {
            config::with_only_hidden_settings(command)
        } else {
            config::with_hidden_settings(command)
        }
    });
    config::command().subcommands(commands)
}

/// Removes the summary from the long help of a command and of those below it. `clap` takes both from one doc comment.
fn with_separate_help(command: Command) -> Command {
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().map(ToString::to_string));
    let command = command.mut_subcommands(with_separate_help);
    match about.zip(long_about) {
        Some((about, text)) => command.long_about(text.trim_start_matches(&format!("{about}\n\n")).to_owned()),
        None => command,
    }
}

/// Runs the given command, if it is one of these.
pub(crate) fn run(matches: &ArgMatches) -> Option<ExitCode> {
    let context = CommandContext { matches, client: OnceCell::new() };
    let result = match matches.subcommand() {
        Some(("config", arguments)) if arguments.get_flag("effective") => {
            server_settings::show(&context, arguments.get_flag("json"))
        }
        Some((config::SETTINGS_COMMAND, _)) => print_line(config::settings_help().trim_end()),
        None | Some(("serve" | "config", _)) => return None,
        Some(_) => run_command(CliCommand::from_arg_matches(matches).unwrap_or_else(|error| error.exit()), &context),
    };
    Some(match result {
        Ok(()) | Err(CommandError::OutputClosed) => ExitCode::SUCCESS,
        Err(failure) => {
            // The text can contain a message of a remote relay.
            let lines: Vec<String> = failure.to_string().lines().map(terminal_safe).collect();
            eprintln!("graspd {}: {}", matches.subcommand_name().unwrap_or_default(), lines.join("\n"));
            failure.code()
        }
    })
}

fn run_command(command: CliCommand, context: &CommandContext<'_>) -> Result<(), CommandError> {
    match command {
        CliCommand::Status(arguments) => arguments.run(context),
        CliCommand::Relays(arguments) => arguments.run(context),
        CliCommand::Repos(arguments) => arguments.run(context),
        CliCommand::Purgatory(arguments) => arguments.run(context),
        CliCommand::Sync(arguments) => arguments.run(context),
        CliCommand::Repair(arguments) => arguments.run(context),
        CliCommand::Reload(arguments) => arguments.run(context),
        CliCommand::Check(arguments) => arguments.run(context),
        CliCommand::Backup(arguments) => arguments.run(context),
        CliCommand::Restore(arguments) => arguments.run(context),
        CliCommand::Verify(arguments) => arguments.run(context),
        CliCommand::Export(arguments) => arguments.run(context),
        CliCommand::Import(arguments) => arguments.run(context),
        CliCommand::ImportNgitGrasp(arguments) => arguments.run(context),
        CliCommand::Key(arguments) => arguments.run(),
        CliCommand::Event(arguments) => arguments.run(),
        CliCommand::CheckStore(arguments) => arguments.run(),
        CliCommand::Commands(_) => print_line(reference::commands().trim_end()),
        CliCommand::Metrics(_) => print_line(Metrics::with_limits(MetricsLimits::default()).reference().trim_end()),
        CliCommand::Completions(arguments) => arguments.run(),
        CliCommand::Man(arguments) => arguments.run(),
    }
}

/// Parses a path and makes it absolute, because the server or git may use it in another folder.
pub(crate) fn absolute_path_value() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// The parsed command line that a command was started with.
pub(crate) struct CommandContext<'a> {
    matches: &'a ArgMatches,
    /// Created when the command needs it.
    client: OnceCell<AdminClient>,
}

impl CommandContext<'_> {
    /// Returns a client of the running server.
    pub(crate) fn client(&self) -> Result<&AdminClient, CommandError> {
        if self.client.get().is_none() {
            let sockets = config::admin_sockets(self.matches).map_err(CommandError::Settings)?;
            let _: Result<(), AdminClient> = self.client.set(AdminClient::new(sockets));
        }
        self.client.get().ok_or_else(|| CommandError::Failed("no client of the server".to_owned()))
    }

    /// Sends one request to the server and returns the response.
    pub(crate) fn call<Request: Serialize, Item: DeserializeOwned, Response: DeserializeOwned>(
        &self,
        endpoint: Endpoint<Request, Item, Response>,
        request: &Request,
    ) -> Result<Response, CommandError> {
        self.client()?.call(endpoint, request, |_| Ok(()))
    }

    /// Prints a list that the server sends: one object per line, or a table, or the text for an empty list. Returns
    /// whether the list has items.
    pub(crate) fn print_list<Request: Serialize, Item: Serialize + DeserializeOwned, Response: DeserializeOwned>(
        &self,
        endpoint: Endpoint<Request, Item, Response>,
        request: &Request,
        as_json: bool,
        columns: &[Column<Item>],
        if_empty: &str,
    ) -> Result<bool, CommandError> {
        let mut items = Vec::new();
        let mut has_items = false;
        self.client()?.call(endpoint, request, |line| {
            let ResponseLine::Item(item) = line else { return Ok(()) };
            has_items = true;
            if as_json {
                return print_json(&item);
            }
            items.push(item);
            Ok(())
        })?;
        match (as_json, has_items) {
            (true, _) => {}
            (false, false) => print_line(if_empty)?,
            (false, true) => print_line(Table::of_items(columns, &items))?,
        }
        Ok(has_items)
    }

    /// Returns the settings that a server started with this command line would have.
    pub(crate) fn settings(&self) -> Result<config::LoadedConfig, CommandError> {
        config::load(self.matches).map_err(CommandError::Settings)
    }
}

/// Prints a line to standard output.
pub(crate) fn print_line(text: impl Display) -> Result<(), CommandError> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Ok(()) => Ok(()),
        Err(problem) if problem.kind() == std::io::ErrorKind::BrokenPipe => Err(CommandError::OutputClosed),
        Err(problem) => Err(CommandError::Failed(format!("cannot write to standard output: {problem}"))),
    }
}

/// Prints a line of JSON with sorted keys to standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CommandError> {
    print_line(json!(value))
}

/// Prints the result of a command as JSON, or as text for people.
pub(crate) fn print_result<T: Serialize, D: Display>(
    as_json: bool,
    result: &T,
    text: impl FnOnce(&T) -> D,
) -> Result<(), CommandError> {
    if as_json { print_json(result) } else { print_line(text(result)) }
}

/// Ignores that standard output is closed, for commands whose exit status is their result.
pub(crate) fn ignore_closed_output(result: Result<(), CommandError>) -> Result<(), CommandError> {
    match result {
        Err(CommandError::OutputClosed) => Ok(()),
        result => result,
    }
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
        let declared = CliCommand::augment_subcommands(Command::new("graspd"));
        let is_shown = |command: &&Command| !command.is_hide_set() && !GENERATORS.contains(&command.get_name());
        for name in declared.get_subcommands().filter(is_shown).map(Command::get_name) {
            let mut whole = command();
            whole.build();
            let command = whole.find_subcommand_mut(name).expect("declared");
            assert!(command.get_about().is_some(), "{name}");
            let help = command.render_long_help().to_string();
            for expected in ["Example", &format!("graspd {name}"), "--json", "--admin-socket"] {
                assert!(help.contains(expected), "the help of {name} does not contain {expected}: {help}");
            }
            assert!(!help.contains("--relay-filter-limit"), "the help of {name} contains unrelated settings");
        }
    }
}
