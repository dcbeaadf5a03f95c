//! The pack of an answer as it comes, apart from everything that is served.

use std::sync::Arc;

use grasp_git::layout::Layout;
use grasp_git::receive::{Incoming, PackLimits, PackProblem, PackSink, Received};

use super::local_objects::LocalObjects;
use super::{FetchError, blocking};
use crate::monitor::disk_budget::Share;

/// Bytes that are gathered before they are written to disk.
pub(super) const GATHER: usize = 512 * 1024;

/// A pack that has come in whole and is not checked yet.
pub(super) struct Spooled {
    pub(super) pack: Incoming,
    pub(super) received: Received,
    /// What it takes of the disk budget, for as long as it is not known whether it stays.
    pub(super) share: Share,
}

/// A pack that is being received. Dropping it removes it.
pub(super) struct Spool {
    /// Together with its folder, so that nobody writes where somebody removes.
    inner: Option<(PackSink, Incoming)>,
    layout: Arc<Layout>,
    reserve_bytes: u64,
    share: Share,
    gathered: Vec<u8>,
}

impl Spool {
    /// A place for a pack of at most so many bytes.
    pub(super) async fn new(larder: &LocalObjects, max_bytes: u64) -> Result<Self, FetchError> {
        let limits = PackLimits { max_bytes, ..larder.limits };
        let place = larder.layout.clone();
        let create = move || Incoming::create(&place).map(|incoming| (PackSink::new(&incoming, limits), incoming));
        let inner = blocking(create).await?.map_err(PackProblem::from)?;
        Ok(Self {
            inner: Some(inner),
            layout: larder.layout.clone(),
            reserve_bytes: larder.reserve_bytes,
            share: larder.budget.share(),
            gathered: Vec::new(),
        })
    }

    /// Where the next bytes go.
    pub(super) fn gathered(&mut self) -> &mut Vec<u8> {
        &mut self.gathered
    }

    /// Writes what has been gathered, if it is worth it.
    pub(super) async fn write(&mut self) -> Result<(), FetchError> {
        if self.gathered.len() >= GATHER { self.flush().await } else { Ok(()) }
    }

    /// There is no more to come.
    pub(super) async fn finish(mut self) -> Result<Spooled, FetchError> {
        self.flush().await?;
        let (sink, pack) = self.inner.take().ok_or_else(gone)?;
        Ok(Spooled { pack, received: sink.finish()?, share: self.share })
    }

    async fn flush(&mut self) -> Result<(), FetchError> {
        let (mut sink, incoming) = self.inner.take().ok_or_else(gone)?;
        let bytes = std::mem::take(&mut self.gathered);
        if !self.share.grow(bytes.len()) {
            return Err(PackProblem::DiskFull.into());
        }
        let (layout, reserve) = (self.layout.clone(), self.reserve_bytes);
        let write = move || {
            // What is small is let through; what is large must not take the room that events need.
            if bytes.len() >= GATHER && layout.free_bytes()? < reserve {
                return Err(PackProblem::DiskFull);
            }
            sink.write(&bytes)?;
            Ok((sink, incoming))
        };
        self.inner = Some(blocking(write).await??);
        Ok(())
    }
}

fn gone() -> FetchError {
    FetchError::ours("the pack is gone")
}
