//! `graspd reload`: has the server read its settings again.

use clap::{ArgMatches, Command};

use super::call::Body;
use super::table::plain;
use super::{Context, Failure, json_argument, list, number, one_object, say, text};

pub(super) fn command() -> Command {
    Command::new("reload")
        .about("Have the server read its settings again: lists, limits, log level")
        .long_about(
            "Has the server read its settings again, from where it read them at its start: its TOML file, .env in its \
             folder, and its environment, which is that of its start. Flags stay as they were given. What can change \
             without a restart holds at once; the others are named. If anything is wrong, nothing changes.\n\n\
             SIGHUP does the same, and says in the log what came of it.",
        )
        .after_long_help(
            "Example:\n  \
             echo 'log_level = \"debug\"' >> graspd.toml && graspd reload",
        )
        .arg(json_argument())
}

pub(super) fn run(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let done = context.call("reload", Body::none(), &mut one_object)?;
    if arguments.get_flag("json") {
        return say(&done);
    }
    let items = |name: &str| done[name].as_array().map(Vec::as_slice).unwrap_or_default();
    for changed in items("changed") {
        let line = format!("{}: {} -> {}", text(&changed["name"]), text(&changed["from"]), text(&changed["to"]));
        say(plain(&line))?;
    }
    if done["lists_changed"] == true {
        say(format!("The lists are others now; {} repositories that were here are banned.", number(&done["banned"])))?;
    }
    for warning in items("warnings") {
        say(plain(&format!("warning: {}", text(warning))))?;
    }
    let restart = list(items("restart").iter().map(text));
    if !restart.is_empty() {
        say(format!("These hold after a restart: {restart}."))?;
    }
    if items("changed").is_empty() && restart.is_empty() && done["lists_changed"] != true {
        say("Nothing has changed.")?;
        let fixed = list(items("fixed").iter().map(text));
        if !fixed.is_empty() {
            say(format!("These stand in the server's environment, which is that of its start: {fixed}."))?;
        }
    }
    Ok(())
}
