//! Consistent views of the whole store for backups, and preparation of a restored copy.
//!
//! A snapshot is one read transaction. It does not see later writes. LMDB does not reuse pages that become free while
//! it is open, so the file grows during a long copy.

use std::path::Path;

use grasp_core::admission::io::Todo;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, WithoutTls};

use crate::error::{Result, StoreError};
use crate::event_record::EventRecord;
use crate::schema::{MAX_TABLES, Tables, read_u64};
use crate::store::{MAP_BYTES, STORE_ID, Store, StoreOptions, open_env, sync_folder};

/// Bytes copied per write transaction. LMDB keeps them in memory until the commit.
const SLICE_BYTES: usize = 16 * 1024 * 1024;

/// Consistent view of the whole store.
pub struct StoreSnapshot {
    store: Store,
    txn: RoTxn<'static, WithoutTls>,
}

/// Numbers of rows in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreCounts {
    /// Served events.
    pub served: u64,
    /// Held events.
    pub held: u64,
    /// Rows of all tables.
    pub rows: u64,
    /// Last sequence number that was ever assigned.
    pub last_seq: u64,
}

impl Store {
    /// Opens a snapshot of the current content.
    pub fn snapshot(&self) -> Result<StoreSnapshot> {
        Ok(StoreSnapshot { store: self.clone(), txn: self.env.clone().static_read_txn()? })
    }

    /// Returns the size of the store's file.
    pub fn file_bytes(&self) -> Result<u64> {
        Ok(self.env.real_disk_size()?)
    }

    /// Opens a store that no process changes, such as a copy. Writes nothing, not even a lock file. Write transactions
    /// are rejected.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        let env = open_env_read_only(path, MAX_TABLES)?;
        let txn = env.read_txn()?;
        let options = StoreOptions { readers: 0, reserve_bytes: 0 };
        let store = Self::with_tables(env.clone(), Tables::open_existing(&env, &txn)?, &txn, path, options)?;
        // LMDB keeps table handles only if the transaction that opened them is committed.
        txn.commit()?;
        Ok(store)
    }

    /// Turns a restored copy into a store of its own, before it is used.
    ///
    /// The copy gets a new id, because other relays may have been asked on behalf of the original for events that are
    /// not in the copy. `todos` are the repositories whose git data has to be brought into line. Returns the id.
    pub fn prepare_restored_copy(path: &Path, todos: impl Iterator<Item = Todo>) -> Result<[u8; 16]> {
        let store = Self::open(path, StoreOptions { readers: 0, reserve_bytes: 0 })?;
        let mut transaction = store.begin()?;
        store.tables.meta.delete(&mut transaction.txn, STORE_ID.as_bytes())?;
        store.tables.create_secret(&mut transaction.txn, STORE_ID)?;
        for todo in todos {
            transaction.add_todo(&todo)?;
        }
        let id = store.tables.get_secret(&transaction.txn, STORE_ID)?;
        transaction.commit()?;
        Ok(id)
    }
}

impl StoreSnapshot {
    /// Counts the rows.
    pub fn counts(&self) -> Result<StoreCounts> {
        let tables = self.store.tables;
        let mut counts = StoreCounts {
            served: tables.events.len(&self.txn)?,
            held: tables.held.len(&self.txn)?,
            rows: 0,
            last_seq: tables.last_seq(&self.txn)?,
        };
        for (_, table) in self.store.named_tables.iter() {
            counts.rows += table.len(&self.txn)?;
        }
        Ok(counts)
    }

    /// Returns the id of the store.
    #[must_use]
    pub fn store_id(&self) -> [u8; 16] {
        self.store.id()
    }

    /// Passes every event to `on_record`: first the served events in order, with their sequence numbers, then the held
    /// ones with `None`.
    pub fn for_each_event(&self, mut on_record: impl FnMut(Option<u64>, EventRecord<'_>)) -> Result<()> {
        for row in self.store.tables.events.iter(&self.txn)? {
            let (seq, bytes) = row?;
            on_record(Some(read_u64(seq)), EventRecord::read(bytes)?);
        }
        self.for_each_held(|record| on_record(None, record))
    }

    /// Passes every held event to `on_record`.
    pub fn for_each_held(&self, mut on_record: impl FnMut(EventRecord<'_>)) -> Result<()> {
        for row in self.store.tables.held.iter(&self.txn)? {
            let bytes = row?.1.get(8..).ok_or(StoreError::Damaged("a held row is too short"))?;
            on_record(EventRecord::read(bytes)?);
        }
        Ok(())
    }

    /// Copies all tables into a new, compact store in an empty folder. `on_progress` gets the number of rows written so
    /// far; an error that it returns aborts the copy.
    pub fn copy_to<E: From<StoreError>>(
        &self,
        folder: &Path,
        mut on_progress: impl FnMut(u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut rows = 0;
        let env = open_env(folder, &StoreOptions { readers: 0, reserve_bytes: 0 })?;
        for (name, table) in self.store.named_tables.iter() {
            let mut txn = env.write_txn().map_err(StoreError::from)?;
            let copy: Database<Bytes, Bytes> = env.create_database(&mut txn, Some(name)).map_err(StoreError::from)?;
            let mut bytes = 0;
            for row in table.iter(&self.txn).map_err(StoreError::from)? {
                let (key, value) = row.map_err(StoreError::from)?;
                copy.put_with_flags(&mut txn, PutFlags::APPEND, key, value).map_err(StoreError::from)?;
                bytes += key.len() + value.len();
                rows += 1;
                if bytes >= SLICE_BYTES {
                    txn.commit().map_err(StoreError::from)?;
                    on_progress(rows)?;
                    txn = env.write_txn().map_err(StoreError::from)?;
                    bytes = 0;
                }
            }
            txn.commit().map_err(StoreError::from)?;
            on_progress(rows)?;
        }
        // The copy is closed and does not need its lock file.
        env.prepare_for_closing().wait();
        let lock = folder.join("lock.mdb");
        std::fs::remove_file(&lock).map_err(|source| StoreError::Folder { path: lock, source })?;
        sync_folder(folder)?;
        Ok(())
    }
}

/// Opens an environment that no process writes, such as a copy. Writes nothing, not even a lock file.
pub(crate) fn open_env_read_only(path: &Path, max_tables: u32) -> Result<Env<WithoutTls>> {
    let mut open = EnvOpenOptions::new().read_txn_without_tls();
    open.map_size(MAP_BYTES).max_dbs(max_tables);
    #[expect(unsafe_code, reason = "a memory map is sound only if no process writes the file")]
    // SAFETY: no process writes to a copy or to the database of a stopped relay, which is why it needs no lock.
    let env = unsafe { open.flags(EnvFlags::READ_ONLY | EnvFlags::NO_LOCK).open(path) }?;
    Ok(env)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use grasp_core::admission::io::{RestoredItem, StoreWrite};
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::{Identifier, RepoId, RepoPath};
    use grasp_core::time::Timestamp;
    use grasp_sim::store_contract::draft;
    use tempfile::TempDir;

    use super::*;

    fn put(store: &Store, writes: &[StoreWrite]) {
        let mut transaction = store.begin().expect("begins");
        for write in writes {
            transaction.write(write).expect("writes");
        }
        transaction.commit().expect("commits");
    }

    fn ids(snapshot: &StoreSnapshot) -> BTreeSet<String> {
        let mut ids = BTreeSet::new();
        let show = |seq: Option<u64>, record: EventRecord<'_>| {
            ids.insert(format!("{seq:?} {}", record.id()));
        };
        snapshot.for_each_event(show).expect("reads");
        ids
    }

    #[test]
    fn snapshot_is_stable_and_its_copy_gets_a_new_id_on_restore() {
        let (folder, copy) = (TempDir::new().expect("temporary folder"), TempDir::new().expect("temporary folder"));
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let (served, held) = (draft(1, 30_617, 10, &[&["d", "x"]]), draft(1, 30_618, 10, &[&["d", "x"]]));
        put(&store, &[StoreWrite::Put(served.clone()), StoreWrite::Hold(held.clone(), Timestamp(9))]);
        let snapshot = store.snapshot().expect("snapshot opens");
        let shown = ids(&snapshot);
        assert_eq!(shown.len(), 2);
        put(&store, &[StoreWrite::Release(held.id), StoreWrite::Put(draft(2, 1, 5, &[]))]);
        assert_eq!(ids(&snapshot), shown, "later writes are not in the snapshot");
        let mut progress = 0;
        snapshot
            .copy_to(copy.path(), |rows| -> Result<()> {
                progress = rows;
                Ok(())
            })
            .expect("copies");
        let counts = snapshot.counts().expect("counts");
        assert_eq!((counts.served, counts.held, counts.last_seq, counts.rows), (1, 1, 1, progress));
        let files: Vec<_> = std::fs::read_dir(copy.path()).expect("lists").map(|file| file.expect("a file")).collect();
        assert!(matches!(&files[..], [file] if file.file_name() == "data.mdb"), "{files:?}");

        let unchanging = Store::open_read_only(copy.path()).expect("opens");
        assert_eq!(ids(&unchanging.snapshot().expect("snapshot opens")), shown);
        assert_eq!((unchanging.id(), unchanging.last_seq()), (store.id(), 1));
        assert!(unchanging.begin().is_err(), "read-only");
        drop(unchanging);
        assert_eq!(std::fs::read_dir(copy.path()).expect("lists").count(), 1, "no lock file was created");

        let repo = RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("x").expect("valid") };
        let todo = Todo { repo_path: RepoPath::Announced(repo), pull_request: None };
        Store::prepare_restored_copy(copy.path(), [todo.clone()].into_iter()).expect("prepares the copy");
        let other = Store::open(copy.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        assert_ne!(other.id(), store.id());
        assert_eq!(ids(&other.snapshot().expect("snapshot opens")), shown);
        let mut todos = Vec::new();
        let tell = |restored| todos.extend(if let RestoredItem::Todo(todo) = restored { Some(todo) } else { None });
        assert_eq!(other.restore(tell).expect("reads"), 0);
        assert_eq!(todos, [todo]);
    }

    #[test]
    fn progress_callback_can_abort_a_copy() {
        let (folder, copy) = (TempDir::new().expect("temporary folder"), TempDir::new().expect("temporary folder"));
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let stop = |_| Err(StoreError::Damaged("enough"));
        assert!(matches!(
            store.snapshot().expect("snapshot opens").copy_to(copy.path(), stop),
            Err(StoreError::Damaged("enough"))
        ));
    }
}
