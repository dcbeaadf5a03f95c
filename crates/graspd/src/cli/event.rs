//! `graspd key` and `graspd event`: enough to try a server by hand, without another program. For daily work there is ngit.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use futures_util::{SinkExt, StreamExt};
use grasp_core::net::{Purpose, Reach, Target};
use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::nips::nip19::ToBech32;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::{Context, Failure, json_argument, say};
use crate::net::dialer::Dialler;

/// How long a relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn key_command() -> Command {
    Command::new("key")
        .about("Make a key for trying things out, or show whose key it is")
        .long_about(
            "Prints the public key (npub) of the secret key in a file. If there is no such file, a new key is made and kept \
             there, readable by you alone. For anything that lasts use the key that you have, in a program made for it.",
        )
        .after_long_help(
            "Examples:\n  \
             npub=$(graspd key me.nsec)          who I am, and if need be a new key\n  \
             graspd key me.nsec --json           the same as hex, too",
        )
        .arg(Arg::new("file").value_name("FILE").help("Where the secret key is kept").required(true))
        .arg(json_argument())
}

pub(super) fn run_key(_: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let path = Path::new(required(arguments, "file"));
    let keys = match read(path) {
        Err(Failure::Failed(_)) if !path.exists() => make(path)?,
        other => other?,
    };
    let npub = keys.public_key().to_bech32().map_err(|problem| Failure::Failed(problem.to_string()))?;
    if arguments.get_flag("json") {
        return say(json!({ "npub": npub, "hex": keys.public_key().to_hex() }));
    }
    say(npub)
}

pub(super) fn event_command() -> Command {
    Command::new("event")
        .about("Sign an event, and publish it")
        .long_about(
            "Signs an event with the key in a file (see `graspd key`). With --to it is published there: its id is printed, what \
             the relay says about it goes to standard error, and a refusal is a failure. Without, the event itself is printed.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd event --key me.nsec --kind 30617 --tag d=hello --tag clone=$url --tag relays=ws://127.0.0.1:7334 \\\n      \
             --to ws://127.0.0.1:7334                                   announce a repository\n  \
             graspd event --key me.nsec --kind 1 --content hello        print a signed note",
        )
        .arg(Arg::new("key").long("key").value_name("FILE").help("Where the secret key is kept").required(true))
        .arg(
            Arg::new("kind")
                .long("kind")
                .value_name("NUMBER")
                .help("The kind of the event")
                .value_parser(value_parser!(u16))
                .required(true),
        )
        .arg(
            Arg::new("tag")
                .long("tag")
                .value_name("NAME=VALUE")
                .help("A tag; as many as are needed")
                .action(ArgAction::Append),
        )
        .arg(Arg::new("content").long("content").value_name("TEXT").help("Its content").default_value(""))
        .arg(Arg::new("to").long("to").value_name("RELAY").help("Publish it there (ws:// or wss://)"))
        .arg(json_argument())
}

pub(super) fn run_event(_: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let keys = read(Path::new(required(arguments, "key")))?;
    let kind = arguments.get_one::<u16>("kind").copied().unwrap_or_default();
    let mut tags = Vec::new();
    for text in arguments.get_many::<String>("tag").into_iter().flatten() {
        let wrong = || Failure::Usage(format!("`{text}` is no tag: it is to be NAME=VALUE"));
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        tags.push(Tag::parse([name, value]).map_err(|_| wrong())?);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let event = EventBuilder::new(Kind::Custom(kind), required(arguments, "content"))
        .tags(tags)
        .custom_created_at(nostr::types::Timestamp::from(now))
        .finalize(&keys)
        .map_err(|problem| Failure::Failed(format!("cannot be signed: {problem}")))?;
    let Some(relay) = arguments.get_one::<String>("to") else { return say(event.as_json()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|problem| Failure::Failed(format!("cannot begin: {problem}")))?;
    let (accepted, words) = runtime.block_on(publish(relay, &event))?;
    if !accepted {
        return Err(Failure::Failed(format!("refused: {words}")));
    }
    let id = event.id.to_hex();
    if arguments.get_flag("json") {
        return say(json!({ "id": id, "answer": words }));
    }
    if !words.is_empty() {
        eprintln!("{words}");
    }
    say(id)
}

fn required<'a>(arguments: &'a ArgMatches, name: &str) -> &'a str {
    arguments.get_one::<String>(name).map(String::as_str).unwrap_or_default()
}

fn read(path: &Path) -> Result<Keys, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|problem| Failure::Failed(format!("cannot read the key in {}: {problem}", path.display())))?;
    // The cause is dropped, because it may repeat a part of the key.
    Keys::parse(text.trim()).map_err(|_| Failure::Usage(format!("{} does not hold a secret key", path.display())))
}

fn make(path: &Path) -> Result<Keys, Failure> {
    let keys = Keys::generate();
    let keep = || -> io::Result<()> {
        let secret = keys.secret_key().to_bech32().map_err(io::Error::other)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{secret}")?;
        file.sync_all()
    };
    keep().map_err(|problem| Failure::Failed(format!("cannot keep a key in {}: {problem}", path.display())))?;
    Ok(keys)
}

/// Whether a relay takes an event, and what it says about it.
async fn publish(relay: &str, event: &Event) -> Result<(bool, String), Failure> {
    let failed = |problem: &dyn std::fmt::Display| Failure::Failed(format!("{relay}: {problem}"));
    let target = Target::parse(relay, Purpose::Relay, Reach::Anything)
        .map_err(|why| Failure::Usage(format!("{relay}: {why}; it is to be like ws://127.0.0.1:7334")))?;
    let dialler = Dialler::new(Reach::Anything).map_err(|problem| failed(&problem))?;
    let talk = async {
        let route = dialler.route(target.clone()).await.map_err(|problem| failed(&problem))?;
        let stream = dialler.connect(&route).await.map_err(|problem| failed(&problem))?;
        let asked = tokio_tungstenite::client_async(target.to_string(), stream).await;
        let (mut socket, _) = asked.map_err(|problem| failed(&problem))?;
        let message = format!("[\"EVENT\",{}]", event.as_json());
        socket.send(Message::text(message)).await.map_err(|problem| failed(&problem))?;
        let id = event.id.to_hex();
        while let Some(message) = socket.next().await {
            let Message::Text(text) = message.map_err(|problem| failed(&problem))? else { continue };
            let answer: Value = serde_json::from_str(&text).unwrap_or_default();
            if answer[0] == "OK" && answer[1] == id.as_str() {
                let _ = socket.close(None).await;
                return Ok((answer[2] == true, answer[3].as_str().unwrap_or_default().to_owned()));
            }
        }
        Err(failed(&"it has hung up without an answer"))
    };
    timeout(PATIENCE, talk).await.map_err(|_| failed(&"no answer in time"))?
}
