//! The page of a 404 response.

use askama::Template;

use super::{filters, render};

#[derive(Template)]
#[template(path = "not_found.html")]
struct NotFoundPage<'a> {
    path: &'a str,
}

/// Returns the page for a path that does not exist, with possible reasons. An empty path is not displayed.
pub(crate) fn not_found(path: &str) -> String {
    render(&NotFoundPage { path })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HOSTILE, assert_only_known_html};
    use super::*;

    #[test]
    fn path_is_escaped_and_truncated() {
        for hostile in HOSTILE {
            assert_only_known_html(&not_found(hostile));
            assert!(not_found(hostile).ends_with("</main>\n</body></html>\n"));
        }
        assert!(not_found(&"\"".repeat(1_000_000)).len() < 5_000);
    }
}
