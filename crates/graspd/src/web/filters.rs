//! Functions that the templates use on texts, times and lists. Those with the attribute `filter_fn` are written
//! `{{ value|function }}`.

// The attribute `filter_fn` generates public functions.
#![allow(unreachable_pub)]

use std::borrow::Cow;
use std::fmt;

use askama::filters::Safe;
use askama::{Result, Values, filter_fn};

use crate::date::format_utc;

/// Maximum number of entries of a list: more than a person reads.
pub(super) const LIST_ENTRIES: usize = 100;

/// Bytes of a list after which no further entry is added: a hundred entries of the usual length.
const LIST_BYTES: usize = 10_000;

/// Maximum number of displayed characters of a name. A phone displays about forty in a line.
pub(super) const NAME_CHARS: usize = 100;

/// Maximum number of displayed characters of a description or a reason.
const PROSE_CHARS: usize = 1_000;

/// Displayed characters of an object id: enough to recognise it.
const OID_CHARS: usize = 10;

/// Maximum length of a URL that becomes a link: twice the maximum length of a URL in an announcement.
const LINK_BYTES: usize = 1_024;

/// Truncates a text to a number of characters; an ellipsis marks a truncated text.
pub(super) fn truncated(text: &str, max_chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// Truncates a name, an id or a key.
#[filter_fn]
pub(super) fn name<T: AsRef<str>>(text: T, _: &dyn Values) -> Result<String> {
    Ok(truncated(text.as_ref(), NAME_CHARS).into_owned())
}

/// Truncates a text of about one line.
#[filter_fn]
pub(super) fn line<T: AsRef<str>>(text: T, _: &dyn Values) -> Result<String> {
    Ok(truncated(text.as_ref(), 2 * NAME_CHARS).into_owned())
}

/// Truncates a text of one or more sentences.
#[filter_fn]
pub(super) fn prose<T: AsRef<str>>(text: T, _: &dyn Values) -> Result<String> {
    Ok(truncated(text.as_ref(), PROSE_CHARS).into_owned())
}

/// Returns the beginning of an object id.
#[filter_fn]
pub(super) fn oid<T: AsRef<str>>(text: T, _: &dyn Values) -> Result<String> {
    Ok(text.as_ref().chars().take(OID_CHARS).collect())
}

/// Formats a Unix time, `2026-11-16 00:06 UTC`.
#[filter_fn]
pub(super) fn utc(secs: &u64, _: &dyn Values) -> Result<String> {
    Ok(format_utc(*secs))
}

/// Returns the relay of a `nostr://` URL: without the scheme if that is the default `wss`, percent-encoded.
#[filter_fn]
pub(super) fn relay_hint<T: AsRef<str>>(relay_url: T, _: &dyn Values) -> Result<String> {
    let relay_url = relay_url.as_ref();
    let address = relay_url.strip_prefix("wss://").unwrap_or(relay_url).trim_end_matches('/');
    Ok(askama::filters::urlencode_strict(address)?.to_string())
}

/// Returns a list in HTML from its first entries, truncated to its maximum size, with the number of the omitted entries.
/// An entry is from `<li>` to `</li>`; `total` is the number of all entries.
#[filter_fn]
pub(super) fn limited<T: fmt::Display>(entries: T, _: &dyn Values, total: usize) -> Result<Safe<String>> {
    let mut out = String::from("<ul>");
    let mut shown = 0;
    for entry in entries.to_string().trim().split_inclusive("</li>").take(LIST_ENTRIES) {
        if out.len() > LIST_BYTES {
            break;
        }
        out += entry.trim_start();
        shown += 1;
    }
    if shown < total {
        out += &format!("<li>… and {} more</li>", total - shown);
    }
    Ok(Safe(out + "</ul>"))
}

/// Returns whether an untrusted URL becomes a link.
pub(super) fn is_linkable(url: &str) -> bool {
    url.len() <= LINK_BYTES && is_server_url(url)
}

/// Returns whether following a URL can only contact a server and cannot run a script. The scheme must be exactly one of
/// four: browsers ignore leading blanks and line breaks inside a scheme, this function does not.
pub(super) fn is_server_url(url: &str) -> bool {
    let schemes = ["http", "https", "ws", "wss"];
    !url.contains(|character: char| character.is_whitespace() || character.is_control())
        && url.split_once("://").is_some_and(|(scheme, rest)| {
            !rest.is_empty() && schemes.iter().any(|known| scheme.eq_ignore_ascii_case(known))
        })
}

#[cfg(test)]
mod tests {
    use askama::Template;

    use super::super::tests::{HOSTILE, assert_only_known_html};
    use super::super::{filters, render};
    use super::*;

    #[derive(Template)]
    #[template(source = r#"{% import "macros.html" as html %}{{ html::link(url) }}"#, ext = "html")]
    struct Link<'a> {
        url: &'a str,
    }

    #[derive(Template)]
    #[template(
        source = "{% filter limited(entries.len()) %}{% for entry in entries %}<li>{{ entry }}</li>{% endfor %}{% endfilter %}",
        ext = "html"
    )]
    struct List<'a> {
        entries: &'a [String],
    }

    #[derive(Template)]
    #[template(source = "{{ relay|relay_hint }} {{ relay|urlencode_strict }} {{ relay|name }}", ext = "html")]
    struct Texts<'a> {
        relay: &'a str,
    }

    #[test]
    fn only_server_urls_become_links() {
        for hostile in HOSTILE {
            assert_only_known_html(&render(&Link { url: hostile }));
        }
        for url in ["https://a.example/x?y=\"<z>", "http://a.example", "WSS://a.example", "ws://[::1]:7"] {
            assert!(is_linkable(url), "{url}");
            assert_only_known_html(&render(&Link { url }));
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
            assert!(!is_linkable(url) && !render(&Link { url }).contains("href"), "{url}");
        }
    }

    #[test]
    fn long_lists_are_truncated() {
        let list = |entries: Vec<String>| render(&List { entries: &entries });
        let plain = |length: usize| list((0..length).map(|nth| nth.to_string()).collect());
        assert!(plain(LIST_ENTRIES).ends_with("<li>99</li></ul>"));
        assert!(plain(LIST_ENTRIES + 1).ends_with("<li>99</li><li>… and 1 more</li></ul>"));
        let long = list(vec!["x".repeat(3_000); 50]);
        assert!(long.len() < LIST_BYTES + 3_100 && long.ends_with("<li>… and 46 more</li></ul>"), "{}", long.len());
    }

    #[test]
    fn long_texts_are_truncated() {
        assert!(render(&Texts { relay: "🚀" }).ends_with(" 🚀"));
        assert!(render(&Texts { relay: &"x".repeat(101) }).ends_with(&format!(" {}…", "x".repeat(100))));
    }

    #[test]
    fn hints_and_segments_are_percent_encoded() {
        for (relay, expected) in [
            ("wss://code.example", "code.example "),
            ("wss://code.example/g/", "code.example%2Fg "),
            ("ws://localhost:7334", "ws%3A%2F%2Flocalhost%3A7334 "),
            ("my 🚀 repo", "my%20%F0%9F%9A%80%20repo my%20%F0%9F%9A%80%20repo "),
        ] {
            let text = render(&Texts { relay });
            assert!(text.starts_with(expected), "{text}");
        }
    }
}
