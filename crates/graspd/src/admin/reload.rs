//! `reload`: reads the settings again.

use std::sync::Arc;

use serde_json::Value;

use super::Admin;
use super::wire::{Complaint, Request, Teller};

/// Takes over what can change, and says what cannot. If anything is wrong, nothing changes.
pub(super) async fn reload(admin: &Arc<Admin>, _: Request, _: Teller) -> Result<Value, Complaint> {
    let reloader = admin.reloader.clone();
    match tokio::task::spawn_blocking(move || reloader.reload()).await {
        Ok(Ok(reloaded)) => {
            reloaded.log();
            Ok(reloaded.to_json())
        }
        Ok(Err(errors)) => Err(Complaint::new("bad_settings", format!("the settings stay as they were: {errors}"))),
        Err(_) => Err(Complaint::new("failed", "the settings could not be read again; the log may say why")),
    }
}
