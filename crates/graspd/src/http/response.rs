//! Small HTTP responses: status lines with a text, typed documents, HTML pages.

use hyper::header::HeaderValue;
use hyper::{Response, StatusCode, header};

use super::body::{HttpResponse, ResponseBody};

/// The answer to HEAD: what GET would give, without its body.
pub(crate) fn bodiless(mut answer: HttpResponse) -> HttpResponse {
    if let Some(length) = hyper::body::Body::size_hint(answer.body()).exact() {
        answer.headers_mut().entry(header::CONTENT_LENGTH).or_insert(HeaderValue::from(length));
    }
    *answer.body_mut() = ResponseBody::from(Vec::new());
    answer
}

/// The path is right, the method is not.
pub(crate) fn method_not_allowed(allowed: &'static str) -> HttpResponse {
    let mut answer = status(StatusCode::METHOD_NOT_ALLOWED, "this address does not take that method\n");
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// A short plain answer.
pub(crate) fn status(status: StatusCode, text: &'static str) -> HttpResponse {
    let mut answer = Response::new(ResponseBody::from(text));
    *answer.status_mut() = status;
    if !text.is_empty() {
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    answer
}

pub(crate) fn html(status: StatusCode, text: String) -> HttpResponse {
    let mut answer = with_type(status, "text/html; charset=utf-8", text);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    answer
}

pub(crate) fn with_type(status: StatusCode, kind: &'static str, text: String) -> HttpResponse {
    let mut answer = Response::new(ResponseBody::from(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
