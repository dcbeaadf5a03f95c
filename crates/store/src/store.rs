//! The environment.

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
use crate::scan::Hidden;
use crate::schema::{Digest, MAX_TABLES, Tables, number, seq_of_key};
use crate::transaction::WriteTransaction;

/// Address space, not disk: the file grows only as it is written, and the map never has to be resized, which would need
/// every reader to be gone.
pub(crate) const MAP_BYTES: usize = 1 << 40;

/// How the store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Threads that read at the same time.
    pub readers: u32,
    /// Bytes that must stay free on the disk.
    pub reserve_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { readers: 8, reserve_bytes: 64 * 1024 * 1024 }
    }
}

/// The event store. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) env: Env<WithoutTls>,
    pub(crate) tables: Tables,
    pub(crate) digest: Digest,
    pub(crate) id: [u8; 16],
    pub(crate) path: PathBuf,
    pub(crate) options: StoreOptions,
    /// The newest sequence number that is committed. Only the writer changes it.
    pub(crate) last_seq: Arc<AtomicU64>,
}

impl Store {
    /// Opens the store in a folder, making both if they are missing. One process at a time: the caller holds the
    /// folder's lock.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Self> {
        std::fs::create_dir_all(path).map_err(|source| StoreError::Folder { path: path.to_owned(), source })?;
        let env = open_env(path, &options)?;
        env.clear_stale_readers()?;
        touch_reader_slots(&env)?;
        let mut txn = env.write_txn()?;
        let tables = Tables::open(&env, &mut txn)?;
        tables.migrate(&mut txn)?;
        let digest = Digest(tables.secret(&mut txn, "hash key")?);
        let id = tables.secret(&mut txn, "store id")?;
        let last_seq = tables.last_seq(&txn)?;
        txn.commit()?;
        sync_folder(path)?;
        Ok(Self {
            env,
            tables,
            digest,
            id,
            path: path.to_owned(),
            options,
            last_seq: Arc::new(AtomicU64::new(last_seq)),
        })
    }

    /// Sixteen random bytes that name this store: a restored backup is another store.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Begins a write transaction. There is one at a time; a second caller waits.
    pub fn begin(&self) -> Result<WriteTransaction<'_>> {
        WriteTransaction::begin(self)
    }

    /// Whether there is room to grow.
    pub fn check_free_space(&self) -> Result<()> {
        let free = DiskSpace::read(&self.path)?.free;
        let reserve = self.options.reserve_bytes;
        if free < reserve { Err(StoreError::DiskFull { free, reserve }) } else { Ok(()) }
    }

    /// The sequence number of the newest served event: what comes later has a higher one.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.last_seq.load(Ordering::Acquire)
    }

    pub(crate) fn set_last_seq(&self, seq: u64) {
        self.last_seq.store(seq, Ordering::Release);
    }

    /// Shows the events that came after a sequence number, in order, at most so many.
    pub fn events_since(&self, seq: u64, most: usize, mut show: impl FnMut(u64, EventRecord<'_>)) -> Result<()> {
        self.for_each_since(seq, most, |seq, record| {
            show(seq, record);
            ControlFlow::Continue(())
        })
    }

    /// Shows the served events among so many behind a sequence number, in order, and gives the last number that was looked
    /// at. What a vanished author has left behind is not shown.
    pub fn visible_events_since(&self, seq: u64, most: usize, mut show: impl FnMut(u64, EventRecord<'_>)) -> Result<Option<u64>> {
        let hidden = Hidden::read(self, &self.env.read_txn()?)?;
        let mut last = None;
        self.for_each_since(seq, most, |seq, record| {
            last = Some(seq);
            if hidden.shows(&record, seq, Timestamp(0)) {
                show(seq, record);
            }
            ControlFlow::Continue(())
        })?;
        Ok(last)
    }

    /// The same, until `show` has enough.
    pub(crate) fn for_each_since(
        &self,
        seq: u64,
        most: usize,
        mut show: impl FnMut(u64, EventRecord<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let txn = self.env.read_txn()?;
        let from = seq.saturating_add(1).to_be_bytes();
        let rest: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(&from), Bound::Unbounded);
        for row in self.tables.events.range(&txn, &rest)?.take(most) {
            let (key, bytes) = row?;
            if show(number(key), EventRecord::read(bytes)?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Tells everything that the registrar must know at boot: served announcements and states, all that is held, and at
    /// last what is to be done and what is staged. Gives how many rows could not be read: a damaged one must not keep the
    /// others from being served.
    pub fn restore(&self, mut tell: impl FnMut(RestoredItem)) -> Result<u64> {
        let txn = self.env.read_txn()?;
        let mut unreadable = 0;
        for kind in [kinds::ANNOUNCEMENT, kinds::STATE] {
            for row in self.tables.by_kind.prefix_iter(&txn, &kind.to_be_bytes())? {
                let Ok(event) = self.by_seq(&txn, seq_of_key(row?.0)).and_then(|record| record.event()) else {
                    unreadable += 1;
                    continue;
                };
                let exception = self.tables.exceptions.get(&txn, &event.id.0)?.is_some();
                let event = Arc::new(event);
                tell(if exception { RestoredItem::Exception(event) } else { RestoredItem::Served(event) });
            }
        }
        for row in self.tables.held.iter(&txn)? {
            let (deadline, bytes) = row?.1.split_at_checked(8).unwrap_or_default();
            match EventRecord::read(bytes).and_then(|record| record.event()) {
                Ok(event) => tell(RestoredItem::Held(Arc::new(event), Timestamp(number(deadline)))),
                Err(_) => unreadable += 1,
            }
        }
        Ok(unreadable + self.restore_work(&txn, &mut tell)?)
    }

    /// How many events are served.
    pub fn served_count(&self) -> Result<u64> {
        let txn = self.env.read_txn()?;
        Ok(self.tables.events.len(&txn)?)
    }

    /// How many events are held.
    pub fn held_count(&self) -> Result<u64> {
        let txn = self.env.read_txn()?;
        Ok(self.tables.held.len(&txn)?)
    }

    pub(crate) fn by_seq<'t>(&self, txn: &'t RoTxn<'_, WithoutTls>, seq: u64) -> Result<EventRecord<'t>> {
        self.find(txn, seq)?.ok_or(StoreError::Damaged("an index entry without its event"))
    }

    /// The event with a sequence number, if it is still there.
    pub(crate) fn find<'t>(&self, txn: &'t RoTxn<'_, WithoutTls>, seq: u64) -> Result<Option<EventRecord<'t>>> {
        self.tables.events.get(txn, &seq.to_be_bytes())?.map(EventRecord::read).transpose()
    }
}

pub(crate) fn open_env(path: &Path, options: &StoreOptions) -> Result<Env<WithoutTls>> {
    let mut open = EnvOpenOptions::new().read_txn_without_tls();
    // Beyond the reading threads: the writer's helpers, a backup, a status view.
    open.map_size(MAP_BYTES).max_dbs(MAX_TABLES).max_readers(options.readers + 32);
    #[expect(unsafe_code, reason = "a memory map is only as sound as the rule that nobody else writes the file")]
    // SAFETY: the data folder is locked by this process, and nothing but LMDB touches its files.
    let env = unsafe { open.open(path) }?;
    Ok(env)
}

/// Makes the entries of a folder durable, and its own entry in its parent: LMDB syncs its file, not where it lies.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let folders = [Some(path), path.parent().filter(|parent| !parent.as_os_str().is_empty())];
    for folder in folders.into_iter().flatten() {
        let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| StoreError::Folder { path: folder.to_owned(), source })?;
    }
    Ok(())
}

/// Uses every reader slot once. The lock file is sparse: on a disk that is full by then, the first use of a slot would
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
    use crate::schema::Table;

    /// The tables of the first stores.
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

    fn told(store: &Store) -> Vec<RestoredItem> {
        let mut all = Vec::new();
        assert_eq!(store.restore(|restored| all.push(restored)).expect("reads"), 0);
        all
    }

    #[test]
    fn a_store_without_the_newest_tables_opens_and_gets_them() {
        let (before, after) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
        let options = StoreOptions { readers: 1, reserve_bytes: 0 };
        let first = Store::open(before.path(), options.clone()).expect("opens");
        let (served, held) = (draft(1, 30_617, 10, &[&["d", "x"]]), draft(1, 30_618, 10, &[&["d", "x"]]));
        let mut batch = first.begin().expect("begins");
        for write in [StoreWrite::Put(served.clone()), StoreWrite::Hold(held.clone(), Timestamp(9))] {
            batch.write(&write).expect("writes");
        }
        batch.commit().expect("commits");
        let env = open_env(after.path(), &options).expect("opens");
        let (reads, mut writes) = (first.env.read_txn().expect("begins"), env.write_txn().expect("begins"));
        for name in FIRST_TABLES {
            let from: Table = first.env.open_database(&reads, Some(name)).expect("opens").expect("is there");
            let to: Table = env.create_database(&mut writes, Some(name)).expect("makes it");
            for row in from.iter(&reads).expect("reads") {
                let (key, value) = row.expect("reads");
                to.put(&mut writes, key, value).expect("writes");
            }
        }
        writes.commit().expect("commits");
        drop(env);

        let store = Store::open(after.path(), options.clone()).expect("opens");
        assert_eq!(store.id(), first.id(), "nothing is made anew");
        let [RestoredItem::Served(announcement), RestoredItem::Held(state, Timestamp(9))] = &told(&store)[..] else {
            panic!("what was there and no more: {:?}", told(&store));
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
        let mut batch = store.begin().expect("begins");
        batch.write(&StoreWrite::AddUpload(upload.clone())).expect("writes");
        batch.commit().expect("commits");
        drop(store);
        let store = Store::open(after.path(), options).expect("opens again");
        assert!(matches!(&told(&store)[..], [_, _, RestoredItem::Upload(staged)] if *staged == upload));
    }

    #[test]
    fn a_row_of_work_that_cannot_be_read_hides_no_other() {
        let folder = TempDir::new().expect("a folder");
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut txn = store.env.write_txn().expect("begins");
        for table in [store.tables.todo, store.tables.staged] {
            table.put(&mut txn, b"key", b"nonsense").expect("writes");
        }
        txn.commit().expect("commits");
        let mut batch = store.begin().expect("begins");
        batch.write(&StoreWrite::Hold(draft(1, 1_618, 10, &[]), Timestamp(9))).expect("writes");
        batch.commit().expect("commits");
        let mut heard = 0;
        assert_eq!(store.restore(|_| heard += 1).expect("reads"), 2);
        assert_eq!(heard, 1);
    }

    #[test]
    fn a_row_of_sync_that_cannot_be_read_hides_no_other() {
        let folder = TempDir::new().expect("a folder");
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut txn = store.env.write_txn().expect("begins");
        for (key, value) in [("first", "nonsense"), ("second", "{\"url\":7}"), ("third", "[]")] {
            store.tables.peers.put(&mut txn, key.as_bytes(), value.as_bytes()).expect("writes");
            store.tables.refused.put(&mut txn, key.as_bytes(), value.as_bytes()).expect("writes");
        }
        // A field that this version does not know means nothing to it.
        let newer = br#"{"url":"wss://relay.example","wanted_at":5,"mood":"good"}"#;
        store.tables.peers.put(&mut txn, &store.digest.relay("relay.example"), newer).expect("writes");
        store.tables.peers.put(&mut txn, b"fourth", newer).expect("writes");
        txn.commit().expect("commits");
        let mut heard = Vec::new();
        assert_eq!(store.load_relays(|peer| heard.push(peer.url.to_string())).expect("reads"), 4);
        assert_eq!(heard, ["wss://relay.example"]);
        assert_eq!(store.load_rejected(|row| panic!("{row:?}")).expect("reads"), 3);
    }
}
