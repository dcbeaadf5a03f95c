//! Networks: many names may lead to one machine (rule M19).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::sliding_window::Window;
use super::{HostId, Limits};
use crate::limits;
use crate::time::Moment;

/// What one machine's owner usually has: 256 addresses, or a site of IPv6.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Network {
    V4([u8; 3]),
    V6([u16; 3]),
}

impl Network {
    pub(super) fn of(address: IpAddr) -> Self {
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
struct Load {
    in_flight: usize,
    window: Window,
    waiters: BTreeSet<HostId>,
    /// Until then its room is for fetches, because one found none.
    reserved: Moment,
}

/// Whether a network can take one more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    Free,
    /// Not before.
    Until(Moment),
    /// Not before one of its fetches has ended.
    Full,
}

/// All networks that are asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Networks {
    loads: BTreeMap<Network, Load>,
    /// What hosts were asked in an earlier life whose networks are not known yet. It counts for every network.
    unplaced: BTreeMap<HostId, Window>,
}

impl Networks {
    /// What a host was asked in an earlier life.
    pub(super) fn restore(&mut self, host: HostId, window: &Window) {
        if window.len() > 0 {
            self.unplaced.insert(host, window.clone());
        }
    }

    /// A host's networks are known.
    pub(super) fn place(&mut self, host: HostId, networks: &BTreeSet<Network>) {
        if let Some(window) = self.unplaced.remove(&host) {
            for network in networks {
                self.loads.entry(*network).or_default().window.join(&window);
            }
        }
    }

    /// Whether a host with these limits may be asked. If not, it is told when that may have changed.
    pub(super) fn room(&mut self, now: Moment, host: HostId, networks: &BTreeSet<Network>, own: Limits) -> Room {
        let most = |own: u32| own.saturating_mul(limits::HUNT_PER_NETWORK) as usize;
        for window in self.unplaced.values_mut() {
            window.prune(now);
        }
        self.unplaced.retain(|_, window| window.len() > 0);
        let unplaced: usize = self.unplaced.values().map(Window::len).sum();
        for network in networks {
            let Some(load) = self.loads.get_mut(network) else { continue };
            if load.in_flight >= most(own.concurrent) {
                load.waiters.insert(host);
                return Room::Full;
            }
        }
        for network in networks {
            let load = self.loads.entry(*network).or_default();
            load.window.prune(now);
            if load.window.len() + unplaced >= most(own.per_minute) {
                let windows = self.unplaced.values().chain([&load.window]);
                let free = windows.filter_map(|window| window.free_at(window.len())).min();
                return Room::Until(free.unwrap_or(now));
            }
        }
        Room::Free
    }

    pub(super) fn begin(&mut self, now: Moment, networks: &BTreeSet<Network>) {
        for network in networks {
            let load = self.loads.entry(*network).or_default();
            load.in_flight += 1;
            load.window.count(now);
            load.reserved = Moment(0);
        }
    }

    /// A fetch found no room: looks, of which there is no end, leave it to that until then.
    pub(super) fn reserve(&mut self, networks: &BTreeSet<Network>, until: Moment) {
        for network in networks {
            let load = self.loads.entry(*network).or_default();
            load.reserved = load.reserved.max(until);
        }
    }

    /// Until when looks wait.
    pub(super) fn reserved_until(&self, networks: &BTreeSet<Network>) -> Moment {
        let loads = networks.iter().filter_map(|network| self.loads.get(network));
        loads.map(|load| load.reserved).max().unwrap_or_default()
    }

    /// A fetch is over. Gives the hosts that waited for that.
    pub(super) fn end(&mut self, now: Moment, networks: &BTreeSet<Network>) -> Vec<HostId> {
        let mut waiters = Vec::new();
        for network in networks {
            if let Some(load) = self.loads.get_mut(network) {
                load.in_flight = load.in_flight.saturating_sub(1);
                waiters.extend(std::mem::take(&mut load.waiters));
            }
        }
        if self.loads.len() > limits::HUNT_HOSTS {
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
        texts.iter().map(|text| Network::of(text.parse().expect("an address"))).collect()
    }

    const OWN: Limits = Limits { concurrent: 1, per_minute: 2 };

    #[test]
    fn names_of_one_machine_share() {
        let [one, two, far] = [["192.0.2.1"], ["192.0.2.200"], ["198.51.100.7"]].map(|texts| networks(&texts));
        assert_eq!(one, networks(&["::ffff:192.0.2.9"]));
        assert_eq!(networks(&["2001:db8:1:2::1"]), networks(&["2001:db8:1:ffff::2"]));
        let mut all = Networks::default();
        let now = Moment(0);
        all.begin(now, &one);
        assert_eq!(all.room(now, HostId(2), &two, OWN), Room::Free);
        all.begin(now, &two);
        assert_eq!(all.room(now, HostId(3), &two, OWN), Room::Full);
        assert_eq!(all.room(now, HostId(3), &far, OWN), Room::Free);
        assert_eq!(all.end(now, &one), [HostId(3)]);
        assert_eq!(all.end(now, &two), []);
        all.begin(Moment(5), &one);
        all.end(Moment(5), &one);
        all.begin(Moment(6), &one);
        all.end(Moment(6), &one);
        assert_eq!(all.room(Moment(7), HostId(3), &one, OWN), Room::Until(Moment(60_000)));
        assert_eq!(all.room(Moment(60_000), HostId(3), &one, OWN), Room::Free);
    }

    #[test]
    fn a_fetch_that_found_no_room_keeps_looks_out_until_it_has_begun() {
        let [one, two] = [["192.0.2.1"], ["198.51.100.7"]].map(|texts| networks(&texts));
        let mut all = Networks::default();
        assert_eq!(all.reserved_until(&one), Moment(0));
        all.reserve(&one, Moment(9));
        all.reserve(&one, Moment(7));
        assert_eq!((all.reserved_until(&one), all.reserved_until(&two)), (Moment(9), Moment(0)));
        assert_eq!(all.room(Moment(0), HostId(1), &one, OWN), Room::Free);
        all.begin(Moment(1), &one);
        assert_eq!(all.reserved_until(&one), Moment(0));
    }

    #[test]
    fn what_an_earlier_life_asked_counts_everywhere_until_its_place_is_known() {
        let mut all = Networks::default();
        let mut window = Window::default();
        (0..4).for_each(|millis| window.count(Moment(millis)));
        all.restore(HostId(1), &window);
        let (here, there) = (networks(&["192.0.2.1"]), networks(&["198.51.100.7"]));
        assert_eq!(all.room(Moment(10), HostId(2), &there, OWN), Room::Until(Moment(60_000)));
        all.place(HostId(1), &here);
        assert_eq!(all.room(Moment(10), HostId(2), &there, OWN), Room::Free);
        assert_eq!(all.room(Moment(10), HostId(2), &here, OWN), Room::Until(Moment(60_000)));
    }
}
