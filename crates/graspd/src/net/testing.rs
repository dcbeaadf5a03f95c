//! Test doubles: a resolver with fixed results, and a certificate authority.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use grasp_core::net::AddressPolicy;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::dialer::Dialer;
use super::resolver::{ResolveFuture, Resolver};

/// A resolver that returns its results one after the other and repeats the last one. Without results every lookup
/// fails.
#[derive(Clone, Default)]
pub(crate) struct FakeResolver {
    answers: Arc<Mutex<VecDeque<Vec<IpAddr>>>>,
    lookups: Arc<AtomicUsize>,
}

impl FakeResolver {
    pub(crate) fn new(answers: &[&[&str]]) -> Self {
        let read = |answer: &&[&str]| answer.iter().map(|text| text.parse().expect("an address")).collect();
        Self { answers: Arc::new(Mutex::new(answers.iter().map(read).collect())), lookups: Arc::default() }
    }

    /// Returns the number of lookups.
    pub(crate) fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

impl Resolver for FakeResolver {
    fn resolve<'a>(&'a self, _: &'a str) -> ResolveFuture<'a> {
        Box::pin(async {
            self.lookups.fetch_add(1, Ordering::SeqCst);
            let mut answers = self.answers.lock().expect("the lock is not poisoned");
            match answers.len() {
                0 => Err(io::Error::other("no such name")),
                1 => Ok(answers[0].clone()),
                _ => Ok(answers.pop_front().expect("at least two results")),
            }
        })
    }
}

/// Returns a dialer with this resolver that trusts no certificate authority.
pub(crate) fn test_dialer(reach: AddressPolicy, resolver: &FakeResolver) -> Arc<Dialer> {
    Arc::new(Dialer::with_resolver(reach, Box::new(resolver.clone()), RootCertStore::empty()).expect("a dialer"))
}

/// Returns a dialer that trusts the certificate authority of the tests.
pub(crate) fn test_dialer_with_ca(resolver: &FakeResolver) -> Arc<Dialer> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(&include_bytes!("certificates/authority.der")[..])).expect("a certificate");
    Arc::new(Dialer::with_resolver(AddressPolicy::Any, Box::new(resolver.clone()), roots).expect("a dialer"))
}

/// Returns a TLS acceptor with the certificate of `relay.test`, which that authority has signed.
pub(crate) fn acceptor() -> TlsAcceptor {
    let certificate = CertificateDer::from(&include_bytes!("certificates/relay.test.der")[..]);
    let key = PrivateKeyDer::try_from(&include_bytes!("certificates/relay.test.key.der")[..]).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a pair");
    TlsAcceptor::from(Arc::new(config))
}
