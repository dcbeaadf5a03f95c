//! Start, moderation, git jobs, failures and recovery of the server.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use grasp_core::admission::Admission;
use grasp_core::admission::git_job::{GitJob, GitJobOutcome, GitOperation};
use grasp_core::admission::io::AdmissionInput;
use grasp_core::admission::moderation::ModerationScan;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::admission::policy::lists::ModerationLists;
use grasp_core::limits;
use grasp_core::state_machine::StateMachine;
use grasp_core::time::MonoTime;

use super::transaction::Batch;
use super::{Crashed, TestServer};
use crate::store_contract::StoreUnderTest;

impl TestServer {
    /// Restarts the server as after a crash: durable data stays, the machine is rebuilt from it, and the monotonic
    /// clock starts at zero.
    pub fn restart(&mut self) {
        self.boot().expect("no crash is injected");
    }

    /// Restarts the server with another policy.
    pub fn restart_with(&mut self, policy: AdmissionPolicy) {
        self.policies.1 = policy;
        self.restart();
    }

    /// Starts a new process on the disk that the old one left, unless the injected crash happens meanwhile.
    pub fn boot(&mut self) -> Result<(), Crashed> {
        self.now.mono = MonoTime(0);
        self.policies.0 = self.policies.1.clone();
        self.store.restart();
        self.running.clear();
        self.pushes.clear();
        // Only a new process sends all needs to sync. After a failed commit sync receives nothing: the last needs are
        // still current.
        self.published_needs.clear();
        self.rebuild()?;
        self.settle()
    }

    /// Creates another server with a copy of the disk.
    pub fn fork(&self) -> Self {
        let (store, git, authors) = (self.store.clone(), self.git.clone(), self.authors.clone());
        let policy = self.admission.policy().clone();
        let mut fork = Self { store, git, authors, now: self.now, skips_invariants: true, ..Self::new(policy) };
        fork.rebuild().expect("no crash is injected");
        fork.settle().expect("no crash is injected");
        fork
    }

    /// Rebuilds the machine from the store, as at startup and after a failed commit.
    pub(super) fn rebuild(&mut self) -> Result<(), Crashed> {
        self.admission = Admission::new(self.policies.0.clone());
        for restored in self.store.restored() {
            self.admission.handle(self.now, AdmissionInput::Restored(restored));
        }
        if self.published_needs.is_empty() {
            let names = self.hosted_repos().into_iter().map(|repo| repo.identifier);
            self.published_needs = names.map(|name| (name.clone(), self.repo_needs(&name))).collect();
        }
        let kept: BTreeSet<u64> = self.admission.uploads().map(|upload| upload.folder).collect();
        self.git.restart(&kept);
        let mut batch = Batch::default();
        self.handle_input(&mut batch, AdmissionInput::Ready);
        self.admission.wake(self.now);
        self.drain(&mut batch);
        if self.finish_batch(batch)? { self.run_moderation_scan() } else { Ok(()) }
    }

    /// Sets the operator's lists and settles.
    pub fn set_lists(&mut self, lists: ModerationLists) {
        self.try_set_lists(lists).expect("no crash is injected");
    }

    /// Sets the operator's lists and settles, unless the injected crash happens before that. A new process starts
    /// with these lists. Returns false if the commit failed: then they must be set again.
    pub fn try_set_lists(&mut self, lists: ModerationLists) -> Result<bool, Crashed> {
        self.answered = false;
        let policy = AdmissionPolicy { lists: Arc::new(lists), ..self.policies.0.clone() };
        self.policies.1 = policy.clone();
        let mut batch = self.begin_batch();
        self.handle_input(&mut batch, AdmissionInput::PolicyChanged(Arc::new(policy.clone())));
        let committed = self.finish_batch(batch)?;
        if committed {
            self.policies.0 = policy;
            self.answered = true;
            self.run_moderation_scan()?;
        }
        self.settle()?;
        Ok(committed)
    }

    /// Removes events that are banned now, one event at a time, and reviews the repositories that are due.
    fn run_moderation_scan(&mut self) -> Result<(), Crashed> {
        let mut scan = ModerationScan::new(&self.admission.policy().lists);
        loop {
            let review = self.admission.alarm().is_some_and(|(at, _)| at == MonoTime::default());
            if !review && scan.is_done(&self.admission) {
                return Ok(());
            }
            let mut batch = Batch::default();
            self.admission.wake(self.now);
            self.drain(&mut batch);
            let Ok(inputs) = scan.next_inputs(&self.admission, &self.store, 1);
            for input in inputs {
                self.handle_input(&mut batch, input);
            }
            if !self.finish_batch(batch)? {
                return Ok(());
            }
            // Git jobs run concurrently.
            if !self.manual_git {
                self.step_git_job(0)?;
            }
        }
    }

    /// Returns the running git jobs.
    pub fn running(&self) -> &VecDeque<GitJob> {
        &self.running
    }

    /// Does one durable step of a running git job, or reports its result if no step is left.
    pub fn step_git_job(&mut self, nth: usize) -> Result<(), Crashed> {
        let Some(job) = self.running.get(nth).cloned() else { return Ok(()) };
        match self.git.step(&job, &self.store.refs(&job.repo_path)) {
            None => self.after_git_step(),
            Some(outcome) => self.report_git_job(nth, outcome),
        }
    }

    /// Lets a running git job fail at its current step.
    pub fn fail_git_job(&mut self, nth: usize) -> Result<(), Crashed> {
        self.has_failed_jobs = true;
        self.report_git_job(nth, GitJobOutcome::Failed("disk is full".to_owned()))
    }

    fn report_git_job(&mut self, nth: usize, outcome: GitJobOutcome) -> Result<(), Crashed> {
        let Some(job) = self.running.remove(nth) else { return Ok(()) };
        let mut batch = self.begin_batch();
        if let (GitOperation::Align(align), GitJobOutcome::Aligned(aligned)) = (&job.operation, &outcome)
            && let Some(best) = align.candidates.first()
        {
            match aligned.chosen == Some(best.event) {
                true => self.behind.remove(&job.repo_path),
                false => self.behind.insert(job.repo_path.clone()),
            };
        }
        self.handle_input(&mut batch, AdmissionInput::GitJobDone(job.id, outcome));
        self.finish_batch(batch).map(|_| ())
    }

    /// Runs all git jobs to their end.
    pub fn run_git_jobs(&mut self) -> Result<(), Crashed> {
        loop {
            while !self.running.is_empty() {
                self.step_git_job(0)?;
            }
            if !self.run_due_work()? {
                break;
            }
        }
        self.check_idle();
        Ok(())
    }

    /// Does the work that did not fit into one turn, and reads further pages, in transactions of their own, as the
    /// writer does at once. Returns whether there was any.
    pub fn run_due_work(&mut self) -> Result<bool, Crashed> {
        let is_due = |(_, why): (_, &str)| {
            why.starts_with("pull requests of repositories") || why.starts_with("work that did not fit")
        };
        let mut has_worked = false;
        while self.admission.alarm().is_some_and(is_due) {
            has_worked = true;
            let batch = self.begin_batch();
            self.finish_batch(batch)?;
        }
        Ok(has_worked)
    }

    /// Runs all git jobs, unless the server is in manual git mode.
    pub(super) fn settle(&mut self) -> Result<(), Crashed> {
        if self.manual_git { Ok(()) } else { self.run_git_jobs() }
    }

    /// Retries everything that has failed until nothing is left to do.
    pub fn recover(&mut self) {
        self.clear_fault();
        for _ in 0..20 {
            self.run_git_jobs().expect("no crash is injected");
            if self.todos().is_empty() {
                break;
            }
            self.advance(limits::GIT_JOB_RETRY_SECS);
        }
        self.has_failed_jobs = false;
        // Failed work without a todo row is retried once more.
        self.advance(limits::GIT_JOB_RETRY_SECS);
        self.run_git_jobs().expect("no crash is injected");
    }
}
