//! `check`: facts about the server for `graspd check`, and how the requests of the check arrived.

use rustix::process::{Resource, getrlimit};

use super::AdminState;
use super::api::{CheckRequest, CheckResponse, CheckedSettings, ErrorCode, ServerFacts};
use super::wire::AdminError;
use crate::config::warnings;

/// With `watch`, starts to record requests with this token, and returns facts about the server. With `seen`, returns
/// the recorded requests.
pub(super) fn check(admin: &AdminState, request: CheckRequest) -> Result<CheckResponse, AdminError> {
    if let Some(token) = request.seen {
        return Ok(CheckResponse::Requests { seen: admin.proxy_probe.requests(&token) });
    }
    let Some(token) = request.watch.filter(|token| token.len() >= 16) else {
        return Err(AdminError::new(ErrorCode::BadRequest, "a check needs a token of at least 16 characters"));
    };
    admin.proxy_probe.start(&token, admin.clock.mono());
    let status = admin.status.document();
    let config = admin.reloader.settings();
    Ok(CheckResponse::Server(Box::new(ServerFacts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: admin.instance.clone(),
        settings: CheckedSettings::from_config(&config, warnings(&config)),
        open_files: getrlimit(Resource::Nofile).current,
        ready: status.ready,
        checks: status.checks,
    })))
}
