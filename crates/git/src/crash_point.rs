//! Named points at which a test can kill the process, to simulate a power failure.

/// Kills the process if `GRASPD_CRASH_AT` names this point: `align.refs`, or `align.refs:2` for the second time that
/// the point is reached.
///
/// If `GRASPD_CRASH_LOG` names a file, points are counted only while that file exists, and each point that is reached
/// is appended to it. Release builds ignore both variables.
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    injection::reach(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(debug_assertions)]
mod injection {
    use std::fs::File;
    use std::io::Write;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    /// The point at which to kill the process, and how often it must have been reached.
    static AT: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
        let at = std::env::var("GRASPD_CRASH_AT").ok()?;
        let (name, nth) = at.split_once(':').unwrap_or((&at, "1"));
        Some((name.to_owned(), nth.parse().ok()?))
    });

    static LOG: LazyLock<Option<std::ffi::OsString>> = LazyLock::new(|| std::env::var_os("GRASPD_CRASH_LOG"));

    /// How often the point has been reached.
    static REACHED: AtomicU64 = AtomicU64::new(0);

    pub(super) fn reach(name: &str) {
        if let Some(log) = &*LOG {
            let Ok(mut log) = File::options().append(true).open(log) else { return };
            let _ = log.write_all(format!("{name}\n").as_bytes());
        }
        let Some((at, nth)) = &*AT else { return };
        if at == name && REACHED.fetch_add(1, Ordering::Relaxed) + 1 == *nth {
            let _ = kill_process(getpid(), Signal::KILL);
            // The signal may arrive shortly after the call has returned.
            loop {
                std::thread::park();
            }
        }
    }
}
