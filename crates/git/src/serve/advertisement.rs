//! The answers to `info/refs`.

use std::collections::HashSet;

use super::{Capabilities, Protocol, Service};
use crate::pktline;
use crate::refs::Refs;

/// The most tips of other repositories that a pusher is told of. Each is 51 bytes that every push waits for and saves
/// sending what is shared; related repositories share most with the first of them.
const MAX_HAVES: usize = 1_000;

/// What a client is told that wants to fetch.
#[must_use]
pub fn upload(refs: &Refs, capabilities: &Capabilities, protocol: Protocol) -> Vec<u8> {
    let mut out = banner(Service::Upload);
    match protocol {
        // git's own server leaves the banner out here, the large hosts do not; clients take both.
        Protocol::V2 => out.extend_from_slice(capabilities.commands()),
        Protocol::V1 => {
            pktline::push_line(&mut out, "version 1");
            refs.advertise(&mut out, capabilities.upload());
        }
        Protocol::V0 => refs.advertise(&mut out, capabilities.upload()),
    }
    out
}

/// What a client is told that wants to push: the refs, without HEAD and without what tags are tags of, and tips of other
/// repositories whose objects this one reads. Each object is named once; `haves` come in order of their worth.
#[must_use]
pub fn receive<'a>(refs: &Refs, capabilities: &Capabilities, haves: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut out = banner(Service::Receive);
    let mut capabilities = Some(capabilities.receive());
    let mut line = |oid: &str, name: &str| match capabilities.take() {
        Some(capabilities) => pktline::push(&mut out, &[format!("{oid} {name}\0{capabilities}\n").as_bytes()]),
        None => pktline::push(&mut out, &[format!("{oid} {name}\n").as_bytes()]),
    };
    let mut said: HashSet<&str> = HashSet::new();
    for (name, target) in refs.iter() {
        said.insert(&target.oid);
        line(&target.oid, name);
    }
    let others: Vec<&str> = haves.filter(|oid| said.insert(oid)).take(MAX_HAVES).collect();
    others.iter().for_each(|oid| line(oid, ".have"));
    if said.is_empty() {
        line(&"0".repeat(40), "capabilities^{}");
    }
    pktline::push_flush(&mut out);
    out
}

/// The line before an advertisement over HTTP.
fn banner(service: Service) -> Vec<u8> {
    let mut out = Vec::new();
    pktline::push_line(&mut out, &format!("# service={}", service.name()));
    pktline::push_flush(&mut out);
    out
}
