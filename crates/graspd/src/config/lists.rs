//! Moderation lists: given in the value of a setting, or in a file with one entry per line (`@path`), which can change
//! while the service runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use grasp_core::admission::policy::lists::{
    ArchiveScope, BannedEvents, ListEntryError, ModerationLists, RepoList, RepoListEntry,
};
use grasp_core::limits;
use grasp_core::repo::ServiceAddress;
use grasp_core::sync::relay_url::RelayUrl;

use super::parse;
use super::problem::quote;

/// Maximum number of invalid lines of one list that are reported: a list with more of them is probably the wrong file.
const MAX_LISTED_ERRORS: usize = 20;

/// The list files that settings name: setting name to path and text, or to the reason why it cannot be read.
pub(super) type ListFiles = BTreeMap<&'static str, (PathBuf, Result<String, String>)>;

/// Returns the path after `@`, if the value names a file.
pub(super) fn file_path(text: &str) -> Option<&Path> {
    text.trim().strip_prefix('@').map(Path::new)
}

/// The entries of a list, each with its line number if it is from a file.
pub(super) struct ListText<'a> {
    entries: Vec<(Option<usize>, &'a str)>,
}

impl<'a> ListText<'a> {
    /// Splits a value into entries, separated by commas or line breaks.
    pub(super) fn from_value(text: &'a str) -> Self {
        let entries = text.split([',', '\n']).map(str::trim).filter(|entry| !entry.is_empty());
        Self { entries: entries.map(|entry| (None, entry)).collect() }
    }

    /// Splits a file into entries: one per line; `#` at the beginning of a line or after white space begins a comment.
    pub(super) fn from_file(text: &'a str) -> Self {
        let entry = |line: &'a str| {
            let comment = line.char_indices().find(|(at, character)| {
                *character == '#' && line[..*at].chars().next_back().is_none_or(char::is_whitespace)
            });
            comment.map_or(line, |(at, _)| &line[..at]).trim()
        };
        let lines = text.lines().enumerate().map(|(nth, line)| (Some(nth + 1), entry(line)));
        Self { entries: lines.filter(|(_, entry)| !entry.is_empty()).collect() }
    }

    /// Parses all entries, or returns the errors with their line numbers.
    fn parse_entries(&self, mut parse_entry: impl FnMut(&str) -> Result<(), String>) -> Result<(), String> {
        if self.entries.len() > limits::MAX_MODERATION_LIST_ENTRIES {
            let (count, max) = (self.entries.len(), limits::MAX_MODERATION_LIST_ENTRIES);
            return Err(format!("has {count} entries, but at most {max} are allowed"));
        }
        let mut errors = Vec::new();
        for (line, entry) in &self.entries {
            if let Err(why) = parse_entry(entry) {
                errors.push(match line {
                    Some(line) => format!("line {line}: {why}"),
                    None => why,
                });
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        let omitted = errors.len().saturating_sub(MAX_LISTED_ERRORS);
        errors.truncate(MAX_LISTED_ERRORS);
        if omitted > 0 {
            errors.push(format!("and {omitted} more"));
        }
        Err(errors.join("; "))
    }

    /// Parses a list of repositories.
    pub(super) fn repositories(&self) -> Result<RepoList, String> {
        let mut entries = Vec::new();
        self.parse_entries(|text| {
            entries.push(RepoListEntry::parse(text).map_err(|why| describe_bad_entry(text, why))?);
            Ok(())
        })?;
        Ok(entries.into_iter().collect())
    }

    /// Parses a list of authors and events.
    pub(super) fn banned_events(&self) -> Result<BannedEvents, String> {
        let mut banned_events = BannedEvents::default();
        self.parse_entries(|text| banned_events.add(text).map_err(|why| describe_bad_entry(text, why)))?;
        Ok(banned_events)
    }

    /// Parses a list of GRASP services, by domain.
    pub(super) fn services(&self) -> Result<Vec<ServiceAddress>, String> {
        let mut services = Vec::new();
        self.parse_entries(|text| {
            let host_and_path = if text.contains("://") { None } else { text.split_once('/') };
            let (domain, base) = host_and_path.unwrap_or((text, ""));
            let base = if base.is_empty() { String::new() } else { parse::base_path(&format!("/{base}"))? };
            let domain = parse::domain(domain)?;
            let service =
                ServiceAddress::new(&domain, &base).ok_or_else(|| format!("{} is not a domain", quote(text)))?;
            if !services.contains(&service) {
                services.push(service);
            }
            Ok(())
        })?;
        Ok(services)
    }
}

fn describe_bad_entry(text: &str, why: ListEntryError) -> String {
    // A private key that was entered here by mistake must not appear in a log.
    if why == ListEntryError::PrivateKey { format!("an entry {why}") } else { format!("{} {why}", quote(text)) }
}

/// The values of the list and archive settings, before they are combined.
pub(super) struct ListSettings {
    pub(super) whitelist: RepoList,
    pub(super) blacklist: RepoList,
    pub(super) banned_events: BannedEvents,
    pub(super) archive_all: bool,
    pub(super) archive_whitelist: RepoList,
    pub(super) archive_services: Vec<ServiceAddress>,
    /// `None` if it follows from the other settings.
    pub(super) read_only: Option<bool>,
}

impl ListSettings {
    /// Returns the combinations of settings that are invalid: the settings, and what is wrong.
    pub(super) fn conflicts(&self, sync: bool) -> Vec<(String, String)> {
        let mut errors = Vec::new();
        let archives: Vec<&str> = [
            ("ARCHIVE_ALL", self.archive_all),
            ("ARCHIVE_WHITELIST", !self.archive_whitelist.is_empty()),
            ("ARCHIVE_GRASP_SERVICES", !self.archive_services.is_empty()),
        ]
        .into_iter()
        .filter_map(|(name, set)| set.then_some(name))
        .collect();
        if archives.len() > 1 {
            errors.push((archives.join(" and "), "exclude each other; give one of them".to_owned()));
        }
        if let (Some(name), false) = (archives.first(), sync) {
            let message = "needs SYNC_ENABLE=true, because archived repositories arrive by sync".to_owned();
            errors.push(((*name).to_owned(), message));
        }
        if !self.whitelist.is_empty() && self.is_read_only() {
            let message = "exclude each other, because a read-only service accepts only what it archives; set \
                           ARCHIVE_READ_ONLY=false, or use ARCHIVE_WHITELIST instead";
            errors.push(("REPOSITORY_WHITELIST and ARCHIVE_READ_ONLY".to_owned(), message.to_owned()));
        }
        errors
    }

    fn is_archive(&self) -> bool {
        self.archive_all || !self.archive_whitelist.is_empty() || !self.archive_services.is_empty()
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only.unwrap_or(self.is_archive())
    }

    /// Combines the settings.
    pub(super) fn into_lists(self) -> Arc<ModerationLists> {
        let read_only = self.is_read_only();
        let archive = if self.archive_all {
            ArchiveScope::Everything
        } else if !self.archive_whitelist.is_empty() {
            ArchiveScope::Listed(self.archive_whitelist)
        } else if !self.archive_services.is_empty() {
            ArchiveScope::Services(self.archive_services)
        } else {
            ArchiveScope::Nothing
        };
        let wanted = (!self.whitelist.is_empty()).then_some(self.whitelist);
        Arc::new(ModerationLists {
            whitelist: wanted,
            banned_repos: self.blacklist,
            banned_events: self.banned_events,
            archive,
            is_read_only: read_only,
        })
    }
}

/// Returns the relays of the archived services, which announce their repositories.
pub(crate) fn archived_service_relays(lists: &ModerationLists) -> Vec<RelayUrl> {
    let ArchiveScope::Services(services) = &lists.archive else { return Vec::new() };
    let relay = |service: &ServiceAddress| {
        let (domain, base) = (service.domain(), service.base());
        let scheme = if super::uses_tls(&domain) { "wss" } else { "ws" };
        RelayUrl::parse(&format!("{scheme}://{domain}{base}"))
    };
    services.iter().filter_map(relay).collect()
}
