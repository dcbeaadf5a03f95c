//! Facts and wishes in one line each, for people.

use grasp_core::nostr::Filter;
use grasp_core::sync::io::{IncomingMessage, OutgoingMessage, RestoredRow, SyncInput, SyncOutput, SyncRow};

use super::corpus::corpus;
use super::world::{Happening, World};

/// What the machine is told.
#[must_use]
pub fn input(input: &SyncInput) -> String {
    match input {
        SyncInput::Restored(RestoredRow::Relay(peer)) => {
            format!("restored peer {}: {:?} {:?}", peer.url, peer.covered, peer.health)
        }
        SyncInput::Restored(RestoredRow::Rejected(row)) => format!("restored refused {}", short(&row.id.to_string())),
        SyncInput::RepoNeeds(name, followed) => {
            let each = followed.iter().map(|it| format!("{:?} seq {} {:?}", it.status, it.seq, it.relays));
            format!("interest {}: {}", name.as_str(), each.collect::<Vec<_>>().join("; "))
        }
        SyncInput::RootEvents(repo, roots) => format!("roots of {}: {}", repo.identifier.as_str(), roots.len()),
        SyncInput::Served(arrived) => {
            format!("served {} kind {} seq {}", short(&arrived.id.to_string()), arrived.kind, arrived.seq)
        }
        SyncInput::Connected(session, nip11) => format!("up {}: {nip11:?}", session.0),
        SyncInput::Message(session, heard) => format!("{} heard {}", session.0, self::heard(heard)),
        SyncInput::LocalIds(ask, ids) => format!("ids {}: {} items", ask.0, ids.items.len()),
        SyncInput::MissingIds(ask, ids) => format!("missing {}: {}", ask.0, ids.len()),
        other => format!("{other:?}"),
    }
}

fn heard(heard: &IncomingMessage) -> String {
    match heard {
        IncomingMessage::Event(sub, event, standing) => {
            format!("EVENT {} #{} kind {} {standing:?}", sub.0, short(&event.id.to_string()), event.kind)
        }
        IncomingMessage::NegMsg(sub, message) => format!("NEG-MSG {} ({} bytes)", sub.0, message.len()),
        other => format!("{other:?}"),
    }
}

/// What the machine wants.
#[must_use]
pub fn output(output: &SyncOutput) -> String {
    match output {
        SyncOutput::Dial(session, url) => format!("dial {} {url}", session.0),
        SyncOutput::Disconnect(session) => format!("hang up {}", session.0),
        SyncOutput::Send(session, say) => format!("{} say {}", session.0, self::say(say)),
        SyncOutput::QueryRootEvents(repo) => format!("ask roots of {}", repo.identifier.as_str()),
        SyncOutput::QueryLocalIds(ask, filter) => format!("ask ids {} {}", ask.0, self::filter(filter)),
        SyncOutput::QueryMissingIds(ask, ids) => format!("ask missing {} of {}", ask.0, ids.len()),
        SyncOutput::Submit(submission) => {
            let id = submission.event.id;
            let ix = corpus().ix(&id);
            format!("submit {} #{} ix {ix:?} via {:?}", submission.id.0, short(&id.to_string()), submission.source)
        }
        SyncOutput::ReleasePermit(session) => format!("release {}", session.0),
        SyncOutput::StoreRow(SyncRow::Relay(peer)) => {
            format!("remember {}: {:?} {:?}", peer.url, peer.covered, peer.health)
        }
        SyncOutput::StoreRow(SyncRow::Rejected(row)) => format!("remember refused {}", short(&row.id.to_string())),
        SyncOutput::DeleteRow(key) => format!("forget {key:?}"),
        SyncOutput::Note(note) => format!("note {note:?}"),
    }
}

/// What is said to a relay.
#[must_use]
pub fn say(say: &OutgoingMessage) -> String {
    match say {
        OutgoingMessage::Req(sub, filters) => {
            format!("REQ {} {}", sub.0, filters.iter().map(filter).collect::<Vec<_>>().join(" "))
        }
        OutgoingMessage::NegOpen(sub, one, message) => {
            format!("NEG-OPEN {} {} ({} bytes)", sub.0, filter(one), message.len())
        }
        OutgoingMessage::NegMsg(sub, message) => format!("NEG-MSG {} ({} bytes)", sub.0, message.len()),
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
            Self::Checked(_, _, offer) => 7 + offer.submission.id.0 * 32,
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
