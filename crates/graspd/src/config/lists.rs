//! Moderation lists: written in place, or in a file with one entry per line (`@path`), so that they can change while the
//! service runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use grasp_core::admission::policy::lists::{Archive, BadEntry, Entries, Entry, Lists, Unwanted};
use grasp_core::limits;
use grasp_core::repo::Service;
use grasp_core::sync::relay_url::RelayUrl;

use super::parse;
use super::problem::quote;

/// Wrong lines of one list that are told: whoever has more of them gave the wrong file.
const MOST_TOLD: usize = 20;

/// The files that settings name, read while everything else was gathered: setting name to path and text, or what is
/// wrong with it.
pub(super) type Files = BTreeMap<&'static str, (PathBuf, Result<String, String>)>;

/// The path behind `@`, if a value is meant to be read from a file.
pub(super) fn path(text: &str) -> Option<&Path> {
    text.trim().strip_prefix('@').map(Path::new)
}

/// What stands in a list, each with where.
pub(super) struct Written<'a> {
    entries: Vec<(Option<usize>, &'a str)>,
}

impl<'a> Written<'a> {
    /// Entries of a value, separated by commas or line breaks.
    pub(super) fn in_place(text: &'a str) -> Self {
        let entries = text.split([',', '\n']).map(str::trim).filter(|entry| !entry.is_empty());
        Self { entries: entries.map(|entry| (None, entry)).collect() }
    }

    /// Entries of a file: one per line; `#` begins a comment, at the beginning of a line or after white space.
    pub(super) fn in_file(text: &'a str) -> Self {
        let entry = |line: &'a str| {
            let comment = line.char_indices().find(|(at, character)| {
                *character == '#' && line[..*at].chars().next_back().is_none_or(char::is_whitespace)
            });
            comment.map_or(line, |(at, _)| &line[..at]).trim()
        };
        let lines = text.lines().enumerate().map(|(nth, line)| (Some(nth + 1), entry(line)));
        Self { entries: lines.filter(|(_, entry)| !entry.is_empty()).collect() }
    }

    /// Reads all entries, or says what is wrong, line by line.
    fn read(&self, mut one: impl FnMut(&str) -> Result<(), String>) -> Result<(), String> {
        if self.entries.len() > limits::MAX_LIST_ENTRIES {
            return Err(format!("has {} entries, at most {} are taken", self.entries.len(), limits::MAX_LIST_ENTRIES));
        }
        let mut wrong = Vec::new();
        for (line, entry) in &self.entries {
            if let Err(why) = one(entry) {
                wrong.push(match line {
                    Some(line) => format!("line {line}: {why}"),
                    None => why,
                });
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let more = wrong.len().saturating_sub(MOST_TOLD);
        wrong.truncate(MOST_TOLD);
        if more > 0 {
            wrong.push(format!("and {more} more"));
        }
        Err(wrong.join("; "))
    }

    /// A list of repositories.
    pub(super) fn repositories(&self) -> Result<Entries, String> {
        let mut entries = Vec::new();
        self.read(|text| {
            entries.push(Entry::read(text).map_err(|why| complaint(text, why))?);
            Ok(())
        })?;
        Ok(entries.into_iter().collect())
    }

    /// A list of authors and events.
    pub(super) fn unwanted(&self) -> Result<Unwanted, String> {
        let mut unwanted = Unwanted::default();
        self.read(|text| unwanted.add(text).map_err(|why| complaint(text, why)))?;
        Ok(unwanted)
    }

    /// A list of GRASP services, by domain.
    pub(super) fn services(&self) -> Result<Vec<Service>, String> {
        let mut services = Vec::new();
        self.read(|text| {
            let plain = if text.contains("://") { None } else { text.split_once('/') };
            let (domain, base) = plain.unwrap_or((text, ""));
            let base = if base.is_empty() { String::new() } else { parse::base_path(&format!("/{base}"))? };
            let domain = parse::domain(domain)?;
            let service = Service::new(&domain, &base).ok_or_else(|| format!("{} is not a domain", quote(text)))?;
            if !services.contains(&service) {
                services.push(service);
            }
            Ok(())
        })?;
        Ok(services)
    }
}

fn complaint(text: &str, why: BadEntry) -> String {
    // Whoever wrote a private key here must not find it in a log, too.
    if why == BadEntry::Secret { format!("an entry {why}") } else { format!("{} {why}", quote(text)) }
}

/// What was written about lists, each for itself.
pub(super) struct Parts {
    pub(super) whitelist: Entries,
    pub(super) blacklist: Entries,
    pub(super) unwanted: Unwanted,
    pub(super) archive_all: bool,
    pub(super) archive_whitelist: Entries,
    pub(super) archive_services: Vec<Service>,
    /// Nothing if it follows from the others.
    pub(super) read_only: Option<bool>,
}

impl Parts {
    /// What is right alone and wrong together: settings and what is wrong with them.
    pub(super) fn contradictions(&self, sync: bool) -> Vec<(String, String)> {
        let mut wrong = Vec::new();
        let archives: Vec<&str> = [
            ("ARCHIVE_ALL", self.archive_all),
            ("ARCHIVE_WHITELIST", !self.archive_whitelist.is_empty()),
            ("ARCHIVE_GRASP_SERVICES", !self.archive_services.is_empty()),
        ]
        .into_iter()
        .filter_map(|(name, set)| set.then_some(name))
        .collect();
        if archives.len() > 1 {
            wrong.push((archives.join(" and "), "exclude each other; give one of them".to_owned()));
        }
        if let (Some(name), false) = (archives.first(), sync) {
            let message = "needs SYNC_ENABLE=true: what an archive keeps comes by sync".to_owned();
            wrong.push(((*name).to_owned(), message));
        }
        if !self.whitelist.is_empty() && self.is_read_only() {
            let message = "exclude each other: a read-only service takes only what it archives; set \
                           ARCHIVE_READ_ONLY=false, or use ARCHIVE_WHITELIST instead";
            wrong.push(("REPOSITORY_WHITELIST and ARCHIVE_READ_ONLY".to_owned(), message.to_owned()));
        }
        wrong
    }

    fn is_archive(&self) -> bool {
        self.archive_all || !self.archive_whitelist.is_empty() || !self.archive_services.is_empty()
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only.unwrap_or(self.is_archive())
    }

    /// The lists.
    pub(super) fn lists(self) -> Arc<Lists> {
        let read_only = self.is_read_only();
        let archive = if self.archive_all {
            Archive::Everything
        } else if !self.archive_whitelist.is_empty() {
            Archive::Listed(self.archive_whitelist)
        } else if !self.archive_services.is_empty() {
            Archive::Services(self.archive_services)
        } else {
            Archive::Nothing
        };
        let wanted = (!self.whitelist.is_empty()).then_some(self.whitelist);
        Arc::new(Lists { wanted, banned: self.blacklist, unwanted: self.unwanted, archive, read_only })
    }
}

/// The relays of the services that are archived: there their repositories are heard of.
pub(crate) fn relays_of(lists: &Lists) -> Vec<RelayUrl> {
    let Archive::Services(services) = &lists.archive else { return Vec::new() };
    let relay = |service: &Service| {
        let (domain, base) = (service.domain(), service.base());
        let scheme = if super::is_public(&domain) { "wss" } else { "ws" };
        RelayUrl::parse(&format!("{scheme}://{domain}{base}"))
    };
    services.iter().filter_map(relay).collect()
}
