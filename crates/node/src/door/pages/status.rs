//! How the service is: one picture for people and for programs. Every value that can change stands under a key, in the
//! page and in the JSON alike, so that a small script keeps the page up to date.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use grasp_core::hunt;
use grasp_core::repo::Site;
use grasp_core::sync::LinkView;
use grasp_core::sync::link;
use serde_json::{Value, json};

use super::{NAME_CHARS, STYLE, Text, shortened};
use crate::door::health::{self, Check};
use crate::hands::sync::board::{Picture, Why};
use crate::hands::watchman::Round;
use crate::meter::words;

/// Relays, git servers and searches that are shown: the most important first, and how many more there are.
const MOST: usize = 200;

/// Refusals that are shown: the most frequent.
const REFUSALS: usize = 12;

/// What the status is made of.
pub(crate) struct Status<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    pub(crate) uptime_secs: u64,
    pub(crate) checks: &'a [Check],
    pub(crate) round: &'a Round,
    pub(crate) websockets: i64,
    pub(crate) sync: Option<&'a Picture>,
    pub(crate) hunt: Option<&'a hunt::View>,
    /// Whether a site is served; others are nobody's business yet.
    pub(crate) is_served: &'a dyn Fn(&Site) -> bool,
    pub(crate) refused_events: &'a BTreeMap<String, u64>,
    pub(crate) refused_pushes: &'a BTreeMap<&'static str, u64>,
    /// Hits and misses of the pack cache.
    pub(crate) cache: (u64, u64),
}

/// The page and the JSON.
pub(crate) fn render(status: &Status<'_>) -> (String, String) {
    let mut sheet = Sheet::default();
    sheet.summary(status);
    sheet.relays(status);
    sheet.purgatory(status);
    sheet.hunt(status);
    sheet.refusals(status);
    sheet.space(status);
    sheet.queues(status);
    let mut shape = DefaultHasher::new();
    sheet.shape.hash(&mut shape);
    let shape = format!("{:016x}", shape.finish());
    let mut json = to_json(status);
    json["shape"] = json!(shape);
    json["shown"] = json!(sheet.shown);
    let title = format!("Status of {}", shortened(status.name, NAME_CHARS));
    let html = format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{}</title><style>{STYLE}{OWN_STYLE}</style><script src=\"status.js\" defer></script></head>\
         <body><main data-shape=\"{shape}\"><h1>{0}</h1>{}\
         <footer><span id=\"live\">As of the moment at which you loaded this page.</span> \
         <a href=\"status.json\">As JSON</a>. graspd {}</footer></main></body></html>\n",
        Text(&title),
        sheet.html,
        Text(status.version),
    );
    (html, json.to_string() + "\n")
}

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
struct Sheet {
    html: String,
    shown: BTreeMap<String, String>,
    /// What the page looks like beside its values: keys and classes.
    shape: Vec<String>,
}

impl Sheet {
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
        if view.links.is_empty() {
            self.html += "<p>No repository names another relay.</p>";
            return;
        }
        let links = ordered(view);
        let now = status.round.wall.0;
        let rows: Vec<String> =
            links.iter().take(MOST).map(|link| self.relay(link, picture.why.get(&link.url), now)).collect();
        self.rows(&rows, links.len().saturating_sub(MOST));
    }

    fn relay(&mut self, link: &LinkView, why: Option<&Why>, now: u64) -> String {
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
        if link.status == link::Status::Syncing {
            parts.push(format!("catching up, {} requests to go", link.queued + link.subscriptions.1));
        }
        if let Some(lag) = lag(link, now) {
            parts.push(format!("behind by {}", duration(lag)));
        }
        if let Some(heard) = link.heard_at {
            parts.push(format!("heard {} ago", duration(now.saturating_sub(heard.0))));
        }
        parts.push(format!("{} live subscriptions, {} other requests", link.subscriptions.0, link.subscriptions.1));
        if let Some(slots) = link.learned.slots {
            parts.push(format!("it allows {slots} at once"));
        }
        if let Some(share) = ratio(link.totals.up_secs, link.totals.up_secs + link.totals.down_secs) {
            parts.push(format!("up {share} of the time"));
        }
        if let Some(share) = ratio(link.totals.shared, link.totals.compared) {
            parts.push(format!("has {share} of what is here"));
        }
        parts.push(format!("{} new events from it", count(link.totals.received)));
        if let Some(quiet) = link.quiet_secs {
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
            ("Pull requests", "purgatory.pulls", vitals.pulls.to_string()),
            ("The oldest waits for", "purgatory.oldest", ago),
            ("The next gives up in", "purgatory.next", next),
            ("Dormant", "purgatory.dormant", vitals.dormant.to_string()),
            ("Commits without events", "purgatory.uploads", vitals.uploads.to_string()),
        ]);
    }

    fn hunt(&mut self, status: &Status<'_>) {
        let Some(view) = status.hunt else { return };
        self.heading("Search for git data");
        self.facts(&[
            ("Repositories sought for", "hunt.queue", view.quarries.len().to_string()),
            ("Fetches under way", "hunt.in_flight", view.in_flight.to_string()),
            ("Fetches so far", "hunt.fetches", count(view.tally.fetches)),
            ("Objects found", "hunt.oids", count(view.tally.oids)),
        ]);
        let quarries: Vec<_> = view.quarries.iter().filter(|quarry| (status.is_served)(&quarry.site)).collect();
        let rows: Vec<String> = quarries
            .iter()
            .take(MOST)
            .map(|quarry| {
                let path = quarry.site.path();
                let next = match quarry.next_in_millis {
                    Some(millis) => format!("next round in {}", duration(millis.div_ceil(1_000))),
                    None => "being asked for now".to_owned(),
                };
                let about = format!(
                    "{} objects missing for {} events · {} rounds · {next}",
                    quarry.missing, quarry.events.0, quarry.attempts
                );
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

    fn host(&mut self, host: &hunt::HostView) -> String {
        let mut parts = vec![
            format!("{} of {} fetches at once", host.in_flight, host.limits.concurrent),
            format!("{} a minute", host.limits.per_minute),
            format!("{} waiting", host.waiting),
            format!("{} so far", count(host.requests)),
        ];
        if let Some((millis, why)) = &host.quiet {
            let why = words::variant(why).replace('_', " ");
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

/// How good a word is.
#[derive(Clone, Copy)]
enum Mood {
    Good,
    Fair,
    Bad,
}

impl Mood {
    fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Fair => "fair",
            Self::Bad => "bad",
        }
    }
}

/// Relays as they are shown: those in trouble first, then by their repositories.
fn ordered(view: &grasp_core::sync::View) -> Vec<&LinkView> {
    let mut links: Vec<&LinkView> = view.links.iter().collect();
    links.sort_by(|a, b| {
        let rank = |link: &LinkView| (!link.bootstrap, std::cmp::Reverse(link.repositories));
        rank(a).cmp(&rank(b)).then_with(|| a.url.cmp(&b.url))
    });
    links
}

/// Where a relay stands, in a word.
fn state(link: &LinkView) -> (&'static str, Mood) {
    use grasp_core::sync::health::Status as Health;
    match (link.status, link.health) {
        _ if link.is_self => ("this service", Mood::Good),
        _ if link.paused => ("paused", Mood::Fair),
        (link::Status::Connected, Health::RateLimited) => ("connected, wants less of us", Mood::Fair),
        (link::Status::Connected, _) => ("connected", Mood::Good),
        (link::Status::ConnectedHistoricSyncFailures, _) => ("connected, history incomplete", Mood::Fair),
        (link::Status::Syncing, _) => ("catching up", Mood::Fair),
        (link::Status::Connecting, _) => ("connecting", Mood::Fair),
        (link::Status::Disconnected, Health::Dead) => ("dead", Mood::Bad),
        (link::Status::Disconnected, Health::RateLimited) => ("wants less of us", Mood::Fair),
        (link::Status::Disconnected, _) => ("not connected", Mood::Bad),
    }
}

/// For how long something of a relay may be missing here.
fn lag(link: &LinkView, now: u64) -> Option<u64> {
    let complete = link.status == link::Status::Connected && link.covered >= link.repositories;
    let since = link.complete_at.or(link.heard_at)?;
    (!complete).then(|| now.saturating_sub(since.0))
}

fn to_json(status: &Status<'_>) -> Value {
    let round = status.round;
    let now = round.wall.0;
    let map = |pairs: &[(&'static str, u64)]| -> Value {
        Value::Object(pairs.iter().map(|(name, amount)| ((*name).to_owned(), json!(amount))).collect())
    };
    let budgets =
        round.budgets.iter().map(|(name, used, limit)| ((*name).to_owned(), json!({"used": used, "limit": limit})));
    let queues: Vec<(&'static str, u64)> = round.queues.iter().map(|(name, depth)| (*name, *depth as u64)).collect();
    let volumes =
        round.volumes.iter().map(|(name, free, mark)| ((*name).to_owned(), json!({"free": free, "mark": mark})));
    let vitals = round.vitals.as_ref().map(|vitals| {
        json!({
            "announcements": vitals.announcements, "states": vitals.states, "pull_requests": vitals.pulls,
            "dormant": vitals.dormant, "bytes": vitals.bytes, "uploads": vitals.uploads,
            "oldest_seconds": vitals.oldest.map(|age| age.as_secs()),
            "next_deadline_seconds": vitals.next_deadline.map(|left| left.as_secs()),
        })
    });
    let relays = status.sync.map(|picture| {
        let links = ordered(&picture.view);
        links.iter().take(MOST).map(|link| relay_json(link, picture.why.get(&link.url), now)).collect::<Vec<_>>()
    });
    let catch_ups: Vec<Value> = status
        .sync
        .iter()
        .flat_map(|picture| &picture.view.links)
        .filter(|link| link.status == link::Status::Syncing || link.daily)
        .take(MOST)
        .map(|link| {
            json!({
                "relay": link.url.to_string(), "daily": link.daily, "repositories": link.repositories,
                "covered": link.covered, "requests_left": link.queued + link.subscriptions.1,
            })
        })
        .collect();
    json!({
        "name": status.name,
        "version": status.version,
        "at": now,
        "uptime_seconds": status.uptime_secs,
        "ready": status.checks.iter().all(|check| check.ok),
        "checks": health::to_json(status.checks),
        "repositories": round.repositories,
        "events": {"served": round.served, "held": round.held},
        "websockets": status.websockets,
        "sync": status.sync.map(|picture| json!({
            "relays": picture.view.links.len(), "repositories": picture.view.repositories,
            "in_flight": picture.view.in_flight, "refused": picture.view.refused.0,
        })),
        "relays": relays,
        "catch_ups": catch_ups,
        "purgatory": vitals,
        "hunt": status.hunt.map(|view| hunt_json(view, status.is_served)),
        "refused": {"events": status.refused_events, "pushes": status.refused_pushes},
        "disk": {
            "volumes": Value::Object(volumes.collect()),
            "use": round.disk.as_ref().map(|disk| map(&disk.kinds)),
            "measured_at": round.disk.as_ref().map(|disk| disk.at.0),
            "complete": round.disk.as_ref().map(|disk| disk.complete),
        },
        "memory": {"resident_bytes": round.resident},
        "budgets": Value::Object(budgets.collect()),
        "queues": map(&queues),
        "pack_cache": {"hits": status.cache.0, "misses": status.cache.1},
    })
}

fn relay_json(link: &LinkView, why: Option<&Why>, now: u64) -> Value {
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    json!({
        "url": link.url.to_string(),
        "state": words::variant(&link.status),
        "health": words::variant(&link.health),
        "failures": link.failures,
        "why": why.map(|why| &why.text),
        "why_at": why.map(|why| why.at.0),
        "retry_in_seconds": link.dial_in_millis.map(|millis| millis.div_ceil(1_000)),
        "quiet_seconds": link.quiet_secs,
        "repositories": link.repositories,
        "covered": link.covered,
        "held": link.held,
        "owed": link.owed,
        "lag_seconds": lag(link, now),
        "complete_at": link.complete_at.map(|at| at.0),
        "heard_at": link.heard_at.map(|at| at.0),
        "full_in_seconds": link.full_in_secs,
        "subscriptions": {
            "live": link.subscriptions.0, "requests": link.subscriptions.1, "filters": link.filters,
            "polled": link.polled, "queued": link.queued, "wide": link.wide,
        },
        "limits": {
            "slots": link.learned.slots, "filters": link.learned.filters,
            "subscription_bytes": link.learned.subscription_bytes,
        },
        "uptime_ratio": share(link.totals.up_secs, link.totals.up_secs + link.totals.down_secs),
        "coverage_ratio": share(link.totals.shared, link.totals.compared),
        "events_received": link.totals.received,
        "gaps": link.totals.gaps,
        "daily": link.daily,
        "paused": link.paused,
        "is_self": link.is_self,
        "bootstrap": link.bootstrap,
    })
}

fn hunt_json(view: &hunt::View, is_served: &dyn Fn(&Site) -> bool) -> Value {
    let quarries = view.quarries.iter().filter(|quarry| is_served(&quarry.site)).take(MOST).map(|quarry| {
        json!({
            "repository": quarry.site.path(), "events": quarry.events.0, "dormant": quarry.events.1,
            "missing": quarry.missing, "rounds": quarry.attempts,
            "next_in_seconds": quarry.next_in_millis.map(|millis| millis.div_ceil(1_000)),
        })
    });
    let hosts = view.hosts.iter().take(MOST).map(|host| {
        json!({
            "host": host.authority, "in_flight": host.in_flight, "waiting": host.waiting, "requests": host.requests,
            "concurrent": host.limits.concurrent, "per_minute": host.limits.per_minute, "failures": host.failures,
            "quiet_seconds": host.quiet.as_ref().map(|(millis, _)| millis.div_ceil(1_000)),
            "why": host.quiet.as_ref().map(|(_, why)| words::variant(why)),
        })
    });
    json!({
        "queue": view.quarries.len(), "in_flight": view.in_flight, "rounds": view.tally.rounds,
        "fetches": view.tally.fetches, "objects": view.tally.oids,
        "repositories": quarries.collect::<Vec<_>>(), "hosts": hosts.collect::<Vec<_>>(),
    })
}

/// A time in two units at most: `3 d 4 h`, `12 min`, `7 s`.
fn duration(secs: u64) -> String {
    match (secs / 86_400, secs / 3_600 % 24, secs / 60 % 60, secs % 60) {
        (0, 0, 0, secs) => format!("{secs} s"),
        (0, 0, minutes, secs) if minutes < 10 => format!("{minutes} min {secs} s"),
        (0, 0, minutes, _) => format!("{minutes} min"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

/// Bytes with three digits: `1.21 GB`.
fn bytes(amount: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = amount as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { usize::from(value < 9.995) + 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A count with spaces between thousands.
fn count(amount: u64) -> String {
    let digits = amount.to_string();
    let mut out = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

fn ratio(part: u64, whole: u64) -> Option<String> {
    (whole > 0).then(|| format!("{:.1} %", 100.0 * part as f64 / whole as f64))
}

#[cfg(test)]
mod tests {
    use grasp_core::sync::url::RelayUrl;
    use grasp_core::time::Timestamp;

    use super::super::tests::{HOSTILE, expect_tame};
    use super::*;
    use crate::hands::watchman::Vitals;

    fn link(url: &str) -> LinkView {
        LinkView {
            url: RelayUrl::parse(url).expect("a relay"),
            status: link::Status::Disconnected,
            health: grasp_core::sync::health::Status::Degraded,
            failures: 3,
            repositories: 2,
            covered: 1,
            held: 0,
            subscriptions: (1, 2),
            filters: 3,
            polled: 0,
            wide: false,
            queued: 4,
            dial_in_millis: Some(30_000),
            quiet_secs: None,
            owed: 0,
            complete_at: Some(Timestamp(900)),
            heard_at: Some(Timestamp(950)),
            full_in_secs: 60,
            daily: false,
            learned: Default::default(),
            totals: Default::default(),
            paused: false,
            is_self: false,
            bootstrap: false,
        }
    }

    fn rendered(name: &str, picture: &Picture, checks: &[Check]) -> (String, Value) {
        let round = Round {
            wall: Timestamp(1_000),
            vitals: Some(Vitals { states: 2, ..Vitals::default() }),
            queues: vec![("readers", 3)],
            budgets: vec![("pack_cache_bytes", 1_210_000_000, 2_000_000_000)],
            volumes: vec![("events", 5_000_000_000, 64_000_000)],
            ..Round::default()
        };
        let (html, json) = render(&Status {
            name,
            version: "1",
            uptime_secs: 90_061,
            checks,
            round: &round,
            websockets: 4,
            sync: Some(picture),
            hunt: None,
            is_served: &|_| true,
            refused_events: &BTreeMap::from([("not_listed".to_owned(), 1_234)]),
            refused_pushes: &BTreeMap::from([("E-STATE-MISSING", 2)]),
            cache: (1, 3),
        });
        (html, serde_json::from_str(&json).expect("JSON"))
    }

    fn tame(html: &str) {
        let script = "<script src=\"status.js\" defer></script>";
        assert_eq!(html.matches("<script").count(), 1, "one script, and it is ours: {html}");
        expect_tame(&html.replace(script, "").replace("href=\"status.json\"", "href=\"http://x/\""));
    }

    #[test]
    fn what_strangers_say_stays_text() {
        for hostile in HOSTILE {
            let mut picture = Picture::default();
            picture.view.links.push(link("wss://a.example"));
            picture.why.insert(
                RelayUrl::parse("wss://a.example").expect("a relay"),
                Why { at: Timestamp(1), text: hostile.to_owned() },
            );
            let check = Check { name: "store", ok: false, detail: hostile.to_owned() };
            let (html, json) = rendered(hostile, &picture, &[check]);
            tame(&html);
            assert_eq!(json["relays"][0]["why"], hostile);
            assert_eq!(json["ready"], false);
        }
    }

    #[test]
    fn page_and_json_say_the_same() {
        let mut picture = Picture::default();
        picture.view.links.push(link("wss://a.example"));
        let (html, json) = rendered("x", &picture, &[]);
        tame(&html);
        for (key, text) in json["shown"].as_object().expect("values") {
            let text = text.as_str().expect("text");
            let cell = format!("<span data-k=\"{}\">{}</span>", Text(key), Text(text));
            assert!(html.contains(&cell), "{cell} in {html}");
        }
        assert!(html.contains(&format!("data-shape=\"{}\"", json["shape"].as_str().expect("a shape"))));
        assert_eq!(json["shown"]["uptime"], "1 d 1 h");
        assert_eq!(json["shown"]["budget.pack_cache_bytes"], "1.21 GB of 2.00 GB");
        assert_eq!(json["relays"][0]["lag_seconds"], 100);
        assert_eq!(json["relays"][0]["state"], "disconnected");
        assert_eq!(json["purgatory"]["states"], 2);
        assert!(html.contains("event: not listed"), "{html}");
    }

    #[test]
    fn the_shape_changes_with_what_there_is_and_not_with_values() {
        let mut picture = Picture::default();
        picture.view.links.push(link("wss://a.example"));
        let (_, before) = rendered("x", &picture, &[]);
        picture.view.links[0].covered = 2;
        let (_, same) = rendered("x", &picture, &[]);
        assert_eq!(before["shape"], same["shape"]);
        assert_ne!(before["shown"], same["shown"]);
        picture.view.links.push(link("wss://b.example"));
        let (_, more) = rendered("x", &picture, &[]);
        assert_ne!(before["shape"], more["shape"]);
    }

    #[test]
    fn a_crowd_of_relays_is_cut() {
        let mut picture = Picture::default();
        for nth in 0..5_000 {
            picture.view.links.push(link(&format!("wss://r{nth}.example")));
        }
        let (html, json) = rendered("x", &picture, &[]);
        tame(&html);
        assert!(html.contains("… and 4800 more") && html.len() < 300_000, "{}", html.len());
        assert_eq!(json["relays"].as_array().map(Vec::len), Some(MOST));
        assert_eq!(json["sync"]["relays"], 5_000);
    }

    #[test]
    fn amounts_are_readable() {
        assert_eq!([0, 999, 1_000, 99_960, 1_210_000_000].map(bytes), ["0 B", "999 B", "1.00 kB", "100 kB", "1.21 GB"]);
        assert_eq!([59, 61, 600, 3_661, 90_000].map(duration), ["59 s", "1 min 1 s", "10 min", "1 h 1 min", "1 d 1 h"]);
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
