//! IPv4 packets as the router sees them: who sends, who receives, and the answer of a firewall
//! that rejects.

use std::net::Ipv4Addr;

const IP_HEADER_BYTES: usize = 20;
const TCP_HEADER_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const TTL: u8 = 64;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Source and destination of an IPv4 packet; `None` for anything else.
pub fn ends(packet: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr)> {
    if packet.len() < IP_HEADER_BYTES || packet[0] >> 4 != 4 {
        return None;
    }
    let at = |start: usize| {
        Ipv4Addr::new(
            packet[start],
            packet[start + 1],
            packet[start + 2],
            packet[start + 3],
        )
    };
    Some((at(12), at(16)))
}

/// The reset that answers a TCP segment (RFC 9293, section 3.5.2), to be sent back to where it came
/// from; `None` if it is no TCP segment, or a reset itself.
pub fn reset_for(packet: &[u8]) -> Option<Vec<u8>> {
    let (source, target) = ends(packet)?;
    let header = usize::from(packet[0] & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    if packet[9] != PROTOCOL_TCP || header < IP_HEADER_BYTES || total > packet.len() {
        return None;
    }
    let segment = packet.get(header..total)?;
    if segment.len() < TCP_HEADER_BYTES {
        return None;
    }
    let word = |at: usize| {
        u32::from_be_bytes([
            segment[at],
            segment[at + 1],
            segment[at + 2],
            segment[at + 3],
        ])
    };
    let flags = segment[13];
    if flags & RST != 0 {
        return None;
    }
    let payload = segment
        .len()
        .checked_sub(usize::from(segment[12] >> 4) * 4)?;
    let (sequence, acknowledged, answer) = if flags & ACK != 0 {
        (word(8), 0, RST)
    } else {
        let controls = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        let length = u32::try_from(payload).ok()?.wrapping_add(controls);
        (0, word(4).wrapping_add(length), RST | ACK)
    };

    let mut reset = vec![0; IP_HEADER_BYTES + TCP_HEADER_BYTES];
    reset[0] = 0x45;
    reset[2..4].copy_from_slice(&((IP_HEADER_BYTES + TCP_HEADER_BYTES) as u16).to_be_bytes());
    reset[8] = TTL;
    reset[9] = PROTOCOL_TCP;
    reset[12..16].copy_from_slice(&target.octets());
    reset[16..20].copy_from_slice(&source.octets());
    let sum = checksum(0, &reset[..IP_HEADER_BYTES]);
    reset[10..12].copy_from_slice(&sum.to_be_bytes());
    let tcp = IP_HEADER_BYTES;
    reset[tcp..tcp + 2].copy_from_slice(&segment[2..4]);
    reset[tcp + 2..tcp + 4].copy_from_slice(&segment[..2]);
    reset[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
    reset[tcp + 8..tcp + 12].copy_from_slice(&acknowledged.to_be_bytes());
    reset[tcp + 12] = ((TCP_HEADER_BYTES / 4) as u8) << 4;
    reset[tcp + 13] = answer;
    // The pseudo header: both addresses, the protocol, the segment's length.
    let pseudo = sum_words(0, &reset[12..20]) + u32::from(PROTOCOL_TCP) + TCP_HEADER_BYTES as u32;
    let sum = checksum(pseudo, &reset[tcp..]);
    reset[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
    Some(reset)
}

fn sum_words(start: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(start, |sum, pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        sum + u32::from(u16::from_be_bytes([pair[0], low]))
    })
}

/// The internet checksum (RFC 1071) of words after those summed up in `start`.
fn checksum(start: u32, bytes: &[u8]) -> u16 {
    let mut sum = sum_words(start, bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(flags: u8, payload: &[u8]) -> Vec<u8> {
        let total = (IP_HEADER_BYTES + TCP_HEADER_BYTES + payload.len()) as u16;
        let mut packet = vec![0x45, 0];
        packet.extend(total.to_be_bytes());
        packet.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(1000u16.to_be_bytes());
        packet.extend(9092u16.to_be_bytes());
        packet.extend(7u32.to_be_bytes());
        packet.extend(99u32.to_be_bytes());
        packet.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn a_reset_is_one_that_the_sender_accepts() {
        let reset = reset_for(&segment(SYN, b"")).expect("a reset");
        assert_eq!(
            ends(&reset),
            Some((Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1)))
        );
        assert_eq!(reset[20..24], [0x23, 0x84, 0x03, 0xe8], "ports are swapped");
        assert_eq!(reset[28..32], 8u32.to_be_bytes(), "acknowledges the SYN");
        assert_eq!(reset[33], RST | ACK);
        // Checksums are right if the sum over everything is zero.
        assert_eq!(checksum(0, &reset[..20]), 0);
        let pseudo = sum_words(0, &reset[12..20]) + 6 + 20;
        assert_eq!(checksum(pseudo, &reset[20..]), 0);

        let reset = reset_for(&segment(ACK, b"abc")).expect("a reset");
        assert_eq!(reset[24..28], 99u32.to_be_bytes(), "takes the ACK's place");
        assert_eq!(reset[33], RST);
        assert_eq!(reset_for(&segment(RST, b"")), None);
        assert_eq!(reset_for(&segment(ACK, b"")[..30]), None);
    }
}
