//! What a relay means by a notice. The only place where strangers' prose is read.

use crate::limits;

/// What a relay complains about. The same texts come as NOTICE, CLOSED, NEG-ERR or OK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelayRejection {
    /// We ask too often.
    RateLimited,
    /// We have too many subscriptions or reconciliations open.
    TooManySubscriptions,
    /// Our subscriptions together are larger than this many bytes.
    SubscriptionBytes(u64),
    /// A request has too many filters.
    TooManyFilters,
    /// A filter, or the message with it, has a form or a size that it does not take.
    UnsupportedFilter,
    /// It does not take `limit: 0`.
    LimitZeroRejected,
    /// The answer would be too large.
    ResultTooLarge,
    /// It does not speak negentropy, or another version of it.
    NoNegentropy,
    /// We must authenticate.
    AuthRequired,
    /// It wants nothing to do with us.
    NotAllowed,
    /// It says goodbye: it restarts, stops, or ends this connection.
    ConnectionClosing,
    /// Nothing that we act upon.
    Unclassified,
}

/// Phrases that must all be there.
type AllPhrases = &'static [&'static str];

/// What is meant if any of the alternatives is there. Read from the top: the specific stands before the general.
///
/// Phrases are looked for in a text of lower-case words with one space between them and around them.
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
    // What says that a command is not known means the only unusual one that we use.
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
    // What is wrong with publishing is nothing to us.
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
    // What is wrong with an authentication or with a negentropy message is not wrong with a filter.
    (
        RelayRejection::Unclassified,
        &[&["challenge"], &["relay tag"], &["signature"], &["created at"], &["kind 22242"], &["negentropy message"]],
    ),
];

/// With these, a text that says nothing else is about the request.
const REQUEST_ERROR_PREFIXES: [&str; 2] = [" invalid ", " unsupported "];

impl RelayRejection {
    /// Reads a notice. Only its first [`limits::MAX_NOTICE_BYTES`] are looked at.
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

/// The part that is looked at.
fn clip(text: &str) -> &str {
    let end = (0..=text.len().min(limits::MAX_NOTICE_BYTES)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// The words with one space between them and around them.
fn normalize(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(' ');
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        out.push_str(word);
        out.push(' ');
    }
    out
}

/// The number before the word "bytes". Thousands may be set off by commas or underscores.
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
