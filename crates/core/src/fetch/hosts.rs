//! The table of hosts: those that sources or mirrors use, and a bounded number of idle ones.

use std::collections::{BTreeMap, BTreeSet};

use super::io::{FetchOutput, HostRow};
use super::throttle::DomainThrottle;
use super::{FetchMachine, HostId};
use crate::limits;
use crate::time::MonoTime;

/// Hosts by id and by authority.
#[derive(Clone, Debug, Default)]
pub(super) struct HostTable {
    all: BTreeMap<HostId, DomainThrottle>,
    names: BTreeMap<String, HostId>,
    /// Hosts that no source or mirror uses, the longest unused first.
    idle: BTreeSet<(MonoTime, HostId)>,
}

impl HostTable {
    pub(super) fn get(&self, id: HostId) -> Option<&DomainThrottle> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: HostId) -> Option<&mut DomainThrottle> {
        self.all.get_mut(&id)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &DomainThrottle> {
        self.all.values()
    }
}

impl FetchMachine {
    /// Restores a host from its stored row.
    pub(super) fn restore_host(&mut self, row: &HostRow) {
        let name = row.authority.rsplit_once(':').map_or(row.authority.as_str(), |(host, port)| {
            if port.bytes().all(|byte| byte.is_ascii_digit()) { host } else { row.authority.as_str() }
        });
        let id = self.host(&row.authority, name);
        let now = self.now;
        let Some(host) = self.hosts.all.get_mut(&id) else { return };
        host.restore(now, row);
        self.networks.restore(id, &host.window);
        let at = host.used_at;
        self.hosts.idle.insert((at, id));
        self.evict();
    }

    /// Returns the host with this authority, and creates it if necessary. `name` is the host name without port.
    pub(super) fn host(&mut self, authority: &str, name: &str) -> HostId {
        if let Some(id) = self.hosts.names.get(authority) {
            return *id;
        }
        let id = HostId(self.next_number());
        let chosen = self.config.host_limits.get(name).copied();
        let default_limits = chosen.unwrap_or(self.config.default_limits);
        let max_limits = chosen.unwrap_or(self.config.max_limits);
        let domain = DomainThrottle::new(authority.to_owned(), default_limits, max_limits);
        self.hosts.names.insert(authority.to_owned(), id);
        self.hosts.all.insert(id, domain);
        id
    }

    /// Records that a source or mirror uses a host.
    pub(super) fn add_host_source(&mut self, id: HostId) {
        if let Some(host) = self.hosts.all.get_mut(&id) {
            host.source_count += 1;
            self.hosts.idle.remove(&(host.used_at, id));
        }
    }

    /// Records that a source or mirror does not use a host any more.
    pub(super) fn remove_host_source(&mut self, id: HostId) {
        let Some(host) = self.hosts.all.get_mut(&id) else { return };
        host.source_count = host.source_count.saturating_sub(1);
        self.idle_host(id);
    }

    /// Makes a host idle if nothing uses it.
    pub(super) fn idle_host(&mut self, id: HostId) {
        let Some(host) = self.hosts.all.get_mut(&id) else { return };
        if host.source_count == 0 && host.in_flight == 0 {
            self.hosts.idle.insert((host.used_at, id));
            self.evict();
        }
    }

    /// Drops idle hosts, the longest unused first, while there are too many.
    fn evict(&mut self) {
        while self.hosts.idle.len() > limits::MAX_IDLE_GIT_HOSTS {
            let is_overfull = self.hosts.idle.len() > 2 * limits::MAX_IDLE_GIT_HOSTS;
            let Some((at, id)) = self.hosts.idle.first().copied() else { return };
            let idle = self.hosts.get(id).is_none_or(|host| host.is_idle(self.now.mono));
            if !idle && !is_overfull {
                return;
            }
            self.hosts.idle.remove(&(at, id));
            let Some(host) = self.hosts.all.remove(&id) else { continue };
            self.hosts.names.remove(&host.authority);
            self.set_alarm(super::Timer::Host(id), host.alarm, None);
            if let Some(tick) = host.ready_ticket {
                self.ready_hosts.remove(&(tick, id));
            }
            if host.has_row {
                self.outputs.push_back(FetchOutput::DeleteHost(host.authority));
            }
        }
    }
}
