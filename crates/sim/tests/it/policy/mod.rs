//! What may enter and what becomes of it, item by item of the spec (`G1-…`, `D-…`, sections 9 and 15) and of the rules
//! of the registrar (`C…`, `F…`).
//!
//! Items that are not decided here are tested where they live: G1-01, G1-03 and G1-43 to G1-45 belong to the relay's
//! doors; G1-18, G1-19, G1-21 to paths (`grasp_core::repo`); G1-22 and G1-46 on to git; G1-04's forgeries of frames and
//! section 10 to messages; NIP-42 to `grasp_core::nostr::auth`. F1 to F3 and F9 are about drivers and git.

mod announcements;
mod common;
mod discussions;
mod examples;
mod fetch;
mod lists;
mod purgatory;
mod related;
mod removal;
mod rules;
mod states;
mod storage;
mod sync;
