//! Inputs, outputs and steps as lines of the trace.

use grasp_core::nostr::Filter;
use grasp_core::sync::io::{IncomingMessage, OutgoingMessage, RestoredRow, SyncInput, SyncOutput, SyncRow};

use super::corpus::corpus;
use super::world::{SyncStep, SyncWorld};

/// Describes an input of the sync machine.
pub(super) fn describe_input(input: &SyncInput) -> String {
    match input {
        SyncInput::Restored(RestoredRow::Relay(relay)) => {
            format!("restored relay {}: {:?} {:?}", relay.url, relay.covered, relay.health)
        }
        SyncInput::Restored(RestoredRow::Rejected(row)) => {
            format!("restored rejected event {}", short_id(&row.id.to_string()))
        }
        SyncInput::RepoNeeds(name, needs) => {
            let repos = needs.iter().map(|it| format!("{:?} seq {} {:?}", it.status, it.seq, it.relays));
            format!("repo needs {}: {}", name.as_str(), repos.collect::<Vec<_>>().join("; "))
        }
        SyncInput::RootEvents(repo, roots, descendants) => {
            let (roots, events) = (roots.len(), descendants.events.len());
            format!("root events of {}: {roots}, descendants: {events}", repo.identifier.as_str())
        }
        SyncInput::Served(event) => {
            format!("served {} kind {} seq {}", short_id(&event.id.to_string()), event.kind, event.seq)
        }
        SyncInput::Connected(session, nip11) => format!("connected {}: {nip11:?}", session.0),
        SyncInput::Message(session, message) => format!("{} receives {}", session.0, describe_incoming(message)),
        SyncInput::LocalIds(query_id, ids) => format!("local ids {}: {} items", query_id.0, ids.items.len()),
        SyncInput::MissingIds(query_id, ids) => format!("missing ids {}: {}", query_id.0, ids.len()),
        other => format!("{other:?}"),
    }
}

fn describe_incoming(message: &IncomingMessage) -> String {
    match message {
        IncomingMessage::Event(sub, event, presence) => {
            format!("EVENT {} #{} kind {} {presence:?}", sub.0, short_id(&event.id.to_string()), event.kind)
        }
        IncomingMessage::NegMsg(sub, message) => format!("NEG-MSG {} ({} bytes)", sub.0, message.len()),
        other => format!("{other:?}"),
    }
}

/// Describes an output of the sync machine.
pub fn describe_output(output: &SyncOutput) -> String {
    match output {
        SyncOutput::Dial { session, url, .. } => format!("dial {} {url}", session.0),
        SyncOutput::SetEventRate(session, rate) => format!("{} reads {rate:?}", session.0),
        SyncOutput::Disconnect(session) => format!("disconnect {}", session.0),
        SyncOutput::Send(session, message) => format!("{} sends {}", session.0, describe_outgoing(message)),
        SyncOutput::QueryRootEvents(repo) => format!("query root events of {}", repo.identifier.as_str()),
        SyncOutput::QueryLocalIds(query_id, filter) => {
            format!("query local ids {} {}", query_id.0, format_filter(filter))
        }
        SyncOutput::QueryMissingIds(query_id, ids) => format!("query missing ids {} of {}", query_id.0, ids.len()),
        SyncOutput::QueryServedEvents(query_id, ids) => format!("query served events {} of {}", query_id.0, ids.len()),
        SyncOutput::Submit(submission) => {
            let id = submission.event.id;
            let index = corpus().index_of(&id);
            format!(
                "submit {} #{} event {index:?} from {:?}",
                submission.id.0,
                short_id(&id.to_string()),
                submission.source
            )
        }
        SyncOutput::HeldEventSeen(id) => format!("held event {id} seen"),
        SyncOutput::ReleasePermit(session) => format!("release permit {}", session.0),
        SyncOutput::StoreRow(SyncRow::Relay(relay)) => {
            format!("store relay {}: {:?} {:?}", relay.url, relay.covered, relay.health)
        }
        SyncOutput::StoreRow(SyncRow::Rejected(row)) => {
            format!("store rejected event {}", short_id(&row.id.to_string()))
        }
        SyncOutput::DeleteRow(key) => format!("delete {key:?}"),
        SyncOutput::Note(note) => format!("note {note:?}"),
    }
}

/// Describes a message to a relay.
pub(super) fn describe_outgoing(message: &OutgoingMessage) -> String {
    match message {
        OutgoingMessage::Req(sub, filters) => {
            format!("REQ {} {}", sub.0, filters.iter().map(format_filter).collect::<Vec<_>>().join(" "))
        }
        OutgoingMessage::NegOpen(sub, filter, message) => {
            format!("NEG-OPEN {} {} ({} bytes)", sub.0, format_filter(filter), message.len())
        }
        OutgoingMessage::NegMsg(sub, message) => format!("NEG-MSG {} ({} bytes)", sub.0, message.len()),
        other => format!("{other:?}"),
    }
}

/// Formats a filter. Of long lists only the length is shown.
pub fn format_filter(filter: &Filter) -> String {
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

fn short_id(hex: &str) -> &str {
    &hex[..hex.len().min(8)]
}

impl SyncStep {
    /// Returns a number for the kind and the subject of a step, for the hash of the trace.
    pub(super) fn tag(&self) -> u64 {
        match self {
            Self::Alarm(node, _, which) => 1 + (*node as u64 + 8 * *which as u64) * 32,
            Self::FrameArrives(connection) => 2 + connection.0 as u64 * 32,
            Self::MessageArrives(connection, _) => 3 + connection.0 as u64 * 32,
            Self::RelayHandles(connection, _) => 4 + connection.0 as u64 * 32,
            Self::BytesSent(connection, _) => 5 + connection.0 as u64 * 32,
            Self::DialEnds(node, ..) => 6 + *node as u64 * 32,
            Self::Verified(_, _, pending) => 7 + pending.submission.id.0 * 32,
            Self::BatchCommitted(node, _) => 8 + *node as u64 * 32,
            Self::RowsCommitted(node, _) => 9 + *node as u64 * 32,
            Self::QueryAnswered(node, ..) => 10 + *node as u64 * 32,
            Self::Published(relay, index) => 11 + (*relay as u64 * 4_096 + u64::from(*index)) * 32,
            Self::ClientSubmits(node, index) => 12 + (*node as u64 * 4_096 + u64::from(*index)) * 32,
            Self::GitDataArrives(node, index) => 13 + (*node as u64 * 4_096 + u64::from(*index)) * 32,
            Self::ConnectionBreaks(connection, _) => 14 + connection.0 as u64 * 32,
            Self::Incident(_) => 15,
        }
    }
}

impl SyncWorld {
    /// Writes a step to the trace, unless the inputs that follow from it describe it.
    pub(super) fn describe_step(&self, step: &SyncStep) {
        if !self.sim.trace.is_printed() {
            return;
        }
        let line = match step {
            SyncStep::Published(relay, index) => {
                let event = corpus().event(*index);
                format!("relay {relay} gets #{} event {index} kind {}", short_id(&event.id.to_string()), event.kind)
            }
            SyncStep::ClientSubmits(node, index) => format!("client submits event {index} to node {node}"),
            SyncStep::GitDataArrives(node, index) => format!("git data of event {index} arrives at node {node}"),
            SyncStep::Incident(incident) if !matches!(**incident, super::incidents::Incident::Pongs(_)) => {
                format!("incident {incident:?}")
            }
            _ => return,
        };
        self.sim.trace.log(self.sim.now, || line);
    }
}
