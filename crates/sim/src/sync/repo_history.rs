//! The stories that worlds are made of: a repository, who keeps it, where it is announced, and what people say about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::nostr::{EventId, SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;

use super::corpus::{EPOCH, Ix};
use crate::random::Chance;
use crate::signer::Author;

/// How many repositories there are in all worlds together.
const TALES: usize = 24;

/// How many relays there are in all worlds together.
pub const RELAYS: usize = 12;

/// The services of the full nodes.
pub const SERVICES: [&str; 3] = ["code.example", "git.second.example", "third.example"];

/// Seconds of a day.
const DAY: i64 = 86_400;

/// The service of a node.
#[must_use]
pub fn service(node: usize) -> ServiceAddress {
    ServiceAddress::new(SERVICES[node], "").expect("a good address")
}

/// The URL of a relay.
#[must_use]
pub fn relay_url(relay: usize) -> String {
    format!("wss://r{relay}.example")
}

/// Another URL of the same relay.
#[must_use]
pub fn other_url(relay: usize) -> String {
    format!("wss://also-r{relay}.example/inbox")
}

/// Another name of a node, which its settings do not know.
#[must_use]
pub fn alias_url(node: usize) -> String {
    format!("wss://mirror.{}", SERVICES[node])
}

/// What an event is in a story.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Says that the repository exists.
    Announcement,
    /// Says what its refs are.
    State,
    /// An issue, a patch or a pull request.
    Root,
    /// Anything that people say.
    Talk,
    /// Takes something back.
    Removal,
    /// One of many of the same second.
    Flood,
}

/// A repository with all that belongs to it.
pub struct Tale {
    /// Its name.
    pub d: String,
    /// The nodes that its first announcement names.
    pub services: Vec<usize>,
    /// The relays that any of its announcements names.
    pub relays: Vec<usize>,
    parts: Vec<(Role, Arc<SignedEvent>)>,
    numbered: Vec<(Role, Ix)>,
}

impl Tale {
    pub(super) fn events(&self) -> impl Iterator<Item = Arc<SignedEvent>> + '_ {
        self.parts.iter().map(|(_, event)| event.clone())
    }

    pub(super) fn number(&mut self, ids: &BTreeMap<EventId, Ix>) {
        self.numbered = self.parts.iter().map(|(role, event)| (*role, ids[&event.id])).collect();
    }

    /// Its events, in the order in which they make sense.
    #[must_use]
    pub fn parts(&self) -> &[(Role, Ix)] {
        &self.numbered
    }
}

/// All stories, and events that belong to none.
pub(super) fn all() -> (Vec<Tale>, Vec<Arc<SignedEvent>>) {
    let mut chance = Chance::new(0x6772_6173_7064);
    let tales = (0..TALES).map(|nth| Teller::new(nth, &mut chance).tell()).collect();
    (tales, strays(&mut chance))
}

/// Strangers' repositories, states of nothing, and notes about nothing.
fn strays(chance: &mut Chance) -> Vec<Arc<SignedEvent>> {
    let mut strays = Vec::new();
    for n in 0..40 {
        let author = Author::of_crowd(9, n);
        let at = moment(chance, -40 * DAY, 6 * DAY);
        let d = format!("stray-{}", n / 2);
        strays.push(match n % 4 {
            0 => author.unlisted(&d, at, &[]),
            1 => author.state(&d, at, &[("refs/heads/main", &oid(chance))]),
            2 => author.note(at, &[], "nothing to do with anything"),
            _ => author.issue(at, &author.repo(&d)),
        });
    }
    strays
}

fn moment(chance: &mut Chance, from: i64, to: i64) -> u64 {
    let secs = from + (chance.draw() % (to - from).max(1) as u64) as i64;
    EPOCH.saturating_add_signed(secs)
}

fn oid(chance: &mut Chance) -> String {
    format!("{:016x}{:016x}{:08x}", chance.draw(), chance.draw(), chance.draw() as u32)
}

/// Who tells one story.
struct Teller<'c> {
    nth: usize,
    chance: &'c mut Chance,
    d: String,
    owner: Author,
    keeper: Author,
    people: Vec<Author>,
    parts: Vec<(Role, Arc<SignedEvent>)>,
}

impl<'c> Teller<'c> {
    fn new(nth: usize, chance: &'c mut Chance) -> Self {
        // Two strangers use the same name.
        let d = if matches!(nth, 5 | 6) { "shared".to_owned() } else { format!("tale-{nth}") };
        let owner = Author::of_crowd(1, nth as u8);
        let keeper = Author::of_crowd(2, nth as u8);
        let people = (0..6).map(|_| Author::of_crowd(3, chance.below(20) as u8)).collect();
        Self { nth, chance, d, owner, keeper, people, parts: Vec::new() }
    }

    fn at(&mut self, from: i64, to: i64) -> u64 {
        let at = moment(self.chance, from, to);
        match self.chance.below(40) {
            // Clocks of authors are wrong by up to a day.
            0 => at.saturating_sub(self.chance.draw() % 86_400),
            1 => at + self.chance.draw() % 86_400,
            _ => at,
        }
    }

    fn person(&mut self) -> Author {
        self.chance.pick(&self.people).expect("somebody").clone()
    }

    fn add(&mut self, role: Role, event: Arc<SignedEvent>) -> Arc<SignedEvent> {
        self.parts.push((role, event.clone()));
        event
    }

    fn tell(mut self) -> Tale {
        let services: Vec<usize> = match self.nth % 6 {
            0 | 1 => vec![0],
            2 => vec![0, 1],
            3 => vec![0, 1, 2],
            4 => vec![1, 2],
            _ => vec![0, 2],
        };
        let mut relays: Vec<usize> = (0..RELAYS).filter(|_| self.chance.one_in(3)).collect();
        relays.extend(relays.is_empty().then_some(self.nth % RELAYS));
        self.announcements(&services, &mut relays);
        self.states();
        let roots = self.roots();
        self.talk(&roots);
        self.flood(&roots);
        relays.sort_unstable();
        relays.dedup();
        Tale { d: self.d, services, relays, parts: self.parts, numbered: Vec::new() }
    }

    fn announce(&self, author: &Author, at: u64, services: &[usize], relays: &[usize]) -> Arc<SignedEvent> {
        let path = author.repo_id(&self.d).path();
        let word = |text: &str| text.to_owned();
        let mut clone = vec![word("clone")];
        let mut named = vec![word("relays")];
        for service in services {
            clone.push(format!("https://{}/{path}", SERVICES[*service]));
            named.push(format!("wss://{}", SERVICES[*service]));
        }
        clone.push(word("https://elsewhere.example/x.git"));
        named.extend(relays.iter().map(|relay| relay_url(*relay)));
        // Names that mean what another one means, and one that means nothing.
        match self.nth % 5 {
            0 => named.extend(relays.iter().take(1).map(|relay| other_url(*relay))),
            1 => named.extend(relays.iter().take(1).map(|relay| format!("ws://R{relay}.example:80/"))),
            2 => named.extend(services.iter().take(1).map(|service| alias_url(*service))),
            3 => named.push(word("wss://nowhere.example")),
            _ => {}
        }
        let maintainers = vec![word("maintainers"), self.keeper.hex()];
        let tags = vec![vec![word("d"), self.d.clone()], clone, named, maintainers];
        author.sign_owned(kinds::ANNOUNCEMENT, at, tags, "")
    }

    fn announcements(&mut self, services: &[usize], relays: &mut Vec<usize>) {
        let (owner, keeper) = (self.owner.clone(), self.keeper.clone());
        let at = self.at(-50 * DAY, -40 * DAY);
        self.add(Role::Announcement, self.announce(&owner, at, services, relays));
        // The second version names other relays, during the week or before it.
        let mut others: Vec<usize> = relays.iter().copied().filter(|_| !self.chance.one_in(3)).collect();
        others.push(self.chance.below(RELAYS));
        let at = self.at(-9 * DAY, 5 * DAY);
        self.add(Role::Announcement, self.announce(&owner, at, services, &others));
        // A maintainer announces it, too: hosted here, or elsewhere only.
        let more = [self.chance.below(RELAYS), self.chance.below(RELAYS)];
        let hosts = if self.nth.is_multiple_of(3) { services } else { &[] };
        let at = self.at(-35 * DAY, 3 * DAY);
        self.add(Role::Announcement, self.announce(&keeper, at, hosts, &more));
        relays.extend(others);
        relays.extend(more);
    }

    fn states(&mut self) {
        for (from, to, by_keeper) in
            [(-39 * DAY, -30 * DAY, false), (-30 * DAY, -2 * DAY, true), (-2 * DAY, 3 * DAY, false), (0, 6 * DAY, true)]
        {
            let author = if by_keeper { self.keeper.clone() } else { self.owner.clone() };
            let (at, main, dev) = (self.at(from, to), oid(self.chance), oid(self.chance));
            let d = self.d.clone();
            self.add(Role::State, author.state(&d, at, &[("refs/heads/main", &main), ("refs/heads/dev", &dev)]));
        }
    }

    fn roots(&mut self) -> Vec<Arc<SignedEvent>> {
        let repo = self.owner.repo(&self.d);
        let kept = self.keeper.repo(&self.d);
        let mut roots = Vec::new();
        for n in 0..12 {
            let author = self.person();
            let (from, to) = if n < 8 { (-38 * DAY, -DAY) } else { (0, 6 * DAY) };
            let at = self.at(from, to);
            let event = match n % 4 {
                0 | 1 => author.issue(at, &repo),
                2 => author.sign(kinds::PATCH, at, &[&["a", &repo], &["a", &kept]], "diff"),
                _ => author.pull_request(at, &[&repo], &oid(self.chance)),
            };
            roots.push(self.add(Role::Root, event));
        }
        roots
    }

    fn talk(&mut self, roots: &[Arc<SignedEvent>]) {
        let repo = self.owner.repo(&self.d);
        for n in 0..46 {
            let author = self.person();
            let root = self.chance.pick(roots).expect("some").clone();
            let id = root.id.to_string();
            let (from, to) = if n < 26 { (-30 * DAY, 0) } else { (0, 6 * DAY + DAY / 2) };
            let at = self.at(from, to);
            let talk = |tags: &[&[&str]], kind: u16| author.sign(kind, at, tags, &format!("word {n}"));
            let event = match n % 10 {
                0..=3 => author.comment(at, &root),
                4 => talk(&[&["A", &repo], &["a", &repo], &["K", "30617"]], 1111),
                5 => talk(&[&["e", &id], &["a", &repo]], 1630 + (n % 4) as u16),
                6 => talk(&[&["q", &repo]], 1),
                7 => talk(&[&["q", &id], &["t", "git"]], 1),
                8 => talk(&[&["e", &id, "", "reply"]], 1),
                _ => talk(&[&["E", &id], &["e", &id], &["A", &repo]], 1111),
            };
            self.add(Role::Talk, event);
        }
        let root = roots[0].id.to_string();
        let (person, at) = (self.person(), self.at(-5 * DAY, DAY));
        // Only its author may publish it.
        self.add(Role::Talk, person.sign(1111, at, &[&["E", &root], &["-"]], "mine"));
        let end = moment(self.chance, -DAY, 6 * DAY);
        self.add(Role::Talk, person.sign(1111, at, &[&["E", &root], &["expiration", &end.to_string()]], "for a while"));
        let at = self.at(2 * DAY, 5 * DAY);
        self.add(Role::Talk, person.sign(1111, at, &[&["E", &root]], "from tomorrow"));
        // Keepers take back what they said.
        let owner = self.owner.clone();
        let said = owner.sign(1111, EPOCH - 20 * DAY as u64, &[&["E", &root], &["e", &root]], "nonsense");
        let at = self.at(-3 * DAY, 4 * DAY);
        self.add(Role::Talk, said.clone());
        self.add(Role::Removal, owner.delete(at, &[&said]));
        let issue = roots.iter().find(|root| root.kind == kinds::ISSUE).expect("some").clone();
        if let Some(person) = self.people.iter().find(|person| person.key() == issue.pubkey).cloned()
            && self.nth.is_multiple_of(2)
        {
            let at = self.at(DAY, 5 * DAY);
            self.add(Role::Removal, person.delete(at, &[&issue]));
        }
    }

    /// Many comments of the same second.
    fn flood(&mut self, roots: &[Arc<SignedEvent>]) {
        let many = match self.nth {
            0 => 140,
            3 => 60,
            7 => 33,
            _ => 0,
        };
        let at = EPOCH - 12 * DAY as u64;
        let author = Author::of_crowd(4, self.nth as u8);
        for n in 0..many {
            let id = roots[1].id.to_string();
            let event = author.sign(1111, at, &[&["E", &id], &["e", &id]], &format!("at once {n}"));
            self.add(Role::Flood, event);
        }
    }
}
