//! Writes the response to a push: the result of each ref, in git's own format, and texts for the user.

use grasp_core::admission::push::PushCommand;

use super::commands::ClientCapabilities;
use crate::pktline;
use crate::pktline::SideBand;

/// Largest number of characters in one line of text: a few lines of a terminal.
const MAX_TEXT: usize = 1_000;

/// The reason why a push is rejected as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RejectionReport<'a> {
    /// The stable code of the reason.
    pub code: &'a str,
    /// The reason in a sentence.
    pub text: &'a str,
    /// The ref that the reason applies to; `None` if it applies to all.
    pub ref_name: Option<&'a str>,
    /// What the user can do; lines of text.
    pub hint: &'a str,
}

/// Returns the end of a response: whether the pack was accepted, and the result of each ref. Empty for a client that
/// reads no report.
#[must_use]
pub fn report(
    capabilities: &ClientCapabilities,
    unpack: Result<(), &str>,
    results: &[(String, Result<(), String>)],
) -> Vec<u8> {
    let mut status = Vec::new();
    if capabilities.wants_report() {
        match unpack {
            Ok(()) => pktline::push_line(&mut status, "unpack ok"),
            Err(reason) => pktline::push_line(&mut status, &format!("unpack {}", sanitize(reason))),
        }
        for (name, result) in results {
            match result {
                Ok(()) => pktline::push_line(&mut status, &format!("ok {name}")),
                Err(reason) => pktline::push_line(&mut status, &format!("ng {name} {}", sanitize(reason))),
            }
        }
        pktline::push_flush(&mut status);
    }
    if !capabilities.side_band_64k {
        return status;
    }
    let mut out = Vec::new();
    pktline::push_band(&mut out, SideBand::Data, &status);
    pktline::push_flush(&mut out);
    out
}

/// Returns the complete response that rejects a push: nothing was changed. `commands` are those that were parsed.
#[must_use]
pub fn rejection(
    capabilities: &ClientCapabilities,
    commands: &[PushCommand],
    rejection: &RejectionReport<'_>,
) -> Vec<u8> {
    let reason = sanitize(&format!("{}: {}", rejection.code, rejection.text));
    if !capabilities.wants_report() || commands.is_empty() {
        return error_packet(capabilities, &reason);
    }
    let mut out = Vec::new();
    if capabilities.side_band_64k {
        let mut help = format!("{reason}\n");
        for line in rejection.hint.lines() {
            help.push_str(&format!("  {}\n", sanitize(line)));
        }
        pktline::push_band(&mut out, SideBand::Progress, help.as_bytes());
    }
    let rejected = rejection.ref_name.filter(|name| commands.iter().any(|command| command.name == *name));
    let result = |command: &PushCommand| match rejected {
        Some(name) if name != command.name => format!("not tried: {name} was rejected"),
        _ => reason.clone(),
    };
    let results: Vec<_> = commands.iter().map(|command| (command.name.clone(), Err(result(command)))).collect();
    out.extend(report(capabilities, Ok(()), &results));
    out
}

/// Returns a line of progress for the user; empty for a client that wants none or could not tell it from the report.
#[must_use]
pub fn progress(capabilities: &ClientCapabilities, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    if capabilities.side_band_64k && !capabilities.quiet {
        pktline::push_band(&mut out, SideBand::Progress, format!("{}\n", sanitize(text)).as_bytes());
    }
    out
}

/// Returns a keepalive packet, which clients do not show; git's own receive-pack sends the same.
#[must_use]
pub fn keepalive(capabilities: &ClientCapabilities) -> Vec<u8> {
    if capabilities.side_band_64k { b"0005\x01".to_vec() } else { Vec::new() }
}

/// Returns an error for clients that read no report.
fn error_packet(capabilities: &ClientCapabilities, reason: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let text = format!("ERR {reason}\n");
    if capabilities.side_band_64k {
        pktline::push_band(&mut out, SideBand::Error, text.as_bytes());
    } else {
        pktline::push(&mut out, &[text.as_bytes()]);
    }
    out
}

/// Returns untrusted text for a line on a terminal: without newlines, escapes and characters that change its direction.
fn sanitize(text: &str) -> String {
    let unsafe_character = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.trim_end().chars().take(MAX_TEXT).map(|c| if unsafe_character(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities(words: &[&str]) -> ClientCapabilities {
        ClientCapabilities {
            report_status: words.contains(&"report-status"),
            side_band_64k: words.contains(&"side-band-64k"),
            ..ClientCapabilities::default()
        }
    }

    fn command(name: &str) -> PushCommand {
        PushCommand { name: name.to_owned(), old: None, new: Some("1".repeat(40)) }
    }

    const REJECTION: RejectionReport<'_> =
        RejectionReport { code: "E-X", text: "bad\x1b\n thing", ref_name: Some("refs/heads/b"), hint: "" };

    #[test]
    fn reports_have_gits_format() {
        let results = [("refs/heads/a".to_owned(), Ok(())), ("refs/heads/b".to_owned(), Err("no\nway".to_owned()))];
        let plain = b"000eunpack ok\n0014ok refs/heads/a\n001bng refs/heads/b no way\n0000";
        assert_eq!(report(&capabilities(&["report-status"]), Ok(()), &results), plain);
        let banded = report(&capabilities(&["report-status", "side-band-64k"]), Ok(()), &results);
        assert_eq!(banded, [format!("{:04x}\x01", plain.len() + 5).as_bytes(), plain, b"0000"].concat());
        assert_eq!(report(&capabilities(&[]), Ok(()), &results), b"");
        assert_eq!(report(&capabilities(&["side-band-64k"]), Ok(()), &results), b"0000");
        assert_eq!(report(&capabilities(&["report-status"]), Err("no disk"), &[]), b"0013unpack no disk\n0000");
    }

    #[test]
    fn rejections_name_the_ref_and_have_no_control_characters() {
        let commands = [command("refs/heads/a"), command("refs/heads/b")];
        let text =
            |words: &[&str]| String::from_utf8(rejection(&capabilities(words), &commands, &REJECTION)).expect("UTF-8");
        let both = text(&["report-status", "side-band-64k"]);
        assert!(
            both.contains("\x02E-X: bad   thing\n") && both.contains("ng refs/heads/b E-X: bad   thing\n"),
            "{both}"
        );
        assert!(both.contains("ng refs/heads/a not tried: refs/heads/b was rejected\n"), "{both}");
        assert!(!both.contains('\x1b') && both.ends_with("00000000"), "{both}");
        assert!(text(&["report-status"]).starts_with("000eunpack ok\n"));
        assert_eq!(text(&["side-band-64k"]), "001a\x03ERR E-X: bad   thing\n");
        assert_eq!(text(&[]), "0019ERR E-X: bad   thing\n");
        let unknown = rejection(&capabilities(&["report-status"]), &[], &REJECTION);
        assert_eq!(unknown, b"0019ERR E-X: bad   thing\n", "without commands there is no report");
    }

    #[test]
    fn progress_and_keepalives_need_side_bands() {
        assert_eq!(progress(&capabilities(&["side-band-64k"]), "checking"), b"000e\x02checking\n");
        assert_eq!(progress(&capabilities(&[]), "checking"), b"");
        assert_eq!(keepalive(&capabilities(&["side-band-64k"])), b"0005\x01");
        assert_eq!(keepalive(&capabilities(&[])), b"");
    }
}
