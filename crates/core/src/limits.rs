//! Every fixed bound, each with its reason. All input comes from untrusted clients and servers, so everything they can
//! make grow needs a bound.
//!
//! Bounds that an operator may set have their defaults in the settings. These here should not need to be changed.

/// Longest message that a client may send. A state event may have [`MAX_STATE_EVENT_BYTES`]; twice that leaves space
/// for JSON escapes and for a REQ with thousands of ids.
pub const MAX_MESSAGE_BYTES: usize = 2 * 1024 * 1024;

/// Bytes of an incomplete message that do not count against the limits below: nearly all messages are shorter.
pub const UNCOUNTED_MESSAGE_BYTES: usize = 4 * 1024;

/// Bytes of incomplete messages, all connections together: the longest messages of sixty-four clients at the same time.
pub const MAX_INCOMPLETE_MESSAGE_BYTES: usize = 128 * 1024 * 1024;

/// Bytes of incomplete messages of one network: eight of the longest. A complete message does not count, so ordinary
/// clients need it for milliseconds.
pub const MAX_INCOMPLETE_MESSAGE_BYTES_PER_NETWORK: usize = 16 * 1024 * 1024;

/// Seconds from the first byte of a message to its last. The longest message takes as long at 35 kB/s, the speed of a
/// slow phone.
pub const INCOMPLETE_MESSAGE_SECS: u64 = 60;

/// Longest event of kind 30618. It may be larger than other events, because ten thousand refs take about a megabyte.
pub const MAX_STATE_EVENT_BYTES: usize = 1024 * 1024;

/// Tags of one event. Each single-letter tag costs an index entry, so this bounds what one signature makes us write.
/// The ref tags of a state are not single letters; see [`MAX_STATE_TAGS`].
pub const MAX_EVENT_TAGS: usize = 2_000;

/// Tags of a state: one per ref, and large repositories have many.
pub const MAX_STATE_TAGS: usize = 20_000;

/// Bytes of a subscription id. ngit-grasp allows 250; NIP-01 requires 64.
pub const MAX_SUBSCRIPTION_ID_BYTES: usize = 250;

/// Filters of one message. A client that opens a repository sends three to six.
pub const MAX_FILTERS: usize = 20;

/// Values of one filter, all conditions together. A syncing relay packs about 1,460 ids into a filter; this is fourteen
/// times that.
pub const MAX_FILTER_VALUES: usize = 20_000;

/// Filter memory of one connection: what its subscriptions take in the live index. Enough for the twenty thousand
/// values of a syncing relay.
pub const MAX_FILTER_BYTES_PER_CONNECTION: usize = 5 * 1024 * 1024;

/// Filter memory of all connections together: a size that a small server can afford.
pub const MAX_TOTAL_FILTER_BYTES: usize = 256 * 1024 * 1024;

/// Filter memory of one network: an eighth of all. Enough for six connections that each have as much as one may have,
/// or for hundreds of ordinary ones. A subscription beyond it gets its stored events only.
pub const MAX_FILTER_BYTES_PER_NETWORK: usize = 32 * 1024 * 1024;

/// Filter memory of queries without live events, all connections together: counts, and subscriptions for which the
/// live index has no space. A query needs it for milliseconds, unless its client reads slowly.
pub const MAX_TOTAL_QUERY_FILTER_BYTES: usize = 64 * 1024 * 1024;

/// Filter memory of such queries of one network: three with the most that one connection may have.
pub const MAX_QUERY_FILTER_BYTES_PER_NETWORK: usize = 16 * 1024 * 1024;

/// Bytes of live events that wait for a slow client before it is disconnected: minutes on a busy relay, seconds in an
/// attack.
pub const MAX_UNSENT_BYTES: usize = 8 * 1024 * 1024;

/// Events of one connection that were received but not answered; above it the socket is not read. Enough that a bulk
/// publisher never waits for a commit, few enough that it takes sixteen of them to fill the verify queue.
pub const MAX_UNANSWERED_EVENTS_PER_CONNECTION: usize = 512;

/// Events that wait for signature verification, all connections together: two full batches of the writer.
pub const MAX_VERIFY_QUEUE_EVENTS: usize = 8_192;

/// Events of one commit. A larger batch saves nothing more, and delays its answers noticeably.
pub const MAX_BATCH_EVENTS: usize = 4_096;

/// Bytes of one commit, for the same reason when events are large.
pub const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Scans and counts of one connection that run at the same time. Further ones wait in the session, so that a client
/// with hundreds of subscriptions does not delay all others.
pub const MAX_SCANS_PER_CONNECTION: usize = 4;

/// Rows that a scan reads before it yields its thread: about a millisecond of work.
pub const SCAN_SLICE_ROWS: usize = 1_000;

/// Milliseconds that a scan runs before it yields its thread, where rows are slower than usual. Long read transactions
/// also keep the writer from reusing pages.
pub const SCAN_SLICE_MILLIS: u64 = 5;

/// Rows that one REQ or COUNT may read in total. A filter that matches nothing in a large store would otherwise cost
/// seconds of CPU time each time it is sent.
pub const MAX_SCAN_ROWS: u64 = 20_000_000;

/// Items of one negentropy set: forty bytes each. No repository host has more to reconcile in one window.
pub const MAX_NEGENTROPY_ITEMS: usize = 1_000_000;

/// Bytes of all negentropy sets together: four networks may have as much as one may have.
pub const MAX_NEGENTROPY_BYTES: usize = 192 * 1024 * 1024;

/// Bytes of the negentropy sets of one network. One set of a million items takes 41 MB. A set that several networks use
/// counts for the first one.
pub const MAX_NEGENTROPY_BYTES_PER_NETWORK: usize = 48 * 1024 * 1024;

/// Bytes of one negentropy answer before hex encoding doubles it: below the 128 KiB that common relays and clients
/// accept.
pub const NEGENTROPY_FRAME_BYTES: usize = 60_000;

/// Seconds without a message after which a negentropy session is closed. A well-behaved client answers at once.
pub const NEGENTROPY_IDLE_TIMEOUT_SECS: u64 = 60;

/// Seconds after which a negentropy session is closed even if it is active, because its set takes memory that other
/// sessions need.
pub const MAX_NEGENTROPY_SESSION_SECS: u64 = 600;

/// Seconds that `created_at` of an event may lie in the future. A state dated far in the future would freeze a
/// repository.
pub const MAX_FUTURE_SECS: u64 = 15 * 60;

/// Targets of one deletion request: the value that ngit-grasp uses.
pub const MAX_DELETION_TARGETS: usize = 2_048;

/// Deletion and vanish requests of one unknown key: a key that has no event here and that no announcement lists. A user
/// who deletes events before they arrive sends a few.
pub const MAX_EARLY_REQUESTS_PER_KEY: usize = 64;

/// Bytes of the requests of one unknown key: a few requests with [`MAX_DELETION_TARGETS`]. Each event of the key is
/// compared with all of their targets, which takes less than a millisecond.
pub const MAX_EARLY_REQUEST_BYTES_PER_KEY: usize = 512 * 1024;

/// Requests of unknown keys from one client network, or from all relays: those of many users behind one address. Above
/// it, the oldest of the network is removed for each new one.
pub const MAX_EARLY_REQUESTS_PER_NETWORK: usize = 1_000;

/// Bytes of the requests of unknown keys from one network: a thousand requests of two kilobytes.
pub const MAX_EARLY_REQUEST_BYTES_PER_NETWORK: usize = 2 * 1024 * 1024;

/// Requests of unknown keys in total. Above it, the oldest of the network with the most bytes is removed for each new one:
/// to refuse new ones would let a flood block all others for as long as the requests are kept.
pub const MAX_EARLY_REQUESTS: usize = 20_000;

/// Bytes of the requests of unknown keys in total, with the memory of their tag values. They are kept in memory.
pub const MAX_EARLY_REQUEST_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of imported events that are deferred until the repository or pull request that they belong to is served. They are
/// in a file; while it is rewritten, about as many bytes of ids and references are in memory.
pub const MAX_DEFERRED_EVENT_BYTES: u64 = 128 * 1024 * 1024;

/// Seconds after which a request whose key is still unknown is deleted: 210 days.
pub const EARLY_REQUEST_EXPIRY_SECS: u64 = 210 * 24 * 3_600;

/// References of an event that are looked up to find the repository it belongs to. Each costs a lookup on the writer
/// thread.
pub const MAX_EVENT_REFERENCES: usize = 64;

/// Members of one maintainer set. Computing the set costs at most the square of this.
pub const MAX_MAINTAINERS: usize = 256;

/// Announcements by the maintainer exception per hosted repository: as many as a maintainer set may have members. They are
/// reviewed whenever an announcement with the same identifier changes.
pub const MAX_EXCEPTIONS_PER_REPOSITORY: usize = MAX_MAINTAINERS;

/// Announcements by the maintainer exception with the same identifier, except those that are reserved for each
/// repository. They are counted apart from the repositories with the identifier. All of them are reviewed after each change
/// of an announcement with the identifier, a unit of work each: a quarter of a turn of the writer.
pub const MAX_EXCEPTIONS_PER_IDENTIFIER: usize = 5_000;

/// Announcements by the maintainer exception that a hosted repository may have even if others have used up the limit of the
/// identifier: most repositories have fewer maintainers.
pub const RESERVED_EXCEPTIONS_PER_REPOSITORY: usize = 4;

/// Hosted repositories that are searched for one that allows another announcement by the maintainer exception, when all
/// repositories with its identifier together have too many. Each search visits the maintainers of the repository.
pub const MAX_EXCEPTION_OWNERS_CHECKED: usize = 64;

/// Announcements with the same identifier, except those by the maintainer exception. One event may concern all of them,
/// and their git jobs run one after the other.
/// The largest known services have fewer repositories of all identifiers together.
pub const MAX_ANNOUNCEMENTS_PER_IDENTIFIER: usize = 10_000;

/// Maintainers that one announcement may name. They are kept in memory for every announcement.
pub const MAX_NAMED_MAINTAINERS: usize = 64;

/// URLs that are kept of one announcement's `clone` or `relays` tag. They are kept in memory for every announcement.
pub const MAX_ANNOUNCED_URLS: usize = 16;

/// Bytes of a URL that is kept. A git URL contains an npub and an identifier.
pub const MAX_URL_BYTES: usize = 512;

/// Repositories that are checked for the objects of a held event when it arrives. The author's own and the served ones
/// come first; the others follow the first that has the objects. Each check costs a few reads.
pub const MAX_OBJECT_CHECK_REPOS: usize = 256;

/// Authors for which the repositories that have their objects are remembered, per identifier: 8 kB each. Git tasks of one
/// identifier ask for the same few authors again and again.
pub const MAX_CACHED_SEARCHES: usize = 64;

/// Units of work ([`WORK_PER_TURN`]) after which the search for repositories that may have an author's objects ends. Usual
/// maintainer sets take a few units each; only repositories with hundreds of maintainers each exceed this.
pub const MAX_SEARCH_WORK: u64 = 10_000;

/// Target repositories of a held pull request that are checked for its commit. They are kept in memory while it is
/// held.
pub const MAX_PULL_REQUEST_TARGETS: usize = 16;

/// Repositories that are searched for the objects of one state. Either one of them has the objects, or none has.
pub const MAX_SOURCE_REPOS: usize = 16;

/// Events of a degraded repository whose objects are fetched at a time. The others follow when these are complete.
pub const MAX_LOST_EVENTS: usize = 64;

/// Pools that a repository reads although their owners are no longer among its maintainers: as many as of maintainers.
/// Git searches each of them for an object, and the paths of all must fit into an environment variable. A repository
/// whose refs need more is degraded.
pub const MAX_RETAINED_POOLS: usize = MAX_MAINTAINERS;

/// Bytes of a repository identifier. Index keys and folder names are hashes, so this only bounds messages and pages.
pub const MAX_IDENTIFIER_BYTES: usize = 1_024;

/// Bytes of a ref name: it must fit into one packet of an advertisement.
pub const MAX_REF_NAME_BYTES: usize = 1_024;

/// Bytes of one component of a ref name: it may become a file name in a clone.
pub const MAX_REF_COMPONENT_BYTES: usize = 200;

/// Seconds that an event is held in purgatory for its git data, as GRASP-01 specifies.
pub const PURGATORY_EXPIRY_SECS: u64 = 30 * 60;

/// Seconds that every held event has left after a start, no matter how long the server was down.
pub const PURGATORY_STARTUP_GRACE_SECS: u64 = 5 * 60;

/// Seconds until the git data of an event that a client published is fetched elsewhere. A push is expected first.
pub const FETCH_DELAY_CLIENT_SECS: u64 = 180;

/// Milliseconds until the git data of an event that a relay delivered is fetched. More events of the same burst may
/// follow.
pub const FETCH_DELAY_SYNC_MILLIS: u64 = 500;

/// Seconds after which a held event expires although not all of its sources were asked. Without this bound a slow git
/// server could keep entries of untrusted clients alive for ever.
pub const MAX_HELD_SECS: u64 = 24 * 3_600;

/// Seconds for which the git data of an expired event that was not replaced is still fetched, once an hour.
pub const DORMANT_SECS: u64 = 7 * 24 * 3_600;

/// Dormant events in total. Each costs a few requests an hour, and up to 20 kB of memory if it is an announcement.
pub const MAX_DORMANT_EVENTS: usize = 2_000;

/// Dormant events of one author: enough for a maintainer's repositories, too few for a flood.
pub const MAX_DORMANT_EVENTS_PER_AUTHOR: usize = 64;

/// Events of one identifier whose git data is fetched at the same time, earliest deadline first and dormant events
/// last. All of them are reported again whenever one of them changes.
pub const MAX_WANTED_EVENTS_PER_IDENTIFIER: usize = 128;

/// Git servers at which the data of one event is looked for. A maintainer set may name hundreds.
pub const MAX_GIT_SOURCES_PER_EVENT: usize = 32;

/// Held events in total. An announcement takes up to 20 kB of memory ([`MAX_NAMED_MAINTAINERS`],
/// [`MAX_ANNOUNCED_URLS`]), a state or a pull request a few hundred bytes.
pub const MAX_HELD_EVENTS: usize = 20_000;

/// Bytes of held events in total, on disk: what untrusted clients can fill for half an hour.
pub const MAX_HELD_BYTES: usize = 256 * 1024 * 1024;

/// Part of [`MAX_HELD_EVENTS`] that is reserved for states whose author maintains a served repository: a quarter. Such
/// authors are known, so a flood of announcements must not keep them from pushing.
pub const RESERVED_HELD_EVENTS: usize = MAX_HELD_EVENTS / 4;

/// Part of [`MAX_HELD_BYTES`] that is reserved for the same states.
pub const RESERVED_HELD_BYTES: usize = MAX_HELD_BYTES / 4;

/// Held events that one network has submitted: an eighth of those that are not reserved. It is enough for an office that
/// announces everything at once, and a flood from one network leaves the rest to others.
pub const MAX_HELD_EVENTS_PER_NETWORK: usize = (MAX_HELD_EVENTS - RESERVED_HELD_EVENTS) / 8;

/// Bytes of the held events that one network has submitted.
pub const MAX_HELD_BYTES_PER_NETWORK: usize = (MAX_HELD_BYTES - RESERVED_HELD_BYTES) / 8;

/// Held events from one relay host: a third of those that are not reserved, because a new server may get everything from
/// one relay.
pub const MAX_HELD_EVENTS_PER_RELAY: usize = (MAX_HELD_EVENTS - RESERVED_HELD_EVENTS) / 3;

/// Bytes of the held events from one relay host.
pub const MAX_HELD_BYTES_PER_RELAY: usize = (MAX_HELD_BYTES - RESERVED_HELD_BYTES) / 3;

/// Reserved events of one network or relay host: an eighth. The owner of a served repository can name hundreds of
/// maintainers, each with many states. States beyond this are held like those of other repositories.
pub const MAX_RESERVED_EVENTS_PER_SUBMITTER: usize = RESERVED_HELD_EVENTS / 8;

/// Reserved bytes of one network or relay host.
pub const MAX_RESERVED_BYTES_PER_SUBMITTER: usize = RESERVED_HELD_BYTES / 8;

/// Held announcements that are removed for one new event. A large state may need the space of many; one that needs more
/// than this is rejected, so that a single event does not keep the writer busy.
pub const MAX_EVICTIONS_PER_EVENT: usize = 256;

/// Held events of one author: enough for a maintainer who announces everything at once, too few for a flood.
pub const MAX_HELD_EVENTS_PER_AUTHOR: usize = 1_000;

/// Bytes of one author's held events: a few versions of a very large state.
pub const MAX_HELD_BYTES_PER_AUTHOR: usize = 16 * 1024 * 1024;

/// Held events that expire in one step. The next step follows at once.
pub const EXPIRY_SLICE_EVENTS: usize = 256;

/// Versions of one author's state of one repository that are held side by side. The oldest is dropped first.
pub const MAX_HELD_STATE_VERSIONS: usize = 16;

/// Work that one turn of the writer does before it leaves the rest to the next turns: ten to thirty milliseconds. One unit
/// is the time of a lookup in a large map, half a microsecond to a bit more than a microsecond.
pub const WORK_PER_TURN: u64 = 20_000;

/// Units of work of one write to the store.
pub const WORK_PER_WRITE: usize = 20;

/// Units of work of one git task without a git job, apart from what it reads.
pub const WORK_PER_TASK: usize = 100;

/// Bytes of stored events that are read and parsed in one unit of work.
pub const BYTES_PER_WORK_UNIT: usize = 64;

/// Repositories that are aligned in one turn of the writer because they depend on an announcement or a state that has
/// changed. Any author can list any other as a maintainer, so there may be thousands.
pub const DEPENDENT_SLICE_REPOS: usize = 256;

/// Events that one removal (a request to vanish) deletes in one transaction. The rest follows in slices, behind a
/// marker.
pub const REMOVAL_SLICE_EVENTS: usize = 1_000;

/// Free bytes of the disk that a transaction may need if it only removes: the store writes changed pages to new places,
/// and a slice of a thousand events changes up to four thousand pages. With less than this nothing is written below the
/// reserve.
pub const MIN_REMOVAL_BYTES: u64 = 16 * 1024 * 1024;

/// Bytes of the text of a deletion or vanish request that is accepted although the disk is full: a sentence or two. Such
/// requests must not fill the rest of the disk.
pub const MAX_REMOVAL_REASON_BYTES: usize = 1_024;

/// Rows that are read in one transaction to find the pull requests for a repository whose hosting has ended: a few
/// milliseconds. Only repositories with more events than this need further transactions.
pub const PULL_REQUEST_PAGE_ROWS: usize = 10_000;

/// Bytes of pull requests in one such page. All of them are moved to purgatory.
pub const PULL_REQUEST_PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Repositories that are reviewed in one step after the policy has changed. Each costs a few lookups, and a banned one
/// some writes and a git job; a step takes some tens of milliseconds.
pub const REVIEW_SLICE_REPOS: usize = 500;

/// Banned authors and events that are looked up in one step: one lookup each.
pub const MODERATION_SLICE_ENTRIES: usize = 10_000;

/// Rows that are read in one step to find events about banned repositories: some milliseconds of work.
pub const THREAD_SLICE_ROWS: usize = 2_000;

/// Events that reference a banned repository and are processed together. Most of them are removed one by one, so
/// reading more would be wasted work.
pub const THREAD_PAGE_EVENTS: usize = 32;

/// Connected events that are remembered while it is decided whether they are removed with a banned repository: more
/// than any discussion has, in some megabytes. Events beyond that stay until their authors are banned.
pub const MAX_THREAD_EVENTS: usize = 100_000;

/// Lines of one moderation list: more than public blocklists have, in some ten megabytes.
pub const MAX_MODERATION_LIST_ENTRIES: usize = 100_000;

/// Bytes of a moderation list file. Every line may be a key with a long comment.
pub const MAX_MODERATION_LIST_BYTES: u64 = 32 * 1024 * 1024;

/// Seconds that an authentication event (NIP-42) may be old.
pub const MAX_AUTH_EVENT_AGE_SECS: u64 = 10 * 60;

/// Authentication attempts on one connection. Each costs a signature check on the session's own thread.
pub const MAX_AUTH_ATTEMPTS: usize = 20;

/// Keys that may be authenticated on one connection. A client acts for a few identities at most.
pub const MAX_AUTH_KEYS: usize = 16;

/// Seconds of silence after which a client is pinged, and again after which it is disconnected.
pub const CLIENT_PING_SECS: u64 = 30;

/// Seconds for the first request of a connection to begin, for the headers of any request, and for the websocket
/// handshake: more than a slow phone needs.
pub const HANDSHAKE_TIMEOUT_SECS: u64 = 10;

/// Seconds without a single byte in either direction after which a connection that is not a websocket is closed. There
/// is no limit on the whole transfer, because a large clone takes many minutes. Work that takes longer before it can
/// answer sends keep-alives. An idle connection between two requests is closed by the same rule; a minute is long
/// enough for a push to reuse the connection that fetched the refs.
pub const STALL_TIMEOUT_SECS: u64 = 60;

/// Approximate bytes that the index entry of a filter value takes in memory besides the value itself.
pub const FILTER_VALUE_OVERHEAD_BYTES: usize = 200;

/// Bytes of a request's headers: twice what browsers and proxies send.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;

/// Git jobs that run at the same time. Each waits for the disk most of the time.
pub const MAX_CONCURRENT_GIT_JOBS: usize = 4;

/// Git jobs that only pushes may use: other jobs may take minutes, and a client waits for its push.
pub const GIT_JOBS_RESERVED_FOR_PUSHES: usize = 2;

/// Completely received pushes that wait for the queue of one identifier. A push takes milliseconds once it is its turn.
pub const MAX_QUEUED_PUSHES: usize = 64;

/// States that are considered when a repository is aligned, the newest first. Usually there are two or three: a served
/// one and a held one.
pub const MAX_CANDIDATE_STATES: usize = 32;

/// Seconds until a failed git job is tried again. A full disk is not freed at once.
pub const GIT_JOB_RETRY_SECS: u64 = 30;

/// Seconds by which the expiry of a held event is postponed while a push or a git job for it is running.
pub const EXPIRY_POSTPONE_SECS: u64 = 60;

/// Pull requests without a known event that one push may contain. Each gets a folder of its own.
pub const MAX_UPLOADS_PER_PUSH: usize = 16;

/// Uploads without a known event in total. Any client can create one, without a key.
pub const MAX_UPLOADS: usize = 10_000;

/// Bytes of uploads without a known event in total: untrusted clients can occupy this much disk space
/// for half an hour, which a small disk must be able to spare.
pub const MAX_UPLOAD_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Uploads without a known event from one network.
pub const MAX_UPLOADS_PER_NETWORK: usize = 200;

/// Bytes of uploads without a known event from one network.
pub const MAX_UPLOAD_BYTES_PER_NETWORK: u64 = 512 * 1024 * 1024;

/// Refs that one push may change: as many as a state may declare.
pub const MAX_PUSH_COMMANDS: usize = MAX_STATE_TAGS;

/// Ref changes above which a push counts as large. Few large pushes run at the same time, because their command lists
/// take megabytes.
pub const LARGE_PUSH_COMMANDS: usize = 2_000;

/// Large pushes whose command lists are in memory at the same time.
pub const MAX_LARGE_PUSHES: usize = 4;

/// Pushes that are received at the same time. Each takes a megabyte of memory, or a file.
pub const MAX_PUSHES: usize = 64;

/// Pushes that wait to be received, in total. Further ones are rejected.
pub const MAX_WAITING_PUSHES: usize = 512;

/// Pushes from one network that wait to be received.
pub const MAX_WAITING_PUSHES_PER_NETWORK: usize = 64;

/// Part of the permits for any kind of git work that one network may hold, in per cent; always at least one permit. A
/// quarter is left for all other networks, however long the work of one network takes. Half would double the time that
/// the machines of a company or of a CI system wait, which are often the only ones that clone.
pub const MAX_NETWORK_SHARE_PERCENT: usize = 75;

/// Clones and fetches that wait for a git process. Identical requests wait together and count once.
pub const MAX_WAITING_FETCHES: usize = 1_024;

/// Clones and fetches from one network that wait for a git process: enough for a CI system that clones with all its
/// machines.
pub const MAX_WAITING_FETCHES_PER_NETWORK: usize = 256;

/// Bytes of a fetch request: a hundred thousand `want` and `have` lines.
pub const MAX_FETCH_REQUEST_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of all fetch requests that are in memory at the same time.
pub const MAX_TOTAL_FETCH_REQUEST_BYTES: usize = 128 * 1024 * 1024;

/// Bytes of responses to fetches that are on disk while clients read them, even if the operator has set a smaller cache
/// or none. Without a file, a client that reads slowly would hold a git process.
pub const MIN_SPOOLED_RESPONSE_BYTES: u64 = 64 * 1024 * 1024;

/// Bytes that the objects of a received pack may have when unpacked, however small the pack is; larger packs may have
/// more, see [`MAX_PACK_EXPANSION`]. Enough for the largest object, or for a hundred small changes of a file of ten
/// megabytes. Git checks as much in a few seconds.
pub const MIN_UNPACKED_PACK_BYTES: u64 = 1024 * 1024 * 1024;

/// Bytes that the objects of a received pack may have when unpacked for each byte of the pack, in addition to
/// [`MIN_UNPACKED_PACK_BYTES`]. The whole history of a large project expands up to a hundred times; an attacker reaches
/// more than a hundred thousand times.
pub const MAX_PACK_EXPANSION: u64 = 256;

/// Seconds of processor time in which a git process checks a pack of any size, on an old core too: a small pack with
/// [`MIN_UNPACKED_PACK_BYTES`] takes three seconds on a current one.
pub const MIN_CHECK_CPU_SECS: u64 = 30;

/// Bytes of the packs that a git process reads for which it gets one more second of processor time, in addition to
/// [`MIN_CHECK_CPU_SECS`]. Git indexes several megabytes of source code per second.
pub const CHECKED_BYTES_PER_CPU_SEC: u64 = 512 * 1024;

/// Bytes of a received pack that is checked without a git process. Packs up to this size are in memory when they have been
/// received, and nearly all pushes are smaller. For larger ones, the time to start a process does not matter.
pub const IN_PROCESS_PACK_BYTES: u64 = 1024 * 1024;

/// Objects of a received pack that is checked without a git process: several hundred commits.
pub const IN_PROCESS_PACK_OBJECTS: u32 = 4_096;

/// Bytes of the objects of a pack that is checked without a git process, when unpacked, and of the objects of pools that
/// the check reads. They are in memory together, so this bounds the memory of a check; git reads as much in a fifth of a
/// second.
pub const IN_PROCESS_UNPACKED_BYTES: u64 = 16 * 1024 * 1024;

/// References from the objects of a pack that is checked without a git process: parents, and entries of trees. They are
/// kept until the push is applied, with 24 bytes each.
pub const IN_PROCESS_LINKS: usize = 32 * 1024;

/// Commits and trees of pools that are read to check without a git process that nothing is missing. A usual push needs the
/// commit before it and the trees of the changed folders; to read this many takes about as long as to start git.
pub const IN_PROCESS_HISTORY_READS: usize = 256;

/// Seconds between keep-alives while a push is processed. Proxies give up after a minute of silence.
pub const PUSH_KEEPALIVE_SECS: u64 = 5;

/// Repository pages that wait to be rendered. Each takes the writer a millisecond or two.
pub const MAX_WAITING_PAGES: usize = 256;

/// Repository pages for one network that wait to be rendered.
pub const MAX_WAITING_PAGES_PER_NETWORK: usize = 16;

// Sync: connections and requests to other relays.

/// Relays of one repository that are followed: the union over its maintainers' announcements, each of which names a
/// few.
pub const MAX_RELAYS_PER_REPOSITORY: usize = 32;

/// Relays in total: a socket, a handshake and a few kilobytes each. If there are more, those with the most repositories
/// are followed.
pub const MAX_SYNC_RELAYS: usize = 1_000;

/// Relays of one host name. Two or three are plausible (paths, ports). Subdomains count as separate hosts and are
/// bounded by [`MAX_SYNC_RELAYS`] and [`MAX_SYNC_RELAYS_OF_HELD_REPOS`] only.
pub const MAX_SYNC_RELAYS_PER_HOST: usize = 8;

/// Relays that only held announcements name, in total. Any client can announce a repository, and each relay costs a
/// name lookup, a TLS handshake and a subscription.
pub const MAX_SYNC_RELAYS_OF_HELD_REPOS: usize = 32;

/// Relays that only held announcements of one author name: a quarter of all of them, so that one author cannot use all.
pub const MAX_SYNC_RELAYS_PER_HELD_AUTHOR: usize = 8;

/// Relays that only one held announcement names and that are on trial: it is not yet known whether they can be reached
/// and what they have. So a long list of relays is tried in portions.
pub const MAX_SYNC_RELAYS_PER_HELD_REPO: usize = 2;

/// Seconds for which a relay of held announcements is on trial at most: five for the dial, and enough for the few
/// requests of a held announcement.
pub const HELD_RELAY_TRIAL_SECS: u64 = 30;

/// Seconds after which a relay of held announcements is replaced by one that was not tried before.
pub const HELD_RELAY_FIRST_TURN_SECS: u64 = 60;

/// Seconds after which a relay of held announcements is replaced by one that was tried before. Relays should not see a
/// new connection every minute.
pub const HELD_RELAY_TURN_SECS: u64 = 10 * 60;

/// Repositories that are considered to decide whether another relay is followed. The work has to be bounded; the first
/// ones suffice, because the others wait no longer than these.
pub const MAX_REPOS_PER_RELAY_CHECK: usize = 16;

/// Seconds for which the connection to a relay that no repository names is kept. Some announcements are replaced in two
/// steps.
pub const UNUSED_RELAY_DISCONNECT_SECS: u64 = 60;

/// Seconds after which the row of a relay that no repository names is deleted.
pub const UNUSED_RELAY_FORGET_SECS: u64 = 30 * 24 * 3_600;

/// Dials that are in progress at the same time.
pub const MAX_CONCURRENT_RELAY_DIALS: usize = 8;

/// Time between two dials.
pub const RELAY_DIAL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(250);

/// Pause between two checks of the relays that wait to be followed, per waiting relay. A check takes about a microsecond for
/// each of them, so that checks take a hundredth of the time.
pub const WAITING_RELAY_CHECK_PAUSE: std::time::Duration = std::time::Duration::from_micros(100);

/// Time between two dials of one host. Some relays ban clients that reconnect within a second.
pub const RELAY_DIAL_INTERVAL_PER_HOST: std::time::Duration = std::time::Duration::from_secs(2);

/// Seconds within which another relay must have sent a message, or another computer must have been reached, for an
/// unanswered connection attempt to count as the relay's failure. Otherwise this server's network is assumed to be down.
pub const NETWORK_CONTACT_SECS: u64 = 60;

/// Consecutive failures of a relay that are attributed to this server's network. Further ones have the same consequences
/// as failures of the relay, because a server with one peer cannot tell the two apart.
pub const MAX_OWN_NETWORK_FAILURES: u32 = 5;

/// Seconds of disconnection after which everything is requested again, not only newer events.
pub const QUICK_RECONNECT_SECS: u64 = 15 * 60;

/// Seconds by which `since` reaches back before the last received frame.
pub const SYNC_OVERLAP_SECS: u64 = 15 * 60;

/// Seconds by which `since` reaches back for a GRASP server, which serves events up to half an hour after they were
/// created (purgatory).
pub const SYNC_GRASP_OVERLAP_SECS: u64 = 45 * 60;

/// Seconds by which our clock is assumed to be wrong at most.
pub const MAX_CLOCK_SKEW_SECS: u64 = 24 * 3_600;

/// Seconds between full reconciliations, plus or minus an hour.
pub const DAILY_RECONCILIATION_SECS: u64 = 24 * 3_600;

/// Seconds for which it is remembered that a relay does not support negentropy.
pub const NO_NEGENTROPY_MEMORY_SECS: u64 = 24 * 3_600;

/// Seconds to wait for the EOSE that confirms a live subscription.
pub const LIVE_EOSE_TIMEOUT_SECS: u64 = 10;

/// Seconds without an event after which a request is given up.
pub const SYNC_REQUEST_STALL_SECS: u64 = 120;

/// Seconds that a request may take in total.
pub const SYNC_REQUEST_TIMEOUT_SECS: u64 = 30 * 60;

/// Seconds for one round of a reconciliation: the value that ngit-grasp uses.
pub const NEGENTROPY_ROUND_TIMEOUT_SECS: u64 = 15;

/// Seconds until the slot of a closed request counts as free without an answer. CLOSE has no answer.
pub const SYNC_CLOSE_GRACE_SECS: u64 = 2;

/// Seconds after an empty EOSE in which stored events still count as part of the answer. Some relays send EOSE first
/// and query then.
pub const LATE_EVENT_WINDOW_SECS: u64 = 2;

/// Late events that identify such a relay. One or two may be events with an old date that it received just then.
pub const MIN_LATE_EVENTS: u32 = 3;

/// Empty answers that are remembered for this check on each connection: more than run at the same time.
pub const MAX_LATE_REQUESTS: usize = 16;

/// Part of the batch window after which it ends if nothing changed: 200 ms of 5 s. Events of one answer follow each
/// other faster.
pub const BATCH_WINDOW_QUIET_DIVISOR: u64 = 25;

/// Batch windows that may end early in a burst. Each leads to two or three requests per relay, and relays that count
/// requests allow about a hundred at once. One is regained per window, so that in the long run relays get no more
/// requests than with full windows.
pub const MAX_EARLY_BATCH_WINDOWS: u64 = 30;

/// Records of relays that are not followed any more: about half a kilobyte each. Further ones are not kept, unless the
/// operator has paused the relay.
pub const MAX_KEPT_RELAY_RECORDS: usize = 4_000;

/// Relays that are created in one step at the start. Each visits every repository that names the relay, a millisecond
/// for ten thousand.
pub const SYNC_STARTUP_SLICE_RELAYS: usize = 16;

/// Reconciliations that run at the same time, on all relays. Each holds the ids of its window.
pub const MAX_CONCURRENT_RECONCILIATIONS: usize = 4;

/// Items of one reconciliation. The number of rounds grows faster than the set.
pub const MAX_RECONCILIATION_ITEMS: usize = 50_000;

/// Events that are requested by id in one request.
pub const MAX_IDS_PER_REQUEST: usize = 300;

/// Events that wait to be requested by id from one relay.
pub const MAX_QUEUED_IDS_PER_RELAY: usize = 20_000;

/// Requests that run at the same time on a new connection. One more is allowed for each answer.
pub const INITIAL_CONCURRENT_REQUESTS: u32 = 2;

/// Requests that run at the same time on one connection, at most.
pub const MAX_CONCURRENT_REQUESTS: u32 = 8;

/// Batches of one relay that send requests at the same time.
pub const MAX_CONCURRENT_BATCHES_PER_RELAY: usize = 4;

/// Bytes that may wait to be sent to a relay before no further message is queued.
pub const SYNC_MAX_UNSENT_BYTES: usize = 256 * 1024;

/// Filters above the packed minimum at which live subscriptions are merged.
pub const CONSOLIDATION_SPARE_FILTERS: usize = 70;

/// Bytes of filters above which a GRASP server is followed without tags. It has few events that do not concern us.
pub const WIDE_SUBSCRIPTION_FILTER_BYTES: usize = 256 * 1024;

/// Events received without tags after which it is decided whether that subscription was worthwhile.
pub const WIDE_SUBSCRIPTION_SAMPLE_EVENTS: u32 = 1_000;

/// Descendants that are followed in all repositories together, in some 200 MB of memory. Those that arrive later are
/// served, but events that reference only them are not requested.
pub const MAX_FOLLOWED_DESCENDANTS: usize = 2_000_000;

/// Descendants of one repository that are followed: a twentieth of all, so that a flood of comments on one repository
/// leaves the others theirs.
pub const MAX_FOLLOWED_DESCENDANTS_PER_REPOSITORY: usize = 100_000;

/// Authors of one repository's root events and descendants whose requests to vanish are followed: more than take part in
/// the largest projects.
pub const MAX_FOLLOWED_AUTHORS_PER_REPOSITORY: usize = 1_000;

/// Bytes of the coordinate of an addressable descendant that is followed: twice the longest usual one.
pub const MAX_FOLLOWED_COORDINATE_BYTES: usize = 512;

/// Ids or coordinates of one query to the store when descendants are collected: enough to read in large slices.
pub const DESCENDANT_QUERY_VALUES: usize = 500;

/// Live subscriptions of a relay that descendants leave free, so that new repositories and root events are followed live
/// at once.
pub const LIVE_SUBSCRIPTIONS_BESIDE_DESCENDANTS: usize = 2;

/// Seconds between two requests for descendants that do not fit into the live subscriptions. Each has one filter.
pub const DESCENDANT_POLL_INTERVAL_SECS: u64 = 5;

/// Seconds after all such descendants of a relay have been requested until the first of them is requested again.
pub const DESCENDANT_ROUND_PAUSE_SECS: u64 = 60;

/// Seconds between two requests for what does not fit into the live subscriptions.
pub const SYNC_POLL_INTERVAL_SECS: u64 = 5 * 60;

/// Seconds by which an event is usually older than its arrival at a relay, and twice the time between two pongs. An event
/// that is older than the end of a live subscription by more should have arrived on it.
pub const SYNC_ARRIVAL_DELAY_SECS: u64 = 60;

/// Seconds until a failed batch is tried again. Doubled each time.
pub const BATCH_RETRY_SECS: u64 = 10 * 60;

/// Seconds until a failed batch is tried again, at most.
pub const MAX_BATCH_RETRY_SECS: u64 = 2 * 3_600;

/// Seconds until a batch is tried again whose only failure is that the relay offered events in a reconciliation and did
/// not send them. Doubled each time. Such a relay usually stores them a moment later, and a reconciliation costs little.
pub const WITHHELD_EVENTS_RETRY_SECS: u64 = 30;

/// Seconds until such a batch is tried again, at most.
pub const MAX_WITHHELD_EVENTS_RETRY_SECS: u64 = 15 * 60;

/// Retries of a failed batch.
pub const MAX_BATCH_RETRIES: u32 = 12;

/// Seconds until a live subscription that a relay has closed is opened again.
pub const LIVE_REOPEN_SECS: u64 = 65;

/// Pages whose position is kept when the connection is lost.
pub const MAX_RESUMABLE_PAGES: usize = 64;

/// Unparseable messages of one connection after which it is closed.
pub const MAX_UNPARSEABLE_MESSAGES: u32 = 100;

/// Messages per minute that a relay may send without a request that explains them: events that match no open filter,
/// repeated events, notices, pings. Five in a second are more than any relay needs. Less than
/// [`HELD_RELAY_EVENTS_PER_MINUTE`], so that a relay which sends nothing else is recognised.
pub const RELAY_UNEXPLAINED_PER_MINUTE: u64 = 300;

/// The same at once: after a subscription is closed, what was on its way still arrives.
pub const RELAY_UNEXPLAINED_BURST: u64 = 500;

/// Live events of a connection that are remembered to recognise repetitions.
pub const RECENT_LIVE_EVENTS_PER_RELAY: usize = 256;

/// Events per minute that are read from one relay: a thousand in a second, more than are stored in that time. Beyond it
/// the relay has to wait.
pub const RELAY_EVENTS_PER_MINUTE: u64 = 60_000;

/// The same at once.
pub const RELAY_EVENTS_BURST: u64 = 20_000;

/// Events per minute that are read from a relay that only held announcements list. Such a repository needs a few dozen
/// events, and anyone can name a relay in an announcement.
pub const HELD_RELAY_EVENTS_PER_MINUTE: u64 = 600;

/// The same at once.
pub const HELD_RELAY_EVENTS_BURST: u64 = 1_000;

/// Times that the base backoff is doubled after the first flood: with the default of 5 s, the first pause has 40 s.
pub const FLOOD_BACKOFF_STEPS: u32 = 3;

/// Seconds until a changed relay row is written.
pub const RELAY_ROW_SAVE_SECS: u64 = 30;

/// Seconds between two writes of the rows of relays of which only the time of the last message has changed. A third of
/// [`QUICK_RECONNECT_SECS`], so that a quick reconnect is still possible after a crash.
pub const RELAY_HEARD_SAVE_SECS: u64 = 5 * 60;

/// Relays that are processed in one step. The next step follows at once.
pub const SYNC_STEP_RELAYS: usize = 64;

/// Actions that one relay begins or ends in one step.
pub const SYNC_STEP_ACTIONS_PER_RELAY: usize = 10_000;

/// Events below which a page cannot have been cut by the relay, whatever its earlier pages looked like. No known relay
/// cuts below a hundred; a fifth of that leaves a margin for unknown ones.
pub const MIN_CUT_PAGE_EVENTS: usize = 20;

/// Pages of one filter. At five hundred events each this is a million events, at fifty a hundred thousand. No
/// repository host has more for one filter, and a relay that invents ever older events is stopped here.
pub const MAX_PAGES_PER_FILTER: usize = 2_000;

/// Ids with the same `created_at` that are kept to detect whether a page brings new events: ten pages. Only a relay
/// that ignores the limit of a request sends more at once.
pub const MAX_IDS_PER_SECOND: usize = 5_000;

/// Messages that a relay may send in one reconciliation. Fifty thousand items of which every fifth differs take 53.
pub const MAX_NEGENTROPY_ROUNDS: usize = 64;

/// Messages after which a reconciliation with more than a fifth of differing items is replaced by pages.
pub const NEGENTROPY_DENSE_ROUNDS: usize = 8;

/// Ids that one reconciliation may find: 3 MB, twice what one window holds here.
pub const MAX_NEGENTROPY_NEEDED_IDS: usize = 100_000;

/// Dependencies that are kept of one rejected event: more than events usually reference, few enough that a row stays
/// small.
pub const MAX_REJECTED_DEPENDENCIES: usize = 16;

/// Events from which the share that a relay has is measured: half a megabyte per relay during a full pass. A sample of so
/// many is accurate to about one percent.
pub const MAX_COVERAGE_SAMPLE_EVENTS: usize = 8_192;

/// Reference tags that are passed on of an event above the size limit. Several of them often name the same thing, so this
/// is more than [`MAX_REJECTED_DEPENDENCIES`].
pub const MAX_OVERSIZED_EVENT_REFERENCES: usize = 64;

/// Relays that are kept of those that delivered a rejected event. One of them will still have it when it is needed.
pub const MAX_REJECTED_RELAYS: usize = 4;

/// Rejected events that are kept completely, for a child that arrives shortly before its parent.
pub const MAX_REJECTED_HOT_CACHE_EVENTS: usize = 1_024;

/// Bytes of rejected events that are kept completely.
pub const MAX_REJECTED_HOT_CACHE_BYTES: usize = 8 * 1024 * 1024;

/// Rejected events that are remembered: all announcements and states of a few large public relays.
pub const MAX_REJECTED_EVENTS: usize = 500_000;

/// Bytes of memory that the rejected events index may take. The authors choose how much each event references.
pub const MAX_REJECTED_INDEX_BYTES: usize = 150 * 1024 * 1024;

/// Seconds that a rejected event is kept completely. Default of a setting.
pub const REJECTED_HOT_CACHE_SECS: u64 = 2 * 60;

/// Seconds that a rejected event is remembered. Default of a setting for events that wait for something else to arrive.
pub const REJECTED_INDEX_SECS: u64 = 7 * 24 * 60 * 60;

/// Rejected events that are reconsidered in one step because something arrived that they may depend on. The next step
/// follows at once. Popular identifiers have thousands.
pub const REJECTED_RETRY_SLICE_EVENTS: usize = 256;

/// Rejected events that expire in one step. The announcements of a large relay all expire at the same time.
pub const REJECTED_EXPIRY_SLICE_EVENTS: usize = 1_000;

// Sync: limits per relay, and reactions to its rejections and failures.

/// Bytes of a NIP-11 document that are read. Real ones have a few kilobytes.
pub const MAX_NIP11_BYTES: usize = 256 * 1024;

/// Bytes of the instance id by which a server recognises itself: a few dozen hex digits.
pub const MAX_INSTANCE_ID_BYTES: usize = 128;

/// Concurrent git fetches up to which a server may raise our limit. A higher value is probably a
/// mistake, and would put too much load on this server.
pub const MAX_STATED_GIT_CONCURRENT: u32 = 32;

/// Git fetches per minute up to which a server may raise our limit.
pub const MAX_STATED_GIT_PER_MINUTE: u32 = 600;

/// Largest number of concurrent git fetches that is read from a NIP-11 document. An operator may set as much for a
/// server; the stated value still applies if it is lower.
pub const MAX_PARSED_GIT_CONCURRENT: u32 = 64;

/// Largest number of git fetches per minute that is read from a NIP-11 document.
pub const MAX_PARSED_GIT_PER_MINUTE: u32 = 6_000;

/// Subscriptions that a relay is assumed to allow if it states nothing: the smallest value in common use.
pub const DEFAULT_RELAY_SUBSCRIPTIONS: u32 = 20;

/// Subscriptions that are opened on one connection whatever the relay allows. With 10 filters each this is the largest
/// plan.
pub const MAX_RELAY_SUBSCRIPTIONS: u32 = 500;

/// Subscriptions that are kept free, so that the live subscriptions can be replaced one by one without a gap.
pub const RESERVED_RELAY_SUBSCRIPTIONS: u32 = 2;

/// Filters of layer 1: announcements and states.
pub const LAYER_ONE_FILTERS: usize = 2;

/// Subscriptions up to which a relay has so few that only one is kept free, and announcements share a live subscription
/// with repositories.
pub const FEW_RELAY_SUBSCRIPTIONS: u32 = 5;

/// Requests that run at the same time besides the live subscriptions: enough to hide the round-trip time, few enough
/// that relays do not limit us.
pub const MAX_TRANSIENT_REQUESTS: u32 = 5;

/// Filters of one request. Relays that count them reject more than ten.
pub const MAX_FILTERS_PER_REQUEST: u32 = 10;

/// Bytes of a message that a relay is assumed to accept if it states nothing: the default of the most common software.
pub const DEFAULT_RELAY_MESSAGE_BYTES: usize = 128 * 1024;

/// Bytes of a message that any relay is assumed to accept, whatever it states. Less would not fit a useful filter.
pub const MIN_RELAY_MESSAGE_BYTES: usize = 4 * 1024;

/// Bytes of a message that is sent to another relay, at most.
pub const MAX_RELAY_MESSAGE_BYTES: usize = 1024 * 1024;

/// Bytes of a message that are kept free for the message type, the subscription id, and relays that count differently.
pub const RELAY_MESSAGE_MARGIN_BYTES: usize = 512;

/// Bytes of the filters of one request: about 1,460 ids.
pub const MAX_REQUEST_FILTER_BYTES: usize = 96 * 1024;

/// Bytes of the tag values of one filter, about 489 ids: half of what common software allows for one filter.
pub const MAX_FILTER_TAG_BYTES: usize = 32 * 1024;

/// Events that are requested per page: what most relays return at once.
pub const SYNC_PAGE_EVENTS: u32 = 500;

/// Bytes of a negentropy message below which pages are faster: a fingerprint for each of sixteen ranges, a few times
/// over.
pub const MIN_NEGENTROPY_FRAME_BYTES: usize = 4_096;

/// Bytes of a relay's notice that are examined to classify it.
pub const MAX_NOTICE_BYTES: usize = 512;

/// Seconds after which a connection counts as stable.
pub const RELAY_STABLE_SECS: u64 = 5 * 60;

/// Seconds of failures only after which a relay counts as dead.
pub const RELAY_DEAD_SECS: u64 = 24 * 60 * 60;

/// Seconds between probes of a relay that is dead or rejects this service.
pub const DEAD_RELAY_PROBE_SECS: u64 = 24 * 60 * 60;

/// Seconds by which a probe is earlier or later, so that probes are spread over the day.
pub const DEAD_RELAY_PROBE_SPREAD_SECS: u64 = 60 * 60;

/// Seconds after a disconnection before a relay is dialled again. Some relays ban clients that reconnect within a
/// second.
pub const MIN_REDIAL_SECS: u64 = 2;

/// Seconds until the next attempt, at most, when this server's network is down.
pub const MAX_OFFLINE_RETRY_SECS: u64 = 60;

/// Different parts of the needs that a relay may refuse in one connection before it counts as refusing us altogether. A
/// relay may have rules against single repositories or authors.
pub const MAX_REFUSED_SCOPES: usize = 3;

/// Seconds in which nothing is requested from a relay that has rate-limited us. Most relays count requests per minute;
/// five seconds are added as a margin.
pub const RATE_LIMIT_COOLDOWN_SECS: u64 = 65;

/// Seconds of cooldown, at most, for a relay that rate-limits us repeatedly.
pub const MAX_RATE_LIMIT_COOLDOWN_SECS: u64 = 60 * 60;

/// Seconds without a rate limit after which earlier ones are forgotten.
pub const RATE_LIMIT_RESET_SECS: u64 = 5 * 60;

/// Seconds after which a stored series of failures is no longer used.
pub const RELAY_HEALTH_MEMORY_SECS: u64 = 7 * 24 * 60 * 60;

/// Recent arrivals that are remembered until the events submitted before them are decided: two full batches of the
/// writer with a reference or two each.
pub const MAX_RECENT_ARRIVALS: usize = 32_768;

/// Slices of expired rejected events that are removed in one step.
pub const REJECTED_EXPIRY_SLICES_PER_STEP: usize = 10;

/// Seconds that all relays together have to answer the close frame when the server stops.
pub const SYNC_SHUTDOWN_SECS: u64 = 3;

// Outbound connections and what is read from them.

/// Bytes of one message from a relay that are read: twice what a client may send us, because other relays accept larger
/// events than we do, and their negentropy answers reach a megabyte.
pub const MAX_RECEIVED_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Permits for events that relays have sent and that are not decided yet, all relays together: half a commit, so that
/// there is always space for events of clients.
pub const SYNC_PERMITS: usize = 2_048;

/// Permits for one relay: enough that it never waits for a commit, few enough that eight relays can share.
pub const SYNC_PERMITS_PER_RELAY: usize = 256;

/// Bytes of an event that one permit covers, so that a few large events do not fill the memory either: 16 MiB of text
/// in total. Nearly all events take one permit.
pub const SYNC_PERMIT_BYTES: usize = 8 * 1024;

/// Seconds between two pings to a relay. After twice as many seconds without a message the connection is
/// closed.
pub const RELAY_PING_SECS: u64 = 30;

/// Seconds for a whole NIP-11 request.
pub const NIP11_TIMEOUT_SECS: u64 = 5;

/// Seconds that an established connection waits for the NIP-11 document. Sync works without it.
pub const NIP11_WAIT_SECS: u64 = 2;

/// Seconds to close one relay connection.
pub const RELAY_CLOSE_TIMEOUT_SECS: u64 = 2;

/// Host names that are looked up at the same time, including abandoned lookups. Each occupies a thread for as long as
/// the system's resolver tries.
pub const MAX_DNS_LOOKUPS: usize = 16;

/// Addresses of one host name that are tried. All of them are checked: one that is not public forbids the name.
pub const MAX_ADDRESSES_PER_HOST: usize = 8;

/// Milliseconds until the next address of a name is tried in parallel with the one before (RFC 8305).
pub const NEXT_ADDRESS_DELAY_MILLIS: u64 = 250;

/// Repositories of one identifier that wait for git data and are followed by sync. They cost nothing to announce, and
/// all of an identifier are reported again whenever one of them changes.
pub const MAX_FOLLOWED_HELD_REPOS: usize = 128;

/// Announcements of one repository's maintainers whose relays are followed, its owner's first. A set may have many more
/// members ([`MAX_MAINTAINERS`]), and each of them may have a repository with the same set.
pub const MAX_FOLLOWED_ANNOUNCEMENTS: usize = 64;

/// Relays of one repository that are reported to sync, its owner's first: twice as many as are followed
/// ([`MAX_RELAYS_PER_REPOSITORY`]), because several texts may name the same relay, or none.
pub const MAX_FOLLOWED_RELAYS: usize = 2 * MAX_RELAYS_PER_REPOSITORY;

/// Relays with their own metric label; the rest share one. Untrusted announcements name relays, and every label is a
/// dozen time series in the operator's database. A dashboard shows no more than a hundred.
pub const MAX_RELAY_LABELS: usize = 100;

/// Git servers with their own metric label, for the same reason.
pub const MAX_DOMAIN_LABELS: usize = 100;

// Fetch: requests to git servers for missing git data.

/// Concurrent fetches from one host unless the operator or the server states another limit.
pub const FETCH_CONCURRENT_PER_HOST: u32 = 5;

/// Fetches from one host in any minute unless the operator or the server states another limit.
pub const FETCH_PER_MINUTE_PER_HOST: u32 = 30;

/// Factor by which the limits of one network (IPv4 /24, IPv6 /48) exceed those of a host. Many host names may belong
/// to one machine.
pub const NETWORK_LIMIT_FACTOR: u32 = 2;

/// Concurrent fetches in total. Each may bring gigabytes, and each ends in a check that occupies a core.
pub const MAX_CONCURRENT_FETCHES: usize = 16;

/// Concurrent fetches of one job. The second starts only if the first is slow.
pub const MAX_CONCURRENT_FETCHES_PER_JOB: usize = 2;

/// Hosts that are surveyed at the same time: half of what the resolver allows ([`MAX_DNS_LOOKUPS`]); relays need the
/// rest.
pub const MAX_CONCURRENT_SURVEYS: usize = 8;

/// Seconds without a byte from the first source after which a second one is asked.
pub const FETCH_HEDGE_SILENT_SECS: u64 = 5;

/// Seconds that a fetch may take before a second source is asked.
pub const FETCH_HEDGE_SLOW_SECS: u64 = 30;

/// Seconds until the next round after the first, second, third, and every further round.
pub const FETCH_BACKOFF_SECS: [u64; 4] = [20, 40, 80, 120];

/// Seconds between two rounds for dormant events. GRASP-02 requires at least one attempt per hour, and a round takes
/// some time.
pub const FETCH_DORMANT_INTERVAL_SECS: u64 = 59 * 60;

/// Seconds within which the same URL is not asked again for a job, whatever new events arrive, unless it had
/// everything. Creating an event costs its author nothing.
pub const FETCH_SAME_URL_SECS: u64 = 20;

/// New events of one owner's repositories that bring a round forward, per minute. Further ones wait.
pub const MAX_FETCH_RESETS_PER_MINUTE: usize = 6;

/// Owners whose rounds are counted for that limit: a hundred bytes each. Only owners of the last minute are kept, so
/// more of them are hardly ever active at once; beyond that, the one that has been inactive for longest is forgotten.
pub const MAX_FETCH_RESET_OWNERS: usize = 4_096;

/// Seconds without requests to a busy host that does not send `Retry-After`.
pub const BUSY_HOST_QUIET_SECS: u64 = 60;

/// Seconds of `Retry-After` that are respected, at most. A server that demands a week is misconfigured.
pub const MAX_BUSY_HOST_QUIET_SECS: u64 = 60 * 60;

/// Busy answers after which a URL is not tried again in the same round.
pub const MAX_BUSY_ANSWERS_PER_ROUND: u8 = 3;

/// Seconds without requests to a host after a failure. Doubled with each further failure.
pub const FAILED_HOST_QUIET_SECS: u64 = 20;

/// Seconds without requests to a failed host, at most.
pub const MAX_FAILED_HOST_QUIET_SECS: u64 = 10 * 60;

/// Consecutive failures after which a host counts as down: jobs do not wait for it, and one probe at a time decides for
/// all.
pub const HOST_DOWN_FAILURES: u32 = 3;

/// Seconds for which a URL that sent invalid data is not asked for the same job. The data may have cost gigabytes of
/// traffic.
pub const INVALID_SOURCE_QUIET_SECS: u64 = 60 * 60;

/// Seconds for which a job pauses after a local error. A full disk is not freed at once.
pub const LOCAL_ERROR_PAUSE_SECS: u64 = 60;

/// Seconds for which the addresses of a host are cached: what most DNS records allow.
pub const HOST_ADDRESS_TTL_SECS: u64 = 5 * 60;

/// Seconds for a lookup of the own domain, whose addresses events must not make the server dial: less than the
/// deadline of a dial, so that a failing lookup does not use it up.
pub const OWN_DOMAIN_LOOKUP_SECS: u64 = 3;

/// Seconds after which a failed lookup of the own domain is repeated.
pub const OWN_DOMAIN_RETRY_SECS: u64 = 30;

/// Seconds for which the limits that a server states are cached.
pub const HOST_STATED_LIMITS_TTL_SECS: u64 = 60 * 60;

/// Seconds for which requests that a stored host row already counts may be made without writing it again.
pub const HOST_ROW_AHEAD_SECS: u64 = 5;

/// Part of a minute's requests that a host row counts ahead: a third means three writes for thirty requests, and at
/// most ten requests too few after a restart.
pub const HOST_ROW_AHEAD_DIVISOR: u32 = 3;

/// Fetches after which the hits and misses of a host are halved, so that recent ones count more.
pub const MAX_HOST_SCORE_FETCHES: u32 = 64;

/// Fetch jobs in total: more than there can be held and dormant events ([`MAX_HELD_EVENTS`]).
pub const MAX_FETCH_JOBS: usize = 2 * MAX_HELD_EVENTS;

/// Events of one fetch job, dormant ones last.
pub const MAX_EVENTS_PER_FETCH_JOB: usize = 1_000;

/// Sources of one event that are asked: those of two announcements ([`MAX_ANNOUNCED_URLS`]), the likely ones first.
pub const MAX_FETCH_SOURCES_PER_EVENT: usize = 2 * MAX_ANNOUNCED_URLS;

/// Sources of one fetch job.
pub const MAX_SOURCES_PER_FETCH_JOB: usize = 128;

/// Objects of one fetch: what one state may name ([`MAX_STATE_TAGS`]).
pub const MAX_OIDS_PER_FETCH: usize = MAX_STATE_TAGS;

/// Hosts that are remembered although no job uses them: a row of a few hundred bytes each.
pub const MAX_IDLE_GIT_HOSTS: usize = 4_096;

/// Ended fetch jobs whose sources are remembered for an hour, so that a job that returns does not start anew.
pub const MAX_PAST_FETCH_JOBS: usize = 4_096;

/// Sources of an ended fetch job that are remembered.
pub const MAX_SOURCES_PER_PAST_JOB: usize = 32;

/// Seconds until the refs of a server are requested again for objects that they did not contain, unless a new event
/// names the objects. They may be a large repository.
pub const USELESS_REFS_RETRY_SECS: u64 = 10 * 60;

/// Objects per source that it is known to lack: a hundred bytes each. More are requested together with the others.
pub const MAX_LACKING_OBJECTS_PER_SOURCE: usize = 64;

/// Received objects of a job that are remembered, so that what they refer to is not sent again.
pub const MAX_RECEIVED_OBJECTS_PER_JOB: usize = MAX_SENT_HAVES;

/// Jobs and hosts that are processed in one step. The next step follows at once.
pub const FETCH_STEP_ENTRIES: usize = 256;

// Fetch: bounds of one request to a git server, and of its response.

/// Seconds to look up and connect to a git server, TLS included.
pub const GIT_CONNECT_TIMEOUT_SECS: u64 = 10;

/// Seconds until the first byte of a response. A server that reads a large pack from a cold disk needs a while.
pub const GIT_FIRST_BYTE_TIMEOUT_SECS: u64 = 60;

/// Seconds without a byte after which a request is given up. git sends progress every five seconds while it counts
/// objects.
pub const GIT_SILENCE_TIMEOUT_SECS: u64 = 30;

/// Seconds until the first byte of a pack, whatever progress comes before it. Counting the objects of the largest
/// repositories takes minutes.
pub const GIT_PACK_START_TIMEOUT_SECS: u64 = 10 * 60;

/// Bytes of a pack that must arrive within [`MIN_PACK_RATE_SECS`]: the speed of a modem. A slower server occupies a
/// slot that other fetches could use.
pub const MIN_PACK_RATE_BYTES: u64 = 60 * 1024;

/// Seconds over which [`MIN_PACK_RATE_BYTES`] is measured.
pub const MIN_PACK_RATE_SECS: u64 = 60;

/// Seconds for a whole request. At a megabyte per second this is more than a pack may have by default.
pub const GIT_REQUEST_TIMEOUT_SECS: u64 = 60 * 60;

/// Bytes of a list of refs that are read. Without protocol v2 a server lists everything it has, and some have a hundred
/// thousand refs. The list is not kept.
pub const MAX_REF_LIST_BYTES: u64 = 32 * 1024 * 1024;

/// Branches and tags that are requested because a wanted object may be in their history: more than nearly all
/// repositories have. Branches come first.
pub const MAX_REQUESTED_REFS: usize = 1_000;

/// Pull requests whose refs are requested by name in one request.
pub const MAX_REQUESTED_PULL_REQUESTS: usize = 1_000;

/// Objects that are sent as `have`. Each keeps the server from sending its history, and a few hundred tips cover the
/// history of nearly all repositories.
pub const MAX_SENT_HAVES: usize = 256;

/// Lines of a response before its pack: acknowledgements of every `have`, and the boundary of a shallow server's
/// history.
pub const MAX_FETCH_RESPONSE_LINES: usize = 10_000;

/// Bytes of progress in one response. git itself sends some tens of kilobytes. Progress is read as a keep-alive and
/// discarded.
pub const MAX_PROGRESS_BYTES: usize = 4 * 1024 * 1024;

/// Connectivity checks that are made to find out which wanted objects are complete if not all of them are. Bisection
/// finds two broken ones among twenty thousand.
pub const MAX_CONNECTIVITY_CHECKS: usize = 64;

/// Seconds within which the failures of one URL are logged once as WARN.
pub const FETCH_FAILURE_LOG_INTERVAL_SECS: u64 = 60 * 60;

/// URLs whose failures are remembered as logged. Failures of further URLs are logged as DEBUG only.
pub const MAX_LOGGED_FAILURE_URLS: usize = 1_000;

// Fetch: mirror checks, which compare the refs of other git servers with the served ones.

/// Mirrors that are checked, in total: two for each of five thousand repositories, each of them daily, which is seven a
/// minute. Each takes less than a kilobyte ([`MAX_URL_BYTES`]). The oldest are dropped for new ones.
pub const MAX_MIRRORS: usize = 10_000;

/// Concurrent mirror checks in total, besides the fetches. Nothing waits for their results.
pub const MAX_CONCURRENT_MIRROR_CHECKS: usize = 4;

/// Seconds after a change until the first mirror check. A push to several servers takes a moment.
pub const MIRROR_CHECK_DELAY_SECS: u64 = 60;

/// Seconds until the next check while something is missing. The last value repeats, and also applies to mirrors that
/// miss nothing.
pub const MIRROR_CHECK_RETRY_SECS: [u64; 4] = [10 * 60, 60 * 60, 6 * 60 * 60, 24 * 60 * 60];

/// Seconds after a start over which all mirror checks are spread. Results are not stored, and a restart must not cause
/// requests to all servers at once.
pub const MIRROR_CHECK_STARTUP_SPREAD_SECS: u64 = 4 * 60 * 60;

/// Seconds for a whole mirror check: a long list of refs ([`MAX_REF_LIST_BYTES`]) at some hundred kilobytes per second.
pub const MIRROR_CHECK_TIMEOUT_SECS: u64 = 2 * 60;
