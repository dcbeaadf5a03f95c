//! Lower-case hexadecimal encoding of ids, keys and signatures.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Encodes bytes as lower-case hex.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    push(&mut text, bytes);
    text
}

/// Appends bytes as lower-case hex.
pub fn push(text: &mut String, bytes: &[u8]) {
    // Ids have 32 bytes, and sync writes millions of them: one copy each instead of one per digit.
    for part in bytes.chunks(32) {
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(part) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        text.push_str(std::str::from_utf8(&digits[..2 * part.len()]).unwrap_or_default());
    }
}

/// Decodes exactly `N` bytes of lower-case hex. Returns `None` for any other text, including upper case.
#[must_use]
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    if text.len() != N * 2 {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Decodes hex of any even length, upper or lower case. Used for negentropy messages.
#[must_use]
pub fn decode_any(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks_exact(2)
        .map(|pair| Some(digit(pair[0].to_ascii_lowercase())? << 4 | digit(pair[1].to_ascii_lowercase())?))
        .collect()
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_requires_lower_case_and_exact_length() {
        assert_eq!(decode::<2>("00ff"), Some([0, 255]));
        for bad in ["", "00f", "00fff", "00FF", "00fg", "0xff", "é0"] {
            assert_eq!(decode::<2>(bad), None, "{bad}");
        }
        assert_eq!(encode(&[0, 255, 16]), "00ff10");
        assert_eq!(decode_any("00FF"), Some(vec![0, 255]));
        assert_eq!(decode_any("0"), None);
    }
}
