//! What acts: threads and tasks that do what machines and sessions want done.

pub(crate) mod budget;
pub(crate) mod directory;
mod facts;
pub(crate) mod git_room;
pub(crate) mod hunt;
pub(crate) mod hunt_post;
pub(crate) mod librarian;
pub(crate) mod line;
pub(crate) mod live;
pub(crate) mod mail;
pub(crate) mod maintenance;
pub(crate) mod notes;
pub(crate) mod offer;
pub(crate) mod packs;
pub(crate) mod readers;
pub(crate) mod registrar;
pub(crate) mod relay_socket;
pub(crate) mod rulebook;
pub(crate) mod surveyor;
pub(crate) mod sync;
pub(crate) mod sync_post;
pub(crate) mod turns;
mod vitals;
pub(crate) mod watchman;
