//! The settings as a whole, from what was written to what holds.

use super::resolve::resolve;
use super::settings::{Fallback, SETTINGS, Shape};
use super::sources::tests::gather;
use super::*;

fn config(flags: &[(&'static str, &str)], variables: &[(&str, &str)], files: &[(&str, &str)]) -> Loaded {
    resolve(&gather(flags, variables, files)).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(flags: &[(&'static str, &str)], variables: &[(&str, &str)], files: &[(&str, &str)]) -> Vec<String> {
    let errors = resolve(&gather(flags, variables, files)).expect_err("something is wrong");
    errors.0.iter().map(ToString::to_string).collect()
}

#[test]
fn defaults_hold_when_nothing_is_set() {
    let Loaded { config, warnings } = config(&[], &[], &[]);
    assert_eq!(warnings, [""; 0]);
    assert_eq!(config.bind.to_string(), "127.0.0.1:7334");
    assert_eq!(config.domain, "127.0.0.1:7334");
    assert_eq!(config.relay_name, "127.0.0.1:7334 grasp relay");
    assert_eq!(config.base_path, "");
    assert_eq!(config.git_data_path, PathBuf::from("/here/data/git"));
    assert_eq!(config.relay_data_path, PathBuf::from("/here/data/relay"));
    assert_eq!(config.policy, Policy::Grasp);
    assert_eq!((config.max_connections, config.max_subscriptions, config.max_neg_sessions), (10_000, 500, 10));
    assert_eq!((config.max_event_bytes, config.filter_limit), (192 * 1024, 500));
    assert_eq!((config.network_max_connections, config.network_events_per_minute), (512, 6_000));
    assert_eq!((config.purgatory_expiry.as_secs(), config.shutdown_grace.as_secs()), (1_800, 10));
    assert_eq!((config.store_reserve_bytes, config.log_level.as_str()), (64 << 20, "info"));
    assert!(config.trusted_proxies.is_empty() && config.owner_secret.is_none());
}

#[test]
fn every_declared_setting_is_read_and_every_default_is_valid() {
    let Loaded { config, .. } = config(&[], &[], &[]);
    let read: Vec<_> = config.effective.iter().map(|effective| effective.name).collect();
    let declared: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
    assert_eq!(read, declared);
    for setting in SETTINGS {
        if let (Shape::Number { min, max }, Fallback::Value(text)) = (&setting.shape, &setting.default) {
            assert!((*min..=*max).contains(&text.parse().expect("a number")), "{}", setting.name);
        }
        if let (Shape::Choice(words), Fallback::Value(text)) = (&setting.shape, &setting.default) {
            assert!(words.contains(text), "{}", setting.name);
        }
    }
}

#[test]
fn every_declared_word_of_a_choice_is_understood() {
    for setting in SETTINGS {
        let Shape::Choice(words) = &setting.shape else {
            continue;
        };
        for word in *words {
            config(&[(setting.name, word)], &[], &[]);
        }
    }
    assert_eq!(config(&[("POLICY", "open")], &[], &[]).config.policy, Policy::Open);
}

#[test]
fn the_stronger_source_wins_and_is_remembered() {
    let variables = [("NGIT_MAX_CONNECTIONS", "2"), ("NGIT_RELAY_FILTER_LIMIT", "2")];
    let files = [
        (".env", "NGIT_MAX_CONNECTIONS=3\nNGIT_RELAY_FILTER_LIMIT=3\nNGIT_RELAY_MAX_SUBSCRIPTIONS=3"),
        (
            "graspd.toml",
            "max_connections = 4\nrelay_filter_limit = 4\nrelay_max_subscriptions = 4\nrelay_max_neg_sessions = 4",
        ),
    ];
    let Loaded { config, .. } = config(&[("MAX_CONNECTIONS", "1")], &variables, &files);
    let values = (config.max_connections, config.filter_limit, config.max_subscriptions, config.max_neg_sessions);
    assert_eq!(values, (1, 2, 3, 4));
    assert_eq!(config.origin("MAX_CONNECTIONS"), &Origin::Flag);
    assert_eq!(config.origin("RELAY_FILTER_LIMIT"), &Origin::Environment);
    assert_eq!(config.origin("RELAY_MAX_SUBSCRIPTIONS"), &Origin::DotEnv { path: ".env".into(), line: 3 });
    assert_eq!(config.origin("RELAY_MAX_NEG_SESSIONS"), &Origin::File("graspd.toml".into()));
    assert_eq!(config.origin("LOG_LEVEL"), &Origin::Default);
}

#[test]
fn an_empty_list_on_the_command_line_overrides() {
    let cleared = config(&[("TRUSTED_PROXY_CIDRS", "")], &[("NGIT_TRUSTED_PROXY_CIDRS", "::1")], &[]);
    assert!(cleared.config.trusted_proxies.is_empty());
}

#[test]
fn every_error_is_listed_at_once() {
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
        "--bind-address: `localhost:7334` is not an IP address with a port",
        "NGIT_DOMAIN (environment): `https://code.example` has a scheme",
        "--relay-name: `a\\nb` has a line break",
        "NGIT_BASE_PATH (.env line 1): `grasp` does not begin with `/`",
        "NGIT_RELAY_OWNER_NSEC (environment): is not a private key",
        "trusted_proxy_cidrs (graspd.toml): `10.0.0.0/40` has a prefix longer than",
        "--policy: `closed` is not grasp or open",
        "NGIT_MAX_CONNECTIONS (environment): `0` is not a whole number from 1 to 1000000",
        "shutdown_grace_secs (graspd.toml): `-1` is not a whole number from 0 to 3600",
        "GIT_DATA_PATH and RELAY_DATA_PATH: lie in each other: /srv/x/relay is inside /srv/x",
    ];
    assert_eq!(shown.len(), expected.len(), "{shown:#?}");
    for (line, expected) in shown.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
    assert!(!shown.join("\n").contains("hush"));
}

#[test]
fn the_data_folders_are_apart() {
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
    let Loaded { warnings, .. } = config(&[], &variables, &[(".env", "NGIT_PRIVATE_MODE=true\nOTHER=1")]);
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
fn dangerous_settings_are_warnings() {
    let open = config(&[("BIND_ADDRESS", "[::]:80"), ("TRUSTED_PROXY_CIDRS", "::/0")], &[], &[]);
    assert_eq!(open.warnings.len(), 2, "{:?}", open.warnings);
    let named = config(&[("BIND_ADDRESS", "[::]:80"), ("DOMAIN", "code.example")], &[], &[]);
    assert_eq!(named.warnings, [""; 0]);
}

#[test]
fn a_port_chosen_by_the_system_names_the_service() {
    let Loaded { mut config, .. } = config(&[("BIND_ADDRESS", "127.0.0.1:0")], &[], &[]);
    config.bound_to(([127, 0, 0, 1], 4711).into());
    assert_eq!((config.domain.as_str(), config.relay_name.as_str()), ("127.0.0.1:4711", "127.0.0.1:4711 grasp relay"));
    assert!(show(&config, false).contains("127.0.0.1:4711"));
}

#[test]
fn a_given_domain_outlives_the_port() {
    let Loaded { mut config, .. } = config(&[("BIND_ADDRESS", "127.0.0.1:0"), ("DOMAIN", "code.example")], &[], &[]);
    config.bound_to(([127, 0, 0, 1], 4711).into());
    assert_eq!(config.domain, "code.example");
}

#[test]
fn the_owner_key_may_come_from_systemd() {
    let key = format!("{:064x}\n", 1);
    let files = [("/run/c/relay_owner_nsec", key.as_str())];
    let Loaded { config, .. } = config(&[], &[("CREDENTIALS_DIRECTORY", "/run/c")], &files);
    assert_eq!(owner_keys(&config).expect("given").secret_key().to_secret_hex(), key.trim());
    assert!(show(&config, false).contains("(hidden)"));
    assert!(show(&config, false).contains("credential /run/c/relay_owner_nsec"));
}

#[test]
fn the_reference_in_the_documentation_is_the_code_s() {
    let documented = include_str!("../../../../docs/settings.md");
    assert!(documented == super::reference(), "run `just settings`");
}
