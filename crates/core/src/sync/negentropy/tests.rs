use super::*;
use crate::nostr::negentropy::{NegentropySet, respond};

const FRAME: usize = 60_000;

/// The implementation that responds.
enum Responder {
    Ours(NegentropySet),
    Theirs(Box<Initiator>),
}

impl Responder {
    fn answer(&mut self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Ours(set) => respond(set, message, FRAME).expect("valid message for our responder"),
            Self::Theirs(responder) => responder.reconcile(message).expect("valid message for the crate"),
        }
    }
}

fn responders(items: &[NegentropyItem]) -> [Responder; 2] {
    let mut storage = NegentropyStorageVector::new();
    for item in items {
        storage.insert(item.created_at, Id::from_byte_array(item.id)).expect("not sealed");
    }
    storage.seal().expect("once");
    let theirs = Negentropy::owned(storage, FRAME as u64).expect("a large frame");
    [Responder::Ours(NegentropySet::from_items(items.to_vec())), Responder::Theirs(Box::new(theirs))]
}

/// Runs a complete session.
fn run_session(
    ours: &[NegentropyItem],
    responder: &mut Responder,
    frame: usize,
) -> (NegentropyStep, NegentropySession) {
    let (mut session, mut message) = NegentropySession::start(ours, frame);
    loop {
        assert!(message.len() <= frame);
        match session.handle_message(&responder.answer(&message)) {
            NegentropyStep::Send(next) => message = next,
            step => return (step, session),
        }
    }
}

#[test]
fn both_responders_yield_exactly_the_difference() {
    let mut rng = Rng(11);
    for size in [0, 1, 31, 32, 33, 400, 3_000, 50_000] {
        for percent in [0, 1, 4] {
            for seconds in [1, 1_000, 10_000_000] {
                if size == 50_000 && (seconds != 1_000 || percent == 0) {
                    continue;
                }
                let shared = rng.items(size, seconds);
                let extra = if percent == 0 { 0 } else { size * percent / 100 + 1 };
                let (mine, yours) = (rng.items(extra, seconds), rng.items(extra, seconds));
                let ours = [shared.clone(), mine.clone()].concat();
                let theirs = [shared, yours.clone()].concat();
                for mut responder in responders(&theirs) {
                    let (step, mut session) = run_session(&ours, &mut responder, FRAME);
                    let what = format!("{size} {percent} {seconds}: {} rounds", session.rounds());
                    assert_eq!(step, NegentropyStep::Done, "{what}");
                    assert!(session.take_needed() == ids(&yours) && session.missing_remotely() == ids(&mine), "{what}");
                    assert!(session.take_needed().is_empty(), "already taken");
                    assert_eq!(session.handle_message(&[0x61]), NegentropyStep::ProtocolError, "the session has ended");
                }
            }
        }
    }
}

#[test]
fn small_frames_lose_no_ids() {
    let mut rng = Rng(12);
    let shared = rng.items(2_000, 500);
    let (mine, yours) = (rng.items(40, 500), rng.items(60, 500));
    for mut responder in responders(&[shared.clone(), yours.clone()].concat()) {
        // A frame below the minimum of the protocol is raised to it.
        let (mut session, mut message) = NegentropySession::start(&[shared.clone(), mine.clone()].concat(), 1);
        while let NegentropyStep::Send(next) = session.handle_message(&responder.answer(&message)) {
            assert!(next.len() <= MIN_FRAME_BYTES);
            message = next;
        }
        assert!(session.take_needed() == ids(&yours) && session.missing_remotely() == ids(&mine));
    }
}

#[test]
fn the_same_sets_give_the_same_messages() {
    let mut rng = Rng(13);
    let (ours, theirs) = (rng.items(2_000, 100), rng.items(2_000, 100));
    let run = |items: &[NegentropyItem]| {
        let mut sent = Vec::new();
        let mut responder = Responder::Ours(NegentropySet::from_items(theirs.clone()));
        let (mut session, mut message) = NegentropySession::start(items, FRAME);
        while let NegentropyStep::Send(next) = session.handle_message(&responder.answer(&message)) {
            sent.push(std::mem::replace(&mut message, next));
        }
        (sent, session.take_needed(), session.missing_remotely().to_vec())
    };
    let mut reordered = ours.clone();
    reordered.reverse();
    reordered.extend(ours.iter().take(50).copied());
    assert!(run(&ours) == run(&reordered));
}

#[test]
fn own_id_with_another_time_is_not_needed() {
    let ours = NegentropyItem { created_at: 100, id: [7; 32] };
    let theirs = NegentropyItem { created_at: 900, id: [7; 32] };
    let (step, mut session) =
        run_session(&[ours], &mut Responder::Ours(NegentropySet::from_items(vec![theirs])), FRAME);
    assert_eq!((step, session.take_needed()), (NegentropyStep::Done, vec![]));
    // An item at infinity cannot be sent, but we have it nevertheless.
    let endless = NegentropyItem { created_at: u64::MAX, id: [8; 32] };
    let theirs = NegentropyItem { created_at: 900, id: [8; 32] };
    let (step, mut session) =
        run_session(&[endless], &mut Responder::Ours(NegentropySet::from_items(vec![theirs])), FRAME);
    assert_eq!((step, session.take_needed()), (NegentropyStep::Done, vec![]));
}

#[test]
fn large_differences_fall_back_to_pages() {
    let mut rng = Rng(14);
    let (ours, theirs) = (rng.items(20_000, 1_000_000), rng.items(20_000, 1_000_000));
    for mut responder in responders(&theirs) {
        let (step, session) = run_session(&ours, &mut responder, FRAME);
        assert_eq!(step, NegentropyStep::TooDifferent);
        assert!((limits::NEGENTROPY_DENSE_ROUNDS..24).contains(&session.rounds()), "{}", session.rounds());
    }
    // Small sets are compared completely, even if everything differs.
    let (ours, theirs) = (rng.items(300, 1_000_000), rng.items(300, 1_000_000));
    for mut responder in responders(&theirs) {
        let (step, mut session) = run_session(&ours, &mut responder, FRAME);
        assert_eq!((step, session.take_needed() == ids(&theirs)), (NegentropyStep::Done, true));
    }
}

// Misbehaving relays

#[test]
fn relay_that_never_agrees_ends_after_64_rounds() {
    let ours = Rng(15).items(5_000, 1_000);
    let (mut session, _) = NegentropySession::start(&ours, FRAME);
    // One fingerprint over everything that never matches.
    let message = [vec![0x61, 0, 0, 1], vec![0xee; 16]].concat();
    for _ in 1..limits::MAX_NEGENTROPY_ROUNDS {
        assert!(matches!(session.handle_message(&message), NegentropyStep::Send(_)));
    }
    assert_eq!(session.handle_message(&message), NegentropyStep::TooLarge);
    assert_eq!(session.rounds(), limits::MAX_NEGENTROPY_ROUNDS);
    assert_eq!(session.handle_message(&message), NegentropyStep::ProtocolError);
}

#[test]
fn relay_with_too_many_needed_ids_ends_at_the_bound() {
    let mut rng = Rng(16);
    let (mut session, _) = NegentropySession::start(&rng.items(60_000, 1_000), FRAME);
    let mut ids_so_far = 0;
    loop {
        // 20,000 ids, and a fingerprint so that the session continues.
        let list: Vec<u8> = (0..20_000).flat_map(|_| rng.id()).collect();
        let head = [0x61, 2, 0, 2, 0x81, 0x9c, 0x20];
        let message = [&head[..], &list, &[0, 0, 1], &[0xee; 16]].concat();
        ids_so_far += 20_000;
        match session.handle_message(&message) {
            NegentropyStep::Send(answer) => assert!(answer.len() <= FRAME),
            step => {
                assert_eq!((step, ids_so_far), (NegentropyStep::TooLarge, 120_000));
                break;
            }
        }
        // Taking the ids does not reset the count.
        assert_eq!(session.take_needed().len(), 20_000);
    }
}

#[test]
fn repeated_missing_ids_use_no_extra_memory() {
    let ours = Rng(17).items(10_000, 1_000);
    let (mut session, _) = NegentropySession::start(&ours, FRAME);
    // An empty list up to the middle, then a fingerprint.
    let message = [&[0x61, 0x8b, 0x5d, 0, 2, 0, 0, 0, 1][..], &[0xee; 16]].concat();
    while let NegentropyStep::Send(_) = session.handle_message(&message) {}
    assert!(session.missing_remotely().len() <= ours.len());
    assert!(session.missing_remotely().is_sorted());
    assert_eq!(session.rounds(), limits::NEGENTROPY_DENSE_ROUNDS);
}

#[test]
fn invalid_messages_are_protocol_errors() {
    for message in [&[][..], &[0x60], &[0x62, 0, 0], &[0x00], &[0x7b, 0x7d], &[0x61, 0, 0, 2, 1], &[0x61, 0, 0, 3]] {
        let (mut session, _) = NegentropySession::start(&Rng(18).items(100, 10), FRAME);
        assert_eq!(session.handle_message(message), NegentropyStep::ProtocolError, "{message:02x?}");
    }
}

#[test]
fn random_messages_neither_panic_nor_grow() {
    let mut rng = Rng(19);
    let ours = rng.items(300, 60);
    let theirs = rng.items(300, 60);
    // Answers of a correct session, to be mutated.
    let mut corpus = Vec::new();
    let mut responder = Responder::Ours(NegentropySet::from_items([&ours[..200], &theirs].concat()));
    let (mut session, mut message) = NegentropySession::start(&ours, MIN_FRAME_BYTES);
    loop {
        let answer = responder.answer(&message);
        corpus.push(answer.clone());
        match session.handle_message(&answer) {
            NegentropyStep::Send(next) => message = next,
            _ => break,
        }
    }
    let here: BTreeSet<EventId> = ids(&ours).into_iter().collect();
    let mut continued = 0;
    let (mut session, _) = NegentropySession::start(&ours, MIN_FRAME_BYTES);
    for round in 0..30_000 {
        let mut message = if round % 2 == 0 {
            corpus[rng.below(corpus.len())].clone()
        } else {
            let mut noise: Vec<u8> = (0..rng.below(300)).map(|_| rng.below(256) as u8).collect();
            // Small numbers are parsed further than large ones.
            noise.iter_mut().filter(|byte| **byte % 3 > 0).for_each(|byte| *byte %= 4);
            noise.insert(0, 0x61);
            noise
        };
        for _ in 0..rng.below(6) {
            let at = rng.below(message.len());
            match rng.below(4) {
                0 => message[at] ^= 1 << rng.below(8),
                1 => message.truncate(at.max(1)),
                2 => message.insert(at, [0, 1, 2, 0xff][rng.below(4)]),
                _ => drop(message.drain(at..(at + 8).min(message.len()))),
            }
            if message.is_empty() {
                break;
            }
        }
        match session.handle_message(&message) {
            NegentropyStep::Send(answer) => {
                continued += 1;
                assert!(answer.len() <= MIN_FRAME_BYTES);
            }
            _ => {
                assert!(session.missing_remotely().len() <= ours.len());
                let need = session.take_needed();
                assert!(need.is_sorted() && need.iter().all(|id| !here.contains(id)));
                session = NegentropySession::start(&ours, MIN_FRAME_BYTES).0;
            }
        }
    }
    assert!(continued > 1_000, "{continued}");
}

fn ids(items: &[NegentropyItem]) -> Vec<EventId> {
    let mut ids: Vec<EventId> = items.iter().map(|item| EventId(item.id)).collect();
    ids.sort_unstable();
    ids
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn id(&mut self) -> [u8; 32] {
        let mut id = [0; 32];
        id.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&self.next().to_be_bytes()));
        id
    }

    fn items(&mut self, count: usize, seconds: usize) -> Vec<NegentropyItem> {
        (0..count).map(|_| NegentropyItem { created_at: 1_000 + self.below(seconds) as u64, id: self.id() }).collect()
    }
}
