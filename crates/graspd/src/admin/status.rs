//! `status`: the state of the server.

use std::sync::Arc;

use serde_json::Value;

use super::AdminState;
use super::wire::{AdminError, AdminRequest, ResponseWriter};

/// Returns the document of `/status.json`, even if that is not public.
pub(super) async fn status(admin: &Arc<AdminState>, _: AdminRequest, _: ResponseWriter) -> Result<Value, AdminError> {
    Ok(admin.status.value())
}
