//! Named places at which a test may end the process, as a power cut would.

/// Ends the process here, without any goodbye, if `GRASPD_CRASH_AT` names this place: `align.refs`, or `align.refs:2` for
/// the second time that it is passed. If `GRASPD_CRASH_LOG` names a file, only what is passed while that file exists
/// counts, and it is written there. Release builds know no such places.
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    rehearsal::pass(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(debug_assertions)]
mod rehearsal {
    use std::fs::File;
    use std::io::Write;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    /// The place and the how manieth time.
    static AT: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
        let at = std::env::var("GRASPD_CRASH_AT").ok()?;
        let (name, nth) = at.split_once(':').unwrap_or((&at, "1"));
        Some((name.to_owned(), nth.parse().ok()?))
    });

    static LOG: LazyLock<Option<std::ffi::OsString>> = LazyLock::new(|| std::env::var_os("GRASPD_CRASH_LOG"));

    /// How often the place was passed.
    static PASSED: AtomicU64 = AtomicU64::new(0);

    pub(super) fn pass(name: &str) {
        if let Some(log) = &*LOG {
            let Ok(mut log) = File::options().append(true).open(log) else { return };
            let _ = log.write_all(format!("{name}\n").as_bytes());
        }
        let Some((at, nth)) = &*AT else { return };
        if at == name && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *nth {
            let _ = kill_process(getpid(), Signal::KILL);
            // The signal comes before the call returns, or very soon.
            loop {
                std::thread::park();
            }
        }
    }
}
