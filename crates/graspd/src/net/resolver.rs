//! From a host name to addresses.

use std::future::Future;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::limits;
use tokio::sync::{Semaphore, oneshot};

/// The answer of a resolver, to come.
pub(crate) type ResolveFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Whoever knows addresses. Tests have their own.
pub(crate) trait Resolver: Send + Sync {
    /// The addresses of a host name.
    fn resolve<'a>(&'a self, name: &'a str) -> ResolveFuture<'a>;
}

/// The system's resolver.
pub(crate) struct SystemResolver {
    /// Each place is a thread that waits for the resolver, also after the caller has gone.
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
            // A thread of its own, not one of the runtime's: at the end the runtime would wait for a silent resolver.
            std::thread::Builder::new().name("lookup".to_owned()).spawn(move || {
                let found = (name.as_str(), 0).to_socket_addrs();
                let _ = sender.send(found.map(|found| found.map(|address| address.ip()).collect()));
                drop(permit);
            })?;
            answer.await.map_err(io::Error::other)?
        })
    }
}
