//! Rows of pools: the packs that each of them should have.
//!
//! ```text
//! pools:  hash of repo path 16  →  checksum 8 | kind 1 | owner 32 | identifier | packs
//! a pack: hash 20 | bytes 8
//! ```
//!
//! The identifier is a text. The pool of a deleted repository that others read has a row, too. A damaged row counts as
//! missing: the packs that are in the pool are recorded again.

use std::sync::Arc;

use grasp_core::repo::{PackHash, PackManifest, RepoPath};
use heed::RoTxn;

use crate::error::{Result, StoreError};
use crate::git_jobs::{kind_of, repo_path};
use crate::repos::{row_key, with_checksum, write_text};
use crate::row_reader::RowReader;
use crate::schema::KeyHasher;
use crate::store::{Store, read_rows};
use crate::transaction::WriteTransaction;

impl WriteTransaction<'_> {
    /// Returns the packs that the pool of a repository should have, with the writes of this transaction.
    pub fn packs(&self, repo_path: &RepoPath) -> Result<Option<PackManifest>> {
        self.store.read_packs(&self.txn, repo_path)
    }

    /// Sets the packs that the pool of a repository should have. Without packs it needs no row.
    pub(crate) fn set_packs(&mut self, repo_path: &RepoPath, packs: &Arc<PackManifest>) -> Result<()> {
        let (table, key) = (self.store.tables.pools()?, row_key(self.store.hasher, repo_path));
        if packs.is_empty() {
            table.delete(&mut self.txn, &key)?;
            return Ok(());
        }
        Ok(table.put(&mut self.txn, &key, &write_row(self.store.hasher, repo_path, packs)?)?)
    }
}

impl Store {
    /// Returns the packs that the pool of a repository should have; `None` if that is not recorded.
    pub fn packs(&self, repo_path: &RepoPath) -> Result<Option<PackManifest>> {
        let txn = self.env.read_txn()?;
        self.read_packs(&txn, repo_path)
    }

    /// Returns the repositories whose pools have a row.
    pub fn pools(&self) -> Result<Vec<RepoPath>> {
        let txn = self.env.read_txn()?;
        let mut repo_paths = Vec::new();
        let Some(table) = self.tables.pools else { return Ok(repo_paths) };
        read_rows(table, &txn, |_, row| read_row(self.hasher, row).map(|(path, _)| repo_paths.push(path)).is_ok())?;
        Ok(repo_paths)
    }

    fn read_packs(&self, txn: &RoTxn<'_>, repo_path: &RepoPath) -> Result<Option<PackManifest>> {
        let Some(table) = self.tables.pools else { return Ok(None) };
        let row = table.get(txn, &row_key(self.hasher, repo_path))?;
        Ok(row.and_then(|row| read_row(self.hasher, row).ok()).map(|(_, packs)| packs))
    }
}

fn write_row(hasher: KeyHasher, repo_path: &RepoPath, packs: &PackManifest) -> Result<Vec<u8>> {
    let repo = repo_path.repo();
    with_checksum(hasher, |row| {
        row.push(kind_of(repo_path));
        row.extend_from_slice(&repo.owner.0);
        write_text(row, repo.identifier.as_str())?;
        for (pack, bytes) in &packs.0 {
            row.extend_from_slice(&pack.0);
            row.extend_from_slice(&bytes.to_be_bytes());
        }
        Ok(())
    })
}

fn read_row(hasher: KeyHasher, row: &[u8]) -> Result<(RepoPath, PackManifest), StoreError> {
    let mut reader = RowReader::checked(hasher, row)?;
    let ([kind], owner) = (reader.array()?, reader.array()?);
    let repo_path = repo_path(kind, owner, reader.text()?.as_bytes())?;
    let mut packs = PackManifest::default();
    while !reader.is_empty() {
        packs.0.insert(PackHash(reader.array()?), reader.read_u64()?);
    }
    Ok((repo_path, packs))
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::{Identifier, RepoId};

    use super::*;

    #[test]
    fn rows_round_trip_and_damage_is_detected() {
        let identifier = Identifier::new("my 🚀 repo").expect("valid identifier");
        let repo_path = RepoPath::Announced(RepoId { owner: PublicKey([7; 32]), identifier });
        let packs = PackManifest((0..3).map(|nth| (PackHash([nth; 20]), 1_000 + u64::from(nth))).collect());
        let row = write_row(KeyHasher([3; 16]), &repo_path, &packs).expect("writes");
        assert_eq!(read_row(KeyHasher([3; 16]), &row).expect("reads"), (repo_path, packs));
        for at in 0..row.len() {
            let mut changed = row.clone();
            changed[at] ^= 1;
            assert!(read_row(KeyHasher([3; 16]), &changed).is_err(), "changed at {at}");
            assert!(read_row(KeyHasher([3; 16]), &row[..at]).is_err(), "cut at {at}");
        }
    }
}
