//! Log lines of failed fetches, rate-limited: untrusted events name the URLs, and a failing URL fails again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::limits;
use tracing::{debug, warn};

/// Logs the failures of each URL once an hour as a warning, otherwise as debug.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    /// When each URL was logged last. Fetches run in parallel; the lock is held only briefly.
    logged_at: Mutex<HashMap<String, Instant>>,
}

impl FailureLog {
    /// Logs a failure. The text may come from the server and is quoted.
    pub(super) fn log(&self, url: &str, error: &str) {
        if self.is_due(url, Instant::now()) {
            warn!(target: "fetch", url, ?error, "fetch failed");
        } else {
            debug!(target: "fetch", url, ?error, "fetch failed");
        }
    }

    fn is_due(&self, url: &str, now: Instant) -> bool {
        let mut logged_at = self.logged_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old =
            |at: &Instant| now.duration_since(*at) >= Duration::from_secs(limits::FETCH_FAILURE_LOG_INTERVAL_SECS);
        if logged_at.get(url).is_some_and(|at| !is_old(at)) {
            return false;
        }
        if logged_at.len() >= limits::MAX_LOGGED_FAILURE_URLS {
            logged_at.retain(|_, at| !is_old(at));
        }
        if logged_at.len() >= limits::MAX_LOGGED_FAILURE_URLS {
            return false;
        }
        logged_at.insert(url.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_url_is_logged_once_an_hour() {
        let (failure_log, now) = (FailureLog::default(), Instant::now());
        let hour = Duration::from_secs(limits::FETCH_FAILURE_LOG_INTERVAL_SECS);
        assert!(failure_log.is_due("a", now));
        assert!(!failure_log.is_due("a", now + hour - Duration::from_secs(1)));
        assert!(failure_log.is_due("a", now + hour));
        for number in 1..limits::MAX_LOGGED_FAILURE_URLS {
            assert!(failure_log.is_due(&number.to_string(), now + hour));
        }
        assert!(!failure_log.is_due("b", now + hour));
        assert!(failure_log.is_due("b", now + 2 * hour));
        assert_eq!(failure_log.logged_at.lock().expect("not poisoned").len(), 1);
    }
}
