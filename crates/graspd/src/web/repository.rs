//! The page of a repository.

use grasp_core::repo::catalog::EventStatus;

use super::purgatory::WaitingEvent;
use super::replication::Replication;
use super::{
    Escaped, ExternalLink, NAME_CHARS, PROSE_CHARS, is_server_url, list, page, percent_encode, relay_hint, replication,
    truncated,
};

/// Displayed characters of an object id: enough to recognise it.
const OID_CHARS: usize = 10;

/// Maximum number of displayed missing objects of one event; the JSON document has more.
const MAX_NEEDS: usize = 5;

/// Web sites that display repositories: the name, and the URL before `/<npub>/<identifier>`.
const WEB_CLIENTS: [(&str, &str); 1] = [("gitworkshop.dev", "https://gitworkshop.dev")];

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
#[derive(Clone, Debug)]
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

/// Returns the page of a repository.
pub(crate) fn repository(view: &RepositoryPage) -> String {
    let name = if view.name.trim().is_empty() { &view.identifier } else { &view.name };
    let mut body = format!("<h1>{}</h1>", Escaped(&truncated(name, NAME_CHARS)));
    if *name != view.identifier {
        body += &format!("<p>{}</p>", code(&truncated(&view.identifier, NAME_CHARS)));
    }
    if !view.description.is_empty() {
        body += &format!("<p>{}</p>", Escaped(&truncated(&view.description, PROSE_CHARS)));
    }
    if view.status == EventStatus::Held {
        body +=
            "<p class=note>This repository is announced but not served yet, because its git data has not arrived.</p>";
    }
    body += &clone_section(view);
    body += &browse_section(view);
    body += &branches_section(view);
    body += &section("Tags", view.tags.iter(), tag_row);
    body += &pull_requests_section(view);
    body += &waiting_section(view);
    body += &format!("<h2>Owner</h2><p>{}</p>", code(&view.owner));
    body += &section("Maintainers", view.maintainers.iter(), |npub| code(npub));
    let json = format!("{}/replication.json", view.git_url);
    body += &replication::section(&view.replication, is_server_url(&json).then_some(json.as_str()));
    page(name, &body)
}

fn clone_section(view: &RepositoryPage) -> String {
    format!(
        "<h2>Clone</h2><pre>git clone {}</pre><p>With \
         <a href=\"https://gitworkshop.dev/ngit\">ngit</a>, which also uses its other servers and sends pull \
         requests:</p><pre>git clone nostr://{}/{}/{}</pre>",
        Escaped(&view.git_url),
        Escaped(&view.owner),
        Escaped(&relay_hint(&view.relay_url)),
        Escaped(&percent_encode(&view.identifier)),
    )
}

/// Returns links to web sites that display the files, issues and pull requests.
fn browse_section(view: &RepositoryPage) -> String {
    let (owner, identifier) = (percent_encode(&view.owner), percent_encode(&view.identifier));
    let clients = WEB_CLIENTS.iter().map(|(name, address)| {
        format!("<a href=\"{address}/{owner}/{identifier}\">Files, issues and pull requests</a> at {name}")
    });
    let rows: Vec<String> = clients.chain(view.web_urls.iter().map(|url| ExternalLink(url).to_string())).collect();
    section("Browse", rows.into_iter(), |row| row)
}

fn branches_section(view: &RepositoryPage) -> String {
    if view.branches.is_empty() {
        return String::from("<h2>Branches</h2><p>No branches yet.</p>");
    }
    let mut ordered: Vec<&RefView> = view.branches.iter().collect();
    ordered.sort_by_key(|branch| branch.name != view.head);
    section("Branches", ordered.into_iter(), |branch| {
        let default = if branch.name == view.head { ", default" } else { "" };
        format!("{} {}{default}", ref_name(branch), short_oid(&branch.oid))
    })
}

fn tag_row(tag: &RefView) -> String {
    match &tag.peeled {
        Some(commit) => format!("{} {}, annotated", ref_name(tag), short_oid(commit)),
        None => format!("{} {}", ref_name(tag), short_oid(&tag.oid)),
    }
}

fn pull_requests_section(view: &RepositoryPage) -> String {
    match view.pull_requests {
        0 => String::new(),
        count => format!(
            "<h2>Pull requests</h2><p>{count} with git data here. To fetch all of them:</p>\
             <pre>git fetch {} &#39;refs/nostr/*:refs/nostr/*&#39;</pre>",
            Escaped(&view.git_url)
        ),
    }
}

fn waiting_section(view: &RepositoryPage) -> String {
    if view.waiting.is_empty() {
        return String::new();
    }
    let json = format!("{}/purgatory", view.git_url);
    let link =
        if is_server_url(&json) { format!(" (<a href=\"{}\">as JSON</a>)", Escaped(&json)) } else { String::new() };
    format!(
        "<h2>Waiting for git data</h2><p class=note>These events are accepted but not served yet, because their git \
         data is missing. They are served as soon as it is pushed or fetched, and dropped when they expire{link}.</p>{}",
        list(view.waiting.iter(), waiting_row)
    )
}

fn waiting_row(waiting: &WaitingEvent) -> String {
    let kind = match waiting.kind {
        30617 => "Announcement".to_owned(),
        30618 => "State".to_owned(),
        1618 => "Pull request".to_owned(),
        1619 => "Pull request update".to_owned(),
        other => format!("Event of kind {other}"),
    };
    let mut out = format!(
        "{kind} {} by {}, created {}, expires {}: {}",
        code(&waiting.event),
        code(&waiting.author),
        format_utc(waiting.created_at),
        format_utc(waiting.expires_at),
        Escaped(&truncated(&waiting.why, 2 * NAME_CHARS)),
    );
    if !waiting.needs.is_empty() {
        let shown = waiting.needs.iter().take(MAX_NEEDS).map(|need| code(need));
        out += &format!(". Missing: {}", shown.collect::<Vec<_>>().join(", "));
        if waiting.needs.len() > MAX_NEEDS {
            out += &format!(" and {} more", waiting.needs.len() - MAX_NEEDS);
        }
    }
    out + "."
}

/// Returns a heading with a list, or an empty text if the list is empty.
fn section<T>(heading: &str, items: impl ExactSizeIterator<Item = T>, row: impl Fn(T) -> String) -> String {
    if items.len() == 0 { String::new() } else { format!("<h2>{heading}</h2>{}", list(items, row)) }
}

fn ref_name(ref_view: &RefView) -> String {
    let name = ref_view.name.as_str();
    let short = name.strip_prefix("refs/heads/").or_else(|| name.strip_prefix("refs/tags/")).unwrap_or(name);
    code(short)
}

/// Formats a name, an id or a key.
fn code(text: &str) -> String {
    format!("<code>{}</code>", Escaped(&truncated(text, NAME_CHARS)))
}

/// Formats the beginning of an object id.
fn short_oid(oid: &str) -> String {
    code(&oid.chars().take(OID_CHARS).collect::<String>())
}

/// Formats a Unix time, `2026-11-16 00:06 UTC`; after the year 9999, the number.
pub(super) fn format_utc(secs: u64) -> String {
    const YEAR_10000: u64 = 253_402_300_800;
    if secs >= YEAR_10000 {
        return secs.to_string();
    }
    // Days since 1 March of year 0, so that the leap day is the last day of its year.
    let days = secs / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", secs / 3_600 % 24, secs / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HOSTILE, assert_only_known_html};
    use super::*;

    const NPUB: &str = "npub1zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zygs4mfcu2";

    fn view(identifier: &str) -> RepositoryPage {
        RepositoryPage {
            identifier: identifier.to_owned(),
            name: String::new(),
            description: String::new(),
            owner: NPUB.to_owned(),
            git_url: format!("https://code.example/{NPUB}/{}.git", percent_encode(identifier)),
            relay_url: "wss://code.example".to_owned(),
            status: EventStatus::Served,
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
                state: Some((text.clone(), u64::MAX)),
                relays: vec![
                    replication::RelayRow {
                        url: text.clone(),
                        connection: "connected",
                        status: replication::ReplicaStatus::NotSeen,
                        is_covered: true,
                        last_message_at: None,
                        lacks: None,
                        problem: Some(text.clone()),
                    };
                    times
                ],
                git_servers: vec![
                    replication::GitServerRow {
                        url: text.clone(),
                        status: replication::ReplicaStatus::Unknown,
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
            let page = repository(&filled_with(hostile, 3));
            assert_only_known_html(&page);
            assert!(!page.contains("<script") && !page.contains("<svg") && !page.contains("<img"), "{page}");
            let urls = RepositoryPage {
                git_url: hostile.to_owned(),
                relay_url: hostile.to_owned(),
                ..filled_with(hostile, 3)
            };
            assert_only_known_html(&repository(&urls));
            assert_only_known_html(&repository(&view(hostile)));
        }
    }

    #[test]
    fn size_of_a_page_is_bounded() {
        let many = |kind: &str| -> Vec<RefView> {
            (0..10_000).map(|nth| ref_view(&format!("refs/{kind}/topic/number-{nth}"), &"a".repeat(40), None)).collect()
        };
        let page = repository(&RepositoryPage { branches: many("heads"), tags: many("tags"), ..view("tool") });
        assert!(page.len() < 20_000, "{}", page.len());
        assert_eq!(page.matches("… and 9900 more").count(), 2);

        for character in ["🚀", "&", "x", "\""] {
            let text = character.repeat(1_000 / character.len());
            let hostile = repository(&RepositoryPage { owner: NPUB.to_owned(), ..filled_with(&text, 150) });
            assert!(hostile.len() < 110_000, "{} bytes full of {character}", hostile.len());
            assert_only_known_html(&hostile);
        }
        assert!(repository(&view("tool")).len() < 5_000);
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
            let page = repository(&view(identifier));
            for text in [
                format!("<pre>git clone https://code.example/{NPUB}/{encoded}.git</pre>"),
                format!("<pre>git clone nostr://{NPUB}/code.example/{encoded}</pre>"),
                format!("href=\"https://gitworkshop.dev/{NPUB}/{encoded}\""),
            ] {
                assert!(page.contains(&text), "{text} is missing: {page}");
            }
        }
        let local = repository(&RepositoryPage { relay_url: "ws://localhost:7334".to_owned(), ..view("tool") });
        assert!(local.contains(&format!("nostr://{NPUB}/ws%3A%2F%2Flocalhost%3A7334/tool</pre>")), "{local}");
    }

    #[test]
    fn default_branch_is_first_and_tags_are_peeled() {
        let (one, two, three) = ("1".repeat(40), "2".repeat(40), "3".repeat(40));
        let page = repository(&RepositoryPage {
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
        assert!(repository(&view("tool")).contains("No branches yet"));
    }

    #[test]
    fn waiting_events_are_listed_with_their_reason() {
        let state = WaitingEvent {
            event: "e".repeat(64),
            kind: 30618,
            author: NPUB.to_owned(),
            created_at: 1_794_787_592,
            expires_at: 1_794_789_392,
            needs: (0..7).map(|nth| format!("refs/heads/{nth}")).collect(),
            why: "no push has arrived".to_owned(),
        };
        let waiting = vec![WaitingEvent { kind: 1, needs: vec![], ..state.clone() }, state];
        let page = repository(&RepositoryPage { status: EventStatus::Held, waiting, ..view("tool") });
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
            replication
                .relays
                .extend(both.relays.into_iter().map(|row| replication::RelayRow { problem: None, ..row }));
            replication.git_servers.extend(both.git_servers);
        }
        let page = repository(&RepositoryPage { replication, web_urls: urls, ..view("tool") });
        for (text, times) in [
            ("<a href=\"https://a.example/x\" rel=\"nofollow noopener\">https://a.example/x</a>", 3),
            ("<a href=\"wss://r.example\" rel=\"nofollow noopener\">wss://r.example</a>", 3),
            ("<code>javascript:alert(1)</code>", 3),
            ("<code>ssh://git@a.example/x</code>", 3),
        ] {
            assert_eq!(page.matches(text).count(), times, "{text}: {page}");
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
