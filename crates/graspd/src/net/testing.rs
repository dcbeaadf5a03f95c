//! What tests call instead of the world: a resolver that says what it is told, and a certificate authority of its own.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use grasp_core::net::Reach;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::dialer::Dialler;
use super::resolver::{Answer, Resolve};

/// A resolver whose answers are given one after the other; the last is repeated. Without answers it knows no name.
#[derive(Clone, Default)]
pub(crate) struct Book {
    answers: Arc<Mutex<VecDeque<Vec<IpAddr>>>>,
    asked: Arc<AtomicUsize>,
}

impl Book {
    pub(crate) fn new(answers: &[&[&str]]) -> Self {
        let read = |answer: &&[&str]| answer.iter().map(|text| text.parse().expect("an address")).collect();
        Self { answers: Arc::new(Mutex::new(answers.iter().map(read).collect())), asked: Arc::default() }
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Resolve for Book {
    fn resolve<'a>(&'a self, _: &'a str) -> Answer<'a> {
        Box::pin(async {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let mut answers = self.answers.lock().expect("nobody panicked");
            match answers.len() {
                0 => Err(io::Error::other("no such name")),
                1 => Ok(answers[0].clone()),
                _ => Ok(answers.pop_front().expect("two at least")),
            }
        })
    }
}

/// A dialler that asks this book and believes nobody.
pub(crate) fn dialler(reach: Reach, book: &Book) -> Arc<Dialler> {
    Arc::new(Dialler::with(reach, Box::new(book.clone()), RootCertStore::empty()).expect("a dialler"))
}

/// A dialler that believes the authority of the tests.
pub(crate) fn trusting(book: &Book) -> Arc<Dialler> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(&include_bytes!("certificates/authority.der")[..])).expect("a certificate");
    Arc::new(Dialler::with(Reach::Anything, Box::new(book.clone()), roots).expect("a dialler"))
}

/// The TLS of `relay.test`, which that authority has signed.
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
