//! `graspd backup`, `graspd restore` and `graspd verify`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use grasp_git::backup::RepoVerifier;
use grasp_git::process::{Git, ProcessLimits};
use grasp_store::Store;
use serde_json::json;

use super::table::Table;
use super::{CommandContext, CommandError, absolute_path_value, ignore_closed_output, print_json, print_line};
use crate::admin::api::{ServiceSettings, SnapshotContent, SnapshotInfo};
use crate::admin::client::AdminClient;
use crate::admin::snapshot::ProgressFn;
use crate::backup::create::BackupPlan;
use crate::backup::manifest::Manifest;
use crate::backup::progress::Progress;
use crate::backup::verify::VerifyReport;
use crate::backup::{create, restore, snapshot, verify};
use crate::clock::Clock;
use crate::config::{Config, LoadedConfig};
use crate::store_check::DAMAGED_STORE;
use crate::text_format::{bytes, count};

/// Create a backup of events, git data and the owner key, while the server runs
///
/// Creates a backup in a new folder: a consistent copy of the events, the git data and the owner key. The server can
/// run meanwhile: requests are not delayed, and everything that was acknowledged before the command started is in the
/// backup. The server can also be stopped.
///
/// On the same disk as the server, files are hard links and not copies: that needs no space and protects against
/// mistakes, but not against the loss of the disk. Use a folder on another disk, or copy the folder to one.
///
/// If the owner key is stored in the data folder, the backup contains this private key: protect it accordingly.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd backup /mnt/backup/monday                              a full backup\n  \
    graspd backup /mnt/backup/tuesday --base /mnt/backup/monday   link packs of Monday instead of copying\n  \
    graspd verify /mnt/backup/tuesday                             check that it is complete\n  \
    graspd restore /mnt/backup/tuesday                            restore it into empty data folders")]
pub(super) struct BackupArgs {
    /// Folder to create
    #[arg(value_name = "DIR", value_parser = absolute_path_value())]
    into: PathBuf,
    /// Earlier backup on the same disk; packs that it contains are linked and not copied
    #[arg(long, value_name = "DIR", value_parser = absolute_path_value())]
    base: Option<PathBuf>,
    /// Copy files even on the disk of the server
    #[arg(long)]
    copy: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl BackupArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let config = settings(context)?;
        let now = Clock::start().wall().0;
        let plan = BackupPlan { into: &self.into, base: self.base.as_deref(), copy_all: self.copy, now };
        create::check_target(&plan)?;
        let client = context.client()?;
        let create =
            |snapshot: &SnapshotInfo, on_progress: &mut ProgressFn<'_>| create::create(snapshot, &plan, on_progress);
        let (manifest, file_counts) =
            Progress::during(|on_progress| snapshot::with_snapshot(client, &config, on_progress, create))?;
        if self.json {
            let mut value = json!(manifest);
            value["folder"] = json!(self.into);
            value["files_linked"] = json!(file_counts.linked);
            value["files_shared"] = json!(file_counts.shared);
            value["files_copied"] = json!(file_counts.copied);
            return print_line(value);
        }
        let mut facts = Table::of_facts();
        facts.fact("backup", self.into.display().to_string());
        facts.fact("events", event_counts(&manifest.content));
        facts.fact("repositories", count(manifest.content.repositories));
        facts.fact("files", format!("{}, {}", count(manifest.files), bytes(manifest.bytes)));
        let shared = match file_counts.shared {
            0 => String::new(),
            shared => format!(", {} shared with the earlier backup", count(shared)),
        };
        let (copied, linked) = (count(file_counts.copied), count(file_counts.linked));
        facts.fact("of these", format!("{copied} copied, {linked} linked{shared}"));
        let not_in_backup = "not in the backup: it is a setting; save it yourself";
        facts.fact("owner key", if manifest.has_key { "in the backup" } else { not_in_backup });
        print_line(facts)?;
        if manifest.is_linked {
            print_line(
                "The files are hard links to those of the server: this does not protect against the loss of that disk.",
            )?;
        }
        Ok(())
    }
}

/// Restore a backup into empty data folders
///
/// Restores a backup into the data folders of the settings, which must be empty. The checksum of every file is checked.
/// After an interruption run the command again: it starts from the beginning, and the server does not start before it
/// has finished.
///
/// The first start of the server aligns all repositories with the events in the backup. Events and git data that were
/// published later come back by sync from other relays and git servers.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd restore /mnt/backup/tuesday                            into the data folders of the settings\n  \
    graspd restore /mnt/backup/tuesday --relay-data-path /srv/relay --git-data-path /srv/git")]
pub(super) struct RestoreArgs {
    /// Folder of the backup
    #[arg(value_name = "DIR", value_parser = absolute_path_value())]
    from: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl RestoreArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let config = settings(context)?;
        let policy = config.admission_policy(None)?;
        let manifest = Progress::during(|on_progress| restore::restore(&self.from, &config, &policy, on_progress))?;
        if self.json {
            return print_json(&manifest);
        }
        let (events, repositories) = (event_counts(&manifest.content), count(manifest.content.repositories));
        print_line(format!("Restored {events} and {repositories} repositories."))?;
        let ServiceSettings { domain, base_path, .. } = &manifest.content.service;
        if (domain, base_path) != (&config.domain, &config.base_path) {
            print_line(format!(
                "The backup is of {domain}{base_path}, but the settings have {}{}: repositories are served only under \
                 the name that their announcements list.",
                config.domain, config.base_path
            ))?;
        }
        if !manifest.has_key {
            print_line(
                "The owner key is not in the backup: set NGIT_RELAY_OWNER_NSEC, or a new key is generated at the start.",
            )?;
        }
        print_line("Start the server with `graspd serve` or `systemctl start graspd`.")
    }
}

/// Check that a backup, or the data of the server, is complete and undamaged
///
/// Checks a backup: the checksum of every file, the signature of every event, and that everything that is served has
/// its complete git data. Without a folder it checks the data of the server in the same way, whether the server runs or
/// not. The exit status is 0 if no problem was found, and 1 otherwise.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd verify /mnt/backup/tuesday          a backup\n  \
    graspd verify                              the data of the server with the settings of this folder\n  \
    graspd verify /mnt/backup/tuesday --json   a backup, with JSON output")]
pub(super) struct VerifyArgs {
    /// Folder of the backup; without it the data of the server is checked
    #[arg(value_name = "DIR", value_parser = absolute_path_value())]
    from: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl VerifyArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let config = settings(context)?;
        let report = Progress::during(|on_progress| match self.from {
            Some(from) => check_backup(from, config, on_progress),
            None => check_server(context.client()?, &config, on_progress),
        })?;
        ignore_closed_output(if self.json { print_json(&report) } else { print_report(&report) })?;
        match report.problems.len() as u64 + report.more {
            0 => Ok(()),
            problems => Err(CommandError::Failed(format!("{} problems found", count(problems)))),
        }
    }
}

fn check_backup(
    from: PathBuf,
    mut config: Config,
    on_progress: &mut ProgressFn<'_>,
) -> Result<VerifyReport, CommandError> {
    let mut report = VerifyReport::default();
    let manifest = Manifest::read(&from)?;
    verify::check_files(&from, &manifest, &mut report, on_progress)?;
    let snapshot = SnapshotInfo { folder: from, key: None, data_folders: Vec::new(), content: manifest.content };
    if report.store_is_damaged {
        // Reading a memory map of a damaged file can crash the process.
        report.add_problem("events: the store is damaged, so git data was not checked".to_owned());
    } else if let Err(problem) = check_snapshot(&snapshot, &mut config, &mut report, on_progress) {
        report.add_problem(problem.to_string());
    }
    Ok(report)
}

fn check_server(
    client: &AdminClient,
    config: &Config,
    on_progress: &mut ProgressFn<'_>,
) -> Result<VerifyReport, CommandError> {
    snapshot::with_snapshot(client, config, on_progress, |snapshot, on_progress| {
        let mut report = VerifyReport::default();
        verify::check_git_files(&snapshot.folder.join("git"), &mut report, on_progress)?;
        check_snapshot(snapshot, &mut config.clone(), &mut report, on_progress)?;
        Ok(report)
    })
}

fn check_snapshot(
    snapshot: &SnapshotInfo,
    config: &mut Config,
    report: &mut VerifyReport,
    on_progress: &mut ProgressFn<'_>,
) -> Result<(), CommandError> {
    snapshot.content.service.apply_to(config);
    let policy = config.admission_policy(None)?;
    let bounds =
        ProcessLimits { alloc_bytes: config.git.max_object_bytes, address_bytes: config.git.process_memory_bytes };
    let checker = RepoVerifier::new(&Git::new(Path::new("git"), bounds), config.git.process_timeout);
    Ok(verify::check_contents(snapshot, &policy, &checker, report, on_progress)?)
}

fn print_report(report: &VerifyReport) -> Result<(), CommandError> {
    let mut facts = Table::of_facts();
    facts.fact("files", format!("{}, {}", count(report.files), bytes(report.bytes)));
    facts.fact("served events", count(report.served));
    facts.fact("held events", count(report.held));
    facts.fact("repositories", count(report.repositories));
    facts.fact("states", count(report.states));
    facts.fact("pull requests", count(report.pull_requests));
    for problem in &report.problems {
        facts.fact("PROBLEM", problem.clone());
    }
    if report.more > 0 {
        facts.fact("PROBLEM", format!("{} more", count(report.more)));
    }
    print_line(facts)?;
    if report.problems.is_empty() { print_line("No problems found.") } else { Ok(()) }
}

fn event_counts(content: &SnapshotContent) -> String {
    format!("{} served events, {} held events", count(content.served), count(content.held))
}

/// Arguments of `check-store`.
#[derive(Args)]
pub(super) struct CheckStoreArgs {
    /// Folder of the database
    folder: PathBuf,
}

impl CheckStoreArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        // The last name that is printed is that of the damaged table.
        let checked = Store::check_rows(&self.folder, |table| _ = writeln!(std::io::stdout(), "{table}"));
        checked.map(drop).map_err(|error| {
            if error.is_damage() {
                eprintln!("{error}");
                std::process::exit(DAMAGED_STORE);
            }
            CommandError::Failed(error.to_string())
        })
    }
}

pub(super) fn settings(context: &CommandContext<'_>) -> Result<Config, CommandError> {
    let LoadedConfig { config, warnings } = context.settings()?;
    for warning in warnings {
        eprintln!("graspd: warning: {warning}");
    }
    Ok(config)
}
