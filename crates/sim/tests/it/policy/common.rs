//! How what the actors hear is written, and what the tests share.

pub(crate) use grasp_core::admission::git_job::{GitJob, GitOperation};
pub(crate) use grasp_core::admission::io::EventSource;
pub(crate) use grasp_core::admission::policy::{AdmissionMode, AdmissionPolicy};
pub(crate) use grasp_core::limits;
pub(crate) use grasp_core::nostr::rejection::KnownAs;
pub(crate) use grasp_core::nostr::{Decision, Filter, Rejection, SignedEvent, kinds};
pub(crate) use grasp_core::repo::{Identifier, RepoPath, ServiceAddress};
pub(crate) use grasp_core::time::Timestamp;
pub(crate) use grasp_sim::fixtures::{m, main_at, o, oid, r, x};
pub(crate) use grasp_sim::signer::{Author, owned};
pub(crate) use grasp_sim::store_contract::Shelf;
pub(crate) use grasp_sim::test_server::{House, rules, service};
pub(crate) use std::collections::BTreeSet;
pub(crate) use std::sync::Arc;

pub(crate) const SERVED: &str = "true ";
pub(crate) const HELD: &str = "true purgatory: won't be served until git data arrives";
pub(crate) const COMMIT: &str = "true purgatory: won't be served until commit…";
pub(crate) const AGAIN: &str = "true duplicate: already have this event";
pub(crate) const STILL: &str = "true purgatory: already waiting for git data";
pub(crate) const OLD: &str = "true duplicate: superseded by a newer event";
pub(crate) const UNRELATED: &str =
    "false restricted: the event must reference an accepted repository or accepted event";
pub(crate) const NOT_LISTED: &str = "false invalid: the announcement must name this service in both clone and relays";
pub(crate) const DELISTED: &str = "false invalid: the announcement no longer names this service; hosting has ended";
pub(crate) const WITHDRAWN: &str =
    "false invalid: a newer announcement of this repository no longer names this service";
pub(crate) const IDENTIFIER: &str = "false invalid: the d tag must be a repository identifier…";
pub(crate) const NO_ANNOUNCEMENT: &str = "false invalid: no announcement exists for this repository";
pub(crate) const NOT_MAINTAINER: &str = "false restricted: author not authorized for this repository";
pub(crate) const BANNED: &str = "false blocked: the operator of this service has banned this repository";
pub(crate) const UNWELCOME: &str = "false blocked: the operator of this service has banned this event or its author";
pub(crate) const NOT_WHITELISTED: &str =
    "false blocked: this service hosts only repositories that its operator has allowed";
pub(crate) const NOT_ARCHIVED: &str =
    "false blocked: this service is a read-only archive and does not archive this repository";
pub(crate) const DELETED: &str = "false invalid: this event is deleted";
pub(crate) const VANISHED: &str = "false invalid: this pubkey has requested to vanish";
pub(crate) const EXPIRED: &str = "false invalid: the event has expired";
pub(crate) const PROTECTED: &str = "false auth-required: this event may only be published by its author";
pub(crate) const FOREIGN: &str = "false invalid: cannot delete event authored by another pubkey";

pub(crate) fn said(verdict: &Decision) -> String {
    let (ok, text) = verdict.ok_reply();
    format!("{ok} {text}")
}

#[track_caller]
pub(crate) fn matches(said: &str, expected: &str) {
    match expected.strip_suffix('…') {
        Some(prefix) => assert!(said.starts_with(prefix), "{said}, but expected {expected}"),
        None => assert_eq!(said, expected),
    }
}

/// Offers an event and checks the answer's flag and text; `…` stands for any rest.
#[track_caller]
pub(crate) fn says(house: &mut House, event: &Arc<SignedEvent>, expected: &str) {
    matches(&said(&house.submit(event)), expected);
}

/// Checks everything that is served and everything that is held.
#[track_caller]
pub(crate) fn stands(house: &House, served: &[&Arc<SignedEvent>], held: &[&Arc<SignedEvent>]) {
    let ids = |events: &[&Arc<SignedEvent>]| events.iter().map(|event| event.id).collect::<BTreeSet<_>>();
    assert_eq!(house.sets(), (ids(served), ids(held)), "served, held");
}

/// Git has what this state declares, in this owner's `tool`.
pub(crate) fn pushed(house: &mut House, state: &SignedEvent, owner: &Author) {
    house.data_found(state.id, owner.repo_id("tool"));
}

/// A house that serves `tool` of `o`, who lists these maintainers. Gives back the announcement (at 100) and the state
/// (at 101).
pub(crate) fn hosting(rules: AdmissionPolicy, maintainers: &[&Author]) -> (House, Arc<SignedEvent>, Arc<SignedEvent>) {
    let mut house = House::new(rules);
    let announcement = o().listed(&service(), "tool", 100, maintainers);
    let state = main_at(&o(), 101, 'a');
    says(&mut house, &announcement, HELD);
    says(&mut house, &state, HELD);
    pushed(&mut house, &state, &o());
    stands(&house, &[&announcement, &state], &[]);
    (house, announcement, state)
}

pub(crate) fn strict() -> AdmissionPolicy {
    AdmissionPolicy { strict_maintainers: true, ..rules() }
}
