//! Where a git server is, and what it says about git in its NIP-11 document.

use std::time::Duration;

use grasp_core::fetch::io::SurveyResult;
use grasp_core::fetch::origin::Origin;
use grasp_core::limits;
use grasp_core::net::{OutboundUrl, UrlPurpose};
use grasp_core::sync::relay_limits::{GitFetchLimits, Nip11Info};
use tokio::time::timeout;
use tracing::debug;

use crate::net::dialer::{DialError, Dialer, Route};
use crate::net::http_client;

/// Looks at a server. It takes a few seconds at most.
pub(super) async fn survey(dialer: &Dialer, origin: &Origin, terms: bool) -> SurveyResult {
    let target = match OutboundUrl::parse(&format!("{origin}/"), UrlPurpose::Git, dialer.reach()) {
        Ok(target) => target,
        Err(why) => return SurveyResult::Forbidden(why),
    };
    let patience = Duration::from_secs(limits::NIP11_TIMEOUT_SECS);
    let route = match timeout(patience, dialer.route(target)).await {
        Ok(Ok(route)) => route,
        Ok(Err(DialError::Forbidden(why))) => return SurveyResult::Forbidden(why),
        Ok(Err(problem)) => {
            debug!(%origin, %problem, "a git server is nowhere");
            return SurveyResult::NoAddress;
        }
        Err(_) => return SurveyResult::NoAddress,
    };
    let addresses = route.addresses().iter().map(std::net::SocketAddr::ip).collect();
    let terms = match terms {
        true => timeout(patience, stated(dialer, &route)).await.ok().flatten(),
        false => None,
    };
    SurveyResult::Resolved { addresses, stated_limits: terms }
}

async fn stated(dialer: &Dialer, route: &Route) -> Option<GitFetchLimits> {
    match http_client::get(dialer, route, "application/nostr+json", limits::MAX_NIP11_BYTES).await {
        Ok(document) => Nip11Info::parse(std::str::from_utf8(&document).ok()?).map(|terms| terms.git),
        Err(problem) => {
            debug!(origin = %route.target(), %problem, "no NIP-11 document");
            None
        }
    }
}
