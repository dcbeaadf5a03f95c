//! `graspd commands --reference` and `graspd metrics --reference`: reference pages generated from the code.

use std::fmt::Write;

use clap::{Arg, Args, Command};

use crate::config::SETTINGS_HEADING;

#[derive(Args)]
pub(super) struct ReferenceArgs {
    /// Print Markdown
    // The output is Markdown in any case.
    #[arg(long)]
    reference: bool,
}

/// Returns the reference of all commands (docs/commands.md).
pub(super) fn commands() -> String {
    let mut whole = super::command();
    whole.build();
    let mut text = "# Commands\n\n\
        This page is generated from the code by `graspd commands --reference`; `graspd COMMAND --help` shows the same \
        texts. Without a command graspd runs the server.\n\n\
        Most commands send a request to the running server through its admin socket, which only the user that runs the \
        server can open. Run them as that user or as root. If no setting names the socket, they look for that of the \
        systemd unit (`/run/graspd/admin.sock`) and for that in the current folder (`data/relay/admin.sock`); \
        `--admin-socket PATH`, `--relay-data-path PATH` and `--config FILE` give another location. With `--json` they print one JSON object, or one object per line for \
        lists. The exit status is 0 for success, 1 for a failure, 2 for wrong usage or invalid settings, and 3 if no \
        server is running.\n"
        .to_owned();
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
        write_command(&mut text, command, "graspd", 2);
    }
    text
}

fn write_command(text: &mut String, command: &Command, before: &str, level: usize) {
    let name = format!("{before} {}", command.get_name());
    let _ = write!(text, "\n{} {name}\n\n", "#".repeat(level));
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(text, "{}.", about.trim_end().trim_end_matches('.'));
    let own = |argument: &&Arg| {
        let is_setting = argument.get_help_heading().is_some_and(|heading| SETTINGS_HEADING.contains(&heading));
        // Arguments that all subcommands share are listed with the command.
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
            let _ = writeln!(text, "| `{}` | {help} |", argument_usage(argument).replace('|', "\\|"));
        }
    }
    if let Some(after) = command.get_after_long_help() {
        let _ = write!(text, "\n```text\n{}\n```\n", after.to_string().trim_end());
    }
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        write_command(text, below, &name, level + 1);
    }
}

/// Returns an argument as it is typed.
fn argument_usage(argument: &Arg) -> String {
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
    fn docs_commands_md_is_up_to_date() {
        let documented = include_str!("../../../../docs/commands.md");
        assert!(commands() == documented, "run: cargo run -p graspd -- commands --reference > docs/commands.md");
    }

    #[test]
    fn reference_has_every_command_and_no_setting() {
        let text = commands();
        for command in super::super::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(text.contains(&format!("\n## graspd {}\n", command.get_name())), "{}", command.get_name());
        }
        assert!(text.contains("### graspd relays retry\n") && text.contains("| `--owner NPUB` |"), "{text}");
        assert!(!text.contains("--relay-filter-limit"), "{text}");
    }
}
