//! Parsers of setting values. Error messages say which values are valid.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};

use grasp_core::fetch::HostLimits;
use grasp_core::sync::relay_url::RelayUrl;
use ipnet::IpNet;

use super::Secret;
use super::problem::quote;
use super::sources::FileAccess;

/// Parses an IP address with a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("{} is not an IP address with a port, such as 127.0.0.1:7334 or [::]:7334", quote(text)))
}

/// Parses a host with an optional port; returns it in lower case.
pub(crate) fn domain(text: &str) -> Result<String, String> {
    let text = text.trim();
    let invalid = |why: &str| Err(format!("{} {why}", quote(text)));
    if text.is_empty() {
        return Err("is empty; give the public host name, such as code.example".to_owned());
    }
    if text.contains("://") {
        return invalid("has a scheme; give only the host, such as code.example");
    }
    if text.contains('@') {
        return invalid("has a user name; give only the host, such as code.example");
    }
    if text.contains(['/', '?', '#', '\\']) {
        return invalid("has a path; give only the host here, and the path in BASE_PATH");
    }
    if let Ok(bare) = text.parse::<Ipv6Addr>() {
        return invalid(&format!("is an IPv6 address without brackets; write [{bare}]"));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inside) => match inside.parse::<Ipv6Addr>() {
            Ok(v6) => format!("[{v6}]"),
            Err(_) => return invalid("has brackets around something that is not an IPv6 address"),
        },
        None if !host.is_ascii() => return invalid("is not ASCII; give the xn-- form of the name"),
        None if is_host_name(host) => host.to_ascii_lowercase(),
        None => return invalid("is not a valid host name"),
    };
    match port {
        None => Ok(host),
        Some(port) => match port.parse::<u16>() {
            Ok(number @ 1..) if port.bytes().all(|byte| byte.is_ascii_digit()) => Ok(format!("{host}:{number}")),
            _ => invalid("has a port that is not a number from 1 to 65535"),
        },
    }
}

/// Returns whether a text is a DNS name or an IPv4 address.
fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // URL parsers read a name that ends in a number as an IPv4 address, so it must be a valid one.
    let last = host.rsplit('.').next().unwrap_or(host);
    let numeric = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    if numeric {
        return host.parse::<Ipv4Addr>().is_ok();
    }
    host.len() <= 253 && host.split('.').all(is_label)
}

/// Parses the URL path of the service; returns an empty text, or `/…` without a slash at the end.
pub(crate) fn base_path(text: &str) -> Result<String, String> {
    let text = text.trim();
    let invalid = |why: &str| Err(format!("{} {why}", quote(text)));
    if text.is_empty() || text == "/" {
        return Ok(String::new());
    }
    let Some(inside) = text.strip_prefix('/') else {
        return invalid("does not begin with `/`");
    };
    if inside.ends_with('/') {
        return invalid("ends with `/`; remove that slash");
    }
    for segment in inside.split('/') {
        if segment.is_empty() {
            return invalid("has an empty segment (`//`)");
        }
        if segment == "." || segment == ".." {
            return invalid("has a dot segment (`.` or `..`)");
        }
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
        if !segment.bytes().all(is_allowed) {
            return invalid(
                "has a character that is not allowed in a plain URL path, such as a space, `%`, `?` or `#`",
            );
        }
    }
    Ok(text.to_owned())
}

/// Maximum number of invalid entries of one list that are reported: a list with more of them is probably the wrong file.
const MAX_LISTED_ERRORS: usize = 20;

/// Parses all entries of a list, or returns the errors, with line numbers if the list is from a file.
pub(crate) fn entries<'a, T>(
    entries: impl Iterator<Item = (Option<usize>, &'a str)>,
    mut parse: impl FnMut(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let (mut parsed, mut errors) = (Vec::new(), Vec::new());
    for (line, entry) in entries {
        match (parse(entry), line) {
            (Ok(value), _) => parsed.push(value),
            (Err(why), Some(line)) => errors.push(format!("line {line}: {why}")),
            (Err(why), None) => errors.push(why),
        }
    }
    let omitted = errors.len().saturating_sub(MAX_LISTED_ERRORS);
    errors.truncate(MAX_LISTED_ERRORS);
    if omitted > 0 {
        errors.push(format!("and {omitted} more"));
    }
    if errors.is_empty() { Ok(parsed) } else { Err(errors.join("; ")) }
}

/// Parses a list whose entries are separated by a character or white space. Each error follows the quoted entry.
fn list<T>(text: &str, separator: char, parse: impl Fn(&str) -> Result<T, &'static str>) -> Result<Vec<T>, String> {
    let items = text.split(|character: char| character == separator || character.is_whitespace());
    let items = items.filter(|item| !item.is_empty()).map(|item| (None, item));
    entries(items, |item| parse(item).map_err(|why| format!("{} {why}", quote(item))))
}

/// Parses IP networks, separated by commas or white space.
pub(crate) fn networks(text: &str) -> Result<Vec<IpNet>, String> {
    list(text, ',', network)
}

/// Parses an IP network, or an address, which becomes a network of one address. `::ffff:a.b.c.d` means IPv4.
fn network(text: &str) -> Result<IpNet, &'static str> {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let address: IpAddr = address.parse().map_err(|_| "is not an IP network such as 10.0.0.0/8 or fd00::/8")?;
    let (bits, too_long) = match address {
        IpAddr::V4(_) => (32, "has a prefix longer than the 32 bits of IPv4"),
        IpAddr::V6(_) => (128, "has a prefix longer than the 128 bits of IPv6"),
    };
    let prefix = match prefix {
        None => bits,
        Some(digits) if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            return Err("has no number after the `/`");
        }
        Some(digits) => digits.parse().map_err(|_| too_long)?,
    };
    let network = IpNet::new(address, prefix).map_err(|_| too_long)?.trunc();
    match network.addr().to_canonical() {
        IpAddr::V4(v4) if address.is_ipv6() && prefix >= 96 => IpNet::new(v4.into(), prefix - 96).map_err(|_| too_long),
        _ => Ok(network),
    }
}

/// Parses relay URLs, separated by commas or white space. A URL without a scheme means `wss`.
pub(crate) fn relays(text: &str) -> Result<Vec<RelayUrl>, String> {
    let expected = "is not the URL of a relay, such as wss://relay.example.org";
    list(text, ',', |item| RelayUrl::parse(item).ok_or(expected))
}

/// Parses limits of git servers, separated by white space or semicolons: `host=5,30` or `host:5,30`.
pub(crate) fn domain_limits(text: &str) -> Result<BTreeMap<String, HostLimits>, String> {
    let limits = list(text, ';', |item| domain_limit(item).ok_or("does not have the form github.com=10,60"));
    limits.map(|limits| limits.into_iter().collect())
}

fn domain_limit(item: &str) -> Option<(String, HostLimits)> {
    let (host, numbers) = item.split_once('=').or_else(|| item.rsplit_once(':'))?;
    let (concurrent, per_minute) = numbers.split_once(',')?;
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let number = |text: &str, most: u32| text.parse::<u32>().ok().filter(|number| (1..=most).contains(number));
    let limits = HostLimits { concurrent: number(concurrent, 64)?, per_minute: number(per_minute, 6_000)? };
    (is_host_name(&host) || host.parse::<IpAddr>().is_ok()).then_some((host, limits))
}

/// Parses a log level, or a list of levels for parts of the program. A part without a level is an error, although the
/// log library accepts it: it is usually a misspelt level, and would silence all other parts.
pub(crate) fn log_level(text: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let is_part = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:-".contains(&byte))
    };
    let directives: Vec<&str> = text.split(',').map(str::trim).collect();
    let is_valid = directives.iter().all(|directive| match directive.split_once('=') {
        Some((part, level)) => is_part(part) && is_level(level),
        None => is_level(directive),
    });
    if is_valid {
        return Ok(directives.join(","));
    }
    Err(format!("{} is neither one of {} nor a list such as info,sync=debug", quote(text), LEVELS.join(", ")))
}

/// Accepts any text.
pub(crate) fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

/// Parses a text of one line, for names.
pub(crate) fn line(text: &str) -> Result<String, String> {
    let line = text.trim();
    if line.is_empty() {
        return Err("is empty".to_owned());
    }
    if line.chars().any(char::is_control) {
        return Err(format!("{} has a line break or another control character", quote(line)));
    }
    Ok(line.to_owned())
}

/// Parses a folder. Returns it as an absolute path without `.` and `..`, so that two folders can be compared.
pub(crate) fn folder(text: &str, current_dir: &Path) -> Result<PathBuf, String> {
    if text.trim().is_empty() {
        return Err("is empty; give a folder".to_owned());
    }
    if text.contains('\0') {
        return Err(format!("{} is not a folder", quote(text)));
    }
    let mut folder = PathBuf::new();
    for component in current_dir.join(text).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                folder.pop();
            }
            other => folder.push(other),
        }
    }
    Ok(folder)
}

/// Maximum length of the path of a unix socket, in bytes: the system's field has 108, the last of which is zero.
const SOCKET_PATH_BYTES: usize = 107;

/// Parses the path of a unix socket; returns an absolute path, or `None` for `off`.
pub(crate) fn socket_file(text: &str, files: &FileAccess) -> Result<Option<PathBuf>, String> {
    if text.trim().eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    let path = folder(text, &files.current_dir).map_err(|why| why.replace("a folder", "a path, or off"))?;
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES {
        return Err(format!(
            "{} is too long for a unix socket: it has {bytes} bytes, and the system allows {SOCKET_PATH_BYTES}; set \
             ADMIN_SOCKET to a shorter path, such as /run/graspd/admin.sock, or to off",
            quote(&path.display().to_string())
        ));
    }
    Ok(Some(path))
}

/// Parses a private key. An invalid value is not repeated in the error.
pub(crate) fn secret_key(text: &str) -> Result<Option<Secret>, String> {
    match nostr::key::SecretKey::parse(text.trim()) {
        Ok(_) => Ok(Some(Secret::new(text.trim()))),
        Err(_) => Err("is not a private key (nsec1… or 64 hex digits); its value is not shown here".to_owned()),
    }
}

/// Parses the metrics token; `None` if it is empty. An invalid value is not repeated in the error.
pub(crate) fn metrics_token(text: &str) -> Result<Option<Secret>, String> {
    match text.trim() {
        "" => Ok(None),
        text if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Some(Secret::new(text))),
        _ => Err("has characters that are not allowed in a header; its value is not shown here".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains() {
        for (text, expected) in [
            ("code.example", "code.example"),
            ("  CODE.Example ", "code.example"),
            ("code.example:8443", "code.example:8443"),
            ("localhost", "localhost"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("127.0.0.1:7334", "127.0.0.1:7334"),
            ("[::1]", "[::1]"),
            ("[2001:DB8:0::1]:7334", "[2001:db8::1]:7334"),
        ] {
            assert_eq!(domain(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, why) in [
            ("", "is empty"),
            ("https://code.example", "scheme"),
            ("wss://code.example/x", "scheme"),
            ("me@code.example", "user name"),
            ("code.example/grasp", "BASE_PATH"),
            ("code.example/", "BASE_PATH"),
            ("code.example?x", "path"),
            ("::1", "write [::1]"),
            ("[::x]", "brackets"),
            ("[::1]x", "not a valid host"),
            ("code.example:", "port"),
            ("code.example:0", "port"),
            ("code.example:+80", "port"),
            ("code.example:65536", "port"),
            (":80", "not a valid host"),
            ("a b", "not a valid host"),
            ("-a.example", "not a valid host"),
            ("a..example", "not a valid host"),
            ("code.example.", "not a valid host"),
            ("300.1.1.1", "not a valid host"),
            ("bücher.example", "xn--"),
        ] {
            let message = domain(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    #[test]
    fn base_paths() {
        for (text, expected) in [
            ("", ""),
            ("/", ""),
            ("/grasp", "/grasp"),
            ("/a/b-c_d.e~f", "/a/b-c_d.e~f"),
            ("/...", "/..."),
            ("/G", "/G"),
        ] {
            assert_eq!(base_path(text).as_deref(), Ok(expected), "{text}");
        }
        for text in [
            "grasp",
            "/grasp/",
            "//",
            "//grasp",
            "/a//b",
            "/a?b",
            "/a#b",
            "/.",
            "/..",
            "/a/../b",
            "/a/./b",
            "/a%20b",
            "/a b",
            "/a\\b",
            "/ü",
            "https://x/y",
        ] {
            assert!(base_path(text).is_err(), "{text}");
        }
    }

    #[test]
    fn network_contains_addresses() {
        for (network, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.1.2.3/8", "10.9.9.9", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("192.0.2.0/31", "192.0.2.1", true),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.0.0.0/8", "::ffff:11.1.2.3", false),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "::ffff:10.1.2.3", true),
            ("::ffff:192.0.2.7", "192.0.2.7", true),
            ("2001:db8::/32", "2001:db8:ffff::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("2001:db8::/33", "2001:db8:8000::", false),
            ("::1", "::1", true),
            ("::1/128", "::2", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "10.0.0.1", false),
        ] {
            let networks = networks(network).expect(network);
            let is_in = crate::http::forwarded::is_in(address.parse().expect(address), &networks);
            assert_eq!(is_in, expected, "{network} {address}");
        }
    }

    #[test]
    fn networks_are_displayed_in_canonical_form() {
        for (text, expected) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("2001:DB8::1/32", "2001:db8::/32"),
            ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
        ] {
            assert_eq!(network(text).expect(text).to_string(), expected);
        }
    }

    #[test]
    fn invalid_networks_are_errors() {
        for text in [
            "",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "host",
            "10.0.0.0/99999999999",
        ] {
            assert!(network(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lists_of_networks() {
        assert_eq!(networks(""), Ok(Vec::new()));
        assert_eq!(networks(" 10.0.0.0/8 ,::1,\n192.0.2.1 ").map(|list| list.len()), Ok(3));
        let message = networks("10.0.0.0/8,x,10.0.0.0/40").expect_err("two are wrong");
        assert!(message.contains("`x` is not") && message.contains("`10.0.0.0/40` has a prefix"), "{message}");
    }

    #[test]
    fn domain_limits_are_parsed() {
        let read = |text| domain_limits(text).map(|hosts| hosts.into_iter().collect::<Vec<_>>());
        let limit = |host: &str, concurrent, per_minute| (host.to_owned(), HostLimits { concurrent, per_minute });
        let both = vec![limit("codeberg.org", 2, 10), limit("github.com", 10, 60)];
        assert_eq!(read("GitHub.com=10,60  codeberg.org:2,10"), Ok(both.clone()));
        assert_eq!(read("codeberg.org.=2,10;github.com:10,60"), Ok(both));
        assert_eq!(read("127.0.0.1=64,6000"), Ok(vec![limit("127.0.0.1", 64, 6_000)]));
        assert_eq!(read(""), Ok(Vec::new()));
        for invalid in
            ["github.com", "github.com=10", "github.com=0,5", "github.com=65,5", "=1,2", "a b=1,2", "x=1,2,3"]
        {
            assert!(read(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn log_levels() {
        for text in ["info", "WARN", "info,sync=debug", "off, hyper=error"] {
            assert!(log_level(text).is_ok(), "{text}");
        }
        for text in ["", "inof", "info,", "info,graspd", "=debug", "graspd=loud", "a b=info"] {
            assert!(log_level(text).is_err(), "{text}");
        }
    }

    #[test]
    fn folders() {
        let here = Path::new("/srv/x");
        for (text, expected) in
            [("./data/git", "/srv/x/data/git"), ("/a/./b/../c/", "/a/c"), ("..", "/srv"), ("a b", "/srv/x/a b")]
        {
            assert_eq!(folder(text, here), Ok(PathBuf::from(expected)), "{text}");
        }
        assert!(folder("", here).is_err());
    }

    #[test]
    fn socket_files() {
        let here = &FileAccess { current_dir: PathBuf::from("/srv/x"), ..FileAccess::default() };
        for (text, expected) in [("off", None), (" OFF ", None), ("a.sock", Some("/srv/x/a.sock")), ("/a", Some("/a"))]
        {
            assert_eq!(socket_file(text, here), Ok(expected.map(PathBuf::from)), "{text}");
        }
        assert!(socket_file("", here).is_err_and(|why| why.contains("give a path, or off")));
        let longest = format!("/{}", "x".repeat(SOCKET_PATH_BYTES - 1));
        assert!(socket_file(&longest, here).is_ok());
        assert!(socket_file(&format!("{longest}x"), here).is_err_and(|why| why.contains("ADMIN_SOCKET")));
    }
}
