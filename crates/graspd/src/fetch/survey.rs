//! Survey of a git server: its addresses, and the limits that its NIP-11 document states.

use std::time::Duration;

use grasp_core::fetch::io::SurveyResult;
use grasp_core::fetch::origin::Origin;
use grasp_core::limits;
use grasp_core::net::{OutboundUrl, UrlPurpose};
use grasp_core::nostr::nip11::{GitFetchLimits, Nip11Info};
use tokio::time::timeout;
use tracing::debug;

use crate::net::dialer::{DialError, Dialer, Route};
use crate::net::http_client;

/// Surveys a server. Takes a few seconds at most.
pub(super) async fn survey(dialer: &Dialer, origin: &Origin, with_nip11: bool) -> SurveyResult {
    let target = match OutboundUrl::parse(&format!("{origin}/"), UrlPurpose::Git, dialer.reach()) {
        Ok(target) => target,
        Err(reason) => return SurveyResult::Forbidden(reason),
    };
    let time_limit = Duration::from_secs(limits::NIP11_TIMEOUT_SECS);
    let route = match timeout(time_limit, dialer.route(target)).await {
        Ok(Ok(route)) => route,
        Ok(Err(DialError::Forbidden(reason))) => return SurveyResult::Forbidden(reason),
        Ok(Err(error)) => {
            debug!(target: "fetch", %origin, %error, "cannot resolve git server");
            return SurveyResult::NoAddress;
        }
        Err(_) => return SurveyResult::NoAddress,
    };
    let addresses = route.addresses().iter().map(std::net::SocketAddr::ip).collect();
    let stated_limits = match with_nip11 {
        true => timeout(time_limit, fetch_stated_limits(dialer, &route)).await.ok().flatten(),
        false => None,
    };
    SurveyResult::Resolved { addresses, stated_limits }
}

async fn fetch_stated_limits(dialer: &Dialer, route: &Route) -> Option<GitFetchLimits> {
    match http_client::get(dialer, route, "application/nostr+json", limits::MAX_NIP11_BYTES).await {
        Ok(document) => Nip11Info::parse(std::str::from_utf8(&document).ok()?).map(|info| info.git),
        Err(error) => {
            debug!(target: "fetch", origin = %route.target(), %error, "git server has no NIP-11 document");
            None
        }
    }
}
