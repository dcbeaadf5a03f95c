//! How relays are: each has a few habits, drawn from the seed.

use grasp_core::nostr::PublicKey;

use super::queue::Time;
use crate::random::Chance;

/// The habits of a relay.
#[derive(Clone, Debug)]
pub struct Persona {
    /// The least and the most milliseconds that a message travels.
    pub latency: (Time, Time),
    /// Whether it reconciles, and what it says if not.
    pub negentropy: Negentropy,
    /// Records that it compares at most.
    pub most_records: usize,
    /// Events of one filter's page at most.
    pub cap: usize,
    /// An event that several filters match comes for each of them.
    pub repeats: bool,
    /// What it thinks of `limit: 0`.
    pub zero: Zero,
    /// How it ends a page.
    pub eose: Eose,
    /// It says whether there is more (NIP-67).
    pub says_more: bool,
    /// It sends an event after CLOSE.
    pub late_event: bool,
    /// How much it wants to be asked.
    pub rate: Option<Rate>,
    /// Subscriptions at once.
    pub slots: usize,
    /// It complains about too many of them by NOTICE, which names none.
    pub slots_by_notice: bool,
    /// Filters of one REQ.
    pub filters: usize,
    /// Bytes of one message.
    pub message: usize,
    /// Bytes of all subscriptions.
    pub subscription_bytes: Option<usize>,
    /// It wants to know whom it talks to.
    pub auth: bool,
    /// It wants nothing to do with us.
    pub closed_shop: bool,
    /// It offers ids in reconciliations that it never sends.
    pub phantoms: bool,
    /// One of so many live events is not sent; none if zero.
    pub deaf: usize,
    /// It sends forgeries of events before others send the real ones.
    pub forger: bool,
    /// It sends what nobody asked for.
    pub flood: bool,
    /// It has nothing of this author.
    pub censored: Option<PublicKey>,
    /// Milliseconds that pass before it looks at a REQ, and before it looks at a NEG-OPEN.
    pub lag: (Time, Time),
    /// Its connections end after about this time; never if zero.
    pub restless: Time,
    /// Nobody who dials it is answered.
    pub gone: bool,
    /// It reads and never answers.
    pub mute: bool,
    /// What its NIP-11 document says.
    pub document: Document,
    /// It is a GRASP server.
    pub grasp: bool,
    /// By how many seconds its clock is wrong.
    pub skew: i64,
    /// It ends connections that are not read.
    pub impatient: bool,
}

/// Whether a relay reconciles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Negentropy {
    /// It does.
    Spoken,
    /// It complains by NOTICE.
    Notice,
    /// It complains by NEG-ERR.
    Refused,
    /// It says nothing.
    Ignored,
}

/// What a relay thinks of a limit of zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zero {
    /// Nothing wrong with it.
    Fine,
    /// It must be one at least.
    Refused,
    /// It must be ten at least.
    OneToo,
}

/// How a relay ends a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Eose {
    /// As it should.
    Once,
    /// It says so twice.
    Twice,
    /// It never does.
    Never,
    /// It does so at once, and the events follow.
    Early,
}

/// How much a relay wants to be asked, and what it does about more.
#[derive(Clone, Debug)]
pub struct Rate {
    /// Requests of a minute.
    pub per_minute: u32,
    /// How it complains.
    pub how: How,
    /// What it says.
    pub text: &'static str,
    /// It also ends the connection.
    pub hangs_up: bool,
}

/// By which message a relay complains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// NOTICE.
    Notice,
    /// CLOSED, or NEG-ERR for a reconciliation.
    Closed,
    /// OK.
    Ok,
}

/// What a relay's NIP-11 document says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Document {
    /// There is none.
    Absent,
    /// What is true.
    True,
    /// Pages and subscriptions are said to be larger and more than they are.
    Boastful,
    /// True in one session, absent in the next, boastful in the third.
    Fickle,
}

/// What relays say to those who ask too much (spec §14.3).
const RATE_TEXTS: [&str; 6] = [
    "rate-limited: too many queries",
    "rate-limited: slow down",
    "Rate limit exceeded",
    "slow down please",
    "rate-limited: you are noting too much",
    "subscription throttled",
];

impl Persona {
    /// A relay as it should be.
    #[must_use]
    pub fn honest() -> Self {
        Self {
            latency: (10, 60),
            negentropy: Negentropy::Spoken,
            most_records: 100_000,
            cap: 500,
            repeats: false,
            zero: Zero::Fine,
            eose: Eose::Once,
            says_more: false,
            late_event: false,
            rate: None,
            slots: 20,
            slots_by_notice: false,
            filters: 20,
            message: 128 * 1024,
            subscription_bytes: None,
            auth: false,
            closed_shop: false,
            phantoms: false,
            deaf: 0,
            forger: false,
            flood: false,
            censored: None,
            lag: (0, 0),
            restless: 0,
            gone: false,
            mute: false,
            document: Document::True,
            grasp: false,
            skew: 0,
            impatient: false,
        }
    }

    /// A full node.
    #[must_use]
    pub fn node() -> Self {
        Self { slots: 100, message: 2 * 1024 * 1024, grasp: true, ..Self::honest() }
    }

    /// Somebody.
    #[must_use]
    pub fn draw(chance: &mut Chance, authors: &[PublicKey]) -> Self {
        let mut persona = Self::honest();
        persona.limits(chance);
        if chance.one_in(4) {
            persona.slowness(chance);
        }
        // Few misbehave all week: it is always the same that comes of it, and bursts of it are incidents.
        if chance.one_in(3) {
            persona.habit(chance, authors);
        }
        persona.restless *= 60;
        persona
    }

    /// What it can do, honestly.
    fn limits(&mut self, chance: &mut Chance) {
        self.negentropy = match chance.below(8) {
            0 => Negentropy::Notice,
            1 => Negentropy::Refused,
            2 => Negentropy::Ignored,
            _ => Negentropy::Spoken,
        };
        self.cap = [20, 100, 500, 500][chance.below(4)];
        self.repeats = chance.one_in(3);
        self.says_more = chance.one_in(6);
        self.grasp = chance.one_in(5);
        self.slots = [10, 20, 20, 50, 200][chance.below(5)];
        self.slots_by_notice = chance.one_in(2);
        self.filters = [3, 10, 20, 200][chance.below(4)];
        self.message = [16 * 1024, 64 * 1024, 128 * 1024, 1024 * 1024][chance.below(4)];
        self.zero = [Zero::Fine, Zero::Fine, Zero::Fine, Zero::Fine, Zero::Refused, Zero::OneToo][chance.below(6)];
        self.auth = chance.one_in(10);
        self.document = match chance.below(5) {
            0 => Document::Absent,
            _ => Document::True,
        };
        // Only what a relay without a document is assumed to take may be asked of it.
        if self.document == Document::Absent {
            self.slots = self.slots.max(20);
            self.filters = self.filters.max(10);
            self.message = self.message.max(128 * 1024);
        }
        self.impatient = chance.one_in(4);
        if chance.one_in(10) {
            self.most_records = 40;
        }
        if chance.one_in(12) {
            self.subscription_bytes = Some(24 * 1024);
        }
    }

    fn slowness(&mut self, chance: &mut Chance) {
        self.latency = if chance.one_in(3) { (800, 2_500) } else { (100, 400) };
        self.lag = (chance.draw() % 400, chance.draw() % 400);
    }

    /// One bad habit.
    pub fn habit(&mut self, chance: &mut Chance, authors: &[PublicKey]) {
        match chance.below(17) {
            0 => self.eose = Eose::Never,
            1 => self.eose = Eose::Twice,
            2 => self.eose = Eose::Early,
            3 => self.late_event = true,
            4 | 5 => self.rate = Some(Rate::draw(chance)),
            6 => self.phantoms = true,
            7 => self.deaf = 1 + chance.below(4),
            8 => self.forger = true,
            9 => self.flood = true,
            10 => self.censored = chance.pick(authors).copied(),
            11 => self.lag = (300 + chance.draw() % 700, chance.draw() % 20),
            12 => self.restless = (20 + chance.draw() % 3_600) * 1_000,
            13 => self.document = if chance.one_in(2) { Document::Boastful } else { Document::Fickle },
            14 => self.closed_shop = true,
            15 => self.skew = chance.draw() as i64 % 86_400,
            _ => self.mute = chance.one_in(3),
        }
    }

    /// From now on it is honest; what it can do stays as it was.
    pub fn heal(&mut self) {
        let honest = Self::honest();
        self.eose = Eose::Once;
        self.rate = None;
        self.late_event = false;
        self.phantoms = false;
        self.deaf = 0;
        self.forger = false;
        self.flood = false;
        self.censored = None;
        self.restless = 0;
        self.gone = false;
        self.mute = false;
        self.closed_shop = false;
        self.skew = 0;
        self.latency = honest.latency;
        if matches!(self.document, Document::Boastful | Document::Fickle) {
            self.document = Document::True;
        }
    }

    /// How long a message travels.
    pub fn travel(&self, chance: &mut Chance) -> Time {
        let (least, most) = self.latency;
        least + chance.draw() % (most - least).max(1)
    }

    /// What the document of a session says: nothing, or subscriptions, filters, bytes of a message, the largest page.
    #[must_use]
    pub fn stated(&self, session: u64) -> Option<Stated> {
        let document = match self.document {
            Document::Fickle => [Document::True, Document::Absent, Document::Boastful][(session % 3) as usize],
            fixed => fixed,
        };
        let honest = Stated { slots: self.slots, filters: self.filters, message: self.message, page: self.cap };
        match document {
            Document::Absent => None,
            Document::Boastful => Some(Stated { slots: self.slots * 2, page: 5_000, ..honest }),
            _ => Some(honest),
        }
    }
}

/// What a document says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stated {
    /// Subscriptions at once.
    pub slots: usize,
    /// Filters of one REQ.
    pub filters: usize,
    /// Bytes of one message.
    pub message: usize,
    /// Events of a page.
    pub page: usize,
}

impl Rate {
    fn draw(chance: &mut Chance) -> Self {
        Self {
            per_minute: [4, 10, 30][chance.below(3)],
            how: [How::Notice, How::Closed, How::Closed, How::Ok][chance.below(4)],
            text: RATE_TEXTS[chance.below(RATE_TEXTS.len())],
            hangs_up: chance.one_in(3),
        }
    }
}

/// Whether a text is one of those by which these relays ask for less.
#[must_use]
pub fn is_rate(text: &str) -> bool {
    RATE_TEXTS.contains(&text)
}
