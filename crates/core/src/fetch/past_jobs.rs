//! Sources of ended jobs, remembered for an hour, so that a job that returns does not start from the beginning.

use std::collections::{BTreeMap, BTreeSet};

use super::job::FetchJob;
use super::source::SourceHistory;
use crate::limits;
use crate::repo::RepoPath;
use crate::time::MonoTime;

/// What is kept of an ended job.
#[derive(Clone, Debug)]
struct PastJob {
    until: MonoTime,
    sources: BTreeMap<String, SourceHistory>,
    reported_urls: BTreeSet<String>,
}

/// The sources of ended jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct PastJobs {
    jobs: BTreeMap<RepoPath, PastJob>,
    ends: BTreeSet<(MonoTime, RepoPath)>,
}

impl PastJobs {
    /// Stores the sources of an ended job.
    pub(super) fn store(&mut self, now: MonoTime, job: FetchJob) {
        let all = job.sources.into_values().map(|mut source| {
            source.history.forget_lacking();
            (source.url, source.history)
        });
        let all = all.chain(job.past_sources);
        let mut sources: Vec<(String, SourceHistory)> =
            all.filter(|(_, history)| history.keep_until().is_some_and(|until| until > now)).collect();
        let until = sources.iter().filter_map(|(_, history)| history.keep_until()).max();
        let reported_until = (!job.reported_urls.is_empty()).then(|| now.plus_secs(limits::INVALID_SOURCE_QUIET_SECS));
        let Some(until) = until.max(reported_until).filter(|until| *until > now) else { return };
        while self.ends.first().is_some_and(|(end, _)| *end <= now) || self.ends.len() >= limits::MAX_PAST_FETCH_JOBS {
            if let Some((_, repo_path)) = self.ends.pop_first() {
                self.jobs.remove(&repo_path);
            }
        }
        sources.sort_by_key(|(_, history)| std::cmp::Reverse(history.last_request_at().max(history.invalid_until)));
        sources.truncate(limits::MAX_SOURCES_PER_PAST_JOB);
        let reported_urls = job.reported_urls.into_iter().take(limits::MAX_SOURCES_PER_PAST_JOB).collect();
        self.ends.insert((until, job.repo_path.clone()));
        self.jobs.insert(job.repo_path, PastJob { until, sources: sources.into_iter().collect(), reported_urls });
    }

    /// Removes and returns the sources of a job that returns.
    pub(super) fn take(&mut self, repo_path: &RepoPath) -> (BTreeMap<String, SourceHistory>, BTreeSet<String>) {
        let Some(past) = self.jobs.remove(repo_path) else { return Default::default() };
        self.ends.remove(&(past.until, repo_path.clone()));
        (past.sources, past.reported_urls)
    }
}
