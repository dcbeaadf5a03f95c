//! Small HTTP responses: status lines with a text, typed documents, HTML pages.

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode, header};

use super::body::{HttpResponse, ResponseBody};

/// Adds the headers that every response has: browsers must not guess its type, and caches must ask again unless the
/// handler stated otherwise.
pub(crate) fn add_default_headers(response: &mut HttpResponse) {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache"));
}

/// Turns the response to GET into the response to HEAD: the same headers without the body.
pub(crate) fn without_body(mut response: HttpResponse) -> HttpResponse {
    if let Some(length) = hyper::body::Body::size_hint(response.body()).exact() {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert(HeaderValue::from(length));
    }
    *response.body_mut() = ResponseBody::from(Vec::new());
    response
}

/// Returns 405 with the allowed methods.
pub(crate) fn method_not_allowed(allowed: &'static str) -> HttpResponse {
    with_header(status(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n"), header::ALLOW, allowed)
}

/// Returns a response with a plain text.
pub(crate) fn status(status: StatusCode, text: &'static str) -> HttpResponse {
    let mut response = with_type(status, "text/plain; charset=utf-8", text);
    if text.is_empty() {
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    response
}

/// Returns an HTML page. Its content security policy allows inline styles and no scripts.
pub(crate) fn html(status: StatusCode, text: String) -> HttpResponse {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    with_header(with_type(status, "text/html; charset=utf-8", text), header::CONTENT_SECURITY_POLICY, policy)
}

/// Returns a text with a content type.
pub(crate) fn with_type(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> HttpResponse {
    let mut response = Response::new(ResponseBody::from(text));
    *response.status_mut() = status;
    with_header(response, header::CONTENT_TYPE, content_type)
}

/// Sets a header of a response.
pub(crate) fn with_header(mut response: HttpResponse, name: HeaderName, value: &'static str) -> HttpResponse {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}
