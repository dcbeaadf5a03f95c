//! Simulated clients that push.

use std::collections::BTreeMap;

use grasp_core::admission::git_job::ReceivedPack;
use grasp_core::admission::io::{AdmissionInput, PushId, ReceivedPush, ReceivedUpload, RequestedPush};
use grasp_core::admission::push::{PushCommand, PushPermit, PushRejection};
use grasp_core::nostr::EventId;
use grasp_core::repo::{RepoPath, RepoState};

use super::{Crashed, TestServer};
use crate::git_model::{Oids, is_branch_or_tag, pull_ref};
use crate::store_contract::StoreUnderTest;

/// A push as a client wants to make it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientPush {
    /// Repository that is pushed to.
    pub repo_path: RepoPath,
    /// New values of refs; `None` deletes the ref.
    pub refs: BTreeMap<String, Option<String>>,
    /// Objects that the client can send.
    pub brings: Oids,
    /// Network of the client.
    pub network: Option<String>,
    /// Size of each upload.
    pub bytes: u64,
}

/// A requested push and the decision about it.
pub(super) type PermitDecision = (PushId, Result<PushPermit, PushRejection>);

impl ClientPush {
    /// Creates a push to a repository that changes nothing yet.
    pub fn new(repo_path: RepoPath) -> Self {
        Self { repo_path, refs: BTreeMap::new(), brings: Oids::new(), network: None, bytes: 1_000 }
    }

    /// Sets a ref and sends its object.
    pub fn set(mut self, name: &str, oid: &str) -> Self {
        self.refs.insert(name.to_owned(), Some(oid.to_owned()));
        self.bring(&[oid])
    }

    /// Sets the ref of a pull request and sends its object.
    pub fn pull(self, event: EventId, oid: &str) -> Self {
        self.set(&pull_ref(event), oid)
    }

    /// Deletes a ref.
    pub fn delete(mut self, name: &str) -> Self {
        self.refs.insert(name.to_owned(), None);
        self
    }

    /// Sends more objects.
    pub fn bring(mut self, oids: &[&str]) -> Self {
        self.brings.extend(oids.iter().map(|oid| (*oid).to_owned()));
        self
    }

    /// Sets the network that the push comes from.
    pub fn from(mut self, network: &str) -> Self {
        self.network = Some(network.to_owned());
        self
    }
}

/// Result of a push.
pub type PushResult = Result<(), PushRejection>;

/// A push in progress.
#[derive(Debug)]
pub(super) struct OngoingPush {
    client_push: ClientPush,
    push: RequestedPush,
    permit: Option<Result<PushPermit, PushRejection>>,
    received_packs: Vec<ReceivedPack>,
    arrived: bool,
    done: Option<PushResult>,
}

impl OngoingPush {
    /// Whether the client waits for a reply.
    pub(super) fn is_waiting(&self) -> bool {
        self.permit.is_none() || (self.arrived && self.done.is_none())
    }
}

impl TestServer {
    /// Pushes and waits for the result.
    pub fn push(&mut self, client_push: &ClientPush) -> PushResult {
        self.try_push(client_push).expect("no crash is injected")
    }

    /// Pushes and settles, unless the injected crash happens before that. A push that changes nothing succeeds.
    pub fn try_push(&mut self, client_push: &ClientPush) -> Result<PushResult, Crashed> {
        self.answered = false;
        let Some((id, permit)) = self.request_push(client_push)? else { return Ok(Ok(())) };
        let result = match permit {
            Ok(_) => match self.receive_packs(id)? {
                Some(rejected) => rejected,
                None => self.wait_for_push(id)?,
            },
            Err(rejection) => Err(rejection),
        };
        self.answered = true;
        self.end_push(id)?;
        self.settle()?;
        Ok(result)
    }

    /// Requests permission for a push. Returns `None` if the push would change nothing.
    pub fn request_push(&mut self, client_push: &ClientPush) -> Result<Option<PermitDecision>, Crashed> {
        let here = self.refs(&client_push.repo_path);
        let command = |(name, new): (&String, &Option<String>)| {
            let old = here.get(name).cloned();
            (old != *new).then(|| PushCommand { name: name.clone(), old, new: new.clone() })
        };
        let commands: Vec<PushCommand> = client_push.refs.iter().filter_map(command).collect();
        if commands.is_empty() {
            return Ok(None);
        }
        self.next_push += 1;
        let id = PushId(self.next_push);
        let push = RequestedPush {
            id,
            repo_path: client_push.repo_path.clone(),
            commands,
            network: client_push.network.clone(),
        };
        let ongoing = OngoingPush {
            client_push: client_push.clone(),
            push: push.clone(),
            permit: None,
            received_packs: Vec::new(),
            arrived: false,
            done: None,
        };
        self.pushes.insert(id, ongoing);
        let mut batch = self.begin_batch();
        self.handle_input(&mut batch, AdmissionInput::PushRequested(push));
        self.finish_batch(batch)?;
        let permit = self.pushes.get(&id).and_then(|push| push.permit.clone());
        Ok(Some((id, permit.expect("every push is decided in its own batch"))))
    }

    /// Receives the packs of a permitted push. Returns a result if they are not connected.
    pub fn receive_packs(&mut self, id: PushId) -> Result<Option<PushResult>, Crashed> {
        let Some(OngoingPush { client_push, push, permit: Some(Ok(permit)), .. }) = self.pushes.get(&id) else {
            return Ok(None);
        };
        let (client_push, push, permit) = (client_push.clone(), push.clone(), permit.clone());
        let (alternates, checked) = (self.alternates(&client_push.repo_path), Some(self.git.prune_count()));
        let here = self.readable(&client_push.repo_path);
        let alternates: Vec<RepoPath> = alternates.into_iter().collect();
        let tips: Vec<&String> = push.commands.iter().filter_map(|command| command.new.as_ref()).collect();
        let all: Oids = client_push.brings.union(&here).cloned().collect();
        if !tips.iter().all(|tip| self.git.is_complete(tip, &all)) {
            return Ok(Some(Err(PushRejection::Failed("pack is not connected".to_owned()))));
        }
        let new = |oids: Oids| -> Oids { oids.into_iter().filter(|oid| !here.contains(oid)).collect() };
        let branches = push.commands.iter().filter(|command| is_branch_or_tag(&command.name));
        let signed =
            branches.filter_map(|command| command.new.as_ref()).chain(permit.pull_requests.iter().map(|(_, tip)| tip));
        let needed = new(signed.flat_map(|tip| self.git.closure(tip)).collect());
        self.received_objects.extend(needed.iter().cloned());
        let received_pack = (!needed.is_empty()).then(|| self.git.receive(needed));
        let mut uploads = Vec::new();
        for (event, tip) in &permit.uploads {
            let needed = new(self.git.closure(tip));
            self.uploaded.push((*event, tip.clone(), needed.clone()));
            let received_pack = self.git.receive(needed);
            uploads.push(ReceivedUpload { event: *event, tip: tip.clone(), received_pack, bytes: client_push.bytes });
        }
        let bytes = if received_pack.is_some() { client_push.bytes } else { 0 };
        let received_packs =
            received_pack.iter().cloned().chain(uploads.iter().map(|upload| upload.received_pack.clone())).collect();
        if let Some(ongoing) = self.pushes.get_mut(&id) {
            (ongoing.received_packs, ongoing.arrived) = (received_packs, true);
        }
        self.count_durable_step()?;
        let mut batch = self.begin_batch();
        self.handle_input(
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
        self.finish_batch(batch)?;
        Ok(None)
    }

    /// Runs git jobs until a push has its result.
    pub fn wait_for_push(&mut self, id: PushId) -> Result<PushResult, Crashed> {
        loop {
            if let Some(result) = self.push_result(id) {
                return Ok(result);
            }
            assert!(!self.running.is_empty(), "{id:?} never gets a result");
            self.step_git_job(0)?;
        }
    }

    /// Returns the result of a received push, if there is one yet.
    pub fn push_result(&self, id: PushId) -> Option<PushResult> {
        self.pushes.get(&id)?.done.clone()
    }

    /// Returns the pushes in progress.
    pub fn ongoing_pushes(&self) -> Vec<PushId> {
        self.pushes.keys().copied().collect()
    }

    /// Ends a push, whatever its result.
    pub fn end_push(&mut self, id: PushId) -> Result<(), Crashed> {
        if self.pushes.remove(&id).is_none() {
            return Ok(());
        }
        let mut batch = self.begin_batch();
        self.handle_input(&mut batch, AdmissionInput::PushEnded(id));
        self.finish_batch(batch).map(|_| ())
    }

    /// Finds the difference to the newest state, as the git handler does outside of the writer.
    fn explain(&mut self, rejection: PushRejection) -> PushRejection {
        rejection.explain(|newest| self.store.event(newest).and_then(|(event, _)| RepoState::from_event(&event)))
    }

    pub(super) fn set_permit(&mut self, id: PushId, result: Result<PushPermit, PushRejection>) {
        let result = result.map_err(|rejection| self.explain(rejection));
        let push = self.pushes.get_mut(&id).expect("push is in progress");
        assert_eq!(push.permit.replace(result), None, "{id:?} was permitted twice");
    }

    pub(super) fn set_push_result(&mut self, id: PushId, result: PushResult) {
        let result = result.map_err(|rejection| self.explain(rejection));
        let push = self.pushes.get_mut(&id).expect("push is in progress");
        assert!(push.arrived, "{id:?} has a result before its packs were received");
        assert_eq!(push.done.replace(result), None, "{id:?} has two results");
        self.answered = true;
        for received_pack in std::mem::take(&mut push.received_packs) {
            self.git.discard(&received_pack);
        }
    }

    pub(super) fn reject_push(&mut self, id: PushId) {
        let failed = || PushRejection::Failed("store write failed".to_owned());
        let Some(push) = self.pushes.get_mut(&id) else { return };
        if push.permit.is_none() {
            push.permit = Some(Err(failed()));
        } else {
            self.set_push_result(id, Err(failed()));
        }
    }
}
