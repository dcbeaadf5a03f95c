//! Where a git server is, and what it says about git in its NIP-11 document.

use std::time::Duration;

use grasp_core::fetch::io::Survey;
use grasp_core::fetch::origin::Origin;
use grasp_core::limits;
use grasp_core::net::{Purpose, Target};
use grasp_core::sync::relay_limits::{GitTerms, Terms};
use tokio::time::timeout;
use tracing::debug;

use crate::net::dialer::{DialProblem, Dialler, Route};
use crate::net::http_client;

/// Looks at a server. It takes a few seconds at most.
pub(super) async fn survey(dialler: &Dialler, origin: &Origin, terms: bool) -> Survey {
    let target = match Target::parse(&format!("{origin}/"), Purpose::Git, dialler.reach()) {
        Ok(target) => target,
        Err(why) => return Survey::Forbidden(why),
    };
    let patience = Duration::from_secs(limits::NIP11_SECS);
    let route = match timeout(patience, dialler.route(target)).await {
        Ok(Ok(route)) => route,
        Ok(Err(DialProblem::Forbidden(why))) => return Survey::Forbidden(why),
        Ok(Err(problem)) => {
            debug!(%origin, %problem, "a git server is nowhere");
            return Survey::Nowhere;
        }
        Err(_) => return Survey::Nowhere,
    };
    let addresses = route.addresses().iter().map(std::net::SocketAddr::ip).collect();
    let terms = match terms {
        true => timeout(patience, stated(dialler, &route)).await.ok().flatten(),
        false => None,
    };
    Survey::Known { addresses, terms }
}

async fn stated(dialler: &Dialler, route: &Route) -> Option<GitTerms> {
    match http_client::get(dialler, route, "application/nostr+json", limits::MAX_TERMS_BYTES).await {
        Ok(document) => Terms::parse(std::str::from_utf8(&document).ok()?).map(|terms| terms.git),
        Err(problem) => {
            debug!(origin = %route.target(), %problem, "no NIP-11 document");
            None
        }
    }
}
