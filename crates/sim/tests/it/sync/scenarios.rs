//! Scenarios of `docs/design/sync.md` (fresh start, quick and long reconnect, consolidation, daily reconciliation, policy
//! change) and the transitions of a relay's health, as transcripts; see [`script`](super::script) for their format.

use grasp_core::sync::SyncConfig;
use grasp_core::sync::io::{DisconnectReason, IncomingMessage};
use grasp_sim::simulation::queue::{HOUR, MINUTE, SECOND};

use super::script::{RELAY, SyncScript, config};

const OTHER: &str = "wss://steady.example";

/// Returns a script whose machine is synced with its only relay.
fn synced() -> SyncScript {
    let mut script = SyncScript::new(config());
    script.start().answer().advance(10 * SECOND).clear();
    script
}

/// Returns the same with a second relay that works, so that failures do not count as an outage of the own network.
fn synced_with_second_relay() -> SyncScript {
    let mut script = SyncScript::new(config());
    script
        .follow(&[OTHER, RELAY])
        .ready()
        .advance(2 * SECOND)
        .connect()
        .advance(100)
        .answer()
        .advance(6 * MINUTE)
        .clear();
    script
}

#[test]
fn fresh_start_requests_everything() {
    let mut script = SyncScript::new(config());
    script.start().answer().advance(10 * SECOND).show_status().expect(
        r#"
        00:00:00.000 > repo needs: thing
        00:00:00.000 > ready
        00:00:00.000   dial wss://r1.example
        00:00:00.300 > connected
        00:00:00.300   connected: fresh
        00:00:00.300   REQ 1 {kinds[30617, 10317], limit 0} {kinds[30618], limit 0}
        00:00:00.400 ~ complete catch-up without events
        00:00:10.400 = status connected, health stabilising
        "#,
    );
}

#[test]
fn quick_reconnect_requests_only_newer_events() {
    let mut script = synced();
    script
        .disconnect(DisconnectReason::Ended)
        .advance(30 * SECOND)
        .connect()
        .advance(100)
        .answer()
        .advance(10 * SECOND)
        .show_status()
        .expect(
            r#"
        00:00:10.400 > disconnected: ended
        00:00:10.400   connection lost: ended
        00:00:16.219   dial wss://r1.example
        00:00:40.400 > connected
        00:00:40.400   connected: quick
        00:00:40.400   REQ 1 {kinds[30617, 10317], limit 0} {kinds[30618], limit 0}
        00:00:40.500 ~ complete catch-up without events since 1699999100
        00:00:50.500 = status connected, health stabilising
        "#,
        );
}

#[test]
fn long_reconnect_requests_everything() {
    let mut script = synced();
    script
        .disconnect(DisconnectReason::Ended)
        .advance(20 * MINUTE)
        .connect()
        .advance(100)
        .answer()
        .advance(10 * SECOND)
        .show_status()
        .expect(
            r#"
        00:00:10.400 > disconnected: ended
        00:00:10.400   connection lost: ended
        00:00:16.219   dial wss://r1.example
        00:20:10.400 > connected
        00:20:10.400   connected: long
        00:20:10.400   REQ 1 {kinds[30617, 10317], limit 0} {kinds[30618], limit 0}
        00:20:10.500 ~ complete catch-up without events
        00:20:20.500 = status connected, health stabilising
        "#,
        );
}

#[test]
fn consolidation_merges_live_subscriptions() {
    let mut script = SyncScript::new(SyncConfig { use_negentropy: false, ..config() });
    script.start().answer().advance(10 * SECOND).clear();
    for number in 1..=24 {
        script.serve_issue(number).advance(6 * SECOND).answer();
    }
    script.show_status().clear();
    script.serve_issue(25).advance(6 * SECOND).answer().advance(6 * SECOND).answer().show_status().expect(
        r#"
        00:02:34.400 > served: issue 25
        00:02:34.600   REQ 54 {#e×1, limit 0} {#E×1, limit 0} {#q×1, limit 0}
        00:02:34.600   REQ 55 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {#e×24, limit 0} {#E×24, limit 0} {#q×24, limit 0} {authors×1, kinds[5, 62], limit 0} {authors×1, kinds[62], limit 0}
        00:02:40.400 > EOSE 54
        00:02:40.400   REQ 56 {#e×1, limit 500} {#E×1, limit 500} {#q×1, limit 500}
        00:02:40.400 > EOSE 55
        00:02:40.400   CLOSE 8 10 12 14 16 18 20 22 24 26 28 30 32 34 36 38 40 42 44 46 48 50 52 6 4
        00:02:40.400 > EOSE 56
        00:02:40.400   CLOSE 56
        00:02:46.400 = status connected, health stabilising
        "#,
    );
}

#[test]
fn daily_reconciliation_requests_everything() {
    let mut script = synced();
    script.advance(24 * HOUR + 21 * MINUTE).answer().advance(MINUTE).show_status().expect(
        r#"
        1d 00:21:05.300   REQ 6 {kinds[30617, 10317], limit 500}
        1d 00:21:05.300   REQ 7 {#a×1, limit 500} {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        1d 00:21:10.400 > EOSE 6
        1d 00:21:10.400   CLOSE 6
        1d 00:21:10.400   REQ 8 {kinds[30618], limit 500}
        1d 00:21:10.400 > EOSE 7
        1d 00:21:10.400   CLOSE 7
        1d 00:21:10.400 > EOSE 8
        1d 00:21:10.400   CLOSE 8
        1d 00:21:10.400   daily complete: 0 events
        1d 00:22:10.400 = status connected, health healthy
        "#,
    );
}

#[test]
fn only_a_policy_that_accepts_more_requests_everything_again() {
    let mut script = synced();
    script.change_policy(false).advance(MINUTE).expect("00:00:10.400 > policy accepts less");
    script.change_policy(true).advance(SECOND).answer().expect(
        r#"
        00:01:10.400 > policy accepts more
        00:01:10.400   REQ 6 {kinds[30617, 10317], limit 500}
        00:01:10.400   REQ 7 {#a×1, limit 500} {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        00:01:11.400 > EOSE 6
        00:01:11.400   CLOSE 6
        00:01:11.400   REQ 8 {kinds[30618], limit 500}
        00:01:11.400 > EOSE 7
        00:01:11.400   CLOSE 7
        00:01:11.400 > EOSE 8
        00:01:11.400   CLOSE 8
        00:01:11.400   daily complete: 0 events
        "#,
    );
}

/// What was synced under the old policy is not complete under the new one, so that even a short absence needs a full
/// sync.
#[test]
fn short_absence_with_a_wider_policy_requests_everything() {
    let mut script = synced();
    script.disconnect(DisconnectReason::Ended).change_policy(true).advance(30 * SECOND).clear().connect().expect(
        r#"
        00:00:40.400 > connected
        00:00:40.400   connected: fresh
        00:00:40.400   REQ 1 {kinds[30617, 10317], limit 0} {kinds[30618], limit 0}
        "#,
    );
}

/// They are gathered for at most 5 s, and until nothing has changed for 200 ms.
#[test]
fn new_root_events_are_batched() {
    let mut script = synced();
    script.serve_issue(1).advance(100).serve_issue(2).advance(100).serve_issue(3).advance(3 * SECOND).answer().expect(
        r#"
        00:00:10.400 > served: issue 1
        00:00:10.500 > served: issue 2
        00:00:10.600 > served: issue 3
        00:00:10.800   REQ 6 {#e×3, limit 0} {#E×3, limit 0} {#q×3, limit 0} {authors×1, kinds[62], limit 0}
        00:00:13.600 > EOSE 6
        00:00:13.600   REQ 7 {#e×3, limit 500} {#E×3, limit 500} {#q×3, limit 500} {authors×1, kinds[62], limit 500}
        00:00:13.600 > EOSE 7
        00:00:13.600   CLOSE 7
        "#,
    );
}

#[test]
fn relay_is_healthy_after_five_minutes() {
    let mut script = synced();
    script.show_status().advance(5 * MINUTE).show_status().disconnect(DisconnectReason::Ended).show_status().expect(
        r#"
        00:00:10.400 = status connected, health stabilising
        00:05:10.400 = status connected, health healthy
        00:05:10.400 > disconnected: ended
        00:05:10.400   connection lost: ended
        00:05:10.400 = status disconnected, health disconnected
        "#,
    );
}

#[test]
fn failing_relay_is_degraded_and_dialled_with_backoff() {
    let mut script = synced_with_second_relay();
    script.show_status().disconnect(DisconnectReason::Ended);
    for wait in [7, 13, 25, 50, 100] {
        script.advance(wait * SECOND).disconnect(DisconnectReason::Unreachable).show_status();
    }
    script.advance(200 * SECOND).connect_and_sync().show_status().advance(5 * MINUTE).show_status().expect(
        r#"
        00:06:02.100 = status connected, health healthy
        00:06:02.100 > disconnected: ended
        00:06:02.100   connection lost: ended
        00:06:04.100   dial wss://r1.example
        00:06:09.100 > disconnected: unreachable
        00:06:09.100   connection failed 1 times, retry in 5 s
        00:06:09.100 = status disconnected, health degraded
        00:06:14.362   dial wss://r1.example
        00:06:22.100 > disconnected: unreachable
        00:06:22.100   connection failed 2 times, retry in 11 s
        00:06:22.100 = status disconnected, health degraded
        00:06:33.863   dial wss://r1.example
        00:06:47.100 > disconnected: unreachable
        00:06:47.100   connection failed 3 times, retry in 18 s
        00:06:47.100 = status disconnected, health degraded
        00:07:05.895   dial wss://r1.example
        00:07:37.100 > disconnected: unreachable
        00:07:37.100   connection failed 4 times, retry in 38 s
        00:07:37.100 = status disconnected, health degraded
        00:08:15.674   dial wss://r1.example
        00:09:17.100 > disconnected: unreachable
        00:09:17.100   connection failed 5 times, retry in 72 s
        00:09:17.100 = status disconnected, health degraded
        00:10:29.680   dial wss://r1.example
        00:12:37.200 > connected and synced
        00:12:37.200 = status connected, health stabilising
        00:17:37.200 = status connected, health healthy
        "#,
    );
}

#[test]
fn relay_is_dead_after_a_day_of_failures_and_dialled_once_a_day() {
    let mut script = synced_with_second_relay();
    script.disconnect(DisconnectReason::Ended);
    for _ in 0..30 {
        script.advance(75 * MINUTE).disconnect(DisconnectReason::Unreachable);
    }
    script.clear().show_status().advance(26 * HOUR).disconnect(DisconnectReason::Unreachable).show_status();
    script.advance(26 * HOUR).connect_and_sync().show_status().advance(6 * MINUTE).show_status().expect(
        r#"
        1d 13:36:02.100 = status disconnected, health dead
        2d 01:32:29.955   dial wss://r1.example
        2d 15:36:02.100 > disconnected: unreachable
        2d 15:36:02.100   connection failed 22 times, retry in 84827 s
        2d 15:36:02.100 = status disconnected, health dead
        3d 15:09:49.973   dial wss://r1.example
        3d 17:36:02.200 > connected and synced
        3d 17:36:02.200 = status connected, health stabilising
        3d 17:42:02.200 = status connected, health healthy
        "#,
    );
}

#[test]
fn rate_limited_relay_gets_no_requests_during_the_cooldown() {
    let mut script = synced_with_second_relay();
    let notice = || IncomingMessage::Notice("rate-limited: slow down".to_owned());
    script.receive("NOTICE rate-limited", notice()).show_status().serve_issue(1).advance(64 * SECOND).show_status();
    script.advance(2 * SECOND).answer().show_status();
    script.receive("NOTICE rate-limited", notice()).show_status().advance(6 * MINUTE).show_status().expect(
        r#"
        00:06:02.100 > NOTICE rate-limited
        00:06:02.100   rate-limited for 65 s: rate-limited: slow down
        00:06:02.100 = status connected, health rate_limited
        00:06:02.100 > served: issue 1
        00:07:06.100 = status connected, health rate_limited
        00:07:07.100   REQ 6 {#e×1, limit 0} {#E×1, limit 0} {#q×1, limit 0} {authors×1, kinds[62], limit 0}
        00:07:08.100 > EOSE 6
        00:07:08.100   REQ 7 {#e×1, limit 500} {#E×1, limit 500} {#q×1, limit 500} {authors×1, kinds[62], limit 500}
        00:07:08.100 > EOSE 7
        00:07:08.100   CLOSE 7
        00:07:08.100 = status connected, health healthy
        00:07:08.100 > NOTICE rate-limited
        00:07:08.100   rate-limited for 130 s: rate-limited: slow down
        00:07:08.100 = status connected, health rate_limited
        00:13:08.100 = status connected, health healthy
        "#,
    );
}
