//! Answers to fetches. Identical ones are made once: whoever asks while one is being made follows it, whoever asks later
//! gets it from disk, as long as there is room.
//!
//! The git child writes into a nameless file as fast as it can and is done; clients read that file at their own pace. So a
//! slow client holds no child, and a crash leaves nothing behind.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use grasp_core::repo::RepoPath;
use tokio::sync::watch;

use crate::http::fair_semaphore::Busy;

/// Bytes that are read from disk at a time, when few read.
const PART: usize = 256 * 1024;

/// The same when many do. A client that does not listen holds one part in memory.
const SMALL_PART: usize = 16 * 1024;

/// Bytes of parts that readers share, unless there are more than a thousand of them. Whoever came before the others still
/// holds a part of the size that was right then, so it may become three times as much.
const PARTS: usize = 16 * 1024 * 1024;

/// Answers that are kept, however small: each has an open file.
const MAX_ANSWERS: usize = 512;

/// What an answer depends on. Another generation of the repository makes another answer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) repo_path: RepoPath,
    pub(crate) generation: u64,
    /// The request, normalised and hashed.
    pub(crate) request: [u8; 32],
    /// The version of the protocol.
    pub(crate) version: u8,
}

/// How far an answer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// More is coming.
    Open,
    /// That is all.
    Complete,
    /// That is all, and it is no good: git has told the client why. Nobody else is told.
    Refused,
    /// It could not be made, or not to its end.
    Broken,
    /// There was no turn for it.
    Busy(Busy),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    pub(crate) bytes: u64,
    pub(crate) end: End,
}

/// An answer, whole or in the making.
pub(crate) struct PackResponse {
    file: File,
    progress: watch::Sender<Progress>,
    /// How many read it.
    readers: AtomicUsize,
    /// When it was last asked for, on a clock of its own.
    asked: AtomicU64,
}

/// The answers. The lock guards the map for an instant.
pub(crate) struct PackCache {
    folder: PathBuf,
    /// Bytes that may be kept.
    allowed: AtomicU64,
    used: AtomicU64,
    clock: AtomicU64,
    answers: Mutex<HashMap<Key, Arc<PackResponse>>>,
    /// How many read, all answers together.
    readers: AtomicUsize,
}

/// Somebody's way through an answer. While there is one, the answer is wanted.
pub(crate) struct Reader {
    packs: Arc<PackCache>,
    answer: Arc<PackResponse>,
    progress: watch::Receiver<Progress>,
    at: u64,
}

/// The one who makes an answer.
pub(crate) struct Maker {
    packs: Arc<PackCache>,
    key: Key,
    answer: Arc<PackResponse>,
    bytes: u64,
    end: End,
}

impl PackCache {
    pub(crate) fn new(folder: PathBuf, allowed: u64) -> Arc<Self> {
        Arc::new(Self {
            folder,
            allowed: AtomicU64::new(allowed),
            used: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            answers: Mutex::default(),
            readers: AtomicUsize::new(0),
        })
    }

    /// Bytes that are kept, and how many may be.
    pub(crate) fn load(&self) -> (u64, u64) {
        (self.used.load(Ordering::Relaxed), self.allowed.load(Ordering::Relaxed))
    }

    /// From now on so many bytes may be kept.
    pub(crate) fn allow(&self, bytes: u64) {
        if self.allowed.swap(bytes, Ordering::Relaxed) > bytes {
            self.shrink();
        }
    }

    /// Follows the answer to a request. Whoever is the first to ask also gets to make it.
    pub(crate) fn follow(self: &Arc<Self>, key: &Key) -> io::Result<(Reader, Option<Maker>)> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        if let Some(answer) = answers.get(key) {
            answer.asked.store(now, Ordering::Relaxed);
            return Ok((Reader::new(self, answer), None));
        }
        let (progress, _) = watch::channel(Progress { bytes: 0, end: End::Open });
        let answer = Arc::new(PackResponse {
            file: tempfile::tempfile_in(&self.folder)?,
            progress,
            readers: AtomicUsize::new(0),
            asked: AtomicU64::new(now),
        });
        answers.insert(key.clone(), answer.clone());
        let maker = Maker { packs: self.clone(), key: key.clone(), answer: answer.clone(), bytes: 0, end: End::Broken };
        Ok((Reader::new(self, &answer), Some(maker)))
    }

    /// Forgets the answers that nobody has asked for the longest, until there is room for what is in use.
    fn shrink(&self) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_room(answers.len()) {
            return;
        }
        let idle = answers.iter().filter(|(_, answer)| answer.is_idle());
        let mut idle: Vec<(u64, Key)> =
            idle.map(|(key, answer)| (answer.asked.load(Ordering::Relaxed), key.clone())).collect();
        idle.sort_unstable_by_key(|(asked, _)| *asked);
        for (_, key) in idle {
            if self.has_room(answers.len()) {
                break;
            }
            self.forget(&mut answers, &key);
        }
    }

    fn has_room(&self, answers: usize) -> bool {
        self.used.load(Ordering::Relaxed) <= self.allowed.load(Ordering::Relaxed) && answers <= MAX_ANSWERS
    }

    fn forget(&self, answers: &mut HashMap<Key, Arc<PackResponse>>, key: &Key) {
        if let Some(answer) = answers.remove(key) {
            // Its readers keep the file; the space is theirs until they are done.
            self.used.fetch_sub(answer.progress.borrow().bytes, Ordering::Relaxed);
        }
    }
}

impl PackResponse {
    fn is_idle(&self) -> bool {
        self.readers.load(Ordering::Relaxed) == 0 && self.progress.borrow().end != End::Open
    }
}

impl Maker {
    /// Appends to the answer. False when nobody wants it any more.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<bool> {
        (&self.answer.file).write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        self.packs.used.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.answer.progress.send_replace(Progress { bytes: self.bytes, end: End::Open });
        self.packs.shrink();
        Ok(self.answer.readers.load(Ordering::Relaxed) > 0 || !self.abandon())
    }

    /// Gives the answer up if nobody wants it. Then nobody can begin to: the next one makes a new one.
    fn abandon(&self) -> bool {
        let mut answers = self.packs.answers.lock().unwrap_or_else(PoisonError::into_inner);
        // Readers begin under this lock.
        let unwanted = self.answer.readers.load(Ordering::Relaxed) == 0;
        if unwanted {
            self.forget(&mut answers);
        }
        unwanted
    }

    /// Forgets this answer, and not another that has taken its place.
    fn forget(&self, answers: &mut HashMap<Key, Arc<PackResponse>>) {
        if answers.get(&self.key).is_some_and(|answer| Arc::ptr_eq(answer, &self.answer)) {
            self.packs.forget(answers, &self.key);
        }
    }

    /// Waits until nobody wants the answer any more, and gives it up.
    pub(crate) async fn unwanted(&self) {
        loop {
            self.answer.progress.closed().await;
            if self.abandon() {
                return;
            }
        }
    }

    /// How the answer ended.
    pub(crate) fn finish(mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        // One that is not complete is not given to anybody else.
        if self.end != End::Complete {
            let mut answers = self.packs.answers.lock().unwrap_or_else(PoisonError::into_inner);
            self.forget(&mut answers);
        }
        self.answer.progress.send_replace(Progress { bytes: self.bytes, end: self.end });
        self.packs.shrink();
    }
}

impl Reader {
    fn new(packs: &Arc<PackCache>, answer: &Arc<PackResponse>) -> Self {
        packs.readers.fetch_add(1, Ordering::Relaxed);
        answer.readers.fetch_add(1, Ordering::Relaxed);
        Self { packs: packs.clone(), progress: answer.progress.subscribe(), answer: answer.clone(), at: 0 }
    }

    /// Waits until there is something to read or nothing to come.
    pub(crate) async fn ready(&mut self) -> Progress {
        let at = self.at;
        let ready = self.progress.wait_for(|progress| progress.bytes > at || progress.end != End::Open).await;
        // The sender is in the answer, which is ours.
        ready.map_or(Progress { bytes: at, end: End::Broken }, |progress| *progress)
    }

    /// The next part, or how it ended.
    pub(crate) async fn next(&mut self) -> Result<Bytes, End> {
        let progress = self.ready().await;
        let left = progress.bytes.saturating_sub(self.at);
        if left == 0 {
            return Err(progress.end);
        }
        let (answer, at) = (self.answer.clone(), self.at);
        let share = PARTS / self.packs.readers.load(Ordering::Relaxed).max(1);
        let length = usize::try_from(left).unwrap_or(PART).min(share.clamp(SMALL_PART, PART));
        let read = move || {
            let mut part = BytesMut::zeroed(length);
            answer.file.read_exact_at(&mut part, at).map(|()| part.freeze())
        };
        let part = tokio::task::spawn_blocking(read).await.map_err(|_| End::Broken)?.map_err(|_| End::Broken)?;
        self.at += part.len() as u64;
        Ok(part)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.answer.readers.fetch_sub(1, Ordering::Relaxed);
        self.packs.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::{Identifier, RepoId};

    fn key(request: u8) -> Key {
        let repo = RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("x").expect("valid") };
        Key { repo_path: RepoPath::Announced(repo), generation: 1, request: [request; 32], version: 2 }
    }

    async fn all(mut reader: Reader) -> (usize, End) {
        let mut bytes = 0;
        loop {
            match reader.next().await {
                Ok(part) => bytes += part.len(),
                Err(end) => return (bytes, end),
            }
        }
    }

    #[tokio::test]
    async fn one_makes_and_many_read_now_and_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let packs = PackCache::new(folder.path().to_owned(), 10_000_000);
        let (first, maker) = packs.follow(&key(1)).expect("a file");
        let (second, nobody) = packs.follow(&key(1)).expect("the same");
        assert!(nobody.is_none());
        let mut maker = maker.expect("the first makes it");
        let reading = tokio::spawn(all(first));
        for _ in 0..10 {
            assert!(maker.write(&[7; 100_000]).expect("written"));
        }
        maker.finish(End::Complete);
        assert_eq!(reading.await.expect("read"), (1_000_000, End::Complete));
        assert_eq!(all(second).await, (1_000_000, End::Complete));
        let (later, nobody) = packs.follow(&key(1)).expect("still there");
        assert!(nobody.is_none());
        assert_eq!(all(later).await, (1_000_000, End::Complete));
    }

    #[tokio::test]
    async fn what_broke_is_made_again_and_what_nobody_wants_is_not_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let packs = PackCache::new(folder.path().to_owned(), 1_000);
        let (reader, maker) = packs.follow(&key(1)).expect("a file");
        let mut maker = maker.expect("the first");
        maker.write(b"abc").expect("written");
        drop(reader);
        assert!(!maker.write(b"def").expect("written"), "nobody reads");
        maker.finish(End::Broken);
        assert_eq!(packs.used.load(Ordering::Relaxed), 0);
        assert!(packs.follow(&key(1)).expect("a file").1.is_some());
    }

    #[tokio::test]
    async fn the_budget_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let packs = PackCache::new(folder.path().to_owned(), 1_000);
        for request in 0..10 {
            let (_reader, maker) = packs.follow(&key(request)).expect("a file");
            let mut maker = maker.expect("the first");
            maker.write(&[1; 400]).expect("written");
            maker.finish(End::Complete);
        }
        assert!(packs.used.load(Ordering::Relaxed) <= 1_000);
        assert!(packs.follow(&key(9)).expect("a file").1.is_none(), "the newest is there");
        assert!(packs.follow(&key(0)).expect("a file").1.is_some(), "the oldest is not");
    }
}
