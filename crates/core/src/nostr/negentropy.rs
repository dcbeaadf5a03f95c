//! Responder of Negentropy v1 (NIP-77), which finds the ids that two sets do not share.
//!
//! A client sends ranges of its set, each with a fingerprint or a list of ids. [`respond`] omits ranges whose
//! fingerprints agree, splits ranges that differ, and answers id lists with id lists. Only the client computes the
//! difference, so the responder has no state between two messages except the [`NegentropySet`].
//!
//! The set of the `negentropy` crate is not used, because of the cost of one message. A full frame ends with the
//! fingerprint of all remaining items. Summed item by item, this would take seconds for a new client of a set of a
//! million items. With prefix sums every fingerprint needs at most [`MAX_ADDITIONS`] additions. Since ranges cannot
//! overlap, a message costs at most two additions per item of the set plus that last fingerprint, for any number of
//! ranges.
//!
//! Called by the relay sessions (`graspd/src/relay`).

use bitcoin_hashes::sha256;

/// One element of a set. Ordered by time, then id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NegentropyItem {
    /// Seconds since 1970. `u64::MAX` is encoded as infinity and is not a valid time of an item.
    pub created_at: u64,
    /// The id of the event.
    pub id: [u8; 32],
}

/// An immutable, sorted set of items with prefix sums, which make the fingerprint of any range cheap.
#[derive(Clone, Debug)]
pub struct NegentropySet {
    /// Ascending, without duplicates, none at infinity.
    items: Vec<NegentropyItem>,
    /// Sums of the ids of `items[..k * STRIDE]`, for every k with `k * STRIDE <= items.len()`.
    checkpoints: Vec<IdSum>,
}

/// The reason why a message cannot be answered. The session ends, because the sender does not follow the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NegentropyError {
    /// The message is empty.
    #[error("the message is empty")]
    Empty,
    /// The first byte is not a version of negentropy.
    #[error("0x{first:02x} is not a negentropy version")]
    NotNegentropy {
        /// The first byte.
        first: u8,
    },
    /// The message ends inside a range.
    #[error("the message ends inside a range")]
    EndsEarly,
    /// A number does not fit 64 bits.
    #[error("a number does not fit 64 bits")]
    NumberTooBig,
    /// The time of a bound does not fit 64 bits.
    #[error("a bound is later than the maximum time")]
    TimeTooBig,
    /// The id prefix of a bound is longer than an id.
    #[error("an id prefix of {length} bytes is longer than an id")]
    PrefixTooLong {
        /// The announced length in bytes.
        length: u64,
    },
    /// A range ends before it begins.
    #[error("a range ends before it begins")]
    BoundsDescend,
    /// A range is neither skip, fingerprint nor list.
    #[error("unknown range mode {mode}")]
    UnknownMode {
        /// The mode as sent.
        mode: u64,
    },
    /// A list announces more ids than the message can hold.
    #[error("a list announces {announced} ids, but the message is too short for them")]
    MissingIds {
        /// Announced number of ids.
        announced: u64,
    },
}

/// Answers one message of an initiator. Stateless: the same set and message give the same response.
///
/// `frame_limit` is the maximum size of the response in bytes, at least [`MIN_FRAME_BYTES`]; 0 means unlimited. A
/// response that does not fit covers the first ranges of the message and ends with one fingerprint of all following
/// items, so that the initiator continues there. The remaining ranges of the message are then not parsed.
///
/// A message with another protocol version is answered with our version only.
///
/// # Errors
/// If the message does not follow the protocol.
pub fn respond(set: &NegentropySet, message: &[u8], frame_limit: usize) -> Result<Vec<u8>, NegentropyError> {
    let (&first, ranges) = message.split_first().ok_or(NegentropyError::Empty)?;
    match first {
        VERSION => {}
        0x60..=0x6f => return Ok(vec![VERSION]),
        _ => return Err(NegentropyError::NotNegentropy { first }),
    }

    let mut reader = RangeReader::new(ranges);
    let mut response = ResponseWriter::new(set, frame_limit);
    while !response.is_full() {
        match reader.next_range()? {
            Some(range) => response.write_range(&range),
            None => return Ok(response.bytes),
        }
    }
    response.write_remainder();
    Ok(response.bytes)
}

/// The smallest frame limit. With a smaller one a response might make no progress.
pub const MIN_FRAME_BYTES: usize = 4096;

/// Maximum number of additions for one fingerprint: the items next to a checkpoint, at both ends of the range.
pub const MAX_ADDITIONS: usize = 2 * STRIDE;

/// Items per checkpoint. 256 keeps the checkpoints below 0.4 % of the items.
const STRIDE: usize = 256;

/// Version 1 of the protocol.
const VERSION: u8 = 0x61;

/// A response is full when it comes this close to the frame limit. After that at most 149 bytes are written: one id (32
/// bytes), the bounds of a skip and of a list (44 each), the length of the list (10) and the closing fingerprint (19).
const FRAME_RESERVE: usize = 200;

/// Number of smaller ranges into which a differing range is split.
const BUCKETS: usize = 16;

/// Minimum number of items of a range that is split. Smaller ranges are answered with their ids.
const SPLIT_FROM: usize = 2 * BUCKETS;

const ID_BYTES: usize = 32;
const FINGERPRINT_BYTES: usize = 16;

const MODE_SKIP: u8 = 0;
const MODE_FINGERPRINT: u8 = 1;
const MODE_ID_LIST: u8 = 2;

type Fingerprint = [u8; FINGERPRINT_BYTES];

impl NegentropySet {
    /// Creates a set. Duplicates are removed, and so are items at infinity, because no range can contain them.
    #[must_use]
    pub fn from_items(mut items: Vec<NegentropyItem>) -> Self {
        items.retain(|item| item.created_at != u64::MAX);
        items.sort_unstable();
        items.dedup();
        // The set lives as long as a session and is accounted by its capacity.
        items.shrink_to_fit();

        let mut checkpoints = Vec::with_capacity(items.len() / STRIDE + 1);
        let mut sum = IdSum::default();
        checkpoints.push(sum);
        for stride in items.chunks_exact(STRIDE) {
            sum.add_ids(stride);
            checkpoints.push(sum);
        }
        Self { items, checkpoints }
    }

    /// Returns the number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether the set has no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the memory of the set in bytes. Used for memory limits.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.items.capacity() * size_of::<NegentropyItem>()
            + self.checkpoints.capacity() * size_of::<IdSum>()
    }

    /// Returns the index of the first item that is not below the bound. The caller knows that all items before `from`
    /// are.
    ///
    /// Searches with doubling steps (galloping), because consecutive bounds of a message with many ranges are close
    /// together. So a message that consists of many small ranges stays cheap.
    fn index_of(&self, bound: &RangeBound, from: usize) -> usize {
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
            let mut sum = IdSum::default();
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

    /// Returns the sum of all ids before an index.
    fn sum_below(&self, index: usize) -> IdSum {
        let checkpoint = index / STRIDE;
        let mut sum = self.checkpoints[checkpoint];
        sum.add_ids(&self.items[checkpoint * STRIDE..index]);
        sum
    }
}

/// A sum of ids modulo 2^256. Ids are little-endian numbers, and the least significant limb comes first.
#[derive(Clone, Copy, Default, Debug)]
struct IdSum([u64; 4]);

impl IdSum {
    fn add_ids(&mut self, items: &[NegentropyItem]) {
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

/// The exclusive upper bound of a range: the range ends before the first item that is not less than `start`.
#[derive(Clone, Copy)]
struct RangeBound {
    /// The time, and the id prefix padded with zeroes.
    start: NegentropyItem,
    /// Number of id bytes in the encoding. A prefix longer than needed is valid, so it is kept for the response.
    prefix_length: usize,
}

impl RangeBound {
    const ORIGIN: Self = Self::at_time(0);
    const INFINITY: Self = Self::at_time(u64::MAX);

    const fn at_time(created_at: u64) -> Self {
        let start = NegentropyItem { created_at, id: [0; ID_BYTES] };
        Self { start, prefix_length: 0 }
    }

    fn at_item(item: &NegentropyItem) -> Self {
        Self { start: *item, prefix_length: ID_BYTES }
    }

    /// Returns the shortest bound between two consecutive items.
    fn between(before: &NegentropyItem, after: &NegentropyItem) -> Self {
        let mut bound = Self::at_time(after.created_at);
        if before.created_at == after.created_at {
            let pairs = before.id.iter().zip(&after.id);
            let shared = pairs.take_while(|(left, right)| left == right).count();
            // The items differ, so this is at most the length of an id.
            bound.prefix_length = shared + 1;
            bound.start.id[..=shared].copy_from_slice(&after.id[..=shared]);
        }
        bound
    }
}

/// One range of a message. It begins where the previous range ended.
struct MessageRange<'a> {
    upper: RangeBound,
    payload: RangePayload<'a>,
}

/// Content of a range: the information of the initiator about its items.
enum RangePayload<'a> {
    /// No information.
    Skip,
    /// The fingerprint of its items.
    Fingerprint(&'a Fingerprint),
    /// The ids of its items. The responder ignores them and answers with its own.
    IdList,
}

/// Parses the ranges of a message.
struct RangeReader<'a> {
    rest: &'a [u8],
    previous: RangeBound,
}

impl<'a> RangeReader<'a> {
    fn new(ranges: &'a [u8]) -> Self {
        Self { rest: ranges, previous: RangeBound::ORIGIN }
    }

    fn next_range(&mut self) -> Result<Option<MessageRange<'a>>, NegentropyError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let upper = self.bound()?;
        let payload = self.payload()?;
        Ok(Some(MessageRange { upper, payload }))
    }

    fn bound(&mut self) -> Result<RangeBound, NegentropyError> {
        let created_at = match self.varint()? {
            0 => u64::MAX,
            encoded => (self.previous.start.created_at).checked_add(encoded - 1).ok_or(NegentropyError::TimeTooBig)?,
        };
        let mut bound = RangeBound::at_time(created_at);

        let length = self.varint()?;
        bound.prefix_length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= ID_BYTES)
            .ok_or(NegentropyError::PrefixTooLong { length })?;
        let prefix = self.take(bound.prefix_length)?;
        bound.start.id[..bound.prefix_length].copy_from_slice(prefix);

        if bound.start < self.previous.start {
            return Err(NegentropyError::BoundsDescend);
        }
        self.previous = bound;
        Ok(bound)
    }

    fn payload(&mut self) -> Result<RangePayload<'a>, NegentropyError> {
        let mode = self.varint()?;
        match u8::try_from(mode) {
            Ok(MODE_SKIP) => Ok(RangePayload::Skip),
            Ok(MODE_FINGERPRINT) => {
                let (fingerprint, rest) = (self.rest.split_first_chunk()).ok_or(NegentropyError::EndsEarly)?;
                self.rest = rest;
                Ok(RangePayload::Fingerprint(fingerprint))
            }
            Ok(MODE_ID_LIST) => {
                let announced = self.varint()?;
                // A division, because a multiplication could overflow with a number chosen by the sender.
                let length = usize::try_from(announced)
                    .ok()
                    .filter(|count| *count <= self.rest.len() / ID_BYTES)
                    .ok_or(NegentropyError::MissingIds { announced })?;
                self.take(length * ID_BYTES)?;
                Ok(RangePayload::IdList)
            }
            _ => Err(NegentropyError::UnknownMode { mode }),
        }
    }

    /// Parses a number in groups of seven bits, the most significant first; all bytes but the last have the high bit
    /// set.
    fn varint(&mut self) -> Result<u64, NegentropyError> {
        let mut number: u64 = 0;
        loop {
            let (&byte, rest) = self.rest.split_first().ok_or(NegentropyError::EndsEarly)?;
            self.rest = rest;
            if number > u64::MAX >> 7 {
                return Err(NegentropyError::NumberTooBig);
            }
            number = number << 7 | u64::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], NegentropyError> {
        let (taken, rest) = (self.rest.split_at_checked(length)).ok_or(NegentropyError::EndsEarly)?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Writes a response.
struct ResponseWriter<'a> {
    set: &'a NegentropySet,
    bytes: Vec<u8>,
    /// The response is full when it has more bytes than this.
    full_at: usize,
    /// Time of the last bound written. Times are encoded as the difference to it.
    previous_time: u64,
    /// Number of our items below the end of the last range processed, including ranges that were omitted.
    processed: usize,
    /// Number of our items below the last bound written. For the initiator the next range begins there.
    written: usize,
    /// End of a range to be skipped. Written only if another range follows.
    pending_skip: Option<RangeBound>,
    /// A range did not fit and was removed again.
    overflowed: bool,
}

impl<'a> ResponseWriter<'a> {
    fn new(set: &'a NegentropySet, frame_limit: usize) -> Self {
        let full_at = match frame_limit {
            0 => usize::MAX,
            limit => limit.max(MIN_FRAME_BYTES) - FRAME_RESERVE,
        };
        Self {
            set,
            bytes: vec![VERSION],
            full_at,
            previous_time: 0,
            processed: 0,
            written: 0,
            pending_skip: None,
            overflowed: false,
        }
    }

    fn is_full(&self) -> bool {
        self.overflowed || self.bytes.len() > self.full_at
    }

    /// Writes the answer to one range. Must be called only while the response is not full.
    fn write_range(&mut self, range: &MessageRange<'_>) {
        let lower = self.processed;
        let upper = self.set.index_of(&range.upper, lower);
        self.processed = upper;
        match range.payload {
            RangePayload::Skip => self.pending_skip = Some(range.upper),
            RangePayload::Fingerprint(theirs) if *theirs == self.set.fingerprint(lower, upper) => {
                self.pending_skip = Some(range.upper);
            }
            RangePayload::Fingerprint(_) => self.write_split(lower, upper, &range.upper),
            RangePayload::IdList => self.write_id_list(lower, upper, &range.upper),
        }
    }

    /// Ends a full response with one fingerprint of all remaining items, which are compared in later messages.
    ///
    /// They begin at the last bound written, which may be below ranges that were processed but omitted since.
    fn write_remainder(&mut self) {
        self.write_fingerprint(self.written, self.set.len(), &RangeBound::INFINITY);
    }

    /// Answers a differing range with smaller ranges, or with its ids if there are few.
    fn write_split(&mut self, lower: usize, upper: usize, end: &RangeBound) {
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
                let bound = if next == upper {
                    *end
                } else {
                    RangeBound::between(&self.set.items[next - 1], &self.set.items[next])
                };
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

    /// Answers an id list with our ids, or with as many of the first ones as fit into the frame.
    fn write_id_list(&mut self, lower: usize, upper: usize, end: &RangeBound) {
        let capacity = (self.full_at - self.bytes.len()) / ID_BYTES + 1;
        self.flush_skip();
        if upper - lower <= capacity {
            self.write_ids(lower, upper, end);
        } else {
            let cut = lower + capacity;
            self.write_ids(lower, cut, &RangeBound::at_item(&self.set.items[cut]));
        }
    }

    fn flush_skip(&mut self) {
        if let Some(bound) = self.pending_skip.take() {
            self.write_bound(&bound);
            self.bytes.push(MODE_SKIP);
        }
    }

    fn write_fingerprint(&mut self, lower: usize, upper: usize, end: &RangeBound) {
        self.write_bound(end);
        self.bytes.push(MODE_FINGERPRINT);
        let fingerprint = self.set.fingerprint(lower, upper);
        self.bytes.extend_from_slice(&fingerprint);
        self.written = upper;
    }

    fn write_ids(&mut self, lower: usize, upper: usize, end: &RangeBound) {
        self.write_bound(end);
        self.bytes.push(MODE_ID_LIST);
        write_varint(&mut self.bytes, (upper - lower) as u64);
        self.bytes.reserve((upper - lower) * ID_BYTES);
        for item in &self.set.items[lower..upper] {
            self.bytes.extend_from_slice(&item.id);
        }
        self.written = upper;
    }

    fn write_bound(&mut self, bound: &RangeBound) {
        let time = bound.start.created_at;
        let encoded = match time {
            u64::MAX => 0,
            _ => time - self.previous_time + 1,
        };
        self.previous_time = time;
        write_varint(&mut self.bytes, encoded);
        write_varint(&mut self.bytes, bound.prefix_length as u64);
        let prefix = &bound.start.id[..bound.prefix_length];
        self.bytes.extend_from_slice(prefix);
    }
}

/// Bytes of the longest varint: 64 bits in groups of seven.
const MAX_VARINT_BYTES: usize = 10;

fn write_varint(bytes: &mut Vec<u8>, number: u64) {
    let groups = (u64::BITS - number.leading_zeros()).div_ceil(7).max(1);
    for group in (0..groups).rev() {
        let more = if group == 0 { 0 } else { 0x80 };
        bytes.push((number >> (7 * group)) as u8 & 0x7f | more);
    }
}
