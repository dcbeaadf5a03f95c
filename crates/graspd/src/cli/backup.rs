//! `graspd backup`, `graspd restore` and `graspd verify`.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgAction, ArgMatches, Command};
use grasp_git::backup::RepoVerifier;
use grasp_git::process::{Git, ProcessLimits};
use serde_json::json;

use super::table::{Align, Table};
use super::{CommandContext, CommandError, absolute_path_value, ignore_closed_output, json_argument, print_line};
use crate::admin::snapshot::{ProgressFn, ServiceSettings, SnapshotInfo};
use crate::backup::create::BackupPlan;
use crate::backup::manifest::Manifest;
use crate::backup::progress::Progress;
use crate::backup::verify::VerifyReport;
use crate::backup::{create, restore, snapshot, verify};
use crate::config::{Config, LoadedConfig};
use crate::text_format::{bytes, count};

fn folder(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_name("DIR").help(help).value_parser(absolute_path_value())
}

pub(super) fn backup_command() -> Command {
    Command::new("backup")
        .about("Create a backup of events, git data and the owner key, while the server runs")
        .long_about(
            "Creates a backup in a new folder: a consistent copy of the events, the git data and the owner key. The \
             server can run meanwhile: requests are not delayed, and everything that was acknowledged before the \
             command started is in the backup. The server can also be stopped.\n\n\
             On the same disk as the server, files are hard links and not copies: that needs no space and protects \
             against mistakes, but not against the loss of the disk. Use a folder on another disk, or copy the \
             folder to one.\n\n\
             If the owner key is stored in the data folder, the backup contains this private key: protect it \
             accordingly.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd backup /mnt/backup/monday                              a full backup\n  \
             graspd backup /mnt/backup/tuesday --base /mnt/backup/monday   link packs of Monday instead of copying\n  \
             graspd verify /mnt/backup/tuesday                             check that it is complete\n  \
             graspd restore /mnt/backup/tuesday                            restore it into empty data folders",
        )
        .arg(folder("into", "Folder to create").required(true))
        .arg(
            Arg::new("base")
                .long("base")
                .value_name("DIR")
                .help("Earlier backup on the same disk; packs that it contains are linked and not copied")
                .value_parser(absolute_path_value()),
        )
        .arg(Arg::new("copy").long("copy").help("Copy files even on the disk of the server").action(ArgAction::SetTrue))
        .arg(json_argument())
}

pub(super) fn backup(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let config = settings(context)?;
    let into = path(arguments, "into")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let plan = BackupPlan {
        into,
        base: arguments.get_one::<PathBuf>("base").map(PathBuf::as_path),
        copy_all: arguments.get_flag("copy"),
        now,
    };
    create::check_target(&plan)?;
    let mut progress = Progress::new();
    let mut on_progress = |what: &str, done, total| {
        progress.show(what, done, total);
        Ok(())
    };
    let made = snapshot::with_snapshot(&context.client()?, &config, &mut on_progress, |snapshot, on_progress| {
        create::create(snapshot, &plan, on_progress)
    });
    drop(progress);
    let (manifest, file_counts) = made?;
    if arguments.get_flag("json") {
        let mut value = manifest.to_json();
        value["folder"] = json!(into);
        value["files_linked"] = json!(file_counts.linked);
        value["files_shared"] = json!(file_counts.shared);
        value["files_copied"] = json!(file_counts.copied);
        return print_line(value);
    }
    let mut facts = Table::new(&[("", Align::Left), ("", Align::Left)]);
    facts.row(["backup".to_owned(), into.display().to_string()]);
    facts.row(["events".to_owned(), event_counts(&manifest.snapshot)]);
    facts.row(["repositories".to_owned(), count(manifest.snapshot.repositories)]);
    facts.row(["files".to_owned(), format!("{}, {}", count(manifest.files), bytes(manifest.bytes))]);
    let shared = if file_counts.shared > 0 {
        format!(", {} shared with the earlier backup", count(file_counts.shared))
    } else {
        String::new()
    };
    let (copied, linked) = (count(file_counts.copied), count(file_counts.linked));
    facts.row(["of these".to_owned(), format!("{copied} copied, {linked} linked{shared}")]);
    let key = if manifest.has_key { "in the backup" } else { "not in the backup: it is a setting; save it yourself" };
    facts.row(["owner key".to_owned(), key.to_owned()]);
    print_line(facts.to_string().trim_start())?;
    if manifest.is_linked {
        print_line(
            "The files are hard links to those of the server: this does not protect against the loss of that disk.",
        )?;
    }
    Ok(())
}

pub(super) fn restore_command() -> Command {
    Command::new("restore")
        .about("Restore a backup into empty data folders")
        .long_about(
            "Restores a backup into the data folders of the settings, which must be empty. The checksum of every \
             file is checked. After an interruption run the command again: it starts from the beginning, and the \
             server does not start before it has finished.\n\n\
             The first start of the server aligns all repositories with the events in the backup. Events and git \
             data that were published later come back by sync from other relays and git servers.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd restore /mnt/backup/tuesday                            into the data folders of the settings\n  \
             graspd restore /mnt/backup/tuesday --relay-data-path /srv/relay --git-data-path /srv/git",
        )
        .arg(folder("from", "Folder of the backup").required(true))
        .arg(json_argument())
}

pub(super) fn restore(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let config = settings(context)?;
    let from = path(arguments, "from")?;
    let policy = config.admission_policy(None)?;
    let mut progress = Progress::new();
    let mut on_progress = |what: &str, done, total| {
        progress.show(what, done, total);
        Ok(())
    };
    let manifest = restore::restore(from, &config, &policy, &mut on_progress);
    drop(progress);
    let manifest = manifest?;
    if arguments.get_flag("json") {
        return print_line(manifest.to_json());
    }
    let (events, repositories) = (event_counts(&manifest.snapshot), count(manifest.snapshot.repositories));
    print_line(format!("Restored {events} and {repositories} repositories."))?;
    let ServiceSettings { domain, base_path, .. } = &manifest.snapshot.service;
    if (domain, base_path) != (&config.domain, &config.base_path) {
        print_line(format!(
            "The backup is of {domain}{base_path}, but the settings have {}{}: repositories are served only under \
             the name that their announcements list.",
            config.domain, config.base_path
        ))?;
    }
    if !manifest.has_key {
        print_line(
            "The owner key is not in the backup: set NGIT_RELAY_OWNER_NSEC, or a new key is generated at the \
                    start.",
        )?;
    }
    print_line("Start the server with `graspd serve` or `systemctl start graspd`.")
}

pub(super) fn verify_command() -> Command {
    Command::new("verify")
        .about("Check that a backup, or the data of the server, is complete and undamaged")
        .long_about(
            "Checks a backup: the checksum of every file, the signature of every event, and that everything that is \
             served has its complete git data. Without a folder it checks the data of the server in the same way, \
             whether the server runs or not. The exit status is 0 if no problem was found, and 1 otherwise.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd verify /mnt/backup/tuesday          a backup\n  \
             graspd verify                              the data of the server with the settings of this folder\n  \
             graspd verify /mnt/backup/tuesday --json   a backup, with JSON output",
        )
        .arg(folder("from", "Folder of the backup; without it the data of the server is checked"))
        .arg(json_argument())
}

pub(super) fn verify(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let mut config = settings(context)?;
    let mut progress = Progress::new();
    let mut on_progress = |what: &str, done, total| {
        progress.show(what, done, total);
        Ok(())
    };
    let mut report = VerifyReport::default();
    match arguments.get_one::<PathBuf>("from") {
        Some(from) => {
            let manifest = Manifest::read(from)?;
            verify::check_files(from, &manifest, &mut report, &mut on_progress)?;
            let snapshot = SnapshotInfo { folder: from.clone(), ..manifest.snapshot };
            if report.store_is_damaged {
                // Reading a memory map of a damaged file can crash the process.
                report.add_problem("events: the store is damaged, so git data was not checked".to_owned());
            } else if let Err(problem) = check_snapshot(&snapshot, &mut config, &mut report, &mut on_progress) {
                report.add_problem(problem.to_string());
            }
        }
        None => {
            let mut found = context.settings()?.config;
            snapshot::with_snapshot(&context.client()?, &config, &mut on_progress, |snapshot, on_progress| {
                verify::check_git_files(&snapshot.folder.join("git"), &mut report, on_progress)?;
                Ok(check_snapshot(snapshot, &mut found, &mut report, on_progress)?)
            })?;
        }
    }
    drop(progress);
    if arguments.get_flag("json") {
        ignore_closed_output(print_line(report.to_json()))?;
    } else {
        ignore_closed_output(print_report(&report))?;
    }
    match report.problems.len() as u64 + report.more {
        0 => Ok(()),
        problems => Err(CommandError::Failed(format!("{} problems found", count(problems)))),
    }
}

fn check_snapshot(
    snapshot: &SnapshotInfo,
    config: &mut Config,
    report: &mut VerifyReport,
    on_progress: &mut ProgressFn<'_>,
) -> Result<(), CommandError> {
    snapshot.service.apply_to(config);
    let policy = config.admission_policy(None)?;
    let bounds =
        ProcessLimits { alloc_bytes: config.git.max_object_bytes, address_bytes: config.git.process_memory_bytes };
    let checker = RepoVerifier::new(&Git::new(Path::new("git"), bounds), config.git.process_timeout);
    Ok(verify::check_contents(snapshot, &policy, &checker, report, on_progress)?)
}

fn print_report(report: &VerifyReport) -> Result<(), CommandError> {
    let mut facts = Table::new(&[("", Align::Left), ("", Align::Left)]);
    facts.row(["files".to_owned(), format!("{}, {}", count(report.files), bytes(report.bytes))]);
    facts.row(["served events".to_owned(), count(report.served)]);
    facts.row(["held events".to_owned(), count(report.held)]);
    facts.row(["repositories".to_owned(), count(report.repositories)]);
    facts.row(["states".to_owned(), count(report.states)]);
    facts.row(["pull requests".to_owned(), count(report.pull_requests)]);
    for problem in &report.problems {
        facts.row(["PROBLEM".to_owned(), problem.clone()]);
    }
    if report.more > 0 {
        facts.row(["PROBLEM".to_owned(), format!("{} more", count(report.more))]);
    }
    print_line(facts.to_string().trim_start())?;
    if report.problems.is_empty() { print_line("No problems found.") } else { Ok(()) }
}

fn event_counts(snapshot: &SnapshotInfo) -> String {
    format!("{} served events, {} held events", count(snapshot.served), count(snapshot.held))
}

pub(super) fn settings(context: &CommandContext<'_>) -> Result<Config, CommandError> {
    let LoadedConfig { config, warnings } = context.settings()?;
    for warning in warnings {
        eprintln!("graspd: warning: {warning}");
    }
    Ok(config)
}

fn path<'a>(arguments: &'a ArgMatches, name: &str) -> Result<&'a Path, CommandError> {
    arguments.get_one::<PathBuf>(name).map(PathBuf::as_path).ok_or_else(|| {
        CommandError::Usage(format!(
            "{name} is \
                                                                                                        missing"
        ))
    })
}
