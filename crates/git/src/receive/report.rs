//! The answer to a push: what became of each ref, in git's own format, and words for the person who pushed.

use grasp_core::admission::push::PushCommand;

use super::commands::Capabilities;
use crate::pktline;
use crate::pktline::Band;

/// Characters of one line that we send: a terminal shows a few lines of it.
const MAX_TEXT: usize = 1_000;

/// Why a push is refused as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rejection<'a> {
    /// The stable name of the reason.
    pub code: &'a str,
    /// The reason in a sentence.
    pub text: &'a str,
    /// The ref that it is about; without one it is about all.
    pub about: Option<&'a str>,
    /// What to do about it; lines.
    pub hint: &'a str,
}

/// The end of an answer: whether the pack was taken, and what became of each ref. A client that wants no report gets
/// none.
#[must_use]
pub fn report(
    capabilities: &Capabilities,
    unpack: Result<(), &str>,
    results: &[(String, Result<(), String>)],
) -> Vec<u8> {
    let mut status = Vec::new();
    if capabilities.reports() {
        match unpack {
            Ok(()) => pktline::push_line(&mut status, "unpack ok"),
            Err(why) => pktline::push_line(&mut status, &format!("unpack {}", clean(why))),
        }
        for (name, result) in results {
            match result {
                Ok(()) => pktline::push_line(&mut status, &format!("ok {name}")),
                Err(why) => pktline::push_line(&mut status, &format!("ng {name} {}", clean(why))),
            }
        }
        pktline::push_flush(&mut status);
    }
    if !capabilities.side_band_64k {
        return status;
    }
    let mut out = Vec::new();
    pktline::push_band(&mut out, Band::Data, &status);
    pktline::push_flush(&mut out);
    out
}

/// A whole answer that refuses a push: nothing was changed. The commands are those that were understood.
#[must_use]
pub fn refusal(capabilities: &Capabilities, commands: &[PushCommand], refusal: &Rejection<'_>) -> Vec<u8> {
    let reason = clean(&format!("{}: {}", refusal.code, refusal.text));
    if !capabilities.reports() || commands.is_empty() {
        return last_word(capabilities, &reason);
    }
    let mut out = Vec::new();
    if capabilities.side_band_64k {
        let mut help = format!("{reason}\n");
        for line in refusal.hint.lines() {
            help.push_str(&format!("  {}\n", clean(line)));
        }
        pktline::push_band(&mut out, Band::Progress, help.as_bytes());
    }
    let blame = refusal.about.filter(|about| commands.iter().any(|command| command.name == *about));
    let result = |command: &PushCommand| match blame {
        Some(about) if about != command.name => format!("not tried: {about} is refused"),
        _ => reason.clone(),
    };
    let results: Vec<_> = commands.iter().map(|command| (command.name.clone(), Err(result(command)))).collect();
    out.extend(report(capabilities, Ok(()), &results));
    out
}

/// A line for the person who waits; nothing for a client that could not tell it from the report, or wants quiet.
#[must_use]
pub fn progress(capabilities: &Capabilities, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    if capabilities.side_band_64k && !capabilities.quiet {
        pktline::push_band(&mut out, Band::Progress, format!("{}\n", clean(text)).as_bytes());
    }
    out
}

/// A sign of life that nobody sees; git's own receive-pack sends the same.
#[must_use]
pub fn keepalive(capabilities: &Capabilities) -> Vec<u8> {
    if capabilities.side_band_64k { b"0005\x01".to_vec() } else { Vec::new() }
}

/// For clients that read no report.
fn last_word(capabilities: &Capabilities, reason: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let text = format!("ERR {reason}\n");
    if capabilities.side_band_64k {
        pktline::push_band(&mut out, Band::Fatal, text.as_bytes());
    } else {
        pktline::push(&mut out, &[text.as_bytes()]);
    }
    out
}

/// Text of strangers, for a line on somebody's terminal: no newlines, no escapes, nothing that turns its direction.
fn clean(text: &str) -> String {
    let unsafe_character = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.trim_end().chars().take(MAX_TEXT).map(|c| if unsafe_character(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities(words: &[&str]) -> Capabilities {
        Capabilities {
            report_status: words.contains(&"report-status"),
            side_band_64k: words.contains(&"side-band-64k"),
            ..Capabilities::default()
        }
    }

    fn command(name: &str) -> PushCommand {
        PushCommand { name: name.to_owned(), old: None, new: Some("1".repeat(40)) }
    }

    const REFUSAL: Rejection<'_> =
        Rejection { code: "E-X", text: "bad\x1b\n thing", about: Some("refs/heads/b"), hint: "" };

    #[test]
    fn reports_are_gits() {
        let results = [("refs/heads/a".to_owned(), Ok(())), ("refs/heads/b".to_owned(), Err("no\nway".to_owned()))];
        let plain = b"000eunpack ok\n0014ok refs/heads/a\n001bng refs/heads/b no way\n0000";
        assert_eq!(report(&capabilities(&["report-status"]), Ok(()), &results), plain);
        let banded = report(&capabilities(&["report-status", "side-band-64k"]), Ok(()), &results);
        assert_eq!(banded, [format!("{:04x}\x01", plain.len() + 5).as_bytes(), plain, b"0000"].concat());
        assert_eq!(report(&capabilities(&[]), Ok(()), &results), b"");
        assert_eq!(report(&capabilities(&["side-band-64k"]), Ok(()), &results), b"0000");
        assert_eq!(report(&capabilities(&["report-status"]), Err("no room"), &[]), b"0013unpack no room\n0000");
    }

    #[test]
    fn refusals_name_the_ref_and_have_no_control_characters() {
        let commands = [command("refs/heads/a"), command("refs/heads/b")];
        let text =
            |words: &[&str]| String::from_utf8(refusal(&capabilities(words), &commands, &REFUSAL)).expect("is text");
        let both = text(&["report-status", "side-band-64k"]);
        assert!(
            both.contains("\x02E-X: bad   thing\n") && both.contains("ng refs/heads/b E-X: bad   thing\n"),
            "{both}"
        );
        assert!(both.contains("ng refs/heads/a not tried: refs/heads/b is refused\n"), "{both}");
        assert!(!both.contains('\x1b') && both.ends_with("00000000"), "{both}");
        assert!(text(&["report-status"]).starts_with("000eunpack ok\n"));
        assert_eq!(text(&["side-band-64k"]), "001a\x03ERR E-X: bad   thing\n");
        assert_eq!(text(&[]), "0019ERR E-X: bad   thing\n");
        let unknown = refusal(&capabilities(&["report-status"]), &[], &REFUSAL);
        assert_eq!(unknown, b"0019ERR E-X: bad   thing\n", "nothing that a report could be about");
    }

    #[test]
    fn only_those_who_can_tell_it_apart_are_shown_progress() {
        assert_eq!(progress(&capabilities(&["side-band-64k"]), "checking"), b"000e\x02checking\n");
        assert_eq!(progress(&capabilities(&[]), "checking"), b"");
        assert_eq!(keepalive(&capabilities(&["side-band-64k"])), b"0005\x01");
        assert_eq!(keepalive(&capabilities(&[])), b"");
    }
}
