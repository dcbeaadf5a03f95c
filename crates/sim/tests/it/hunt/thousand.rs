//! A thousand repositories on one host at the usual throttle: they need longer than an event waits, and nothing is lost.

use grasp_core::fetch::Limits;
use grasp_sim::fetch::admission::Stand;
use grasp_sim::fetch::fixtures::{Cast, EventCast, RepoCast, ServerCast, Temper, UrlCast};
use grasp_sim::fetch::world::World;
use grasp_sim::sync::queue::{HOUR, MINUTE};
use grasp_sim::sync::trace::Trace;

const MANY: usize = 1_000;

fn cast() -> Cast {
    let server = ServerCast {
        authority: "forge.example".to_owned(),
        machine: 1,
        grasp: false,
        by_oid: false,
        terms: None,
        temper: Temper::Honest,
        moods: Vec::new(),
    };
    let event = |repo: usize| EventCast {
        repo,
        at: 0,
        client: false,
        oids: vec![format!("{repo:040x}")],
        urls: vec![repo],
        held: vec![(0, 0, 0)],
        replaces: false,
        pushed: None,
        seen: Vec::new(),
    };
    Cast {
        usual: Limits::default(),
        chosen: Vec::new(),
        servers: vec![server],
        urls: (0..MANY).map(|n| UrlCast { server: 0, url: format!("https://forge.example/{n}.git") }).collect(),
        repos: (0..MANY).map(|n| RepoCast { owner: (n % 7) as u8, name: format!("r{n}") }).collect(),
        events: (0..MANY).map(event).collect(),
        restarts: Vec::new(),
        troubled: false,
    }
}

#[test]
fn a_thousand_repositories_on_one_host_lose_nothing() {
    let mut world = World::new(cast(), 1, None, Trace::default());
    world.heal();
    let released = |world: &World| world.registrar.events.iter().filter(|held| held.stand == Stand::Released).count();
    world.run(30 * MINUTE);
    assert!(world.broken.is_none(), "{:?}", world.broken);
    assert!((800..1_000).contains(&released(&world)), "{} within half an hour", released(&world));
    world.run(HOUR);
    assert!(world.broken.is_none(), "{:?}", world.broken);
    assert_eq!((released(&world), world.registrar.slept), (MANY, 0));
    assert_eq!(world.watch.counts.fetches, MANY as u64, "one request each");
    eprintln!("{} steps, {} rows", world.trace.steps(), world.watch.counts.rows);
}

#[test]
fn nor_when_the_host_is_restarted_and_busy_meanwhile() {
    let mut cast = cast();
    cast.servers[0].moods = vec![
        (5 * MINUTE, Temper::Busy(Some(120))),
        (6 * MINUTE, Temper::Honest),
        (15 * MINUTE, Temper::Broken),
        (18 * MINUTE, Temper::Honest),
    ];
    cast.restarts = vec![(10 * MINUTE, 5_000), (20 * MINUTE, 0)];
    let mut world = World::new(cast, 2, None, Trace::default());
    world.run(3 * HOUR);
    assert!(world.broken.is_none(), "{:?}", world.broken);
    let released = world.registrar.events.iter().filter(|held| held.stand == Stand::Released).count();
    assert_eq!(released, MANY);
}
