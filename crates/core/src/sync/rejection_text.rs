//! Classifies the texts of relays. The same wordings occur in NOTICE, CLOSED, NEG-ERR and OK messages, and prefixes are
//! not reliable, so the classification uses phrases of known relay implementations. This is the only place that
//! interprets free text of a relay.
//!
//! Called by `relay`. See `docs/design/sync.md#rejection-texts`.

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

/// Patterns of each class. A class matches if any of its alternatives, which are separated by `|`, does. All phrases of
/// an alternative, which are joined by `+`, must occur; `_` stands for a space at the start or end of a phrase. The first
/// match from the top counts, so specific patterns come before general ones.
///
/// Phrases are searched in the normalized text: lower-case words with one space between them and at both ends.
const REJECTION_PATTERNS: &[(RelayRejection, &str)] = &[
    (
        RelayRejection::NotAllowed,
        "subscription id_+length|subscription id_+_long_|subscription id_+_large_|subscription id_+_bytes_|\
         subscription identifier+length|subid+length|sub id_+_long_|authentication attempts|auth attempts",
    ),
    (
        RelayRejection::AuthRequired,
        "_auth required_|_auth is required_|_auth needed_|authentication required|authentication is required|\
         authentication needed|requires auth|require auth|_must auth|must be authenticated|please auth|\
         need to auth|not authenticated|unauthenticated",
    ),
    (RelayRejection::SubscriptionBytes(0), "subscriptions+bytes_|subscription+exceed+bytes_|subscriptions+max size"),
    (
        RelayRejection::LimitZeroRejected,
        "_limit_+positive|_limit_+_got 0_|_limit_+greater than 0_|_limit_+greater than zero|\
         _limit_+greater than or equal to 1_|_limit must be at least 1_|_limit should be at least 1_|\
         _limit cannot be 0_|_limit cannot be zero|_limit can t be zero|_limit must not be zero|\
         _limit must be non zero|_limit zero|_limit 0_|_limit of 0_",
    ),
    (
        RelayRejection::TooManyFilters,
        "filter count|number of filters|too many filters|max filters|maximum filters|multi filter|\
         multiple filters|_filters per_|only one filter|single filter|at most+_filters_|no more than+_filters_|\
         up to+_filters_|arr too big",
    ),
    // An unknown command can only be a negentropy command, because sync uses no other uncommon one.
    (
        RelayRejection::NoNegentropy,
        "negentropy+not support|negentropy+unsupported|negentropy+disabled|negentropy+not enabled|\
         negentropy+not implemented|negentropy+not available|negentropy+not allowed|negentropy+protocol version|\
         negentropy+missing elements|_neg open_+unknown|_neg open_+support|_neg open_+unrecogni|\
         _neg open_+unexpected|_neg open_+invalid|_neg open_+disabled|_neg msg_+unknown|_nip 77_+support|\
         _nip 77_+disabled|_nip77_+support|version mismatch|unknown cmd|unknown command|command unknown|\
         command unrecogni|unrecogni+_command_|unsupported command|invalid command|command not|\
         could not parse command|unsupported message|unknown message|unhandled message|unrecogni+_message_|\
         unknown envelope|parse envelope|unknown verb|unknown variant|allowed types",
    ),
    (
        RelayRejection::ResultTooLarge,
        "query results|too many results|results too big|negentropy items|too many items|too many records|\
         too many matching|too many events+narrow|too many events+_query_|too many events to|too much data|\
         result set|_query_+too big|_query_+too large|_query_+too broad|_query_+too expensive|_query_+too long|\
         _query_+timed out|_query_+timeout|_filter_+too broad",
    ),
    (RelayRejection::RateLimited, "throttl|per second|per minute|_a minute_|subscription rate"),
    (
        RelayRejection::TooManySubscriptions,
        "concurrent+_req|concurrent+_neg|concurrent+subscription|concurrent+queries|too many+subscription|\
         too many subs_|too many reqs|too many negentropy sessions|too many neg_|max+subscriptions|\
         maximum+subscription|number of subscriptions|subscription count|subscription limit|subscriptions limit|\
         subscriptions+limit reached|subscriptions+exceed|at most+_subscriptions|no more than+_subscriptions",
    ),
    (
        RelayRejection::UnsupportedFilter,
        "bad req|invalid+_filter|filter+invalid|bad filter|unsupported filter|_filter+not support|filter item|\
         filter validation|filter size|filter too|filter is too|filters too|filters are too|filter+malformed|\
         empty filter|parse filter|parsing filter|error parsing|unrecogni+_filter|unindexed tag|underspecified|\
         must be specified|must specify|too many things|too many tag|too many values|too many ids|\
         too many event ids|too many authors|too many kinds|message too|message is too|message size|max message|\
         payload|limitation max limit|from hex|unexpected character",
    ),
    (
        RelayRejection::RateLimited,
        "_rate_+_limit|ratelimit|too many|so many requests|slow down|slowdown|too fast|too quickly|too often|\
         too frequent|limit exceeded|exceeded+_limit_|limit reached|_quota_|flooding|back off",
    ),
    (
        RelayRejection::ConnectionClosing,
        "shutting down|shut down|shutdown|restarting|_relay_+_restart_|_server_+_restart_|going away|going down|\
         under maintenance|for maintenance|goodbye|closing connection|closing the connection|\
         _connection_+inactiv|_connection_+_idle_|disconnecting|is stopping",
    ),
    (RelayRejection::RateLimited, "try again later|_busy_|overload|temporarily unavailable"),
    // Rejections that concern publishing are not relevant, because sync does not publish events.
    (RelayRejection::NotAllowed, "_restricted_+_read|_blocked_+_read|allowed to read"),
    (
        RelayRejection::Unclassified,
        "duplicate|_already_|publish|_write_|_writing_|_writes_|_to post_|_posting_|your event",
    ),
    (
        RelayRejection::NotAllowed,
        "_blocked_|_restricted_|not allowed|not permitted|not authori|unauthori|forbidden|_banned_|not a member|\
         members only|whitelist|allowlist|blacklist|_denied_|_rejected_|not welcome|private relay|\
         payment required|payment is required|requires payment|_auth fail|authentication fail|\
         authentication error|failed to auth",
    ),
    // Errors in an authentication event or a negentropy message must not be taken for an unsupported filter.
    (RelayRejection::Unclassified, "challenge|relay tag|signature|created at|kind 22242|negentropy message"),
];

/// A text with one of these prefixes that matches no pattern is classified as [`RelayRejection::UnsupportedFilter`].
const REQUEST_ERROR_PREFIXES: [&str; 2] = [" invalid ", " unsupported "];

impl RelayRejection {
    /// Classifies a text of a relay. Only its first [`limits::MAX_NOTICE_BYTES`] are considered.
    #[must_use]
    pub fn classify(text: &str) -> Self {
        let text = clip(text).to_lowercase();
        let words = normalize(&text);
        let matches_all = |all: &str| all.split('+').all(|phrase| words.contains(&phrase.replace('_', " ")));
        let found =
            REJECTION_PATTERNS.iter().find(|(_, any)| any.split('|').any(matches_all)).map(|(rejection, _)| *rejection);
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
