//! A place where a quarry may be, and what came of asking there.

use super::HostId;
use super::io::{FetchId, Form};
use super::origin::Origin;
use crate::limits;
use crate::net::Target;
use crate::time::Moment;

/// Names a place within its quarry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct StopId(pub(super) u32);

/// What came of asking at a place, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It has sent so many of the objects that were sought.
    Sent(usize),
    /// It gives objects only by ref, or lacks one.
    NotByOid,
    /// It has no such repository.
    Absent,
    /// Too many requests.
    Busy,
    /// It has failed, or its host has, with nobody to ask.
    Failed,
    /// What it sent was not sound.
    Unsound,
    /// Somebody else was faster.
    Cancelled,
    /// The trouble was ours.
    Ours,
    /// Its name leads nowhere.
    Nowhere,
    /// It is not called.
    Forbidden,
    /// It wants no requests.
    Never,
}

/// What is known of a place for one quarry. It outlives the quarry for a while.
#[derive(Clone, Debug, Default)]
pub(super) struct Visit {
    /// When it was last asked by object, and by ref.
    asked: [Option<Moment>; 2],
    /// Whether it had everything then.
    satisfied: [bool; 2],
    /// Which way of asking works.
    pub(super) form: Option<Form>,
    /// Its refs had nothing that is sought, and are not asked for before.
    pub(super) barren_until: Option<Moment>,
    /// It sent something unsound, and is left alone until then.
    pub(super) unsound_until: Option<Moment>,
    pub(super) outcome: Option<Outcome>,
    /// A person was told that it is not called.
    pub(super) shunned: bool,
}

impl Visit {
    pub(super) fn ask(&mut self, now: Moment, form: Form) {
        self.asked[form as usize] = Some(now);
        self.satisfied[form as usize] = false;
    }

    /// It has sent everything that it was asked for.
    pub(super) fn satisfied(&mut self, form: Form) {
        self.satisfied[form as usize] = true;
    }

    /// When it may be asked in this way again.
    pub(super) fn again_at(&self, form: Form) -> Moment {
        let asked = self.asked[form as usize].filter(|_| !self.satisfied[form as usize]);
        asked.map_or(Moment(0), |at| at.plus_secs(limits::HUNT_AGAIN_SECS))
    }

    /// When it was last asked.
    pub(super) fn asked_at(&self) -> Option<Moment> {
        self.asked.iter().copied().flatten().max()
    }

    /// Until when something of it is worth remembering.
    pub(super) fn keep_until(&self) -> Option<Moment> {
        let asked = self.asked_at().map(|at| at.plus_secs(limits::HUNT_UNSOUND_SECS));
        asked.max(self.unsound_until)
    }
}

/// Where asking at a place stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Until the next round.
    Resting,
    /// For its host.
    Waiting,
    /// Until it is known where the host is.
    Surveying(Moment),
    /// Since that moment, and whether anything has come.
    Fetching { id: FetchId, since: Moment, answered: bool },
}

/// A place of a quarry.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    pub(super) url: String,
    pub(super) target: Target,
    pub(super) origin: Origin,
    pub(super) host: HostId,
    pub(super) grasp: bool,
    pub(super) state: State,
    pub(super) visit: Visit,
    /// How often its host was busy in this round.
    pub(super) busy: u8,
    /// More is sought here than the running fetch knows of.
    pub(super) again: bool,
}

impl Stop {
    pub(super) fn form(&self) -> Form {
        self.visit.form.unwrap_or(if self.grasp { Form::Oids } else { Form::Refs })
    }

    pub(super) fn is_active(&self) -> bool {
        matches!(self.state, State::Surveying(_) | State::Fetching { .. })
    }

    /// When another server may be asked beside this one.
    pub(super) fn hedge_at(&self) -> Option<Moment> {
        match self.state {
            State::Surveying(since) | State::Fetching { since, answered: false, .. } => {
                Some(since.plus_secs(limits::HUNT_SILENT_SECS))
            }
            State::Fetching { since, answered: true, .. } => Some(since.plus_secs(limits::HUNT_SLOW_SECS)),
            State::Resting | State::Waiting => None,
        }
    }
}
