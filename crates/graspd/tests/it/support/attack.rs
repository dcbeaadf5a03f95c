//! Support for tests of attacks: measures the server's processes, and makes packs that git itself would not make.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, thread};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use super::test_server::TestServer;
use super::{DEADLINE, Server, eventually};

/// A megabyte.
pub const MB: u64 = 1024 * 1024;

/// The growth of the server's memory that a test of an attack allows. The attacks try to use ten times as much.
pub const MAX_MEMORY_GROWTH: u64 = 100 * MB;

/// Returns the bytes of anonymous memory of a process (memory that no file backs).
pub fn memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// A running process.
#[derive(Clone, Debug)]
struct Process {
    parent: u32,
    command: String,
}

/// Returns all running processes by process id.
fn processes() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").expect("cannot read /proc").flatten();
    let read = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        Some((pid, Process { parent, command }))
    };
    entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Returns the direct and indirect children of a process.
fn descendants(ancestor: u32) -> Vec<(u32, Process)> {
    let all = processes();
    let is_below = |mut pid: u32| {
        while let Some(process) = all.get(&pid) {
            if process.parent == ancestor {
                return true;
            }
            pid = process.parent;
        }
        false
    };
    all.iter().filter(|(pid, _)| is_below(**pid)).map(|(pid, process)| (*pid, process.clone())).collect()
}

/// The highest values that a [`ResourceMonitor`] has measured.
#[derive(Clone, Copy, Default, Debug)]
pub struct ResourcePeaks {
    /// Growth of the server's memory in bytes.
    pub server: u64,
    /// Memory of the largest child process in bytes.
    pub child: u64,
    /// Number of `git upload-pack` processes.
    pub serving: usize,
    /// Number of all child processes.
    pub children: usize,
}

/// Measures a server and its child processes every two milliseconds, until it is dropped.
pub struct ResourceMonitor {
    is_stopped: Arc<AtomicBool>,
    peaks: Arc<Mutex<ResourcePeaks>>,
    thread: Option<JoinHandle<()>>,
}

impl ResourceMonitor {
    pub fn start(server: &Server) -> Self {
        let pid = server.child.id();
        let before = memory(pid).expect("the server runs");
        let (is_stopped, peaks) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(ResourcePeaks::default())));
        let (stop, measured) = (is_stopped.clone(), peaks.clone());
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let server = memory(pid).unwrap_or(0).saturating_sub(before);
                let children = descendants(pid);
                let child = children.iter().filter_map(|(pid, _)| memory(*pid)).max().unwrap_or(0);
                // Only direct children count: a process that was just forked still has the command line of its parent,
                // so `pack-objects` looks like another `upload-pack` for a moment.
                let serves = |process: &Process| process.parent == pid && process.command.contains(" upload-pack ");
                let serving = children.iter().filter(|(_, process)| serves(process)).count();
                let mut peaks = measured.lock().expect("lock is not poisoned");
                peaks.server = peaks.server.max(server);
                peaks.child = peaks.child.max(child);
                peaks.serving = peaks.serving.max(serving);
                peaks.children = peaks.children.max(children.len());
                drop(peaks);
                thread::sleep(Duration::from_millis(2));
            }
        });
        Self { is_stopped, peaks, thread: Some(thread) }
    }

    /// Returns the highest values so far.
    pub fn peaks(&self) -> ResourcePeaks {
        *self.peaks.lock().expect("lock is not poisoned")
    }

    /// Asserts that the server's memory has grown by less than [`MAX_MEMORY_GROWTH`]; returns the highest values.
    #[track_caller]
    pub fn expect_flat_memory(&self, what: &str) -> ResourcePeaks {
        let peaks = self.peaks();
        eprintln!("{what}: {peaks:?}");
        assert!(peaks.server < MAX_MEMORY_GROWTH, "{what}: the server grew by {} MB", peaks.server / MB);
        peaks
    }
}

impl Drop for ResourceMonitor {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Returns the number of git processes that a server runs.
pub fn child_count(server: &Server) -> usize {
    descendants(server.child.id()).len()
}

/// Asserts that failed pushes leave nothing behind: no folder below `incoming` and no process.
#[track_caller]
pub fn expect_nothing_left(server: &TestServer) {
    let incoming = server.git_folder().join("incoming");
    eventually("the folder `incoming` is empty", || {
        fs::read_dir(&incoming).expect("cannot read the folder").next().is_none().then_some(())
    });
    eventually("all git processes have ended", || (child_count(&server.process) == 0).then_some(()));
}

/// Returns all files below a folder with their sizes.
pub fn files(folder: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("cannot read the folder").flatten() {
            if entry.file_type().expect("cannot read the file type").is_dir() {
                folders.push(entry.path());
            } else {
                let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
                found.insert(entry.path().to_string_lossy().into_owned(), bytes);
            }
        }
    }
    found
}

/// Returns this many zeros, compressed by the gzip program, which is faster than a debug build of flate2.
fn gzipped_block(bytes: u64) -> Vec<u8> {
    let file = tempfile::tempfile().expect("cannot create a temporary file");
    file.set_len(bytes).expect("cannot set the file length");
    let output = Command::new("gzip").arg("-1n").stdin(file).output().expect("cannot run gzip");
    assert!(output.status.success());
    output.stdout
}

/// Returns this many megabytes of zeros, compressed with gzip.
pub fn gzipped_zeros(megabytes: u64) -> Vec<u8> {
    gzipped_block(64 * MB).repeat(usize::try_from(megabytes / 64).expect("number fits in usize"))
}

/// Compresses bytes with gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("writing to memory cannot fail");
    encoder.finish().expect("writing to memory cannot fail")
}

/// Object types of the pack format.
pub const COMMIT: u8 = 1;
pub const BLOB: u8 = 3;
const OFS_DELTA: u8 = 6;

/// Writes a pack object by object, valid or not.
pub struct PackBuilder {
    bytes: Vec<u8>,
    objects: u32,
}

impl PackBuilder {
    pub fn new() -> Self {
        Self { bytes: b"PACK\0\0\0\x02\0\0\0\0".to_vec(), objects: 0 }
    }

    /// Returns the offset of the next object.
    pub fn offset(&self) -> usize {
        self.bytes.len()
    }

    /// Writes type and size of an object.
    fn object_header(&mut self, kind: u8, size: u64) {
        self.objects += 1;
        let mut byte = kind << 4 | (size & 15) as u8;
        let mut rest = size >> 4;
        while rest > 0 {
            self.bytes.push(byte | 0x80);
            byte = (rest & 0x7f) as u8;
            rest >>= 7;
        }
        self.bytes.push(byte);
    }

    /// Writes an object.
    pub fn object(&mut self, kind: u8, content: &[u8]) {
        self.object_header(kind, content.len() as u64);
        self.zlib(content);
    }

    /// Writes a blob of zeros whose header declares `declared` bytes and whose content has `actual` bytes.
    pub fn zeros(&mut self, declared: u64, actual: u64) {
        self.object_header(BLOB, declared);
        // gzip and zlib have the same compressed data, with different headers and checksums.
        let gzipped = gzipped_block(actual);
        self.bytes.extend_from_slice(b"\x78\x01");
        self.bytes.extend_from_slice(&gzipped[10..gzipped.len() - 8]);
        self.bytes.extend_from_slice(&((actual % 65_521) << 16 | 1).to_be_bytes()[4..]);
    }

    /// Writes a delta against the object at the offset `base`, which has `size` bytes. The result is the base repeated
    /// `times` times; returns its size.
    pub fn repeat_base(&mut self, base: usize, size: u64, times: u64) -> u64 {
        let mut delta = Vec::new();
        varint(&mut delta, size);
        varint(&mut delta, size * times);
        for _ in 0..times {
            // One copy instruction copies at most 16 MB.
            let mut copied = 0;
            while copied < size {
                let length = (size - copied).min(0xff_ffff);
                delta.push(0xff);
                delta.extend_from_slice(&(copied as u32).to_le_bytes());
                delta.extend_from_slice(&(length as u32).to_le_bytes()[..3]);
                copied += length;
            }
        }
        let mut distance = self.offset() - base;
        self.object_header(OFS_DELTA, delta.len() as u64);
        let mut encoded = vec![(distance & 0x7f) as u8];
        while distance >> 7 > 0 {
            distance = (distance >> 7) - 1;
            encoded.push(0x80 | (distance & 0x7f) as u8);
        }
        self.bytes.extend(encoded.iter().rev());
        self.zlib(&delta);
        size * times
    }

    fn zlib(&mut self, bytes: &[u8]) {
        let mut encoder = ZlibEncoder::new(&mut self.bytes, Compression::new(9));
        encoder.write_all(bytes).expect("writing to memory cannot fail");
        encoder.finish().expect("writing to memory cannot fail");
    }

    /// Returns the pack, with the right number of objects and the right checksum.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[8..12].copy_from_slice(&self.objects.to_be_bytes());
        append_sha1(self.bytes)
    }
}

/// Appends the SHA-1 of bytes to them.
pub fn append_sha1(mut bytes: Vec<u8>) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("cannot create a temporary file");
    fs::write(file.path(), &bytes).expect("cannot write the file");
    let output = Command::new("sha1sum").arg("--binary").arg(file.path()).output().expect("cannot run sha1sum");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let digits = text.get(..40).unwrap_or_else(|| panic!("not a checksum: {text}"));
    bytes.extend((0..20).map(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).expect("valid hex")));
    bytes
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Connects to a server, with timeouts for reading and writing.
pub fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).expect("cannot connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    stream.set_write_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    stream
}

/// Reads from a connection until it is closed or reset.
pub fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(read) => all.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("connection is still open"),
            Err(_) => return all,
        }
    }
}
