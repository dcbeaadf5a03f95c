//! Records how the requests of `graspd check` arrive through the reverse proxy: peer address, client address, headers.
//!
//! Requests are recorded only after a check has registered a token through the admin socket, and only if they contain
//! it.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grasp_core::time::MonoTime;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, StatusCode, header};
use serde_json::json;

use super::api::ProbedRequest;
use crate::http::body::HttpResponse;
use crate::http::response::with_type;

/// Header that contains the token.
pub(crate) const HEADER: &str = "x-graspd-check";

/// Seconds for which a token is valid. Each request of a check has its own timeout.
const PROBE_SECS: u64 = 300;

/// Maximum number of recorded requests of one check; a check sends four.
const MAX_REQUESTS: usize = 16;

/// Maximum number of counted bytes of a body; a check sends half of that.
const MAX_BODY: u64 = 16 << 20;

/// Timeout for reading a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum length of a token and of a recorded header.
const MAX_TEXT: usize = 256;

/// The running check and its recorded requests. The lock is never held across an await.
#[derive(Default)]
pub(crate) struct ProxyProbe {
    active: Mutex<Option<ActiveProbe>>,
}

struct ActiveProbe {
    token: String,
    until: MonoTime,
    requests: Vec<ProbedRequest>,
}

impl ProxyProbe {
    /// Starts to record requests with a token. An earlier check is discarded.
    pub(crate) fn start(&self, token: &str, now: MonoTime) {
        let token = token.chars().take(MAX_TEXT).collect();
        *self.lock() = Some(ActiveProbe { token, until: now.plus_secs(PROBE_SECS), requests: Vec::new() });
    }

    /// Returns the recorded requests with a token.
    pub(crate) fn requests(&self, token: &str) -> Vec<ProbedRequest> {
        self.lock()
            .as_ref()
            .filter(|active| active.token == token)
            .map(|active| active.requests.clone())
            .unwrap_or_default()
    }

    /// Records a request if it belongs to the check, and returns whether it does. `client` returns the client address
    /// that the server derives from the request.
    pub(crate) fn record(
        &self,
        request: &Request<Incoming>,
        peer: IpAddr,
        client: impl FnOnce() -> ProbedClient,
        now: MonoTime,
    ) -> bool {
        let Some(shown) = header_text(request.headers(), HEADER) else { return false };
        let mut active = self.lock();
        let Some(active) = active.as_mut().filter(|active| active.token == shown && now < active.until) else {
            return false;
        };
        if active.requests.len() < MAX_REQUESTS {
            let ProbedClient { address, is_proxy } = client();
            let headers = request.headers();
            active.requests.push(ProbedRequest {
                method: request.method().to_string(),
                peer: peer.to_canonical().to_string(),
                peer_is_trusted: is_proxy,
                client: address.to_canonical().to_string(),
                host: header_text(headers, header::HOST.as_str()),
                forwarded_for: header_text(headers, "x-forwarded-for"),
                upgrade: header_text(headers, header::UPGRADE.as_str()),
            });
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<ActiveProbe>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Address that a request is attributed to.
pub(crate) struct ProbedClient {
    pub(crate) address: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub(crate) is_proxy: bool,
}

/// Joins the values of a header into one text of limited length.
fn header_text(headers: &HeaderMap, name: &str) -> Option<String> {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    (!values.is_empty()).then(|| values.join(", ").chars().take(MAX_TEXT).collect())
}

/// Reads a body to its end and responds with its length.
pub(crate) async fn count_body(request: Request<Incoming>) -> HttpResponse {
    let mut body = request.into_body();
    let counting = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            if bytes > MAX_BODY {
                break;
            }
        }
        bytes
    };
    let bytes = tokio::time::timeout(BODY_TIMEOUT, counting).await.ok();
    with_type(StatusCode::OK, "application/json", json!({ "graspd_check": { "bytes": bytes } }).to_string())
}
