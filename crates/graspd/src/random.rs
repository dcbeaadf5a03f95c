//! Random bytes from the operating system.

use anyhow::{Result, anyhow};

/// Returns unpredictable bytes.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("cannot read random bytes: {error}"))?;
    Ok(bytes)
}
