//! The store: opening of the LMDB environment and reads outside a write transaction.

use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grasp_core::admission::io::RestoredItem;
use grasp_core::nostr::kinds;
use grasp_core::time::Timestamp;
use heed::{Env, EnvOpenOptions, RoTxn, WithoutTls};

use crate::disk_space::DiskSpace;
use crate::error::{Result, StoreError};
use crate::event_record::EventRecord;
use crate::scan::Visibility;
use crate::schema::{KeyHasher, MAX_TABLES, NamedTables, Table, Tables, index_key_seq, read_u64};
use crate::transaction::WriteTransaction;

/// Size of the memory map (1 TiB). This is address space, not disk space: the file grows only as it is written. The map
/// is so large that it never has to be resized, which would require that no reader is active.
pub(crate) const MAP_BYTES: usize = 1 << 40;

/// Names of the secrets of a store: the key of its hashes, and its id.
const HASH_KEY: &str = "hash key";
pub(crate) const STORE_ID: &str = "store id";

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Number of threads that read at the same time.
    pub readers: u32,
    /// Bytes that must stay free on the disk.
    pub reserve_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { readers: 8, reserve_bytes: 64 * 1024 * 1024 }
    }
}

/// The event store. Cheap to clone; all clones refer to the same environment.
#[derive(Clone)]
pub struct Store {
    pub(crate) env: Env<WithoutTls>,
    pub(crate) tables: Tables,
    pub(crate) named_tables: NamedTables,
    pub(crate) hasher: KeyHasher,
    pub(crate) id: [u8; 16],
    pub(crate) path: PathBuf,
    pub(crate) options: StoreOptions,
    /// Newest committed sequence number. Only the writer changes it.
    pub(crate) last_seq: Arc<AtomicU64>,
}

impl Store {
    /// Opens the store in a folder. Creates the folder and the store if they are missing.
    ///
    /// Only one process may open a store at a time: the caller holds the lock of the data folder.
    ///
    /// # Errors
    /// Fails if the folder cannot be used, or if a newer version of graspd wrote the store.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self> {
        std::fs::create_dir_all(path).map_err(|source| StoreError::Folder { path: path.to_owned(), source })?;
        let env = open_env(path, &options)?;
        env.clear_stale_readers()?;
        touch_reader_slots(&env)?;
        let mut txn = env.write_txn()?;
        let tables = Tables::open(&env, &mut txn)?;
        tables.0.check_schema(&mut txn)?;
        tables.0.create_secret(&mut txn, HASH_KEY)?;
        tables.0.create_secret(&mut txn, STORE_ID)?;
        let store = Self::with_tables(env.clone(), tables, &txn, path, options)?;
        txn.commit()?;
        sync_folder(path)?;
        Ok(store)
    }

    pub(crate) fn with_tables(
        env: Env<WithoutTls>,
        (tables, named_tables): (Tables, NamedTables),
        txn: &RoTxn<'_>,
        path: &Path,
        options: StoreOptions,
    ) -> Result<Self> {
        let hasher = KeyHasher(tables.get_secret(txn, HASH_KEY)?);
        let id = tables.get_secret(txn, STORE_ID)?;
        let last_seq = Arc::new(AtomicU64::new(tables.last_seq(txn)?));
        Ok(Self { env, tables, named_tables, hasher, id, path: path.to_owned(), options, last_seq })
    }

    /// Returns the random id of this store. A restored backup gets a new id.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Begins a write transaction. Blocks while another write transaction is open.
    pub fn begin(&self) -> Result<WriteTransaction<'_>> {
        WriteTransaction::new(self)
    }

    /// Checks that the free disk space is not below the reserve.
    ///
    /// # Errors
    /// Returns [`StoreError::DiskFull`] if it is.
    pub fn check_free_space(&self) -> Result<()> {
        let free = DiskSpace::read(&self.path)?.free;
        let reserve = self.options.reserve_bytes;
        if free < reserve { Err(StoreError::DiskFull { free, reserve }) } else { Ok(()) }
    }

    /// Returns the newest sequence number that was ever assigned. Later events have higher numbers.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.last_seq.load(Ordering::Acquire)
    }

    pub(crate) fn set_last_seq(&self, seq: u64) {
        self.last_seq.store(seq, Ordering::Release);
    }

    /// Passes at most `max_rows` served events with a sequence number above `seq` to `on_record`, in order.
    pub fn events_since(
        &self,
        seq: u64,
        max_rows: usize,
        mut on_record: impl FnMut(u64, EventRecord<'_>),
    ) -> Result<()> {
        self.for_each_since(seq, max_rows, |seq, record| {
            on_record(seq, record);
            ControlFlow::Continue(())
        })
    }

    /// Reads at most `max_rows` events with a sequence number above `seq`, passes the visible ones to `on_record`, in
    /// order, and returns the last sequence number that was read.
    ///
    /// Events of vanished authors that are not removed from disk yet are not visible.
    pub fn visible_events_since(
        &self,
        seq: u64,
        max_rows: usize,
        mut on_record: impl FnMut(u64, EventRecord<'_>),
    ) -> Result<Option<u64>> {
        let visibility = Visibility::read(self, &self.env.read_txn()?)?;
        let mut last = None;
        self.for_each_since(seq, max_rows, |seq, record| {
            last = Some(seq);
            if visibility.is_visible(&record, seq, Timestamp(0)) {
                on_record(seq, record);
            }
            ControlFlow::Continue(())
        })?;
        Ok(last)
    }

    /// Like [`events_since`](Self::events_since), but ends when `on_record` breaks.
    pub(crate) fn for_each_since(
        &self,
        seq: u64,
        max_rows: usize,
        mut on_record: impl FnMut(u64, EventRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let txn = self.env.read_txn()?;
        let from = seq.saturating_add(1).to_be_bytes();
        let rest: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(&from), Bound::Unbounded);
        for row in self.tables.events.range(&txn, &rest)?.take(max_rows) {
            let (key, bytes) = row?;
            if on_record(read_u64(key), EventRecord::read(bytes)?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Passes everything that admission needs at start to `on_item`: served announcements and states, then all held
    /// events, then git todos, pending uploads and requests of unknown keys.
    ///
    /// Returns the number of unreadable rows. They are skipped, so that a damaged row does not keep the other
    /// repositories from being served.
    pub fn restore(&self, mut on_item: impl FnMut(RestoredItem)) -> Result<u64> {
        let txn = self.env.read_txn()?;
        let mut unreadable = 0;
        for kind in [kinds::ANNOUNCEMENT, kinds::STATE] {
            for row in self.tables.by_kind.prefix_iter(&txn, &kind.to_be_bytes())? {
                let Ok(event) = self.get_by_seq(&txn, index_key_seq(row?.0)).and_then(|record| record.event()) else {
                    unreadable += 1;
                    continue;
                };
                let exception = self.tables.exceptions.get(&txn, &event.id.0)?.is_some();
                let event = Arc::new(event);
                on_item(if exception { RestoredItem::Exception(event) } else { RestoredItem::Served(event) });
            }
        }
        unreadable += read_rows(self.tables.held, &txn, |_, row| {
            let (deadline, bytes) = row.split_at_checked(8).unwrap_or_default();
            let event = EventRecord::read(bytes).and_then(|record| record.event());
            let held = |event| RestoredItem::Held(Arc::new(event), Timestamp(read_u64(deadline)));
            event.map(|event| on_item(held(event))).is_ok()
        })?;
        unreadable += self.restore_git_jobs(&txn, &mut on_item)?;
        Ok(unreadable + self.restore_early_requests(&txn, &mut on_item)?)
    }

    /// Returns the number of served events.
    pub fn served_count(&self) -> Result<u64> {
        let txn = self.env.read_txn()?;
        Ok(self.tables.events.len(&txn)?)
    }

    /// Returns the number of held events.
    pub fn held_count(&self) -> Result<u64> {
        let txn = self.env.read_txn()?;
        Ok(self.tables.held.len(&txn)?)
    }

    /// Returns the event with a sequence number that an index names.
    pub(crate) fn get_by_seq<'t>(&self, txn: &'t RoTxn<'_, WithoutTls>, seq: u64) -> Result<EventRecord<'t>> {
        self.find_by_seq(txn, seq)?.ok_or(StoreError::Damaged("index entry without its event"))
    }

    /// Returns the event with a sequence number, or `None` if it was removed.
    pub(crate) fn find_by_seq<'t>(&self, txn: &'t RoTxn<'_>, seq: u64) -> Result<Option<EventRecord<'t>>> {
        self.tables.events.get(txn, &seq.to_be_bytes())?.map(EventRecord::read).transpose()
    }
}

/// Opens the LMDB environment in a folder for reading and writing.
pub(crate) fn open_env(path: &Path, options: &StoreOptions) -> Result<Env<WithoutTls>> {
    let mut open = EnvOpenOptions::new().read_txn_without_tls();
    // 32 slots beyond the query threads: the writer, backups, status views.
    open.map_size(MAP_BYTES).max_dbs(MAX_TABLES).max_readers(options.readers + 32);
    #[expect(unsafe_code, reason = "a memory map is sound only if no other code writes the file")]
    // SAFETY: this process holds the lock of the data folder, and only LMDB writes its files.
    let env = unsafe { open.open(path) }?;
    Ok(env)
}

/// Passes keys and values of all rows of a table to `on_row`, which returns whether the row is readable. Returns the
/// number of unreadable rows.
pub(crate) fn read_rows(table: Table, txn: &RoTxn<'_>, mut on_row: impl FnMut(&[u8], &[u8]) -> bool) -> Result<u64> {
    let mut unreadable = 0;
    for row in table.iter(txn)? {
        let (key, value) = row?;
        unreadable += u64::from(!on_row(key, value));
    }
    Ok(unreadable)
}

/// Syncs a folder and its parent. LMDB syncs its file, but not the directory entries of the file and its folder.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let folders = [Some(path), path.parent().filter(|parent| !parent.as_os_str().is_empty())];
    for folder in folders.into_iter().flatten() {
        let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| StoreError::Folder { path: folder.to_owned(), source })?;
    }
    Ok(())
}

/// Uses every reader slot once. The lock file is sparse: if the disk became full later, the first use of a slot would
/// end the process with a bus error.
fn touch_reader_slots(env: &Env<WithoutTls>) -> Result<()> {
    let slots: Result<Vec<_>, _> = (0..env.max_readers()).map(|_| env.read_txn()).collect();
    slots?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use grasp_core::admission::io::{PendingUpload, StoreWrite};
    use grasp_core::nostr::PublicKey;
    use grasp_core::nostr::event::EventId;
    use grasp_core::repo::{Identifier, RepoId, RepoPath};
    use grasp_sim::store_contract::draft;
    use tempfile::TempDir;

    use super::*;

    /// Tables of the first released stores.
    const FIRST_TABLES: &[&str] = &[
        "meta",
        "events",
        "ids",
        "coordinates",
        "by_time",
        "by_kind",
        "by_author",
        "by_author_kind",
        "by_tag",
        "expiry",
        "held",
        "held_by_author",
        "deleted_ids",
        "deleted_coordinates",
        "vanished",
        "withdrawn",
        "purging",
        "exceptions",
        "refused",
        "peers",
        "hosts",
        "todo",
    ];

    fn restored_items(store: &Store) -> Vec<RestoredItem> {
        let mut all = Vec::new();
        assert_eq!(store.restore(|restored| all.push(restored)).expect("reads"), 0);
        all
    }

    #[test]
    fn missing_tables_are_created_on_open() {
        let (before, after) = (TempDir::new().expect("temporary folder"), TempDir::new().expect("temporary folder"));
        let options = StoreOptions { readers: 1, reserve_bytes: 0 };
        let first = Store::open(before.path(), options.clone()).expect("opens");
        let (served, held) = (draft(1, 30_617, 10, &[&["d", "x"]]), draft(1, 30_618, 10, &[&["d", "x"]]));
        let mut transaction = first.begin().expect("begins");
        for write in [StoreWrite::Put(served.clone()), StoreWrite::Hold(held.clone(), Timestamp(9))] {
            transaction.write(&write).expect("writes");
        }
        transaction.commit().expect("commits");
        let env = open_env(after.path(), &options).expect("opens");
        let (reads, mut writes) = (first.env.read_txn().expect("begins"), env.write_txn().expect("begins"));
        for name in FIRST_TABLES {
            let from: Table = first.env.open_database(&reads, Some(name)).expect("opens").expect("table exists");
            let to: Table = env.create_database(&mut writes, Some(name)).expect("creates the table");
            for row in from.iter(&reads).expect("reads") {
                let (key, value) = row.expect("reads");
                to.put(&mut writes, key, value).expect("writes");
            }
        }
        writes.commit().expect("commits");
        drop(env);

        let store = Store::open(after.path(), options.clone()).expect("opens");
        assert_eq!(store.id(), first.id(), "the id is kept");
        let [RestoredItem::Served(announcement), RestoredItem::Held(state, Timestamp(9))] = &restored_items(&store)[..]
        else {
            panic!("unexpected items: {:?}", restored_items(&store));
        };
        assert_eq!((announcement.id, state.id), (served.id, held.id));
        let repo = RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("x").expect("valid") };
        let upload = PendingUpload {
            repo_path: RepoPath::Announced(repo),
            event: EventId([7; 32]),
            tip: "ab".repeat(20),
            folder: 1,
            bytes: 2,
            network: None,
            deadline: Timestamp(3),
        };
        let mut transaction = store.begin().expect("begins");
        transaction.write(&StoreWrite::AddUpload(upload.clone())).expect("writes");
        transaction.commit().expect("commits");
        drop(store);
        let store = Store::open(after.path(), options).expect("opens again");
        assert!(matches!(&restored_items(&store)[..], [_, _, RestoredItem::Upload(staged)] if *staged == upload));
    }

    #[test]
    fn unreadable_git_job_rows_are_skipped() {
        let folder = TempDir::new().expect("temporary folder");
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut txn = store.env.write_txn().expect("begins");
        for table in [store.tables.todos, store.tables.uploads] {
            table.put(&mut txn, b"key", b"nonsense").expect("writes");
        }
        txn.commit().expect("commits");
        let mut transaction = store.begin().expect("begins");
        transaction.write(&StoreWrite::Hold(draft(1, 1_618, 10, &[]), Timestamp(9))).expect("writes");
        transaction.commit().expect("commits");
        let mut restored = 0;
        assert_eq!(store.restore(|_| restored += 1).expect("reads"), 2);
        assert_eq!(restored, 1);
    }

    #[test]
    fn unreadable_sync_rows_are_skipped() {
        let folder = TempDir::new().expect("temporary folder");
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut txn = store.env.write_txn().expect("begins");
        for (key, value) in [("first", "nonsense"), ("second", "{\"url\":7}"), ("third", "[]")] {
            store.tables.relays.put(&mut txn, key.as_bytes(), value.as_bytes()).expect("writes");
            store.tables.rejected.put(&mut txn, key.as_bytes(), value.as_bytes()).expect("writes");
        }
        // Unknown fields are ignored.
        let newer = br#"{"url":"wss://relay.example","wanted_at":5,"new_field":"x"}"#;
        store.tables.relays.put(&mut txn, &store.hasher.relay("relay.example"), newer).expect("writes");
        store.tables.relays.put(&mut txn, b"fourth", newer).expect("writes");
        txn.commit().expect("commits");
        let mut restored = Vec::new();
        assert_eq!(store.load_relays(|relay| restored.push(relay.url.to_string())).expect("reads"), 4);
        assert_eq!(restored, ["wss://relay.example"]);
        assert_eq!(store.load_rejected(|row| panic!("{row:?}")).expect("reads"), 3);
    }
}
