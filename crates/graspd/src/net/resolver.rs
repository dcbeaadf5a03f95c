//! From a host name to addresses.

use std::future::Future;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;

use grasp_core::limits;
use tokio::sync::{Semaphore, oneshot};

/// The answer of a resolver, to come.
pub(crate) type Answer<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Whoever knows addresses. Tests have their own.
pub(crate) trait Resolve: Send + Sync {
    /// The addresses of a host name.
    fn resolve<'a>(&'a self, name: &'a str) -> Answer<'a>;
}

/// The system's resolver.
pub(crate) struct System {
    /// Each place is a thread that waits for the resolver, also after the caller has gone.
    places: Arc<Semaphore>,
}

impl System {
    pub(crate) fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(limits::MAX_LOOKUPS)) }
    }
}

impl Resolve for System {
    fn resolve<'a>(&'a self, name: &'a str) -> Answer<'a> {
        Box::pin(async move {
            let place = self.places.clone().acquire_owned().await.map_err(io::Error::other)?;
            let (tell, answer) = oneshot::channel();
            let name = name.to_owned();
            // A thread of its own, not one of the runtime's: at the end the runtime would wait for a silent resolver.
            std::thread::Builder::new().name("lookup".to_owned()).spawn(move || {
                let found = (name.as_str(), 0).to_socket_addrs();
                let _ = tell.send(found.map(|found| found.map(|address| address.ip()).collect()));
                drop(place);
            })?;
            answer.await.map_err(io::Error::other)?
        })
    }
}
