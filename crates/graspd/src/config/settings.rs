//! The table of all settings. Flags, environment variables, file keys, help texts and docs/settings.md are made from
//! it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Prefix of all environment variables of this program.
pub(crate) const PREFIX: &str = "NGIT_";

/// Name, without the prefix, of the variable that contains the path of the TOML file. It is not a setting, because
/// settings are read from that file.
pub(crate) const FILE_VARIABLE: &str = "CONFIG";

/// The declaration of one setting.
pub(crate) struct Setting {
    /// Name in capitals. The variable, the flag and the file key are derived from it.
    pub(crate) name: &'static str,
    /// Heading in the help and in the reference.
    pub(crate) section: &'static str,
    /// Kind of value.
    pub(crate) kind: ValueKind,
    /// Value if the setting is given nowhere.
    pub(crate) default: DefaultValue,
    /// One to three sentences for the help and the reference. The first one is the short help of the flag.
    pub(crate) help: &'static str,
}

/// Kind of value of a setting. It decides the placeholder and the allowed values that the help shows.
pub(crate) enum ValueKind {
    /// Any text.
    Text,
    /// Text of one line.
    Line,
    /// An IP address with a port.
    Address,
    /// A host name or IP address, with or without a port.
    Domain,
    /// The path of a URL.
    BasePath,
    /// A folder on this machine.
    Folder,
    /// A socket on this machine, or `off`.
    SocketFile,
    /// IP networks, separated by commas.
    Networks,
    /// Moderation list: entries separated by commas, or `@` and the path of a file with one entry per line.
    List,
    /// Log level, or a list of levels for parts of the program.
    LogLevel,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Whole number within a range, both ends included.
    Number { min: u64, max: u64 },
    /// Secret text. It has no flag, because every user of the machine can read the arguments of a process.
    Secret,
}

/// Value of a setting that is given nowhere.
pub(crate) enum DefaultValue {
    /// This text, parsed like a given value.
    Fixed(&'static str),
    /// A value that is derived from other settings; the text describes it in the help.
    Derived(&'static str),
}

const SERVICE: &str = "Service";
const STORAGE: &str = "Storage";
const LIMITS: &str = "Relay limits";
const NETWORK: &str = "Network limits";
const GIT: &str = "Git";
const SYNC: &str = "Sync";
const MODERATION: &str = "Moderation and archive";
const RUNNING: &str = "Running";

/// Words of a setting that is on or off.
pub(crate) const ON_OFF: &[&str] = &["true", "false"];

/// Seconds of a day.
const DAY_SECS: u64 = 86_400;

/// All settings, grouped by section.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        name: "DOMAIN",
        section: SERVICE,
        kind: ValueKind::Domain,
        default: DefaultValue::Derived("BIND_ADDRESS"),
        help: "Public host name of this service, with the port if it is not the default port. A repository is \
               accepted only if its announcement lists this name, so it must be the name that users see in URLs.",
    },
    Setting {
        name: "BASE_PATH",
        section: SERVICE,
        kind: ValueKind::BasePath,
        default: DefaultValue::Fixed("/"),
        help: "URL path of the service, if it shares its domain with another site. With /grasp the relay is at \
               wss://DOMAIN/grasp, and repositories are below that path.",
    },
    Setting {
        name: "BIND_ADDRESS",
        section: SERVICE,
        kind: ValueKind::Address,
        default: DefaultValue::Fixed("127.0.0.1:7334"),
        help: "IP address and port to listen on. Use 0.0.0.0 or [::] as the address to listen on all interfaces.",
    },
    Setting {
        name: "TRUSTED_PROXY_CIDRS",
        section: SERVICE,
        kind: ValueKind::Networks,
        default: DefaultValue::Fixed(""),
        help: "Networks of the reverse proxies whose X-Forwarded-For header is trusted. Leave it empty if clients \
               connect directly, because a client in one of these networks can claim any address.",
    },
    Setting {
        name: "RELAY_NAME",
        section: SERVICE,
        kind: ValueKind::Line,
        default: DefaultValue::Derived("DOMAIN followed by \"grasp relay\""),
        help: "Name of the relay, shown in its information document (NIP-11) and on its web pages.",
    },
    Setting {
        name: "RELAY_DESCRIPTION",
        section: SERVICE,
        kind: ValueKind::Text,
        default: DefaultValue::Fixed("Git hosting that follows signed Nostr events (GRASP)."),
        help: "Description of the relay, shown in its information document (NIP-11) and on its web pages.",
    },
    Setting {
        name: "RELAY_OWNER_NSEC",
        section: SERVICE,
        kind: ValueKind::Secret,
        default: DefaultValue::Derived("a generated key, stored in .relay-owner.nsec in RELAY_DATA_PATH"),
        help: "Private key of the operator of this relay, as nsec1… or 64 hex digits. It can also be given as the \
               systemd credential relay_owner_nsec. It has no flag, because other users of the machine can read the \
               arguments of a process.",
    },
    Setting {
        name: "POLICY",
        section: SERVICE,
        kind: ValueKind::Choice(&["grasp", "open"]),
        default: DefaultValue::Fixed("grasp"),
        help: "Which events are accepted. grasp accepts repositories that list this service and the events that \
               belong to them; open accepts every valid event.",
    },
    Setting {
        name: "GIT_DATA_PATH",
        section: STORAGE,
        kind: ValueKind::Folder,
        default: DefaultValue::Fixed("./data/git"),
        help: "Folder of the git repositories. It is created if it does not exist.",
    },
    Setting {
        name: "RELAY_DATA_PATH",
        section: STORAGE,
        kind: ValueKind::Folder,
        default: DefaultValue::Fixed("./data/relay"),
        help: "Folder of the event database and of the generated owner key. It is created if it does not exist. It \
               must be neither inside GIT_DATA_PATH nor around it.",
    },
    Setting {
        name: "STORE_RESERVE_BYTES",
        section: STORAGE,
        kind: ValueKind::Number { min: 0, max: 1 << 40 },
        default: DefaultValue::Fixed("67108864"),
        help: "Free disk space, in bytes, below which nothing new is stored, so that a full disk cannot stop the \
               service.",
    },
    Setting {
        name: "DISK_BUDGET_BYTES",
        section: STORAGE,
        kind: ValueKind::Number { min: 0, max: 1 << 60 },
        default: DefaultValue::Fixed("0"),
        help: "Disk space, in bytes, that events, repositories, held data and caches may use together. When it is \
               used up, nothing that needs more space is accepted. 0 means the whole disk except \
               STORE_RESERVE_BYTES.",
    },
    Setting {
        name: "DISK_SOFT_PERCENT",
        section: STORAGE,
        kind: ValueKind::Number { min: 1, max: 100 },
        default: DefaultValue::Fixed("90"),
        help: "Percentage of the disk budget above which no new repository is accepted, so that existing \
               repositories can still grow.",
    },
    Setting {
        name: "QUOTA_REPOSITORIES_PER_KEY",
        section: STORAGE,
        kind: ValueKind::Number { min: 0, max: 1_000_000 },
        default: DefaultValue::Fixed("0"),
        help: "Maximum number of repositories of one key; 0 means unlimited. Anyone can create more keys, so this \
               limits mistakes and not attacks.",
    },
    Setting {
        name: "QUOTA_BYTES_PER_REPOSITORY",
        section: STORAGE,
        kind: ValueKind::Number { min: 0, max: 1 << 60 },
        default: DefaultValue::Fixed("0"),
        help: "Maximum size of the git data of one repository, in bytes; 0 means unlimited.",
    },
    Setting {
        name: "QUOTA_BYTES_PER_KEY",
        section: STORAGE,
        kind: ValueKind::Number { min: 0, max: 1 << 60 },
        default: DefaultValue::Fixed("0"),
        help: "Maximum size of the git data of all repositories of one key together, in bytes; 0 means unlimited.",
    },
    Setting {
        name: "PURGATORY_EXPIRY_SECS",
        section: STORAGE,
        kind: ValueKind::Number { min: 1, max: 30 * DAY_SECS },
        default: DefaultValue::Fixed("1800"),
        help: "Seconds for which an accepted event waits in purgatory for its git data before it expires.",
    },
    Setting {
        name: "MAX_CONNECTIONS",
        section: LIMITS,
        kind: ValueKind::Number { min: 1, max: 1_000_000 },
        default: DefaultValue::Fixed("10000"),
        help: "Maximum number of simultaneous connections, from all networks together.",
    },
    Setting {
        name: "RELAY_MAX_SUBSCRIPTIONS",
        section: LIMITS,
        kind: ValueKind::Number { min: 1, max: 10_000 },
        default: DefaultValue::Fixed("500"),
        help: "Maximum number of open subscriptions per connection.",
    },
    Setting {
        name: "RELAY_MAX_NEG_SESSIONS",
        section: LIMITS,
        kind: ValueKind::Number { min: 1, max: 1_000 },
        default: DefaultValue::Fixed("10"),
        help: "Maximum number of open negentropy (NIP-77) sessions per connection.",
    },
    Setting {
        name: "RELAY_MAX_EVENT_SIZE_BYTES",
        section: LIMITS,
        kind: ValueKind::Number { min: 1 << 10, max: 1 << 20 },
        default: DefaultValue::Fixed("196608"),
        help: "Maximum size of an event as JSON, in bytes. Repository states (kind 30618) may always have up to 1 \
               MiB, because they list every branch and tag.",
    },
    Setting {
        name: "RELAY_FILTER_LIMIT",
        section: LIMITS,
        kind: ValueKind::Number { min: 1, max: 10_000 },
        default: DefaultValue::Fixed("500"),
        help: "Maximum number of stored events returned for one filter, even if the filter asks for more.",
    },
    Setting {
        name: "NETWORK_MAX_CONNECTIONS",
        section: NETWORK,
        kind: ValueKind::Number { min: 0, max: 1_000_000 },
        default: DefaultValue::Fixed("512"),
        help: "Maximum number of simultaneous connections from one network (IPv4 /24, IPv6 /48); 0 means unlimited.",
    },
    Setting {
        name: "NETWORK_EVENTS_PER_MINUTE",
        section: NETWORK,
        kind: ValueKind::Number { min: 0, max: 10_000_000 },
        default: DefaultValue::Fixed("6000"),
        help: "Maximum number of events per minute from one network (IPv4 /24, IPv6 /48); 0 means unlimited.",
    },
    Setting {
        name: "STRICT_MAINTAINERS",
        section: GIT,
        kind: ValueKind::Choice(ON_OFF),
        default: DefaultValue::Fixed("false"),
        help: "Whether a listed maintainer counts only if its own announcement lists a maintainer in return, even \
               without role tags. Announcements with role tags are always read in this way.",
    },
    Setting {
        name: "GRASP06_ENABLE",
        section: GIT,
        kind: ValueKind::Choice(ON_OFF),
        default: DefaultValue::Fixed("false"),
        help: "Whether contributors may push pull requests for repositories that are hosted elsewhere, to \
               /prs/NPUB/IDENTIFIER.git (GRASP-06).",
    },
    Setting {
        name: "GIT_MAX_PUSH_BYTES",
        section: GIT,
        kind: ValueKind::Number { min: 1 << 10, max: 1 << 40 },
        default: DefaultValue::Fixed("2147483648"),
        help: "Maximum size of one push, in bytes.",
    },
    Setting {
        name: "GIT_MAX_UNSIGNED_PUSH_BYTES",
        section: GIT,
        kind: ValueKind::Number { min: 1 << 10, max: 1 << 40 },
        default: DefaultValue::Fixed("67108864"),
        help: "Maximum size of a push to refs/nostr/ whose event has not arrived yet, in bytes. Anyone can make \
               such a push, so the limit is small. If the event is published first, GIT_MAX_PUSH_BYTES applies.",
    },
    Setting {
        name: "GIT_MAX_OBJECTS",
        section: GIT,
        kind: ValueKind::Number { min: 1, max: 1 << 32 },
        default: DefaultValue::Fixed("10000000"),
        help: "Maximum number of objects in one push.",
    },
    Setting {
        name: "GIT_MAX_OBJECT_BYTES",
        section: GIT,
        kind: ValueKind::Number { min: 1 << 20, max: 1 << 40 },
        default: DefaultValue::Fixed("268435456"),
        help: "Maximum size of one unpacked object, in bytes; git may not allocate a larger block of memory. \
               Without this limit a pack of a thousand bytes could make git allocate gigabytes.",
    },
    Setting {
        name: "GIT_PROCESS_MEMORY_BYTES",
        section: GIT,
        kind: ValueKind::Number { min: 1 << 28, max: 1 << 44 },
        default: DefaultValue::Fixed("4294967296"),
        help: "Maximum address space of one git process, in bytes. Memory-mapped packs count, although they need no \
               memory of their own.",
    },
    Setting {
        name: "GIT_SERVE_PROCESSES",
        section: GIT,
        kind: ValueKind::Number { min: 1, max: 1_024 },
        default: DefaultValue::Fixed("4"),
        help: "Maximum number of git processes that serve clones and fetches at the same time. Further requests \
               wait, and the networks of the clients take turns.",
    },
    Setting {
        name: "GIT_CHECK_PROCESSES",
        section: GIT,
        kind: ValueKind::Number { min: 1, max: 1_024 },
        default: DefaultValue::Fixed("4"),
        help: "Maximum number of git processes that check pushes at the same time. They are counted separately from \
               GIT_SERVE_PROCESSES, so that fetches cannot delay pushes.",
    },
    Setting {
        name: "GIT_PROCESS_SECS",
        section: GIT,
        kind: ValueKind::Number { min: 1, max: DAY_SECS },
        default: DefaultValue::Fixed("1800"),
        help: "Maximum run time of one git process, in seconds.",
    },
    Setting {
        name: "GIT_PACK_CACHE_BYTES",
        section: GIT,
        kind: ValueKind::Number { min: 0, max: 1 << 44 },
        default: DefaultValue::Fixed("2147483648"),
        help: "Disk space for cached responses to fetches, in bytes. A response that is too large for its share of \
               the cache is generated again for every client.",
    },
    Setting {
        name: "GIT_MAINTENANCE",
        section: GIT,
        kind: ValueKind::Choice(ON_OFF),
        default: DefaultValue::Fixed("true"),
        help: "Whether repositories are repacked and cleaned up in the background, one at a time and with low \
               priority.",
    },
    Setting {
        name: "GIT_PEER_CONCURRENT",
        section: GIT,
        kind: ValueKind::Number { min: 1, max: 64 },
        default: DefaultValue::Fixed("8"),
        help: "Number of simultaneous fetches that this service allows each other GRASP server, stated in its \
               information document (NIP-11).",
    },
    Setting {
        name: "GIT_PEER_RATE_LIMIT",
        section: GIT,
        kind: ValueKind::Number { min: 1, max: 6_000 },
        default: DefaultValue::Fixed("120"),
        help: "Number of fetches per minute that this service allows each other GRASP server, stated in its \
               information document (NIP-11).",
    },
    Setting {
        name: "SYNC_ENABLE",
        section: SYNC,
        kind: ValueKind::Choice(ON_OFF),
        default: DefaultValue::Fixed("true"),
        help: "Whether events are fetched from the other relays, and missing git data from the other git servers, \
               that the repositories list (GRASP-02). Without it this service has only what clients send to it.",
    },
    Setting {
        name: "SYNC_BOOTSTRAP_RELAY_URL",
        section: SYNC,
        kind: ValueKind::Line,
        default: DefaultValue::Fixed(""),
        help: "Relay that is always followed, to find repositories that list this service. Separate several URLs \
               with commas; a URL without a scheme means wss.",
    },
    Setting {
        name: "SYNC_BATCH_WINDOW_MS",
        section: SYNC,
        kind: ValueKind::Number { min: 0, max: 600_000 },
        default: DefaultValue::Fixed("5000"),
        help: "Milliseconds for which new repositories, issues and pull requests are collected before other relays \
               are asked for them, counted from the first one.",
    },
    Setting {
        name: "SYNC_BASE_BACKOFF_SECS",
        section: SYNC,
        kind: ValueKind::Number { min: 1, max: 3_600 },
        default: DefaultValue::Fixed("5"),
        help: "Seconds before a relay that could not be reached is tried again; doubled after each failure. It is \
               also the timeout for opening a connection.",
    },
    Setting {
        name: "SYNC_MAX_BACKOFF_SECS",
        section: SYNC,
        kind: ValueKind::Number { min: 1, max: DAY_SECS },
        default: DefaultValue::Fixed("3600"),
        help: "Maximum number of seconds between two connection attempts. A relay that has not been reached for a \
               day is tried once a day instead.",
    },
    Setting {
        name: "SYNC_DISABLE_NEGENTROPY",
        section: SYNC,
        kind: ValueKind::Choice(ON_OFF),
        default: DefaultValue::Fixed("false"),
        help: "Whether to fetch stored events in pages even from relays that support negentropy (NIP-77).",
    },
    Setting {
        name: "SYNC_MAX_TAGS_PER_FILTER",
        section: SYNC,
        kind: ValueKind::Number { min: 1, max: 1_000 },
        default: DefaultValue::Fixed("100"),
        help: "Number of values in one filter that is sent to another relay. A filter gets more values if the \
               relay's limits would otherwise leave some of them out.",
    },
    Setting {
        name: "SYNC_DOMAIN_CONCURRENT",
        section: SYNC,
        kind: ValueKind::Number { min: 1, max: 64 },
        default: DefaultValue::Fixed("5"),
        help: "Maximum number of simultaneous fetches of missing git data from one git server. If a GRASP server \
               states limits of its own, those apply instead.",
    },
    Setting {
        name: "SYNC_DOMAIN_RATE_LIMIT",
        section: SYNC,
        kind: ValueKind::Number { min: 1, max: 6_000 },
        default: DefaultValue::Fixed("30"),
        help: "Maximum number of fetches of missing git data from one git server within any minute.",
    },
    Setting {
        name: "SYNC_DOMAIN_LIMITS",
        section: SYNC,
        kind: ValueKind::Line,
        default: DefaultValue::Fixed(""),
        help: "Both limits for particular git servers, separated by spaces: github.com=10,60 means 10 fetches at a \
               time and 60 per minute. github.com:10,60 means the same.",
    },
    Setting {
        name: "SYNC_ALLOW_NON_GLOBAL_TARGETS",
        section: SYNC,
        kind: ValueKind::Choice(ON_OFF),
        default: DefaultValue::Fixed("false"),
        help: "Whether events of untrusted authors can make this service connect to private and local addresses. \
               Use it only for tests and private networks.",
    },
    Setting {
        name: "SYNC_DISCONNECT_CHECK_INTERVAL_SECS",
        section: SYNC,
        kind: ValueKind::Number { min: 0, max: DAY_SECS },
        default: DefaultValue::Fixed("60"),
        help: "Accepted for compatibility and not used: a relay that no repository lists any more is disconnected \
               after one minute.",
    },
    Setting {
        name: "REJECTED_HOT_CACHE_DURATION_SECS",
        section: SYNC,
        kind: ValueKind::Number { min: 0, max: DAY_SECS },
        default: DefaultValue::Fixed("120"),
        help: "Seconds for which a rejected event is kept completely, so that it can be decided again at once when \
               what it depends on arrives.",
    },
    Setting {
        name: "REJECTED_COLD_INDEX_EXPIRY_SECS",
        section: SYNC,
        kind: ValueKind::Number { min: 0, max: 365 * DAY_SECS },
        default: DefaultValue::Fixed("604800"),
        help: "Seconds for which the id of a rejected event is remembered, so that the event is not fetched again \
               and again.",
    },
    Setting {
        name: "REPOSITORY_WHITELIST",
        section: MODERATION,
        kind: ValueKind::List,
        default: DefaultValue::Fixed(""),
        help: "If set, only these of the repositories that list this service are newly accepted: npub, \
               npub/identifier, naddr or identifier, separated by commas. Repositories that are already hosted \
               stay.",
    },
    Setting {
        name: "REPOSITORY_BLACKLIST",
        section: MODERATION,
        kind: ValueKind::List,
        default: DefaultValue::Fixed(""),
        help: "Repositories that are never accepted, whatever other settings say: npub, npub/identifier, naddr or \
               identifier, separated by commas. If they are hosted already, they are removed, together with the \
               events that belong only to them.",
    },
    Setting {
        name: "EVENT_BLACKLIST",
        section: MODERATION,
        kind: ValueKind::List,
        default: DefaultValue::Fixed(""),
        help: "Authors (npub) and single events (note1…, nevent1…) that are never accepted; 64 hex digits can mean \
               either. Events that are stored already are removed.",
    },
    Setting {
        name: "ARCHIVE_ALL",
        section: MODERATION,
        kind: ValueKind::Choice(ON_OFF),
        default: DefaultValue::Fixed("false"),
        help: "Whether every repository that is found is kept, even if it does not list this service (GRASP-05). \
               Anyone can then fill the disk.",
    },
    Setting {
        name: "ARCHIVE_WHITELIST",
        section: MODERATION,
        kind: ValueKind::List,
        default: DefaultValue::Fixed(""),
        help: "Repositories that are kept even if they do not list this service (GRASP-05): npub, npub/identifier, \
               naddr or identifier, separated by commas. An identifier alone means the repositories of this name of \
               all owners.",
    },
    Setting {
        name: "ARCHIVE_GRASP_SERVICES",
        section: MODERATION,
        kind: ValueKind::List,
        default: DefaultValue::Fixed(""),
        help: "Domains of GRASP services whose repositories are all kept here, too (GRASP-05). Their relays are \
               followed.",
    },
    Setting {
        name: "ARCHIVE_READ_ONLY",
        section: MODERATION,
        kind: ValueKind::Choice(&["auto", "true", "false"]),
        default: DefaultValue::Fixed("auto"),
        help: "Whether pushes are rejected and only archived repositories are newly accepted. auto means true if \
               one of the other ARCHIVE settings is set.",
    },
    Setting {
        name: "SHUTDOWN_GRACE_SECS",
        section: RUNNING,
        kind: ValueKind::Number { min: 0, max: 3_600 },
        default: DefaultValue::Fixed("10"),
        help: "Seconds that running requests have to finish when the service is stopped.",
    },
    Setting {
        name: "METRICS_ENABLED",
        section: RUNNING,
        kind: ValueKind::Choice(ON_OFF),
        default: DefaultValue::Fixed("true"),
        help: "Whether GET /metrics returns metrics for Prometheus. Anyone who can reach the port can read them, \
               unless METRICS_BIND_ADDRESS or METRICS_TOKEN is set.",
    },
    Setting {
        name: "METRICS_BIND_ADDRESS",
        section: RUNNING,
        kind: ValueKind::Address,
        default: DefaultValue::Derived("the main port"),
        help: "IP address and port that serve the metrics instead of the main port. Health checks and the status \
               page are available there, too.",
    },
    Setting {
        name: "METRICS_TOKEN",
        section: RUNNING,
        kind: ValueKind::Secret,
        default: DefaultValue::Fixed(""),
        help: "Token that is required to read the metrics (Authorization: Bearer …). It has no flag, because other \
               users of the machine can read the arguments of a process.",
    },
    Setting {
        name: "METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD",
        section: RUNNING,
        kind: ValueKind::Number { min: 1, max: 1_000_000 },
        default: DefaultValue::Fixed("10"),
        help: "Number of websocket connections of one address above which the address is counted in \
               ngit_websocket_flagged_abusers. It is only counted; NETWORK_MAX_CONNECTIONS is the limit.",
    },
    Setting {
        name: "METRICS_TOP_N_REPOS",
        section: RUNNING,
        kind: ValueKind::Number { min: 0, max: 100 },
        default: DefaultValue::Fixed("10"),
        help: "Number of the most fetched repositories that are listed by name in ngit_git_top_repos_bytes.",
    },
    Setting {
        name: "STATUS_ENABLE",
        section: RUNNING,
        kind: ValueKind::Choice(&["true", "false", "private"]),
        default: DefaultValue::Fixed("true"),
        help: "Whether GET /status shows the state of the service: relays, held events, disk and memory. private \
               means only at METRICS_BIND_ADDRESS.",
    },
    Setting {
        name: "ADMIN_SOCKET",
        section: RUNNING,
        kind: ValueKind::SocketFile,
        default: DefaultValue::Derived("admin.sock in RELAY_DATA_PATH"),
        help: "Unix socket through which commands such as graspd status reach the running server; its path has at \
               most 107 bytes. Only the user that runs the server can open it. off means that there is no socket.",
    },
    Setting {
        name: "LOG_LEVEL",
        section: RUNNING,
        kind: ValueKind::LogLevel,
        default: DefaultValue::Fixed("info"),
        help: "Log level: off, error, warn, info, debug or trace. Single parts can have their own level: \
               info,sync=debug. The parts are sync, git, relay, writer, http, fetch, admin and store. Libraries log \
               only warnings and errors, unless they are named.",
    },
    Setting {
        name: "LOG_FORMAT",
        section: RUNNING,
        kind: ValueKind::Choice(&["text", "json"]),
        default: DefaultValue::Fixed("text"),
        help: "Format of log lines on standard error: text, or json with one object per line.",
    },
];

/// Flag names by setting name. clap needs flag names that live as long as the process, so they are made once.
static FLAG_NAMES: LazyLock<BTreeMap<&'static str, String>> = LazyLock::new(|| {
    let flag = |name: &str| name.to_ascii_lowercase().replace('_', "-");
    SETTINGS.iter().map(|setting| (setting.name, flag(setting.name))).collect()
});

impl Setting {
    /// Returns the environment variable, such as `NGIT_BIND_ADDRESS`.
    pub(crate) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// Returns the key in the TOML file, such as `bind_address`.
    pub(crate) fn key(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    /// Returns the flag without its dashes, such as `bind-address`; `None` for secrets.
    pub(crate) fn flag(&self) -> Option<&'static str> {
        if self.is_secret() { None } else { FLAG_NAMES.get(self.name).map(String::as_str) }
    }

    /// Returns whether this is a moderation list, which can be read from a file of its own.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.kind, ValueKind::List)
    }

    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.kind, ValueKind::Secret)
    }
}

impl ValueKind {
    /// Returns the placeholder of the value in the help.
    pub(crate) fn placeholder(&self) -> &'static str {
        match self {
            ValueKind::Text | ValueKind::Line => "TEXT",
            ValueKind::Address => "IP:PORT",
            ValueKind::Domain => "HOST[:PORT]",
            ValueKind::BasePath => "/PATH",
            ValueKind::Folder => "FOLDER",
            ValueKind::SocketFile => "PATH",
            ValueKind::Networks => "CIDR,…",
            ValueKind::List => "ENTRY,…|@FILE",
            ValueKind::LogLevel => "LEVEL",
            ValueKind::Choice(_) => "WORD",
            ValueKind::Number { .. } => "NUMBER",
            ValueKind::Secret => "NSEC",
        }
    }

    /// Returns the allowed values, if the kind restricts them.
    pub(crate) fn allowed(&self) -> Option<String> {
        match self {
            ValueKind::Number { min, max } => Some(format!("{min} to {max}")),
            ValueKind::Choice(words) => Some(words.join(" or ")),
            ValueKind::List => Some("entries, or @ and the path of a file with one per line and # comments".to_owned()),
            _ => None,
        }
    }
}

impl DefaultValue {
    /// Returns the default as text for the help; `None` if the default is empty.
    pub(crate) fn as_text(&self) -> Option<&'static str> {
        match self {
            DefaultValue::Fixed("") => None,
            DefaultValue::Fixed(text) | DefaultValue::Derived(text) => Some(text),
        }
    }
}

/// Returns the setting of a name such as `BIND_ADDRESS`.
pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::unknown_variables;

    #[test]
    fn setting_names_are_unique_and_well_formed() {
        let mut seen = BTreeSet::new();
        for setting in SETTINGS {
            assert!(seen.insert(setting.name), "{} is declared twice", setting.name);
            assert!(
                setting.name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'),
                "{}",
                setting.name
            );
            assert!(setting.help.ends_with('.') && !setting.help.contains("  "), "{}", setting.name);
            assert!(!unknown_variables::UNSUPPORTED.contains(&setting.name), "{} is used now", setting.name);
        }
    }

    #[test]
    fn settings_are_grouped_by_section() {
        let mut sections: Vec<_> = SETTINGS.iter().map(|setting| setting.section).collect();
        sections.dedup();
        let distinct: BTreeSet<_> = sections.iter().collect();
        assert_eq!(distinct.len(), sections.len(), "{sections:?}");
    }

    #[test]
    fn variable_flag_and_key_follow_from_the_name() {
        let setting = find("BIND_ADDRESS").expect("declared");
        assert_eq!(setting.variable(), "NGIT_BIND_ADDRESS");
        assert_eq!(setting.flag(), Some("bind-address"));
        assert_eq!(setting.key(), "bind_address");
        assert_eq!(find("RELAY_OWNER_NSEC").expect("declared").flag(), None);
    }
}
