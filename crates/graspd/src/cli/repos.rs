//! `graspd repos`: the repositories that are hosted.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use super::call::{Body, Line};
use super::table::{Align, Table};
use super::{Context, Failure, json_argument, number, say, text};
use crate::web::status::format::{bytes, count};

pub(super) fn command() -> Command {
    Command::new("repos")
        .about("List repositories with what is here of them and what is missing")
        .long_about(
            "Lists repositories: whose, their state, refs, bytes of their own objects, at how many of their relays \
             everything is known to be the same, and how many events wait for git data.\n\n\
             A repository is `current` when its newest state is served, `behind` when a newer one waits for git data, \
             `waiting` when its announcement waits for git data, and `empty` when nobody has pushed to it yet.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd repos                    all of them\n  \
             graspd repos --missing          those that wait for git data\n  \
             graspd repos --owner npub1…     those of one owner\n  \
             graspd repos ngit --json        those called ngit, for programs",
        )
        .arg(Arg::new("name").value_name("NAME").help("Only repositories of this name, or the one with this path"))
        .arg(Arg::new("owner").long("owner").value_name("NPUB").help("Only repositories of this owner"))
        .arg(
            Arg::new("missing")
                .long("missing")
                .help("Only repositories of which something waits for git data")
                .action(ArgAction::SetTrue),
        )
        .arg(json_argument())
}

pub(super) fn run(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let as_json = arguments.get_flag("json");
    let mut table = Table::new(&[
        ("OWNER", Align::Left),
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("REFS", Align::Right),
        ("SIZE", Align::Right),
        ("RELAYS", Align::Right),
        ("HELD", Align::Right),
    ]);
    let given = |name: &str| arguments.get_one::<String>(name);
    let wanted = json!({ "name": given("name"), "owner": given("owner"), "missing": arguments.get_flag("missing") });
    let mut on_line = |line| match line {
        Line::Item(repo) if as_json => say(repo),
        Line::Item(repo) => {
            table.row(row(&repo));
            Ok(())
        }
        Line::Progress { .. } => Ok(()),
    };
    context.call("repos", Body::Arguments(wanted), &mut on_line)?;
    match (as_json, table.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => say("There is no such repository."),
        (false, false) => say(table),
    }
}

fn row(repo: &Value) -> [String; 7] {
    let relays = &repo["relays"];
    [
        text(&repo["owner"]).to_owned(),
        text(&repo["name"]).to_owned(),
        text(&repo["state"]).to_owned(),
        repo["refs"].as_u64().map_or("?".to_owned(), count),
        repo["bytes"].as_u64().map_or("?".to_owned(), bytes),
        if relays.is_object() {
            format!("{}/{}", number(&relays["complete"]), number(&relays["named"]))
        } else {
            "-".to_owned()
        },
        count(number(&repo["held"])),
    ]
}
