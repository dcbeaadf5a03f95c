//! The bytes of requests to `git-upload-pack`.

use super::ref_advertisement::Offer;
use crate::pktline;

/// Objects that are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The objects.
    pub wants: &'a [String],
    /// Objects that are here with everything they need.
    pub haves: &'a [String],
}

/// A v2 `fetch`: the pack comes at once, whatever both sides have in common. Progress is not declined: it is a sign of life
/// where a server has no other.
#[must_use]
pub fn fetch(agent: &str, wish: Wish<'_>) -> Vec<u8> {
    let mut out = command("fetch", agent);
    pktline::push_line(&mut out, "thin-pack");
    pktline::push_line(&mut out, "ofs-delta");
    wish.wants.iter().for_each(|oid| pktline::push_line(&mut out, &format!("want {oid}")));
    wish.haves.iter().for_each(|oid| pktline::push_line(&mut out, &format!("have {oid}")));
    pktline::push_line(&mut out, "done");
    pktline::push_flush(&mut out);
    out
}

/// A v2 `ls-refs` for names that begin with one of these.
#[must_use]
pub fn ls_refs(agent: &str, prefixes: &[String]) -> Vec<u8> {
    let mut out = command("ls-refs", agent);
    pktline::push_line(&mut out, "peel");
    prefixes.iter().for_each(|prefix| pktline::push_line(&mut out, &format!("ref-prefix {prefix}")));
    pktline::push_flush(&mut out);
    out
}

/// A v0 fetch in the words that the server offers. It wants something.
#[must_use]
pub fn fetch_first(agent: &str, wish: Wish<'_>, offer: Offer) -> Vec<u8> {
    let mut words = String::new();
    for (offered, word) in
        [(offer.thin_pack, "thin-pack"), (offer.side_band_64k, "side-band-64k"), (offer.ofs_delta, "ofs-delta")]
    {
        if offered {
            words.push(' ');
            words.push_str(word);
        }
    }
    if offer.agent {
        words.push_str(&format!(" agent={agent}"));
    }
    let mut out = Vec::new();
    for want in wish.wants {
        // Only the first says what is understood.
        pktline::push_line(&mut out, &format!("want {want}{}", std::mem::take(&mut words)));
    }
    pktline::push_flush(&mut out);
    wish.haves.iter().for_each(|oid| pktline::push_line(&mut out, &format!("have {oid}")));
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
    use crate::serve::{Protocol, Request};

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    #[test]
    fn our_own_server_understands_them() {
        let (wants, haves) = ([A.to_owned(), B.to_owned()], [B.to_owned()]);
        let wish = Wish { wants: &wants, haves: &haves };
        let offer = Offer { side_band_64k: true, ofs_delta: true, thin_pack: true, agent: true, sha1: true };
        for (protocol, body) in
            [(Protocol::V2, fetch("graspd/1", wish)), (Protocol::V0, fetch_first("graspd/1", wish, offer))]
        {
            let Ok(Request::Fetch(fetch)) = Request::read(protocol, &body) else { panic!("a fetch: {protocol:?}") };
            assert_eq!(fetch.wants, wants);
            assert_eq!(fetch.answer, crate::serve::request::Answer::Pack);
        }
        let body = ls_refs("graspd/1", &["refs/heads/".to_owned(), "refs/nostr/1".to_owned()]);
        let Ok(Request::LsRefs(question)) = Request::read(Protocol::V2, &body) else { panic!("a question") };
        assert_eq!(question.prefixes, ["refs/heads/", "refs/nostr/1"]);
        assert!(question.peel && !question.symrefs);
    }

    #[test]
    fn only_what_is_offered_is_asked_for() {
        let wants = [A.to_owned(), B.to_owned()];
        let wish = Wish { wants: &wants, haves: &[] };
        let plain = fetch_first("x", wish, Offer::default());
        assert_eq!(plain, format!("0032want {A}\n0032want {B}\n00000009done\n").as_bytes());
        let offer = Offer { side_band_64k: true, ..Offer::default() };
        let banded = String::from_utf8(fetch_first("x", wish, offer)).expect("text");
        assert!(banded.starts_with(&format!("0040want {A} side-band-64k\n0032want {B}\n0000")), "{banded}");
    }
}
