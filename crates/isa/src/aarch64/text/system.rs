//! Branches, exceptions, hints, barriers and system registers.

use super::{CONDITIONS, Line};

pub(super) fn print(line: &mut Line<'_>) -> Option<()> {
    match line.word >> 24 {
        0x14..=0x17 | 0x94..=0x97 => {
            let distance = line.signed(0, 26) * 4;
            line.name(&[if line.bit(31) { "bl" } else { "b" }])
                .label(distance)
                .done()
        }
        0x54 => {
            let (name, condition) = (if line.bit(4) { "bc." } else { "b." }, line.bits(0, 4));
            let distance = line.signed(5, 19) * 4;
            line.name(&[name, CONDITIONS[condition as usize]])
                .label(distance)
                .done()
        }
        0x34 | 0x35 | 0xb4 | 0xb5 => {
            let (wide, rt, distance) = (line.bit(31), line.rd(), line.signed(5, 19) * 4);
            line.name(&[if line.bit(24) { "cbnz" } else { "cbz" }])
                .r(wide, rt)
                .label(distance)
                .done()
        }
        0x36 | 0x37 | 0xb6 | 0xb7 => {
            let (wide, rt, distance) = (line.bit(31), line.rd(), line.signed(5, 14) * 4);
            let number = line.bits(31, 1) << 5 | line.bits(19, 5);
            line.name(&[if line.bit(24) { "tbnz" } else { "tbz" }]);
            line.r(wide, rt)
                .imm(i64::from(number))
                .label(distance)
                .done()
        }
        0xd4 => exception(line),
        0xd5 => system(line),
        0xd6 | 0xd7 => register(line),
        _ => None,
    }
}

fn exception(line: &mut Line<'_>) -> Option<()> {
    let name = match (line.bits(21, 3), line.bits(0, 5)) {
        (0, 1) => "svc",
        (0, 2) => "hvc",
        (0, 3) => "smc",
        (1, 0) => "brk",
        (2, 0) => "hlt",
        (5, 1) => "dcps1",
        (5, 2) => "dcps2",
        (5, 3) => "dcps3",
        _ => return None,
    };
    let number = u64::from(line.bits(5, 16));
    line.name(&[name]);
    if name.starts_with("dcps") && number == 0 {
        return line.done();
    }
    line.mask(number).done()
}

/// Domains and accesses of a barrier, by number.
const BARRIERS: [&str; 16] = [
    "", "oshld", "oshst", "osh", "", "nshld", "nshst", "nsh", "", "ishld", "ishst", "ish", "",
    "ld", "st", "sy",
];

/// (number: op0, op1, CRn, CRm, op2 as in the instruction, name) of the system registers that user code reads
/// and writes.
const REGISTERS: [(u32, &str); 24] = [
    (register_number(3, 3, 4, 2, 0), "NZCV"),
    (register_number(3, 3, 4, 2, 1), "DAIF"),
    (register_number(3, 3, 4, 4, 0), "FPCR"),
    (register_number(3, 3, 4, 4, 1), "FPSR"),
    (register_number(3, 3, 13, 0, 2), "TPIDR_EL0"),
    (register_number(3, 3, 13, 0, 3), "TPIDRRO_EL0"),
    (register_number(3, 0, 13, 0, 4), "TPIDR_EL1"),
    (register_number(3, 3, 0, 0, 1), "CTR_EL0"),
    (register_number(3, 3, 0, 0, 7), "DCZID_EL0"),
    (register_number(3, 3, 14, 0, 0), "CNTFRQ_EL0"),
    (register_number(3, 3, 14, 0, 1), "CNTPCT_EL0"),
    (register_number(3, 3, 14, 0, 2), "CNTVCT_EL0"),
    (register_number(3, 3, 9, 13, 0), "PMCCNTR_EL0"),
    (register_number(3, 0, 0, 0, 0), "MIDR_EL1"),
    (register_number(3, 0, 0, 0, 5), "MPIDR_EL1"),
    (register_number(3, 0, 0, 0, 6), "REVIDR_EL1"),
    (register_number(3, 0, 4, 2, 2), "CurrentEL"),
    (register_number(3, 0, 0, 4, 0), "ID_AA64PFR0_EL1"),
    (register_number(3, 0, 0, 4, 1), "ID_AA64PFR1_EL1"),
    (register_number(3, 0, 0, 6, 0), "ID_AA64ISAR0_EL1"),
    (register_number(3, 0, 0, 6, 1), "ID_AA64ISAR1_EL1"),
    (register_number(3, 0, 0, 7, 0), "ID_AA64MMFR0_EL1"),
    (register_number(3, 0, 0, 7, 1), "ID_AA64MMFR1_EL1"),
    (register_number(3, 0, 0, 5, 0), "ID_AA64DFR0_EL1"),
];

const fn register_number(op0: u32, op1: u32, n: u32, m: u32, op2: u32) -> u32 {
    op0 << 14 | op1 << 11 | n << 7 | m << 3 | op2
}

fn system(line: &mut Line<'_>) -> Option<()> {
    let (rt, op2, m, n, op1) = (
        line.rd(),
        line.bits(5, 3),
        line.bits(8, 4),
        line.bits(12, 4),
        line.bits(16, 3),
    );
    match (line.bits(22, 2), line.bit(21), line.bits(19, 2)) {
        (0, false, 0) if rt == 31 => match (op1, n) {
            (3, 2) => hint(line, m << 3 | op2),
            (3, 3) => barrier(line, m, op2),
            (_, 4) => {
                let field = match (op1, op2) {
                    (0, 5) => "SPSel",
                    (3, 6) => "DAIFSet",
                    (3, 7) => "DAIFClr",
                    _ => return None,
                };
                line.name(&["msr"]).word(field).imm(i64::from(m)).done()
            }
            _ => None,
        },
        (0, false, 1) => {
            let (name, operation) = match (op1, n, m, op2) {
                (3, 7, 4, 1) => ("dc", "zva"),
                (3, 7, 10, 1) => ("dc", "cvac"),
                (3, 7, 11, 1) => ("dc", "cvau"),
                (3, 7, 14, 1) => ("dc", "civac"),
                (0, 7, 6, 1) => ("dc", "ivac"),
                (3, 7, 5, 1) => ("ic", "ivau"),
                (0, 7, 5, 0) if rt == 31 => return line.name(&["ic"]).word("iallu").done(),
                (0, 7, 1, 0) if rt == 31 => return line.name(&["ic"]).word("ialluis").done(),
                _ => {
                    line.name(&["sys"])
                        .imm(i64::from(op1))
                        .lettered('c', n)
                        .lettered('c', m)
                        .imm(i64::from(op2));
                    if rt != 31 {
                        line.r(true, rt);
                    }
                    return line.done();
                }
            };
            line.name(&[name]).word(operation).r(true, rt).done()
        }
        (0, true, 1) => {
            line.name(&["sysl"]).r(true, rt).imm(i64::from(op1));
            line.lettered('c', n)
                .lettered('c', m)
                .imm(i64::from(op2))
                .done()
        }
        (0, read, 2 | 3) => {
            let number = line.bits(5, 16);
            let known = REGISTERS
                .iter()
                .find(|(known, _)| *known == number)
                .map(|&(_, name)| name);
            line.name(&[if read { "mrs" } else { "msr" }]);
            if read {
                line.r(true, rt);
            }
            match known {
                Some(name) => line.word(name),
                None => {
                    line.word("S")
                        .put(number >> 14)
                        .raw("_")
                        .put(op1)
                        .raw("_C")
                        .put(n);
                    line.raw("_C").put(m).raw("_").put(op2)
                }
            };
            if !read {
                line.r(true, rt);
            }
            line.done()
        }
        _ => None,
    }
}

fn hint(line: &mut Line<'_>, number: u32) -> Option<()> {
    let name = match number {
        0 => "nop",
        1 => "yield",
        2 => "wfe",
        3 => "wfi",
        4 => "sev",
        5 => "sevl",
        20 => "csdb",
        _ => return line.name(&["hint"]).imm(i64::from(number)).done(),
    };
    line.name(&[name]).done()
}

fn barrier(line: &mut Line<'_>, kind: u32, op2: u32) -> Option<()> {
    let name = match op2 {
        2 => "clrex",
        4 => "dsb",
        5 => "dmb",
        6 => "isb",
        _ => return None,
    };
    line.name(&[name]);
    match BARRIERS[kind as usize] {
        _ if kind == 15 && matches!(op2, 2 | 6) => {}
        "" => {
            line.imm(i64::from(kind));
        }
        _ if matches!(op2, 2 | 6) => {
            line.imm(i64::from(kind));
        }
        name => {
            line.word(name);
        }
    }
    line.done()
}

fn register(line: &mut Line<'_>) -> Option<()> {
    let rn = line.rn();
    match line.word {
        0xd65f_03c0 => return line.name(&["ret"]).done(),
        0xd65f_0bff => return line.name(&["retaa"]).done(),
        0xd65f_0fff => return line.name(&["retab"]).done(),
        0xd69f_03e0 => return line.name(&["eret"]).done(),
        0xd6bf_03e0 => return line.name(&["drps"]).done(),
        _ => {}
    }
    let name = match line.word & 0xffff_fc1f {
        0xd61f_0000 => "br",
        0xd63f_0000 => "blr",
        0xd65f_0000 => "ret",
        _ => return None,
    };
    line.name(&[name]).r(true, rn).done()
}
