//! What a browser sees at a repository's address.

use super::purgatory::{Standing, WaitingView};
use super::replication::Replication;
use super::{Link, NAME_CHARS, PROSE_CHARS, Text, hint, is_harmless, list, page, percent, replication, shortened};

/// Characters of an object id that are shown: enough to recognise it.
const OID_CHARS: usize = 10;

/// Missing objects that are shown of one event; the JSON has more.
const NEEDS_SHOWN: usize = 5;

/// Where people look at repositories, by name: the address before `/<npub>/<identifier>`.
const WEB_CLIENTS: [(&str, &str); 1] = [("gitworkshop.dev", "https://gitworkshop.dev")];

/// A branch or a tag.
#[derive(Clone, Debug)]
pub(crate) struct RefView {
    /// The whole name, `refs/…`.
    pub(crate) name: String,
    pub(crate) oid: String,
    /// The commit in the end, if it is an annotated tag.
    pub(crate) peeled: Option<String>,
}

/// What a repository's page says.
#[derive(Clone, Debug)]
pub(crate) struct RepositoryPage {
    pub(crate) identifier: String,
    /// The name in the announcement; if empty, the identifier stands for it.
    pub(crate) name: String,
    pub(crate) description: String,
    /// The owner's npub.
    pub(crate) owner: String,
    /// The address here, such as `https://code.example/<npub>/<identifier>.git`, encoded.
    pub(crate) git_url: String,
    /// The relay here, such as `wss://code.example`.
    pub(crate) relay_url: String,
    pub(crate) standing: Standing,
    /// The npubs of those who may change it.
    pub(crate) maintainers: Vec<String>,
    /// The branch that HEAD names, `refs/heads/…`, whether or not it exists.
    pub(crate) head: String,
    pub(crate) branches: Vec<RefView>,
    pub(crate) tags: Vec<RefView>,
    /// How many `refs/nostr/*` there are.
    pub(crate) pull_requests: usize,
    /// Its events that wait for git data.
    pub(crate) waiting: Vec<WaitingView>,
    /// Pages of the project.
    pub(crate) web: Vec<String>,
    /// Where else it is.
    pub(crate) replication: Replication,
}

/// A repository's page.
pub(crate) fn repository(view: &RepositoryPage) -> String {
    let name = if view.name.trim().is_empty() { &view.identifier } else { &view.name };
    let mut body = format!("<h1>{}</h1>", Text(&shortened(name, NAME_CHARS)));
    if *name != view.identifier {
        body += &format!("<p>{}</p>", code(&shortened(&view.identifier, NAME_CHARS)));
    }
    if !view.description.is_empty() {
        body += &format!("<p>{}</p>", Text(&shortened(&view.description, PROSE_CHARS)));
    }
    if view.standing == Standing::Waiting {
        body += "<p class=note>This repository is announced, but not served yet: its git data has not arrived.</p>";
    }
    body += &clone(view);
    body += &look(view);
    body += &branches(view);
    body += &section("Tags", view.tags.iter(), tag);
    body += &pull_requests(view);
    body += &waiting(view);
    body += &format!("<h2>Owner</h2><p>{}</p>", code(&view.owner));
    body += &section("Maintainers", view.maintainers.iter(), |npub| code(npub));
    let json = format!("{}/replication.json", view.git_url);
    body += &replication::section(&view.replication, is_harmless(&json).then_some(json.as_str()));
    page(name, &body)
}

fn clone(view: &RepositoryPage) -> String {
    format!(
        "<h2>Clone</h2><pre>git clone {}</pre><p>With \
         <a href=\"https://gitworkshop.dev/ngit\">ngit</a>, which also finds its other servers and sends pull \
         requests:</p><pre>git clone nostr://{}/{}/{}</pre>",
        Text(&view.git_url),
        Text(&view.owner),
        Text(&hint(&view.relay_url)),
        Text(&percent(&view.identifier)),
    )
}

/// Where its files, issues and pull requests can be looked at.
fn look(view: &RepositoryPage) -> String {
    let (owner, identifier) = (percent(&view.owner), percent(&view.identifier));
    let clients = WEB_CLIENTS.iter().map(|(name, address)| {
        format!("<a href=\"{address}/{owner}/{identifier}\">Files, issues and pull requests</a> at {name}")
    });
    let rows: Vec<String> = clients.chain(view.web.iter().map(|url| Link(url).to_string())).collect();
    section("Look at it", rows.into_iter(), |row| row)
}

fn branches(view: &RepositoryPage) -> String {
    if view.branches.is_empty() {
        return String::from("<h2>Branches</h2><p>None yet.</p>");
    }
    let mut ordered: Vec<&RefView> = view.branches.iter().collect();
    ordered.sort_by_key(|branch| branch.name != view.head);
    section("Branches", ordered.into_iter(), |branch| {
        let default = if branch.name == view.head { ", the default" } else { "" };
        format!("{} {}{default}", ref_name(branch), short(&branch.oid))
    })
}

fn tag(tag: &RefView) -> String {
    match &tag.peeled {
        Some(commit) => format!("{} {}, annotated", ref_name(tag), short(commit)),
        None => format!("{} {}", ref_name(tag), short(&tag.oid)),
    }
}

fn pull_requests(view: &RepositoryPage) -> String {
    match view.pull_requests {
        0 => String::new(),
        count => format!(
            "<h2>Pull requests</h2><p>{count} with git data here. To get them all:</p>\
             <pre>git fetch {} &#39;refs/nostr/*:refs/nostr/*&#39;</pre>",
            Text(&view.git_url)
        ),
    }
}

fn waiting(view: &RepositoryPage) -> String {
    if view.waiting.is_empty() {
        return String::new();
    }
    let json = format!("{}/purgatory", view.git_url);
    let link = if is_harmless(&json) { format!(" (<a href=\"{}\">as JSON</a>)", Text(&json)) } else { String::new() };
    format!(
        "<h2>Waiting for git data</h2><p class=note>These events were taken, but are not served before git has what \
         they speak of. They are served as soon as it is pushed, and dropped when their time is over{link}.</p>{}",
        list(view.waiting.iter(), wait)
    )
}

fn wait(waiting: &WaitingView) -> String {
    let kind = match waiting.kind {
        30617 => "Announcement".to_owned(),
        30618 => "State".to_owned(),
        1618 => "Pull request".to_owned(),
        1619 => "Pull request update".to_owned(),
        other => format!("Event of kind {other}"),
    };
    let mut out = format!(
        "{kind} {} by {}, from {}, waits until {}. {}",
        code(&waiting.event),
        code(&waiting.author),
        utc(waiting.created_at),
        utc(waiting.expires_at),
        Text(&shortened(&waiting.why, 2 * NAME_CHARS)),
    );
    if !waiting.needs.is_empty() {
        let shown = waiting.needs.iter().take(NEEDS_SHOWN).map(|need| code(need));
        out += &format!(" It needs {}", shown.collect::<Vec<_>>().join(", "));
        if waiting.needs.len() > NEEDS_SHOWN {
            out += &format!(" and {} more", waiting.needs.len() - NEEDS_SHOWN);
        }
        out += ".";
    }
    out
}

/// A heading with a list, or nothing without entries.
fn section<T>(heading: &str, items: impl ExactSizeIterator<Item = T>, row: impl Fn(T) -> String) -> String {
    if items.len() == 0 { String::new() } else { format!("<h2>{heading}</h2>{}", list(items, row)) }
}

fn ref_name(named: &RefView) -> String {
    let name = named.name.as_str();
    let short = name.strip_prefix("refs/heads/").or_else(|| name.strip_prefix("refs/tags/")).unwrap_or(name);
    code(short)
}

/// A name, an id, a key.
fn code(text: &str) -> String {
    format!("<code>{}</code>", Text(&shortened(text, NAME_CHARS)))
}

/// The beginning of an object id.
fn short(oid: &str) -> String {
    code(&oid.chars().take(OID_CHARS).collect::<String>())
}

/// A moment in words, `2026-11-16 00:06 UTC`; beyond the year 9999, the number.
pub(super) fn utc(secs: u64) -> String {
    const YEAR_10000: u64 = 253_402_300_800;
    if secs >= YEAR_10000 {
        return secs.to_string();
    }
    // Days since the first of March of year 0, so that the leap day is the last of its year.
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
    use super::super::tests::{HOSTILE, expect_tame};
    use super::*;

    const NPUB: &str = "npub1zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg3zygs4mfcu2";

    fn view(identifier: &str) -> RepositoryPage {
        RepositoryPage {
            identifier: identifier.to_owned(),
            name: String::new(),
            description: String::new(),
            owner: NPUB.to_owned(),
            git_url: format!("https://code.example/{NPUB}/{}.git", percent(identifier)),
            relay_url: "wss://code.example".to_owned(),
            standing: Standing::Served,
            maintainers: Vec::new(),
            head: "refs/heads/main".to_owned(),
            branches: Vec::new(),
            tags: Vec::new(),
            pull_requests: 0,
            waiting: Vec::new(),
            web: Vec::new(),
            replication: Replication::default(),
        }
    }

    fn named(name: &str, oid: &str, peeled: Option<&str>) -> RefView {
        RefView { name: name.to_owned(), oid: oid.to_owned(), peeled: peeled.map(str::to_owned) }
    }

    /// A page that has this text wherever somebody can write text, so many times.
    fn full_of(text: &str, times: usize) -> RepositoryPage {
        let text = text.to_owned();
        let texts = vec![text.clone(); times];
        let refs = vec![named(&text, &text, Some(&text)); times];
        let waiting = WaitingView {
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
            web: texts.clone(),
            replication: Replication {
                state: Some((text.clone(), u64::MAX)),
                relays: vec![
                    replication::RelayRow {
                        url: text.clone(),
                        state: "connected",
                        has: replication::Has::Unseen,
                        covered: true,
                        heard_at: None,
                        lacks: None,
                        why: Some(text.clone()),
                    };
                    times
                ],
                servers: vec![
                    replication::ServerRow {
                        url: text.clone(),
                        has: replication::Has::Unknown,
                        how: "",
                        asked_at: None
                    };
                    times
                ],
            },
            standing: Standing::Waiting,
            ..view(&text)
        }
    }

    #[test]
    fn every_field_stays_text() {
        for hostile in HOSTILE {
            let page = repository(&full_of(hostile, 3));
            expect_tame(&page);
            assert!(!page.contains("<script") && !page.contains("<svg") && !page.contains("<img"), "{page}");
            let addresses =
                RepositoryPage { git_url: hostile.to_owned(), relay_url: hostile.to_owned(), ..full_of(hostile, 3) };
            expect_tame(&repository(&addresses));
            expect_tame(&repository(&view(hostile)));
        }
    }

    #[test]
    fn a_page_is_small_whatever_is_in_it() {
        let many = |kind: &str| -> Vec<RefView> {
            (0..10_000).map(|nth| named(&format!("refs/{kind}/topic/number-{nth}"), &"a".repeat(40), None)).collect()
        };
        let page = repository(&RepositoryPage { branches: many("heads"), tags: many("tags"), ..view("tool") });
        assert!(page.len() < 20_000, "{}", page.len());
        assert_eq!(page.matches("… and 9900 more").count(), 2);

        for character in ["🚀", "&", "x", "\""] {
            let text = character.repeat(1_000 / character.len());
            let hostile = repository(&RepositoryPage { owner: NPUB.to_owned(), ..full_of(&text, 150) });
            assert!(hostile.len() < 110_000, "{} bytes full of {character}", hostile.len());
            expect_tame(&hostile);
        }
        assert!(repository(&view("tool")).len() < 5_000);
    }

    #[test]
    fn clone_commands_take_any_identifier() {
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
    fn the_default_branch_is_first_and_tags_are_peeled() {
        let (one, two, three) = ("1".repeat(40), "2".repeat(40), "3".repeat(40));
        let page = repository(&RepositoryPage {
            branches: vec![named("refs/heads/a", &one, None), named("refs/heads/main", &two, None)],
            tags: vec![named("refs/tags/v1", &one, Some(&three)), named("refs/tags/v2", &two, None)],
            pull_requests: 7,
            ..view("tool")
        });
        for text in [
            "<ul><li><code>main</code> <code>2222222222</code>, the default</li><li><code>a</code>",
            "<li><code>v1</code> <code>3333333333</code>, annotated</li><li><code>v2</code> <code>2222222222</code></li>",
            "7 with git data here",
        ] {
            assert!(page.contains(text), "{text} is missing: {page}");
        }
        assert!(!page.contains("not served"), "{page}");
        assert!(repository(&view("tool")).contains("None yet"));
    }

    #[test]
    fn what_waits_is_shown_with_its_reason() {
        let state = WaitingView {
            event: "e".repeat(64),
            kind: 30618,
            author: NPUB.to_owned(),
            created_at: 1_794_787_592,
            expires_at: 1_794_789_392,
            needs: (0..7).map(|nth| format!("refs/heads/{nth}")).collect(),
            why: "Nobody has pushed it.".to_owned(),
        };
        let waiting = vec![WaitingView { kind: 1, needs: vec![], ..state.clone() }, state];
        let page = repository(&RepositoryPage { standing: Standing::Waiting, waiting, ..view("tool") });
        for text in [
            "announced, but not served yet",
            "<li>Event of kind 1 <code>e",
            "waits until 2026-11-16 00:36 UTC. Nobody has pushed it.</li>",
            "<li>State <code>e",
            "It needs <code>refs/heads/0</code>, ",
            "<code>refs/heads/4</code> and 2 more.",
            ".git/purgatory\">as JSON</a>",
        ] {
            assert!(page.contains(text), "{text} is missing: {page}");
        }
    }

    #[test]
    fn only_urls_of_servers_become_links() {
        let urls = ["javascript:alert(1)", "https://a.example/x", "ssh://git@a.example/x", "wss://r.example"];
        let urls: Vec<String> = urls.map(str::to_owned).into();
        let mut replication = Replication::default();
        for url in &urls {
            let both = full_of(url, 1).replication;
            replication.relays.extend(both.relays.into_iter().map(|row| replication::RelayRow { why: None, ..row }));
            replication.servers.extend(both.servers);
        }
        let page = repository(&RepositoryPage { replication, web: urls, ..view("tool") });
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
    fn moments_are_written_as_people_do() {
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
            assert_eq!(utc(secs), text);
        }
    }
}
