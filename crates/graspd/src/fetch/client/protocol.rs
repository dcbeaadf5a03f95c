//! Requests of the git smart protocol over HTTP, and the list of refs.

use bytes::Bytes;
use grasp_core::fetch::io::{FetchOutcome, RequestForm};
use grasp_core::limits;
use grasp_core::net::OutboundUrl;
use grasp_git::fetch;
use grasp_git::fetch::ref_advertisement::RefListError;
use grasp_git::fetch::{LsRefsParser, RefAdvertisement, RefAdvertisementParser, RefVisitor};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Request, Response, StatusCode, header};

use super::connection::{PackBody, ServerConnection};
use super::{FetchClient, FetchError, retry_after};
use crate::net::USER_AGENT;

/// User agent of HTTP requests. It begins with `git/`, because some servers reject other clients.
const HTTP_USER_AGENT: &str = concat!("git/2 graspd/", env!("CARGO_PKG_VERSION"));

/// Content types of the git smart protocol.
const REQUEST_TYPE: &str = "application/x-git-upload-pack-request";
pub(super) const RESULT_TYPE: &str = "application/x-git-upload-pack-result";
const ADVERTISEMENT_TYPE: &str = "application/x-git-upload-pack-advertisement";

/// Prefixes of the names of branches and tags.
pub(super) const BRANCHES_AND_TAGS: [&str; 2] = ["refs/heads/", "refs/tags/"];

/// Version of the git protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    V0,
    V2,
}

/// Callback for the first bytes of the requested data.
pub(super) type OnFirstBytes<'b> = &'b mut (dyn FnMut() + Send);

/// Sends requests of the git protocol to one server.
#[derive(Clone, Copy)]
pub(super) struct GitProtocol<'a> {
    pub(super) client: &'a FetchClient,
    pub(super) target: &'a OutboundUrl,
    /// Form of the request for objects; `None` if only refs are listed.
    pub(super) form: Option<RequestForm>,
}

impl GitProtocol<'_> {
    /// Passes the server's refs that begin with one of the prefixes to `visitor`. In protocol v0, passes all refs.
    pub(super) async fn refs<H: RefVisitor>(
        &self,
        connection: &mut ServerConnection<'_>,
        on_first_bytes: OnFirstBytes<'_>,
        visitor: H,
        prefixes: &[String],
    ) -> Result<(RefAdvertisement, H), FetchError> {
        let response = connection.send(&self.info_refs_request()?).await?;
        self.check_status(&response)?;
        let mut parser = RefAdvertisementParser::new(visitor);
        self.read_ref_list(response, on_first_bytes, |bytes| parser.feed(bytes)).await?;
        let (advertisement, mut visitor) = parser.finish().map_err(ref_list_error)?;
        let (RefAdvertisement::V0(features) | RefAdvertisement::V2(features)) = advertisement;
        if !features.sha1 {
            return Err(FetchError::new(FetchOutcome::Absent, "the repository does not use SHA-1 object ids"));
        }
        if let RefAdvertisement::V2(_) = advertisement {
            let body = fetch::ls_refs(USER_AGENT, prefixes);
            let response = connection.send(&self.upload_pack_request(body, Protocol::V2)?).await?;
            self.check_status(&response)?;
            let mut parser = LsRefsParser::new(visitor);
            self.read_ref_list(response, on_first_bytes, |bytes| parser.feed(bytes)).await?;
            visitor = parser.finish().map_err(ref_list_error)?;
        }
        Ok((advertisement, visitor))
    }

    fn info_refs_request(&self) -> Result<Request<Full<Bytes>>, FetchError> {
        let request = Request::get(self.path("info/refs?service=git-upload-pack"))
            .header(header::ACCEPT, ADVERTISEMENT_TYPE)
            .body(Full::default());
        self.with_common_headers(request, Protocol::V2)
    }

    pub(super) fn upload_pack_request(
        &self,
        body: Vec<u8>,
        protocol: Protocol,
    ) -> Result<Request<Full<Bytes>>, FetchError> {
        let request = Request::post(self.path("git-upload-pack"))
            .header(header::CONTENT_TYPE, REQUEST_TYPE)
            .header(header::ACCEPT, RESULT_TYPE)
            .body(Full::from(body));
        self.with_common_headers(request, protocol)
    }

    fn path(&self, below: &str) -> String {
        format!("{}/{below}", self.target.path().trim_end_matches('/'))
    }

    /// Adds the headers that all requests have.
    fn with_common_headers(
        &self,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
        protocol: Protocol,
    ) -> Result<Request<Full<Bytes>>, FetchError> {
        let mut request = request.map_err(FetchError::local)?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, HeaderValue::try_from(self.target.authority()).map_err(FetchError::local)?);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(HTTP_USER_AGENT));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if protocol == Protocol::V2 {
            headers.insert("git-protocol", HeaderValue::from_static("version=2"));
        }
        Ok(request)
    }

    /// Checks the status and encoding of a response.
    pub(super) fn check_status(&self, response: &Response<Incoming>) -> Result<(), FetchError> {
        let status = response.status();
        let wait = || {
            let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
            retry_after::parse(value, self.client.clock.wall())
        };
        let outcome = match status {
            StatusCode::OK => {
                let encoding = response.headers().get(header::CONTENT_ENCODING);
                return match encoding.is_none_or(|encoding| encoding == "identity" || encoding.is_empty()) {
                    true => Ok(()),
                    false => Err(FetchError::new(
                        FetchOutcome::InvalidData,
                        "the response is compressed although compression was not requested",
                    )),
                };
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => FetchOutcome::Busy(wait()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::GONE => {
                FetchOutcome::Absent
            }
            StatusCode::REQUEST_TIMEOUT => FetchOutcome::Failed,
            status if status.is_redirection() => {
                // Redirects are not followed. They are logged if objects are wanted from the server.
                if self.form.is_some() {
                    self.client.failure_log.log(&self.target.to_string(), &format!("HTTP status {status}"));
                }
                FetchOutcome::Absent
            }
            // The server may support requests by ref.
            status if status.is_client_error() && self.form == Some(RequestForm::ByOid) => FetchOutcome::NotByOid,
            status if status.is_client_error() => FetchOutcome::Absent,
            _ => FetchOutcome::Failed,
        };
        Err(FetchError::new(outcome, format!("HTTP status {status}")))
    }

    /// Reads a list of refs from a response.
    async fn read_ref_list(
        &self,
        response: Response<Incoming>,
        on_first_bytes: OnFirstBytes<'_>,
        mut feed: impl FnMut(&[u8]) -> Result<(), RefListError>,
    ) -> Result<(), FetchError> {
        let too_long = || FetchError::new(FetchOutcome::InvalidData, "the list of refs is too long");
        let mut body = PackBody::new(response.into_body(), self.client.timeouts);
        let mut left = limits::MAX_REF_LIST_BYTES;
        if body.announced_bytes() > left {
            return Err(too_long());
        }
        while let Some(bytes) = body.next().await? {
            left = left.checked_sub(bytes.len() as u64).ok_or_else(too_long)?;
            feed(&bytes).map_err(ref_list_error)?;
            body.check_rate(bytes.len() as u64)?;
            on_first_bytes();
        }
        Ok(())
    }
}

/// Returns the error for an invalid list of refs.
fn ref_list_error(bad: RefListError) -> FetchError {
    let outcome = match bad {
        RefListError::Truncated => FetchOutcome::Failed,
        // An HTML page, a server without the smart protocol, or a rejection.
        RefListError::Packet(_) | RefListError::UnexpectedLine(_) | RefListError::Rejected(_) => FetchOutcome::Absent,
    };
    FetchError::new(outcome, bad)
}
