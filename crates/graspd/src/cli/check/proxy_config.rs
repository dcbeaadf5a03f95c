//! Configuration of reverse proxies, made from the files in deploy/ with the names of this installation.

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
    pub(super) fn sites(self, domain: &str, bind: &str) -> Vec<(&'static str, String)> {
        let nginx = || ("nginx", nginx(domain, bind));
        let caddy = || ("Caddy", caddy(domain, bind));
        match self {
            Self::Nginx => vec![nginx()],
            Self::Caddy => vec![caddy()],
            Self::Unknown => vec![nginx(), caddy()],
        }
    }
}

fn nginx(domain: &str, bind: &str) -> String {
    NGINX.replace("code.example", domain).replace("127.0.0.1:7334", bind)
}

/// Without the comments at the top, which are about containers.
fn caddy(domain: &str, bind: &str) -> String {
    let site: Vec<&str> = CADDY.lines().skip_while(|line| line.starts_with('#') || line.is_empty()).collect();
    site.join("\n").replace("{$NGIT_DOMAIN}", domain).replace("{$GRASPD_ADDRESS:graspd:7334}", bind) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_config_has_the_right_names() {
        for (name, site) in ProxyKind::Unknown.sites("git.example.org", "127.0.0.1:9999") {
            assert!(site.contains("git.example.org") && site.contains("127.0.0.1:9999"), "{name}: {site}");
            for left in ["code.example", ":7334", "{$"] {
                assert!(!site.contains(left), "{name} still contains {left}: {site}");
            }
        }
        assert!(nginx("a.b", "c").contains("proxy_set_header X-Forwarded-For"));
    }

    #[test]
    fn proxy_is_recognised_by_its_headers() {
        assert_eq!(ProxyKind::from_headers("nginx/1.22.1"), ProxyKind::Nginx);
        assert_eq!(ProxyKind::from_headers("1.1 Caddy"), ProxyKind::Caddy);
        assert_eq!(ProxyKind::from_headers("cloudflare"), ProxyKind::Unknown);
    }
}
