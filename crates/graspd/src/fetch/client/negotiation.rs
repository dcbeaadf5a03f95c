//! What is asked of a git server to get objects, and what its answers mean.

use grasp_core::fetch::io::{FetchOutcome, FetchRequest, RequestForm, WantedKind};
use grasp_core::limits;
use grasp_git::fetch;
use grasp_git::fetch::{AnswerParser, BadAnswer, Greeting, Listing, Wish};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Response, header};

use super::connection::{Answer, Call};
use super::local_objects::Look;
use super::protocol::{BRANCHES_AND_TAGS, Begun, Protocol, RESULT, Speech};
use super::spool::{Spool, Spooled};
use super::{FetchClient, FetchError};
use crate::net::USER_AGENT;

/// Bytes that an answer has beside its pack, at most: what frames it, and progress.
const BESIDE: u64 = 2 * limits::MAX_PROGRESS_BYTES as u64;

/// A conversation.
pub(super) struct Talk<'a> {
    room: &'a FetchClient,
    fetch: &'a FetchRequest,
    look: &'a Look,
    speech: Speech<'a>,
}

impl<'a> Talk<'a> {
    pub(super) fn new(room: &'a FetchClient, fetch: &'a FetchRequest, look: &'a Look) -> Self {
        let speech = Speech { room, target: &fetch.target, form: Some(fetch.form) };
        Self { room, fetch, look, speech }
    }

    /// Asks for what is missing. Nothing comes back from a server that shows no refs at all.
    pub(super) async fn hold(&self, answering: impl FnOnce() + Send) -> Result<Option<Spooled>, FetchError> {
        let mut answering = Some(answering);
        let mut begun = || {
            if let Some(answering) = answering.take() {
                answering();
            }
        };
        let mut call = Call::open(&self.room.dialer, &self.fetch.target, self.room.patience).await?;
        match self.fetch.form {
            RequestForm::ByOid => self.by_oids(&mut call, &mut begun).await.map(Some),
            RequestForm::ByRef => self.by_refs(&mut call, &mut begun).await,
        }
    }

    /// One request for exactly what is missing.
    async fn by_oids(&self, call: &mut Call<'_>, begun: Begun<'_>) -> Result<Spooled, FetchError> {
        let body = fetch::fetch(USER_AGENT, self.wish(&self.look.missing));
        let answer = call.send(&self.speech.post(body, Protocol::Second)?).await?;
        self.speech.judge(&answer)?;
        let is_result = has_type(answer.headers(), RESULT);
        self.receive(answer, AnswerParser::second(), begun).await.map_err(|unheard| match unheard {
            Unheard::FetchError(sorry) => sorry,
            Unheard::Bad(bad) => FetchError::new(by_oids_end(&bad, is_result), bad),
        })
    }

    /// A look at its refs, and a request for those that show what is missing or may lead to it.
    async fn by_refs(&self, call: &mut Call<'_>, begun: Begun<'_>) -> Result<Option<Spooled>, FetchError> {
        let prefixes = self.prefixes();
        let listing = Listing::new(self.look.missing.iter().cloned(), prefixes.iter().cloned());
        let (greeting, listing) = self.speech.refs(call, begun, listing, &prefixes).await?;
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
        let answer = call.send(&self.speech.post(body, protocol)?).await?;
        self.speech.judge(&answer)?;
        self.receive(answer, parser, begun).await.map(Some).map_err(|unheard| match unheard {
            Unheard::FetchError(sorry) => sorry,
            Unheard::Bad(BadAnswer::Verbose) => FetchError::new(FetchOutcome::InvalidData, BadAnswer::Verbose),
            Unheard::Bad(bad) => FetchError::new(FetchOutcome::Failed, bad),
        })
    }

    fn wish<'w>(&'w self, wants: &'w [String]) -> Wish<'w> {
        Wish { wants, haves: &self.look.haves }
    }

    /// What the names of refs begin with that may lead to what is sought.
    fn prefixes(&self) -> Vec<String> {
        let pull_requests = self.fetch.events.iter().filter(|(_, what)| *what == WantedKind::PullRequest);
        let pull_requests =
            pull_requests.take(limits::MAX_REQUESTED_PULL_REQUESTS).map(|(event, _)| format!("refs/nostr/{event}"));
        BRANCHES_AND_TAGS.map(str::to_owned).into_iter().chain(pull_requests).collect()
    }

    /// Takes in a pack.
    async fn receive(
        &self,
        answer: Response<Incoming>,
        mut parser: AnswerParser,
        begun: Begun<'_>,
    ) -> Result<Spooled, Unheard> {
        let larder = self.room.larder();
        let mut answer = Answer::new(answer.into_body(), self.room.patience);
        let most = self.look.most_bytes;
        if answer.claimed() > most.saturating_add(most / 64).saturating_add(BESIDE) {
            return Err(Unheard::FetchError(FetchError::new(
                FetchOutcome::InvalidData,
                "the answer is larger than is taken",
            )));
        }
        let mut spool = Spool::new(&larder, most).await?;
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
    FetchError(FetchError),
    Bad(BadAnswer),
}

impl From<FetchError> for Unheard {
    fn from(sorry: FetchError) -> Self {
        Self::FetchError(sorry)
    }
}

impl From<BadAnswer> for Unheard {
    fn from(bad: BadAnswer) -> Self {
        Self::Bad(bad)
    }
}

/// What an answer to a request for exact objects means that has no pack.
fn by_oids_end(bad: &BadAnswer, is_result: bool) -> FetchOutcome {
    match bad {
        BadAnswer::Fatal(_) | BadAnswer::Truncated => FetchOutcome::Failed,
        BadAnswer::Verbose => FetchOutcome::InvalidData,
        // Our own kind has no other way to say that it cannot.
        BadAnswer::Refused(why) if why == "this took too long" || why == "the server cannot start git" => {
            FetchOutcome::Failed
        }
        BadAnswer::NotOurRef(_) | BadAnswer::Refused(_) => FetchOutcome::NotByOid,
        // A page for people.
        BadAnswer::Packet(_) | BadAnswer::Line(_) if !is_result => FetchOutcome::Absent,
        BadAnswer::Packet(_) | BadAnswer::Line(_) | BadAnswer::NoPack | BadAnswer::Nothing => FetchOutcome::NotByOid,
    }
}

fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(wanted))
}
