//! `graspd import-ngit-grasp`: imports the data of ngit-grasp, another GRASP server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use grasp_git::layout::identifier_file_name;
use serde::Serialize;

use super::backup::settings;
use super::table::{Align, Table};
use super::transfer::{import_silently, import_table};
use super::{CommandContext, CommandError, absolute_path_value, print_json, print_line, print_result};
use crate::admin::api::{ADDRESS, ImportCounts, Nothing};
use crate::admin::snapshot::ProgressFn;
use crate::backup::ngit_grasp::{MigrationDir, NgitGraspData, NgitGraspRepo, NgitGraspSurvey};
use crate::backup::progress::Progress;
use crate::backup::push;
use crate::backup::push::RefGroup;
use crate::clock::Clock;
use crate::text_format::{bytes, count, terminal_safe};

/// Import the events and repositories of ngit-grasp into the running server
///
/// Reads the data folder of ngit-grasp, and shows what it contains and which events would be rejected. With --execute
/// it imports everything into the running server: the events of each repository, then its git data, then all other
/// events. Events are treated as if clients published them, and git data as if it was pushed. The data folder of
/// ngit-grasp is not changed; ngit-grasp must not run meanwhile. After an interruption run the same command again.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd import-ngit-grasp /srv/ngit-grasp/data             show what would be imported\n  \
    graspd import-ngit-grasp /srv/ngit-grasp/data --execute   import it, or continue")]
pub(super) struct ImportNgitGraspArgs {
    /// Data folder of ngit-grasp, with the folders `relay` and `git`
    #[arg(value_parser = absolute_path_value())]
    data: PathBuf,
    /// Its relay data, if that is in another folder (its NGIT_RELAY_DATA_PATH)
    #[arg(long, value_name = "DIR", value_parser = absolute_path_value())]
    relay_of: Option<PathBuf>,
    /// Its git data, if that is in another folder (its NGIT_GIT_DATA_PATH)
    #[arg(long, value_name = "DIR", value_parser = absolute_path_value())]
    git_of: Option<PathBuf>,
    /// Folder for sorted events and progress
    #[arg(long, value_name = "DIR", value_parser = absolute_path_value(), default_value = "graspd-import")]
    work: PathBuf,
    /// Import everything
    #[arg(long)]
    execute: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl ImportNgitGraspArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let data_dir = NgitGraspData::open(&self.data, self.relay_of.as_deref(), self.git_of.as_deref())?;
        let before = data_dir.modified_at()?;
        let result = if self.execute {
            execute(context, &data_dir, &self.work, self.json)
        } else {
            show_survey(context, &data_dir, self.json)
        };
        if data_dir.modified_at().is_ok_and(|now| now != before) {
            let text = "the events changed while they were read: stop ngit-grasp, and run the command again";
            return result.and(Err(CommandError::Failed(text.to_owned())));
        }
        result
    }
}

/// Shows what the data folder contains.
fn show_survey(context: &CommandContext<'_>, data_dir: &NgitGraspData, as_json: bool) -> Result<(), CommandError> {
    let mut config = settings(context)?;
    // The settings of a running server are more reliable than those of this command.
    match context.call(ADDRESS, &Nothing {}) {
        Ok(address) => address.service.apply_to(&mut config),
        Err(CommandError::NotRunning { .. } | CommandError::Usage(_)) => {}
        Err(other) => return Err(other),
    }
    let policy = config.admission_policy(None)?;
    let survey = Progress::during(|on_progress| data_dir.survey(&policy, Clock::start().wall(), on_progress))?;
    print_result(as_json, &survey, |survey| summary(survey, &config.domain))
}

fn summary(survey: &NgitGraspSurvey, domain: &str) -> String {
    let mut table = Table::new(&[("", Align::Left), ("", Align::Right)]);
    table.fact("events", count(survey.events));
    for (kind, number) in &survey.kinds {
        table.fact(&format!("  kind {kind}"), count(*number));
    }
    for (why, number) in &survey.rejected {
        table.fact(&format!("  would be rejected: {}", why.replace('_', " ")), count(*number));
    }
    table.fact("repositories", count(survey.repositories));
    table.fact("  size", bytes(survey.bytes));
    table.fact("  not announced for this service", count(survey.unlisted.len() as u64));
    let mut text = table.to_string();
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
#[derive(Default, Serialize)]
struct MigrationResult {
    events: ImportCounts,
    repositories: u64,
    refs: u64,
    #[serde(rename = "repositories_rejected")]
    rejected: Vec<RepoProblem>,
    /// Repositories that the next run tries again.
    #[serde(rename = "repositories_failed")]
    failed: Vec<RepoProblem>,
}

#[derive(Serialize)]
struct RepoProblem {
    repository: String,
    why: String,
}

fn execute(
    context: &CommandContext<'_>,
    data_dir: &NgitGraspData,
    work: &Path,
    as_json: bool,
) -> Result<(), CommandError> {
    let base = context.call(ADDRESS, &Nothing {})?.git;
    let migration = Progress::during(|on_progress| import_all(context, data_dir, work, &base, on_progress))?;
    let again = || CommandError::Failed("not everything could be imported yet: run it again".to_owned());
    if as_json {
        print_json(&migration)?;
        return if migration.failed.is_empty() { Ok(()) } else { Err(again()) };
    }
    print_line(import_table(&migration.events))?;
    print_line(format!("\n{} repositories, {} refs", count(migration.repositories), count(migration.refs)))?;
    for (result, problems) in [("rejected", &migration.rejected), ("failed", &migration.failed)] {
        for RepoProblem { repository, why } in problems {
            print_line(terminal_safe(&format!("{result}: {repository}: {why}")))?;
        }
    }
    match (migration.failed.is_empty(), migration.rejected.len()) {
        (false, _) => Err(again()),
        (true, 0) => print_line(format!("\nAll data is imported; {} can be removed.", work.display())),
        (true, some) => {
            print_line(format!("\nAll data is imported except {some} rejected items; see {}.", work.display()))
        }
    }
}

fn import_all(
    context: &CommandContext<'_>,
    data_dir: &NgitGraspData,
    work: &Path,
    base: &str,
    on_progress: &mut ProgressFn<'_>,
) -> Result<MigrationResult, CommandError> {
    let mut migration = MigrationResult::default();
    let mut migration_dir = MigrationDir::open(work, data_dir, on_progress)?;
    let mut repositories: BTreeMap<String, Vec<NgitGraspRepo>> = BTreeMap::new();
    for repository in data_dir.repositories()? {
        repositories.entry(identifier_file_name(&repository.repo.identifier)).or_default().push(repository);
    }
    let names = migration_dir.names()?;
    let all = names.len() as u64;
    for (nth, name) in (0..).zip(&names) {
        on_progress("importing repository names", nth, Some(all))?;
        if migration_dir.is_done(name) {
            continue;
        }
        let here = repositories.get(name).map_or(&[][..], Vec::as_slice);
        migration.repositories += here.len() as u64;
        let before = (migration.rejected.len(), migration.failed.len());
        let mut counts = ImportCounts::default();
        for (events, group) in [
            (migration_dir.events(name), RefGroup::Branches),
            (migration_dir.pull_requests(name), RefGroup::PullRequests),
        ] {
            let Some(events) = events else { continue };
            counts = counts.plus(&import_silently(context, &events, false)?);
            migration.push(here, group, base, work);
        }
        grasp_git::crash_point::point("import.pushed");
        migration.add_event_counts(name, &counts, before.0);
        if migration.failed.len() == before.1 {
            migration_dir.mark_done(name)?;
        }
    }
    on_progress("importing repository names", all, Some(all))?;
    if !migration_dir.is_done("*") {
        let rest = import_silently(context, &migration_dir.other_events(), true)?;
        migration.add_event_counts("others", &rest, migration.rejected.len());
        // Events of a repository that could not be imported yet are accepted when the repository is there.
        if migration.failed.is_empty() {
            migration_dir.mark_done("*")?;
        }
    }
    Ok(migration)
}

impl MigrationResult {
    fn push(&mut self, repositories: &[NgitGraspRepo], group: RefGroup, base: &str, work: &Path) {
        for NgitGraspRepo { repo, folder } in repositories {
            let problem = |why: String| RepoProblem { repository: repo.to_string(), why };
            match push::push(folder, group, &format!("{base}/{}", repo.path()), work) {
                Ok(pushed) => {
                    self.refs += pushed.refs;
                    self.rejected.extend(pushed.rejected.into_iter().map(problem));
                    self.failed.extend(pushed.failed.into_iter().map(problem));
                }
                Err(error) => self.failed.push(problem(format!("{error:#}"))),
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
            let why = format!("events were rejected: {}", why.join(", ").replace('_', " "));
            self.failed.push(RepoProblem { repository: name.to_owned(), why });
        }
    }
}
