//! `graspd import-ngit-grasp`: imports the data of ngit-grasp, another GRASP server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};
use grasp_core::nostr::PublicKey;
use grasp_git::layout::file_name;
use serde_json::{Value, json};

use super::backup::settings;
use super::table::{Align, Table};
use super::transfer::{import_silently, import_table};
use super::{CommandContext, CommandError, absolute_path_value, ignore_lines, json_argument, print_line};
use crate::admin::client::RequestBody;
use crate::admin::snapshot::ServiceSettings;
use crate::backup::import::ImportCounts;
use crate::backup::ngit_grasp::{MigrationDir, NgitGraspData, NgitGraspRepo, NgitGraspSurvey};
use crate::backup::progress::{Progress, terminal_safe};
use crate::backup::push;
use crate::backup::push::RefGroup;
use crate::clock::Clock;
use crate::server;
use crate::web::status::format::{bytes, count};

pub(super) fn command() -> Command {
    let path = |name, help| Arg::new(name).long(name).value_name("DIR").help(help).value_parser(absolute_path_value());
    Command::new("import-ngit-grasp")
        .about("Import the events and repositories of ngit-grasp into the running server")
        .long_about(
            "Reads the data folder of ngit-grasp, and shows what it contains and which events would be rejected. \
             With --execute it imports everything into the running server: the events of each repository, then its \
             git data, then all other events. Events are treated as if clients published them, and git data as if it \
             was pushed. The data folder of ngit-grasp is not changed; ngit-grasp must not run meanwhile. After an \
             interruption run the same command again.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd import-ngit-grasp /srv/ngit-grasp/data             show what would be imported\n  \
             graspd import-ngit-grasp /srv/ngit-grasp/data --execute   import it, or continue",
        )
        .arg(
            Arg::new("data")
                .value_name("DATA")
                .help("Data folder of ngit-grasp, with the folders `relay` and `git`")
                .required(true)
                .value_parser(absolute_path_value()),
        )
        .arg(path("relay-of", "Its relay data, if that is in another folder (its NGIT_RELAY_DATA_PATH)"))
        .arg(path("git-of", "Its git data, if that is in another folder (its NGIT_GIT_DATA_PATH)"))
        .arg(path("work", "Folder for sorted events and progress").default_value("graspd-import"))
        .arg(Arg::new("execute").long("execute").help("Import everything").action(ArgAction::SetTrue))
        .arg(json_argument())
}

pub(super) fn run(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let path = |name: &str| arguments.get_one::<PathBuf>(name).map(PathBuf::as_path);
    let data = path("data").unwrap_or(Path::new("."));
    let source = NgitGraspData::open(data, path("relay-of"), path("git-of"))?;
    let as_json = arguments.get_flag("json");
    let before = source.modified_at()?;
    let result = if arguments.get_flag("execute") {
        let work = path("work").unwrap_or(Path::new("graspd-import"));
        execute(context, &source, work, as_json)
    } else {
        show_survey(context, &source, as_json)
    };
    if source.modified_at().is_ok_and(|now| now != before) {
        let text = "the events changed while they were read: stop ngit-grasp, and run the command again";
        return result.and(Err(CommandError::Failed(text.to_owned())));
    }
    result
}

/// Shows what the data folder contains.
fn show_survey(context: &CommandContext<'_>, source: &NgitGraspData, as_json: bool) -> Result<(), CommandError> {
    let mut config = settings(context)?;
    // The settings of a running server are more reliable than those of this command.
    match context.call("address", RequestBody::none(), &mut ignore_lines) {
        Ok(address) => {
            ServiceSettings::from_json(&address["service"]).iter().for_each(|service| service.apply_to(&mut config))
        }
        Err(CommandError::NotRunning { .. } | CommandError::Usage(_)) => {}
        Err(other) => return Err(other),
    }
    let rules = server::rules(&config, PublicKey([0; 32]))?;
    let mut progress = Progress::new();
    let mut on_progress = |what: &str, done, total| {
        progress.show(what, done, total);
        Ok(())
    };
    let survey = source.survey(&rules, Clock::start().wall(), &mut on_progress);
    drop(progress);
    let survey = survey?;
    if as_json {
        return print_line(survey.to_json());
    }
    print_line(summary(&survey, &config.domain))
}

fn summary(survey: &NgitGraspSurvey, domain: &str) -> String {
    let mut table = Table::new(&[("", Align::Left), ("", Align::Right)]);
    table.row(["events".to_owned(), count(survey.events)]);
    for (kind, number) in &survey.kinds {
        table.row([format!("  kind {kind}"), count(*number)]);
    }
    for (why, number) in &survey.rejected {
        table.row([format!("  would be rejected: {}", why.replace('_', " ")), count(*number)]);
    }
    table.row(["repositories".to_owned(), count(survey.repositories)]);
    table.row(["  size".to_owned(), bytes(survey.bytes)]);
    table.row(["  not announced for this service".to_owned(), count(survey.unlisted.len() as u64)]);
    let mut text = table.to_string().trim_start().to_owned();
    for repo in survey.unlisted.iter().take(20) {
        text.push_str(&format!("\n    {}", terminal_safe(repo)));
    }
    text.push_str(&format!(
        "\n\nNothing was changed. This service is {domain}; for events that are not counted as rejected, the policy \
         decides during the import.\nRun the command again with --execute to import everything."
    ));
    text
}

/// Result of the import.
#[derive(Default)]
struct MigrationResult {
    events: ImportCounts,
    repositories: u64,
    refs: u64,
    rejected: Vec<(String, String)>,
    /// Repositories that the next run tries again, with the reason.
    failed: Vec<(String, String)>,
}

fn execute(
    context: &CommandContext<'_>,
    source: &NgitGraspData,
    work: &Path,
    as_json: bool,
) -> Result<(), CommandError> {
    let address = context.call("address", RequestBody::none(), &mut ignore_lines)?;
    let base = address["git"].as_str().unwrap_or_default().to_owned();
    let mut progress = Progress::new();
    let mut result_so_far = MigrationResult::default();
    let result = move_in(context, source, work, &base, &mut result_so_far, &mut progress);
    drop(progress);
    result?;
    let again = || CommandError::Failed("not everything could be imported yet: run it again".to_owned());
    if as_json {
        print_line(result_so_far.to_json())?;
        return if result_so_far.failed.is_empty() { Ok(()) } else { Err(again()) };
    }
    print_line(import_table(&result_so_far.events))?;
    print_line(format!("\n{} repositories, {} refs", count(result_so_far.repositories), count(result_so_far.refs)))?;
    for (repo, why) in &result_so_far.rejected {
        print_line(terminal_safe(&format!("rejected: {repo}: {why}")))?;
    }
    for (repo, why) in &result_so_far.failed {
        print_line(terminal_safe(&format!("failed: {repo}: {why}")))?;
    }
    match (result_so_far.failed.is_empty(), result_so_far.rejected.len()) {
        (false, _) => Err(again()),
        (true, 0) => print_line(format!("\nAll data is imported; {} can be removed.", work.display())),
        (true, some) => {
            print_line(format!("\nAll data is imported except {some} rejected items; see {}.", work.display()))
        }
    }
}

fn move_in(
    context: &CommandContext<'_>,
    source: &NgitGraspData,
    work: &Path,
    base: &str,
    result_so_far: &mut MigrationResult,
    progress: &mut Progress,
) -> Result<(), CommandError> {
    let mut on_progress = |what: &str, done, total| {
        progress.show(what, done, total);
        Ok(())
    };
    let mut migration_dir = MigrationDir::open(work, source, &mut on_progress)?;
    let mut repositories: BTreeMap<String, Vec<NgitGraspRepo>> = BTreeMap::new();
    for repository in source.repositories()? {
        repositories.entry(file_name(&repository.repo.identifier)).or_default().push(repository);
    }
    let names = migration_dir.names()?;
    let all = names.len() as u64;
    for (nth, name) in (0..).zip(&names) {
        progress.show("importing repository names", nth, Some(all));
        if migration_dir.is_done(name) {
            continue;
        }
        let here = repositories.get(name).map_or(&[][..], Vec::as_slice);
        result_so_far.repositories += here.len() as u64;
        let before = (result_so_far.rejected.len(), result_so_far.failed.len());
        let mut counts = ImportCounts::default();
        for (events, part) in [
            (migration_dir.events(name), RefGroup::Branches),
            (migration_dir.pull_requests(name), RefGroup::PullRequests),
        ] {
            let Some(events) = events else { continue };
            counts = counts.plus(&import_silently(context, &events)?);
            result_so_far.push(here, part, base, work);
        }
        grasp_git::crash_point::point("import.pushed");
        result_so_far.add_event_counts(name, &counts, before.0);
        if result_so_far.failed.len() == before.1 {
            migration_dir.mark_done(name)?;
        }
    }
    progress.show("importing repository names", all, Some(all));
    if !migration_dir.is_done("*") {
        let rest = import_silently(context, &migration_dir.other_events())?;
        result_so_far.add_event_counts("others", &rest, result_so_far.rejected.len());
        // Events of a repository that could not be imported yet are accepted when the repository is there.
        if result_so_far.failed.is_empty() {
            migration_dir.mark_done("*")?;
        }
    }
    Ok(())
}

impl MigrationResult {
    fn push(&mut self, repositories: &[NgitGraspRepo], part: RefGroup, base: &str, work: &Path) {
        for NgitGraspRepo { repo, folder } in repositories {
            match push::push(folder, part, &format!("{base}/{}", repo.path()), work) {
                Ok(pushed) => {
                    self.refs += pushed.refs;
                    self.rejected.extend(pushed.rejected.into_iter().map(|why| (repo.to_string(), why)));
                    self.failed.extend(pushed.failed.into_iter().map(|why| (repo.to_string(), why)));
                }
                Err(problem) => self.failed.push((repo.to_string(), format!("{problem:#}"))),
            }
        }
    }

    /// Adds the event counts of a name. If events were rejected only temporarily, then the pushes since `before`, which
    /// need these events, count as failed and not as rejected.
    fn add_event_counts(&mut self, name: &str, counts: &ImportCounts, before: usize) {
        self.events = self.events.plus(counts);
        let why: Vec<&str> = counts.temporary_rejections().collect();
        if !why.is_empty() {
            self.failed.extend(self.rejected.drain(before..));
            let reasons = why.join(", ").replace('_', " ");
            self.failed.push((name.to_owned(), format!("events were rejected: {reasons}")));
        }
    }

    fn to_json(&self) -> Value {
        let list = |pairs: &[(String, String)]| -> Vec<Value> {
            pairs.iter().map(|(repo, why)| json!({ "repository": repo, "why": why })).collect()
        };
        let (rejected, failed) = (list(&self.rejected), list(&self.failed));
        json!({
            "events": self.events.to_json(),
            "repositories": self.repositories,
            "refs": self.refs,
            "repositories_refused": rejected,
            "repositories_failed": failed,
        })
    }
}
