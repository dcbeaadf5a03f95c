//! The page of a repository.

use askama::Template;
use grasp_core::repo::catalog::EventStatus;

use super::filters;
use super::purgatory::WaitingEvent;
use super::replication::{ReplicaStatus, Replication};

/// Maximum number of displayed missing objects of one event; the JSON document has more.
const MAX_NEEDS: usize = 5;

/// A branch or a tag.
#[derive(Clone, Debug)]
pub(crate) struct RefView {
    /// The full name, `refs/…`.
    pub(crate) name: String,
    pub(crate) oid: String,
    /// The tagged object, if it is an annotated tag.
    pub(crate) peeled: Option<String>,
}

/// Content of a repository's page.
#[derive(Clone, Debug, Template)]
#[template(path = "repository.html")]
pub(crate) struct RepositoryPage {
    pub(crate) identifier: String,
    /// The name in the announcement. If it is empty, the identifier is displayed.
    pub(crate) name: String,
    pub(crate) description: String,
    /// The owner's npub.
    pub(crate) owner: String,
    /// The encoded URL here, such as `https://code.example/<npub>/<identifier>.git`.
    pub(crate) git_url: String,
    /// The URL of the relay here, such as `wss://code.example`.
    pub(crate) relay_url: String,
    /// Status of the announcement.
    pub(crate) status: EventStatus,
    /// The npubs of the maintainers.
    /// Whether objects are damaged or missing.
    pub(crate) is_degraded: bool,
    pub(crate) maintainers: Vec<String>,
    /// The branch that HEAD names, `refs/heads/…`, whether or not it exists.
    pub(crate) head: String,
    pub(crate) branches: Vec<RefView>,
    pub(crate) tags: Vec<RefView>,
    /// Number of `refs/nostr/*`.
    pub(crate) pull_requests: usize,
    /// Events of the repository that wait for git data.
    pub(crate) waiting: Vec<WaitingEvent>,
    /// Web pages of the project.
    pub(crate) web_urls: Vec<String>,
    /// Copies on other servers.
    pub(crate) replication: Replication,
}

impl RefView {
    fn short_name(&self) -> &str {
        let name = self.name.as_str();
        name.strip_prefix("refs/heads/").or_else(|| name.strip_prefix("refs/tags/")).unwrap_or(name)
    }
}

impl RepositoryPage {
    fn title(&self) -> &str {
        if self.name.trim().is_empty() { &self.identifier } else { &self.name }
    }

    fn default_branch_first(&self) -> impl Iterator<Item = &RefView> {
        let (default, others): (Vec<_>, Vec<_>) = self.branches.iter().partition(|branch| branch.name == self.head);
        default.into_iter().chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::super::render;
    use super::super::replication::{GitServerRow, RelayRow, ServedState};
    use super::super::tests::{HOSTILE, assert_only_known_html};
    use super::*;

    const NPUB: &str = "npub1zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zygs4mfcu2";

    fn encoded(identifier: &str) -> String {
        askama::filters::urlencode_strict(identifier).expect("encoded").to_string()
    }

    fn view(identifier: &str) -> RepositoryPage {
        RepositoryPage {
            identifier: identifier.to_owned(),
            name: String::new(),
            description: String::new(),
            owner: NPUB.to_owned(),
            git_url: format!("https://code.example/{NPUB}/{}.git", encoded(identifier)),
            relay_url: "wss://code.example".to_owned(),
            status: EventStatus::Served,
            is_degraded: false,
            maintainers: Vec::new(),
            head: "refs/heads/main".to_owned(),
            branches: Vec::new(),
            tags: Vec::new(),
            pull_requests: 0,
            waiting: Vec::new(),
            web_urls: Vec::new(),
            replication: Replication::default(),
        }
    }

    fn ref_view(name: &str, oid: &str, peeled: Option<&str>) -> RefView {
        RefView { name: name.to_owned(), oid: oid.to_owned(), peeled: peeled.map(str::to_owned) }
    }

    /// A page with this text in every field that contains untrusted text, in lists of `times` entries.
    fn filled_with(text: &str, times: usize) -> RepositoryPage {
        let text = text.to_owned();
        let texts = vec![text.clone(); times];
        let refs = vec![ref_view(&text, &text, Some(&text)); times];
        let waiting = WaitingEvent {
            event: text.clone(),
            kind: 30618,
            author: text.clone(),
            created_at: u64::MAX,
            expires_at: 0,
            is_dormant: false,
            needs: texts.clone(),
            why: text.clone(),
        };
        RepositoryPage {
            name: text.clone(),
            description: text.clone(),
            owner: text.clone(),
            maintainers: texts.clone(),
            head: text.clone(),
            branches: refs.clone(),
            tags: refs,
            pull_requests: times,
            waiting: vec![waiting; times],
            web_urls: texts.clone(),
            replication: Replication {
                state: Some(ServedState { id: text.clone(), created_at: u64::MAX }),
                relays: vec![
                    RelayRow {
                        url: text.clone(),
                        connection: "connected",
                        status: ReplicaStatus::NotSeen,
                        is_covered: true,
                        last_message_at: None,
                        lacks: None,
                        problem: Some(text.clone()),
                    };
                    times
                ],
                git_servers: vec![
                    GitServerRow {
                        url: text.clone(),
                        status: ReplicaStatus::Unknown,
                        how: "",
                        checked_at: None
                    };
                    times
                ],
            },
            status: EventStatus::Held,
            ..view(&text)
        }
    }

    #[test]
    fn every_field_is_escaped() {
        for hostile in HOSTILE {
            let page = render(&filled_with(hostile, 3));
            assert_only_known_html(&page);
            assert!(!page.contains("<script") && !page.contains("<svg") && !page.contains("<img"), "{page}");
            let urls = RepositoryPage {
                git_url: hostile.to_owned(),
                relay_url: hostile.to_owned(),
                ..filled_with(hostile, 3)
            };
            assert_only_known_html(&render(&urls));
            assert_only_known_html(&render(&view(hostile)));
        }
    }

    #[test]
    fn size_of_a_page_is_bounded() {
        let many = |kind: &str| -> Vec<RefView> {
            (0..10_000).map(|nth| ref_view(&format!("refs/{kind}/topic/number-{nth}"), &"a".repeat(40), None)).collect()
        };
        let page = render(&RepositoryPage { branches: many("heads"), tags: many("tags"), ..view("tool") });
        assert!(page.len() < 20_000, "{}", page.len());
        assert_eq!(page.matches("… and 9900 more").count(), 2);

        for character in ["🚀", "&", "x", "\""] {
            let text = character.repeat(1_000 / character.len());
            let hostile = render(&RepositoryPage { owner: NPUB.to_owned(), ..filled_with(&text, 150) });
            assert!(hostile.len() < 110_000, "{} bytes full of {character}", hostile.len());
            assert_only_known_html(&hostile);
        }
        assert!(render(&view("tool")).len() < 5_000);
    }

    #[test]
    fn clone_commands_encode_any_identifier() {
        let long = "é".repeat(500);
        for (identifier, encoded) in [
            ("tool", "tool"),
            ("my 🚀 repo", "my%20%F0%9F%9A%80%20repo"),
            ("x.git", "x.git"),
            ("$(id)`;'\"", "%24%28id%29%60%3B%27%22"),
            (long.as_str(), &"%C3%A9".repeat(500)),
        ] {
            let page = render(&view(identifier));
            for text in [
                format!("<pre>git clone https://code.example/{NPUB}/{encoded}.git</pre>"),
                format!("<pre>git clone nostr://{NPUB}/code.example/{encoded}</pre>"),
                format!("href=\"https://gitworkshop.dev/{NPUB}/{encoded}\""),
            ] {
                assert!(page.contains(&text), "{text} is missing: {page}");
            }
        }
        let local = render(&RepositoryPage { relay_url: "ws://localhost:7334".to_owned(), ..view("tool") });
        assert!(local.contains(&format!("nostr://{NPUB}/ws%3A%2F%2Flocalhost%3A7334/tool</pre>")), "{local}");
    }

    #[test]
    fn default_branch_is_first_and_tags_are_peeled() {
        let (one, two, three) = ("1".repeat(40), "2".repeat(40), "3".repeat(40));
        let page = render(&RepositoryPage {
            branches: vec![ref_view("refs/heads/a", &one, None), ref_view("refs/heads/main", &two, None)],
            tags: vec![ref_view("refs/tags/v1", &one, Some(&three)), ref_view("refs/tags/v2", &two, None)],
            pull_requests: 7,
            ..view("tool")
        });
        for text in [
            "<ul><li><code>main</code> <code>2222222222</code>, default</li><li><code>a</code>",
            "<li><code>v1</code> <code>3333333333</code>, annotated</li>",
            "<li><code>v2</code> <code>2222222222</code></li>",
            "7 with git data here",
        ] {
            assert!(page.contains(text), "{text} is missing: {page}");
        }
        assert!(!page.contains("not served"), "{page}");
        assert!(render(&view("tool")).contains("No branches yet"));
    }

    #[test]
    fn waiting_events_are_listed_with_their_reason() {
        let state = WaitingEvent {
            event: "e".repeat(64),
            kind: 30618,
            author: NPUB.to_owned(),
            created_at: 1_794_787_592,
            expires_at: 1_794_789_392,
            is_dormant: false,
            needs: (0..7).map(|nth| format!("refs/heads/{nth}")).collect(),
            why: "no push has arrived".to_owned(),
        };
        let waiting = vec![WaitingEvent { kind: 1, needs: vec![], ..state.clone() }, state];
        let page = render(&RepositoryPage { status: EventStatus::Held, waiting, ..view("tool") });
        for text in [
            "announced but not served yet",
            "<li>Event of kind 1 <code>e",
            "expires 2026-11-16 00:36 UTC: no push has arrived.</li>",
            "<li>State <code>e",
            "no push has arrived. Missing: <code>refs/heads/0</code>, ",
            "<code>refs/heads/4</code> and 2 more.",
            ".git/purgatory\">as JSON</a>",
        ] {
            assert!(page.contains(text), "{text} is missing: {page}");
        }
    }

    #[test]
    fn only_server_urls_become_links() {
        let urls = ["javascript:alert(1)", "https://a.example/x", "ssh://git@a.example/x", "wss://r.example"];
        let urls: Vec<String> = urls.map(str::to_owned).into();
        let mut replication = Replication::default();
        for url in &urls {
            let both = filled_with(url, 1).replication;
            replication.relays.extend(both.relays.into_iter().map(|row| RelayRow { problem: None, ..row }));
            replication.git_servers.extend(both.git_servers);
        }
        let page = render(&RepositoryPage { replication, web_urls: urls, ..view("tool") });
        for (text, times) in [
            ("<a href=\"https://a.example/x\" rel=\"nofollow noopener\">https://a.example/x</a>", 3),
            ("<a href=\"wss://r.example\" rel=\"nofollow noopener\">wss://r.example</a>", 3),
            ("<code>javascript:alert(1)</code>", 3),
            ("<code>ssh://git@a.example/x</code>", 3),
        ] {
            assert_eq!(page.matches(text).count(), times, "{text}: {page}");
        }
    }
}
