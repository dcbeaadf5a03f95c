//! What waits for git data, as people and programs are told.

use serde_json::{Value, json};

/// Waiting events in one answer. A repository that is in order has a handful.
const MOST_WAITING: usize = 200;

/// Missing objects that are named for one event: enough to see which push is missing, and an answer of all events
/// together stays below half a megabyte.
const MOST_NEEDS: usize = 50;

/// Whether a repository's announcement is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It is.
    Served,
    /// It waits for git data.
    Waiting,
}

/// An event that waits for git data.
#[derive(Clone, Debug)]
pub(crate) struct WaitingView {
    /// Its id.
    pub(crate) event: String,
    pub(crate) kind: u16,
    /// Who signed it.
    pub(crate) author: String,
    pub(crate) created_at: u64,
    /// When it is dropped.
    pub(crate) expires_at: u64,
    /// The objects that are missing, or the refs with their objects.
    pub(crate) needs: Vec<String>,
    /// Why it is not served, in words.
    pub(crate) why: String,
}

/// The answer to `GET <repository>/purgatory`. What is left out of a long list is counted in `more` or `more_needs`.
pub(crate) fn purgatory_json(repository: &str, standing: Standing, waiting: &[WaitingView]) -> String {
    let events: Vec<Value> = waiting.iter().take(MOST_WAITING).map(one).collect();
    let mut answer = json!({
        "repository": repository,
        "served": standing == Standing::Served,
        "waiting": events,
    });
    if waiting.len() > MOST_WAITING {
        answer["more"] = json!(waiting.len() - MOST_WAITING);
    }
    answer.to_string()
}

fn one(waiting: &WaitingView) -> Value {
    let mut event = json!({
        "event": waiting.event,
        "kind": waiting.kind,
        "author": waiting.author,
        "created_at": waiting.created_at,
        "expires_at": waiting.expires_at,
        "needs": waiting.needs.iter().take(MOST_NEEDS).collect::<Vec<_>>(),
        "why": waiting.why,
    });
    if waiting.needs.len() > MOST_NEEDS {
        event["more_needs"] = json!(waiting.needs.len() - MOST_NEEDS);
    }
    event
}

#[cfg(test)]
mod tests {
    use super::super::tests::HOSTILE;
    use super::*;

    fn waiting(text: &str, needs: usize) -> WaitingView {
        WaitingView {
            event: text.to_owned(),
            kind: 30618,
            author: text.to_owned(),
            created_at: 1,
            expires_at: 1_801,
            needs: vec![text.to_owned(); needs],
            why: text.to_owned(),
        }
    }

    #[test]
    fn programs_read_what_people_read() {
        for hostile in HOSTILE {
            let text = purgatory_json(hostile, Standing::Waiting, &[waiting(hostile, 2)]);
            let expected = json!({
                "repository": hostile,
                "served": false,
                "waiting": [{
                    "event": hostile, "kind": 30618, "author": hostile, "created_at": 1, "expires_at": 1801,
                    "needs": [hostile, hostile], "why": hostile,
                }],
            });
            assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), expected);
        }
        let empty: Value = serde_json::from_str(&purgatory_json("x", Standing::Served, &[])).expect("JSON");
        assert_eq!(empty, json!({"repository": "x", "served": true, "waiting": []}));
    }

    #[test]
    fn long_lists_are_cut_and_counted() {
        let oid = "a".repeat(40);
        let text = purgatory_json("x", Standing::Waiting, &vec![waiting(&oid, 1_000); 300]);
        assert!(text.len() < 500_000, "{}", text.len());
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(answer["more"], 100);
        assert_eq!(answer["waiting"][199]["more_needs"], 950);
        assert_eq!(answer["waiting"][0]["needs"].as_array().map(Vec::len), Some(50));
    }
}
