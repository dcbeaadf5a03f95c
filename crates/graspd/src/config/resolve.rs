//! Derives the defaults that depend on other settings, and checks settings against each other.

use std::path::{Path, PathBuf};

use super::cli::LOCATION_SETTINGS;
use super::declaration::{SettingGroup, SettingReader};
use super::problem::{ConfigError, ConfigErrors, SettingOrigin};
use super::sources::SettingSources;
use super::{AdminSockets, Config, LoadedConfig, StatusPageAccess, lists, parse};

/// Default name of the admin socket in the relay's data folder.
const ADMIN_SOCKET_FILE: &str = "admin.sock";

/// Path of the admin socket of the systemd unit, below `/run`.
const UNIT_SOCKET: &str = "graspd/admin.sock";

/// Parses all settings, or returns all errors.
pub(crate) fn resolve(sources: &SettingSources) -> Result<LoadedConfig, ConfigErrors> {
    let (config, mut errors) = read(sources);
    errors.extend(data_path_error(&config.git_data_path, &config.relay_data_path));
    if let (Some(name), false) = (lists::archive_setting(&config.lists), config.sync.enabled) {
        let message = "needs SYNC_ENABLE=true, because archived repositories arrive by sync";
        errors.push(ConfigError::new(name, message));
    }
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    let warnings = [sources.warnings.clone(), warnings(&config)].concat();
    Ok(LoadedConfig { config, warnings })
}

/// Returns where a command looks for the admin socket. If no setting names it, the socket of the systemd unit is one of
/// the usual places: the first one on a system that runs systemd. Errors in other settings are ignored, because the
/// running server was started with valid ones.
pub(crate) fn admin_sockets(mut sources: SettingSources, run_folder: &Path) -> Result<AdminSockets, ConfigErrors> {
    sources.texts.retain(|name, _| LOCATION_SETTINGS.contains(name));
    let is_given = !sources.texts.is_empty();
    let origin = sources.texts.get("ADMIN_SOCKET").map(|(_, origin)| origin);
    if matches!(origin, Some(SettingOrigin::Flag | SettingOrigin::Environment)) {
        // Otherwise a file that cannot be read may contain the path.
        sources.errors.clear();
    }
    let (config, errors) = read(&sources);
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    let own = config.admin_socket;
    let mut paths: Vec<PathBuf> = own.iter().cloned().collect();
    if !is_given {
        let runs_systemd = run_folder.join("systemd/system").is_dir();
        paths.insert(if runs_systemd { 0 } else { paths.len() }, run_folder.join(UNIT_SOCKET));
    }
    Ok(AdminSockets { own, paths })
}

/// Reads all settings, derives defaults, and returns the errors.
fn read(sources: &SettingSources) -> (Config, Vec<ConfigError>) {
    let mut reader = SettingReader::new(sources);
    let mut config = Config::read(&mut reader);
    config.set_bound_address(config.bind);
    config.set_shown_value("DOMAIN", config.domain.clone());
    config.set_shown_value("GIT_DATA_PATH", config.git_data_path.display().to_string());
    config.set_shown_value("RELAY_DATA_PATH", config.relay_data_path.display().to_string());
    if config.owner_secret.is_none() {
        config.set_shown_value("RELAY_OWNER_NSEC", format!("(in {})", config.owner_file().display()));
    }
    if config.origin("ADMIN_SOCKET") == &SettingOrigin::Default && config.relay_data_path != Path::new("") {
        let path = config.relay_data_path.join(ADMIN_SOCKET_FILE);
        match parse::socket_file(&path.display().to_string(), &sources.files) {
            Ok(socket) => config.admin_socket = socket,
            Err(message) => reader.errors.push(ConfigError::new("ADMIN_SOCKET (default)", message)),
        }
    }
    if let Some(path) = &config.admin_socket {
        config.set_shown_value("ADMIN_SOCKET", path.display().to_string());
    }
    (config, reader.errors)
}

/// Returns an error if one data folder contains the other. An empty path is invalid already.
fn data_path_error(git: &Path, relay: &Path) -> Option<ConfigError> {
    let (inner, outer) = if git.starts_with(relay) { (git, relay) } else { (relay, git) };
    if outer == Path::new("") || !inner.starts_with(outer) {
        return None;
    }
    let relation = if git == relay {
        format!("are the same folder ({})", git.display())
    } else {
        format!("must not contain each other: {} is inside {}", inner.display(), outer.display())
    };
    Some(ConfigError::new("GIT_DATA_PATH and RELAY_DATA_PATH", format!("{relation}; give each its own folder")))
}

/// Returns warnings about settings that are valid but probably not intended.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.status == StatusPageAccess::Private && config.metrics.bind.is_none() {
        warnings.push(
            "STATUS_ENABLE is private and METRICS_BIND_ADDRESS is not set, so the status page is not available"
                .to_owned(),
        );
    }
    if config.bind.ip().is_unspecified() && config.origin("DOMAIN") == &SettingOrigin::Default {
        warnings.push(format!(
            "DOMAIN is not set, so the service uses {}, which clients cannot reach and repositories cannot list",
            config.domain
        ));
    }
    for network in config.trusted_proxies.iter().filter(|network| network.prefix_len() == 0) {
        warnings.push(format!("TRUSTED_PROXY_CIDRS contains {network}: every client can claim any address"));
    }
    warnings
}
