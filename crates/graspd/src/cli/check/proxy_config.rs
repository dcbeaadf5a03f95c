//! Configuration of reverse proxies, made from the files in deploy/ with the names of this installation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use grasp_core::repo::uses_tls;

use super::domain::host_and_port;

/// Configuration of nginx.
const NGINX: &str = include_str!("../../../../../deploy/nginx.conf");

/// Configuration of Caddy.
const CADDY: &str = include_str!("../../../../../deploy/Caddyfile");

/// The reverse proxy that responds, as far as its headers show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProxyKind {
    Nginx,
    Caddy,
    Unknown,
}

impl ProxyKind {
    /// Recognises a proxy by the `Server` and `Via` headers of a response.
    pub(super) fn from_headers(headers: &str) -> Self {
        let headers = headers.to_ascii_lowercase();
        if headers.contains("nginx") || headers.contains("openresty") {
            Self::Nginx
        } else if headers.contains("caddy") {
            Self::Caddy
        } else {
            Self::Unknown
        }
    }

    /// Returns the directives for this proxy, or for both.
    pub(super) fn directives(self, nginx: &str, caddy: &str) -> String {
        match self {
            Self::Nginx => format!("nginx: {nginx}"),
            Self::Caddy => format!("Caddy: {caddy}"),
            Self::Unknown => format!("nginx: {nginx}\nCaddy: {caddy}"),
        }
    }

    /// Returns the complete configurations for this proxy, or for both.
    pub(super) fn sites(self, site: &ProxySite<'_>) -> Vec<(&'static str, String)> {
        let nginx = || ("nginx", site.nginx());
        let caddy = || ("Caddy", site.caddy());
        match self {
            Self::Nginx => vec![nginx()],
            Self::Caddy => vec![caddy()],
            Self::Unknown => vec![nginx(), caddy()],
        }
    }
}

/// What a proxy has to serve.
pub(super) struct ProxySite<'a> {
    /// Host name or IP address, with the port if it is not the default port.
    pub(super) domain: &'a str,
    /// Empty, or `/x` if another site uses the domain too.
    pub(super) base_path: &'a str,
    /// Address at which the server listens.
    pub(super) bind: SocketAddr,
}

impl ProxySite<'_> {
    /// Returns the host and the port at which the proxy listens. A proxy without TLS cannot use the port of the server.
    fn host_and_port(&self) -> (&str, Option<&str>) {
        let (host, port) = host_and_port(self.domain);
        (host, port.filter(|port| uses_tls(self.domain) || *port != self.bind.port().to_string()))
    }

    /// The file in deploy/ consists of the lines for the `http` block, a site that redirects to TLS, and the site.
    fn nginx(&self) -> String {
        let (shared, sites) = NGINX.split_once("\nserver {").unwrap_or((NGINX, ""));
        let (redirect, site) = sites.split_once("\nserver {").unwrap_or(("", sites));
        let shared: Vec<&str> = shared.lines().skip_while(|line| line.starts_with('#') || line.is_empty()).collect();
        let shared = shared.join("\n").replace("127.0.0.1:7334", &local_address(self.bind).to_string());
        let (host, port) = self.host_and_port();
        if !self.base_path.is_empty() {
            let location = &site[site.find("    location / {").unwrap_or_default()..];
            let location = location.trim_end().trim_end_matches('}').trim_end();
            let pattern =
                format!("    location ~ ^{}(/|$) {{\n        client_max_body_size 0;", escape_pattern(self.base_path));
            let location = location.replace("    location / {", &pattern);
            return format!(
                "{shared}\n\n# Add this to the server block of {host}, whose other paths stay as they are:\n{location}\n"
            );
        }
        let site = match (uses_tls(self.domain), port) {
            (true, None) => format!("\nserver {{{redirect}\nserver {{{site}"),
            (true, Some(port)) => format!("\nserver {{{site}").replace("443 ssl", &format!("{port} ssl")),
            (false, port) => {
                let site = format!("\nserver {{{site}").replace("443 ssl", port.unwrap_or("80"));
                let lines: Vec<&str> = site.lines().filter(|line| !line.contains("ssl_certificate")).collect();
                lines.join("\n").replacen("\n\n\n", "\n\n", 1) + "\n"
            }
        };
        format!("{shared}\n{}", site.replace("code.example", host))
    }

    /// The file in deploy/ without the comments at the top, which are about containers.
    fn caddy(&self) -> String {
        let site: Vec<&str> = CADDY.lines().skip_while(|line| line.starts_with('#') || line.is_empty()).collect();
        let scheme = if uses_tls(self.domain) { "" } else { "http://" };
        let (host, port) = self.host_and_port();
        let name = format!("{scheme}{host}{}", port.map(|port| format!(":{port}")).unwrap_or_default());
        let site = site.join("\n").replace("{$GRASPD_ADDRESS:graspd:7334}", &local_address(self.bind).to_string());
        if self.base_path.is_empty() {
            return site.replace("{$NGIT_DOMAIN}", &name) + "\n";
        }
        let proxy = site.split_once("{\n").map_or(site.as_str(), |(_, inside)| inside).trim_end();
        let proxy = proxy.strip_suffix('}').unwrap_or(proxy).trim_end();
        let proxy: Vec<String> = proxy.lines().map(|line| format!("\t{line}")).collect();
        let base = self.base_path;
        format!(
            "# Add this to the site block of {name}, whose other paths stay as they are:\n\t@graspd path {base} {base}/*\n\
             \thandle @graspd {{\n{}\n\t}}\n",
            proxy.join("\n")
        )
    }
}

/// Returns the address at which a proxy on the same machine reaches the server.
pub(super) fn local_address(bind: SocketAddr) -> SocketAddr {
    let ip = match bind.ip() {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    };
    SocketAddr::new(ip, bind.port())
}

/// Returns a text in a form in which a regular expression matches exactly this text.
fn escape_pattern(text: &str) -> String {
    let escape = |letter: char| match letter.is_ascii_alphanumeric() || "/-_~".contains(letter) {
        true => letter.to_string(),
        false => format!("\\{letter}"),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(domain: &str, base_path: &str, bind: &str) -> [String; 2] {
        let site = ProxySite { domain, base_path, bind: bind.parse().expect("an address") };
        [site.nginx(), site.caddy()]
    }

    #[test]
    fn proxy_config_has_the_right_names() {
        for site in sites("git.example.org", "", "127.0.0.1:9999") {
            assert!(site.contains("git.example.org") && site.contains("127.0.0.1:9999"), "{site}");
            for left in ["code.example", ":7334", "{$"] {
                assert!(!site.contains(left), "the configuration still contains {left}: {site}");
            }
        }
        let [nginx, _] = sites("a.b", "", "0.0.0.0:80");
        assert!(
            nginx.contains("proxy_set_header X-Forwarded-For") && nginx.contains("server 127.0.0.1:80;"),
            "{nginx}"
        );
        assert!(nginx.contains("return 301 https://") && nginx.contains("listen 443 ssl;"), "{nginx}");
    }

    /// A service below a base path shares its domain with another site, which must not be replaced.
    #[test]
    fn base_path_gets_its_own_location() {
        let [nginx, caddy] = sites("code.example", "/my.grasp", "127.0.0.1:7334");
        assert!(nginx.contains("location ~ ^/my\\.grasp(/|$) {\n        client_max_body_size 0;"), "{nginx}");
        for whole_site in ["server_name", "listen ", "ssl_certificate", "location / {"] {
            assert!(!nginx.contains(whole_site), "{whole_site} in {nginx}");
        }
        assert_eq!(nginx.matches('{').count(), nginx.matches('}').count(), "{nginx}");
        assert!(nginx.contains("upstream graspd {") && nginx.contains("proxy_pass http://graspd;"), "{nginx}");
        assert!(
            caddy.contains("\t@graspd path /my.grasp /my.grasp/*\n\thandle @graspd {\n\t\treverse_proxy"),
            "{caddy}"
        );
        assert!(!caddy.contains("code.example {"), "{caddy}");
        assert_eq!(caddy.matches('{').count(), caddy.matches('}').count(), "{caddy}");
    }

    /// An IP address has no certificate, and a port is no part of a server name.
    #[test]
    fn ip_addresses_and_ports_are_handled() {
        for (domain, listen, name) in [
            ("203.0.113.5", "listen 80;", "server_name 203.0.113.5;"),
            ("[2001:db8::1]:8080", "listen 8080;", "server_name [2001:db8::1];"),
            ("localhost:8080", "listen 8080;", "server_name localhost;"),
        ] {
            let [nginx, caddy] = sites(domain, "", "127.0.0.1:7334");
            assert!(nginx.contains(listen) && nginx.contains(name), "{nginx}");
            assert!(!nginx.contains("ssl") && !nginx.contains("301"), "{nginx}");
            assert_eq!(nginx.matches('{').count(), nginx.matches('}').count(), "{nginx}");
            assert!(caddy.starts_with(&format!("http://{domain} {{")), "{caddy}");
        }
        let [nginx, caddy] = sites("127.0.0.1:7334", "", "127.0.0.1:7334");
        assert!(nginx.contains("listen 80;") && !nginx.contains("listen 7334"), "graspd uses the port: {nginx}");
        assert!(caddy.starts_with("http://127.0.0.1 {"), "{caddy}");
        let [nginx, caddy] = sites("code.example:8443", "", "127.0.0.1:7334");
        assert!(nginx.contains("listen 8443 ssl;") && nginx.contains("server_name code.example;"), "{nginx}");
        assert!(nginx.contains("/live/code.example/fullchain.pem") && !nginx.contains("listen 80"), "{nginx}");
        assert!(caddy.starts_with("code.example:8443 {"), "{caddy}");
    }

    #[test]
    fn proxy_is_recognised_by_its_headers() {
        assert_eq!(ProxyKind::from_headers("nginx/1.22.1"), ProxyKind::Nginx);
        assert_eq!(ProxyKind::from_headers("1.1 Caddy"), ProxyKind::Caddy);
        assert_eq!(ProxyKind::from_headers("cloudflare"), ProxyKind::Unknown);
    }
}
