//! Filters of REQ, COUNT and NEG-OPEN.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::event::{Event, EventId, explain};
use super::hex;
use super::keys::PublicKey;
use crate::limits;
use crate::time::Timestamp;

/// What a client asks for. Conditions are joined by *and*, values of one condition by *or*. An empty list matches
/// nothing. Lists are sorted and without repetition.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Filter {
    /// Event ids.
    pub ids: Option<Vec<EventId>>,
    /// Authors.
    pub authors: Option<Vec<PublicKey>>,
    /// Kinds.
    pub kinds: Option<Vec<u16>>,
    /// Single-letter tags, each with its values; letters are sorted and occur once.
    pub tags: Vec<(u8, Vec<String>)>,
    /// Not before this time.
    pub since: Option<Timestamp>,
    /// Not after this time.
    pub until: Option<Timestamp>,
    /// How many of the newest.
    pub limit: Option<usize>,
}

/// Why a text is no filter that we can answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BadFilter {
    /// Not an object, or a member of the wrong type.
    Shape(String),
    /// A member whose values are not 64 lower-case hex digits.
    Hex(&'static str),
    /// A condition that is not implemented; ignoring it would answer another question.
    Unsupported(String),
    /// More values than anybody needs.
    TooManyValues,
}

impl fmt::Display for BadFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(why) => write!(f, "bad filter: {why}"),
            Self::Hex(member) => write!(f, "bad filter: `{member}` takes 64 lower-case hex digits"),
            Self::Unsupported(member) => write!(f, "filter field `{member}` is not supported"),
            Self::TooManyValues => write!(f, "a filter takes at most {} values", limits::MAX_FILTER_VALUES),
        }
    }
}

impl Filter {
    /// Reads a filter from its JSON text.
    pub fn parse(text: &str) -> Result<Self, BadFilter> {
        let mut bad = None;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let filter = deserializer
            .deserialize_map(Reader { bad: &mut bad })
            .and_then(|filter| deserializer.end().map(|()| filter))
            .map_err(|error| BadFilter::Shape(explain(&error)));
        match bad {
            Some(bad) => Err(bad),
            None => filter,
        }
    }

    /// Sorts every list, for those who made a filter by hand.
    pub fn sort(&mut self) {
        self.ids = self.ids.take().map(sorted);
        self.authors = self.authors.take().map(sorted);
        self.kinds = self.kinds.take().map(sorted);
        for (_, values) in &mut self.tags {
            *values = sorted(std::mem::take(values));
        }
        self.tags.sort();
    }

    /// The JSON text.
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

    /// Whether an event fulfils every condition: the plain truth that the query engine and the live index are tested
    /// against.
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

    /// How many bytes of memory the filter takes where it is kept and indexed, for budgets.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let each = limits::FILTER_VALUE_BYTES;
        size_of::<Self>()
            + self.ids.as_ref().map_or(0, |ids| ids.len() * (32 + each))
            + self.authors.as_ref().map_or(0, |authors| authors.len() * (32 + each))
            + self.kinds.as_ref().map_or(0, |kinds| kinds.len() * (2 + each))
            + self.tags.iter().flat_map(|(_, values)| values).map(|value| value.len() + each).sum::<usize>()
    }
}

struct Reader<'a> {
    /// Complaints of ours, which serde's error type cannot carry.
    bad: &'a mut Option<BadFilter>,
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Filter;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a filter object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Filter, M::Error> {
        let mut filter = Filter::default();
        let mut total = 0;
        let mut bad = None;
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "ids" => {
                    filter.ids =
                        Some(keys(map.next_value()?, "ids", &mut total, &mut bad).into_iter().map(EventId).collect())
                }
                "authors" => {
                    filter.authors = Some(
                        keys(map.next_value()?, "authors", &mut total, &mut bad).into_iter().map(PublicKey).collect(),
                    )
                }
                "kinds" => {
                    let numbers: Vec<u64> = map.next_value()?;
                    total += numbers.len();
                    // A kind beyond 65,535 is no event's: it adds nothing to the list.
                    filter.kinds =
                        Some(sorted(numbers.into_iter().filter_map(|kind| u16::try_from(kind).ok()).collect()));
                }
                "since" => filter.since = Some(Timestamp(map.next_value()?)),
                "until" => filter.until = Some(Timestamp(map.next_value()?)),
                "limit" => filter.limit = Some(usize::try_from(map.next_value::<u64>()?).unwrap_or(usize::MAX)),
                _ => match name.strip_prefix('#').and_then(super::event::letter) {
                    Some(letter) => {
                        let values: Vec<String> = map.next_value()?;
                        total += values.len();
                        filter.tags.retain(|(other, _)| *other != letter);
                        filter.tags.push((letter, sorted(values)));
                    }
                    // Unknown conditions of known shape narrow the question; other members are somebody's notes.
                    None if name == "search" || name.starts_with(['#', '&']) => {
                        bad = bad.or(Some(BadFilter::Unsupported(name.chars().take(40).collect())));
                        map.next_value::<IgnoredAny>()?;
                    }
                    None => {
                        map.next_value::<IgnoredAny>()?;
                    }
                },
            }
        }
        if total > limits::MAX_FILTER_VALUES {
            bad = Some(BadFilter::TooManyValues);
        }
        filter.tags.sort();
        *self.bad = bad;
        Ok(filter)
    }
}

fn keys(texts: Vec<String>, member: &'static str, total: &mut usize, bad: &mut Option<BadFilter>) -> Vec<[u8; 32]> {
    *total += texts.len();
    let keys: Vec<[u8; 32]> = texts.iter().filter_map(|text| hex::decode(text)).collect();
    if keys.len() < texts.len() && bad.is_none() {
        *bad = Some(BadFilter::Hex(member));
    }
    sorted(keys)
}

fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_nip_01_knows_and_writes_it_back() {
        let id = "ab".repeat(32);
        let text = format!(
            r##"{{"#A":["x"],"#e":["y","z"],"authors":["{id}"],"ids":[],"kinds":[1,30617],"limit":0,"since":5,"until":9}}"##
        );
        let filter = Filter::parse(&text).expect("valid");
        assert_eq!(filter.to_json(), text);
        assert_eq!(filter.ids, Some(vec![]));
        assert_eq!(Filter::parse("{}"), Ok(Filter::default()));
        assert_eq!(Filter::parse(r#"{"kinds":[70000,1,1]}"#).expect("valid").kinds, Some(vec![1]));
        assert_eq!(Filter::parse(r#"{"note":{"a":[1]}}"#), Ok(Filter::default()), "an unknown member is no condition");
    }

    #[test]
    fn bad_filters_say_what_is_wrong() {
        for (text, why) in [
            ("[]", "bad filter: invalid type: sequence, expected a filter object"),
            ("{", "bad filter: EOF while parsing an object"),
            (r#"{"kinds":1}"#, "bad filter: invalid type: integer `1`, expected a sequence"),
            (r#"{"kinds":[-1]}"#, "bad filter: invalid value: integer `-1`, expected u64"),
            (r#"{"limit":"x"}"#, "bad filter: invalid type: string \"x\", expected u64"),
            (r#"{"limit":1.5}"#, "bad filter: invalid type: floating point `1.5`, expected u64"),
            (r#"{"ids":["ab"]}"#, "bad filter: `ids` takes 64 lower-case hex digits"),
            (r#"{"search":"x"}"#, "filter field `search` is not supported"),
            (r##"{"#long":["x"]}"##, "filter field `#long` is not supported"),
            (r#"{"&t":["x"]}"#, "filter field `&t` is not supported"),
            (r##"{"#e":[1]}"##, "bad filter: invalid type: integer `1`, expected a string"),
        ] {
            assert_eq!(Filter::parse(text).expect_err(text).to_string(), why, "{text}");
        }
        let many = format!(r##"{{"#t":[{}"x"]}}"##, "\"y\",".repeat(limits::MAX_FILTER_VALUES));
        assert_eq!(Filter::parse(&many), Err(BadFilter::TooManyValues));
    }
}
