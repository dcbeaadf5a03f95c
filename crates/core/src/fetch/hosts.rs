//! All hosts that anybody names, and some that were of use before.

use std::collections::{BTreeMap, BTreeSet};

use super::fault_injection::Flaw;
use super::io::{HostRow, Output};
use super::throttle::Domain;
use super::{HostId, Hunter};
use crate::limits;
use crate::time::Moment;

/// The hosts, by number and by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts {
    all: BTreeMap<HostId, Domain>,
    names: BTreeMap<String, HostId>,
    /// Those that nobody names, the longest unused first.
    idle: BTreeSet<(Moment, HostId)>,
}

impl Hosts {
    pub(super) fn get(&self, id: HostId) -> Option<&Domain> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: HostId) -> Option<&mut Domain> {
        self.all.get_mut(&id)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Domain> {
        self.all.values()
    }
}

impl Hunter {
    /// What an earlier life knew of a host.
    pub(super) fn restore(&mut self, row: &HostRow) {
        let name = row.authority.rsplit_once(':').map_or(row.authority.as_str(), |(host, port)| {
            if port.bytes().all(|byte| byte.is_ascii_digit()) { host } else { row.authority.as_str() }
        });
        let id = self.host(&row.authority, name);
        let (now, forgotten) = (self.now, self.has(Flaw::WindowForgotten));
        let Some(host) = self.hosts.all.get_mut(&id) else { return };
        host.restore(now, row);
        if forgotten {
            host.window = Default::default();
        }
        self.networks.restore(id, &host.window);
        let at = host.used_at;
        self.hosts.idle.insert((at, id));
        self.evict();
    }

    /// The host of this authority, whose name without the port is `name`.
    pub(super) fn host(&mut self, authority: &str, name: &str) -> HostId {
        if let Some(id) = self.hosts.names.get(authority) {
            return *id;
        }
        let id = HostId(self.number());
        let chosen = self.manners.overrides.get(name).copied();
        let domain = Domain::new(authority.to_owned(), chosen.unwrap_or(self.manners.usual), chosen.is_some());
        self.hosts.names.insert(authority.to_owned(), id);
        self.hosts.all.insert(id, domain);
        id
    }

    /// Somebody has a place there.
    pub(super) fn hold_host(&mut self, id: HostId) {
        if let Some(host) = self.hosts.all.get_mut(&id) {
            host.stops += 1;
            self.hosts.idle.remove(&(host.used_at, id));
        }
    }

    /// Somebody has no place there any more.
    pub(super) fn drop_host(&mut self, id: HostId) {
        let Some(host) = self.hosts.all.get_mut(&id) else { return };
        host.stops = host.stops.saturating_sub(1);
        self.rest_host(id);
    }

    /// Nobody may need a host any more.
    pub(super) fn rest_host(&mut self, id: HostId) {
        let Some(host) = self.hosts.all.get_mut(&id) else { return };
        if host.stops == 0 && host.in_flight == 0 {
            self.hosts.idle.insert((host.used_at, id));
            self.evict();
        }
    }

    /// Forgets hosts that nobody names, the longest unused first, when there are too many of them.
    fn evict(&mut self) {
        while self.hosts.idle.len() > limits::HUNT_HOSTS {
            let crowded = self.hosts.idle.len() > 2 * limits::HUNT_HOSTS;
            let Some((at, id)) = self.hosts.idle.first().copied() else { return };
            let idle = self.hosts.get(id).is_none_or(|host| host.is_idle(self.now.mono));
            if !idle && !crowded {
                return;
            }
            self.hosts.idle.remove(&(at, id));
            let Some(host) = self.hosts.all.remove(&id) else { continue };
            self.hosts.names.remove(&host.authority);
            self.ring(super::Timer::Host(id), host.alarm, None);
            if let Some(tick) = host.eager {
                self.eager.remove(&(tick, id));
            }
            if host.has_row {
                self.out.push_back(Output::Forget(host.authority));
            }
        }
    }
}
