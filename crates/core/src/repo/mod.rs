//! Repositories: what announces them, what their refs are, who may say so.

pub mod announcement;
pub mod catalog;
pub mod id;
pub mod maintainers;
pub mod pull_request;
pub mod ref_name;
pub mod repo_path;
pub mod service;
pub mod state;

pub use announcement::Announcement;
pub use catalog::Catalog;
pub use id::{Identifier, RepoId};
pub use repo_path::Site;
pub use service::Service;
pub use state::State;
