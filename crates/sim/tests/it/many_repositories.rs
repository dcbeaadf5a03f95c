//! A thousand repositories on one host with default limits: fetching them takes longer than events are held, and none
//! is lost.

use grasp_core::fetch::HostLimits;
use grasp_sim::fetch::{
    EventFixture, FetchWorld, HoldStatus, RepoFixture, ServerBehavior, ServerFixture, UrlFixture, WorldFixture,
};
use grasp_sim::simulation::World;
use grasp_sim::simulation::queue::{HOUR, MINUTE};
use grasp_sim::simulation::trace::Trace;

const REPOSITORIES: usize = 1_000;

fn fixture() -> WorldFixture {
    let server = ServerFixture {
        authority: "forge.example".to_owned(),
        network: 1,
        is_grasp: false,
        serves_by_oid: false,
        stated_limits: None,
        behavior: ServerBehavior::Normal,
        later_behaviors: Vec::new(),
    };
    let event = |repo: usize| EventFixture {
        repo,
        at: 0,
        is_from_client: false,
        oids: vec![format!("{repo:040x}")],
        urls: vec![repo],
        stored_at: vec![(0, 0, 0)],
        is_replacement: false,
        pushed: None,
        seen_again: Vec::new(),
    };
    WorldFixture {
        default_limits: HostLimits::default(),
        host_limits: Vec::new(),
        servers: vec![server],
        urls: (0..REPOSITORIES)
            .map(|n| UrlFixture { server: 0, url: format!("https://forge.example/{n}.git") })
            .collect(),
        repos: (0..REPOSITORIES).map(|n| RepoFixture { owner: (n % 7) as u8, name: format!("r{n}") }).collect(),
        events: (0..REPOSITORIES).map(event).collect(),
        restarts: Vec::new(),
        has_local_errors: false,
        has_operator_limits: false,
    }
}

#[test]
fn thousand_repositories_on_one_host_are_all_fetched() {
    let mut world = FetchWorld::new(fixture(), 1, Trace::default());
    world.heal();
    let released =
        |world: &FetchWorld| world.admission.events.iter().filter(|held| held.status == HoldStatus::Released).count();
    world.run(30 * MINUTE);
    assert!(world.sim.violation.is_none(), "{:?}", world.sim.violation);
    assert!((800..1_000).contains(&released(&world)), "{} within half an hour", released(&world));
    world.run(HOUR);
    assert!(world.sim.violation.is_none(), "{:?}", world.sim.violation);
    assert_eq!((released(&world), world.admission.expired), (REPOSITORIES, 0));
    assert_eq!(world.checker.counts.fetches, REPOSITORIES as u64, "one request each");
    eprintln!("{} steps, {} rows", world.sim.trace.steps(), world.checker.counts.rows);
}

#[test]
fn thousand_repositories_are_fetched_despite_restarts_and_busy_answers() {
    let mut fixture = fixture();
    fixture.servers[0].later_behaviors = vec![
        (5 * MINUTE, ServerBehavior::Busy(Some(120))),
        (6 * MINUTE, ServerBehavior::Normal),
        (15 * MINUTE, ServerBehavior::ServerError),
        (18 * MINUTE, ServerBehavior::Normal),
    ];
    fixture.restarts = vec![(10 * MINUTE, 5_000), (20 * MINUTE, 0)];
    let mut world = FetchWorld::new(fixture, 2, Trace::default());
    world.run(3 * HOUR);
    assert!(world.sim.violation.is_none(), "{:?}", world.sim.violation);
    let released = world.admission.events.iter().filter(|held| held.status == HoldStatus::Released).count();
    assert_eq!(released, REPOSITORIES);
}
