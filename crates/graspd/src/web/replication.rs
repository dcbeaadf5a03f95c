//! Where a repository stands on the servers that its announcement names: only what is known, and how.

use serde_json::{Value, json};

use super::repository::utc;
use super::{LIST_ENTRIES, Link, NAME_CHARS, Text, shortened};

/// Whether a server has the current state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Has {
    /// It has, as is known since then; of this service itself that is not told.
    Current { since: Option<u64> },
    /// It was last seen with an older one, made then.
    Older { created_at: u64 },
    /// It has so many of its refs elsewhere or not at all.
    Lacking { lacks: usize, differs: usize, of: usize },
    /// Nobody has seen it there.
    Unseen,
    /// It does not show such a repository.
    Absent,
    /// It gives no answer.
    Silent,
    /// It is not called.
    Shunned,
    /// It has not been asked yet.
    Unasked,
    /// Nothing can be said.
    Unknown,
}

impl Has {
    fn word(&self) -> &'static str {
        match self {
            Self::Current { .. } => "current",
            Self::Older { .. } => "older",
            Self::Lacking { .. } => "lacking",
            Self::Unseen => "unseen",
            Self::Absent => "absent",
            Self::Silent => "silent",
            Self::Shunned => "shunned",
            Self::Unasked => "unasked",
            Self::Unknown => "unknown",
        }
    }
}

/// A relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RelayRow {
    pub(crate) url: String,
    /// Where the connection stands, in a word.
    pub(crate) state: &'static str,
    pub(crate) has: Has,
    /// Whether everything that it has of the repository is here.
    pub(crate) covered: bool,
    /// When it was last heard.
    pub(crate) heard_at: Option<u64>,
    /// Events of the repository that it lacks, as of when.
    pub(crate) lacks: Option<(u64, u64)>,
    /// What is wrong with it, in words that may be its own.
    pub(crate) why: Option<String>,
}

/// A git server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServerRow {
    pub(crate) url: String,
    pub(crate) has: Has,
    /// How that is known.
    pub(crate) how: &'static str,
    /// When it was asked, if it was.
    pub(crate) asked_at: Option<u64>,
}

/// How a repository is spread.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Replication {
    /// The state that is served here: its id and when it was made.
    pub(crate) state: Option<(String, u64)>,
    pub(crate) relays: Vec<RelayRow>,
    pub(crate) servers: Vec<ServerRow>,
}

/// The answer to `GET <repository>/replication.json`.
pub(crate) fn replication_json(repository: &str, view: &Replication) -> String {
    let has = |has: &Has| match has {
        Has::Current { since } => json!({"state": has.word(), "since": since}),
        Has::Older { created_at } => json!({"state": has.word(), "created_at": created_at}),
        Has::Lacking { lacks, differs, of } => {
            json!({"state": has.word(), "lacks": lacks, "differs": differs, "of": of})
        }
        _ => json!({"state": has.word()}),
    };
    let relays: Vec<Value> = view
        .relays
        .iter()
        .take(LIST_ENTRIES)
        .map(|relay| {
            json!({
                "url": relay.url, "connection": relay.state, "has": has(&relay.has), "complete": relay.covered,
                "heard_at": relay.heard_at, "lacks": relay.lacks.map(|(events, at)| json!({"events": events, "at": at})),
                "why": relay.why,
            })
        })
        .collect();
    let servers = view.servers.iter().take(LIST_ENTRIES);
    let servers: Vec<Value> = servers
        .map(|server| {
            json!({"url": server.url, "has": has(&server.has), "how": server.how, "asked_at": server.asked_at})
        })
        .collect();
    json!({
        "repository": repository,
        "state": view.state.as_ref().map(|(id, created_at)| json!({"id": id, "created_at": created_at})),
        "relays": relays,
        "git_servers": servers,
    })
    .to_string()
}

/// The part of a repository's page.
pub(super) fn section(view: &Replication, json_url: Option<&str>) -> String {
    if view.relays.is_empty() && view.servers.is_empty() {
        return String::new();
    }
    let link = json_url.map(|url| format!(" (<a href=\"{}\">as JSON</a>)", Text(url))).unwrap_or_default();
    let intro = match &view.state {
        Some((_, created_at)) => {
            format!("Who has the state from {}, as far as this service knows{link}.", utc(*created_at))
        }
        None => format!("No state is served here yet{link}."),
    };
    let mut out = format!("<h2>Where it is</h2><p>{intro}</p>");
    if !view.relays.is_empty() {
        out += "<p>Relays:</p>";
        out += &super::list(view.relays.iter(), |relay| {
            let mut parts = vec![relay.state.to_owned(), said(&relay.has)];
            if let Some((events, at)) = relay.lacks {
                parts.push(format!("lacked {events} events of it at {}", utc(at)));
            }
            if let Some(why) = &relay.why {
                parts.push(shortened(why, NAME_CHARS).into_owned());
            }
            let shown = parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("; ");
            format!("{}: {}", Link(&relay.url), Text(&shown))
        });
    }
    if !view.servers.is_empty() {
        out += "<p>Git servers:</p>";
        out += &super::list(view.servers.iter(), |server| {
            let how = match server.asked_at {
                Some(at) => format!(" (asked {})", utc(at)),
                None if server.how.is_empty() => String::new(),
                None => format!(" ({})", server.how),
            };
            format!("{}: {}{}", Link(&server.url), Text(&said(&server.has)), Text(&how))
        });
    }
    out
}

fn said(has: &Has) -> String {
    match has {
        Has::Current { since: Some(since) } => format!("has it, known since {}", utc(*since)),
        Has::Current { since: None } => "has it".to_owned(),
        Has::Older { created_at } => format!("was last seen with an older one, from {}", utc(*created_at)),
        Has::Lacking { lacks, differs: 0, of } => format!("lacks {lacks} of {of} branches and tags"),
        Has::Lacking { lacks, differs, of } => {
            format!("lacks {lacks} of {of} branches and tags, {differs} of which are at another commit there")
        }
        Has::Unseen => "has not been seen with it".to_owned(),
        Has::Absent => "does not show this repository".to_owned(),
        Has::Silent => "does not answer".to_owned(),
        Has::Shunned => "is not called".to_owned(),
        Has::Unasked => "has not been asked yet".to_owned(),
        Has::Unknown => "not known".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HOSTILE, expect_tame};
    use super::*;

    fn view(text: &str) -> Replication {
        Replication {
            state: Some(("ab".to_owned(), 1_000)),
            relays: vec![RelayRow {
                url: text.to_owned(),
                state: "connected",
                has: Has::Current { since: Some(2_000) },
                covered: true,
                heard_at: Some(2_900),
                lacks: Some((3, 2_000)),
                why: Some(text.to_owned()),
            }],
            servers: vec![ServerRow { url: text.to_owned(), has: Has::Unknown, how: "", asked_at: None }],
        }
    }

    #[test]
    fn what_strangers_say_stays_text() {
        for hostile in HOSTILE {
            expect_tame(&section(&view(hostile), Some("https://x/replication.json")));
            let json: Value = serde_json::from_str(&replication_json(hostile, &view(hostile))).expect("JSON");
            assert_eq!(json["relays"][0]["url"], hostile);
            assert_eq!(json["relays"][0]["has"], json!({"state": "current", "since": 2_000}));
            assert_eq!(json["git_servers"][0]["has"], json!({"state": "unknown"}));
        }
    }

    #[test]
    fn what_was_found_at_a_git_server_is_told() {
        let lacking = |differs| Has::Lacking { lacks: 2, differs, of: 5 };
        for (has, json, words) in [
            (
                Has::Current { since: Some(2_000) },
                json!({"state": "current", "since": 2_000}),
                "has it, known since 1970-",
            ),
            (
                lacking(0),
                json!({"state": "lacking", "lacks": 2, "differs": 0, "of": 5}),
                "lacks 2 of 5 branches and tags (",
            ),
            (
                lacking(1),
                json!({"state": "lacking", "lacks": 2, "differs": 1, "of": 5}),
                "1 of which are at another commit",
            ),
            (Has::Absent, json!({"state": "absent"}), "does not show this repository"),
            (Has::Silent, json!({"state": "silent"}), "does not answer (asked 1970-"),
            (Has::Shunned, json!({"state": "shunned"}), "is not called"),
            (Has::Unasked, json!({"state": "unasked"}), "has not been asked yet"),
        ] {
            let row = ServerRow { url: "x".to_owned(), has, how: "by asking it", asked_at: Some(3_000) };
            let view = Replication { servers: vec![row], ..Replication::default() };
            let told: Value = serde_json::from_str(&replication_json("x", &view)).expect("JSON");
            assert_eq!((&told["git_servers"][0]["has"], &told["git_servers"][0]["asked_at"]), (&json, &json!(3_000)));
            let page = section(&view, None);
            assert!(page.contains(words), "{words} in {page}");
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let row = view("wss://a.example").relays.remove(0);
        let crowd = Replication { relays: vec![row; 5_000], ..view("x") };
        assert!(section(&crowd, None).len() < 40_000);
        assert!(replication_json("x", &crowd).len() < 60_000);
    }
}
