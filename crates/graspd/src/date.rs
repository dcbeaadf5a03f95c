//! Dates as text, in pages and in HTTP headers.

use jiff::SignedDuration;
use jiff::civil::DateTime;

const UNIX_EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Formats a Unix time, `2026-11-16 00:06 UTC`; after the year 9999, the number.
pub(crate) fn format_utc(secs: u64) -> String {
    let since_epoch = SignedDuration::from_secs(secs.try_into().unwrap_or(i64::MAX));
    match UNIX_EPOCH.checked_add(since_epoch) {
        Ok(date) => date.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        Err(_) => secs.to_string(),
    }
}

/// Parses the only date format that HTTP servers may send, `Sun, 06 Nov 1994 08:49:37 GMT`; returns Unix seconds. A wrong
/// weekday is ignored.
pub(crate) fn parse_http_date(text: &str) -> Option<u64> {
    let (_, date) = text.split_once(", ")?;
    let date = DateTime::strptime("%d %b %Y %H:%M:%S GMT", date).ok()?;
    date.duration_since(UNIX_EPOCH).as_secs().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_dates_are_parsed() {
        for (text, secs) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Thu, 29 Feb 2024 12:00:00 GMT", 1_709_208_000),
            ("Mon, 16 Nov 2026 10:00:00 GMT", 1_794_823_200),
            ("Tue, 16 Nov 2026 10:00:00 GMT", 1_794_823_200),
        ] {
            assert_eq!(parse_http_date(text), Some(secs), "{text}");
        }
        for wrong in ["", "yesterday", "Sun, 06 Xyz 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49 GMT"] {
            assert_eq!(parse_http_date(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_are_formatted_in_utc() {
        for (secs, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59 UTC"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(format_utc(secs), text);
        }
    }
}
