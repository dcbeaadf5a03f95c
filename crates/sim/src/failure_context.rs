//! Context that is printed when a test panics.

/// Prints its text if the current thread panics while the value exists.
pub struct FailureContext(pub String);

impl Drop for FailureContext {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed {}", self.0);
        }
    }
}
