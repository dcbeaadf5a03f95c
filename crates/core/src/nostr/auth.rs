//! Checks of client authentication events (NIP-42).

use super::event::Event;
use super::kinds;
use crate::limits;
use crate::repo::ServiceAddress;
use crate::time::Timestamp;

/// The reason why an authentication event is rejected. `Display` is the text of the `OK` message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AuthError {
    /// The kind is not 22242.
    #[error("invalid: authentication events must have kind 22242")]
    Kind,
    /// The challenge is not the one that was sent on this connection.
    #[error("invalid: the challenge does not match this connection")]
    Challenge,
    /// No `relay` tag names this relay.
    #[error("invalid: the relay tag does not name this relay")]
    Relay,
    /// `created_at` differs from the current time by more than [`limits::MAX_AUTH_EVENT_AGE_SECS`].
    #[error("invalid: created_at is not within ten minutes of now")]
    Age,
}

/// Checks an answer to a challenge. The caller has verified id and signature.
pub fn check(event: &Event, challenge: &str, service: &ServiceAddress, now: Timestamp) -> Result<(), AuthError> {
    if event.kind != kinds::AUTH {
        return Err(AuthError::Kind);
    }
    if event.tag("challenge") != Some(challenge) {
        return Err(AuthError::Challenge);
    }
    if !event.values("relay").any(|url| service.is_own_relay_url(url)) {
        return Err(AuthError::Relay);
    }
    if event.created_at.0.abs_diff(now.0) > limits::MAX_AUTH_EVENT_AGE_SECS {
        return Err(AuthError::Age);
    }
    Ok(())
}
