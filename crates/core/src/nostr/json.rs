//! JSON strings as NIP-01 prescribes them for event ids.
//!
//! Each string has exactly one encoding. Ids therefore agree with other implementations, and stored bytes can be
//! compared without parsing.

/// Appends a JSON string with its quotes. Exactly `" \ \n \r \t \b \f` have short escapes, other control characters
/// become `\u00xx`, and all other characters are written unescaped.
pub fn push_string(out: &mut String, text: &str) {
    out.push('"');
    push_escaped(out, text);
    out.push('"');
}

/// Appends a JSON string without its quotes.
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

/// Returns a JSON string with its quotes.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_string(&mut out, text);
    out
}

/// Returns a JSON string without its quotes. Stored tag values are compared in this form.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_escaped(&mut out, text);
    out
}

/// Decodes a JSON string without its quotes. Returns `None` if it is not valid.
#[must_use]
pub fn unescape(escaped: &str) -> Option<String> {
    serde_json::from_str(&format!("\"{escaped}\"")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_agrees_with_serde_json() {
        let mut text: String = (0u8..128).map(char::from).collect();
        text.push_str("é 🚀 \u{2028} \u{7f}");
        assert_eq!(quote(&text), serde_json::to_string(&text).expect("a string is JSON"));
        assert_eq!(unescape(&escape(&text)), Some(text));
        assert_eq!(unescape("\""), None);
    }
}
