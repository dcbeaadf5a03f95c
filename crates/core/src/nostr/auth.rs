//! NIP-42: has the client shown to hold a key?

use std::fmt;

use super::event::Event;
use super::kinds;
use crate::limits;
use crate::repo::Service;
use crate::time::Timestamp;

/// Why an authentication is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadAuth {
    /// Not kind 22242.
    Kind,
    /// Not the challenge that this connection was sent.
    Challenge,
    /// Made for another relay.
    Relay,
    /// Made too long ago, or in the future.
    Age,
}

impl fmt::Display for BadAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kind => "invalid: authentication events are of kind 22242",
            Self::Challenge => "invalid: the challenge is not the one of this connection",
            Self::Relay => "invalid: the relay tag does not name this relay",
            Self::Age => "invalid: created_at is not within ten minutes of now",
        })
    }
}

/// Judges an answer to a challenge; id and signature have been checked.
pub fn check(event: &Event, challenge: &str, service: &Service, now: Timestamp) -> Result<(), BadAuth> {
    if event.kind != kinds::AUTH {
        return Err(BadAuth::Kind);
    }
    if event.tag("challenge") != Some(challenge) {
        return Err(BadAuth::Challenge);
    }
    if !event.values("relay").any(|url| service.is_own_relay(url)) {
        return Err(BadAuth::Relay);
    }
    if event.created_at.0.abs_diff(now.0) > limits::AUTH_MAX_AGE_SECS {
        return Err(BadAuth::Age);
    }
    Ok(())
}
