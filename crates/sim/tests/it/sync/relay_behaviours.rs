//! What relays do that is not in the six scenarios, as text: see [`scenarios`](super::scenarios).

use grasp_core::sync::io::DisconnectReason;
use grasp_core::sync::relay_record::{CoverageRecord, HealthRecord, RelayRecord};
use grasp_core::sync::relay_url::RelayUrl;

use super::script::{Script, config};

const RELAY: &str = "wss://r1.example";

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

fn connected() -> Script {
    let mut script = Script::new(config());
    script.follow(&[RELAY]).ready().pass(300).up().pass(100);
    script
}

#[test]
fn a_relay_that_wants_nothing_to_do_with_us_is_asked_once_a_day() {
    let mut script = connected();
    script
        .quietly()
        .refuse("restricted: you are not a member of this relay")
        .down(DisconnectReason::ClosedByUs)
        .state();
    script.pass(26 * HOUR).up().pass(100).answer().state().reads(
        r#"
        00:00:00.400 > CLOSED 1 restricted: you are not a member of this relay
        00:00:00.400   parked: restricted: you are not a member of this relay
        00:00:00.400   hang up
        00:00:00.400 > down: ClosedByUs
        00:00:00.400   lost: ClosedByUs
        00:00:00.400 = wss://r1.example Disconnected, Degraded
        23:09:52.761   dial wss://r1.example
        1d 02:00:00.400 > up
        1d 02:00:00.400   connected: Long
        1d 02:00:00.400   REQ 1 {kinds[30617], limit 0} {kinds[30618], limit 0}
        1d 02:00:00.500 > EOSE 1
        1d 02:00:00.500   REQ 2 {kinds[30617], limit 500}
        1d 02:00:00.500 > EOSE 2
        1d 02:00:00.500   CLOSE 2
        1d 02:00:00.500   REQ 3 {kinds[30618], limit 500}
        1d 02:00:00.500 > EOSE 3
        1d 02:00:00.500   CLOSE 3
        1d 02:00:00.500   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0}
        1d 02:00:00.500 > EOSE 4
        1d 02:00:00.500   REQ 5 {#a×1, limit 500} {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        1d 02:00:00.500 > EOSE 5
        1d 02:00:00.500   CLOSE 5
        1d 02:00:00.500   caught up by CatchUp: 0 events, whole
        1d 02:00:00.500 = wss://r1.example Connected, Disconnected
        "#,
    );
}

#[test]
fn a_relay_that_is_ourselves_is_never_dialled_again() {
    let mut script = Script::new(config());
    script
        .follow(&[RELAY])
        .ready()
        .pass(300)
        .up_as_ourselves()
        .down(DisconnectReason::ClosedByUs)
        .pass(48 * HOUR)
        .state()
        .reads(
            r#"
        00:00:00.000 > interest in thing
        00:00:00.000 > ready
        00:00:00.000   dial wss://r1.example
        00:00:00.300 > up: instance me
        00:00:00.300   that is ourselves
        00:00:00.300   hang up
        00:00:00.300 > down: ClosedByUs
        2d 00:00:00.300 = wss://r1.example Disconnected, Disconnected
        "#,
        );
}

#[test]
fn a_restart_remembers_how_long_a_relay_is_left_alone() {
    let health = HealthRecord {
        failures: 3,
        failing_since: Some(Script::wall(0)),
        last_failure_at: Some(Script::wall(0)),
        next_retry_at: Some(Script::wall(20)),
        cooldown_until: Some(Script::wall(90)),
        rate_limit_count: 2,
        ..HealthRecord::default()
    };
    let url = RelayUrl::parse(RELAY).expect("a good address");
    let mut script = Script::new(config());
    script.restored(RelayRecord { url, health, wanted_at: Script::wall(0), ..RelayRecord::default() });
    script.follow(&[RELAY]).ready().state().pass(2 * MINUTE).reads(
        r#"
        00:00:00.000 > restored wss://r1.example
        00:00:00.000 > interest in thing
        00:00:00.000 > ready
        00:00:00.000 = wss://r1.example Disconnected, RateLimited
        00:01:31.000   dial wss://r1.example
        "#,
    );
}

#[test]
fn what_differs_is_fetched() {
    let mut script = Script::new(config());
    script.has(1, 100).has(2, 90).relay_has(500, [(1, 100), (3, 80)]);
    script.follow(&[RELAY]).ready().pass(300).up().pass(100).quietly().answer().judged().answer().state().reads(
        r#"
        00:00:00.400 > EOSE 1
        00:00:00.400   REQ 2 {kinds[30617], limit 500}
        00:00:00.400 > EOSE 2
        00:00:00.400   CLOSE 2
        00:00:00.400   REQ 3 {kinds[30618], limit 500}
        00:00:00.400 > EOSE 3
        00:00:00.400   CLOSE 3
        00:00:00.400   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0}
        00:00:00.400 > EOSE 4
        00:00:00.400   NEG-OPEN 5 {#a×1}
        00:00:00.400   REQ 6 {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        00:00:00.400 > EOSE 6
        00:00:00.400   CLOSE 6
        00:00:00.400 > NEG-MSG 5
        00:00:00.400   NEG-CLOSE 5
        00:00:00.400   REQ 7 {ids×1}
        00:00:00.400 > 7: 1 events
        00:00:00.400   submit #03 via CatchUp
        00:00:00.400 > EOSE 7
        00:00:00.400   CLOSE 7
        00:00:00.400 > served
        00:00:00.400   caught up by CatchUp: 1 events, whole
        00:00:00.400 = wss://r1.example Connected, Disconnected
        "#,
    );
}

#[test]
fn a_second_with_more_than_a_page_is_compared() {
    let mut script = connected();
    script.judging().relay_has(30, (1..=50).map(|nth| (nth, 1_000)));
    script.answer().state().reads(
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
        00:00:00.400 > 5: 30 events
        00:00:00.400 > EOSE 5
        00:00:00.400   CLOSE 5
        00:00:00.400   REQ 6 {#a×1, limit 500}
        00:00:00.400   REQ 7 {#A×1, limit 500}
        00:00:00.400   REQ 8 {#q×1, limit 500}
        00:00:00.400   REQ 9 {authors×1, kinds[5, 62], limit 500}
        00:00:00.400 > 6: 30 events
        00:00:00.400 > EOSE 6
        00:00:00.400   CLOSE 6
        00:00:00.400   REQ 10 {#a×1, until 1699999000, limit 500}
        00:00:00.400 > EOSE 7
        00:00:00.400   CLOSE 7
        00:00:00.400 > EOSE 8
        00:00:00.400   CLOSE 8
        00:00:00.400 > EOSE 9
        00:00:00.400   CLOSE 9
        00:00:00.400 > 10: 30 events
        00:00:00.400 > EOSE 10
        00:00:00.400   CLOSE 10
        00:00:00.400   REQ 11 {#a×1, until 1699998999, limit 500}
        00:00:00.400   NEG-OPEN 12 {#a×1, since 1699999000, until 1699999000}
        00:00:00.400 > EOSE 11
        00:00:00.400   CLOSE 11
        00:00:00.400 > NEG-MSG 12
        00:00:00.400   NEG-CLOSE 12
        00:00:00.400   REQ 13 {ids×20}
        00:00:00.400 > 13: 20 events
        00:00:00.400 > EOSE 13
        00:00:00.400   CLOSE 13
        00:00:00.400   caught up by CatchUp: 50 events, whole
        00:00:00.400 = wss://r1.example Connected, Disconnected
        "#,
    );
}

#[test]
fn what_comes_after_the_end_of_a_page_counts() {
    let mut script = connected();
    script.judging().answer().relay_has(500, (1..=5).map(|nth| (nth, 1_000))).issue(1).pass(6 * SECOND).quietly();
    script.end_and_send().end_and_send().down(DisconnectReason::ClosedByUs).pass(10 * SECOND).up().pass(100);
    for _ in 0..6 {
        script.end_and_send().pass(3 * SECOND);
    }
    script.state().reads(
        r#"
        00:00:06.400 > EOSE 6
        00:00:06.400   REQ 7 {#e×1, limit 500} {#E×1, limit 500} {#q×1, limit 500}
        00:00:06.400 > EOSE 7
        00:00:06.400   CLOSE 7
        00:00:06.400 > 7: 5 events
        00:00:06.400   hang up
        00:00:06.400 > down: ClosedByUs
        00:00:06.400   lost: ClosedByUs
        00:00:08.400   dial wss://r1.example
        00:00:16.400 > up
        00:00:16.400   connected: Fresh
        00:00:16.400   REQ 1 {kinds[30617], limit 0} {kinds[30618], limit 0}
        00:00:16.500 > EOSE 1
        00:00:16.500   REQ 2 {kinds[30617], limit 500}
        00:00:19.500 > EOSE 2
        00:00:21.500   CLOSE 2
        00:00:21.500   REQ 3 {kinds[30618], limit 500}
        00:00:22.500 > EOSE 3
        00:00:24.500   CLOSE 3
        00:00:24.500   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {#e×1, limit 0} {#E×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0}
        00:00:25.500 > EOSE 4
        00:00:25.500   NEG-OPEN 5 {#a×1}
        00:00:25.500   NEG-OPEN 6 {#e×1}
        00:00:34.500 = wss://r1.example Syncing, Disconnected
        "#,
    );
}

#[test]
fn what_waits_for_git_data_is_new_and_may_be_a_gap() {
    let mut script = connected();
    script.answer().relay_gets(7, 7_200).quietly().answering(26 * HOUR).held().reads(
        r#"
        1d 00:21:05.300   REQ 6 {kinds[30617], limit 500}
        1d 00:21:05.300   REQ 7 {#a×1, limit 500} {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        1d 00:21:05.400 > EOSE 6
        1d 00:21:05.400   CLOSE 6
        1d 00:21:05.400   REQ 8 {kinds[30618], limit 500}
        1d 00:21:05.400 > 7: 1 events
        1d 00:21:05.400   submit #07 via Daily
        1d 00:21:05.400 > EOSE 7
        1d 00:21:05.400   CLOSE 7
        1d 00:21:05.400 > EOSE 8
        1d 00:21:05.400   CLOSE 8
        1d 02:00:00.400 > held
        1d 02:00:00.400   1 gaps
        1d 02:00:00.400   caught up by Daily: 1 events, whole
        "#,
    );
}

#[test]
fn which_states_a_relay_has_is_found_out_once_after_a_restart() {
    let covered = CoverageRecord {
        epoch: 1,
        announcements: true,
        up_to: 1,
        lost_at: Script::wall(0),
        since: None,
        next_full_at: Script::wall(80_000),
        failed: false,
    };
    let url = RelayUrl::parse(RELAY).expect("a good address");
    let mut script = Script::new(config());
    script.has(0xf1, 100).has(0xf2, 90).relay_has(500, [(0xf1, 100)]);
    script.restored(RelayRecord { url, covered: Some(covered), wanted_at: Script::wall(0), ..RelayRecord::default() });
    script.follow(&[RELAY]).ready().pass(300).up().pass(100).answer();
    script.down(DisconnectReason::Ended).pass(20 * SECOND).up().pass(100).answer().reads(
        r#"
        00:00:00.000 > restored wss://r1.example
        00:00:00.000 > interest in thing
        00:00:00.000 > ready
        00:00:00.000   dial wss://r1.example
        00:00:00.300 > up
        00:00:00.300   connected: Quick
        00:00:00.300   REQ 1 {kinds[30617], limit 0} {kinds[30618], limit 0}
        00:00:00.400 > EOSE 1
        00:00:00.400   REQ 2 {kinds[30617], since 1699999100, limit 500}
        00:00:00.400 > EOSE 2
        00:00:00.400   CLOSE 2
        00:00:00.400   NEG-OPEN 3 {kinds[30618]}
        00:00:00.400 > NEG-MSG 3
        00:00:00.400   states: 1 shared, 1 lacking
        00:00:00.400   NEG-CLOSE 3
        00:00:00.400   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0}
        00:00:00.400 > EOSE 4
        00:00:00.400   REQ 5 {#a×1, since 1699999100, limit 500} {#A×1, since 1699999100, limit 500} {#q×1, since 1699999100, limit 500} {authors×1, kinds[5, 62], since 1699999100, limit 500}
        00:00:00.400 > EOSE 5
        00:00:00.400   CLOSE 5
        00:00:00.400   caught up by CatchUp: 0 events, whole
        00:00:00.400 > down: Ended
        00:00:00.400   lost: Ended
        00:00:06.219   dial wss://r1.example
        00:00:20.400 > up
        00:00:20.400   connected: Quick
        00:00:20.400   REQ 1 {kinds[30617], limit 0} {kinds[30618], limit 0}
        00:00:20.500 > EOSE 1
        00:00:20.500   REQ 2 {kinds[30617], since 1699999100, limit 500}
        00:00:20.500 > EOSE 2
        00:00:20.500   CLOSE 2
        00:00:20.500   REQ 3 {kinds[30618], since 1699999100, limit 500}
        00:00:20.500 > 3: 1 events
        00:00:20.500 > EOSE 3
        00:00:20.500   CLOSE 3
        00:00:20.500   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0}
        00:00:20.500 > EOSE 4
        00:00:20.500   REQ 5 {#a×1, since 1699999100, limit 500} {#A×1, since 1699999100, limit 500} {#q×1, since 1699999100, limit 500} {authors×1, kinds[5, 62], since 1699999100, limit 500}
        00:00:20.500 > EOSE 5
        00:00:20.500   CLOSE 5
        00:00:20.500   caught up by CatchUp: 0 events, whole
        "#,
    );
}

#[test]
fn what_a_relay_lacks_is_told_until_it_has_it() {
    let mut script = Script::new(config());
    script.has(1, 100).relay_has(500, [(2, 90)]).judging();
    script.follow(&[RELAY]).ready().pass(300).up().pass(100).answer();
    script.quietly().answering(26 * HOUR).relay_has(500, [(1, 100), (2, 90)]).answering(24 * HOUR).reads(
        r#"
        1d 00:21:05.300   NEG-OPEN 8 {#a×1}
        1d 00:21:05.300   REQ 9 {kinds[30617], limit 500}
        1d 00:21:05.300   REQ 10 {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        1d 00:21:05.400 > EOSE 9
        1d 00:21:05.400   CLOSE 9
        1d 00:21:05.400   REQ 11 {kinds[30618], limit 500}
        1d 00:21:05.400 > EOSE 10
        1d 00:21:05.400   CLOSE 10
        1d 00:21:05.400 > NEG-MSG 8
        1d 00:21:05.400   NEG-CLOSE 8
        1d 00:21:05.400   it lacks 1 events
        1d 00:21:05.400 > EOSE 11
        1d 00:21:05.400   CLOSE 11
        1d 00:21:05.400   caught up by Daily: 0 events, whole
        2d 01:16:24.300   NEG-OPEN 12 {#a×1}
        2d 01:16:24.300   REQ 13 {kinds[30617], limit 500}
        2d 01:16:24.300   REQ 14 {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        2d 01:16:25.400 > EOSE 13
        2d 01:16:25.400   CLOSE 13
        2d 01:16:25.400   REQ 15 {kinds[30618], limit 500}
        2d 01:16:25.400 > EOSE 14
        2d 01:16:25.400   CLOSE 14
        2d 01:16:25.400 > NEG-MSG 12
        2d 01:16:25.400   NEG-CLOSE 12
        2d 01:16:25.400   it lacks 0 events
        2d 01:16:25.400 > EOSE 15
        2d 01:16:25.400   CLOSE 15
        2d 01:16:25.400   caught up by Daily: 0 events, whole
        "#,
    );
}
