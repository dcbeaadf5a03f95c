//! What doors and the git room tell the registrar's desk, beside events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grasp_core::admission::git_job::{Order, Parcel};
use grasp_core::admission::io::{Arrival, Delivery, Haul, Push, PushId};
use grasp_core::admission::push::{Command, Permit, PushRefusal};
use grasp_core::disk_budget::Mark;
use grasp_core::fetch::io::{FetchId, HostRow};
use grasp_core::nostr::{EventId, PublicKey, Signed};
use grasp_core::repo::catalog::Place;
use grasp_core::repo::{Identifier, Site};
use grasp_core::sync::io::{Row, RowKey};
use grasp_git::apply::Carried;
use grasp_git::receive::Incoming;
use tokio::sync::oneshot;

use super::policy::RulesChanged;
use super::queue::Line;
use super::stats::Vitals;

/// Something for the desk.
pub(crate) enum Note {
    /// May this push happen?
    Ask(Push, oneshot::Sender<Result<Permit, PushRefusal>>),
    /// The packs of a push are here; they belong to the desk now.
    Arrived(Box<Arrived>),
    /// A push is over.
    Ended(PushId),
    /// The git room has done what it could about an order.
    Ordered(Order, Carried),
    /// What is known of a site?
    View(Site, oneshot::Sender<SiteView>),
    /// Which events need objects at some sites? Nothing is the answer if they are too many to be told.
    Needs(Vec<Site>, crossbeam_channel::Sender<Option<Needed>>),
    /// Sync wants rows written down and others forgotten. It is told nothing of it, and nothing is lost with them that
    /// could not be found out again.
    Remember(Vec<Row>, Vec<RowKey>),
    /// How is the writer? It is heard whatever else goes wrong.
    Pulse(crossbeam_channel::Sender<Vitals>),
    /// How full the disk budget is.
    Space(Mark),
    /// What the hunt has to say.
    Hunt(HuntNote),
    /// There are other rules in the book. Whoever put them there waits until what they mean is on disk.
    Rules(crossbeam_channel::Sender<RulesChanged>),
    /// What the operator wants.
    Operator(OperatorNote),
}

/// What the operator wants of the desk, through the admin socket. A page at a time: the desk answers between two batches.
pub(crate) enum OperatorNote {
    /// Which events wait, by id, after this one?
    Held(Option<EventId>, oneshot::Sender<Vec<HeldEvent>>),
    /// What is written of these sites?
    Books(Vec<Site>, oneshot::Sender<Vec<Books>>),
    /// A held event is to go. Whether it was there is the answer, after the commit.
    Drop(EventId, oneshot::Sender<bool>),
    /// Is everything on disk that was said before this?
    Written(oneshot::Sender<()>),
}

/// A held event, for the operator.
pub(crate) struct HeldEvent {
    pub(crate) id: EventId,
    pub(crate) kind: u16,
    pub(crate) author: PublicKey,
    /// The repositories' name, or names.
    pub(crate) names: Vec<String>,
    /// Where it may be served once its git data is here; nothing for a state, which speaks for more than one.
    pub(crate) sites: Vec<Site>,
    /// When it came and when it gives up, in unix seconds.
    pub(crate) since: u64,
    pub(crate) expires_at: u64,
    /// Its time is over, and it is looked for now and then.
    pub(crate) dormant: bool,
    /// Everybody has been asked once.
    pub(crate) tried: bool,
    /// The objects that it needs.
    pub(crate) needs: Vec<String>,
}

/// What is written of a site, for the operator.
#[derive(Default)]
pub(crate) struct Books {
    /// The state that is served, and when it was made.
    pub(crate) state: Option<(EventId, u64)>,
    /// States that wait for git data and that speak for it, the newest first.
    pub(crate) held_states: usize,
    /// Everything that waits for git data at it.
    pub(crate) held: usize,
    /// Who may speak for it.
    pub(crate) maintainers: usize,
}

/// What the hunt tells the desk.
pub(crate) enum HuntNote {
    /// A fetch is to begin for what these events need. It begins when this, and every row before it, is on disk.
    Began(FetchId, Vec<EventId>, oneshot::Sender<()>),
    /// It has brought a pack, which belongs to the desk now.
    Arrived(Haul, Incoming),
    /// What was sought under this name is here already.
    Came(Identifier),
    /// It is over.
    Ended(FetchId),
    /// Everybody has been asked once for what these events need.
    Tried(Vec<EventId>),
    /// Rows to be written down and others to be forgotten, as with [`Note::Remember`].
    Remember(Vec<HostRow>, Vec<String>),
}

impl Note {
    /// Whether nobody waits for it, so that it may wait for company.
    pub(super) fn is_patient(&self) -> bool {
        matches!(self, Self::Remember(..) | Self::Hunt(HuntNote::Remember(..)))
    }
}

/// A push whose packs have been checked.
pub(crate) struct Arrived {
    pub(crate) arrival: Arrival,
    pub(crate) packs: Vec<Incoming>,
    pub(crate) reply: oneshot::Sender<Result<(), PushRefusal>>,
}

/// A push that has been checked, each part with its own objects and no others.
pub(crate) struct CheckedPush {
    /// The objects of signed refs.
    pub(crate) pack: Option<Incoming>,
    /// The objects of pull requests whose events are not here.
    pub(crate) uploads: Vec<(EventId, String, Incoming)>,
    /// The sites whose pools were read for it.
    pub(crate) lenders: Vec<Site>,
    /// How often objects had been taken away from pools when it began.
    pub(crate) prunings: u64,
}

/// Events that need objects.
pub(crate) struct Needed {
    /// States, served and held.
    pub(crate) events: Vec<Arc<Signed>>,
    /// The commits of pull requests that wait.
    pub(crate) tips: Vec<String>,
}

/// What pages tell about a site.
#[derive(Default)]
pub(crate) struct SiteView {
    /// The announcement that decides, and whether it is served.
    pub(crate) announcement: Option<(Arc<Signed>, Place)>,
    /// The state that is served.
    pub(crate) state: Option<Arc<Signed>>,
    /// Who may speak for it, as npubs.
    pub(crate) maintainers: Vec<String>,
    /// What waits, with the time at which it gives up and what it needs.
    pub(crate) waiting: Vec<WaitingEvent>,
    /// Uploads whose event is not here: event, commit, when they give up.
    pub(crate) uploads: Vec<(EventId, String, u64)>,
}

/// A held event.
pub(crate) struct WaitingEvent {
    pub(crate) event: Arc<Signed>,
    /// When it gives up, in unix seconds.
    pub(crate) expires_at: u64,
    /// The objects that it needs.
    pub(crate) needs: Vec<String>,
}

/// Where doors reach the desk.
#[derive(Clone)]
pub(crate) struct DeskDoor {
    line: Arc<Line>,
    pushes: Arc<AtomicU64>,
}

/// A push that may happen. Dropping it tells the desk that it is over.
pub(crate) struct Permitted {
    pub(crate) push: Push,
    pub(crate) permit: Permit,
    _over: Over,
}

struct Over {
    id: PushId,
    line: Arc<Line>,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.line.post(Note::Ended(self.id));
    }
}

fn going_down() -> PushRefusal {
    PushRefusal::Failed("the server is going down".to_owned())
}

impl DeskDoor {
    pub(crate) fn new(line: Arc<Line>) -> Self {
        Self { line, pushes: Arc::new(AtomicU64::new(1)) }
    }

    /// May this push happen?
    pub(crate) async fn ask(
        &self,
        site: Site,
        commands: Vec<Command>,
        network: Option<String>,
    ) -> Result<Permitted, PushRefusal> {
        let id = PushId(self.pushes.fetch_add(1, Ordering::Relaxed));
        let push = Push { id, site, commands, network };
        let over = Over { id, line: self.line.clone() };
        let (reply, answer) = oneshot::channel();
        self.line.post(Note::Ask(push.clone(), reply));
        let permit = answer.await.unwrap_or_else(|_| Err(going_down()))?;
        Ok(Permitted { push, permit, _over: over })
    }

    /// The packs of a push are here. Once this has been called the push goes on, whoever listens.
    pub(crate) async fn arrived(&self, push: &Permitted, checked: CheckedPush) -> Result<(), PushRefusal> {
        let CheckedPush { pack, uploads, lenders, prunings } = checked;
        let parcel: Option<Parcel> = pack.as_ref().map(Incoming::parcel);
        let delivery = |(event, tip, pack): &(EventId, String, Incoming)| Delivery {
            event: *event,
            tip: tip.clone(),
            parcel: pack.parcel(),
            bytes: pack.bytes().unwrap_or(0),
        };
        let arrival = Arrival {
            push: push.push.clone(),
            parcel,
            uploads: uploads.iter().map(delivery).collect(),
            lenders,
            checked: Some(prunings),
            bytes: pack.as_ref().map_or(0, |pack| pack.bytes().unwrap_or(0)),
        };
        let packs = pack.into_iter().chain(uploads.into_iter().map(|(_, _, pack)| pack)).collect();
        let (reply, answer) = oneshot::channel();
        self.line.post(Note::Arrived(Box::new(Arrived { arrival, packs, reply })));
        answer.await.unwrap_or_else(|_| Err(going_down()))
    }

    /// Events that wait, by id, after this one: a page. Nothing if the desk cannot say.
    pub(crate) async fn held(&self, after: Option<EventId>) -> Option<Vec<HeldEvent>> {
        self.operator(|reply| OperatorNote::Held(after, reply)).await
    }

    /// What is written of these sites, in their order. Nothing if the desk cannot say.
    pub(crate) async fn books(&self, sites: Vec<Site>) -> Option<Vec<Books>> {
        self.operator(|reply| OperatorNote::Books(sites, reply)).await
    }

    /// Lets a held event go; whether it was there. Nothing if it could not be written down.
    pub(crate) async fn drop_held(&self, id: EventId) -> Option<bool> {
        self.operator(|reply| OperatorNote::Drop(id, reply)).await
    }

    async fn operator<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> OperatorNote) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.line.post(Note::Operator(make(reply)));
        answer.await.ok()
    }

    /// What is known of a site.
    pub(crate) async fn view(&self, site: Site) -> SiteView {
        let (reply, answer) = oneshot::channel();
        self.line.post(Note::View(site, reply));
        answer.await.unwrap_or_default()
    }
}
