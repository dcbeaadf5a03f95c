//! Failures of git servers, for people. Events of strangers name the URLs, and what fails fails again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::limits;
use tracing::{debug, warn};

/// Tells the failures of each URL once an hour.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// When each URL was last told of. Fetches run side by side, so a lock guards the book, for an instant.
    told: Mutex<HashMap<String, Instant>>,
}

impl Complaints {
    /// Tells of a failure. The text may be a stranger's.
    pub(super) fn tell(&self, url: &str, error: &str) {
        if self.is_news(url, Instant::now()) {
            warn!(url, ?error, "Failed to fetch OIDs");
        } else {
            debug!(url, ?error, "Failed to fetch OIDs");
        }
    }

    fn is_news(&self, url: &str, now: Instant) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old =
            |at: &Instant| now.duration_since(*at) >= Duration::from_secs(limits::FETCH_FAILURE_LOG_INTERVAL_SECS);
        if told.get(url).is_some_and(|at| !is_old(at)) {
            return false;
        }
        if told.len() >= limits::MAX_LOGGED_FAILURE_URLS {
            told.retain(|_, at| !is_old(at));
        }
        if told.len() >= limits::MAX_LOGGED_FAILURE_URLS {
            return false;
        }
        told.insert(url.to_owned(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_url_is_told_of_once_an_hour_and_not_too_many_are() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        let hour = Duration::from_secs(limits::FETCH_FAILURE_LOG_INTERVAL_SECS);
        assert!(complaints.is_news("a", now));
        assert!(!complaints.is_news("a", now + hour - Duration::from_secs(1)));
        assert!(complaints.is_news("a", now + hour));
        for number in 1..limits::MAX_LOGGED_FAILURE_URLS {
            assert!(complaints.is_news(&number.to_string(), now + hour));
        }
        assert!(!complaints.is_news("b", now + hour));
        assert!(complaints.is_news("b", now + 2 * hour));
        assert_eq!(complaints.told.lock().expect("not poisoned").len(), 1);
    }
}
