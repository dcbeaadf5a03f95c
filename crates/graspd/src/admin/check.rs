//! `check`: what the server knows of itself that a check of the set-up needs, and what it saw of the check.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use super::Admin;
use super::wire::{Complaint, Request, Teller};

/// With `watch`, begins to look for requests that show that token, and tells about the server. With `seen`, tells what came.
pub(super) async fn check(admin: &Arc<Admin>, request: Request, _: Teller) -> Result<Value, Complaint> {
    let arguments = request.arguments().await?;
    let house = &admin.house;
    if let Some(token) = arguments["seen"].as_str() {
        return Ok(json!({ "seen": house.sightings.seen(token) }));
    }
    let Some(token) = arguments["watch"].as_str().filter(|token| token.len() >= 16) else {
        return Err(Complaint::new("bad_request", "a check needs a token of sixteen letters or more"));
    };
    house.sightings.begin(token, house.rooms.clock.mono());
    let status = house.status.value(house);
    let config = &house.config;
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "instance": house.nip11.instance(),
        "domain": config.domain,
        "base_path": config.base_path,
        "bind": config.bind.to_string(),
        "web_scheme": config.web_scheme(),
        "max_connections": house.places.load().1,
        "open_files": getrlimit(Resource::Nofile).current,
        "ready": status["ready"],
        "checks": status["checks"],
    }))
}
