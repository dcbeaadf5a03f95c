//! Reports as `git push` shows them.

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

/// What a push sent, whether it succeeded, and what git printed.
struct PushResult {
    request: Vec<u8>,
    success: bool,
    stderr: String,
}

/// Pushes to a server with these capabilities and this response.
fn push_with(client: &ClientRepo, capabilities: &str, response: &[u8], arguments: &[&str]) -> PushResult {
    let mut advertisement = Vec::new();
    push(&mut advertisement, &[format!("{} capabilities^{{}}\0{capabilities}\n", "0".repeat(40)).as_bytes()]);
    push_flush(&mut advertisement);
    push_to(client, &advertisement, response, arguments)
}

/// Pushes to a server with this advertisement. Options come first in the arguments.
fn push_to(client: &ClientRepo, advertisement: &[u8], response: &[u8], arguments: &[&str]) -> PushResult {
    let server = TempDir::new().expect("create a folder");
    let path = |name: &str| server.path().join(name).to_str().expect("UTF-8").to_owned();
    fs::write(path("advertisement"), advertisement).expect("write a file");
    fs::write(path("response"), response).expect("write a file");
    let script = format!("cat {}\ncat {}\ncat > {}\n", path("advertisement"), path("response"), path("request"));
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
        PushParseProgress::More => panic!("the request is incomplete"),
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

const REJECTION: RejectionReport<'_> = RejectionReport {
    code: "E-STATE-MISSING",
    text: "no state waits for this push",
    ref_name: Some("refs/heads/other"),
    hint: "Publish a state first.\nThen push again.",
};

#[test]
fn push_of_git_is_parsed_and_accepted() {
    let (client, fixture) = (client(), ReceiveFixture::new());
    let mut response = Vec::new();
    for _ in 0..10 {
        response.extend(report::keepalive(&capabilities()));
        response.extend(report::progress(&capabilities(), "checking"));
    }
    let results = [("refs/heads/main".to_owned(), Ok(())), ("refs/heads/other".to_owned(), Ok(()))];
    response.extend(report::report(&capabilities(), Ok(()), &results));
    let pushed = push_with(&client, ALL, &response, &["--push-option=ci.skip", "--atomic", "main", "other"]);
    assert!(pushed.success, "{}", pushed.stderr);
    assert!(pushed.stderr.contains("remote: checking") && pushed.stderr.contains("[new branch]"), "{}", pushed.stderr);

    let (request, rest) = parse(&pushed.request);
    let tip = client.git(&["rev-parse", "main"]);
    assert_eq!(request.commands.len(), 2);
    assert_eq!(
        request.commands[0],
        PushCommand { name: "refs/heads/main".to_owned(), old: None, new: Some(tip.clone()) }
    );
    let requested = &request.capabilities;
    assert!(requested.report_status && requested.side_band_64k && requested.atomic && requested.push_options);
    assert!(requested.agent.as_deref().is_some_and(|agent| agent.starts_with("git/")), "{:?}", requested.agent);
    assert_eq!((requested.object_format.as_deref(), &request.options[..]), (Some("sha1"), &["ci.skip".to_owned()][..]));

    let quarantine = fixture.receive(&rest, &[]).expect("a valid pack");
    assert_eq!(
        fixture.check_connectivity(view(&quarantine, &[]), &branch(&tip), &[]),
        Ok(Connectivity { objects: 3, extra: 0 })
    );
}

#[test]
fn rejection_is_shown_at_its_ref() {
    let response = report::rejection(&capabilities(), &commands(), &REJECTION);
    let pushed = push_with(&client(), ALL, &response, &["main", "other"]);
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
fn clients_with_few_capabilities_are_shown_the_reason_too() {
    for (name, words) in [
        ("report-status", "other -> other (E-STATE-MISSING: no state waits for this push)"),
        ("side-band-64k", "E-STATE-MISSING: no state waits for this push"),
    ] {
        let known = ClientCapabilities {
            report_status: name == "report-status",
            side_band_64k: name == "side-band-64k",
            ..ClientCapabilities::default()
        };
        let response = report::rejection(&known, &commands(), &REJECTION);
        let pushed = push_with(&client(), name, &response, &["main", "other"]);
        assert!(pushed.stderr.contains(words), "{name}: {}", pushed.stderr);
        assert!(!pushed.success, "{name}");
    }
}

#[test]
fn rejection_of_a_partly_parsed_push_has_the_negotiated_form() {
    // The commands that were parsed before the error: all, some, none.
    for parsed in [&commands()[..], &commands()[..1], &[]] {
        let response = report::rejection(&capabilities(), parsed, &RejectionReport { ref_name: None, ..REJECTION });
        let pushed = push_with(&client(), ALL, &response, &["main", "other"]);
        assert!(!pushed.success && pushed.stderr.contains("E-STATE-MISSING: no state"), "{}", pushed.stderr);
        assert!(!pushed.stderr.contains("bad band"), "{}", pushed.stderr);
    }
}

#[test]
fn deletion_sends_no_pack() {
    let client = client();
    let tip = client.git(&["rev-parse", "main"]);
    let response = report::report(&capabilities(), Ok(()), &[("refs/heads/gone".to_owned(), Ok(()))]);
    let mut advertisement = Vec::new();
    push(&mut advertisement, &[format!("{tip} refs/heads/gone\0{ALL}\n").as_bytes()]);
    push_flush(&mut advertisement);
    let pushed = push_to(&client, &advertisement, &response, &[":refs/heads/gone"]);
    assert!(pushed.success, "{}", pushed.stderr);
    let (request, rest) = parse(&pushed.request);
    assert_eq!(request.commands, [PushCommand { name: "refs/heads/gone".to_owned(), old: Some(tip), new: None }]);
    let fixture = ReceiveFixture::new();
    let quarantine = Quarantine::create(&fixture.layout).expect("create a folder");
    let mut sink = PackSink::new(&quarantine, fixture.limits);
    sink.write(&rest).expect("no data");
    assert!(matches!(sink.finish(), Ok(PackData::None)));
}
