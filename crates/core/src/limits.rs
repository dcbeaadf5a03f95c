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

/// Seconds until an event that a client brought is looked for elsewhere: a push is expected (002).
pub const HUNT_DELAY_CLIENT_SECS: u64 = 180;

/// Milliseconds until an event that came by sync is looked for: more of the same burst may come (002).
pub const HUNT_DELAY_SYNC_MILLIS: u64 = 500;

/// Seconds after which a held event's time is over although not everybody has been asked for its git data: a slow server
/// must not let strangers' entries wait for ever.
pub const MAX_HELD_SECS: u64 = 24 * 3_600;

/// Seconds that an event whose time is over, and that nothing has replaced, is still looked for once an hour.
pub const DORMANT_SECS: u64 = 7 * 24 * 3_600;

/// Dormant events in all: each costs a few requests an hour, and up to 20 kB of memory if it is an announcement.
pub const MAX_DORMANT: usize = 2_000;

/// Dormant events of one author: a maintainer's repositories, not a flood.
pub const MAX_DORMANT_PER_AUTHOR: usize = 64;

/// Events of one name that are looked for at a time, those with the most time left first: all of a name are told anew
/// whenever one of them changes.
pub const MAX_NEEDS: usize = 128;

/// Places where one event's git data is looked for: a maintainer set may name hundreds.
pub const MAX_PLACES: usize = 32;

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

/// Repositories that are looked at in one step when there are other rules: each costs a few lookups, a banned one some
/// writes and a note for git, so that a step stays within some tens of milliseconds.
pub const REVIEW_SLICE: usize = 500;

/// Unwanted authors and events that are looked up in one step: one lookup each.
pub const UNWANTED_SLICE: usize = 10_000;

/// Rows that are read in one step to find what is about banned repositories: some milliseconds of work.
pub const THREAD_SLICE: usize = 2_000;

/// Events that reference a banned repository and are looked at together: most of them go one by one, so that more would be
/// read in vain.
pub const THREAD_PAGE: usize = 32;

/// Events that hang together and are remembered while it is found out whether they go with a banned repository: more than
/// any discussion has, in some megabytes. More than these stay, until their authors are banned.
pub const MAX_THREAD: usize = 100_000;

/// Lines of one moderation list: more than public blocklists have, and some ten megabytes.
pub const MAX_LIST_ENTRIES: usize = 100_000;

/// Bytes of the file that holds one: every line may be a key with a long name.
pub const MAX_LIST_BYTES: u64 = 32 * 1024 * 1024;

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

// Sync: what is asked of other relays.

/// Relays of one repository that are followed: the union over its maintainers' announcements, who each name a few.
pub const MAX_RELAYS_PER_REPOSITORY: usize = 32;

/// Relays in all: a socket, a handshake and a few kilobytes each. Beyond that those with the most repositories win.
pub const SYNC_LINKS: usize = 1_000;

/// Relays of one host name: two or three are honest (paths, ports), a thousand subdomains of one machine are not caught by
/// this but by the dialler's bound per address.
pub const SYNC_LINKS_PER_HOST: usize = 8;

/// Relays that only waiting announcements name, in all and for each: anybody can announce, and each costs a name lookup, a
/// TLS handshake and a subscription.
pub const SYNC_HELD_LINKS: usize = 32;

/// See [`SYNC_HELD_LINKS`].
pub const SYNC_LINKS_PER_HELD: usize = 2;

/// Seconds for which a relay that nobody wants any more is kept: announcements are replaced in two steps sometimes.
pub const SYNC_UNWANTED_SECS: u64 = 60;

/// Seconds after which the row of a relay that nobody wants is forgotten.
pub const SYNC_PEER_SECS: u64 = 30 * 24 * 3_600;

/// Dials under way at once.
pub const SYNC_DIALS: usize = 8;

/// Between two dials.
pub const SYNC_DIAL: std::time::Duration = std::time::Duration::from_millis(250);

/// Between two dials of one host: some relays ban whoever comes back within a second.
pub const SYNC_DIAL_HOST: std::time::Duration = std::time::Duration::from_secs(2);

/// Seconds within which another relay must have been heard for a failure to count as the relay's and not as our network's.
pub const SYNC_SIGN_SECS: u64 = 60;

/// Seconds of absence after which everything is asked for again, not only what is newer (000).
pub const SYNC_QUICK_SECS: u64 = 15 * 60;

/// Seconds by which `since` reaches back before the last frame (004).
pub const SYNC_OVERLAP_SECS: u64 = 15 * 60;

/// The same for a GRASP server, which serves events up to half an hour after they were made (purgatory).
pub const SYNC_OVERLAP_GRASP_SECS: u64 = 45 * 60;

/// How wrong our clock is believed to be at most.
pub const SYNC_MAX_SKEW_SECS: u64 = 24 * 3_600;

/// Seconds between full reconciliations, give or take an hour (000).
pub const SYNC_DAILY_SECS: u64 = 24 * 3_600;

/// Seconds for which it is remembered that a relay does not speak negentropy.
pub const NO_NEGENTROPY_SECS: u64 = 24 * 3_600;

/// Seconds that a live subscription has to be confirmed.
pub const SYNC_EOSE_SECS: u64 = 10;

/// Seconds without an event after which a request is given up, and seconds that it may take in all.
pub const SYNC_PROGRESS_SECS: u64 = 120;

/// See [`SYNC_PROGRESS_SECS`].
pub const SYNC_JOB_SECS: u64 = 30 * 60;

/// Seconds for one round of a reconciliation (the incumbent's number).
pub const SYNC_NEG_SECS: u64 = 15;

/// Seconds until the slot of a closed request counts as free although nothing was heard: CLOSE has no answer.
pub const SYNC_CLOSING_SECS: u64 = 2;

/// Stored events that come so many seconds after the end of an answer with nothing in it were part of it: some relays say
/// the end first and look then.
pub const SYNC_LATE_SECS: u64 = 2;

/// So many of them show that a relay is like that. One or two are events that it got just then with an old date.
pub const SYNC_LATE_EVENTS: u32 = 3;

/// Empty answers that are remembered for it on each connection: more than are under way at once.
pub const SYNC_LATE_REQUESTS: usize = 16;

/// Links that are made in one step at the beginning: each looks at every repository that its relay is wanted for, a
/// millisecond for ten thousand.
pub const SYNC_LINK_SLICE: usize = 16;

/// Reconciliations at once, on all relays: each holds the ids of its window.
pub const SYNC_NEGS: usize = 4;

/// Items of one reconciliation: rounds grow faster than sets.
pub const MAX_SYNC_ITEMS: usize = 50_000;

/// Events that are asked for by id in one request.
pub const SYNC_FETCH_IDS: usize = 300;

/// Events that wait to be fetched by id from one relay.
pub const SYNC_MAX_FETCH: usize = 20_000;

/// Requests at once on a new connection, and at most: gentle first, one more for each answer.
pub const SYNC_FIRST_PACE: u32 = 2;

/// See [`SYNC_FIRST_PACE`].
pub const SYNC_PACE: u32 = 8;

/// Batches of one relay that ask at once.
pub const SYNC_BATCHES: usize = 4;

/// Bytes that may wait to leave before nothing more is said.
pub const SYNC_MAX_UNSENT: usize = 256 * 1024;

/// Filters beyond the packed minimum before live subscriptions are merged (000).
pub const SYNC_SPARE_FILTERS: usize = 70;

/// Bytes of filters beyond which a GRASP server is followed without tags: it has little that is not ours.
pub const SYNC_WIDE_BYTES: usize = 256 * 1024;

/// Deliveries without tags after which it is judged whether they were worth it.
pub const SYNC_WIDE_SAMPLE: u32 = 1_000;

/// Seconds between two requests for what has no place among the live subscriptions.
pub const SYNC_POLL_SECS: u64 = 5 * 60;

/// Seconds until a failed part is tried again; doubled each time, up to the second number, so many times.
pub const SYNC_OWED_SECS: u64 = 10 * 60;

/// See [`SYNC_OWED_SECS`].
pub const SYNC_OWED_MAX_SECS: u64 = 2 * 3_600;

/// See [`SYNC_OWED_SECS`].
pub const SYNC_OWED_TRIES: u32 = 12;

/// Seconds until a live subscription that a relay has ended is opened again.
pub const SYNC_QUIET_SECS: u64 = 65;

/// Pages whose place is kept over a drop.
pub const SYNC_RESUMES: usize = 64;

/// Texts of a relay that mean nothing before it is left alone.
pub const SYNC_NONSENSE: u32 = 100;

/// Seconds until a changed row is written, and between rows of relays that only were heard.
pub const SYNC_SAVE_SECS: u64 = 30;

/// See [`SYNC_SAVE_SECS`]. A third of [`SYNC_QUICK_SECS`], so that a crash costs a quick reconnect.
pub const SYNC_HEARD_SECS: u64 = 5 * 60;

/// Links that work in one step; the next step follows at once.
pub const SYNC_LINKS_A_STEP: usize = 64;

/// Things that one link begins or ends in one step.
pub const SYNC_STEPS: usize = 10_000;

/// Events below which a page cannot have been cut, whatever a relay's pages looked like so far: no relay that is known
/// cuts below a hundred, and a fifth of that leaves room for stranger ones.
pub const PAGE_FLOOR: usize = 20;

/// Pages of one filter. At five hundred events each it is a million events, at fifty a hundred thousand: no repository
/// host has more behind one filter, and a relay that invents ever older events ends here.
pub const MAX_PAGES: usize = 2_000;

/// Ids of one second that are kept to tell whether a page brings news: ten pages. Only a relay that ignores the limit of
/// a request sends more at once.
pub const MAX_SECOND_IDS: usize = 5_000;

/// Messages of one reconciliation that a relay may send. Fifty thousand items of which every fifth differs take 53.
pub const MAX_NEGO_ROUNDS: usize = 64;

/// From this many messages on, a reconciliation of which more than a fifth differs is left for pages.
pub const NEGO_DENSE_ROUNDS: usize = 8;

/// Ids that one reconciliation may bring: 3 MB, twice what one window holds here.
pub const MAX_NEGO_NEED: usize = 100_000;

/// Things that are kept of what one refused event hangs on: more than people refer to, few enough that a row stays small.
pub const MAX_REFUSED_NEEDS: usize = 16;

/// Relays that are kept of those that offered a refused event: one of them will still have it when it is wanted.
pub const MAX_REFUSED_RELAYS: usize = 4;

/// Refused events that are kept in whole, for a child that comes a moment before its parent.
pub const MAX_REFUSED_HOT: usize = 1_024;

/// Bytes of those.
pub const MAX_REFUSED_HOT_BYTES: usize = 8 * 1024 * 1024;

/// Refused events that are remembered: all announcements and states of a few large public relays.
pub const MAX_REFUSED: usize = 500_000;

/// Bytes of memory that they may take: strangers choose how much each refers to.
pub const MAX_REFUSED_BYTES: usize = 150 * 1024 * 1024;

/// Seconds that a refused event is kept in whole. An operator may set it.
pub const REFUSED_HOT_SECS: u64 = 2 * 60;

/// Seconds that a refused event is remembered. An operator may set it for what waits for something else to come.
pub const REFUSED_SECS: u64 = 7 * 24 * 60 * 60;

/// Refused events that are looked at in one step because something came that they may have waited for; the next step
/// follows at once. Popular names have thousands.
pub const WAKE_SLICE: usize = 256;

/// Refused events that are forgotten in one step. A large relay's announcements all have their week at the same time.
pub const REFUSED_EXPIRY_SLICE: usize = 1_000;

// Manners towards other relays: how much is asked of one, and how its refusals and failures are answered.

/// Bytes of a NIP-11 document that is read: real ones have a few kilobytes.
pub const MAX_TERMS_BYTES: usize = 256 * 1024;

/// Bytes of the name by which a server recognises itself: a few dozen hex digits.
pub const MAX_INSTANCE_BYTES: usize = 128;

/// Git fetches at once that a server may invite us to, and in a minute: more than that would be its mistake and our load.
pub const MAX_STATED_GIT_CONCURRENT: u32 = 32;

/// See [`MAX_STATED_GIT_CONCURRENT`].
pub const MAX_STATED_GIT_PER_MINUTE: u32 = 600;

/// What is read of such a statement. An operator may choose as much for a server, and what that server states still holds
/// if it is less.
pub const MAX_READ_GIT_CONCURRENT: u32 = 64;

/// See [`MAX_READ_GIT_CONCURRENT`].
pub const MAX_READ_GIT_PER_MINUTE: u32 = 6_000;

/// Subscriptions that a relay is taken to allow if it says nothing: the smallest number that is common.
pub const SYNC_SLOTS: u32 = 20;

/// Subscriptions that are opened on one connection whatever it allows: with 10 filters each that is the largest plan.
pub const MAX_SYNC_SLOTS: u32 = 500;

/// Subscriptions that are kept free, so that a live set can be rebuilt one by one without a gap.
pub const SYNC_RESERVE_SLOTS: u32 = 2;

/// Requests at once beside the live subscriptions: enough to hide the way there and back, few enough to be polite.
pub const SYNC_TRANSIENT: u32 = 5;

/// Filters of one request: relays that count them begin to refuse above ten.
pub const SYNC_FILTERS: u32 = 10;

/// Bytes of a message that a relay is taken to read if it says nothing: the default of the most common software.
pub const SYNC_MESSAGE_BYTES: usize = 128 * 1024;

/// Bytes of a message that we take any relay to read, whatever it says: less would not hold a useful filter.
pub const MIN_SYNC_MESSAGE_BYTES: usize = 4 * 1024;

/// Bytes of a message that we say to another relay at most.
pub const MAX_SYNC_MESSAGE_BYTES: usize = 1024 * 1024;

/// Bytes of a message that are left for the verb, the id and for those who count differently.
pub const SYNC_MESSAGE_MARGIN: usize = 512;

/// Bytes of the filters of one request: about 1,460 ids.
pub const SYNC_REQ_BYTES: usize = 96 * 1024;

/// Bytes of the tag values of one filter, about 489 ids: half of what common software keeps of one filter.
pub const SYNC_FILTER_BYTES: usize = 32 * 1024;

/// Events of a page that are asked for: what most relays give at once.
pub const SYNC_PAGE: u32 = 500;

/// Bytes of a negentropy message below which pages are quicker: a fingerprint for each of sixteen ranges, a few times over.
pub const MIN_NEGENTROPY_FRAME_BYTES: usize = 4_096;

/// Bytes of a relay's notice that are looked at to find out what it means.
pub const MAX_COMPLAINT_BYTES: usize = 512;

/// Seconds that a connection stands before it counts as stable.
pub const STABLE_SECS: u64 = 5 * 60;

/// Seconds of nothing but failures after which a relay counts as dead.
pub const DEAD_SECS: u64 = 24 * 60 * 60;

/// Seconds between the probes of a relay that is dead or wants nothing to do with us.
pub const PROBE_SECS: u64 = 24 * 60 * 60;

/// Seconds by which a probe comes earlier or later, so that not everybody comes at the same time of the day.
pub const PROBE_SPREAD_SECS: u64 = 60 * 60;

/// Seconds after a drop before a relay is dialled again: some ban whoever is back within one.
pub const REDIAL_SECS: u64 = 2;

/// Seconds until the next attempt, at most, when it is our own line that fails.
pub const OUR_RETRY_SECS: u64 = 60;

/// Seconds in which nothing is asked of a relay that wants less of us: its minute, and five more.
pub const QUIET_SECS: u64 = 65;

/// The same when it has to say it again and again.
pub const MAX_QUIET_SECS: u64 = 60 * 60;

/// Seconds without a complaint after which earlier ones are forgotten.
pub const CALM_SECS: u64 = 5 * 60;

/// Seconds after which a row of failures that was written down says nothing about a relay any more.
pub const HEALTH_MEMORY_SECS: u64 = 7 * 24 * 60 * 60;

/// Things that came lately and are remembered until the verdicts on what was submitted before them: two full batches of the
/// writer with a reference or two each.
pub const MAX_RECENT: usize = 32_768;

/// Slices of refused rows whose time is over that go in one step.
pub const SYNC_EXPIRY_SLICES: usize = 10;

/// Seconds that relays have to answer our goodbye when the service stops.
pub const SYNC_GOODBYE_SECS: u64 = 3;

// Calls to others: how they are made, and what is heard.

/// Bytes of one message of a relay that are read: twice what a client may send us, because others take larger events than
/// we do, and their negentropy answers reach a megabyte.
pub const MAX_HEARD_BYTES: usize = 4 * 1024 * 1024;

/// Places for events that relays have sent and that are not judged yet, all relays together: half a commit, so that
/// clients always find room beside them.
pub const SYNC_IN_FLIGHT: usize = 2_048;

/// The same for one relay: enough that it never waits for a commit, few enough that eight of them share.
pub const SYNC_IN_FLIGHT_PER_LINK: usize = 256;

/// Bytes of an event for which it takes one place, so that few large ones do not fill the memory either: 16 MiB of text
/// in all. Nearly all events take one.
pub const SYNC_PLACE_BYTES: usize = 8 * 1024;

/// Seconds between two pings to a relay, and, twice over, of silence after which it is gone.
pub const RELAY_PING_SECS: u64 = 30;

/// Seconds for the whole of a NIP-11 document.
pub const NIP11_SECS: u64 = 5;

/// Seconds that a connection which stands waits for its NIP-11 document: it is a hint, not a condition.
pub const NIP11_GRACE_SECS: u64 = 2;

/// Seconds for a goodbye to a relay.
pub const GOODBYE_SECS: u64 = 2;

/// Host names that are looked up at once, those included for whose answer nobody waits any more: each holds a thread for
/// as long as the system's resolver tries.
pub const MAX_LOOKUPS: usize = 16;

/// Addresses of one name that are tried. All of them are looked at: one that is not public forbids the name.
pub const MAX_ADDRESSES: usize = 8;

/// Milliseconds until the next address of a name is tried beside the one before (RFC 8305).
pub const NEXT_ADDRESS_MILLIS: u64 = 250;

/// Repositories of one name that wait for git data and are followed by sync: they cost nothing to announce, and all of a
/// name are told anew whenever one of them changes.
pub const MAX_FOLLOWED_HELD: usize = 128;

/// Announcements of one repository's maintainers whose relays are followed, its owner's first: a set may have many more
/// members ([`MAX_MAINTAINERS`]), and each of these may have a repository of the same set.
pub const MAX_FOLLOWED_ANNOUNCEMENTS: usize = 64;

/// Relays of one repository that sync is told of, its owner's first: twice as many as are followed
/// ([`MAX_RELAYS_PER_REPOSITORY`]), because some texts may name the same one, or none.
pub const MAX_FOLLOWED_RELAYS: usize = 2 * MAX_RELAYS_PER_REPOSITORY;

/// Relays that have a label of their own among the measurements; the rest share one. Announcements of strangers name
/// relays, and every label is a dozen series in somebody's database. A board shows no more than a hundred.
pub const METER_RELAYS: usize = 100;

/// Git servers that have a label of their own among the measurements, for the same reason.
pub const METER_DOMAINS: usize = 100;

// The hunt: what is asked of git servers.

/// Fetches at once from one host unless somebody says otherwise (002).
pub const HUNT_CONCURRENT: u32 = 5;

/// Fetches from one host in any minute unless somebody says otherwise (002).
pub const HUNT_PER_MINUTE: u32 = 30;

/// How many hosts' worth one network may be asked: a thousand names of one machine are still one machine.
pub const HUNT_PER_NETWORK: u32 = 2;

/// Fetches at once in all: each may bring gigabytes, and each ends in a check that takes a core.
pub const HUNT_FETCHES: usize = 16;

/// Fetches at once for one quarry: the second only because the first is slow.
pub const HUNT_AT_ONCE: usize = 2;

/// Hosts that are looked up at once: half of what the resolver takes ([`MAX_LOOKUPS`]), relays need the rest.
pub const HUNT_SURVEYS: usize = 8;

/// Seconds without a byte after which a second server is asked, and seconds without an end.
pub const HUNT_SILENT_SECS: u64 = 5;

/// See [`HUNT_SILENT_SECS`].
pub const HUNT_SLOW_SECS: u64 = 30;

/// Seconds until the next round after the first, the second, the third and every further one (002).
pub const HUNT_BACKOFF_SECS: [u64; 4] = [20, 40, 80, 120];

/// Seconds between two rounds for what is dormant. GRASP-02 wants it looked for at least once an hour; a round takes time.
pub const HUNT_DORMANT_SECS: u64 = 59 * 60;

/// Seconds within which the same URL is not asked again for a quarry, whatever new events come, unless it had everything:
/// one event costs its author nothing.
pub const HUNT_AGAIN_SECS: u64 = 20;

/// New events of one owner's repositories that hurry a hunt in a minute. More of them wait.
pub const HUNT_RESETS: usize = 6;

/// Seconds of quiet for a host that is busy and does not say for how long, and at most if it does: a server that wants a
/// week of quiet has made a mistake.
pub const HUNT_BUSY_SECS: u64 = 60;

/// See [`HUNT_BUSY_SECS`].
pub const HUNT_MAX_QUIET_SECS: u64 = 60 * 60;

/// How often a URL is tried in one round when its host is busy each time.
pub const HUNT_BUSY_TIMES: u8 = 3;

/// Seconds of quiet after a failure of a host, doubled with each further one, and at most.
pub const HUNT_COOL_SECS: u64 = 20;

/// See [`HUNT_COOL_SECS`].
pub const HUNT_MAX_COOL_SECS: u64 = 10 * 60;

/// Failures in a row after which a host counts as down: nobody waits in its line, one probe at a time speaks for all.
pub const HUNT_DOWN: u32 = 3;

/// Seconds for which a URL that sent something unsound is not asked for the same quarry: it may have cost gigabytes.
pub const HUNT_UNSOUND_SECS: u64 = 60 * 60;

/// Seconds that a quarry waits when the trouble was ours: a full disk does not empty itself at once.
pub const HUNT_OURS_SECS: u64 = 60;

/// Seconds for which the addresses of a host are believed: what most names allow.
pub const HUNT_ADDRESS_SECS: u64 = 5 * 60;

/// Seconds for which a server's own limits are believed (rule M20).
pub const HUNT_TERMS_SECS: u64 = 60 * 60;

/// Seconds for which requests that a host's row already counts may be made without writing it again.
pub const HUNT_LEASE_SECS: u64 = 5;

/// What part of a minute's requests such a row counts ahead: a third means three writes for thirty requests, and at most
/// ten requests too few after a restart.
pub const HUNT_LEASE_PART: u32 = 3;

/// Fetches after which the hits and misses of a host are halved, so that what it did lately counts more.
pub const HUNT_SCORES: u32 = 64;

/// Sites at which something is sought, in all: more than can be held and dormant ([`MAX_HELD`]).
pub const HUNT_QUARRIES: usize = 2 * MAX_HELD;

/// Events of one quarry that are hunted for, those that are awake first.
pub const HUNT_NEEDS: usize = 1_000;

/// Places of one event that are asked: two announcements' worth ([`MAX_URLS`]), the likely ones first.
pub const HUNT_PLACES: usize = 2 * MAX_URLS;

/// Places of one quarry that are asked.
pub const HUNT_STOPS: usize = 128;

/// Objects of one fetch: what one state may name ([`MAX_STATE_TAGS`]).
pub const HUNT_OIDS: usize = MAX_STATE_TAGS;

/// Hosts that are remembered although nobody names them: a row of a few hundred bytes each.
pub const HUNT_HOSTS: usize = 4_096;

/// Quarries that are over and whose places are remembered for an hour, so that coming back does not start afresh.
pub const HUNT_GRAVES: usize = 4_096;

/// Places of such a quarry that are remembered.
pub const HUNT_GRAVE_STOPS: usize = 32;

/// Seconds until a server whose refs had nothing that is sought is asked for its refs again, unless something new is
/// sought: they may be a large repository.
pub const HUNT_BARREN_SECS: u64 = 10 * 60;

/// Quarries and hosts whose time has come that are looked at in one step; the next step follows at once.
pub const HUNT_SLICE: usize = 256;

// The git client of the hunt: what one call to another git server may take, and what is heard.

/// Seconds until a git server has been found and the connection to it stands, encryption included.
pub const GIT_CALL_CONNECT_SECS: u64 = 10;

/// Seconds until the first byte of an answer: a server that has to read a large pack from a cold disk needs a while.
pub const GIT_CALL_FIRST_SECS: u64 = 60;

/// Seconds without a byte after which a call is over: git says something every five seconds while it counts.
pub const GIT_CALL_SILENCE_SECS: u64 = 30;

/// Seconds until the first byte of a pack, however many signs of life come before it: counting the objects of the largest
/// repositories takes minutes.
pub const GIT_CALL_PREPARE_SECS: u64 = 10 * 60;

/// Bytes of a pack that must come within [`GIT_CALL_PACE_SECS`]: a modem's speed. Whoever is slower keeps a place that
/// others could use.
pub const GIT_CALL_PACE_BYTES: u64 = 60 * 1024;

/// See [`GIT_CALL_PACE_BYTES`].
pub const GIT_CALL_PACE_SECS: u64 = 60;

/// Seconds for the whole of a call: at a megabyte a second it is more than a pack may have by default.
pub const GIT_CALL_SECS: u64 = 60 * 60;

/// Bytes of a list of refs that are read: without protocol v2 a server lists everything it has, and some have a hundred
/// thousand refs. They are not kept.
pub const MAX_HEARD_REFS_BYTES: u64 = 32 * 1024 * 1024;

/// Branches and tags that are asked for because what is sought may be in their history: more than nearly all repositories
/// have. Branches come first.
pub const MAX_ASKED_REFS: usize = 1_000;

/// Pull requests whose refs a server is asked for by name in one call.
pub const MAX_ASKED_PULLS: usize = 1_000;

/// Objects that a server is told we have: each saves it from sending what leads up to it, and a few hundred tips cover the
/// history of nearly all repositories.
pub const MAX_TOLD_HAVES: usize = 256;

/// Lines of an answer before its pack: acknowledgements of every have, and where a shallow server's history ends.
pub const MAX_ANSWER_LINES: usize = 10_000;

/// Bytes of progress in one answer: git's own takes some tens of kilobytes. It is read for the sign of life and thrown
/// away.
pub const MAX_PROGRESS_BYTES: usize = 4 * 1024 * 1024;

/// Checks that are made to find out which of the sought objects are complete when not all of them are: halving finds two
/// broken ones among twenty thousand.
pub const MAX_CATCH_CHECKS: usize = 64;

/// Seconds within which the failures of one URL are told once.
pub const GIT_CALL_TOLD_SECS: u64 = 60 * 60;

/// URLs of which it is remembered that their failures have been told; those of others are told only where everything is.
pub const MAX_TOLD_URLS: usize = 1_000;

// Looks: whether other git servers have what is served here.

/// Places that are looked at, in all: two for each of five thousand repositories, every one of them daily, which is seven a
/// minute. What is known of one takes less than a kilobyte ([`MAX_URL_BYTES`]). The oldest are given up for new ones.
pub const LOOKS: usize = 10_000;

/// Looks at once in all: nobody waits for one, and they are beside the fetches.
pub const LOOKS_AT_ONCE: usize = 4;

/// Seconds after a change until the first look: a push to several servers takes a moment.
pub const LOOK_SECS: u64 = 60;

/// Seconds until the next look while something is missing. The last of them is for ever, and for those that miss nothing.
pub const LOOK_AGAIN_SECS: [u64; 4] = [10 * 60, 60 * 60, 6 * 60 * 60, 24 * 60 * 60];

/// Seconds after a start within which everything is looked at: what is known of it is not kept, and a restart is no reason
/// to call everybody at once.
pub const LOOK_SPREAD_SECS: u64 = 4 * 60 * 60;

/// Seconds for the whole of a look: a long list ([`MAX_HEARD_REFS_BYTES`]) at some hundred kilobytes a second.
pub const LOOK_CALL_SECS: u64 = 2 * 60;
