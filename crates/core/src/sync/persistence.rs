//! What is written down of relays, what comes back of it, and what the operator wants of them.

use std::collections::{BTreeMap, BTreeSet};

use super::fault_injection::Flaw;
use super::io::{NewRules, Order, Output, Restored, Row, RowKey};
use super::relay::Link;
use super::relay_record::Peer;
use super::relay_url::RelayUrl;
use super::{Syncer, health, relay_record};
use crate::limits;
use crate::time::Now;

impl Syncer {
    pub(super) fn restore(&mut self, restored: Restored) {
        match restored {
            Restored::Peer(peer) => drop(self.rows.insert(peer.url.place().to_owned(), *peer)),
            Restored::Refused(row) => self.refused.restore(row, self.now),
        }
    }

    /// There are other rules. If they are wider, nothing that was had under the old ones is all that there is now.
    pub(super) fn new_rules(&mut self, rules: NewRules) {
        let NewRules { epoch, bootstrap, wider } = rules;
        let now = self.now;
        self.config.epoch = epoch;
        self.config.bootstrap = bootstrap;
        if wider {
            self.refused.clear_ruled();
        }
        let wanted: BTreeSet<&str> = self.config.bootstrap.iter().map(RelayUrl::place).collect();
        let mut others = Vec::new();
        for (id, link) in &mut self.links {
            link.unsaved = true;
            if wider {
                // Until it has been asked in full again, its row says that nothing of it is had.
                link.announced = false;
                link.restored = None;
                link.next_full = now.mono;
                if link.up().is_none() {
                    link.heard = None;
                }
                self.restless.insert(*id);
            }
            let bootstrap = wanted.contains(link.url.place());
            if bootstrap != link.bootstrap {
                link.bootstrap = bootstrap;
                others.push(link.url.place().to_owned());
            }
        }
        if self.ready {
            for url in self.config.bootstrap.clone() {
                self.link_to(&url, true);
            }
        }
        for place in others {
            self.relink(&place);
        }
        self.save_at = Some(now.mono);
    }

    /// At the beginning: the last process may have had other rules, and what they refused may be wanted now.
    pub(super) fn forget_what_old_rules_refused(&mut self) {
        let covered = self.rows.values().filter_map(|peer| peer.covered);
        let last = covered.max_by_key(|covered| covered.lost_at);
        if last.is_none_or(|covered| covered.epoch != self.config.epoch) {
            self.refused.clear_ruled();
        }
    }

    /// Writes down what has changed of relays.
    pub(super) fn save(&mut self) {
        self.save_at = None;
        let now = self.now;
        let epoch = self.config.epoch;
        // A relay that was merely heard has a newer time in its row, so that a crash costs a quick reconnect.
        let heard = |link: &Link| {
            link.up().is_some()
                && link.heard.map(|heard| heard.mono) > link.saved.map(|at| at.plus_secs(limits::SYNC_HEARD_SECS))
        };
        let forgetful = self.flawed(Flaw::FlightForgotten);
        let unjudged = if forgetful { BTreeMap::new() } else { self.flights.unjudged() };
        for link in self.links.values_mut().filter(|link| link.unsaved || heard(link)) {
            link.unsaved = false;
            link.saved = Some(now.mono);
            link.count_time(now);
            let peer = link.row(now, epoch, &self.wants, unjudged.get(&link.id).copied());
            self.out.push_back(Output::Remember(Row::Peer(Box::new(peer))));
        }
    }

    /// Wants everything written down that is known of relays: the process is about to end.
    pub fn save_all(&mut self, now: Now) {
        self.now = now;
        for link in self.links.values_mut() {
            link.unsaved = true;
        }
        self.save();
    }

    pub(super) fn order(&mut self, order: &Order) {
        let url = match order {
            Order::Retry(url) | Order::Pause(url) | Order::Resume(url) | Order::Forget(url) | Order::Reconcile(url) => {
                url
            }
        };
        let now = self.now;
        let Some(id) = self.places.get(url.place()).copied() else { return self.order_row(order, url) };
        let Some(link) = self.links.get_mut(&id) else { return };
        match order {
            Order::Retry(_) => {
                link.health.unpark();
                link.health.retry_now(now);
            }
            Order::Pause(_) => link.paused = true,
            Order::Resume(_) => link.paused = false,
            Order::Forget(_) => {
                link.learned = relay_record::Learned::default();
                link.totals = relay_record::Totals::default();
                link.health = health::Health::new(self.config.backoff, &relay_record::HealthRow::default(), now);
                link.announced = false;
                link.restored = None;
                link.is_self = false;
            }
            Order::Reconcile(_) => link.next_full = now.mono,
        }
        link.unsaved = true;
        if let Order::Pause(_) | Order::Forget(_) = order {
            self.hang_up(id);
        }
        self.restless.insert(id);
        // Whoever gave it is told when it is on disk.
        self.save();
    }

    /// The operator wants something of a relay that nobody wants now: it counts when somebody does again.
    pub(super) fn order_row(&mut self, order: &Order, url: &RelayUrl) {
        match order {
            Order::Pause(_) | Order::Resume(_) => {
                let new = || Peer { url: url.clone(), wanted_at: self.now.wall, ..Peer::default() };
                let row = self.rows.entry(url.place().to_owned()).or_insert_with(new);
                row.paused = matches!(order, Order::Pause(_));
                self.out.push_back(Output::Remember(Row::Peer(Box::new(row.clone()))));
            }
            Order::Forget(_) => {
                if let Some(row) = self.rows.remove(url.place()) {
                    self.out.push_back(Output::Forget(RowKey::Peer(row.url)));
                }
            }
            Order::Retry(_) | Order::Reconcile(_) => {}
        }
    }
}
