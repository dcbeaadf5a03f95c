//! Filters of REQ, COUNT and NEG-OPEN.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::event::{Event, EventId, describe_json_error};
use super::hex;
use super::keys::PublicKey;
use crate::limits;
use crate::time::Timestamp;

/// A filter of NIP-01. Conditions are joined by *and*, the values of one condition by *or*. An empty list matches
/// nothing. Lists are sorted and have no duplicates.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Filter {
    /// Event ids.
    pub ids: Option<Vec<EventId>>,
    /// Authors.
    pub authors: Option<Vec<PublicKey>>,
    /// Kinds.
    pub kinds: Option<Vec<u16>>,
    /// Single-letter tags with their values. Letters are sorted and occur once. The values are shared, because a server
    /// asks hundreds of relays for references to the same events with three tags.
    pub tags: Vec<(u8, Arc<Vec<String>>)>,
    /// Earliest `created_at`, inclusive.
    pub since: Option<Timestamp>,
    /// Latest `created_at`, inclusive.
    pub until: Option<Timestamp>,
    /// Maximum number of events, the newest first.
    pub limit: Option<usize>,
}

/// The reason why a filter is rejected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FilterError {
    /// The text is not a JSON object, or a member has the wrong type.
    #[error("bad filter: {0}")]
    Json(String),
    /// A value of the named member is not 64 lower-case hex digits.
    #[error("bad filter: `{0}` values must be 64 lower-case hex digits")]
    Hex(&'static str),
    /// A condition that is not implemented. Ignoring it would return events that the client did not ask for.
    #[error("filter field `{0}` is not supported")]
    Unsupported(String),
    /// More than [`limits::MAX_FILTER_VALUES`] values.
    #[error("a filter can have at most {} values", limits::MAX_FILTER_VALUES)]
    TooManyValues,
}

impl Filter {
    /// Parses a filter from its JSON text.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let mut error = None;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let filter = deserializer
            .deserialize_map(FilterVisitor { error: &mut error })
            .and_then(|filter| deserializer.end().map(|()| filter))
            .map_err(|error| FilterError::Json(describe_json_error(&error)));
        match error {
            Some(error) => Err(error),
            None => filter,
        }
    }

    /// Sorts every list and removes duplicates. Needed after a filter was built without [`parse`](Self::parse).
    pub fn sort(&mut self) {
        self.ids = self.ids.take().map(sort_dedup);
        self.authors = self.authors.take().map(sort_dedup);
        self.kinds = self.kinds.take().map(sort_dedup);
        for (_, values) in &mut self.tags {
            if !values.is_sorted_by(|a, b| a < b) {
                *values = sort_dedup(std::mem::take(values).to_vec()).into();
            }
        }
        self.tags.sort();
    }

    /// Returns the JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut map = serde_json::Map::new();
        let mut put = |name: &str, value: serde_json::Value| map.insert(name.to_owned(), value);
        if let Some(ids) = &self.ids {
            put("ids", ids.iter().map(ToString::to_string).collect());
        }
        if let Some(authors) = &self.authors {
            put("authors", authors.iter().map(ToString::to_string).collect());
        }
        if let Some(kinds) = &self.kinds {
            put("kinds", kinds.iter().copied().collect());
        }
        for (letter, values) in &self.tags {
            put(&format!("#{}", char::from(*letter)), values.iter().map(String::as_str).collect());
        }
        if let Some(since) = self.since {
            put("since", since.0.into());
        }
        if let Some(until) = self.until {
            put("until", until.0.into());
        }
        if let Some(limit) = self.limit {
            put("limit", limit.into());
        }
        serde_json::Value::Object(map).to_string()
    }

    /// Returns whether an event fulfils every condition. This is the reference implementation that the query engine and
    /// the index of live subscriptions are tested against.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.contains(&event.id))
            && self.authors.as_ref().is_none_or(|authors| authors.contains(&event.pubkey))
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&event.kind))
            && self.since.is_none_or(|since| event.created_at >= since)
            && self.until.is_none_or(|until| event.created_at <= until)
            && self.tags.iter().all(|(letter, values)| {
                event.indexed_tags().any(|(name, value)| name == *letter && values.iter().any(|wanted| wanted == value))
            })
    }

    /// Returns the approximate memory of the filter in bytes where it is stored and indexed. Used for memory limits.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let each = limits::FILTER_VALUE_OVERHEAD_BYTES;
        size_of::<Self>()
            + self.ids.as_ref().map_or(0, |ids| ids.len() * (32 + each))
            + self.authors.as_ref().map_or(0, |authors| authors.len() * (32 + each))
            + self.kinds.as_ref().map_or(0, |kinds| kinds.len() * (2 + each))
            + self.tags.iter().flat_map(|(_, values)| values.iter()).map(|value| value.len() + each).sum::<usize>()
    }
}

struct FilterVisitor<'a> {
    /// Our own error, which the error type of serde cannot contain.
    error: &'a mut Option<FilterError>,
}

impl<'de> Visitor<'de> for FilterVisitor<'_> {
    type Value = Filter;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a filter object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Filter, M::Error> {
        let mut filter = Filter::default();
        let mut total = 0;
        let mut error = None;
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "ids" => filter.ids = decode_keys(map.next_value()?, "ids", EventId, &mut total, &mut error),
                "authors" => {
                    filter.authors = decode_keys(map.next_value()?, "authors", PublicKey, &mut total, &mut error);
                }
                "kinds" => {
                    let numbers: Vec<u64> = map.next_value()?;
                    total += numbers.len();
                    // No event has a kind above 65,535, so such a value is dropped.
                    filter.kinds =
                        Some(sort_dedup(numbers.into_iter().filter_map(|kind| u16::try_from(kind).ok()).collect()));
                }
                "since" => filter.since = Some(Timestamp(map.next_value()?)),
                "until" => filter.until = Some(Timestamp(map.next_value()?)),
                "limit" => filter.limit = Some(usize::try_from(map.next_value::<u64>()?).unwrap_or(usize::MAX)),
                _ => match name.strip_prefix('#').and_then(super::event::tag_letter) {
                    Some(letter) => {
                        let values: Vec<String> = map.next_value()?;
                        total += values.len();
                        filter.tags.retain(|(other, _)| *other != letter);
                        filter.tags.push((letter, sort_dedup(values).into()));
                    }
                    // Unknown tag conditions would restrict the result, so they are rejected; other unknown members are
                    // ignored.
                    None if name == "search" || name.starts_with(['#', '&']) => {
                        error = error.or(Some(FilterError::Unsupported(name.chars().take(40).collect())));
                        map.next_value::<IgnoredAny>()?;
                    }
                    None => {
                        map.next_value::<IgnoredAny>()?;
                    }
                },
            }
        }
        if total > limits::MAX_FILTER_VALUES {
            error = Some(FilterError::TooManyValues);
        }
        filter.tags.sort();
        *self.error = error;
        Ok(filter)
    }
}

fn decode_keys<T: Ord>(
    texts: Vec<String>,
    member: &'static str,
    key: fn([u8; 32]) -> T,
    total: &mut usize,
    error: &mut Option<FilterError>,
) -> Option<Vec<T>> {
    *total += texts.len();
    let keys: Vec<T> = texts.iter().filter_map(|text| hex::decode(text).map(key)).collect();
    if keys.len() < texts.len() && error.is_none() {
        *error = Some(FilterError::Hex(member));
    }
    Some(sort_dedup(keys))
}

fn sort_dedup<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_nip_01_filters_and_writes_them_back() {
        let id = "ab".repeat(32);
        let text = format!(
            r##"{{"#A":["x"],"#e":["y","z"],"authors":["{id}"],"ids":[],"kinds":[1,30617],"limit":0,"since":5,"until":9}}"##
        );
        let filter = Filter::parse(&text).expect("valid");
        assert_eq!(filter.to_json(), text);
        assert_eq!(filter.ids, Some(vec![]));
        assert_eq!(Filter::parse("{}"), Ok(Filter::default()));
        assert_eq!(Filter::parse(r#"{"kinds":[70000,1,1]}"#).expect("valid").kinds, Some(vec![1]));
        assert_eq!(
            Filter::parse(r#"{"note":{"a":[1]}}"#),
            Ok(Filter::default()),
            "an unknown member is not a condition"
        );
    }

    #[test]
    fn invalid_filters_are_rejected_with_the_reason() {
        for (text, reason) in [
            ("[]", "bad filter: invalid type: sequence, expected a filter object"),
            ("{", "bad filter: EOF while parsing an object"),
            (r#"{"kinds":1}"#, "bad filter: invalid type: integer `1`, expected a sequence"),
            (r#"{"kinds":[-1]}"#, "bad filter: invalid value: integer `-1`, expected u64"),
            (r#"{"limit":"x"}"#, "bad filter: invalid type: string \"x\", expected u64"),
            (r#"{"limit":1.5}"#, "bad filter: invalid type: floating point `1.5`, expected u64"),
            (r#"{"ids":["ab"]}"#, "bad filter: `ids` values must be 64 lower-case hex digits"),
            (r#"{"search":"x"}"#, "filter field `search` is not supported"),
            (r##"{"#long":["x"]}"##, "filter field `#long` is not supported"),
            (r#"{"&t":["x"]}"#, "filter field `&t` is not supported"),
            (r##"{"#e":[1]}"##, "bad filter: invalid type: integer `1`, expected a string"),
        ] {
            assert_eq!(Filter::parse(text).expect_err(text).to_string(), reason, "{text}");
        }
        let many = format!(r##"{{"#t":[{}"x"]}}"##, "\"y\",".repeat(limits::MAX_FILTER_VALUES));
        assert_eq!(Filter::parse(&many), Err(FilterError::TooManyValues));
    }
}
