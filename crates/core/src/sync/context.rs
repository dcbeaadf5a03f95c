//! What a link may see and use of the rest while it works.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::batch::JobId;
use super::fault_injection::Flaw;
use super::io::{AskId, Note, Output, Say, SubId};
use super::rejected::RefusedIndex;
use super::relay::{LinkId, Up};
use super::targets::Wants;
use super::{SyncConfig, fault_injection, live};
use crate::limits;
use crate::time::Now;

/// Numbers that look like chance and come from a seed.
#[derive(Clone, Debug)]
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// What a link may see and use of the rest while it works.
pub(super) struct Ctx<'a> {
    pub(super) now: Now,
    pub(super) config: &'a SyncConfig,
    pub(super) wants: &'a Wants,
    pub(super) refused: &'a RefusedIndex,
    pub(super) out: &'a mut VecDeque<Output>,
    pub(super) next: &'a mut u64,
    pub(super) asks: &'a mut BTreeMap<AskId, (LinkId, JobId)>,
    /// Reconciliations under way, on all links.
    pub(super) negs: &'a mut usize,
    /// Links that wait for one to end.
    pub(super) starved: &'a mut BTreeSet<LinkId>,
    pub(super) chance: &'a mut Chance,
}

impl Ctx<'_> {
    pub(super) fn next(&mut self) -> u64 {
        *self.next += 1;
        *self.next
    }

    pub(super) fn sub(&mut self) -> SubId {
        if self.flawed(Flaw::IdsReused) {
            return SubId(*self.next / 8);
        }
        SubId(self.next())
    }

    pub(super) fn ask(&mut self, link: LinkId, job: JobId) -> AskId {
        let ask = AskId(self.next());
        self.asks.insert(ask, (link, job));
        ask
    }

    pub(super) fn say(&mut self, up: &mut Up, say: Say) {
        up.said += match &say {
            Say::Req(_, filters) => filters.iter().map(live::text_bytes).sum(),
            Say::NegOpen(_, filter, message) => live::text_bytes(filter) + 2 * message.len(),
            Say::NegMsg(_, message) => 2 * message.len(),
            Say::Close(_) | Say::NegClose(_) | Say::Auth(_) => 0,
        };
        self.out.push_back(Output::Say(up.session, say));
    }

    pub(super) fn note(&mut self, note: Note) {
        self.out.push_back(Output::Note(note));
    }

    pub(super) fn flawed(&self, flaw: Flaw) -> bool {
        fault_injection::makes(self.config.flaw, flaw)
    }

    /// Give or take a fifth.
    pub(super) fn jitter(&mut self, secs: u64) -> u64 {
        secs * (80 + self.chance.next() % 41) / 100
    }

    /// Seconds until the next full reconciliation: 23 to 25 hours.
    pub(super) fn daily(&mut self) -> u64 {
        if self.flawed(Flaw::DailyForgotten) {
            return 100 * limits::SYNC_DAILY_SECS;
        }
        limits::SYNC_DAILY_SECS - 3_600 + self.chance.next() % 7_200
    }
}
