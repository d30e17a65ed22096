//! Which general registers an instruction touches.
//!
//! Asked only about the few instructions between the forming of an address and its use, so the answer may be
//! coarse as long as it errs on one side: `reads` has every register that may be read (or changed in part),
//! `kills` only those that hold nothing of their old value afterwards. Register 31 is the stack pointer or
//! zero and never counts.
//!
//! | class | bits 28…25 | read | overwritten |
//! |---|---|---|---|
//! | immediate | 100x | n (m for `extr`, d for `movk`, `bfm`) | d |
//! | register | x101 | n, m, a of three-source | d, but for conditional compares |
//! | loads and stores | x1x0 | n, m; t of stores; everything of exclusives and atomics | t of plain loads |
//! | vectors and scalars | x111 | n, and d where it is general or may be, where general registers take part | |
//! | SVE | 0010 | d, n, m, 12 to 15 | |
//! | SME | 0000 | all | |
//! | branches, system | 101x | t, n, modifier; of hints x16, x17, x30 | |

use super::super::Touched;

/// All general registers but 31.
const ALL: u32 = 0x7fff_ffff;

/// The register after one that is given as a bit; after the last one is none.
fn next(register: u32) -> u32 {
    register << 1 & ALL
}

/// What an instruction does to registers; `None` if its class is unknown or if control may leave with it.
pub(crate) fn touched(w: u32) -> Option<Touched> {
    let bit = |low: u32| 1u32 << (w >> low & 31) & 0x7fff_ffff;
    let (d, n, m, a) = (bit(0), bit(5), bit(16), bit(10));
    let made = |reads: u32, kills: u32| {
        Some(Touched {
            reads,
            kills,
            writes: kills,
        })
    };
    let partly = |reads: u32, writes: u32| {
        Some(Touched {
            reads,
            kills: 0,
            writes,
        })
    };
    match w >> 25 & 15 {
        0b1000 | 0b1001 => match w >> 23 & 7 {
            0 | 1 => made(0, d),
            2..=4 => made(n, d),
            5 if w >> 29 & 3 == 3 => partly(d, d),
            5 => made(0, d),
            6 if w >> 29 & 3 == 1 => partly(n | d, d),
            6 => made(n, d),
            _ => made(n | m, d),
        },
        0b0101 | 0b1101 => match w >> 21 & 0xff {
            // `rmif` and `setf8`: the low bits are flags.
            0xd0 if w >> 29 & 1 == 1 && w >> 10 & 63 != 0 => made(n, 0),
            // Conditional compares: likewise.
            0xd2 => made(n | if w >> 11 & 1 == 0 { m } else { 0 }, 0),
            // One source; pointer authentication changes d.
            0xd6 if w >> 30 & 1 == 1 => partly(n | d, d),
            _ if w >> 24 & 0x1f == 0x1b => made(n | m | a, d),
            _ => made(n | m, d),
        },
        0b0100 | 0b0110 | 0b1100 | 0b1110 => Some(memory(w, d, n, m, a)),
        0b0111 | 0b1111 => {
            // Between general and vector registers: conversions and moves, dup, ins, umov, smov.
            let convert = w & 0x5f00_0000 == 0x1e00_0000 && (w >> 21 & 1 == 0 || w >> 10 & 63 == 0);
            let copy = w & 0x9fe0_8400 == 0x0e00_0400;
            // `scvtf`, `ucvtf`, and `fmov` of a general register; `dup` and `ins` of one: d is a vector register.
            let to_vector = match w >> 16 & 31 {
                2 | 3 => convert,
                7 | 15 => convert && w >> 21 & 1 == 1,
                _ => false,
            };
            if to_vector || copy && matches!(w >> 11 & 15, 1 | 3) {
                made(n, 0)
            } else if convert || copy {
                partly(n | d, d)
            } else {
                made(0, 0)
            }
        }
        // SVE: `psel` names w12 to w15 by two bits.
        0b0010 => partly(d | n | m | 0xf000, d | n | m),
        // SME: many forms name w8 to w15 by two bits.
        0b0000 => partly(ALL, ALL),
        0b1010 | 0b1011 => match w >> 24 {
            0xd5 if w & 0xffff_f01f == 0xd503_201f => {
                partly(1 << 16 | 1 << 17 | 1 << 30, 1 << 16 | 1 << 17 | 1 << 30)
            }
            // Pairs of registers: `mrrs`, `msrr`, `sysp`.
            0xd5 if w >> 22 & 1 == 1 && w >> 23 & 1 == 0 => partly(d | next(d), d | next(d)),
            0xd5 if w >> 23 & 1 == 0 => partly(d, d),
            0x54 | 0x14..=0x17 => made(0, 0),
            _ if w & 0x7c00_0000 == 0x3400_0000 => made(d, 0),
            _ if w & 0xfe00_0000 == 0xd600_0000 => partly(n | d | 1 << 30, 1 << 30),
            _ => None,
        },
        _ => None,
    }
}

fn memory(w: u32, d: u32, n: u32, m: u32, a: u32) -> Touched {
    let vector = w >> 26 & 1 == 1;
    let load = w >> 22 & 1 == 1;
    // `casp` and its like have pairs, of which the first register is named.
    let mut all = d | next(d) | n | m | next(m) | a;
    // `ld64b` and `st64b` have eight.
    if w >> 27 & 31 == 0b11111 && !vector && w >> 15 & 1 == 1 {
        all |= (0..8).fold(0, |set, i| set | d << i & ALL);
    }
    let everything = Touched {
        reads: all,
        kills: 0,
        writes: all,
    };
    // A base that is written back does not count as overwritten, not even by a load into it.
    let made = |reads: u32, into: u32, back: bool| {
        let back = if back { n } else { 0 };
        Touched {
            reads: reads | n,
            kills: into & !back,
            writes: into | back,
        }
    };
    match w >> 28 & 3 {
        // Exclusives, compare-and-swap; loads and stores of several vectors.
        0 if vector => made(m, 0, w >> 23 & 1 == 1),
        // `ldar`, `stlr` and their like: one register.
        0 if w & 0x3fa0_7c00 == 0x0880_7c00 && w >> 16 & 31 == 31 => {
            let (reads, into) = if load { (0, d) } else { (d, 0) };
            made(reads, into, false)
        }
        1 if w >> 24 & 1 == 0 => {
            // Literals; `prfm` has no register.
            let into = if !vector && w >> 30 != 3 { d } else { 0 };
            Touched {
                reads: 0,
                kills: into,
                writes: into,
            }
        }
        2 => {
            let back = w >> 23 & 1 == 1;
            match (vector, load) {
                (true, _) => made(0, 0, back),
                (false, true) => made(0, d | a, back),
                (false, false) => made(d | a, 0, back),
            }
        }
        3 => {
            let offset = w >> 24 & 1 == 1;
            let by_register = !offset && w >> 21 & 1 == 1;
            if by_register && w >> 10 & 3 != 2 {
                // Atomics; loads with authentication.
                return everything;
            }
            let index = if by_register { m } else { 0 };
            let back = !offset && !by_register && w >> 10 & 1 == 1;
            match (vector, w >> 22 & 3, w >> 30) {
                (true, ..) => made(index, 0, back),
                (false, 0, _) => made(index | d, 0, back),
                // prfm
                (false, 2, 3) => made(index, 0, back),
                _ => made(index, d, back),
            }
        }
        _ => everything,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_instructions_read_and_overwrite_what_the_manual_says() {
        let x = |list: &[u32]| list.iter().fold(0, |set, r| set | 1 << r);
        let cases: [(u32, &[u32], &[u32], &str); 33] = [
            (0x9100_4020, &[1], &[0], "add x0, x1, #0x10"),
            (0x8b02_0020, &[1, 2], &[0], "add x0, x1, x2"),
            (0xd280_0020, &[], &[0], "mov x0, #1"),
            (0xf2a0_0020, &[0], &[], "movk x0, #1, lsl #16"),
            (0xaa01_03e0, &[1], &[0], "mov x0, x1"),
            (0xf940_0420, &[1], &[0], "ldr x0, [x1, #8]"),
            (0xf900_0420, &[0, 1], &[], "str x0, [x1, #8]"),
            (0xf840_8420, &[1], &[0], "ldr x0, [x1], #8"),
            (0xa940_0440, &[2], &[0, 1], "ldp x0, x1, [x2]"),
            (0xa900_0440, &[0, 1, 2], &[], "stp x0, x1, [x2]"),
            (0x3862_6820, &[1, 2], &[0], "ldrb w0, [x1, x2]"),
            (0x9b02_0c20, &[1, 2, 3], &[0], "madd x0, x1, x2, x3"),
            (0xfa42_0020, &[1, 2], &[], "ccmp x1, x2, #0, eq"),
            (0xfd40_0420, &[1], &[], "ldr d0, [x1, #8]"),
            (0x1e62_2820, &[], &[], "fadd d0, d1, d2"),
            (0x9e66_0020, &[0, 1], &[], "fmov x0, d1"),
            (0x9e67_0020, &[1], &[], "fmov d0, x1"),
            (0x9eaf_0020, &[1], &[], "fmov v0.d[1], x1"),
            (0x9eae_0020, &[0, 1], &[], "fmov x0, v1.d[1]"),
            (0x1e62_0020, &[1], &[], "scvtf d0, w1"),
            (0x9e23_0020, &[1], &[], "ucvtf s0, x1"),
            (0x9e42_fc20, &[1], &[], "scvtf d0, x1, #1"),
            (0x9e78_0020, &[0, 1], &[], "fcvtzs x0, d1"),
            (0x9e58_fc20, &[0, 1], &[], "fcvtzs x0, d1, #1"),
            (0x1e7e_0020, &[0, 1], &[], "fjcvtzs w0, d1"),
            (0x4e08_0c20, &[1], &[], "dup v0.2d, x1"),
            (0x4e18_1c20, &[1], &[], "mov v0.d[1], x1"),
            (0x4e18_3c20, &[0, 1], &[], "mov x0, v1.d[1]"),
            (0x5800_0040, &[], &[0], "ldr x0, literal"),
            (0x08df_fc20, &[1], &[0], "ldarb w0, [x1]"),
            (0xc8df_fc15, &[0], &[21], "ldar x21, [x0]"),
            (0xc89f_fc15, &[0, 21], &[], "stlr x21, [x0]"),
            (0xd53b_d040, &[0], &[], "mrs x0, tpidr_el0"),
        ];
        for (w, reads, kills, text) in cases {
            let known = touched(w).map(|t| (t.reads, t.kills, t.kills & !t.writes));
            assert_eq!(known, Some((x(reads), x(kills), 0)), "{text}");
        }
    }

    /// A load with acquire semantics of 64 bits was taken for one that loads eight registers, so the base of a jump
    /// table in one of those was not known behind it.
    #[test]
    fn only_loads_of_64_bytes_have_eight_registers() {
        let eight = 0xff << 8;
        let writes = |w: u32| touched(w).map(|t| t.writes);
        // ld64b x8, [x1]; ldaxr x8, [x1].
        assert_eq!(writes(0xf83f_d028).map(|w| w & eight), Some(eight));
        assert_eq!(writes(0xc85f_fc28).map(|w| w & eight), Some(3 << 8));
    }

    #[test]
    fn nothing_is_both_killed_and_a_base_that_is_written_back() {
        // ldr x1, [x1], #8 is unpredictable; it must not count as a clean overwrite.
        assert_eq!(
            touched(0xf840_8421),
            Some(Touched {
                reads: 2,
                kills: 0,
                writes: 2
            })
        );
    }
}
