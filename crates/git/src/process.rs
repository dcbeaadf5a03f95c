//! The real git, started cleanly: an environment of our own, no configuration but ours, no hooks, no prompts, bounded
//! memory and time.
//!
//! A child is started and waited for by one thread. That is what makes it die with the server: the signal that the kernel
//! sends a child when its parent is gone is bound to the thread that started it.

use std::fs::File;
use std::io;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, kill_process_group, nice, set_parent_process_death_signal, setrlimit,
};

/// How much of what a child says on standard error is kept: enough for the reason.
const MAX_COMPLAINT: usize = 4 * 1024;

/// How far a gentle child steps back: as far as there is. It gets what nobody else wants of the processor.
const GENTLE: i32 = 19;

/// What a child may use.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The largest single allocation, and so the largest object (`GIT_ALLOC_LIMIT`). A pack of a thousand bytes may
    /// claim gigabytes.
    pub alloc_bytes: u64,
    /// Address space, packs that it maps included.
    pub address_bytes: u64,
}

/// The git program.
#[derive(Clone, Debug)]
pub struct Git {
    program: PathBuf,
    bounds: Bounds,
    /// The largest file that a child may write; `None` for no bound.
    file_bytes: Option<u64>,
    /// By how much children step back behind everybody else.
    niceness: i32,
}

/// What a child reads.
pub enum Input<'a> {
    /// Nothing.
    Nothing,
    /// A few bytes, at most some megabytes.
    Bytes(&'a [u8]),
    /// A file, from where it stands.
    File(File),
}

/// Why a child did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ChildProblem {
    /// It could not be started or talked to.
    #[error("cannot run git: {0}")]
    Start(#[from] io::Error),
    /// It took longer than it may.
    #[error("git took longer than {} seconds", .0.as_secs())]
    Slow(Duration),
    /// It said more than it may.
    #[error("git said more than was expected")]
    Verbose,
    /// Nobody wants its answer any more.
    #[error("nobody waits for git's answer")]
    Unwanted,
    /// It failed and said why.
    #[error("{complaint}")]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// The end of what it said on standard error.
        complaint: String,
    },
}

impl Git {
    /// The git in the search path, or the given one.
    #[must_use]
    pub fn new(program: &Path, bounds: Bounds) -> Self {
        Self { program: program.to_owned(), bounds, file_bytes: None, niceness: 0 }
    }

    /// The same git, whose children may write no file larger than this: one that does is ended by the kernel.
    #[must_use]
    pub fn with_file_bytes(&self, file_bytes: u64) -> Self {
        Self { file_bytes: Some(file_bytes), ..self.clone() }
    }

    /// The same git, whose children leave the processor to everybody else.
    #[must_use]
    pub fn gentle(&self) -> Self {
        Self { niceness: GENTLE, ..self.clone() }
    }

    /// A command on a repository folder: `git <arguments to be added>`.
    #[must_use]
    pub fn command(&self, folder: &Path) -> Command {
        // It works in the folder, where a relative path would lead elsewhere.
        let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()))
            .env("LC_ALL", "C")
            .env("HOME", "/nonexistent")
            .env("GIT_DIR", folder)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ALLOC_LIMIT", self.bounds.alloc_bytes.to_string())
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_ADVICE", "0");
        for setting in [
            "core.hooksPath=/dev/null",
            "core.fsync=none",
            "core.logAllRefUpdates=false",
            "gc.auto=0",
            "maintenance.auto=false",
            "protocol.allow=never",
            // Packs are mapped in pieces, so that one larger than the address space can be read.
            "core.packedGitWindowSize=16m",
            "core.packedGitLimit=256m",
        ] {
            command.args(["-c", setting]);
        }
        command.current_dir(folder);
        command
    }

    /// Runs a command to its end and gives what it said, at most `most` bytes.
    pub fn run(
        &self,
        command: &mut Command,
        input: Input<'_>,
        patience: Duration,
        most: usize,
    ) -> Result<Vec<u8>, ChildProblem> {
        let mut said = Vec::new();
        self.stream(command, input, patience, |bytes| {
            said.extend_from_slice(bytes);
            if said.len() > most { Err(ChildProblem::Verbose) } else { Ok(()) }
        })?;
        Ok(said)
    }

    /// Runs a command to its end and shows what it says as it comes. An error of `show` ends the child.
    pub fn stream(
        &self,
        command: &mut Command,
        input: Input<'_>,
        patience: Duration,
        mut show: impl FnMut(&[u8]) -> Result<(), ChildProblem>,
    ) -> Result<(), ChildProblem> {
        command.stdin(input.stdio()?).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = start(command, self)?;
        let pipes = (child.stdout.take(), child.stderr.take());
        let running = Running(Some(child));
        let complaint = listen(pipes, patience, &mut show)?;
        let status = running.end()?;
        if status.success() { Ok(()) } else { Err(ChildProblem::Failed { status, complaint }) }
    }
}

impl Input<'_> {
    fn stdio(self) -> io::Result<Stdio> {
        Ok(match self {
            Self::Nothing => Stdio::null(),
            Self::File(file) => file.into(),
            Self::Bytes(bytes) => {
                // A file in memory: a pipe would need somebody to fill it while the child is listened to.
                let mut file = File::from(rustix::fs::memfd_create("input", rustix::fs::MemfdFlags::CLOEXEC)?);
                file.write_all(bytes)?;
                io::Seek::rewind(&mut file)?;
                file.into()
            }
        })
    }
}

/// A child that ends with this value, one way or the other, and everything that it has started with it: `upload-pack`
/// leaves the work to a child of its own, which would count objects to the end before it noticed that nobody listens.
///
/// Nothing once it has been waited for. Until then its number, which is that of its group, is nobody else's.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            let _ = child.wait();
        }
    }
}

impl Running {
    /// Waits for a child that has closed its outputs, as everything that it started has.
    fn end(mut self) -> io::Result<ExitStatus> {
        self.0.take().ok_or(io::ErrorKind::NotFound)?.wait()
    }
}

/// Shows standard output and keeps the end of standard error, until both are closed.
fn listen(
    (mut out, mut err): (Option<ChildStdout>, Option<ChildStderr>),
    patience: Duration,
    show: &mut impl FnMut(&[u8]) -> Result<(), ChildProblem>,
) -> Result<String, ChildProblem> {
    let until = Instant::now() + patience;
    let mut complaint = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while out.is_some() || err.is_some() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChildProblem::Slow(patience));
        }
        let (out_ready, err_ready) = wait(out.as_ref(), err.as_ref(), left)?;
        if let Some(pipe) = out.as_mut().filter(|_| out_ready) {
            match pipe.read(&mut buffer)? {
                0 => out = None,
                read => show(&buffer[..read])?,
            }
        }
        if let Some(pipe) = err.as_mut().filter(|_| err_ready) {
            match pipe.read(&mut buffer)? {
                0 => err = None,
                read => {
                    complaint.extend_from_slice(&buffer[..read]);
                    let excess = complaint.len().saturating_sub(MAX_COMPLAINT);
                    complaint.drain(..excess);
                }
            }
        }
    }
    Ok(String::from_utf8_lossy(&complaint).trim().to_owned())
}

/// Waits until one of two pipes has something or is closed.
fn wait(out: Option<&impl AsFd>, err: Option<&impl AsFd>, left: Duration) -> io::Result<(bool, bool)> {
    let mut fds = Vec::with_capacity(2);
    fds.extend(out.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
    fds.extend(err.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
    let timeout = Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: 1_000_000 };
    match poll(&mut fds, Some(&timeout)) {
        Err(rustix::io::Errno::INTR) => return Ok((false, false)),
        result => result?,
    };
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    let out = out.is_some() && ready.next().unwrap_or(false);
    Ok((out, err.is_some() && ready.next().unwrap_or(false)))
}

fn start(command: &mut Command, git: &Git) -> io::Result<Child> {
    let Git { bounds: Bounds { address_bytes, .. }, file_bytes, niceness, .. } = *git;
    let bind = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        setrlimit(Resource::As, Rlimit { current: Some(address_bytes), maximum: Some(address_bytes) })?;
        // A bound that is not given stays as it is.
        if file_bytes.is_some() {
            setrlimit(Resource::Fsize, Rlimit { current: file_bytes, maximum: file_bytes })?;
        }
        // A child that is ended leaves no image of itself on the disk.
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        if niceness > 0 {
            nice(niceness)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure does a few system calls, allocates nothing and takes no lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(bind);
    }
    command.process_group(0).spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (Git, Command) {
        let bounds = Bounds { alloc_bytes: 1 << 28, address_bytes: 1 << 32 };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        (Git::new(Path::new("git"), bounds), command)
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn input_goes_in_and_both_outputs_come_out() {
        let (git, mut command) = shell("cat; echo sorry >&2; exit 3");
        let bytes = vec![b'x'; 300_000];
        let mut seen = 0;
        let problem = git
            .stream(&mut command, Input::Bytes(&bytes), LONG, |part| {
                seen += part.len();
                Ok(())
            })
            .expect_err("it failed");
        assert_eq!((seen, problem.to_string().as_str()), (bytes.len(), "sorry"));
    }

    #[test]
    fn too_slow_too_much_and_unwanted_children_end() {
        let (git, mut command) = shell("echo hello; sleep 1000");
        let slow = git.run(&mut command, Input::Nothing, Duration::from_millis(200), 100);
        assert!(matches!(slow, Err(ChildProblem::Slow(_))), "{slow:?}");
        let (git, mut command) = shell("yes");
        assert!(matches!(git.run(&mut command, Input::Nothing, LONG, 1_000), Err(ChildProblem::Verbose)));
        let (git, mut command) = shell("yes");
        let unwanted = git.stream(&mut command, Input::Nothing, LONG, |_| Err(ChildProblem::Unwanted));
        assert!(matches!(unwanted, Err(ChildProblem::Unwanted)));
    }

    /// Whether a process works: it is there, and not only because nobody has asked how it ended.
    fn works(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
    }

    #[test]
    fn what_a_child_has_started_ends_with_it() {
        let (git, mut command) = shell("sleep 1000 >/dev/null 2>&1 & echo $!; wait");
        let mut grandchild = String::new();
        let unwanted = git.stream(&mut command, Input::Nothing, LONG, |said| {
            grandchild = String::from_utf8_lossy(said).trim().to_owned();
            assert!(works(&grandchild));
            Err(ChildProblem::Unwanted)
        });
        assert!(matches!(unwanted, Err(ChildProblem::Unwanted)));
        let until = Instant::now() + LONG;
        while works(&grandchild) {
            assert!(Instant::now() < until, "it lives on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn address_space_is_bounded() {
        let (_, mut command) = shell("ulimit -v; read x; ulimit -v");
        let git = Git::new(Path::new("git"), Bounds { alloc_bytes: 1 << 28, address_bytes: 1 << 30 });
        let said = git.run(&mut command, Input::Bytes(b"go\n"), LONG, 1_000).expect("runs");
        assert!(String::from_utf8_lossy(&said).trim_end().ends_with(&(1_u64 << 20).to_string()), "{said:?}");
    }
}
