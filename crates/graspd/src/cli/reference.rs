//! `graspd commands --reference` and `graspd metrics --reference`: documents that are made of the code.

use std::fmt::Write;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{Context, Failure, say};
use crate::config::SETTINGS_HEADING;
use crate::metrics::{Meter, Scales};

fn hidden(name: &'static str, about: &'static str) -> Command {
    let reference = Arg::new("reference").long("reference").help("In Markdown").action(ArgAction::SetTrue);
    Command::new(name).about(about).hide(true).arg(reference)
}

pub(super) fn commands_command() -> Command {
    hidden("commands", "Print the reference of all commands")
}

pub(super) fn metrics_command() -> Command {
    hidden("metrics", "Print the reference of all measurements")
}

pub(super) fn run_commands(_: &Context<'_>, _: &ArgMatches) -> Result<(), Failure> {
    say(commands().trim_end())
}

pub(super) fn run_metrics(_: &Context<'_>, _: &ArgMatches) -> Result<(), Failure> {
    say(Meter::with(Scales::default()).reference().trim_end())
}

/// The reference of all commands.
fn commands() -> String {
    let mut whole = super::command();
    whole.build();
    let mut text = "# Commands\n\n\
        Made by `graspd commands --reference`; `graspd COMMAND --help` says the same. Without a command graspd serves.\n\n\
        Most commands talk to the running server through its admin socket, which only the server's own user can open: run \
        them in the same folder and as the same user, or say where it is with `--config FILE` or `--admin-socket PATH`. \
        With `--json` they print one object, or one object per line for lists. The exit status is 0 when it went well, 1 \
        when it failed, 2 when the command was called wrongly and 3 when no server answers.\n"
        .to_owned();
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
        describe(&mut text, command, "graspd", 2);
    }
    text
}

fn describe(text: &mut String, command: &Command, before: &str, level: usize) {
    let name = format!("{before} {}", command.get_name());
    let _ = write!(text, "\n{} {name}\n\n", "#".repeat(level));
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(text, "{}.", about.trim_end().trim_end_matches('.'));
    let own = |argument: &&Arg| {
        let is_setting = argument.get_help_heading().is_some_and(|heading| SETTINGS_HEADING.contains(&heading));
        // What all commands of a group take stands with the group.
        let is_inherited = level > 2 && argument.is_global_set();
        !argument.is_hide_set()
            && !is_setting
            && !is_inherited
            && !matches!(argument.get_id().as_str(), "help" | "version" | "config")
    };
    let arguments: Vec<&Arg> = command.get_arguments().filter(own).collect();
    if !arguments.is_empty() {
        let _ = write!(text, "\n| Argument | Meaning |\n|---|---|\n");
        for argument in arguments {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|");
            let _ = writeln!(text, "| `{}` | {help} |", shown(argument).replace('|', "\\|"));
        }
    }
    if let Some(after) = command.get_after_long_help() {
        let _ = write!(text, "\n```text\n{}\n```\n", after.to_string().trim_end());
    }
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        describe(text, below, &name, level + 1);
    }
}

/// An argument as it is typed.
fn shown(argument: &Arg) -> String {
    let value = argument.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
    let takes = argument.get_action().takes_values();
    match (argument.get_long(), value.filter(|_| takes)) {
        (Some(long), Some(value)) => format!("--{long} {value}"),
        (Some(long), None) => format!("--{long}"),
        (None, value) => {
            let value = value.unwrap_or_else(|| argument.get_id().to_string().to_uppercase());
            if argument.is_required_set() { value } else { format!("[{value}]") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_the_one_in_the_documents() {
        let documented = include_str!("../../../../docs/commands.md");
        assert!(commands() == documented, "run: cargo run -- commands --reference > docs/commands.md");
    }

    #[test]
    fn every_command_is_in_the_reference_and_no_setting_is() {
        let text = commands();
        for command in super::super::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(text.contains(&format!("\n## graspd {}\n", command.get_name())), "{}", command.get_name());
        }
        assert!(text.contains("### graspd relays retry\n") && text.contains("| `--owner NPUB` |"), "{text}");
        assert!(!text.contains("--relay-filter-limit"), "{text}");
    }
}
