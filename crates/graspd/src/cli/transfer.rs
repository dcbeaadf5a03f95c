//! `graspd export` and `graspd import`: events as lines of JSON.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::backup::settings;
use super::table::{Align, Table};
use super::{CommandContext, CommandError, print_result};
use crate::admin::api::{ExportFilter, ImportCounts, ImportRequest};
use crate::backup::export::EventExport;
use crate::backup::import::EventImport;
use crate::backup::progress::Progress;
use crate::config::timestamp;
use crate::text_format::count;

/// Write the served events to a file, one JSON object per line
///
/// Writes the served events to a file or to standard output, one per line, in the order of their arrival. They are
/// signed, so that any relay can accept them. If the server does not run, they are read from its data folder. The file
/// FILE.graspd-progress records the progress: with --resume the command continues after an interruption, or adds the
/// events that have arrived since.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd export events.jsonl                    all served events\n  \
    graspd export events.jsonl --resume           continue, or add new events\n  \
    graspd export - --kinds 30617,30618 | wc -l   announcements and states, to another program\n  \
    graspd export tool.jsonl --repo tool          a repository with its issues, pull requests and comments")]
pub(super) struct ExportArgs {
    /// File to create; - or nothing for standard output
    file: Option<String>,
    /// Only events of these kinds
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<u64>,
    /// Only events of these authors, as npub or hex
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    authors: Vec<String>,
    /// Only events of repositories of this name
    #[arg(long, value_name = "NAME")]
    repo: Option<String>,
    /// Only events created at this time or later: unix seconds, or a date such as 2026-01-01 (UTC)
    #[arg(long, value_name = "TIME", value_parser = timestamp)]
    since: Option<u64>,
    /// Only events created at this time or earlier: unix seconds, or a date such as 2026-01-01 (UTC)
    #[arg(long, value_name = "TIME", value_parser = timestamp)]
    until: Option<u64>,
    /// Also events that wait for git data
    #[arg(long)]
    held: bool,
    /// Only events after this sequence number; for standard output
    #[arg(long, value_name = "N")]
    after_seq: Option<u64>,
    /// Continue an export to FILE
    #[arg(long)]
    resume: bool,
    /// Print the number of events as JSON, to standard error
    #[arg(long)]
    json: bool,
}

impl ExportArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let Self { kinds, authors, repo, since, until, held, .. } = self;
        let filter = ExportFilter { kinds, authors, repo, since, until, held };
        let event_export = match (self.file.filter(|file| file != "-"), self.after_seq) {
            (None, _) if self.resume => {
                return Err(CommandError::Usage("--resume needs a FILE; use --after-seq instead".to_owned()));
            }
            (None, after) => EventExport::to_stdout(filter, after.unwrap_or(0)),
            (Some(_), Some(_)) => {
                return Err(CommandError::Usage("--after-seq works with standard output only".to_owned()));
            }
            (Some(file), None) => EventExport::to_file(Path::new(&file), filter, self.resume)?,
        };
        let done = event_export.run(context.client()?, || settings(context))?;
        if self.json {
            eprintln!("{}", json!(done));
        } else {
            eprintln!("{} events, up to sequence number {}", done.events, done.last_seq);
        }
        Ok(())
    }
}

/// Import events from a file into the running server
///
/// Imports events into the running server, one per line. They are treated like events of clients: signatures are
/// checked, the policy decides, and events without their git data wait for it. Only the rate limit per network does not
/// apply. A file next to FILE records the progress: run the same command again to continue after an interruption.
/// Events that are rejected because they depend on something later in the file are tried again at the end. Issues,
/// comments and other events of a repository that waits for its git data are deferred: the server keeps them, and imports
/// them when the repository is served.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd import events.jsonl               import, or continue after an interruption\n  \
    graspd import events.jsonl --protected   also protected events: the file is an export of this server\n  \
    zcat events.jsonl.gz | graspd import -   from another program; cannot be continued")]
pub(super) struct ImportArgs {
    /// File to import; - for standard input
    file: PathBuf,
    /// Accept protected events (NIP-70), which only their authors may publish: you confirm that they did
    #[arg(long)]
    protected: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl ImportArgs {
    pub(super) fn run(mut self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let cannot = |problem: std::io::Error| CommandError::Failed(format!("cannot store standard input: {problem}"));
        // The import can need several passes, so standard input is stored in a file first.
        let mut temporary = None;
        if self.file == Path::new("-") {
            let folder = temporary.insert(tempfile::TempDir::with_prefix("graspd-import-").map_err(cannot)?);
            self.file = folder.path().join("events.jsonl");
            let mut file = std::fs::File::create(&self.file).map_err(cannot)?;
            std::io::copy(&mut std::io::stdin().lock(), &mut file).map_err(cannot)?;
        }
        let client = context.client()?;
        let import = EventImport::open(client, &self.file, ImportRequest { protected: self.protected, defer: true })?;
        if import.is_resumed() {
            eprintln!("continuing an interrupted import");
        }
        let counts = import.run(&mut Some(Progress::new())).map_err(with_resume_hint)?;
        print_result(self.json, &counts, import_table)
    }
}

/// Imports a file without progress output. If `defer`, the server defers events that belong to events in purgatory.
pub(super) fn import_silently(
    context: &CommandContext<'_>,
    path: &Path,
    defer: bool,
) -> Result<ImportCounts, CommandError> {
    let client = context.client()?;
    EventImport::open(client, path, ImportRequest { protected: false, defer })?.run(&mut None).map_err(with_resume_hint)
}

fn with_resume_hint(failure: CommandError) -> CommandError {
    match failure {
        CommandError::Failed(why) => CommandError::Failed(format!("{why}\nRun the same command again to continue.")),
        other => other,
    }
}

/// Returns the results of an import as a table.
pub(super) fn import_table(counts: &ImportCounts) -> Table {
    let mut table = Table::new(&[("", Align::Left), ("EVENTS", Align::Right)]);
    table.fact("accepted", count(counts.accepted));
    table.fact("waiting for git data", count(counts.held));
    table.fact("already known", count(counts.known));
    if counts.deferred > 0 {
        table.fact("deferred until their repository or pull request is served", count(counts.deferred));
    }
    for (why, number) in counts.rejected.iter().chain(&counts.retryable) {
        table.fact(&format!("rejected: {}", why.replace('_', " ")), count(*number));
    }
    table.fact("total", count(counts.total()));
    table
}
