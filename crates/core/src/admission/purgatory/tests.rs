use super::*;

const SMALL: usize = 500;

fn key(nth: usize) -> PublicKey {
    let mut bytes = [1; 32];
    bytes[..8].copy_from_slice(&(nth as u64).to_be_bytes());
    PublicKey(bytes)
}

fn event_id(nth: usize) -> EventId {
    EventId(key(nth).0)
}

fn network(nth: usize) -> HeldSubmitter {
    HeldSubmitter::Network(format!("10.{}.{}.0/24", nth / 256, nth % 256).into())
}

fn repo_id(nth: usize) -> RepoId {
    RepoId { owner: key(nth), identifier: Identifier::new("tool").expect("valid") }
}

/// The `nth` event, of the `nth` author, held since the `nth` second.
fn held(nth: usize, kind: HeldKind, bytes: usize, submitter: Option<HeldSubmitter>) -> HeldEvent {
    let since = MonoTime::default().plus_secs(nth as u64);
    HeldEvent {
        author: key(nth),
        created_at: Timestamp(0),
        priority: match kind {
            HeldKind::Announcement(_) => HoldPriority::NewRepository,
            _ => HoldPriority::Other,
        },
        kind,
        bytes,
        since,
        deadline: since,
        search: SearchStatus::Pending(since),
        submitter,
    }
}

fn announcement(nth: usize, bytes: usize, submitter: HeldSubmitter) -> HeldEvent {
    held(nth, HeldKind::Announcement(repo_id(nth)), bytes, Some(submitter))
}

fn request(priority: HoldPriority, bytes: usize, submitter: &HeldSubmitter) -> HoldRequest<'_> {
    HoldRequest { author: key(usize::MAX), bytes, replaced: None, submitter: Some(submitter), priority }
}

/// Fills everything that is not reserved with announcements from ten networks. The first network has the most.
fn full_purgatory() -> Purgatory {
    let mut purgatory = Purgatory::default();
    let count = limits::MAX_HELD_EVENTS - limits::RESERVED_HELD_EVENTS;
    for nth in 0..count {
        let submitter = if nth < limits::MAX_HELD_EVENTS_PER_NETWORK { network(0) } else { network(1 + nth % 9) };
        purgatory.insert(event_id(nth), announcement(nth, SMALL, submitter));
    }
    purgatory
}

fn rejection(purgatory: &Purgatory, request: &HoldRequest<'_>) -> Option<Rejection> {
    purgatory.rejection(request, |_| false)
}

#[test]
fn each_network_and_relay_has_a_share() {
    let (flooding, other) = (network(0), network(1));
    let mut purgatory = Purgatory::default();
    for nth in 0..limits::MAX_HELD_EVENTS_PER_NETWORK {
        purgatory.insert(event_id(nth), announcement(nth, SMALL, flooding.clone()));
    }
    let full = Some(Rejection::TooManyHeldFromNetwork);
    for priority in [HoldPriority::NewRepository, HoldPriority::Other] {
        assert_eq!(rejection(&purgatory, &request(priority, SMALL, &flooding)), full);
        assert_eq!(rejection(&purgatory, &request(priority, SMALL, &other)), None);
        assert_eq!(rejection(&purgatory, &HoldRequest { submitter: None, ..request(priority, SMALL, &other) }), None);
    }
    // States of served repositories have a share of their own.
    let state = request(HoldPriority::ServedState, SMALL, &flooding);
    assert_eq!(rejection(&purgatory, &state), None);
    assert!(purgatory.has_reserved_share(Some(&flooding), SMALL));
    assert!(!purgatory.has_reserved_share(Some(&flooding), limits::MAX_RESERVED_BYTES_PER_SUBMITTER + 1));
    for nth in 0..limits::MAX_RESERVED_EVENTS_PER_SUBMITTER {
        let nth = 50_000 + nth;
        let state = held(nth, HeldKind::State(repo_id(nth).identifier), SMALL, Some(flooding.clone()));
        purgatory.insert(event_id(nth), HeldEvent { priority: HoldPriority::ServedState, ..state });
    }
    assert!(!purgatory.has_reserved_share(Some(&flooding), SMALL));
    assert!(purgatory.has_reserved_share(Some(&other), SMALL));
    // Capacity returns with each event.
    purgatory.remove(event_id(50_000));
    purgatory.remove(event_id(0));
    assert!(purgatory.has_reserved_share(Some(&flooding), SMALL));
    assert_eq!(rejection(&purgatory, &request(HoldPriority::NewRepository, SMALL, &flooding)), None);
    // Bytes are shared, too; a relay has a larger share.
    let relay = HeldSubmitter::Relay("relay.example".into());
    let mut purgatory = Purgatory::default();
    for (nth, submitter) in [flooding.clone(), relay.clone()].into_iter().enumerate() {
        purgatory.insert(event_id(nth), announcement(nth, limits::MAX_HELD_BYTES_PER_NETWORK, submitter));
    }
    assert_eq!(rejection(&purgatory, &request(HoldPriority::Other, 1, &flooding)), full);
    assert_eq!(rejection(&purgatory, &request(HoldPriority::Other, 1, &relay)), None);
    let rest = limits::MAX_HELD_BYTES_PER_RELAY - limits::MAX_HELD_BYTES_PER_NETWORK;
    purgatory.insert(event_id(2), announcement(2, rest, relay.clone()));
    assert_eq!(rejection(&purgatory, &request(HoldPriority::Other, 1, &relay)), full);
}

#[test]
fn states_of_served_repositories_use_the_reserved_part() {
    let mut purgatory = full_purgatory();
    let submitter = network(100);
    // Nothing has to be removed for them.
    let state = request(HoldPriority::ServedState, SMALL, &submitter);
    assert_eq!(purgatory.evictions(&state, |_| false), Some(Vec::new()));
    for nth in 0..limits::RESERVED_HELD_EVENTS {
        let nth = 50_000 + nth;
        let state = held(nth, HeldKind::State(repo_id(nth).identifier), SMALL, Some(network(nth)));
        purgatory.insert(event_id(nth), HeldEvent { priority: HoldPriority::ServedState, ..state });
    }
    // After that the oldest announcement of the network with the most is removed.
    assert_eq!(purgatory.evictions(&state, |_| false), Some(vec![event_id(0)]));
}

#[test]
fn oldest_announcement_without_a_state_is_removed_for_events_of_higher_value() {
    let mut purgatory = full_purgatory();
    let (small, large) = (network(100), network(0));
    let other = request(HoldPriority::Other, SMALL, &small);
    assert_eq!(purgatory.evictions(&other, |_| false), Some(vec![event_id(0)]));
    // One that a push needs stays, and one with a state of its author.
    assert_eq!(purgatory.evictions(&other, |id| id == event_id(0)), Some(vec![event_id(1)]));
    let state = held(0, HeldKind::State(repo_id(0).identifier), SMALL, Some(large.clone()));
    purgatory.insert(event_id(60_000), state);
    assert_eq!(purgatory.evictions(&other, |_| false), Some(vec![event_id(1), event_id(2)]));
    purgatory.remove(event_id(60_000));
    assert_eq!(purgatory.evictions(&other, |_| false), Some(vec![event_id(0)]));
    // An author's events do not remove its own.
    assert_eq!(purgatory.evictions(&HoldRequest { author: key(0), ..other }, |_| false), Some(vec![event_id(1)]));
    // A new announcement takes the place of one from a network that has more.
    let new = request(HoldPriority::NewRepository, SMALL, &small);
    assert_eq!(purgatory.evictions(&new, |_| false), Some(vec![event_id(0)]));
    let own = HoldRequest { submitter: Some(&large), ..new };
    assert_eq!(purgatory.evictions(&own, |_| false), None);
    // A large event needs the space of several, but not of too many.
    let mut purgatory = Purgatory::default();
    let count = 12_000;
    for nth in 0..count {
        let bytes = (limits::MAX_HELD_BYTES - limits::RESERVED_HELD_BYTES) / count;
        purgatory.insert(event_id(nth), announcement(nth, bytes, network(nth % 12)));
    }
    let state = request(HoldPriority::Other, 1024 * 1024, &small);
    let evicted = purgatory.evictions(&state, |_| false).expect("fits after evictions");
    assert!((2..limits::MAX_EVICTIONS_PER_EVENT).contains(&evicted.len()), "{}", evicted.len());
    let too_large = request(HoldPriority::Other, 8 * 1024 * 1024, &small);
    assert_eq!(rejection(&purgatory, &too_large), Some(Rejection::PurgatoryFull));
}

#[test]
fn larger_replacement_passes_the_byte_check() {
    let mut purgatory = Purgatory::default();
    let submitter = network(0);
    let old = HeldEvent { author: key(7), ..announcement(0, limits::MAX_HELD_BYTES_PER_AUTHOR, submitter.clone()) };
    purgatory.insert(event_id(0), old);
    let replaced = purgatory.get(event_id(0));
    let of =
        |bytes| HoldRequest { author: key(7), replaced, ..request(HoldPriority::NewRepository, bytes, &submitter) };
    assert_eq!(rejection(&purgatory, &of(limits::MAX_HELD_BYTES_PER_AUTHOR)), None);
    assert_eq!(rejection(&purgatory, &of(limits::MAX_HELD_BYTES_PER_AUTHOR + 1)), Some(Rejection::TooManyHeld));
}
