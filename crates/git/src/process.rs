//! Runs git processes: with a controlled environment, without hooks, prompts or outside configuration, and with limits
//! on memory and time.
//!
//! The calls block. One thread starts a process and waits for it. This also ends the process when the server ends: the
//! kernel sends the parent-death signal when the *thread* that started the process ends.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit};

use crate::spawn::{ProcessSettings, spawn};

/// Bytes kept from the end of standard error: enough for the reason of a failure.
const MAX_STDERR_BYTES: usize = 4 * 1024;

/// Bytes kept of a line of output: for `rev-list`, an object id and enough of its path for git to find similar objects.
const MAX_LINE: usize = 1_024;

/// Seconds after the limit on its processor time after which the kernel ends a process that ignores the first signal.
const CPU_KILL_DELAY_SECS: u64 = 5;

/// Nice value of low-priority processes: the largest there is. They get only processor time that is otherwise idle.
const LOW_PRIORITY_NICE: i32 = 19;

/// Memory limits of a git process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessLimits {
    /// Largest single allocation, and so the largest object (`GIT_ALLOC_LIMIT`). A pack of a thousand bytes can claim
    /// an object of gigabytes.
    pub alloc_bytes: u64,
    /// Address space, including mapped packs.
    pub address_bytes: u64,
}

/// The git program, and the limits of the processes that it is run in.
#[derive(Clone, Debug)]
pub struct Git {
    program: PathBuf,
    limits: ProcessLimits,
    /// Largest file that a process may write; `None` for no limit.
    file_bytes: Option<u64>,
    /// Processor time of a process, in seconds; `None` for no limit.
    cpu_secs: Option<u64>,
    /// Nice value of the processes.
    niceness: i32,
}

/// Standard input of a git process.
pub enum ProcessInput<'a> {
    /// No input.
    Empty,
    /// Bytes, at most some megabytes.
    Bytes(&'a [u8]),
    /// A file, from its current position.
    File(File),
}

/// The reason why a git process failed.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The process could not be started, or its pipes could not be read.
    #[error("cannot run git: {0}")]
    Io(#[from] io::Error),
    /// The process exceeded its time limit and was killed.
    #[error("git took longer than {} seconds", .0.as_secs())]
    Timeout(Duration),
    /// The process wrote more to standard output than the caller accepts and was killed.
    #[error("git printed more than expected")]
    OutputTooLarge,
    /// The caller no longer needs the output; the process was killed.
    #[error("the output of git is no longer needed")]
    Cancelled,
    /// The process ended with an error.
    #[error("{stderr}")]
    Failed {
        /// Exit status.
        status: ExitStatus,
        /// The end of what the process wrote to standard error.
        stderr: String,
    },
}

impl Git {
    /// Returns the git of this name in the search path, or at this path.
    #[must_use]
    pub fn new(program: &Path, limits: ProcessLimits) -> Self {
        Self { program: program.to_owned(), limits, file_bytes: None, cpu_secs: None, niceness: 0 }
    }

    /// Returns the same git with a limit on the size of written files. The kernel ends a process that exceeds it.
    #[must_use]
    pub fn with_file_bytes(&self, file_bytes: u64) -> Self {
        Self { file_bytes: Some(file_bytes), ..self.clone() }
    }

    /// Returns the same git with a limit on the processor time of a process. The kernel ends a process that exceeds it.
    #[must_use]
    pub fn with_cpu_secs(&self, cpu_secs: u64) -> Self {
        Self { cpu_secs: Some(cpu_secs), ..self.clone() }
    }

    /// Returns the size of the largest object that a process can read.
    pub(crate) fn max_object_bytes(&self) -> u64 {
        self.limits.alloc_bytes
    }

    /// Returns the same git with the lowest scheduling priority.
    #[must_use]
    pub fn low_priority(&self) -> Self {
        Self { niceness: LOW_PRIORITY_NICE, ..self.clone() }
    }

    /// Returns the program as it was given: a name or a path.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the folders in which a program given by name is looked up.
    #[must_use]
    pub fn search_path() -> OsString {
        std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into())
    }

    /// Returns a command on a repository folder, to which the caller adds the subcommand and its arguments.
    #[must_use]
    pub fn command(&self, folder: &Path) -> Command {
        // The process works in the folder, where a relative path would lead elsewhere.
        let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("PATH", Self::search_path())
            .env("LC_ALL", "C")
            .env("HOME", "/nonexistent")
            .env("GIT_DIR", folder)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ALLOC_LIMIT", self.limits.alloc_bytes.to_string())
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
            // Packs are mapped in windows, so that one larger than the address space can be read.
            "core.packedGitWindowSize=16m",
            "core.packedGitLimit=256m",
        ] {
            command.args(["-c", setting]);
        }
        command.current_dir(folder);
        command
    }

    /// Runs a command to its end and returns its standard output.
    ///
    /// # Errors
    /// If the process cannot be started, fails, exceeds `timeout` or writes more than `max_output` bytes.
    pub fn run(
        &self,
        command: &mut Command,
        input: ProcessInput<'_>,
        timeout: Duration,
        max_output: usize,
    ) -> Result<Vec<u8>, GitError> {
        let mut output = Vec::new();
        self.stream(command, input, timeout, |bytes| {
            output.extend_from_slice(bytes);
            if output.len() > max_output { Err(GitError::OutputTooLarge) } else { Ok(()) }
        })?;
        Ok(output)
    }

    /// Runs a command to its end and passes its standard output to `on_output` as it arrives.
    ///
    /// # Errors
    /// If the process cannot be started, fails or exceeds `timeout`, or if `on_output` fails, which kills the process.
    pub fn stream(
        &self,
        command: &mut Command,
        input: ProcessInput<'_>,
        timeout: Duration,
        mut on_output: impl FnMut(&[u8]) -> Result<(), GitError>,
    ) -> Result<(), GitError> {
        let (mut process, out, err) = spawn(command, &input.into_fd()?, &self.process_settings())?;
        let stderr = read_pipes((Some(out), Some(err)), timeout, &mut on_output)?;
        // Its outputs are closed, as are those of everything that it started.
        let status = process.wait()?;
        if status.success() { Ok(()) } else { Err(GitError::Failed { status, stderr }) }
    }

    /// Like [`stream`](Self::stream), but passes on each line, cut to [`MAX_LINE`] bytes and without its end.
    pub(crate) fn stream_lines(
        &self,
        command: &mut Command,
        input: ProcessInput<'_>,
        timeout: Duration,
        mut on_line: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), GitError> {
        let mut line = Vec::new();
        self.stream(command, input, timeout, |output| {
            for part in output.split_inclusive(|byte| *byte == b'\n') {
                let text = part.strip_suffix(b"\n").unwrap_or(part);
                let capacity = MAX_LINE.saturating_sub(line.len());
                line.extend_from_slice(&text[..text.len().min(capacity)]);
                if part.len() > text.len() {
                    on_line(&line)?;
                    line.clear();
                }
            }
            Ok(())
        })
    }
}

impl ProcessInput<'_> {
    fn into_fd(self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Empty => File::open("/dev/null")?.into(),
            Self::File(file) => file.into(),
            Self::Bytes(bytes) => {
                // A file in memory: a pipe would have to be filled while the output is read.
                let mut file = File::from(rustix::fs::memfd_create("input", rustix::fs::MemfdFlags::CLOEXEC)?);
                file.write_all(bytes)?;
                io::Seek::rewind(&mut file)?;
                file.into()
            }
        })
    }
}

/// Passes on standard output and keeps the end of standard error, until both are closed.
fn read_pipes(
    (mut out, mut err): (Option<PipeReader>, Option<PipeReader>),
    timeout: Duration,
    on_output: &mut impl FnMut(&[u8]) -> Result<(), GitError>,
) -> Result<String, GitError> {
    let deadline = Instant::now() + timeout;
    let mut stderr = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while out.is_some() || err.is_some() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(GitError::Timeout(timeout));
        }
        let (out_ready, err_ready) = poll_pipes(out.as_ref(), err.as_ref(), left)?;
        if let Some(pipe) = out.as_mut().filter(|_| out_ready) {
            match pipe.read(&mut buffer)? {
                0 => out = None,
                read => on_output(&buffer[..read])?,
            }
        }
        if let Some(pipe) = err.as_mut().filter(|_| err_ready) {
            match pipe.read(&mut buffer)? {
                0 => err = None,
                read => {
                    stderr.extend_from_slice(&buffer[..read]);
                    let excess = stderr.len().saturating_sub(MAX_STDERR_BYTES);
                    stderr.drain(..excess);
                }
            }
        }
    }
    Ok(String::from_utf8_lossy(&stderr).trim().to_owned())
}

/// Waits until one of two pipes is readable or closed.
fn poll_pipes(out: Option<&impl AsFd>, err: Option<&impl AsFd>, left: Duration) -> io::Result<(bool, bool)> {
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

impl Git {
    /// Returns what is set for a process before git runs.
    fn process_settings(&self) -> ProcessSettings {
        let fixed = |bytes: u64| Rlimit { current: Some(bytes), maximum: Some(bytes) };
        // A killed process writes no core dump.
        let mut limits = vec![(Resource::As, fixed(self.limits.address_bytes)), (Resource::Core, fixed(0))];
        // Without a limit of its own the process inherits that of the server.
        limits.extend(self.file_bytes.map(|bytes| (Resource::Fsize, fixed(bytes))));
        let cpu_limit =
            |secs: u64| Rlimit { current: Some(secs), maximum: Some(secs.saturating_add(CPU_KILL_DELAY_SECS)) };
        limits.extend(self.cpu_secs.map(|secs| (Resource::Cpu, cpu_limit(secs))));
        ProcessSettings { limits, niceness: self.niceness }
    }
}

/// Returns the input of a git process that walks from tips to everything that known objects do not lead to.
pub(crate) fn walk_input<T: Display>(
    tips: impl Iterator<Item = T>,
    known: impl Iterator<Item = impl Display>,
) -> String {
    let mut input: String = tips.map(|tip| format!("{tip}\n")).collect();
    input.extend(known.map(|oid| format!("^{oid}\n")));
    input
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::Signal;

    use super::*;

    fn shell(script: &str) -> (Git, Command) {
        let limits = ProcessLimits { alloc_bytes: 1 << 28, address_bytes: 1 << 32 };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        (Git::new(Path::new("git"), limits), command)
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn input_is_passed_in_and_both_outputs_are_returned() {
        let (git, mut command) = shell("cat; echo sorry >&2; exit 3");
        let bytes = vec![b'x'; 300_000];
        let mut output_bytes = 0;
        let error = git
            .stream(&mut command, ProcessInput::Bytes(&bytes), LONG, |part| {
                output_bytes += part.len();
                Ok(())
            })
            .expect_err("the script fails");
        assert_eq!((output_bytes, error.to_string().as_str()), (bytes.len(), "sorry"));
    }

    #[test]
    fn slow_verbose_and_cancelled_processes_are_killed() {
        let (git, mut command) = shell("echo hello; sleep 1000");
        let slow = git.run(&mut command, ProcessInput::Empty, Duration::from_millis(200), 100);
        assert!(matches!(slow, Err(GitError::Timeout(_))), "{slow:?}");
        let (git, mut command) = shell("yes");
        assert!(matches!(git.run(&mut command, ProcessInput::Empty, LONG, 1_000), Err(GitError::OutputTooLarge)));
        let (git, mut command) = shell("yes");
        let cancelled = git.stream(&mut command, ProcessInput::Empty, LONG, |_| Err(GitError::Cancelled));
        assert!(matches!(cancelled, Err(GitError::Cancelled)));
    }

    #[test]
    fn process_that_exceeds_its_processor_time_is_killed() {
        let (git, mut command) = shell("while :; do :; done");
        let killed = git.with_cpu_secs(1).run(&mut command, ProcessInput::Empty, LONG, 100);
        let Err(GitError::Failed { status, .. }) = killed else { panic!("{killed:?}") };
        assert_eq!(status.signal(), Some(Signal::XCPU.as_raw()));
    }

    /// Returns whether a process exists and is not a zombie.
    fn is_running(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
    }

    #[test]
    fn child_processes_are_killed_with_their_parent() {
        let (git, mut command) = shell("sleep 1000 >/dev/null 2>&1 & echo $!; wait");
        let mut grandchild = String::new();
        let cancelled = git.stream(&mut command, ProcessInput::Empty, LONG, |output| {
            grandchild = String::from_utf8_lossy(output).trim().to_owned();
            assert!(is_running(&grandchild));
            Err(GitError::Cancelled)
        });
        assert!(matches!(cancelled, Err(GitError::Cancelled)));
        let deadline = Instant::now() + LONG;
        while is_running(&grandchild) {
            assert!(Instant::now() < deadline, "process {grandchild} is still running");
            std::thread::yield_now();
        }
    }

    #[test]
    fn address_space_is_limited() {
        let (_, mut command) = shell("ulimit -v; read x; ulimit -v");
        let git = Git::new(Path::new("git"), ProcessLimits { alloc_bytes: 1 << 28, address_bytes: 1 << 30 });
        let output = git.run(&mut command, ProcessInput::Bytes(b"go\n"), LONG, 1_000).expect("the script succeeds");
        assert!(String::from_utf8_lossy(&output).trim_end().ends_with(&(1_u64 << 20).to_string()), "{output:?}");
    }
}
