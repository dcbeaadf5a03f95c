//! A real `git push`, answered with our bytes.

use std::fs;

use grasp_core::admission::push::PushCommand;
use grasp_git::pktline::{push, push_flush};
use grasp_git::receive::report::RejectionReport;
use grasp_git::receive::{
    ClientCapabilities, Connectivity, PackData, PackSink, PushLimits, PushParseProgress, PushParser, PushRequest,
    Quarantine, report,
};
use tempfile::TempDir;

use super::support::{ClientRepo, ReceiveFixture, branch, run, view};

const ALL: &str =
    "report-status side-band-64k delete-refs ofs-delta atomic push-options quiet object-format=sha1 agent=x";

/// What a push sent, how it ended, and what it told the person.
struct PushResult {
    request: Vec<u8>,
    success: bool,
    stderr: String,
}

/// Pushes to a server that can do this and gives this answer.
fn pushed(client: &ClientRepo, can: &str, answer: &[u8], arguments: &[&str]) -> PushResult {
    let mut advertisement = Vec::new();
    push(&mut advertisement, &[format!("{} capabilities^{{}}\0{can}\n", "0".repeat(40)).as_bytes()]);
    push_flush(&mut advertisement);
    push_to(client, &advertisement, answer, arguments)
}

/// Pushes to a server that begins with these bytes. Of the arguments, options come first.
fn push_to(client: &ClientRepo, advertisement: &[u8], answer: &[u8], arguments: &[&str]) -> PushResult {
    let server = TempDir::new().expect("create a folder");
    let path = |name: &str| server.path().join(name).to_str().expect("UTF-8").to_owned();
    fs::write(path("advertisement"), advertisement).expect("write a file");
    fs::write(path("answer"), answer).expect("write a file");
    let script = format!("cat {}\ncat {}\ncat > {}\n", path("advertisement"), path("answer"), path("request"));
    fs::write(path("script"), script).expect("write a file");
    let receive_pack = format!("--receive-pack=sh {}", path("script"));
    let folder = path("");
    let options = arguments.iter().take_while(|word| word.starts_with("--")).count();
    let command = [&["push", &receive_pack], &arguments[..options], &[&folder], &arguments[options..]].concat();
    let output = run(client.folder.path(), &command, b"");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let request = fs::read(path("request")).unwrap_or_default();
    PushResult { request, success: output.status.success(), stderr }
}

fn parse(bytes: &[u8]) -> (PushRequest, Vec<u8>) {
    match PushParser::new(PushLimits::default()).feed(bytes).expect("a valid request") {
        PushParseProgress::Done { request, rest } => (request, rest),
        PushParseProgress::More => panic!("is complete"),
    }
}

fn capabilities() -> ClientCapabilities {
    ClientCapabilities { report_status: true, side_band_64k: true, ..ClientCapabilities::default() }
}

fn client() -> ClientRepo {
    let client = ClientRepo::new();
    client.commit("readme", "hello");
    client.git(&["branch", "other"]);
    client
}

fn commands() -> Vec<PushCommand> {
    let command = |name: &str| PushCommand { name: name.to_owned(), old: None, new: Some("1".repeat(40)) };
    vec![command("refs/heads/main"), command("refs/heads/other")]
}

const REFUSAL: RejectionReport<'_> = RejectionReport {
    code: "E-STATE-MISSING",
    text: "no state waits for this push",
    ref_name: Some("refs/heads/other"),
    hint: "Publish a state first.\nThen push again.",
};

#[test]
fn what_git_sends_is_understood_and_taken() {
    let (client, fixture) = (client(), ReceiveFixture::new());
    let mut answer = Vec::new();
    for _ in 0..10 {
        answer.extend(report::keepalive(&capabilities()));
        answer.extend(report::progress(&capabilities(), "checking"));
    }
    let results = [("refs/heads/main".to_owned(), Ok(())), ("refs/heads/other".to_owned(), Ok(()))];
    answer.extend(report::report(&capabilities(), Ok(()), &results));
    let pushed = pushed(&client, ALL, &answer, &["--push-option=ci.skip", "--atomic", "main", "other"]);
    assert!(pushed.success, "{}", pushed.stderr);
    assert!(pushed.stderr.contains("remote: checking") && pushed.stderr.contains("[new branch]"), "{}", pushed.stderr);

    let (request, rest) = parse(&pushed.request);
    let tip = client.git(&["rev-parse", "main"]);
    assert_eq!(request.commands.len(), 2);
    assert_eq!(
        request.commands[0],
        PushCommand { name: "refs/heads/main".to_owned(), old: None, new: Some(tip.clone()) }
    );
    let can = &request.capabilities;
    assert!(can.report_status && can.side_band_64k && can.atomic && can.push_options);
    assert!(can.agent.as_deref().is_some_and(|agent| agent.starts_with("git/")), "{:?}", can.agent);
    assert_eq!((can.object_format.as_deref(), &request.options[..]), (Some("sha1"), &["ci.skip".to_owned()][..]));

    let quarantine = fixture.receive(&rest, &[]).expect("a valid pack");
    assert_eq!(
        fixture.check_connectivity(view(&quarantine, &[]), &branch(&tip), &[]),
        Ok(Connectivity { objects: 3, extra: 0 })
    );
}

#[test]
fn refusals_are_shown_at_their_ref() {
    let answer = report::rejection(&capabilities(), &commands(), &REFUSAL);
    let pushed = pushed(&client(), ALL, &answer, &["main", "other"]);
    assert!(!pushed.success);
    for words in [
        "remote: E-STATE-MISSING: no state waits for this push",
        "remote:   Publish a state first.",
        "[remote rejected] main -> main (not tried: refs/heads/other was rejected)",
        "[remote rejected] other -> other (E-STATE-MISSING: no state waits for this push)",
    ] {
        assert!(pushed.stderr.contains(words), "{words}: {}", pushed.stderr);
    }
}

#[test]
fn clients_that_can_do_less_are_told_too() {
    for (can, words) in [
        ("report-status", "other -> other (E-STATE-MISSING: no state waits for this push)"),
        ("side-band-64k", "E-STATE-MISSING: no state waits for this push"),
    ] {
        let known = ClientCapabilities {
            report_status: can == "report-status",
            side_band_64k: can == "side-band-64k",
            ..ClientCapabilities::default()
        };
        let answer = report::rejection(&known, &commands(), &REFUSAL);
        let pushed = pushed(&client(), can, &answer, &["main", "other"]);
        assert!(pushed.stderr.contains(words), "{can}: {}", pushed.stderr);
        assert!(!pushed.success, "{can}");
    }
}

#[test]
fn a_push_that_is_not_understood_is_answered_in_the_form_that_was_agreed() {
    // What was heard before the error: all, a part, nothing.
    for heard in [&commands()[..], &commands()[..1], &[]] {
        let answer = report::rejection(&capabilities(), heard, &RejectionReport { ref_name: None, ..REFUSAL });
        let pushed = pushed(&client(), ALL, &answer, &["main", "other"]);
        assert!(!pushed.success && pushed.stderr.contains("E-STATE-MISSING: no state"), "{}", pushed.stderr);
        assert!(!pushed.stderr.contains("bad band"), "{}", pushed.stderr);
    }
}

#[test]
fn deletions_bring_no_pack() {
    let client = client();
    let tip = client.git(&["rev-parse", "main"]);
    let answer = report::report(&capabilities(), Ok(()), &[("refs/heads/gone".to_owned(), Ok(()))]);
    let mut there = Vec::new();
    push(&mut there, &[format!("{tip} refs/heads/gone\0{ALL}\n").as_bytes()]);
    push_flush(&mut there);
    let pushed = push_to(&client, &there, &answer, &[":refs/heads/gone"]);
    assert!(pushed.success, "{}", pushed.stderr);
    let (request, rest) = parse(&pushed.request);
    assert_eq!(request.commands, [PushCommand { name: "refs/heads/gone".to_owned(), old: Some(tip), new: None }]);
    let fixture = ReceiveFixture::new();
    let quarantine = Quarantine::create(&fixture.layout).expect("create a folder");
    let mut sink = PackSink::new(&quarantine, fixture.limits);
    sink.write(&rest).expect("no data");
    assert!(matches!(sink.finish(), Ok(PackData::None)));
}
