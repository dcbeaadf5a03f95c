//! Tests of the negentropy responder: test vectors, comparison with the `negentropy` crate, and malformed messages.

use grasp_core::nostr::negentropy::{MIN_FRAME_BYTES, NegentropyError, NegentropyItem, NegentropySet, respond};
use negentropy::{Id, Negentropy, NegentropyStorageVector};

// Test vectors

#[test]
fn fingerprints_match_the_specification() {
    let a = item(5, [0xaa; 32]);
    let b = item(9, [0xbb; 32]);
    let vectors: [(&[NegentropyItem], &str); 3] = [
        (&[], "7f9c9e31ac8256ca2f258583df262dbc"),
        (&[a], "42b5d6e9a824e972398bfe0b80a84fb2"),
        (&[a, b], "2e77f59864f98c80d0cef0915e063b05"),
    ];
    for (items, fingerprint) in vectors {
        let set = NegentropySet::from_items(items.to_vec());
        let message = hex(&format!("61 0000 01 {fingerprint}"));
        assert_eq!(respond(&set, &message, 0), Ok(vec![0x61]), "{fingerprint}");
    }
}

#[test]
fn empty_client_receives_all_ids() {
    let set = NegentropySet::from_items(vec![item(1, [0xaa; 32]), item(2, [0xbb; 32])]);
    let answer = respond(&set, &hex("6100000200"), 0);
    let expected = hex(&format!("6100000202 {} {}", "aa".repeat(32), "bb".repeat(32)));
    assert_eq!(answer, Ok(expected));
}

#[test]
fn forty_items_are_split_as_specified() {
    let items: Vec<NegentropyItem> = (0..40).map(|n| item(1_700_000_000 + n, [n as u8; 32])).collect();
    let answer =
        respond(&NegentropySet::from_items(items.clone()), &differing_fingerprint(), 0).expect("the message is valid");
    assert_eq!(answer.len(), 309);
    assert!(answer.starts_with(&hex("61 86aacfe204 00 01")));
    assert!(answer[1 + 23..].starts_with(&hex("04 00 01")));
    // Eight buckets of three, then eight of two, the first bound being the long one.
    let bounds: Vec<u8> = answer[1 + 23..].chunks_exact(19).map(|range| range[0]).collect();
    assert_eq!(bounds, [4, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 0]);
    assert!(answer[309 - 19..].starts_with(&hex("00 00 01")));
    // An initiator opens with the same split, so the message is the same.
    assert_eq!(answer, instance(&storage(&items), 0).initiate().expect("first use"));
}

#[test]
fn items_of_one_second_are_separated_by_the_shortest_prefix() {
    let mut items = vec![item(7, [0; 32]), item(7, id("ab12")), item(7, id("ab1f"))];
    items.extend((0..29).map(|n| item(7, [0xc0 + n; 32])));
    let answer = respond(&NegentropySet::from_items(items), &differing_fingerprint(), 0).expect("the message is valid");
    assert!(answer.starts_with(&hex("61 08 02ab1f 01")));
}

#[test]
fn varints_use_the_fewest_bytes() {
    let nothing = NegentropySet::from_items(Vec::new());
    // An empty list is answered with an empty list and the same bound.
    for (sent, echoed) in [
        ("7f", "7f"),
        ("8100", "8100"),
        ("822c", "822c"),
        ("86aacfe201", "86aacfe201"),
        ("8080822c", "822c"),
        // The last time before infinity.
        ("81ffffffffffffffff7f", "81ffffffffffffffff7f"),
    ] {
        let message = hex(&format!("61 {sent} 00 02 00"));
        let expected = hex(&format!("61 {echoed} 00 02 00"));
        assert_eq!(respond(&nothing, &message, 0), Ok(expected), "{sent}");
    }
}

#[test]
fn gap_between_lists_is_skipped_and_trailing_skip_is_omitted() {
    let set = NegentropySet::from_items((0..4).map(|n| item(10 * n, [n as u8; 32])).collect());
    // Up to 5 a list, up to 15 and up to 25 nothing, up to 35 a list, then nothing.
    let message = hex("61 06 00 02 00  0b 00 00  0b 00 00  0b 00 02 00  00 00 00");
    let expected = format!("61 06 00 02 01 {}  15 00 00  0b 00 02 01 {}", "00".repeat(32), "03".repeat(32));
    assert_eq!(respond(&set, &message, 0), Ok(hex(&expected)));
}

#[test]
fn unknown_version_is_answered_with_our_version() {
    let set = NegentropySet::from_items(vec![item(1, [1; 32])]);
    for version in (0x60..=0x6f).filter(|version| *version != 0x61) {
        // The rest of a message with an unknown version is not parsed.
        let message = [version, 0xff, 0xff];
        assert_eq!(respond(&set, &message, 0), Ok(vec![0x61]));
    }
    assert_eq!(respond(&set, &[0x61], 0), Ok(vec![0x61]));
}

// The set

#[test]
fn set_is_sorted_and_has_no_duplicates() {
    let (a, b, c) = (item(1, [9; 32]), item(2, [1; 32]), item(2, [2; 32]));
    let at_infinity = item(u64::MAX, [3; 32]);
    let set = NegentropySet::from_items(vec![c, a, at_infinity, b, a, c]);
    assert_eq!(set.len(), 3);
    assert!(!set.is_empty());
    assert!(NegentropySet::from_items(vec![at_infinity]).is_empty());
    assert_eq!(
        respond(&set, &hex("6100000200"), 0),
        respond(&NegentropySet::from_items(vec![a, b, c]), &hex("6100000200"), 0)
    );
}

#[test]
fn set_uses_little_more_than_forty_bytes_per_item() {
    let mut items = Rng(7).items(3_000, Times::Spread);
    items.reserve(100_000);
    let bytes = NegentropySet::from_items(items).memory_bytes();
    assert!((120_000..121_000).contains(&bytes), "{bytes}");
}

// Comparison with the `negentropy` crate

#[test]
fn initiator_finds_exactly_the_difference() {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let limits = [(0, 0), (MIN_FRAME_BYTES, 0), (60_000, 0), (MIN_FRAME_BYTES, MIN_FRAME_BYTES)];
    let sizes = [0, 1, 2, 31, 32, 33, 255, 256, 257, 513, 1_000, 5_000];
    for times in [Times::Spread, Times::Few, Times::One] {
        for size in sizes {
            for overlap_percent in [0, 50, 99, 100] {
                let (ours, theirs) = rng.pair(size, overlap_percent, times);
                let case = Case::new(&ours, &theirs);
                for (limit, their_limit) in limits {
                    let name = format!("{times:?} {size} {overlap_percent}% {limit} {their_limit}");
                    case.check(limit, their_limit, &name);
                }
            }
        }
    }
}

#[test]
fn sets_of_unequal_size_are_reconciled() {
    let mut rng = Rng(42);
    for _ in 0..40 {
        let (mut ours, mut theirs) = rng.pair(1_500, 70, Times::Few);
        ours.truncate(rng.below(1_501));
        theirs.truncate(rng.below(1_501));
        let case = Case::new(&ours, &theirs);
        for limit in [0, MIN_FRAME_BYTES, MIN_FRAME_BYTES + rng.below(4_000)] {
            case.check(limit, 0, "unequal");
        }
    }
}

/// Both sides limit their frames, and a frame ends in ranges where one side has no items. A remainder fingerprint from
/// the wrong index would lose items here.
#[test]
fn frame_limits_on_both_sides_lose_no_ids() {
    let mut rng = Rng(1_234_567);
    let shared: Vec<NegentropyItem> = (0..1_500).map(|n| item(1_000 + n * 10, rng.id())).collect();
    let (mut ours, mut theirs) = (shared.clone(), shared);
    ours.extend((0..15).map(|n| item(1_005 + n * 1_000, rng.id())));
    theirs.extend((0..70).map(|n| item(1_201 + n / 35 * 1_000 + n % 8, rng.id())));
    theirs.extend((0..110).map(|n| item(50_000 + n * 10, rng.id())));
    let the_initiator_has_the_newest = Case::new(&ours, &theirs);
    let we_have_the_newest = Case::new(&theirs, &ours);
    for limit in [4_096, 4_500, 4_767, 5_000, 8_000] {
        the_initiator_has_the_newest.check(limit, 4_096, "the initiator has the newest");
        we_have_the_newest.check(limit, 4_096, "we have the newest");
    }
}

#[test]
fn equal_sets_are_answered_with_the_version_alone() {
    let mut rng = Rng(3);
    for size in [0, 1, 31, 32, 300, 5_000] {
        let items = rng.items(size, Times::Few);
        let opening = instance(&storage(&items), 0).initiate().expect("first use");
        let answer = respond(&NegentropySet::from_items(items.clone()), &opening, MIN_FRAME_BYTES);
        // With fewer than 32 items an initiator opens with its ids, and a list is answered with a list.
        if size < 32 {
            assert_eq!(answer.expect("valid").len(), 5 + 32 * size);
        } else {
            assert_eq!(answer, Ok(vec![0x61]));
        }
    }
}

/// Ids that are zero, one, or all ones in some low words, so that carries and borrows pass through the sum.
#[test]
fn id_sums_carry_and_borrow_across_all_limbs() {
    let mut rng = Rng(77);
    // The fewer ids are not zero, the more often a range leaves a word unchanged.
    for zeroes in [1, 30, 300, 3_000] {
        let items: Vec<NegentropyItem> = (0..10_000)
            .map(|n| {
                let mut id = [0; 32];
                match rng.below(zeroes + 2) {
                    0 => id[0] = 1,
                    1 => id[..8 * (1 + rng.below(4))].fill(0xff),
                    _ => {}
                }
                item(n, id)
            })
            .collect();
        // Sixteen buckets of 625 items, which is more than are summed item by item.
        let opening = instance(&storage(&items), 0).initiate().expect("first use");
        let set = NegentropySet::from_items(items);
        assert_eq!(respond(&set, &opening, 0), Ok(vec![0x61]));
    }
}

#[test]
fn small_frame_limit_is_raised_and_a_cut_list_resumes_at_the_first_unsent_item() {
    let items = Rng(11).items(1_000, Times::One);
    let set = NegentropySet::from_items(items);
    let opening = hex("6100000200");
    let answer = respond(&set, &opening, 1).expect("valid");
    assert_eq!(Ok(answer.clone()), respond(&set, &opening, MIN_FRAME_BYTES));
    assert!(answer.len() > MIN_FRAME_BYTES - 200 && answer.len() <= MIN_FRAME_BYTES);

    // A time, then a whole id as the bound, then the list, then a fingerprint to infinity.
    let all = respond(&set, &opening, 0).expect("valid");
    let ids = &all[all.len() - 32_000..];
    let start = answer.len() - 19;
    assert!(answer[start..].starts_with(&hex("00 00 01")));
    let count = 122;
    assert_eq!(answer[start - 32 * count..start], ids[..32 * count]);
    let bound = &answer[start - 32 * count - 34..start - 32 * count - 2];
    assert_eq!(*bound, ids[32 * count..][..32]);
}

/// Two sets to be reconciled, and the differences that the initiator should find.
struct Case {
    set: NegentropySet,
    ours: NegentropyStorageVector,
    theirs: NegentropyStorageVector,
    have: Vec<[u8; 32]>,
    need: Vec<[u8; 32]>,
    items: usize,
}

impl Case {
    fn new(ours: &[NegentropyItem], theirs: &[NegentropyItem]) -> Self {
        Self {
            set: NegentropySet::from_items(ours.to_vec()),
            ours: storage(ours),
            theirs: storage(theirs),
            have: difference(theirs, ours),
            need: difference(ours, theirs),
            items: ours.len() + theirs.len(),
        }
    }

    /// Runs a complete session with the crate as initiator, and compares every answer with that of its responder.
    fn check(&self, limit: usize, their_limit: usize, name: &str) {
        let mut initiator = instance(&self.theirs, their_limit);
        let mut reference = instance(&self.ours, limit);

        let (mut have, mut need) = (Vec::new(), Vec::new());
        let mut message = initiator.initiate().expect("first use");
        let mut rounds = 0;
        loop {
            rounds += 1;
            let answer = respond(&self.set, &message, limit).expect(name);
            assert!(limit == 0 || answer.len() <= limit, "{name}");
            assert!(
                Ok(&answer) == reference.reconcile(&message).as_ref(),
                "{name}: round {rounds} differs from the crate"
            );
            match initiator.reconcile_with_ids(&answer, &mut have, &mut need) {
                Ok(Some(next)) => message = next,
                Ok(None) => break,
                Err(error) => panic!("{name}: the crate rejected our answer: {error}"),
            }
            assert!(rounds < round_bound(self.items, limit, their_limit), "{name}");
        }

        for (what, ids, expected) in [("have", have, &self.have), ("need", need, &self.need)] {
            let mut ids: Vec<[u8; 32]> = ids.iter().map(|id| id.to_bytes()).collect();
            ids.sort_unstable();
            // A full frame repeats ranges that were settled before, so an id may be reported twice.
            if limit > 0 || their_limit > 0 {
                ids.dedup();
            }
            // Not assert_eq, which would print thousands of ids.
            assert!(ids == *expected, "{name}: wrong ids in `{what}`");
        }
    }
}

/// Maximum number of rounds: four splits divide 5,000 items into ranges of fewer than 32, and each further round sends
/// a full frame.
fn round_bound(items: usize, limit: usize, their_limit: usize) -> usize {
    let frame = [limit, their_limit].into_iter().filter(|limit| *limit > 0).min();
    6 + frame.map_or(0, |frame| 2 * 32 * items / (frame - 200))
}

fn difference(items: &[NegentropyItem], without: &[NegentropyItem]) -> Vec<[u8; 32]> {
    let mut without = without.to_vec();
    without.sort_unstable();
    let mut ids: Vec<[u8; 32]> =
        items.iter().filter(|item| without.binary_search(item).is_err()).map(|item| item.id).collect();
    ids.sort_unstable();
    ids
}

// Malformed and unusual messages

#[test]
fn malformed_messages_are_rejected_with_the_reason() {
    use NegentropyError::*;
    let fingerprint = "00".repeat(16);
    let ids = "11".repeat(32);
    let table: Vec<(String, NegentropyError)> = vec![
        ("".into(), Empty),
        ("5f".into(), NotNegentropy { first: 0x5f }),
        ("70 0000 02 00".into(), NotNegentropy { first: 0x70 }),
        ("00".into(), NotNegentropy { first: 0 }),
        // Messages that end after each part of a range.
        ("61 80".into(), EndsEarly),
        ("61 00".into(), EndsEarly),
        ("61 00 80".into(), EndsEarly),
        ("61 05 02 ab".into(), EndsEarly),
        ("61 05 20".into(), EndsEarly),
        ("61 00 00".into(), EndsEarly),
        ("61 00 00 81".into(), EndsEarly),
        ("61 00 00 01".into(), EndsEarly),
        (format!("61 00 00 01 {}", &fingerprint[2..]), EndsEarly),
        ("61 00 00 02".into(), EndsEarly),
        (format!("61 05 00 01 {fingerprint} 05"), EndsEarly),
        // 2^64 in each position of a number.
        ("61 82808080808080808000".into(), NumberTooBig),
        ("61 00 82808080808080808000".into(), NumberTooBig),
        ("61 00 00 82808080808080808000".into(), NumberTooBig),
        ("61 00 00 02 82808080808080808000".into(), NumberTooBig),
        ("61 ffffffffffffffffffffffff7f".into(), NumberTooBig),
        // Two bounds whose times are valid alone, but not as a sum.
        ("61 81ffffffffffffffff7f 00 00 03 00 00".into(), TimeTooBig),
        ("61 00 00 00 02 00 00".into(), TimeTooBig),
        ("61 00 21".into(), PrefixTooLong { length: 33 }),
        (format!("61 05 21 {ids} 11 00"), PrefixTooLong { length: 33 }),
        ("61 05 81ffffffffffffffff7f".into(), PrefixTooLong { length: u64::MAX }),
        // The same second, a smaller prefix.
        ("61 05 01ab 00 01 01aa 00".into(), BoundsDescend),
        ("61 05 01ab 00 01 00 00".into(), BoundsDescend),
        ("61 05 02ab01 00 01 01ab 00".into(), BoundsDescend),
        ("61 00 01ab 00 00 00 00".into(), BoundsDescend),
        ("61 00 00 03".into(), UnknownMode { mode: 3 }),
        ("61 00 00 8200".into(), UnknownMode { mode: 256 }),
        ("61 00 00 8202 00".into(), UnknownMode { mode: 258 }),
        ("61 00 00 02 01".into(), MissingIds { announced: 1 }),
        (format!("61 00 00 02 01 {}", &ids[2..]), MissingIds { announced: 1 }),
        (format!("61 00 00 02 02 {ids}"), MissingIds { announced: 2 }),
        ("61 00 00 02 c080808000".into(), MissingIds { announced: 1 << 34 }),
        // 2^59 ids of 32 bytes would be 2^64 bytes, which overflows to 0.
        ("61 00 00 02 88808080808080 8000".into(), MissingIds { announced: 1 << 59 }),
        ("61 00 00 02 81ffffffffffffffff7f".into(), MissingIds { announced: u64::MAX }),
    ];
    let sets = [Vec::new(), Rng(5).items(600, Times::Few)].map(NegentropySet::from_items);
    for (message, reason) in table {
        for set in &sets {
            for limit in [0, MIN_FRAME_BYTES] {
                assert_eq!(respond(set, &hex(&message), limit), Err(reason), "{message}");
            }
        }
        assert!(!reason.to_string().is_empty());
    }
}

#[test]
fn unusual_but_valid_messages_are_answered() {
    let set = NegentropySet::from_items(vec![item(5, [0xab; 32])]);
    let list = format!("02 01 {}", "ab".repeat(32));
    for (message, answer) in [
        // The same bound twice is an empty range, also when the prefix is written longer.
        ("61 05 00 00 01 00 00".into(), "61".into()),
        ("61 06 01ab 02 00 01 02ab00 02 00".into(), "61 06 01ab 02 00 01 02ab00 02 00".into()),
        // Ranges after infinity are empty.
        ("61 00 00 02 00 00 00 02 00".into(), format!("61 00 00 {list} 00 00 02 00")),
        ("61 00 00 02 00 01 00 02 00".into(), format!("61 00 00 {list} 00 00 02 00")),
        // Infinity with a prefix is still above all items.
        ("61 00 01cc 02 00".into(), format!("61 00 01cc {list}")),
        // A bound equal to an item excludes it, with the complete id or with a prefix.
        ("61 06 01ab 02 00".into(), "61 06 01ab 02 00".into()),
        (format!("61 06 20{} 02 00", "ab".repeat(32)), format!("61 06 20{} 02 00", "ab".repeat(32))),
        ("61 06 01ac 02 00".into(), format!("61 06 01ac {list}")),
    ] as [(String, String); 8]
    {
        assert_eq!(respond(&set, &hex(&message), 0), Ok(hex(&answer)), "{message}");
    }
}

/// Mutations of valid messages. Every answer equals that of the crate, which only rejects fewer messages.
#[test]
fn mutated_messages_neither_panic_nor_exceed_the_frame() {
    let mut rng = Rng(0xdead_beef);
    let (ours, theirs) = rng.pair(700, 80, Times::Few);
    let set = NegentropySet::from_items(ours.clone());
    let our_storage = storage(&ours);
    let corpus = session_messages(&set, &theirs);
    let mut answered = 0;
    for round in 0..20_000 {
        let mut message = corpus[rng.below(corpus.len())].clone();
        for _ in 0..=rng.below(3) {
            mutate(&mut rng, &mut message, &corpus);
        }
        let limit = [MIN_FRAME_BYTES, MIN_FRAME_BYTES + 1_000, 60_000, 0][round % 4];
        let Ok(answer) = respond(&set, &message, limit) else {
            continue;
        };
        answered += 1;
        assert!(limit == 0 || answer.len() <= limit, "{}", to_hex(&message));
        assert!(instance(&our_storage, limit).reconcile(&message) == Ok(answer), "{}", to_hex(&message));
    }
    // Otherwise the mutations would only test rejected messages.
    assert!(answered > 4_000, "only {answered} messages were answered");
}

fn session_messages(set: &NegentropySet, theirs: &[NegentropyItem]) -> Vec<Vec<u8>> {
    let their_storage = storage(theirs);
    let mut messages = vec![hex("6100000200"), differing_fingerprint()];
    for limit in [0, MIN_FRAME_BYTES] {
        let mut initiator = instance(&their_storage, limit);
        let mut next = Some(initiator.initiate().expect("first use"));
        while let Some(message) = next {
            let answer = respond(set, &message, limit).expect("valid message of the crate");
            messages.push(message);
            next = initiator.reconcile_with_ids(&answer, &mut Vec::new(), &mut Vec::new()).expect("valid answer");
        }
    }
    messages
}

fn mutate(rng: &mut Rng, message: &mut Vec<u8>, corpus: &[Vec<u8>]) {
    let position = rng.below(message.len() + 1);
    match rng.below(6) {
        0 => message.truncate(position),
        1 => message.insert(position, rng.next() as u8),
        2 if position < message.len() => {
            message.remove(position);
        }
        3 if position < message.len() => message[position] ^= 1 << rng.below(8),
        4 if position < message.len() => message[position] = [0, 1, 2, 0x7f, 0x80, 0xff][rng.below(6)],
        _ => {
            // The end of another message, from a random position.
            let other = &corpus[rng.below(corpus.len())];
            message.truncate(position);
            message.extend_from_slice(&other[rng.below(other.len())..]);
        }
    }
}

// Helpers

fn item(created_at: u64, id: [u8; 32]) -> NegentropyItem {
    NegentropyItem { created_at, id }
}

/// Returns an id with this prefix, padded with zeroes.
fn id(prefix: &str) -> [u8; 32] {
    let prefix = hex(prefix);
    let mut id = [0; 32];
    id[..prefix.len()].copy_from_slice(&prefix);
    id
}

/// Returns a message with one range over everything and a fingerprint that no set has.
fn differing_fingerprint() -> Vec<u8> {
    hex(&format!("61 0000 01 {}", "00".repeat(16)))
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).expect("a hex digit") as u8).collect();
    assert!(digits.len().is_multiple_of(2), "odd number of digits in {text}");
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn storage(items: &[NegentropyItem]) -> NegentropyStorageVector {
    let mut storage = NegentropyStorageVector::with_capacity(items.len());
    for item in items {
        storage.insert(item.created_at, Id::from_byte_array(item.id)).expect("not sealed yet");
    }
    storage.seal().expect("not sealed yet");
    storage
}

/// Returns an instance of the crate, usable as initiator or responder.
fn instance(storage: &NegentropyStorageVector, limit: usize) -> Negentropy<'_, NegentropyStorageVector> {
    Negentropy::borrowed(storage, limit as u64).expect("a limit the crate accepts")
}

/// Distribution of the times of items.
#[derive(Clone, Copy, Debug)]
enum Times {
    /// Almost no two items share a second.
    Spread,
    /// Hundreds of items share a second.
    Few,
    /// All items share one second.
    One,
}

/// A xorshift random number generator, so that every run is the same.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn id(&mut self) -> [u8; 32] {
        let mut id = [0; 32];
        for word in id.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next().to_be_bytes());
        }
        // Some ids share a long prefix, so that bounds are long too.
        if self.next().is_multiple_of(4) {
            id[..20].fill(0x5a);
        }
        id
    }

    fn items(&mut self, count: usize, times: Times) -> Vec<NegentropyItem> {
        (0..count)
            .map(|_| {
                let offset = match times {
                    Times::Spread => self.next() % 100_000_000,
                    Times::Few => self.next() % 10,
                    Times::One => 0,
                };
                item(1_700_000_000 + offset, self.id())
            })
            .collect()
    }

    /// Returns two sets of the same size that share this percentage of items.
    fn pair(
        &mut self,
        size: usize,
        overlap_percent: usize,
        times: Times,
    ) -> (Vec<NegentropyItem>, Vec<NegentropyItem>) {
        let ours = self.items(size, times);
        let shared = size * overlap_percent / 100;
        let mut theirs = ours[..shared].to_vec();
        theirs.extend(self.items(size - shared, times));
        (ours, theirs)
    }
}
