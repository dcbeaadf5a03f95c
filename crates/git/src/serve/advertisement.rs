//! Builds the responses to `info/refs`.

use std::collections::HashSet;

use super::{PackService, ProtocolVersion, ServerCapabilities};
use crate::pktline;
use crate::refs::{Refs, write_advertisement};

/// Largest number of `.have` lines for a push. Each has 51 bytes that every push waits for, and saves sending objects
/// that both sides have; related repositories share most objects with the first of them.
const MAX_HAVES: usize = 1_000;

/// Returns the advertisement of `git-upload-pack`.
#[must_use]
pub fn upload_pack(refs: &Refs, capabilities: &ServerCapabilities, protocol: ProtocolVersion) -> Vec<u8> {
    let mut out = service_header(PackService::UploadPack);
    match protocol {
        // git's own server omits the service header in v2, the large hosts do not; clients accept both.
        ProtocolVersion::V2 => out.extend_from_slice(&capabilities.v2_advertisement),
        ProtocolVersion::V1 => {
            pktline::push_line(&mut out, "version 1");
            write_advertisement(refs, &mut out, &capabilities.upload_pack);
        }
        ProtocolVersion::V0 => write_advertisement(refs, &mut out, &capabilities.upload_pack),
    }
    out
}

/// Returns the answer to a request for the refs of a repository whose objects are damaged or missing.
#[must_use]
pub fn degraded() -> Vec<u8> {
    let mut out = service_header(PackService::UploadPack);
    out.extend(super::degraded_response());
    out
}

/// Returns the advertisement of `git-receive-pack`: the refs without HEAD and without peeled tags, and as `.have` lines
/// the `haves`: ref targets of other repositories whose objects this one reads, most useful first. Each object is named
/// once.
#[must_use]
pub fn receive_pack<'a>(
    refs: &Refs,
    capabilities: &ServerCapabilities,
    haves: impl Iterator<Item = &'a str>,
) -> Vec<u8> {
    let mut out = service_header(PackService::ReceivePack);
    let mut capabilities = Some(&capabilities.receive_pack);
    let mut line = |oid: &str, name: &str| match capabilities.take() {
        Some(capabilities) => pktline::push(&mut out, &[format!("{oid} {name}\0{capabilities}\n").as_bytes()]),
        None => pktline::push(&mut out, &[format!("{oid} {name}\n").as_bytes()]),
    };
    let mut advertised: HashSet<&str> = HashSet::new();
    for (name, target) in refs.iter() {
        advertised.insert(&target.oid);
        line(&target.oid, name);
    }
    let others: Vec<&str> = haves.filter(|oid| advertised.insert(oid)).take(MAX_HAVES).collect();
    others.iter().for_each(|oid| line(oid, ".have"));
    if advertised.is_empty() {
        line(&"0".repeat(40), "capabilities^{}");
    }
    pktline::push_flush(&mut out);
    out
}

/// Returns the section before an advertisement over HTTP.
fn service_header(service: PackService) -> Vec<u8> {
    let mut out = Vec::new();
    pktline::push_line(&mut out, &format!("# service={}", service.name()));
    pktline::push_flush(&mut out);
    out
}
