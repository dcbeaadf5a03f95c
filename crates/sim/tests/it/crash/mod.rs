//! Crash safety: the server crashes between any two durable steps, or a commit fails, and after the next start the
//! result is the same as without the fault. Clients without a reply try again.

mod concurrency;
mod late_completion;
mod lists;
mod removal;
mod runner;
mod scripts;

use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::RepoPath;
use grasp_sim::fixtures::{main_state, main_to, oid, owner, tool};
use grasp_sim::signer::Author;
use grasp_sim::test_server::service;
use runner::Action;

/// A contributor's submissions to `tool`.
fn prs(author: &Author) -> RepoPath {
    RepoPath::PullRequests(author.repo_id("tool"))
}

/// O's `tool` is served with `main` at `a`; it names these maintainers.
fn hosting(maintainers: &[&Author]) -> Vec<Action> {
    vec![
        Action::Submit(owner().announcement(&service(), "tool", 100, maintainers)),
        Action::Submit(main_state(&owner(), 101, 'a')),
        Action::Push(main_to(&owner(), 'a', "")),
    ]
}

/// A pull request to repositories that is also a submission at `/prs/`.
fn submission(author: &Author, created_at: u64, repos: &[&str], digit: char) -> Arc<SignedEvent> {
    let clone = format!("https://code.example/{}", prs(author).path());
    let mut tags = vec![vec!["c".to_owned(), oid(digit)], vec!["clone".to_owned(), clone]];
    tags.extend(repos.iter().map(|repo| vec!["a".to_owned(), (*repo).to_owned()]));
    author.sign_owned(grasp_core::nostr::kinds::PULL_REQUEST, created_at, tags, "please merge")
}
