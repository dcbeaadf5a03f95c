//! Those who push.

use std::collections::BTreeMap;

use grasp_core::admission::git_job::ReceivedPack;
use grasp_core::admission::io::{AdmissionInput, PushId, ReceivedPush, ReceivedUpload, RequestedPush};
use grasp_core::admission::push::{PushCommand, PushPermit, PushRejection};
use grasp_core::nostr::EventId;
use grasp_core::repo::RepoPath;

use super::transaction::Batch;
use super::{Crashed, House};
use crate::git_model::{Oids, is_branch_or_tag, pull_ref};

/// What somebody wants to push.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Where to.
    pub repo_path: RepoPath,
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
pub(super) type Asked = (PushId, Result<PushPermit, PushRejection>);

impl Wish {
    /// A push to a site that changes nothing yet.
    #[must_use]
    pub fn new(repo_path: RepoPath) -> Self {
        Self { repo_path, refs: BTreeMap::new(), brings: Oids::new(), network: None, bytes: 1_000 }
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
pub type Pushed = Result<(), PushRejection>;

/// A push that is under way.
#[derive(Debug)]
pub(super) struct Ongoing {
    wish: Wish,
    push: RequestedPush,
    permit: Option<Result<PushPermit, PushRejection>>,
    received_packs: Vec<ReceivedPack>,
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
        let here = self.refs(&wish.repo_path);
        let command = |(name, new): (&String, &Option<String>)| {
            let old = here.get(name).cloned();
            (old != *new).then(|| PushCommand { name: name.clone(), old, new: new.clone() })
        };
        let commands: Vec<PushCommand> = wish.refs.iter().filter_map(command).collect();
        if commands.is_empty() {
            return Ok(None);
        }
        self.next_push += 1;
        let id = PushId(self.next_push);
        let push = RequestedPush { id, repo_path: wish.repo_path.clone(), commands, network: wish.network.clone() };
        let ongoing = Ongoing {
            wish: wish.clone(),
            push: push.clone(),
            permit: None,
            received_packs: Vec::new(),
            arrived: false,
            done: None,
        };
        self.pushes.insert(id, ongoing);
        let mut batch = Batch::default();
        self.tell(&mut batch, AdmissionInput::PushRequested(push));
        self.conclude(batch)?;
        let permit = self.pushes.get(&id).and_then(|push| push.permit.clone());
        Ok(Some((id, permit.expect("every wish is answered in its own batch"))))
    }

    /// Lets the packs of a permitted push arrive. Gives an answer if they are not what they should be.
    pub fn arrive(&mut self, id: PushId) -> Result<Option<Pushed>, Crashed> {
        let Some(Ongoing { wish, push, permit: Some(Ok(permit)), .. }) = self.pushes.get(&id) else { return Ok(None) };
        let (wish, push, permit) = (wish.clone(), push.clone(), permit.clone());
        let (alternates, checked) = (self.alternates(&wish.repo_path), Some(self.git.prunings()));
        let here = self.git.read(&wish.repo_path, &alternates);
        let alternates: Vec<RepoPath> = alternates.into_iter().collect();
        let tips: Vec<&String> = push.commands.iter().filter_map(|command| command.new.as_ref()).collect();
        let all: Oids = wish.brings.union(&here).cloned().collect();
        if !tips.iter().all(|tip| self.git.is_complete(tip, &all)) {
            return Ok(Some(Err(PushRejection::Failed("the pack is not connected".to_owned()))));
        }
        let new = |oids: Oids| -> Oids { oids.into_iter().filter(|oid| !here.contains(oid)).collect() };
        let branches = push.commands.iter().filter(|command| is_branch_or_tag(&command.name));
        let signed =
            branches.filter_map(|command| command.new.as_ref()).chain(permit.pull_requests.iter().map(|(_, tip)| tip));
        let needed = new(signed.flat_map(|tip| self.git.closure(tip)).collect());
        self.brought.extend(needed.iter().cloned());
        let received_pack = (!needed.is_empty()).then(|| self.git.receive(needed));
        let mut uploads = Vec::new();
        for (event, tip) in &permit.uploads {
            let needed = new(self.git.closure(tip));
            self.uploaded.push((*event, tip.clone(), needed.clone()));
            let received_pack = self.git.receive(needed);
            uploads.push(ReceivedUpload { event: *event, tip: tip.clone(), received_pack, bytes: wish.bytes });
        }
        let bytes = if received_pack.is_some() { wish.bytes } else { 0 };
        let received_packs =
            received_pack.iter().cloned().chain(uploads.iter().map(|upload| upload.received_pack.clone())).collect();
        if let Some(ongoing) = self.pushes.get_mut(&id) {
            (ongoing.received_packs, ongoing.arrived) = (received_packs, true);
        }
        self.tick()?;
        let mut batch = Batch::default();
        self.tell(
            &mut batch,
            AdmissionInput::PushReceived(ReceivedPush {
                push,
                received_pack,
                uploads,
                alternates,
                checked_prune_count: checked,
                bytes,
            }),
        );
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
        self.tell(&mut batch, AdmissionInput::PushEnded(id));
        self.conclude(batch).map(|_| ())
    }

    pub(super) fn permit(&mut self, id: PushId, result: Result<PushPermit, PushRejection>) {
        let push = self.pushes.get_mut(&id).expect("somebody asked");
        assert_eq!(push.permit.replace(result), None, "{id:?} was permitted twice");
    }

    pub(super) fn done(&mut self, id: PushId, result: Pushed) {
        let push = self.pushes.get_mut(&id).expect("somebody pushed");
        assert!(push.arrived, "{id:?} is answered before it has come");
        assert_eq!(push.done.replace(result), None, "{id:?} was answered twice");
        self.answered = true;
        for received_pack in std::mem::take(&mut push.received_packs) {
            self.git.discard(&received_pack);
        }
    }

    pub(super) fn turn_away_push(&mut self, id: PushId) {
        let failed = || PushRejection::Failed("the store cannot write".to_owned());
        let Some(push) = self.pushes.get_mut(&id) else { return };
        if push.permit.is_none() {
            push.permit = Some(Err(failed()));
        } else {
            self.done(id, Err(failed()));
        }
    }
}
