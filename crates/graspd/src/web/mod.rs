//! HTML pages and JSON documents for users: landing page, repository page, status page and error page.
//!
//! - [`landing`], [`repository`], [`replication`], [`purgatory`], [`status`], [`not_found`]: pure functions from a view
//!   to HTML or JSON.
//! - [`repository_handler`], [`replication_status`], [`status_cache`]: collect the views.
//!
//! The HTTP tasks run this code; [`server::router`](crate::server) calls it. It reads from the writer, from the status
//! of `sync` and `fetch`, from `monitor` and from `metrics`, and changes nothing.
//!
//! Most of the displayed text comes from untrusted events and servers. It enters a page only through [`Escaped`],
//! [`ExternalLink`] or [`percent_encode`], and every text and list has a maximum length, so that a page stays small
//! whatever the view contains. Only the status page has a script.

pub(crate) mod landing;
pub(crate) mod not_found;
pub(crate) mod purgatory;
pub(crate) mod replication;
pub(crate) mod replication_status;
pub(crate) mod repository;
pub(crate) mod repository_handler;
pub(crate) mod status;
pub(crate) mod status_cache;

use std::borrow::Cow;
use std::fmt;

/// Maximum number of entries of a list: more than a person reads.
const LIST_ENTRIES: usize = 100;

/// Bytes of a list after which no further entry is added: a hundred entries of the usual length.
const LIST_BYTES: usize = 10_000;

/// Maximum number of displayed characters of a name. A phone displays about forty in a line.
const NAME_CHARS: usize = 100;

/// Maximum number of displayed characters of a description or a reason.
const PROSE_CHARS: usize = 1_000;

/// Maximum length of a URL that becomes a link: twice the maximum length of a URL in an announcement.
const LINK_BYTES: usize = 1_024;

/// Style sheet of all pages, with light and dark colours. Untrusted text may be written from right to left; `isolate`
/// keeps it from changing the direction of the text beside it.
const STYLE: &str = "\
:root{color-scheme:light dark;--soft:#0000000f;--link:#0b57d0;--note:#b06000}\
@media(prefers-color-scheme:dark){:root{--soft:#ffffff1a;--link:#8ab4f8;--note:#fdd663}}\
body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}\
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .5rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}\
h1,p,li,dd,code,pre,a{unicode-bidi:isolate}\
a{color:var(--link)}\
code,pre{font:.875em/1.5 ui-monospace,monospace;background:var(--soft);border-radius:.25em}\
code{padding:.1em .3em}pre{padding:.6em .8em;white-space:pre-wrap}\
ul{padding-left:1.2rem;margin:.5rem 0}li{margin:.2rem 0}dt{font-weight:600}dd{margin:0 0 .5rem}\
.note{border-left:.25rem solid var(--note);padding-left:.8rem}\
footer{margin-top:3rem;font-size:.875em;opacity:.7}";

/// Returns a complete page.
fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n",
        Escaped(&truncated(title, NAME_CHARS)),
    )
}

/// Returns `robots.txt`: crawlers may read the pages, but not the paths for git and for programs.
pub(crate) fn robots_txt() -> &'static str {
    "User-agent: *\n\
     Disallow: /*/info/refs\n\
     Disallow: /*/git-upload-pack\n\
     Disallow: /*/git-receive-pack\n\
     Disallow: /*/purgatory\n\
     Disallow: /*/replication.json\n\
     Disallow: /status\n\
     Allow: /\n"
}

/// Text, escaped for every place in HTML, including quoted attributes.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // HTML cannot represent other control characters.
                '\n' | '\t' => f.write_char(character)?,
                control if control.is_control() => f.write_char(char::REPLACEMENT_CHARACTER)?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// An untrusted URL: a link if it leads to a web server or a relay, otherwise plain text.
struct ExternalLink<'a>(&'a str);

impl fmt::Display for ExternalLink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = truncated(self.0, 2 * NAME_CHARS);
        if is_linkable(self.0) {
            write!(f, "<a href=\"{}\" rel=\"nofollow noopener\">{}</a>", Escaped(self.0), Escaped(&shown))
        } else {
            write!(f, "<code>{}</code>", Escaped(&shown))
        }
    }
}

fn is_linkable(url: &str) -> bool {
    url.len() <= LINK_BYTES && is_server_url(url)
}

/// Returns whether following a URL can only contact a server and cannot run a script. The scheme must be exactly one of
/// four: browsers ignore leading blanks and line breaks inside a scheme, this function does not.
fn is_server_url(url: &str) -> bool {
    let schemes = ["http", "https", "ws", "wss"];
    !url.contains(|character: char| character.is_whitespace() || character.is_control())
        && url.split_once("://").is_some_and(|(scheme, rest)| {
            !rest.is_empty() && schemes.iter().any(|known| scheme.eq_ignore_ascii_case(known))
        })
}

/// Percent-encodes everything but the unreserved characters of RFC 3986, so that the result can be used in a path
/// segment and in a shell command.
fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

/// Returns the relay hint of a `nostr://` URL: without the scheme if that is the default `wss`.
fn relay_hint(relay_url: &str) -> String {
    percent_encode(relay_url.strip_prefix("wss://").unwrap_or(relay_url).trim_end_matches('/'))
}

/// Truncates a text to a number of characters; an ellipsis marks a truncated text.
fn truncated(text: &str, max_chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// Returns a list in HTML, truncated to its maximum size, with the number of the omitted entries.
fn list<T>(items: impl ExactSizeIterator<Item = T>, row: impl Fn(T) -> String) -> String {
    let total = items.len();
    let mut out = String::from("<ul>");
    for (nth, item) in items.enumerate() {
        if nth == LIST_ENTRIES || out.len() > LIST_BYTES {
            out += &format!("<li>… and {} more</li>", total - nth);
            break;
        }
        out += &format!("<li>{}</li>", row(item));
    }
    out + "</ul>"
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn untrusted_text_is_escaped() {
        for hostile in HOSTILE {
            assert_only_known_html(&page(hostile, &format!("<p>{}</p>{}", Escaped(hostile), ExternalLink(hostile))));
        }
        assert_eq!(Escaped("a<b>&\"'\u{7}é").to_string(), "a&lt;b&gt;&amp;&quot;&#39;\u{fffd}é");
        assert!(page(&"🚀".repeat(5_000), "").len() < 3_000);
    }

    #[test]
    fn only_server_urls_become_links() {
        for url in ["https://a.example/x?y=\"<z>", "http://a.example", "WSS://a.example", "ws://[::1]:7"] {
            assert!(is_linkable(url), "{url}");
            assert_only_known_html(&ExternalLink(url).to_string());
        }
        for url in [
            "javascript:alert(1)",
            "JavaScript://a.example/%0aalert(1)",
            " https://a.example",
            "https://a.example\n",
            "java\nscript://x",
            "data:text/html,x",
            "file:///etc/passwd",
            "ssh://git@a.example/x",
            "git@a.example:x",
            "//a.example",
            "https://",
            "https",
            "",
            &format!("https://a.example/{}", "x".repeat(LINK_BYTES)),
        ] {
            assert!(!is_linkable(url) && !ExternalLink(url).to_string().contains("href"), "{url}");
        }
    }

    #[test]
    fn long_lists_are_truncated() {
        let plain = |length: usize| list(0..length, |nth| nth.to_string());
        assert!(plain(LIST_ENTRIES).ends_with("<li>99</li></ul>"));
        assert!(plain(LIST_ENTRIES + 1).ends_with("<li>99</li><li>… and 1 more</li></ul>"));
        let long = list(0..50, |_| "x".repeat(3_000));
        assert!(long.len() < LIST_BYTES + 3_100 && long.ends_with("<li>… and 46 more</li></ul>"), "{}", long.len());
    }

    #[test]
    fn hints_and_segments_are_percent_encoded() {
        for (relay, expected) in [
            ("wss://code.example", "code.example"),
            ("wss://code.example/g/", "code.example%2Fg"),
            ("ws://localhost:7334", "ws%3A%2F%2Flocalhost%3A7334"),
        ] {
            assert_eq!(relay_hint(relay), expected);
        }
        assert_eq!(percent_encode("my 🚀 repo"), "my%20%F0%9F%9A%80%20repo");
    }

    #[test]
    fn robots_txt_excludes_git_paths() {
        let robots = robots_txt();
        for path in ["info/refs", "git-upload-pack", "git-receive-pack"] {
            assert!(robots.contains(&format!("Disallow: /*/{path}\n")), "{robots}");
        }
        assert!(robots.lines().all(|line| line.contains(": ")), "{robots}");
    }
}
