//! Numbers, sizes and times as people write them: `500`, `50GB`, `1h30m`, `2026-01-01`.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::problem::quote;

/// What a plain number counts, and which units can follow a number.
pub(super) struct Unit {
    /// Value of a plain number, in the smallest unit of `suffixes`.
    plain: u128,
    /// Suffix to its value. Case does not matter.
    suffixes: &'static [(&'static str, u128)],
    /// End of the error message.
    hint: &'static str,
}

pub(super) const COUNT: Unit = Unit { plain: 1, suffixes: &[], hint: "" };

pub(super) const BYTES: Unit = Unit {
    plain: 1,
    suffixes: &[
        ("B", 1),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
    ],
    hint: " (bytes), nor a size in that range, such as 50GB or 512MiB",
};

const TIMES: &[(&str, u128)] =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

pub(super) const SECONDS: Unit =
    Unit { plain: 1_000, suffixes: TIMES, hint: " (seconds), nor a time in that range, such as 90s, 1h30m or 7d" };

pub(super) const MILLISECONDS: Unit =
    Unit { plain: 1, suffixes: TIMES, hint: " (milliseconds), nor a time in that range, such as 500ms or 10s" };

/// Maximum number of digits after a decimal point.
const MAX_DECIMALS: usize = 9;

impl Unit {
    /// Parses a plain number, or a sum of numbers with units such as `1h30m`, within a range.
    pub(super) fn parse<T: TryFrom<u64>>(&self, text: &str, min: u64, max: u64) -> Result<T, String> {
        self.amount(text.trim())
            .filter(|amount| (min..=max).contains(amount))
            .and_then(|amount| T::try_from(amount).ok())
            .ok_or_else(|| format!("{} is not a whole number from {min} to {max}{}", quote(text), self.hint))
    }

    fn amount(&self, text: &str) -> Option<u64> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().ok();
        }
        let mut sum = 0_u128;
        let mut rest = text;
        loop {
            let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
            let after = after.trim_start();
            let (suffix, after) = after.split_at(after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len()));
            let (_, factor) = self.suffixes.iter().find(|(known, _)| known.eq_ignore_ascii_case(suffix))?;
            sum = sum.checked_add(multiply(number, *factor)?)?;
            rest = after.trim_start();
            if rest.is_empty() {
                return u64::try_from(sum / self.plain).ok().filter(|_| sum.is_multiple_of(self.plain));
            }
        }
    }
}

/// Multiplies a decimal number; `None` if it is malformed, or if the product is not a whole number.
fn multiply(number: &str, factor: u128) -> Option<u128> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || decimals.is_empty() || decimals.len() > MAX_DECIMALS {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(decimals.len()).ok()?);
    let product = format!("{whole}{decimals}").parse::<u128>().ok()?.checked_mul(factor)?;
    product.is_multiple_of(scale).then_some(product / scale)
}

/// Parses a time: seconds since 1970, a date, which means its beginning (UTC), or a date with a time and an offset.
pub(crate) fn timestamp(text: &str) -> Result<u64, String> {
    let date = || text.parse::<Date>().ok().filter(|_| text.len() == "2026-01-01".len());
    let at = || text.parse::<Timestamp>().ok().or_else(|| Some(date()?.to_zoned(TimeZone::UTC).ok()?.timestamp()));
    let digits = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.or_else(|| u64::try_from(at()?.as_second()).ok()).ok_or_else(|| {
        "expected seconds since 1970, a date such as 2026-01-01, or a time such as 2026-01-01T12:00:00Z".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_numbers_keep_their_unit() {
        assert_eq!(COUNT.parse::<u8>(" 7 ", 1, 9), Ok(7));
        for text in ["", "0", "10", "+7", "-1", "7.0", "x", "7B", "7s", "99999999999999999999999"] {
            let message = COUNT.parse::<u8>(text, 1, 9).expect_err(text);
            assert!(message.ends_with("is not a whole number from 1 to 9"), "{message}");
        }
        for unit in [&BYTES, &SECONDS, &MILLISECONDS] {
            assert_eq!(unit.parse::<u64>("1800", 0, u64::MAX), Ok(1_800));
            assert_eq!(unit.parse::<u64>("0", 0, u64::MAX), Ok(0));
        }
    }

    #[test]
    fn sizes_and_times_are_parsed() {
        for (unit, text, expected) in [
            (&BYTES, "50GB", 50_000_000_000),
            (&BYTES, " 50 gb ", 50_000_000_000),
            (&BYTES, "512MiB", 512 << 20),
            (&BYTES, "512mib", 512 << 20),
            (&BYTES, "1.5GiB", 3 << 29),
            (&BYTES, "0.5kB", 500),
            (&BYTES, "64KiB", 65_536),
            (&BYTES, "100B", 100),
            (&BYTES, "0B", 0),
            (&BYTES, "1TB", 1_000_000_000_000),
            (&BYTES, "1TiB", 1 << 40),
            (&SECONDS, "10m", 600),
            (&SECONDS, "1h30m", 5_400),
            (&SECONDS, "1h 30m", 5_400),
            (&SECONDS, "1.5h", 5_400),
            (&SECONDS, "90s", 90),
            (&SECONDS, "7d", 604_800),
            (&SECONDS, "2w", 1_209_600),
            (&SECONDS, "2000ms", 2),
            (&SECONDS, "0s", 0),
            (&MILLISECONDS, "5s", 5_000),
            (&MILLISECONDS, "250ms", 250),
            (&MILLISECONDS, "1m", 60_000),
        ] {
            assert_eq!(unit.parse::<u64>(text, 0, u64::MAX), Ok(expected), "{text}");
        }
    }

    #[test]
    fn ambiguous_and_malformed_quantities_are_errors() {
        for text in [
            "50G",
            "50M",
            "50KB1",
            "GB",
            "1.GB",
            ".5GB",
            "1..5GB",
            "1.0000000001GB",
            "0.3B",
            "-1GB",
            "1 000",
            "9999999999TB",
        ] {
            let message = BYTES.parse::<u64>(text, 0, u64::MAX).expect_err(text);
            assert!(message.ends_with("(bytes), nor a size in that range, such as 50GB or 512MiB"), "{message}");
        }
        for text in ["500ms", "1h30", "1x", "10mins", "m", "1,5h"] {
            let message = SECONDS.parse::<u64>(text, 0, u64::MAX).expect_err(text);
            assert!(message.ends_with("such as 90s, 1h30m or 7d"), "{message}");
        }
        assert_eq!(
            BYTES.parse::<u64>("2TB", 1_024, 1 << 40),
            Err("`2TB` is not a whole number from 1024 to 1099511627776 (bytes), nor a size in that range, such as \
                 50GB or 512MiB"
                .to_owned())
        );
    }

    #[test]
    fn timestamps_are_seconds_or_dates() {
        for (text, expected) in [
            ("0", 0),
            ("1700000000", 1_700_000_000),
            ("1970-01-02", 86_400),
            ("2026-01-01", 1_767_225_600),
            ("2024-02-29", 1_709_164_800),
            ("2026-01-01T12:00:00Z", 1_767_268_800),
            ("2026-01-01T12:00:00+02:00", 1_767_261_600),
        ] {
            assert_eq!(timestamp(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "+5",
            "-5",
            "1.5",
            "yesterday",
            "2026-02-30",
            "2026-1-1",
            "20260101T",
            "2026-01-01T12:00:00",
            "1969-12-31",
        ] {
            assert!(timestamp(text).is_err(), "{text}");
        }
    }
}
