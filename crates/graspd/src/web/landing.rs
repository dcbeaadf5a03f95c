//! The landing page, at the URL of the service.

use askama::Template;

use super::filters;

/// Content of the landing page.
#[derive(Template)]
#[template(path = "landing.html")]
pub(crate) struct LandingPage<'a> {
    pub(crate) name: &'a str,
    pub(crate) description: &'a str,
    /// URL of the relay, such as `wss://code.example/base`.
    pub(crate) relay_url: &'a str,
    /// The part of a repository URL before `/<npub>/<identifier>.git`, such as `https://code.example/base`.
    pub(crate) git_url: &'a str,
    pub(crate) version: &'a str,
    /// Number of repositories that are served.
    pub(crate) repositories: usize,
    /// Description of the accepted repositories.
    pub(crate) acceptance: &'a str,
    /// Description of how events are selected, if they are selected by more than spam protection.
    pub(crate) curation: Option<&'a str>,
    /// The enabled GRASP specifications; without any, no repositories are hosted.
    pub(crate) grasps: &'a [&'a str],
    /// Whether the status page is public.
    pub(crate) has_status_page: bool,
}

#[cfg(test)]
mod tests {
    use super::super::render;
    use super::super::tests::{HOSTILE, assert_only_known_html};
    use super::*;

    fn view<'a>(text: &'a str, grasps: &'a [&'a str]) -> LandingPage<'a> {
        LandingPage {
            name: text,
            description: text,
            relay_url: text,
            git_url: text,
            version: text,
            repositories: 3,
            acceptance: text,
            curation: Some(text),
            grasps,
            has_status_page: true,
        }
    }

    #[test]
    fn every_field_is_escaped() {
        for hostile in HOSTILE {
            let page = render(&view(hostile, &[hostile]));
            assert_only_known_html(&page);
            assert!(!page.contains("<script") && !page.contains("<svg") && !page.contains("<img"), "{page}");
        }
        let long = "\"".repeat(1_000_000);
        let trusted = ["https://code.example", "1"];
        let long = LandingPage { relay_url: trusted[0], git_url: trusted[0], ..view(&long, &["GRASP-01"]) };
        assert!(render(&LandingPage { version: trusted[1], ..long }).len() < 50_000);
    }

    #[test]
    fn page_contains_urls_and_instructions() {
        let view = LandingPage {
            name: "Häuschen",
            description: "for tests",
            relay_url: "wss://code.example/g",
            git_url: "https://code.example/g",
            version: "1.2.3",
            repositories: 1,
            acceptance: "Any.",
            curation: None,
            grasps: &["GRASP-01", "GRASP-06"],
            has_status_page: true,
        };
        let page = render(&view);
        assert_only_known_html(&page);
        for text in [
            "<title>Häuschen</title>",
            "<code>wss://code.example/g</code>",
            "https://code.example/g/&lt;npub&gt;/&lt;identifier&gt;.git",
            "hosts one repository",
            "ngit init",
            "nostr://&lt;npub&gt;/code.example%2Fg/&lt;identifier&gt;",
            "GRASP-01, GRASP-06",
            "11.md",
            "graspd 1.2.3",
            "href=\"https://code.example/g/status\"",
        ] {
            assert!(page.contains(text), "{text} is missing: {page}");
        }
        assert!(!page.contains("Curation") && page.len() < 8_000, "{}", page.len());
        let relay_only = render(&LandingPage { grasps: &[], ..view });
        assert!(!relay_only.contains("git push") && !relay_only.contains("GRASP"), "{relay_only}");
    }
}
