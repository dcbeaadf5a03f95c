//! What a browser sees at the service's own address.

use super::{Link, PROSE_CHARS, Text, hint, is_harmless, page, shortened};

/// What the landing page says.
pub(crate) struct Landing<'a> {
    pub(crate) name: &'a str,
    pub(crate) description: &'a str,
    /// The relay, such as `wss://code.example/base`.
    pub(crate) relay_url: &'a str,
    /// What stands before `/<npub>/<identifier>.git`, such as `https://code.example/base`.
    pub(crate) git_url: &'a str,
    pub(crate) version: &'a str,
    /// How many repositories are served, if that is known.
    pub(crate) repositories: Option<usize>,
    /// Which repositories are accepted.
    pub(crate) acceptance: &'a str,
    /// How events are chosen beyond the fight against spam, if they are.
    pub(crate) curation: Option<&'a str>,
    /// The parts of GRASP that are on; without any, no repositories are hosted.
    pub(crate) grasps: &'a [&'a str],
    /// Whether anybody may see how the service is.
    pub(crate) status: bool,
    /// How to reach the operator: a URL or any text.
    pub(crate) contact: Option<&'a str>,
}

/// The landing page.
pub(crate) fn landing(view: &Landing<'_>) -> String {
    let mut body = format!(
        "<h1>{}</h1><p>{}</p>",
        Text(&shortened(view.name, PROSE_CHARS)),
        Text(&shortened(view.description, PROSE_CHARS))
    );
    if view.grasps.is_empty() {
        body += "<p>This is a nostr relay.</p>";
    } else {
        body += "<p>This is a <b>GRASP</b> service: a nostr relay and a git host in one.";
        match view.repositories {
            None => {}
            Some(1) => body += " One repository is served here.",
            Some(count) => body += &format!(" {count} repositories are served here."),
        }
        body += "</p>";
    }
    body += &format!("<h2>Addresses</h2><dl><dt>Relay</dt><dd><code>{}</code></dd>", Text(view.relay_url));
    if !view.grasps.is_empty() {
        let git = Text(view.git_url);
        body += &format!("<dt>Git</dt><dd><code>{git}/&lt;npub&gt;/&lt;identifier&gt;.git</code></dd>");
    }
    body += "</dl>";
    if !view.grasps.is_empty() {
        body += &publish(view);
    }
    body += &rules(view);
    body += &format!(
        "<h2>For programs</h2><p>The relay describes itself \
         (<a href=\"https://github.com/nostr-protocol/nips/blob/master/11.md\">NIP-11</a>) to those who ask:</p>\
         <pre>curl -H &#39;Accept: application/nostr+json&#39; {}/</pre><footer>{}graspd {}</footer>",
        Text(view.git_url),
        if view.status { status(view) } else { String::new() },
        Text(view.version),
    );
    page(view.name, &body)
}

fn status(view: &Landing<'_>) -> String {
    let url = format!("{}/status", view.git_url);
    if is_harmless(&url) { format!("<a href=\"{}\">Status</a> · ", Text(&url)) } else { String::new() }
}

fn publish(view: &Landing<'_>) -> String {
    format!(
        "<h2>Publish a repository</h2>\
         <p>No account is needed: your nostr key signs what your repository is, and git pushes what you signed. With \
         <a href=\"https://gitworkshop.dev/ngit\">ngit</a>, inside your repository, naming this service when you are \
         asked for servers:</p><pre>ngit init\ngit push</pre>\
         <p>To go on from another clone, add the remote there:</p>\
         <pre>git remote add origin nostr://&lt;npub&gt;/{}/&lt;identifier&gt;\ngit push origin main</pre>\
         <p>Anybody clones it, with ngit or without:</p>\
         <pre>git clone {}/&lt;npub&gt;/&lt;identifier&gt;.git</pre>",
        Text(&hint(view.relay_url)),
        Text(view.git_url),
    )
}

fn rules(view: &Landing<'_>) -> String {
    let prose = |text| format!("{}", Text(&shortened(text, PROSE_CHARS)));
    let mut out = format!("<h2>Rules</h2><dl><dt>Accepted repositories</dt><dd>{}</dd>", prose(view.acceptance));
    if let Some(curation) = view.curation {
        out += &format!("<dt>Curation</dt><dd>{}</dd>", prose(curation));
    }
    if !view.grasps.is_empty() {
        out += &format!("<dt>Protocols</dt><dd>{}</dd>", Text(&view.grasps.join(", ")));
    }
    if let Some(contact) = view.contact {
        out += &format!("<dt>Contact</dt><dd>{}</dd>", Link(contact));
    }
    out + "</dl>"
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HOSTILE, expect_tame};
    use super::*;

    fn view<'a>(text: &'a str, grasps: &'a [&'a str]) -> Landing<'a> {
        Landing {
            name: text,
            description: text,
            relay_url: text,
            git_url: text,
            version: text,
            repositories: Some(3),
            acceptance: text,
            curation: Some(text),
            grasps,
            contact: Some(text),
            status: true,
        }
    }

    #[test]
    fn every_field_stays_text() {
        for hostile in HOSTILE {
            let page = landing(&view(hostile, &[hostile]));
            expect_tame(&page);
            assert!(!page.contains("<script") && !page.contains("<svg") && !page.contains("<img"), "{page}");
        }
        let long = "\"".repeat(1_000_000);
        let operators_own = ["https://code.example", "1"];
        let long = Landing { relay_url: operators_own[0], git_url: operators_own[0], ..view(&long, &["GRASP-01"]) };
        assert!(landing(&Landing { version: operators_own[1], ..long }).len() < 50_000);
    }

    #[test]
    fn it_says_where_and_how() {
        let view = Landing {
            name: "Häuschen",
            description: "for tests",
            relay_url: "wss://code.example/g",
            git_url: "https://code.example/g",
            version: "1.2.3",
            repositories: Some(1),
            acceptance: "Any.",
            curation: None,
            grasps: &["GRASP-01", "GRASP-06"],
            contact: Some("https://a.example/me"),
            status: true,
        };
        let page = landing(&view);
        expect_tame(&page);
        for text in [
            "<title>Häuschen</title>",
            "<code>wss://code.example/g</code>",
            "https://code.example/g/&lt;npub&gt;/&lt;identifier&gt;.git",
            "One repository is",
            "ngit init",
            "nostr://&lt;npub&gt;/code.example%2Fg/&lt;identifier&gt;",
            "GRASP-01, GRASP-06",
            "href=\"https://a.example/me\"",
            "11.md",
            "graspd 1.2.3",
            "href=\"https://code.example/g/status\"",
        ] {
            assert!(page.contains(text), "{text} is missing: {page}");
        }
        assert!(!page.contains("Curation") && page.len() < 8_000, "{}", page.len());
        let relay_only = landing(&Landing { grasps: &[], ..view });
        assert!(!relay_only.contains("git push") && !relay_only.contains("GRASP"), "{relay_only}");
    }
}
