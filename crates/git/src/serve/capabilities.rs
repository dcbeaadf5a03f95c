//! What the installed git can do, learned by asking it about an empty repository.
//!
//! Of what it says we repeat what we understand: a request that uses anything else would reach a cache key that does
//! not tell it from another.

use std::time::Duration;

use super::{AGENT, Protocol, upload_pack};
use crate::layout::Layout;
use crate::pktline;
use crate::process::{ChildProblem, Git, Input};

/// What v0 and v1 offer, if the installed git does.
const UPLOAD: [&str; 16] = [
    "multi_ack",
    "multi_ack_detailed",
    "no-done",
    "thin-pack",
    "side-band",
    "side-band-64k",
    "ofs-delta",
    "shallow",
    "deepen-since",
    "deepen-not",
    "deepen-relative",
    "no-progress",
    "include-tag",
    "allow-tip-sha1-in-want",
    "allow-reachable-sha1-in-want",
    "filter",
];

/// What v2 offers, if the installed git does.
const COMMANDS: [(&str, Features); 5] = [
    ("agent", Features::Value),
    ("ls-refs", Features::Ours("unborn")),
    ("fetch", Features::Known(&["shallow", "wait-for-done", "filter"])),
    ("server-option", Features::Known(&[])),
    ("object-format", Features::Value),
];

/// What stands behind the name of a v2 capability.
enum Features {
    /// Anything.
    Value,
    /// Words, of which we repeat these.
    Known(&'static [&'static str]),
    /// This, because it is we who answer.
    Ours(&'static str),
}

/// What clients and the required checks rely on. A git without it is too old.
const NEEDED: [&str; 3] = ["allow-tip-sha1-in-want", "allow-reachable-sha1-in-want", "filter"];

/// The same for v2: names, and words behind them.
const NEEDED_V2: [(&str, &str); 4] = [("version 2", ""), ("ls-refs", ""), ("fetch", "shallow"), ("fetch", "filter")];

/// Patience with a git that reads an empty repository: it takes milliseconds, on a machine that just starts seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// An advertisement without refs has a few hundred bytes.
const MAX_ADVERTISEMENT: usize = 64 * 1024;

/// What the server offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    upload: String,
    commands: Vec<u8>,
    receive: String,
}

/// Why the installed git does not do.
#[derive(Debug, thiserror::Error)]
pub enum LearnProblem {
    /// It did not run.
    #[error(transparent)]
    Child(#[from] ChildProblem),
    /// It is too old, or was built without something.
    #[error("the installed git does not offer `{0}`")]
    Lacks(&'static str),
}

impl Capabilities {
    /// Asks the installed git.
    pub fn learn(git: &Git, layout: &Layout) -> Result<Self, LearnProblem> {
        let ask = |protocol| {
            let mut command = upload_pack::command(git, &layout.template(), protocol);
            command.args(["upload-pack", "--strict", "--http-backend-info-refs", "."]);
            git.run(&mut command, Input::Nothing, PATIENCE, MAX_ADVERTISEMENT)
        };
        let upload = first_version(&lines(&ask(Protocol::V0)?));
        if let Some(lacks) = NEEDED.into_iter().find(|need| !upload.split(' ').any(|word| word == *need)) {
            return Err(LearnProblem::Lacks(lacks));
        }
        let known: Vec<String> = lines(&ask(Protocol::V2)?).iter().filter_map(|line| second_version(line)).collect();
        let offers = |name: &str, word: &str| {
            let mut pairs = known.iter().map(|line| line.split_once('=').unwrap_or((line, "")));
            pairs.any(|(offer, words)| offer == name && (word.is_empty() || words.split(' ').any(|one| one == word)))
        };
        if let Some((name, _)) = NEEDED_V2.into_iter().find(|(name, word)| !offers(name, word)) {
            return Err(LearnProblem::Lacks(name));
        }
        let mut commands = Vec::new();
        known.iter().for_each(|line| pktline::push_line(&mut commands, line));
        pktline::push_flush(&mut commands);
        // Ours, since receiving is. Without `report-status-v2`, whose additions are for hooks that rewrite refs.
        let receive = format!(
            "report-status delete-refs side-band-64k quiet atomic ofs-delta push-options object-format=sha1 agent={AGENT}"
        );
        Ok(Self { upload, commands, receive })
    }

    /// The capabilities of a v0 or v1 `upload-pack`; where HEAD points is not among them.
    #[must_use]
    pub fn upload(&self) -> &str {
        &self.upload
    }

    /// The whole advertisement of v2, as packets.
    #[must_use]
    pub fn commands(&self) -> &[u8] {
        &self.commands
    }

    /// The capabilities of our `receive-pack`.
    #[must_use]
    pub fn receive(&self) -> &str {
        &self.receive
    }
}

/// The text lines of an advertisement.
fn lines(mut bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while let Ok(Some((packet, taken))) = pktline::read(bytes) {
        lines.extend(packet.line().map(|line| String::from_utf8_lossy(line).into_owned()));
        bytes = &bytes[taken..];
    }
    lines
}

/// What stands behind the first line, less what we do not know, and with its values said by us.
fn first_version(lines: &[String]) -> String {
    let offered = lines.first().and_then(|line| line.split_once('\0')).map(|(_, offered)| offered).unwrap_or_default();
    let mut words: Vec<&str> = offered.split(' ').filter(|word| UPLOAD.contains(word)).collect();
    let agent = format!("agent={AGENT}");
    words.extend(["object-format=sha1", &agent]);
    words.join(" ")
}

/// A line of a v2 advertisement, less what we do not know.
fn second_version(line: &str) -> Option<String> {
    if line == "version 2" {
        return Some(line.to_owned());
    }
    let (name, value) = line.split_once('=').unwrap_or((line, ""));
    let (_, features) = COMMANDS.iter().find(|(known, _)| *known == name)?;
    let kept = match features {
        Features::Value => value.to_owned(),
        Features::Ours(words) => (*words).to_owned(),
        Features::Known(known) => value.split(' ').filter(|word| known.contains(word)).collect::<Vec<_>>().join(" "),
    };
    Some(if kept.is_empty() { name.to_owned() } else { format!("{name}={kept}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_do_not_understand_is_not_repeated() {
        for (line, repeated) in [
            ("version 2", Some("version 2")),
            ("agent=git/9", Some("agent=git/9")),
            ("ls-refs=unborn telepathy", Some("ls-refs=unborn")),
            ("ls-refs", Some("ls-refs=unborn")),
            ("fetch=shallow telepathy wait-for-done filter", Some("fetch=shallow wait-for-done filter")),
            ("server-option", Some("server-option")),
            ("server-option=news", Some("server-option")),
            ("object-format=sha1", Some("object-format=sha1")),
            ("object-info", None),
            ("bundle-uri", None),
            ("session-id=1", None),
        ] {
            assert_eq!(second_version(line).as_deref(), repeated, "{line}");
        }
        let first = vec!["0 x\0multi_ack telepathy symref=HEAD:a session-id=1 filter agent=git/9".to_owned()];
        assert_eq!(first_version(&first), format!("multi_ack filter object-format=sha1 agent={AGENT}"));
        assert_eq!(first_version(&[]), format!("object-format=sha1 agent={AGENT}"));
    }
}
