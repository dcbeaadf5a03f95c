//! Which events are accepted and what happens to them: the rules of docs/protocol.md and docs/design/admission.md.
//!
//! Rules that admission does not decide are tested elsewhere: endpoints, frames and NIP-11 in `graspd`, paths in
//! `grasp_core::repo`, messages and NIP-42 in `grasp_core::nostr`, git over HTTP in `grasp_git` and `graspd`.

mod announcements;
mod common;
mod discussions;
mod early_requests;
mod examples;
mod fetch;
mod hosting;
mod lists;
mod purgatory;
mod related;
mod removal;
mod states;
mod storage;
mod submission_results;
mod sync;
