//! Shared parts of the unit tests of the components.

use super::io::{OutgoingMessage, SyncOutput};
use super::relay::Relay;
use super::relay_url::RelayUrl;
use super::{SyncConfig, SyncContext, SyncMachine};
use crate::repo::ServiceAddress;
use crate::time::{MonoTime, Now, Timestamp};

/// Returns a time in seconds after the start of the tests.
pub(super) fn at(secs: u64) -> Now {
    Now { mono: MonoTime(secs * 1_000), wall: Timestamp(1_700_000_000 + secs) }
}

/// Runs a test with a relay that is not connected and the context of a machine without repositories.
pub(super) fn with_relay(test: impl FnOnce(&mut Relay, &mut SyncContext<'_>)) {
    let mut machine = SyncMachine::new(SyncConfig {
        service: ServiceAddress::new("git.example", "").expect("valid address"),
        instance: "me".to_owned(),
        bootstrap: Vec::new(),
        batch_window_millis: 5_000,
        values_per_filter: 100,
        descendant_limit: 500,
        use_negentropy: true,
        backoff: Default::default(),
        rejected: Default::default(),
        limits: Default::default(),
        epoch: 1,
        seed: 1,
    });
    machine.now = at(0);
    let id = machine.add_relay(&RelayUrl::parse("wss://relay.example").expect("valid URL"), true);
    machine.with_relay(id, test);
}

/// Takes the messages that were sent.
pub(super) fn sent(ctx: &mut SyncContext<'_>) -> Vec<OutgoingMessage> {
    let message = |output| match output {
        SyncOutput::Send(_, message) => Some(message),
        _ => None,
    };
    ctx.outputs.drain(..).filter_map(message).collect()
}
