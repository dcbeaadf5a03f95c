//! `graspd repos`: lists the hosted repositories.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use super::table::{Align, Table};
use super::{CommandContext, CommandError, json_argument, json_number, json_text, print_line};
use crate::admin::client::{RequestBody, ResponseLine};
use crate::text_format::{bytes, count};

pub(super) fn command() -> Command {
    Command::new("repos")
        .about("List the hosted repositories, with their state and what is missing")
        .long_about(
            "Lists the hosted repositories. Columns: OWNER and NAME; STATE; REFS; SIZE of the repository's own \
             objects; RELAYS that have the same state / that the repository lists; HELD, events that wait for git \
             data.\n\n\
             The state is `current` if the newest repository state is served, `behind` if a newer one waits for git \
             data, `waiting` if the announcement waits for git data, and `empty` if nothing has been pushed yet.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd repos                    all repositories\n  \
             graspd repos --missing          repositories that wait for git data\n  \
             graspd repos --owner npub1…     repositories of one owner\n  \
             graspd repos ngit --json        repositories with the name ngit, as JSON",
        )
        .arg(Arg::new("name").value_name("NAME").help("Only repositories of this name, or the repository of this path"))
        .arg(Arg::new("owner").long("owner").value_name("NPUB").help("Only repositories of this owner"))
        .arg(
            Arg::new("missing")
                .long("missing")
                .help("Only repositories with events that wait for git data")
                .action(ArgAction::SetTrue),
        )
        .arg(json_argument())
}

pub(super) fn run(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
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
        ResponseLine::Item(repo) if as_json => print_line(repo),
        ResponseLine::Item(repo) => {
            table.row(row(&repo));
            Ok(())
        }
        ResponseLine::Progress { .. } => Ok(()),
    };
    context.call("repos", RequestBody::Arguments(wanted), &mut on_line)?;
    match (as_json, table.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => print_line("No repository matches."),
        (false, false) => print_line(table),
    }
}

fn row(repo: &Value) -> [String; 7] {
    let relays = &repo["relays"];
    [
        json_text(&repo["owner"]).to_owned(),
        json_text(&repo["name"]).to_owned(),
        json_text(&repo["state"]).to_owned(),
        repo["refs"].as_u64().map_or("?".to_owned(), count),
        repo["bytes"].as_u64().map_or("?".to_owned(), bytes),
        if relays.is_object() {
            format!("{}/{}", json_number(&relays["complete"]), json_number(&relays["named"]))
        } else {
            "-".to_owned()
        },
        count(json_number(&repo["held"])),
    ]
}
