//! Rows of repositories: their refs, and whether they are degraded.
//!
//! ```text
//! repos:  hash of repo path 16  →  checksum 8 | version 8 | kind 1 | owner 32 | identifier | reason | HEAD | refs
//! a ref:  name | object 20 | has peeled 1 | peeled 20
//! ```
//!
//! Identifier, reason, HEAD and name are texts: their length in two bytes, and the text. An empty reason or HEAD is
//! none. A repository exists if it has a row. The rows are what counts: the files in the repository's folder are made
//! from them. The checksum covers the rest of the row. A damaged row counts as that of a degraded repository whose refs
//! are lost; they are set again from the signed state.

use std::sync::Arc;

use grasp_core::nostr::hex;
use grasp_core::repo::{RefTarget, Refs, RepoPath, RepoRow};
use heed::RoTxn;

use crate::error::{Result, StoreError};
use crate::git_jobs::{kind_of, repo_path};
use crate::row_reader::{CHECKSUM_BYTES, RowReader};
use crate::schema::{KeyHasher, read_u64};
use crate::store::{Store, read_rows};
use crate::transaction::WriteTransaction;

/// Name in `meta` of the version of the row that was written last.
const LAST_VERSION: &[u8] = b"last repo version";

/// Bytes of an object id.
const OID_BYTES: usize = 20;

/// Longest stored reason: the texts of the server are shorter, apart from lists of packs.
const MAX_REASON_CHARS: usize = 1_000;

impl WriteTransaction<'_> {
    /// Returns the row of a repository, with the writes of this transaction.
    pub fn repo(&self, repo_path: &RepoPath) -> Result<Option<RepoRow>> {
        self.store.read_repo(&self.txn, repo_path)
    }

    /// Sets the refs of a repository, which exists from now on.
    pub(crate) fn set_refs(&mut self, repo_path: &RepoPath, refs: &Arc<Refs>) -> Result<()> {
        let row = self.store.tables.repos()?.get(&self.txn, &row_key(self.store.hasher, repo_path))?;
        let header =
            row.map(|row| RowReader::checked(self.store.hasher, row).and_then(|mut row| read_header(&mut row)));
        let degraded = match header.transpose() {
            Ok(header) => header.and_then(|header| header.degraded),
            // Other refs of the repository are lost.
            Err(StoreError::Damaged(reason)) => Some(reason.to_owned()),
            Err(error) => return Err(error),
        };
        self.put_repo(repo_path, &RepoRow { version: 0, refs: refs.clone(), degraded })
    }

    /// Records why a repository is degraded, or that it is not, if it exists. A damaged row is replaced by one without
    /// refs.
    pub(crate) fn set_degraded(&mut self, repo_path: &RepoPath, reason: Option<&str>) -> Result<()> {
        let row = match self.repo(repo_path) {
            Ok(None) => return Ok(()),
            Ok(Some(row)) => row,
            Err(StoreError::Damaged(_)) => RepoRow::default(),
            Err(error) => return Err(error),
        };
        let degraded = reason.map(|reason| reason.chars().take(MAX_REASON_CHARS).collect());
        self.put_repo(repo_path, &RepoRow { degraded, ..row })
    }

    /// Removes the row of a repository.
    pub(crate) fn remove_refs(&mut self, repo_path: &RepoPath) -> Result<()> {
        self.store.tables.repos()?.delete(&mut self.txn, &row_key(self.store.hasher, repo_path))?;
        Ok(())
    }

    /// Removes the rows of all repositories and pools.
    pub fn clear_repo_rows(&mut self) -> Result<()> {
        self.store.tables.repos()?.clear(&mut self.txn)?;
        Ok(self.store.tables.pools()?.clear(&mut self.txn)?)
    }

    /// Records that all repositories have a row ([`Store::needs_repo_rows`]).
    pub fn set_repo_rows_complete(&mut self) -> Result<()> {
        self.store.tables.set_current_schema(&mut self.txn)
    }

    fn put_repo(&mut self, repo_path: &RepoPath, row: &RepoRow) -> Result<()> {
        let tables = self.store.tables;
        let version = tables.meta.get(&self.txn, LAST_VERSION)?.map_or(0, read_u64) + 1;
        tables.meta.put(&mut self.txn, LAST_VERSION, &version.to_be_bytes())?;
        let bytes = write_row(self.store.hasher, repo_path, &RepoRow { version, ..row.clone() })?;
        Ok(tables.repos()?.put(&mut self.txn, &row_key(self.store.hasher, repo_path), &bytes)?)
    }
}

impl Store {
    /// Returns whether rows are missing because a version that kept refs in files wrote this store.
    pub fn needs_repo_rows(&self) -> Result<bool> {
        let txn = self.env.read_txn()?;
        Ok(self.tables.schema(&txn)? == Some(1))
    }

    /// Returns the row of a repository.
    pub fn repo(&self, repo_path: &RepoPath) -> Result<Option<RepoRow>> {
        let txn = self.env.read_txn()?;
        self.read_repo(&txn, repo_path)
    }

    /// Returns the repositories that exist. Unreadable rows are skipped.
    pub fn repo_paths(&self) -> Result<Vec<RepoPath>> {
        let txn = self.env.read_txn()?;
        let mut repo_paths = Vec::new();
        self.for_each_repo(&txn, |repo_path, _| repo_paths.push(repo_path))?;
        Ok(repo_paths)
    }

    /// Passes each repository, and whether it is degraded, to `on_repo`. Returns the number of unreadable rows.
    pub(crate) fn for_each_repo(&self, txn: &RoTxn<'_>, mut on_repo: impl FnMut(RepoPath, bool)) -> Result<u64> {
        let Some(table) = self.tables.repos else { return Ok(0) };
        read_rows(table, txn, |_, value| {
            // Without the checksum: a large row would have to be read completely.
            let header = RowReader::unchecked(value).and_then(|mut reader| read_header(&mut reader));
            header.map(|header| on_repo(header.repo_path, header.degraded.is_some())).is_ok()
        })
    }

    fn read_repo(&self, txn: &RoTxn<'_>, repo_path: &RepoPath) -> Result<Option<RepoRow>> {
        let Some(table) = self.tables.repos else { return Ok(None) };
        table.get(txn, &row_key(self.hasher, repo_path))?.map(|row| read_row(self.hasher, row)).transpose()
    }
}

pub(crate) fn row_key(hasher: KeyHasher, repo_path: &RepoPath) -> [u8; 16] {
    let repo = repo_path.repo();
    hasher.repo_path(kind_of(repo_path), &repo.owner, repo.identifier.as_str().as_bytes())
}

/// The part of a row before the refs.
struct RowHeader {
    version: u64,
    repo_path: RepoPath,
    degraded: Option<String>,
}

/// Returns a row that begins with a checksum of what `write` adds.
pub(crate) fn with_checksum(hasher: KeyHasher, write: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<Vec<u8>> {
    let mut row = vec![0; CHECKSUM_BYTES];
    write(&mut row)?;
    let checksum = hasher.checksum(&row[CHECKSUM_BYTES..]);
    row[..CHECKSUM_BYTES].copy_from_slice(&checksum);
    Ok(row)
}

fn write_row(hasher: KeyHasher, repo_path: &RepoPath, row: &RepoRow) -> Result<Vec<u8>> {
    let repo = repo_path.repo();
    with_checksum(hasher, |bytes| {
        bytes.extend_from_slice(&row.version.to_be_bytes());
        bytes.push(kind_of(repo_path));
        bytes.extend_from_slice(&repo.owner.0);
        write_text(bytes, repo.identifier.as_str())?;
        write_text(bytes, row.degraded.as_deref().unwrap_or_default())?;
        write_text(bytes, row.refs.named_head().unwrap_or_default())?;
        for (name, target) in row.refs.iter() {
            write_text(bytes, name)?;
            write_oid(bytes, &target.oid)?;
            bytes.push(u8::from(target.peeled.is_some()));
            target.peeled.iter().try_for_each(|peeled| write_oid(bytes, peeled))?;
        }
        Ok(())
    })
}

pub(crate) fn write_text(bytes: &mut Vec<u8>, text: &str) -> Result<()> {
    let len =
        u16::try_from(text.len()).map_err(|_| StoreError::Damaged("text in a row of a repository is too long"))?;
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
    Ok(())
}

fn write_oid(bytes: &mut Vec<u8>, oid: &str) -> Result<()> {
    let oid: [u8; OID_BYTES] = hex::decode(oid).ok_or(StoreError::Damaged("ref without an object id"))?;
    bytes.extend_from_slice(&oid);
    Ok(())
}

fn read_header(reader: &mut RowReader<'_>) -> Result<RowHeader> {
    let version = reader.read_u64()?;
    let ([kind], owner) = (reader.array()?, reader.array()?);
    let repo_path = repo_path(kind, owner, reader.text()?.as_bytes())?;
    let degraded = Some(reader.text()?.to_owned()).filter(|reason| !reason.is_empty());
    Ok(RowHeader { version, repo_path, degraded })
}

fn read_row(hasher: KeyHasher, row: &[u8]) -> Result<RepoRow> {
    let mut reader = RowReader::checked(hasher, row)?;
    let RowHeader { version, degraded, .. } = read_header(&mut reader)?;
    let mut refs = Refs::default();
    let head = reader.text()?;
    if !head.is_empty() {
        refs.set_head(head);
    }
    while !reader.is_empty() {
        let name = reader.text()?;
        let oid = hex::encode(&reader.array::<OID_BYTES>()?);
        let peeled = match reader.array()? {
            [0] => None,
            [_] => Some(hex::encode(&reader.array::<OID_BYTES>()?)),
        };
        refs.set(name, RefTarget { oid, peeled });
    }
    Ok(RepoRow { version, refs: Arc::new(refs), degraded })
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::{Identifier, RepoId};

    use super::*;

    fn row() -> (RepoPath, RepoRow) {
        let identifier = Identifier::new("my 🚀 repo").expect("valid identifier");
        let repo_path = RepoPath::PullRequests(RepoId { owner: PublicKey([7; 32]), identifier });
        let mut refs = Refs::default();
        refs.set_head("refs/heads/main");
        refs.set("refs/heads/main", RefTarget { oid: "ab".repeat(20), peeled: None });
        refs.set("refs/tags/v1", RefTarget { oid: "cd".repeat(20), peeled: Some("ef".repeat(20)) });
        (repo_path, RepoRow { version: 9, refs: Arc::new(refs), degraded: Some("a pack is missing".to_owned()) })
    }

    const HASHER: KeyHasher = KeyHasher([3; 16]);

    #[test]
    fn rows_round_trip() {
        let (repo_path, row) = row();
        for row in [row, RepoRow::default()] {
            let bytes = write_row(HASHER, &repo_path, &row).expect("writes");
            assert_eq!(read_row(HASHER, &bytes).expect("reads"), row);
            let mut reader = RowReader::unchecked(&bytes).expect("reads");
            assert_eq!(read_header(&mut reader).expect("reads").repo_path, repo_path);
        }
    }

    #[test]
    fn damaged_rows_are_errors() {
        let (repo_path, row) = row();
        let bytes = write_row(HASHER, &repo_path, &row).expect("writes");
        for at in 0..bytes.len() {
            assert!(read_row(HASHER, &bytes[..at]).is_err(), "cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(read_row(HASHER, &changed).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn refs_without_object_id_are_rejected() {
        let (repo_path, _) = row();
        let mut refs = Refs::default();
        refs.set("refs/heads/main", RefTarget { oid: "ab".repeat(32), peeled: None });
        assert!(write_row(HASHER, &repo_path, &RepoRow { refs: Arc::new(refs), ..RepoRow::default() }).is_err());
    }
}
