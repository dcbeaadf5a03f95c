//! Random runs of a server: for any events in any order, the invariants hold after every step (checked by
//! [`TestServer`] itself), and a restart changes nothing visible.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::failure_context::FailureContext;
use grasp_sim::random::Rng;
use grasp_sim::signer::{Author, maintainers_tag};
use grasp_sim::test_server::{TestServer, default_policy, service};

const NAMES: &[&str] = &["a", "b:c"];

struct RandomRun {
    rng: Rng,
    authors: Vec<Author>,
    past: Vec<Arc<SignedEvent>>,
}

impl RandomRun {
    fn author(&mut self) -> Author {
        self.rng.pick(&self.authors).expect("not empty").clone()
    }

    fn name(&mut self) -> &'static str {
        self.rng.pick(NAMES).expect("not empty")
    }

    fn old(&mut self) -> Option<Arc<SignedEvent>> {
        self.rng.pick(&self.past).cloned()
    }

    fn oid(&mut self) -> String {
        char::from(b'a' + self.rng.below(4) as u8).to_string().repeat(40)
    }

    /// A short range, so that ties are frequent.
    fn time(&mut self) -> u64 {
        9_000 + self.rng.next_u64() % 12
    }

    fn roles(&mut self) -> Vec<Vec<String>> {
        let mut tags = Vec::new();
        let maintainers: Vec<Author> = (0..self.rng.below(3)).map(|_| self.author()).collect();
        if self.rng.one_in(4) {
            let role = *self.rng.pick(&["M", "m", "o"]).expect("not empty");
            tags.extend(maintainers.iter().map(|maintainer| vec![role.to_owned(), maintainer.hex()]));
        } else {
            tags.push(maintainers_tag(&maintainers.iter().collect::<Vec<_>>()));
        }
        if self.rng.one_in(8) {
            tags.push(vec!["expiration".to_owned(), (10_000 + self.rng.next_u64() % 5_000).to_string()]);
        }
        // Relays change, so that the repository needs of sync change.
        tags.push(vec!["relays".to_owned(), format!("wss://{}.example", self.past.len() % 3)]);
        tags
    }

    fn event(&mut self) -> Arc<SignedEvent> {
        let (author, name, time) = (self.author(), self.name(), self.time());
        let repo = self.author().repo(name);
        match self.rng.below(16) {
            0..=3 => author.announcement_with(&service(), name, time, self.roles()),
            4..=6 => author.announcement_elsewhere_with(name, time, self.roles()),
            7..=9 => author.state(name, time, &[("refs/heads/main", &self.oid())]),
            10 => author.issue(time, &repo),
            11 => author.pull_request(time, &[&repo], &self.oid()),
            12 => match self.old() {
                Some(old) => author.comment(time, &old),
                None => author.note(time, &[], ""),
            },
            13 => {
                let kind = *self.rng.pick(&[kinds::ANNOUNCEMENT, kinds::STATE]).expect("not empty");
                author.deletion(time, &[&["a", &author.coordinate(kind, name)]])
            }
            14 => match self.old() {
                Some(old) => author.delete(time, &[&old]),
                None => author.note(time, &[], ""),
            },
            _ if self.rng.one_in(3) => author.vanish(time, &["ALL_RELAYS"]),
            _ => author.sign(kinds::GRASP_LIST, time, &[], ""),
        }
    }

    fn step(&mut self, server: &mut TestServer) {
        match self.rng.below(20) {
            0 => server.advance(self.rng.next_u64() % 2_000),
            1 => {
                let before = server.event_ids();
                server.restart();
                assert_eq!(server.event_ids(), before);
            }
            2..=4 => {
                let oids: BTreeSet<String> = (0..2).map(|_| self.oid()).collect();
                server.add_objects_everywhere(&oids);
            }
            5 => {
                let before = server.event_ids();
                let batch = [self.event(), self.event()];
                server.submit_batch(&batch.each_ref(), false);
                assert_eq!(server.event_ids(), before, "a failed batch has no effect");
            }
            6..=8 => {
                if let Some(old) = self.old() {
                    server.submit(&old);
                }
            }
            _ => {
                let event = self.event();
                self.past.push(event.clone());
                server.submit(&event);
            }
        }
    }
}

#[test]
fn invariants_hold_in_random_runs() {
    let authors: Vec<Author> = (1..=4).map(Author::new).collect();
    let mut most = (0, 0);
    for seed in 0..100 {
        let mut server = TestServer::new(AdmissionPolicy { strict_maintainers: seed % 4 == 3, ..default_policy() });
        let mut run = RandomRun { rng: Rng::new(seed), authors: authors.clone(), past: Vec::new() };
        for step in 0..80 {
            let _context = FailureContext(format!("in seed {seed}, step {step}"));
            run.step(&mut server);
            server.check_derived(NAMES);
            let (served, held) = server.event_ids();
            most = (most.0.max(served.len()), most.1.max(held.len()));
        }
    }
    assert!(most.0 > 10 && most.1 > 3, "runs without enough events: {most:?}");
}
