//! `graspd check`: checks the installation from the point of view of clients, and says how to fix problems.
//!
//! - [`local`]: git, folders, key, disk and file limit of this machine. [`domain`]: the domain and its DNS records.
//!   [`proxy`]: certificate, reverse proxy, and the way of requests to the server.
//! - [`requests`]: requests to the public address. [`time`]: clock and certificate dates. [`finding`]: results.
//!   [`proxy_config`]: configuration of proxies.

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
use super::check::proxy::ServerFacts;
use super::check::requests::PublicEndpoint;
use super::{CommandContext, CommandError, ignore_closed_output, ignore_lines, json_argument, print_line};
use crate::admin::client::RequestBody;
use crate::config::Config;

/// Checks that a correct proxy configuration fixes.
const PROXY_CHECKS: [&str; 6] = ["endpoint", "host", "forwarded", "websocket", "body", "chunked"];

pub(super) fn command() -> Command {
    Command::new("check")
        .about("Check the installation as clients see it, and show how to fix problems")
        .long_about(
            "Checks the domain and its DNS records, the certificate, the reverse proxy (whether it forwards to this \
             server, passes on the address of the client, websockets and large pushes), git, the data folders, the \
             owner key, the disk, the limit of open files and the clock. If the server runs, a few requests are sent \
             through the proxy, and the server reports how they arrived.",
        )
        .after_long_help(
            "Examples:\n  \
             graspd check                              check everything\n  \
             graspd check --via http://127.0.0.1:8080  check this address instead of the domain\n  \
             graspd check --json | jq '.findings[] | select(.level == \"error\")'\n\n\
             Run it on the machine of the server, with the same settings and as the same user. To check from \
             outside, run it on another machine with --via https://code.example; checks that need the server are \
             then left out.\n\
             ✓ ok, ! warning: it works but can be improved, ✗ error: it does not work, · note: it cannot be checked. \
             The exit status is 1 if there is an error.",
        )
        .arg(Arg::new("via").long("via").value_name("URL").help("Check this address instead of the domain"))
        .arg(json_argument())
}

pub(super) fn run(context: &CommandContext<'_>, arguments: &ArgMatches) -> Result<(), CommandError> {
    let loaded = context.settings()?;
    let config = loaded.config;
    let mut findings = Findings::default();
    for warning in loaded.warnings {
        findings.warning("settings", warning, "`graspd config` shows the effective settings");
    }
    let token = random_token()?;
    let server = query_server(context, &mut findings, &token)?;
    local::check(&mut findings, &config, server.as_ref().map(|server| &server.facts));
    let via = arguments.get_one::<String>("via").map(String::as_str);
    let endpoint = PublicEndpoint::new(via, &service_url(&config, server.as_ref()), &token)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|problem| CommandError::Failed(format!("cannot start the runtime: {problem}")))?;
    let mut requests_seen = || {
        let response = context.call("check", RequestBody::Arguments(json!({ "seen": &token })), &mut ignore_lines);
        response
            .ok()
            .and_then(|mut response| Some(std::mem::take(response["seen"].as_array_mut()?)))
            .unwrap_or_default()
    };
    domain::check(&mut findings, &config, via.is_some());
    let proxy = proxy::check(&mut findings, &runtime, &endpoint, server.as_ref(), &mut requests_seen);
    print_findings(&findings, &config, server.as_ref(), proxy, arguments.get_flag("json"))
}

fn print_findings(
    findings: &Findings,
    config: &Config,
    server: Option<&ServerFacts>,
    proxy: proxy_config::ProxyKind,
    as_json: bool,
) -> Result<(), CommandError> {
    let bind = server.map_or_else(|| config.bind.to_string(), |server| server.text("bind"));
    let sites = if findings.has_problem_in(&PROXY_CHECKS) { proxy.sites(&config.domain, &bind) } else { Vec::new() };
    let error_count = findings.error_count();
    if as_json {
        let findings: Vec<Value> = findings.0.iter().map(finding::Finding::to_json).collect();
        let sites: serde_json::Map<String, Value> =
            sites.into_iter().map(|(name, site)| (name.to_ascii_lowercase(), json!(site))).collect();
        ignore_closed_output(print_line(json!({ "ok": error_count == 0, "findings": findings, "sites": sites })))?;
    } else {
        ignore_closed_output(print_line(findings))?;
        for (name, site) in sites {
            ignore_closed_output(print_line(format!("\nConfiguration for {name} that fixes all of this:\n\n{site}")))?;
        }
    }
    match error_count {
        0 => Ok(()),
        1 => Err(CommandError::Failed("1 error found".to_owned())),
        many => Err(CommandError::Failed(format!("{many} errors found"))),
    }
}

/// Returns a random token by which the server recognises the requests of this check.
fn random_token() -> Result<String, CommandError> {
    let random = crate::random::bytes::<16>().map_err(|error| CommandError::Failed(error.to_string()))?;
    Ok(hex::encode(&random))
}

/// Asks the running server for its state, and tells it the token; `None` if no server is running.
fn query_server(
    context: &CommandContext<'_>,
    findings: &mut Findings,
    token: &str,
) -> Result<Option<ServerFacts>, CommandError> {
    let fix = "start it and check again; checks that need the server are left out";
    match context.call("check", RequestBody::Arguments(json!({ "watch": token })), &mut ignore_lines) {
        Ok(facts) => {
            let server = ServerFacts { facts };
            let version = server.text("version");
            if server.facts["ready"] == true {
                findings.ok("server", format!("graspd {version} is running and ready"));
            } else {
                let checks = server.facts["checks"].as_object().into_iter().flatten();
                let failing = checks.filter(|(_, check)| check["ok"] != true);
                let words: Vec<String> = failing
                    .map(|(name, check)| format!("{name}: {}", check["detail"].as_str().unwrap_or_default()))
                    .collect();
                findings.error("server", "graspd is running but not ready", words.join("\n"));
            }
            Ok(Some(server))
        }
        Err(CommandError::NotRunning { socket, why }) => {
            findings.warning("server", format!("no server is running at {} ({why})", socket.display()), fix);
            Ok(None)
        }
        Err(CommandError::Usage(text) | CommandError::Rejected { text, .. } | CommandError::Failed(text)) => {
            findings.warning("server", text, fix);
            Ok(None)
        }
        Err(other) => Err(other),
    }
}

/// Returns the public URL of the service.
fn service_url(config: &Config, server: Option<&ServerFacts>) -> String {
    match server {
        Some(server) => {
            format!("{}://{}{}", server.text("web_scheme"), server.text("domain"), server.text("base_path"))
        }
        None => format!("{}://{}{}", config.web_scheme(), config.domain, config.base_path),
    }
}
