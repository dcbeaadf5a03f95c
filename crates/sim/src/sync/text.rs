//! Facts and wishes in one line each, for people.

use grasp_core::nostr::Filter;
use grasp_core::sync::io::{Heard, Input, Output, Restored, Row, Say};

use super::corpus::corpus;
use super::world::{Happening, World};

/// What the machine is told.
#[must_use]
pub fn input(input: &Input) -> String {
    match input {
        Input::Restored(Restored::Peer(peer)) => {
            format!("restored peer {}: {:?} {:?}", peer.url, peer.covered, peer.health)
        }
        Input::Restored(Restored::Refused(row)) => format!("restored refused {}", short(&row.id.to_string())),
        Input::Interest(name, followed) => {
            let each = followed.iter().map(|it| format!("{:?} seq {} {:?}", it.place, it.seq, it.relays));
            format!("interest {}: {}", name.as_str(), each.collect::<Vec<_>>().join("; "))
        }
        Input::Roots(repo, roots) => format!("roots of {}: {}", repo.identifier.as_str(), roots.len()),
        Input::Served(arrived) => {
            format!("served {} kind {} seq {}", short(&arrived.id.to_string()), arrived.kind, arrived.seq)
        }
        Input::Up(session, terms) => format!("up {}: {terms:?}", session.0),
        Input::Heard(session, heard) => format!("{} heard {}", session.0, self::heard(heard)),
        Input::Ids(ask, ids) => format!("ids {}: {} items", ask.0, ids.items.len()),
        Input::Missing(ask, ids) => format!("missing {}: {}", ask.0, ids.len()),
        other => format!("{other:?}"),
    }
}

fn heard(heard: &Heard) -> String {
    match heard {
        Heard::Event(sub, event, standing) => {
            format!("EVENT {} #{} kind {} {standing:?}", sub.0, short(&event.id.to_string()), event.kind)
        }
        Heard::NegMsg(sub, message) => format!("NEG-MSG {} ({} bytes)", sub.0, message.len()),
        other => format!("{other:?}"),
    }
}

/// What the machine wants.
#[must_use]
pub fn output(output: &Output) -> String {
    match output {
        Output::Dial(session, url) => format!("dial {} {url}", session.0),
        Output::HangUp(session) => format!("hang up {}", session.0),
        Output::Say(session, say) => format!("{} say {}", session.0, self::say(say)),
        Output::AskRoots(repo) => format!("ask roots of {}", repo.identifier.as_str()),
        Output::AskIds(ask, filter) => format!("ask ids {} {}", ask.0, self::filter(filter)),
        Output::AskMissing(ask, ids) => format!("ask missing {} of {}", ask.0, ids.len()),
        Output::Submit(submission) => {
            let id = submission.event.id;
            let ix = corpus().ix(&id);
            format!("submit {} #{} ix {ix:?} via {:?}", submission.ticket.0, short(&id.to_string()), submission.via)
        }
        Output::Release(session) => format!("release {}", session.0),
        Output::Remember(Row::Peer(peer)) => format!("remember {}: {:?} {:?}", peer.url, peer.covered, peer.health),
        Output::Remember(Row::Refused(row)) => format!("remember refused {}", short(&row.id.to_string())),
        Output::Forget(key) => format!("forget {key:?}"),
        Output::Note(note) => format!("note {note:?}"),
    }
}

/// What is said to a relay.
#[must_use]
pub fn say(say: &Say) -> String {
    match say {
        Say::Req(sub, filters) => {
            format!("REQ {} {}", sub.0, filters.iter().map(filter).collect::<Vec<_>>().join(" "))
        }
        Say::NegOpen(sub, one, message) => format!("NEG-OPEN {} {} ({} bytes)", sub.0, filter(one), message.len()),
        Say::NegMsg(sub, message) => format!("NEG-MSG {} ({} bytes)", sub.0, message.len()),
        other => format!("{other:?}"),
    }
}

/// A filter; of long lists only how long they are.
#[must_use]
pub fn filter(filter: &Filter) -> String {
    let mut parts = Vec::new();
    let count = |name: &str, len: usize| format!("{name}×{len}");
    parts.extend(filter.ids.as_ref().map(|ids| count("ids", ids.len())));
    parts.extend(filter.authors.as_ref().map(|authors| count("authors", authors.len())));
    parts.extend(filter.kinds.as_ref().map(|kinds| format!("kinds{kinds:?}")));
    parts.extend(filter.tags.iter().map(|(letter, values)| count(&format!("#{}", char::from(*letter)), values.len())));
    parts.extend(filter.since.map(|since| format!("since {since}")));
    parts.extend(filter.until.map(|until| format!("until {until}")));
    parts.extend(filter.limit.map(|limit| format!("limit {limit}")));
    format!("{{{}}}", parts.join(", "))
}

fn short(hex: &str) -> &str {
    &hex[..hex.len().min(8)]
}

impl Happening {
    /// A number for the kind of it.
    pub(super) fn tag(&self) -> u64 {
        match self {
            Self::Alarm(node, _, which) => 1 + (*node as u64 + 8 * *which as u64) * 32,
            Self::Arrives(conn) => 2 + conn.0 as u64 * 32,
            Self::Reaches(conn, _) => 3 + conn.0 as u64 * 32,
            Self::Looks(conn, _) => 4 + conn.0 as u64 * 32,
            Self::Left(conn, _) => 5 + conn.0 as u64 * 32,
            Self::Dialled(node, ..) => 6 + *node as u64 * 32,
            Self::Checked(_, _, offer) => 7 + offer.submission.ticket.0 * 32,
            Self::Written(node, _) => 8 + *node as u64 * 32,
            Self::Saved(node, _) => 9 + *node as u64 * 32,
            Self::Answers(node, ..) => 10 + *node as u64 * 32,
            Self::Published(relay, ix) => 11 + (*relay as u64 * 4_096 + u64::from(*ix)) * 32,
            Self::Offered(node, ix) => 12 + (*node as u64 * 4_096 + u64::from(*ix)) * 32,
            Self::DataComes(node, ix) => 13 + (*node as u64 * 4_096 + u64::from(*ix)) * 32,
            Self::Breaks(conn, _) => 14 + conn.0 as u64 * 32,
            Self::Fault(_) => 15,
        }
    }
}

impl World {
    /// Writes down what happens, where it is not said by what a node is told.
    pub(super) fn describe(&mut self, what: &Happening) {
        let line = match what {
            Happening::Published(relay, ix) => {
                let event = corpus().event(*ix);
                format!("relay {relay} gets #{} ix {ix} kind {}", short(&event.id.to_string()), event.kind)
            }
            Happening::Offered(node, ix) => format!("a client offers ix {ix} to node {node}"),
            Happening::DataComes(node, ix) => format!("git data of ix {ix} comes to node {node}"),
            Happening::Fault(fault) if !matches!(**fault, super::fault_injection::Fault::Pongs(_)) => {
                format!("fault {fault:?}")
            }
            _ => return,
        };
        self.trace.say(self.now, || line);
    }
}
