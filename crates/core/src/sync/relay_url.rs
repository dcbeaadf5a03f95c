//! Canonical relay URLs. Announcements spell the same relay in different ways, and all of them become the same value.
//!
//! See `docs/design/sync.md#relay-urls-and-dialling`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Url;

use crate::limits;

/// The URL of a relay in canonical form: scheme `ws` or `wss`, host in lower case and punycode without a trailing dot,
/// no default port, no trailing slashes, no user, query or fragment. Equivalent texts become the same value.
///
/// The default value names no relay. It exists so that a record with a missing field can be parsed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RelayUrl {
    tls: bool,
    /// `host[:port][/path]`; an IPv6 host is in brackets.
    address: String,
}

impl RelayUrl {
    /// Parses a URL of an announcement or a setting. A value without a scheme is parsed as `wss`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() > limits::MAX_URL_BYTES {
            return None;
        }
        let url = if text.contains("://") { Url::parse(text) } else { Url::parse(&format!("wss://{text}")) }.ok()?;
        let tls = match url.scheme() {
            "wss" => true,
            "ws" => false,
            _ => return None,
        };
        let is_plain = url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
            && url.port() != Some(0);
        if !is_plain {
            return None;
        }
        let mut address = canonical_host(&url)?;
        // The parser has already removed the default port of the scheme.
        if let Some(port) = url.port() {
            address.push_str(&format!(":{port}"));
        }
        // All trailing slashes are removed, so that the canonical text is parsed to the same value.
        address.push_str(url.path().trim_end_matches('/'));
        let url = Self { tls, address };
        (url.to_string().len() <= limits::MAX_URL_BYTES).then_some(url)
    }

    /// Returns `host[:port][/path]`, which identifies the relay: `ws` and `wss` URLs of one address are the same relay.
    #[must_use]
    pub fn without_scheme(&self) -> &str {
        &self.address
    }

    /// Returns whether the scheme is `wss`.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Returns the same relay with the scheme `wss`, which is preferred.
    #[must_use]
    pub fn into_wss(self) -> Self {
        if self.tls {
            return self;
        }
        // An explicit port can become the default one: `ws://x:443`.
        let (authority, path) = self.address.split_at(self.address.find('/').unwrap_or(self.address.len()));
        let authority = authority.strip_suffix(":443").unwrap_or(authority);
        Self { tls: true, address: format!("{authority}{path}") }
    }

    /// Returns the host without port: a name, an IPv4 address, or an IPv6 address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.parts().0
    }

    /// Returns the port, or the default port of the scheme if the URL has none.
    #[must_use]
    pub fn port(&self) -> u16 {
        let default = if self.tls { 443 } else { 80 };
        self.parts().1.parse().unwrap_or(default)
    }

    /// Returns the path: empty, or `/x` without a trailing slash.
    #[must_use]
    pub fn path(&self) -> &str {
        self.parts().2
    }

    /// Returns the URL of the NIP-11 document.
    #[must_use]
    pub fn nip11_url(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.address)
    }

    /// Returns host, port (may be empty) and path.
    fn parts(&self) -> (&str, &str, &str) {
        let (authority, path) = self.address.split_at(self.address.find('/').unwrap_or(self.address.len()));
        if let Some((host, port)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            return (host, port.trim_start_matches(':'), path);
        }
        let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
        (host, port, path)
    }
}

/// Returns the host in canonical form. A name with an empty label is invalid.
fn canonical_host(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_whole = host.starts_with('[') || host.split('.').all(|label| !label.is_empty());
    is_whole.then_some(host)
}

impl fmt::Display for RelayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "wss" } else { "ws" }, self.address)
    }
}

impl Serialize for RelayUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RelayUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not a relay URL"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_urls_have_one_canonical_form() {
        for (text, canonical) in [
            ("wss://relay.example", "wss://relay.example"),
            ("wss://relay.example/", "wss://relay.example"),
            ("wss://relay.example//", "wss://relay.example"),
            ("WSS://Relay.EXAMPLE:443/", "wss://relay.example"),
            ("relay.example", "wss://relay.example"),
            ("  relay.example \n", "wss://relay.example"),
            ("relay.example:7777/x/", "wss://relay.example:7777/x"),
            ("wss://relay.example.", "wss://relay.example"),
            ("wss://relay.example.:8080/Path/", "wss://relay.example:8080/Path"),
            ("wss://@relay.example", "wss://relay.example"),
            ("ws://relay.example:80", "ws://relay.example"),
            ("ws://relay.example:443", "ws://relay.example:443"),
            ("wss://relay.example:80", "wss://relay.example:80"),
            ("ws://127.0.0.1:7334/", "ws://127.0.0.1:7334"),
            ("ws://0x7f.1", "ws://127.0.0.1"),
            ("ws://127.0.0.1.", "ws://127.0.0.1"),
            ("ws://[::1]:8080/", "ws://[::1]:8080"),
            ("wss://[2001:DB8::0:1]", "wss://[2001:db8::1]"),
            ("wss://bücher.example/ä", "wss://xn--bcher-kva.example/%C3%A4"),
            ("wss://relay.example/a/../b/", "wss://relay.example/b"),
            ("wss://relay.example\\x", "wss://relay.example/x"),
            ("ws://localhost", "ws://localhost"),
        ] {
            let url = RelayUrl::parse(text).expect("valid");
            assert_eq!(url.to_string(), canonical, "{text}");
            assert_eq!(RelayUrl::parse(canonical), Some(url.clone()), "{text}");
            let secure = url.into_wss();
            assert_eq!(RelayUrl::parse(&secure.to_string()), Some(secure), "{text}");
        }
    }

    #[test]
    fn invalid_relay_urls_are_rejected() {
        let long = format!("wss://relay.example/{}", "x".repeat(limits::MAX_URL_BYTES));
        // Short as written, but too long after percent encoding.
        let grown = format!("wss://relay.example/{}", "ä".repeat(200));
        for text in [
            "",
            " ",
            "wss://",
            "wss:///",
            "https://relay.example",
            "http://relay.example",
            "ftp://relay.example",
            "wss://user@relay.example",
            "wss://user:pw@relay.example",
            "wss://relay.example?x=1",
            "wss://relay.example/?",
            "wss://relay.example/#",
            "wss://relay.example#f",
            "wss://relay..example",
            "wss://relay.example..",
            "wss://.",
            "wss://.example",
            "wss://relay.example:99999",
            "wss://relay.example:0",
            "wss://re lay.example",
            "mailto:a@b.c",
            "wss:relay.example",
            "[\"wss://relay.example\"]",
            "wss://[::1",
            long.as_str(),
            grown.as_str(),
        ] {
            assert_eq!(RelayUrl::parse(text), None, "{text}");
        }
    }

    #[test]
    fn url_parts() {
        for (text, host, port, path, nip11) in [
            ("wss://a.example", "a.example", 443, "", "https://a.example"),
            ("ws://a.example/x/y", "a.example", 80, "/x/y", "http://a.example/x/y"),
            ("wss://a.example:8443/x:1", "a.example", 8443, "/x:1", "https://a.example:8443/x:1"),
            ("ws://[::1]:7334/x", "::1", 7334, "/x", "http://[::1]:7334/x"),
            ("wss://[::1]", "::1", 443, "", "https://[::1]"),
        ] {
            let url = RelayUrl::parse(text).expect("valid");
            assert_eq!((url.host(), url.port(), url.path()), (host, port, path), "{text}");
            assert_eq!(url.nip11_url(), nip11);
        }
        let none = RelayUrl::default();
        assert_eq!((none.host(), none.port(), none.path()), ("", 80, ""));
    }

    #[test]
    fn both_schemes_have_one_address() {
        let [plain, tls] = ["ws://a.example/x", "wss://a.example/x"].map(|text| RelayUrl::parse(text).expect("valid"));
        assert_eq!(plain.without_scheme(), tls.without_scheme());
        assert!(!plain.is_tls() && tls.is_tls());
        assert_eq!(plain.into_wss(), tls);
        for (text, secure) in [
            ("ws://a.example:443", "wss://a.example"),
            ("ws://a.example:443/x", "wss://a.example/x"),
            ("ws://a.example:4430/x", "wss://a.example:4430/x"),
            ("ws://a.example/x:443", "wss://a.example/x:443"),
            ("ws://[::443]", "wss://[::443]"),
            ("ws://[::1]:443", "wss://[::1]"),
            ("ws://[1:443::2]:443/x", "wss://[1:443::2]/x"),
        ] {
            let url = RelayUrl::parse(text).expect("valid").into_wss();
            assert_eq!(url.to_string(), secure);
        }
    }

    #[test]
    fn serializes_as_text() {
        let url = RelayUrl::parse("wss://a.example:1/x").expect("valid");
        let json = serde_json::to_string(&url).expect("serializes");
        assert_eq!(json, "\"wss://a.example:1/x\"");
        assert_eq!(serde_json::from_str::<RelayUrl>(&json).expect("reads"), url);
        assert!(serde_json::from_str::<RelayUrl>("\"https://a.example\"").is_err());
        assert!(serde_json::from_str::<RelayUrl>("7").is_err());
    }
}
