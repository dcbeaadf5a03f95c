//! The declarations of all settings. This is the place to add or change one.
//!
//! An entry is all that a setting needs: the doc comment is its help text, and variable, flag, file key, help,
//! docs/settings.md and parsing follow from the rest. [`declaration`](super::declaration) explains an entry and has the kinds
//! of settings. `just reference` updates docs/settings.md. With `.reloads()`, `graspd reload` replaces the value that the
//! [`SettingsReceiver`](super::SettingsReceiver) returns, so the code that uses the setting must read it from there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::policy::AdmissionMode;
use grasp_core::admission::policy::lists::{BannedEvents, ModerationLists, RepoList};
use grasp_core::disk_budget::Quotas;
use grasp_core::fetch::HostLimits;
use grasp_core::repo::ServiceAddress;
use grasp_core::sync::relay_url::RelayUrl;
use ipnet::IpNet;

use super::declaration::{
    Group, Setting, SettingGroup, SettingReader, address, bytes, choice, folder, limit, list, milliseconds, number,
    on_off, seconds, secret, settings,
};
use super::{EffectiveSetting, LogFormat, Secret, StatusPageAccess, lists, parse};

/// Seconds of a day.
const DAY_SECS: u64 = 86_400;

settings! {
    /// All settings, parsed and validated.
    #[derive(Debug, Clone)]
    struct Config {
        section "Service";
        /// Public host name of this service, with the port if it is not the default port. A repository is accepted only
        /// if its announcement lists this name, so it must be the name that users see in URLs.
        domain: String = Setting::new("DOMAIN", "HOST[:PORT]", parse::domain).derived("BIND_ADDRESS");
        /// URL path of the service, if it shares its domain with another site. With /grasp the relay is at
        /// wss://DOMAIN/grasp, and repositories are below that path.
        base_path: String = Setting::new("BASE_PATH", "/PATH", parse::base_path).default("/");
        /// IP address and port to listen on. Use 0.0.0.0 or [::] as the address to listen on all interfaces.
        bind: SocketAddr = address("BIND_ADDRESS").default("127.0.0.1:7334");
        /// Networks of the reverse proxies whose X-Forwarded-For header is trusted. All clients of a proxy that is not
        /// listed share the limits of one network. Leave it empty if clients connect directly, because a client in one
        /// of these networks can claim any address.
        trusted_proxies: Vec<IpNet> = Setting::new("TRUSTED_PROXY_CIDRS", "CIDR,…", parse::networks).repeats();
        /// Name of the relay, shown in its information document (NIP-11) and on its web pages.
        relay_name: String =
            Setting::new("RELAY_NAME", "TEXT", parse::line).derived("DOMAIN followed by \"grasp relay\"").reloads();
        /// Description of the relay, shown in its information document (NIP-11) and on its web pages.
        relay_description: String = Setting::new("RELAY_DESCRIPTION", "TEXT", parse::text)
            .default("Git hosting that follows signed Nostr events (GRASP).").reloads();
        /// Private key of the operator of this relay, as nsec1… or 64 hex digits. It can also be given as the systemd
        /// credential relay_owner_nsec. It has no flag, because other users of the machine can read the arguments of a
        /// process.
        owner_secret: Option<Secret> = secret("RELAY_OWNER_NSEC", parse::secret_key)
            .derived("a generated key, stored in .relay-owner.nsec in RELAY_DATA_PATH");
        /// Which events are accepted. grasp accepts repositories that list this service and the events that belong to
        /// them; open accepts every valid event.
        policy: AdmissionMode =
            choice("POLICY", &[("grasp", AdmissionMode::Grasp), ("open", AdmissionMode::Open)]).default("grasp");

        section "Storage";
        /// Folder of the git repositories. It is created if it does not exist.
        git_data_path: PathBuf = folder("GIT_DATA_PATH").default("./data/git");
        /// Folder of the event database and of the generated owner key. It is created if it does not exist. It must be
        /// neither inside GIT_DATA_PATH nor around it.
        relay_data_path: PathBuf = folder("RELAY_DATA_PATH").default("./data/relay");
        /// Free disk space, in bytes, below which nothing is stored except requests that remove something, so that a full
        /// disk cannot stop the service.
        store_reserve_bytes: u64 = bytes("STORE_RESERVE_BYTES", 0, 1 << 40).default("67108864");
        /// The disk budget.
        disk: DiskSettings = Group;
        /// Quotas per key and per repository.
        quotas: Quotas = Group;
        /// Seconds for which an accepted event waits in purgatory for its git data. With sync enabled it waits until
        /// all git servers were asked once, at most a day, and may become dormant then (PURGATORY_DORMANT_SECS).
        purgatory_expiry: Duration = seconds("PURGATORY_EXPIRY_SECS", 1, 30 * DAY_SECS).default("1800").reloads();
        /// Seconds for which the newest state of a repository and a pull request for a hosted repository stay in
        /// purgatory after that, with sync enabled. They are dormant: their git data is fetched once an hour.
        purgatory_dormant: Duration = seconds("PURGATORY_DORMANT_SECS", 0, 30 * DAY_SECS).default("604800").reloads();
        /// Whether deletion requests (kind 5) and requests to vanish (kind 62) are stored but have no effect. NIP-11
        /// then lists neither NIP-09 nor NIP-62.
        ignores_deletions: bool = on_off("DELETION_REQUEST_DISRESPECTOR").default("false");

        section "Relay limits";
        /// Maximum number of simultaneous connections, from all networks together.
        max_connections: usize = number("MAX_CONNECTIONS", 1, 1_000_000).default("10000").reloads();
        /// Maximum number of open subscriptions per connection.
        max_subscriptions: usize = number("RELAY_MAX_SUBSCRIPTIONS", 1, 10_000).default("500").reloads();
        /// Maximum number of open negentropy (NIP-77) sessions per connection.
        max_neg_sessions: usize = number("RELAY_MAX_NEG_SESSIONS", 1, 1_000).default("10").reloads();
        /// Maximum size of an event as JSON, in bytes. Repository states (kind 30618) may always have up to 1 MiB,
        /// because they list every branch and tag.
        max_event_bytes: usize = bytes("RELAY_MAX_EVENT_SIZE_BYTES", 1 << 10, 1 << 20).default("196608").reloads();
        /// Maximum number of stored events returned for one filter, even if the filter asks for more.
        filter_limit: usize = number("RELAY_FILTER_LIMIT", 1, 10_000).default("500").reloads();

        section "Network limits";
        /// Maximum number of simultaneous connections from one network (IPv4 /24, IPv6 /48); 0 means unlimited.
        network_max_connections: usize = number("NETWORK_MAX_CONNECTIONS", 0, 1_000_000).default("512").reloads();
        /// Maximum number of events per minute from one network (IPv4 /24, IPv6 /48); 0 means unlimited.
        network_events_per_minute: u64 = number("NETWORK_EVENTS_PER_MINUTE", 0, 10_000_000).default("6000").reloads();

        section "Git";
        /// Whether a listed maintainer counts only if its own announcement lists a maintainer in return, even without
        /// role tags. Announcements with role tags are always read in this way.
        strict_maintainers: bool = on_off("STRICT_MAINTAINERS").default("false");
        /// Whether contributors may push pull requests for repositories that are hosted elsewhere, to
        /// /prs/NPUB/IDENTIFIER.git (GRASP-06).
        submissions: bool = on_off("GRASP06_ENABLE").default("false");
        /// Limits of git processes and pushes.
        git: GitSettings = Group;

        section "Sync";
        /// Settings of sync.
        sync: SyncSettings = Group;

        section "Moderation and archive";
        /// Moderation lists and archive settings.
        lists: Arc<ModerationLists> = Group;

        section "Running";
        /// Seconds that running requests have to finish when the service is stopped.
        shutdown_grace: Duration = seconds("SHUTDOWN_GRACE_SECS", 0, 3_600).default("10");
        /// Settings of the metrics endpoint.
        metrics: MetricsSettings = Group;
        /// Whether GET /status shows the state of the service: relays, held events, disk and memory. private means only
        /// at METRICS_BIND_ADDRESS.
        status: StatusPageAccess = choice("STATUS_ENABLE", &[
            ("true", StatusPageAccess::Public), ("false", StatusPageAccess::Disabled), ("private", StatusPageAccess::Private),
        ]).default("true");
        /// Unix socket through which commands such as graspd status reach the running server; its path has at most 107
        /// bytes. Only the user that runs the server can open it. off means that there is no socket.
        admin_socket: Option<PathBuf> =
            Setting::with("ADMIN_SOCKET", "PATH", None, parse::socket_file).derived("admin.sock in RELAY_DATA_PATH");
        /// Log level: off, error, warn, info, debug or trace. Single parts can have their own level: info,sync=debug.
        /// The parts are sync, git, relay, writer, http, fetch, admin and store. Libraries log only warnings and
        /// errors, unless they are named.
        log_level: String = Setting::new("LOG_LEVEL", "LEVEL", parse::log_level).default("info").reloads();
        /// Format of log lines on standard error: text, or json with one object per line.
        log_format: LogFormat =
            choice("LOG_FORMAT", &[("text", LogFormat::Text), ("json", LogFormat::Json)]).default("text");
        /// All settings as text with their origins, in the order of their declarations. Secrets are hidden.
        effective: Vec<EffectiveSetting> = Group;
    }
}

settings! {
    /// The disk budget that the operator allows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct DiskSettings {
        /// Disk space, in bytes, that events, repositories, held data and caches may use together. When it is used up,
        /// nothing that needs more space is accepted. 0 means the whole disk except STORE_RESERVE_BYTES.
        budget_bytes: Option<u64> = bytes("DISK_BUDGET_BYTES", 0, 1 << 60).map(limit).default("0").reloads();
        /// Percentage of the disk budget above which no new repository is accepted, so that existing repositories can
        /// still grow.
        soft_percent: u64 = number("DISK_SOFT_PERCENT", 1, 100).default("90").reloads();
    }
}

settings! {
    impl Quotas {
        /// Maximum number of repositories of one key; 0 means unlimited. Anyone can create more keys, so this limits
        /// mistakes and not attacks.
        repositories_per_key: Option<u64> =
            number("QUOTA_REPOSITORIES_PER_KEY", 0, 1_000_000).map(limit).default("0").reloads();
        /// Maximum size of the git data of one repository, in bytes; 0 means unlimited.
        bytes_per_repository: Option<u64> =
            bytes("QUOTA_BYTES_PER_REPOSITORY", 0, 1 << 60).map(limit).default("0").reloads();
        /// Maximum size of the git data of all repositories of one key together, in bytes; 0 means unlimited.
        bytes_per_key: Option<u64> = bytes("QUOTA_BYTES_PER_KEY", 0, 1 << 60).map(limit).default("0").reloads();
    }
}

settings! {
    /// Limits of git processes and pushes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct GitSettings {
        /// Maximum size of one push, in bytes.
        max_push_bytes: u64 = bytes("GIT_MAX_PUSH_BYTES", 1 << 10, 1 << 40).default("2147483648").reloads();
        /// Maximum size of a push to refs/nostr/ whose event has not arrived yet, in bytes. Anyone can make such a
        /// push, so the limit is small. If the event is published first, GIT_MAX_PUSH_BYTES applies.
        max_unsigned_push_bytes: u64 =
            bytes("GIT_MAX_UNSIGNED_PUSH_BYTES", 1 << 10, 1 << 40).default("67108864").reloads();
        /// Maximum number of objects in one push.
        max_objects: u64 = number("GIT_MAX_OBJECTS", 1, 1 << 32).default("10000000").reloads();
        /// Maximum size of one unpacked object, in bytes; git may not allocate a larger block of memory. Without this
        /// limit a pack of a thousand bytes could make git allocate gigabytes.
        max_object_bytes: u64 = bytes("GIT_MAX_OBJECT_BYTES", 1 << 20, 1 << 40).default("268435456");
        /// Maximum address space of one git process, in bytes. Memory-mapped packs count, although they need no memory
        /// of their own.
        process_memory_bytes: u64 = bytes("GIT_PROCESS_MEMORY_BYTES", 1 << 28, 1 << 44).default("4294967296");
        /// Maximum number of git processes that serve clones and fetches at the same time. Further requests wait, and
        /// the networks of the clients take turns.
        serve_processes: usize = number("GIT_SERVE_PROCESSES", 1, 1_024).default("4");
        /// Maximum number of git processes that check pushes at the same time. They are counted separately from
        /// GIT_SERVE_PROCESSES, so that fetches cannot delay pushes. Half as many more check pushes to refs/nostr/ whose
        /// event has not arrived yet, and half as many more check packs from other git servers.
        check_processes: usize = number("GIT_CHECK_PROCESSES", 1, 1_024).default("4");
        /// Maximum run time of one git process, in seconds.
        process_timeout: Duration = seconds("GIT_PROCESS_SECS", 1, DAY_SECS).default("1800");
        /// Disk space for cached responses to fetches, in bytes. A response that is too large for its share of the
        /// cache is generated again for every client.
        pack_cache_bytes: u64 = bytes("GIT_PACK_CACHE_BYTES", 0, 1 << 44).default("2147483648").reloads();
        /// Whether repositories are repacked and cleaned up in the background, one at a time and with low priority.
        maintenance: bool = on_off("GIT_MAINTENANCE").default("true");
        /// Number of simultaneous fetches that this service allows each other GRASP server, stated in its information
        /// document (NIP-11).
        peer_concurrent: u32 = number("GIT_PEER_CONCURRENT", 1, 64).default("8").reloads();
        /// Number of fetches per minute that this service allows each other GRASP server, stated in its information
        /// document (NIP-11).
        peer_per_minute: u32 = number("GIT_PEER_RATE_LIMIT", 1, 6_000).default("120").reloads();
    }
}

settings! {
    /// Settings of sync: following other relays, and fetching missing git data.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct SyncSettings {
        /// Whether events are fetched from the other relays, and missing git data from the other git servers, that the
        /// repositories list (GRASP-02). Without it this service has only what clients send to it.
        enabled: bool = on_off("SYNC_ENABLE").default("true");
        /// Relay that is always followed, to find repositories that list this service. It may have a private address.
        /// Separate several URLs with commas; a URL without a scheme means wss.
        bootstrap: Vec<RelayUrl> = Setting::new("SYNC_BOOTSTRAP_RELAY_URL", "TEXT", parse::relays);
        /// Milliseconds for which new repositories, issues and pull requests are collected at most before other relays
        /// are asked for them, counted from the first one. If no more follow for 1/25 of it, relays are asked at once.
        batch_window: Duration = milliseconds("SYNC_BATCH_WINDOW_MS", 0, 600_000).default("5000");
        /// Seconds before a relay that could not be reached is tried again; doubled after each failure. It is also the
        /// timeout for opening a connection.
        base_backoff: Duration = seconds("SYNC_BASE_BACKOFF_SECS", 1, 3_600).default("5");
        /// Maximum number of seconds between two connection attempts. A relay that has not been reached for a day is
        /// tried once a day instead.
        max_backoff: Duration = seconds("SYNC_MAX_BACKOFF_SECS", 1, DAY_SECS).default("3600");
        /// Whether to fetch stored events in pages even from relays that support negentropy (NIP-77).
        disable_negentropy: bool = on_off("SYNC_DISABLE_NEGENTROPY").default("false");
        /// Number of values in one filter that is sent to another relay. A filter gets more values if the relay's
        /// limits would otherwise leave some of them out.
        values_per_filter: usize = number("SYNC_MAX_TAGS_PER_FILTER", 1, 1_000).default("100");
        /// Maximum number of descendants of one comment or reaction whose replies, reactions and deletions are fetched
        /// from other relays: events that reference it, events that reference those, and so on. With 0 only events that
        /// reference the comment or reaction itself are fetched.
        descendant_limit: usize = number("SYNC_RECURSIVE_DESCENDANT_LIMIT", 0, 10_000).default("500");
        /// Maximum number of simultaneous fetches of missing git data from one git server. If it is not set, a GRASP
        /// server that states a higher limit of its own can raise it.
        git_concurrent: u32 = number("SYNC_DOMAIN_CONCURRENT", 1, 64).default("5");
        /// Maximum number of fetches of missing git data from one git server within any minute. If it is not set, a
        /// GRASP server that states a higher limit of its own can raise it.
        git_per_minute: u32 = number("SYNC_DOMAIN_RATE_LIMIT", 1, 6_000).default("30");
        /// Both limits for particular git servers, separated by spaces: github.com=10,60 means 10 fetches at a time and
        /// 60 per minute. github.com:10,60 means the same.
        git_host_limits: BTreeMap<String, HostLimits> =
            Setting::new("SYNC_DOMAIN_LIMITS", "TEXT", parse::domain_limits);
        /// Whether events of untrusted authors can make this service connect to private and local addresses. Use it
        /// only for tests and private networks.
        allow_non_global: bool = on_off("SYNC_ALLOW_NON_GLOBAL_TARGETS").default("false");
        /// Accepted for compatibility and not used: a relay that no repository lists any more is disconnected after one
        /// minute.
        _disconnect_check: Duration = seconds("SYNC_DISCONNECT_CHECK_INTERVAL_SECS", 0, DAY_SECS).default("60");
        /// Seconds for which a rejected event is kept completely, so that it can be decided again at once when what it
        /// depends on arrives.
        rejected_hot_ttl: Duration = seconds("REJECTED_HOT_CACHE_DURATION_SECS", 0, DAY_SECS).default("120");
        /// Seconds for which the id of a rejected event is remembered, so that the event is not fetched again and
        /// again.
        rejected_cold_ttl: Duration = seconds("REJECTED_COLD_INDEX_EXPIRY_SECS", 0, 365 * DAY_SECS).default("604800");
    }
}

settings! {
    /// The list and archive settings, before they are combined into [`ModerationLists`].
    struct ListSettings {
        /// If set, only these of the repositories that list this service are newly accepted: npub, npub/identifier,
        /// naddr or identifier, separated by commas. Repositories that are already hosted stay.
        whitelist: RepoList = list("REPOSITORY_WHITELIST", lists::repositories).reloads();
        /// Repositories that are never accepted, whatever other settings say: npub, npub/identifier, naddr or
        /// identifier, separated by commas. If they are hosted already, they are removed, together with the events that
        /// belong only to them.
        blacklist: RepoList = list("REPOSITORY_BLACKLIST", lists::repositories).reloads();
        /// Authors (npub) and single events (note1…, nevent1…) that are never accepted; 64 hex digits can mean either.
        /// Events that are stored already are removed.
        banned_events: BannedEvents = list("EVENT_BLACKLIST", lists::banned_events).reloads();
        /// Whether every repository that is found is kept, even if it does not list this service (GRASP-05). Anyone can
        /// then fill the disk.
        archive_all: bool = on_off("ARCHIVE_ALL").default("false").reloads();
        /// Repositories that are kept even if they do not list this service (GRASP-05): npub, npub/identifier, naddr or
        /// identifier, separated by commas. An identifier alone means the repositories of this name of all owners.
        archive_whitelist: RepoList = list("ARCHIVE_WHITELIST", lists::repositories).reloads();
        /// Domains of GRASP services whose repositories are all kept here, too (GRASP-05). Their relays are followed.
        archive_services: Vec<ServiceAddress> = list("ARCHIVE_GRASP_SERVICES", lists::services).reloads();
        /// Whether pushes to archived repositories that do not list this service are rejected, and only archived
        /// repositories are newly accepted. auto means true if one of the other ARCHIVE settings is set.
        read_only: Option<bool> = choice("ARCHIVE_READ_ONLY", &[("auto", None), ("true", Some(true)), ("false", Some(false))])
            .default("auto").reloads();
    }
}

settings! {
    /// Settings of the metrics endpoint.
    #[derive(Debug, Clone)]
    struct MetricsSettings {
        /// Whether GET /metrics returns metrics for Prometheus. Anyone who can reach the port can read them, unless
        /// METRICS_BIND_ADDRESS or METRICS_TOKEN is set.
        enabled: bool = on_off("METRICS_ENABLED").default("true");
        /// IP address and port that serve the metrics instead of the main port. Health checks and the status page are
        /// available there, too.
        bind: Option<SocketAddr> = address("METRICS_BIND_ADDRESS").map(Some).derived("the main port");
        /// Token that is required to read /metrics (Authorization: Bearer …). It does not protect /status, /healthz and
        /// /readyz. It has no flag, because other users of the machine can read the arguments of a process.
        token: Option<Secret> = secret("METRICS_TOKEN", parse::metrics_token);
        /// Limits of the metrics.
        limits: MetricsLimits = Group;
    }
}

settings! {
    /// Limits of the metrics.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct MetricsLimits {
        /// Number of websocket connections of one address above which the address is counted in
        /// ngit_websocket_flagged_abusers. It is only counted; NETWORK_MAX_CONNECTIONS is the limit.
        abuse_threshold: usize = number("METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD", 1, 1_000_000).default("10");
        /// Number of the most fetched repositories that are listed by name in ngit_git_top_repos_bytes.
        top_repos: usize = number("METRICS_TOP_N_REPOS", 0, 100).default("10");
    }
}
