//! Arm's Statistical Profiling Extension: the packets of its records.
//!
//! The processor picks an operation now and then and writes down what became of it: a record, which is packets
//! up to one that ends it. A packet is a header of one byte, or of two if the first is `0010 00xx`, and
//! 1, 2, 4 or 8 bytes, as bits 5 and 4 of the (last) header say (Arm Architecture Reference Manual, "Statistical
//! Profiling Extension sample record format").
//!
//! | header | packet |
//! |---|---|
//! | `0000 0000` | padding, this byte alone |
//! | `0000 0001` | end of the record, this byte alone |
//! | `0111 0001` | timestamp; ends the record |
//! | `01ss 0010` | events; bit 6: not taken, bit 7: mispredicted |
//! | `01ss 0011` | where data came from |
//! | `0110 01xx` | context: the thread, as the kernel numbers it; of EL1 or EL2 |
//! | `0100 10cc` | kind of operation; class 2: branch or exception return |
//! | `1011 0iii` | address number i: 0 of the operation, 1 target of the branch, 2 and 3 of data, 4 target of the branch taken before |
//! | `1001 1iii` | a counter |
//! | `0010 00xx 0000 0000` | padding up to a multiple of 2, 4, 8 or 16 bytes, by the lower bits of the first |
//!
//! A header of two bytes extends the number of an address or a counter by the lower bits of the first.
//!
//! Addresses have 56 bits; bits 61 and 62 say at which exception level, and bit 63 is set outside of the
//! secure state. Those of the kernel get their uppermost byte back.

/// An operation that was sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Operation {
    /// Its address.
    pub(super) pc: u64,
    /// It is a branch or an exception return.
    pub(super) branch: bool,
    /// Where the branch led, if that was recorded.
    pub(super) target: Option<u64>,
    /// Where the branch led that was taken before the operation, if that was recorded.
    pub(super) previous: Option<u64>,
    /// The branch was not taken.
    pub(super) not_taken: bool,
    /// The branch was mispredicted.
    pub(super) mispredicted: bool,
    /// The thread, if that was recorded.
    pub(super) thread: Option<u32>,
    /// When, in ticks of the system counter, if that was recorded.
    pub(super) ticks: Option<u64>,
}

/// Length of an instruction: where control continues after a branch that is not taken.
const INSTRUCTION: u64 = 4;

impl Operation {
    /// Where the branch led.
    pub(super) fn destination(&self) -> u64 {
        if self.not_taken {
            self.pc.wrapping_add(INSTRUCTION)
        } else {
            self.target.unwrap_or(0)
        }
    }
}

/// A packet: what is of use in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packet {
    /// Nothing that is needed.
    Other,
    End,
    Timestamp(u64),
    Events(u64),
    Context(u64),
    Class(u8),
    Address(u8, u64),
}

/// The packet at `at`, and where the next one is. `None` if it is unknown or cut short.
fn packet(data: &[u8], at: usize) -> Option<(Packet, usize)> {
    let &first = data.get(at)?;
    match first {
        0 => return Some((Packet::Other, at + 1)),
        1 => return Some((Packet::End, at + 1)),
        _ => {}
    }
    let (header, number, header_at) = match first & 0xfc {
        0x20 => {
            let &second = data.get(at + 1)?;
            if second == 0 {
                let align = 2usize << (first & 3);
                let next = (at + 1).next_multiple_of(align);
                return (next <= data.len()).then_some((Packet::Other, next));
            }
            (second, (first & 3) << 3 | second & 7, at + 1)
        }
        _ => (first, first & 7, at),
    };
    let extended = header_at > at;
    let len = 1usize << (header >> 4 & 3);
    let payload = data.get(header_at + 1..header_at + 1 + len)?;
    let mut word = [0; 8];
    word.iter_mut()
        .zip(payload)
        .for_each(|(byte, &of)| *byte = of);
    let value = u64::from_le_bytes(word);
    let packet = match header {
        0x71 if !extended => Packet::Timestamp(value),
        _ if !extended && header & 0xcf == 0x42 => Packet::Events(value),
        _ if !extended && header & 0xcf == 0x43 => Packet::Other,
        _ if !extended && header & 0xfc == 0x64 => Packet::Context(value),
        _ if !extended && header & 0xfc == 0x48 => Packet::Class(header & 3),
        _ if header & 0xf8 == 0xb0 => Packet::Address(number, value),
        _ if header & 0xf8 == 0x98 => Packet::Other,
        _ => return None,
    };
    Some((packet, header_at + 1 + len))
}

/// An address as it was in the process, or in the kernel.
fn address(value: u64) -> u64 {
    const KERNEL_LEVELS: std::ops::RangeInclusive<u64> = 1..=2;
    let low = value & (u64::MAX >> 8);
    if KERNEL_LEVELS.contains(&(value >> 61 & 3)) && value >> 63 != 0 {
        low | 0xff << 56
    } else {
        low
    }
}

/// What was left at the end of a buffer of trace data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rest {
    /// Bytes of a record that was cut off.
    pub(super) cut: usize,
    /// Where a byte is that begins no packet. Lengths are in the packets, so that all after it is not decoded.
    pub(super) unknown: Option<usize>,
}

/// Calls `each` with the operations of a buffer of trace data, in order.
pub(super) fn operations(data: &[u8], each: &mut impl FnMut(&Operation)) -> Rest {
    let (mut at, mut record) = (0, 0);
    let mut operation = Operation::default();
    let mut known_pc = false;
    while at < data.len() {
        let Some((packet, next)) = packet(data, at) else {
            return if is_cut(data, at) {
                Rest {
                    cut: data.len() - record,
                    unknown: None,
                }
            } else {
                Rest {
                    cut: 0,
                    unknown: Some(at),
                }
            };
        };
        match packet {
            Packet::Events(bits) => {
                operation.not_taken = bits >> 6 & 1 != 0;
                operation.mispredicted = bits >> 7 & 1 != 0;
            }
            Packet::Context(thread) => operation.thread = Some(thread as u32),
            Packet::Class(class) => operation.branch |= class == 2,
            Packet::Address(0, value) => (operation.pc, known_pc) = (address(value), true),
            Packet::Address(1, value) => operation.target = Some(address(value)),
            Packet::Address(4, value) => operation.previous = Some(address(value)),
            Packet::Timestamp(ticks) => operation.ticks = Some(ticks),
            Packet::Address(..) | Packet::Other | Packet::End => {}
        }
        at = next;
        if matches!(packet, Packet::End | Packet::Timestamp(_)) {
            if known_pc {
                each(&operation);
            }
            (operation, known_pc) = (Operation::default(), false);
            record = at;
        } else if packet == Packet::Other && !known_pc && operation == Operation::default() {
            record = at;
        }
    }
    Rest {
        cut: at - record,
        unknown: None,
    }
}

/// Whether the packet at `at` would be one if the data went on: the buffer was full.
fn is_cut(data: &[u8], at: usize) -> bool {
    const LONGEST: usize = 2 + 8;
    let rest = data.get(at..).unwrap_or_default();
    let mut longer = rest.to_vec();
    longer.resize(LONGEST, 0);
    // Padding can be longer than any packet.
    let padding = matches!(rest, [first, 0, ..] | [first] if first & 0xfc == 0x20);
    rest.len() < LONGEST && packet(&longer, 0).is_some() || padding
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test that fails may panic")]
mod tests {
    use super::*;

    fn all(data: &[u8]) -> (Vec<Operation>, usize) {
        let mut list = Vec::new();
        let rest = operations(data, &mut |operation| list.push(*operation));
        assert_eq!(rest.unknown, None);
        (list, rest.cut)
    }

    fn long(header: &[u8], value: u64) -> Vec<u8> {
        [header, &value.to_le_bytes()].concat()
    }

    /// A record as a Neoverse N1 writes one: address, context, kind, events, counters, target, timestamp.
    fn branch() -> Vec<u8> {
        [
            long(&[0xb0], 0x8000_0000_0040_1234),
            vec![0x65, 0x39, 0x30, 0, 0],
            vec![0x4a, 0x01],
            vec![0x52, 0x82, 0x00],
            vec![0x98, 0x10, 0x00, 0x99, 0x04, 0x00],
            long(&[0xb1], 0x8000_0000_0040_2000),
            vec![0, 0, 0],
            long(&[0x71], 1_000_000),
        ]
        .concat()
    }

    #[test]
    fn a_taken_branch_has_both_ends() {
        let (list, cut) = all(&branch());
        let expected = Operation {
            pc: 0x40_1234,
            branch: true,
            target: Some(0x40_2000),
            mispredicted: true,
            thread: Some(12345),
            ticks: Some(1_000_000),
            ..Operation::default()
        };
        assert_eq!((list, cut), (vec![expected], 0));
    }

    #[test]
    fn a_branch_that_is_not_taken_leads_to_the_next_instruction() {
        let data = [
            long(&[0xb0], 0x1000),
            vec![0x4a, 0x01, 0x42, 0x42],
            long(&[0xb1], 0x9999),
            long(&[0xb4], 0x0f00),
            vec![0x01],
        ]
        .concat();
        let (list, _) = all(&data);
        assert_eq!(list[0].destination(), 0x1004);
        assert_eq!(list[0].previous, Some(0xf00));
        assert_eq!((list[0].ticks, list[0].mispredicted), (None, false));
    }

    #[test]
    fn headers_of_two_bytes_extend_numbers_and_padding_aligns() {
        // Address number 8 | 1 is none of ours; number 4 with two bytes is the previous target.
        let data = [
            long(&[0x21, 0xb1], 7),
            long(&[0x20, 0xb4], 0x77),
            long(&[0xb0], 0x1000),
            vec![0x20, 0x9c, 1, 0],
            vec![0x01],
        ]
        .concat();
        let (list, _) = all(&data);
        assert_eq!(
            (list[0].pc, list[0].target, list[0].previous),
            (0x1000, None, Some(0x77))
        );
        let mut data = vec![0x22, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        data.extend(long(&[0xb0], 0x2000));
        data.push(1);
        let (list, cut) = all(&data);
        assert_eq!((list[0].pc, cut), (0x2000, 0));
    }

    #[test]
    fn addresses_of_the_kernel_are_in_the_kernels_half() {
        assert_eq!(address(0xa0ff_8000_1234_5678), 0xffff_8000_1234_5678);
        assert_eq!(address(0xc0ff_8000_1234_5678), 0xffff_8000_1234_5678);
        assert_eq!(address(0x8000_aaaa_1234_5678), 0xaaaa_1234_5678);
        // A secure EL1, and EL3, are no kernel that could be seen.
        assert_eq!(address(0x20ff_8000_1234_5678), 0x00ff_8000_1234_5678);
    }

    #[test]
    fn a_record_that_was_cut_off_is_left_out_and_counted() {
        let whole = branch();
        for len in 0..whole.len() {
            let data = [&whole[..], &whole[..len]].concat();
            let (list, cut) = all(&data);
            assert_eq!((list.len(), cut), (1, len), "{len} bytes more");
        }
        let mut padding_that_goes_on = whole.clone();
        padding_that_goes_on.resize(whole.len().next_multiple_of(16), 0);
        padding_that_goes_on.extend([0x23, 0x00]);
        assert_eq!(all(&padding_that_goes_on).0.len(), 1);
    }

    #[test]
    fn a_byte_that_begins_no_packet_ends_the_buffer_and_keeps_what_was_before_it() {
        let mut data = branch();
        let at = data.len();
        data.extend([0xff; 16]);
        data.extend(branch());
        let mut seen = 0;
        let rest = operations(&data, &mut |_| seen += 1);
        assert_eq!(
            (seen, rest),
            (
                1,
                Rest {
                    cut: 0,
                    unknown: Some(at)
                }
            )
        );
    }
}
