//! `status`: how the server is.

use std::sync::Arc;

use serde_json::Value;

use super::Admin;
use super::wire::{Complaint, Request, Teller};

/// What `/status.json` says, wherever that can be read.
pub(super) async fn status(admin: &Arc<Admin>, _: Request, _: Teller) -> Result<Value, Complaint> {
    Ok(admin.house.status.value(&admin.house))
}
