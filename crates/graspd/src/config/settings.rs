//! Every setting, declared once. Flags, variables, file keys, help and the printed reference all come from here.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// What all environment variables of this program begin with.
pub(crate) const PREFIX: &str = "NGIT_";

/// The name, without the prefix, of the variable that says where the TOML file is. It cannot be a setting, because
/// settings are read from that file.
pub(crate) const FILE_VARIABLE: &str = "CONFIG";

/// One thing an operator can decide.
pub(crate) struct Setting {
    /// The name in capitals, from which the variable, the flag and the file key are made.
    pub(crate) name: &'static str,
    /// The heading it stands under.
    pub(crate) section: &'static str,
    /// What a value looks like.
    pub(crate) shape: Shape,
    /// What holds when nobody sets it.
    pub(crate) default: Fallback,
    /// One or two sentences that teach.
    pub(crate) help: &'static str,
}

/// What a value of a setting looks like.
pub(crate) enum Shape {
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
    /// A moderation list: entries separated by commas, or `@` and the path of a file with one entry per line.
    List,
    /// A log level, or several for parts of the program.
    LogLevel,
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// A whole number within a range, both ends included.
    Number { min: u64, max: u64 },
    /// A private key. It has no flag, because every user of the machine can read the arguments of a process.
    Secret,
}

/// What holds when nobody sets a setting.
pub(crate) enum Fallback {
    /// This text, read like a given one.
    Value(&'static str),
    /// Something worked out from other settings, described for people.
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

/// The words of a setting that is on or off.
pub(crate) const ON_OFF: &[&str] = &["true", "false"];

/// A day has this many seconds.
const DAY: u64 = 86_400;

/// The table.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        name: "DOMAIN",
        section: SERVICE,
        shape: Shape::Domain,
        default: Fallback::Derived("the bind address"),
        help: "Public host name of this service, with the port if it is unusual. A repository is accepted when its \
               announcement lists this name, so it has to be the one that people type.",
    },
    Setting {
        name: "BASE_PATH",
        section: SERVICE,
        shape: Shape::BasePath,
        default: Fallback::Value("/"),
        help: "Path under which the service lives, when it shares its domain with something else: with /grasp the \
               relay is at wss://DOMAIN/grasp and repositories are below it.",
    },
    Setting {
        name: "BIND_ADDRESS",
        section: SERVICE,
        shape: Shape::Address,
        default: Fallback::Value("127.0.0.1:7334"),
        help: "IP address and port to listen on. Use 0.0.0.0 or [::] as the address to listen on all interfaces.",
    },
    Setting {
        name: "TRUSTED_PROXY_CIDRS",
        section: SERVICE,
        shape: Shape::Networks,
        default: Fallback::Value(""),
        help: "Networks of the reverse proxies whose X-Forwarded-For header is believed. Leave it empty when clients \
               connect directly, because whoever is listed here can claim any address.",
    },
    Setting {
        name: "RELAY_NAME",
        section: SERVICE,
        shape: Shape::Line,
        default: Fallback::Derived("DOMAIN followed by \"grasp relay\""),
        help: "Name of the relay in its information document (NIP-11) and on its pages.",
    },
    Setting {
        name: "RELAY_DESCRIPTION",
        section: SERVICE,
        shape: Shape::Text,
        default: Fallback::Value("Git hosting that follows signed Nostr events (GRASP)."),
        help: "Description of the relay in its information document (NIP-11) and on its pages.",
    },
    Setting {
        name: "RELAY_OWNER_NSEC",
        section: SERVICE,
        shape: Shape::Secret,
        default: Fallback::Derived("a key generated into .relay-owner.nsec in RELAY_DATA_PATH"),
        help: "Private key of the relay's operator, as nsec1… or hex. It can also be the systemd credential \
               relay_owner_nsec; there is no flag for it, because other users of the machine can read arguments.",
    },
    Setting {
        name: "POLICY",
        section: SERVICE,
        shape: Shape::Choice(&["grasp", "open"]),
        default: Fallback::Value("grasp"),
        help: "Which events are accepted: grasp takes repositories that list this service and what belongs to them, \
               open takes every valid event.",
    },
    Setting {
        name: "GIT_DATA_PATH",
        section: STORAGE,
        shape: Shape::Folder,
        default: Fallback::Value("./data/git"),
        help: "Folder of the git repositories. It is created when missing.",
    },
    Setting {
        name: "RELAY_DATA_PATH",
        section: STORAGE,
        shape: Shape::Folder,
        default: Fallback::Value("./data/relay"),
        help: "Folder of the event database and the generated key. It is created when missing and has to be apart \
               from GIT_DATA_PATH.",
    },
    Setting {
        name: "STORE_RESERVE_BYTES",
        section: STORAGE,
        shape: Shape::Number { min: 0, max: 1 << 40 },
        default: Fallback::Value("67108864"),
        help: "Free disk space, in bytes, below which nothing new is stored, so that a full disk cannot stop the \
               service.",
    },
    Setting {
        name: "DISK_BUDGET_BYTES",
        section: STORAGE,
        shape: Shape::Number { min: 0, max: 1 << 60 },
        default: Fallback::Value("0"),
        help: "Disk space that everything together may take, in bytes: events, repositories, what waits, and caches. When \
               it is used up nothing that grows is accepted; 0 means all that the disk has, but for STORE_RESERVE_BYTES.",
    },
    Setting {
        name: "DISK_SOFT_PERCENT",
        section: STORAGE,
        shape: Shape::Number { min: 1, max: 100 },
        default: Fallback::Value("90"),
        help: "Percentage of the disk budget from which on no new repository is accepted, so that those that are here can \
               go on.",
    },
    Setting {
        name: "QUOTA_REPOSITORIES_PER_KEY",
        section: STORAGE,
        shape: Shape::Number { min: 0, max: 1_000_000 },
        default: Fallback::Value("0"),
        help: "Repositories of one key; 0 means unlimited. Keys are free: a quota stops the careless, not the determined.",
    },
    Setting {
        name: "QUOTA_BYTES_PER_REPOSITORY",
        section: STORAGE,
        shape: Shape::Number { min: 0, max: 1 << 60 },
        default: Fallback::Value("0"),
        help: "Git data of one repository, in bytes; 0 means unlimited.",
    },
    Setting {
        name: "QUOTA_BYTES_PER_KEY",
        section: STORAGE,
        shape: Shape::Number { min: 0, max: 1 << 60 },
        default: Fallback::Value("0"),
        help: "Git data of all repositories of one key together, in bytes; 0 means unlimited.",
    },
    Setting {
        name: "PURGATORY_EXPIRY_SECS",
        section: STORAGE,
        shape: Shape::Number { min: 1, max: 30 * DAY },
        default: Fallback::Value("1800"),
        help: "Seconds that an accepted event waits for its git data before it is dropped.",
    },
    Setting {
        name: "MAX_CONNECTIONS",
        section: LIMITS,
        shape: Shape::Number { min: 1, max: 1_000_000 },
        default: Fallback::Value("10000"),
        help: "Connections served at the same time, from all networks together.",
    },
    Setting {
        name: "RELAY_MAX_SUBSCRIPTIONS",
        section: LIMITS,
        shape: Shape::Number { min: 1, max: 10_000 },
        default: Fallback::Value("500"),
        help: "Open subscriptions of one connection.",
    },
    Setting {
        name: "RELAY_MAX_NEG_SESSIONS",
        section: LIMITS,
        shape: Shape::Number { min: 1, max: 1_000 },
        default: Fallback::Value("10"),
        help: "Open negentropy (NIP-77) sessions of one connection.",
    },
    Setting {
        name: "RELAY_MAX_EVENT_SIZE_BYTES",
        section: LIMITS,
        shape: Shape::Number { min: 1 << 10, max: 1 << 20 },
        default: Fallback::Value("196608"),
        help: "Size of an event as JSON, in bytes. Repository states (kind 30618) may always have 1 MiB, because they \
               name every branch and tag.",
    },
    Setting {
        name: "RELAY_FILTER_LIMIT",
        section: LIMITS,
        shape: Shape::Number { min: 1, max: 10_000 },
        default: Fallback::Value("500"),
        help: "Stored events returned for one filter, also when the filter asks for more.",
    },
    Setting {
        name: "NETWORK_MAX_CONNECTIONS",
        section: NETWORK,
        shape: Shape::Number { min: 0, max: 1_000_000 },
        default: Fallback::Value("512"),
        help: "Connections at the same time from one network (IPv4 /24, IPv6 /48); 0 means unlimited.",
    },
    Setting {
        name: "NETWORK_EVENTS_PER_MINUTE",
        section: NETWORK,
        shape: Shape::Number { min: 0, max: 10_000_000 },
        default: Fallback::Value("6000"),
        help: "Events per minute from one network (IPv4 /24, IPv6 /48); 0 means unlimited.",
    },
    Setting {
        name: "STRICT_MAINTAINERS",
        section: GIT,
        shape: Shape::Choice(ON_OFF),
        default: Fallback::Value("false"),
        help: "Whether a listed maintainer counts only when its own announcement lists a maintainer back, also without \
               role tags. Announcements with role tags are always read like that.",
    },
    Setting {
        name: "GRASP06_ENABLE",
        section: GIT,
        shape: Shape::Choice(ON_OFF),
        default: Fallback::Value("false"),
        help: "Whether contributors may push pull requests for repositories that are hosted elsewhere to \
               /prs/NPUB/IDENTIFIER.git (GRASP-06).",
    },
    Setting {
        name: "GIT_MAX_PUSH_BYTES",
        section: GIT,
        shape: Shape::Number { min: 1 << 10, max: 1 << 40 },
        default: Fallback::Value("2147483648"),
        help: "Size of one push, in bytes.",
    },
    Setting {
        name: "GIT_MAX_UNSIGNED_PUSH_BYTES",
        section: GIT,
        shape: Shape::Number { min: 1 << 10, max: 1 << 40 },
        default: Fallback::Value("67108864"),
        help: "Size of a push to refs/nostr/ whose event is not here yet, in bytes. Anybody can make one, so it is kept \
               small; whoever publishes the event first may push GIT_MAX_PUSH_BYTES.",
    },
    Setting {
        name: "GIT_MAX_OBJECTS",
        section: GIT,
        shape: Shape::Number { min: 1, max: 1 << 32 },
        default: Fallback::Value("10000000"),
        help: "Objects in one push.",
    },
    Setting {
        name: "GIT_MAX_OBJECT_BYTES",
        section: GIT,
        shape: Shape::Number { min: 1 << 20, max: 1 << 40 },
        default: Fallback::Value("268435456"),
        help: "Size of one object, unpacked, in bytes; git gets no larger piece of memory at a time. A pack of a \
               thousand bytes can claim gigabytes.",
    },
    Setting {
        name: "GIT_PROCESS_MEMORY_BYTES",
        section: GIT,
        shape: Shape::Number { min: 1 << 28, max: 1 << 44 },
        default: Fallback::Value("4294967296"),
        help: "Address space of one git process, in bytes. Packs that it reads count, though they take no memory of \
               their own.",
    },
    Setting {
        name: "GIT_SERVE_PROCESSES",
        section: GIT,
        shape: Shape::Number { min: 1, max: 1_024 },
        default: Fallback::Value("4"),
        help: "Git processes that make answers to clones and fetches at the same time. Others wait; their networks take \
               turns.",
    },
    Setting {
        name: "GIT_CHECK_PROCESSES",
        section: GIT,
        shape: Shape::Number { min: 1, max: 1_024 },
        default: Fallback::Value("4"),
        help: "Git processes that check pushes at the same time. Fetches do not take their places.",
    },
    Setting {
        name: "GIT_PROCESS_SECS",
        section: GIT,
        shape: Shape::Number { min: 1, max: DAY },
        default: Fallback::Value("1800"),
        help: "Seconds that one git process may take.",
    },
    Setting {
        name: "GIT_PACK_CACHE_BYTES",
        section: GIT,
        shape: Shape::Number { min: 0, max: 1 << 44 },
        default: Fallback::Value("2147483648"),
        help: "Disk space for answers to fetches that may be asked for again, in bytes. Answers that would take more than \
               a share of it are made anew for everybody.",
    },
    Setting {
        name: "GIT_MAINTENANCE",
        section: GIT,
        shape: Shape::Choice(ON_OFF),
        default: Fallback::Value("true"),
        help: "Whether repositories are repacked and cleaned in the background, one at a time, at low priority.",
    },
    Setting {
        name: "GIT_PEER_CONCURRENT",
        section: GIT,
        shape: Shape::Number { min: 1, max: 64 },
        default: Fallback::Value("8"),
        help: "Fetches at a time that another GRASP server is told it may ask for here (NIP-11).",
    },
    Setting {
        name: "GIT_PEER_RATE_LIMIT",
        section: GIT,
        shape: Shape::Number { min: 1, max: 6_000 },
        default: Fallback::Value("120"),
        help: "Fetches within a minute that another GRASP server is told it may ask for here (NIP-11).",
    },
    Setting {
        name: "SYNC_ENABLE",
        section: SYNC,
        shape: Shape::Choice(ON_OFF),
        default: Fallback::Value("true"),
        help: "Whether events are fetched from the other relays, and missing git data from the other git servers, that the \
               repositories name (GRASP-02). Without it this service has only what is sent to it.",
    },
    Setting {
        name: "SYNC_BOOTSTRAP_RELAY_URL",
        section: SYNC,
        shape: Shape::Line,
        default: Fallback::Value(""),
        help: "A relay that is followed from the first start and never dropped, to find repositories that list this \
               service. Several are separated by commas; without a scheme wss is meant.",
    },
    Setting {
        name: "SYNC_BATCH_WINDOW_MS",
        section: SYNC,
        shape: Shape::Number { min: 0, max: 600_000 },
        default: Fallback::Value("5000"),
        help: "How long new repositories, issues and pull requests are gathered before other relays are asked about them, \
               counted from the first.",
    },
    Setting {
        name: "SYNC_BASE_BACKOFF_SECS",
        section: SYNC,
        shape: Shape::Number { min: 1, max: 3_600 },
        default: Fallback::Value("5"),
        help: "Seconds until a relay that could not be reached is tried again; doubled after each failure. Also the time \
               that a connection may take to come about.",
    },
    Setting {
        name: "SYNC_MAX_BACKOFF_SECS",
        section: SYNC,
        shape: Shape::Number { min: 1, max: DAY },
        default: Fallback::Value("3600"),
        help: "The longest wait between two attempts, until a relay has not been reached for a day; then it is tried daily.",
    },
    Setting {
        name: "SYNC_DISABLE_NEGENTROPY",
        section: SYNC,
        shape: Shape::Choice(ON_OFF),
        default: Fallback::Value("false"),
        help: "Fetch history in pages only, even from relays that could compare sets of events (NIP-77).",
    },
    Setting {
        name: "SYNC_MAX_TAGS_PER_FILTER",
        section: SYNC,
        shape: Shape::Number { min: 1, max: 1_000 },
        default: Fallback::Value("100"),
        help: "Values of one filter sent to another relay. More are packed into one where the relay's limits would otherwise \
               leave something without a place.",
    },
    Setting {
        name: "SYNC_DOMAIN_CONCURRENT",
        section: SYNC,
        shape: Shape::Number { min: 1, max: 64 },
        default: Fallback::Value("5"),
        help: "Fetches of missing git data from one git server at a time. A GRASP server that states its own limits is asked \
               up to those.",
    },
    Setting {
        name: "SYNC_DOMAIN_RATE_LIMIT",
        section: SYNC,
        shape: Shape::Number { min: 1, max: 6_000 },
        default: Fallback::Value("30"),
        help: "Fetches of missing git data from one git server within any minute.",
    },
    Setting {
        name: "SYNC_DOMAIN_LIMITS",
        section: SYNC,
        shape: Shape::Line,
        default: Fallback::Value(""),
        help: "Both limits for single git servers, separated by spaces: github.com=10,60 is ten at a time and sixty a minute \
               (github.com:10,60 is the same).",
    },
    Setting {
        name: "SYNC_ALLOW_NON_GLOBAL_TARGETS",
        section: SYNC,
        shape: Shape::Choice(ON_OFF),
        default: Fallback::Value("false"),
        help: "Let strangers' events make this service connect to private and local addresses. For tests and intranets only.",
    },
    Setting {
        name: "SYNC_DISCONNECT_CHECK_INTERVAL_SECS",
        section: SYNC,
        shape: Shape::Number { min: 0, max: DAY },
        default: Fallback::Value("60"),
        help: "Accepted and not used: a relay that nothing names any more is let go a minute later, without a check.",
    },
    Setting {
        name: "REJECTED_HOT_CACHE_DURATION_SECS",
        section: SYNC,
        shape: Shape::Number { min: 0, max: DAY },
        default: Fallback::Value("120"),
        help: "Seconds for which a refused event is kept whole, to be judged again at once when what it needs arrives.",
    },
    Setting {
        name: "REJECTED_COLD_INDEX_EXPIRY_SECS",
        section: SYNC,
        shape: Shape::Number { min: 0, max: 365 * DAY },
        default: Fallback::Value("604800"),
        help: "Seconds for which it is remembered that an event was refused, so that it is not fetched again and again.",
    },
    Setting {
        name: "REPOSITORY_WHITELIST",
        section: MODERATION,
        shape: Shape::List,
        default: Fallback::Value(""),
        help: "If set, of the repositories that list this service only these are newly taken in: npub, \
               npub/identifier, naddr or identifier, separated by commas. What is hosted already stays.",
    },
    Setting {
        name: "REPOSITORY_BLACKLIST",
        section: MODERATION,
        shape: Shape::List,
        default: Fallback::Value(""),
        help: "Repositories that have no place here, whatever else speaks for them: npub, npub/identifier, naddr or \
               identifier, separated by commas. What is here of them is removed, and what is about nothing else here.",
    },
    Setting {
        name: "EVENT_BLACKLIST",
        section: MODERATION,
        shape: Shape::List,
        default: Fallback::Value(""),
        help: "Authors (npub) and single events (note1…, nevent1…) that have no place here; 64 hex digits may be \
               either. What is here of them is removed.",
    },
    Setting {
        name: "ARCHIVE_ALL",
        section: MODERATION,
        shape: Shape::Choice(ON_OFF),
        default: Fallback::Value("false"),
        help: "Keep every repository that is heard of, also if it does not list this service (GRASP-05). Anybody can \
               fill the disk then.",
    },
    Setting {
        name: "ARCHIVE_WHITELIST",
        section: MODERATION,
        shape: Shape::List,
        default: Fallback::Value(""),
        help: "Repositories to keep also if they do not list this service (GRASP-05): npub, npub/identifier, naddr or \
               identifier, separated by commas. A bare identifier means everybody's repository of that name.",
    },
    Setting {
        name: "ARCHIVE_GRASP_SERVICES",
        section: MODERATION,
        shape: Shape::List,
        default: Fallback::Value(""),
        help: "Domains of GRASP services whose repositories are all kept here, too (GRASP-05). Their relays are followed.",
    },
    Setting {
        name: "ARCHIVE_READ_ONLY",
        section: MODERATION,
        shape: Shape::Choice(&["auto", "true", "false"]),
        default: Fallback::Value("auto"),
        help: "Whether nobody may push, and only what is archived is newly taken in: auto is true when one of the other \
               ARCHIVE settings is set.",
    },
    Setting {
        name: "SHUTDOWN_GRACE_SECS",
        section: RUNNING,
        shape: Shape::Number { min: 0, max: 3_600 },
        default: Fallback::Value("10"),
        help: "Seconds that running requests get to finish when the service is asked to stop.",
    },
    Setting {
        name: "METRICS_ENABLED",
        section: RUNNING,
        shape: Shape::Choice(ON_OFF),
        default: Fallback::Value("true"),
        help: "Whether GET /metrics answers with measurements for Prometheus. Whoever reaches the port can read them, unless \
               METRICS_BIND_ADDRESS or METRICS_TOKEN is set.",
    },
    Setting {
        name: "METRICS_BIND_ADDRESS",
        section: RUNNING,
        shape: Shape::Address,
        default: Fallback::Derived("the main port"),
        help: "IP address and port at which measurements are read instead of the main port. Health checks and the status \
               page answer there, too.",
    },
    Setting {
        name: "METRICS_TOKEN",
        section: RUNNING,
        shape: Shape::Secret,
        default: Fallback::Value(""),
        help: "Whoever reads measurements has to show this text (Authorization: Bearer …). There is no flag for it, because \
               other users of the machine can read arguments.",
    },
    Setting {
        name: "METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD",
        section: RUNNING,
        shape: Shape::Number { min: 1, max: 1_000_000 },
        default: Fallback::Value("10"),
        help: "Websocket connections of one address above which it is counted in ngit_websocket_flagged_abusers. It is only \
               counted; NETWORK_MAX_CONNECTIONS limits.",
    },
    Setting {
        name: "METRICS_TOP_N_REPOS",
        section: RUNNING,
        shape: Shape::Number { min: 0, max: 100 },
        default: Fallback::Value("10"),
        help: "How many of the most fetched repositories are named in ngit_git_top_repos_bytes.",
    },
    Setting {
        name: "STATUS_ENABLE",
        section: RUNNING,
        shape: Shape::Choice(&["true", "false", "private"]),
        default: Fallback::Value("true"),
        help: "Whether GET /status shows how the service is: relays, what waits, disk and memory. With private it is shown \
               at METRICS_BIND_ADDRESS only.",
    },
    Setting {
        name: "ADMIN_SOCKET",
        section: RUNNING,
        shape: Shape::SocketFile,
        default: Fallback::Derived("admin.sock in RELAY_DATA_PATH"),
        help: "Unix socket at which the commands of the operator (graspd status and the like) reach the running server, of \
               at most 107 bytes. Only the server's own user can open it. With off there is none.",
    },
    Setting {
        name: "LOG_LEVEL",
        section: RUNNING,
        shape: Shape::LogLevel,
        default: Fallback::Value("info"),
        help: "How much is logged: off, error, warn, info, debug or trace. Parts can differ: \
               info,graspd::http=debug.",
    },
];

/// clap keeps flag names for the life of the process and takes no owned ones, so they are made once and kept here.
static FLAGS: LazyLock<BTreeMap<&'static str, String>> = LazyLock::new(|| {
    let flag = |name: &str| name.to_ascii_lowercase().replace('_', "-");
    SETTINGS.iter().map(|setting| (setting.name, flag(setting.name))).collect()
});

impl Setting {
    /// The environment variable, such as `NGIT_BIND_ADDRESS`.
    pub(crate) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// The key in the TOML file, such as `bind_address`.
    pub(crate) fn key(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    /// The flag without its dashes, such as `bind-address`; secrets have none.
    pub(crate) fn flag(&self) -> Option<&'static str> {
        if self.is_secret() { None } else { FLAGS.get(self.name).map(String::as_str) }
    }

    /// Whether the value must never be shown.
    /// Whether it is a moderation list, which may stand in a file of its own.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.shape, Shape::List)
    }

    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.shape, Shape::Secret)
    }
}

impl Shape {
    /// The word that stands for the value in help.
    pub(crate) fn placeholder(&self) -> &'static str {
        match self {
            Shape::Text | Shape::Line => "TEXT",
            Shape::Address => "IP:PORT",
            Shape::Domain => "HOST[:PORT]",
            Shape::BasePath => "/PATH",
            Shape::Folder => "FOLDER",
            Shape::SocketFile => "PATH",
            Shape::Networks => "CIDR,…",
            Shape::List => "ENTRY,…|@FILE",
            Shape::LogLevel => "LEVEL",
            Shape::Choice(_) => "WORD",
            Shape::Number { .. } => "NUMBER",
            Shape::Secret => "NSEC",
        }
    }

    /// What is allowed, where the help does not say it anyway.
    pub(crate) fn allowed(&self) -> Option<String> {
        match self {
            Shape::Number { min, max } => Some(format!("{min} to {max}")),
            Shape::Choice(words) => Some(words.join(" or ")),
            Shape::List => Some("entries, or @ and the path of a file with one per line and # comments".to_owned()),
            _ => None,
        }
    }
}

impl Fallback {
    /// The default as people read it; nothing when the default is to have none.
    pub(crate) fn shown(&self) -> Option<&'static str> {
        match self {
            Fallback::Value("") => None,
            Fallback::Value(text) | Fallback::Derived(text) => Some(text),
        }
    }
}

/// The setting of this name (`BIND_ADDRESS`).
pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::unknown_variables;

    #[test]
    fn names_are_unique_and_fit_all_spellings() {
        let mut seen = BTreeSet::new();
        for setting in SETTINGS {
            assert!(seen.insert(setting.name), "{} is declared twice", setting.name);
            assert!(
                setting.name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'),
                "{}",
                setting.name
            );
            assert!(setting.help.ends_with('.') && !setting.help.contains("  "), "{}", setting.name);
            assert!(!unknown_variables::NOT_USED_YET.contains(&setting.name), "{} is used now", setting.name);
        }
    }

    #[test]
    fn settings_of_a_section_stand_together() {
        let mut sections: Vec<_> = SETTINGS.iter().map(|setting| setting.section).collect();
        sections.dedup();
        let distinct: BTreeSet<_> = sections.iter().collect();
        assert_eq!(distinct.len(), sections.len(), "{sections:?}");
    }

    #[test]
    fn one_name_makes_three() {
        let setting = find("BIND_ADDRESS").expect("declared");
        assert_eq!(setting.variable(), "NGIT_BIND_ADDRESS");
        assert_eq!(setting.flag(), Some("bind-address"));
        assert_eq!(setting.key(), "bind_address");
        assert_eq!(find("RELAY_OWNER_NSEC").expect("declared").flag(), None);
    }
}
