//! Parsing of mutated requests.

use grasp_git::pktline;
use grasp_git::serve::{ProtocolVersion, UploadPackRequest};

/// A small random number generator with a fixed seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).expect("the bound is a usize")
    }
}

fn packets(lines: &[&str]) -> Vec<Vec<u8>> {
    let packet = |line: &&str| {
        let mut out = Vec::new();
        match *line {
            "FLUSH" => pktline::push_flush(&mut out),
            "DELIM" => pktline::push_delimiter(&mut out),
            line => pktline::push_line(&mut out, line),
        }
        out
    };
    lines.iter().map(packet).collect()
}

const OIDS: [&str; 3] = [
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "0123456789012345678901234567890123456789",
    "ffffffffffffffffffffffffffffffffffffffff",
];

/// Returns valid requests as lists of packets, from which mutated ones are made.
fn corpus() -> Vec<Vec<Vec<u8>>> {
    let [a, b, c] = OIDS;
    let (want_a, want_b, have) = (format!("want {a}"), format!("want {b}"), format!("have {c}"));
    let (first, shallow) =
        (format!("want {a} multi_ack_detailed side-band-64k filter agent=x"), format!("shallow {b}"));
    let v0 = [&first, &want_b, &shallow, "deepen 3", "filter blob:none", "FLUSH", &have, "FLUSH", "done"];
    let v2 = ["command=fetch", "agent=x", "object-format=sha1", "DELIM", "thin-pack", "ofs-delta", &want_a, &want_b];
    let v2 =
        [&v2[..], &[&shallow, "deepen-since 5", "deepen-not v1", "filter tree:0", &have, "done", "FLUSH"]].concat();
    let list =
        ["command=ls-refs", "DELIM", "peel", "symrefs", "unborn", "ref-prefix refs/heads/", "ref-prefix H", "FLUSH"];
    vec![packets(&v0), packets(&v2), packets(&list)]
}

fn mutate(rng: &mut Rng, packets: &mut Vec<Vec<u8>>, others: &[Vec<Vec<u8>>]) {
    let place = rng.below(packets.len());
    match rng.below(6) {
        0 => drop(packets.remove(place)),
        1 => packets.insert(place, packets[rng.below(packets.len())].clone()),
        2 => {
            let other = &others[rng.below(others.len())];
            packets.insert(place, other[rng.below(other.len())].clone());
        }
        3 => {
            let other = rng.below(packets.len());
            packets.swap(place, other);
        }
        _ => {
            let packet = &mut packets[place];
            let at = rng.below(packet.len());
            match rng.below(3) {
                0 => packet[at] = u8::try_from(rng.below(256)).expect("a byte"),
                1 => packet.insert(at, b' '),
                _ => drop(packet.remove(at)),
            }
        }
    }
    if packets.is_empty() {
        packets.push(b"0000".to_vec());
    }
}

#[test]
fn mutated_requests_are_rejected_or_have_a_stable_canonical_form() {
    let corpus = corpus();
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let (mut fetches, mut rejected) = (0, 0);
    for _ in 0..60_000 {
        let mut packets = corpus[rng.below(corpus.len())].clone();
        for _ in 0..rng.below(5) {
            mutate(&mut rng, &mut packets, &corpus);
        }
        packets.retain(|packet| !packet.is_empty());
        let body = packets.concat();
        for protocol in [ProtocolVersion::V0, ProtocolVersion::V2] {
            match UploadPackRequest::parse(protocol, &body) {
                Ok(UploadPackRequest::Fetch(fetch)) => {
                    fetches += 1;
                    assert!(fetch.wants.iter().all(|want| OIDS.contains(&want.as_str()) || want.len() == 40));
                    assert_eq!(UploadPackRequest::parse(protocol, &fetch.body), Ok(UploadPackRequest::Fetch(fetch)));
                }
                Ok(_) => {}
                Err(error) => {
                    rejected += 1;
                    let response = error.to_response();
                    let (packet, length) = pktline::read(&response).expect("a packet").expect("a complete packet");
                    let text = std::str::from_utf8(packet.line().expect("a text line")).expect("UTF-8");
                    assert!(text.starts_with("ERR ") && !text.contains(char::is_control), "{text:?}");
                    assert!(length == response.len() && length < 500);
                }
            }
        }
    }
    assert!(fetches > 5_000 && rejected > 5_000, "{fetches} fetches, {rejected} rejected: both must be tested");
}
