//! Advertisements and responses compared with those of git, and parsing of requests.

use std::collections::BTreeSet;

use grasp_git::pktline;
use grasp_git::process::GitError;
use grasp_git::refs::{Refs, write_refs};
use grasp_git::serve::{
    AGENT, FetchCommand, FetchResponseKind, PackService, ProtocolVersion, UploadPackError, UploadPackRequest,
    UploadPackRequestError, advertisement, ls_refs_response, not_our_ref_response, upload_pack,
};

use super::repository::{LIMITS, ServedRepo, command, feed_command, run};

/// Returns the packets of a response, separators by their names.
fn packets(mut bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some((packet, length)) = pktline::read(bytes).expect("valid packets") {
        lines.push(match packet.line() {
            Some(line) => String::from_utf8_lossy(line).into_owned(),
            None => format!("{packet:?}"),
        });
        bytes = &bytes[length..];
    }
    assert_eq!(bytes, b"", "the last packet is incomplete");
    lines
}

/// Returns the lines without capabilities, and the capabilities.
fn split_capabilities(lines: &[String]) -> (Vec<String>, BTreeSet<String>) {
    let mut capabilities = BTreeSet::new();
    let mut bare = |line: &String| match line.split_once('\0') {
        Some((line, words)) => {
            capabilities.extend(words.split(' ').map(str::to_owned));
            line.to_owned()
        }
        None => line.clone(),
    };
    (lines.iter().map(&mut bare).collect(), capabilities)
}

/// Returns the output of git with our settings.
fn git_output(repo: &ServedRepo, version: &str, service: &[&str], input: &[u8]) -> Vec<String> {
    let template = repo.root.path().join("empty.git");
    let mut command = command(
        repo.folder.as_deref().unwrap_or(&template),
        &["-c", "uploadpack.allowAnySHA1InWant=true", "-c", "uploadpack.allowFilter=true"],
    );
    command.args(["-c", "receive.advertisePushOptions=true"]);
    command.args(service).arg(".").env("GIT_USER_AGENT", AGENT).env("GIT_PROTOCOL", version);
    packets(&feed_command(&mut command, input))
}

#[test]
fn advertisements_equal_those_of_git() {
    for repo in [ServedRepo::new(), ServedRepo::empty()] {
        for (protocol, version) in
            [(ProtocolVersion::V0, ""), (ProtocolVersion::V1, "version=1"), (ProtocolVersion::V2, "version=2")]
        {
            let ours = packets(&advertisement::upload_pack(&repo.refs(), &repo.capabilities, protocol));
            assert_eq!(ours[..2], ["# service=git-upload-pack", "Flush"]);
            let mut theirs = git_output(&repo, version, &["upload-pack", "--http-backend-info-refs"], b"");
            let has_capabilities = theirs.iter().any(|line| line.contains('\0'));
            if repo.folder.is_none() && protocol != ProtocolVersion::V2 && !has_capabilities {
                // Git before 2.41 advertises nothing for a repository without refs.
                continue;
            }
            // Older versions of git have this command, which this server does not have.
            theirs.retain(|line| line != "object-info");
            assert_eq!(split_capabilities(&ours[2..]), split_capabilities(&theirs), "{protocol:?}");
        }
    }
}

#[test]
fn advertised_capabilities_are_stable() {
    let repo = ServedRepo::empty();
    let v0 = format!(
        "multi_ack thin-pack side-band side-band-64k ofs-delta shallow deepen-since deepen-not deepen-relative \
         no-progress include-tag multi_ack_detailed allow-tip-sha1-in-want allow-reachable-sha1-in-want no-done filter \
         object-format=sha1 agent={AGENT}"
    );
    assert_eq!(repo.capabilities.upload_pack, v0);
    let v2 = [
        "version 2",
        &format!("agent={AGENT}"),
        "ls-refs=unborn",
        "fetch=shallow wait-for-done filter",
        "server-option",
        "object-format=sha1",
        "Flush",
    ];
    assert_eq!(packets(&repo.capabilities.v2_advertisement), v2);
}

#[test]
fn push_advertisement_equals_that_of_git() {
    let theirs = |repo: &ServedRepo| {
        let (lines, mut words) =
            split_capabilities(&git_output(repo, "", &["receive-pack", "--http-backend-info-refs"], b""));
        assert!(words.remove("report-status-v2"));
        (lines, words)
    };
    let ours = |repo: &ServedRepo, haves: &[String]| {
        let haves = haves.iter().map(String::as_str);
        let lines = packets(&advertisement::receive_pack(&repo.refs(), &repo.capabilities, haves));
        assert_eq!(lines[..2], ["# service=git-receive-pack", "Flush"]);
        split_capabilities(&lines[2..])
    };
    let (repo, empty) = (ServedRepo::new(), ServedRepo::empty());
    assert_eq!(ours(&repo, &[]), theirs(&repo));
    assert_eq!(ours(&empty, &[]), theirs(&empty));
    // Objects of another repository, some of which this one advertises itself.
    let oids: Vec<String> = repo.refs().iter().map(|(_, target)| target.oid.clone()).collect();
    let other = "3".repeat(40);
    let haves = [oids.clone(), vec![other.clone(), other.clone()]].concat();
    let (lines, _) = ours(&repo, &haves);
    assert_eq!(lines.iter().filter(|line| line.ends_with(" .have")).collect::<Vec<_>>(), [&format!("{other} .have")]);
    // A repository without refs that has another one as its alternate.
    let reader = ServedRepo { folder: Some(empty.root.path().join("empty.git")), ..ServedRepo::empty() };
    let alternate = run(repo.folder(), &["rev-parse", "--absolute-git-dir"]);
    std::fs::write(reader.folder().join("objects/info/alternates"), format!("{alternate}/objects\n"))
        .expect("write a file");
    let (mut lines, words) = ours(&reader, &oids);
    let (mut git_lines, git_words) = theirs(&reader);
    lines.sort();
    git_lines.sort();
    assert_eq!((lines, words), (git_lines, git_words));
    // The number of lines is limited, without duplicates.
    let many: Vec<String> = (0..5_000).map(|number| format!("{:040x}", number / 2)).collect();
    let (lines, _) = ours(&repo, &[oids, many].concat());
    assert_eq!(lines.iter().filter(|line| line.ends_with(" .have")).count(), 1_000);
    assert_eq!(PackService::from_name("git-receive-pack"), Some(PackService::ReceivePack));
    assert_eq!(PackService::from_name("git-upload-archive"), None);
}

/// Returns a v2 request.
fn v2_request(command: &str, arguments: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    pktline::push_line(&mut body, &format!("command={command}"));
    pktline::push_line(&mut body, "agent=x");
    pktline::push_line(&mut body, "object-format=sha1");
    pktline::push_delimiter(&mut body);
    arguments.iter().for_each(|argument| pktline::push_line(&mut body, argument));
    pktline::push_flush(&mut body);
    body
}

#[test]
fn ls_refs_response_equals_that_of_git() {
    let (repo, unborn) = (ServedRepo::new(), ServedRepo::new());
    let mut refs: Refs = unborn.refs();
    refs.set_head("refs/heads/later");
    write_refs(unborn.folder(), &refs).expect("write refs");
    for repo in [repo, unborn, ServedRepo::empty()] {
        for arguments in [
            &[][..],
            &["peel"],
            &["symrefs"],
            &["unborn"],
            &["peel", "symrefs", "unborn"],
            &["symrefs", "unborn", "ref-prefix HEAD"],
            &["symrefs", "unborn", "ref-prefix refs/heads/"],
            &["peel", "ref-prefix refs/tags/v", "ref-prefix refs/tags/"],
            &["ref-prefix refs/heads/main", "ref-prefix refs/heads/m", "ref-prefix refs/heads/side"],
            &["ref-prefix refs/heads/mainly", "ref-prefix refs/nostr/"],
            &["ref-prefix "],
            &["ref-prefix z"],
        ] {
            let body = v2_request("ls-refs", arguments);
            let Ok(UploadPackRequest::LsRefs(request)) = UploadPackRequest::parse(ProtocolVersion::V2, &body) else {
                panic!("{arguments:?}")
            };
            let ours = packets(&ls_refs_response(&repo.refs(), &request));
            let theirs = git_output(&repo, "version=2", &["upload-pack", "--stateless-rpc"], &body);
            assert_eq!(ours, theirs, "{arguments:?}");
        }
    }
}

#[test]
fn too_many_prefixes_are_ignored() {
    let prefixes: Vec<String> = (0..65_536).map(|number| format!("ref-prefix {number}")).collect();
    let prefixes: Vec<&str> = prefixes.iter().map(String::as_str).collect();
    for (some, left) in [(&prefixes[..65_535], 65_535), (&prefixes[..], 0)] {
        let Ok(UploadPackRequest::LsRefs(request)) =
            UploadPackRequest::parse(ProtocolVersion::V2, &v2_request("ls-refs", some))
        else {
            panic!()
        };
        assert_eq!(request.prefixes.len(), left);
    }
}

#[test]
fn highest_supported_protocol_version_is_used() {
    for (header, protocol) in [
        (None, ProtocolVersion::V0),
        (Some(""), ProtocolVersion::V0),
        (Some("version=0"), ProtocolVersion::V0),
        (Some("version=1"), ProtocolVersion::V1),
        (Some("version=2"), ProtocolVersion::V2),
        (Some("a=b:version=1:version=2:c"), ProtocolVersion::V2),
        (Some("version=2:version=1"), ProtocolVersion::V2),
        (Some("version=3"), ProtocolVersion::V0),
        (Some("version=2\n"), ProtocolVersion::V0),
        (Some("xversion=2"), ProtocolVersion::V0),
        (Some("version=22;$(reboot)"), ProtocolVersion::V0),
    ] {
        assert_eq!(ProtocolVersion::from_header(header), protocol, "{header:?}");
    }
}

const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

/// Returns a request of lines; `FLUSH` and `DELIM` stand for these packets.
fn body(lines: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines {
        match *line {
            "FLUSH" => pktline::push_flush(&mut out),
            "DELIM" => pktline::push_delimiter(&mut out),
            line => pktline::push_line(&mut out, &line.replace("$A", A).replace("$B", B)),
        }
    }
    out
}

fn fetch(protocol: ProtocolVersion, lines: &[&str]) -> FetchCommand {
    match UploadPackRequest::parse(protocol, &body(lines)) {
        Ok(UploadPackRequest::Fetch(fetch)) => fetch,
        other => panic!("{lines:?}: {other:?}"),
    }
}

#[test]
fn equal_requests_have_one_canonical_form() {
    let v2 =
        |arguments: &[&str]| fetch(ProtocolVersion::V2, &[&["command=fetch", "DELIM"], arguments, &["FLUSH"]].concat());
    let whole = v2(&["thin-pack", "want $B", "want $A", "have $B", "have $A", "done"]);
    assert_eq!(whole.wants, [A, B]);
    assert_eq!(whole.response_kind, FetchResponseKind::Pack);
    assert_eq!(v2(&["want $A", "have $A", "have $B", "want $B", "want $A", "thin-pack", "done"]), whole);
    let requests =
        ["agent=me", "command=fetch", "server-option=x", "object-format=sha1", "DELIM", "thin-pack", "want $A"];
    assert_eq!(
        fetch(
            ProtocolVersion::V2,
            &[&requests[..], &["want $B", "have $A", "have $B", "done", "FLUSH", "junk"]].concat()
        ),
        whole
    );
    let v0 = |lines: &[&str]| fetch(ProtocolVersion::V0, lines);
    let first = v0(&["want $A thin-pack ofs-delta agent=x", "want $B", "FLUSH", "have $A", "done"]);
    assert_eq!(v0(&["want $B ofs-delta thin-pack session-id=1", "want $A", "FLUSH", "have $A", "done"]), first);
    assert_eq!(v0(&["want $B ofs-delta", "want $A thin-pack=1", "FLUSH", "have $A", "done", "junk"]), first);
    assert_eq!(
        fetch(ProtocolVersion::V1, &["want $A thin-pack ofs-delta", "want $B", "FLUSH", "have $A", "done"]),
        first
    );
}

#[test]
fn different_requests_have_different_keys() {
    let v2 =
        |arguments: &[&str]| fetch(ProtocolVersion::V2, &[&["command=fetch", "DELIM"], arguments, &["FLUSH"]].concat());
    let v0 = |lines: &[&str]| fetch(ProtocolVersion::V0, lines);
    let all = [
        v2(&["want $A"]),
        v2(&["want $A", "done"]),
        v2(&["want $B", "done"]),
        v2(&["want $A", "want $B", "done"]),
        v2(&["want $A", "have $B", "done"]),
        v2(&["want $A", "have $B"]),
        v2(&["want $A", "have $B", "wait-for-done"]),
        v2(&["want $A", "shallow $B", "done"]),
        v2(&["want $A", "deepen 1", "done"]),
        v2(&["want $A", "deepen 2", "done"]),
        v2(&["want $A", "deepen 2", "deepen-relative", "done"]),
        v2(&["want $A", "deepen-since 2", "done"]),
        v2(&["want $A", "deepen-not x", "done"]),
        v2(&["want $A", "deepen-not x", "deepen-not y", "done"]),
        v2(&["want $A", "filter blob:none", "done"]),
        v2(&["want $A", "filter tree:0", "done"]),
        v2(&["want $A", "thin-pack", "done"]),
        v2(&["want $A", "ofs-delta", "done"]),
        v2(&["want $A", "no-progress", "done"]),
        v2(&["want $A", "include-tag", "done"]),
        v0(&["want $A", "FLUSH"]),
        v0(&["want $A", "FLUSH", "FLUSH"]),
        v0(&["want $A", "FLUSH", "done"]),
        v0(&["want $A side-band", "FLUSH", "done"]),
        v0(&["want $A side-band-64k", "FLUSH", "done"]),
        v0(&["want $A filter", "filter blob:none", "FLUSH", "done"]),
        v0(&["want $A", "deepen 1", "FLUSH", "done"]),
        v0(&["want $A", "shallow $B", "FLUSH", "done"]),
        v0(&["want $A", "FLUSH", "have $A", "have $B", "done"]),
        v0(&["want $A", "FLUSH", "have $B", "have $A", "done"]),
        v0(&["want $A", "FLUSH", "have $B", "have $A", "FLUSH"]),
    ];
    let keys: BTreeSet<_> = all.iter().map(|fetch| fetch.key).collect();
    assert_eq!(keys.len(), all.len());
    let packs: Vec<bool> = all.iter().map(|fetch| fetch.response_kind == FetchResponseKind::Pack).collect();
    assert_eq!(packs[..7], [true, true, true, true, true, false, false]);
    assert_eq!(packs[20..23], [false, false, true]);
}

#[test]
fn requests_without_wants_are_empty() {
    for (protocol, lines) in [
        (ProtocolVersion::V0, &[][..]),
        (ProtocolVersion::V1, &["FLUSH"]),
        (ProtocolVersion::V0, &["FLUSH", "done"]),
        (ProtocolVersion::V2, &[]),
        (ProtocolVersion::V2, &["FLUSH"]),
        (ProtocolVersion::V2, &["command=fetch", "FLUSH"]),
        (ProtocolVersion::V2, &["command=fetch", "DELIM", "have $A", "done", "FLUSH"]),
    ] {
        assert_eq!(UploadPackRequest::parse(protocol, &body(lines)), Ok(UploadPackRequest::Empty), "{lines:?}");
    }
}

#[test]
fn invalid_requests_are_rejected_with_a_reason() {
    let line = |text: &str| UploadPackRequestError::UnexpectedLine(text.replace("$A", A));
    for (protocol, lines, reason) in [
        (ProtocolVersion::V0, &["want x", "FLUSH"][..], line("x")),
        (ProtocolVersion::V0, &["want $Aa", "FLUSH"], line(&format!("{A}a"))),
        (ProtocolVersion::V0, &["want $A"], UploadPackRequestError::Truncated),
        (ProtocolVersion::V0, &["want $A", "DELIM"], UploadPackRequestError::UnexpectedPacket),
        (ProtocolVersion::V0, &["have $A", "FLUSH"], line("have $A")),
        (ProtocolVersion::V0, &["want $A", "filter blob:none", "FLUSH"], line("filter blob:none")),
        (ProtocolVersion::V0, &["want $A", "FLUSH", "have $A"], UploadPackRequestError::Truncated),
        (ProtocolVersion::V0, &["want $A", "FLUSH", "want $A"], line("want $A")),
        (ProtocolVersion::V0, &["want $A", "deepen 0", "FLUSH"], line("deepen 0")),
        (ProtocolVersion::V0, &["want $A", "deepen 010", "FLUSH"], line("deepen 010")),
        (ProtocolVersion::V0, &["want $A", "deepen 4294967297", "FLUSH"], line("deepen 4294967297")),
        (ProtocolVersion::V0, &["want $A", "deepen 1", "deepen 2", "FLUSH"], line("deepen 2")),
        (ProtocolVersion::V2, &["agent=x", "FLUSH"], UploadPackRequestError::NoCommand),
        (
            ProtocolVersion::V2,
            &["command=object-info", "FLUSH"],
            UploadPackRequestError::UnknownCommand("object-info".to_owned()),
        ),
        (ProtocolVersion::V2, &["command=fetch", "command=fetch", "FLUSH"], line("command=fetch")),
        (
            ProtocolVersion::V2,
            &["command=fetch", "object-format=sha256", "FLUSH"],
            UploadPackRequestError::ObjectFormat("sha256".into()),
        ),
        (ProtocolVersion::V2, &["command=fetch", "unknown", "FLUSH"], line("unknown")),
        (ProtocolVersion::V2, &["command=fetch", "DELIM", "want-ref x", "FLUSH"], line("want-ref x")),
        (ProtocolVersion::V2, &["command=fetch", "DELIM", "packfile-uris x", "FLUSH"], line("packfile-uris x")),
        (ProtocolVersion::V2, &["command=fetch", "DELIM", "sideband-all", "FLUSH"], line("sideband-all")),
        (ProtocolVersion::V2, &["command=fetch", "DELIM", "filter a", "filter b", "FLUSH"], line("filter b")),
        (ProtocolVersion::V2, &["command=fetch", "DELIM", "want $A"], UploadPackRequestError::Truncated),
        (
            ProtocolVersion::V2,
            &["command=fetch", "DELIM", "want $A", "DELIM", "FLUSH"],
            UploadPackRequestError::UnexpectedPacket,
        ),
        (ProtocolVersion::V2, &["command=ls-refs", "DELIM", "want $A", "FLUSH"], line("want $A")),
        (ProtocolVersion::V2, &["command=ls-refs"], UploadPackRequestError::Truncated),
        (ProtocolVersion::V2, &["command=fetch", "DELIM", "filter a\tb", "FLUSH"], line("filter a b")),
    ] {
        assert_eq!(UploadPackRequest::parse(protocol, &body(lines)), Err(reason), "{lines:?}");
    }
    let long = vec![b'0'; 8 * 1024 * 1024 + 1];
    assert_eq!(UploadPackRequest::parse(ProtocolVersion::V0, &long), Err(UploadPackRequestError::TooLong));
    let many = [b"0014command=ls-refs\n0001".to_vec(), b"0009peel\n".repeat(170_000)].concat();
    assert_eq!(UploadPackRequest::parse(ProtocolVersion::V2, &many), Err(UploadPackRequestError::TooManyLines));
    assert_eq!(UploadPackRequest::parse(ProtocolVersion::V0, b"00"), Err(UploadPackRequestError::Truncated));
    assert_eq!(
        String::from_utf8_lossy(&UploadPackRequestError::UnknownCommand("x".to_owned()).to_response()),
        "0028ERR upload-pack: unknown command 'x'"
    );
    assert_eq!(not_our_ref_response(A), format!("0049ERR upload-pack: not our ref {A}").as_bytes());
}

#[test]
fn silent_failure_of_git_is_reported_to_the_client() {
    let repo = ServedRepo::new();
    let oid = repo.oid("refs/heads/main");
    let arguments = [&format!("want {oid}"), "filter unknown", "done"];
    let Ok(UploadPackRequest::Fetch(fetch)) =
        UploadPackRequest::parse(ProtocolVersion::V2, &v2_request("fetch", &arguments))
    else {
        panic!()
    };
    let mut output = Vec::new();
    let result = upload_pack(&repo.git, repo.folder(), (ProtocolVersion::V2, &fetch.body), LIMITS, |bytes| {
        output.extend_from_slice(bytes);
        Ok(())
    });
    assert!(matches!(result, Err(UploadPackError::Reported(GitError::Failed { .. }))), "{result:?}");
    assert_eq!(packets(&output), ["ERR upload-pack: git refuses this request"]);
}
