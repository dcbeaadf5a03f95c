//! Cache of responses to fetches.
//!
//! Identical requests are computed once: clients that send the same request while a response is being computed follow
//! it, and later clients get it from disk as long as it is cached.
//!
//! The git process writes into a file without a name as fast as it can; clients read that file at their own pace. So a
//! slow client occupies no git process, and a crash leaves no file behind. Responses that only one client needs are
//! written to such a file too, but are not cached.

use std::fs::File;
use std::io;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use grasp_core::limits;
use grasp_core::repo::RepoPath;
use lru::LruCache;
use tokio::sync::watch;

use crate::http::fair_semaphore::QueueFull;

/// Largest chunk that is read from disk at a time, used with few readers.
const MAX_CHUNK_BYTES: usize = 256 * 1024;

/// Smallest chunk, used with many readers. A client that does not read has one chunk in memory.
const MIN_CHUNK_BYTES: usize = 16 * 1024;

/// Bytes that the chunks of all readers use together, with up to a thousand readers. Readers that came earlier may
/// still have a chunk of the size that was right then, so the real sum can be three times as large.
const TOTAL_CHUNK_BYTES: usize = 16 * 1024 * 1024;

/// Maximum number of cached responses, however small. Each has an open file.
const MAX_RESPONSES: usize = 512;

/// Identifies a response. A new generation of the repository makes a new response.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PackCacheKey {
    pub(crate) repo_path: RepoPath,
    pub(crate) generation: u64,
    /// Hash of the normalised request.
    pub(crate) request: [u8; 32],
    /// Version of the git protocol.
    pub(crate) version: u8,
}

/// How far a response is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PackStatus {
    /// More bytes will follow.
    InProgress,
    /// The response is complete and can be cached.
    Complete,
    /// The response is complete, but contains an error message. It is sent and not cached.
    ErrorReported,
    /// The response could not be computed, or not to its end.
    Failed,
    /// Too many requests wait for a git process.
    QueueFull(QueueFull),
}

/// Bytes that have been written, and whether more will follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PackProgress {
    pub(crate) bytes: u64,
    pub(crate) status: PackStatus,
}

/// A response, complete or in progress.
pub(crate) struct PackResponse {
    file: File,
    /// Each reader has a receiver.
    progress: watch::Sender<PackProgress>,
    /// The disk space of a response that is not cached.
    uncached: Option<UncachedBytes>,
}

/// Disk space of a response that is not cached. Dropping it, with the last reader, frees the space.
struct UncachedBytes {
    cache: Arc<PackCache>,
    bytes: AtomicU64,
}

impl Drop for UncachedBytes {
    fn drop(&mut self) {
        self.cache.uncached.fetch_sub(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The cache. The lock is held only for accesses to the map.
pub(crate) struct PackCache {
    folder: PathBuf,
    /// Maximum number of cached bytes.
    limit: AtomicU64,
    used: AtomicU64,
    /// Bytes of responses that are being read and are not cached. They count against the limit.
    uncached: AtomicU64,
    /// In the order of the last request. It has no capacity of its own, because responses in use are not removed.
    responses: Mutex<LruCache<PackCacheKey, Arc<PackResponse>>>,
    /// Number of readers of all responses.
    readers: AtomicUsize,
}

/// Reads a response from its beginning. A response with a reader is not given up.
pub(crate) struct PackReader {
    cache: Arc<PackCache>,
    response: Arc<PackResponse>,
    progress: watch::Receiver<PackProgress>,
    offset: u64,
}

/// Writes a response. Dropping it ends the response.
pub(crate) struct PackWriter {
    cache: Arc<PackCache>,
    /// `None` for a response that is not cached.
    key: Option<PackCacheKey>,
    response: Arc<PackResponse>,
    bytes: u64,
    status: PackStatus,
}

impl PackCache {
    pub(crate) fn new(folder: PathBuf, limit: u64) -> Arc<Self> {
        Arc::new(Self {
            folder,
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            uncached: AtomicU64::new(0),
            responses: Mutex::new(LruCache::unbounded()),
            readers: AtomicUsize::new(0),
        })
    }

    /// Returns the bytes of all responses and their limit.
    pub(crate) fn load(&self) -> (u64, u64) {
        let bytes = self.used.load(Ordering::Relaxed) + self.uncached.load(Ordering::Relaxed);
        (bytes, self.limit.load(Ordering::Relaxed))
    }

    /// Returns true if responses that are being read use more than the limit, so that no further one may be started.
    pub(crate) fn is_full(&self) -> bool {
        let (bytes, limit) = self.load();
        bytes > limit.max(limits::MIN_SPOOLED_RESPONSE_BYTES)
    }

    /// Changes the limit of cached bytes.
    pub(crate) fn set_limit(&self, bytes: u64) {
        if self.limit.swap(bytes, Ordering::Relaxed) > bytes {
            self.evict();
        }
    }

    /// Returns a reader of the response to a request. The first caller also gets a writer and must compute the
    /// response.
    ///
    /// # Errors
    /// Fails if no file can be created, for example because the disk is full.
    pub(crate) fn follow(self: &Arc<Self>, key: &PackCacheKey) -> io::Result<(PackReader, Option<PackWriter>)> {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(response) = responses.get(key) {
            return Ok((PackReader::new(self, response), None));
        }
        let response = self.create_response(None)?;
        responses.put(key.clone(), response.clone());
        Ok((PackReader::new(self, &response), Some(PackWriter::new(self, Some(key.clone()), response))))
    }

    /// Returns the reader and the writer of a response that only one client needs. It is not cached.
    ///
    /// # Errors
    /// Fails if no file can be created, for example because the disk is full.
    pub(crate) fn spool(self: &Arc<Self>) -> io::Result<(PackReader, PackWriter)> {
        let uncached = UncachedBytes { cache: self.clone(), bytes: AtomicU64::new(0) };
        let response = self.create_response(Some(uncached))?;
        Ok((PackReader::new(self, &response), PackWriter::new(self, None, response)))
    }

    fn create_response(&self, uncached: Option<UncachedBytes>) -> io::Result<Arc<PackResponse>> {
        let (progress, _) = watch::channel(PackProgress { bytes: 0, status: PackStatus::InProgress });
        Ok(Arc::new(PackResponse { file: tempfile::tempfile_in(&self.folder)?, progress, uncached }))
    }

    /// Removes the least recently used responses without readers until the cache is within its limits.
    fn evict(&self) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_within_limits(responses.len()) {
            let oldest = responses.iter().rev().find(|(_, response)| response.is_idle());
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
            self.remove(&mut responses, &key);
        }
    }

    fn is_within_limits(&self, responses: usize) -> bool {
        let (bytes, limit) = self.load();
        bytes <= limit && responses <= MAX_RESPONSES
    }

    fn remove(&self, responses: &mut LruCache<PackCacheKey, Arc<PackResponse>>, key: &PackCacheKey) {
        if let Some(response) = responses.pop(key) {
            // Readers keep the file open; its disk space is freed when the last of them is dropped.
            self.used.fetch_sub(response.progress.borrow().bytes, Ordering::Relaxed);
        }
    }
}

impl PackResponse {
    fn is_idle(&self) -> bool {
        self.progress.receiver_count() == 0 && self.progress.borrow().status != PackStatus::InProgress
    }
}

impl PackWriter {
    fn new(cache: &Arc<PackCache>, key: Option<PackCacheKey>, response: Arc<PackResponse>) -> Self {
        Self { cache: cache.clone(), key, response, bytes: 0, status: PackStatus::Failed }
    }

    /// Appends to the response. Returns false if it no longer has readers.
    ///
    /// # Errors
    /// Fails if the file cannot be written, for example because the disk is full.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<bool> {
        (&self.response.file).write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        let counter = match &self.response.uncached {
            Some(uncached) => {
                uncached.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                &self.cache.uncached
            }
            None => &self.cache.used,
        };
        counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.response.progress.send_replace(PackProgress { bytes: self.bytes, status: PackStatus::InProgress });
        self.cache.evict();
        Ok(self.response.progress.receiver_count() > 0 || !self.abandon_if_unread())
    }

    /// Removes the response from the cache if it has no readers. It cannot get one afterwards: the next request starts
    /// a new response.
    fn abandon_if_unread(&self) -> bool {
        let mut responses = self.cache.responses.lock().unwrap_or_else(PoisonError::into_inner);
        // Readers are created under this lock.
        let is_unread = self.response.progress.receiver_count() == 0;
        if is_unread {
            self.remove(&mut responses);
        }
        is_unread
    }

    /// Removes this response from the cache, but not another one with the same key.
    fn remove(&self, responses: &mut LruCache<PackCacheKey, Arc<PackResponse>>) {
        if let Some(key) = &self.key
            && responses.peek(key).is_some_and(|response| Arc::ptr_eq(response, &self.response))
        {
            self.cache.remove(responses, key);
        }
    }

    /// Waits until the response no longer has readers, and removes it.
    pub(crate) async fn wait_until_unread(&self) {
        loop {
            self.response.progress.closed().await;
            if self.abandon_if_unread() {
                return;
            }
        }
    }

    /// Ends the response.
    pub(crate) fn finish(mut self, status: PackStatus) {
        self.status = status;
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // Only complete responses stay in the cache.
        if self.status != PackStatus::Complete {
            let mut responses = self.cache.responses.lock().unwrap_or_else(PoisonError::into_inner);
            self.remove(&mut responses);
        }
        self.response.progress.send_replace(PackProgress { bytes: self.bytes, status: self.status });
        self.cache.evict();
    }
}

impl PackReader {
    fn new(cache: &Arc<PackCache>, response: &Arc<PackResponse>) -> Self {
        cache.readers.fetch_add(1, Ordering::Relaxed);
        Self { cache: cache.clone(), progress: response.progress.subscribe(), response: response.clone(), offset: 0 }
    }

    /// Waits until there are bytes to read or the response has ended.
    pub(crate) async fn wait_for_progress(&mut self) -> PackProgress {
        let offset = self.offset;
        let is_ready = |progress: &PackProgress| progress.bytes > offset || progress.status != PackStatus::InProgress;
        let ready = self.progress.wait_for(is_ready).await;
        // The sender is part of the response, which this reader keeps alive, so there is no error.
        ready.map_or(PackProgress { bytes: offset, status: PackStatus::Failed }, |progress| *progress)
    }

    /// Returns the next chunk, or the final status at the end.
    pub(crate) async fn next(&mut self) -> Result<Bytes, PackStatus> {
        let progress = self.wait_for_progress().await;
        let left = progress.bytes.saturating_sub(self.offset);
        if left == 0 {
            return Err(progress.status);
        }
        let (response, offset) = (self.response.clone(), self.offset);
        let share = TOTAL_CHUNK_BYTES / self.cache.readers.load(Ordering::Relaxed).max(1);
        let max_length = share.clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES);
        let length = usize::try_from(left).unwrap_or(MAX_CHUNK_BYTES).min(max_length);
        let read = move || {
            let mut chunk = BytesMut::zeroed(length);
            response.file.read_exact_at(&mut chunk, offset).map(|()| chunk.freeze())
        };
        let chunk = tokio::task::spawn_blocking(read).await;
        let chunk = chunk.map_err(|_| PackStatus::Failed)?.map_err(|_| PackStatus::Failed)?;
        self.offset += chunk.len() as u64;
        Ok(chunk)
    }
}

impl Drop for PackReader {
    fn drop(&mut self) {
        self.cache.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grasp_core::nostr::PublicKey;
    use grasp_core::repo::{Identifier, RepoId};

    fn key(request: u8) -> PackCacheKey {
        let repo = RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("x").expect("valid identifier") };
        PackCacheKey { repo_path: RepoPath::Announced(repo), generation: 1, request: [request; 32], version: 2 }
    }

    async fn read_all(mut reader: PackReader) -> (usize, PackStatus) {
        let mut bytes = 0;
        loop {
            match reader.next().await {
                Ok(chunk) => bytes += chunk.len(),
                Err(status) => return (bytes, status),
            }
        }
    }

    #[tokio::test]
    async fn identical_requests_are_computed_once() {
        let folder = tempfile::tempdir().expect("cannot create a folder");
        let cache = PackCache::new(folder.path().to_owned(), 10_000_000);
        let (first, writer) = cache.follow(&key(1)).expect("cannot create a file");
        let (second, no_writer) = cache.follow(&key(1)).expect("cannot create a file");
        assert!(no_writer.is_none());
        let mut writer = writer.expect("the first caller gets the writer");
        let reading = tokio::spawn(read_all(first));
        for _ in 0..10 {
            assert!(writer.write(&[7; 100_000]).expect("cannot write"));
        }
        writer.finish(PackStatus::Complete);
        assert_eq!(reading.await.expect("the reader panicked"), (1_000_000, PackStatus::Complete));
        assert_eq!(read_all(second).await, (1_000_000, PackStatus::Complete));
        let (later, no_writer) = cache.follow(&key(1)).expect("cannot create a file");
        assert!(no_writer.is_none());
        assert_eq!(read_all(later).await, (1_000_000, PackStatus::Complete));
    }

    #[tokio::test]
    async fn failed_and_abandoned_responses_are_not_cached() {
        let folder = tempfile::tempdir().expect("cannot create a folder");
        let cache = PackCache::new(folder.path().to_owned(), 1_000);
        let (reader, writer) = cache.follow(&key(1)).expect("cannot create a file");
        let mut writer = writer.expect("the first caller gets the writer");
        writer.write(b"abc").expect("cannot write");
        drop(reader);
        assert!(!writer.write(b"def").expect("cannot write"), "the response has no readers");
        writer.finish(PackStatus::Failed);
        assert_eq!(cache.used.load(Ordering::Relaxed), 0);
        assert!(cache.follow(&key(1)).expect("cannot create a file").1.is_some());
    }

    #[tokio::test]
    async fn uncached_response_uses_space_until_its_reader_is_dropped() {
        let folder = tempfile::tempdir().expect("cannot create a folder");
        let cache = PackCache::new(folder.path().to_owned(), 1_000);
        let (first, writer) = cache.follow(&key(1)).expect("cannot create a file");
        let mut cached = writer.expect("the first caller gets the writer");
        cached.write(&[1; 400]).expect("cannot write");
        cached.finish(PackStatus::Complete);
        drop(first);
        let (reader, mut writer) = cache.spool().expect("cannot create a file");
        assert!(writer.write(&[7; 500]).expect("cannot write"));
        assert_eq!(cache.load(), (900, 1_000));
        assert!(writer.write(&[7; 500]).expect("cannot write"));
        assert_eq!(cache.load(), (1_000, 1_000), "the cached response was evicted");
        assert!(!cache.is_full());
        assert!(writer.write(&[7; limits::MIN_SPOOLED_RESPONSE_BYTES as usize]).expect("cannot write"));
        assert!(cache.is_full());
        writer.finish(PackStatus::Complete);
        assert_eq!(read_all(reader).await.1, PackStatus::Complete);
        assert_eq!(cache.load(), (0, 1_000));

        let (reader, mut writer) = cache.spool().expect("cannot create a file");
        drop(reader);
        assert!(!writer.write(b"abc").expect("cannot write"), "the response has no reader");
        drop(writer);
        assert_eq!(cache.load(), (0, 1_000));
    }

    #[tokio::test]
    async fn least_recently_used_responses_are_evicted() {
        let folder = tempfile::tempdir().expect("cannot create a folder");
        let cache = PackCache::new(folder.path().to_owned(), 1_000);
        for request in 0..10 {
            let (_reader, writer) = cache.follow(&key(request)).expect("cannot create a file");
            let mut writer = writer.expect("the first caller gets the writer");
            writer.write(&[1; 400]).expect("cannot write");
            writer.finish(PackStatus::Complete);
        }
        assert!(cache.used.load(Ordering::Relaxed) <= 1_000);
        assert!(cache.follow(&key(9)).expect("cannot create a file").1.is_none(), "the newest response is cached");
        assert!(cache.follow(&key(0)).expect("cannot create a file").1.is_some(), "the oldest response was evicted");
    }
}
