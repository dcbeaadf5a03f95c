//! A wish for objects, read and written anew.
//!
//! Equal questions become equal bytes, however a client orders them and calls itself. The hash of those bytes is all that
//! a cache needs beside the repository's own version, and no trick with what git overlooks gives two answers one key.

use std::collections::BTreeSet;

use grasp_core::nostr::hex;
use sha2::{Digest, Sha256};

use super::lines::{Line, Lines};
use super::{Answer, BadRequest, Fetch, Key, Request};
use crate::pktline;

/// Bytes of a filter: the longest that people type is a handful of words, and git reads nested ones recursively.
const MAX_FILTER_BYTES: usize = 1_024;

/// What a v0 client may ask for behind its first want and what changes the answer. Other words do not.
const WORDS: [&str; 11] = [
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

/// The single words among the arguments of a v2 fetch.
const FLAGS: [&str; 7] =
    ["thin-pack", "ofs-delta", "no-progress", "include-tag", "done", "wait-for-done", "deepen-relative"];

/// How a v0 client ends its turn.
#[derive(Clone, Copy)]
enum Turn {
    /// It only wants to know where its history would be cut.
    Probe,
    /// It has more haves if these do not suffice.
    Pause,
    /// It wants the pack.
    Done,
}

/// A fetch as it is read.
#[derive(Default)]
pub(super) struct Question<'a> {
    wants: BTreeSet<&'a str>,
    shallows: BTreeSet<&'a str>,
    haves: Vec<&'a str>,
    /// Single words.
    words: BTreeSet<&'a str>,
    /// Lines that limit what is sent.
    limits: BTreeSet<&'a str>,
}

impl<'a> Question<'a> {
    pub(super) fn read_first(lines: &mut Lines<'a>) -> Result<Request, BadRequest> {
        let mut question = Self::default();
        let mut begun = false;
        loop {
            match lines.next()? {
                Line::Flush => break,
                Line::End if !begun => break,
                Line::Text(text) => question.first(text)?,
                Line::Delimiter => return Err(BadRequest::Misplaced),
                Line::End => return Err(BadRequest::Truncated),
            }
            begun = true;
        }
        if question.wants.is_empty() {
            return Ok(Request::Nothing);
        }
        // Stateless: git answers at the first flush, and hears nothing of what follows.
        let turn = loop {
            match lines.next()? {
                Line::Flush => break Turn::Pause,
                Line::Text("done") => break Turn::Done,
                Line::Text(text) => question.haves.push(oid(text, "have ")?),
                Line::Delimiter => return Err(BadRequest::Misplaced),
                Line::End if question.haves.is_empty() => break Turn::Probe,
                Line::End => return Err(BadRequest::Truncated),
            }
        };
        Ok(question.write_first(turn))
    }

    /// A line of the first section of v0.
    fn first(&mut self, text: &'a str) -> Result<(), BadRequest> {
        let Some(want) = text.strip_prefix("want ") else {
            if text.starts_with("filter ") && !self.words.contains("filter") {
                return Err(BadRequest::line(text));
            }
            return self.limit(text);
        };
        let (want, asked) = want.split_once(' ').unwrap_or((want, ""));
        self.wants.insert(oid(want, "")?);
        // git takes a word for asked for even if it has a value.
        let names = asked.split(' ').map(|word| word.split('=').next().unwrap_or_default());
        self.words.extend(names.filter(|name| WORDS.contains(name)));
        Ok(())
    }

    /// Written in v0. The order of haves stays: the answer names the last that both sides have.
    fn write_first(self, turn: Turn) -> Request {
        let words = self.words.iter().map(|word| format!(" {word}")).collect::<String>();
        let mut body = Vec::new();
        for (place, want) in self.wants.iter().enumerate() {
            pktline::push_line(&mut body, &format!("want {want}{}", if place == 0 { &words } else { "" }));
        }
        self.write_limits(&mut body);
        pktline::push_flush(&mut body);
        self.haves.iter().for_each(|have| pktline::push_line(&mut body, &format!("have {have}")));
        match turn {
            Turn::Probe => {}
            Turn::Pause => pktline::push_flush(&mut body),
            Turn::Done => pktline::push_line(&mut body, "done"),
        }
        self.finish(body, if matches!(turn, Turn::Done) { Answer::Pack } else { Answer::Negotiation })
    }

    pub(super) fn read_arguments(arguments: &[&'a str]) -> Result<Request, BadRequest> {
        let mut question = Self::default();
        for argument in arguments {
            if FLAGS.contains(argument) {
                question.words.insert(argument);
            } else if argument.starts_with("want ") {
                question.wants.insert(oid(argument, "want ")?);
            } else if argument.starts_with("have ") {
                question.haves.push(oid(argument, "have ")?);
            } else {
                question.limit(argument)?;
            }
        }
        if question.wants.is_empty() && !question.words.contains("wait-for-done") {
            return Ok(Request::Nothing);
        }
        Ok(question.write_arguments())
    }

    /// Written in v2, where haves are a set.
    fn write_arguments(mut self) -> Request {
        self.haves.sort_unstable();
        self.haves.dedup();
        let mut body = Vec::new();
        pktline::push_line(&mut body, "command=fetch");
        pktline::push_line(&mut body, "object-format=sha1");
        pktline::push_delimiter(&mut body);
        self.words.iter().for_each(|word| pktline::push_line(&mut body, word));
        self.wants.iter().for_each(|want| pktline::push_line(&mut body, &format!("want {want}")));
        self.write_limits(&mut body);
        self.haves.iter().for_each(|have| pktline::push_line(&mut body, &format!("have {have}")));
        pktline::push_flush(&mut body);
        let sure = self.words.contains("done") || self.haves.is_empty();
        self.finish(body, if sure { Answer::Pack } else { Answer::Negotiation })
    }

    /// A line that limits what is sent. Where git would let the last of several count, one is all that may be.
    fn limit(&mut self, text: &'a str) -> Result<(), BadRequest> {
        let bad = || BadRequest::line(text);
        let (name, value) = text.split_once(' ').ok_or_else(bad)?;
        // Digits only: git would read more into a zero before them.
        let number = || value.parse::<u64>().ok().filter(|number| number.to_string() == value);
        let once = || !self.limits.iter().any(|line| line.split_once(' ').is_some_and(|(other, _)| other == name));
        let fits = match name {
            "shallow" => {
                self.shallows.insert(oid(value, "")?);
                return Ok(());
            }
            "deepen" => number().is_some_and(|depth| (1..=i32::MAX as u64).contains(&depth)) && once(),
            "deepen-since" => number().is_some_and(|time| time <= i64::MAX as u64) && once(),
            "deepen-not" => !value.is_empty(),
            "filter" => (1..=MAX_FILTER_BYTES).contains(&value.len()) && once(),
            _ => false,
        };
        if fits {
            self.limits.insert(text);
        }
        if fits { Ok(()) } else { Err(bad()) }
    }

    fn write_limits(&self, body: &mut Vec<u8>) {
        self.shallows.iter().for_each(|oid| pktline::push_line(body, &format!("shallow {oid}")));
        self.limits.iter().for_each(|line| pktline::push_line(body, line));
    }

    fn finish(self, body: Vec<u8>, answer: Answer) -> Request {
        let key = Key(Sha256::digest(&body).into());
        Request::Fetch(Fetch { key, wants: self.wants.into_iter().map(str::to_owned).collect(), answer, body })
    }
}

/// The object id behind a word.
fn oid<'a>(text: &'a str, word: &str) -> Result<&'a str, BadRequest> {
    let oid = text.strip_prefix(word).filter(|oid| hex::decode::<20>(oid).is_some());
    oid.ok_or_else(|| BadRequest::line(text))
}
