//! How things leave: deletion, vanishing, withdrawal, expiry, and announcements that lose their last anchor.

use std::collections::BTreeSet;

use super::io::{Output, Summary, Target, Todo, Tombstone, Write};
use super::purgatory::What;
use super::repo_queue::Task;
use super::{Registrar, policy};
use crate::nostr::event::{Coordinate, Event, EventId, Stamp};
use crate::nostr::rejection::{Refusal, Verdict};
use crate::nostr::{PublicKey, kinds, supersedes};
use crate::repo::catalog::Place;
use crate::repo::{Announcement, Identifier, RepoId, Site};

impl Registrar {
    /// Kind 5: own targets go, wherever they stand, and every target is remembered so that it cannot come back (D-05).
    pub(super) fn apply_deletion(&mut self, event: &Event, targets: &[Target]) {
        let ids: BTreeSet<EventId> = event.values("e").filter_map(EventId::from_hex).collect();
        for Target { event: target, place } in targets {
            // Named by id, or by a coordinate whose versions are meant up to the request's own time (D-02).
            let meant = ids.contains(&target.id) || target.created_at <= event.created_at;
            let deletable = !matches!(target.kind, kinds::DELETION | kinds::VANISH);
            if meant && deletable && target.author == event.pubkey {
                self.remove(target, *place);
            }
        }
        for id in ids {
            self.write(Write::Bury(Tombstone::Event(event.pubkey, id)));
        }
        for coordinate in
            event.values("a").filter_map(Coordinate::parse).filter(|coordinate| coordinate.pubkey == event.pubkey)
        {
            self.remove_held_at(&coordinate, event);
            self.write(Write::Bury(Tombstone::Coordinate(coordinate, event.created_at)));
        }
    }

    /// The store names what is served at a coordinate; what is held there is in our own books.
    fn remove_held_at(&mut self, coordinate: &Coordinate, event: &Event) {
        let Some(identifier) = Identifier::new(&coordinate.d) else { return };
        let announcements = match coordinate.kind {
            kinds::ANNOUNCEMENT => true,
            kinds::STATE => false,
            _ => return,
        };
        for (id, place, is_announcement) in self.catalog.of_author_until(event.pubkey, &identifier, event.created_at) {
            if place == Place::Held && is_announcement == announcements {
                self.unhold(id);
            }
        }
    }

    /// Kind 62: everything of the author up to now goes. The store empties itself behind a marker; our books at once.
    pub(super) fn apply_vanish(&mut self, event: &Event) {
        if !policy::is_own_relay_named(&self.rules.service, event) {
            return;
        }
        for id in self.purgatory.of_author_until(event.pubkey, event.created_at) {
            self.unhold(id);
        }
        let identifiers: Vec<Identifier> = self.catalog.identifiers_of(event.pubkey).cloned().collect();
        for identifier in identifiers {
            for (id, _, is_announcement) in self.catalog.of_author_until(event.pubkey, &identifier, event.created_at) {
                let kind = if is_announcement { kinds::ANNOUNCEMENT } else { kinds::STATE };
                let created_at = event.created_at;
                let identifier = Some(identifier.clone());
                let (author, targets) = (event.pubkey, Vec::new());
                let summary = Summary { id, author, kind, created_at, identifier, targets, tip: None };
                self.remove(&summary, Place::Served);
            }
        }
        self.write(Write::Bury(Tombstone::Author(event.pubkey, event.created_at)));
    }

    /// A newer announcement that no longer names this service ends hosting, and older ones cannot bring it back.
    pub(super) fn withdraw_if_delisted(&mut self, event: &Event, verdict: &Verdict) {
        if !matches!(verdict, Verdict::Accept | Verdict::Refuse(Refusal::Delisted)) {
            return;
        }
        let Some(new) = self.rules.announcement(event).filter(|new| policy::withdraws(&self.catalog, new)) else {
            return;
        };
        let slots = self.catalog.announcement(&new.repo).cloned().unwrap_or_default();
        for (place, old) in [(Place::Served, slots.served), (Place::Held, slots.held)] {
            let ends = |old: &Announcement| policy::is_withdrawn(place, old) && supersedes(new.stamp, old.stamp);
            if let Some(old) = old.filter(ends) {
                let summary = Summary {
                    id: old.stamp.id,
                    author: new.repo.owner,
                    kind: kinds::ANNOUNCEMENT,
                    created_at: old.stamp.created_at,
                    identifier: Some(new.repo.identifier.clone()),
                    targets: Vec::new(),
                    tip: None,
                };
                self.remove(&summary, place);
            }
        }
        self.write(Write::Bury(Tombstone::Withdrawn(new.repo, new.stamp)));
    }

    /// Forgets an event, served or held, and whatever depends on it.
    pub(super) fn remove(&mut self, event: &Summary, place: Place) {
        if place == Place::Held {
            self.unhold(event.id);
            return;
        }
        self.write(Write::Remove(event.id));
        self.forget_refs(event);
        let Some(identifier) = event.identifier.clone() else { return };
        match event.kind {
            kinds::ANNOUNCEMENT => {
                let repo = RepoId { owner: event.author, identifier };
                self.take_announcement(Place::Served, &repo, event.id);
            }
            kinds::STATE => {
                self.catalog.drop_state(event.author, &identifier, event.id);
                // Whatever followed it looks for another state to follow.
                for repo in self.hosts_of(&identifier, event.author) {
                    self.todo(Todo { site: Site::Announced(repo), pull: None });
                }
                self.wish(Output::Quarry(identifier));
            }
            _ => {}
        }
    }

    /// A pull request is served no more: its refs go, wherever they are.
    pub(super) fn forget_refs(&mut self, event: &Summary) {
        if !kinds::is_pull_request(event.kind) {
            return;
        }
        let identifiers: BTreeSet<&Identifier> = event.targets.iter().map(|target| &target.identifier).collect();
        for identifier in identifiers {
            // It may have been pushed to any maintainer's.
            let hosts = self.catalog.family(identifier).into_iter().flat_map(|family| family.hosts());
            let repo = |owner: PublicKey| RepoId { owner, identifier: identifier.clone() };
            let mut sites: Vec<Site> = hosts.map(|owner| Site::Announced(repo(owner))).collect();
            if self.rules.submissions {
                sites.push(Site::Submitted(repo(event.author)));
            }
            for site in sites {
                self.todo(Todo { site, pull: None });
            }
        }
    }

    /// Forgets a held event.
    pub(super) fn unhold(&mut self, id: EventId) {
        let Some(waiting) = self.purgatory.take(id) else { return };
        self.write(Write::Unhold(id));
        match waiting.what {
            What::Announcement(repo) => {
                self.take_announcement(Place::Held, &repo, id);
            }
            What::State(identifier) => {
                self.catalog.drop_state(waiting.author, &identifier, id);
                self.doubt(&identifier);
                self.wish(Output::Quarry(identifier));
            }
            What::PullRequest(_, sites) => {
                for site in sites {
                    self.doubt(site.identifier());
                    self.wish(Output::Quarry(site.identifier().clone()));
                }
            }
        }
    }

    /// Something that waited has gone while git was perhaps giving it its refs: that is looked at again.
    fn doubt(&mut self, identifier: &Identifier) {
        for site in self.lanes.at_work(identifier) {
            self.todo(Todo { site, pull: None });
        }
    }

    /// Whoever speaks for a repository may have a state that waits elsewhere for what is there.
    fn look_for_speakers(&mut self) {
        let mut speakers = BTreeSet::new();
        for RepoId { owner, identifier } in &self.affected {
            let Some(family) = self.catalog.family(identifier) else { continue };
            let members = family.maintainers(*owner, self.rules.strict_maintainers);
            let waits = |member: &&PublicKey| family.states(**member).is_some_and(|states| !states.held.is_empty());
            speakers.extend(members.iter().filter(waits).map(|member| (identifier.clone(), *member)));
        }
        for (identifier, speaker) in speakers {
            for site in self.looks_of(&identifier, speaker) {
                self.lanes.add(Task::Align(site));
            }
        }
    }

    /// At the end of a step, once for each name whose announcements changed: those that were accepted only because
    /// somebody named their author go with the last such name (F7), and sync and hunt are told.
    pub(super) fn settle_changed(&mut self) {
        let strict = self.rules.strict_maintainers;
        for identifier in std::mem::take(&mut self.changed) {
            // One that goes may have been another's reason to stay.
            while let Some(family) = self.catalog.family(&identifier) {
                let exceptions = family.announcements().filter_map(|(author, slots)| {
                    let served = slots.served.as_ref().filter(|served| served.exception && !served.is_hosted())?;
                    (!family.is_invited(*author, strict)).then_some((*author, served.stamp))
                });
                let lost: Vec<(PublicKey, Stamp)> = exceptions.collect();
                if lost.is_empty() {
                    break;
                }
                for (owner, stamp) in lost {
                    self.write(Write::Remove(stamp.id));
                    let repo = RepoId { owner, identifier: identifier.clone() };
                    self.take_announcement(Place::Served, &repo, stamp.id);
                    // It said that the repository is not hosted here; its going does not say that it is again.
                    self.write(Write::Bury(Tombstone::Withdrawn(repo, stamp)));
                }
            }
            self.changed.remove(&identifier);
            // What was uploaded to a repository may be wanted there now.
            let wanted = self.uploads.of_name(&identifier).filter(|event| self.purgatory.get(*event).is_some());
            for event in wanted.collect::<BTreeSet<_>>() {
                self.look(event);
            }
            self.wish(Output::Interest(identifier.clone()));
            self.wish(Output::Quarry(identifier));
        }
        self.look_for_speakers();
        for repo in std::mem::take(&mut self.affected) {
            self.touched.insert(repo.clone());
            self.todo(Todo { site: Site::Announced(repo), pull: None });
        }
        for repo in std::mem::take(&mut self.touched) {
            self.bereave(&repo);
            self.wish(Output::Hosting(repo));
        }
    }
}
