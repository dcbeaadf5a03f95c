//! The relay under test.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};
use clap::Args;
use tokio_tungstenite::tungstenite::http::Uri;

use crate::process::Process;

/// A relay to measure.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Address of the relay, without TLS
    #[arg(long, value_name = "ws://HOST:PORT")]
    pub url: RelayUrl,
    /// Process id of the relay: adds its CPU time and memory to the results
    #[arg(id = "pid", long = "pid", value_name = "PID", value_parser = parse_pid)]
    pub process: Option<Process>,
    /// Name of the relay in the results
    #[arg(long, default_value = "relay")]
    pub name: String,
}

fn parse_pid(text: &str) -> Result<Process, ParseIntError> {
    text.parse().map(Process::Pid)
}

/// URL of a relay without TLS. TLS is not supported because its cost would be measured along with the relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayUrl {
    text: String,
    /// Host and port, as `TcpStream::connect` takes them.
    pub address: String,
}

impl FromStr for RelayUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let uri: Uri = text.parse().with_context(|| format!("{text} is not a URL"))?;
        if uri.scheme_str() != Some("ws") {
            bail!("{text} is not supported; the URL must start with ws://");
        }
        let host = uri.host().with_context(|| format!("{text} has no host"))?;
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
    fn only_plain_websocket_urls_are_accepted() {
        let address = |text: &str| text.parse::<RelayUrl>().map(|url| url.address).ok();
        assert_eq!(address("ws://127.0.0.1:7777"), Some("127.0.0.1:7777".into()));
        assert_eq!(address("ws://localhost/inbox"), Some("localhost:80".into()));
        assert_eq!(address("ws://[::1]:7777/"), Some("[::1]:7777".into()));
        assert_eq!(address("wss://relay.example.com"), None);
        assert_eq!(address("relay.example.com"), None);
    }
}
