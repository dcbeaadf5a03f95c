//! The page of a 404 response.

use askama::Template;

use super::render;

#[derive(Template)]
#[template(path = "not_found.html")]
struct NotFoundPage;

/// Returns the page for a path that does not exist, with possible reasons.
pub(crate) fn not_found() -> String {
    render(&NotFoundPage)
}

#[cfg(test)]
mod tests {
    use super::super::tests::assert_only_known_html;
    use super::*;

    #[test]
    fn page_is_complete() {
        assert_only_known_html(&not_found());
        assert!(not_found().ends_with("</main>\n</body></html>\n"));
    }
}
