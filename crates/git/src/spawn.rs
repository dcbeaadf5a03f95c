//! Starts processes without copying the page tables of the server.
//!
//! `fork` copies the page tables, which takes a millisecond for every ten to twenty megabytes of memory, and afterwards
//! every page that the server writes is copied once. The standard library avoids this only if nothing is to be done
//! between the start of the process and `exec`; here limits and the parent-death signal must be set before the program
//! runs. So the process is created as `posix_spawn` of the C library creates it: it shares the memory of the server and
//! has a stack of its own, and the thread that starts it waits until it calls `exec` or ends.
//!
//! Until then the new process must not change the memory of the server. It runs one function, [`run_child`], which performs
//! system calls with values that were prepared before, allocates nothing, takes no lock and cannot panic. All signals are
//! blocked meanwhile, so that no signal handler of the server runs in it.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io;
use std::io::{PipeReader, pipe};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::ptr;

use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, chdir, kill_process_group, nice, set_parent_process_death_signal,
    setpgid, setrlimit, waitpid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::version::find_program;

/// Bytes of the stack of a new process until it runs its program. It calls a few small functions.
const STACK_BYTES: usize = 64 * 1024;

/// The number after the largest signal.
const SIGNALS_END: c_int = 65;

/// Exit status of a process that could not run its program. It is not shown: the error of the system call is.
const EXIT_STATUS: c_int = 127;

/// What is set for a process before its program runs, besides the parent-death signal and a process group of its own.
pub(crate) struct ProcessSettings {
    pub(crate) limits: Vec<(Resource, Rlimit)>,
    /// Added to the nice value of the server.
    pub(crate) niceness: i32,
}

/// A process that has been started. Dropping this value kills it and everything in its process group.
pub(crate) struct SpawnedProcess {
    /// `None` once the process has been waited for. Until then its id, which is also its group id, is not reused.
    pid: Option<Pid>,
}

impl Drop for SpawnedProcess {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = self.wait();
        }
    }
}

impl SpawnedProcess {
    /// Waits until the process has ended.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        let pid = self.pid.ok_or(io::ErrorKind::NotFound)?;
        loop {
            match waitpid(Some(pid), WaitOptions::empty()) {
                Err(Errno::INTR) | Ok(None) => {}
                Err(error) => return Err(error.into()),
                Ok(Some((_, status))) => {
                    self.pid = None;
                    return Ok(ExitStatus::from_raw(status.as_raw()));
                }
            }
        }
    }
}

/// Starts a process with the program, arguments, variables and folder of a command. It has no other variables. Returns it
/// with its standard output and standard error.
///
/// # Errors
/// If the program does not exist or cannot be run, or if no further process can be started.
pub(crate) fn spawn(
    command: &Command,
    stdin: &OwnedFd,
    settings: &ProcessSettings,
) -> io::Result<(SpawnedProcess, PipeReader, PipeReader)> {
    let variable = |name: &str| command.get_envs().find(|(found, _)| *found == name).and_then(|(_, value)| value);
    let search_path = variable("PATH").unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let program = find_program(Path::new(command.get_program()), search_path).ok_or(io::ErrorKind::NotFound)?;
    // The process changes its folder before it runs the program.
    let program = c_string(std::path::absolute(program)?.as_os_str())?;
    let arguments: Vec<CString> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(c_string).collect::<io::Result<_>>()?;
    let mut variables = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            variables.push(c_string(OsStr::from_bytes(&[name.as_bytes(), b"=", value.as_bytes()].concat()))?);
        }
    }
    let folder = command.get_current_dir().map(|folder| c_string(folder.as_os_str())).transpose()?;
    let (out, out_writer) = pipe()?;
    let (err, err_writer) = pipe()?;
    let mut setup = ProcessSetup {
        program: &program,
        arguments: pointers(&arguments),
        variables: pointers(&variables),
        folder: folder.as_deref(),
        streams: [stdin.as_fd(), out_writer.as_fd(), err_writer.as_fd()],
        settings,
        error: 0,
    };
    // None may be replaced before it is used.
    if setup.streams.iter().any(|fd| fd.as_raw_fd() < 3) {
        return Err(io::Error::other("a standard stream of the server is closed"));
    }
    let pid = start(&mut setup)?;
    Ok((SpawnedProcess { pid: Some(pid) }, out, err))
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}

/// Returns the pointers to some texts, and a null pointer after them.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// Everything that a new process needs until it runs its program.
struct ProcessSetup<'a> {
    program: &'a CStr,
    /// Texts that outlive this value, and a null pointer at the end.
    arguments: Vec<*const c_char>,
    variables: Vec<*const c_char>,
    folder: Option<&'a CStr>,
    /// The descriptors that become standard input, output and error. They are not inherited as they are.
    streams: [BorrowedFd<'a>; 3],
    settings: &'a ProcessSettings,
    /// The error of a system call, written by the new process if it cannot run the program.
    error: c_int,
}

/// Creates the process, and returns when it runs its program.
fn start(setup: &mut ProcessSetup<'_>) -> io::Result<Pid> {
    let mut stack = vec![MaybeUninit::<u128>::uninit(); STACK_BYTES / size_of::<u128>()];
    let stack_end = stack.as_mut_ptr_range().end;
    let argument: *mut ProcessSetup<'_> = setup;
    // SAFETY: the new process uses `stack` and `setup`, and nothing else of our memory, until it calls `exec` or `_exit`;
    // this thread, which owns both, waits until then (CLONE_VFORK). See `run_child` for what it does. The stack
    // grows down from its end, which is aligned to 16 bytes. All signals are blocked before and set as before afterwards.
    #[allow(unsafe_code)]
    let (pid, clone_error) = unsafe {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let pid = libc::clone(run_child, stack_end as *mut c_void, flags, argument as *mut c_void);
        let clone_error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        (pid, clone_error)
    };
    let pid = if pid > 0 { Pid::from_raw(pid) } else { None }.ok_or(clone_error)?;
    if setup.error != 0 {
        let mut failed = SpawnedProcess { pid: Some(pid) };
        let _ = failed.wait();
        return Err(io::Error::from_raw_os_error(setup.error));
    }
    Ok(pid)
}

/// The first function of a new process. Its result is the exit status.
extern "C" fn run_child(setup: *mut c_void) -> c_int {
    // SAFETY: `start` passes a pointer to a `ProcessSetup` and waits until this process has ended or calls `exec`. The
    // table of signal handlers and the signal mask are copies that belong to this process, and all pointers are valid.
    #[allow(unsafe_code)]
    unsafe {
        let setup = &mut *(setup as *mut ProcessSetup<'_>);
        reset_signal_handlers();
        if let Err(error) = set_up_process(setup) {
            setup.error = error.raw_os_error();
            return EXIT_STATUS;
        }
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        libc::execve(setup.program.as_ptr(), setup.arguments.as_ptr(), setup.variables.as_ptr());
        setup.error = *libc::__errno_location();
    }
    EXIT_STATUS
}

/// Removes all signal handlers: none of the server may run once signals are unblocked. Ignored signals stay ignored,
/// except SIGPIPE, which the standard library ignores in every Rust program.
///
/// # Safety
/// Must be called in a process that [`start`] created, which has its own table of handlers.
#[allow(unsafe_code)]
unsafe fn reset_signal_handlers() {
    for signal in 1..SIGNALS_END {
        // SAFETY: `sigaction` has only integers and pointers that may be null. The C library rejects signals that it uses
        // itself, which are not sent to other processes.
        unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            if libc::sigaction(signal, ptr::null(), &raw mut action) == 0
                && action.sa_sigaction != libc::SIG_DFL
                && (action.sa_sigaction != libc::SIG_IGN || signal == libc::SIGPIPE)
            {
                action.sa_sigaction = libc::SIG_DFL;
                action.sa_flags = 0;
                libc::sigaction(signal, &raw const action, ptr::null_mut());
            }
        }
    }
}

/// Sets limits, process group, folder and standard streams of this process: only system calls, which allocate nothing.
fn set_up_process(setup: &ProcessSetup<'_>) -> Result<(), Errno> {
    setpgid(None, None)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    for (resource, limit) in &setup.settings.limits {
        setrlimit(*resource, *limit)?;
    }
    if setup.settings.niceness > 0 {
        nice(setup.settings.niceness)?;
    }
    if let Some(folder) = setup.folder {
        chdir(folder)?;
    }
    let [stdin, stdout, stderr] = setup.streams;
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use rustix::io::{FdFlags, fcntl_setfd};

    use super::*;

    fn start_shell(script: &str, settings: &ProcessSettings) -> (SpawnedProcess, PipeReader) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("NAME", "value").env("PATH", "/usr/bin:/bin").current_dir("/");
        let stdin = File::open("/dev/null").expect("open a file").into();
        let (process, out, _err) = spawn(&command, &stdin, settings).expect("start a process");
        (process, out)
    }

    fn output(script: &str, settings: &ProcessSettings) -> String {
        let (mut process, mut out) = start_shell(script, settings);
        let mut text = String::new();
        out.read_to_string(&mut text).expect("read the output");
        assert!(process.wait().expect("wait").success(), "{text}");
        text
    }

    const NO_SETTINGS: ProcessSettings = ProcessSettings { limits: Vec::new(), niceness: 0 };

    #[test]
    fn limits_folder_variables_and_signals_are_set() {
        let limit = Some(1_048_576_000);
        let limits = vec![(Resource::Fsize, Rlimit { current: limit, maximum: limit })];
        let settings = ProcessSettings { limits, niceness: 3 };
        let script =
            "pwd; env | grep -c NAME=value; nice; cat /proc/self/limits /proc/self/status; ps -o pgid= -p $$; echo $$";
        let text = output(script, &settings);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..3], ["/", "1", "3"]);
        let has = |name: &str, value: &str| lines.iter().any(|line| line.starts_with(name) && line.contains(value));
        assert!(has("Max file size", " 1048576000 "), "{text}");
        assert!(has("SigBlk:", "0000000000000000"), "{text}");
        assert!(!lines.iter().any(|line| line.starts_with("SigIgn") && line.ends_with("1000")), "SIGPIPE: {text}");
        let [.., group, process] = lines[..] else { panic!("{text}") };
        assert_eq!(group.trim(), process);
    }

    #[test]
    fn program_that_cannot_be_run_is_an_error() {
        let stdin: OwnedFd = File::open("/dev/null").expect("open a file").into();
        let error =
            |command: &Command| spawn(command, &stdin, &NO_SETTINGS).err().map(|error| error.kind()).expect("an error");
        assert_eq!(error(&Command::new("/nonexistent/git")), io::ErrorKind::NotFound);
        assert_eq!(error(&Command::new("no-such-program")), io::ErrorKind::NotFound);
        let mut elsewhere = Command::new("sh");
        assert_eq!(error(elsewhere.current_dir("/nonexistent")), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_descriptors_that_are_meant_to_be_inherited_are() {
        let lock = tempfile::NamedTempFile::new().expect("create a file");
        fcntl_setfd(&lock, FdFlags::empty()).expect("make a descriptor inheritable");
        let other = tempfile::NamedTempFile::new().expect("create a file");
        let text = output("ls -l /proc/self/fd", &NO_SETTINGS);
        let is_open = |file: &tempfile::NamedTempFile| text.contains(file.path().to_str().expect("UTF-8"));
        assert!(is_open(&lock) && !is_open(&other), "{text}");
    }

    #[test]
    fn process_ends_with_the_thread_that_started_it() {
        let start = || start_shell("echo started; exec sleep 1000", &NO_SETTINGS);
        let (mut process, mut out) = std::thread::spawn(start).join().expect("run a thread");
        let mut text = String::new();
        out.read_to_string(&mut text).expect("read the output");
        assert_eq!(process.wait().expect("wait").signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn many_threads_start_processes_at_once() {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for nth in 0..25 {
                        assert_eq!(output(&format!("echo {nth}"), &NO_SETTINGS), format!("{nth}\n"));
                    }
                });
            }
        });
    }
}
