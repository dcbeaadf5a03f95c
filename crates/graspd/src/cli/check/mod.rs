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

use clap::Args;
use grasp_core::nostr::hex;
use serde_json::{Value, json};

use self::finding::Findings;
use self::proxy_config::{ProxyKind, ProxySite};
use self::requests::PublicEndpoint;
use super::{CommandContext, CommandError, ignore_closed_output, print_json, print_line};
use crate::admin::api::{CHECK, CheckRequest, CheckResponse, CheckedSettings, ServerFacts};
use crate::admin::client::command_runtime;

/// Checks that a correct proxy configuration fixes.
const PROXY_CHECKS: [&str; 6] = ["endpoint", "host", "forwarded", "websocket", "body", "chunked"];

/// Check the installation as clients see it, and show how to fix problems
///
/// Checks the domain and its DNS records, the certificate, the reverse proxy (whether it forwards to this server,
/// passes on the address of the client, websockets and large pushes), git, the data folders, the owner key, the disk,
/// the limit of open files and the clock. If the server runs, a few requests are sent through the proxy, and the server
/// reports how they arrived.
#[derive(Args)]
#[command(after_long_help = "Examples:\n  \
    graspd check                              check everything\n  \
    graspd check --via http://127.0.0.1:8080  check this address instead of the domain\n  \
    graspd check --json | jq '.findings[] | select(.level == \"error\")'\n\n\
    Run it on the machine of the server, as the user of the server or as root. The settings are those of the running \
    server; without one, those of this command line. With --via, requests go to another address, with the domain of the \
    service as their Host. To check from outside, run it on another machine with --via https://code.example; checks \
    that need the server are then left out.\n\
    ✓ ok, ! warning: it works but can be improved, ✗ error: it does not work, · note: it cannot be checked. The \
    exit status is 1 if there is an error.")]
pub(super) struct CheckArgs {
    /// Check this address instead of the domain
    #[arg(long, value_name = "URL")]
    via: Option<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl CheckArgs {
    pub(super) fn run(self, context: &CommandContext<'_>) -> Result<(), CommandError> {
        let mut findings = Findings::default();
        let token = random_token()?;
        let server = query_server(context, &mut findings, &token)?;
        let settings = checked_settings(context, &mut findings, server.as_ref())?;
        local::check(&mut findings, &settings, server.as_ref());
        // A domain that no setting gives is not the name of the service.
        let is_known = server.is_some() || !settings.has_default_domain;
        let endpoint = PublicEndpoint::new(self.via.as_deref(), &settings, is_known, &token)?;
        let requests_seen = || {
            let request = CheckRequest { seen: Some(token.clone()), watch: None };
            match context.call(CHECK, &request) {
                Ok(CheckResponse::Requests { seen }) => seen,
                _ => Vec::new(),
            }
        };
        let runtime = command_runtime()?;
        domain::check(&mut findings, &runtime, &settings.domain, self.via.is_some());
        let proxy = proxy::check(&mut findings, &runtime, &endpoint, server.as_ref(), requests_seen);
        print_findings(&findings, &settings, proxy, self.json)
    }
}

/// Returns the settings of the running server; without one, those of this command line.
fn checked_settings(
    context: &CommandContext<'_>,
    findings: &mut Findings,
    server: Option<&ServerFacts>,
) -> Result<CheckedSettings, CommandError> {
    let (settings, fix) = match server {
        Some(server) => {
            let socket = context.client()?.socket().map(|socket| socket.display().to_string()).unwrap_or_default();
            findings.ok("settings", format!("the checked settings are those of the server at {socket}"));
            (server.settings.clone(), "`graspd config --effective` shows the settings of the server")
        }
        None => {
            let loaded = context.settings()?;
            findings.note("settings", "the checked settings are those of this command line");
            let settings = CheckedSettings::from_config(&loaded.config, loaded.warnings);
            (settings, "`graspd config` shows the effective settings")
        }
    };
    for warning in &settings.warnings {
        findings.warning("settings", warning, fix);
    }
    Ok(settings)
}

fn print_findings(
    findings: &Findings,
    settings: &CheckedSettings,
    proxy: ProxyKind,
    as_json: bool,
) -> Result<(), CommandError> {
    let site = ProxySite { domain: &settings.domain, base_path: &settings.base_path, bind: settings.bind };
    let sites = if findings.has_problem_in(&PROXY_CHECKS) { proxy.sites(&site) } else { Vec::new() };
    let error_count = findings.error_count();
    if as_json {
        let sites: Value = sites.into_iter().map(|(name, site)| (name.to_ascii_lowercase(), site)).collect();
        let report = json!({ "ok": error_count == 0, "findings": findings.0, "sites": sites });
        ignore_closed_output(print_json(&report))?;
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
    let request = CheckRequest { watch: Some(token.to_owned()), seen: None };
    let text = match context.call(CHECK, &request) {
        Ok(CheckResponse::Server(server)) => {
            if server.ready {
                findings.ok("server", format!("graspd {} is running and ready", server.version));
            } else {
                let failing = server.checks.iter().filter(|(_, check)| !check.ok);
                let words: Vec<String> = failing.map(|(name, check)| format!("{name}: {}", check.detail)).collect();
                findings.error("server", "graspd is running but not ready", words.join("\n"));
            }
            return Ok(Some(*server));
        }
        Ok(CheckResponse::Requests { .. }) => {
            "unknown response of the server; does it have another version?".to_owned()
        }
        Err(CommandError::NotRunning { tried }) => format!("no server is running at {tried}"),
        Err(error @ (CommandError::Usage(_) | CommandError::Rejected(_) | CommandError::Failed(_))) => {
            error.to_string()
        }
        Err(other) => return Err(other),
    };
    findings.warning("server", text, fix);
    Ok(None)
}
