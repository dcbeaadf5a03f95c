//! `graspd backup`, `restore` and `verify`.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgAction, ArgMatches, Command};
use grasp_core::nostr::PublicKey;
use grasp_git::backup::Checker;
use grasp_git::process::{Bounds, Git};
use serde_json::json;

use super::progress::Progress;
use super::table::{Align, Table};
use super::{Context, Failure, json_argument, or_unread, path_value, say};
use crate::backup::create::Plan;
use crate::backup::manifest::Manifest;
use crate::backup::snapshot::{Scene, Served, failed};
use crate::backup::verify::Report;
use crate::backup::{create, restore, snapshot, verify};
use crate::config::{Config, Loaded};
use crate::server;
use crate::web::status::format::{bytes, count};

fn folder(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).value_name("DIR").help(help).value_parser(path_value())
}

pub(super) fn backup_command() -> Command {
    Command::new("backup")
        .about("Copy events, git data and the owner's key into a folder, while the server runs")
        .long_about(
            "Copies events, git data and the owner's key, all of one moment, into a new folder. The server may run: nobody \
             waits, and everything that was acknowledged before the command began is in the copy. It may also be stopped.\n\n\
             On the server's own disk files are linked, not copied: that takes no room, and protects against mistakes, \
             but not against the loss of the disk. Name a folder on another disk, or copy the folder away.\n\n\
             The folder has the owner's private key in it, if that is kept in the data folder: keep it as safe as that.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd backup /mnt/backup/monday                              a full backup\n  \
             graspd backup /mnt/backup/tuesday --base /mnt/backup/monday   packs that Monday has are not copied again\n  \
             graspd verify /mnt/backup/tuesday                             is it whole?\n  \
             graspd restore /mnt/backup/tuesday                            make a server of it, in empty data folders",
        )
        .arg(folder("into", "The folder to make").required(true))
        .arg(
            Arg::new("base")
                .long("base")
                .value_name("DIR")
                .help("An earlier backup on the same disk: packs that it has are linked, not copied again")
                .value_parser(path_value()),
        )
        .arg(Arg::new("copy").long("copy").help("Copy, also on the server's own disk").action(ArgAction::SetTrue))
        .arg(json_argument())
}

pub(super) fn backup(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let config = settings(context)?;
    let into = path(arguments, "into")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let plan = Plan {
        into,
        base: arguments.get_one::<PathBuf>("base").map(PathBuf::as_path),
        copy: arguments.get_flag("copy"),
        now,
    };
    create::check_place(&plan).map_err(failed)?;
    let mut progress = Progress::new();
    let mut tell = |what: &str, done, total| {
        progress.show(what, done, total);
        Ok(())
    };
    let made = snapshot::with(context, &config, &mut tell, |scene, tell| create::make(scene, &plan, tell));
    drop(progress);
    let (manifest, ways) = made?;
    if arguments.get_flag("json") {
        let mut value = manifest.value();
        value["folder"] = json!(into);
        value["files_linked"] = json!(ways.linked);
        value["files_shared"] = json!(ways.shared);
        value["files_copied"] = json!(ways.copied);
        return say(value);
    }
    let mut facts = Table::new(&[("", Align::Left), ("", Align::Left)]);
    facts.row(["backup".to_owned(), into.display().to_string()]);
    facts.row(["events".to_owned(), events_of(&manifest.scene)]);
    facts.row(["repositories".to_owned(), count(manifest.scene.repositories)]);
    facts.row(["files".to_owned(), format!("{}, {}", count(manifest.files), bytes(manifest.bytes))]);
    let shared = if ways.shared > 0 {
        format!(", {} shared with the earlier backup", count(ways.shared))
    } else {
        String::new()
    };
    facts.row(["of these".to_owned(), format!("{} copied, {} linked{shared}", count(ways.copied), count(ways.linked))]);
    let key = if manifest.key { "in the backup" } else { "not in the backup: it is a setting; keep it yourself" };
    facts.row(["owner's key".to_owned(), key.to_owned()]);
    say(facts.to_string().trim_start())?;
    if manifest.linked {
        say(
            "The files are linked to the server's on the same disk: this does not protect against the loss of that disk.",
        )?;
    }
    Ok(())
}

pub(super) fn restore_command() -> Command {
    Command::new("restore")
        .about("Make a server of a backup, in empty data folders")
        .long_about(
            "Makes a server of a backup: into the data folders of the settings, which must be empty. Every file is checked \
             as it is copied. If it is interrupted, run it again: it begins anew, and no server starts in between.\n\n\
             The first start brings all repositories into line with the events of the backup's moment. What was published \
             since comes back from other relays and git servers, if they are followed.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd restore /mnt/backup/tuesday                            into the data folders of the settings here\n  \
             graspd restore /mnt/backup/tuesday --relay-data-path /srv/relay --git-data-path /srv/git",
        )
        .arg(folder("from", "The backup").required(true))
        .arg(json_argument())
}

pub(super) fn restore(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let config = settings(context)?;
    let from = path(arguments, "from")?;
    let rules = server::rules(&config, PublicKey([0; 32])).map_err(failed)?;
    let mut progress = Progress::new();
    let mut tell = |what: &str, done, total| {
        progress.show(what, done, total);
        Ok(())
    };
    let manifest = restore::restore(from, &config, &rules, &mut tell).map_err(failed);
    drop(progress);
    let manifest = manifest?;
    if arguments.get_flag("json") {
        return say(manifest.value());
    }
    say(format!("Restored {} and {} repositories.", events_of(&manifest.scene), count(manifest.scene.repositories)))?;
    let Served { domain, base_path, .. } = &manifest.scene.service;
    if (domain, base_path) != (&config.domain, &config.base_path) {
        say(format!(
            "The backup is of {domain}{base_path}, and the settings here name {}{}: repositories are served under the name \
             that their announcements list.",
            config.domain, config.base_path
        ))?;
    }
    if !manifest.key {
        say("The owner's key was not in the backup: set NGIT_RELAY_OWNER_NSEC, or a new one is made at the start.")?;
    }
    say("Start it with `graspd serve`, or `systemctl start graspd`.")
}

pub(super) fn verify_command() -> Command {
    Command::new("verify")
        .about("Check that a backup, or the server's own data, is whole")
        .long_about(
            "Reads a backup: every file must be as it was written, every event signed, and whatever is served must have its \
             git data, with all history. Without a folder the server's own data is read in the same way, while it runs or \
             not. The exit status is 0 if all is well and 1 if something is wrong.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd verify /mnt/backup/tuesday          a backup\n  \
             graspd verify                              the data of the server of this folder\n  \
             graspd verify /mnt/backup/tuesday --json   for programs",
        )
        .arg(folder("from", "The backup; without it the server's own data is checked"))
        .arg(json_argument())
}

pub(super) fn verify(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let mut config = settings(context)?;
    let mut progress = Progress::new();
    let mut tell = |what: &str, done, total| {
        progress.show(what, done, total);
        Ok(())
    };
    let mut report = Report::default();
    match arguments.get_one::<PathBuf>("from") {
        Some(from) => {
            let manifest = Manifest::of(from).map_err(failed)?;
            verify::files(from, &manifest, &mut report, &mut tell).map_err(failed)?;
            let scene = Scene { folder: from.clone(), ..manifest.scene };
            if report.store_is_damaged {
                // A map of a broken file can end the process.
                report.complain("events: the store was not opened, so nothing is known of git data".to_owned());
            } else if let Err(problem) = look(&scene, &mut config, &mut report, &mut tell) {
                report.complain(problem.to_string());
            }
        }
        None => {
            let mut found = context.settings()?.config;
            snapshot::with(context, &config, &mut tell, |scene, tell| {
                verify::git_files(&scene.folder.join("git"), &mut report, tell)?;
                Ok(look(scene, &mut found, &mut report, tell)?)
            })?;
        }
    }
    drop(progress);
    if arguments.get_flag("json") {
        or_unread(say(report.value()))?;
    } else {
        or_unread(tell_people(&report))?;
    }
    match report.problems.len() as u64 + report.more {
        0 => Ok(()),
        problems => Err(Failure::Failed(format!("{} things are wrong", count(problems)))),
    }
}

fn look(
    scene: &Scene,
    config: &mut Config,
    report: &mut Report,
    tell: &mut crate::backup::Tell<'_>,
) -> Result<(), Failure> {
    scene.service.adopt(config);
    let rules = server::rules(config, PublicKey([0; 32])).map_err(failed)?;
    let bounds = Bounds { alloc_bytes: config.git.max_object_bytes, address_bytes: config.git.process_memory_bytes };
    let checker = Checker::new(&Git::new(Path::new("git"), bounds), config.git.process_patience);
    verify::contents(scene, &rules, &checker, report, tell).map_err(failed)
}

fn tell_people(report: &Report) -> Result<(), Failure> {
    let mut facts = Table::new(&[("", Align::Left), ("", Align::Left)]);
    facts.row(["files".to_owned(), format!("{}, {}", count(report.files), bytes(report.bytes))]);
    facts.row(["served events".to_owned(), count(report.served)]);
    facts.row(["held events".to_owned(), count(report.held)]);
    facts.row(["repositories".to_owned(), count(report.repositories)]);
    facts.row(["states".to_owned(), count(report.states)]);
    facts.row(["pull requests".to_owned(), count(report.pulls)]);
    for problem in &report.problems {
        facts.row(["WRONG".to_owned(), problem.clone()]);
    }
    if report.more > 0 {
        facts.row(["WRONG".to_owned(), format!("{} more", count(report.more))]);
    }
    say(facts.to_string().trim_start())?;
    if report.problems.is_empty() { say("All is well.") } else { Ok(()) }
}

fn events_of(scene: &Scene) -> String {
    format!("{} events, and {} that wait for git data", count(scene.served), count(scene.held))
}

pub(super) fn settings(context: &Context<'_>) -> Result<Config, Failure> {
    let Loaded { config, warnings } = context.settings()?;
    for warning in warnings {
        eprintln!("graspd: warning: {warning}");
    }
    Ok(config)
}

fn path<'a>(arguments: &'a ArgMatches, name: &str) -> Result<&'a Path, Failure> {
    arguments.get_one::<PathBuf>(name).map(PathBuf::as_path).ok_or_else(|| Failure::Usage(format!("{name} is missing")))
}
