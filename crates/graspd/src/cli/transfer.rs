//! `graspd export` and `import`: events as lines of JSON.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::json;

use super::progress::Progress;
use super::table::{Align, Table};
use super::{Context, Failure, json_argument, say};
use crate::backup::export::Output;
use crate::backup::import::{Import, Tally};
use crate::backup::snapshot::failed;
use crate::web::status::format::count;

fn list(name: &'static str, placeholder: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(placeholder).help(help).action(ArgAction::Append).value_delimiter(',')
}

pub(super) fn export_command() -> Command {
    let time = |name, help| Arg::new(name).long(name).value_name("SECONDS").help(help).value_parser(value_parser!(u64));
    Command::new("export")
        .about("Write served events to a file, one JSON object per line")
        .long_about(
            "Writes served events to a file, or to standard output, one per line, in the order in which they came. They \
             are signed, so that any relay can take them. Beside FILE a note FILE.graspd-progress says how far it is: \
             --resume goes on there, after an interruption or with what came since.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd export events.jsonl                    all served events\n  \
             graspd export events.jsonl --resume           go on, or add what came since\n  \
             graspd export - --kinds 30617,30618 | wc -l   announcements and states, to another program\n  \
             graspd export tool.jsonl --repo tool          a repository with its issues, pull requests and comments",
        )
        .arg(Arg::new("file").value_name("FILE").help("The file to make; - or nothing for standard output"))
        .arg(list("kinds", "KIND", "Only these kinds").value_parser(value_parser!(u64)))
        .arg(list("authors", "KEY", "Only of these authors, as npub or hex"))
        .arg(Arg::new("repo").long("repo").value_name("NAME").help("Only what belongs to repositories of this name"))
        .arg(time("since", "Only what was made at this time or later, in unix seconds"))
        .arg(time("until", "Only what was made at this time or before, in unix seconds"))
        .arg(Arg::new("held").long("held").help("Also events that wait for git data").action(ArgAction::SetTrue))
        .arg(
            Arg::new("after-seq")
                .long("after-seq")
                .value_name("N")
                .help("Only what came behind this sequence number, to standard output")
                .value_parser(value_parser!(u64)),
        )
        .arg(Arg::new("resume").long("resume").help("Go on with FILE").action(ArgAction::SetTrue))
        .arg(json_argument().help("Print how many there were as JSON, on standard error"))
}

pub(super) fn export(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let numbers: Vec<u64> = arguments.get_many("kinds").into_iter().flatten().copied().collect();
    let authors: Vec<&String> = arguments.get_many("authors").into_iter().flatten().collect();
    let number = |name: &str| arguments.get_one::<u64>(name).copied();
    let wanted = json!({
        "kinds": numbers,
        "authors": authors,
        "repo": arguments.get_one::<String>("repo"),
        "since": number("since"),
        "until": number("until"),
        "held": arguments.get_flag("held"),
    });
    let file = arguments.get_one::<String>("file").filter(|file| *file != "-");
    let (after, resume) = (number("after-seq"), arguments.get_flag("resume"));
    let output = match (file, after, resume) {
        (None, after, false) => Output::standard(wanted, after.unwrap_or(0)),
        (None, _, true) => return Err(Failure::Usage("--resume needs a FILE; use --after-seq instead".to_owned())),
        (Some(_), Some(_), _) => return Err(Failure::Usage("--after-seq is for standard output".to_owned())),
        (Some(file), None, resume) => Output::file(Path::new(file), wanted, resume).map_err(failed)?,
    };
    let done = output.fill(context)?;
    if arguments.get_flag("json") {
        eprintln!("{done}");
    } else {
        eprintln!("{} events, up to sequence number {}", done["events"], done["last_seq"]);
    }
    Ok(())
}

pub(super) fn import_command() -> Command {
    Command::new("import")
        .about("Bring events from a file into the running server")
        .long_about(
            "Brings events into the running server, one per line. They go the way of events that clients publish: their \
             signatures are checked, the policy decides, and what needs git data waits for it. Only the budget of the \
             network does not hold. Beside FILE a note says how far it is: run the same command again after an \
             interruption and it goes on. What was refused for want of something that comes later is tried once more \
             at the end.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd import events.jsonl               bring them in, or go on after an interruption\n  \
             graspd import events.jsonl --protected   also what only its author may publish: the file is an export of \
             this server\n  \
             zcat events.jsonl.gz | graspd import -   from another program; an interruption begins anew",
        )
        .arg(Arg::new("file").value_name("FILE").help("The file; - for standard input").required(true))
        .arg(
            Arg::new("protected")
                .long("protected")
                .help("Take events that only their authors may publish (NIP-70): you vouch that they did, here")
                .action(ArgAction::SetTrue),
        )
        .arg(json_argument())
}

pub(super) fn import(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let file = arguments.get_one::<String>("file").map_or("-", String::as_str);
    let protected = arguments.get_flag("protected");
    let cannot = |problem: std::io::Error| Failure::Failed(format!("cannot keep what is read: {problem}"));
    // What comes through a pipe cannot be read again.
    let spool = if file == "-" {
        let folder = tempfile::TempDir::with_prefix("graspd-import-").map_err(cannot)?;
        let path = folder.path().join("events.jsonl");
        let mut spool = std::fs::File::create(&path).map_err(cannot)?;
        std::io::copy(&mut std::io::stdin().lock().by_ref(), &mut spool).map_err(cannot)?;
        Some((path, folder))
    } else {
        None
    };
    let path: PathBuf = spool.as_ref().map_or_else(|| PathBuf::from(file), |(path, _)| path.clone());
    let tally = bring(context, &path, protected)?;
    if arguments.get_flag("json") {
        return say(tally.value());
    }
    say(table(&tally))
}

/// Brings a file in.
fn bring(context: &Context<'_>, path: &Path, protected: bool) -> Result<Tally, Failure> {
    let import = Import::of(context, path, protected).map_err(failed)?;
    if import.goes_on() {
        eprintln!("going on where it was interrupted");
    }
    go_on(import.run(&mut Some(Progress::new())))
}

/// Brings a file in and says nothing of it.
pub(super) fn bring_quietly(context: &Context<'_>, path: &Path) -> Result<Tally, Failure> {
    go_on(Import::of(context, path, false).map_err(failed)?.run(&mut None))
}

fn go_on(result: Result<Tally, Failure>) -> Result<Tally, Failure> {
    result.map_err(|failure| match failure {
        Failure::Failed(why) => Failure::Failed(format!("{why}\nRun the same command again to go on.")),
        other => other,
    })
}

/// What became of events, for people.
pub(super) fn table(tally: &Tally) -> String {
    let mut table = Table::new(&[("", Align::Left), ("EVENTS", Align::Right)]);
    table.row(["accepted".to_owned(), count(tally.accepted)]);
    table.row(["wait for git data".to_owned(), count(tally.held)]);
    table.row(["known already".to_owned(), count(tally.known)]);
    for (why, number) in tally.refused.iter().chain(&tally.wanting) {
        table.row([format!("refused: {}", why.replace('_', " ")), count(*number)]);
    }
    table.row(["all".to_owned(), count(tally.total())]);
    table.to_string()
}
