//! Limits per network, because many host names may lead to one machine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::sliding_window::SlidingWindow;
use super::{HostId, HostLimits};
use crate::limits;
use crate::time::MonoTime;

/// A network that usually has one owner: an IPv4 /24 or an IPv6 /48.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Network {
    V4([u8; 3]),
    V6([u16; 3]),
}

impl Network {
    pub(super) fn from_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let [a, b, c, _] = address.octets();
                Self::V4([a, b, c])
            }
            IpAddr::V6(address) => {
                let [a, b, c, ..] = address.segments();
                Self::V6([a, b, c])
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
struct NetworkLoad {
    in_flight: usize,
    window: SlidingWindow,
    waiters: BTreeSet<HostId>,
    /// Mirror checks leave the capacity to fetches until this time, because a fetch found none.
    reserved_until: MonoTime,
}

/// Whether a network can take one more request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NetworkCapacity {
    Free,
    /// Not before this time.
    Until(MonoTime),
    /// Not before one of its requests has ended.
    Full,
}

/// The load of all networks.
#[derive(Clone, Debug, Default)]
pub(super) struct NetworkLimits {
    loads: BTreeMap<Network, NetworkLoad>,
    /// Requests of an earlier process to hosts whose networks are not known yet. They count for every network.
    unassigned: BTreeMap<HostId, SlidingWindow>,
}

impl NetworkLimits {
    /// Restores the requests of an earlier process to a host.
    pub(super) fn restore(&mut self, host: HostId, window: &SlidingWindow) {
        if window.len() > 0 {
            self.unassigned.insert(host, window.clone());
        }
    }

    /// Assigns the restored requests of a host to its networks.
    pub(super) fn assign(&mut self, host: HostId, networks: &BTreeSet<Network>) {
        if let Some(window) = self.unassigned.remove(&host) {
            for network in networks {
                self.loads.entry(*network).or_default().window.merge(&window);
            }
        }
    }

    /// Returns whether a host with these limits may be asked. If the networks are full, the host is returned by
    /// [`end`](Self::end) later.
    pub(super) fn capacity(
        &mut self,
        now: MonoTime,
        host: HostId,
        networks: &BTreeSet<Network>,
        own: HostLimits,
    ) -> NetworkCapacity {
        let most = |own: u32| own.saturating_mul(limits::NETWORK_LIMIT_FACTOR) as usize;
        for window in self.unassigned.values_mut() {
            window.prune(now);
        }
        self.unassigned.retain(|_, window| window.len() > 0);
        let unassigned: usize = self.unassigned.values().map(SlidingWindow::len).sum();
        for network in networks {
            let Some(load) = self.loads.get_mut(network) else { continue };
            if load.in_flight >= most(own.concurrent) {
                load.waiters.insert(host);
                return NetworkCapacity::Full;
            }
        }
        for network in networks {
            let load = self.loads.entry(*network).or_default();
            load.window.prune(now);
            if load.window.len() + unassigned >= most(own.per_minute) {
                let windows = self.unassigned.values().chain([&load.window]);
                let free = windows.filter_map(|window| window.free_at(window.len())).min();
                return NetworkCapacity::Until(free.unwrap_or(now));
            }
        }
        NetworkCapacity::Free
    }

    pub(super) fn begin(&mut self, now: MonoTime, networks: &BTreeSet<Network>) {
        for network in networks {
            let load = self.loads.entry(*network).or_default();
            load.in_flight += 1;
            load.window.record(now);
            load.reserved_until = MonoTime(0);
        }
    }

    /// Keeps mirror checks out of these networks until a time, because a fetch found no capacity.
    pub(super) fn reserve(&mut self, networks: &BTreeSet<Network>, until: MonoTime) {
        for network in networks {
            let load = self.loads.entry(*network).or_default();
            load.reserved_until = load.reserved_until.max(until);
        }
    }

    /// Returns until when mirror checks must wait.
    pub(super) fn reserved_until(&self, networks: &BTreeSet<Network>) -> MonoTime {
        let loads = networks.iter().filter_map(|network| self.loads.get(network));
        loads.map(|load| load.reserved_until).max().unwrap_or_default()
    }

    /// Records the end of a request. Returns the hosts that waited for it.
    pub(super) fn end(&mut self, now: MonoTime, networks: &BTreeSet<Network>) -> Vec<HostId> {
        let mut waiters = Vec::new();
        for network in networks {
            if let Some(load) = self.loads.get_mut(network) {
                load.in_flight = load.in_flight.saturating_sub(1);
                waiters.extend(std::mem::take(&mut load.waiters));
            }
        }
        if self.loads.len() > limits::MAX_IDLE_GIT_HOSTS {
            self.loads.retain(|_, load| {
                load.window.prune(now);
                load.in_flight > 0 || load.window.len() > 0 || !load.waiters.is_empty()
            });
        }
        waiters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> BTreeSet<Network> {
        texts.iter().map(|text| Network::from_address(text.parse().expect("a valid address"))).collect()
    }

    const OWN: HostLimits = HostLimits { concurrent: 1, per_minute: 2 };

    #[test]
    fn hosts_of_one_network_share_its_limits() {
        let [one, two, far] = [["192.0.2.1"], ["192.0.2.200"], ["198.51.100.7"]].map(|texts| networks(&texts));
        assert_eq!(one, networks(&["::ffff:192.0.2.9"]));
        assert_eq!(networks(&["2001:db8:1:2::1"]), networks(&["2001:db8:1:ffff::2"]));
        let mut all = NetworkLimits::default();
        let now = MonoTime(0);
        all.begin(now, &one);
        assert_eq!(all.capacity(now, HostId(2), &two, OWN), NetworkCapacity::Free);
        all.begin(now, &two);
        assert_eq!(all.capacity(now, HostId(3), &two, OWN), NetworkCapacity::Full);
        assert_eq!(all.capacity(now, HostId(3), &far, OWN), NetworkCapacity::Free);
        assert_eq!(all.end(now, &one), [HostId(3)]);
        assert_eq!(all.end(now, &two), []);
        all.begin(MonoTime(5), &one);
        all.end(MonoTime(5), &one);
        all.begin(MonoTime(6), &one);
        all.end(MonoTime(6), &one);
        assert_eq!(all.capacity(MonoTime(7), HostId(3), &one, OWN), NetworkCapacity::Until(MonoTime(60_000)));
        assert_eq!(all.capacity(MonoTime(60_000), HostId(3), &one, OWN), NetworkCapacity::Free);
    }

    #[test]
    fn a_fetch_without_capacity_reserves_the_network_until_it_begins() {
        let [one, two] = [["192.0.2.1"], ["198.51.100.7"]].map(|texts| networks(&texts));
        let mut all = NetworkLimits::default();
        assert_eq!(all.reserved_until(&one), MonoTime(0));
        all.reserve(&one, MonoTime(9));
        all.reserve(&one, MonoTime(7));
        assert_eq!((all.reserved_until(&one), all.reserved_until(&two)), (MonoTime(9), MonoTime(0)));
        assert_eq!(all.capacity(MonoTime(0), HostId(1), &one, OWN), NetworkCapacity::Free);
        all.begin(MonoTime(1), &one);
        assert_eq!(all.reserved_until(&one), MonoTime(0));
    }

    #[test]
    fn restored_requests_count_for_every_network_until_assigned() {
        let mut all = NetworkLimits::default();
        let mut window = SlidingWindow::default();
        (0..4).for_each(|millis| window.record(MonoTime(millis)));
        all.restore(HostId(1), &window);
        let (here, there) = (networks(&["192.0.2.1"]), networks(&["198.51.100.7"]));
        assert_eq!(all.capacity(MonoTime(10), HostId(2), &there, OWN), NetworkCapacity::Until(MonoTime(60_000)));
        all.assign(HostId(1), &here);
        assert_eq!(all.capacity(MonoTime(10), HostId(2), &there, OWN), NetworkCapacity::Free);
        assert_eq!(all.capacity(MonoTime(10), HostId(2), &here, OWN), NetworkCapacity::Until(MonoTime(60_000)));
    }
}
