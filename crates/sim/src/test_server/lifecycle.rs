//! How the house begins, works, fails and heals.

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
use super::{Crashed, House, View};
use crate::git_model::Folder;
use crate::store_contract::Shelf;

impl House {
    /// As after a crash: what is durable stays, the registrar is rebuilt from it, the monotonic clock begins anew.
    pub fn restart(&mut self) {
        self.boot().expect("no end was planned");
    }

    /// A new process begins with what the old one has left on disk, if that does not end, too.
    pub fn boot(&mut self) -> Result<(), Crashed> {
        self.now.mono = MonoTime(0);
        self.rules.0 = self.rules.1.clone();
        self.memory.restart();
        self.running.clear();
        self.pushes.clear();
        // After a failed commit sync is told nothing: what it was told last is what is so.
        self.told.clear();
        self.rebuild()?;
        self.rest()
    }

    /// Reads everything back, as at boot and after a failed commit.
    pub(super) fn rebuild(&mut self) -> Result<(), Crashed> {
        self.admission = Admission::new(self.rules.0.clone());
        for restored in self.memory.restored() {
            self.admission.handle(self.now, AdmissionInput::Restored(restored));
        }
        if self.told.is_empty() {
            let names = self.hosted().into_iter().map(|repo| repo.identifier);
            self.told = names.map(|name| (name.clone(), self.followed(&name))).collect();
        }
        let kept: BTreeSet<u64> = self.admission.uploads().map(|upload| upload.folder).collect();
        self.git.restart(&kept);
        let view = |folder: &Folder| View { refs: folder.refs.clone(), exists: true };
        self.shown = self.git.folders().map(|(repo_path, folder)| (repo_path.clone(), view(folder))).collect();
        let mut batch = Batch::default();
        self.tell(&mut batch, AdmissionInput::Ready);
        self.admission.wake(self.now);
        self.drain(&mut batch);
        if self.conclude(batch)? { self.sweep() } else { Ok(()) }
    }

    /// The operator has other lists. Whatever follows from it is done.
    pub fn rule(&mut self, lists: ModerationLists) {
        self.try_rule(lists).expect("no end was planned");
    }

    /// The operator has other lists, if the world does not end before everything that follows from it is done. A process
    /// that begins anew begins with these. False if nothing could be written: then they are told again.
    pub fn try_rule(&mut self, lists: ModerationLists) -> Result<bool, Crashed> {
        self.answered = false;
        let rules = AdmissionPolicy { lists: Arc::new(lists), ..self.rules.0.clone() };
        self.rules.1 = rules.clone();
        let mut batch = Batch::default();
        self.tell(&mut batch, AdmissionInput::PolicyChanged(Arc::new(rules.clone())));
        let committed = self.conclude(batch)?;
        if committed {
            self.rules.0 = rules;
            self.answered = true;
            self.sweep()?;
        }
        self.rest()?;
        Ok(committed)
    }

    /// Looks up what has no place here any more, an event at a time, and lets repositories be looked at again that are to
    /// be.
    fn sweep(&mut self) -> Result<(), Crashed> {
        let mut sweep = ModerationScan::new(&self.admission.policy().lists);
        loop {
            let review =
                self.admission.alarm().is_some_and(|(_, why)| why == "repositories are reviewed after a policy change");
            if !review && sweep.is_done(&self.admission) {
                return Ok(());
            }
            let mut batch = Batch::default();
            self.admission.wake(self.now);
            self.drain(&mut batch);
            let Ok(inputs) = sweep.next_inputs(&self.admission, &self.memory, 1);
            for input in inputs {
                self.tell(&mut batch, input);
            }
            if !self.conclude(batch)? {
                return Ok(());
            }
            // Git is at work meanwhile.
            if !self.lazy {
                self.step(0)?;
            }
        }
    }

    /// The orders that are under way.
    #[must_use]
    pub fn running(&self) -> &VecDeque<GitJob> {
        &self.running
    }

    /// Lets git do one durable step of an order that is under way, or report that nothing is left to do.
    pub fn step(&mut self, nth: usize) -> Result<(), Crashed> {
        let Some(order) = self.running.get(nth).cloned() else { return Ok(()) };
        match self.git.step(&order) {
            None => self.after_git_step(),
            Some(outcome) => self.report(nth, outcome),
        }
    }

    /// Lets an order that is under way fail where it stands.
    pub fn fail(&mut self, nth: usize) -> Result<(), Crashed> {
        self.ailing = true;
        self.report(nth, GitJobOutcome::Failed("the disk is full".to_owned()))
    }

    fn report(&mut self, nth: usize, outcome: GitJobOutcome) -> Result<(), Crashed> {
        let Some(order) = self.running.remove(nth) else { return Ok(()) };
        let mut batch = Batch::default();
        let folder = self.git.folder(&order.repo_path);
        let view = folder.map(|folder| View { refs: folder.refs.clone(), exists: true }).unwrap_or_default();
        batch.refs.push((order.repo_path.clone(), view));
        if let (GitOperation::Align(align), GitJobOutcome::Aligned(aligned)) = (&order.operation, &outcome)
            && let Some(best) = align.candidates.first()
        {
            match aligned.chosen == Some(best.event) {
                true => self.behind.remove(&order.repo_path),
                false => self.behind.insert(order.repo_path.clone()),
            };
        }
        self.tell(&mut batch, AdmissionInput::GitJobDone(order.id, outcome));
        self.conclude(batch).map(|_| ())
    }

    /// Lets git do everything that is to be done.
    pub fn work(&mut self) -> Result<(), Crashed> {
        while !self.running.is_empty() {
            self.step(0)?;
        }
        self.check_rest();
        Ok(())
    }

    /// What happens when a fact has been dealt with.
    pub(super) fn rest(&mut self) -> Result<(), Crashed> {
        if self.lazy { Ok(()) } else { self.work() }
    }

    /// Lets everything that failed be done after all.
    pub fn heal(&mut self) {
        self.be_kind();
        for _ in 0..20 {
            self.work().expect("no end is planned");
            if self.notes().is_empty() {
                break;
            }
            self.advance(limits::GIT_JOB_RETRY_SECS);
        }
        self.ailing = false;
        // What failed and left no note is tried once more, too.
        self.advance(limits::GIT_JOB_RETRY_SECS);
        self.work().expect("no end is planned");
    }
}
