//! The status page.

use std::collections::BTreeMap;

use grasp_core::fetch;
use grasp_core::sync::io::SyncSource;
use grasp_core::sync::{CatchUpProgress, RelaySnapshot};

use super::super::{NAME_CHARS, STYLE, Text, shortened};
use super::format::{Mood, bytes, count, duration, lag, ordered, place, ratio, state, waits};
use super::{FEW, MOST, Status};
use crate::monitor::endpoints::Check;
use crate::sync::status::Why;

/// Refusals that are shown: the most frequent.
const REFUSALS: usize = 12;

/// Words that are good or bad have a colour beside what they say.
const OWN_STYLE: &str = "\
:root{--good:#137333;--bad:#b3261e}@media(prefers-color-scheme:dark){:root{--good:#81c995;--bad:#f2b8b5}}\
.good{color:var(--good)}.fair{color:var(--note)}.bad{color:var(--bad)}.good,.fair,.bad{font-weight:600}\
dl.facts{display:grid;grid-template-columns:minmax(8rem,max-content) 1fr;gap:.2rem 1rem;margin:.5rem 0}\
dl.facts dt{font-weight:400;opacity:.8}dl.facts dd{margin:0;font-variant-numeric:tabular-nums}\
ul.rows{list-style:none;padding:0}ul.rows li{border-top:1px solid var(--soft);padding:.5rem 0}\
small{opacity:.85;font-variant-numeric:tabular-nums}";

/// The page in the making.
#[derive(Default)]
pub(super) struct Sheet {
    html: String,
    /// Values by their keys.
    pub(super) shown: BTreeMap<String, String>,
    /// What the page looks like beside its values: keys and classes.
    pub(super) shape: Vec<String>,
}

impl Sheet {
    pub(super) fn of(status: &Status<'_>) -> Self {
        let mut sheet = Self::default();
        sheet.summary(status);
        sheet.relays(status);
        sheet.purgatory(status);
        sheet.hunt(status);
        sheet.refusals(status);
        sheet.space(status);
        sheet.queues(status);
        sheet
    }

    /// The whole page.
    pub(super) fn html(&self, status: &Status<'_>, shape: &str) -> String {
        let title = format!("Status of {}", shortened(status.name, NAME_CHARS));
        format!(
            "<!doctype html><html lang=en><head><meta charset=utf-8>\
             <meta name=viewport content=\"width=device-width,initial-scale=1\">\
             <title>{}</title><style>{STYLE}{OWN_STYLE}</style><script src=\"status.js\" defer></script></head>\
             <body><main data-shape=\"{shape}\"><h1>{0}</h1>{}\
             <footer><span id=\"live\">As of the moment at which you loaded this page.</span> \
             <a href=\"status.json\">As JSON</a>. graspd {}</footer></main></body></html>\n",
            Text(&title),
            self.html,
            Text(status.version),
        )
    }

    /// A value under its key.
    fn value(&mut self, key: &str, text: String) -> String {
        let html = format!("<span data-k=\"{}\">{}</span>", Text(key), Text(&text));
        self.shape.push(key.to_owned());
        self.shown.insert(key.to_owned(), text);
        html
    }

    /// A word that is good or bad.
    fn word(&mut self, key: &str, text: &str, mood: Mood) -> String {
        let class = mood.class();
        self.shape.push(format!("{key} {class}"));
        format!("<b class={class}>{}</b>", self.value(key, text.to_owned()))
    }

    fn heading(&mut self, text: &str) {
        self.html += &format!("<h2>{text}</h2>");
    }

    /// Facts with names of ours.
    fn facts(&mut self, facts: &[(&str, &str, String)]) {
        let mut rows = String::new();
        for (name, key, text) in facts {
            rows += &format!("<dt>{}</dt><dd>{}</dd>", Text(name), self.value(key, text.clone()));
        }
        self.html += &format!("<dl class=facts>{rows}</dl>");
    }

    fn rows(&mut self, rows: &[String], more: usize) {
        self.html += "<ul class=rows>";
        for row in rows {
            self.html += &format!("<li>{row}</li>");
        }
        if more > 0 {
            self.shape.push(format!("{more} more"));
            self.html += &format!("<li>… and {more} more</li>");
        }
        self.html += "</ul>";
    }

    fn summary(&mut self, status: &Status<'_>) {
        let failing: Vec<&Check> = status.checks.iter().filter(|check| !check.ok).collect();
        let state = if failing.is_empty() {
            self.word("ready", "ready", Mood::Good)
        } else {
            self.word("ready", "not ready", Mood::Bad)
        };
        self.html += &format!("<p>This service is {state}.</p>");
        for check in failing {
            let why = self.value(&format!("check.{}", check.name), check.detail.clone());
            self.html += &format!("<p class=note>{}: {why}</p>", Text(&check.name.replace('_', " ")));
        }
        let round = status.round;
        self.facts(&[
            ("Up for", "uptime", duration(status.uptime_secs)),
            ("Repositories", "repositories", round.repositories.to_string()),
            ("Events", "events", count(round.served)),
            ("Websockets", "websockets", status.websockets.to_string()),
            ("Memory", "memory", bytes(round.resident)),
        ]);
    }

    fn relays(&mut self, status: &Status<'_>) {
        self.heading("Relays");
        let Some(picture) = status.sync else {
            self.html += "<p>Other relays are not followed: sync is off.</p>";
            return;
        };
        let view = &picture.view;
        if view.relays.is_empty() {
            self.html += "<p>No repository names another relay.</p>";
            return;
        }
        let links = ordered(view);
        let now = status.round.wall.0;
        let rows: Vec<String> =
            links.iter().take(MOST).map(|link| self.relay(link, picture.why.get(&link.url), now)).collect();
        self.rows(&rows, links.len().saturating_sub(MOST));
    }

    fn relay(&mut self, link: &RelaySnapshot, why: Option<&Why>, now: u64) -> String {
        let key = |what: &str| format!("relay.{}.{what}", link.url);
        let (word, mood) = state(link);
        let mut out = format!(
            "<code>{}</code> {}<br><small>",
            Text(&shortened(&link.url.to_string(), NAME_CHARS)),
            self.word(&key("state"), word, mood)
        );
        let mut parts = vec![format!("{} of {} repositories complete", link.covered, link.repositories)];
        if link.held > 0 {
            parts.push(format!("{} that wait", link.held));
        }
        if let Some(progress) = &link.progress {
            let what = if progress.source == SyncSource::Daily { "comparing everything" } else { "catching up" };
            let CatchUpProgress { done, total, events, .. } = progress;
            let left = link.queued + link.subscriptions.1;
            parts.push(format!("{what}: {done} of {total} repositories, {events} new events, {left} requests to go"));
        }
        if let Some(lag) = lag(link, now) {
            parts.push(format!("behind by {}", duration(lag)));
        }
        if let Some(heard) = link.last_message_at {
            parts.push(format!("heard {} ago", duration(now.saturating_sub(heard.0))));
        }
        parts.push(format!("{} live subscriptions, {} other requests", link.subscriptions.0, link.subscriptions.1));
        if let Some(slots) = link.learned.max_subscriptions {
            parts.push(format!("it allows {slots} at once"));
        }
        if let Some(share) = ratio(link.totals.up_secs, link.totals.up_secs + link.totals.down_secs) {
            parts.push(format!("up {share} of the time"));
        }
        if let Some(share) = ratio(link.totals.shared, link.totals.compared) {
            parts.push(format!("has {share} of what is here"));
        }
        parts.push(format!("{} new events from it", count(link.totals.received)));
        if let Some(quiet) = link.cooldown_secs {
            parts.push(format!("left in peace for {}", duration(quiet)));
        }
        if let Some(millis) = link.dial_in_millis {
            parts.push(format!("tried again in {}", duration(millis.div_ceil(1_000))));
        }
        if let Some(why) = why {
            parts.push(format!(
                "{} ago: {}",
                duration(now.saturating_sub(why.at.0)),
                shortened(&why.text, 2 * NAME_CHARS)
            ));
        }
        out += &self.value(&key("about"), parts.join(" · "));
        out + "</small>"
    }

    fn purgatory(&mut self, status: &Status<'_>) {
        self.heading("Waiting for git data");
        let Some(vitals) = &status.round.vitals else {
            self.html += "<p>Nothing is known yet.</p>";
            return;
        };
        let ago = vitals.oldest.map_or("–".to_owned(), |age| duration(age.as_secs()));
        let next = vitals.next_deadline.map_or("–".to_owned(), |left| duration(left.as_secs()));
        self.facts(&[
            ("Announcements", "purgatory.announcements", vitals.announcements.to_string()),
            ("States", "purgatory.states", vitals.states.to_string()),
            ("Pull requests", "purgatory.pulls", vitals.pull_requests.to_string()),
            ("Of these nobody has", "purgatory.tried", vitals.tried.to_string()),
            ("The oldest waits for", "purgatory.oldest", ago),
            ("The next gives up in", "purgatory.next", next),
            ("Dormant", "purgatory.dormant", vitals.dormant.to_string()),
            ("Commits without events", "purgatory.uploads", vitals.uploads.to_string()),
        ]);
        let soonest = status.soonest().enumerate().map(|(nth, (event, repo_path))| {
            let path = repo_path.path();
            let left = duration(event.left.as_secs());
            let about =
                format!("{} of {}: {}, gives up in {left}", event.kind, shortened(&path, 2 * NAME_CHARS), waits(event));
            format!("<small>{}</small>", self.value(&format!("waiting.{nth}"), about))
        });
        let soonest: Vec<String> = soonest.collect();
        if !soonest.is_empty() {
            self.rows(&soonest, 0);
        }
    }

    fn hunt(&mut self, status: &Status<'_>) {
        let Some(view) = status.hunt else { return };
        self.heading("Search for git data");
        self.facts(&[
            ("Repositories sought for", "hunt.queue", view.jobs.len().to_string()),
            ("Fetches under way", "hunt.in_flight", view.in_flight.to_string()),
            ("Fetches so far", "hunt.fetches", count(view.stats.fetches)),
            ("Objects found", "hunt.oids", count(view.stats.oids)),
        ]);
        let quarries: Vec<_> = view.jobs.iter().filter(|job| (status.is_served)(&job.repo_path)).collect();
        let rows: Vec<String> = quarries
            .iter()
            .take(MOST)
            .map(|job| {
                let path = job.repo_path.path();
                let next = match job.next_in_millis {
                    Some(millis) => format!("next round in {}", duration(millis.div_ceil(1_000))),
                    None => "being asked for now".to_owned(),
                };
                let mut about = format!(
                    "{} objects missing for {} events · {} rounds · {next}",
                    job.missing, job.events.0, job.attempts
                );
                for (host, outcome) in job.sources.iter().take(FEW).map(place) {
                    about += &format!(" · {}: {}", shortened(host, NAME_CHARS), outcome.replace('_', " "));
                }
                if job.sources.len() > FEW {
                    about += &format!(" · {} more places", job.sources.len() - FEW);
                }
                let about = self.value(&format!("quarry.{path}"), about);
                format!("<code>{}</code><br><small>{about}</small>", Text(&shortened(&path, 2 * NAME_CHARS)))
            })
            .collect();
        if !rows.is_empty() {
            self.rows(&rows, quarries.len().saturating_sub(MOST));
        }
        let rows: Vec<String> = view.hosts.iter().take(MOST).map(|host| self.host(host)).collect();
        if !rows.is_empty() {
            self.heading("Git servers");
            self.rows(&rows, view.hosts.len().saturating_sub(MOST));
        }
    }

    fn host(&mut self, host: &fetch::HostView) -> String {
        let mut parts = vec![
            format!("{} of {} fetches at once", host.in_flight, host.limits.concurrent),
            format!("{} a minute", host.limits.per_minute),
            format!("{} waiting", host.waiting),
            format!("{} so far", count(host.requests)),
        ];
        if let Some((millis, why)) = &host.quiet {
            let why = why.label().replace('_', " ");
            parts.push(format!("left in peace for {} ({why})", duration(millis.div_ceil(1_000))));
        }
        if host.failures > 0 {
            parts.push(format!("{} failures in a row", host.failures));
        }
        let about = self.value(&format!("host.{}", host.authority), parts.join(" · "));
        format!("<code>{}</code><br><small>{about}</small>", Text(&shortened(&host.authority, NAME_CHARS)))
    }

    fn refusals(&mut self, status: &Status<'_>) {
        let events = status.refused_events.iter().map(|(reason, times)| (format!("event.{reason}"), *times));
        let pushes = status.refused_pushes.iter().map(|(code, times)| (format!("push.{code}"), *times));
        let mut all: Vec<(String, u64)> = events.chain(pushes).collect();
        if all.is_empty() {
            return;
        }
        all.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        all.truncate(REFUSALS);
        self.heading("What was refused most, since the start");
        let facts: Vec<(String, String, String)> = all
            .into_iter()
            .map(|(what, times)| {
                let (sort, name) = what.split_once('.').unwrap_or(("", &what));
                (format!("{sort}: {}", name.replace('_', " ")), format!("refused.{what}"), count(times))
            })
            .collect();
        let facts: Vec<(&str, &str, String)> =
            facts.iter().map(|(name, key, text)| (name.as_str(), key.as_str(), text.clone())).collect();
        self.facts(&facts);
    }

    fn space(&mut self, status: &Status<'_>) {
        self.heading("Disk");
        let round = status.round;
        let mut facts: Vec<(String, String, String)> = Vec::new();
        for (volume, free, mark) in &round.volumes {
            let text = format!("{} free; nothing new below {}", bytes(*free), bytes(*mark));
            facts.push((format!("For {volume}"), format!("volume.{volume}"), text));
        }
        for (kind, used) in round.disk.iter().flat_map(|disk| &disk.kinds) {
            facts.push((format!("Used by {kind}"), format!("disk.{kind}"), bytes(*used)));
        }
        let facts: Vec<(&str, &str, String)> =
            facts.iter().map(|(name, key, text)| (name.as_str(), key.as_str(), text.clone())).collect();
        self.facts(&facts);
    }

    fn queues(&mut self, status: &Status<'_>) {
        self.heading("Budgets and queues");
        let round = status.round;
        let mut facts: Vec<(String, String, String)> = Vec::new();
        for (name, used, limit) in &round.budgets {
            let is_bytes = name.ends_with("_bytes");
            let text = |amount: u64| if is_bytes { bytes(amount) } else { count(amount) };
            let label = match *name {
                "pack_cache_bytes" => "pack cache".to_owned(),
                "disk_bytes" => "disk".to_owned(),
                name => name.replace("_bytes", " memory").replace('_', " "),
            };
            facts.push((label, format!("budget.{name}"), format!("{} of {}", text(*used), text(*limit))));
        }
        let (hits, misses) = status.cache;
        facts.push((
            "pack cache hits".to_owned(),
            "cache".to_owned(),
            format!("{} of {}", count(hits), count(hits + misses)),
        ));
        let waiting: Vec<String> = round
            .queues
            .iter()
            .filter(|(_, depth)| *depth > 0)
            .map(|(queue, depth)| format!("{} {depth}", queue.replace('_', " ")))
            .collect();
        let waiting = if waiting.is_empty() { "nothing".to_owned() } else { waiting.join(" · ") };
        facts.push(("waiting".to_owned(), "queues".to_owned(), waiting));
        let facts: Vec<(&str, &str, String)> =
            facts.iter().map(|(name, key, text)| (name.as_str(), key.as_str(), text.clone())).collect();
        self.facts(&facts);
    }
}
