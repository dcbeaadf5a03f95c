//! Parsing of the `Retry-After` header: a number of seconds or a date.

use grasp_core::time::Timestamp;

use crate::date::parse_http_date;

/// Returns the number of seconds to wait, or `None` if the value is invalid. The fetch machine bounds it.
pub(super) fn parse(value: &str, now: Timestamp) -> Option<u64> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit is a very long time.
        return Some(value.parse().unwrap_or(u64::MAX));
    }
    parse_http_date(value).map(|secs| Timestamp(secs).secs_since(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates() {
        let now = Timestamp(784_111_777);
        for (text, wait) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:51:37 GMT", Some(120)),
            ("Mon, 07 Nov 1994 08:49:37 GMT", Some(86_400)),
            ("Sun, 06 Nov 1983 08:49:37 GMT", Some(0)),
            ("Tue, 29 Feb 2000 00:00:00 GMT", Some(951_782_400 - 784_111_777)),
            ("Wed, 01 Mar 2000 00:00:00 GMT", Some(951_868_800 - 784_111_777)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 32 Nov 1994 08:49:37 GMT", None),
            ("Sun, 00 Jan 1970 00:00:00 GMT", None),
            ("Sun, 06 Nov 1994 +8:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37 GMT x", None),
        ] {
            assert_eq!(parse(text, now), wait, "{text}");
        }
    }
}
