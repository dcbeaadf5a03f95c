//! Receives packs into quarantine folders: those of pushes, and those of fetches from other servers.

use std::io;
use std::sync::Arc;

use grasp_git::layout::Layout;
use grasp_git::receive::{PackData, PackError, PackLimits, PackSink, Quarantine};

use crate::monitor::disk_budget::{DiskBudgetTracker, DiskReservation};

/// Bytes of a pack that are buffered before they are written to disk.
pub(crate) const WRITE_CHUNK_BYTES: usize = 512 * 1024;

/// Receives packs within the disk budget.
#[derive(Clone)]
pub(crate) struct PackReceiver {
    layout: Arc<Layout>,
    disk_budget: Arc<DiskBudgetTracker>,
    /// Free disk space below which no large pack is received.
    reserve_bytes: u64,
}

/// Reason why a pack could not be received.
#[derive(Debug)]
pub(crate) enum SpoolError {
    /// The disk budget is used up.
    BudgetUsedUp,
    /// The task that writes the pack has panicked or was cancelled.
    TaskFailed,
    Pack(PackError),
}

impl From<PackError> for SpoolError {
    fn from(error: PackError) -> Self {
        Self::Pack(error)
    }
}

impl From<io::Error> for SpoolError {
    fn from(error: io::Error) -> Self {
        Self::Pack(error.into())
    }
}

/// A completely received pack that is not checked yet.
pub(crate) struct SpooledPack {
    pub(crate) pack: Quarantine,
    pub(crate) received: PackData,
    /// Its share of the disk budget until it is known whether the pack is kept.
    pub(crate) share: DiskReservation,
}

/// A pack that is being received, in memory if it is small, otherwise in a file. Dropping it deletes it.
pub(crate) struct PackSpool {
    /// Sink and folder move together, so that no write happens in a folder that is being deleted. `None` after a failed
    /// write.
    inner: Option<(PackSink, Quarantine)>,
    receiver: PackReceiver,
    share: DiskReservation,
    buffer: Vec<u8>,
}

impl PackReceiver {
    pub(crate) fn new(layout: Arc<Layout>, disk_budget: Arc<DiskBudgetTracker>, reserve_bytes: u64) -> Self {
        Self { layout, disk_budget, reserve_bytes }
    }

    /// Creates the folder of a new pack.
    pub(crate) async fn start(&self, limits: PackLimits) -> Result<PackSpool, SpoolError> {
        let layout = self.layout.clone();
        let create =
            move || Quarantine::create(&layout).map(|quarantine| (PackSink::new(&quarantine, limits), quarantine));
        let inner = tokio::task::spawn_blocking(create).await.map_err(|_| SpoolError::TaskFailed)??;
        let share = self.disk_budget.reserve();
        Ok(PackSpool { inner: Some(inner), receiver: self.clone(), share, buffer: Vec::new() })
    }
}

impl PackSpool {
    /// Returns the buffer for the next bytes.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Writes the buffer to disk if it is large enough.
    pub(crate) async fn flush_if_full(&mut self) -> Result<(), SpoolError> {
        if self.buffer.len() >= WRITE_CHUNK_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Ends the pack.
    pub(crate) async fn finish(mut self) -> Result<SpooledPack, SpoolError> {
        self.flush().await?;
        let (sink, pack) = self.inner.take().ok_or_else(spool_failed)?;
        Ok(SpooledPack { pack, received: sink.finish()?, share: self.share })
    }

    async fn flush(&mut self) -> Result<(), SpoolError> {
        let (mut sink, quarantine) = self.inner.take().ok_or_else(spool_failed)?;
        let bytes = std::mem::take(&mut self.buffer);
        if !self.share.grow(bytes.len()) {
            return Err(SpoolError::BudgetUsedUp);
        }
        let PackReceiver { layout, reserve_bytes, .. } = self.receiver.clone();
        let write = move || {
            // Small packs are always accepted; large ones must not use the disk space reserved for events.
            if bytes.len() >= WRITE_CHUNK_BYTES && layout.free_bytes()? < reserve_bytes {
                return Err(PackError::DiskFull);
            }
            sink.write(&bytes)?;
            Ok((sink, quarantine))
        };
        self.inner = Some(tokio::task::spawn_blocking(write).await.map_err(|_| SpoolError::TaskFailed)??);
        Ok(())
    }
}

fn spool_failed() -> io::Error {
    io::Error::other("an earlier write of the pack failed")
}
