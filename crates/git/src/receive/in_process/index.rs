//! Unpacks a pack, checks each object, and writes the files of the pack.
//!
//! The steps are those of `git index-pack --stdin --fix-thin --strict`: all entries are unpacked and deltas are resolved,
//! objects of pools that deltas need are appended, and every object that the pack refers to must exist with the right
//! type.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use sha1::{Digest, Sha1};

use super::object_format::{check_object, is_valid_attributes};
use super::pack_files::{PackedObject, write_pack};
use super::{InProcessLimits, IndexedPack, NeedsGit, ReceivedObject};
use crate::objects::{OID_BYTES, ObjectKind, ObjectLookup, RawOid, ReadBudget};
use crate::pack_entry::{EntryHeader, EntryKind, Inflater, apply_delta, delta_sizes};
use crate::receive::quarantine::Quarantine;

/// Bytes of a pack's header: `PACK`, the version, the number of objects.
const HEADER_BYTES: usize = 12;

/// A pack that is to be indexed.
#[derive(Clone, Copy)]
pub(in crate::receive) struct IndexRequest<'a> {
    /// The pack as it was sent.
    pub(in crate::receive) pack: &'a [u8],
    /// Number of objects in its header.
    pub(in crate::receive) objects: u32,
    /// The pools that the repository may read.
    pub(in crate::receive) pools: &'a [PathBuf],
    /// Largest object.
    pub(in crate::receive) max_object_bytes: u64,
    /// Largest size of the pack as it is stored.
    pub(in crate::receive) max_file_bytes: u64,
    pub(in crate::receive) limits: InProcessLimits,
}

/// Checks a pack and writes its files.
///
/// # Errors
/// If the pack is not certainly valid.
pub(in crate::receive) fn index_pack(
    request: IndexRequest<'_>,
    quarantine: &Quarantine,
) -> Result<IndexedPack, NeedsGit> {
    let IndexRequest { pack, limits, .. } = request;
    if pack.len() as u64 > limits.max_bytes || request.objects > limits.max_objects {
        return Err("the pack is too large".into());
    }
    let mut unpacker = Unpacker::new(request);
    let end = unpacker.read_entries()?;
    if pack[end..] != *Sha1::digest(&pack[..end]) {
        return Err("the checksum of the pack is wrong".into());
    }
    unpacker.resolve_deltas()?;
    let sent = request.objects as usize;
    let objects = unpacker.check_objects(sent)?;
    let appended = unpacker.entries.len() - sent;
    let stored = unpacker.complete_pack(&pack[..end], sent)?;
    if appended > 0 && stored.len() as u64 > request.max_file_bytes {
        return Err("the completed pack is too large".into());
    }
    let packed: Vec<PackedObject> = unpacker.entries.iter().filter_map(Entry::packed).collect();
    if packed.len() != unpacker.entries.len() {
        return Err("a delta is not resolved".into());
    }
    write_pack(&quarantine.packs(), &stored, &packed)?;
    Ok(IndexedPack { pools: request.pools.to_vec(), objects })
}

/// An entry of the pack.
struct Entry {
    offset: u32,
    crc: u32,
    /// The object, or its delta as long as it is not resolved.
    content: Vec<u8>,
    kind: EntryKind,
    /// The type and the id, once they are known.
    object: Option<(ObjectKind, RawOid)>,
}

impl Entry {
    fn packed(&self) -> Option<PackedObject> {
        let (_, oid) = self.object?;
        Some(PackedObject { oid, offset: self.offset, crc: self.crc })
    }
}

/// A pack that is being unpacked.
struct Unpacker<'a> {
    request: IndexRequest<'a>,
    lookup: ObjectLookup,
    budget: ReadBudget,
    entries: Vec<Entry>,
    /// The deltas whose base is an entry.
    deltas_of_entry: HashMap<usize, Vec<usize>>,
    /// The deltas whose base is an object.
    deltas_of_object: HashMap<RawOid, Vec<usize>>,
}

impl<'a> Unpacker<'a> {
    fn new(request: IndexRequest<'a>) -> Self {
        Self {
            request,
            lookup: ObjectLookup::new(request.pools),
            budget: ReadBudget::new(request.limits.max_unpacked_bytes),
            entries: Vec::with_capacity(request.objects as usize),
            deltas_of_entry: HashMap::new(),
            deltas_of_object: HashMap::new(),
        }
    }

    /// Unpacks all entries, but resolves no delta. Returns the offset of the checksum after them.
    fn read_entries(&mut self) -> Result<usize, NeedsGit> {
        let pack = self.request.pack;
        let end = pack.len().checked_sub(OID_BYTES).ok_or("the pack is truncated")?;
        let (mut inflater, mut offsets) = (Inflater::new(), HashMap::new());
        let mut offset = HEADER_BYTES;
        for nth in 0..self.request.objects as usize {
            let bytes = pack.get(offset..end).ok_or("the pack is truncated")?;
            let header = EntryHeader::read(bytes).ok_or("the header of an entry is malformed")?;
            let size = self.take_object(header.size)?;
            let inflated = inflater.inflate(&bytes[header.header_bytes..], size);
            let (content, compressed) = inflated.ok_or("an entry cannot be inflated")?;
            let entry_bytes = &bytes[..header.header_bytes + compressed];
            match header.kind {
                EntryKind::Object(_) => {}
                EntryKind::OfsDelta(distance) => {
                    let base = usize::try_from(distance).ok().and_then(|distance| offset.checked_sub(distance));
                    let base =
                        base.and_then(|base| offsets.get(&base)).ok_or("the base of a delta is not in the pack")?;
                    self.deltas_of_entry.entry(*base).or_default().push(nth);
                }
                EntryKind::RefDelta(base) => self.deltas_of_object.entry(base).or_default().push(nth),
            }
            offsets.insert(offset, nth);
            self.push_entry(offset, entry_bytes, header.kind, content);
            offset += entry_bytes.len();
        }
        if offset == end { Ok(end) } else { Err("the pack has data after its last object".into()) }
    }

    fn push_entry(&mut self, offset: usize, bytes: &[u8], kind: EntryKind, content: Vec<u8>) {
        let mut crc = Crc::new();
        crc.update(bytes);
        self.entries.push(Entry { offset: offset as u32, crc: crc.sum(), content, kind, object: None });
    }

    /// Counts an object against the limits, and returns its size.
    fn take_object(&mut self, size: u64) -> Result<usize, NeedsGit> {
        if size > self.request.max_object_bytes {
            return Err("an object is too large".into());
        }
        Ok(self.budget.take(size)?)
    }

    /// Resolves all deltas. Bases that are not in the pack are added from the pools as further entries, in the order in
    /// which git adds them.
    fn resolve_deltas(&mut self) -> Result<(), NeedsGit> {
        let sent = self.entries.len();
        for nth in 0..sent {
            if let EntryKind::Object(kind) = self.entries[nth].kind {
                self.resolve_from(nth, kind)?;
            }
        }
        for nth in 0..sent {
            let Entry { kind: EntryKind::RefDelta(base), object: None, .. } = self.entries[nth] else { continue };
            let found = self.lookup.read(&base, &mut self.budget)?;
            let (kind, content) = found.ok_or("the base of a delta is missing")?;
            if content.len() as u64 > self.request.max_object_bytes || hash_object(kind, &content)? != base {
                return Err("the base of a delta cannot be used".into());
            }
            let added = self.entries.len();
            self.push_entry(0, &[], EntryKind::Object(kind), content);
            self.resolve_from(added, kind)?;
        }
        if self.entries.iter().any(|entry| entry.object.is_none()) {
            return Err("a delta has no base".into());
        }
        Ok(())
    }

    /// Computes the id of an entry whose content is known, and resolves all deltas that are based on it.
    fn resolve_from(&mut self, first: usize, kind: ObjectKind) -> Result<(), NeedsGit> {
        let mut ready = vec![first];
        while let Some(nth) = ready.pop() {
            let oid = hash_object(kind, &self.entries[nth].content)?;
            self.entries[nth].object = Some((kind, oid));
            let by_entry = self.deltas_of_entry.remove(&nth).unwrap_or_default();
            let by_object = self.deltas_of_object.remove(&oid).unwrap_or_default();
            for delta in by_entry.into_iter().chain(by_object) {
                let instructions = &self.entries[delta].content;
                let (_, size) = delta_sizes(instructions).ok_or("a delta has no sizes")?;
                self.take_object(size)?;
                let applied = apply_delta(&self.entries[nth].content, &self.entries[delta].content);
                self.entries[delta].content = applied.ok_or("a delta cannot be applied")?;
                ready.push(delta);
            }
        }
        Ok(())
    }

    /// Checks all objects that were sent, and everything that they refer to.
    fn check_objects(&mut self, sent: usize) -> Result<HashMap<RawOid, ReceivedObject>, NeedsGit> {
        let mut objects: HashMap<RawOid, ReceivedObject> = HashMap::with_capacity(sent);
        let (mut attributes, mut link_count) = (Vec::new(), 0);
        for entry in &self.entries[..sent] {
            let (kind, oid) = entry.object.ok_or("a delta is not resolved")?;
            let references = check_object(kind, &entry.content).ok_or("an object has an unusual format")?;
            link_count += references.links.len();
            if link_count > self.request.limits.max_links {
                return Err("the objects have too many references".into());
            }
            attributes.extend(references.attributes);
            let in_pool = self.lookup.read(&oid, &mut self.budget)?;
            if in_pool.as_ref().is_some_and(|(pool_kind, content)| (*pool_kind, content) != (kind, &entry.content)) {
                return Err("an object differs from that of a pool".into());
            }
            let object = ReceivedObject { kind, links: references.links, is_in_pool: in_pool.is_some() };
            if objects.insert(oid, object).is_some() {
                return Err("an object is in the pack twice".into());
            }
        }
        for (_, oid) in self.entries[sent..].iter().filter_map(|entry| entry.object) {
            if objects.contains_key(&oid) {
                return Err("an object is in the pack and is appended".into());
            }
        }
        self.check_links(&objects)?;
        self.check_attributes(&attributes)?;
        Ok(objects)
    }

    /// Checks that all objects that the pack refers to exist and have the right type.
    fn check_links(&mut self, objects: &HashMap<RawOid, ReceivedObject>) -> Result<(), NeedsGit> {
        let mut outside: HashMap<RawOid, ObjectKind> = HashMap::new();
        for link in objects.values().flat_map(|object| &object.links) {
            let kind = match (objects.get(&link.oid), outside.get(&link.oid)) {
                (Some(object), _) => object.kind,
                (None, Some(kind)) => *kind,
                (None, None) => {
                    let found = self.lookup.kind_within(&link.oid, &mut self.budget)?;
                    let kind = found.ok_or("an object is missing")?;
                    outside.insert(link.oid, kind);
                    kind
                }
            };
            if kind != link.kind {
                return Err("an object has another type than a reference to it".into());
            }
        }
        Ok(())
    }

    /// Checks `.gitattributes` files.
    fn check_attributes(&mut self, oids: &[RawOid]) -> Result<(), NeedsGit> {
        for oid in oids {
            let sent = self.entries.iter().find(|entry| entry.object.is_some_and(|(_, found)| found == *oid));
            let is_valid = match sent {
                Some(entry) => is_valid_attributes(&entry.content),
                None => {
                    self.lookup.read(oid, &mut self.budget)?.is_some_and(|(_, content)| is_valid_attributes(&content))
                }
            };
            if !is_valid {
                return Err("a .gitattributes file is unusual".into());
            }
        }
        Ok(())
    }

    /// Returns the pack as it is stored: with the appended objects, and with its checksum.
    fn complete_pack(&mut self, sent_bytes: &[u8], sent: usize) -> Result<Vec<u8>, NeedsGit> {
        let mut pack = sent_bytes.to_vec();
        for entry in &mut self.entries[sent..] {
            let (kind, _) = entry.object.ok_or("a base has no type")?;
            let start = pack.len();
            pack.extend(EntryHeader::encode(kind, entry.content.len() as u64));
            let mut encoder = ZlibEncoder::new(pack, Compression::fast());
            encoder.write_all(&entry.content)?;
            pack = encoder.finish()?;
            let mut crc = Crc::new();
            crc.update(&pack[start..]);
            entry.offset = u32::try_from(start).map_err(|_| "the completed pack is too large")?;
            entry.crc = crc.sum();
        }
        pack[8..HEADER_BYTES].copy_from_slice(&(self.entries.len() as u32).to_be_bytes());
        let checksum = Sha1::digest(&pack);
        pack.extend_from_slice(&checksum);
        Ok(pack)
    }
}

/// Returns the id of an object. Fails for content that is made to have the same id as other content.
fn hash_object(kind: ObjectKind, content: &[u8]) -> Result<RawOid, NeedsGit> {
    use sha1_checked::Digest as _;
    let mut hasher = sha1_checked::Sha1::new();
    hasher.update(format!("{} {}\0", kind.name(), content.len()));
    hasher.update(content);
    let result = hasher.try_finalize();
    if result.has_collision() {
        Err("the hash of an object has a collision".into())
    } else {
        Ok((*result.hash()).into())
    }
}
