//! What can be seen of the house.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::Registrar;
use grasp_core::admission::git_job::{Order, OrderId};
use grasp_core::admission::io::{Restored, Todo, Upload};
use grasp_core::fetch::io::Quarry;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::{PublicKey, Signed};
use grasp_core::repo::{Identifier, RepoId, Site};
use grasp_core::sync::io::Followed;
use grasp_core::time::Now;

use super::{House, View};
use crate::git_model::Git;
use crate::store_model::Memory;

impl House {
    /// The repositories that are hosted here.
    #[must_use]
    pub fn hosted(&self) -> Vec<RepoId> {
        let repos = self.registrar.catalog().repositories().map(|(repo, _)| repo);
        repos.filter(|repo| self.registrar.hosted(repo).is_some()).collect()
    }

    /// The repositories hosted here that an author may speak for.
    #[must_use]
    pub fn repos_of(&self, identifier: &Identifier, author: PublicKey) -> Vec<RepoId> {
        let strict = self.registrar.rules().strict_maintainers;
        let family = self.registrar.catalog().family(identifier).into_iter();
        family
            .flat_map(|family| family.hosts_of(author, strict))
            .map(|owner| RepoId { owner, identifier: identifier.clone() })
            .collect()
    }

    /// What sync should follow under a name, by the committed store.
    #[must_use]
    pub fn followed(&self, identifier: &Identifier) -> Vec<Followed> {
        self.registrar.followed(identifier, |id| self.memory.seq_of(id).expect("it is served"))
    }

    /// What the hunt should look for under a name.
    #[must_use]
    pub fn quarries(&self, identifier: &Identifier) -> Vec<Quarry> {
        self.registrar.quarries(identifier, |id| self.memory.text_of(id))
    }

    /// The registrar.
    #[must_use]
    pub fn registrar(&self) -> &Registrar {
        &self.registrar
    }

    /// The store.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Git.
    pub fn git(&mut self) -> &mut Git {
        &mut self.git
    }

    /// The refs of a site, as the world sees them.
    #[must_use]
    pub fn refs(&self, site: &Site) -> BTreeMap<String, String> {
        self.shown.get(site).map(|view| view.refs.clone()).unwrap_or_default()
    }

    /// All sites that have refs to show or a folder, with their refs.
    #[must_use]
    pub fn views(&self) -> BTreeMap<Site, View> {
        let worth = |(_, view): &(&Site, &View)| view.exists || !view.refs.is_empty();
        self.shown.iter().filter(worth).map(|(site, view)| (site.clone(), view.clone())).collect()
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }

    /// The ids of everything that is served and of everything that is held.
    #[must_use]
    pub fn sets(&self) -> (BTreeSet<EventId>, BTreeSet<EventId>) {
        let served = self.memory.served_events().map(|event| event.id).collect();
        (served, self.memory.held_events().map(|event| event.id).collect())
    }

    /// The durable notes of work.
    #[must_use]
    pub fn notes(&self) -> BTreeSet<Todo> {
        let todo = |restored| if let Restored::Todo(todo) = restored { Some(todo) } else { None };
        Memory::restored(&self.memory).into_iter().filter_map(todo).collect()
    }

    /// The uploads that have a row.
    #[must_use]
    pub fn staged(&self) -> Vec<Upload> {
        let staged = |restored| if let Restored::Staged(upload) = restored { Some(upload) } else { None };
        Memory::restored(&self.memory).into_iter().filter_map(staged).collect()
    }

    /// Takes the orders that were given.
    pub fn orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// Where an order stands among those that are under way.
    #[must_use]
    pub fn place_of(&self, order: OrderId) -> Option<usize> {
        self.running.iter().position(|running| running.id == order)
    }

    /// Takes the events that were only passed on.
    pub fn passed(&mut self) -> Vec<Arc<Signed>> {
        std::mem::take(&mut self.passed)
    }

    /// Takes the bells that rang: names for sync, names for the hunt.
    pub fn bells(&mut self) -> (BTreeSet<Identifier>, BTreeSet<Identifier>) {
        std::mem::take(&mut self.bells)
    }
}
