//! Tests of the settings as a whole, from sources to the parsed configuration.

use super::declaration::SETTINGS;
use super::resolve::resolve;
use super::sources::tests::gather;
use super::*;
use grasp_core::admission::policy::AdmissionMode;

fn config(flags: &[(&'static str, &str)], variables: &[(&str, &str)], files: &[(&str, &str)]) -> LoadedConfig {
    resolve(&gather(flags, variables, files)).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(flags: &[(&'static str, &str)], variables: &[(&str, &str)], files: &[(&str, &str)]) -> Vec<String> {
    let errors = resolve(&gather(flags, variables, files)).expect_err("the settings are invalid");
    errors.0.iter().map(ToString::to_string).collect()
}

#[test]
fn defaults_apply_when_nothing_is_set() {
    let LoadedConfig { config, warnings } = config(&[], &[], &[]);
    assert_eq!(warnings, [""; 0]);
    assert_eq!(config.bind.to_string(), "127.0.0.1:7334");
    assert_eq!(config.domain, "127.0.0.1:7334");
    assert_eq!(config.relay_name, "127.0.0.1:7334 grasp relay");
    assert_eq!(config.base_path, "");
    assert_eq!(config.git_data_path, PathBuf::from("/here/data/git"));
    assert_eq!(config.relay_data_path, PathBuf::from("/here/data/relay"));
    assert_eq!(config.policy, AdmissionMode::Grasp);
    assert_eq!((config.max_connections, config.max_subscriptions, config.max_neg_sessions), (10_000, 500, 10));
    assert_eq!((config.max_event_bytes, config.filter_limit), (192 * 1024, 500));
    assert_eq!((config.network_max_connections, config.network_events_per_minute), (512, 6_000));
    assert_eq!((config.purgatory_expiry.as_secs(), config.shutdown_grace.as_secs()), (1_800, 10));
    assert_eq!((config.store_reserve_bytes, config.log_level.as_str()), (64 << 20, "info"));
    assert!(config.trusted_proxies.is_empty() && config.owner_secret.is_none());
}

#[test]
fn every_default_is_valid_and_shown() {
    let LoadedConfig { config, .. } = config(&[], &[], &[]);
    let read: Vec<_> = config.effective.iter().map(|effective| effective.name).collect();
    let declared: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
    assert_eq!(read, declared);
}

#[test]
fn every_declared_choice_is_accepted() {
    let choices = SETTINGS.iter().filter(|setting| setting.placeholder == "WORD");
    let words = |allowed: &str| allowed.split(" or ").map(str::to_owned).collect::<Vec<_>>();
    let mut accepted = 0;
    for setting in choices {
        for word in words(setting.allowed.as_deref().expect("words")) {
            config(&[(setting.name, &word)], &[], &[]);
            accepted += 1;
        }
    }
    assert!(accepted > 20, "{accepted}");
    assert_eq!(config(&[("POLICY", "open")], &[], &[]).config.policy, AdmissionMode::Open);
}

/// The range that the help states is the one that is enforced.
#[test]
fn ends_of_every_range_are_accepted() {
    let ranges = SETTINGS.iter().filter(|setting| ["NUMBER", "SIZE", "TIME"].contains(&setting.placeholder));
    for setting in ranges {
        let (min, max) = setting.allowed.as_deref().and_then(|range| range.split_once(" to ")).expect("a range");
        for text in [min, max] {
            config(&[(setting.name, text)], &[], &[]);
        }
        let above = (max.parse::<u64>().expect("a number") + 1).to_string();
        let errors = errors(&[(setting.name, &above)], &[], &[]);
        assert!(errors[0].contains(&format!("is not a whole number from {min} to {max}")), "{errors:?}");
    }
}

/// The kind of a setting follows from its name, as docs/settings.md says.
#[test]
fn names_state_the_unit_of_plain_numbers() {
    for setting in SETTINGS.iter() {
        let expected = match setting.name {
            name if name.contains("BYTES") => "SIZE",
            name if name.ends_with("_SECS") || name.ends_with("_MS") => "TIME",
            _ => continue,
        };
        assert_eq!(setting.placeholder, expected, "{}", setting.name);
    }
}

#[test]
fn sizes_and_times_can_have_units_in_every_source() {
    let LoadedConfig { config, .. } = config(
        &[("GIT_MAX_PUSH_BYTES", "3GB")],
        &[("NGIT_DISK_BUDGET_BYTES", "50GB"), ("NGIT_SYNC_BATCH_WINDOW_MS", "2s")],
        &[
            (".env", "NGIT_PURGATORY_EXPIRY_SECS=1h30m\nNGIT_REJECTED_COLD_INDEX_EXPIRY_SECS=604800"),
            ("graspd.toml", "git_pack_cache_bytes = '512MiB'\ngit_process_secs = '10m'\nshutdown_grace_secs = 7"),
        ],
    );
    assert_eq!(config.git.max_push_bytes, 3_000_000_000);
    assert_eq!(config.disk.budget_bytes, Some(50_000_000_000));
    assert_eq!(config.sync.batch_window.as_millis(), 2_000);
    assert_eq!(config.purgatory_expiry.as_secs(), 5_400);
    assert_eq!(config.sync.rejected_cold_ttl.as_secs(), 604_800);
    assert_eq!((config.git.pack_cache_bytes, config.git.process_timeout.as_secs()), (512 << 20, 600));
    assert_eq!(config.shutdown_grace.as_secs(), 7);
}

#[test]
fn reload_copies_only_settings_that_are_declared_so() {
    let mut old = config(&[], &[], &[]).config;
    let new =
        [("RELAY_FILTER_LIMIT", "7"), ("GIT_MAX_OBJECTS", "8"), ("GIT_SERVE_PROCESSES", "9"), ("ARCHIVE_ALL", "true")];
    old.reload(&config(&new, &[], &[]).config);
    assert_eq!((old.filter_limit, old.git.max_objects, old.git.serve_processes), (7, 8, 4));
    assert!(old.lists.is_read_only);
    let reloadable = SETTINGS.iter().filter(|setting| setting.can_reload).count();
    assert_eq!(reloadable, 30);
}

#[test]
fn effective_setting_remembers_its_origin() {
    let variables = [("NGIT_MAX_CONNECTIONS", "2"), ("NGIT_RELAY_FILTER_LIMIT", "2")];
    let files = [
        (".env", "NGIT_MAX_CONNECTIONS=3\nNGIT_RELAY_FILTER_LIMIT=3\nNGIT_RELAY_MAX_SUBSCRIPTIONS=3"),
        (
            "graspd.toml",
            "max_connections = 4\nrelay_filter_limit = 4\nrelay_max_subscriptions = 4\nrelay_max_neg_sessions = 4",
        ),
    ];
    let LoadedConfig { config, .. } = config(&[("MAX_CONNECTIONS", "1")], &variables, &files);
    let values = (config.max_connections, config.filter_limit, config.max_subscriptions, config.max_neg_sessions);
    assert_eq!(values, (1, 2, 3, 4));
    assert_eq!(config.origin("MAX_CONNECTIONS"), &SettingOrigin::Flag);
    assert_eq!(config.origin("RELAY_FILTER_LIMIT"), &SettingOrigin::Environment);
    assert_eq!(config.origin("RELAY_MAX_SUBSCRIPTIONS"), &SettingOrigin::DotEnv { path: ".env".into(), line: 3 });
    assert_eq!(config.origin("RELAY_MAX_NEG_SESSIONS"), &SettingOrigin::File { path: "graspd.toml".into() });
    assert_eq!(config.origin("LOG_LEVEL"), &SettingOrigin::Default);
}

#[test]
fn empty_list_flag_overrides_other_sources() {
    let cleared = config(&[("TRUSTED_PROXY_CIDRS", "")], &[("NGIT_TRUSTED_PROXY_CIDRS", "::1")], &[]);
    assert!(cleared.config.trusted_proxies.is_empty());
}

#[test]
fn all_errors_are_listed_together() {
    let shown = errors(
        &[("BIND_ADDRESS", "localhost:7334"), ("POLICY", "closed"), ("RELAY_NAME", "a\nb")],
        &[
            ("NGIT_DOMAIN", "https://code.example"),
            ("NGIT_MAX_CONNECTIONS", "0"),
            ("NGIT_RELAY_OWNER_NSEC", "nsec1hush"),
            ("NGIT_GIT_DATA_PATH", "/srv/x"),
            ("NGIT_RELAY_DATA_PATH", "/srv/x/relay"),
        ],
        &[
            (".env", "NGIT_BASE_PATH=grasp\nNGIT_LOG_LEVEL='info"),
            ("graspd.toml", "trusted_proxy_cidrs = ['10.0.0.0/40']\nfilter_limit = 1\nshutdown_grace_secs = -1"),
        ],
    );
    let expected = [
        "NGIT_LOG_LEVEL (.env line 2): has a quote that is not closed on the same line",
        "filter_limit (graspd.toml): is not a setting; `graspd config --reference` lists them all",
        "NGIT_DOMAIN (environment): `https://code.example` has a scheme",
        "NGIT_BASE_PATH (.env line 1): `grasp` does not begin with `/`",
        "--bind-address: `localhost:7334` is not an IP address with a port",
        "trusted_proxy_cidrs (graspd.toml): `10.0.0.0/40` has a prefix longer than",
        "--relay-name: `a\\nb` has a line break",
        "NGIT_RELAY_OWNER_NSEC (environment): is not a private key",
        "--policy: `closed` is not grasp or open",
        "NGIT_MAX_CONNECTIONS (environment): `0` is not a whole number from 1 to 1000000",
        "shutdown_grace_secs (graspd.toml): `-1` is not a whole number from 0 to 3600",
        "GIT_DATA_PATH and RELAY_DATA_PATH: must not contain each other: /srv/x/relay is inside /srv/x",
    ];
    assert_eq!(shown.len(), expected.len(), "{shown:#?}");
    for (line, expected) in shown.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
    assert!(!shown.join("\n").contains("hush"));
}

#[test]
fn data_folders_must_not_overlap() {
    for (git, relay, apart) in [
        ("/srv/a", "/srv/b", true),
        ("/srv/a", "/srv/ab", true),
        ("/srv/a", "/srv/a", false),
        ("/srv/a/", "/srv/./a", false),
        ("/srv/a/git", "/srv/a", false),
        ("/srv/a", "/srv/a/relay", false),
        ("data", "/here/data", false),
        ("data/../other", "data", true),
    ] {
        let result = resolve(&gather(&[("GIT_DATA_PATH", git), ("RELAY_DATA_PATH", relay)], &[], &[]));
        assert_eq!(result.is_ok(), apart, "{git} {relay}");
    }
}

#[test]
fn unknown_variables_are_warnings() {
    let variables = [("NGIT_DOMIAN", "x"), ("NGIT_COLOUR", "x"), ("NGIT_CONFIG", ""), ("NGIT_IMAGE", "x")];
    let LoadedConfig { warnings, .. } = config(&[], &variables, &[(".env", "NGIT_PRIVATE_MODE=false\nOTHER=1")]);
    assert_eq!(
        warnings,
        [
            "NGIT_COLOUR (environment) is not a setting and has no effect",
            "NGIT_DOMIAN (environment) is not a setting and has no effect; did you mean NGIT_DOMAIN?",
            "NGIT_PRIVATE_MODE (.env line 1) is not used by this version of graspd",
        ]
    );
}

#[test]
fn unsupported_restriction_prevents_the_start() {
    for (name, value) in [("NGIT_PRIVATE_MODE", "true"), ("NGIT_PRIVATE_MODE", "1"), ("NGIT_PRIVATE_MEMBERS", "npub1x")]
    {
        let expected = format!("{name} (environment): restricts who may read this service");
        assert!(errors(&[], &[(name, value)], &[])[0].starts_with(&expected), "{name}={value}");
    }
    for value in ["", "False", "0", "no"] {
        config(&[], &[("NGIT_PRIVATE_MODE", value)], &[]);
    }
}

#[test]
fn risky_settings_cause_warnings() {
    let open = config(&[("BIND_ADDRESS", "[::]:80"), ("TRUSTED_PROXY_CIDRS", "::/0")], &[], &[]);
    assert_eq!(open.warnings.len(), 2, "{:?}", open.warnings);
    let named = config(&[("BIND_ADDRESS", "[::]:80"), ("DOMAIN", "code.example")], &[], &[]);
    assert_eq!(named.warnings, [""; 0]);
}

#[test]
fn default_domain_follows_the_bound_port() {
    let LoadedConfig { mut config, .. } = config(&[("BIND_ADDRESS", "127.0.0.1:0")], &[], &[]);
    config.set_bound_address(([127, 0, 0, 1], 4711).into());
    assert_eq!((config.domain.as_str(), config.relay_name.as_str()), ("127.0.0.1:4711", "127.0.0.1:4711 grasp relay"));
    assert!(show(&config, false).contains("127.0.0.1:4711"));
}

#[test]
fn configured_domain_is_kept_when_the_port_changes() {
    let LoadedConfig { mut config, .. } =
        config(&[("BIND_ADDRESS", "127.0.0.1:0"), ("DOMAIN", "code.example")], &[], &[]);
    config.set_bound_address(([127, 0, 0, 1], 4711).into());
    assert_eq!(config.domain, "code.example");
}

#[test]
fn owner_key_can_be_a_systemd_credential() {
    let key = format!("{:064x}\n", 1);
    let files = [("/run/c/relay_owner_nsec", key.as_str())];
    let LoadedConfig { config, .. } = config(&[], &[("CREDENTIALS_DIRECTORY", "/run/c")], &files);
    assert_eq!(load_owner_keys(&config).expect("given").secret_key().to_secret_hex(), key.trim());
    assert!(show(&config, false).contains("(hidden)"));
    assert!(show(&config, false).contains("credential /run/c/relay_owner_nsec"));
}

#[test]
fn docs_settings_md_is_up_to_date() {
    let documented = include_str!("../../../../docs/settings.md");
    assert!(documented == super::reference(), "run: cargo run -p graspd -- config --reference > docs/settings.md");
}

const NPUB: &str = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";
const HEX: &str = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e";

fn repo(name: &str) -> grasp_core::repo::RepoId {
    let owner = grasp_core::nostr::PublicKey::from_npub(NPUB).expect("a key");
    grasp_core::repo::RepoId { owner, identifier: grasp_core::repo::Identifier::new(name).expect("a name") }
}

const NOTE: &str = "note1fntxtkcy9pjwucqwa9mddn7v03wwwsu9j330jj350nvhpky2tuaspk6nqc";

#[test]
fn list_can_be_a_value_or_a_file() {
    let file = "# reason\n\nmalware\n  my repo   # names can contain spaces\nnot#acomment\r\n";
    for (value, files) in [("malware, my repo,,not#acomment\n", &[][..]), ("@bans.txt", &[("bans.txt", file)][..])] {
        let LoadedConfig { config, .. } = config(&[], &[("NGIT_REPOSITORY_BLACKLIST", value)], files);
        for (name, banned) in [("malware", true), ("my repo", true), ("not#acomment", true), ("my", false)] {
            assert_eq!(config.lists.is_repo_banned(&repo(name)), banned, "{value} {name}");
        }
    }
    for value in [NPUB, HEX, &format!("{NPUB}/tool"), &format!("{HEX}/tool"), "tool"] {
        let LoadedConfig { config, .. } = config(&[("REPOSITORY_BLACKLIST", value)], &[], &[]);
        assert!(config.lists.is_repo_banned(&repo("tool")), "{value}");
    }
}

#[test]
fn invalid_list_entry_is_reported_with_its_line() {
    let secret = format!("nsec1{}", "q".repeat(58));
    for (value, file, expected) in [
        ("@l", "good\nnpub1nonsense\n", "l: line 2: `npub1nonsense` does not start with a valid public key"),
        ("@l", "\nx/y\n", "l: line 2: `x/y` does not start with a valid public key"),
        ("@l", "..\n", "l: line 1: `..` cannot name a repository"),
        ("@missing", "", "missing cannot be read"),
        ("a/b", "", "`a/b` does not start with a valid public key"),
        (secret.as_str(), "", "an entry is a private key"),
        ("@l", "naddr1nonsense\n", "l: line 1: `naddr1nonsense` is not the address of a repository"),
        (NOTE, "", "is an event or a profile; expected a repository"),
    ] {
        let errors = errors(&[("REPOSITORY_WHITELIST", value)], &[], &[("l", file)]);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains(expected), "{errors:?} {expected}");
        assert!(!errors[0].contains(&secret));
    }
    let errors = errors(&[("EVENT_BLACKLIST", "alice")], &[], &[]);
    assert!(errors[0].contains("`alice` is neither a public key"), "{errors:?}");
    let many = "x\n".repeat(grasp_core::limits::MAX_MODERATION_LIST_ENTRIES + 1);
    let errors = super::tests::errors(&[("ARCHIVE_WHITELIST", "@l")], &[], &[("l", &many)]);
    assert!(errors[0].contains("at most 100000"), "{errors:?}");
}

#[test]
fn event_blacklist_has_authors_and_ids() {
    use grasp_core::nostr::{EventId, PublicKey};
    let value = format!("{NPUB},{NOTE},{}", "ab".repeat(32));
    let lists = config(&[("EVENT_BLACKLIST", &value)], &[], &[]).config.lists;
    let (key, other_author) = (PublicKey::from_hex(HEX).expect("hex"), PublicKey([1; 32]));
    let id = EventId::from_note(NOTE).expect("a note");
    assert!(lists.is_event_banned(key, EventId([0; 32])) && lists.is_event_banned(other_author, id));
    assert!(
        lists.is_event_banned(other_author, EventId([0xab; 32]))
            && lists.is_event_banned(PublicKey([0xab; 32]), EventId([0; 32]))
    );
    assert!(!lists.is_event_banned(other_author, EventId([0; 32])));
}

#[test]
fn archive_settings_exclude_each_other_and_imply_read_only() {
    use grasp_core::admission::policy::lists::ArchiveScope;
    for (flags, read_only) in [
        (&[][..], false),
        (&[("ARCHIVE_ALL", "true")][..], true),
        (&[("ARCHIVE_WHITELIST", "tool")][..], true),
        (&[("ARCHIVE_GRASP_SERVICES", "git.example, other.example:8443/base")][..], true),
        (&[("ARCHIVE_ALL", "true"), ("ARCHIVE_READ_ONLY", "false")][..], false),
        (&[("ARCHIVE_READ_ONLY", "true")][..], true),
        (&[("REPOSITORY_WHITELIST", "tool"), ("ARCHIVE_ALL", "true"), ("ARCHIVE_READ_ONLY", "false")][..], false),
    ] {
        let lists = config(flags, &[], &[]).config.lists;
        assert_eq!(lists.is_read_only, read_only, "{flags:?}");
        assert_eq!(lists.archive != ArchiveScope::Nothing, flags.iter().any(|(name, _)| *name != "ARCHIVE_READ_ONLY"));
    }
    for (flags, expected) in [
        (&[("ARCHIVE_ALL", "true"), ("ARCHIVE_WHITELIST", "tool")][..], "ARCHIVE_ALL and ARCHIVE_WHITELIST: exclude"),
        (&[("ARCHIVE_GRASP_SERVICES", "a.example"), ("ARCHIVE_WHITELIST", "tool")][..], "exclude each other"),
        (&[("ARCHIVE_ALL", "true"), ("SYNC_ENABLE", "false")][..], "ARCHIVE_ALL: needs SYNC_ENABLE=true"),
        (&[("ARCHIVE_ALL", "true"), ("REPOSITORY_WHITELIST", "tool")][..], "exclude each other"),
        (&[("ARCHIVE_GRASP_SERVICES", "https://a.example")][..], "has a scheme"),
    ] {
        let errors = errors(flags, &[], &[]);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{errors:?}");
    }
}

#[test]
fn relays_of_archived_services_are_derived() {
    let value = "git.example, 127.0.0.1:7000, other.example:8443/base";
    let lists = config(&[("ARCHIVE_GRASP_SERVICES", value)], &[], &[]).config.lists;
    let relays: Vec<String> = archived_service_relays(&lists).iter().map(ToString::to_string).collect();
    assert_eq!(relays, ["wss://git.example", "ws://127.0.0.1:7000", "wss://other.example:8443/base"]);
}

#[test]
fn setting_names_are_unique_and_well_formed() {
    let mut seen = std::collections::BTreeSet::new();
    for setting in SETTINGS.iter() {
        assert!(seen.insert(setting.name), "{} is declared twice", setting.name);
        assert!(
            setting.name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'),
            "{}",
            setting.name
        );
        assert!(setting.help.ends_with('.') && !setting.help.contains("  "), "{}", setting.name);
        assert!(!unknown_names::UNSUPPORTED.contains(&setting.name), "{} is used now", setting.name);
    }
}

#[test]
fn settings_are_grouped_by_section() {
    let mut sections: Vec<_> = SETTINGS.iter().map(|setting| setting.section).collect();
    sections.dedup();
    let distinct: std::collections::BTreeSet<_> = sections.iter().collect();
    assert_eq!((distinct.len(), distinct.contains(&"")), (sections.len(), false), "{sections:?}");
}

#[test]
fn variable_flag_and_key_follow_from_the_name() {
    let setting = find("BIND_ADDRESS").expect("declared");
    assert_eq!(setting.variable(), "NGIT_BIND_ADDRESS");
    assert_eq!(setting.flag().as_deref(), Some("bind-address"));
    assert_eq!(setting.key(), "bind_address");
    assert_eq!(find("RELAY_OWNER_NSEC").expect("declared").flag(), None);
}
