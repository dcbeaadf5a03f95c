use super::Complaint::{
    AuthRequired, Bytes, Closing, FilterCount, FilterShape, LimitZero, NoNegentropy, Other, Policy, Rate, ResultSize,
    Slots,
};
use super::*;

fn check(table: &[(&str, Complaint)]) {
    for (text, meaning) in table {
        assert_eq!(Complaint::read(text), *meaning, "{text}");
        assert_eq!(Complaint::read(&text.to_uppercase()), *meaning, "{text}");
        assert_eq!(Complaint::read(&format!("  {text}\n")), *meaning, "{text}");
    }
}

#[test]
fn the_wordings_of_the_spec() {
    check(&[
        ("rate-limited: too many queries", Rate),
        ("rate-limited: slow down", Rate),
        ("Rate limit exceeded", Rate),
        ("slow down please", Rate),
        ("subscription throttled", Rate),
        ("ERROR: too many concurrent REQs", Slots),
        ("ERROR: too many concurrent NEG requests", Slots),
        ("blocked: too many subscriptions", Slots),
        ("rate-limited: too many negentropy subscriptions", Slots),
        ("rate-limited: active subscriptions exceed max size 1048576 bytes", Bytes(1_048_576)),
        ("rate-limited: REQ exceeds max filter count 10", FilterCount),
        ("ERROR: filter validation failed: invalid number of filters: 8", FilterCount),
        ("ERROR: bad req: error parsing #a: filter item too large", FilterShape),
        ("unsupported: invalid filters", FilterShape),
        ("invalid: Filter 'limit' must be a positive integer, got 0", LimitZero),
        ("blocked: too many query results", ResultSize),
        ("rate-limited: too many negentropy items", ResultSize),
        ("negentropy not supported", NoNegentropy),
        ("server does not support our negentropy protocol version", NoNegentropy),
        ("unknown command", NoNegentropy),
        ("blocked: Request rejected", Policy),
        ("restricted: you are not a member of this relay", Policy),
        ("auth-required: we only serve registered users", AuthRequired),
        ("too many authentication attempts", Policy),
        ("blocked: subscription ID exceeds max length 64", Policy),
        ("blocked: this query is too big", ResultSize),
    ]);
}

#[test]
fn strfry() {
    check(&[
        ("ERROR: bad msg: negentropy disabled", NoNegentropy),
        ("ERROR: bad msg: unknown cmd", NoNegentropy),
        ("ERROR: negentropy error: negentropy query missing elements", NoNegentropy),
        ("ERROR: negentropy error: got NEG-MSG before NEG-OPEN complete", Other),
        ("ERROR: negentropy error: total filter items too large", FilterShape),
        ("ERROR: bad req: total filter items too large", FilterShape),
        ("ERROR: bad req: unindexed tag filter", FilterShape),
        ("ERROR: bad req: unrecognised filter item", FilterShape),
        ("ERROR: bad req: too many tags in filter", FilterShape),
        ("ERROR: bad req: arr too big", FilterCount),
        ("ERROR: bad req: subscription id too long", Policy),
        ("ERROR: bad req: unexpected character in from_hex: 118", FilterShape),
        ("ERROR: bad msg: unparseable message", Other),
        ("ERROR: bad close: arr too small/big", Other),
        ("PROTOCOL-ERROR", Other),
        ("FILTER_INVALID", FilterShape),
        ("closed: unknown subscription handle", Other),
        ("RESULTS_TOO_BIG", ResultSize),
    ]);
}

#[test]
fn nostr_rs_relay() {
    check(&[
        ("Subscription error: Maximum concurrent subscription count reached", Slots),
        ("Subscription error: Subscription identifier max length exceeded", Policy),
        ("could not parse command", NoNegentropy),
        ("Command unknown", NoNegentropy),
        ("message too large (262144 > 131072)", FilterShape),
        ("binary messages are not accepted", Other),
        ("PROTOCOL-ERROR: bad input", Other),
    ]);
}

#[test]
fn khatru_and_its_kin() {
    check(&[
        ("rate-limited: there is a bug in the client, no one should be making so many requests", Rate),
        ("rate-limited: slow down, please", Rate),
        ("error: too fast, slow down please", Rate),
        ("blocked: too many things to filter for", FilterShape),
        ("blocked: can't handle empty filters", FilterShape),
        ("blocked: an author must be specified to get their kind:1 notes", FilterShape),
        ("failed to parse envelope: unknown envelope label", NoNegentropy),
        ("auth-required: this query requires you to be authenticated", AuthRequired),
        ("auth-required: you must auth", AuthRequired),
        ("restricted: not authorized to see these events", Policy),
        ("blocked: you are not in the web of trust", Policy),
        ("error: failed to authenticate", Policy),
        ("unsupported: this relay does not support negentropy", NoNegentropy),
        ("unknown message type NEG-OPEN", NoNegentropy),
        ("CLOSED", Other),
    ]);
}

#[test]
fn nostream_and_rnostr() {
    check(&[
        ("rate limited", Rate),
        (
            "Subscription rejected: Too many subscriptions: Number of subscriptions must be less than or equal to 10",
            Slots,
        ),
        (
            "Subscription rejected: Too many filters: Number of filters per susbscription must be less then or equal to 10",
            FilterCount,
        ),
        ("Subscription rejected: Duplicate subscription abc: Ignorning", Other),
        ("Invalid message: \"[2].limit\" must be greater than or equal to 1", LimitZero),
        ("Invalid message: \"value\" does not match any of the allowed types", NoNegentropy),
        ("Number of subscriptions exceeds limit", Slots),
        ("This subscription already exists", Other),
        ("Subscription id should be non-empty string of max length 64 chars", Policy),
        ("Unsupported message", NoNegentropy),
        ("payload reached size limit.", FilterShape),
        ("invalid: limitation.max_filters 10", FilterCount),
        ("invalid: limitation.max_limit 300", FilterShape),
        ("invalid: limitation.max_message_length 131072", FilterShape),
        ("invalid: limitation.max_subid_length 100", Policy),
        ("json error: unknown variant `NEG-OPEN`, expected one of `EVENT`, `REQ`", NoNegentropy),
        ("Something is wrong", Other),
    ]);
}

#[test]
fn chorus_haven_and_ditto() {
    check(&[
        ("blocked: No more than 128 subscriptions are allowed at any one time", Slots),
        ("invalid: Filter is underspecified. Scrapers are not allowed", FilterShape),
        ("blocked: Negentropy sync is disabled", NoNegentropy),
        ("Version mismatch", NoNegentropy),
        ("Command unrecognized", NoNegentropy),
        ("Subscription not found", Other),
        ("error: Empty negentropy message", Other),
        ("error: Too many errors", Rate),
        ("error: JSON bad filter: unknown at position 7", FilterShape),
        ("invalid: AUTH failure: relay is wrong", Policy),
        ("auth-required: DM kinds were included in the filters", AuthRequired),
        ("error: Timed out", Other),
        ("restricted: only the owner may read this relay", Policy),
        ("error: the relay timed out, query took too long", ResultSize),
        ("error: query timeout", ResultSize),
        ("invalid: Number must be greater than 0: limit", LimitZero),
        ("blocked: too many events match this query", ResultSize),
    ]);
}

#[test]
fn local_relay_of_rust_nostr() {
    check(&[
        ("rate-limited: too many REQs", Slots),
        ("blocked: too many filters", FilterCount),
        ("blocked: requested too many event IDs", FilterShape),
        ("blocked: query rejected", Policy),
        (
            "unsupported: multi-filter REQs aren't supported (https://github.com/nostr-protocol/nips/pull/1645)",
            FilterCount,
        ),
        ("error: invalid negentropy message", Other),
        ("error: subscription not found", Other),
        ("rate-limited: too many negentropy messages", Rate),
        ("error: database error", Other),
    ]);
}

#[test]
fn our_own_kind() {
    check(&[
        ("rate-limited: at most 20 subscriptions are kept", Slots),
        ("rate-limited: too many negentropy subscriptions, at most 10", Slots),
        ("rate-limited: active subscriptions exceed max size 5242880 bytes", Bytes(5_242_880)),
        ("rate-limited: the server holds as many filters as it can", Rate),
        ("rate-limited: the query touches too many events, narrow it", ResultSize),
        ("rate-limited: too many authentication attempts", Policy),
        ("blocked: too many reconciliations at once, try again later", Rate),
        ("invalid: at most 20 filters in one message", FilterCount),
        ("invalid: a subscription id is a string of 1 to 250 bytes", Policy),
        ("invalid: unknown message type NEG-OPEN", NoNegentropy),
        ("invalid: a negentropy message is hex", Other),
        ("invalid: the challenge is not the one of this connection", Other),
        ("closed: open or idle for too long", Other),
        ("closed: one message at a time", Other),
        ("closed: unknown subscription", Other),
        ("error: the query failed", Other),
    ]);
}

#[test]
fn goodbyes() {
    check(&[
        ("error: shutting down", Closing),
        ("relay is shutting down, try again later", Closing),
        ("server restarting, please reconnect", Closing),
        ("The relay will restart in 30 seconds", Closing),
        ("closing connection due to inactivity", Closing),
        ("down for maintenance", Closing),
        ("goodbye", Closing),
        ("too many requests, closing connection", Rate),
    ]);
}

#[test]
fn more_about_rates() {
    check(&[
        ("rate-limited:", Rate),
        ("ratelimited", Rate),
        ("Too Many Requests", Rate),
        ("too many connections from your IP", Rate),
        ("rate-limited: at most 100 subscriptions per minute", Rate),
        ("subscription rate limit exceeded", Rate),
        ("You are sending messages too quickly", Rate),
        ("error: server busy", Rate),
        ("blocked: quota used up", Rate),
        ("limit exceeded", Rate),
    ]);
}

#[test]
fn what_is_ordinary() {
    check(&[
        ("", Other),
        (" ", Other),
        ("closed: ", Other),
        ("subscription closed", Other),
        ("error: connection closed", Other),
        ("welcome", Other),
        ("Welcome to our carefully moderated relay, unlimited for everybody", Other),
        ("This relay requires payment to write, see https://relay.example/join", Other),
        ("restricted: you may not publish here", Other),
        ("blocked: pubkey not allowed to write", Other),
        ("duplicate: sub1 already opened", Other),
        ("closed: you took too long to respond!", Other),
        ("error: could not connect to the database", Other),
        ("pow: difficulty 26 is less than 30", Other),
        ("hello, separate topics have no limit here", Other),
        ("日本語のお知らせ", Other),
        ("💥", Other),
    ]);
}

#[test]
fn prefixes_alone_mean_something() {
    check(&[
        ("auth-required: ", AuthRequired),
        ("AUTH required", AuthRequired),
        ("restricted: ", Policy),
        ("blocked: ", Policy),
        ("invalid: ", FilterShape),
        ("unsupported: ", FilterShape),
        ("error: ", Other),
    ]);
}

#[test]
fn numbers_of_bytes() {
    for (text, meaning) in [
        ("subscriptions exceed 1,048,576 bytes", Bytes(1_048_576)),
        ("subscriptions exceed 1_048_576bytes", Bytes(1_048_576)),
        ("subscriptions exceed max size (64 bytes)", Bytes(64)),
        ("subscriptions exceed max size: é64 bytes", Bytes(64)),
        ("subscriptions exceed 99999999999999999999999999 bytes", Bytes(u64::MAX)),
        ("0 bytes of subscriptions are taken", Bytes(0)),
        ("active subscriptions exceed max size", Slots),
        ("active subscriptions exceed max size of many bytes", Slots),
        ("active subscriptions exceed max size of , bytes", Slots),
    ] {
        assert_eq!(Complaint::read(text), meaning, "{text}");
    }
}

#[test]
fn only_the_beginning_is_read() {
    let far = format!("{}too many requests", "x ".repeat(limits::MAX_COMPLAINT_BYTES / 2));
    assert_eq!(Complaint::read(&far), Other);
    let near = format!("{}slow down{}", "x ".repeat(200), "y".repeat(100_000));
    assert_eq!(Complaint::read(&near), Rate);
    // The cut falls into a letter.
    for shift in 0..4 {
        let text = format!("{}{}", "x".repeat(shift), "ß€💥".repeat(200));
        assert_eq!(Complaint::read(&text), Other);
        assert!(beginning(&text).len() <= limits::MAX_COMPLAINT_BYTES);
    }
}

#[test]
fn every_phrase_can_be_found() {
    for (complaint, any) in RULES {
        for all in *any {
            assert!(!all.is_empty(), "{complaint:?}");
            for phrase in *all {
                assert!(words(&phrase.to_lowercase()).contains(phrase.trim()), "{phrase}");
                assert!(words(phrase).trim() == phrase.trim(), "{phrase} is not how words are written");
            }
        }
    }
}
