//! Simulated git servers.

use std::collections::BTreeMap;

use grasp_core::fetch::io::{FetchOutcome, FetchRequest, RefComparison, RequestForm, SurveyResult};
use grasp_core::net::{AddressScope, OutboundError};

use super::fixtures::{ServerBehavior, WorldFixture};
use crate::random::Rng;
use crate::simulation::queue::{MINUTE, SECOND, Time};

/// The answer to a request.
#[derive(Clone, Debug)]
pub(super) struct ServerAnswer {
    /// When its first bytes arrive, if they do.
    pub first_bytes_at: Option<Time>,
    /// When the request ends.
    pub ends_at: Time,
    /// The wanted objects that are received.
    pub oids: Vec<String>,
    /// How the request ends.
    pub outcome: FetchOutcome,
}

/// All servers: their current behaviour, and the objects that they have.
#[derive(Clone, Debug)]
pub(super) struct Servers {
    /// The current behaviour of each server.
    pub behaviors: Vec<ServerBehavior>,
    /// Which object is at which URL, and since when.
    has: BTreeMap<(usize, String), Time>,
    healed: bool,
}

impl Servers {
    /// Creates the servers in their initial state.
    pub(super) fn new(fixture: &WorldFixture) -> Self {
        let mut has = BTreeMap::new();
        for event in &fixture.events {
            for (place, oid, from) in &event.stored_at {
                has.insert((event.urls[*place], event.oids[*oid].clone()), *from);
            }
        }
        Self { behaviors: fixture.servers.iter().map(|server| server.behavior).collect(), has, healed: false }
    }

    /// Makes all servers behave normally for the rest of the run.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.behaviors.fill(ServerBehavior::Normal);
    }

    /// Changes the behaviour of a server.
    pub(super) fn change(&mut self, server: usize, behavior: ServerBehavior) {
        if !self.healed {
            self.behaviors[server] = behavior;
        }
    }

    /// Returns whether an object is at a URL now.
    pub(super) fn has(&self, url: usize, oid: &str, now: Time) -> bool {
        self.has.get(&(url, oid.to_owned())).is_some_and(|from| self.healed || *from <= now)
    }

    /// Returns the result of a survey, and the time it takes.
    pub(super) fn survey(
        &self,
        fixture: &WorldFixture,
        server: usize,
        with_nip11: bool,
        rng: &mut Rng,
    ) -> (Time, SurveyResult) {
        let own = &fixture.servers[server];
        match self.behaviors[server] {
            ServerBehavior::NoAddress => (100 + rng.next_u64() % (5 * SECOND), SurveyResult::NoAddress),
            ServerBehavior::PrivateAddress => {
                let address = std::net::Ipv4Addr::new(10, 0, 0, own.network).into();
                (20, SurveyResult::Forbidden(OutboundError::Address(address, AddressScope::Private)))
            }
            behavior => {
                let last = (server % 200) as u8;
                let addresses = vec![std::net::Ipv4Addr::new(9, 9, own.network, last).into()];
                let silent = matches!(behavior, ServerBehavior::Silent | ServerBehavior::ServerError);
                let took = if with_nip11 && silent { 5 * SECOND } else { 5 + rng.next_u64() % 300 };
                let stated_limits = own.stated_limits.filter(|_| with_nip11 && !silent);
                (took, SurveyResult::Resolved { addresses, stated_limits })
            }
        }
    }

    /// Returns the result of a mirror check that begins now, and when it ends.
    pub(super) fn check_mirror(
        &self,
        fixture: &WorldFixture,
        url: usize,
        now: Time,
        rng: &mut Rng,
    ) -> (Time, Result<RefComparison, FetchOutcome>) {
        let soon = now + 30 + rng.next_u64() % 900;
        match self.behaviors[fixture.urls[url].server] {
            ServerBehavior::Absent => (soon, Err(FetchOutcome::Absent)),
            ServerBehavior::Silent | ServerBehavior::NoAddress => (now + MINUTE, Err(FetchOutcome::Failed)),
            ServerBehavior::PrivateAddress | ServerBehavior::ServerError => (soon, Err(FetchOutcome::Failed)),
            ServerBehavior::Busy(secs) => (soon, Err(FetchOutcome::Busy(secs))),
            ServerBehavior::Overloaded(secs) if rng.one_in(2) => (soon, Err(FetchOutcome::Busy(secs))),
            ServerBehavior::InvalidData => (soon, Err(FetchOutcome::InvalidData)),
            ServerBehavior::Slow => (soon + MINUTE, Err(FetchOutcome::Failed)),
            _ => (soon, Ok(RefComparison { served: 2, missing: rng.next_u64() as usize % 2, different: 0 })),
        }
    }

    /// Returns the answer to a request that begins now.
    pub(super) fn answer(
        &self,
        fixture: &WorldFixture,
        url: usize,
        fetch: &FetchRequest,
        now: Time,
        rng: &mut Rng,
    ) -> ServerAnswer {
        let server = fixture.urls[url].server;
        let soon = now + 30 + rng.next_u64() % 900;
        let ends = |outcome: FetchOutcome, ends_at: Time| ServerAnswer {
            first_bytes_at: None,
            ends_at,
            oids: Vec::new(),
            outcome,
        };
        match self.behaviors[server] {
            ServerBehavior::Absent => ends(FetchOutcome::Absent, soon),
            ServerBehavior::Silent | ServerBehavior::NoAddress => ends(FetchOutcome::Failed, now + MINUTE),
            ServerBehavior::PrivateAddress | ServerBehavior::ServerError => ends(FetchOutcome::Failed, soon),
            ServerBehavior::Busy(secs) => ends(FetchOutcome::Busy(secs), soon),
            ServerBehavior::Overloaded(secs) if rng.one_in(2) => ends(FetchOutcome::Busy(secs), soon),
            ServerBehavior::InvalidData => {
                ServerAnswer { first_bytes_at: Some(soon), ..ends(FetchOutcome::InvalidData, soon + SECOND) }
            }
            behavior => {
                let slow = behavior == ServerBehavior::Slow;
                let last =
                    if slow { soon + MINUTE + rng.next_u64() % (8 * MINUTE) } else { soon + rng.next_u64() % 2_000 };
                let oids: Vec<String> = fetch.oids.iter().filter(|oid| self.has(url, oid, now)).cloned().collect();
                let known =
                    self.has.range((url, String::new())..(url + 1, String::new())).any(|(_, from)| *from <= now);
                if !known && !self.healed {
                    return ends(FetchOutcome::Absent, soon);
                }
                if fetch.form == RequestForm::ByOid
                    && (!fixture.servers[server].serves_by_oid || oids.len() < fetch.oids.len())
                {
                    return ends(FetchOutcome::NotByOid, soon);
                }
                // A connection may break during a transfer; nothing of the pack is kept then.
                if rng.one_in(25) && !self.healed {
                    return ServerAnswer { first_bytes_at: Some(soon), ..ends(FetchOutcome::Failed, last) };
                }
                ServerAnswer { first_bytes_at: Some(soon), ends_at: last, oids, outcome: FetchOutcome::Sent }
            }
        }
    }
}
