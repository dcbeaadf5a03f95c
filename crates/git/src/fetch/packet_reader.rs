//! Packets out of bytes that come in pieces.

use std::ops::ControlFlow;

use crate::pktline;
use crate::pktline::{BadPacket, Packet};

/// Puts packets together.
#[derive(Debug, Default)]
pub(super) struct Packets {
    /// The beginning of a packet.
    partial: Vec<u8>,
}

impl Packets {
    /// Shows each packet as soon as it is whole, until there are none left or `show` has seen enough. Gives the bytes that
    /// are left then.
    pub(super) fn feed<'b, E: From<BadPacket>>(
        &mut self,
        mut bytes: &'b [u8],
        mut show: impl FnMut(Packet<'_>) -> Result<ControlFlow<()>, E>,
    ) -> Result<&'b [u8], E> {
        while !bytes.is_empty() {
            let flow = if self.partial.is_empty() {
                let Some((packet, taken)) = pktline::read(bytes)? else {
                    self.partial.extend_from_slice(bytes);
                    return Ok(&[]);
                };
                bytes = &bytes[taken..];
                show(packet)?
            } else {
                let (more, rest) = bytes.split_at(lacking(&self.partial).min(bytes.len()));
                self.partial.extend_from_slice(more);
                bytes = rest;
                // A whole packet of nothing but a length has just been completed, or there is more to come.
                let Some((packet, _)) = pktline::read(&self.partial)? else { continue };
                let flow = show(packet)?;
                self.partial.clear();
                flow
            };
            if flow.is_break() {
                break;
            }
        }
        Ok(bytes)
    }

    /// Whether the bytes ended between two packets.
    pub(super) fn is_between(&self) -> bool {
        self.partial.is_empty()
    }
}

/// How many bytes the packet needs at least: those of its length, or those that the length says.
fn lacking(partial: &[u8]) -> usize {
    let digits = partial.first_chunk::<4>().and_then(|digits| std::str::from_utf8(digits).ok());
    let length = digits.and_then(|digits| usize::from_str_radix(digits, 16).ok()).unwrap_or(4);
    length.max(4).saturating_sub(partial.len()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], piece: usize) -> Result<Vec<String>, BadPacket> {
        let (mut packets, mut seen) = (Packets::default(), Vec::new());
        for part in bytes.chunks(piece) {
            let rest = packets.feed(part, |packet| {
                seen.push(format!("{packet:?}"));
                Ok::<_, BadPacket>(ControlFlow::Continue(()))
            })?;
            assert_eq!(rest, b"");
        }
        Ok(seen)
    }

    #[test]
    fn pieces_of_any_size_make_the_same_packets() {
        let mut bytes = b"0008NAK\n0004000000010002".to_vec();
        pktline::push(&mut bytes, &[&[7; pktline::MAX_DATA]]);
        let whole = read(&bytes, bytes.len()).expect("packets");
        assert_eq!(whole.len(), 6);
        for piece in [1, 2, 3, 4, 5, 7, 4_096] {
            assert_eq!(read(&bytes, piece).expect("packets"), whole, "{piece}");
        }
        for piece in [1, 3, 5] {
            assert_eq!(read(b"0008NAK\nPACK", piece), Err(BadPacket::Length));
            assert_eq!(read(b"fffe", piece), Err(BadPacket::TooLong));
        }
    }

    #[test]
    fn what_follows_is_left() {
        for cut in 0..8 {
            let mut packets = Packets::default();
            let stop = |_: Packet<'_>| Ok::<_, BadPacket>(ControlFlow::Break(()));
            let bytes = b"0008NAK\nPACK";
            assert_eq!(packets.feed(&bytes[..cut], stop), Ok(&b""[..]));
            assert_eq!(packets.is_between(), cut == 0);
            assert_eq!(packets.feed(&bytes[cut..], stop), Ok(&b"PACK"[..]), "{cut}");
            assert!(packets.is_between());
        }
    }
}
