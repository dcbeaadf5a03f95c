//! `graspd import-ngit-grasp`: moves in what ngit-grasp has left.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};
use grasp_core::nostr::PublicKey;
use grasp_git::layout::file_name;
use serde_json::{Value, json};

use super::backup::settings;
use super::call::Body;
use super::progress::Progress;
use super::table::{Align, Table};
use super::transfer::{bring_quietly, table};
use super::{Context, Failure, json_argument, one_object, path_value, say};
use crate::backup::import::Tally;
use crate::backup::ngit_grasp::{Repository, Source, Survey, Workplace};
use crate::backup::push;
use crate::backup::push::Part;
use crate::backup::snapshot::{Served, failed};
use crate::clock::Clock;
use crate::server;
use crate::web::status::format::{bytes, count};

pub(super) fn command() -> Command {
    let path = |name, help| Arg::new(name).long(name).value_name("DIR").help(help).value_parser(path_value());
    Command::new("import-ngit-grasp")
        .about("Move events and repositories of ngit-grasp into the running server")
        .long_about(
            "Reads the data folder of ngit-grasp and says what is there and what would be refused. With --execute it moves \
             everything into the running server: the events of each repository, then its git data, then all other events. \
             Events are judged as if clients published them, and git data as if it was pushed. Nothing is changed in the \
             data folder of ngit-grasp, which must not run meanwhile. After an interruption run the same command again.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd import-ngit-grasp /srv/ngit-grasp/data             what is there?\n  \
             graspd import-ngit-grasp /srv/ngit-grasp/data --execute   move it in, or go on",
        )
        .arg(
            Arg::new("data")
                .value_name("DATA")
                .help("The folder with its `relay` and `git`")
                .required(true)
                .value_parser(path_value()),
        )
        .arg(path("relay-of", "Its relay data, if that is elsewhere (its NGIT_RELAY_DATA_PATH)"))
        .arg(path("git-of", "Its git data, if that is elsewhere (its NGIT_GIT_DATA_PATH)"))
        .arg(path("work", "A folder for what has been read and what is done").default_value("graspd-import"))
        .arg(Arg::new("execute").long("execute").help("Do it").action(ArgAction::SetTrue))
        .arg(json_argument())
}

pub(super) fn run(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let path = |name: &str| arguments.get_one::<PathBuf>(name).map(PathBuf::as_path);
    let data = path("data").unwrap_or(Path::new("."));
    let source = Source::of(data, path("relay-of"), path("git-of")).map_err(failed)?;
    let is_json = arguments.get_flag("json");
    let before = source.changed().map_err(failed)?;
    let result = if arguments.get_flag("execute") {
        let work = path("work").unwrap_or(Path::new("graspd-import"));
        execute(context, &source, work, is_json)
    } else {
        look(context, &source, is_json)
    };
    if source.changed().is_ok_and(|now| now != before) {
        let text = "the events changed while they were read: stop ngit-grasp, and run this again";
        return result.and(Err(Failure::Failed(text.to_owned())));
    }
    result
}

/// Says what is there.
fn look(context: &Context<'_>, source: &Source, is_json: bool) -> Result<(), Failure> {
    let mut config = settings(context)?;
    // The server knows best for which service this is.
    match context.call("address", Body::none(), &mut one_object) {
        Ok(address) => Served::read(&address["service"]).iter().for_each(|service| service.adopt(&mut config)),
        Err(Failure::NotRunning { .. } | Failure::Usage(_)) => {}
        Err(other) => return Err(other),
    }
    let rules = server::rules(&config, PublicKey([0; 32])).map_err(failed)?;
    let mut progress = Progress::new();
    let mut tell = |what: &str, done, total| {
        progress.show(what, done, total);
        Ok(())
    };
    let survey = source.survey(&rules, Clock::start().wall(), &mut tell);
    drop(progress);
    let survey = survey.map_err(failed)?;
    if is_json {
        return say(survey.value());
    }
    say(summary(&survey, &config.domain))
}

fn summary(survey: &Survey, domain: &str) -> String {
    let mut table = Table::new(&[("", Align::Left), ("", Align::Right)]);
    table.row(["events".to_owned(), count(survey.events)]);
    for (kind, number) in &survey.kinds {
        table.row([format!("  kind {kind}"), count(*number)]);
    }
    for (why, number) in &survey.refused {
        table.row([format!("  would be refused: {}", why.replace('_', " ")), count(*number)]);
    }
    table.row(["repositories".to_owned(), count(survey.repositories)]);
    table.row(["  on the disk".to_owned(), bytes(survey.bytes)]);
    table.row(["  not announced for this service".to_owned(), count(survey.unlisted.len() as u64)]);
    let mut text = table.to_string().trim_start().to_owned();
    for repo in survey.unlisted.iter().take(20) {
        text.push_str(&format!("\n    {}", super::table::plain(repo)));
    }
    text.push_str(&format!(
        "\n\nNothing was changed. The service here is {domain}; about events that are not listed as refused the policy \
         decides when they come.\nRun it again with --execute to move everything in."
    ));
    text
}

/// What became of everything.
#[derive(Default)]
struct Moved {
    events: Tally,
    repositories: u64,
    refs: u64,
    refused: Vec<(String, String)>,
    /// What the next run tries again.
    failed: Vec<(String, String)>,
}

fn execute(context: &Context<'_>, source: &Source, work: &Path, is_json: bool) -> Result<(), Failure> {
    let address = context.call("address", Body::none(), &mut one_object)?;
    let base = address["git"].as_str().unwrap_or_default().to_owned();
    let mut progress = Progress::new();
    let mut moved = Moved::default();
    let result = move_in(context, source, work, &base, &mut moved, &mut progress);
    drop(progress);
    result?;
    let again = || Failure::Failed("not everything could be moved for now: run it again".to_owned());
    if is_json {
        say(moved.value())?;
        return if moved.failed.is_empty() { Ok(()) } else { Err(again()) };
    }
    say(table(&moved.events))?;
    say(format!("\n{} repositories, {} refs", count(moved.repositories), count(moved.refs)))?;
    for (repo, why) in &moved.refused {
        say(super::table::plain(&format!("refused: {repo}: {why}")))?;
    }
    for (repo, why) in &moved.failed {
        say(super::table::plain(&format!("failed: {repo}: {why}")))?;
    }
    match (moved.failed.is_empty(), moved.refused.len()) {
        (false, _) => Err(again()),
        (true, 0) => say(format!("\nAll is done; {} can be removed.", work.display())),
        (true, some) => {
            say(format!("\nAll is done, but for {some} that were refused; {} says what was moved.", work.display()))
        }
    }
}

fn move_in(
    context: &Context<'_>,
    source: &Source,
    work: &Path,
    base: &str,
    moved: &mut Moved,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let mut tell = |what: &str, done, total| {
        progress.show(what, done, total);
        Ok(())
    };
    let mut workplace = Workplace::open(work, source, &mut tell).map_err(failed)?;
    let mut repositories: BTreeMap<String, Vec<Repository>> = BTreeMap::new();
    for repository in source.repositories().map_err(failed)? {
        repositories.entry(file_name(&repository.repo.identifier)).or_default().push(repository);
    }
    let names = workplace.names().map_err(failed)?;
    let all = names.len() as u64;
    for (nth, name) in (0..).zip(&names) {
        progress.show("repository names", nth, Some(all));
        if workplace.is_done(name) {
            continue;
        }
        let here = repositories.get(name).map_or(&[][..], Vec::as_slice);
        moved.repositories += here.len() as u64;
        let before = (moved.refused.len(), moved.failed.len());
        let mut judged = Tally::default();
        for (events, part) in [(workplace.events(name), Part::Branches), (workplace.pulls(name), Part::Pulls)] {
            let Some(events) = events else { continue };
            judged = judged.plus(&bring_quietly(context, &events)?);
            moved.push(here, part, base, work);
        }
        grasp_git::crash_point::point("import.pushed");
        moved.settle(name, &judged, before.0);
        if moved.failed.len() == before.1 {
            workplace.done(name).map_err(failed)?;
        }
    }
    progress.show("repository names", all, Some(all));
    if !workplace.is_done("*") {
        let rest = bring_quietly(context, &workplace.rest())?;
        moved.settle("others", &rest, moved.refused.len());
        // What belongs to a repository that could not be moved is taken when that is there.
        if moved.failed.is_empty() {
            workplace.done("*").map_err(failed)?;
        }
    }
    Ok(())
}

impl Moved {
    fn push(&mut self, repositories: &[Repository], part: Part, base: &str, work: &Path) {
        for Repository { repo, folder } in repositories {
            match push::push(folder, part, &format!("{base}/{}", repo.path()), work) {
                Ok(pushed) => {
                    self.refs += pushed.refs;
                    self.refused.extend(pushed.refused.into_iter().map(|why| (repo.to_string(), why)));
                    self.failed.extend(pushed.failed.into_iter().map(|why| (repo.to_string(), why)));
                }
                Err(problem) => self.failed.push((repo.to_string(), format!("{problem:#}"))),
            }
        }
    }

    /// Counts what became of the events of a name. If some were refused only for now, then so were the pushes since
    /// `before` that need them.
    fn settle(&mut self, name: &str, judged: &Tally, before: usize) {
        self.events = self.events.plus(judged);
        let why: Vec<&str> = judged.refused_for_now().collect();
        if !why.is_empty() {
            self.failed.extend(self.refused.drain(before..));
            self.failed.push((name.to_owned(), format!("events were refused: {}", why.join(", ").replace('_', " "))));
        }
    }

    fn value(&self) -> Value {
        let list = |pairs: &[(String, String)]| -> Vec<Value> {
            pairs.iter().map(|(repo, why)| json!({ "repository": repo, "why": why })).collect()
        };
        let (refused, failed) = (list(&self.refused), list(&self.failed));
        json!({
            "events": self.events.value(),
            "repositories": self.repositories,
            "refs": self.refs,
            "repositories_refused": refused,
            "repositories_failed": failed,
        })
    }
}
