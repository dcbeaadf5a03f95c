//! Memory that the clients of the relay share. One network has at most a part of each budget.

use std::sync::Arc;

use grasp_core::limits;

use crate::http::shared_budget::SharedBudget;

/// The memory budgets of the relay. Clones share them.
#[derive(Clone)]
pub(crate) struct RelayBudgets {
    /// Filters of open subscriptions, for live events.
    pub(crate) live_filters: Arc<SharedBudget>,
    /// Filters of counts and of subscriptions that get stored events only.
    pub(crate) query_filters: Arc<SharedBudget>,
    /// Item sets of reconciliations.
    pub(crate) negentropy: Arc<SharedBudget>,
    /// Messages that have not been received completely.
    pub(crate) incomplete_messages: Arc<SharedBudget>,
}

impl RelayBudgets {
    pub(crate) fn new() -> Self {
        Self {
            live_filters: SharedBudget::new(limits::MAX_TOTAL_FILTER_BYTES, limits::MAX_FILTER_BYTES_PER_NETWORK),
            query_filters: SharedBudget::new(
                limits::MAX_TOTAL_QUERY_FILTER_BYTES,
                limits::MAX_QUERY_FILTER_BYTES_PER_NETWORK,
            ),
            negentropy: SharedBudget::new(limits::MAX_NEGENTROPY_BYTES, limits::MAX_NEGENTROPY_BYTES_PER_NETWORK),
            incomplete_messages: SharedBudget::new(
                limits::MAX_INCOMPLETE_MESSAGE_BYTES,
                limits::MAX_INCOMPLETE_MESSAGE_BYTES_PER_NETWORK,
            ),
        }
    }
}
