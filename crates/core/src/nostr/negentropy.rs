//! The answering side of Negentropy v1 (NIP-77): which ids do two sets not share?
//!
//! A client sends ranges of its set, each with a fingerprint or a list of ids. [`respond`] answers
//! ranges that agree with nothing, ranges that differ with finer ranges, and lists with lists. The
//! client alone learns the difference, so nothing is remembered between two messages but the
//! [`ItemSet`] itself.
//!
//! The set is ours, and not the one of the `negentropy` crate, because of what one message may
//! cost. A frame that is full ends with the fingerprint of the whole rest; summed item by item, a
//! fresh client of a set of a million would cost seconds. Prefix sums make every fingerprint cost
//! at most [`MAX_ADDITIONS`]. And since ranges cannot overlap, a whole message costs at most two
//! additions per item of the set and that last fingerprint, however many ranges it has.

use std::fmt;

use bitcoin_hashes::sha256;

/// One element of a set: ordered by time, then id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Item {
    /// Seconds since 1970. `u64::MAX` means infinity on the wire and is no time of an item.
    pub created_at: u64,
    /// The id of the event.
    pub id: [u8; 32],
}

/// A sealed, sorted set of items that can fingerprint any range of itself cheaply.
#[derive(Clone, Debug)]
pub struct ItemSet {
    /// Ascending, without duplicates, all before infinity.
    items: Vec<Item>,
    /// The sum of the ids of `items[..k * STRIDE]`, for every k that fits.
    checkpoints: Vec<Sum>,
}

/// Why a message has no answer. The sender does not speak the protocol; there is no way to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolError {
    /// There is not even a version.
    Empty,
    /// The first byte is no version of this protocol, neither ours nor another.
    NotNegentropy {
        /// What stands where the version should.
        first: u8,
    },
    /// The message ends inside a range.
    EndsEarly,
    /// A number does not fit 64 bits.
    NumberTooBig,
    /// A bound lies behind the end of time.
    TimeTooBig,
    /// The id prefix of a bound is longer than an id.
    PrefixTooLong {
        /// The announced length in bytes.
        length: u64,
    },
    /// A range ends before it begins.
    BoundsDescend,
    /// A range is neither skip, fingerprint nor list.
    UnknownMode {
        /// The mode as sent.
        mode: u64,
    },
    /// A list announces more ids than the message can hold.
    MissingIds {
        /// How many ids the list should have.
        announced: u64,
    },
}

/// Answers one message of an initiator. Stateless: the same set and message give the same answer.
///
/// A `frame_limit` of 0 is none; any other is the most bytes an answer may have, raised to
/// [`MIN_FRAME`] where smaller. An answer that does not fit covers the front of the message and
/// ends with one fingerprint of everything behind, so that the initiator asks again from there; what
/// the message says about that rest is then not even read.
///
/// A message in another version of the protocol is answered with our version alone.
pub fn respond(set: &ItemSet, message: &[u8], frame_limit: usize) -> Result<Vec<u8>, ProtocolError> {
    let (&first, ranges) = message.split_first().ok_or(ProtocolError::Empty)?;
    match first {
        VERSION => {}
        0x60..=0x6f => return Ok(vec![VERSION]),
        _ => return Err(ProtocolError::NotNegentropy { first }),
    }

    let mut reader = Reader::new(ranges);
    let mut answer = Answer::new(set, frame_limit);
    while !answer.is_full() {
        match reader.next_range()? {
            Some(range) => answer.cover(&range),
            None => return Ok(answer.bytes),
        }
    }
    answer.close();
    Ok(answer.bytes)
}

/// The smallest frame limit: below it, an answer might not get anywhere.
pub const MIN_FRAME: usize = 4096;

/// No fingerprint takes more additions than this: the items beside a checkpoint, at both ends.
pub const MAX_ADDITIONS: usize = 2 * STRIDE;

/// Items per checkpoint. 256 keeps the checkpoints below 0.4 % of the items.
const STRIDE: usize = 256;

/// Version 1 of the protocol.
const VERSION: u8 = 0x61;

/// A full answer stops this far below the frame limit. What may still be written then is one id
/// over the mark (32 bytes), the bounds of a skip and of a list (44 each), the length of the list
/// (10) and the closing fingerprint (19), which is 149.
const FRAME_RESERVE: usize = 200;

/// A range that differs is split into so many smaller ones …
const BUCKETS: usize = 16;

/// … unless it has fewer items than this, which are then listed.
const SPLIT_FROM: usize = 2 * BUCKETS;

const ID_BYTES: usize = 32;
const FINGERPRINT_BYTES: usize = 16;

const MODE_SKIP: u8 = 0;
const MODE_FINGERPRINT: u8 = 1;
const MODE_ID_LIST: u8 = 2;

type Fingerprint = [u8; FINGERPRINT_BYTES];

impl ItemSet {
    /// Sorts the items and sums them up. Duplicates count once; an item at infinity does not count,
    /// because no range could contain it.
    #[must_use]
    pub fn seal(mut items: Vec<Item>) -> Self {
        items.retain(|item| item.created_at != u64::MAX);
        items.sort_unstable();
        items.dedup();
        // A set lives for a whole session and is charged for what it holds.
        items.shrink_to_fit();

        let mut checkpoints = Vec::with_capacity(items.len() / STRIDE + 1);
        let mut sum = Sum::default();
        checkpoints.push(sum);
        for stride in items.chunks_exact(STRIDE) {
            sum.add_ids(stride);
            checkpoints.push(sum);
        }
        Self { items, checkpoints }
    }

    /// How many items there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no item.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The memory held, in bytes, for budgets.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.items.capacity() * size_of::<Item>() + self.checkpoints.capacity() * size_of::<Sum>()
    }

    /// The index of the first item at or behind the bound, given that none before `from` is.
    ///
    /// It is looked for in steps that double, because the ranges of a message are neighbours: the
    /// more there are, the nearer is the next bound, and a message of nothing but ranges is cheap.
    fn index_of(&self, bound: &Bound, from: usize) -> usize {
        let rest = &self.items[from..];
        let mut step = 1;
        while rest.get(step).is_some_and(|item| *item < bound.start) {
            step *= 2;
        }
        let near = step / 2;
        let far = step.min(rest.len());
        from + near + rest[near..far].partition_point(|item| *item < bound.start)
    }

    fn fingerprint(&self, lower: usize, upper: usize) -> Fingerprint {
        let sum = if upper - lower <= MAX_ADDITIONS {
            let mut sum = Sum::default();
            sum.add_ids(&self.items[lower..upper]);
            sum
        } else {
            self.sum_below(upper).minus(self.sum_below(lower))
        };

        let mut preimage = Vec::with_capacity(ID_BYTES + MAX_VARINT_BYTES);
        sum.write_to(&mut preimage);
        write_varint(&mut preimage, (upper - lower) as u64);
        let hash = sha256::Hash::hash(&preimage).to_byte_array();
        let mut fingerprint = [0; FINGERPRINT_BYTES];
        fingerprint.copy_from_slice(&hash[..FINGERPRINT_BYTES]);
        fingerprint
    }

    /// The sum of all ids before an index.
    fn sum_below(&self, index: usize) -> Sum {
        let checkpoint = index / STRIDE;
        let mut sum = self.checkpoints[checkpoint];
        sum.add_ids(&self.items[checkpoint * STRIDE..index]);
        sum
    }
}

/// A sum of ids, each read as a little-endian number, modulo 2^256. The least limb comes first.
#[derive(Clone, Copy, Default, Debug)]
struct Sum([u64; 4]);

impl Sum {
    fn add_ids(&mut self, items: &[Item]) {
        for item in items {
            let (words, _) = item.id.as_chunks::<8>();
            let mut carry = false;
            for (limb, word) in self.0.iter_mut().zip(words) {
                let (sum, over) = limb.overflowing_add(u64::from_le_bytes(*word));
                let (sum, over_again) = sum.overflowing_add(u64::from(carry));
                *limb = sum;
                carry = over | over_again;
            }
        }
    }

    fn minus(mut self, other: Self) -> Self {
        let mut borrow = false;
        for (limb, word) in self.0.iter_mut().zip(other.0) {
            let (rest, under) = limb.overflowing_sub(word);
            let (rest, under_again) = rest.overflowing_sub(u64::from(borrow));
            *limb = rest;
            borrow = under | under_again;
        }
        self
    }

    fn write_to(self, bytes: &mut Vec<u8>) {
        for limb in self.0 {
            bytes.extend_from_slice(&limb.to_le_bytes());
        }
    }
}

/// Where a range ends and the next begins: before the first item that is not less than `start`.
#[derive(Clone, Copy)]
struct Bound {
    /// The time, and the prefix filled up with zeroes.
    start: Item,
    /// How many bytes of the id are written. More than needed is legal, so it is kept for the echo.
    prefix_length: usize,
}

impl Bound {
    const ORIGIN: Self = Self::at_time(0);
    const INFINITY: Self = Self::at_time(u64::MAX);

    const fn at_time(created_at: u64) -> Self {
        let start = Item { created_at, id: [0; ID_BYTES] };
        Self { start, prefix_length: 0 }
    }

    fn at_item(item: &Item) -> Self {
        Self { start: *item, prefix_length: ID_BYTES }
    }

    /// The shortest bound that parts two neighbours.
    fn between(before: &Item, after: &Item) -> Self {
        let mut bound = Self::at_time(after.created_at);
        if before.created_at == after.created_at {
            let pairs = before.id.iter().zip(&after.id);
            let shared = pairs.take_while(|(left, right)| left == right).count();
            // Neighbours differ, so this is at most a whole id.
            bound.prefix_length = shared + 1;
            bound.start.id[..=shared].copy_from_slice(&after.id[..=shared]);
        }
        bound
    }
}

/// One range as the initiator sent it. It begins where the one before ended.
struct Range<'a> {
    upper: Bound,
    claim: Claim<'a>,
}

/// What the initiator says about its items in a range.
enum Claim<'a> {
    /// Nothing.
    Skip,
    /// Their fingerprint.
    Fingerprint(&'a Fingerprint),
    /// Their ids. A responder has no use for them: it answers with its own.
    IdList,
}

/// Takes ranges off a message, and refuses what cannot be one.
struct Reader<'a> {
    rest: &'a [u8],
    previous: Bound,
}

impl<'a> Reader<'a> {
    fn new(ranges: &'a [u8]) -> Self {
        Self { rest: ranges, previous: Bound::ORIGIN }
    }

    fn next_range(&mut self) -> Result<Option<Range<'a>>, ProtocolError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let upper = self.bound()?;
        let claim = self.claim()?;
        Ok(Some(Range { upper, claim }))
    }

    fn bound(&mut self) -> Result<Bound, ProtocolError> {
        let created_at = match self.varint()? {
            0 => u64::MAX,
            encoded => (self.previous.start.created_at).checked_add(encoded - 1).ok_or(ProtocolError::TimeTooBig)?,
        };
        let mut bound = Bound::at_time(created_at);

        let length = self.varint()?;
        bound.prefix_length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= ID_BYTES)
            .ok_or(ProtocolError::PrefixTooLong { length })?;
        let prefix = self.take(bound.prefix_length)?;
        bound.start.id[..bound.prefix_length].copy_from_slice(prefix);

        if bound.start < self.previous.start {
            return Err(ProtocolError::BoundsDescend);
        }
        self.previous = bound;
        Ok(bound)
    }

    fn claim(&mut self) -> Result<Claim<'a>, ProtocolError> {
        let mode = self.varint()?;
        match u8::try_from(mode) {
            Ok(MODE_SKIP) => Ok(Claim::Skip),
            Ok(MODE_FINGERPRINT) => {
                let (fingerprint, rest) = (self.rest.split_first_chunk()).ok_or(ProtocolError::EndsEarly)?;
                self.rest = rest;
                Ok(Claim::Fingerprint(fingerprint))
            }
            Ok(MODE_ID_LIST) => {
                let announced = self.varint()?;
                // Divided and not multiplied, since the number is anything the sender likes.
                let length = usize::try_from(announced)
                    .ok()
                    .filter(|count| *count <= self.rest.len() / ID_BYTES)
                    .ok_or(ProtocolError::MissingIds { announced })?;
                self.take(length * ID_BYTES)?;
                Ok(Claim::IdList)
            }
            _ => Err(ProtocolError::UnknownMode { mode }),
        }
    }

    /// A number in groups of seven bits, the most significant first, all but the last marked.
    fn varint(&mut self) -> Result<u64, ProtocolError> {
        let mut number: u64 = 0;
        loop {
            let (&byte, rest) = self.rest.split_first().ok_or(ProtocolError::EndsEarly)?;
            self.rest = rest;
            if number > u64::MAX >> 7 {
                return Err(ProtocolError::NumberTooBig);
            }
            number = number << 7 | u64::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtocolError> {
        let (taken, rest) = (self.rest.split_at_checked(length)).ok_or(ProtocolError::EndsEarly)?;
        self.rest = rest;
        Ok(taken)
    }
}

/// The answer while it is written.
struct Answer<'a> {
    set: &'a ItemSet,
    bytes: Vec<u8>,
    /// With more bytes than this the answer is full.
    mark: usize,
    /// Times are written as the distance to the one before.
    last_time: u64,
    /// Our items below the last range that was covered, whether or not anything was written.
    covered: usize,
    /// Our items below the last bound written. The initiator reads the next range from there.
    written: usize,
    /// Up to here nothing is to be said. Only written when something follows.
    pending_skip: Option<Bound>,
    /// A range did not fit and was taken back.
    overflowed: bool,
}

impl<'a> Answer<'a> {
    fn new(set: &'a ItemSet, frame_limit: usize) -> Self {
        let mark = match frame_limit {
            0 => usize::MAX,
            limit => limit.max(MIN_FRAME) - FRAME_RESERVE,
        };
        Self {
            set,
            bytes: vec![VERSION],
            mark,
            last_time: 0,
            covered: 0,
            written: 0,
            pending_skip: None,
            overflowed: false,
        }
    }

    fn is_full(&self) -> bool {
        self.overflowed || self.bytes.len() > self.mark
    }

    /// Says what there is to say about one range. To be called only while not full.
    fn cover(&mut self, range: &Range<'_>) {
        let lower = self.covered;
        let upper = self.set.index_of(&range.upper, lower);
        self.covered = upper;
        match range.claim {
            Claim::Skip => self.pending_skip = Some(range.upper),
            Claim::Fingerprint(theirs) if *theirs == self.set.fingerprint(lower, upper) => {
                self.pending_skip = Some(range.upper);
            }
            Claim::Fingerprint(_) => self.split(lower, upper, &range.upper),
            Claim::IdList => self.list(lower, upper, &range.upper),
        }
    }

    /// Ends an answer that is full: the rest has to be looked at in another message.
    ///
    /// The rest begins at the last bound written, which may lie below the ranges covered since.
    fn close(&mut self) {
        self.write_fingerprint(self.written, self.set.len(), &Bound::INFINITY);
    }

    /// Answers a range that differs in finer ranges, or with its ids if they are few.
    fn split(&mut self, lower: usize, upper: usize, end: &Bound) {
        let before = self.bytes.len();
        let written = self.written;
        self.flush_skip();

        let count = upper - lower;
        if count < SPLIT_FROM {
            self.write_ids(lower, upper, end);
        } else {
            let mut start = lower;
            for bucket in 0..BUCKETS {
                let extra = usize::from(bucket < count % BUCKETS);
                let next = start + count / BUCKETS + extra;
                let bound =
                    if next == upper { *end } else { Bound::between(&self.set.items[next - 1], &self.set.items[next]) };
                self.write_fingerprint(start, next, &bound);
                start = next;
            }
        }

        if self.is_full() {
            self.bytes.truncate(before);
            self.written = written;
            self.overflowed = true;
        }
    }

    /// Answers a list with ours: all of it, or as much of its front as the frame holds.
    fn list(&mut self, lower: usize, upper: usize, end: &Bound) {
        let room = (self.mark - self.bytes.len()) / ID_BYTES + 1;
        self.flush_skip();
        if upper - lower <= room {
            self.write_ids(lower, upper, end);
        } else {
            let cut = lower + room;
            self.write_ids(lower, cut, &Bound::at_item(&self.set.items[cut]));
        }
    }

    fn flush_skip(&mut self) {
        if let Some(bound) = self.pending_skip.take() {
            self.write_bound(&bound);
            self.bytes.push(MODE_SKIP);
        }
    }

    fn write_fingerprint(&mut self, lower: usize, upper: usize, end: &Bound) {
        self.write_bound(end);
        self.bytes.push(MODE_FINGERPRINT);
        let fingerprint = self.set.fingerprint(lower, upper);
        self.bytes.extend_from_slice(&fingerprint);
        self.written = upper;
    }

    fn write_ids(&mut self, lower: usize, upper: usize, end: &Bound) {
        self.write_bound(end);
        self.bytes.push(MODE_ID_LIST);
        write_varint(&mut self.bytes, (upper - lower) as u64);
        self.bytes.reserve((upper - lower) * ID_BYTES);
        for item in &self.set.items[lower..upper] {
            self.bytes.extend_from_slice(&item.id);
        }
        self.written = upper;
    }

    fn write_bound(&mut self, bound: &Bound) {
        let time = bound.start.created_at;
        let encoded = match time {
            u64::MAX => 0,
            _ => time - self.last_time + 1,
        };
        self.last_time = time;
        write_varint(&mut self.bytes, encoded);
        write_varint(&mut self.bytes, bound.prefix_length as u64);
        let prefix = &bound.start.id[..bound.prefix_length];
        self.bytes.extend_from_slice(prefix);
    }
}

/// 64 bits in groups of seven.
const MAX_VARINT_BYTES: usize = 10;

fn write_varint(bytes: &mut Vec<u8>, number: u64) {
    let groups = (u64::BITS - number.leading_zeros()).div_ceil(7).max(1);
    for group in (0..groups).rev() {
        let more = if group == 0 { 0 } else { 0x80 };
        bytes.push((number >> (7 * group)) as u8 & 0x7f | more);
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the message is empty"),
            Self::NotNegentropy { first } => {
                write!(f, "0x{first:02x} is no version of negentropy")
            }
            Self::EndsEarly => write!(f, "the message ends inside a range"),
            Self::NumberTooBig => write!(f, "a number does not fit 64 bits"),
            Self::TimeTooBig => write!(f, "a bound lies behind the end of time"),
            Self::PrefixTooLong { length } => {
                write!(f, "an id prefix of {length} bytes is longer than an id")
            }
            Self::BoundsDescend => write!(f, "a range ends before it begins"),
            Self::UnknownMode { mode } => write!(f, "{mode} is no mode of a range"),
            Self::MissingIds { announced } => {
                write!(f, "the message cannot hold the {announced} ids of a list")
            }
        }
    }
}

impl std::error::Error for ProtocolError {}
