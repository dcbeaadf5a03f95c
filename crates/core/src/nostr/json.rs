//! JSON text as NIP-01 wants it: one way to write a string, so that ids agree and stored bytes compare.

/// Appends a JSON string with its quotes. Exactly `" \ \n \r \t \b \f` have short escapes, other control characters
/// become `\u00xx`, everything else stands as it is.
pub fn push_string(out: &mut String, text: &str) {
    out.push('"');
    push_escaped(out, text);
    out.push('"');
}

/// Appends the inside of a JSON string.
pub fn push_escaped(out: &mut String, text: &str) {
    let mut written = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[written..at]);
        written = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            control => {
                out.push_str("\\u00");
                super::hex::push(out, &[control]);
            }
        }
    }
    out.push_str(&text[written..]);
}

/// A JSON string with its quotes.
#[must_use]
pub fn string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_string(&mut out, text);
    out
}

/// What stands between the quotes when `text` is written canonically: what stored values are compared with.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_escaped(&mut out, text);
    out
}

/// The text whose inside of a JSON string this is.
#[must_use]
pub fn unescaped(escaped: &str) -> Option<String> {
    serde_json::from_str(&format!("\"{escaped}\"")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_serde_json_on_every_ascii_character_and_some_others() {
        let mut text: String = (0u8..128).map(char::from).collect();
        text.push_str("é 🚀 \u{2028} \u{7f}");
        assert_eq!(string(&text), serde_json::to_string(&text).expect("a string is JSON"));
        assert_eq!(unescaped(&escaped(&text)), Some(text));
        assert_eq!(unescaped("\""), None);
    }
}
