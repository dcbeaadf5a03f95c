//! Repositories: what announces them, what their refs are, who may say so.

pub mod announcement;
pub mod catalog;
pub mod id;
pub mod maintainers;
pub mod pr;
pub mod refname;
pub mod service;
pub mod site;
pub mod state;

pub use announcement::Announcement;
pub use catalog::Catalog;
pub use id::{Identifier, RepoId};
pub use service::Service;
pub use site::Site;
pub use state::State;
