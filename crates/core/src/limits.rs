//! Every bound of the house, each with its reason. Strangers control every input; what has no bound is theirs to fill.
//!
//! Values that an operator may set have their defaults in the settings; these here are the ones that should not need it.

/// Longest message a client may send. A state event may have [`MAX_STATE_EVENT_BYTES`]; twice that leaves room for
/// escapes and for a REQ with thousands of ids.
pub const MAX_MESSAGE_BYTES: usize = 2 * 1024 * 1024;

/// Kind 30618 may be larger than other events: ten thousand refs take about a megabyte.
pub const MAX_STATE_EVENT_BYTES: usize = 1024 * 1024;

/// Tags of one event. Each single-letter one costs an index entry, so this bounds what one signature makes us write.
/// A state's ref tags are not single letters; see [`MAX_STATE_TAGS`].
pub const MAX_EVENT_TAGS: usize = 2_000;

/// Tags of a state: one per ref, and large repositories have many.
pub const MAX_STATE_TAGS: usize = 20_000;

/// Subscription ids; the incumbent allows 250, NIP-01 asks for 64.
pub const MAX_SUBSCRIPTION_ID_BYTES: usize = 250;

/// Filters of one message. Clients that open a repository send three to six.
pub const MAX_FILTERS: usize = 20;

/// Values of one filter, all conditions together: 1,460 ids is what a polite peer packs, fourteen times that is plenty.
pub const MAX_FILTER_VALUES: usize = 20_000;

/// Filter memory of one connection: what its subscriptions hold in the live index. Room for the twenty thousand values of
/// a syncing peer.
pub const MAX_FILTER_BYTES_PER_CONNECTION: usize = 5 * 1024 * 1024;

/// Filter memory of all connections together: what a small server can spare beside its sockets.
pub const MAX_FILTER_BYTES_TOTAL: usize = 256 * 1024 * 1024;

/// Bytes of live events waiting for a slow reader before it is let go: minutes of a busy relay, seconds of an attack.
pub const MAX_UNSENT_BYTES: usize = 8 * 1024 * 1024;

/// Events of one connection that were sent but not answered; above it the socket is not read. Enough that a bulk
/// publisher never waits for a commit, few enough that sixteen of them fill the line.
pub const MAX_UNANSWERED_PER_CONNECTION: usize = 512;

/// Events in the verify line, all connections together: two full batches of the writer.
pub const MAX_IN_LINE: usize = 8_192;

/// Events of one commit: beyond this a larger batch saves nothing more, and whoever waits for its answer notices.
pub const MAX_BATCH_EVENTS: usize = 4_096;

/// Bytes of one commit, for the same reason when events are large.
pub const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Scans and counts of one connection that run at once; further ones wait inside the session, so that one client that
/// opens hundreds of subscriptions does not stand before all others.
pub const MAX_SCANS_PER_CONNECTION: usize = 4;

/// Rows that a scan touches before it lets others have the thread: about a millisecond of work.
pub const SLICE_ROWS: usize = 1_000;

/// Milliseconds that a scan runs before it lets others have the thread, where rows are slower than usual: long readers
/// also pin pages that the writer could use again.
pub const SLICE_MILLIS: u64 = 5;

/// Rows that one REQ or COUNT may touch in all. A filter that matches nothing in a large store would otherwise cost
/// seconds of a core each time it is sent.
pub const MAX_SCAN_ROWS: u64 = 20_000_000;

/// Items of one negentropy set: forty bytes each, and no repository host has more to reconcile in one window.
pub const MAX_NEGENTROPY_ITEMS: usize = 1_000_000;

/// Bytes of all negentropy sets together; one set of a million items is 41 MB.
pub const MAX_NEGENTROPY_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of one negentropy answer before hex doubles it: under the 128 KiB that common relays and clients take.
pub const NEGENTROPY_FRAME_BYTES: usize = 60_000;

/// Seconds without a message after which a negentropy session is dropped: an honest client answers at once.
pub const NEGENTROPY_IDLE_SECS: u64 = 60;

/// Seconds after which a negentropy session is dropped however lively it is: its set takes memory that others want.
pub const NEGENTROPY_LIFE_SECS: u64 = 600;

/// How far in the future an event may be dated. A far-future state would freeze a repository.
pub const MAX_FUTURE_SECS: u64 = 15 * 60;

/// Targets of one deletion request (the incumbent's number).
pub const MAX_DELETION_TARGETS: usize = 2_048;

/// References of an event that are looked up to find what it belongs to: each costs a lookup in front of the writer.
pub const MAX_REFERENCES: usize = 64;

/// Members of one maintainer set: finding it costs at most the square of this.
pub const MAX_MAINTAINERS: usize = 256;

/// Maintainers that one announcement may name. They stand in memory for every announcement.
pub const MAX_NAMED: usize = 64;

/// URLs that are kept of one announcement's `clone` or `relays`. They stand in memory for every announcement.
pub const MAX_URLS: usize = 16;

/// Bytes of a URL that is kept: a git URL is an npub and an identifier.
pub const MAX_URL_BYTES: usize = 512;

/// Repositories in which a held event's data is looked for when it comes: its author's own and those that are served come
/// first, and the others follow the first that has it. Each look costs a few reads.
pub const MAX_LOOKS: usize = 256;

/// Targets of a held pull request at which its commit is looked for. They stand in memory while it waits.
pub const MAX_TARGETS: usize = 16;

/// Repositories from which the objects of one state may be copied: one of them has them, or none.
pub const MAX_SOURCES: usize = 16;

/// Bytes of a repository identifier. Index keys are hashes, folder names will be; this bounds messages and pages.
pub const MAX_IDENTIFIER_BYTES: usize = 1_024;

/// Bytes of a ref name: it stands in one packet of an advertisement.
pub const MAX_REF_BYTES: usize = 1_024;

/// Bytes of one component of a ref name: it may become a file name in somebody's clone.
pub const MAX_REF_COMPONENT_BYTES: usize = 200;

/// Seconds that an event waits for its git data (G1-38).
pub const PURGATORY_SECS: u64 = 30 * 60;

/// Seconds that every held event has left after a start, however long the server was down.
pub const PURGATORY_GRACE_SECS: u64 = 5 * 60;

/// Held events in all. An announcement takes up to 20 kB of memory ([`MAX_NAMED`], [`MAX_URLS`]), a state or a pull
/// request a few hundred bytes.
pub const MAX_HELD: usize = 20_000;

/// Bytes of held events in all, on disk: strangers may fill this much for half an hour, not more.
pub const MAX_HELD_BYTES: usize = 256 * 1024 * 1024;

/// Held events of one author: a maintainer who announces everything at once, not a flood.
pub const MAX_HELD_PER_AUTHOR: usize = 1_000;

/// Bytes of one author's held events: a few versions of a very large state.
pub const MAX_HELD_BYTES_PER_AUTHOR: usize = 16 * 1024 * 1024;

/// Held events whose time is over that go in one step; the next step follows at once.
pub const EXPIRY_SLICE: usize = 256;

/// Versions of one author's state of one repository that wait side by side; the oldest gives way.
pub const MAX_HELD_STATES: usize = 16;

/// Events that one removal (a vanish request) deletes in one transaction; the rest follows in slices behind a marker.
pub const REMOVAL_SLICE: usize = 1_000;

/// Age of an authentication event (NIP-42).
pub const AUTH_MAX_AGE_SECS: u64 = 10 * 60;

/// Authentications tried on one connection: each costs a signature check on the session's own thread.
pub const MAX_AUTH_ATTEMPTS: usize = 20;

/// Keys authenticated on one connection: a client acts for a few identities at most.
pub const MAX_AUTH_KEYS: usize = 16;

/// Seconds of silence after which a client is pinged, and again until it is let go.
pub const PING_SECS: u64 = 30;

/// Seconds to begin the first request of a connection, to finish the headers of any, and for the websocket handshake: the
/// slowest honest phone needs less.
pub const HANDSHAKE_SECS: u64 = 10;

/// Seconds in which not one byte moves on a connection that is no websocket before it is dropped: whoever neither sends
/// nor reads for a minute is gone. There is no limit on the whole: a large clone takes many minutes. Work that takes
/// longer than this before it has something to say sends keep-alives. An idle connection between two requests ends by
/// the same rule, and long enough after the first that a push may reuse the one that asked for the refs.
pub const STALL_SECS: u64 = 60;

/// Bytes that an index entry of a filter's value takes in memory beside the value itself, roughly.
pub const FILTER_VALUE_BYTES: usize = 200;

/// Bytes of a request's headers: what browsers and proxies send, twice over.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;

/// Orders of the git room that are under way at once: each waits for the disk most of the time.
pub const MAX_ORDERS: usize = 4;

/// Orders that only pushes may have: other work may take minutes, and somebody waits for a push.
pub const ORDERS_FOR_PUSHES: usize = 2;

/// Pushes to repositories of one name that wait, complete, for their turn. A turn takes milliseconds.
pub const MAX_ARRIVALS: usize = 64;

/// States that are looked at when a repository is brought into line, the newest first. Two or three are usual: one that is
/// served and one that waits.
pub const MAX_CANDIDATES: usize = 32;

/// Seconds until work in the git room that failed is tried again: a full disk does not empty itself at once.
pub const ORDER_RETRY_SECS: u64 = 30;

/// Seconds by which the end of a held event is put off while a push or an order for it is under way.
pub const POSTPONE_SECS: u64 = 60;

/// Pull requests whose events are not here yet that one push may bring; each gets a folder of its own.
pub const MAX_UPLOADS_PER_PUSH: usize = 16;

/// Uploads without their events, in all: anybody can make them without so much as a key.
pub const MAX_UPLOADS: usize = 10_000;

/// Bytes of uploads without their events, in all: what a small disk can lend to strangers for half an hour.
pub const MAX_UPLOAD_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// The same for one network.
pub const MAX_UPLOADS_PER_NETWORK: usize = 200;

/// The same for one network.
pub const MAX_UPLOAD_BYTES_PER_NETWORK: u64 = 512 * 1024 * 1024;

/// Refs that one push may change: as many as a state may declare.
pub const MAX_PUSH_COMMANDS: usize = MAX_STATE_TAGS;

/// Refs beyond which a push counts as a large one, of which there are few at a time: their command lists take megabytes.
pub const LARGE_PUSH_COMMANDS: usize = 2_000;

/// Large pushes whose command lists are in memory at once.
pub const MAX_LARGE_PUSHES: usize = 4;

/// Pushes that are being received at once. Each takes a megabyte of memory, or a file.
pub const MAX_PUSHES: usize = 64;

/// Pushes that wait to be received, in all and from one network: nobody is heard who comes later.
pub const MAX_PUSHES_WAITING: usize = 512;

/// The same for one network.
pub const MAX_PUSHES_WAITING_PER_NETWORK: usize = 64;

/// Clones and fetches that wait for a git process. Those that ask for the same thing wait together and count once.
pub const MAX_FETCHES_WAITING: usize = 1_024;

/// The same for one network: a continuous integration that clones with all its machines.
pub const MAX_FETCHES_WAITING_PER_NETWORK: usize = 256;

/// Bytes of a fetch request: a hundred thousand wants and haves.
pub const MAX_FETCH_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of all fetch requests that are in memory at once.
pub const MAX_FETCH_BYTES_TOTAL: usize = 128 * 1024 * 1024;

/// Seconds between signs of life while a push is being worked on: proxies give up after a minute of silence.
pub const KEEPALIVE_SECS: u64 = 5;

/// Repository pages that wait to be made; each takes the writer a millisecond or two.
pub const MAX_VIEWS_WAITING: usize = 256;

/// The same for one network.
pub const MAX_VIEWS_WAITING_PER_NETWORK: usize = 16;
