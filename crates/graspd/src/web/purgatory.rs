//! Events of a repository that wait for git data, as JSON.

use grasp_core::repo::catalog::EventStatus;
use serde::Serialize;
use serde_json::{Value, json};

/// Maximum number of events in a response. A normal repository has a few.
const MAX_EVENTS: usize = 200;

/// Maximum number of missing objects of one event: enough to see which push is missing. The whole response stays below
/// half a megabyte.
const MAX_NEEDS: usize = 50;

/// An event that waits for git data, or pushed git data that waits for its event.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WaitingEvent {
    /// The id of the event.
    pub(crate) event: String,
    pub(crate) kind: u16,
    /// The npub of the author. Empty if it is not known.
    pub(crate) author: String,
    pub(crate) created_at: u64,
    /// When it expires.
    pub(crate) expires_at: u64,
    /// The missing objects, or the refs with their objects.
    pub(crate) needs: Vec<String>,
    /// Whether it is dormant: its time is over, and its git data is fetched once an hour.
    #[serde(rename = "dormant")]
    pub(crate) is_dormant: bool,
    /// Why it is not served, as text.
    pub(crate) why: String,
}

/// Returns the response to `GET <repository>/purgatory`. `status` is that of the announcement. The numbers of omitted
/// entries are in `more` and `more_needs`.
pub(crate) fn purgatory_json(repository: &str, status: EventStatus, waiting: &[WaitingEvent]) -> String {
    let events: Vec<Value> = waiting.iter().take(MAX_EVENTS).map(event_json).collect();
    let mut response = json!({
        "repository": repository,
        "served": status == EventStatus::Served,
        "waiting": events,
    });
    if waiting.len() > MAX_EVENTS {
        response["more"] = json!(waiting.len() - MAX_EVENTS);
    }
    response.to_string()
}

fn event_json(waiting: &WaitingEvent) -> Value {
    let mut event = json!(waiting);
    if waiting.needs.len() > MAX_NEEDS {
        event["needs"] = json!(waiting.needs[..MAX_NEEDS]);
        event["more_needs"] = json!(waiting.needs.len() - MAX_NEEDS);
    }
    event
}

#[cfg(test)]
mod tests {
    use super::super::tests::HOSTILE;
    use super::*;

    fn waiting(text: &str, needs: usize) -> WaitingEvent {
        WaitingEvent {
            event: text.to_owned(),
            kind: 30618,
            author: text.to_owned(),
            created_at: 1,
            expires_at: 1_801,
            is_dormant: false,
            needs: vec![text.to_owned(); needs],
            why: text.to_owned(),
        }
    }

    #[test]
    fn json_contains_every_field_unchanged() {
        for hostile in HOSTILE {
            let text = purgatory_json(hostile, EventStatus::Held, &[waiting(hostile, 2)]);
            let expected = json!({
                "repository": hostile,
                "served": false,
                "waiting": [{
                    "event": hostile, "kind": 30618, "author": hostile, "created_at": 1, "expires_at": 1801,
                    "dormant": false, "needs": [hostile, hostile], "why": hostile,
                }],
            });
            assert_eq!(serde_json::from_str::<Value>(&text).expect("invalid JSON"), expected);
        }
        let empty: Value = serde_json::from_str(&purgatory_json("x", EventStatus::Served, &[])).expect("invalid JSON");
        assert_eq!(empty, json!({"repository": "x", "served": true, "waiting": []}));
    }

    #[test]
    fn long_lists_are_truncated_and_counted() {
        let oid = "a".repeat(40);
        let text = purgatory_json("x", EventStatus::Held, &vec![waiting(&oid, 1_000); 300]);
        assert!(text.len() < 500_000, "{}", text.len());
        let response: Value = serde_json::from_str(&text).expect("invalid JSON");
        assert_eq!(response["more"], 100);
        assert_eq!(response["waiting"][199]["more_needs"], 950);
        assert_eq!(response["waiting"][0]["needs"].as_array().map(Vec::len), Some(50));
    }
}
