//! Texts for failed TLS handshakes. Those of the TLS library contain the names of its types.

use std::io;

use tokio_rustls::rustls::{CertificateError, Error};

/// Describes an error of a TLS handshake in words.
pub(crate) fn tls_problem(problem: &io::Error) -> String {
    match problem.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(error) => describe(error),
        None => problem.to_string(),
    }
}

fn describe(error: &Error) -> String {
    let text = match error {
        Error::InvalidCertificate(error) => return describe_certificate(error),
        Error::NoCertificatesPresented => "the server sent no certificate",
        Error::InvalidMessage(_) => "the server does not use TLS at this port, or sends invalid messages",
        Error::PeerIncompatible(_) => "the server supports no TLS version or cipher that graspd supports",
        Error::PeerMisbehaved(_) => "the server violates the TLS protocol",
        Error::AlertReceived(alert) => {
            return format!("the server ended the handshake with the alert \"{}\"", words(&format!("{alert:?}")));
        }
        other => return other.to_string(),
    };
    text.to_owned()
}

fn describe_certificate(error: &CertificateError) -> String {
    let text = match error {
        CertificateError::UnknownIssuer => {
            "the certificate is not signed by a known authority: it is self-signed, or the server does not send the \
             certificates between it and the authority"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "the certificate has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet, or the clock of this machine is wrong"
        }
        CertificateError::NotValidForNameContext { expected, presented } if !presented.is_empty() => {
            let names: Vec<&str> = presented.iter().map(|name| plain_name(name)).collect();
            return format!("the certificate is not for {} but for {}", expected.to_str(), names.join(", "));
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the certificate is for another name"
        }
        CertificateError::Revoked => "the certificate is revoked",
        CertificateError::BadEncoding | CertificateError::BadSignature => "the certificate is damaged",
        other => return format!("the certificate is invalid ({})", words(&format!("{other:?}"))),
    };
    text.to_owned()
}

/// Returns the name in a text such as `DnsName("code.example")`.
fn plain_name(text: &str) -> &str {
    text.split('"').nth(1).unwrap_or(text)
}

/// Returns the words of a name such as `HandshakeFailure`, in lower case.
fn words(name: &str) -> String {
    let name = name.split(|letter: char| !letter.is_ascii_alphanumeric()).next().unwrap_or_default();
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::AlertDescription;
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::*;

    #[test]
    fn texts_contain_no_type_names() {
        let other_name = CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("code.example").expect("a name"),
            presented: vec!["DnsName(\"other.example\")".to_owned(), "DnsName(\"*.other.example\")".to_owned()],
        };
        for (error, text) in [
            (
                Error::InvalidCertificate(other_name),
                "the certificate is not for code.example but for other.example, *.other.example",
            ),
            (Error::InvalidCertificate(CertificateError::Expired), "the certificate has expired"),
            (
                Error::InvalidCertificate(CertificateError::InvalidPurpose),
                "the certificate is invalid (invalid purpose)",
            ),
            (
                Error::AlertReceived(AlertDescription::HandshakeFailure),
                "the server ended the handshake with the alert \"handshake failure\"",
            ),
        ] {
            assert_eq!(tls_problem(&io::Error::new(io::ErrorKind::InvalidData, error)), text);
        }
        assert_eq!(tls_problem(&io::Error::other("closed")), "closed");
    }
}
