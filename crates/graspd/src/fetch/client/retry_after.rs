//! Parsing of the `Retry-After` header: a number of seconds or a date.

use grasp_core::time::Timestamp;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Returns the number of seconds to wait, or `None` if the value is invalid. The fetch machine bounds it.
pub(super) fn parse(value: &str, now: Timestamp) -> Option<u64> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit is a very long time.
        return Some(value.parse().unwrap_or(u64::MAX));
    }
    date(value).map(|date| date.secs_since(now))
}

/// Parses the only date format that servers may send: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn date(text: &str) -> Option<Timestamp> {
    let mut parts = text.split_once(", ")?.1.split(' ');
    let mut next = || parts.next();
    let (day, month, year, time, zone) = (next()?, next()?, next()?, next()?, next()?);
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let (day, year) = (number(day, 31)?, number(year, 9_999)?);
    let mut clock = time.split(':');
    let (hour, minute, second) = (number(clock.next()?, 23)?, number(clock.next()?, 59)?, number(clock.next()?, 60)?);
    if zone != "GMT" || next().is_some() || clock.next().is_some() || day == 0 || year < 1970 {
        return None;
    }
    Some(Timestamp(days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second))
}

fn number(text: &str, most: u64) -> Option<u64> {
    text.parse().ok().filter(|number| *number <= most && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the number of days since 1970-01-01. The calculation uses years that begin in March, so that a leap day is
/// the last day of a year.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month < 3 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + of_year - 719_468
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
