//! Assembles packets from chunks of bytes.

use crate::pktline;
use crate::pktline::{Packet, PacketError};

/// Assembles packets.
#[derive(Debug, Default)]
pub(super) struct PacketReader {
    /// The beginning of a packet that is not complete yet.
    partial: Vec<u8>,
}

impl PacketReader {
    /// Passes each packet to `on_packet` as soon as it is complete, until the bytes are used up or `on_packet` returns
    /// that it was the last.
    /// Returns the bytes that are left then.
    pub(super) fn feed<'b, E: From<PacketError>>(
        &mut self,
        mut bytes: &'b [u8],
        mut on_packet: impl FnMut(Packet<'_>) -> Result<bool, E>,
    ) -> Result<&'b [u8], E> {
        while !bytes.is_empty() {
            let is_last = if self.partial.is_empty() {
                let Some((packet, length)) = pktline::read(bytes)? else {
                    self.partial.extend_from_slice(bytes);
                    return Ok(&[]);
                };
                bytes = &bytes[length..];
                on_packet(packet)?
            } else {
                let (more, rest) = bytes.split_at(missing_bytes(&self.partial).min(bytes.len()));
                self.partial.extend_from_slice(more);
                bytes = rest;
                // The packet is incomplete, or only its length is complete.
                let Some((packet, _)) = pktline::read(&self.partial)? else { continue };
                let is_last = on_packet(packet)?;
                self.partial.clear();
                is_last
            };
            if is_last {
                break;
            }
        }
        Ok(bytes)
    }

    /// Returns whether the bytes so far end at the end of a packet.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.partial.is_empty()
    }
}

/// Returns how many more bytes a packet needs at least: those of its length, or those that the length states.
fn missing_bytes(partial: &[u8]) -> usize {
    let digits = partial.first_chunk::<4>().and_then(|digits| std::str::from_utf8(digits).ok());
    let length = digits.and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(4);
    length.max(4).saturating_sub(partial.len()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], chunk_size: usize) -> Result<Vec<String>, PacketError> {
        let (mut reader, mut packets) = (PacketReader::default(), Vec::new());
        for chunk in bytes.chunks(chunk_size) {
            let rest = reader.feed(chunk, |packet| {
                packets.push(format!("{packet:?}"));
                Ok::<_, PacketError>(false)
            })?;
            assert_eq!(rest, b"");
        }
        Ok(packets)
    }

    #[test]
    fn packets_do_not_depend_on_chunk_size() {
        let mut bytes = b"0008NAK\n0004000000010002".to_vec();
        pktline::push(&mut bytes, &[&[7; pktline::MAX_DATA]]);
        let whole = read(&bytes, bytes.len()).expect("valid packets");
        assert_eq!(whole.len(), 6);
        for chunk_size in [1, 2, 3, 4, 5, 7, 4_096] {
            assert_eq!(read(&bytes, chunk_size).expect("valid packets"), whole, "{chunk_size}");
        }
        for chunk_size in [1, 3, 5] {
            assert_eq!(read(b"0008NAK\nPACK", chunk_size), Err(PacketError::InvalidLength));
            assert_eq!(read(b"fffe", chunk_size), Err(PacketError::TooLong));
        }
    }

    #[test]
    fn bytes_after_a_break_are_returned() {
        for cut in 0..8 {
            let mut reader = PacketReader::default();
            let stop = |_: Packet<'_>| Ok::<_, PacketError>(true);
            let bytes = b"0008NAK\nPACK";
            assert_eq!(reader.feed(&bytes[..cut], stop), Ok(&b""[..]));
            assert_eq!(reader.is_at_boundary(), cut == 0);
            assert_eq!(reader.feed(&bytes[cut..], stop), Ok(&b"PACK"[..]), "{cut}");
            assert!(reader.is_at_boundary());
        }
    }
}
