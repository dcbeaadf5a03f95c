use super::*;
use crate::nostr::negentropy::{NegentropySet, respond};

const FRAME: usize = 60_000;

/// Who answers.
enum Responder {
    Ours(NegentropySet),
    Theirs(Box<Initiator>),
}

impl Responder {
    fn answer(&mut self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Ours(set) => respond(set, message, FRAME).expect("our responder understands"),
            Self::Theirs(party) => party.reconcile(message).expect("the crate's responder understands"),
        }
    }
}

fn responders(items: &[NegentropyItem]) -> [Responder; 2] {
    let mut storage = NegentropyStorageVector::new();
    for item in items {
        storage.insert(item.created_at, Id::from_byte_array(item.id)).expect("not sealed");
    }
    storage.seal().expect("once");
    let party = Negentropy::owned(storage, FRAME as u64).expect("a large frame");
    [Responder::Ours(NegentropySet::from_items(items.to_vec())), Responder::Theirs(Box::new(party))]
}

/// Plays until there is nothing to say.
fn play(ours: &[NegentropyItem], responder: &mut Responder, frame: usize) -> (NegentropyStep, NegentropySession) {
    let (mut nego, mut message) = NegentropySession::start(ours, frame);
    loop {
        assert!(message.len() <= frame);
        match nego.handle_message(&responder.answer(&message)) {
            NegentropyStep::Send(next) => message = next,
            turn => return (turn, nego),
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
                    let (turn, mut nego) = play(&ours, &mut responder, FRAME);
                    let what = format!("{size} {percent} {seconds}: {} rounds", nego.rounds());
                    assert_eq!(turn, NegentropyStep::Done, "{what}");
                    assert!(nego.take_needed() == ids(&yours) && nego.missing_remotely() == ids(&mine), "{what}");
                    assert_eq!(nego.item_count(), ours.len());
                    assert!(nego.take_needed().is_empty(), "taken away");
                    assert_eq!(nego.handle_message(&[0x61]), NegentropyStep::ProtocolError, "it is over");
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
        // Below the smallest frame of the protocol it is that.
        let (mut nego, mut message) = NegentropySession::start(&[shared.clone(), mine.clone()].concat(), 1);
        while let NegentropyStep::Send(next) = nego.handle_message(&responder.answer(&message)) {
            assert!(next.len() <= MIN_FRAME_BYTES);
            message = next;
        }
        assert!(nego.take_needed() == ids(&yours) && nego.missing_remotely() == ids(&mine));
    }
}

#[test]
fn the_same_sets_give_the_same_messages() {
    let mut rng = Rng(13);
    let (ours, theirs) = (rng.items(2_000, 100), rng.items(2_000, 100));
    let run = |items: &[NegentropyItem]| {
        let mut said = Vec::new();
        let mut responder = Responder::Ours(NegentropySet::from_items(theirs.clone()));
        let (mut nego, mut message) = NegentropySession::start(items, FRAME);
        while let NegentropyStep::Send(next) = nego.handle_message(&responder.answer(&message)) {
            said.push(std::mem::replace(&mut message, next));
        }
        (said, nego.take_needed(), nego.missing_remotely().to_vec())
    };
    let mut turned = ours.clone();
    turned.reverse();
    turned.extend(ours.iter().take(50).copied());
    assert!(run(&ours) == run(&turned));
}

#[test]
fn own_id_with_another_time_is_not_needed() {
    let ours = NegentropyItem { created_at: 100, id: [7; 32] };
    let theirs = NegentropyItem { created_at: 900, id: [7; 32] };
    let (turn, mut nego) = play(&[ours], &mut Responder::Ours(NegentropySet::from_items(vec![theirs])), FRAME);
    assert_eq!((turn, nego.take_needed()), (NegentropyStep::Done, vec![]));
    // The end of time is on no wire, but is here nevertheless.
    let endless = NegentropyItem { created_at: u64::MAX, id: [8; 32] };
    let theirs = NegentropyItem { created_at: 900, id: [8; 32] };
    let (turn, mut nego) = play(&[endless], &mut Responder::Ours(NegentropySet::from_items(vec![theirs])), FRAME);
    assert_eq!((turn, nego.take_needed()), (NegentropyStep::Done, vec![]));
}

#[test]
fn large_differences_fall_back_to_pages() {
    let mut rng = Rng(14);
    let (ours, theirs) = (rng.items(20_000, 1_000_000), rng.items(20_000, 1_000_000));
    for mut responder in responders(&theirs) {
        let (turn, nego) = play(&ours, &mut responder, FRAME);
        assert_eq!(turn, NegentropyStep::TooDifferent);
        assert!((limits::NEGENTROPY_DENSE_ROUNDS..24).contains(&nego.rounds()), "{}", nego.rounds());
    }
    // A few rounds are worth it, whatever differs.
    let (ours, theirs) = (rng.items(300, 1_000_000), rng.items(300, 1_000_000));
    for mut responder in responders(&theirs) {
        let (turn, mut nego) = play(&ours, &mut responder, FRAME);
        assert_eq!((turn, nego.take_needed() == ids(&theirs)), (NegentropyStep::Done, true));
    }
}

// ---- Relays that lie ----------------------------------------------------------------------------

#[test]
fn relay_that_never_agrees_ends_after_64_rounds() {
    let ours = Rng(15).items(5_000, 1_000);
    let (mut nego, _) = NegentropySession::start(&ours, FRAME);
    // One fingerprint to infinity that is never right.
    let message = [vec![0x61, 0, 0, 1], vec![0xee; 16]].concat();
    for _ in 1..limits::MAX_NEGENTROPY_ROUNDS {
        assert!(matches!(nego.handle_message(&message), NegentropyStep::Send(_)));
    }
    assert_eq!(nego.handle_message(&message), NegentropyStep::TooLarge);
    assert_eq!(nego.rounds(), limits::MAX_NEGENTROPY_ROUNDS);
    assert_eq!(nego.handle_message(&message), NegentropyStep::ProtocolError);
}

#[test]
fn relay_with_too_many_needed_ids_ends_at_the_bound() {
    let mut rng = Rng(16);
    let (mut nego, _) = NegentropySession::start(&rng.items(60_000, 1_000), FRAME);
    let mut ids_so_far = 0;
    loop {
        // 20,000 ids, and a fingerprint so that it goes on.
        let list: Vec<u8> = (0..20_000).flat_map(|_| rng.id()).collect();
        let head = [0x61, 2, 0, 2, 0x81, 0x9c, 0x20];
        let message = [&head[..], &list, &[0, 0, 1], &[0xee; 16]].concat();
        ids_so_far += 20_000;
        match nego.handle_message(&message) {
            NegentropyStep::Send(answer) => assert!(answer.len() <= FRAME),
            turn => {
                assert_eq!((turn, ids_so_far), (NegentropyStep::TooLarge, 120_000));
                break;
            }
        }
        // Taking them away does not start the count anew.
        assert_eq!(nego.take_needed().len(), 20_000);
    }
}

#[test]
fn repeated_missing_ids_use_no_extra_memory() {
    let ours = Rng(17).items(10_000, 1_000);
    let (mut nego, _) = NegentropySession::start(&ours, FRAME);
    // An empty list up to the middle, then a fingerprint.
    let message = [&[0x61, 0x8b, 0x5d, 0, 2, 0, 0, 0, 1][..], &[0xee; 16]].concat();
    while let NegentropyStep::Send(_) = nego.handle_message(&message) {}
    assert!(nego.missing_remotely().len() <= ours.len());
    assert!(nego.missing_remotely().is_sorted());
    assert_eq!(nego.rounds(), limits::NEGENTROPY_DENSE_ROUNDS);
}

#[test]
fn invalid_messages_are_protocol_errors() {
    for message in [&[][..], &[0x60], &[0x62, 0, 0], &[0x00], &[0x7b, 0x7d], &[0x61, 0, 0, 2, 1], &[0x61, 0, 0, 3]] {
        let (mut nego, _) = NegentropySession::start(&Rng(18).items(100, 10), FRAME);
        assert_eq!(nego.handle_message(message), NegentropyStep::ProtocolError, "{message:02x?}");
    }
}

#[test]
fn random_messages_neither_panic_nor_grow() {
    let mut rng = Rng(19);
    let ours = rng.items(300, 60);
    let theirs = rng.items(300, 60);
    // Answers of an honest session, to be broken.
    let mut corpus = Vec::new();
    let mut responder = Responder::Ours(NegentropySet::from_items([&ours[..200], &theirs].concat()));
    let (mut nego, mut message) = NegentropySession::start(&ours, MIN_FRAME_BYTES);
    loop {
        let answer = responder.answer(&message);
        corpus.push(answer.clone());
        match nego.handle_message(&answer) {
            NegentropyStep::Send(next) => message = next,
            _ => break,
        }
    }
    let here: BTreeSet<EventId> = ids(&ours).into_iter().collect();
    let mut went_on = 0;
    let (mut nego, _) = NegentropySession::start(&ours, MIN_FRAME_BYTES);
    for round in 0..30_000 {
        let mut message = if round % 2 == 0 {
            corpus[rng.below(corpus.len())].clone()
        } else {
            let mut noise: Vec<u8> = (0..rng.below(300)).map(|_| rng.below(256) as u8).collect();
            // Small numbers make more sense to a parser than large ones.
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
        match nego.handle_message(&message) {
            NegentropyStep::Send(answer) => {
                went_on += 1;
                assert!(answer.len() <= MIN_FRAME_BYTES);
            }
            _ => {
                assert!(nego.missing_remotely().len() <= ours.len());
                let need = nego.take_needed();
                assert!(need.is_sorted() && need.iter().all(|id| !here.contains(id)));
                nego = NegentropySession::start(&ours, MIN_FRAME_BYTES).0;
            }
        }
    }
    assert!(went_on > 1_000, "{went_on}");
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
