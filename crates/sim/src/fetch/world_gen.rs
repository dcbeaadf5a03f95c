//! Generates a world from a seed.

use grasp_core::fetch::HostLimits;
use grasp_core::nostr::nip11::GitFetchLimits;

use super::fixtures::{EventFixture, RepoFixture, ServerBehavior, ServerFixture, UrlFixture, WorldFixture};
use super::world::FetchWorld;
use crate::random::Rng;
use crate::simulation::World;
use crate::simulation::queue::{HOUR, MINUTE, SECOND, Time};

fn between(rng: &mut Rng, least: u64, most: u64) -> u64 {
    least + rng.next_u64() % (most - least + 1)
}

fn behavior(rng: &mut Rng) -> ServerBehavior {
    match rng.below(25) {
        0..=7 => ServerBehavior::Normal,
        8 => ServerBehavior::Absent,
        9 | 10 => ServerBehavior::Silent,
        11 | 12 => ServerBehavior::Slow,
        13 => ServerBehavior::InvalidData,
        14..=16 => ServerBehavior::Busy(Some(between(rng, 1, 120) * between(rng, 1, 60))),
        17 => ServerBehavior::Busy(None),
        18 => ServerBehavior::NoAddress,
        19 => ServerBehavior::PrivateAddress,
        20..=22 => ServerBehavior::Overloaded(rng.one_in(3).then(|| between(rng, 1, 300))),
        _ => ServerBehavior::ServerError,
    }
}

fn stated_limits(rng: &mut Rng) -> Option<GitFetchLimits> {
    let number = |rng: &mut Rng, most: u64| match rng.below(4) {
        0 => None,
        1 => Some(u32::try_from(between(rng, 0, 3)).unwrap_or(0)),
        2 => Some(u32::try_from(between(rng, 1, most)).unwrap_or(0)),
        // Far above any cap, as a mistake or on purpose.
        _ => Some(100_000),
    };
    (!rng.one_in(3)).then(|| GitFetchLimits { concurrent: number(rng, 40), per_minute: number(rng, 800) })
}

fn servers(rng: &mut Rng) -> Vec<ServerFixture> {
    let mut servers = Vec::new();
    for network in 0..between(rng, 2, 5) {
        let names = if rng.one_in(3) { between(rng, 2, 5) } else { 1 };
        for name in 0..names {
            let is_grasp = rng.one_in(2);
            let port = if rng.one_in(5) { ":8443" } else { "" };
            let mut later_behaviors = Vec::new();
            for _ in 0..rng.below(5) {
                // Temporary trouble.
                let at = between(rng, 0, FetchWorld::HEALED_AT - HOUR);
                let until = at + between(rng, 10 * SECOND, HOUR);
                later_behaviors.push((at, behavior(rng)));
                later_behaviors.push((until, if rng.one_in(3) { behavior(rng) } else { ServerBehavior::Normal }));
            }
            later_behaviors.sort_by_key(|(at, _)| *at);
            servers.push(ServerFixture {
                authority: format!("n{name}.m{network}.example{port}"),
                network: u8::try_from(network).unwrap_or(0),
                is_grasp,
                serves_by_oid: if is_grasp { !rng.one_in(6) } else { rng.one_in(3) },
                stated_limits: stated_limits(rng),
                behavior: if rng.one_in(2) { ServerBehavior::Normal } else { behavior(rng) },
                later_behaviors,
            });
        }
    }
    servers
}

fn limits(rng: &mut Rng) -> HostLimits {
    match rng.below(4) {
        0 => HostLimits::default(),
        1 => HostLimits { concurrent: 1, per_minute: 3 },
        2 => HostLimits { concurrent: 2, per_minute: 4 },
        _ => HostLimits { concurrent: 1 + rng.below(8) as u32, per_minute: 2 + rng.below(12) as u32 },
    }
}

/// Generates the initial state of a world.
pub(super) fn generate(seed: u64) -> WorldFixture {
    let rng = &mut Rng::new(seed ^ 0x6875_6e74);
    let servers = servers(rng);
    let (mut urls, mut repos, mut events) = (Vec::new(), Vec::new(), Vec::<EventFixture>::new());
    // Sometimes a popular relay comes back, and all events arrive at once.
    let is_mass_arrival = rng.one_in(24);
    let max_repos = match rng.below(6) {
        _ if is_mass_arrival => 100,
        0 => 24,
        _ => 6,
    };
    let owners = 1 + rng.below(4);
    for nth in 0..2 + rng.below(max_repos) {
        let owner = rng.below(owners) as u8;
        let name = format!("r{}", if rng.one_in(5) { nth / 2 } else { nth });
        if repos.iter().any(|repo: &RepoFixture| repo.owner == owner && repo.name == name) {
            continue;
        }
        let repo = repos.len();
        let mut own = Vec::new();
        for _ in 0..between(rng, 1, 5) {
            let server = rng.below(servers.len());
            let copy = if rng.one_in(6) { "-copy" } else { "" };
            let url = format!("https://{}/{owner}/{name}{copy}.git", servers[server].authority);
            let known = urls.iter().position(|known: &UrlFixture| known.url == url);
            let at = known.unwrap_or_else(|| {
                urls.push(UrlFixture { server, url });
                urls.len() - 1
            });
            if !own.contains(&at) {
                own.push(at);
            }
        }
        repos.push(RepoFixture { owner, name });
        let bursty = rng.one_in(8);
        let mut at = between(rng, 0, if is_mass_arrival { 10 * SECOND } else { 2 * HOUR });
        for _ in 0..if bursty { 12 } else { between(rng, 1, 3) } {
            events.push(event(rng, repo, at, &own, events.len()));
            at += if bursty || rng.one_in(3) { between(rng, 1, 20 * SECOND) } else { between(rng, 1, HOUR) };
        }
    }
    let host_limits =
        servers.iter().filter(|_| rng.one_in(6)).map(|server| server.authority.clone()).collect::<Vec<_>>();
    let host_limits =
        host_limits.into_iter().map(|name| (name.split(':').next().unwrap_or("").to_owned(), limits(rng))).collect();
    let mut restarts: Vec<(Time, Time)> = Vec::new();
    for _ in 0..if rng.one_in(2) { 0 } else { rng.below(12) } {
        // Often shortly after an event has arrived, while fetches are running.
        let near = rng.pick(&events).map_or(0, |event: &EventFixture| event.at);
        let at =
            if rng.one_in(3) { between(rng, 0, FetchWorld::HEALED_AT) } else { near + between(rng, 0, 3 * MINUTE) };
        restarts.push((at, between(rng, 0, 20 * SECOND)));
    }
    let default_limits = if is_mass_arrival { HostLimits::default() } else { limits(rng) };
    WorldFixture {
        default_limits,
        host_limits,
        servers,
        urls,
        repos,
        events,
        restarts,
        has_local_errors: rng.one_in(5),
        has_operator_limits: rng.one_in(3),
    }
}

fn event(rng: &mut Rng, repo: usize, at: Time, urls: &[usize], nth: usize) -> EventFixture {
    let oids: Vec<String> = (0..between(rng, 1, 4)).map(|n| format!("{:040x}", nth * 16 + n as usize)).collect();
    let listed: Vec<usize> = urls.iter().copied().filter(|_| !rng.one_in(5)).collect();
    let mut stored_at = Vec::new();
    let whole = rng.one_in(2);
    for (oid, _) in oids.iter().enumerate() {
        for place in 0..listed.len() {
            if whole || rng.one_in(2) {
                // Often the object is pushed there a little later.
                let from = if rng.one_in(3) { at + between(rng, 0, HOUR) } else { 0 };
                stored_at.push((place, oid, from));
            }
        }
    }
    EventFixture {
        repo,
        at,
        is_from_client: rng.one_in(4),
        oids,
        urls: listed,
        stored_at,
        is_replacement: rng.one_in(3),
        pushed: rng.one_in(6).then(|| at + between(rng, 0, 10 * MINUTE)),
        seen_again: if rng.one_in(4) { vec![at + between(rng, MINUTE, 2 * HOUR)] } else { Vec::new() },
    }
}
