//! Request for objects from a git server, and the meaning of its responses.

use std::collections::BTreeSet;

use grasp_core::fetch::io::{FetchOutcome, FetchRequest, RequestForm, WantedKind};
use grasp_core::limits;
use grasp_git::fetch;
use grasp_git::fetch::{FetchResponseError, FetchResponseParser, FetchWants, RefAdvertisement, WantSelector};
use grasp_git::receive::PackLimits;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Response, header};

use super::connection::{PackBody, ServerConnection};
use super::local_objects::ObjectAvailability;
use super::protocol::{BRANCHES_AND_TAGS, GitProtocol, OnFirstBytes, Protocol, RESULT_TYPE};
use super::{FetchClient, FetchError};
use crate::git::pack_receiver::{SpoolError, SpooledPack};
use crate::http::network_limits::ClientNetwork;
use crate::net::USER_AGENT;

/// Largest size of a response without its pack: framing and progress messages.
const MAX_FRAMING_BYTES: u64 = 2 * limits::MAX_PROGRESS_BYTES as u64;

/// A received pack that is not checked yet.
pub(super) struct FetchedPack {
    pub(super) spooled: SpooledPack,
    /// Network of the server that sent it. `None` for a server on this machine.
    pub(super) server: Option<ClientNetwork>,
}

/// A request for the missing objects of one fetch.
pub(super) struct PackRequest<'a> {
    client: &'a FetchClient,
    fetch: &'a FetchRequest,
    availability: &'a ObjectAvailability,
    protocol_client: GitProtocol<'a>,
}

impl<'a> PackRequest<'a> {
    pub(super) fn new(client: &'a FetchClient, fetch: &'a FetchRequest, availability: &'a ObjectAvailability) -> Self {
        let protocol_client = GitProtocol { client, target: &fetch.target, form: Some(fetch.form) };
        Self { client, fetch, availability, protocol_client }
    }

    /// Requests the missing objects. Returns `None` if the server has no refs that may lead to them.
    pub(super) async fn run(&self, on_first_bytes: impl FnOnce() + Send) -> Result<Option<FetchedPack>, FetchError> {
        let mut callback = Some(on_first_bytes);
        let mut on_first_bytes = || {
            if let Some(callback) = callback.take() {
                callback();
            }
        };
        let mut connection =
            ServerConnection::open(&self.client.dialer, &self.fetch.target, self.client.timeouts).await?;
        let server = connection.network();
        let spooled = match self.fetch.form {
            RequestForm::ByOid => Some(self.by_oids(&mut connection, &mut on_first_bytes).await?),
            RequestForm::ByRef => self.by_refs(&mut connection, &mut on_first_bytes).await?,
        };
        Ok(spooled.map(|spooled| FetchedPack { spooled, server }))
    }

    /// Requests exactly the missing objects, in one request.
    async fn by_oids(
        &self,
        connection: &mut ServerConnection<'_>,
        on_first_bytes: OnFirstBytes<'_>,
    ) -> Result<SpooledPack, FetchError> {
        let body = fetch::fetch_v2(USER_AGENT, self.pack_wants(&self.availability.missing));
        let response = connection.send(&self.protocol_client.upload_pack_request(body, Protocol::V2)?).await?;
        self.protocol_client.check_status(&response)?;
        let is_result = has_type(response.headers(), RESULT_TYPE);
        self.receive(response, FetchResponseParser::v2(), on_first_bytes).await.map_err(|error| match error {
            ReceiveError::Fetch(error) => error,
            ReceiveError::Response(bad) => FetchError::new(by_oid_outcome(&bad, is_result), bad),
        })
    }

    /// Lists the server's refs, then requests those that point to missing objects or may have them in their history.
    async fn by_refs(
        &self,
        connection: &mut ServerConnection<'_>,
        on_first_bytes: OnFirstBytes<'_>,
    ) -> Result<Option<SpooledPack>, FetchError> {
        let prefixes = self.prefixes();
        let selector = WantSelector::new(self.availability.missing.iter().cloned(), prefixes.iter().cloned());
        let (advertisement, selector) =
            self.protocol_client.refs(connection, on_first_bytes, selector, &prefixes).await?;
        // Refs whose objects are here lead to nothing that is missing.
        let known: BTreeSet<&String> = self.availability.known.iter().collect();
        let mut wants = selector.wants();
        wants.retain(|oid| !known.contains(oid));
        if wants.is_empty() {
            return Ok(None);
        }
        let request = self.pack_wants(&wants);
        let (body, protocol, parser) = match advertisement {
            RefAdvertisement::V0(features) => {
                let body = fetch::fetch_v0(USER_AGENT, request, features);
                (body, Protocol::V0, FetchResponseParser::v0(features.side_band_64k))
            }
            RefAdvertisement::V2(_) => (fetch::fetch_v2(USER_AGENT, request), Protocol::V2, FetchResponseParser::v2()),
        };
        let response = connection.send(&self.protocol_client.upload_pack_request(body, protocol)?).await?;
        self.protocol_client.check_status(&response)?;
        self.receive(response, parser, on_first_bytes).await.map(Some).map_err(|error| match error {
            ReceiveError::Fetch(error) => error,
            ReceiveError::Response(FetchResponseError::TooVerbose) => {
                FetchError::new(FetchOutcome::InvalidData, FetchResponseError::TooVerbose)
            }
            ReceiveError::Response(bad) => FetchError::new(FetchOutcome::Failed, bad),
        })
    }

    fn pack_wants<'w>(&'w self, wants: &'w [String]) -> FetchWants<'w> {
        FetchWants { wants, haves: &self.availability.haves }
    }

    /// Returns prefixes of the refs that may lead to the wanted objects.
    fn prefixes(&self) -> Vec<String> {
        let pull_requests = self.fetch.events.iter().filter(|(_, kind)| *kind == WantedKind::PullRequest);
        let pull_requests =
            pull_requests.take(limits::MAX_REQUESTED_PULL_REQUESTS).map(|(event, _)| format!("refs/nostr/{event}"));
        BRANCHES_AND_TAGS.map(str::to_owned).into_iter().chain(pull_requests).collect()
    }

    /// Receives a pack.
    async fn receive(
        &self,
        response: Response<Incoming>,
        mut parser: FetchResponseParser,
        on_first_bytes: OnFirstBytes<'_>,
    ) -> Result<SpooledPack, ReceiveError> {
        let mut body = PackBody::new(response.into_body(), self.client.timeouts);
        let max_bytes = self.availability.max_bytes;
        if body.announced_bytes() > max_bytes.saturating_add(max_bytes / 64).saturating_add(MAX_FRAMING_BYTES) {
            return Err(ReceiveError::Fetch(FetchError::new(
                FetchOutcome::InvalidData,
                "the announced response size exceeds the limit",
            )));
        }
        let limits = PackLimits { max_bytes, ..(self.client.limits)() };
        let mut spool = self.client.packs.start(limits).await?;
        while !parser.is_done() {
            let Some(bytes) = body.next().await? else { break };
            let buffer = spool.buffer();
            let before = buffer.len();
            parser.feed(&bytes, buffer)?;
            let received = (buffer.len() - before) as u64;
            if parser.has_begun() {
                on_first_bytes();
            }
            body.check_rate(received)?;
            spool.flush_if_full().await?;
        }
        parser.finish()?;
        Ok(spool.finish().await?)
    }
}

/// Failure to receive a pack. The caller decides what it means.
enum ReceiveError {
    Fetch(FetchError),
    Response(FetchResponseError),
}

impl From<FetchError> for ReceiveError {
    fn from(error: FetchError) -> Self {
        Self::Fetch(error)
    }
}

impl From<SpoolError> for ReceiveError {
    fn from(error: SpoolError) -> Self {
        Self::Fetch(error.into())
    }
}

impl From<FetchResponseError> for ReceiveError {
    fn from(bad: FetchResponseError) -> Self {
        Self::Response(bad)
    }
}

/// Returns the outcome of a request for object ids whose response has no pack.
fn by_oid_outcome(bad: &FetchResponseError, is_result: bool) -> FetchOutcome {
    match bad {
        FetchResponseError::Fatal(_) | FetchResponseError::Truncated => FetchOutcome::Failed,
        FetchResponseError::TooVerbose => FetchOutcome::InvalidData,
        // graspd reports its own temporary failures by these texts.
        FetchResponseError::Rejected(reason)
            if reason == "this took too long" || reason == "the server cannot start git" =>
        {
            FetchOutcome::Failed
        }
        FetchResponseError::NotOurRef(_) | FetchResponseError::Rejected(_) => FetchOutcome::NotByOid,
        // An HTML page.
        FetchResponseError::Packet(_) | FetchResponseError::UnexpectedLine(_) if !is_result => FetchOutcome::Absent,
        FetchResponseError::Packet(_)
        | FetchResponseError::UnexpectedLine(_)
        | FetchResponseError::NoPack
        | FetchResponseError::Empty => FetchOutcome::NotByOid,
    }
}

fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(wanted))
}
