//! What a relay means by a notice. The only place where strangers' prose is read.

use crate::limits;

/// What a relay complains about. The same texts come as NOTICE, CLOSED, NEG-ERR or OK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Complaint {
    /// We ask too often.
    Rate,
    /// We have too many subscriptions or reconciliations open.
    Slots,
    /// Our subscriptions together are larger than this many bytes.
    Bytes(u64),
    /// A request has too many filters.
    FilterCount,
    /// A filter, or the message with it, has a form or a size that it does not take.
    FilterShape,
    /// It does not take `limit: 0`.
    LimitZero,
    /// The answer would be too large.
    ResultSize,
    /// It does not speak negentropy, or another version of it.
    NoNegentropy,
    /// We must authenticate.
    AuthRequired,
    /// It wants nothing to do with us.
    Policy,
    /// It says goodbye: it restarts, stops, or ends this connection.
    Closing,
    /// Nothing that we act upon.
    Other,
}

/// Phrases that must all be there.
type All = &'static [&'static str];

/// What is meant if any of the alternatives is there. Read from the top: the specific stands before the general.
///
/// Phrases are looked for in a text of lower-case words with one space between them and around them.
const RULES: &[(Complaint, &[All])] = &[
    (
        Complaint::Policy,
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
        Complaint::AuthRequired,
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
        Complaint::Bytes(0),
        &[&["subscriptions", "bytes "], &["subscription", "exceed", "bytes "], &["subscriptions", "max size"]],
    ),
    (
        Complaint::LimitZero,
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
        Complaint::FilterCount,
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
        Complaint::NoNegentropy,
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
        Complaint::ResultSize,
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
    (Complaint::Rate, &[&["throttl"], &["per second"], &["per minute"], &[" a minute "], &["subscription rate"]]),
    (
        Complaint::Slots,
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
        Complaint::FilterShape,
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
        Complaint::Rate,
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
        Complaint::Closing,
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
    (Complaint::Rate, &[&["try again later"], &[" busy "], &["overload"], &["temporarily unavailable"]]),
    // What is wrong with publishing is nothing to us.
    (Complaint::Policy, &[&[" restricted ", " read"], &[" blocked ", " read"], &["allowed to read"]]),
    (
        Complaint::Other,
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
        Complaint::Policy,
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
        Complaint::Other,
        &[&["challenge"], &["relay tag"], &["signature"], &["created at"], &["kind 22242"], &["negentropy message"]],
    ),
];

/// With these, a text that says nothing else is about the request.
const ABOUT_THE_REQUEST: [&str; 2] = [" invalid ", " unsupported "];

impl Complaint {
    /// Reads a notice. Only its first [`limits::MAX_COMPLAINT_BYTES`] are looked at.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let text = beginning(text).to_lowercase();
        let words = words(&text);
        let is_meant = |all: &All| all.iter().all(|phrase| words.contains(phrase));
        let found = RULES.iter().find(|(_, any)| any.iter().any(is_meant)).map(|(complaint, _)| *complaint);
        match found {
            Some(Self::Bytes(_)) => number_of_bytes(&text).map_or(Self::Slots, Self::Bytes),
            Some(complaint) => complaint,
            None if ABOUT_THE_REQUEST.iter().any(|prefix| words.starts_with(prefix)) => Self::FilterShape,
            None => Self::Other,
        }
    }
}

/// The part that is looked at.
fn beginning(text: &str) -> &str {
    let end = (0..=text.len().min(limits::MAX_COMPLAINT_BYTES)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// The words with one space between them and around them.
fn words(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(' ');
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        out.push_str(word);
        out.push(' ');
    }
    out
}

/// The number before the word "bytes". Thousands may be set off by commas or underscores.
fn number_of_bytes(text: &str) -> Option<u64> {
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
