//! The whole store at one snapshot, for backups, and what becomes of a copy that is used as a store.
//!
//! A snapshot is one read transaction. What is written meanwhile is not in it, and what it shows stays: pages that are free
//! in the meantime are not used again, so that the file grows while somebody copies for long.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use grasp_core::admission::io::Todo;
use heed::types::Bytes;
use heed::{Database, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, WithoutTls};

use crate::error::{Result, StoreError};
use crate::event_record::EventRecord;
use crate::schema::{Digest, MAX_TABLES, Tables, number};
use crate::store::{MAP_BYTES, StoreOptions, Store, open_env, sync_folder};

/// Bytes that are copied in one transaction: what LMDB keeps in memory until it commits.
const SLICE_BYTES: usize = 16 * 1024 * 1024;

/// The store at one snapshot.
pub struct StoreSnapshot {
    store: Store,
    txn: RoTxn<'static, WithoutTls>,
}

/// What a store has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreCounts {
    /// Served events.
    pub served: u64,
    /// Held events.
    pub held: u64,
    /// Rows of all tables.
    pub rows: u64,
    /// The last sequence number that was ever in use.
    pub last_seq: u64,
}

impl Store {
    /// Keeps this snapshot.
    pub fn snapshot(&self) -> Result<StoreSnapshot> {
        Ok(StoreSnapshot { store: self.clone(), txn: self.env.clone().static_read_txn()? })
    }

    /// Bytes of the store's file.
    pub fn file_bytes(&self) -> Result<u64> {
        Ok(self.env.real_disk_size()?)
    }

    /// Opens a store that nobody changes, such as a copy: nothing is written, the folder included. Batches cannot begin.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        let mut open = EnvOpenOptions::new().read_txn_without_tls();
        open.map_size(MAP_BYTES).max_dbs(MAX_TABLES);
        #[expect(unsafe_code, reason = "a memory map is only as sound as the rule that nobody writes the file")]
        // SAFETY: nobody writes to a copy, which is why it needs no lock.
        let env = unsafe { open.flags(EnvFlags::READ_ONLY | EnvFlags::NO_LOCK).open(path) }?;
        let txn = env.read_txn()?;
        let tables = Tables::open_all(&env, &txn)?;
        let digest = Digest(tables.known_secret(&txn, "hash key")?);
        let id = tables.known_secret(&txn, "store id")?;
        let last_seq = tables.last_seq(&txn)?;
        // Tables stay open when the transaction in which they were opened is committed, and only then.
        txn.commit()?;
        Ok(Self {
            env,
            tables,
            digest,
            id,
            path: path.to_owned(),
            options: StoreOptions { readers: 0, reserve_bytes: 0 },
            last_seq: Arc::new(AtomicU64::new(last_seq)),
        })
    }

    /// Makes another store of a copy, before anybody else uses it: it gets an id of its own, because what others were
    /// asked for the sake of the first one is not all here; and these sites are to be brought into line.
    pub fn prepare_restored_copy(path: &Path, todos: impl Iterator<Item = Todo>) -> Result<()> {
        let store = Self::open(path, StoreOptions { readers: 0, reserve_bytes: 0 })?;
        let mut batch = store.begin()?;
        store.tables.meta.delete(&mut batch.txn, b"store id")?;
        store.tables.secret(&mut batch.txn, "store id")?;
        for todo in todos {
            batch.note(&todo)?;
        }
        batch.commit()?;
        Ok(())
    }
}

impl StoreSnapshot {
    /// What there is.
    pub fn counts(&self) -> Result<StoreCounts> {
        let tables = self.store.tables;
        let mut counts = StoreCounts {
            served: tables.events.len(&self.txn)?,
            held: tables.held.len(&self.txn)?,
            rows: 0,
            last_seq: tables.last_seq(&self.txn)?,
        };
        for (_, table) in tables.all() {
            counts.rows += table.len(&self.txn)?;
        }
        Ok(counts)
    }

    /// The id of the store.
    #[must_use]
    pub fn store_id(&self) -> [u8; 16] {
        self.store.id()
    }

    /// Shows every event: its sequence number if it is served. Served ones come first, in order.
    pub fn for_each_event(&self, mut show: impl FnMut(Option<u64>, EventRecord<'_>)) -> Result<()> {
        for row in self.store.tables.events.iter(&self.txn)? {
            let (seq, bytes) = row?;
            show(Some(number(seq)), EventRecord::read(bytes)?);
        }
        self.for_each_held(|record| show(None, record))
    }

    /// Shows every held event.
    pub fn for_each_held(&self, mut show: impl FnMut(EventRecord<'_>)) -> Result<()> {
        for row in self.store.tables.held.iter(&self.txn)? {
            let bytes = row?.1.get(8..).ok_or(StoreError::Damaged("a held row is too short"))?;
            show(EventRecord::read(bytes)?);
        }
        Ok(())
    }

    /// Writes all of it, densely, into a new store in an empty folder. `tell` hears how many rows are written and stops
    /// the work by an error of its own.
    pub fn copy_to<E: From<StoreError>>(
        &self,
        folder: &Path,
        mut tell: impl FnMut(u64) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut rows = 0;
        let env = open_env(folder, &StoreOptions { readers: 0, reserve_bytes: 0 })?;
        for (name, table) in self.store.tables.all() {
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
                    tell(rows)?;
                    txn = env.write_txn().map_err(StoreError::from)?;
                    bytes = 0;
                }
            }
            txn.commit().map_err(StoreError::from)?;
            tell(rows)?;
        }
        // Nobody has it open any more: its lock file is of no use to a copy.
        env.prepare_for_closing().wait();
        let lock = folder.join("lock.mdb");
        std::fs::remove_file(&lock).map_err(|source| StoreError::Folder { path: lock, source })?;
        sync_folder(folder)?;
        Ok(())
    }
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
        let mut batch = store.begin().expect("begins");
        for write in writes {
            batch.write(write).expect("writes");
        }
        batch.commit().expect("commits");
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
    fn a_moment_stays_and_its_copy_is_the_same_store_until_it_begins_anew() {
        let (folder, copy) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let (served, held) = (draft(1, 30_617, 10, &[&["d", "x"]]), draft(1, 30_618, 10, &[&["d", "x"]]));
        put(&store, &[StoreWrite::Put(served.clone()), StoreWrite::Hold(held.clone(), Timestamp(9))]);
        let snapshot = store.snapshot().expect("a snapshot");
        let shown = ids(&snapshot);
        assert_eq!(shown.len(), 2);
        put(&store, &[StoreWrite::Release(held.id), StoreWrite::Put(draft(2, 1, 5, &[]))]);
        assert_eq!(ids(&snapshot), shown, "what came later is not seen");
        let mut told = 0;
        snapshot
            .copy_to(copy.path(), |rows| -> Result<()> {
                told = rows;
                Ok(())
            })
            .expect("copies");
        let counts = snapshot.counts().expect("counts");
        assert_eq!((counts.served, counts.held, counts.last_seq, counts.rows), (1, 1, 1, told));
        let files: Vec<_> = std::fs::read_dir(copy.path()).expect("lists").map(|file| file.expect("a file")).collect();
        assert!(matches!(&files[..], [file] if file.file_name() == "data.mdb"), "{files:?}");

        let unchanging = Store::open_read_only(copy.path()).expect("opens");
        assert_eq!(ids(&unchanging.snapshot().expect("a snapshot")), shown);
        assert_eq!((unchanging.id(), unchanging.last_seq()), (store.id(), 1));
        assert!(unchanging.begin().is_err(), "nothing can be written");
        drop(unchanging);
        assert_eq!(std::fs::read_dir(copy.path()).expect("lists").count(), 1, "nothing was written");

        let repo = RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("x").expect("valid") };
        let todo = Todo { repo_path: RepoPath::Announced(repo), pull_request: None };
        Store::prepare_restored_copy(copy.path(), [todo.clone()].into_iter()).expect("begins anew");
        let other = Store::open(copy.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        assert_ne!(other.id(), store.id());
        assert_eq!(ids(&other.snapshot().expect("a snapshot")), shown);
        let mut todos = Vec::new();
        let tell = |restored| todos.extend(if let RestoredItem::Todo(todo) = restored { Some(todo) } else { None });
        assert_eq!(other.restore(tell).expect("reads"), 0);
        assert_eq!(todos, [todo]);
    }

    #[test]
    fn whoever_hears_of_the_rows_may_stop_the_work() {
        let (folder, copy) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let stop = |_| Err(StoreError::Damaged("enough"));
        assert!(matches!(
            store.snapshot().expect("a snapshot").copy_to(copy.path(), stop),
            Err(StoreError::Damaged("enough"))
        ));
    }
}
