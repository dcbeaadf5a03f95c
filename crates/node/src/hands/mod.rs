//! What acts: threads and tasks that do what machines and sessions want done.

pub(crate) mod librarian;
pub(crate) mod line;
pub(crate) mod live;
pub(crate) mod mail;
pub(crate) mod readers;
pub(crate) mod registrar;
