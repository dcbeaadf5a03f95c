//! Order of verification, order within a batch, and limits of the event queue.

use grasp_core::nostr::rejection::Rejection;
use grasp_core::nostr::{EventId, SignedEvent, kinds};
use grasp_core::sync::io::{SyncRowKey, SyncSource, SyncSubmission, SyncSubmissionId};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_sim::signer::Author;
use grasp_sim::test_server::default_policy;

use super::*;
use crate::writer::policy::CurrentPolicy;
use crate::writer::submission::Submitter;

fn from_client(event: &SignedEvent) -> QueuedEvent {
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a permit");
    QueuedEvent::from_client(event.json().to_owned(), Box::new(|_, _| {}), (Arc::new([]), None), permit)
}

fn from_relay(id: u64, event: &SignedEvent) -> QueuedEvent {
    from_relay_with(id, event, Box::new(()))
}

fn from_relay_with(id: u64, event: &SignedEvent, permit: Box<dyn Send>) -> QueuedEvent {
    let submission = SyncSubmission {
        id: SyncSubmissionId(id),
        event: Arc::new(event.event().clone()),
        session: None,
        relay: RelayUrl::parse("wss://relay.example").expect("a URL"),
        source: SyncSource::Live,
    };
    QueuedEvent::from_relay(submission, permit)
}

fn notes(author: u8, count: u64) -> Vec<Arc<SignedEvent>> {
    (0..count).map(|time| Author::new(author).note(time, &[], "")).collect()
}

/// Closes the queue and verifies all events in it.
fn finish(queue: &EventQueue) {
    queue.close();
    queue.run_verifier(&CurrentPolicy::new(default_policy()), Clock::start());
}

fn next_batch(queue: &EventQueue) -> WriterBatch {
    queue.next_batch(None, None, false).expect("a batch")
}

fn ids(events: &[CheckedEvent]) -> Vec<EventId> {
    events.iter().map(|checked| checked.result.as_ref().map_or(EventId([0; 32]), |event| event.id)).collect()
}

fn count_from_relays(events: &[CheckedEvent]) -> usize {
    events.iter().filter(|checked| matches!(checked.submitter, Submitter::Relay { .. })).count()
}

#[test]
fn batch_has_client_events_in_order_then_relay_events_by_dependency() {
    let queue = EventQueue::new();
    let author = Author::new(1);
    let event = |kind, time| author.sign(kind, time, &[], "");
    let from_clients = [event(1, 1), event(kinds::STATE, 2), event(kinds::ANNOUNCEMENT, 3), event(1, 4)];
    let from_relays = [
        event(1_111, 10),
        event(kinds::ISSUE, 11),
        event(kinds::STATE, 12),
        event(kinds::PULL_REQUEST_UPDATE, 13),
        event(kinds::ANNOUNCEMENT, 14),
        event(kinds::PATCH, 15),
        event(kinds::STATE, 16),
        event(kinds::PULL_REQUEST, 17),
        event(kinds::ANNOUNCEMENT, 18),
        event(kinds::DELETION, 19),
    ];
    for (id, event) in from_relays.iter().enumerate() {
        queue.push(from_relay(id as u64, event));
    }
    for event in &from_clients {
        queue.push(from_client(event));
    }
    finish(&queue);
    let batch = next_batch(&queue);
    let relays = [4, 8, 2, 6, 1, 5, 7, 0, 3, 9].map(|index: usize| from_relays[index].id);
    let expected: Vec<EventId> = from_clients.iter().map(|event| event.id).chain(relays).collect();
    assert_eq!(ids(&batch.events), expected);
    assert!(queue.next_batch(None, None, false).is_none());
}

#[test]
fn client_events_are_verified_first() {
    let queue = EventQueue::new();
    let events = notes(1, 2 * CLAIM_EVENTS as u64);
    for event in &events {
        queue.push(from_relay(0, event));
    }
    for event in &events[..CLAIM_EVENTS + 1] {
        queue.push(from_client(event));
    }
    let claims: Vec<(usize, bool)> = (0..4)
        .map(|_| queue.claim().map(|(claimed, are_from_relays)| (claimed.len(), are_from_relays)).expect("a claim"))
        .collect();
    assert_eq!(claims, [(CLAIM_EVENTS, false), (1, false), (CLAIM_EVENTS, true), (CLAIM_EVENTS, true)]);
}

#[test]
fn relay_events_get_half_of_a_batch_while_client_events_are_ready() {
    let queue = EventQueue::new();
    let half = limits::MAX_BATCH_EVENTS / 2;
    let event = Author::new(1).note(1, &[], "");
    for id in 0..half as u64 + 10 {
        queue.push(from_relay(id, &event));
    }
    for event in &notes(2, 5) {
        queue.push(from_client(event));
    }
    finish(&queue);
    let first = next_batch(&queue).events;
    assert_eq!((first.len(), count_from_relays(&first)), (half + 5, half));
    let second = next_batch(&queue).events;
    assert_eq!((second.len(), count_from_relays(&second)), (10, 10));
    assert!(queue.next_batch(None, None, false).is_none());
}

#[test]
fn relay_events_get_half_of_the_bytes_and_client_events_the_rest() {
    let queue = EventQueue::new();
    let large = "x".repeat(200_000);
    let event = Author::new(1).note(1, &[], &large);
    for id in 0..60 {
        queue.push(from_relay(id, &event));
        queue.push(from_client(&event));
    }
    finish(&queue);
    let first = next_batch(&queue).events;
    let from_relays = count_from_relays(&first);
    assert_eq!(from_relays, limits::MAX_BATCH_BYTES / 2 / event.json().len() + 1);
    assert!(first.len() - from_relays >= from_relays - 2, "{from_relays} of {}", first.len());
    let bytes: usize = first.iter().map(|checked| checked.bytes).sum();
    assert!(bytes <= limits::MAX_BATCH_BYTES + event.json().len());
}

#[test]
fn relay_events_are_verified_and_keep_their_permit_until_they_are_dropped() {
    let queue = EventQueue::new();
    let permit = Arc::new(());
    let good = Author::new(1).note(1, &[], "");
    let mut forged = good.event().clone();
    forged.sig[5] ^= 1;
    let future = Author::new(1).note(u64::MAX / 2, &[], "");
    for (id, event) in [&good, &Arc::new(SignedEvent::from_trusted(forged)), &future].into_iter().enumerate() {
        queue.push(from_relay_with(id as u64, event, Box::new(permit.clone())));
    }
    assert_eq!(Arc::strong_count(&permit), 4);
    finish(&queue);
    let events = next_batch(&queue).events;
    let result = |id: u64| {
        let has_id = |checked: &&CheckedEvent| match checked.submitter {
            Submitter::Relay { submission, .. } => submission.0 == id,
            _ => false,
        };
        &events.iter().find(has_id).expect("in the batch").result
    };
    assert!(result(0).as_ref().is_ok_and(|event| event.id == good.id));
    assert!(result(1).as_ref().is_err_and(|(_, reason)| matches!(reason, Rejection::Forged(_))));
    assert!(result(2).as_ref().is_err_and(|(id, reason)| *reason == Rejection::InFuture && *id == Some(future.id)));
    assert_eq!(Arc::strong_count(&permit), 4, "permits are held until the results are sent");
    drop(events);
    assert_eq!(Arc::strong_count(&permit), 1);
}

fn save_row(nth: u8) -> WriterCommand {
    WriterCommand::SaveSyncRows(Vec::new(), vec![SyncRowKey::Rejected(EventId([nth; 32]))])
}

fn count_row_commands(batch: &WriterBatch) -> usize {
    batch.commands.iter().filter(|command| matches!(command, WriterCommand::SaveSyncRows(..))).count()
}

#[test]
fn row_commands_are_delayed_for_a_bounded_time() {
    let queue = EventQueue::new();
    let begin = Instant::now();
    queue.send(save_row(1));
    queue.send(save_row(2));
    let far = Some(Instant::now() + 60 * MAX_COMMAND_DELAY);
    let batch = queue.next_batch(far, None, false).expect("a batch");
    assert_eq!((count_row_commands(&batch), batch.events.len()), (2, 0));
    assert!((MAX_COMMAND_DELAY..30 * MAX_COMMAND_DELAY).contains(&begin.elapsed()), "{:?}", begin.elapsed());

    // Any other command takes them along.
    queue.send(save_row(3));
    drop(queue.flush());
    let begin = Instant::now();
    let batch = queue.next_batch(far, None, false).expect("a batch");
    assert_eq!((count_row_commands(&batch), batch.commands.len()), (1, 2));
    queue.send(save_row(4));
    let early = Some(Instant::now());
    assert_eq!(count_row_commands(&queue.next_batch(early, None, false).expect("a batch")), 1);
    assert!(begin.elapsed() < MAX_COMMAND_DELAY);
}

#[test]
fn row_commands_are_not_lost_when_the_queue_is_closed() {
    let queue = EventQueue::new();
    queue.send(save_row(1));
    queue.close();
    assert_eq!(count_row_commands(&next_batch(&queue)), 1);
    assert!(queue.next_batch(None, None, false).is_none());
}

/// A sender that waits for an answer is not left waiting when the writer has ended.
#[test]
fn commands_are_dropped_after_the_end_of_the_writer() {
    let queue = EventQueue::new();
    let before = queue.flush();
    queue.end();
    for answer in [before, queue.flush()] {
        assert!(answer.blocking_recv().is_err());
    }
}

/// An event that many relays deliver is reported once.
#[test]
fn seen_events_are_reported_once_per_batch() {
    let queue = EventQueue::new();
    for id in [1, 2, 1] {
        queue.report_seen(EventId([id; 32]));
    }
    let batch = queue.next_batch(None, None, false).expect("a batch");
    let [WriterCommand::HeldEventsSeen(ids)] = batch.commands.as_slice() else { panic!("one command") };
    assert_eq!(*ids, [EventId([1; 32]), EventId([2; 32])]);
}
