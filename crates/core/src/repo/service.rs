//! The public address of this service, and which URLs in events refer to it.

use url::Url;

use super::announcement::Announcement;
use super::id::RepoId;
use super::repo_path::RepoPath;
use crate::nostr::event::Event;

/// The public address of a GRASP service: one host, optional port, optional base path. URLs are compared by scheme,
/// host, port and path, never by substring (docs/protocol.md#listing-which-urls-name-this-service).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ServiceAddress {
    host: String,
    /// `None` for the default ports. 80 and 443 are treated as equal, because TLS usually ends at a proxy.
    port: Option<u16>,
    /// Empty, or `/x` without a trailing slash.
    base: String,
}

impl ServiceAddress {
    /// Parses `host` or `host:port` (IPv6 addresses in brackets) and a base path, which is empty or `/x`. Returns
    /// `None` if `domain` is not a valid authority.
    #[must_use]
    pub fn new(domain: &str, base: &str) -> Option<Self> {
        if domain.is_empty() || domain.contains(['/', '@', '?', '#', '\\']) {
            return None;
        }
        let url = Url::parse(&format!("http://{domain}/")).ok()?;
        Some(Self { host: host(&url)?, port: custom_port(&url), base: base.trim_end_matches('/').to_owned() })
    }

    /// Returns `host` or `host:port`.
    #[must_use]
    pub fn domain(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    /// Returns the base path: empty, or `/x`.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns the URL of the relay.
    #[must_use]
    pub fn relay_url(&self) -> String {
        let domain = self.domain();
        let scheme = if uses_tls(&domain) { "wss" } else { "ws" };
        format!("{scheme}://{domain}{}", self.base)
    }

    /// Returns the git URL of a repository.
    #[must_use]
    pub fn clone_url(&self, repo: &RepoId) -> String {
        let domain = self.domain();
        let scheme = if uses_tls(&domain) { "https" } else { "http" };
        format!("{scheme}://{domain}{}/{}", self.base, repo.path())
    }

    /// Whether the URL is the relay of this service: scheme `ws` or `wss`, same host, port and base path. A URL without
    /// a scheme is read as `wss`.
    #[must_use]
    pub fn is_own_relay_url(&self, text: &str) -> bool {
        let Some(url) = parse(text, "wss") else { return false };
        matches!(url.scheme(), "ws" | "wss")
            && self.is_own_authority(&url)
            && url.query().is_none()
            && normalized_path(url.path()) == self.base
    }

    /// Whether the URL is the git URL of `repo_path` at this service: scheme `http` or `https`, same host, port and
    /// base path, same owner and identifier. Repeated and trailing slashes are ignored, because URL joining often
    /// produces them.
    #[must_use]
    pub fn is_own_clone_url(&self, text: &str, repo_path: &RepoPath) -> bool {
        let Some(url) = parse(text, "https") else { return false };
        let is_plain = url.query().is_none() && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || !self.is_own_authority(&url) || !is_plain {
            return false;
        }
        let path = normalized_path(url.path());
        path.strip_prefix(&self.base)
            .and_then(|path| path.strip_prefix('/'))
            .and_then(RepoPath::from_path)
            .is_some_and(|(named, below)| named == *repo_path && below.is_empty())
    }

    /// Whether the URL points to this service, whatever its path.
    #[must_use]
    pub fn is_own_git_url(&self, text: &str) -> bool {
        parse(text, "https").is_some_and(|url| self.is_own_authority(&url))
    }

    /// Whether an announcement event names this service in both `clone` and `relays`.
    #[must_use]
    pub fn is_named_in(&self, event: &Event, repo: &RepoId) -> bool {
        let repo_path = RepoPath::Announced(repo.clone());
        event.all_values("clone").any(|url| self.is_own_clone_url(url, &repo_path))
            && event.all_values("relays").any(|url| self.is_own_relay_url(url))
    }

    /// Whether an announcement has a clone URL at this service, below the author's npub, whatever relays it names.
    #[must_use]
    pub fn has_clone_of(&self, announcement: &Announcement) -> bool {
        let folder = format!("{}/{}/", self.base, announcement.repo.owner.npub());
        let is_below_owner = |url: &Url| normalized_path(url.path()).starts_with(&folder);
        let is_clone_url = |url: &Url| matches!(url.scheme(), "http" | "https") && self.is_own_authority(url);
        let urls = announcement.clone.iter().filter_map(|url| parse(url, "https"));
        urls.into_iter().any(|url| is_clone_url(&url) && is_below_owner(&url))
    }

    fn is_own_authority(&self, url: &Url) -> bool {
        url.username().is_empty()
            && url.password().is_none()
            && host(url).as_deref() == Some(&self.host)
            && custom_port(url) == self.port
    }
}

/// Returns whether a service with this domain is reached with TLS: a DNS name has a proxy with a certificate; an IP
/// address or `localhost` has none.
#[must_use]
pub fn uses_tls(domain: &str) -> bool {
    let host = domain.rsplit_once(':').map_or(domain, |(host, _)| host);
    let is_literal = host.parse::<std::net::Ipv4Addr>().is_ok() || host.starts_with('[');
    !is_literal && host.contains('.')
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

/// Returns the path with repeated slashes merged and without a trailing slash.
fn normalized_path(path: &str) -> String {
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
    fn urls_are_compared_by_scheme_host_port_and_path() {
        let service = ServiceAddress::new("code.example", "/g").expect("valid");
        let repo = RepoId { owner: PublicKey([0x11; 32]), identifier: Identifier::new("a").expect("valid") };
        let npub = repo.owner.npub();
        let repo_path = RepoPath::Announced(repo);
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
            let named =
                service.is_own_clone_url(&clone.replace("NPUB", &npub), &repo_path) && service.is_own_relay_url(relay);
            assert_eq!(named, listed, "{clone} {relay}");
        }
    }

    #[test]
    fn own_urls_name_the_service() {
        let repo = RepoId { owner: PublicKey([0x11; 32]), identifier: Identifier::new("a b").expect("valid") };
        let npub = repo.owner.npub();
        for (domain, base, relay, clone) in [
            ("code.example", "", "wss://code.example", format!("https://code.example/{npub}/a%20b.git")),
            (
                "code.example:8443",
                "/g",
                "wss://code.example:8443/g",
                format!("https://code.example:8443/g/{npub}/a%20b.git"),
            ),
            ("127.0.0.1:7334", "", "ws://127.0.0.1:7334", format!("http://127.0.0.1:7334/{npub}/a%20b.git")),
            ("[::1]:7334", "", "ws://[::1]:7334", format!("http://[::1]:7334/{npub}/a%20b.git")),
            ("localhost", "", "ws://localhost", format!("http://localhost/{npub}/a%20b.git")),
        ] {
            let service = ServiceAddress::new(domain, base).expect("valid");
            assert_eq!((service.relay_url().as_str(), service.clone_url(&repo)), (relay, clone.clone()));
            assert!(service.is_own_relay_url(relay), "{relay}");
            assert!(service.is_own_clone_url(&clone, &RepoPath::Announced(repo.clone())), "{clone}");
        }
    }

    #[test]
    fn ports_and_ip_addresses_are_compared() {
        for (domain, relay, own) in [
            ("127.0.0.1:7334", "ws://127.0.0.1:7334", true),
            ("127.0.0.1:7334", "ws://127.0.0.1", false),
            ("[::1]:7334", "ws://[::1]:7334/", true),
            ("code.example:443", "ws://code.example:80", true),
            ("code.example.", "wss://code.example", true),
        ] {
            assert_eq!(
                ServiceAddress::new(domain, "").expect("valid").is_own_relay_url(relay),
                own,
                "{domain} {relay}"
            );
        }
        for bad in ["", "a/b", "http://x", "u@x", "a b", "x:99999"] {
            assert_eq!(ServiceAddress::new(bad, ""), None, "{bad}");
        }
    }
}
