//! Checks of host names before they are looked up.

use super::OutboundError;

/// Maximum length of a host name, and of one label (RFC 1035).
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// Top-level names that resolve to the local machine or network, in another network, or not at all: RFC 6761 (`test`,
/// `localhost`, `invalid`, `example`), 6762 and its appendix G (`local`, `intranet`, `internal`, `private`, `corp`,
/// `home`, `lan`), 7686 (`onion`), 8375 (`home.arpa`) and the rest of `arpa`, which contains no hosts, 9476 (`alt`),
/// and one used by routers (`localdomain`). Registered IANA names such as `example.com` are ordinary names.
const SPECIAL_USE_TLDS: [&str; 15] = [
    "alt",
    "arpa",
    "corp",
    "example",
    "home",
    "internal",
    "intranet",
    "invalid",
    "lan",
    "local",
    "localdomain",
    "localhost",
    "onion",
    "private",
    "test",
];

/// Checks that a host name may be looked up. It is in ASCII, as it is sent to a resolver; a trailing dot is allowed. IP
/// addresses are rejected.
///
/// # Errors
/// Why the name is rejected.
pub fn check_host_name(host: &str) -> Result<(), OutboundError> {
    let name = host.strip_suffix('.').unwrap_or(host);
    check_host_name_syntax(name)?;
    let (rest, last) = name.rsplit_once('.').unwrap_or(("", name));
    if SPECIAL_USE_TLDS.iter().any(|special| last.eq_ignore_ascii_case(special)) {
        return Err(OutboundError::SpecialUse);
    }
    if rest.is_empty() {
        return Err(OutboundError::SingleLabel);
    }
    Ok(())
}

/// Checks the syntax of a host name, whatever it resolves to.
pub(super) fn check_host_name_syntax(name: &str) -> Result<(), OutboundError> {
    let is_label = |label: &str| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > MAX_NAME_BYTES || !name.split('.').all(is_label) {
        return Err(OutboundError::HostName);
    }
    if name.rsplit('.').next().is_some_and(is_number) {
        return Err(OutboundError::NumericHost);
    }
    Ok(())
}

/// Returns whether a last label makes some parsers read the whole name as an address: `1`, `017`, `0x7f`. No top-level
/// domain does.
fn is_number(label: &str) -> bool {
    let hex = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    label.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
