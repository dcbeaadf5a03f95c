//! The few pages that a person may see: HTML made here, without a script but for the [`status`], of text that strangers wrote.
//!
//! Every page is a pure function of a view. Nothing gets into a page but through [`Text`], [`Link`] or [`percent`], and
//! nothing of a stranger's choice is longer than is said beside it, so a page stays small whatever is in the view.

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

/// Entries of one list that are shown: more than a person reads.
const LIST_ENTRIES: usize = 100;

/// Bytes of one list after which no further entry is begun: a hundred entries of the usual length.
const LIST_BYTES: usize = 10_000;

/// Characters of a name that are shown. A phone shows about forty in a line.
const NAME_CHARS: usize = 100;

/// Characters of a description or a reason that are shown: a page is no place for an essay.
const PROSE_CHARS: usize = 1_000;

/// Bytes of a URL up to which it becomes a link: announcements keep none that are longer than half of it.
const LINK_BYTES: usize = 1_024;

/// Colours come in two sets, for light and for dark rooms. Text of strangers may be written from right to left, which
/// must not spill over into what stands beside it.
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

/// A whole page.
fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{}</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n",
        Text(&shortened(title, NAME_CHARS)),
    )
}

/// What crawlers may look at: pages, but not what only git and programs read.
pub(crate) fn robots() -> &'static str {
    "User-agent: *\n\
     Disallow: /*/info/refs\n\
     Disallow: /*/git-upload-pack\n\
     Disallow: /*/git-receive-pack\n\
     Disallow: /*/purgatory\n\
     Disallow: /*/replication.json\n\
     Disallow: /status\n\
     Allow: /\n"
}

/// Text that may stand anywhere in HTML, in quoted attributes too.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // HTML has no way to write the others.
                '\n' | '\t' => f.write_char(character)?,
                control if control.is_control() => f.write_char(char::REPLACEMENT_CHARACTER)?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A URL that somebody else wrote: a link if it leads to a web server or a relay, else just text.
struct Link<'a>(&'a str);

impl fmt::Display for Link<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = shortened(self.0, 2 * NAME_CHARS);
        if is_link(self.0) {
            write!(f, "<a href=\"{}\" rel=\"nofollow noopener\">{}</a>", Text(self.0), Text(&shown))
        } else {
            write!(f, "<code>{}</code>", Text(&shown))
        }
    }
}

fn is_link(url: &str) -> bool {
    url.len() <= LINK_BYTES && is_harmless(url)
}

/// Whether following a URL can do no more than visit a server. The scheme must be one of four, letter by letter: browsers
/// forgive leading blanks and line breaks inside a scheme, we do not.
fn is_harmless(url: &str) -> bool {
    let harmless = ["http", "https", "ws", "wss"];
    !url.contains(|c: char| c.is_whitespace() || c.is_control())
        && url.split_once("://").is_some_and(|(scheme, rest)| {
            !rest.is_empty() && harmless.iter().any(|known| scheme.eq_ignore_ascii_case(known))
        })
}

/// Percent-encoded: RFC 3986's unreserved characters stay as they are, so the result may stand in a segment of a path
/// and in a command line.
fn percent(text: &str) -> String {
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

/// The relay hint of a `nostr://` URL: without its scheme when that is the usual `wss`.
fn hint(relay_url: &str) -> String {
    percent(relay_url.strip_prefix("wss://").unwrap_or(relay_url).trim_end_matches('/'))
}

/// At most so many characters, with a sign when there were more.
fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((at, _)) => Cow::Owned(format!("{}…", &text[..at])),
        None => Cow::Borrowed(text),
    }
}

/// A list of what strangers have given, as far as it is shown, and how many more there are.
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

    /// What strangers write to get out of where they stand.
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

    /// Every tag of a page must be one that we write, with attributes that we write, and every link must be harmless.
    pub(super) fn expect_tame(page: &str) {
        const TAGS: [&str; 24] = [
            "!doctype", "html", "head", "body", "main", "meta", "title", "style", "h1", "h2", "p", "pre", "code", "a",
            "b", "ul", "li", "dl", "dt", "dd", "footer", "small", "br", "span",
        ];
        const ATTRIBUTES: [&str; 10] =
            ["lang", "charset", "name", "content", "href", "rel", "class", "data-k", "data-shape", "id"];
        for tag in page.split('<').skip(1) {
            let (tag, text) = tag.split_once('>').unwrap_or_else(|| panic!("an open tag: {tag}"));
            assert!(!text.contains('>'), "a stray bracket: {text}");
            let mut words = tag.splitn(2, ' ');
            let name = words.next().unwrap_or_default().trim_start_matches('/');
            assert!(TAGS.contains(&name), "no tag of ours: {tag}");
            let mut rest = words.next().unwrap_or_default();
            while name != "!doctype" && !rest.is_empty() {
                let (attribute, after) = rest.split_once('=').unwrap_or_else(|| panic!("an odd attribute: {tag}"));
                assert!(ATTRIBUTES.contains(&attribute), "no attribute of ours: {tag}");
                let (value, after) = match after.strip_prefix('"') {
                    Some(quoted) => quoted.split_once('"').unwrap_or_else(|| panic!("an open quote: {tag}")),
                    None => after.split_once(' ').unwrap_or((after, "")),
                };
                if attribute == "href" {
                    assert!(is_harmless(value), "a link that does harm: {tag}");
                }
                rest = after.trim_start();
            }
        }
        assert!(!page.contains(|c: char| c.is_control() && c != '\n'), "a control character");
    }

    #[test]
    fn text_stays_text() {
        for hostile in HOSTILE {
            expect_tame(&page(hostile, &format!("<p>{}</p>{}", Text(hostile), Link(hostile))));
        }
        assert_eq!(Text("a<b>&\"'\u{7}é").to_string(), "a&lt;b&gt;&amp;&quot;&#39;\u{fffd}é");
        assert!(page(&"🚀".repeat(5_000), "").len() < 3_000);
    }

    #[test]
    fn only_servers_are_linked_to() {
        for url in ["https://a.example/x?y=\"<z>", "http://a.example", "WSS://a.example", "ws://[::1]:7"] {
            assert!(is_link(url), "{url}");
            expect_tame(&Link(url).to_string());
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
            assert!(!is_link(url) && !Link(url).to_string().contains("href"), "{url}");
        }
    }

    #[test]
    fn lists_end() {
        let plain = |n: usize| list(0..n, |nth| nth.to_string());
        assert!(plain(LIST_ENTRIES).ends_with("<li>99</li></ul>"));
        assert!(plain(LIST_ENTRIES + 1).ends_with("<li>99</li><li>… and 1 more</li></ul>"));
        let long = list(0..50, |_| "x".repeat(3_000));
        assert!(long.len() < LIST_BYTES + 3_100 && long.ends_with("<li>… and 46 more</li></ul>"), "{}", long.len());
    }

    #[test]
    fn hints_and_segments_are_percent_encoded() {
        for (relay, hint_) in [
            ("wss://code.example", "code.example"),
            ("wss://code.example/g/", "code.example%2Fg"),
            ("ws://localhost:7334", "ws%3A%2F%2Flocalhost%3A7334"),
        ] {
            assert_eq!(hint(relay), hint_);
        }
        assert_eq!(percent("my 🚀 repo"), "my%20%F0%9F%9A%80%20repo");
    }

    #[test]
    fn crawlers_leave_git_alone() {
        let robots = robots();
        for path in ["info/refs", "git-upload-pack", "git-receive-pack"] {
            assert!(robots.contains(&format!("Disallow: /*/{path}\n")), "{robots}");
        }
        assert!(robots.lines().all(|line| line.contains(": ")), "{robots}");
    }
}
