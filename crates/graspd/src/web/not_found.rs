//! What a browser sees where nothing is.

use super::{NAME_CHARS, Text, page, shortened};

/// The page for a path at which nothing is, with what could be wrong. An empty path is not shown.
pub(crate) fn not_found(path: &str) -> String {
    let at = match path {
        "" => "this address".to_owned(),
        path => format!("<code>{}</code>", Text(&shortened(path, 2 * NAME_CHARS))),
    };
    let body = format!(
        "<h1>Not found</h1><p>There is nothing at {at}.</p>\
         <p>If you expected a repository:</p><ul>\
         <li>Its address is <code>&lt;npub&gt;/&lt;identifier&gt;.git</code>, with the owner&#39;s key as npub and the \
         identifier percent-encoded.</li>\
         <li>It may not be announced here: its announcement must name this service among its <code>clone</code> and \
         <code>relays</code>.</li>\
         <li>Its announcement may have waited for git data in vain. Publish it again, then push.</li>\
         <li>Its owner may have deleted it or taken it elsewhere.</li></ul>",
    );
    page("Not found", &body)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HOSTILE, expect_tame};
    use super::*;

    #[test]
    fn the_path_stays_text_and_short() {
        for hostile in HOSTILE {
            expect_tame(&not_found(hostile));
        }
        assert!(not_found(&"\"".repeat(1_000_000)).len() < 5_000);
    }
}
