//! The landing page, at the URL of the service.

use super::{Escaped, ExternalLink, PROSE_CHARS, is_server_url, page, relay_hint, truncated};

/// Content of the landing page.
pub(crate) struct LandingPage<'a> {
    pub(crate) name: &'a str,
    pub(crate) description: &'a str,
    /// URL of the relay, such as `wss://code.example/base`.
    pub(crate) relay_url: &'a str,
    /// The part of a repository URL before `/<npub>/<identifier>.git`, such as `https://code.example/base`.
    pub(crate) git_url: &'a str,
    pub(crate) version: &'a str,
    /// Number of hosted repositories, if known.
    pub(crate) repositories: Option<usize>,
    /// Description of the accepted repositories.
    pub(crate) acceptance: &'a str,
    /// Description of how events are selected, if they are selected by more than spam protection.
    pub(crate) curation: Option<&'a str>,
    /// The enabled GRASP specifications; without any, no repositories are hosted.
    pub(crate) grasps: &'a [&'a str],
    /// Whether the status page is public.
    pub(crate) has_status_page: bool,
    /// Contact of the operator: a URL or any text.
    pub(crate) contact: Option<&'a str>,
}

/// Returns the landing page.
pub(crate) fn landing(view: &LandingPage<'_>) -> String {
    let mut body = format!(
        "<h1>{}</h1><p>{}</p>",
        Escaped(&truncated(view.name, PROSE_CHARS)),
        Escaped(&truncated(view.description, PROSE_CHARS))
    );
    if view.grasps.is_empty() {
        body += "<p>This is a nostr relay.</p>";
    } else {
        body += "<p>This is a <b>GRASP</b> service: a nostr relay and a git host in one.";
        match view.repositories {
            None => {}
            Some(1) => body += " It hosts one repository.",
            Some(count) => body += &format!(" It hosts {count} repositories."),
        }
        body += "</p>";
    }
    body += &format!("<h2>URLs</h2><dl><dt>Relay</dt><dd><code>{}</code></dd>", Escaped(view.relay_url));
    if !view.grasps.is_empty() {
        let git = Escaped(view.git_url);
        body += &format!("<dt>Git</dt><dd><code>{git}/&lt;npub&gt;/&lt;identifier&gt;.git</code></dd>");
    }
    body += "</dl>";
    if !view.grasps.is_empty() {
        body += &publish_section(view);
    }
    body += &rules_section(view);
    body += &format!(
        "<h2>For clients</h2><p>The relay information document \
         (<a href=\"https://github.com/nostr-protocol/nips/blob/master/11.md\">NIP-11</a>):</p>\
         <pre>curl -H &#39;Accept: application/nostr+json&#39; {}/</pre><footer>{}graspd {}</footer>",
        Escaped(view.git_url),
        if view.has_status_page { status_link(view) } else { String::new() },
        Escaped(view.version),
    );
    page(view.name, &body)
}

fn status_link(view: &LandingPage<'_>) -> String {
    let url = format!("{}/status", view.git_url);
    if is_server_url(&url) { format!("<a href=\"{}\">Status</a> · ", Escaped(&url)) } else { String::new() }
}

fn publish_section(view: &LandingPage<'_>) -> String {
    format!(
        "<h2>Publish a repository</h2>\
         <p>No account is needed: you sign the branches and tags of your repository with your nostr key, and git \
         pushes what you signed. With <a href=\"https://gitworkshop.dev/ngit\">ngit</a>, in the folder of your \
         repository; enter this service when ngit asks for servers:</p><pre>ngit init\ngit push</pre>\
         <p>To push from another clone, add the remote there:</p>\
         <pre>git remote add origin nostr://&lt;npub&gt;/{}/&lt;identifier&gt;\ngit push origin main</pre>\
         <p>To clone it, with or without ngit:</p>\
         <pre>git clone {}/&lt;npub&gt;/&lt;identifier&gt;.git</pre>",
        Escaped(&relay_hint(view.relay_url)),
        Escaped(view.git_url),
    )
}

fn rules_section(view: &LandingPage<'_>) -> String {
    let prose = |text| format!("{}", Escaped(&truncated(text, PROSE_CHARS)));
    let mut out = format!("<h2>Rules</h2><dl><dt>Accepted repositories</dt><dd>{}</dd>", prose(view.acceptance));
    if let Some(curation) = view.curation {
        out += &format!("<dt>Curation</dt><dd>{}</dd>", prose(curation));
    }
    if !view.grasps.is_empty() {
        out += &format!("<dt>Protocols</dt><dd>{}</dd>", Escaped(&view.grasps.join(", ")));
    }
    if let Some(contact) = view.contact {
        out += &format!("<dt>Contact</dt><dd>{}</dd>", ExternalLink(contact));
    }
    out + "</dl>"
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HOSTILE, assert_only_known_html};
    use super::*;

    fn view<'a>(text: &'a str, grasps: &'a [&'a str]) -> LandingPage<'a> {
        LandingPage {
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
            has_status_page: true,
        }
    }

    #[test]
    fn every_field_is_escaped() {
        for hostile in HOSTILE {
            let page = landing(&view(hostile, &[hostile]));
            assert_only_known_html(&page);
            assert!(!page.contains("<script") && !page.contains("<svg") && !page.contains("<img"), "{page}");
        }
        let long = "\"".repeat(1_000_000);
        let trusted = ["https://code.example", "1"];
        let long = LandingPage { relay_url: trusted[0], git_url: trusted[0], ..view(&long, &["GRASP-01"]) };
        assert!(landing(&LandingPage { version: trusted[1], ..long }).len() < 50_000);
    }

    #[test]
    fn page_contains_urls_and_instructions() {
        let view = LandingPage {
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
            has_status_page: true,
        };
        let page = landing(&view);
        assert_only_known_html(&page);
        for text in [
            "<title>Häuschen</title>",
            "<code>wss://code.example/g</code>",
            "https://code.example/g/&lt;npub&gt;/&lt;identifier&gt;.git",
            "hosts one repository",
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
        let relay_only = landing(&LandingPage { grasps: &[], ..view });
        assert!(!relay_only.contains("git push") && !relay_only.contains("GRASP"), "{relay_only}");
    }
}
