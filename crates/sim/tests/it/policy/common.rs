//! Expected replies and helpers of the policy tests.

pub(crate) use grasp_core::admission::git_job::{GitJob, GitOperation};
pub(crate) use grasp_core::admission::io::EventSource;
pub(crate) use grasp_core::admission::policy::{AdmissionMode, AdmissionPolicy};
pub(crate) use grasp_core::limits;
pub(crate) use grasp_core::nostr::rejection::KnownAs;
pub(crate) use grasp_core::nostr::{Decision, Filter, Rejection, SignedEvent, kinds};
pub(crate) use grasp_core::repo::{Identifier, RepoPath, ServiceAddress};
pub(crate) use grasp_core::time::Timestamp;
pub(crate) use grasp_sim::fixtures::{main_state, maintainer, nested_maintainer, oid, outsider, owner};
pub(crate) use grasp_sim::signer::{Author, owned_tags};
pub(crate) use grasp_sim::store_contract::StoreUnderTest;
pub(crate) use grasp_sim::test_server::{TestServer, default_policy, service};
pub(crate) use std::collections::BTreeSet;
pub(crate) use std::sync::Arc;

pub(crate) const SERVED: &str = "true ";
/// The reply to a deletion or vanish request of an unknown key, which is not served.
pub(crate) const REMEMBERED: &str = "true ";
pub(crate) const HELD: &str = "true purgatory: won't be served until git data arrives";
pub(crate) const INVITED: &str =
    "true purgatory: won't be served until a repository that names its author as a maintainer is served";
pub(crate) const HELD_FOR_COMMIT: &str = "true purgatory: won't be served until commit…";
pub(crate) const ALREADY_SERVED: &str = "true duplicate: already have this event";
pub(crate) const ALREADY_HELD: &str = "true purgatory: already waiting for git data";
pub(crate) const SUPERSEDED: &str = "true duplicate: superseded by a newer event";
pub(crate) const LOST_TIE: &str = "true duplicate: superseded by an event with the same created_at and a lower id;…";
pub(crate) const UNRELATED: &str =
    "false restricted: the event must reference an accepted repository or accepted event";
pub(crate) const NOT_LISTED: &str = "false invalid: the announcement must name this service in both clone and relays…";
pub(crate) const DELISTED: &str = "false invalid: the announcement no longer names this service; hosting has ended";
pub(crate) const WITHDRAWN: &str =
    "false invalid: a newer announcement of this repository no longer names this service";
pub(crate) const INVALID_IDENTIFIER: &str = "false invalid: the d tag must be a repository identifier…";
pub(crate) const NO_ANNOUNCEMENT: &str = "false invalid: no announcement exists for this repository";
pub(crate) const NOT_MAINTAINER: &str = "false restricted: author not authorized for this repository";
pub(crate) const BANNED: &str = "false blocked: the operator of this service has banned this repository";
pub(crate) const BANNED_EVENT: &str = "false blocked: the operator of this service has banned this event or its author";
pub(crate) const NOT_WHITELISTED: &str =
    "false blocked: this service hosts only repositories that its operator has allowed";
pub(crate) const NOT_ARCHIVED: &str =
    "false blocked: this service is a read-only archive and does not archive this repository";
pub(crate) const DELETED: &str = "false invalid: this event is deleted";
pub(crate) const VANISHED: &str = "false invalid: this pubkey has requested to vanish";
pub(crate) const EXPIRED: &str = "false invalid: the event has expired";
pub(crate) const PROTECTED: &str = "false auth-required: this event may only be published by its author";
pub(crate) const TOO_MANY_REQUESTS: &str = "false rate-limited: too many deletion and vanish requests…";
pub(crate) const FOREIGN_TARGET: &str = "false invalid: cannot delete event authored by another pubkey";

pub(crate) fn reply_text(decision: &Decision) -> String {
    let (ok, text) = decision.ok_reply();
    format!("{ok} {text}")
}

#[track_caller]
pub(crate) fn assert_reply(reply: &str, expected: &str) {
    match expected.strip_suffix('…') {
        Some(prefix) => assert!(reply.starts_with(prefix), "reply is {reply}, expected {expected}"),
        None => assert_eq!(reply, expected),
    }
}

/// Submits an event and checks the flag and text of the reply; a trailing `…` matches any rest.
#[track_caller]
pub(crate) fn expect_reply(server: &mut TestServer, event: &Arc<SignedEvent>, expected: &str) {
    assert_reply(&reply_text(&server.submit(event)), expected);
}

/// Checks the complete sets of served and held events.
#[track_caller]
pub(crate) fn expect_events(server: &TestServer, served: &[&Arc<SignedEvent>], held: &[&Arc<SignedEvent>]) {
    let ids = |events: &[&Arc<SignedEvent>]| events.iter().map(|event| event.id).collect::<BTreeSet<_>>();
    assert_eq!(server.event_ids(), (ids(served), ids(held)), "served, held");
}

/// Adds the objects that a state declares to this owner's `tool`.
pub(crate) fn add_git_data(server: &mut TestServer, state: &SignedEvent, owner: &Author) {
    server.add_objects_of_event(state.id, owner.repo_id("tool"));
}

/// Returns a server that serves O's `tool` with these maintainers, its announcement (at 100) and its state (at 101).
pub(crate) fn hosting_server(
    policy: AdmissionPolicy,
    maintainers: &[&Author],
) -> (TestServer, Arc<SignedEvent>, Arc<SignedEvent>) {
    let mut server = TestServer::new(policy);
    let announcement = owner().announcement(&service(), "tool", 100, maintainers);
    let state = main_state(&owner(), 101, 'a');
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &state, HELD);
    add_git_data(&mut server, &state, &owner());
    expect_events(&server, &[&announcement, &state], &[]);
    (server, announcement, state)
}

pub(crate) fn strict_policy() -> AdmissionPolicy {
    AdmissionPolicy { strict_maintainers: true, ..default_policy() }
}
