//! `graspd completions SHELL`: prints a script that completes commands and flags in a shell.

use clap::{Args, Command};
use clap_complete::Shell;

use super::{CommandError, print_line};

/// Print a completion script for a shell
///
/// Prints a script that completes commands, flags and their values in a shell. The script belongs to this version of
/// graspd: print it again after an upgrade. The Debian package installs it for bash, zsh and fish.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd completions bash > /etc/bash_completion.d/graspd                        for all users\n  \
    graspd completions zsh > /usr/local/share/zsh/site-functions/_graspd           for all users\n  \
    graspd completions fish > ~/.config/fish/completions/graspd.fish               for one user\n  \
    source <(graspd completions bash)                                              for this shell")]
pub(super) struct CompletionsArgs {
    /// Shell that reads the script
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        print_line(script(self.shell).trim_end())
    }
}

/// Returns the completion script for a shell.
fn script(shell: Shell) -> String {
    let mut whole = super::command();
    whole.build();
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut visible(&whole), "graspd", &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Copies a built command without what its help hides.
///
/// Every command accepts all settings and hides most of them; `clap_complete` offers hidden flags and commands like all
/// others. The commands that run the server and show its settings are completed with all settings. A flag of the copy is not global, because it has been copied into each command that shows it.
fn visible(command: &Command) -> Command {
    let is_generated = |id: &str| matches!(id, "help" | "version");
    let has_settings = matches!(command.get_name(), "graspd" | "serve" | "config");
    let arguments = command
        .get_arguments()
        .filter(|argument| has_settings || !argument.is_hide_set())
        .filter(|argument| !is_generated(argument.get_id().as_str()))
        .map(|argument| argument.clone().global(false));
    let commands =
        command.get_subcommands().filter(|below| !below.is_hide_set() && !is_generated(below.get_name())).map(visible);
    let mut copy = Command::new(command.get_name().to_owned()).args(arguments).subcommands(commands);
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        copy = copy.version(version.to_owned());
    }
    copy
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ValueEnum};

    use super::*;

    #[test]
    fn scripts_offer_every_visible_command_and_no_hidden_one() {
        let mut whole = super::super::command();
        whole.build();
        let copy = visible(&whole);
        for command in super::super::command().get_subcommands() {
            let name = command.get_name();
            assert_eq!(copy.find_subcommand(name).is_some(), !command.is_hide_set(), "{name}");
        }
        for shell in Shell::value_variants() {
            let script = script(*shell);
            for command in copy.get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            assert!(script.contains("bind-address"), "{shell}");
        }
    }

    #[test]
    fn commands_are_offered_the_flags_that_their_help_shows() {
        let mut whole = super::super::command();
        whole.build();
        let copy = visible(&whole);
        let flags = |name: &str| -> Vec<&str> {
            let command = copy.find_subcommand(name).expect(name);
            command.get_arguments().filter_map(Arg::get_long).collect()
        };
        assert!(flags("serve").contains(&"relay-filter-limit"));
        assert!(flags("status").contains(&"admin-socket") && !flags("status").contains(&"relay-filter-limit"));
        assert_eq!(flags("completions"), [""; 0]);
        assert_eq!(flags("man"), ["all"]);
    }
}
