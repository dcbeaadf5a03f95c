//! Those who push.

use std::collections::BTreeMap;

use grasp_core::admission::git_job::Parcel;
use grasp_core::admission::io::{Arrival, Delivery, Input, Push, PushId};
use grasp_core::admission::push::{Command, Permit, PushRefusal};
use grasp_core::nostr::EventId;
use grasp_core::repo::Site;

use super::transaction::Batch;
use super::{Crashed, House};
use crate::git_model::{Oids, is_branch_or_tag, pull_ref};

/// What somebody wants to push.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Where to.
    pub site: Site,
    /// Where refs should stand; `None` deletes.
    pub refs: BTreeMap<String, Option<String>>,
    /// The objects that the client has.
    pub brings: Oids,
    /// Where it comes from.
    pub network: Option<String>,
    /// Bytes of each upload.
    pub bytes: u64,
}

/// A push that was asked for, and the answer.
pub(super) type Asked = (PushId, Result<Permit, PushRefusal>);

impl Wish {
    /// A push to a site that changes nothing yet.
    #[must_use]
    pub fn new(site: Site) -> Self {
        Self { site, refs: BTreeMap::new(), brings: Oids::new(), network: None, bytes: 1_000 }
    }

    /// A ref should stand here. The object is brought.
    #[must_use]
    pub fn set(mut self, name: &str, oid: &str) -> Self {
        self.refs.insert(name.to_owned(), Some(oid.to_owned()));
        self.bring(&[oid])
    }

    /// The ref of a pull request should stand here. The object is brought.
    #[must_use]
    pub fn pull(self, event: EventId, oid: &str) -> Self {
        self.set(&pull_ref(event), oid)
    }

    /// A ref should go.
    #[must_use]
    pub fn delete(mut self, name: &str) -> Self {
        self.refs.insert(name.to_owned(), None);
        self
    }

    /// More objects come.
    #[must_use]
    pub fn bring(mut self, oids: &[&str]) -> Self {
        self.brings.extend(oids.iter().map(|oid| (*oid).to_owned()));
        self
    }

    /// The push comes from this network.
    #[must_use]
    pub fn from(mut self, network: &str) -> Self {
        self.network = Some(network.to_owned());
        self
    }
}

/// What came of a push.
pub type Pushed = Result<(), PushRefusal>;

/// A push that is under way.
#[derive(Debug)]
pub(super) struct Ongoing {
    wish: Wish,
    push: Push,
    permit: Option<Result<Permit, PushRefusal>>,
    parcels: Vec<Parcel>,
    arrived: bool,
    done: Option<Pushed>,
}

impl Ongoing {
    /// Whether somebody waits for an answer.
    pub(super) fn waits(&self) -> bool {
        self.permit.is_none() || (self.arrived && self.done.is_none())
    }
}

impl House {
    /// Pushes, from asking to the answer.
    pub fn push(&mut self, wish: &Wish) -> Pushed {
        self.try_push(wish).expect("no end was planned")
    }

    /// Pushes, if the world does not end before everything that follows is done. A push of what is so already is none.
    pub fn try_push(&mut self, wish: &Wish) -> Result<Pushed, Crashed> {
        self.answered = false;
        let Some((id, permit)) = self.ask(wish)? else { return Ok(Ok(())) };
        let result = match permit {
            Ok(_) => match self.arrive(id)? {
                Some(refused) => refused,
                None => self.wait(id)?,
            },
            Err(refusal) => Err(refusal),
        };
        self.answered = true;
        self.end(id)?;
        self.rest()?;
        Ok(result)
    }

    /// Asks whether a push may happen. Nothing is asked if nothing would change.
    pub fn ask(&mut self, wish: &Wish) -> Result<Option<Asked>, Crashed> {
        let here = self.refs(&wish.site);
        let command = |(name, new): (&String, &Option<String>)| {
            let old = here.get(name).cloned();
            (old != *new).then(|| Command { name: name.clone(), old, new: new.clone() })
        };
        let commands: Vec<Command> = wish.refs.iter().filter_map(command).collect();
        if commands.is_empty() {
            return Ok(None);
        }
        self.next_push += 1;
        let id = PushId(self.next_push);
        let push = Push { id, site: wish.site.clone(), commands, network: wish.network.clone() };
        let ongoing = Ongoing {
            wish: wish.clone(),
            push: push.clone(),
            permit: None,
            parcels: Vec::new(),
            arrived: false,
            done: None,
        };
        self.pushes.insert(id, ongoing);
        let mut batch = Batch::default();
        self.tell(&mut batch, Input::PushAsked(push));
        self.conclude(batch)?;
        let permit = self.pushes.get(&id).and_then(|push| push.permit.clone());
        Ok(Some((id, permit.expect("every wish is answered in its own batch"))))
    }

    /// Lets the packs of a permitted push arrive. Gives an answer if they are not what they should be.
    pub fn arrive(&mut self, id: PushId) -> Result<Option<Pushed>, Crashed> {
        let Some(Ongoing { wish, push, permit: Some(Ok(permit)), .. }) = self.pushes.get(&id) else { return Ok(None) };
        let (wish, push, permit) = (wish.clone(), push.clone(), permit.clone());
        let (lenders, checked) = (self.lenders(&wish.site), Some(self.git.prunings()));
        let here = self.git.read(&wish.site, &lenders);
        let lenders: Vec<Site> = lenders.into_iter().collect();
        let tips: Vec<&String> = push.commands.iter().filter_map(|command| command.new.as_ref()).collect();
        let all: Oids = wish.brings.union(&here).cloned().collect();
        if !tips.iter().all(|tip| self.git.is_complete(tip, &all)) {
            return Ok(Some(Err(PushRefusal::Failed("the pack is not connected".to_owned()))));
        }
        let new = |oids: Oids| -> Oids { oids.into_iter().filter(|oid| !here.contains(oid)).collect() };
        let branches = push.commands.iter().filter(|command| is_branch_or_tag(&command.name));
        let signed = branches.filter_map(|command| command.new.as_ref()).chain(permit.pulls.iter().map(|(_, tip)| tip));
        let needed = new(signed.flat_map(|tip| self.git.closure(tip)).collect());
        self.brought.extend(needed.iter().cloned());
        let parcel = (!needed.is_empty()).then(|| self.git.receive(needed));
        let mut uploads = Vec::new();
        for (event, tip) in &permit.uploads {
            let needed = new(self.git.closure(tip));
            self.uploaded.push((*event, tip.clone(), needed.clone()));
            let parcel = self.git.receive(needed);
            uploads.push(Delivery { event: *event, tip: tip.clone(), parcel, bytes: wish.bytes });
        }
        let bytes = if parcel.is_some() { wish.bytes } else { 0 };
        let parcels = parcel.iter().cloned().chain(uploads.iter().map(|upload| upload.parcel.clone())).collect();
        if let Some(ongoing) = self.pushes.get_mut(&id) {
            (ongoing.parcels, ongoing.arrived) = (parcels, true);
        }
        self.tick()?;
        let mut batch = Batch::default();
        self.tell(&mut batch, Input::PushArrived(Arrival { push, parcel, uploads, lenders, checked, bytes }));
        self.conclude(batch)?;
        Ok(None)
    }

    /// Lets git work until a push is answered.
    pub fn wait(&mut self, id: PushId) -> Result<Pushed, Crashed> {
        loop {
            if let Some(result) = self.result(id) {
                return Ok(result);
            }
            assert!(!self.running.is_empty(), "{id:?} is never answered");
            self.step(0)?;
        }
    }

    /// The answer to a push that has arrived, if there is one yet.
    #[must_use]
    pub fn result(&self, id: PushId) -> Option<Pushed> {
        self.pushes.get(&id)?.done.clone()
    }

    /// The pushes that are under way.
    #[must_use]
    pub fn ongoing(&self) -> Vec<PushId> {
        self.pushes.keys().copied().collect()
    }

    /// A push is over, whatever came of it.
    pub fn end(&mut self, id: PushId) -> Result<(), Crashed> {
        if self.pushes.remove(&id).is_none() {
            return Ok(());
        }
        let mut batch = Batch::default();
        self.tell(&mut batch, Input::PushEnded(id));
        self.conclude(batch).map(|_| ())
    }

    pub(super) fn permit(&mut self, id: PushId, result: Result<Permit, PushRefusal>) {
        let push = self.pushes.get_mut(&id).expect("somebody asked");
        assert_eq!(push.permit.replace(result), None, "{id:?} was permitted twice");
    }

    pub(super) fn done(&mut self, id: PushId, result: Pushed) {
        let push = self.pushes.get_mut(&id).expect("somebody pushed");
        assert!(push.arrived, "{id:?} is answered before it has come");
        assert_eq!(push.done.replace(result), None, "{id:?} was answered twice");
        self.answered = true;
        for parcel in std::mem::take(&mut push.parcels) {
            self.git.discard(&parcel);
        }
    }

    pub(super) fn turn_away_push(&mut self, id: PushId) {
        let failed = || PushRefusal::Failed("the store cannot write".to_owned());
        let Some(push) = self.pushes.get_mut(&id) else { return };
        if push.permit.is_none() {
            push.permit = Some(Err(failed()));
        } else {
            self.done(id, Err(failed()));
        }
    }
}
