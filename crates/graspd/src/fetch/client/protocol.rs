//! What is said to a git server whatever is wanted of it, and its list of refs.

use bytes::Bytes;
use grasp_core::fetch::io::{FetchOutcome, RequestForm};
use grasp_core::limits;
use grasp_core::net::OutboundUrl;
use grasp_git::fetch;
use grasp_git::fetch::ref_advertisement::BadGreeting;
use grasp_git::fetch::{Greeting, GreetingParser, Hearer, ListParser};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Request, Response, StatusCode, header};

use super::connection::{Answer, Call};
use super::{FetchClient, FetchError, retry_after};
use crate::net::USER_AGENT;

/// What we call ourselves to web servers: some let nobody near their repositories who is not called git.
const WEB_AGENT: &str = concat!("git/2 graspd/", env!("CARGO_PKG_VERSION"));

/// What git's own servers say a list of refs and a pack is.
const REQUEST: &str = "application/x-git-upload-pack-request";
pub(super) const RESULT: &str = "application/x-git-upload-pack-result";
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";

/// What the names of branches and tags begin with.
pub(super) const BRANCHES_AND_TAGS: [&str; 2] = ["refs/heads/", "refs/tags/"];

/// Which protocol a request is made in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    First,
    Second,
}

/// Told when the server begins to answer with what was asked for.
pub(super) type Begun<'b> = &'b mut (dyn FnMut() + Send);

/// Whom we speak to.
#[derive(Clone, Copy)]
pub(super) struct Speech<'a> {
    pub(super) room: &'a FetchClient,
    pub(super) target: &'a OutboundUrl,
    /// How objects are asked for, if any are.
    pub(super) form: Option<RequestForm>,
}

impl Speech<'_> {
    /// Has somebody hear of its refs whose names begin with one of these, or in v0 of all that it has.
    pub(super) async fn refs<H: Hearer>(
        &self,
        call: &mut Call<'_>,
        begun: Begun<'_>,
        hearer: H,
        prefixes: &[String],
    ) -> Result<(Greeting, H), FetchError> {
        let answer = call.send(&self.get()?).await?;
        self.judge(&answer)?;
        let mut parser = GreetingParser::new(hearer);
        self.list(answer, begun, |bytes| parser.feed(bytes)).await?;
        let (greeting, mut hearer) = parser.finish().map_err(no_list)?;
        let (Greeting::First(offer) | Greeting::Second(offer)) = greeting;
        if !offer.sha1 {
            return Err(FetchError::new(FetchOutcome::Absent, "its objects have ids of another kind"));
        }
        if let Greeting::Second(_) = greeting {
            let body = fetch::ls_refs(USER_AGENT, prefixes);
            let answer = call.send(&self.post(body, Protocol::Second)?).await?;
            self.judge(&answer)?;
            let mut parser = ListParser::new(hearer);
            self.list(answer, begun, |bytes| parser.feed(bytes)).await?;
            hearer = parser.finish().map_err(no_list)?;
        }
        Ok((greeting, hearer))
    }

    fn get(&self) -> Result<Request<Full<Bytes>>, FetchError> {
        let request = Request::get(self.path("info/refs?service=git-upload-pack"))
            .header(header::ACCEPT, ADVERTISEMENT)
            .body(Full::default());
        self.dressed(request, Protocol::Second)
    }

    pub(super) fn post(&self, body: Vec<u8>, protocol: Protocol) -> Result<Request<Full<Bytes>>, FetchError> {
        let request = Request::post(self.path("git-upload-pack"))
            .header(header::CONTENT_TYPE, REQUEST)
            .header(header::ACCEPT, RESULT)
            .body(Full::from(body));
        self.dressed(request, protocol)
    }

    fn path(&self, below: &str) -> String {
        format!("{}/{below}", self.target.path().trim_end_matches('/'))
    }

    /// A request with what all of them have.
    fn dressed(
        &self,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
        protocol: Protocol,
    ) -> Result<Request<Full<Bytes>>, FetchError> {
        let mut request = request.map_err(FetchError::ours)?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, HeaderValue::try_from(self.target.authority()).map_err(FetchError::ours)?);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(WEB_AGENT));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if protocol == Protocol::Second {
            headers.insert("git-protocol", HeaderValue::from_static("version=2"));
        }
        Ok(request)
    }

    /// Whether an answer is one.
    pub(super) fn judge(&self, answer: &Response<Incoming>) -> Result<(), FetchError> {
        let status = answer.status();
        let wait = || {
            let value = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
            retry_after::read(value, self.room.clock.wall())
        };
        let end = match status {
            StatusCode::OK => {
                let encoding = answer.headers().get(header::CONTENT_ENCODING);
                return match encoding.is_none_or(|encoding| encoding == "identity" || encoding.is_empty()) {
                    true => Ok(()),
                    false => Err(FetchError::new(
                        FetchOutcome::InvalidData,
                        "the answer is packed although nobody asked for that",
                    )),
                };
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => FetchOutcome::Busy(wait()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::GONE => {
                FetchOutcome::Absent
            }
            StatusCode::REQUEST_TIMEOUT => FetchOutcome::Failed,
            status if status.is_redirection() => {
                // Nobody may send us on; a person may want to know, if something is sought there.
                if self.form.is_some() {
                    self.room.complaints.tell(&self.target.to_string(), &format!("the answer is {status}"));
                }
                FetchOutcome::Absent
            }
            // It may understand another question.
            status if status.is_client_error() && self.form == Some(RequestForm::ByOid) => FetchOutcome::NotByOid,
            status if status.is_client_error() => FetchOutcome::Absent,
            _ => FetchOutcome::Failed,
        };
        Err(FetchError::new(end, format!("the answer is {status}")))
    }

    /// Reads a list of refs.
    async fn list(
        &self,
        answer: Response<Incoming>,
        begun: Begun<'_>,
        mut feed: impl FnMut(&[u8]) -> Result<(), BadGreeting>,
    ) -> Result<(), FetchError> {
        let too_long = || FetchError::new(FetchOutcome::InvalidData, "the list of refs is too long");
        let mut answer = Answer::new(answer.into_body(), self.room.patience);
        let mut left = limits::MAX_REF_LIST_BYTES;
        if answer.claimed() > left {
            return Err(too_long());
        }
        while let Some(bytes) = answer.next().await? {
            left = left.checked_sub(bytes.len() as u64).ok_or_else(too_long)?;
            feed(&bytes).map_err(no_list)?;
            answer.keep_pace(bytes.len() as u64)?;
            begun();
        }
        Ok(())
    }
}

/// What a list of refs means that is none.
fn no_list(bad: BadGreeting) -> FetchError {
    let end = match bad {
        BadGreeting::Truncated => FetchOutcome::Failed,
        // A page for people, a server that only has files, or one that says no.
        BadGreeting::Packet(_) | BadGreeting::Line(_) | BadGreeting::Refused(_) => FetchOutcome::Absent,
    };
    FetchError::new(end, bad)
}
