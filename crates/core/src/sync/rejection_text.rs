//! Classifies the texts of relays. The same wordings occur in NOTICE, CLOSED, NEG-ERR and OK messages, and prefixes are
//! not reliable, so the classification uses phrases of known relay implementations. This is the only place that
//! interprets free text of a relay.
//!
//! Called by `on_rejection`. See `docs/design/sync.md#rejection-texts`.

use crate::limits;

/// The reason why a relay rejects a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelayRejection {
    /// Too many requests.
    RateLimited,
    /// Too many concurrent subscriptions or reconciliations.
    TooManySubscriptions,
    /// All subscriptions together are larger than this number of bytes.
    SubscriptionBytes(u64),
    /// Too many filters in a request.
    TooManyFilters,
    /// The form or the size of a filter, or of the message with it, is not supported.
    UnsupportedFilter,
    /// `limit: 0` is not supported.
    LimitZeroRejected,
    /// The result would be too large.
    ResultTooLarge,
    /// Negentropy, or this version of it, is not supported.
    NoNegentropy,
    /// Authentication is required.
    AuthRequired,
    /// The relay does not serve us by policy.
    NotAllowed,
    /// The relay restarts, stops, or ends this connection.
    ConnectionClosing,
    /// A text without consequences.
    Unclassified,
}

/// Phrases that must all occur.
type AllPhrases = &'static [&'static str];

/// Patterns of each class. A class matches if any of its alternatives does. The first match from the top counts, so
/// specific patterns come before general ones.
///
/// Phrases are searched in the normalized text: lower-case words with one space between them and at both ends.
const REJECTION_PATTERNS: &[(RelayRejection, &[AllPhrases])] = &[
    (
        RelayRejection::NotAllowed,
        &[
            &["subscription id ", "length"],
            &["subscription id ", " long "],
            &["subscription id ", " large "],
            &["subscription id ", " bytes "],
            &["subscription identifier", "length"],
            &["subid", "length"],
            &["sub id ", " long "],
            &["authentication attempts"],
            &["auth attempts"],
        ],
    ),
    (
        RelayRejection::AuthRequired,
        &[
            &[" auth required "],
            &[" auth is required "],
            &[" auth needed "],
            &["authentication required"],
            &["authentication is required"],
            &["authentication needed"],
            &["requires auth"],
            &["require auth"],
            &[" must auth"],
            &["must be authenticated"],
            &["please auth"],
            &["need to auth"],
            &["not authenticated"],
            &["unauthenticated"],
        ],
    ),
    (
        RelayRejection::SubscriptionBytes(0),
        &[&["subscriptions", "bytes "], &["subscription", "exceed", "bytes "], &["subscriptions", "max size"]],
    ),
    (
        RelayRejection::LimitZeroRejected,
        &[
            &[" limit ", "positive"],
            &[" limit ", " got 0 "],
            &[" limit ", "greater than 0 "],
            &[" limit ", "greater than zero"],
            &[" limit ", "greater than or equal to 1 "],
            &[" limit must be at least 1 "],
            &[" limit should be at least 1 "],
            &[" limit cannot be 0 "],
            &[" limit cannot be zero"],
            &[" limit can t be zero"],
            &[" limit must not be zero"],
            &[" limit must be non zero"],
            &[" limit zero"],
            &[" limit 0 "],
            &[" limit of 0 "],
        ],
    ),
    (
        RelayRejection::TooManyFilters,
        &[
            &["filter count"],
            &["number of filters"],
            &["too many filters"],
            &["max filters"],
            &["maximum filters"],
            &["multi filter"],
            &["multiple filters"],
            &[" filters per "],
            &["only one filter"],
            &["single filter"],
            &["at most", " filters "],
            &["no more than", " filters "],
            &["up to", " filters "],
            &["arr too big"],
        ],
    ),
    // An unknown command can only be a negentropy command, because sync uses no other uncommon one.
    (
        RelayRejection::NoNegentropy,
        &[
            &["negentropy", "not support"],
            &["negentropy", "unsupported"],
            &["negentropy", "disabled"],
            &["negentropy", "not enabled"],
            &["negentropy", "not implemented"],
            &["negentropy", "not available"],
            &["negentropy", "not allowed"],
            &["negentropy", "protocol version"],
            &["negentropy", "missing elements"],
            &[" neg open ", "unknown"],
            &[" neg open ", "support"],
            &[" neg open ", "unrecogni"],
            &[" neg open ", "unexpected"],
            &[" neg open ", "invalid"],
            &[" neg open ", "disabled"],
            &[" neg msg ", "unknown"],
            &[" nip 77 ", "support"],
            &[" nip 77 ", "disabled"],
            &[" nip77 ", "support"],
            &["version mismatch"],
            &["unknown cmd"],
            &["unknown command"],
            &["command unknown"],
            &["command unrecogni"],
            &["unrecogni", " command "],
            &["unsupported command"],
            &["invalid command"],
            &["command not"],
            &["could not parse command"],
            &["unsupported message"],
            &["unknown message"],
            &["unhandled message"],
            &["unrecogni", " message "],
            &["unknown envelope"],
            &["parse envelope"],
            &["unknown verb"],
            &["unknown variant"],
            &["allowed types"],
        ],
    ),
    (
        RelayRejection::ResultTooLarge,
        &[
            &["query results"],
            &["too many results"],
            &["results too big"],
            &["negentropy items"],
            &["too many items"],
            &["too many records"],
            &["too many matching"],
            &["too many events", "narrow"],
            &["too many events", " query "],
            &["too many events to"],
            &["too much data"],
            &["result set"],
            &[" query ", "too big"],
            &[" query ", "too large"],
            &[" query ", "too broad"],
            &[" query ", "too expensive"],
            &[" query ", "too long"],
            &[" query ", "timed out"],
            &[" query ", "timeout"],
            &[" filter ", "too broad"],
        ],
    ),
    (
        RelayRejection::RateLimited,
        &[&["throttl"], &["per second"], &["per minute"], &[" a minute "], &["subscription rate"]],
    ),
    (
        RelayRejection::TooManySubscriptions,
        &[
            &["concurrent", " req"],
            &["concurrent", " neg"],
            &["concurrent", "subscription"],
            &["concurrent", "queries"],
            &["too many", "subscription"],
            &["too many subs "],
            &["too many reqs"],
            &["too many negentropy sessions"],
            &["too many neg "],
            &["max", "subscriptions"],
            &["maximum", "subscription"],
            &["number of subscriptions"],
            &["subscription count"],
            &["subscription limit"],
            &["subscriptions limit"],
            &["subscriptions", "limit reached"],
            &["subscriptions", "exceed"],
            &["at most", " subscriptions"],
            &["no more than", " subscriptions"],
        ],
    ),
    (
        RelayRejection::UnsupportedFilter,
        &[
            &["bad req"],
            &["invalid", " filter"],
            &["filter", "invalid"],
            &["bad filter"],
            &["unsupported filter"],
            &[" filter", "not support"],
            &["filter item"],
            &["filter validation"],
            &["filter size"],
            &["filter too"],
            &["filter is too"],
            &["filters too"],
            &["filters are too"],
            &["filter", "malformed"],
            &["empty filter"],
            &["parse filter"],
            &["parsing filter"],
            &["error parsing"],
            &["unrecogni", " filter"],
            &["unindexed tag"],
            &["underspecified"],
            &["must be specified"],
            &["must specify"],
            &["too many things"],
            &["too many tag"],
            &["too many values"],
            &["too many ids"],
            &["too many event ids"],
            &["too many authors"],
            &["too many kinds"],
            &["message too"],
            &["message is too"],
            &["message size"],
            &["max message"],
            &["payload"],
            &["limitation max limit"],
            &["from hex"],
            &["unexpected character"],
        ],
    ),
    (
        RelayRejection::RateLimited,
        &[
            &[" rate ", " limit"],
            &["ratelimit"],
            &["too many"],
            &["so many requests"],
            &["slow down"],
            &["slowdown"],
            &["too fast"],
            &["too quickly"],
            &["too often"],
            &["too frequent"],
            &["limit exceeded"],
            &["exceeded", " limit "],
            &["limit reached"],
            &[" quota "],
            &["flooding"],
            &["back off"],
        ],
    ),
    (
        RelayRejection::ConnectionClosing,
        &[
            &["shutting down"],
            &["shut down"],
            &["shutdown"],
            &["restarting"],
            &[" relay ", " restart "],
            &[" server ", " restart "],
            &["going away"],
            &["going down"],
            &["under maintenance"],
            &["for maintenance"],
            &["goodbye"],
            &["closing connection"],
            &["closing the connection"],
            &[" connection ", "inactiv"],
            &[" connection ", " idle "],
            &["disconnecting"],
            &["is stopping"],
        ],
    ),
    (RelayRejection::RateLimited, &[&["try again later"], &[" busy "], &["overload"], &["temporarily unavailable"]]),
    // Rejections that concern publishing are not relevant, because sync does not publish events.
    (RelayRejection::NotAllowed, &[&[" restricted ", " read"], &[" blocked ", " read"], &["allowed to read"]]),
    (
        RelayRejection::Unclassified,
        &[
            &["duplicate"],
            &[" already "],
            &["publish"],
            &[" write "],
            &[" writing "],
            &[" writes "],
            &[" to post "],
            &[" posting "],
            &["your event"],
        ],
    ),
    (
        RelayRejection::NotAllowed,
        &[
            &[" blocked "],
            &[" restricted "],
            &["not allowed"],
            &["not permitted"],
            &["not authori"],
            &["unauthori"],
            &["forbidden"],
            &[" banned "],
            &["not a member"],
            &["members only"],
            &["whitelist"],
            &["allowlist"],
            &["blacklist"],
            &[" denied "],
            &[" rejected "],
            &["not welcome"],
            &["private relay"],
            &["payment required"],
            &["payment is required"],
            &["requires payment"],
            &[" auth fail"],
            &["authentication fail"],
            &["authentication error"],
            &["failed to auth"],
        ],
    ),
    // Errors in an authentication event or a negentropy message must not be taken for an unsupported filter.
    (
        RelayRejection::Unclassified,
        &[&["challenge"], &["relay tag"], &["signature"], &["created at"], &["kind 22242"], &["negentropy message"]],
    ),
];

/// A text with one of these prefixes that matches no pattern is classified as [`RelayRejection::UnsupportedFilter`].
const REQUEST_ERROR_PREFIXES: [&str; 2] = [" invalid ", " unsupported "];

impl RelayRejection {
    /// Classifies a text of a relay. Only its first [`limits::MAX_NOTICE_BYTES`] are considered.
    #[must_use]
    pub fn classify(text: &str) -> Self {
        let text = clip(text).to_lowercase();
        let words = normalize(&text);
        let matches_all = |all: &AllPhrases| all.iter().all(|phrase| words.contains(phrase));
        let found =
            REJECTION_PATTERNS.iter().find(|(_, any)| any.iter().any(matches_all)).map(|(rejection, _)| *rejection);
        match found {
            Some(Self::SubscriptionBytes(_)) => {
                parse_byte_count(&text).map_or(Self::TooManySubscriptions, Self::SubscriptionBytes)
            }
            Some(rejection) => rejection,
            None if REQUEST_ERROR_PREFIXES.iter().any(|prefix| words.starts_with(prefix)) => Self::UnsupportedFilter,
            None => Self::Unclassified,
        }
    }
}

/// Returns the part of a text that is considered.
fn clip(text: &str) -> &str {
    let end = (0..=text.len().min(limits::MAX_NOTICE_BYTES)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Returns the words of a text with one space between them and at both ends.
fn normalize(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(' ');
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        out.push_str(word);
        out.push(' ');
    }
    out
}

/// Returns the number before the word "bytes". Thousands may be separated by commas or underscores.
fn parse_byte_count(text: &str) -> Option<u64> {
    let before = text[..text.find("bytes")?].trim_end();
    let start = before
        .rfind(|c: char| !matches!(c, '0'..='9' | ',' | '_'))
        .map_or(0, |at| at + before[at..].chars().next().map_or(0, char::len_utf8));
    let digits = before[start..].chars().filter(char::is_ascii_digit);
    let mut number = None;
    for digit in digits {
        let digit = u64::from(digit.to_digit(10).unwrap_or(0));
        number = Some(number.unwrap_or(0_u64).saturating_mul(10).saturating_add(digit));
    }
    number
}

#[cfg(test)]
mod tests;
