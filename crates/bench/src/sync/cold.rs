//! An empty server follows a full one; then it is started again.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tokio::time::sleep;

use super::frames::Verbs;
use super::publish::{count, served};
use super::server::{Follows, GLANCE, Plan, Server, sample};
use super::wire::{Traffic, Wire};
use super::world::{PATIENCE, SOURCE, World, seconds};
use crate::connection::Connection;
use crate::process::{Memory, Process};
use crate::process_usage::rounded;
use crate::repository::{ANNOUNCEMENT, STATE};
use crate::{connection, machine};

/// What following cost.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    /// Events that are served in the end.
    pub(super) events: u64,
    /// From the first connection until the last of them was served; nothing for a restart.
    pub(super) served_seconds: Option<f64>,
    /// From the first connection until the follower first said that it had caught up. A new one says so when it has the
    /// announcements, if their git data is looked at after that.
    pub(super) caught_up_seconds: f64,
    /// CPU time of the follower since it was started.
    pub(super) follower_cpu_seconds: f64,
    /// CPU time of the source meanwhile.
    pub(super) source_cpu_seconds: f64,
    /// Cores that others kept busy meanwhile.
    pub(super) foreign_cores: f64,
    /// Bytes from the follower to the source.
    pub(super) sent: u64,
    /// Bytes from the source to the follower.
    pub(super) received: u64,
    /// `sent` as multiples of one list of all that is followed.
    pub(super) filter_sets: f64,
    /// What the follower said.
    pub(super) said: Verbs,
    /// What it heard.
    pub(super) heard: Verbs,
    /// The follower's memory in the end.
    #[serde(flatten)]
    pub(super) memory: Memory,
    /// The most that the follower ever had, mapped files included.
    pub(super) peak_kb: u64,
    /// What the follower complained about.
    pub(super) complaints: Vec<String>,
}

/// One life of the follower.
pub(super) struct Run<'a> {
    pub(super) world: &'a World,
    pub(super) wire: &'a Wire,
    /// The one that is followed.
    pub(super) source: Process,
}

impl Run<'_> {
    /// Starts the follower and waits until it has everything.
    pub(super) async fn cold(&self, plan: &Plan) -> Result<(Server, Figures)> {
        self.watch(plan, true).await
    }

    /// Starts a follower that has everything and waits until it knows that.
    pub(super) async fn again(&self, plan: &Plan) -> Result<(Server, Figures)> {
        self.watch(plan, false).await
    }

    async fn watch(&self, plan: &Plan, cold: bool) -> Result<(Server, Figures)> {
        let plan = plan.following(Follows::Relays(vec![format!("ws://{SOURCE}")]));
        self.wire.take();
        let wanted = self.world.corpus.extent.events();
        let (before, busy, own) = (self.source.cpu_time()?, machine::busy_time()?, Process::Own.cpu_time()?);
        let started = Instant::now();
        let follower = plan.start()?;
        let served_at = if cold { Some(self.until_all(&follower, wanted).await?) } else { None };
        let caught_up = follower.says(&["caught up", SOURCE], PATIENCE).await?;
        let spent = follower.process().cpu_time()?;
        let source = self.source.cpu_time()?.saturating_sub(before);
        let others = (machine::busy_time()?.saturating_sub(busy))
            .saturating_sub(Process::Own.cpu_time()?.saturating_sub(own) + spent + source);
        let traffic = self.wire.look();
        let Traffic { began, sent, received, .. } = traffic;
        let mut connection = Connection::open(&follower.url()?, connection::Traffic::Light).await?;
        let events = served(&mut connection).await?;
        let figures = Figures {
            events,
            served_seconds: served_at.map(|at| seconds(began, at)),
            caught_up_seconds: seconds(began, caught_up),
            follower_cpu_seconds: rounded(spent.as_secs_f64()),
            source_cpu_seconds: rounded(source.as_secs_f64()),
            foreign_cores: rounded(others.as_secs_f64() / started.elapsed().as_secs_f64()),
            sent,
            received,
            filter_sets: rounded(traffic.bytes_said("REQ") as f64 / self.world.corpus.filter_bytes() as f64),
            said: traffic.said,
            heard: traffic.heard,
            memory: follower.process().memory()?,
            peak_kb: follower.process().peak_kb()?,
            complaints: follower.complaints(),
        };
        Ok((follower, figures))
    }

    /// Waits until everything is served. Counters are asked first, for they cost the server nothing; then the store.
    async fn until_all(&self, follower: &Server, wanted: u64) -> Result<Instant> {
        let started = Instant::now();
        let mut connection = Connection::open(&follower.url()?, connection::Traffic::Light).await?;
        let projects = 2 * self.world.corpus.extent.repositories;
        let mut shown = Instant::now();
        loop {
            let metrics = follower.metrics().await?;
            let came = sample(&metrics, "ngit_sync_judged_total", &[]).unwrap_or(0.0) as u64;
            if came + projects >= wanted && served(&mut connection).await? >= wanted {
                return Ok(Instant::now());
            }
            if shown.elapsed().as_secs() >= 5 {
                shown = Instant::now();
                let announced = count(&mut connection, &serde_json::json!({ "kinds": [ANNOUNCEMENT, STATE] })).await?;
                let traffic = self.wire.look();
                crate::sync::sheet::remark(&format!(
                    "{came} judged, {announced} of layer one served, {} kB sent, {} kB received",
                    traffic.sent / 1000,
                    traffic.received / 1000
                ));
            }
            if started.elapsed() > PATIENCE {
                let all = served(&mut connection).await.context("cannot count")?;
                bail!("{all} of {wanted} after {} s; {:#?}", PATIENCE.as_secs(), follower.complaints());
            }
            sleep(2 * GLANCE).await;
        }
    }
}
