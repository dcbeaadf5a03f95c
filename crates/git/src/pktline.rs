//! Reads and writes pkt-lines, the framing of git's protocols: four hex digits of length, which count themselves, then
//! the data. `0000` is a flush, `0001` a delimiter, `0002` the end of a response.

/// Largest number of bytes in one packet.
pub const MAX_DATA: usize = 65_516;

/// A channel of the `side-band-64k` capability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SideBand {
    /// Pack data or a report.
    Data = 1,
    /// Progress text, shown to the user.
    Progress = 2,
    /// A fatal error text, after which the response ends.
    Error = 3,
}

/// One packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// Bytes.
    Data(&'a [u8]),
    /// `0000`.
    Flush,
    /// `0001`, which separates sections in protocol v2.
    Delimiter,
    /// `0002`, which ends a response in protocol v2 over stateless transports.
    ResponseEnd,
}

impl<'a> Packet<'a> {
    /// Returns the bytes of a text line without its optional newline.
    #[must_use]
    pub fn line(&self) -> Option<&'a [u8]> {
        match self {
            Self::Data(data) => Some(data.strip_suffix(b"\n").unwrap_or(data)),
            _ => None,
        }
    }
}

/// The reason why bytes are not a pkt-line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PacketError {
    /// The length is not four hex digits, or is `0003`, which is not defined.
    #[error("invalid pkt-line length")]
    InvalidLength,
    /// The length exceeds that of the largest packet.
    #[error("pkt-line of more than {MAX_DATA} bytes")]
    TooLong,
}

/// Reads the packet at the beginning of `bytes`. Returns the packet and its encoded length, or `None` if more bytes are
/// needed.
///
/// # Errors
/// If the length is invalid or too large.
pub fn read(bytes: &[u8]) -> Result<Option<(Packet<'_>, usize)>, PacketError> {
    let Some(head) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = head.iter().try_fold(0, |length, digit| Some(length * 16 + char::from(*digit).to_digit(16)?));
    match length.ok_or(PacketError::InvalidLength)? as usize {
        0 => Ok(Some((Packet::Flush, 4))),
        1 => Ok(Some((Packet::Delimiter, 4))),
        2 => Ok(Some((Packet::ResponseEnd, 4))),
        3 => Err(PacketError::InvalidLength),
        length if length > MAX_DATA + 4 => Err(PacketError::TooLong),
        length => Ok(bytes.get(4..length).map(|data| (Packet::Data(data), length))),
    }
}

/// Appends a packet. The caller ensures that it is not longer than [`MAX_DATA`]; see [`push_band`] for streams.
pub fn push(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let length = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
    debug_assert!(length <= MAX_DATA + 4, "a packet of {length} bytes is too long");
    out.extend_from_slice(format!("{length:04x}").as_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends a text line and its newline as one packet.
pub fn push_line(out: &mut Vec<u8>, line: &str) {
    push(out, &[line.as_bytes(), b"\n"]);
}

/// Appends a flush packet.
pub fn push_flush(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0000");
}

/// Appends a delimiter packet.
pub fn push_delimiter(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0001");
}

/// Appends bytes on a side band, in as many packets as they need.
pub fn push_band(out: &mut Vec<u8>, band: SideBand, bytes: &[u8]) {
    for part in bytes.chunks(MAX_DATA - 1) {
        push(out, &[&[band as u8], part]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_packets_are_read_back() {
        let mut out = Vec::new();
        push_line(&mut out, "want x");
        push_delimiter(&mut out);
        push(&mut out, &[b"a", b"bc"]);
        push_flush(&mut out);
        out.extend_from_slice(b"0002");
        let mut rest = out.as_slice();
        let mut packets = Vec::new();
        while let Some((packet, length)) = read(rest).expect("a valid packet") {
            packets.push(packet);
            rest = &rest[length..];
        }
        assert_eq!(rest, b"");
        let expected =
            [Packet::Data(b"want x\n"), Packet::Delimiter, Packet::Data(b"abc"), Packet::Flush, Packet::ResponseEnd];
        assert_eq!(packets, expected);
        assert_eq!(packets[0].line(), Some(&b"want x"[..]));
        assert_eq!(packets[1].line(), None);
    }

    #[test]
    fn incomplete_and_invalid_packets_are_told_apart() {
        for more in [&b""[..], b"000", b"0009done", b"0005"] {
            assert_eq!(read(more), Ok(None), "{more:?}");
        }
        assert_eq!(read(b"0004"), Ok(Some((Packet::Data(b""), 4))));
        assert_eq!(read(b"0009DONE!"), Ok(Some((Packet::Data(b"DONE!"), 9))));
        for (bytes, why) in [
            (&b"0003"[..], PacketError::InvalidLength),
            (b"00g0", PacketError::InvalidLength),
            (b"fff5", PacketError::TooLong),
            (b"-001", PacketError::InvalidLength),
        ] {
            assert_eq!(read(bytes), Err(why), "{bytes:?}");
        }
    }

    #[test]
    fn long_side_band_data_is_split_into_packets() {
        let mut out = Vec::new();
        let bytes = vec![7; MAX_DATA];
        push_band(&mut out, SideBand::Data, &bytes);
        let (first, length) = read(&out).expect("a valid packet").expect("a complete packet");
        let (second, rest) = read(&out[length..]).expect("a valid packet").expect("a complete packet");
        let (Packet::Data(first), Packet::Data(second)) = (first, second) else { panic!("expected two data packets") };
        assert_eq!((first.len(), second.len(), length + rest), (MAX_DATA, 2, out.len()));
        assert_eq!((first[0], second), (1, &[1, 7][..]));
    }

    /// The bytes of a rejected push: docs/protocol.md#rejection-of-a-push.
    #[test]
    fn error_packets_have_the_specified_bytes() {
        let mut plain = Vec::new();
        push_line(&mut plain, "ERR authorisation failed: no matching state");
        assert!(plain.starts_with(b"0030ERR authorisation"));
        let mut banded = Vec::new();
        push_band(&mut banded, SideBand::Error, b"ERR authorisation failed: no matching state\n");
        assert!(banded.starts_with(b"0031\x03ERR authorisation"));
    }
}
