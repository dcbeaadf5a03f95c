//! Histories of repositories, from which worlds are built: announcements, states, root events, discussions and
//! deletions.
//!
//! The texts of the events are part of their ids. Changing them changes every simulated run, and then the seeds in
//! `crates/sim/mutations/sync.toml` have to be searched again.

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::nostr::{EventId, SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;

use super::corpus::EventIndex;
use crate::random::Rng;
use crate::signer::Author;
use crate::simulation::WORLD_START;

/// Number of repositories in all worlds together.
const HISTORIES: usize = 24;

/// Number of relays in all worlds together.
pub(super) const RELAYS: usize = 12;

/// Service addresses of the nodes.
pub(super) const SERVICES: [&str; 3] = ["code.example", "git.second.example", "third.example"];

/// Largest event that the nodes accept. Less than a real server accepts, so that larger events cost little.
pub(super) const MAX_EVENT_BYTES: usize = 4_096;

/// Seconds of a day.
const DAY: i64 = 86_400;

/// Returns the service address of a node.
pub fn service(node: usize) -> ServiceAddress {
    ServiceAddress::new(SERVICES[node], "").expect("valid address")
}

/// Returns the URL of a relay.
pub(super) fn relay_url(relay: usize) -> String {
    format!("wss://r{relay}.example")
}

/// Returns a second URL of the same relay.
pub(super) fn other_url(relay: usize) -> String {
    format!("wss://also-r{relay}.example/inbox")
}

/// Returns a second URL of a node that is not in its settings.
pub(super) fn alias_url(node: usize) -> String {
    format!("wss://mirror.{}", SERVICES[node])
}

/// Role of an event in the history of a repository.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum EventRole {
    /// Announces the repository.
    Announcement,
    /// Declares its refs.
    State,
    /// An issue, patch or pull request.
    Root,
    /// A comment, status or note.
    Discussion,
    /// Deletes an event.
    Removal,
    /// One of many comments of the same second.
    Burst,
    /// A comment that relays accept and that no node can parse.
    Unparsable,
}

/// A repository and its events.
pub(super) struct RepoHistory {
    /// The nodes in its first announcement.
    pub services: Vec<usize>,
    /// All relays in its announcements.
    pub relays: Vec<usize>,
    events: Vec<(EventRole, Arc<SignedEvent>)>,
    indexed_events: Vec<(EventRole, EventIndex)>,
}

impl RepoHistory {
    pub(super) fn signed_events(&self) -> impl Iterator<Item = Arc<SignedEvent>> + '_ {
        self.events.iter().map(|(_, event)| event.clone())
    }

    pub(super) fn set_indexes(&mut self, ids: &BTreeMap<EventId, EventIndex>) {
        self.indexed_events = self.events.iter().map(|(role, event)| (*role, ids[&event.id])).collect();
    }

    /// Returns its events in causal order.
    pub(super) fn events(&self) -> &[(EventRole, EventIndex)] {
        &self.indexed_events
    }
}

/// Returns all histories, and the events that belong to none of them.
pub(super) fn all() -> (Vec<RepoHistory>, Vec<Arc<SignedEvent>>) {
    let mut rng = Rng::new(0x6772_6173_7064);
    let histories = (0..HISTORIES).map(|index| HistoryBuilder::new(index, &mut rng).build()).collect();
    (histories, unrelated_events(&mut rng))
}

/// Returns repositories that are hosted elsewhere, states without announcement, and notes and issues without a hosted
/// repository.
fn unrelated_events(rng: &mut Rng) -> Vec<Arc<SignedEvent>> {
    let mut unrelated_events = Vec::new();
    for number in 0..40 {
        let author = Author::in_group(9, number);
        let at = random_time(rng, -40 * DAY, 6 * DAY);
        let identifier = format!("stray-{}", number / 2);
        unrelated_events.push(match number % 4 {
            0 => author.announcement_elsewhere(&identifier, at, &[]),
            1 => author.state(&identifier, at, &[("refs/heads/main", &oid(rng))]),
            2 => author.note(at, &[], "nothing to do with anything"),
            _ => author.issue(at, &author.repo(&identifier)),
        });
    }
    unrelated_events
}

fn random_time(rng: &mut Rng, from: i64, to: i64) -> u64 {
    let secs = from + (rng.next_u64() % (to - from).max(1) as u64) as i64;
    WORLD_START.saturating_add_signed(secs)
}

fn oid(rng: &mut Rng) -> String {
    format!("{:016x}{:016x}{:08x}", rng.next_u64(), rng.next_u64(), rng.next_u64() as u32)
}

/// Builds one history.
struct HistoryBuilder<'rng> {
    index: usize,
    rng: &'rng mut Rng,
    identifier: String,
    owner: Author,
    maintainer: Author,
    participants: Vec<Author>,
    events: Vec<(EventRole, Arc<SignedEvent>)>,
}

impl<'rng> HistoryBuilder<'rng> {
    fn new(index: usize, rng: &'rng mut Rng) -> Self {
        // Two owners use the same identifier.
        let identifier = if matches!(index, 5 | 6) { "shared".to_owned() } else { format!("tale-{index}") };
        let owner = Author::in_group(1, index as u8);
        let maintainer = Author::in_group(2, index as u8);
        let participants = (0..6).map(|_| Author::in_group(3, rng.below(20) as u8)).collect();
        Self { index, rng, identifier, owner, maintainer, participants, events: Vec::new() }
    }

    fn random_author_time(&mut self, from: i64, to: i64) -> u64 {
        let at = random_time(self.rng, from, to);
        match self.rng.below(40) {
            // Clocks of authors are off by up to a day.
            0 => at.saturating_sub(self.rng.next_u64() % 86_400),
            1 => at + self.rng.next_u64() % 86_400,
            _ => at,
        }
    }

    fn participant(&mut self) -> Author {
        self.rng.pick(&self.participants).expect("not empty").clone()
    }

    fn add(&mut self, role: EventRole, event: Arc<SignedEvent>) -> Arc<SignedEvent> {
        self.events.push((role, event.clone()));
        event
    }

    fn build(mut self) -> RepoHistory {
        let services: Vec<usize> = match self.index % 6 {
            0 | 1 => vec![0],
            2 => vec![0, 1],
            3 => vec![0, 1, 2],
            4 => vec![1, 2],
            _ => vec![0, 2],
        };
        let mut relays: Vec<usize> = (0..RELAYS).filter(|_| self.rng.one_in(3)).collect();
        relays.extend(relays.is_empty().then_some(self.index % RELAYS));
        self.announcements(&services, &mut relays);
        self.states();
        let roots = self.roots();
        self.discussion(&roots);
        self.burst(&roots);
        self.descendants(&roots);
        relays.sort_unstable();
        relays.dedup();
        RepoHistory { services, relays, events: self.events, indexed_events: Vec::new() }
    }

    fn announce(&self, author: &Author, at: u64, services: &[usize], relays: &[usize]) -> Arc<SignedEvent> {
        let path = author.repo_id(&self.identifier).path();
        let owned = |text: &str| text.to_owned();
        let mut clone_tag = vec![owned("clone")];
        let mut relay_tag = vec![owned("relays")];
        for service in services {
            clone_tag.push(format!("https://{}/{path}", SERVICES[*service]));
            relay_tag.push(format!("wss://{}", SERVICES[*service]));
        }
        clone_tag.push(owned("https://elsewhere.example/x.git"));
        relay_tag.extend(relays.iter().map(|relay| relay_url(*relay)));
        // Other spellings and aliases of the same addresses, and an address that does not exist.
        match self.index % 5 {
            0 => relay_tag.extend(relays.iter().take(1).map(|relay| other_url(*relay))),
            1 => relay_tag.extend(relays.iter().take(1).map(|relay| format!("ws://R{relay}.example:80/"))),
            2 => relay_tag.extend(services.iter().take(1).map(|service| alias_url(*service))),
            3 => relay_tag.push(owned("wss://nowhere.example")),
            _ => {}
        }
        let maintainers = vec![owned("maintainers"), self.maintainer.hex()];
        let tags = vec![vec![owned("d"), self.identifier.clone()], clone_tag, relay_tag, maintainers];
        author.sign_owned(kinds::ANNOUNCEMENT, at, tags, "")
    }

    fn announcements(&mut self, services: &[usize], relays: &mut Vec<usize>) {
        let (owner, maintainer) = (self.owner.clone(), self.maintainer.clone());
        let at = self.random_author_time(-50 * DAY, -40 * DAY);
        self.add(EventRole::Announcement, self.announce(&owner, at, services, relays));
        // The second version lists other relays, and is published during the week or before it.
        let mut others: Vec<usize> = relays.iter().copied().filter(|_| !self.rng.one_in(3)).collect();
        others.push(self.rng.below(RELAYS));
        let at = self.random_author_time(-9 * DAY, 5 * DAY);
        self.add(EventRole::Announcement, self.announce(&owner, at, services, &others));
        // A maintainer announces the repository as well, hosted here or only elsewhere.
        let more = [self.rng.below(RELAYS), self.rng.below(RELAYS)];
        let hosts = if self.index.is_multiple_of(3) { services } else { &[] };
        let at = self.random_author_time(-35 * DAY, 3 * DAY);
        self.add(EventRole::Announcement, self.announce(&maintainer, at, hosts, &more));
        relays.extend(others);
        relays.extend(more);
    }

    fn states(&mut self) {
        for (from, to, by_maintainer) in
            [(-39 * DAY, -30 * DAY, false), (-30 * DAY, -2 * DAY, true), (-2 * DAY, 3 * DAY, false), (0, 6 * DAY, true)]
        {
            let author = if by_maintainer { self.maintainer.clone() } else { self.owner.clone() };
            let (at, main, dev) = (self.random_author_time(from, to), oid(self.rng), oid(self.rng));
            let identifier = self.identifier.clone();
            self.add(
                EventRole::State,
                author.state(&identifier, at, &[("refs/heads/main", &main), ("refs/heads/dev", &dev)]),
            );
        }
    }

    fn roots(&mut self) -> Vec<Arc<SignedEvent>> {
        let repo = self.owner.repo(&self.identifier);
        let maintainer_repo = self.maintainer.repo(&self.identifier);
        let mut roots = Vec::new();
        for number in 0..12 {
            let author = self.participant();
            let (from, to) = if number < 8 { (-38 * DAY, -DAY) } else { (0, 6 * DAY) };
            let at = self.random_author_time(from, to);
            let event = match number % 4 {
                0 | 1 => author.issue(at, &repo),
                2 => author.sign(kinds::PATCH, at, &[&["a", &repo], &["a", &maintainer_repo]], "diff"),
                _ => author.pull_request(at, &[&repo], &oid(self.rng)),
            };
            roots.push(self.add(EventRole::Root, event));
        }
        roots
    }

    fn discussion(&mut self, roots: &[Arc<SignedEvent>]) {
        let repo = self.owner.repo(&self.identifier);
        for number in 0..46 {
            let author = self.participant();
            let root = self.rng.pick(roots).expect("not empty").clone();
            let id = root.id.to_string();
            let (from, to) = if number < 26 { (-30 * DAY, 0) } else { (0, 6 * DAY + DAY / 2) };
            let at = self.random_author_time(from, to);
            let comment_with = |tags: &[&[&str]], kind: u16| author.sign(kind, at, tags, &format!("word {number}"));
            // Relays have larger limits than the nodes, and some accept what the nodes do not understand.
            let large_content = "word ".repeat(MAX_EVENT_BYTES / 5);
            let event = match number % 10 {
                _ if matches!(number, 12 | 20 | 32) => {
                    author.sign(1111, at, &[&["E", &id], &["A", &repo]], &large_content)
                }
                _ if matches!(number, 13 | 33) => {
                    let event = comment_with(&[&["E", &id], &["A", &repo]], 1111);
                    self.add(EventRole::Unparsable, event);
                    continue;
                }
                0..=3 => author.comment(at, &root),
                4 => comment_with(&[&["A", &repo], &["a", &repo], &["K", "30617"]], 1111),
                5 => comment_with(&[&["e", &id], &["a", &repo]], 1630 + (number % 4) as u16),
                6 => comment_with(&[&["q", &repo]], 1),
                7 => comment_with(&[&["q", &id], &["t", "git"]], 1),
                8 => comment_with(&[&["e", &id, "", "reply"]], 1),
                _ => comment_with(&[&["E", &id], &["e", &id], &["A", &repo]], 1111),
            };
            self.add(EventRole::Discussion, event);
        }
        let root = roots[0].id.to_string();
        let (participant, at) = (self.participant(), self.random_author_time(-5 * DAY, DAY));
        // A protected event (NIP-70), which only its author may publish.
        self.add(EventRole::Discussion, participant.sign(1111, at, &[&["E", &root], &["-"]], "mine"));
        let end = random_time(self.rng, -DAY, 6 * DAY);
        self.add(
            EventRole::Discussion,
            participant.sign(1111, at, &[&["E", &root], &["expiration", &end.to_string()]], "for a while"),
        );
        let at = self.random_author_time(2 * DAY, 5 * DAY);
        self.add(EventRole::Discussion, participant.sign(1111, at, &[&["E", &root]], "from tomorrow"));
        // The owner deletes a comment.
        let owner = self.owner.clone();
        let comment = owner.sign(1111, WORLD_START - 20 * DAY as u64, &[&["E", &root], &["e", &root]], "nonsense");
        let at = self.random_author_time(-3 * DAY, 4 * DAY);
        self.add(EventRole::Discussion, comment.clone());
        self.add(EventRole::Removal, owner.delete(at, &[&comment]));
        let issue = roots.iter().find(|root| root.kind == kinds::ISSUE).expect("not empty").clone();
        if let Some(participant) =
            self.participants.iter().find(|participant| participant.key() == issue.pubkey).cloned()
            && self.index.is_multiple_of(2)
        {
            let at = self.random_author_time(DAY, 5 * DAY);
            self.add(EventRole::Removal, participant.delete(at, &[&issue]));
        }
    }

    /// Adds many comments of the same second.
    fn burst(&mut self, roots: &[Arc<SignedEvent>]) {
        let count = match self.index {
            0 => 140,
            3 => 60,
            7 => 33,
            _ => 0,
        };
        let at = WORLD_START - 12 * DAY as u64;
        let author = Author::in_group(4, self.index as u8);
        for number in 0..count {
            let id = roots[1].id.to_string();
            let event = author.sign(1111, at, &[&["E", &id], &["e", &id]], &format!("at once {number}"));
            self.add(EventRole::Burst, event);
        }
    }

    /// Adds events that reference only comments and reactions, deletions of such events by their authors, and a request
    /// to vanish.
    fn descendants(&mut self, roots: &[Arc<SignedEvent>]) {
        let author = |number: usize| Author::in_group(5, (self.index * 8 + number) as u8);
        let authors: Vec<Author> = (0..8).map(author).collect();
        let mut rng = Rng::new(self.index as u64);
        for (number, root) in roots.iter().enumerate().take(2) {
            let (from, to) = if number % 2 == 0 { (-25 * DAY, -2 * DAY) } else { (0, 5 * DAY) };
            let mut at = random_time(&mut rng, from, to);
            let mut later = || {
                at += 1 + rng.next_u64() % 7_200;
                at
            };
            let comment = authors[0].comment(later(), root);
            let id = comment.id.to_string();
            let reaction = authors[1].sign(7, later(), &[&["e", &id]], "+");
            let label = authors[2].sign(1985, later(), &[&["L", "review"], &["e", &id]], "");
            let reply = authors[3].sign(1111, later(), &[&["e", &id], &["k", "1111"]], "only its parent");
            let quote = authors[4].sign(1, later(), &[&["q", &reply.id.to_string()]], "look at this");
            let article_tags: &[&[&str]] = &[&["d", &format!("notes {number}")], &["e", &id]];
            let article = authors[5].sign(30_023, later(), article_tags, "a summary");
            let address = authors[5].coordinate(30_023, &format!("notes {number}"));
            let on_article = authors[6].sign(1111, later(), &[&["A", &address], &["a", &address]], "agreed");
            let below = authors[1].sign(7, later(), &[&["e", &on_article.id.to_string()]], "+");
            for event in [&comment, &reaction, &label, &reply, &quote, &article, &on_article, &below] {
                self.add(EventRole::Discussion, event.clone());
            }
            // Only the authors delete them, not a maintainer.
            let removal = match (2 * self.index + number) % 6 {
                0 => authors[4].delete(later(), &[&quote]),
                1 => authors[3].delete(later(), &[&reply]),
                2 => authors[0].delete(later(), &[&comment]),
                3 => authors[6].delete(later(), &[&on_article]),
                4 => authors[2].vanish(later(), &["ALL_RELAYS"]),
                _ => continue,
            };
            self.add(EventRole::Removal, removal);
        }
        let at = random_time(&mut rng, -3 * DAY, 3 * DAY);
        let server = format!("wss://{}", SERVICES[self.index % SERVICES.len()]);
        self.add(EventRole::Discussion, authors[7].sign(kinds::GRASP_LIST, at, &[&["g", &server]], ""));
    }
}
