//! `check`: facts about the server for `graspd check`, and how the requests of the check arrived.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use super::AdminState;
use super::wire::{AdminError, AdminRequest, ResponseWriter};

/// With `watch`, starts to record requests with this token, and returns facts about the server. With `seen`, returns
/// the recorded requests.
pub(super) async fn check(
    admin: &Arc<AdminState>,
    request: AdminRequest,
    _: ResponseWriter,
) -> Result<Value, AdminError> {
    let arguments = request.arguments().await?;
    if let Some(token) = arguments["seen"].as_str() {
        return Ok(json!({ "seen": admin.proxy_probe.requests(token) }));
    }
    let Some(token) = arguments["watch"].as_str().filter(|token| token.len() >= 16) else {
        return Err(AdminError::new("bad_request", "a check needs a token of at least 16 characters"));
    };
    admin.proxy_probe.start(token, admin.clock.mono());
    let status = admin.status.value();
    let config = &admin.config;
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "instance": admin.instance,
        "domain": config.domain,
        "base_path": config.base_path,
        "bind": config.bind.to_string(),
        "web_scheme": config.web_scheme(),
        "max_connections": admin.connection_limit.load().1,
        "open_files": getrlimit(Resource::Nofile).current,
        "ready": status["ready"],
        "checks": status["checks"],
    }))
}
