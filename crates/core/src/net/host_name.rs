//! Which host names lead into the public network.

use super::Forbidden;

/// Bytes of a host name, and of one label (RFC 1035).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Names that are answered by the local machine or network, by another network, or by nobody: RFC 6761 (`test`,
/// `localhost`, `invalid`, `example`), 6762 and its appendix G (`local`, `intranet`, `internal`, `private`, `corp`, `home`,
/// `lan`), 7686 (`onion`), 8375 (`home.arpa`) and the rest of `arpa`, which names no hosts, 9476 (`alt`); routers' own
/// (`localdomain`). The names of IANA that exist, such as `example.com`, are like any other.
const SPECIAL: [&str; 15] = [
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

/// Whether a host name may be looked up. It is one of ASCII, as it is sent to a resolver; a dot at the end is forgiven.
/// Addresses are no names.
pub fn vet_name(host: &str) -> Result<(), Forbidden> {
    let name = host.strip_suffix('.').unwrap_or(host);
    vet_form(name)?;
    let (rest, last) = name.rsplit_once('.').unwrap_or(("", name));
    if SPECIAL.iter().any(|special| last.eq_ignore_ascii_case(special)) {
        return Err(Forbidden::SpecialUse);
    }
    if rest.is_empty() {
        return Err(Forbidden::SingleLabel);
    }
    Ok(())
}

/// Whether a text has the form of a host name, wherever it leads.
pub(super) fn vet_form(name: &str) -> Result<(), Forbidden> {
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > MAX_NAME || !name.split('.').all(is_label) {
        return Err(Forbidden::Name);
    }
    if name.rsplit('.').next().is_some_and(is_number) {
        return Err(Forbidden::Numeric);
    }
    Ok(())
}

/// Whether a last label makes the whole name an address to some reader: `1`, `017`, `0x7f`. No top-level domain does.
fn is_number(label: &str) -> bool {
    let hex = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    label.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
