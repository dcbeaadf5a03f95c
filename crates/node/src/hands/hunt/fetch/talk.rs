//! What is asked of a git server, and what its answers mean.

use bytes::Bytes;
use grasp_core::hunt::io::{End, Fetch, Form, Sought};
use grasp_core::limits;
use grasp_git::fetch::greeting::BadGreeting;
use grasp_git::fetch::{self, AnswerParser, BadAnswer, Greeting, GreetingParser, ListParser, Listing, Wish};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};

use super::call::{Answer, Call};
use super::spool::{Spool, Spooled};
use super::take::Look;
use super::{FetchRoom, Sorry, retry_after};
use crate::outbound::USER_AGENT;

/// What we call ourselves to web servers: some let nobody near their repositories who is not called git.
const WEB_AGENT: &str = concat!("git/2 graspd/", env!("CARGO_PKG_VERSION"));

/// What git's own servers say a list of refs and a pack is.
const REQUEST: &str = "application/x-git-upload-pack-request";
const RESULT: &str = "application/x-git-upload-pack-result";
const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";

/// Bytes that an answer has beside its pack, at most: what frames it, and progress.
const BESIDE: u64 = 2 * limits::MAX_PROGRESS_BYTES as u64;

/// A conversation.
pub(super) struct Talk<'a> {
    room: &'a FetchRoom,
    fetch: &'a Fetch,
    look: &'a Look,
}

/// Which protocol a request is made in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    First,
    Second,
}

/// Told when the server begins to answer with what was asked for.
type Begun<'b> = &'b mut (dyn FnMut() + Send);

impl<'a> Talk<'a> {
    pub(super) fn new(room: &'a FetchRoom, fetch: &'a Fetch, look: &'a Look) -> Self {
        Self { room, fetch, look }
    }

    /// Asks for what is missing. Nothing comes back from a server that shows no refs at all.
    pub(super) async fn hold(&self, answering: impl FnOnce() + Send) -> Result<Option<Spooled>, Sorry> {
        let mut answering = Some(answering);
        let mut begun = || {
            if let Some(answering) = answering.take() {
                answering();
            }
        };
        let mut call = Call::open(&self.room.dialler, &self.fetch.target, self.room.patience).await?;
        match self.fetch.form {
            Form::Oids => self.by_oids(&mut call, &mut begun).await.map(Some),
            Form::Refs => self.by_refs(&mut call, &mut begun).await,
        }
    }

    /// One request for exactly what is missing.
    async fn by_oids(&self, call: &mut Call<'_>, begun: Begun<'_>) -> Result<Spooled, Sorry> {
        let body = fetch::fetch(USER_AGENT, self.wish(&self.look.missing));
        let answer = call.send(&self.post(body, Protocol::Second)?).await?;
        self.judge(&answer)?;
        let is_result = has_type(answer.headers(), RESULT);
        self.receive(answer, AnswerParser::second(), begun).await.map_err(|unheard| match unheard {
            Unheard::Sorry(sorry) => sorry,
            Unheard::Bad(bad) => Sorry::new(by_oids_end(&bad, is_result), bad),
        })
    }

    /// A look at its refs, and a request for those that show what is missing or may lead to it.
    async fn by_refs(&self, call: &mut Call<'_>, begun: Begun<'_>) -> Result<Option<Spooled>, Sorry> {
        let answer = call.send(&self.get()?).await?;
        self.judge(&answer)?;
        let mut parser = GreetingParser::new(self.listing());
        self.list(answer, begun, |bytes| parser.feed(bytes)).await?;
        let (greeting, mut listing) = parser.finish().map_err(no_list)?;
        let (Greeting::First(offer) | Greeting::Second(offer)) = greeting;
        if !offer.sha1 {
            return Err(Sorry::new(End::Absent, "its objects have ids of another kind"));
        }
        if let Greeting::Second(_) = greeting {
            let body = fetch::ls_refs(USER_AGENT, listing.prefixes());
            let answer = call.send(&self.post(body, Protocol::Second)?).await?;
            self.judge(&answer)?;
            let mut parser = ListParser::new(listing);
            self.list(answer, begun, |bytes| parser.feed(bytes)).await?;
            listing = parser.finish().map_err(no_list)?;
        }
        let wants = listing.wants();
        if wants.is_empty() {
            return Ok(None);
        }
        let wish = self.wish(&wants);
        let (body, protocol, parser) = match greeting {
            Greeting::First(offer) => {
                let body = fetch::fetch_first(USER_AGENT, wish, offer);
                (body, Protocol::First, AnswerParser::first(offer.side_band_64k))
            }
            Greeting::Second(_) => (fetch::fetch(USER_AGENT, wish), Protocol::Second, AnswerParser::second()),
        };
        let answer = call.send(&self.post(body, protocol)?).await?;
        self.judge(&answer)?;
        self.receive(answer, parser, begun).await.map(Some).map_err(|unheard| match unheard {
            Unheard::Sorry(sorry) => sorry,
            Unheard::Bad(BadAnswer::Verbose) => Sorry::new(End::Unsound, BadAnswer::Verbose),
            Unheard::Bad(bad) => Sorry::new(End::Failed, bad),
        })
    }

    fn wish<'w>(&'w self, wants: &'w [String]) -> Wish<'w> {
        Wish { wants, haves: &self.look.haves }
    }

    /// What is sought, and where it may be.
    fn listing(&self) -> Listing {
        let pulls = self.fetch.events.iter().filter(|(_, what)| *what == Sought::Pull);
        let pulls = pulls.take(limits::MAX_ASKED_PULLS).map(|(event, _)| format!("refs/nostr/{event}"));
        let prefixes = ["refs/heads/", "refs/tags/"].map(str::to_owned);
        Listing::new(self.look.missing.iter().cloned(), prefixes.into_iter().chain(pulls))
    }

    fn get(&self) -> Result<Request<Full<Bytes>>, Sorry> {
        let request = Request::get(self.path("info/refs?service=git-upload-pack"))
            .header(header::ACCEPT, ADVERTISEMENT)
            .body(Full::default());
        self.dressed(request, Protocol::Second)
    }

    fn post(&self, body: Vec<u8>, protocol: Protocol) -> Result<Request<Full<Bytes>>, Sorry> {
        let request = Request::post(self.path("git-upload-pack"))
            .header(header::CONTENT_TYPE, REQUEST)
            .header(header::ACCEPT, RESULT)
            .body(Full::from(body));
        self.dressed(request, protocol)
    }

    fn path(&self, below: &str) -> String {
        format!("{}/{below}", self.fetch.target.path().trim_end_matches('/'))
    }

    /// A request with what all of them have.
    fn dressed(
        &self,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
        protocol: Protocol,
    ) -> Result<Request<Full<Bytes>>, Sorry> {
        let mut request = request.map_err(Sorry::ours)?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, HeaderValue::try_from(self.fetch.target.authority()).map_err(Sorry::ours)?);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(WEB_AGENT));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if protocol == Protocol::Second {
            headers.insert("git-protocol", HeaderValue::from_static("version=2"));
        }
        Ok(request)
    }

    /// Whether an answer is one.
    fn judge(&self, answer: &Response<Incoming>) -> Result<(), Sorry> {
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
                    false => Err(Sorry::new(End::Unsound, "the answer is packed although nobody asked for that")),
                };
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => End::Busy(wait()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::GONE => End::Absent,
            StatusCode::REQUEST_TIMEOUT => End::Failed,
            status if status.is_redirection() => {
                // Nobody may send us on; a person may want to know.
                self.room.complaints.tell(&self.fetch.target.to_string(), &format!("the answer is {status}"));
                End::Absent
            }
            // It may understand another question.
            status if status.is_client_error() && self.fetch.form == Form::Oids => End::NotByOid,
            status if status.is_client_error() => End::Absent,
            _ => End::Failed,
        };
        Err(Sorry::new(end, format!("the answer is {status}")))
    }

    /// Reads a list of refs.
    async fn list(
        &self,
        answer: Response<Incoming>,
        begun: Begun<'_>,
        mut feed: impl FnMut(&[u8]) -> Result<(), BadGreeting>,
    ) -> Result<(), Sorry> {
        let too_long = || Sorry::new(End::Unsound, "the list of refs is too long");
        let mut answer = Answer::new(answer.into_body(), self.room.patience);
        let mut left = limits::MAX_HEARD_REFS_BYTES;
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

    /// Takes in a pack.
    async fn receive(
        &self,
        answer: Response<Incoming>,
        mut parser: AnswerParser,
        begun: Begun<'_>,
    ) -> Result<Spooled, Unheard> {
        let larder = &self.room.larder;
        let mut answer = Answer::new(answer.into_body(), self.room.patience);
        let most = self.look.most_bytes;
        if answer.claimed() > most.saturating_add(most / 64).saturating_add(BESIDE) {
            return Err(Unheard::Sorry(Sorry::new(End::Unsound, "the answer is larger than is taken")));
        }
        let mut spool = Spool::new(larder, most).await?;
        while !parser.is_done() {
            let Some(bytes) = answer.next().await? else { break };
            let gathered = spool.gathered();
            let before = gathered.len();
            parser.feed(&bytes, gathered)?;
            let came = (gathered.len() - before) as u64;
            if parser.has_begun() {
                begun();
            }
            answer.keep_pace(came)?;
            spool.write().await?;
        }
        parser.finish()?;
        Ok(spool.finish().await?)
    }
}

/// Why there is no pack: what that means is for who asked.
enum Unheard {
    Sorry(Sorry),
    Bad(BadAnswer),
}

impl From<Sorry> for Unheard {
    fn from(sorry: Sorry) -> Self {
        Self::Sorry(sorry)
    }
}

impl From<BadAnswer> for Unheard {
    fn from(bad: BadAnswer) -> Self {
        Self::Bad(bad)
    }
}

/// What an answer to a request for exact objects means that has no pack.
fn by_oids_end(bad: &BadAnswer, is_result: bool) -> End {
    match bad {
        BadAnswer::Fatal(_) | BadAnswer::Truncated => End::Failed,
        BadAnswer::Verbose => End::Unsound,
        // Our own kind has no other way to say that it cannot.
        BadAnswer::Refused(why) if why == "this took too long" || why == "the server cannot start git" => End::Failed,
        BadAnswer::NotOurRef(_) | BadAnswer::Refused(_) => End::NotByOid,
        // A page for people.
        BadAnswer::Packet(_) | BadAnswer::Line(_) if !is_result => End::Absent,
        BadAnswer::Packet(_) | BadAnswer::Line(_) | BadAnswer::NoPack | BadAnswer::Nothing => End::NotByOid,
    }
}

/// What a list of refs means that is none.
fn no_list(bad: BadGreeting) -> Sorry {
    let end = match bad {
        BadGreeting::Truncated => End::Failed,
        // A page for people, a server that only has files, or one that says no.
        BadGreeting::Packet(_) | BadGreeting::Line(_) | BadGreeting::Refused(_) => End::Absent,
    };
    Sorry::new(end, bad)
}

fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(wanted))
}
