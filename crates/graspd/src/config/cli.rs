//! The command line of `graspd`, made from the table of settings. The `cli` folder adds its subcommands.

use std::sync::LazyLock;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::declaration::{SETTINGS, SettingInfo};
use super::sources::CommandLineFlags;

/// Name of the command that describes all settings.
pub(crate) const SETTINGS_COMMAND: &str = "settings";

/// Id of the argument with the path of the TOML file.
const FILE_ARGUMENT: &str = "config";

const ABOUT: &str = "A GRASP server: git hosting that is controlled by signed Nostr events";

const LONG_ABOUT: &str = "\
graspd hosts git repositories that are announced on Nostr. It is a Nostr relay and a git server at one address: an \
announcement that lists this service creates a repository, and a push is accepted if it matches the repository state \
that a maintainer has signed. There are no accounts and no passwords.

Without a subcommand graspd starts the server. No settings are needed to try it on this machine.";

/// Settings that tell a command how to find the running server. The help of every command shows them.
pub(super) const LOCATION_SETTINGS: [&str; 2] = ["ADMIN_SOCKET", "RELAY_DATA_PATH"];

/// Heading of [`LOCATION_SETTINGS`] in the help of commands.
const LOCATION_HEADING: &str = "Location of the server";

/// Headings of settings in the help of commands, so that the command reference can leave settings out.
pub(crate) static SETTINGS_HEADING: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| SETTINGS.iter().map(|setting| setting.section).chain([LOCATION_HEADING]).collect());

/// The argument with the path of the TOML file.
fn file_argument() -> Arg {
    Arg::new(FILE_ARGUMENT)
        .long("config")
        .value_name("FILE")
        .help("TOML file with settings [env: NGIT_CONFIG] [default: graspd.toml, if it exists]")
        .global(true)
}

/// Adds all settings to a command; only those of [`LOCATION_SETTINGS`] are shown in its help.
pub(crate) fn with_hidden_settings(command: Command) -> Command {
    let settings = SETTINGS.iter().filter_map(|setting| {
        let argument = argument(setting)?;
        Some(if LOCATION_SETTINGS.contains(&setting.name) {
            argument.help_heading(LOCATION_HEADING)
        } else {
            argument.hide(true)
        })
    });
    command.args(settings).arg(file_argument().help_heading(LOCATION_HEADING))
}

/// Adds all settings to a command and shows none of them in its help.
pub(crate) fn with_only_hidden_settings(command: Command) -> Command {
    let settings = SETTINGS.iter().filter_map(argument).chain([file_argument()]);
    command.args(settings.map(|argument| argument.hide(true)))
}

/// Returns the command line of `graspd` without the subcommands of the `cli` folder.
pub(crate) fn command() -> Command {
    let config = Command::new("config")
        .about("Show the effective settings and where each value came from")
        .long_about(
            "Shows the effective settings and where each value came from. Accepts the flags of `serve`, so that a \
             command line can be tested without starting the server. With --effective it asks the running server, whose \
             settings can be others: it has its own environment and folder, and files may have changed since its start. \
             Secrets are hidden.",
        )
        .arg(
            Arg::new("effective")
                .long("effective")
                .help("Show the settings of the running server instead of those of this command line")
                .action(ArgAction::SetTrue),
        )
        .arg(Arg::new("json").long("json").help("Print JSON instead of a table").action(ArgAction::SetTrue))
        .arg(
            Arg::new("reference")
                .long("reference")
                .help("Print the reference of all settings, in Markdown")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["json", "effective"]),
        );
    Command::new("graspd")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .long_about(LONG_ABOUT)
        .after_help("See `graspd help settings` for all settings, and `graspd --help` for examples.")
        .after_long_help(include_str!("help.txt").trim_end())
        .arg(file_argument())
        // Every command accepts the settings; only the help of `settings` shows them all.
        .args(SETTINGS.iter().filter_map(argument).map(|argument| argument.hide(true)))
        .subcommand(
            Command::new("serve")
                .about("Run the server (this is the default)")
                .after_help("It accepts all settings as flags: see `graspd help settings`."),
        )
        .subcommand(config)
        .subcommand(settings_command())
}

/// The command whose help describes all settings in groups.
fn settings_command() -> Command {
    Command::new(SETTINGS_COMMAND)
        .about("Describe all settings, in groups")
        .long_about(
            "Describes all settings, in groups. Each is a flag of `graspd serve`; the environment variable is in brackets. \
             `graspd config` shows the values.",
        )
        .after_long_help(include_str!("settings_help.txt").trim_end())
        .args(SETTINGS.iter().filter_map(argument))
}

/// Returns the text of `graspd settings` and `graspd help settings`.
pub(crate) fn settings_help() -> String {
    let mut whole = command();
    whole.build();
    let settings = whole.find_subcommand_mut(SETTINGS_COMMAND);
    settings.map(|settings| settings.render_long_help().to_string()).unwrap_or_default()
}

/// The flag of a setting. All flags are global: they have the same meaning before, after and without a subcommand.
fn argument(setting: &'static SettingInfo) -> Option<Arg> {
    let mut notes = format!("[env: {}]", setting.variable());
    if let Some(allowed) = &setting.allowed {
        notes.push_str(&format!(" [allowed: {allowed}]"));
    }
    if !setting.default.is_empty() {
        notes.push_str(&format!(" [default: {}]", setting.default));
    }
    let summary = setting.help.split_once(". ").map_or(setting.help.as_str(), |(first, _)| first);
    Some(
        Arg::new(setting.name)
            .long(setting.flag()?)
            .value_name(setting.placeholder)
            .help(summary.trim_end_matches('.'))
            .long_help(format!("{}\n{notes}", setting.help))
            .help_heading(setting.section)
            .action(if setting.can_repeat { ArgAction::Append } else { ArgAction::Set })
            .global(true),
    )
}

/// Returns the values that the command line gives to settings.
pub(crate) fn flags(matches: &ArgMatches) -> CommandLineFlags {
    let given = |name: &'static str| {
        let texts: Vec<&str> = matches.try_get_many::<String>(name).ok()??.map(String::as_str).collect();
        Some(texts.join(","))
    };
    let settings = SETTINGS.iter().filter_map(|setting| Some((setting.name, given(setting.name)?))).collect();
    CommandLineFlags { settings, file: given(FILE_ARGUMENT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ArgMatches, clap::Error> {
        command().try_get_matches_from(line.split(' '))
    }

    #[test]
    fn command_line_definition_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn flags_work_with_and_without_a_subcommand() {
        for line in [
            "graspd --domain a --config b",
            "graspd serve --domain a --config b",
            "graspd --domain a serve --config=b",
            "graspd --config b config --domain=a",
        ] {
            let matches = parse(line).expect(line);
            let flags = flags(&matches);
            let settings: Vec<_> = flags.settings.iter().map(|(name, text)| (*name, text.as_str())).collect();
            assert_eq!(settings, [("DOMAIN", "a")], "{line}");
            assert_eq!(flags.file.as_deref(), Some("b"), "{line}");
        }
    }

    #[test]
    fn list_flag_can_be_repeated() {
        let matches = parse("graspd --trusted-proxy-cidrs ::1 --trusted-proxy-cidrs 10.0.0.0/8").expect("correct");
        assert_eq!(flags(&matches).settings, [("TRUSTED_PROXY_CIDRS", "::1,10.0.0.0/8".to_owned())]);
    }

    #[test]
    fn owner_key_has_no_flag() {
        for line in ["graspd --relay-owner-nsec nsec1hush", "graspd serve --relay-owner-nsec=nsec1hush"] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2);
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }

    #[test]
    fn help_of_settings_describes_every_setting() {
        let help = settings_help();
        for setting in SETTINGS.iter() {
            let variable = setting.variable();
            assert!(help.contains(&variable), "{variable}");
        }
        for expected in ["is used:", "have no flag", "Relay limits:"] {
            assert!(help.contains(expected), "{expected}");
        }
    }

    #[test]
    fn help_is_short() {
        for (help, max_lines) in [(command().render_help(), 60), (command().render_long_help(), 80)] {
            let help = help.to_string();
            assert!(help.lines().count() <= max_lines, "{help}");
            assert!(help.contains("graspd help settings") && !help.contains("--relay-filter-limit"), "{help}");
        }
    }
}
