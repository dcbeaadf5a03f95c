//! The page of a 404 response.

use super::{Escaped, NAME_CHARS, page, truncated};

/// Returns the page for a path that does not exist, with possible reasons. An empty path is not displayed.
pub(crate) fn not_found(path: &str) -> String {
    let at = match path {
        "" => "this URL".to_owned(),
        path => format!("<code>{}</code>", Escaped(&truncated(path, 2 * NAME_CHARS))),
    };
    let body = format!(
        "<h1>Not found</h1><p>There is nothing at {at}.</p>\
         <p>If you expected a repository:</p><ul>\
         <li>Its URL ends with <code>&lt;npub&gt;/&lt;identifier&gt;.git</code>, with the owner&#39;s public key as \
         npub and a percent-encoded identifier.</li>\
         <li>It may not be announced here: its announcement must list this service in the tags <code>clone</code> and \
         <code>relays</code>.</li>\
         <li>Its announcement may have expired before git data was pushed. Publish it again, then push.</li>\
         <li>Its owner may have deleted it or moved it to another service.</li></ul>",
    );
    page("Not found", &body)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HOSTILE, assert_only_known_html};
    use super::*;

    #[test]
    fn path_is_escaped_and_truncated() {
        for hostile in HOSTILE {
            assert_only_known_html(&not_found(hostile));
        }
        assert!(not_found(&"\"".repeat(1_000_000)).len() < 5_000);
    }
}
