//! Rows of pending git jobs (todos) and of uploads that wait for an event.
//!
//! ```text
//! todo:    hash of repo path 16 | event 32 or zeros  →  kind 1 | owner 32 | has event 1 | identifier
//! staged:  hash of repo path 16 | event 32           →  kind 1 | owner 32 | folder 8 | bytes 8 | deadline 8 | texts
//! ```
//!
//! Numbers are big-endian. The texts are identifier, tip and, if there is one, network, each after its length in two
//! bytes. Zeros cannot be the id of an event.

use grasp_core::admission::io::{PendingUpload, RestoredItem, Todo};
use grasp_core::nostr::PublicKey;
use grasp_core::nostr::event::EventId;
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use grasp_core::time::Timestamp;
use heed::RoTxn;

use crate::error::{Result, StoreError};
use crate::row_reader::RowReader;
use crate::schema::{KeyHasher, key};
use crate::store::{Store, read_rows};
use crate::transaction::WriteTransaction;

const ANNOUNCED: u8 = 0;
const PULL_REQUESTS: u8 = 1;

impl WriteTransaction<'_> {
    pub(crate) fn add_todo(&mut self, todo: &Todo) -> Result<()> {
        let row = row_key(self.store.hasher, &todo.repo_path, todo.pull_request);
        Ok(self.store.tables.todos.put(&mut self.txn, &row, &write_todo(todo))?)
    }

    pub(crate) fn remove_todo(&mut self, todo: &Todo) -> Result<()> {
        let row = row_key(self.store.hasher, &todo.repo_path, todo.pull_request);
        self.store.tables.todos.delete(&mut self.txn, &row)?;
        Ok(())
    }

    pub(crate) fn add_upload(&mut self, upload: &PendingUpload) -> Result<()> {
        let row = row_key(self.store.hasher, &upload.repo_path, Some(upload.event));
        Ok(self.store.tables.uploads.put(&mut self.txn, &row, &write_upload(upload))?)
    }

    pub(crate) fn remove_upload(&mut self, repo_path: &RepoPath, event: EventId) -> Result<()> {
        let row = row_key(self.store.hasher, repo_path, Some(event));
        self.store.tables.uploads.delete(&mut self.txn, &row)?;
        Ok(())
    }
}

impl Store {
    /// Passes degraded repositories, todos and pending uploads to `on_item`. Returns the number of unreadable rows.
    pub(crate) fn restore_git_jobs(&self, txn: &RoTxn<'_>, on_item: &mut impl FnMut(RestoredItem)) -> Result<u64> {
        let repos = self.for_each_repo(txn, |repo_path, is_degraded| {
            if is_degraded {
                on_item(RestoredItem::Degraded(repo_path));
            }
        })?;
        let todos = read_rows(self.tables.todos, txn, |key, value| {
            read_todo(key, value).map(|todo| on_item(RestoredItem::Todo(todo))).is_ok()
        })?;
        let uploads = read_rows(self.tables.uploads, txn, |key, value| {
            read_upload(key, value).map(|upload| on_item(RestoredItem::Upload(upload))).is_ok()
        })?;
        Ok(repos + todos + uploads)
    }
}

fn row_key(hasher: KeyHasher, repo_path: &RepoPath, event: Option<EventId>) -> [u8; 48] {
    let RepoId { owner, identifier } = repo_path.repo();
    let hash = hasher.repo_path(kind_of(repo_path), owner, identifier.as_str().as_bytes());
    key(&[&hash, &event.map_or([0; 32], |event| event.0)])
}

pub(crate) fn kind_of(repo_path: &RepoPath) -> u8 {
    match repo_path {
        RepoPath::Announced(_) => ANNOUNCED,
        RepoPath::PullRequests(_) => PULL_REQUESTS,
    }
}

fn write_todo(todo: &Todo) -> Vec<u8> {
    let RepoId { owner, identifier } = todo.repo_path.repo();
    let mut row = vec![kind_of(&todo.repo_path)];
    row.extend_from_slice(&owner.0);
    row.push(u8::from(todo.pull_request.is_some()));
    row.extend_from_slice(identifier.as_str().as_bytes());
    row
}

fn read_todo(key: &[u8], value: &[u8]) -> Result<Todo> {
    let mut reader = RowReader::new(value);
    let ([kind], owner, [has_event]) = (reader.array()?, reader.array()?, reader.array()?);
    let repo_path = repo_path(kind, owner, reader.rest())?;
    let pull = if has_event == 1 { Some(event_of(key)?) } else { None };
    Ok(Todo { repo_path, pull_request: pull })
}

fn write_upload(upload: &PendingUpload) -> Vec<u8> {
    let RepoId { owner, identifier } = upload.repo_path.repo();
    let mut row = vec![kind_of(&upload.repo_path)];
    row.extend_from_slice(&owner.0);
    for number in [upload.folder, upload.bytes, upload.deadline.0] {
        row.extend_from_slice(&number.to_be_bytes());
    }
    for text in [Some(identifier.as_str()), Some(&upload.tip), upload.network.as_deref()].into_iter().flatten() {
        // All texts are much shorter: an identifier is the longest (limits::MAX_IDENTIFIER_BYTES).
        let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
        row.extend_from_slice(&len.to_be_bytes());
        row.extend_from_slice(&text.as_bytes()[..usize::from(len)]);
    }
    row
}

fn read_upload(key: &[u8], value: &[u8]) -> Result<PendingUpload> {
    let mut reader = RowReader::new(value);
    let ([kind], owner) = (reader.array()?, reader.array()?);
    let (folder, bytes, deadline) = (reader.read_u64()?, reader.read_u64()?, Timestamp(reader.read_u64()?));
    let repo_path = repo_path(kind, owner, reader.text()?.as_bytes())?;
    let tip = reader.text()?.to_owned();
    let network = if reader.is_empty() { None } else { Some(reader.text()?.to_owned()) };
    Ok(PendingUpload { repo_path, event: event_of(key)?, tip, folder, bytes, network, deadline })
}

pub(crate) fn repo_path(kind: u8, owner: [u8; 32], identifier: &[u8]) -> Result<RepoPath> {
    let identifier = std::str::from_utf8(identifier).ok().and_then(Identifier::new);
    let identifier = identifier.ok_or(StoreError::Damaged("row of a git job has an invalid identifier"))?;
    let repo = RepoId { owner: PublicKey(owner), identifier };
    match kind {
        ANNOUNCED => Ok(RepoPath::Announced(repo)),
        PULL_REQUESTS => Ok(RepoPath::PullRequests(repo)),
        _ => Err(StoreError::Damaged("row of a git job has an unknown kind of repository path")),
    }
}

fn event_of(key: &[u8]) -> Result<EventId> {
    key.last_chunk().copied().map(EventId).ok_or(StoreError::Damaged("row of a git job has a short key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo_paths() -> Vec<RepoPath> {
        let repo = |name: &str| RepoId {
            owner: PublicKey([7; 32]),
            identifier: Identifier::new(name).expect("valid identifier"),
        };
        let long = "é".repeat(512);
        ["x", "my 🚀 repo", &long]
            .into_iter()
            .flat_map(|name| [RepoPath::Announced(repo(name)), RepoPath::PullRequests(repo(name))])
            .collect()
    }

    #[test]
    fn rows_round_trip() {
        let event = EventId([9; 32]);
        for repo_path in repo_paths() {
            for pull in [None, Some(event)] {
                let todo = Todo { repo_path: repo_path.clone(), pull_request: pull };
                let key = row_key(KeyHasher([3; 16]), &repo_path, pull);
                assert_eq!(read_todo(&key, &write_todo(&todo)).expect("reads"), todo);
            }
            for network in [None, Some(String::new()), Some("n".repeat(64))] {
                let upload = PendingUpload {
                    repo_path: repo_path.clone(),
                    event,
                    tip: "ab".repeat(20),
                    folder: u64::MAX,
                    bytes: 1,
                    network,
                    deadline: Timestamp(u64::MAX),
                };
                let key = row_key(KeyHasher([3; 16]), &repo_path, Some(event));
                assert_eq!(read_upload(&key, &write_upload(&upload)).expect("reads"), upload);
            }
        }
    }

    #[test]
    fn keys_are_unique_per_repository_and_event() {
        let mut keys: Vec<_> = repo_paths()
            .iter()
            .flat_map(|repo_path| {
                [None, Some(EventId([9; 32]))].map(|event| row_key(KeyHasher([3; 16]), repo_path, event))
            })
            .collect();
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }

    #[test]
    fn corrupted_rows_are_errors() {
        let repo_path = repo_paths().remove(0);
        let key = row_key(KeyHasher([3; 16]), &repo_path, None);
        let upload = PendingUpload {
            repo_path: repo_path.clone(),
            event: EventId([9; 32]),
            tip: "ab".repeat(20),
            folder: 1,
            bytes: 2,
            network: Some("here".to_owned()),
            deadline: Timestamp(3),
        };
        let staged = write_upload(&upload);
        // Without its last text, the row is valid: it has no network.
        let without_network = staged.len() - 6;
        for end in (0..staged.len()).filter(|end| *end != without_network) {
            assert!(read_upload(&key, &staged[..end]).is_err(), "cut at {end}");
        }
        let todo = write_todo(&Todo { repo_path, pull_request: None });
        for end in 0..todo.len() {
            assert!(read_todo(&key, &todo[..end]).is_err(), "cut at {end}");
        }
        for kind in [2, 255] {
            let with_kind = |row: &[u8]| [&[kind], &row[1..]].concat();
            assert!(read_todo(&key, &with_kind(&todo)).is_err(), "{kind}");
            assert!(read_upload(&key, &with_kind(&staged)).is_err(), "{kind}");
        }
    }
}
