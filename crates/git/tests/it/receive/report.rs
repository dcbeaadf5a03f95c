//! A real `git push`, answered with our bytes.

use std::fs;

use grasp_core::admission::push::PushCommand;
use grasp_git::pktline::{push, push_flush};
use grasp_git::receive::report::Rejection;
use grasp_git::receive::{
    Capabilities, Connected, Incoming, PackSink, Progress, PushLimits, PushParser, PushRequest, Received, report,
};
use tempfile::TempDir;

use super::support::{Client, House, branch, run, view};

const ALL: &str =
    "report-status side-band-64k delete-refs ofs-delta atomic push-options quiet object-format=sha1 agent=x";

/// What a push sent, how it ended, and what it told the person.
struct Pushed {
    request: Vec<u8>,
    success: bool,
    said: String,
}

/// Pushes to a server that can do this and gives this answer.
fn pushed(client: &Client, can: &str, answer: &[u8], arguments: &[&str]) -> Pushed {
    let mut advertisement = Vec::new();
    push(&mut advertisement, &[format!("{} capabilities^{{}}\0{can}\n", "0".repeat(40)).as_bytes()]);
    push_flush(&mut advertisement);
    pushed_to(client, &advertisement, answer, arguments)
}

/// Pushes to a server that begins with these bytes. Of the arguments, options come first.
fn pushed_to(client: &Client, advertisement: &[u8], answer: &[u8], arguments: &[&str]) -> Pushed {
    let server = TempDir::new().expect("a folder");
    let path = |name: &str| server.path().join(name).to_str().expect("text").to_owned();
    fs::write(path("advertisement"), advertisement).expect("writes");
    fs::write(path("answer"), answer).expect("writes");
    let script = format!("cat {}\ncat {}\ncat > {}\n", path("advertisement"), path("answer"), path("request"));
    fs::write(path("script"), script).expect("writes");
    let receive_pack = format!("--receive-pack=sh {}", path("script"));
    let folder = path("");
    let options = arguments.iter().take_while(|word| word.starts_with("--")).count();
    let command = [&["push", &receive_pack], &arguments[..options], &[&folder], &arguments[options..]].concat();
    let output = run(client.folder.path(), &command, b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let request = fs::read(path("request")).unwrap_or_default();
    Pushed { request, success: output.status.success(), said }
}

fn parse(bytes: &[u8]) -> (PushRequest, Vec<u8>) {
    match PushParser::new(PushLimits::default()).feed(bytes).expect("is understood") {
        Progress::Done { request, rest } => (request, rest),
        Progress::More => panic!("is complete"),
    }
}

fn capabilities() -> Capabilities {
    Capabilities { report_status: true, side_band_64k: true, ..Capabilities::default() }
}

fn client() -> Client {
    let client = Client::new();
    client.commit("readme", "hello");
    client.git(&["branch", "other"]);
    client
}

fn commands() -> Vec<PushCommand> {
    let command = |name: &str| PushCommand { name: name.to_owned(), old: None, new: Some("1".repeat(40)) };
    vec![command("refs/heads/main"), command("refs/heads/other")]
}

const REFUSAL: Rejection<'_> = Rejection {
    code: "E-STATE-MISSING",
    text: "no state waits for this push",
    about: Some("refs/heads/other"),
    hint: "Publish a state first.\nThen push again.",
};

#[test]
fn what_git_sends_is_understood_and_taken() {
    let (client, house) = (client(), House::new());
    let mut answer = Vec::new();
    for _ in 0..10 {
        answer.extend(report::keepalive(&capabilities()));
        answer.extend(report::progress(&capabilities(), "checking"));
    }
    let results = [("refs/heads/main".to_owned(), Ok(())), ("refs/heads/other".to_owned(), Ok(()))];
    answer.extend(report::report(&capabilities(), Ok(()), &results));
    let pushed = pushed(&client, ALL, &answer, &["--push-option=ci.skip", "--atomic", "main", "other"]);
    assert!(pushed.success, "{}", pushed.said);
    assert!(pushed.said.contains("remote: checking") && pushed.said.contains("[new branch]"), "{}", pushed.said);

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

    let incoming = house.receive(&rest, &[]).expect("is sound");
    assert_eq!(house.connect(view(&incoming, &[]), &branch(&tip), &[]), Ok(Connected { objects: 3, extra: 0 }));
}

#[test]
fn refusals_are_shown_at_their_ref() {
    let answer = report::refusal(&capabilities(), &commands(), &REFUSAL);
    let pushed = pushed(&client(), ALL, &answer, &["main", "other"]);
    assert!(!pushed.success);
    for words in [
        "remote: E-STATE-MISSING: no state waits for this push",
        "remote:   Publish a state first.",
        "[remote rejected] main -> main (not tried: refs/heads/other is refused)",
        "[remote rejected] other -> other (E-STATE-MISSING: no state waits for this push)",
    ] {
        assert!(pushed.said.contains(words), "{words}: {}", pushed.said);
    }
}

#[test]
fn clients_that_can_do_less_are_told_too() {
    for (can, words) in [
        ("report-status", "other -> other (E-STATE-MISSING: no state waits for this push)"),
        ("side-band-64k", "E-STATE-MISSING: no state waits for this push"),
    ] {
        let known = Capabilities {
            report_status: can == "report-status",
            side_band_64k: can == "side-band-64k",
            ..Capabilities::default()
        };
        let answer = report::refusal(&known, &commands(), &REFUSAL);
        let pushed = pushed(&client(), can, &answer, &["main", "other"]);
        assert!(pushed.said.contains(words), "{can}: {}", pushed.said);
        assert!(!pushed.success, "{can}");
    }
}

#[test]
fn a_push_that_is_not_understood_is_answered_in_the_form_that_was_agreed() {
    // What was heard before the error: all, a part, nothing.
    for heard in [&commands()[..], &commands()[..1], &[]] {
        let answer = report::refusal(&capabilities(), heard, &Rejection { about: None, ..REFUSAL });
        let pushed = pushed(&client(), ALL, &answer, &["main", "other"]);
        assert!(!pushed.success && pushed.said.contains("E-STATE-MISSING: no state"), "{}", pushed.said);
        assert!(!pushed.said.contains("bad band"), "{}", pushed.said);
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
    let pushed = pushed_to(&client, &there, &answer, &[":refs/heads/gone"]);
    assert!(pushed.success, "{}", pushed.said);
    let (request, rest) = parse(&pushed.request);
    assert_eq!(request.commands, [PushCommand { name: "refs/heads/gone".to_owned(), old: Some(tip), new: None }]);
    let house = House::new();
    let incoming = Incoming::create(&house.layout).expect("is made");
    let mut sink = PackSink::new(&incoming, house.limits);
    sink.write(&rest).expect("is nothing");
    assert!(matches!(sink.finish(), Ok(Received::Nothing)));
}
