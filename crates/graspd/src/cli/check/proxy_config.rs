//! The lines of proxies, from the files that come with graspd, with the right names in them.

/// A site for nginx.
const NGINX: &str = include_str!("../../../../../deploy/nginx.conf");

/// A site for Caddy.
const CADDY: &str = include_str!("../../../../../deploy/Caddyfile");

/// Which proxy answers, as far as it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Proxy {
    Nginx,
    Caddy,
    Unknown,
}

impl Proxy {
    /// Reads `Server` and `Via` of an answer.
    pub(super) fn of(words: &str) -> Self {
        let words = words.to_ascii_lowercase();
        if words.contains("nginx") || words.contains("openresty") {
            Self::Nginx
        } else if words.contains("caddy") {
            Self::Caddy
        } else {
            Self::Unknown
        }
    }

    /// What to write for this one, or for either.
    pub(super) fn either(self, nginx: &str, caddy: &str) -> String {
        match self {
            Self::Nginx => format!("nginx: {nginx}"),
            Self::Caddy => format!("Caddy: {caddy}"),
            Self::Unknown => format!("nginx: {nginx}\nCaddy: {caddy}"),
        }
    }

    /// The whole sites that fit.
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

/// Without the words at its top, which are about containers.
fn caddy(domain: &str, bind: &str) -> String {
    let site: Vec<&str> = CADDY.lines().skip_while(|line| line.starts_with('#') || line.is_empty()).collect();
    site.join("\n").replace("{$NGIT_DOMAIN}", domain).replace("{$GRASPD_ADDRESS:graspd:7334}", bind) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_filled_in() {
        for (name, site) in Proxy::Unknown.sites("git.example.org", "127.0.0.1:9999") {
            assert!(site.contains("git.example.org") && site.contains("127.0.0.1:9999"), "{name}: {site}");
            for left in ["code.example", ":7334", "{$"] {
                assert!(!site.contains(left), "{name} still says {left}: {site}");
            }
        }
        assert!(nginx("a.b", "c").contains("proxy_set_header X-Forwarded-For"));
    }

    #[test]
    fn proxies_are_known_by_their_words() {
        assert_eq!(Proxy::of("nginx/1.22.1"), Proxy::Nginx);
        assert_eq!(Proxy::of("1.1 Caddy"), Proxy::Caddy);
        assert_eq!(Proxy::of("cloudflare"), Proxy::Unknown);
    }
}
