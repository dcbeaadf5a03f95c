//! Replication status of a repository: which servers that its announcement lists have its current state.

use serde::Serialize;
use serde_json::json;

use super::filters::LIST_ENTRIES;

/// Whether a server has the current state of a repository.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum ReplicaStatus {
    /// It has the current state, known since this time. `since` is `None` for this service itself.
    Current { since: Option<u64> },
    /// It was last seen with an older state, created at this time.
    Older { created_at: u64 },
    /// Branches or tags are missing: `lacks` of `of`, `differs` of which point to other objects.
    Incomplete { lacks: usize, differs: usize, of: usize },
    /// The current state was not seen there.
    NotSeen,
    /// It has no such repository, or does not show it.
    Absent,
    /// It does not respond.
    NoResponse,
    /// It is not contacted.
    NotContacted,
    /// It has not been checked yet.
    NotChecked,
    /// Not known.
    Unknown,
}

/// Status of a repository on a relay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct RelayRow {
    pub(crate) url: String,
    /// Status of the connection, as text.
    pub(crate) connection: &'static str,
    #[serde(rename = "has")]
    pub(crate) status: ReplicaStatus,
    /// Whether all events of the repository on this relay have been synced.
    #[serde(rename = "complete")]
    pub(crate) is_covered: bool,
    /// Time of its last message.
    pub(crate) last_message_at: Option<u64>,
    pub(crate) lacks: Option<LackingEvents>,
    /// Its last problem, as text. It may contain text of the relay.
    #[serde(rename = "why")]
    pub(crate) problem: Option<String>,
}

/// Number of events of the repository that a relay lacks, and when this was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct LackingEvents {
    pub(crate) events: u64,
    pub(crate) at: u64,
}

/// Status of a repository on a git server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct GitServerRow {
    pub(crate) url: String,
    #[serde(rename = "has")]
    pub(crate) status: ReplicaStatus,
    /// How the status is known, as text.
    pub(crate) how: &'static str,
    /// When it was checked, if it was.
    #[serde(rename = "asked_at")]
    pub(crate) checked_at: Option<u64>,
}

/// Replication status of a repository.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Replication {
    /// The state that is served here.
    pub(crate) state: Option<ServedState>,
    pub(crate) relays: Vec<RelayRow>,
    pub(crate) git_servers: Vec<GitServerRow>,
}

/// Event of the state that is served here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct ServedState {
    pub(crate) id: String,
    pub(crate) created_at: u64,
}

/// Returns the response to `GET <repository>/replication.json`.
pub(crate) fn replication_json(repository: &str, view: &Replication) -> String {
    json!({
        "repository": repository,
        "state": view.state,
        "relays": view.relays.iter().take(LIST_ENTRIES).collect::<Vec<_>>(),
        "git_servers": view.git_servers.iter().take(LIST_ENTRIES).collect::<Vec<_>>(),
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use askama::Template;
    use serde_json::Value;

    use super::super::tests::{HOSTILE, assert_only_known_html};
    use super::super::{filters, render};
    use super::*;

    #[derive(Template)]
    #[template(path = "replication.html")]
    struct ReplicationSection<'a> {
        replication: &'a Replication,
        git_url: &'a str,
    }

    fn section(replication: &Replication) -> String {
        render(&ReplicationSection { replication, git_url: "https://x" })
    }

    fn view(text: &str) -> Replication {
        Replication {
            state: Some(ServedState { id: "ab".to_owned(), created_at: 1_000 }),
            relays: vec![RelayRow {
                url: text.to_owned(),
                connection: "connected",
                status: ReplicaStatus::Current { since: Some(2_000) },
                is_covered: true,
                last_message_at: Some(2_900),
                lacks: Some(LackingEvents { events: 3, at: 2_000 }),
                problem: Some(text.to_owned()),
            }],
            git_servers: vec![GitServerRow {
                url: text.to_owned(),
                status: ReplicaStatus::Unknown,
                how: "",
                checked_at: None,
            }],
        }
    }

    #[test]
    fn untrusted_text_is_escaped() {
        for hostile in HOSTILE {
            assert_only_known_html(&section(&view(hostile)));
            let json: Value = serde_json::from_str(&replication_json(hostile, &view(hostile))).expect("invalid JSON");
            assert_eq!(json["relays"][0]["url"], hostile);
            assert_eq!(json["relays"][0]["has"], json!({"state": "current", "since": 2_000}));
            assert_eq!(json["git_servers"][0]["has"], json!({"state": "unknown"}));
        }
    }

    #[test]
    fn status_of_a_git_server_is_in_page_and_json() {
        let incomplete = |differs| ReplicaStatus::Incomplete { lacks: 2, differs, of: 5 };
        for (status, json, text) in [
            (
                ReplicaStatus::Current { since: Some(2_000) },
                json!({"state": "current", "since": 2_000}),
                "up to date, known since 1970-",
            ),
            (
                incomplete(0),
                json!({"state": "incomplete", "lacks": 2, "differs": 0, "of": 5}),
                "lacks 2 of 5 branches and tags (",
            ),
            (
                incomplete(1),
                json!({"state": "incomplete", "lacks": 2, "differs": 1, "of": 5}),
                "1 of which point to other commits",
            ),
            (ReplicaStatus::Absent, json!({"state": "absent"}), "does not have this repository"),
            (ReplicaStatus::NoResponse, json!({"state": "no_response"}), "does not respond (checked 1970-"),
            (ReplicaStatus::NotContacted, json!({"state": "not_contacted"}), "not contacted"),
            (ReplicaStatus::NotChecked, json!({"state": "not_checked"}), "not checked yet"),
        ] {
            let row = GitServerRow { url: "x".to_owned(), status, how: "checked directly", checked_at: Some(3_000) };
            let view = Replication { git_servers: vec![row], ..Replication::default() };
            let document: Value = serde_json::from_str(&replication_json("x", &view)).expect("invalid JSON");
            assert_eq!(
                (&document["git_servers"][0]["has"], &document["git_servers"][0]["asked_at"]),
                (&json, &json!(3_000))
            );
            let page = section(&view);
            assert!(page.contains(text), "{text} in {page}");
        }
    }

    #[test]
    fn long_lists_are_truncated() {
        let row = view("wss://a.example").relays.remove(0);
        let many = Replication { relays: vec![row; 5_000], ..view("x") };
        assert!(section(&many).len() < 40_000);
        assert!(replication_json("x", &many).len() < 60_000);
    }

    /// The keys and values are part of the interface.
    #[test]
    fn json_is_stable() {
        let mut view = view("wss://a.example");
        view.git_servers.push(GitServerRow {
            url: "https://b.example/x.git".to_owned(),
            status: ReplicaStatus::Incomplete { lacks: 1, differs: 2, of: 3 },
            how: "checked directly",
            checked_at: Some(3_000),
        });
        view.relays.push(RelayRow {
            status: ReplicaStatus::Older { created_at: 5 },
            lacks: None,
            problem: None,
            last_message_at: None,
            ..view.relays[0].clone()
        });
        assert_eq!(
            replication_json("npub1x/tool.git", &view),
            r#"{"git_servers":[{"asked_at":null,"has":{"state":"unknown"},"how":"","url":"wss://a.example"},{"asked_at":3000,"has":{"differs":2,"lacks":1,"of":3,"state":"incomplete"},"how":"checked directly","url":"https://b.example/x.git"}],"relays":[{"complete":true,"connection":"connected","has":{"since":2000,"state":"current"},"lacks":{"at":2000,"events":3},"last_message_at":2900,"url":"wss://a.example","why":"wss://a.example"},{"complete":true,"connection":"connected","has":{"created_at":5,"state":"older"},"lacks":null,"last_message_at":null,"url":"wss://a.example","why":null}],"repository":"npub1x/tool.git","state":{"created_at":1000,"id":"ab"}}"#
        );
        assert_eq!(
            replication_json("x", &Replication::default()),
            r#"{"git_servers":[],"relays":[],"repository":"x","state":null}"#
        );
    }
}
