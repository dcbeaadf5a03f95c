//! The command line, made from the table of settings.

use std::sync::LazyLock;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::settings::{SETTINGS, Setting, Shape};
use super::sources::Flags;

/// The name of the argument that names the TOML file.
const FILE: &str = "config";

const ABOUT: &str = "A GRASP server: git hosting that follows signed Nostr events";

const LONG_ABOUT: &str = "\
graspd hosts git repositories for people who announce them on Nostr. It is a Nostr relay and a git server at one \
address: an announcement that lists this service creates a repository, and a push is accepted when it matches the \
state that a maintainer has signed. There are no accounts and no passwords.

Without a subcommand graspd serves. It needs no settings to be tried out on this machine.";

const EXAMPLES: &str = "\
Examples:
  graspd                                    try it out on 127.0.0.1:7334, with data below ./data
  graspd --domain code.example              serve code.example from behind a reverse proxy
  NGIT_DOMAIN=code.example graspd serve     the same, with a variable
  graspd config                             show what holds, and where each value came from
  graspd config --reference                 print the reference of all settings";

const PRECEDENCE: &str = "\
Settings:
  Each setting can be given in four ways. The first that has it wins:
    1. a flag                               --bind-address 127.0.0.1:7334
    2. an environment variable              NGIT_BIND_ADDRESS=127.0.0.1:7334
    3. the file .env in the current folder  NGIT_BIND_ADDRESS=127.0.0.1:7334
    4. a TOML file (see --config)           bind_address = \"127.0.0.1:7334\"
  Else the default holds. An empty variable counts as not set.
  The owner's private key (NGIT_RELAY_OWNER_NSEC) has no flag, nor has the token of measurements
  (NGIT_METRICS_TOKEN), because other users of the machine can read the arguments of a process. Without the key
  one is generated into .relay-owner.nsec in the relay's data folder.
  Wrong settings are all listed in one message, and graspd exits with status 2.";

/// What says where a running server is, and is shown in the help of its commands.
const WHERE: [&str; 2] = ["ADMIN_SOCKET", "RELAY_DATA_PATH"];

/// The heading of those.
const WHERE_HEADING: &str = "Where the server is";

/// Under which headings settings stand in the help of commands.
pub(crate) static SETTINGS_HEADING: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| SETTINGS.iter().map(|setting| setting.section).chain([WHERE_HEADING]).collect());

/// The argument that names the TOML file.
fn file() -> Arg {
    Arg::new(FILE)
        .long("config")
        .value_name("FILE")
        .help("TOML file with settings [env: NGIT_CONFIG] [default: graspd.toml, if it exists]")
        .global(true)
}

/// A command that takes all settings, and shows only those in its help that say where the server is.
pub(crate) fn quietly(command: Command) -> Command {
    let settings = SETTINGS.iter().filter_map(|setting| {
        let argument = argument(setting)?;
        Some(if WHERE.contains(&setting.name) { argument.help_heading(WHERE_HEADING) } else { argument.hide(true) })
    });
    command.args(settings).arg(file().help_heading(WHERE_HEADING))
}

/// The command line of `graspd`, but for the commands of [`crate::cli`].
pub(crate) fn command() -> Command {
    let config = Command::new("config")
        .about("Show the effective settings and where each came from")
        .long_about(
            "Shows the effective settings and where each came from. Takes the flags of `serve`, so that a command \
             line can be tried out without serving. Secrets are hidden.",
        )
        .arg(Arg::new("json").long("json").help("Print JSON instead of a table").action(ArgAction::SetTrue))
        .arg(
            Arg::new("reference")
                .long("reference")
                .help("Print the reference of all settings, in Markdown")
                .action(ArgAction::SetTrue)
                .conflicts_with("json"),
        );
    Command::new("graspd")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .long_about(LONG_ABOUT)
        .after_help("`graspd --help` says more, with examples.")
        .after_long_help(format!("{EXAMPLES}\n\n{PRECEDENCE}"))
        .arg(file())
        .args(SETTINGS.iter().filter_map(argument))
        .subcommand(Command::new("serve").about("Serve repositories and events (this is the default)"))
        .subcommand(config)
}

/// The flag of a setting. All flags are global: they mean the same before, after and without a subcommand.
fn argument(setting: &'static Setting) -> Option<Arg> {
    let flag = setting.flag()?;
    let mut notes = format!("[env: {}]", setting.variable());
    if let Some(allowed) = setting.shape.allowed() {
        notes.push_str(&format!(" [allowed: {allowed}]"));
    }
    if let Some(default) = setting.default.shown() {
        notes.push_str(&format!(" [default: {default}]"));
    }
    let summary = setting.help.split_once(". ").map_or(setting.help, |(first, _)| first).trim_end_matches('.');
    let action = if matches!(setting.shape, Shape::Networks) { ArgAction::Append } else { ArgAction::Set };
    Some(
        Arg::new(setting.name)
            .long(flag)
            .value_name(setting.shape.placeholder())
            .help(summary.to_owned())
            .long_help(format!("{}\n{notes}", setting.help))
            .help_heading(setting.section)
            .action(action)
            .global(true),
    )
}

/// What the command line said about settings.
pub(crate) fn flags(matches: &ArgMatches) -> Flags {
    let given = |name: &'static str| {
        let texts: Vec<&str> = matches.try_get_many::<String>(name).ok()??.map(String::as_str).collect();
        Some(texts.join(","))
    };
    let settings = SETTINGS.iter().filter_map(|setting| Some((setting.name, given(setting.name)?))).collect();
    Flags { settings, file: given(FILE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ArgMatches, clap::Error> {
        command().try_get_matches_from(line.split(' '))
    }

    #[test]
    fn the_command_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn flags_mean_the_same_with_and_without_serve() {
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
    fn a_list_can_be_given_piece_by_piece() {
        let matches = parse("graspd --trusted-proxy-cidrs ::1 --trusted-proxy-cidrs 10.0.0.0/8").expect("correct");
        assert_eq!(flags(&matches).settings["TRUSTED_PROXY_CIDRS"], "::1,10.0.0.0/8");
    }

    #[test]
    fn the_owner_key_cannot_be_an_argument() {
        for line in ["graspd --relay-owner-nsec nsec1hush", "graspd serve --relay-owner-nsec=nsec1hush"] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2);
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }

    #[test]
    fn help_teaches() {
        let help = command().render_long_help().to_string();
        for setting in SETTINGS {
            let variable = setting.variable();
            assert!(help.contains(&variable), "{variable}");
        }
        for expected in ["Examples:", "graspd config", "The first that has it wins", "has no flag", "Relay limits:"] {
            assert!(help.contains(expected), "{expected}");
        }
    }
}
