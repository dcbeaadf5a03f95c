//! Resolution of host names.

use std::future::Future;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::limits;
use tokio::sync::{Semaphore, oneshot};

/// Future of a lookup.
pub(crate) type ResolveFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Resolves host names. Tests have their own implementation.
pub(crate) trait Resolver: Send + Sync {
    /// Returns the addresses of a host name.
    fn resolve<'a>(&'a self, name: &'a str) -> ResolveFuture<'a>;
}

/// The system's resolver.
pub(crate) struct SystemResolver {
    /// Limits the number of lookup threads. A thread holds its permit until the lookup ends, even if the caller has
    /// gone.
    permits: Arc<Semaphore>,
}

impl SystemResolver {
    pub(crate) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(limits::MAX_DNS_LOOKUPS)) }
    }
}

impl Resolver for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> ResolveFuture<'a> {
        Box::pin(async move {
            let permit = self.permits.clone().acquire_owned().await.map_err(io::Error::other)?;
            let (sender, answer) = oneshot::channel();
            let name = name.to_owned();
            // Not a blocking thread of the runtime, because the runtime would wait for a slow lookup at shutdown.
            std::thread::Builder::new().name("lookup".to_owned()).spawn(move || {
                let found = (name.as_str(), 0).to_socket_addrs();
                let _ = sender.send(found.map(|found| found.map(|address| address.ip()).collect()));
                drop(permit);
            })?;
            answer.await.map_err(io::Error::other)?
        })
    }
}
