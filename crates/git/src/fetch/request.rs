//! Builds the requests to `git-upload-pack`.

use super::ref_advertisement::ServerFeatures;
use crate::pktline;

/// The objects of a fetch request.
#[derive(Clone, Copy, Debug)]
pub struct FetchWants<'a> {
    /// The wanted objects.
    pub wants: &'a [String],
    /// Objects that are present here with everything that they refer to.
    pub haves: &'a [String],
}

/// Returns a v2 `fetch` with `done`: the server sends the pack without further negotiation. Progress texts are not
/// declined, because some servers send no other sign that they are working.
#[must_use]
pub fn fetch_v2(agent: &str, objects: FetchWants<'_>) -> Vec<u8> {
    let mut out = command("fetch", agent);
    pktline::push_line(&mut out, "thin-pack");
    pktline::push_line(&mut out, "ofs-delta");
    objects.wants.iter().for_each(|oid| pktline::push_line(&mut out, &format!("want {oid}")));
    objects.haves.iter().for_each(|oid| pktline::push_line(&mut out, &format!("have {oid}")));
    pktline::push_line(&mut out, "done");
    pktline::push_flush(&mut out);
    out
}

/// Returns a v2 `ls-refs` for names that begin with one of the prefixes.
#[must_use]
pub fn ls_refs(agent: &str, prefixes: &[String]) -> Vec<u8> {
    let mut out = command("ls-refs", agent);
    pktline::push_line(&mut out, "peel");
    prefixes.iter().for_each(|prefix| pktline::push_line(&mut out, &format!("ref-prefix {prefix}")));
    pktline::push_flush(&mut out);
    out
}

/// Returns a v0 fetch that uses the features of the server. There must be at least one wanted object.
#[must_use]
pub fn fetch_v0(agent: &str, objects: FetchWants<'_>, features: ServerFeatures) -> Vec<u8> {
    let mut capabilities = String::new();
    for (is_supported, name) in [
        (features.thin_pack, "thin-pack"),
        (features.side_band_64k, "side-band-64k"),
        (features.ofs_delta, "ofs-delta"),
    ] {
        if is_supported {
            capabilities.push(' ');
            capabilities.push_str(name);
        }
    }
    if features.agent {
        capabilities.push_str(&format!(" agent={agent}"));
    }
    let mut out = Vec::new();
    for want in objects.wants {
        // Only the first line has the capabilities.
        pktline::push_line(&mut out, &format!("want {want}{}", std::mem::take(&mut capabilities)));
    }
    pktline::push_flush(&mut out);
    objects.haves.iter().for_each(|oid| pktline::push_line(&mut out, &format!("have {oid}")));
    pktline::push_line(&mut out, "done");
    out
}

fn command(name: &str, agent: &str) -> Vec<u8> {
    let mut out = Vec::new();
    pktline::push_line(&mut out, &format!("command={name}"));
    pktline::push_line(&mut out, &format!("agent={agent}"));
    pktline::push_delimiter(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::{ProtocolVersion, UploadPackRequest};

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    #[test]
    fn requests_are_accepted_by_our_own_parser() {
        let (wants, haves) = ([A.to_owned(), B.to_owned()], [B.to_owned()]);
        let objects = FetchWants { wants: &wants, haves: &haves };
        let features =
            ServerFeatures { side_band_64k: true, ofs_delta: true, thin_pack: true, agent: true, sha1: true };
        for (protocol, body) in [
            (ProtocolVersion::V2, fetch_v2("graspd/1", objects)),
            (ProtocolVersion::V0, fetch_v0("graspd/1", objects, features)),
        ] {
            let Ok(UploadPackRequest::Fetch(fetch)) = UploadPackRequest::parse(protocol, &body) else {
                panic!("not a fetch: {protocol:?}")
            };
            assert_eq!(fetch.wants, wants);
            assert_eq!(fetch.response_kind, crate::serve::request::FetchResponseKind::Pack);
        }
        let body = ls_refs("graspd/1", &["refs/heads/".to_owned(), "refs/nostr/1".to_owned()]);
        let Ok(UploadPackRequest::LsRefs(request)) = UploadPackRequest::parse(ProtocolVersion::V2, &body) else {
            panic!("not an ls-refs request")
        };
        assert_eq!(request.prefixes, ["refs/heads/", "refs/nostr/1"]);
        assert!(request.peel && !request.symrefs);
    }

    #[test]
    fn only_supported_features_are_requested() {
        let wants = [A.to_owned(), B.to_owned()];
        let objects = FetchWants { wants: &wants, haves: &[] };
        let plain = fetch_v0("x", objects, ServerFeatures::default());
        assert_eq!(plain, format!("0032want {A}\n0032want {B}\n00000009done\n").as_bytes());
        let features = ServerFeatures { side_band_64k: true, ..ServerFeatures::default() };
        let banded = String::from_utf8(fetch_v0("x", objects, features)).expect("UTF-8");
        assert!(banded.starts_with(&format!("0040want {A} side-band-64k\n0032want {B}\n0000")), "{banded}");
    }
}
