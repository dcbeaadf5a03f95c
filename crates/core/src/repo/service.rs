//! This service's own address, and whether a URL in an event means it.

use url::Url;

use super::announcement::Announcement;
use super::id::RepoId;
use super::repo_path::Site;
use crate::nostr::event::Event;

/// Where this service is reached: one host, optional port, optional base path (G1-16).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Service {
    host: String,
    /// `None` stands for the default ports: TLS is usually a proxy's business, so 80 and 443 are the same to us.
    port: Option<u16>,
    /// Empty, or `/x` without a trailing slash.
    base: String,
}

impl Service {
    /// Takes `host` or `host:port` (IPv6 in brackets) and a base path, empty or `/x`. `None` if that is no authority.
    #[must_use]
    pub fn new(domain: &str, base: &str) -> Option<Self> {
        if domain.is_empty() || domain.contains(['/', '@', '?', '#', '\\']) {
            return None;
        }
        let url = Url::parse(&format!("http://{domain}/")).ok()?;
        Some(Self { host: host(&url)?, port: custom_port(&url), base: base.trim_end_matches('/').to_owned() })
    }

    /// `host` or `host:port`.
    #[must_use]
    pub fn domain(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    /// Empty, or `/x`.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Whether this is our relay: `ws` or `wss`, our host and port, our base path. A value without a scheme is read as
    /// if it had one.
    #[must_use]
    pub fn is_own_relay(&self, text: &str) -> bool {
        let Some(url) = parse(text, "wss") else { return false };
        matches!(url.scheme(), "ws" | "wss")
            && self.is_own_authority(&url)
            && url.query().is_none()
            && squeezed(url.path()) == self.base
    }

    /// Whether this is our git URL of a site: `http` or `https`, our host and port, base path, owner, identifier.
    /// Repeated and trailing slashes are forgiven, as URL joiners make them.
    #[must_use]
    pub fn is_own_clone(&self, text: &str, site: &Site) -> bool {
        let Some(url) = parse(text, "https") else { return false };
        let is_plain = url.query().is_none() && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || !self.is_own_authority(&url) || !is_plain {
            return false;
        }
        let path = squeezed(url.path());
        path.strip_prefix(&self.base)
            .and_then(|path| path.strip_prefix('/'))
            .and_then(Site::from_path)
            .is_some_and(|(named, below)| named == *site && below.is_empty())
    }

    /// Whether this is a git URL of this service, whatever it names there.
    #[must_use]
    pub fn is_own_git(&self, text: &str) -> bool {
        parse(text, "https").is_some_and(|url| self.is_own_authority(&url))
    }

    /// Whether an announcement names this service in both `clone` and `relays` (G1-06).
    #[must_use]
    pub fn is_listed(&self, event: &Event, repo: &RepoId) -> bool {
        let site = Site::Announced(repo.clone());
        event.all_values("clone").any(|url| self.is_own_clone(url, &site))
            && event.all_values("relays").any(|url| self.is_own_relay(url))
    }

    /// Whether an announcement says that this service, another one's, hosts its repository.
    #[must_use]
    pub fn hosts(&self, announcement: &Announcement) -> bool {
        let site = Site::Announced(announcement.repo.clone());
        announcement.clone.iter().any(|url| self.is_own_clone(url, &site))
            && announcement.relays.iter().any(|url| self.is_own_relay(url))
    }

    fn is_own_authority(&self, url: &Url) -> bool {
        url.username().is_empty()
            && url.password().is_none()
            && host(url).as_deref() == Some(&self.host)
            && custom_port(url) == self.port
    }
}

fn parse(text: &str, scheme: &str) -> Option<Url> {
    if text.len() > 4_096 {
        return None;
    }
    if text.contains("://") { Url::parse(text).ok() } else { Url::parse(&format!("{scheme}://{text}")).ok() }
}

fn host(url: &Url) -> Option<String> {
    url.host_str().map(|host| host.trim_end_matches('.').to_ascii_lowercase()).filter(|host| !host.is_empty())
}

fn custom_port(url: &Url) -> Option<u16> {
    url.port().filter(|port| !matches!(port, 80 | 443))
}

/// The path with repeated slashes made one and without a trailing slash.
fn squeezed(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        out.push('/');
        out.push_str(segment);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::PublicKey;
    use crate::repo::Identifier;

    #[test]
    fn g1_16_the_examples_of_the_spec() {
        let service = Service::new("code.example", "/g").expect("valid");
        let repo = RepoId { owner: PublicKey([0x11; 32]), identifier: Identifier::new("a").expect("valid") };
        let npub = repo.owner.npub();
        let site = Site::Announced(repo);
        for (clone, relay, listed) in [
            ("https://code.example/g/NPUB/a.git", "wss://code.example/g", true),
            ("https://CODE.example:443/g/NPUB/a.git", "wss://code.example/g/", true),
            ("http://code.example/g//NPUB/a.git/", "ws://code.example//g", true),
            ("https://code.example/g/NPUB/%61.git", "code.example/g", true),
            ("https://code.example/NPUB/a.git", "wss://code.example/g", false),
            ("https://code.example/gg/NPUB/a.git", "wss://code.example/gg", false),
            ("https://code.example/g/NPUB/a.git", "wss://relay.other", false),
            ("https://code.example:8443/g/NPUB/a.git", "wss://code.example:8443/g", false),
            ("https://evil.tld/?x=code.example/g/NPUB/a.git", "wss://code.example/g", false),
            ("https://code.example.evil.tld/g/NPUB/a.git", "wss://code.example/g", false),
            ("https://notcode.example/g/NPUB/a.git", "wss://code.example/g", false),
            ("https://user@code.example/g/NPUB/a.git", "wss://code.example/g", false),
            ("ftp://code.example/g/NPUB/a.git", "wss://code.example/g", false),
            ("https://code.example/g/NPUB/b.git", "wss://code.example/g", false),
            ("https://code.example/g/NPUB/a.git", "https://code.example/g", false),
            ("https://code.example/g/NPUB/a.git", "wss://code.example/g?x", false),
        ] {
            let named = service.is_own_clone(&clone.replace("NPUB", &npub), &site) && service.is_own_relay(relay);
            assert_eq!(named, listed, "{clone} {relay}");
        }
    }

    #[test]
    fn ports_and_addresses() {
        for (domain, relay, own) in [
            ("127.0.0.1:7334", "ws://127.0.0.1:7334", true),
            ("127.0.0.1:7334", "ws://127.0.0.1", false),
            ("[::1]:7334", "ws://[::1]:7334/", true),
            ("code.example:443", "ws://code.example:80", true),
            ("code.example.", "wss://code.example", true),
        ] {
            assert_eq!(Service::new(domain, "").expect("valid").is_own_relay(relay), own, "{domain} {relay}");
        }
        for bad in ["", "a/b", "http://x", "u@x", "a b", "x:99999"] {
            assert_eq!(Service::new(bad, ""), None, "{bad}");
        }
    }
}
