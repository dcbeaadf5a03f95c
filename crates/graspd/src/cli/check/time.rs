//! Clock, and validity of certificates.

use std::time::Duration;

use grasp_core::net::OutboundHost;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};

/// Upper bound of the validity of a certificate, in days.
const MAX_DAYS: u64 = 900;

const DAY: u64 = 86_400;

/// Returns the number of whole days for which a certificate chain stays valid, up to [`MAX_DAYS`].
pub(super) fn days_left(
    roots: RootCertStore,
    chain: &[CertificateDer<'_>],
    host: &OutboundHost,
    now: u64,
) -> Option<u64> {
    let (first, others) = chain.split_first()?;
    let name = match host {
        OutboundHost::Name(name) => ServerName::try_from(name.clone()).ok()?,
        OutboundHost::Address(address) => ServerName::IpAddress((*address).into()),
    };
    let provider = std::sync::Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().ok()?;
    let is_good = |days: u64| {
        let at = UnixTime::since_unix_epoch(Duration::from_secs(now + days * DAY));
        verifier.verify_server_cert(first, others, &name, &[], at).is_ok()
    };
    // Binary search for the first day on which the chain is invalid.
    let (mut good, mut bad) = (0, MAX_DAYS);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if is_good(middle) { good = middle } else { bad = middle }
    }
    is_good(0).then_some(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// End of the validity of the test certificate.
    const END: u64 = 4_948_399_485;

    #[test]
    fn days_until_certificate_expiry_are_counted() {
        let read = |bytes: &'static [u8]| CertificateDer::from(bytes);
        let authority = read(include_bytes!("../../net/certificates/authority.der"));
        let chain = [read(include_bytes!("../../net/certificates/relay.test.der"))];
        let left = |name: &str, now: u64| {
            let mut roots = RootCertStore::empty();
            roots.add(authority.clone()).expect("a certificate");
            days_left(roots, &chain, &OutboundHost::Name(name.to_owned()), now)
        };
        assert_eq!(left("relay.test", END - 10 * DAY - 3_600), Some(10));
        assert_eq!(left("relay.test", END - DAY / 2), Some(0));
        assert_eq!(left("relay.test", END + 1), None);
        assert_eq!(left("other.test", END - 10 * DAY), None);
        assert_eq!(left("relay.test", END - 10_000 * DAY), Some(MAX_DAYS - 1));
    }
}
