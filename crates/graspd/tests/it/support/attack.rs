//! What attacks need: eyes on the server's processes, packs that no git would make, and bodies without an end.

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

use super::test_server::Stage;
use super::{DEADLINE, Server, eventually};

/// A megabyte.
pub const MB: u64 = 1024 * 1024;

/// Growth of the server's memory that nobody minds. What attacks would like to take is ten times as much.
pub const FLAT: u64 = 100 * MB;

/// Bytes of a process's memory that stand for nothing on disk.
fn memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// What is known of a process that runs.
#[derive(Clone, Debug)]
struct Process {
    parent: u32,
    command: String,
}

/// Everything that runs, by number.
fn processes() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let read = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        Some((pid, Process { parent, command }))
    };
    entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The children of a process, and theirs.
fn family(of: u32) -> Vec<(u32, Process)> {
    let all = processes();
    let is_below = |mut pid: u32| {
        while let Some(process) = all.get(&pid) {
            if process.parent == of {
                return true;
            }
            pid = process.parent;
        }
        false
    };
    all.iter().filter(|(pid, _)| is_below(**pid)).map(|(pid, process)| (*pid, process.clone())).collect()
}

/// The most that was seen of something.
#[derive(Clone, Copy, Default, Debug)]
pub struct Peaks {
    /// Bytes that the server has grown by.
    pub server: u64,
    /// Bytes of the largest of its children.
    pub child: u64,
    /// Children that make packs for clients.
    pub serving: usize,
    /// All children.
    pub children: usize,
}

/// Looks at a server and its children again and again.
pub struct Watch {
    over: Arc<AtomicBool>,
    peaks: Arc<Mutex<Peaks>>,
    watcher: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn on(server: &Server) -> Self {
        let pid = server.child.id();
        let before = memory(pid).expect("the server runs");
        let (over, peaks) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Peaks::default())));
        let (stop, seen) = (over.clone(), peaks.clone());
        let watcher = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let server = memory(pid).unwrap_or(0).saturating_sub(before);
                let children = family(pid);
                let child = children.iter().filter_map(|(pid, _)| memory(*pid)).max().unwrap_or(0);
                // One that was started a moment ago has the name of who started it: `pack-objects` that of `upload-pack`.
                let serves = |process: &Process| process.parent == pid && process.command.contains(" upload-pack ");
                let serving = children.iter().filter(|(_, process)| serves(process)).count();
                let mut peaks = seen.lock().expect("nobody panics");
                peaks.server = peaks.server.max(server);
                peaks.child = peaks.child.max(child);
                peaks.serving = peaks.serving.max(serving);
                peaks.children = peaks.children.max(children.len());
                drop(peaks);
                thread::sleep(Duration::from_millis(2));
            }
        });
        Self { over, peaks, watcher: Some(watcher) }
    }

    /// What was seen so far.
    pub fn peaks(&self) -> Peaks {
        *self.peaks.lock().expect("nobody panics")
    }

    /// Demands that the server has not grown much, and gives what was seen.
    #[track_caller]
    pub fn flat(&self, what: &str) -> Peaks {
        let peaks = self.peaks();
        eprintln!("{what}: {peaks:?}");
        assert!(peaks.server < FLAT, "{what}: the server grew by {} MB", peaks.server / MB);
        peaks
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.watcher.take().map(JoinHandle::join);
    }
}

/// Git processes that a server has started.
pub fn children(server: &Server) -> usize {
    family(server.child.id()).len()
}

/// Demands that nothing of pushes that failed is left: no folder of a push, no process.
#[track_caller]
pub fn expect_nothing_left(stage: &Stage) {
    let incoming = stage.git_folder().join("incoming");
    eventually("nothing is left of failed pushes", || {
        fs::read_dir(&incoming).expect("a folder").next().is_none().then_some(())
    });
    eventually("no child is left", || (children(&stage.server) == 0).then_some(()));
}

/// All files below a folder with their sizes.
pub fn files(folder: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() {
                folders.push(entry.path());
            } else {
                let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
                found.insert(entry.path().to_string_lossy().into_owned(), bytes);
            }
        }
    }
    found
}

/// So many zeros, gzipped by a program that was built to be quick.
fn gzipped_block(bytes: u64) -> Vec<u8> {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(bytes).expect("a file of zeros");
    let output = Command::new("gzip").arg("-1n").stdin(file).output().expect("gzip runs");
    assert!(output.status.success());
    output.stdout
}

/// So many megabytes of zeros, gzipped.
pub fn gzipped_zeros(megabytes: u64) -> Vec<u8> {
    gzipped_block(64 * MB).repeat(usize::try_from(megabytes / 64).expect("small"))
}

/// Gzips bytes.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

/// The kinds of objects in a pack.
pub const COMMIT: u8 = 1;
pub const BLOB: u8 = 3;
const OFS_DELTA: u8 = 6;

/// A pack that is written by hand, object by object.
pub struct Packer {
    bytes: Vec<u8>,
    objects: u32,
}

impl Packer {
    pub fn new() -> Self {
        Self { bytes: b"PACK\0\0\0\x02\0\0\0\0".to_vec(), objects: 0 }
    }

    /// Where the next object will be.
    pub fn place(&self) -> usize {
        self.bytes.len()
    }

    /// Kind and size, as packs have them.
    fn head(&mut self, kind: u8, size: u64) {
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

    /// An object.
    pub fn object(&mut self, kind: u8, content: &[u8]) {
        self.head(kind, content.len() as u64);
        self.zlib(content);
    }

    /// A blob of zeros that says it has so many bytes, and has so many.
    pub fn zeros(&mut self, says: u64, has: u64) {
        self.head(BLOB, says);
        // What gzip writes is the same as zlib's, between another head and another checksum.
        let gzipped = gzipped_block(has);
        self.bytes.extend_from_slice(b"\x78\x01");
        self.bytes.extend_from_slice(&gzipped[10..gzipped.len() - 8]);
        self.bytes.extend_from_slice(&((has % 65_521) << 16 | 1).to_be_bytes()[4..]);
    }

    /// A delta to the object at a place: the base, of this size, so many times over. Gives the size that it makes.
    pub fn times(&mut self, base: usize, size: u64, times: u64) -> u64 {
        let mut delta = Vec::new();
        varint(&mut delta, size);
        varint(&mut delta, size * times);
        for _ in 0..times {
            // From the beginning, in pieces of at most 16 MB.
            let mut at = 0;
            while at < size {
                let now = (size - at).min(0xff_ffff);
                delta.push(0xff);
                delta.extend_from_slice(&(at as u32).to_le_bytes());
                delta.extend_from_slice(&(now as u32).to_le_bytes()[..3]);
                at += now;
            }
        }
        let mut back = self.place() - base;
        self.head(OFS_DELTA, delta.len() as u64);
        let mut offset = vec![(back & 0x7f) as u8];
        while back >> 7 > 0 {
            back = (back >> 7) - 1;
            offset.push(0x80 | (back & 0x7f) as u8);
        }
        self.bytes.extend(offset.iter().rev());
        self.zlib(&delta);
        size * times
    }

    fn zlib(&mut self, bytes: &[u8]) {
        let mut encoder = ZlibEncoder::new(&mut self.bytes, Compression::new(9));
        encoder.write_all(bytes).expect("in memory");
        encoder.finish().expect("in memory");
    }

    /// The pack, with the right number of objects and the right checksum.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[8..12].copy_from_slice(&self.objects.to_be_bytes());
        sealed(self.bytes)
    }
}

/// Bytes with their SHA-1 behind them.
pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), &bytes).expect("written");
    let output = Command::new("sha1sum").arg("--binary").arg(file.path()).output().expect("sha1sum runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let digits = said.get(..40).unwrap_or_else(|| panic!("no checksum: {said}"));
    bytes.extend((0..20).map(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).expect("hex")));
    bytes
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Connects, with a deadline on everything.
pub fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).expect("connects");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.set_write_timeout(Some(DEADLINE)).expect("a timeout");
    stream
}

/// Reads everything that comes on a connection until it is closed, by a reset as well.
pub fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(read) => all.extend_from_slice(&buffer[..read]),
            Err(problem) if problem.kind() == std::io::ErrorKind::WouldBlock => panic!("it neither ends nor goes on"),
            Err(_) => return all,
        }
    }
}
