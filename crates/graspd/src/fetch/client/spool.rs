//! A pack while it is received, in a folder of its own outside the repositories.

use std::sync::Arc;

use grasp_git::layout::Layout;
use grasp_git::receive::{PackData, PackError, PackLimits, PackSink, Quarantine};

use super::local_objects::LocalObjects;
use super::{FetchError, blocking};
use crate::monitor::disk_budget::DiskReservation;

/// Number of bytes that are buffered before they are written to disk.
pub(super) const WRITE_CHUNK_BYTES: usize = 512 * 1024;

/// A completely received pack that is not checked yet.
pub(super) struct SpooledPack {
    pub(super) pack: Quarantine,
    pub(super) received: PackData,
    /// Its share of the disk budget until it is known whether the pack is kept.
    pub(super) share: DiskReservation,
}

/// A pack that is being received. Dropping it deletes it.
pub(super) struct PackSpool {
    /// Sink and folder move together, so that no write happens in a folder that is being deleted.
    inner: Option<(PackSink, Quarantine)>,
    layout: Arc<Layout>,
    reserve_bytes: u64,
    share: DiskReservation,
    buffer: Vec<u8>,
}

impl PackSpool {
    /// Creates a spool for a pack of at most `max_bytes`.
    pub(super) async fn new(local_objects: &LocalObjects, max_bytes: u64) -> Result<Self, FetchError> {
        let limits = PackLimits { max_bytes, ..local_objects.limits };
        let layout = local_objects.layout.clone();
        let create =
            move || Quarantine::create(&layout).map(|quarantine| (PackSink::new(&quarantine, limits), quarantine));
        let inner = blocking(create).await?.map_err(PackError::from)?;
        Ok(Self {
            inner: Some(inner),
            layout: local_objects.layout.clone(),
            reserve_bytes: local_objects.reserve_bytes,
            share: local_objects.budget.reserve(),
            buffer: Vec::new(),
        })
    }

    /// Returns the buffer for the next bytes.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Writes the buffer to disk if it is large enough.
    pub(super) async fn flush_if_full(&mut self) -> Result<(), FetchError> {
        if self.buffer.len() >= WRITE_CHUNK_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Ends the pack.
    pub(super) async fn finish(mut self) -> Result<SpooledPack, FetchError> {
        self.flush().await?;
        let (sink, pack) = self.inner.take().ok_or_else(spool_failed)?;
        Ok(SpooledPack { pack, received: sink.finish()?, share: self.share })
    }

    async fn flush(&mut self) -> Result<(), FetchError> {
        let (mut sink, quarantine) = self.inner.take().ok_or_else(spool_failed)?;
        let bytes = std::mem::take(&mut self.buffer);
        if !self.share.grow(bytes.len()) {
            return Err(PackError::DiskFull.into());
        }
        let (layout, reserve) = (self.layout.clone(), self.reserve_bytes);
        let write = move || {
            // Small packs are always accepted; large ones must not use the disk space reserved for events.
            if bytes.len() >= WRITE_CHUNK_BYTES && layout.free_bytes()? < reserve {
                return Err(PackError::DiskFull);
            }
            sink.write(&bytes)?;
            Ok((sink, quarantine))
        };
        self.inner = Some(blocking(write).await??);
        Ok(())
    }
}

fn spool_failed() -> FetchError {
    FetchError::local("an earlier write of the pack failed")
}
