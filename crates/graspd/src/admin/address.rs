//! `address`: where this machine reaches the server, and what it serves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use serde_json::{Value, json};

use super::Admin;
use super::wire::{Complaint, Request, Teller};
use crate::backup::snapshot::Served;

/// The URL below which repositories are, without any proxy.
pub(super) async fn address(admin: &Arc<Admin>, _: Request, _: Teller) -> Result<Value, Complaint> {
    let mut at = admin.house.config.bind;
    if at.ip().is_unspecified() {
        at.set_ip(if at.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) });
    }
    let service = Served::of(&admin.house.config).value();
    Ok(json!({ "git": format!("http://{at}{}", admin.house.config.base_path), "service": service }))
}
