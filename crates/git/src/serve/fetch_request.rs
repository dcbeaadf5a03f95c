//! Parses a fetch request and writes it again in a canonical form.
//!
//! Equal requests become equal bytes, in whatever order a client sends the lines and whatever agent it names. The hash
//! of these bytes and the repository's generation are the whole key of the pack cache. Because git receives the
//! canonical form, a request cannot contain anything that git interprets and the key ignores.

use std::collections::BTreeSet;

use grasp_core::nostr::hex;
use sha2::{Digest, Sha256};

use super::lines::{RequestLine, RequestLines};
use super::{FetchCommand, FetchKey, FetchResponseKind, UploadPackRequest, UploadPackRequestError};
use crate::pktline;

/// Largest filter: the longest in use has a handful of words, and git parses nested ones recursively.
const MAX_FILTER_BYTES: usize = 1_024;

/// Capabilities that a v0 client may request after its first want and that change the response. Others do not change
/// it.
const V0_CAPABILITIES: [&str; 11] = [
    "multi_ack",
    "multi_ack_detailed",
    "no-done",
    "thin-pack",
    "side-band",
    "side-band-64k",
    "ofs-delta",
    "deepen-relative",
    "no-progress",
    "include-tag",
    "filter",
];

/// The arguments of a v2 fetch that consist of a single word.
const V2_FLAGS: [&str; 7] =
    ["thin-pack", "ofs-delta", "no-progress", "include-tag", "done", "wait-for-done", "deepen-relative"];

/// How a v0 request ends.
#[derive(Clone, Copy)]
enum V0End {
    /// After the wants: the client only requests the boundary of its shallow history.
    ShallowProbe,
    /// With a flush: the client has more haves if these are not enough.
    MoreHaves,
    /// With `done`: the client wants the pack.
    Done,
}

/// A fetch that is being parsed.
#[derive(Default)]
pub(super) struct FetchParser<'a> {
    wants: BTreeSet<&'a str>,
    shallows: BTreeSet<&'a str>,
    haves: Vec<&'a str>,
    /// Capabilities of v0, or flags of v2.
    flags: BTreeSet<&'a str>,
    /// Lines that limit what is sent: `deepen…` and `filter`.
    limits: BTreeSet<&'a str>,
}

impl<'a> FetchParser<'a> {
    pub(super) fn parse_v0(lines: &mut RequestLines<'a>) -> Result<UploadPackRequest, UploadPackRequestError> {
        let mut fetch = Self::default();
        let mut is_first = true;
        loop {
            match lines.next()? {
                RequestLine::Flush => break,
                RequestLine::End if is_first => break,
                RequestLine::Text(text) => fetch.add_v0_line(text)?,
                RequestLine::Delimiter => return Err(UploadPackRequestError::UnexpectedPacket),
                RequestLine::End => return Err(UploadPackRequestError::Truncated),
            }
            is_first = false;
        }
        if fetch.wants.is_empty() {
            return Ok(UploadPackRequest::Empty);
        }
        // Stateless: git responds at the first flush and does not read what follows.
        let end = loop {
            match lines.next()? {
                RequestLine::Flush => break V0End::MoreHaves,
                RequestLine::Text("done") => break V0End::Done,
                RequestLine::Text(text) => fetch.haves.push(parse_oid(text, "have ")?),
                RequestLine::Delimiter => return Err(UploadPackRequestError::UnexpectedPacket),
                RequestLine::End if fetch.haves.is_empty() => break V0End::ShallowProbe,
                RequestLine::End => return Err(UploadPackRequestError::Truncated),
            }
        };
        Ok(fetch.write_v0(end))
    }

    /// Adds a line of the first section of v0.
    fn add_v0_line(&mut self, text: &'a str) -> Result<(), UploadPackRequestError> {
        let Some(want) = text.strip_prefix("want ") else {
            if text.starts_with("filter ") && !self.flags.contains("filter") {
                return Err(UploadPackRequestError::unexpected_line(text));
            }
            return self.add_limit(text);
        };
        let (want, capabilities) = want.split_once(' ').unwrap_or((want, ""));
        self.wants.insert(parse_oid(want, "")?);
        // For git a capability is requested even if it has a value.
        let names = capabilities.split(' ').map(|word| word.split('=').next().unwrap_or_default());
        self.flags.extend(names.filter(|name| V0_CAPABILITIES.contains(name)));
        Ok(())
    }

    /// Writes the request in v0. The order of haves is kept: the response names the last one that both sides have.
    fn write_v0(self, end: V0End) -> UploadPackRequest {
        let capabilities = self.flags.iter().map(|flag| format!(" {flag}")).collect::<String>();
        let mut body = Vec::new();
        for (index, want) in self.wants.iter().enumerate() {
            pktline::push_line(&mut body, &format!("want {want}{}", if index == 0 { &capabilities } else { "" }));
        }
        self.write_limits(&mut body);
        pktline::push_flush(&mut body);
        self.haves.iter().for_each(|have| pktline::push_line(&mut body, &format!("have {have}")));
        match end {
            V0End::ShallowProbe => {}
            V0End::MoreHaves => pktline::push_flush(&mut body),
            V0End::Done => pktline::push_line(&mut body, "done"),
        }
        let is_done = matches!(end, V0End::Done);
        self.finish(body, if is_done { FetchResponseKind::Pack } else { FetchResponseKind::Negotiation })
    }

    pub(super) fn parse_v2(arguments: &[&'a str]) -> Result<UploadPackRequest, UploadPackRequestError> {
        let mut fetch = Self::default();
        for argument in arguments {
            if V2_FLAGS.contains(argument) {
                fetch.flags.insert(argument);
            } else if argument.starts_with("want ") {
                fetch.wants.insert(parse_oid(argument, "want ")?);
            } else if argument.starts_with("have ") {
                fetch.haves.push(parse_oid(argument, "have ")?);
            } else {
                fetch.add_limit(argument)?;
            }
        }
        if fetch.wants.is_empty() && !fetch.flags.contains("wait-for-done") {
            return Ok(UploadPackRequest::Empty);
        }
        Ok(fetch.write_v2())
    }

    /// Writes the request in v2, where haves are a set.
    fn write_v2(mut self) -> UploadPackRequest {
        self.haves.sort_unstable();
        self.haves.dedup();
        let mut body = Vec::new();
        pktline::push_line(&mut body, "command=fetch");
        pktline::push_line(&mut body, "object-format=sha1");
        pktline::push_delimiter(&mut body);
        self.flags.iter().for_each(|flag| pktline::push_line(&mut body, flag));
        self.wants.iter().for_each(|want| pktline::push_line(&mut body, &format!("want {want}")));
        self.write_limits(&mut body);
        self.haves.iter().for_each(|have| pktline::push_line(&mut body, &format!("have {have}")));
        pktline::push_flush(&mut body);
        let has_pack = self.flags.contains("done") || self.haves.is_empty();
        self.finish(body, if has_pack { FetchResponseKind::Pack } else { FetchResponseKind::Negotiation })
    }

    /// Adds a line that limits what is sent. Where git would use the last of several lines, only one is accepted.
    fn add_limit(&mut self, text: &'a str) -> Result<(), UploadPackRequestError> {
        let unexpected = || UploadPackRequestError::unexpected_line(text);
        let (name, value) = text.split_once(' ').ok_or_else(unexpected)?;
        // Without leading zeros: git would read an octal number.
        let number = || value.parse::<u64>().ok().filter(|number| number.to_string() == value);
        let is_first = || !self.limits.iter().any(|line| line.split_once(' ').is_some_and(|(other, _)| other == name));
        let is_valid = match name {
            "shallow" => {
                self.shallows.insert(parse_oid(value, "")?);
                return Ok(());
            }
            "deepen" => number().is_some_and(|depth| (1..=i32::MAX as u64).contains(&depth)) && is_first(),
            "deepen-since" => number().is_some_and(|time| time <= i64::MAX as u64) && is_first(),
            "deepen-not" => !value.is_empty(),
            "filter" => (1..=MAX_FILTER_BYTES).contains(&value.len()) && is_first(),
            _ => false,
        };
        if !is_valid {
            return Err(unexpected());
        }
        self.limits.insert(text);
        Ok(())
    }

    fn write_limits(&self, body: &mut Vec<u8>) {
        self.shallows.iter().for_each(|oid| pktline::push_line(body, &format!("shallow {oid}")));
        self.limits.iter().for_each(|line| pktline::push_line(body, line));
    }

    fn finish(self, body: Vec<u8>, response_kind: FetchResponseKind) -> UploadPackRequest {
        let key = FetchKey(Sha256::digest(&body).into());
        let wants = self.wants.into_iter().map(str::to_owned).collect();
        UploadPackRequest::Fetch(FetchCommand { key, wants, response_kind, body })
    }
}

/// Returns the object id after a prefix.
fn parse_oid<'a>(text: &'a str, prefix: &str) -> Result<&'a str, UploadPackRequestError> {
    let oid = text.strip_prefix(prefix).filter(|oid| hex::decode::<20>(oid).is_some());
    oid.ok_or_else(|| UploadPackRequestError::unexpected_line(text))
}
