//! `address`: the local address of the server, and its service settings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use serde_json::{Value, json};

use super::AdminState;
use super::snapshot::ServiceSettings;
use super::wire::{AdminError, AdminRequest, ResponseWriter};

/// Returns the URL below which repositories are, without a proxy.
pub(super) async fn address(admin: &Arc<AdminState>, _: AdminRequest, _: ResponseWriter) -> Result<Value, AdminError> {
    let mut at = admin.config.bind;
    if at.ip().is_unspecified() {
        at.set_ip(if at.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) });
    }
    let service = ServiceSettings::from_config(&admin.config).to_json();
    Ok(json!({ "git": format!("http://{at}{}", admin.config.base_path), "service": service }))
}
