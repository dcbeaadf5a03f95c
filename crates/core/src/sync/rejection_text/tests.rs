use super::RelayRejection::{
    AuthRequired, ConnectionClosing, LimitZeroRejected, NoNegentropy, NotAllowed, RateLimited, ResultTooLarge,
    SubscriptionBytes, TooManyFilters, TooManySubscriptions, Unclassified, UnsupportedFilter,
};
use super::*;

fn check(table: &[(&str, RelayRejection)]) {
    for (text, meaning) in table {
        assert_eq!(RelayRejection::classify(text), *meaning, "{text}");
        assert_eq!(RelayRejection::classify(&text.to_uppercase()), *meaning, "{text}");
        assert_eq!(RelayRejection::classify(&format!("  {text}\n")), *meaning, "{text}");
    }
}

#[test]
fn common_rejection_texts() {
    check(&[
        ("rate-limited: too many queries", RateLimited),
        ("rate-limited: slow down", RateLimited),
        ("Rate limit exceeded", RateLimited),
        ("slow down please", RateLimited),
        ("subscription throttled", RateLimited),
        ("ERROR: too many concurrent REQs", TooManySubscriptions),
        ("ERROR: too many concurrent NEG requests", TooManySubscriptions),
        ("blocked: too many subscriptions", TooManySubscriptions),
        ("rate-limited: too many negentropy subscriptions", TooManySubscriptions),
        ("rate-limited: active subscriptions exceed max size 1048576 bytes", SubscriptionBytes(1_048_576)),
        ("rate-limited: REQ exceeds max filter count 10", TooManyFilters),
        ("ERROR: filter validation failed: invalid number of filters: 8", TooManyFilters),
        ("ERROR: bad req: error parsing #a: filter item too large", UnsupportedFilter),
        ("unsupported: invalid filters", UnsupportedFilter),
        ("invalid: Filter 'limit' must be a positive integer, got 0", LimitZeroRejected),
        ("blocked: too many query results", ResultTooLarge),
        ("rate-limited: too many negentropy items", ResultTooLarge),
        ("negentropy not supported", NoNegentropy),
        ("server does not support our negentropy protocol version", NoNegentropy),
        ("unknown command", NoNegentropy),
        ("blocked: Request rejected", NotAllowed),
        ("restricted: you are not a member of this relay", NotAllowed),
        ("auth-required: we only serve registered users", AuthRequired),
        ("too many authentication attempts", NotAllowed),
        ("blocked: subscription ID exceeds max length 64", NotAllowed),
        ("blocked: this query is too big", ResultTooLarge),
    ]);
}

#[test]
fn strfry() {
    check(&[
        ("ERROR: bad msg: negentropy disabled", NoNegentropy),
        ("ERROR: bad msg: unknown cmd", NoNegentropy),
        ("ERROR: negentropy error: negentropy query missing elements", NoNegentropy),
        ("ERROR: negentropy error: got NEG-MSG before NEG-OPEN complete", Unclassified),
        ("ERROR: negentropy error: total filter items too large", UnsupportedFilter),
        ("ERROR: bad req: total filter items too large", UnsupportedFilter),
        ("ERROR: bad req: unindexed tag filter", UnsupportedFilter),
        ("ERROR: bad req: unrecognised filter item", UnsupportedFilter),
        ("ERROR: bad req: too many tags in filter", UnsupportedFilter),
        ("ERROR: bad req: arr too big", TooManyFilters),
        ("ERROR: bad req: subscription id too long", NotAllowed),
        ("ERROR: bad req: unexpected character in from_hex: 118", UnsupportedFilter),
        ("ERROR: bad msg: unparseable message", Unclassified),
        ("ERROR: bad close: arr too small/big", Unclassified),
        ("PROTOCOL-ERROR", Unclassified),
        ("FILTER_INVALID", UnsupportedFilter),
        ("closed: unknown subscription handle", Unclassified),
        ("RESULTS_TOO_BIG", ResultTooLarge),
    ]);
}

#[test]
fn nostr_rs_relay() {
    check(&[
        ("Subscription error: Maximum concurrent subscription count reached", TooManySubscriptions),
        ("Subscription error: Subscription identifier max length exceeded", NotAllowed),
        ("could not parse command", NoNegentropy),
        ("Command unknown", NoNegentropy),
        ("message too large (262144 > 131072)", UnsupportedFilter),
        ("binary messages are not accepted", Unclassified),
        ("PROTOCOL-ERROR: bad input", Unclassified),
    ]);
}

#[test]
fn khatru_and_derivatives() {
    check(&[
        ("rate-limited: there is a bug in the client, no one should be making so many requests", RateLimited),
        ("rate-limited: slow down, please", RateLimited),
        ("error: too fast, slow down please", RateLimited),
        ("blocked: too many things to filter for", UnsupportedFilter),
        ("blocked: can't handle empty filters", UnsupportedFilter),
        ("blocked: an author must be specified to get their kind:1 notes", UnsupportedFilter),
        ("failed to parse envelope: unknown envelope label", NoNegentropy),
        ("auth-required: this query requires you to be authenticated", AuthRequired),
        ("auth-required: you must auth", AuthRequired),
        ("restricted: not authorized to see these events", NotAllowed),
        ("blocked: you are not in the web of trust", NotAllowed),
        ("error: failed to authenticate", NotAllowed),
        ("unsupported: this relay does not support negentropy", NoNegentropy),
        ("unknown message type NEG-OPEN", NoNegentropy),
        ("CLOSED", Unclassified),
    ]);
}

#[test]
fn nostream_and_rnostr() {
    check(&[
        ("rate limited", RateLimited),
        (
            "Subscription rejected: Too many subscriptions: Number of subscriptions must be less than or equal to 10",
            TooManySubscriptions,
        ),
        (
            "Subscription rejected: Too many filters: Number of filters per susbscription must be less then or equal to 10",
            TooManyFilters,
        ),
        ("Subscription rejected: Duplicate subscription abc: Ignorning", Unclassified),
        ("Invalid message: \"[2].limit\" must be greater than or equal to 1", LimitZeroRejected),
        ("Invalid message: \"value\" does not match any of the allowed types", NoNegentropy),
        ("Number of subscriptions exceeds limit", TooManySubscriptions),
        ("This subscription already exists", Unclassified),
        ("Subscription id should be non-empty string of max length 64 chars", NotAllowed),
        ("Unsupported message", NoNegentropy),
        ("payload reached size limit.", UnsupportedFilter),
        ("invalid: limitation.max_filters 10", TooManyFilters),
        ("invalid: limitation.max_limit 300", UnsupportedFilter),
        ("invalid: limitation.max_message_length 131072", UnsupportedFilter),
        ("invalid: limitation.max_subid_length 100", NotAllowed),
        ("json error: unknown variant `NEG-OPEN`, expected one of `EVENT`, `REQ`", NoNegentropy),
        ("Something is wrong", Unclassified),
    ]);
}

#[test]
fn chorus_haven_and_ditto() {
    check(&[
        ("blocked: No more than 128 subscriptions are allowed at any one time", TooManySubscriptions),
        ("invalid: Filter is underspecified. Scrapers are not allowed", UnsupportedFilter),
        ("blocked: Negentropy sync is disabled", NoNegentropy),
        ("Version mismatch", NoNegentropy),
        ("Command unrecognized", NoNegentropy),
        ("Subscription not found", Unclassified),
        ("error: Empty negentropy message", Unclassified),
        ("error: Too many errors", RateLimited),
        ("error: JSON bad filter: unknown at position 7", UnsupportedFilter),
        ("invalid: AUTH failure: relay is wrong", NotAllowed),
        ("auth-required: DM kinds were included in the filters", AuthRequired),
        ("error: Timed out", Unclassified),
        ("restricted: only the owner may read this relay", NotAllowed),
        ("error: the relay timed out, query took too long", ResultTooLarge),
        ("error: query timeout", ResultTooLarge),
        ("invalid: Number must be greater than 0: limit", LimitZeroRejected),
        ("blocked: too many events match this query", ResultTooLarge),
    ]);
}

#[test]
fn local_relay_of_rust_nostr() {
    check(&[
        ("rate-limited: too many REQs", TooManySubscriptions),
        ("blocked: too many filters", TooManyFilters),
        ("blocked: requested too many event IDs", UnsupportedFilter),
        ("blocked: query rejected", NotAllowed),
        (
            "unsupported: multi-filter REQs aren't supported (https://github.com/nostr-protocol/nips/pull/1645)",
            TooManyFilters,
        ),
        ("error: invalid negentropy message", Unclassified),
        ("error: subscription not found", Unclassified),
        ("rate-limited: too many negentropy messages", RateLimited),
        ("error: database error", Unclassified),
    ]);
}

#[test]
fn grasp_servers() {
    check(&[
        ("rate-limited: at most 20 subscriptions are kept", TooManySubscriptions),
        ("rate-limited: too many negentropy subscriptions, at most 10", TooManySubscriptions),
        ("rate-limited: active subscriptions exceed max size 5242880 bytes", SubscriptionBytes(5_242_880)),
        ("rate-limited: the server holds as many filters as it can, no live events follow", RateLimited),
        ("rate-limited: the filters of your network take too much memory, no live events follow", RateLimited),
        ("rate-limited: too many large queries at once, try again later", RateLimited),
        ("rate-limited: the query touches too many events, narrow it", ResultTooLarge),
        ("rate-limited: too many authentication attempts", NotAllowed),
        ("blocked: too many reconciliations at once, try again later", RateLimited),
        ("blocked: too many reconciliations from your network at once, try again later", RateLimited),
        ("invalid: at most 20 filters in one message", TooManyFilters),
        ("invalid: a subscription id must be a string of 1 to 250 bytes", NotAllowed),
        ("invalid: unknown message type NEG-OPEN", NoNegentropy),
        ("invalid: a negentropy message must be hex", Unclassified),
        ("invalid: the challenge does not match this connection", Unclassified),
        ("closed: open or idle for too long", Unclassified),
        ("closed: one message at a time", Unclassified),
        ("closed: unknown subscription", Unclassified),
        ("error: the query failed", Unclassified),
    ]);
}

#[test]
fn connection_closing_texts() {
    check(&[
        ("error: shutting down", ConnectionClosing),
        ("relay is shutting down, try again later", ConnectionClosing),
        ("server restarting, please reconnect", ConnectionClosing),
        ("The relay will restart in 30 seconds", ConnectionClosing),
        ("closing connection due to inactivity", ConnectionClosing),
        ("down for maintenance", ConnectionClosing),
        ("goodbye", ConnectionClosing),
        ("too many requests, closing connection", RateLimited),
    ]);
}

#[test]
fn rate_limit_texts() {
    check(&[
        ("rate-limited:", RateLimited),
        ("ratelimited", RateLimited),
        ("Too Many Requests", RateLimited),
        ("too many connections from your IP", RateLimited),
        ("rate-limited: at most 100 subscriptions per minute", RateLimited),
        ("subscription rate limit exceeded", RateLimited),
        ("You are sending messages too quickly", RateLimited),
        ("error: server busy", RateLimited),
        ("blocked: quota used up", RateLimited),
        ("limit exceeded", RateLimited),
    ]);
}

#[test]
fn ordinary_notices_are_unclassified() {
    check(&[
        ("", Unclassified),
        (" ", Unclassified),
        ("closed: ", Unclassified),
        ("subscription closed", Unclassified),
        ("error: connection closed", Unclassified),
        ("welcome", Unclassified),
        ("Welcome to our carefully moderated relay, unlimited for everybody", Unclassified),
        ("This relay requires payment to write, see https://relay.example/join", Unclassified),
        ("restricted: you may not publish here", Unclassified),
        ("blocked: pubkey not allowed to write", Unclassified),
        ("duplicate: sub1 already opened", Unclassified),
        ("closed: you took too long to respond!", Unclassified),
        ("error: could not connect to the database", Unclassified),
        ("pow: difficulty 26 is less than 30", Unclassified),
        ("hello, separate topics have no limit here", Unclassified),
        ("日本語のお知らせ", Unclassified),
        ("💥", Unclassified),
    ]);
}

#[test]
fn prefix_alone_is_classified() {
    check(&[
        ("auth-required: ", AuthRequired),
        ("AUTH required", AuthRequired),
        ("restricted: ", NotAllowed),
        ("blocked: ", NotAllowed),
        ("invalid: ", UnsupportedFilter),
        ("unsupported: ", UnsupportedFilter),
        ("error: ", Unclassified),
    ]);
}

#[test]
fn byte_counts_are_parsed() {
    for (text, meaning) in [
        ("subscriptions exceed 1,048,576 bytes", SubscriptionBytes(1_048_576)),
        ("subscriptions exceed 1_048_576bytes", SubscriptionBytes(1_048_576)),
        ("subscriptions exceed max size (64 bytes)", SubscriptionBytes(64)),
        ("subscriptions exceed max size: é64 bytes", SubscriptionBytes(64)),
        ("subscriptions exceed 99999999999999999999999999 bytes", SubscriptionBytes(u64::MAX)),
        ("at most 0 bytes of subscriptions", SubscriptionBytes(0)),
        ("active subscriptions exceed max size", TooManySubscriptions),
        ("active subscriptions exceed max size of many bytes", TooManySubscriptions),
        ("active subscriptions exceed max size of , bytes", TooManySubscriptions),
    ] {
        assert_eq!(RelayRejection::classify(text), meaning, "{text}");
    }
}

#[test]
fn only_the_beginning_is_classified() {
    let far = format!("{}too many requests", "x ".repeat(limits::MAX_NOTICE_BYTES / 2));
    assert_eq!(RelayRejection::classify(&far), Unclassified);
    let near = format!("{}slow down{}", "x ".repeat(200), "y".repeat(100_000));
    assert_eq!(RelayRejection::classify(&near), RateLimited);
    // The limit falls inside a character.
    for shift in 0..4 {
        let text = format!("{}{}", "x".repeat(shift), "ß€💥".repeat(200));
        assert_eq!(RelayRejection::classify(&text), Unclassified);
        assert!(clip(&text).len() <= limits::MAX_NOTICE_BYTES);
    }
}

#[test]
fn every_pattern_is_normalized() {
    for (rejection, any) in REJECTION_PATTERNS {
        for all in any.split('|') {
            assert!(!all.is_empty(), "{rejection:?}");
            for phrase in all.split('+') {
                let phrase = &phrase.replace('_', " ");
                assert!(normalize(&phrase.to_lowercase()).contains(phrase.trim()), "{phrase}");
                assert!(normalize(phrase).trim() == phrase.trim(), "{phrase} is not normalized");
            }
        }
    }
}
