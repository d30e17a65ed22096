//! Instructions of inserted code, taken apart for the symbolic machine ([`crate::machine`]).
//!
//! | instruction | what |
//! |---|---|
//! | `adrp`, `add`/`sub` with a constant, `mov` | addresses and copies |
//! | `add` of a constant to a half | counts of calls |
//! | `and` of a constant to a half | what calls are sampled by |
//! | `movz`, `movk` | numbers |
//! | `ldr`, `str` of words and halves, `ldp`, `stp`, with and without write-back | memory |
//! | `sturb` | flags of what ran |
//! | `ldxr`, `ldaxr`, `stxr`, `stlxr`, `stadd` | counting |
//! | `add`, `sub`, `cmp` of registers | targets less the load bias |
//! | `bti c` | nothing |
//! | `b.cond`, `cbz`, `cbnz`, `bl`, `br`, `ret` | ways on |
//!
//! What stores or loads for itself clears the processor's mark for an exclusive pair around it; that is one
//! more flag ([`MONITOR`]).

use super::super::{Effects, Plain};
use super::{registers, target, word};
use crate::arch::step::{Mem, Next, Op, Segment, Step, flag};
use smallvec::{SmallVec, smallvec};

const STACK: u8 = 31;

/// The mark that an exclusive load leaves for its store.
pub(super) const MONITOR: u8 = 64;

fn signed(w: u32, low: u32, width: u32) -> i64 {
    i64::from((w << (32 - low - width)) as i32 >> (32 - width))
}

/// See [`super::super::Arch::effects`]. Flags are never asked about: no inserted code but recorders touches them.
pub(super) fn effects(bytes: &[u8]) -> Effects {
    let everything = Effects {
        reads: u32::MAX,
        kills: 0,
        flag_reads: flag::ALL | MONITOR,
        flag_kills: 0,
    };
    let Some(w) = word(bytes) else {
        return everything;
    };
    let Some(touched) = registers::touched(w) else {
        return everything;
    };
    let (reads, kills) = precise(w).unwrap_or((touched.reads, touched.kills));
    let clear = w & 0xffff_f0ff == 0xd503_305f;
    let exclusive = w & 0x3f00_0000 == 0x0800_0000 && w >> 23 & 1 == 0;
    let load = w >> 22 & 1 == 1;
    Effects {
        reads,
        kills,
        flag_reads: flag::ALL | if exclusive && !load { MONITOR } else { 0 },
        flag_kills: if clear || exclusive { MONITOR } else { 0 },
    }
}

/// What some instructions read and overwrite for which [`registers::touched`] is coarse.
fn precise(w: u32) -> Option<(u32, u32)> {
    let general = |low: u32| 1u32 << (w >> low & 31) & 0x7fff_ffff;
    let (d, n, m, a) = (general(0), general(5), general(16), general(10));
    // Between floating-point and general registers: conversions and moves go one way.
    if w & 0x5f00_0000 == 0x1e00_0000 && (w >> 21 & 1 == 0 || w >> 10 & 63 == 0) {
        let fixed = w >> 21 & 1 == 0;
        return match (w >> 19 & 3, w >> 16 & 7) {
            (0, 2 | 3) => Some((n, 0)),
            (3, 0 | 1) => Some((0, d)),
            _ if fixed => None,
            (_, 0 | 1) | (0, 4 | 5) | (0 | 1 | 3, 6) => Some((0, d)),
            (0 | 1, 7) => Some((n, 0)),
            // With the other roundings both registers are of floating point.
            _ => None,
        };
    }
    // Between elements of vectors and general registers: dup and ins read, umov and smov overwrite one.
    if w & 0x9fe0_8400 == 0x0e00_0400 {
        return Some(match (w >> 29 & 1, w >> 11 & 15) {
            (0, 1 | 3) => (n, 0),
            (0, 5 | 7) => (0, d),
            (0, 0) | (1, _) => (0, 0),
            _ => (n, 0),
        });
    }
    // Hints: bti and what only waits or orders; signing x30 or x17.
    if w & 0xffff_f01f == 0xd503_201f {
        return match (w >> 8 & 15, w >> 5 & 7) {
            (0, 0..=6) | (2, _) | (4, 0 | 2 | 4 | 6) => Some((0, 0)),
            (0, _) | (3, _) => Some((1 << 30, 0)),
            (1, _) => Some((1 << 16 | 1 << 17, 0)),
            _ => None,
        };
    }
    // mrs
    if w & 0xfff0_0000 == 0xd530_0000 {
        return Some((0, d));
    }
    // sysl
    if w & 0xfff8_0000 == 0xd528_0000 {
        return Some((0, d));
    }
    // rbit, rev, clz, cls, ctz, cnt; abs
    if w & 0x7fff_e000 == 0x5ac0_0000 || w & 0x7fff_fc00 == 0x5ac0_2000 {
        return Some((n, d));
    }
    // Structures of vectors whose base stays.
    if w & 0xbe80_0000 == 0x0c00_0000 {
        return Some((n, 0));
    }
    // Ordered loads and stores with an offset.
    if w & 0x3f20_0c00 == 0x1900_0000 {
        return match (w >> 30, w >> 22 & 3) {
            (_, 0) => Some((n | d, 0)),
            (2 | 3, 3) | (3, 2) => None,
            _ => Some((n, d & !n)),
        };
    }
    // Loads with authentication.
    if w & 0xff20_0400 == 0xf820_0400 {
        return Some((n, d & !n));
    }
    // Exclusives and those that only order memory; compare and swap, but for pairs.
    if w & 0x3f00_0000 == 0x0800_0000 {
        let (alone, load, swap) = (w >> 23 & 1 == 1, w >> 22 & 1 == 1, w >> 21 & 1 == 1);
        return match (alone, load, swap) {
            (_, true, false) => Some((n, d & !n)),
            (false, false, false) => Some((n | d, m & !n & !d)),
            (true, false, false) => Some((n | d, 0)),
            (true, _, true) => Some((n | d | m, 0)),
            // Pairs of exclusives.
            (false, true, true) if w >> 31 == 1 => Some((n, (d | a) & !n)),
            (false, false, true) if w >> 31 == 1 => Some((n | d | a, m & !n & !d & !a)),
            _ => None,
        };
    }
    // Atomics, but for those of eight registers.
    let of_eight = w >> 30 == 3 && w >> 15 & 1 == 1 && w >> 12 & 3 != 0;
    if w & 0x3f20_0c00 == 0x3820_0000 && !of_eight {
        return Some((n | m, d & !n & !m));
    }
    None
}

/// Whether a word is an exclusive store.
pub(super) fn is_exclusive_store(w: u32) -> bool {
    w & 0x3fc0_0000 == 0x0800_0000
}

/// See [`super::super::Arch::plain`].
pub(super) fn plain(w: u32) -> Option<Plain> {
    // svc: the system gives its result in x0 and keeps the others, flags too.
    if w & 0xffe0_001f == 0xd400_0001 {
        return Some(Plain {
            writes: 1,
            ..Plain::default()
        });
    }
    // Stores of scalable vectors; memory copies, memory tags and ordered accesses with offsets; `stgp`.
    let group = w >> 25 & 15;
    if matches!(group, 0b0000 | 0b0010)
        || w & 0x3b00_0000 == 0x1900_0000
        || w & 0xfe40_0000 == 0x6800_0000
    {
        return None;
    }
    let touched = registers::touched(w)?;
    let is_memory = w >> 27 & 1 == 1 && w >> 25 & 1 == 0;
    let n = (w >> 5 & 31) as u8;
    // A base that is the stack pointer is not among the registers that are said to be written.
    let back = match w >> 28 & 3 {
        0 => w >> 26 & 1 == 1 && w >> 23 & 1 == 1,
        2 => w >> 23 & 1 == 1,
        3 if w >> 24 & 1 == 0 && w >> 21 & 1 == 0 => w >> 10 & 1 == 1,
        // Loads with authentication.
        3 if w >> 24 & 1 == 0 => w >> 10 & 3 == 3,
        _ => false,
    };
    if is_memory && back && n == STACK {
        return None;
    }
    // add and sub of a number, of the extended form and of pointers, and, orr and eor of a number, and irg may have it
    // as their result.
    let sums = w & 0x1f00_0000 == 0x1100_0000
        || w & 0x1fe0_0000 == 0x0b20_0000
        || w & 0x1fe0_e000 == 0x1a00_2000
        || w & 0x1fe0_fc00 == 0x1ac0_1000;
    let logical = w & 0x1f80_0000 == 0x1200_0000;
    // Those that set the flags have zero there.
    let takes_stack = sums && w >> 29 & 1 == 0 || logical && w >> 29 & 3 != 3;
    if takes_stack && w & 31 == u32::from(STACK) {
        return None;
    }
    let memory = if is_memory { written(w) } else { None };
    let is_branch = w >> 26 & 31 == 5 || w >> 24 == 0x54 || w & 0x7c00_0000 == 0x3400_0000;
    Some(Plain {
        writes: touched.writes & 0x7fff_ffff,
        keeps_flags: is_branch,
        memory,
        stack: None,
    })
}

/// The memory that a load or store may write to; `None` if it only loads.
fn written(w: u32) -> Option<Mem> {
    let mem = |disp: i64, size: u8, index: bool| {
        Some(Mem {
            segment: Segment::Common,
            base: Some((w >> 5 & 31) as u8),
            index: index.then_some(((w >> 16 & 31) as u8, 1)),
            disp,
            address: None,
            size,
        })
    };
    let vector = w >> 26 & 1 == 1;
    let scale = match (vector, w >> 23 & 1) {
        (true, 1) => 4,
        _ => w >> 30,
    };
    let size = 1u8 << scale;
    // Stores of 128 bits have another number than those of less.
    let loads = w >> 22 & 3 != 0 && !(vector && w >> 22 & 3 == 2);
    match w >> 28 & 3 {
        1 if w >> 24 & 1 == 0 => None,
        2 if w >> 22 & 1 == 1 => None,
        2 => {
            let scale = if vector { 2 + (w >> 30) } else { 2 + (w >> 31) };
            // After the access, the base changes.
            let disp = match w >> 23 & 3 {
                1 => 0,
                _ => signed(w, 15, 7) << scale,
            };
            mem(disp, 2 << scale, false)
        }
        3 if w >> 24 & 1 == 1 => {
            if loads {
                None
            } else {
                mem(i64::from(w >> 10 & 0xfff) << scale, size, false)
            }
        }
        3 if w >> 21 & 1 == 1 => match w >> 10 & 3 {
            2 if loads => None,
            2 => mem(0, size, true),
            // Atomics
            _ => mem(0, size, false),
        },
        3 if loads => None,
        3 => {
            let disp = match w >> 10 & 3 {
                1 => 0,
                _ => signed(w, 12, 9),
            };
            mem(disp, size, false)
        }
        // Exclusives, and several vectors.
        _ => mem(0, 64, false),
    }
}

/// See [`super::super::Arch::step`].
pub(super) fn step(bytes: &[u8], addr: u64) -> Option<Step> {
    let w = word(bytes)?;
    let (d, n, m) = ((w & 31) as u8, (w >> 5 & 31) as u8, (w >> 16 & 31) as u8);
    let t2 = (w >> 10 & 31) as u8;
    let mem = |base: u8, disp: i64, size: u8| Mem {
        segment: Segment::Common,
        base: Some(base),
        index: None,
        disp,
        address: None,
        size,
    };
    let of = |ops: SmallVec<[Op; 3]>, lost: u8| {
        Some(Step {
            len: 4,
            ops,
            lost,
            next: Next::On,
        })
    };
    let goes = |next: Next| {
        Some(Step {
            len: 4,
            ops: SmallVec::new(),
            lost: 0,
            next,
        })
    };
    // Where 31 is zero, not the stack pointer.
    let real = |regs: &[u8]| regs.iter().all(|r| *r != STACK).then_some(());
    let shift_stack = |by: i64| Op::Move {
        to: n,
        from: n,
        add: by,
    };
    // adrp, adr
    if w & 0x1f00_0000 == 0x1000_0000 {
        real(&[d])?;
        return of(
            smallvec![Op::Address {
                to: d,
                value: target(w, addr),
            }],
            0,
        );
    }
    // add, sub with a constant
    if w & 0xbf80_0000 == 0x9100_0000 {
        let value = i64::from(w >> 10 & 0xfff) << if w >> 22 & 1 == 1 { 12 } else { 0 };
        let add = if w >> 30 & 1 == 1 { -value } else { value };
        return of(
            smallvec![Op::Move {
                to: d,
                from: n,
                add,
            }],
            0,
        );
    }
    // add of a constant to a half
    if w & 0xffc0_0000 == 0x1100_0000 {
        real(&[d, n])?;
        let add = i64::from(w >> 10 & 0xfff);
        return of(
            smallvec![Op::AddHalf {
                to: d,
                from: n,
                add,
            }],
            0,
        );
    }
    // and of the lowest bits of a half; those of other bits are in no counter
    if w & 0xffff_8000 == 0x1200_0000 && w >> 10 & 31 != 31 {
        real(&[d, n])?;
        let mask = (2 << (w >> 10 & 31)) - 1;
        return of(
            smallvec![Op::Bits {
                to: d,
                from: n,
                mask,
            }],
            0,
        );
    }
    // movz, movk
    if w & 0x5f80_0000 == 0x5280_0000 && matches!(w >> 29 & 3, 2 | 3) && w >> 31 == 1 {
        real(&[d])?;
        let value = u64::from(w >> 5 & 0xffff) << (16 * (w >> 21 & 3));
        let op = match w >> 29 & 3 {
            2 => Op::Number { to: d, value },
            _ => Op::Spoil { to: d },
        };
        return of(smallvec![op], 0);
    }
    // mov
    if w & 0xffe0_ffe0 == 0xaa00_03e0 {
        real(&[d, m])?;
        return of(
            smallvec![Op::Move {
                to: d,
                from: m,
                add: 0,
            }],
            0,
        );
    }
    // cmp, add, sub of registers
    if w & 0xffe0_fc1f == 0xeb00_001f {
        real(&[n, m])?;
        return of(smallvec![Op::Compare { a: n, b: m }], flag::ALL);
    }
    if w & 0xbfe0_fc00 == 0x8b00_0000 {
        real(&[d, n, m])?;
        let op = match w >> 30 & 1 {
            1 => Op::Difference { to: d, a: n, b: m },
            _ => Op::Sum { to: d, a: n, b: m },
        };
        return of(smallvec![op], 0);
    }
    // ldr, str with an offset
    if w & 0xff80_0000 == 0xf900_0000 {
        real(&[d])?;
        let mem = mem(n, i64::from(w >> 10 & 0xfff) * 8, 8);
        return match w >> 22 & 1 {
            1 => of(smallvec![Op::Load { to: d, mem }], 0),
            _ => of(smallvec![Op::Store { from: d, mem }], MONITOR),
        };
    }
    // The same of a half.
    if w & 0xff80_0000 == 0xb900_0000 {
        real(&[d])?;
        let mem = mem(n, i64::from(w >> 10 & 0xfff) * 4, 4);
        return match w >> 22 & 1 {
            1 => of(smallvec![Op::Load { to: d, mem }], 0),
            _ => of(smallvec![Op::Store { from: d, mem }], MONITOR),
        };
    }
    // sturb
    if w & 0xffe0_0c00 == 0x3800_0000 {
        real(&[d])?;
        let mem = mem(n, signed(w, 12, 9), 1);
        return of(smallvec![Op::Store { from: d, mem }], MONITOR);
    }
    // str before, ldr after a change of the stack pointer
    if w & 0xffa0_0000 == 0xf800_0000 && w >> 22 & 3 <= 1 {
        real(&[d])?;
        let by = signed(w, 12, 9);
        return match (w >> 10 & 3, w >> 22 & 1) {
            (3, 0) if n == STACK => of(
                smallvec![
                    shift_stack(by),
                    Op::Store {
                        from: d,
                        mem: mem(n, 0, 8),
                    },
                ],
                MONITOR,
            ),
            (1, 1) if n == STACK => of(
                smallvec![
                    Op::Load {
                        to: d,
                        mem: mem(n, 0, 8),
                    },
                    shift_stack(by),
                ],
                0,
            ),
            _ => None,
        };
    }
    // stp before, ldp after
    if w & 0xfe00_0000 == 0xa800_0000 && n == STACK {
        real(&[d, t2])?;
        let by = signed(w, 15, 7) * 8;
        return match (w >> 23 & 3, w >> 22 & 1) {
            (3, 0) => of(
                smallvec![
                    shift_stack(by),
                    Op::Store {
                        from: d,
                        mem: mem(n, 0, 8),
                    },
                    Op::Store {
                        from: t2,
                        mem: mem(n, 8, 8),
                    },
                ],
                MONITOR,
            ),
            (1, 1) => of(
                smallvec![
                    Op::Load {
                        to: d,
                        mem: mem(n, 0, 8),
                    },
                    Op::Load {
                        to: t2,
                        mem: mem(n, 8, 8),
                    },
                    shift_stack(by),
                ],
                0,
            ),
            // With an offset.
            (2, 0) => of(
                smallvec![
                    Op::Store {
                        from: d,
                        mem: mem(n, by, 8),
                    },
                    Op::Store {
                        from: t2,
                        mem: mem(n, by + 8, 8),
                    },
                ],
                MONITOR,
            ),
            (2, 1) => of(
                smallvec![
                    Op::Load {
                        to: d,
                        mem: mem(n, by, 8),
                    },
                    Op::Load {
                        to: t2,
                        mem: mem(n, by + 8, 8),
                    },
                ],
                0,
            ),
            _ => None,
        };
    }
    // ldxr, ldaxr, stxr, stlxr
    if w & 0xffe0_7c00 == 0xc840_7c00 {
        real(&[d, n])?;
        return of(
            smallvec![Op::Load {
                to: d,
                mem: mem(n, 0, 8),
            }],
            MONITOR,
        );
    }
    if w & 0xffe0_7c00 == 0xc800_7c00 {
        real(&[d, n, m])?;
        return of(
            smallvec![
                Op::Store {
                    from: d,
                    mem: mem(n, 0, 8),
                },
                Op::Spoil { to: m },
            ],
            MONITOR,
        );
    }
    // stadd
    if w & 0xffe0_fc1f == 0xf820_001f {
        real(&[n, m])?;
        return of(smallvec![Op::Change { mem: mem(n, 0, 8) }], MONITOR);
    }
    // bti c: what is inserted may let calls in
    if w == 0xd503_245f {
        return of(SmallVec::new(), 0);
    }
    // clrex, nop
    if w == 0xd503_3f5f {
        return of(SmallVec::new(), MONITOR);
    }
    // b.cond, cbz, cbnz
    if w & 0xff00_0010 == 0x5400_0000 {
        let equal = match w & 15 {
            0 => Some(true),
            1 => Some(false),
            _ => None,
        };
        return goes(Next::Branch {
            target: target(w, addr),
            equal,
        });
    }
    if w & 0x7e00_0000 == 0x3400_0000 {
        return goes(Next::Branch {
            target: target(w, addr),
            equal: None,
        });
    }
    if w & 0xfc00_0000 == 0x9400_0000 {
        return goes(Next::Call(target(w, addr)));
    }
    match w & 0xffff_fc1f {
        0xd61f_0000 => goes(Next::Leave(n)),
        0xd65f_0000 if n == 30 => goes(Next::Return),
        _ => None,
    }
}
