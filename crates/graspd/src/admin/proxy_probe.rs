//! What the operator's `graspd check` sends through the front, as it arrives here: from whom, and with which words about
//! whom. Nothing is noted unless a check has asked for it through the admin socket, and only what shows its token.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grasp_core::time::Moment;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, StatusCode, header};
use serde_json::{Value, json};

use crate::http::body::Answer;
use crate::http::router::with_type;

/// The header that shows the token.
pub(crate) const HEADER: &str = "x-graspd-check";

/// How long a check may take: it has a deadline for each of its questions.
const WATCH_SECS: u64 = 300;

/// Requests of one check that are noted: it sends four.
const MOST: usize = 16;

/// Bytes of a check's body: it sends half of that.
const MAX_BODY: u64 = 16 << 20;

/// How long such a body may take.
const BODY_PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a token, and of a header that is noted.
const MAX_TEXT: usize = 256;

/// What was seen of the check that runs, if one does. The lock is held for a look.
#[derive(Default)]
pub(crate) struct Sightings {
    watch: Mutex<Option<Watch>>,
}

struct Watch {
    token: String,
    until: Moment,
    seen: Vec<Value>,
}

impl Sightings {
    /// Begins to look for requests with a token; whatever was looked for before is forgotten.
    pub(crate) fn begin(&self, token: &str, now: Moment) {
        let token = token.chars().take(MAX_TEXT).collect();
        *self.lock() = Some(Watch { token, until: now.plus_secs(WATCH_SECS), seen: Vec::new() });
    }

    /// What was seen with a token.
    pub(crate) fn seen(&self, token: &str) -> Vec<Value> {
        self.lock().as_ref().filter(|watch| watch.token == token).map(|watch| watch.seen.clone()).unwrap_or_default()
    }

    /// Whether a request is a check's; then it is noted. `client` is whom it is taken to come from.
    pub(crate) fn note(
        &self,
        request: &Request<Incoming>,
        peer: IpAddr,
        client: impl FnOnce() -> Client,
        now: Moment,
    ) -> bool {
        let Some(shown) = text(request.headers(), HEADER) else { return false };
        let mut watch = self.lock();
        let Some(watch) = watch.as_mut().filter(|watch| watch.token == shown && now < watch.until) else {
            return false;
        };
        if watch.seen.len() < MOST {
            let Client { address, is_proxy } = client();
            let headers = request.headers();
            watch.seen.push(json!({
                "method": request.method().as_str(),
                "peer": peer.to_canonical().to_string(),
                "peer_is_trusted": is_proxy,
                "client": address.to_canonical().to_string(),
                "host": text(headers, header::HOST.as_str()),
                "forwarded_for": text(headers, "x-forwarded-for"),
                "upgrade": text(headers, header::UPGRADE.as_str()),
            }));
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<Watch>> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whom a request is taken to come from.
pub(crate) struct Client {
    pub(crate) address: IpAddr,
    /// Whether the peer is a proxy that is believed.
    pub(crate) is_proxy: bool,
}

/// The values of a header, as one short text.
fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    (!values.is_empty()).then(|| values.join(", ").chars().take(MAX_TEXT).collect())
}

/// Whether a check's request brings a body that is to be counted.
pub(crate) fn brings_a_body(method: &Method) -> bool {
    *method == Method::POST
}

/// Reads a check's body to its end and says how long it was.
pub(crate) async fn count(request: Request<Incoming>) -> Answer {
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
    let bytes = tokio::time::timeout(BODY_PATIENCE, counting).await.ok();
    with_type(StatusCode::OK, "application/json", json!({ "graspd_check": { "bytes": bytes } }).to_string())
}
