//! How a seed becomes a life.

use grasp_core::fetch::Limits;
use grasp_core::sync::relay_limits::GitTerms;

use super::fixtures::{Cast, EventCast, RepoCast, ServerCast, Temper, UrlCast};
use crate::random::Chance;
use crate::sync::queue::{HOUR, MINUTE, SECOND, Time};

/// When every server becomes honest.
pub const HEALED: Time = 5 * HOUR;

fn between(chance: &mut Chance, least: u64, most: u64) -> u64 {
    least + chance.draw() % (most - least + 1)
}

fn temper(chance: &mut Chance) -> Temper {
    match chance.below(25) {
        0..=7 => Temper::Honest,
        8 => Temper::Absent,
        9 | 10 => Temper::Hangs,
        11 | 12 => Temper::Trickles,
        13 => Temper::Wrong,
        14..=16 => Temper::Busy(Some(between(chance, 1, 120) * between(chance, 1, 60))),
        17 => Temper::Busy(None),
        18 => Temper::Nowhere,
        19 => Temper::Private,
        20..=22 => Temper::Overloaded(chance.one_in(3).then(|| between(chance, 1, 300))),
        _ => Temper::Broken,
    }
}

fn terms(chance: &mut Chance) -> Option<GitTerms> {
    let number = |chance: &mut Chance, most: u64| match chance.below(4) {
        0 => None,
        1 => Some(u32::try_from(between(chance, 0, 3)).unwrap_or(0)),
        2 => Some(u32::try_from(between(chance, 1, most)).unwrap_or(0)),
        // It lies, or means it.
        _ => Some(100_000),
    };
    (!chance.one_in(3)).then(|| GitTerms { concurrent: number(chance, 40), per_minute: number(chance, 800) })
}

fn servers(chance: &mut Chance) -> Vec<ServerCast> {
    let mut servers = Vec::new();
    for machine in 0..between(chance, 2, 5) {
        let names = if chance.one_in(3) { between(chance, 2, 5) } else { 1 };
        for name in 0..names {
            let grasp = chance.one_in(2);
            let port = if chance.one_in(5) { ":8443" } else { "" };
            let mut moods = Vec::new();
            for _ in 0..chance.below(5) {
                // Trouble comes and goes.
                let at = between(chance, 0, HEALED - HOUR);
                let until = at + between(chance, 10 * SECOND, HOUR);
                moods.push((at, temper(chance)));
                moods.push((until, if chance.one_in(3) { temper(chance) } else { Temper::Honest }));
            }
            moods.sort_by_key(|(at, _)| *at);
            servers.push(ServerCast {
                authority: format!("n{name}.m{machine}.example{port}"),
                machine: u8::try_from(machine).unwrap_or(0),
                grasp,
                by_oid: if grasp { !chance.one_in(6) } else { chance.one_in(3) },
                terms: terms(chance),
                temper: if chance.one_in(2) { Temper::Honest } else { temper(chance) },
                moods,
            });
        }
    }
    servers
}

fn limits(chance: &mut Chance) -> Limits {
    match chance.below(4) {
        0 => Limits::default(),
        1 => Limits { concurrent: 1, per_minute: 3 },
        2 => Limits { concurrent: 2, per_minute: 4 },
        _ => Limits { concurrent: 1 + chance.below(8) as u32, per_minute: 2 + chance.below(12) as u32 },
    }
}

/// What a seed begins with.
#[must_use]
pub fn cast(seed: u64) -> Cast {
    let chance = &mut Chance::new(seed ^ 0x6875_6e74);
    let servers = servers(chance);
    let (mut urls, mut repos, mut events) = (Vec::new(), Vec::new(), Vec::<EventCast>::new());
    // Now and then a popular relay returns, and everything comes at once.
    let herd = chance.one_in(24);
    let crowd = match chance.below(6) {
        _ if herd => 100,
        0 => 24,
        _ => 6,
    };
    let owners = 1 + chance.below(4);
    for nth in 0..2 + chance.below(crowd) {
        let owner = chance.below(owners) as u8;
        let name = format!("r{}", if chance.one_in(5) { nth / 2 } else { nth });
        if repos.iter().any(|repo: &RepoCast| repo.owner == owner && repo.name == name) {
            continue;
        }
        let repo = repos.len();
        let mut own = Vec::new();
        for _ in 0..between(chance, 1, 5) {
            let server = chance.below(servers.len());
            let copy = if chance.one_in(6) { "-copy" } else { "" };
            let url = format!("https://{}/{owner}/{name}{copy}.git", servers[server].authority);
            let known = urls.iter().position(|known: &UrlCast| known.url == url);
            let at = known.unwrap_or_else(|| {
                urls.push(UrlCast { server, url });
                urls.len() - 1
            });
            if !own.contains(&at) {
                own.push(at);
            }
        }
        repos.push(RepoCast { owner, name });
        let bursty = chance.one_in(8);
        let mut at = between(chance, 0, if herd { 10 * SECOND } else { 2 * HOUR });
        for _ in 0..if bursty { 12 } else { between(chance, 1, 3) } {
            events.push(event(chance, repo, at, &own, events.len()));
            at += if bursty || chance.one_in(3) { between(chance, 1, 20 * SECOND) } else { between(chance, 1, HOUR) };
        }
    }
    let chosen = servers.iter().filter(|_| chance.one_in(6)).map(|server| server.authority.clone()).collect::<Vec<_>>();
    let chosen =
        chosen.into_iter().map(|name| (name.split(':').next().unwrap_or("").to_owned(), limits(chance))).collect();
    let mut restarts: Vec<(Time, Time)> = Vec::new();
    for _ in 0..if chance.one_in(2) { 0 } else { chance.below(12) } {
        // Often shortly after something has come: that is when something is under way.
        let near = chance.pick(&events).map_or(0, |event: &EventCast| event.at);
        let at = if chance.one_in(3) { between(chance, 0, HEALED) } else { near + between(chance, 0, 3 * MINUTE) };
        restarts.push((at, between(chance, 0, 20 * SECOND)));
    }
    let usual = if herd { Limits::default() } else { limits(chance) };
    Cast { usual, chosen, servers, urls, repos, events, restarts, troubled: chance.one_in(5) }
}

fn event(chance: &mut Chance, repo: usize, at: Time, urls: &[usize], nth: usize) -> EventCast {
    let oids: Vec<String> = (0..between(chance, 1, 4)).map(|n| format!("{:040x}", nth * 16 + n as usize)).collect();
    let listed: Vec<usize> = urls.iter().copied().filter(|_| !chance.one_in(5)).collect();
    let mut held = Vec::new();
    let whole = chance.one_in(2);
    for (oid, _) in oids.iter().enumerate() {
        for place in 0..listed.len() {
            if whole || chance.one_in(2) {
                // Often it is pushed there a little later.
                let from = if chance.one_in(3) { at + between(chance, 0, HOUR) } else { 0 };
                held.push((place, oid, from));
            }
        }
    }
    EventCast {
        repo,
        at,
        client: chance.one_in(4),
        oids,
        urls: listed,
        held,
        replaces: chance.one_in(3),
        pushed: chance.one_in(6).then(|| at + between(chance, 0, 10 * MINUTE)),
        seen: if chance.one_in(4) { vec![at + between(chance, MINUTE, 2 * HOUR)] } else { Vec::new() },
    }
}
