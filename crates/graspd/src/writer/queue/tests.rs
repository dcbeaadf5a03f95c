//! Who is checked first, who is let through when, and what may wait.

use grasp_core::nostr::rejection::Rejection;
use grasp_core::nostr::{EventId, SignedEvent, kinds};
use grasp_core::sync::io::{SyncRowKey, SyncSource, SyncSubmission, SyncSubmissionId};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_sim::signer::Author;
use grasp_sim::test_server::rules;

use super::*;
use crate::writer::policy::CurrentPolicy;
use crate::writer::submission::Submitter;

fn client(event: &SignedEvent) -> QueuedEvent {
    let place = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a place");
    QueuedEvent::of_client(event.json().to_owned(), Box::new(|_| {}), Arc::new([]), place)
}

fn relay(ticket: u64, event: &SignedEvent) -> QueuedEvent {
    relay_with(ticket, event, Box::new(()))
}

fn relay_with(ticket: u64, event: &SignedEvent, permit: Box<dyn Send>) -> QueuedEvent {
    let submission = SyncSubmission {
        id: SyncSubmissionId(ticket),
        event: Arc::new(event.event().clone()),
        session: None,
        relay: RelayUrl::parse("wss://relay.example").expect("a URL"),
        source: SyncSource::Live,
    };
    QueuedEvent::of_relay(submission, permit)
}

fn notes(author: u8, many: u64) -> Vec<Arc<SignedEvent>> {
    (0..many).map(|time| Author::new(author).note(time, &[], "")).collect()
}

/// Checks all that waits. Nothing can join afterwards.
fn finish(line: &EventQueue) {
    line.close();
    line.check(&CurrentPolicy::new(rules()), Clock::start());
}

fn ids(batch: &[CheckedEvent]) -> Vec<EventId> {
    batch.iter().map(|checked| checked.result.as_ref().map_or(EventId([0; 32]), |event| event.id)).collect()
}

fn from_relays(batch: &[CheckedEvent]) -> usize {
    batch.iter().filter(|checked| matches!(checked.from, Submitter::Relay { .. })).count()
}

#[test]
fn clients_are_let_through_in_order_and_relays_behind_them_by_what_depends_on_what() {
    let line = EventQueue::new();
    let author = Author::new(1);
    let of = |kind, time| author.sign(kind, time, &[], "");
    let sent = [of(1, 1), of(kinds::STATE, 2), of(kinds::ANNOUNCEMENT, 3), of(1, 4)];
    let heard = [
        of(1_111, 10),
        of(kinds::ISSUE, 11),
        of(kinds::STATE, 12),
        of(kinds::PULL_REQUEST_UPDATE, 13),
        of(kinds::ANNOUNCEMENT, 14),
        of(kinds::PATCH, 15),
        of(kinds::STATE, 16),
        of(kinds::PULL_REQUEST, 17),
        of(kinds::ANNOUNCEMENT, 18),
        of(kinds::DELETION, 19),
    ];
    for (nth, event) in heard.iter().enumerate() {
        line.join(relay(nth as u64, event));
    }
    for event in &sent {
        line.join(client(event));
    }
    finish(&line);
    let taken = line.take(None, None, false).expect("something");
    let relays = [4, 8, 2, 6, 1, 5, 7, 0, 3, 9].map(|nth: usize| heard[nth].id);
    let expected: Vec<EventId> = sent.iter().map(|event| event.id).chain(relays).collect();
    assert_eq!(ids(&taken.batch), expected);
    assert!(line.take(None, None, false).is_none());
}

#[test]
fn clients_offers_are_checked_first() {
    let line = EventQueue::new();
    let events = notes(1, 2 * CLAIM as u64);
    for event in &events {
        line.join(relay(0, event));
    }
    for event in &events[..CLAIM + 1] {
        line.join(client(event));
    }
    let turns: Vec<(usize, bool)> = (0..4)
        .map(|_| line.claim().map(|(claimed, of_relays)| (claimed.len(), of_relays)).expect("something"))
        .collect();
    assert_eq!(turns, [(CLAIM, false), (1, false), (CLAIM, true), (CLAIM, true)]);
}

#[test]
fn relays_have_half_a_batch_while_clients_are_ready() {
    let line = EventQueue::new();
    let half = limits::MAX_BATCH_EVENTS / 2;
    let event = Author::new(1).note(1, &[], "");
    for ticket in 0..half as u64 + 10 {
        line.join(relay(ticket, &event));
    }
    for event in &notes(2, 5) {
        line.join(client(event));
    }
    finish(&line);
    let first = line.take(None, None, false).expect("something").batch;
    assert_eq!((first.len(), from_relays(&first)), (half + 5, half));
    let second = line.take(None, None, false).expect("something").batch;
    assert_eq!((second.len(), from_relays(&second)), (10, 10));
    assert!(line.take(None, None, false).is_none());
}

#[test]
fn relays_have_half_of_the_bytes_and_clients_the_rest() {
    let line = EventQueue::new();
    let large = "x".repeat(200_000);
    let event = Author::new(1).note(1, &[], &large);
    for ticket in 0..60 {
        line.join(relay(ticket, &event));
        line.join(client(&event));
    }
    finish(&line);
    let first = line.take(None, None, false).expect("something").batch;
    let of_relays = from_relays(&first);
    assert_eq!(of_relays, limits::MAX_BATCH_BYTES / 2 / event.json().len() + 1);
    assert!(first.len() - of_relays >= of_relays - 2, "{of_relays} of {}", first.len());
    let bytes: usize = first.iter().map(|checked| checked.bytes).sum();
    assert!(bytes <= limits::MAX_BATCH_BYTES + event.json().len());
}

#[test]
fn what_relays_bring_is_checked_like_clients_and_keeps_its_place_until_it_is_answered() {
    let line = EventQueue::new();
    let place = Arc::new(());
    let good = Author::new(1).note(1, &[], "");
    let mut forged = good.event().clone();
    forged.sig[5] ^= 1;
    let future = Author::new(1).note(u64::MAX / 2, &[], "");
    for (ticket, event) in [&good, &Arc::new(SignedEvent::from_trusted(forged)), &future].into_iter().enumerate() {
        line.join(relay_with(ticket as u64, event, Box::new(place.clone())));
    }
    assert_eq!(Arc::strong_count(&place), 4);
    finish(&line);
    let batch = line.take(None, None, false).expect("something").batch;
    let of = |ticket: u64| {
        let asked =
            |checked: &&CheckedEvent| matches!(checked.from, Submitter::Relay { ticket: of, .. } if of.0 == ticket);
        &batch.iter().find(asked).expect("there").result
    };
    assert!(of(0).as_ref().is_ok_and(|event| event.id == good.id));
    assert!(of(1).as_ref().is_err_and(|rejected| matches!(rejected.why, Rejection::Forged(_))));
    assert!(
        of(2).as_ref().is_err_and(|rejected| rejected.why == Rejection::InFuture && rejected.id == Some(future.id))
    );
    assert_eq!(Arc::strong_count(&place), 4, "as long as nobody has answered");
    drop(batch);
    assert_eq!(Arc::strong_count(&place), 1);
}

fn remember(nth: u8) -> WriterCommand {
    WriterCommand::Remember(Vec::new(), vec![SyncRowKey::Rejected(EventId([nth; 32]))])
}

fn remembered(taken: &Taken) -> usize {
    taken.notes.iter().filter(|note| matches!(note, WriterCommand::Remember(..))).count()
}

#[test]
fn rows_wait_for_company_but_not_for_long() {
    let line = EventQueue::new();
    let begin = Instant::now();
    line.post(remember(1));
    line.post(remember(2));
    let far = Some(Instant::now() + 60 * PATIENCE);
    let taken = line.take(far, None, false).expect("open");
    assert_eq!((remembered(&taken), taken.batch.len()), (2, 0));
    assert!((PATIENCE..30 * PATIENCE).contains(&begin.elapsed()), "{:?}", begin.elapsed());

    // Whatever else happens takes them along.
    line.post(remember(3));
    let (reply, _) = tokio::sync::oneshot::channel();
    let repo_path = grasp_core::repo::RepoPath::Announced(Author::new(1).repo_id("tool"));
    line.post(WriterCommand::View(repo_path, reply));
    let begin = Instant::now();
    let taken = line.take(far, None, false).expect("open");
    assert_eq!((remembered(&taken), taken.notes.len()), (1, 2));
    line.post(remember(4));
    let early = Some(Instant::now());
    assert_eq!(remembered(&line.take(early, None, false).expect("open")), 1);
    assert!(begin.elapsed() < PATIENCE);
}

#[test]
fn rows_are_not_left_behind_when_the_line_is_closed() {
    let line = EventQueue::new();
    line.post(remember(1));
    line.close();
    assert_eq!(remembered(&line.take(None, None, false).expect("rows")), 1);
    assert!(line.take(None, None, false).is_none());
}
