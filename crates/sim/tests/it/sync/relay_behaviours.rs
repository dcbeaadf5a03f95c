//! Behaviours of relays beyond those of [`scenarios`](super::scenarios), as transcripts; see [`script`](super::script) for
//! their format.

use grasp_core::sync::io::DisconnectReason;
use grasp_core::sync::relay_record::{CoverageRecord, HealthRecord, RelayRecord};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_sim::simulation::queue::{HOUR, MINUTE, SECOND};

use super::script::{RELAY, SyncScript, config};

/// Returns a script whose machine has just connected to its only relay.
fn connected() -> SyncScript {
    let mut script = SyncScript::new(config());
    script.start();
    script
}

#[test]
fn relay_that_rejects_us_is_dialled_once_a_day() {
    let mut script = connected();
    script
        .clear()
        .reject_open("restricted: you are not a member of this relay")
        .disconnect(DisconnectReason::ClosedByUs)
        .show_status();
    script.advance(26 * HOUR).connect_and_sync().show_status().expect(
        r#"
        00:00:00.400 > CLOSED 1 restricted: you are not a member of this relay
        00:00:00.400   parked: restricted: you are not a member of this relay
        00:00:00.400   disconnect
        00:00:00.400 > disconnected: closed_by_us
        00:00:00.400   connection lost: closed_by_us
        00:00:00.400 = status disconnected, health degraded
        23:09:52.761   dial wss://r1.example
        1d 02:00:00.500 > connected and synced
        1d 02:00:00.500 = status connected, health stabilising
        "#,
    );
}

#[test]
fn relay_with_our_own_instance_id_is_not_dialled_again() {
    let mut script = SyncScript::new(config());
    script
        .follow(&[RELAY])
        .ready()
        .advance(300)
        .connect_to_self()
        .disconnect(DisconnectReason::ClosedByUs)
        .advance(48 * HOUR)
        .show_status()
        .expect(
            r#"
        00:00:00.000 > repo needs: thing
        00:00:00.000 > ready
        00:00:00.000   dial wss://r1.example
        00:00:00.300 > connected: instance me
        00:00:00.300   relay is this server
        00:00:00.300   disconnect
        00:00:00.300 > disconnected: closed_by_us
        2d 00:00:00.300 = status disconnected, health disconnected
        "#,
        );
}

#[test]
fn cooldown_and_backoff_survive_a_restart() {
    let health = HealthRecord {
        failures: 3,
        failing_since: Some(SyncScript::wall(0)),
        last_failure_at: Some(SyncScript::wall(0)),
        next_retry_at: Some(SyncScript::wall(20)),
        cooldown_until: Some(SyncScript::wall(90)),
        rate_limit_count: 2,
        ..HealthRecord::default()
    };
    let url = RelayUrl::parse(RELAY).expect("valid URL");
    let mut script = SyncScript::new(config());
    script.restore(RelayRecord { url, health, wanted_at: SyncScript::wall(0), ..RelayRecord::default() });
    script.follow(&[RELAY]).ready().show_status().advance(2 * MINUTE).expect(
        r#"
        00:00:00.000 > restored wss://r1.example
        00:00:00.000 > repo needs: thing
        00:00:00.000 > ready
        00:00:00.000 = status disconnected, health rate_limited
        00:01:31.000   dial wss://r1.example
        "#,
    );
}

#[test]
fn negentropy_fetches_missing_events() {
    let mut script = SyncScript::new(config());
    script.add_local_event(1, 100).add_local_event(2, 90).set_relay_events(500, [(1, 100), (3, 80)]);
    script.start().clear().answer().store_submitted().answer().show_status().expect(
        r#"
        00:00:00.400 ~ announcements, states and live subscriptions
        00:00:00.400   NEG-OPEN 5 {#a×1}
        00:00:00.400   REQ 6 {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        00:00:00.400 > EOSE 6
        00:00:00.400   CLOSE 6
        00:00:00.400 > NEG-MSG 5
        00:00:00.400   NEG-CLOSE 5
        00:00:00.400   REQ 7 {ids×1}
        00:00:00.400 > 7: 1 events
        00:00:00.400   submit #03 from catchup
        00:00:00.400 > EOSE 7
        00:00:00.400   CLOSE 7
        00:00:00.400 > stored
        00:00:00.400   catchup complete: 1 events
        00:00:00.400   relay lacks 1 events
        00:00:00.400 = status connected, health stabilising
        "#,
    );
}

#[test]
fn second_with_more_events_than_a_page_is_synced_by_negentropy() {
    let mut script = connected();
    script.clear().store_at_once().set_relay_events(30, (1..=50).map(|number| (number, 1_000)));
    script.answer().show_status().expect(
        r#"
        00:00:00.400 ~ announcements, states and live subscriptions
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
        00:00:00.400   catchup complete: 50 events
        00:00:00.400 = status connected, health stabilising
        "#,
    );
}

#[test]
fn events_after_eose_belong_to_the_page() {
    let mut script = connected();
    script
        .store_at_once()
        .answer()
        .set_relay_events(500, (1..=5).map(|number| (number, 1_000)))
        .serve_issue(1)
        .advance(6 * SECOND)
        .clear();
    script
        .send_eose_before_events()
        .send_eose_before_events()
        .disconnect(DisconnectReason::ClosedByUs)
        .advance(10 * SECOND)
        .connect()
        .advance(100);
    for _ in 0..6 {
        script.send_eose_before_events().advance(3 * SECOND);
    }
    script.show_status().expect(
        r#"
        00:00:06.400 > EOSE 6
        00:00:06.400   REQ 7 {#e×1, limit 500} {#E×1, limit 500} {#q×1, limit 500} {authors×1, kinds[62], limit 500}
        00:00:06.400 > EOSE 7
        00:00:06.400   CLOSE 7
        00:00:06.400 > 7: 5 events
        00:00:06.400   disconnect
        00:00:06.400 > disconnected: closed_by_us
        00:00:06.400   connection lost: closed_by_us
        00:00:08.400   dial wss://r1.example
        00:00:16.400 > connected
        00:00:16.400   connected: fresh
        00:00:16.400   REQ 1 {kinds[30617, 10317], limit 0} {kinds[30618], limit 0}
        00:00:16.500 > EOSE 1
        00:00:16.500   REQ 2 {kinds[30617, 10317], limit 500}
        00:00:19.500 > EOSE 2
        00:00:21.500   CLOSE 2
        00:00:21.500   REQ 3 {kinds[30618], limit 500}
        00:00:22.500 > EOSE 3
        00:00:24.500   CLOSE 3
        00:00:24.500   REQ 4 {#a×1, limit 0} {#A×1, limit 0} {#q×1, limit 0} {#e×1, limit 0} {#E×1, limit 0} {#q×1, limit 0} {authors×1, kinds[5, 62], limit 0} {authors×1, kinds[62], limit 0}
        00:00:25.500 > EOSE 4
        00:00:25.500   NEG-OPEN 5 {#a×1}
        00:00:25.500   NEG-OPEN 6 {#e×1}
        00:00:34.500 = status syncing, health stabilising
        "#,
    );
}

#[test]
fn held_event_counts_as_new_and_as_a_gap() {
    let mut script = connected();
    script.answer().add_relay_event(7, 7_200).clear().advance_answering(26 * HOUR).hold_submitted().expect(
        r#"
        1d 00:21:05.300   REQ 6 {kinds[30617, 10317], limit 500}
        1d 00:21:05.300   REQ 7 {#a×1, limit 500} {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        1d 00:21:05.400 > EOSE 6
        1d 00:21:05.400   CLOSE 6
        1d 00:21:05.400   REQ 8 {kinds[30618], limit 500}
        1d 00:21:05.400 > 7: 1 events
        1d 00:21:05.400   submit #07 from daily
        1d 00:21:05.400 > EOSE 7
        1d 00:21:05.400   CLOSE 7
        1d 00:21:05.400 > EOSE 8
        1d 00:21:05.400   CLOSE 8
        1d 02:00:00.400 > held
        1d 02:00:00.400   gaps: 1
        1d 02:00:00.400   daily complete: 1 events
        "#,
    );
}

#[test]
fn states_are_compared_once_after_a_restart() {
    let covered = CoverageRecord {
        epoch: 1,
        announcements: true,
        up_to: 1,
        lost_at: SyncScript::wall(0),
        since: None,
        next_full_at: SyncScript::wall(80_000),
        failed: false,
    };
    let url = RelayUrl::parse(RELAY).expect("valid URL");
    let mut script = SyncScript::new(config());
    script.add_local_event(0xf1, 100).add_local_event(0xf2, 90).set_relay_events(500, [(0xf1, 100)]);
    script.restore(RelayRecord {
        url,
        covered: Some(covered),
        wanted_at: SyncScript::wall(0),
        ..RelayRecord::default()
    });
    script.start().answer();
    script.disconnect(DisconnectReason::Ended).advance(20 * SECOND).connect().advance(100).answer().expect(
        r#"
        00:00:00.000 > restored wss://r1.example
        00:00:00.000 > repo needs: thing
        00:00:00.000 > ready
        00:00:00.000   dial wss://r1.example
        00:00:00.300 > connected
        00:00:00.300   connected: quick
        00:00:00.300   REQ 1 {kinds[30617, 10317], limit 0} {kinds[30618], limit 0}
        00:00:00.400 > EOSE 1
        00:00:00.400   REQ 2 {kinds[30617, 10317], since 1699999100, limit 500}
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
        00:00:00.400   catchup complete: 0 events
        00:00:00.400 > disconnected: ended
        00:00:00.400   connection lost: ended
        00:00:06.219   dial wss://r1.example
        00:00:20.400 > connected
        00:00:20.400   connected: quick
        00:00:20.400   REQ 1 {kinds[30617, 10317], limit 0} {kinds[30618], limit 0}
        00:00:20.500 > EOSE 1
        00:00:20.500   REQ 2 {kinds[30617, 10317], since 1699999100, limit 500}
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
        00:00:20.500   catchup complete: 0 events
        "#,
    );
}

#[test]
fn missing_events_of_a_relay_are_reported_daily() {
    let mut script = SyncScript::new(config());
    script.add_local_event(1, 100).set_relay_events(500, [(2, 90)]).store_at_once();
    script.start().answer();
    script
        .clear()
        .advance_answering(26 * HOUR)
        .set_relay_events(500, [(1, 100), (2, 90)])
        .advance_answering(24 * HOUR)
        .expect(
            r#"
        1d 00:21:05.300   NEG-OPEN 8 {#a×1}
        1d 00:21:05.300   REQ 9 {kinds[30617, 10317], limit 500}
        1d 00:21:05.300   REQ 10 {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        1d 00:21:05.400 > EOSE 9
        1d 00:21:05.400   CLOSE 9
        1d 00:21:05.400   REQ 11 {kinds[30618], limit 500}
        1d 00:21:05.400 > EOSE 10
        1d 00:21:05.400   CLOSE 10
        1d 00:21:05.400 > NEG-MSG 8
        1d 00:21:05.400   NEG-CLOSE 8
        1d 00:21:05.400 > EOSE 11
        1d 00:21:05.400   CLOSE 11
        1d 00:21:05.400   daily complete: 0 events
        1d 00:21:05.400   relay lacks 1 events
        2d 01:16:24.300   NEG-OPEN 12 {#a×1}
        2d 01:16:24.300   REQ 13 {kinds[30617, 10317], limit 500}
        2d 01:16:24.300   REQ 14 {#A×1, limit 500} {#q×1, limit 500} {authors×1, kinds[5, 62], limit 500}
        2d 01:16:25.400 > EOSE 13
        2d 01:16:25.400   CLOSE 13
        2d 01:16:25.400   REQ 15 {kinds[30618], limit 500}
        2d 01:16:25.400 > EOSE 14
        2d 01:16:25.400   CLOSE 14
        2d 01:16:25.400 > NEG-MSG 12
        2d 01:16:25.400   NEG-CLOSE 12
        2d 01:16:25.400 > EOSE 15
        2d 01:16:25.400   CLOSE 15
        2d 01:16:25.400   daily complete: 0 events
        "#,
        );
}

/// The relay offers event 2 in reconciliations and does not send it.
#[test]
fn withheld_events_are_requested_again_after_half_a_minute() {
    let mut script = SyncScript::new(config());
    script.add_local_event(1, 100).set_relay_events(500, [(1, 100), (2, 90)]).withhold(2);
    script.start().answer().advance_answering(8 * HOUR);
    let failures = script.times_of("batch failed: relay does not serve the events that it offers");
    let waits: Vec<u64> = failures.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let expected = [30, 60, 120, 240, 480, 900, 900, 900, 900, 900, 900, 900];
    assert_eq!(waits.len(), expected.len(), "twelve retries: {waits:?}");
    for (wait, expected) in waits.iter().zip(expected) {
        let expected = expected * SECOND;
        // The jitter is 20 %, and requests are answered every five seconds.
        assert!((expected * 8 / 10..=expected * 12 / 10 + 10 * SECOND).contains(wait), "{waits:?}");
    }
}

#[test]
fn withheld_event_that_is_sent_later_completes_the_history() {
    let mut script = SyncScript::new(config());
    script.add_local_event(1, 100).set_relay_events(500, [(1, 100), (2, 90)]).withhold(2).store_at_once();
    script.start().answer().show_status().send_withheld().advance_answering(MINUTE).show_status();
    assert_eq!(script.times_of("status connected_historic_sync_failures").len(), 1);
    assert_eq!(script.times_of("status connected,").len(), 1);
}

/// A rejection that does not pass ends the request. Sending it again at once would be an endless loop.
#[test]
fn rejected_fetch_of_withheld_ids_is_not_sent_again_at_once() {
    let mut script = SyncScript::new(config());
    script.add_local_event(1, 100).set_relay_events(500, [(1, 100), (2, 90)]).rejects_ids("error: not like this");
    script.start().answer().advance_answering(MINUTE);
    assert_eq!(script.times_of("{ids").len(), 1);
    assert_eq!(script.times_of("batch failed: request rejected").len(), 1);
}

/// Returns the gaps that a quick reconnect finds after an hour, if event 7 was created `secs` after the start and not
/// delivered live.
fn gaps_after_quick_reconnect(secs: u64) -> usize {
    let mut script = connected();
    script.answer().advance_answering(HOUR).add_relay_event(7, secs).pong();
    script.disconnect(DisconnectReason::Ended).advance(20 * SECOND).connect().advance(100).answer().store_submitted();
    assert_eq!(script.times_of("submit #07 from catchup").len(), 1, "at {secs}");
    script.times_of("gaps: 1").len()
}

#[test]
fn quick_reconnect_finds_gaps() {
    assert_eq!(gaps_after_quick_reconnect(3_000), 1, "live sync should have delivered it");
    assert_eq!(gaps_after_quick_reconnect(3_570), 0, "it may have arrived after the connection ended");
}

#[test]
fn polled_events_are_no_gaps() {
    let mut script = connected();
    script.disconnect(DisconnectReason::Ended).advance(20 * SECOND).connect_polled().advance(100).answer();
    script.advance_answering(2 * HOUR).add_relay_event(7, 7_000).clear().advance_answering(HOUR).store_submitted();
    assert!(!script.times_of("submit #07").is_empty(), "polling finds it");
    assert_eq!(script.times_of("gaps:"), Vec::<u64>::new());
}
