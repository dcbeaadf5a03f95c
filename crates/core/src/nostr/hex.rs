//! Lower-case hexadecimal encoding of ids, keys and signatures.

/// Encodes bytes as lower-case hex.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    push(&mut text, bytes);
    text
}

/// Appends bytes as lower-case hex.
pub fn push(text: &mut String, bytes: &[u8]) {
    // Ids have 32 bytes, and sync writes millions of them: blocks of a fixed length without branches, which the compiler
    // turns into vector instructions.
    let (ids, rest) = bytes.as_chunks::<32>();
    for id in ids {
        push_block(text, *id);
    }
    for byte in rest {
        push_block(text, [*byte]);
    }
}

fn push_block<const N: usize>(text: &mut String, bytes: [u8; N]) {
    // The distance between `9` and `a` is 39 more than one.
    let digit = |value: u8| b'0' + value + u8::from(value > 9) * 39;
    let digits = bytes.map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    text.push_str(std::str::from_utf8(digits.as_flattened()).unwrap_or_default());
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
