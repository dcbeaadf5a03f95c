//! HTML pages and JSON documents for users: landing page, repository page, status page and error page.
//!
//! - [`landing`], [`repository`], [`replication`], [`purgatory`], [`status`], [`not_found`]: pure functions from a view
//!   to HTML or JSON. The HTML is in `templates/`, which is compiled into the program.
//! - [`filters`]: functions that the templates use.
//! - [`repository_handler`], [`replication_status`], [`status_cache`]: collect the views.
//!
//! The HTTP tasks run this code; [`server::router`](crate::server) calls it. It reads from the writer, from the status
//! of `sync` and `fetch`, from `monitor` and from `metrics`, and changes nothing.
//!
//! Most of the displayed text comes from untrusted events and servers. Templates escape every text with
//! [`HtmlEscaper`], and every text and list has a maximum length, so that a page stays small whatever the view
//! contains. Only the status page has a script.

mod filters;
pub(crate) mod landing;
pub(crate) mod not_found;
pub(crate) mod purgatory;
pub(crate) mod replication;
pub(crate) mod replication_status;
pub(crate) mod repository;
pub(crate) mod repository_handler;
pub(crate) mod status;
pub(crate) mod status_cache;

use std::fmt;

use askama::Template;
use askama::filters::Escaper;

/// `robots.txt`: crawlers may read the pages, but not the paths for git and for programs.
pub(crate) const ROBOTS_TXT: &str = include_str!("templates/robots.txt");

/// Renders a page. Rendering fails only if a value cannot be displayed, and all values of the templates can.
pub(crate) fn render(page: &impl Template) -> String {
    page.render().unwrap_or_default()
}

/// Escapes text for every place in HTML, including quoted attributes. `askama.toml` selects it for all templates.
#[derive(Clone, Copy)]
struct HtmlEscaper;

impl Escaper for HtmlEscaper {
    fn write_escaped_str<W: fmt::Write>(&self, mut out: W, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\'' => out.write_str("&#39;")?,
                // HTML cannot represent other control characters.
                '\n' | '\t' => out.write_char(character)?,
                control if control.is_control() => out.write_char(char::REPLACEMENT_CHARACTER)?,
                other => out.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::filters::is_server_url;
    use super::*;

    /// Texts that try to break out of their place in HTML.
    pub(super) const HOSTILE: [&str; 8] = [
        "<script>alert(1)</script>",
        "\"onload=alert(1) x=\"",
        "'><img src=x onerror=alert(1)>",
        "</title></style></code><svg/onload=alert(1)>",
        "javascript:alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "&lt;script&gt; 🚀\u{202e}\u{0}\u{1b}[31m",
        "<!--",
    ];

    /// Asserts that a page contains only tags and attributes of our own, and only links to servers.
    pub(super) fn assert_only_known_html(page: &str) {
        const TAGS: [&str; 24] = [
            "!doctype", "html", "head", "body", "main", "meta", "title", "style", "h1", "h2", "p", "pre", "code", "a",
            "b", "ul", "li", "dl", "dt", "dd", "footer", "small", "br", "span",
        ];
        const ATTRIBUTES: [&str; 10] =
            ["lang", "charset", "name", "content", "href", "rel", "class", "data-k", "data-shape", "id"];
        for tag in page.split('<').skip(1) {
            let (tag, text) = tag.split_once('>').unwrap_or_else(|| panic!("unclosed tag: {tag}"));
            assert!(!text.contains('>'), "unescaped bracket: {text}");
            let mut words = tag.splitn(2, ' ');
            let name = words.next().unwrap_or_default().trim_start_matches('/');
            assert!(TAGS.contains(&name), "unknown tag: {tag}");
            let mut rest = words.next().unwrap_or_default();
            while name != "!doctype" && !rest.is_empty() {
                let (attribute, after) =
                    rest.split_once('=').unwrap_or_else(|| panic!("attribute without a value: {tag}"));
                assert!(ATTRIBUTES.contains(&attribute), "unknown attribute: {tag}");
                let (value, after) = match after.strip_prefix('"') {
                    Some(quoted) => quoted.split_once('"').unwrap_or_else(|| panic!("unclosed quote: {tag}")),
                    None => after.split_once(' ').unwrap_or((after, "")),
                };
                if attribute == "href" {
                    assert!(is_server_url(value), "unsafe link: {tag}");
                }
                rest = after.trim_start();
            }
        }
        assert!(!page.contains(|character: char| character.is_control() && character != '\n'), "control character");
    }

    /// Returns a text as it is in a page.
    pub(super) fn escaped(text: &str) -> String {
        #[derive(Template)]
        #[template(source = "{{ text }}", ext = "html")]
        struct Text<'a> {
            text: &'a str,
        }
        render(&Text { text })
    }

    #[test]
    fn untrusted_text_is_escaped() {
        for hostile in HOSTILE {
            assert_only_known_html(&format!("<p id=\"{0}\">{0}</p>", escaped(hostile)));
        }
        assert_eq!(escaped("a<b>&\"'\u{7}é"), "a&lt;b&gt;&amp;&quot;&#39;\u{fffd}é");
    }

    #[test]
    fn robots_txt_excludes_git_paths() {
        for path in ["info/refs", "git-upload-pack", "git-receive-pack"] {
            assert!(ROBOTS_TXT.contains(&format!("Disallow: /*/{path}\n")), "{ROBOTS_TXT}");
        }
        assert!(ROBOTS_TXT.lines().all(|line| line.contains(": ")), "{ROBOTS_TXT}");
    }
}
