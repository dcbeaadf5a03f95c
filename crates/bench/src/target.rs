//! The relay under test.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};
use tokio_tungstenite::tungstenite::http::Uri;

use crate::process::Process;

/// Which relay a measurement is about.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where it listens.
    pub url: RelayUrl,
    /// What result lines call it.
    pub name: String,
    /// Its process, when it runs on this machine and its costs are wanted.
    pub process: Option<Process>,
}

/// The address of a relay without TLS. Encryption would be measured along with the relay, and the relays that are
/// worth comparing run on the loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayUrl {
    text: String,
    /// Host and port, as a socket wants them.
    pub address: String,
}

impl FromStr for RelayUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let uri: Uri = text.parse().with_context(|| format!("{text} is not an address"))?;
        if uri.scheme_str() != Some("ws") {
            bail!("{text} does not start with ws://");
        }
        let host = uri.host().with_context(|| format!("{text} names no host"))?;
        Ok(Self { address: format!("{host}:{}", uri.port_u16().unwrap_or(80)), text: text.into() })
    }
}

impl fmt::Display for RelayUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_websocket_addresses() {
        let address = |text: &str| text.parse::<RelayUrl>().map(|url| url.address).ok();
        assert_eq!(address("ws://127.0.0.1:7777"), Some("127.0.0.1:7777".into()));
        assert_eq!(address("ws://localhost/inbox"), Some("localhost:80".into()));
        assert_eq!(address("ws://[::1]:7777/"), Some("[::1]:7777".into()));
        assert_eq!(address("wss://relay.example.com"), None);
        assert_eq!(address("relay.example.com"), None);
    }
}
