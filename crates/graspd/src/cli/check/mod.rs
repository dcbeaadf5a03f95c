//! `graspd check`: what is wrong with the set-up, and how to mend it.
//!
//! - [`local`]: what can be seen on this machine. [`name`]: where the domain leads. [`front`]: what clients meet, up to the
//!   server and back.
//! - [`ask`]: requests to the front. [`time`]: clocks and certificates. [`finding`]: what is told. [`lines`]: what to write for a proxy.

mod domain;
mod finding;
mod local;
mod proxy;
mod proxy_config;
mod requests;
mod time;

use clap::{Arg, ArgMatches, Command};
use grasp_core::nostr::hex;
use serde_json::{Value, json};

use self::finding::Findings;
use super::call::Body;
use super::check::proxy::Server;
use super::check::requests::Front;
use super::{Context, Failure, json_argument, one_object, or_unread, say};
use crate::config::Config;

/// What a proxy's site mends.
const PROXY: [&str; 6] = ["front", "host", "forwarded", "websocket", "body", "chunked"];

pub(super) fn command() -> Command {
    Command::new("check")
        .about("Look at the set-up as clients meet it, and say what is wrong and how to mend it")
        .long_about(
            "Looks at the domain and its addresses, the certificate, the proxy (whether it leads to this server, says whom it \
             speaks for, passes on websockets and large pushes), git, folders, the key, the disk, descriptors and the \
             clock. With a running server it sends a few requests through the proxy and asks the server how they arrived.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd check                              look at everything\n  \
             graspd check --via http://127.0.0.1:8080  ask this address instead of the domain: a proxy that is not public yet\n  \
             graspd check --json | jq '.findings[] | select(.level == \"wrong\")'\n\n\
             Run it where the server runs, with the same settings and as the same user. Run it on another machine with --via \
             https://code.example to look from outside; what only the server can know is left out then.\n\
             ✓ fine, ! works and could be better, ✗ does not work, · cannot be found out from here. The exit status is 1 if \
             something does not work.",
        )
        .arg(Arg::new("via").long("via").value_name("URL").help("Ask this address instead of the domain"))
        .arg(json_argument())
}

pub(super) fn run(context: &Context<'_>, arguments: &ArgMatches) -> Result<(), Failure> {
    let loaded = context.settings()?;
    let config = loaded.config;
    let mut found = Findings::default();
    for warning in loaded.warnings {
        found.odd("settings", warning, "`graspd config` shows what is in force");
    }
    let token = token()?;
    let server = server(context, &mut found, &token)?;
    local::look(&mut found, &config, server.as_ref().map(|server| &server.facts));
    let via = arguments.get_one::<String>("via").map(String::as_str);
    let front = Front::new(via, &address(&config, server.as_ref()), &token)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|problem| Failure::Failed(format!("cannot begin: {problem}")))?;
    let mut seen = || {
        let answer = context.call("check", Body::Arguments(json!({ "seen": &token })), &mut one_object);
        answer.ok().and_then(|mut answer| Some(std::mem::take(answer["seen"].as_array_mut()?))).unwrap_or_default()
    };
    domain::look(&mut found, &config, via.is_some());
    let proxy = proxy::look(&mut found, &runtime, &front, server.as_ref(), &mut seen);
    tell(&found, &config, server.as_ref(), proxy, arguments.get_flag("json"))
}

fn tell(
    found: &Findings,
    config: &Config,
    server: Option<&Server>,
    proxy: proxy_config::Proxy,
    as_json: bool,
) -> Result<(), Failure> {
    let bind = server.map_or_else(|| config.bind.to_string(), |server| server.text("bind"));
    let sites = if found.complains_about(&PROXY) { proxy.sites(&config.domain, &bind) } else { Vec::new() };
    let wrongs = found.wrongs();
    if as_json {
        let findings: Vec<Value> = found.0.iter().map(finding::Finding::to_json).collect();
        let sites: serde_json::Map<String, Value> =
            sites.into_iter().map(|(name, site)| (name.to_ascii_lowercase(), json!(site))).collect();
        or_unread(say(json!({ "ok": wrongs == 0, "findings": findings, "sites": sites })))?;
    } else {
        or_unread(say(found))?;
        for (name, site) in sites {
            or_unread(say(format!("\nA site for {name} that does all of it:\n\n{site}")))?;
        }
    }
    match wrongs {
        0 => Ok(()),
        1 => Err(Failure::Failed("something is wrong".to_owned())),
        many => Err(Failure::Failed(format!("{many} things are wrong"))),
    }
}

/// A word that nobody else knows.
fn token() -> Result<String, Failure> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|problem| Failure::Failed(format!("no randomness to be had: {problem}")))?;
    Ok(hex::encode(&random))
}

/// The running server, if there is one.
fn server(context: &Context<'_>, found: &mut Findings, token: &str) -> Result<Option<Server>, Failure> {
    let fix = "start it and check again: what only the server can know is left out now";
    match context.call("check", Body::Arguments(json!({ "watch": token })), &mut one_object) {
        Ok(facts) => {
            let server = Server { facts };
            let version = server.text("version");
            if server.facts["ready"] == true {
                found.fine("server", format!("graspd {version} runs and is ready"));
            } else {
                let checks = server.facts["checks"].as_object().into_iter().flatten();
                let failing = checks.filter(|(_, check)| check["ok"] != true);
                let words: Vec<String> = failing
                    .map(|(name, check)| format!("{name}: {}", check["detail"].as_str().unwrap_or_default()))
                    .collect();
                found.wrong("server", "graspd runs and is not ready", words.join("\n"));
            }
            Ok(Some(server))
        }
        Err(Failure::NotRunning { socket, why }) => {
            found.odd("server", format!("no server answers at {} ({why})", socket.display()), fix);
            Ok(None)
        }
        Err(Failure::Usage(text) | Failure::Refused { text, .. } | Failure::Failed(text)) => {
            found.odd("server", text, fix);
            Ok(None)
        }
        Err(other) => Err(other),
    }
}

/// Where clients find the service.
fn address(config: &Config, server: Option<&Server>) -> String {
    match server {
        Some(server) => {
            format!("{}://{}{}", server.text("web_scheme"), server.text("domain"), server.text("base_path"))
        }
        None => format!("{}://{}{}", config.web_scheme(), config.domain, config.base_path),
    }
}
