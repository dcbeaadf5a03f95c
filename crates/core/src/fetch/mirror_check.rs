//! Mirror checks: whether git servers that are not GRASP servers have the served branches and tags. (For GRASP servers,
//! sync compares the relays instead.)
//!
//! A check requests the list of refs of a server. Checks have the lowest priority: they run only when no job waits for
//! the host, one at a time per host, with half of its rate limit. Clients cannot trigger them; they depend on what is
//! served and on time only.

use std::collections::{BTreeMap, BTreeSet};

use super::io::{FetchOutcome, FetchOutput, MirrorCheck, MirrorId, RefComparison, ServedRepo};
use super::network_limit::{Network, NetworkCapacity};
use super::origin::Origin;
use super::throttle::{HostCapacity, Unavailable};
use super::{FetchMachine, HostId, HostLimits, RunningSurvey, SurveyRequester, Timer};
use crate::limits;
use crate::net::{OutboundUrl, UrlPurpose};
use crate::repo::{Identifier, RepoPath};
use crate::time::{MonoTime, Timestamp};

/// When mirrors are checked, in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MirrorCheckSchedule {
    /// Delay after the served refs have changed.
    pub after_change_secs: u64,
    /// Intervals while something is missing. The last one repeats, and also applies to mirrors that miss nothing.
    pub retry_secs: [u64; 4],
    /// Period after a start over which the first checks are spread.
    pub startup_spread_secs: u64,
}

impl Default for MirrorCheckSchedule {
    fn default() -> Self {
        Self {
            after_change_secs: limits::MIRROR_CHECK_DELAY_SECS,
            retry_secs: limits::MIRROR_CHECK_RETRY_SECS,
            startup_spread_secs: limits::MIRROR_CHECK_STARTUP_SPREAD_SECS,
        }
    }
}

/// The result of a mirror check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorStatus {
    /// The mirror has every branch and tag, and has had them at every check since this time.
    Current(Timestamp),
    /// Some branches or tags are missing or different.
    Lacking(RefComparison),
    /// The server has no such repository, or does not show it to us.
    Absent,
    /// The server did not answer, or its answer could not be parsed.
    NoAnswer,
    /// The server is not asked: it must not be dialled, or states that it wants no requests.
    NotCalled,
}

/// A snapshot of a mirror.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MirrorView {
    /// Its URL, as written in the announcement.
    pub url: String,
    /// The last result and its time.
    pub status: Option<(MirrorStatus, Timestamp)>,
    /// Whether the served refs have changed since then.
    pub is_stale: bool,
}

/// All mirrors.
#[derive(Debug, Default)]
pub(super) struct Mirrors {
    all: BTreeMap<MirrorId, Mirror>,
    /// Mirrors by identifier. Some may have been dropped.
    by_identifier: BTreeMap<Identifier, Vec<MirrorId>>,
    running: BTreeMap<MirrorId, RunningCheck>,
    /// Hosts that wait until fewer checks run.
    waiting_hosts: BTreeSet<HostId>,
}

/// A git server URL of a served repository whose refs are compared with the served ones, and its schedule.
#[derive(Debug)]
struct Mirror {
    repo_path: RepoPath,
    url: String,
    state: MirrorState,
    /// Checks since the last change that found something missing.
    tries: usize,
    status: Option<(MirrorStatus, Timestamp)>,
    is_stale: bool,
    /// Whether the served refs have changed since the running check began.
    is_changed: bool,
}

/// The state of a mirror.
#[derive(Clone, Copy, Debug)]
enum MirrorState {
    /// It is not checked before this time; never if it is `None`.
    Resting(Option<MonoTime>),
    /// It waits for this host since this time.
    Waiting(HostId, MonoTime),
    /// Its host is being surveyed; it waits for it since this time.
    Surveying(HostId, MonoTime),
    /// A check is running.
    Checking,
}

/// A check that has begun and not ended.
#[derive(Debug)]
struct RunningCheck {
    host: HostId,
    networks: BTreeSet<Network>,
    since: MonoTime,
}

impl FetchMachine {
    /// Replaces the mirrors of an identifier. New mirrors of a known identifier are checked soon. Those of a new
    /// identifier are spread over time, because at startup all identifiers are new; a change of refs brings their check
    /// forward.
    pub(super) fn handle_served(&mut self, name: Identifier, repos: Vec<ServedRepo>) {
        let known = self.mirrors.by_identifier.remove(&name);
        let spread = if known.is_some() { 0 } else { self.config.mirror_checks.startup_spread_secs };
        let mut before = BTreeMap::new();
        for id in known.into_iter().flatten() {
            if let Some(mirror) = self.mirrors.all.get(&id) {
                before.insert((mirror.repo_path.clone(), mirror.url.clone()), id);
            }
        }
        let (mut ids, is_empty) = (Vec::new(), repos.is_empty());
        for ServedRepo { repo_path, mirror_urls } in repos {
            let mirror_urls: BTreeSet<String> = mirror_urls.into_iter().take(limits::MAX_ANNOUNCED_URLS).collect();
            for url in mirror_urls {
                let key = (repo_path.clone(), url);
                let id = before.remove(&key).unwrap_or_else(|| self.add_mirror(key.0, key.1, spread));
                ids.push(id);
            }
        }
        before.into_values().for_each(|id| self.drop_mirror(id));
        if !is_empty {
            self.mirrors.by_identifier.insert(name, ids);
        }
        while self.mirrors.all.len() > limits::MAX_MIRRORS {
            let Some(oldest) = self.mirrors.all.keys().next().copied() else { break };
            self.drop_mirror(oldest);
        }
    }

    fn add_mirror(&mut self, repo_path: RepoPath, url: String, spread: u64) -> MirrorId {
        let id = MirrorId(self.next_number());
        let may_be_called = OutboundUrl::parse(&url, UrlPurpose::Git, self.config.address_policy).is_ok();
        let status = (!may_be_called).then_some((MirrorStatus::NotCalled, self.now.wall));
        let state = MirrorState::Resting(None);
        self.mirrors
            .all
            .insert(id, Mirror { repo_path, url, state, tries: 0, status, is_stale: false, is_changed: false });
        if may_be_called {
            let wait = self.config.mirror_checks.after_change_secs * 1_000 + self.rng.below(spread * 1_000);
            self.schedule_check(id, MonoTime(self.now.mono.0.saturating_add(wait)));
        }
        id
    }

    /// Stops checking a mirror.
    fn drop_mirror(&mut self, id: MirrorId) {
        match self.mirrors.all.remove(&id).map(|mirror| mirror.state) {
            Some(MirrorState::Resting(at)) => self.set_alarm(Timer::Mirror(id), at, None),
            Some(MirrorState::Waiting(host_id, since)) => {
                if let Some(host) = self.hosts.get_mut(host_id) {
                    host.waiting_mirrors.remove(&(since, id));
                }
                self.remove_host_source(host_id);
            }
            Some(MirrorState::Surveying(host, _)) => self.remove_host_source(host),
            Some(MirrorState::Checking) | None => {}
        }
    }

    /// Brings the checks of a repository forward after its refs have changed. The delay gives a client time to push to
    /// several servers.
    pub(super) fn handle_refs_changed(&mut self, repo_path: &RepoPath) {
        let soon = self.now.mono.plus_secs(self.config.mirror_checks.after_change_secs);
        for id in self.mirrors.by_identifier.get(repo_path.identifier()).cloned().unwrap_or_default() {
            let Some(mirror) = self.mirrors.all.get_mut(&id).filter(|mirror| mirror.repo_path == *repo_path) else {
                continue;
            };
            (mirror.tries, mirror.is_stale, mirror.is_changed) = (0, true, true);
            if let MirrorState::Resting(Some(at)) = mirror.state {
                self.schedule_check(id, at.min(soon));
            }
        }
    }

    /// Schedules the next check.
    fn schedule_check(&mut self, id: MirrorId, at: MonoTime) {
        let Some(mirror) = self.mirrors.all.get_mut(&id) else { return };
        let state = std::mem::replace(&mut mirror.state, MirrorState::Resting(Some(at)));
        let before = if let MirrorState::Resting(before) = state { before } else { None };
        self.set_alarm(Timer::Mirror(id), before, Some(at));
    }

    /// Queues a mirror whose check is due at its host.
    pub(super) fn mirror_due(&mut self, id: MirrorId) {
        let now = self.now.mono;
        let Some(origin) =
            self.mirrors.all.get(&id).and_then(|mirror| self.target(mirror)).as_ref().map(Origin::from_url)
        else {
            return;
        };
        let host = self.host(&origin.authority(), &origin.host().to_string());
        self.add_host_source(host);
        self.enqueue_mirror(id, host, now);
    }

    fn target(&self, mirror: &Mirror) -> Option<OutboundUrl> {
        OutboundUrl::parse(&mirror.url, UrlPurpose::Git, self.config.address_policy).ok()
    }

    fn enqueue_mirror(&mut self, id: MirrorId, host_id: HostId, since: MonoTime) {
        let (Some(mirror), Some(host)) = (self.mirrors.all.get_mut(&id), self.hosts.get_mut(host_id)) else { return };
        mirror.state = MirrorState::Waiting(host_id, since);
        host.waiting_mirrors.insert((since, id));
        self.mark_ready(host_id);
    }

    /// Makes a host ready for mirror checks if no job waits for it any more.
    pub(super) fn serve_mirrors_if_idle(&mut self, id: HostId) {
        if self.hosts.get(id).is_some_and(|host| host.queue.first().is_none() && !host.waiting_mirrors.is_empty()) {
            self.mark_ready(id);
        }
    }

    /// Begins a check at a host for which no job waits. Otherwise returns the time at which one may begin, if it is
    /// known.
    pub(super) fn serve_mirror(&mut self, host_id: HostId) -> Result<(), Option<MonoTime>> {
        let now = self.now.mono;
        let Some(host) = self.hosts.get_mut(host_id).filter(|host| !host.is_checking_mirror) else { return Err(None) };
        let Some((since, id)) = host.waiting_mirrors.first().copied() else { return Err(None) };
        if self.mirrors.running.len() >= limits::MAX_CONCURRENT_MIRROR_CHECKS {
            self.mirrors.waiting_hosts.insert(host_id);
            return Err(None);
        }
        let own = host.limits();
        match host.capacity(now, HostLimits { per_minute: own.per_minute.div_ceil(2), ..own }) {
            HostCapacity::Free(_) => {}
            HostCapacity::Until(at) => return Err(Some(at)),
            HostCapacity::Full => return Err(None),
            HostCapacity::Refused => {
                host.waiting_mirrors.remove(&(since, id));
                self.record_status(id, Some(MirrorStatus::NotCalled));
                self.remove_host_source(host_id);
                return Ok(());
            }
        }
        self.begin_check(id, host_id, since)
    }

    /// Begins a check, or the survey that must come before it.
    fn begin_check(&mut self, id: MirrorId, host_id: HostId, since: MonoTime) -> Result<(), Option<MonoTime>> {
        let now = self.now;
        let Some(target) = self.mirrors.all.get(&id).and_then(|mirror| self.target(mirror)) else { return Err(None) };
        let origin = Origin::from_url(&target);
        let (Some(mirror), Some(host)) = (self.mirrors.all.get_mut(&id), self.hosts.get_mut(host_id)) else {
            return Err(None);
        };
        if self.surveys.contains_key(&origin) {
            return Err(None);
        }
        if let Some(with_nip11) = host.needs_survey(now.mono, &origin, false) {
            if self.surveys.len() >= limits::MAX_CONCURRENT_SURVEYS / 2 {
                self.waiting_for_survey.insert(host_id);
                return Err(None);
            }
            host.waiting_mirrors.remove(&(since, id));
            host.is_checking_mirror = true;
            mirror.state = MirrorState::Surveying(host_id, since);
            self.surveys.insert(
                origin.clone(),
                RunningSurvey { host: host_id, requester: SurveyRequester::Mirror(id), with_nip11 },
            );
            self.outputs.push_back(FetchOutput::Survey { origin, with_nip11 });
            return Ok(());
        }
        let own = host.limits();
        let networks = host.surveys.get(&origin).map(|record| record.networks.clone()).unwrap_or_default();
        let reserved = self.networks.reserved_until(&networks);
        if reserved > now.mono {
            return Err(Some(reserved));
        }
        match self.networks.capacity(now.mono, host_id, &networks, own) {
            NetworkCapacity::Free => {}
            NetworkCapacity::Until(at) => return Err(Some(at)),
            NetworkCapacity::Full => return Err(None),
        }
        host.waiting_mirrors.remove(&(since, id));
        host.is_checking_mirror = true;
        let row = host.begin_request(now, own);
        self.networks.begin(now.mono, &networks);
        (mirror.state, mirror.is_changed) = (MirrorState::Checking, false);
        let repo_path = mirror.repo_path.clone();
        self.mirrors.running.insert(id, RunningCheck { host: host_id, networks, since: now.mono });
        self.stats.mirror_checks += 1;
        self.outputs.extend(row.map(FetchOutput::SaveHost));
        self.outputs.push_back(FetchOutput::CheckMirror(MirrorCheck { id, repo_path, target }));
        Ok(())
    }

    /// Continues after a survey.
    pub(super) fn mirror_surveyed(&mut self, id: MirrorId, host_id: HostId, unavailable: Option<Unavailable>) {
        if let Some(host) = self.hosts.get_mut(host_id) {
            host.is_checking_mirror = false;
        }
        // It may have been dropped meanwhile.
        let Some(MirrorState::Surveying(_, since)) = self.mirrors.all.get(&id).map(|mirror| mirror.state) else {
            return;
        };
        match unavailable {
            None => self.enqueue_mirror(id, host_id, since),
            Some(unavailable) => {
                let forbidden = matches!(unavailable, Unavailable::Forbidden(_) | Unavailable::RequestsRefused);
                self.record_status(id, Some(if forbidden { MirrorStatus::NotCalled } else { MirrorStatus::NoAnswer }));
                self.remove_host_source(host_id);
            }
        }
    }

    /// Handles the end of a mirror check.
    pub(super) fn handle_mirror_checked(&mut self, id: MirrorId, result: Result<RefComparison, FetchOutcome>) {
        let Some(RunningCheck { host: host_id, networks, since }) = self.mirrors.running.remove(&id) else { return };
        if let Some(host) = self.hosts.get_mut(host_id) {
            host.is_checking_mirror = false;
        }
        self.record_result(host_id, since, result.as_ref().err().unwrap_or(&FetchOutcome::Sent), None);
        self.skip_waiting(host_id);
        let waiting = std::mem::take(&mut self.mirrors.waiting_hosts);
        for host in self.networks.end(self.now.mono, &networks).into_iter().chain(waiting).chain([host_id]) {
            self.mark_ready(host);
        }
        self.remove_host_source(host_id);
        self.record_status(
            id,
            match result {
                Ok(comparison) if comparison.missing == 0 => Some(MirrorStatus::Current(self.now.wall)),
                Ok(comparison) => Some(MirrorStatus::Lacking(comparison)),
                Err(FetchOutcome::Absent) => Some(MirrorStatus::Absent),
                // These outcomes say nothing about the repository.
                Err(FetchOutcome::Busy(_) | FetchOutcome::LocalError | FetchOutcome::Cancelled) => None,
                Err(FetchOutcome::Failed | FetchOutcome::InvalidData | FetchOutcome::NotByOid | FetchOutcome::Sent) => {
                    Some(MirrorStatus::NoAnswer)
                }
            },
        );
    }

    /// Records a result and schedules the next check.
    fn record_status(&mut self, id: MirrorId, status: Option<MirrorStatus>) {
        let (now, schedule) = (self.now, self.config.mirror_checks);
        let Some(mirror) = self.mirrors.all.get_mut(&id) else { return };
        let is_changed = std::mem::take(&mut mirror.is_changed) && matches!(mirror.state, MirrorState::Checking);
        let since = match mirror.status {
            Some((MirrorStatus::Current(since), _)) if !mirror.is_stale => since,
            _ => now.wall,
        };
        if let Some(status) = status {
            let status = if let MirrorStatus::Current(_) = status { MirrorStatus::Current(since) } else { status };
            (mirror.status, mirror.is_stale) = (Some((status, now.wall)), is_changed);
        }
        let [.., daily] = schedule.retry_secs;
        let is_current = matches!(status, Some(MirrorStatus::Current(_)));
        let secs = match mirror.tries {
            _ if is_changed => schedule.after_change_secs,
            _ if is_current => daily,
            tries => schedule.retry_secs.get(tries).copied().unwrap_or(daily),
        };
        mirror.tries = if is_changed || is_current { 0 } else { mirror.tries + 1 };
        let at = now.mono.0.saturating_add(self.rng.jitter(secs * 1_000));
        self.schedule_check(id, MonoTime(at));
    }

    /// Returns the mirrors of a repository.
    #[must_use]
    pub fn mirrors(&self, repo_path: &RepoPath) -> Vec<MirrorView> {
        let ids = self.mirrors.by_identifier.get(repo_path.identifier()).into_iter().flatten();
        let mirrors = ids.filter_map(|id| self.mirrors.all.get(id)).filter(|mirror| mirror.repo_path == *repo_path);
        mirrors
            .map(|mirror| MirrorView { url: mirror.url.clone(), status: mirror.status, is_stale: mirror.is_stale })
            .collect()
    }

    /// Returns the number of mirrors and of running checks.
    #[must_use]
    pub fn mirror_count(&self) -> (usize, usize) {
        (self.mirrors.all.len(), self.mirrors.running.len())
    }
}
