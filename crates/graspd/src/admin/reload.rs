//! `reload`: reads the settings again.

use std::sync::Arc;

use serde_json::Value;

use super::AdminState;
use super::wire::{AdminError, AdminRequest, ResponseWriter};

/// Applies the settings that can change, and returns those that need a restart. If a setting is invalid, nothing
/// changes.
pub(super) async fn reload(admin: &Arc<AdminState>, _: AdminRequest, _: ResponseWriter) -> Result<Value, AdminError> {
    let reloader = admin.reloader.clone();
    match tokio::task::spawn_blocking(move || reloader.reload()).await {
        Ok(Ok(reloaded)) => {
            reloaded.log();
            Ok(reloaded.to_json())
        }
        Ok(Err(errors)) => Err(AdminError::new("bad_settings", format!("the settings are unchanged: {errors}"))),
        Err(_) => Err(AdminError::new("failed", "the settings could not be read again; see the log of the server")),
    }
}
