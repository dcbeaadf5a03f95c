//! Moderation lists: given in the value of a setting, or in a file with one entry per line (`@path`), which can change
//! while the service runs.

use std::path::Path;
use std::sync::Arc;

use grasp_core::admission::policy::lists::{
    ArchiveScope, BannedEvents, ListEntryError, ModerationLists, RepoList, RepoListEntry,
};
use grasp_core::limits;
use grasp_core::repo::ServiceAddress;
use grasp_core::sync::relay_url::RelayUrl;

use super::declaration::{SettingGroup, SettingReader};
use super::parse;
use super::problem::{ConfigError, quote};
use super::settings::ListSettings;
use super::sources::FileAccess;

/// An entry of a list, with its line number if it is from a file.
pub(super) type Entry<'a> = (Option<usize>, &'a str);

/// Parses the list in a value, or in the file that it names.
pub(super) fn read<T>(
    text: &str,
    files: &FileAccess,
    parse: impl Fn(&[Entry<'_>]) -> Result<T, String>,
) -> Result<T, String> {
    let Some(path) = text.trim().strip_prefix('@') else { return parse(&split_value(text)) };
    let in_file = match files.read(Path::new(path)) {
        Ok(text) if text.len() as u64 > limits::MAX_MODERATION_LIST_BYTES => {
            let max = limits::MAX_MODERATION_LIST_BYTES;
            return Err(format!("{path} has {} bytes, but at most {max} are allowed", text.len()));
        }
        Ok(text) => text,
        Err(error) => return Err(format!("{path} cannot be read: {error}")),
    };
    parse(&split_file(&in_file)).map_err(|why| format!("{path}: {why}"))
}

/// Splits a value into entries, separated by commas or line breaks.
fn split_value(text: &str) -> Vec<Entry<'_>> {
    let entries = text.split([',', '\n']).map(str::trim).filter(|entry| !entry.is_empty());
    entries.map(|entry| (None, entry)).collect()
}

/// Splits a file into entries: one per line; `#` at the beginning of a line or after white space begins a comment.
fn split_file(text: &str) -> Vec<Entry<'_>> {
    let is_comment = |line: &str, at: usize| line[..at].chars().next_back().is_none_or(char::is_whitespace);
    let entry = |line| {
        let comment = str::match_indices(line, '#').find(|(at, _)| is_comment(line, *at));
        comment.map_or(line, |(at, _)| &line[..at]).trim()
    };
    let lines = text.lines().enumerate().map(|(nth, line)| (Some(nth + 1), entry(line)));
    lines.filter(|(_, entry)| !entry.is_empty()).collect()
}

/// Parses all entries, if there are not too many.
fn parse_entries<T>(entries: &[Entry<'_>], parse: impl FnMut(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    if entries.len() > limits::MAX_MODERATION_LIST_ENTRIES {
        let (count, max) = (entries.len(), limits::MAX_MODERATION_LIST_ENTRIES);
        return Err(format!("has {count} entries, but at most {max} are allowed"));
    }
    parse::entries(entries.iter().copied(), parse)
}

/// Parses a list of repositories.
pub(super) fn repositories(entries: &[Entry<'_>]) -> Result<RepoList, String> {
    let parse = |text: &str| RepoListEntry::parse(text).map_err(|why| describe_bad_entry(text, why));
    Ok(parse_entries(entries, parse)?.into_iter().collect())
}

/// Parses a list of authors and events.
pub(super) fn banned_events(entries: &[Entry<'_>]) -> Result<BannedEvents, String> {
    let mut banned_events = BannedEvents::default();
    parse_entries(entries, |text| banned_events.add(text).map_err(|why| describe_bad_entry(text, why)))?;
    Ok(banned_events)
}

/// Parses a list of GRASP services, by domain.
pub(super) fn services(entries: &[Entry<'_>]) -> Result<Vec<ServiceAddress>, String> {
    let mut services = Vec::new();
    for service in parse_entries(entries, service)? {
        if !services.contains(&service) {
            services.push(service);
        }
    }
    Ok(services)
}

fn service(text: &str) -> Result<ServiceAddress, String> {
    let host_and_path = if text.contains("://") { None } else { text.split_once('/') };
    let (domain, base) = host_and_path.unwrap_or((text, ""));
    let base = if base.is_empty() { String::new() } else { parse::base_path(&format!("/{base}"))? };
    ServiceAddress::new(&parse::domain(domain)?, &base).ok_or_else(|| format!("{} is not a domain", quote(text)))
}

fn describe_bad_entry(text: &str, why: ListEntryError) -> String {
    // A private key that was entered here by mistake must not appear in a log.
    if why == ListEntryError::PrivateKey { format!("an entry {why}") } else { format!("{} {why}", quote(text)) }
}

impl SettingGroup for Arc<ModerationLists> {
    fn read(reader: &mut SettingReader<'_>) -> Self {
        let lists = ListSettings::read(reader);
        let archives = [
            ("ARCHIVE_ALL", lists.archive_all),
            ("ARCHIVE_WHITELIST", !lists.archive_whitelist.is_empty()),
            ("ARCHIVE_GRASP_SERVICES", !lists.archive_services.is_empty()),
        ];
        let archives: Vec<&str> = archives.into_iter().filter_map(|(name, is_set)| is_set.then_some(name)).collect();
        let is_read_only = lists.read_only.unwrap_or(!archives.is_empty());
        if archives.len() > 1 {
            reader.errors.push(ConfigError::new(archives.join(" and "), "exclude each other; give one of them"));
        }
        if !lists.whitelist.is_empty() && is_read_only {
            let message = "exclude each other, because a read-only service accepts only what it archives; set \
                           ARCHIVE_READ_ONLY=false, or use ARCHIVE_WHITELIST instead";
            reader.errors.push(ConfigError::new("REPOSITORY_WHITELIST and ARCHIVE_READ_ONLY", message));
        }
        let archive = match archives.first() {
            None => ArchiveScope::Nothing,
            Some(&"ARCHIVE_ALL") => ArchiveScope::Everything,
            Some(&"ARCHIVE_WHITELIST") => ArchiveScope::Listed(lists.archive_whitelist),
            Some(_) => ArchiveScope::Services(lists.archive_services),
        };
        Arc::new(ModerationLists {
            whitelist: (!lists.whitelist.is_empty()).then_some(lists.whitelist),
            banned_repos: lists.blacklist,
            banned_events: lists.banned_events,
            archive,
            is_read_only,
        })
    }

    /// Copies all lists together, because the content of a list file can change while the setting stays the same.
    fn reload(&mut self, new: &Self) {
        self.clone_from(new);
    }
}

/// Returns the setting that makes this service an archive, which arrives by sync.
pub(super) fn archive_setting(lists: &ModerationLists) -> Option<&'static str> {
    match lists.archive {
        ArchiveScope::Nothing => None,
        ArchiveScope::Everything => Some("ARCHIVE_ALL"),
        ArchiveScope::Listed(_) => Some("ARCHIVE_WHITELIST"),
        ArchiveScope::Services(_) => Some("ARCHIVE_GRASP_SERVICES"),
    }
}

/// Returns the relays of the archived services, which announce their repositories.
pub(crate) fn archived_service_relays(lists: &ModerationLists) -> Vec<RelayUrl> {
    let ArchiveScope::Services(services) = &lists.archive else { return Vec::new() };
    services.iter().filter_map(|service| RelayUrl::parse(&service.relay_url())).collect()
}
