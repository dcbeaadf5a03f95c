//! Named places at which a test may end the process, as a power cut would.

/// Ends the process here, without any goodbye, if `GRASPD_CRASH_AT` names this place. Release builds know no such places.
pub fn point(name: &str) {
    #[cfg(debug_assertions)]
    if std::env::var_os("GRASPD_CRASH_AT").is_some_and(|at| at == name) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The signal comes before the call returns, or very soon.
        loop {
            std::thread::park();
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}
