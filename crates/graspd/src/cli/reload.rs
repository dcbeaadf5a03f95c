//! `graspd reload`: makes the server read its settings again.

use clap::{ArgMatches, Command};

use super::{
    CommandContext, CommandError, comma_separated, ignore_lines, json_argument, json_number, json_text, print_line,
};
use crate::admin::client::RequestBody;
use crate::text_format::terminal_safe;

pub(super) fn command() -> Command {
    Command::new("reload")
        .about("Make the server read its settings again: moderation lists, limits, log level and others")
        .long_about(
            "Makes the server read its settings again from the same sources as at its start: its TOML file, .env in \
             its folder, and moderation lists in files. Flags and environment variables are those of the start. \
             Settings that can change without a restart take effect at once; the others are listed. If a setting is \
             invalid, nothing changes.\n\n\
             SIGHUP does the same, and logs the result.",
        )
        .after_long_help(
            "Example:\n  \
             echo 'log_level = \"debug\"' >> graspd.toml && graspd reload",
        )
        .arg(json_argument())
}

pub(super) fn run(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let done = context.call("reload", RequestBody::none(), &mut ignore_lines)?;
    if arguments.get_flag("json") {
        return print_line(&done);
    }
    let items = |name: &str| done[name].as_array().map(Vec::as_slice).unwrap_or_default();
    for changed in items("changed") {
        let line = format!(
            "{}: {} -> {}",
            json_text(&changed["name"]),
            json_text(&changed["from"]),
            json_text(&changed["to"])
        );
        print_line(terminal_safe(&line))?;
    }
    if done["lists_changed"] == true {
        let banned = json_number(&done["banned"]);
        print_line(format!("The moderation lists have changed; {banned} hosted repositories are now banned."))?;
    }
    for warning in items("warnings") {
        print_line(terminal_safe(&format!("warning: {}", json_text(warning))))?;
    }
    let restart = comma_separated(items("restart").iter().map(json_text));
    if !restart.is_empty() {
        print_line(format!("These settings need a restart: {restart}."))?;
    }
    if items("changed").is_empty() && restart.is_empty() && done["lists_changed"] != true {
        print_line("No setting has changed.")?;
        let fixed = comma_separated(items("fixed").iter().map(json_text));
        if !fixed.is_empty() {
            print_line(format!("These settings are environment variables and need a restart to change: {fixed}."))?;
        }
    }
    Ok(())
}
