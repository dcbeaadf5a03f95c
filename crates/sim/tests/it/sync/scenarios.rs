//! The six scenarios that users were promised and the ways of a relay's health, as text: what the machine is told (`>`),
//! what it wants, and how the relay is (`=`).

use grasp_core::sync::SyncConfig;
use grasp_core::sync::io::{DisconnectReason, IncomingMessage};

use super::script::{Script, config};

const RELAY: &str = "wss://r1.example";
const OTHER: &str = "wss://steady.example";

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A machine that has caught up with its only relay.
fn caught_up() -> Script {
    let mut script = Script::new(config());
    script.follow(&[RELAY]).ready().pass(300).up().pass(100).answer().pass(10 * SECOND).quietly();
    script
}

/// The same with another relay that works, so that failures are not ours.
fn among_others() -> Script {
    let mut script = Script::new(config());
    script.follow(&[OTHER, RELAY]).ready().pass(2 * SECOND).up().pass(100).answer().pass(6 * MINUTE).quietly();
    script
}

#[test]
fn fresh_start() {
    let mut script = Script::new(config());
    script.follow(&[RELAY]).ready().pass(300).up().pass(100).answer().pass(10 * SECOND).state().reads(
        r#"
        00:00:00.000 > interest in thing
        00:00:00.000 > ready
        00:00:00.000   dial wss://r1.example
        00:00:00.300 > up
        00:00:00.300   connected: Fresh
        00:00:00.300   REQ 1 {kinds[30617], limit 0} {kinds[30618], limit 0}
        00:00:00.400 > EOSE 1
        00:00:00.400   REQ 2 {kinds[30617], limit 500}
        00:00:00.400 > EOSE 2
        00:00:00.400   CLOSE 2
        00:00:00.400   REQ 3 {kinds[30618], limit 500}
        00:00:00.400 > EOSE 3
        00:00:00.400   CLOSE 3
        00:00:00.400   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0}
        00:00:00.400 > EOSE 4
        00:00:00.400   REQ 5 {#a×1, limit 500} {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        00:00:00.400 > EOSE 5
        00:00:00.400   CLOSE 5
        00:00:00.400   caught up by CatchUp: 0 events, whole
        00:00:10.400 = wss://r1.example Connected, Disconnected
        "#,
    );
}

#[test]
fn quick_reconnect() {
    let mut script = caught_up();
    script.down(DisconnectReason::Ended).pass(30 * SECOND).up().pass(100).answer().pass(10 * SECOND).state().reads(
        r#"
        00:00:10.400 > down: Ended
        00:00:10.400   lost: Ended
        00:00:16.219   dial wss://r1.example
        00:00:40.400 > up
        00:00:40.400   connected: Quick
        00:00:40.400   REQ 1 {kinds[30617], limit 0} {kinds[30618], limit 0}
        00:00:40.500 > EOSE 1
        00:00:40.500   REQ 2 {kinds[30617], since 1699999100, limit 500}
        00:00:40.500 > EOSE 2
        00:00:40.500   CLOSE 2
        00:00:40.500   REQ 3 {kinds[30618], since 1699999100, limit 500}
        00:00:40.500 > EOSE 3
        00:00:40.500   CLOSE 3
        00:00:40.500   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0}
        00:00:40.500 > EOSE 4
        00:00:40.500   REQ 5 {#a×1, since 1699999100, limit 500} {#A×1, since 1699999100, limit 500} {#q×1, since 1699999100, limit 500} {authors×1, kinds[5, 62], since 1699999100, limit 500}
        00:00:40.500 > EOSE 5
        00:00:40.500   CLOSE 5
        00:00:40.500   caught up by CatchUp: 0 events, whole
        00:00:50.500 = wss://r1.example Connected, Disconnected
        "#,
    );
}

#[test]
fn long_reconnect() {
    let mut script = caught_up();
    script.down(DisconnectReason::Ended).pass(20 * MINUTE).up().pass(100).answer().pass(10 * SECOND).state().reads(
        r#"
        00:00:10.400 > down: Ended
        00:00:10.400   lost: Ended
        00:00:16.219   dial wss://r1.example
        00:20:10.400 > up
        00:20:10.400   connected: Long
        00:20:10.400   REQ 1 {kinds[30617], limit 0} {kinds[30618], limit 0}
        00:20:10.500 > EOSE 1
        00:20:10.500   REQ 2 {kinds[30617], limit 500}
        00:20:10.500 > EOSE 2
        00:20:10.500   CLOSE 2
        00:20:10.500   REQ 3 {kinds[30618], limit 500}
        00:20:10.500 > EOSE 3
        00:20:10.500   CLOSE 3
        00:20:10.500   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0}
        00:20:10.500 > EOSE 4
        00:20:10.500   REQ 5 {#a×1, limit 500} {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        00:20:10.500 > EOSE 5
        00:20:10.500   CLOSE 5
        00:20:10.500   caught up by CatchUp: 0 events, whole
        00:20:20.500 = wss://r1.example Connected, Disconnected
        "#,
    );
}

#[test]
fn consolidation() {
    let mut script = Script::new(SyncConfig { use_negentropy: false, ..config() });
    script.follow(&[RELAY]).ready().pass(300).up().pass(100).answer().pass(10 * SECOND).quietly();
    for nth in 1..=24 {
        script.issue(nth).pass(6 * SECOND).answer();
    }
    script.state().quietly();
    script.issue(25).pass(6 * SECOND).answer().pass(6 * SECOND).answer().state().reads(
        r#"
        00:02:34.400 > issue 25 is served
        00:02:39.400   REQ 54 {#e×1, limit 0} {#E×1, limit 0} {#q×1, limit 0}
        00:02:39.400   REQ 55 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {#e×24, limit 0} {#E×24, limit 0} {#q×24, limit 0} {authors×1, kinds[5, 62], limit 0}
        00:02:40.400 > EOSE 54
        00:02:40.400   REQ 56 {#e×1, limit 500} {#E×1, limit 500} {#q×1, limit 500}
        00:02:40.400 > EOSE 55
        00:02:40.400   CLOSE 6
        00:02:40.400   CLOSE 8
        00:02:40.400   CLOSE 10
        00:02:40.400   CLOSE 12
        00:02:40.400   CLOSE 14
        00:02:40.400   CLOSE 16
        00:02:40.400   CLOSE 18
        00:02:40.400   CLOSE 20
        00:02:40.400   CLOSE 22
        00:02:40.400   CLOSE 24
        00:02:40.400   CLOSE 26
        00:02:40.400   CLOSE 28
        00:02:40.400   CLOSE 30
        00:02:40.400   CLOSE 32
        00:02:40.400   CLOSE 34
        00:02:40.400   CLOSE 36
        00:02:40.400   CLOSE 38
        00:02:40.400   CLOSE 40
        00:02:40.400   CLOSE 42
        00:02:40.400   CLOSE 44
        00:02:40.400   CLOSE 46
        00:02:40.400   CLOSE 48
        00:02:40.400   CLOSE 50
        00:02:40.400   CLOSE 52
        00:02:40.400   CLOSE 4
        00:02:40.400 > EOSE 56
        00:02:40.400   CLOSE 56
        00:02:46.400 = wss://r1.example Connected, Disconnected
        "#,
    );
}

#[test]
fn daily_sync() {
    let mut script = caught_up();
    script.pass(24 * HOUR + 21 * MINUTE).answer().pass(MINUTE).state().reads(
        r#"
        1d 00:21:05.300   REQ 6 {kinds[30617], limit 500}
        1d 00:21:05.300   REQ 7 {#a×1, limit 500} {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        1d 00:21:10.400 > EOSE 6
        1d 00:21:10.400   CLOSE 6
        1d 00:21:10.400   REQ 8 {kinds[30618], limit 500}
        1d 00:21:10.400 > EOSE 7
        1d 00:21:10.400   CLOSE 7
        1d 00:21:10.400 > EOSE 8
        1d 00:21:10.400   CLOSE 8
        1d 00:21:10.400   caught up by Daily: 0 events, whole
        1d 00:22:10.400 = wss://r1.example Connected, Healthy
        "#,
    );
}

#[test]
fn rules_that_take_more_ask_everything_again_and_others_nothing() {
    let mut script = caught_up();
    script.rules(false).pass(MINUTE).reads("00:00:10.400 > rules that take less");
    script.rules(true).pass(SECOND).answer().reads(
        r#"
        00:01:10.400 > rules that take more
        00:01:10.400   REQ 6 {kinds[30617], limit 500}
        00:01:10.400   REQ 7 {#a×1, limit 500} {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        00:01:11.400 > EOSE 6
        00:01:11.400   CLOSE 6
        00:01:11.400   REQ 8 {kinds[30618], limit 500}
        00:01:11.400 > EOSE 7
        00:01:11.400   CLOSE 7
        00:01:11.400 > EOSE 8
        00:01:11.400   CLOSE 8
        00:01:11.400   caught up by Daily: 0 events, whole
        "#,
    );
}

/// What was had under other rules is not all: after an absence, however short, everything is asked for.
#[test]
fn rules_that_take_more_make_a_short_absence_a_long_one() {
    let mut script = caught_up();
    script.down(DisconnectReason::Ended).rules(true).pass(30 * SECOND).quietly().up().reads(
        r#"
        00:00:40.400 > up
        00:00:40.400   connected: Fresh
        00:00:40.400   REQ 1 {kinds[30617], limit 0} {kinds[30618], limit 0}
        "#,
    );
}

#[test]
fn what_is_new_waits_for_the_window() {
    let mut script = caught_up();
    script.issue(1).pass(2 * SECOND).issue(2).pass(2 * SECOND).issue(3).pass(3 * SECOND).answer().reads(
        r#"
        00:00:10.400 > issue 1 is served
        00:00:12.400 > issue 2 is served
        00:00:14.400 > issue 3 is served
        00:00:15.400   REQ 6 {#e×3, limit 0} {#E×3, limit 0} {#q×3, limit 0}
        00:00:17.400 > EOSE 6
        00:00:17.400   REQ 7 {#e×3, limit 500} {#E×3, limit 500} {#q×3, limit 500}
        00:00:17.400 > EOSE 7
        00:00:17.400   CLOSE 7
        "#,
    );
}

#[test]
fn a_relay_is_healthy_after_five_minutes() {
    let mut script = caught_up();
    script.state().pass(5 * MINUTE).state().down(DisconnectReason::Ended).state().reads(
        r#"
        00:00:10.400 = wss://r1.example Connected, Disconnected
        00:05:10.400 = wss://r1.example Connected, Healthy
        00:05:10.400 > down: Ended
        00:05:10.400   lost: Ended
        00:05:10.400 = wss://r1.example Disconnected, Disconnected
        "#,
    );
}

#[test]
fn a_relay_that_fails_is_degraded_and_asked_ever_more_rarely() {
    let mut script = among_others();
    script.state().down(DisconnectReason::Ended);
    for wait in [7, 13, 25, 50, 100] {
        script.pass(wait * SECOND).down(DisconnectReason::Unreachable).state();
    }
    script.pass(200 * SECOND).up().pass(100).answer().state().pass(5 * MINUTE).state().reads(
        r#"
        00:06:02.100 = wss://r1.example Connected, Healthy
        00:06:02.100 > down: Ended
        00:06:02.100   lost: Ended
        00:06:04.100   dial wss://r1.example
        00:06:09.100 > down: Unreachable
        00:06:09.100   failed 1 times, again in 5 s
        00:06:09.100 = wss://r1.example Disconnected, Degraded
        00:06:14.362   dial wss://r1.example
        00:06:22.100 > down: Unreachable
        00:06:22.100   failed 2 times, again in 11 s
        00:06:22.100 = wss://r1.example Disconnected, Degraded
        00:06:33.863   dial wss://r1.example
        00:06:47.100 > down: Unreachable
        00:06:47.100   failed 3 times, again in 18 s
        00:06:47.100 = wss://r1.example Disconnected, Degraded
        00:07:05.895   dial wss://r1.example
        00:07:37.100 > down: Unreachable
        00:07:37.100   failed 4 times, again in 38 s
        00:07:37.100 = wss://r1.example Disconnected, Degraded
        00:08:15.674   dial wss://r1.example
        00:09:17.100 > down: Unreachable
        00:09:17.100   failed 5 times, again in 72 s
        00:09:17.100 = wss://r1.example Disconnected, Degraded
        00:10:29.680   dial wss://r1.example
        00:12:37.100 > up
        00:12:37.100   connected: Quick
        00:12:37.100   REQ 1 {kinds[30617], limit 0} {kinds[30618], limit 0}
        00:12:37.200 > EOSE 1
        00:12:37.200   REQ 2 {kinds[30617], since 1699999462, limit 500}
        00:12:37.200 > EOSE 2
        00:12:37.200   CLOSE 2
        00:12:37.200   REQ 3 {kinds[30618], since 1699999462, limit 500}
        00:12:37.200 > EOSE 3
        00:12:37.200   CLOSE 3
        00:12:37.200   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0}
        00:12:37.200 > EOSE 4
        00:12:37.200   REQ 5 {#a×1, since 1699999462, limit 500} {#A×1, since 1699999462, limit 500} {#q×1, since 1699999462, limit 500} {authors×1, kinds[5, 62], since 1699999462, limit 500}
        00:12:37.200 > EOSE 5
        00:12:37.200   CLOSE 5
        00:12:37.200   caught up by CatchUp: 0 events, whole
        00:12:37.200 = wss://r1.example Connected, Disconnected
        00:17:37.200 = wss://r1.example Connected, Healthy
        "#,
    );
}

#[test]
fn a_relay_is_dead_after_a_day_and_asked_once_a_day() {
    let mut script = among_others();
    script.down(DisconnectReason::Ended);
    for _ in 0..30 {
        script.pass(75 * MINUTE).down(DisconnectReason::Unreachable);
    }
    script.quietly().state().pass(26 * HOUR).down(DisconnectReason::Unreachable).state();
    script.pass(26 * HOUR).up().pass(100).answer().state().pass(6 * MINUTE).state().reads(
        r#"
        1d 13:36:02.100 = wss://r1.example Disconnected, Dead
        2d 01:32:29.955   dial wss://r1.example
        2d 15:36:02.100 > down: Unreachable
        2d 15:36:02.100   failed 22 times, again in 84827 s
        2d 15:36:02.100 = wss://r1.example Disconnected, Dead
        3d 15:09:49.973   dial wss://r1.example
        3d 17:36:02.100 > up
        3d 17:36:02.100   connected: Long
        3d 17:36:02.100   REQ 1 {kinds[30617], limit 0} {kinds[30618], limit 0}
        3d 17:36:02.200 > EOSE 1
        3d 17:36:02.200   REQ 2 {kinds[30617], limit 500}
        3d 17:36:02.200 > EOSE 2
        3d 17:36:02.200   CLOSE 2
        3d 17:36:02.200   REQ 3 {kinds[30618], limit 500}
        3d 17:36:02.200 > EOSE 3
        3d 17:36:02.200   CLOSE 3
        3d 17:36:02.200   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0}
        3d 17:36:02.200 > EOSE 4
        3d 17:36:02.200   REQ 5 {#a×1, limit 500} {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        3d 17:36:02.200 > EOSE 5
        3d 17:36:02.200   CLOSE 5
        3d 17:36:02.200   caught up by CatchUp: 0 events, whole
        3d 17:36:02.200 = wss://r1.example Connected, Disconnected
        3d 17:42:02.200 = wss://r1.example Connected, Healthy
        "#,
    );
}

#[test]
fn a_relay_that_wants_less_is_left_alone() {
    let mut script = among_others();
    let complaint = || IncomingMessage::Notice("rate-limited: slow down".to_owned());
    script.heard("NOTICE rate-limited", complaint()).state().issue(1).pass(64 * SECOND).state();
    script.pass(2 * SECOND).answer().state();
    script.heard("NOTICE rate-limited", complaint()).state().pass(6 * MINUTE).state().reads(
        r#"
        00:06:02.100 > NOTICE rate-limited
        00:06:02.100   rate-limited for 65 s: rate-limited: slow down
        00:06:02.100 = wss://r1.example Connected, RateLimited
        00:06:02.100 > issue 1 is served
        00:07:06.100 = wss://r1.example Connected, RateLimited
        00:07:07.100   REQ 6 {#e×1, limit 0} {#E×1, limit 0} {#q×1, limit 0}
        00:07:08.100 > EOSE 6
        00:07:08.100   REQ 7 {#e×1, limit 500} {#E×1, limit 500} {#q×1, limit 500}
        00:07:08.100 > EOSE 7
        00:07:08.100   CLOSE 7
        00:07:08.100 = wss://r1.example Connected, Healthy
        00:07:08.100 > NOTICE rate-limited
        00:07:08.100   rate-limited for 130 s: rate-limited: slow down
        00:07:08.100 = wss://r1.example Connected, RateLimited
        00:13:08.100 = wss://r1.example Connected, Healthy
        "#,
    );
}
