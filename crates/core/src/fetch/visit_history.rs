//! What is remembered of quarries that are over: coming back does not start afresh.

use std::collections::{BTreeMap, BTreeSet};

use super::job::Chase;
use super::source::Visit;
use crate::limits;
use crate::repo::Site;
use crate::time::Moment;

#[derive(Clone, Debug)]
struct Grave {
    until: Moment,
    visits: BTreeMap<String, Visit>,
    shunned: BTreeSet<String>,
}

/// The visits of quarries that are over.
#[derive(Clone, Debug, Default)]
pub(super) struct Graves {
    graves: BTreeMap<Site, Grave>,
    ends: BTreeSet<(Moment, Site)>,
}

impl Graves {
    /// A quarry is over.
    pub(super) fn bury(&mut self, now: Moment, chase: Chase) {
        let places = chase.stops.into_values().map(|stop| (stop.url, stop.visit)).chain(chase.visits);
        let mut visits: Vec<(String, Visit)> =
            places.filter(|(_, visit)| visit.keep_until().is_some_and(|until| until > now)).collect();
        let until = visits.iter().filter_map(|(_, visit)| visit.keep_until()).max();
        let shunned = (!chase.shunned.is_empty()).then(|| now.plus_secs(limits::HUNT_UNSOUND_SECS));
        let Some(until) = until.max(shunned).filter(|until| *until > now) else { return };
        while self.ends.first().is_some_and(|(end, _)| *end <= now) || self.ends.len() >= limits::HUNT_GRAVES {
            if let Some((_, site)) = self.ends.pop_first() {
                self.graves.remove(&site);
            }
        }
        visits.sort_by_key(|(_, visit)| std::cmp::Reverse(visit.asked_at().max(visit.unsound_until)));
        visits.truncate(limits::HUNT_GRAVE_STOPS);
        let shunned = chase.shunned.into_iter().take(limits::HUNT_GRAVE_STOPS).collect();
        self.ends.insert((until, chase.site.clone()));
        self.graves.insert(chase.site, Grave { until, visits: visits.into_iter().collect(), shunned });
    }

    /// It comes back.
    pub(super) fn raise(&mut self, site: &Site) -> (BTreeMap<String, Visit>, BTreeSet<String>) {
        let Some(grave) = self.graves.remove(site) else { return Default::default() };
        self.ends.remove(&(grave.until, site.clone()));
        (grave.visits, grave.shunned)
    }
}
