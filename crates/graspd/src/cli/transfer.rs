//! `graspd export` and `graspd import`: events as lines of JSON.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::json;

use super::table::{Align, Table};
use super::{CommandContext, CommandError, json_argument, print_line};
use crate::backup::export::EventExport;
use crate::backup::import::{EventImport, ImportCounts};
use crate::backup::progress::Progress;
use crate::config::timestamp;
use crate::text_format::count;

fn list(name: &'static str, placeholder: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(placeholder).help(help).action(ArgAction::Append).value_delimiter(',')
}

pub(super) fn export_command() -> Command {
    let time = |name, help| Arg::new(name).long(name).value_name("TIME").help(help).value_parser(timestamp);
    Command::new("export")
        .about("Write the served events to a file, one JSON object per line")
        .long_about(
            "Writes the served events to a file or to standard output, one per line, in the order of their arrival. \
             They are signed, so that any relay can accept them. The file FILE.graspd-progress records the progress: \
             with --resume the command continues after an interruption, or adds the events that have arrived since.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd export events.jsonl                    all served events\n  \
             graspd export events.jsonl --resume           continue, or add new events\n  \
             graspd export - --kinds 30617,30618 | wc -l   announcements and states, to another program\n  \
             graspd export tool.jsonl --repo tool          a repository with its issues, pull requests and comments",
        )
        .arg(Arg::new("file").value_name("FILE").help("File to create; - or nothing for standard output"))
        .arg(list("kinds", "KIND", "Only events of these kinds").value_parser(value_parser!(u64)))
        .arg(list("authors", "KEY", "Only events of these authors, as npub or hex"))
        .arg(Arg::new("repo").long("repo").value_name("NAME").help("Only events of repositories of this name"))
        .arg(time(
            "since",
            "Only events created at this time or later: unix seconds, or a date such as 2026-01-01 (UTC)",
        ))
        .arg(time(
            "until",
            "Only events created at this time or earlier: unix seconds, or a date such as 2026-01-01 (UTC)",
        ))
        .arg(Arg::new("held").long("held").help("Also events that wait for git data").action(ArgAction::SetTrue))
        .arg(
            Arg::new("after-seq")
                .long("after-seq")
                .value_name("N")
                .help("Only events after this sequence number; for standard output")
                .value_parser(value_parser!(u64)),
        )
        .arg(Arg::new("resume").long("resume").help("Continue an export to FILE").action(ArgAction::SetTrue))
        .arg(json_argument().help("Print the number of events as JSON, to standard error"))
}

pub(super) fn export(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let numbers: Vec<u64> = arguments.get_many("kinds").into_iter().flatten().copied().collect();
    let authors: Vec<&String> = arguments.get_many("authors").into_iter().flatten().collect();
    let number = |name: &str| arguments.get_one::<u64>(name).copied();
    let filter = json!({
        "kinds": numbers,
        "authors": authors,
        "repo": arguments.get_one::<String>("repo"),
        "since": number("since"),
        "until": number("until"),
        "held": arguments.get_flag("held"),
    });
    let file = arguments.get_one::<String>("file").filter(|file| *file != "-");
    let (after, resume) = (number("after-seq"), arguments.get_flag("resume"));
    let event_export = match (file, after, resume) {
        (None, after, false) => EventExport::to_stdout(filter, after.unwrap_or(0)),
        (None, _, true) => {
            return Err(CommandError::Usage("--resume needs a FILE; use --after-seq instead".to_owned()));
        }
        (Some(_), Some(_), _) => {
            return Err(CommandError::Usage("--after-seq works with standard output only".to_owned()));
        }
        (Some(file), None, resume) => EventExport::to_file(Path::new(file), filter, resume)?,
    };
    let done = event_export.run(&context.client()?)?;
    if arguments.get_flag("json") {
        eprintln!("{done}");
    } else {
        eprintln!("{} events, up to sequence number {}", done["events"], done["last_seq"]);
    }
    Ok(())
}

pub(super) fn import_command() -> Command {
    Command::new("import")
        .about("Import events from a file into the running server")
        .long_about(
            "Imports events into the running server, one per line. They are treated like events of clients: \
             signatures are checked, the policy decides, and events without their git data wait for it. Only the \
             rate limit per network does not apply. A file next to FILE records the progress: run the same command \
             again to continue after an interruption. Events that are rejected because they depend on something \
             later in the file are tried again at the end.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd import events.jsonl               import, or continue after an interruption\n  \
             graspd import events.jsonl --protected   also protected events: the file is an export of this server\n  \
             zcat events.jsonl.gz | graspd import -   from another program; cannot be continued",
        )
        .arg(Arg::new("file").value_name("FILE").help("File to import; - for standard input").required(true))
        .arg(
            Arg::new("protected")
                .long("protected")
                .help(
                    "Accept protected events (NIP-70), which only their authors may publish: you confirm that they did",
                )
                .action(ArgAction::SetTrue),
        )
        .arg(json_argument())
}

pub(super) fn import(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let file = arguments.get_one::<String>("file").map_or("-", String::as_str);
    let protected = arguments.get_flag("protected");
    let cannot = |problem: std::io::Error| CommandError::Failed(format!("cannot store standard input: {problem}"));
    // The import can need several passes, so standard input is stored in a file first.
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
    let counts = import_file(context, &path, protected)?;
    if arguments.get_flag("json") {
        return print_line(counts.to_json());
    }
    print_line(import_table(&counts))
}

/// Imports a file, with progress output.
fn import_file(context: &CommandContext<'_>, path: &Path, protected: bool) -> Result<ImportCounts, CommandError> {
    let client = context.client()?;
    let import = EventImport::open(&client, path, protected)?;
    if import.is_resumed() {
        eprintln!("continuing an interrupted import");
    }
    with_resume_hint(import.run(&mut Some(Progress::new())))
}

/// Imports a file without progress output.
pub(super) fn import_silently(context: &CommandContext<'_>, path: &Path) -> Result<ImportCounts, CommandError> {
    let client = context.client()?;
    with_resume_hint(EventImport::open(&client, path, false)?.run(&mut None))
}

fn with_resume_hint(result: Result<ImportCounts, CommandError>) -> Result<ImportCounts, CommandError> {
    result.map_err(|failure| match failure {
        CommandError::Failed(why) => CommandError::Failed(format!("{why}\nRun the same command again to continue.")),
        other => other,
    })
}

/// Returns the results of an import as a table.
pub(super) fn import_table(counts: &ImportCounts) -> String {
    let mut table = Table::new(&[("", Align::Left), ("EVENTS", Align::Right)]);
    table.row(["accepted".to_owned(), count(counts.accepted)]);
    table.row(["waiting for git data".to_owned(), count(counts.held)]);
    table.row(["already known".to_owned(), count(counts.known)]);
    for (why, number) in counts.rejected.iter().chain(&counts.retryable) {
        table.row([format!("rejected: {}", why.replace('_', " ")), count(*number)]);
    }
    table.row(["total".to_owned(), count(counts.total())]);
    table.to_string()
}
