//! `graspd key` and `graspd event`: enough to test a server without another program. For daily work use ngit.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use anyhow::{anyhow, bail};
use clap::Args;
use futures_util::{SinkExt, StreamExt};
use grasp_core::net::{AddressPolicy, OutboundUrl, UrlPurpose};
use grasp_core::nostr::rejection::SUPERSEDED_PREFIX;
use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::nips::nip19::ToBech32;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::{CommandError, print_json, print_line, print_result};
use crate::admin::client::command_runtime;
use crate::clock::Clock;
use crate::net::dialer::Dialer;

/// Maximum time for publishing an event to a relay.
const RELAY_TIMEOUT: Duration = Duration::from_secs(20);

/// Generate a key for tests, or show the public key of one
///
/// Prints the public key (npub) of the secret key in a file. If the file does not exist, a new key is generated and
/// stored there, readable by you only. It is meant for tests: for other purposes use your own key, in a program that is
/// made for it.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    npub=$(graspd key me.nsec)          the public key; generates a key if the file does not exist\n  \
    graspd key me.nsec --json           the public key as npub and as hex")]
pub(super) struct KeyArgs {
    /// File of the secret key
    file: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl KeyArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let keys = match read_key(&self.file) {
            Err(CommandError::Failed(_)) if !self.file.exists() => generate_key(&self.file)?,
            other => other?,
        };
        let npub = keys.public_key().to_bech32().map_err(|problem| CommandError::Failed(problem.to_string()))?;
        print_result(self.json, &json!({ "npub": npub, "hex": keys.public_key().to_hex() }), |_| npub)
    }
}

/// Sign an event, and optionally publish it
///
/// Signs an event with the key in a file (see `graspd key`). With --to it is published to that relay: its id is
/// printed, the relay's message goes to standard error, and the command fails if the relay rejects the event, or does
/// not store it because another version of the event has precedence. Without --to the event is printed.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd event --key me.nsec --kind 30617 --tag d=hello --tag clone=$url --tag relays=ws://127.0.0.1:7334 \\\n      \
    --to ws://127.0.0.1:7334                                   announce a repository\n  \
    graspd event --key me.nsec --kind 1 --content hello        print a signed note")]
pub(super) struct EventArgs {
    /// File of the secret key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Kind of the event
    #[arg(long, value_name = "NUMBER")]
    kind: u16,
    /// A tag; can be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    tag: Vec<String>,
    /// Content of the event
    #[arg(long, value_name = "TEXT", default_value = "")]
    content: String,
    /// Publish the event to this relay (ws:// or wss://)
    #[arg(long, value_name = "RELAY")]
    to: Option<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl EventArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let keys = read_key(&self.key)?;
        let mut tags = Vec::new();
        for text in &self.tag {
            let invalid_tag = || CommandError::Usage(format!("`{text}` is not a tag of the form NAME=VALUE"));
            let (name, value) = text.split_once('=').ok_or_else(invalid_tag)?;
            tags.push(Tag::parse([name, value]).map_err(|_| invalid_tag())?);
        }
        let event = EventBuilder::new(Kind::Custom(self.kind), self.content)
            .tags(tags)
            .custom_created_at(nostr::types::Timestamp::from(Clock::start().wall().0))
            .finalize(&keys)
            .map_err(|problem| CommandError::Failed(format!("cannot sign the event: {problem}")))?;
        let Some(relay) = self.to else { return print_line(event.as_json()) };
        let (accepted, message) = command_runtime()?.block_on(publish(&relay, &event))?;
        if !accepted {
            return Err(CommandError::Failed(format!("the relay rejected the event: {message}")));
        }
        if message.starts_with(SUPERSEDED_PREFIX) {
            return Err(CommandError::Failed(format!("the relay did not store the event: {message}")));
        }
        let id = event.id.to_hex();
        if self.json {
            return print_json(&json!({ "id": id, "answer": message }));
        }
        if !message.is_empty() {
            eprintln!("{message}");
        }
        print_line(id)
    }
}

fn read_key(path: &Path) -> Result<Keys, CommandError> {
    let text = fs::read_to_string(path)
        .map_err(|problem| CommandError::Failed(format!("cannot read the key in {}: {problem}", path.display())))?;
    // The cause is left out, because it can contain a part of the key.
    Keys::parse(text.trim())
        .map_err(|_| CommandError::Usage(format!("{} does not contain a secret key", path.display())))
}

fn generate_key(path: &Path) -> Result<Keys, CommandError> {
    let keys = Keys::generate();
    let write = || -> io::Result<()> {
        let secret = keys.secret_key().to_bech32().map_err(io::Error::other)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{secret}")?;
        file.sync_all()
    };
    write().map_err(|problem| CommandError::Failed(format!("cannot write a key to {}: {problem}", path.display())))?;
    Ok(keys)
}

/// Publishes an event to a relay. Returns whether the relay accepted it, and the relay's message.
async fn publish(relay: &str, event: &Event) -> Result<(bool, String), CommandError> {
    let failed = |problem: anyhow::Error| CommandError::Failed(format!("{relay}: {problem}"));
    let target = OutboundUrl::parse(relay, UrlPurpose::Relay, AddressPolicy::Any)
        .map_err(|why| CommandError::Usage(format!("{relay}: {why}; give a URL such as ws://127.0.0.1:7334")))?;
    let dialer = Dialer::new(AddressPolicy::Any).map_err(failed)?;
    let exchange = async {
        let route = dialer.route(target.clone()).await?;
        let stream = dialer.connect(&route).await?;
        let (mut socket, _) = tokio_tungstenite::client_async(target.to_string(), stream).await?;
        socket.send(Message::text(format!("[\"EVENT\",{}]", event.as_json()))).await?;
        let id = event.id.to_hex();
        while let Some(message) = socket.next().await {
            let Message::Text(text) = message? else { continue };
            let answer: Value = serde_json::from_str(&text).unwrap_or_default();
            if answer[0] == "OK" && answer[1] == id.as_str() {
                let _ = socket.close(None).await;
                return Ok((answer[2] == true, answer[3].as_str().unwrap_or_default().to_owned()));
            }
        }
        bail!("the relay closed the connection without an OK message")
    };
    let late = |_| anyhow!("the relay did not answer in time");
    timeout(RELAY_TIMEOUT, exchange).await.map_err(late).flatten().map_err(failed)
}
