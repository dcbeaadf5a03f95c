//! Pkt-lines: four hex digits of length, then that many bytes less four. `0000` is a flush, `0001` a delimiter, `0002`
//! the end of a response.

/// The most bytes that one packet carries.
pub const MAX_DATA: usize = 65_516;

/// A side band (`side-band-64k`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Band {
    /// Pack data or a report.
    Data = 1,
    /// Progress for a person.
    Progress = 2,
    /// A last word before the connection ends.
    Fatal = 3,
}

/// One packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// Bytes.
    Data(&'a [u8]),
    /// `0000`.
    Flush,
    /// `0001`, which parts sections in protocol v2.
    Delimiter,
    /// `0002`, which ends a response in protocol v2 over stateless transports.
    ResponseEnd,
}

impl<'a> Packet<'a> {
    /// The bytes of a text line, without the newline that git may or may not put at its end.
    #[must_use]
    pub fn line(&self) -> Option<&'a [u8]> {
        match self {
            Self::Data(data) => Some(data.strip_suffix(b"\n").unwrap_or(data)),
            _ => None,
        }
    }
}

/// Why bytes are no pkt-line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPacket {
    /// The length is not four hex digits, or one that cannot be (`0003`).
    #[error("not a packet length")]
    Length,
    /// The length is more than a packet may have.
    #[error("a packet of more than {MAX_DATA} bytes")]
    TooLong,
}

/// Reads the packet at the beginning of `bytes`: the packet and how many bytes it took, or `None` if more bytes are
/// needed.
pub fn read(bytes: &[u8]) -> Result<Option<(Packet<'_>, usize)>, BadPacket> {
    let Some(head) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = head.iter().try_fold(0, |length, digit| Some(length * 16 + char::from(*digit).to_digit(16)?));
    match length.ok_or(BadPacket::Length)? as usize {
        0 => Ok(Some((Packet::Flush, 4))),
        1 => Ok(Some((Packet::Delimiter, 4))),
        2 => Ok(Some((Packet::ResponseEnd, 4))),
        3 => Err(BadPacket::Length),
        length if length > MAX_DATA + 4 => Err(BadPacket::TooLong),
        length => Ok(bytes.get(4..length).map(|data| (Packet::Data(data), length))),
    }
}

/// Appends a packet. What is longer than a packet may be is a mistake of the caller's; see [`push_band`] for streams.
pub fn push(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let length = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
    debug_assert!(length <= MAX_DATA + 4, "a packet holds {MAX_DATA} bytes");
    out.extend_from_slice(format!("{length:04x}").as_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends a line with its newline.
pub fn push_line(out: &mut Vec<u8>, line: &str) {
    push(out, &[line.as_bytes(), b"\n"]);
}

/// Appends a flush.
pub fn push_flush(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0000");
}

/// Appends a delimiter.
pub fn push_delimiter(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0001");
}

/// Appends bytes on a side band, in as many packets as they need.
pub fn push_band(out: &mut Vec<u8>, band: Band, bytes: &[u8]) {
    for part in bytes.chunks(MAX_DATA - 1) {
        push(out, &[&[band as u8], part]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let mut out = Vec::new();
        push_line(&mut out, "want x");
        push_delimiter(&mut out);
        push(&mut out, &[b"a", b"bc"]);
        push_flush(&mut out);
        out.extend_from_slice(b"0002");
        let mut rest = out.as_slice();
        let mut seen = Vec::new();
        while let Some((packet, taken)) = read(rest).expect("well formed") {
            seen.push(packet);
            rest = &rest[taken..];
        }
        assert_eq!(rest, b"");
        let expected =
            [Packet::Data(b"want x\n"), Packet::Delimiter, Packet::Data(b"abc"), Packet::Flush, Packet::ResponseEnd];
        assert_eq!(seen, expected);
        assert_eq!(seen[0].line(), Some(&b"want x"[..]));
        assert_eq!(seen[1].line(), None);
    }

    #[test]
    fn incomplete_and_bad_packets() {
        for more in [&b""[..], b"000", b"0009done", b"0005"] {
            assert_eq!(read(more), Ok(None), "{more:?}");
        }
        assert_eq!(read(b"0004"), Ok(Some((Packet::Data(b""), 4))));
        assert_eq!(read(b"0009DONE!"), Ok(Some((Packet::Data(b"DONE!"), 9))));
        for (bytes, why) in [
            (&b"0003"[..], BadPacket::Length),
            (b"00g0", BadPacket::Length),
            (b"fff5", BadPacket::TooLong),
            (b"-001", BadPacket::Length),
        ] {
            assert_eq!(read(bytes), Err(why), "{bytes:?}");
        }
    }

    #[test]
    fn bands_are_cut_to_packets() {
        let mut out = Vec::new();
        let bytes = vec![7; MAX_DATA];
        push_band(&mut out, Band::Data, &bytes);
        let (first, taken) = read(&out).expect("well formed").expect("whole");
        let (second, rest) = read(&out[taken..]).expect("well formed").expect("whole");
        let (Packet::Data(first), Packet::Data(second)) = (first, second) else { panic!("two data packets") };
        assert_eq!((first.len(), second.len(), taken + rest), (MAX_DATA, 2, out.len()));
        assert_eq!((first[0], second), (1, &[1, 7][..]));
    }

    #[test]
    fn the_refusal_bytes_of_the_spec() {
        let mut plain = Vec::new();
        push_line(&mut plain, "ERR authorisation failed: no matching state");
        assert!(plain.starts_with(b"0030ERR authorisation"));
        let mut banded = Vec::new();
        push_band(&mut banded, Band::Fatal, b"ERR authorisation failed: no matching state\n");
        assert!(banded.starts_with(b"0031\x03ERR authorisation"));
    }
}
