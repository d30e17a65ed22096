//! Floating point on scalars, in single and double precision, and conversions from and to integers.

use super::Line;

/// Letter of a type; half precision only where it is converted.
fn letter(kind: u32, half: bool) -> Option<char> {
    match kind {
        0 => Some('s'),
        1 => Some('d'),
        3 if half => Some('h'),
        _ => None,
    }
}

pub(super) fn print(line: &mut Line<'_>) -> Option<()> {
    if line.bit(24) {
        return three_sources(line);
    }
    if !line.bit(21) {
        return fixed(line);
    }
    if line.bits(10, 6) == 0 {
        return integer(line);
    }
    if line.bit(31) {
        return None;
    }
    if line.bits(10, 5) == 0b10000 {
        return one_source(line);
    }
    let kind = letter(line.bits(22, 2), false)?;
    let (rd, rn, rm) = (line.rd(), line.rn(), line.rm());
    match line.bits(10, 2) {
        0 if line.bits(10, 4) == 0b1000 => {
            let name = match line.bits(0, 5) {
                0 | 8 => "fcmp",
                16 | 24 => "fcmpe",
                _ => return None,
            };
            if line.bits(14, 2) != 0 {
                return None;
            }
            let zero = line.bit(3);
            if zero && rm != 0 {
                return None;
            }
            line.name(&[name]).f(kind, rn);
            if zero {
                line.word("#0.0")
            } else {
                line.f(kind, rm)
            }
            .done()
        }
        0 if line.bits(10, 3) == 0b100 && rn == 0 => {
            let bits = line.bits(13, 8);
            line.name(&["fmov"]).f(kind, rd);
            constant(line, bits)
        }
        1 => {
            let (flags, condition) = (line.bits(0, 4), line.bits(12, 4));
            line.name(&["fccmp", if line.bit(4) { "e" } else { "" }])
                .f(kind, rn)
                .f(kind, rm);
            line.imm(i64::from(flags)).cond(condition).done()
        }
        2 => {
            let names = [
                "fmul", "fdiv", "fadd", "fsub", "fmax", "fmin", "fmaxnm", "fminnm", "fnmul",
            ];
            let name = names.get(line.bits(12, 4) as usize)?;
            line.name(&[name])
                .f(kind, rd)
                .f(kind, rn)
                .f(kind, rm)
                .done()
        }
        3 => {
            let condition = line.bits(12, 4);
            line.name(&["fcsel"])
                .f(kind, rd)
                .f(kind, rn)
                .f(kind, rm)
                .cond(condition)
                .done()
        }
        _ => None,
    }
}

/// A constant of 8 bits: sign, 3 bits of exponent, 4 of fraction. All have at most 8 decimal places.
pub(super) fn constant(line: &mut Line<'_>, bits: u32) -> Option<()> {
    let exponent = (bits >> 4 & 7) as i32;
    // 0 to 3 represent 1 to 4, and 4 to 7 for −3 to 0.
    let exponent = if exponent < 4 {
        exponent + 1
    } else {
        exponent - 7
    };
    // In units of 10⁻⁸: the fraction is in sixteenths, and the least exponent is −3.
    let value = (u64::from(16 + (bits & 15)) * 100_000_000 / 128) << (exponent + 3);
    line.word(if bits & 0x80 != 0 { "#-" } else { "#" })
        .put(value / 100_000_000)
        .raw(".");
    let mut unit = 10_000_000;
    while unit > 0 {
        line.put(value / unit % 10);
        unit /= 10;
    }
    line.done()
}

fn three_sources(line: &mut Line<'_>) -> Option<()> {
    let kind = letter(line.bits(22, 2), false)?;
    if line.bit(31) {
        return None;
    }
    let name = match (line.bit(21), line.bit(15)) {
        (false, false) => "fmadd",
        (false, true) => "fmsub",
        (true, false) => "fnmadd",
        (true, true) => "fnmsub",
    };
    let (rd, rn, rm, ra) = (line.rd(), line.rn(), line.rm(), line.ra());
    line.name(&[name])
        .f(kind, rd)
        .f(kind, rn)
        .f(kind, rm)
        .f(kind, ra)
        .done()
}

fn one_source(line: &mut Line<'_>) -> Option<()> {
    let (rd, rn, opcode) = (line.rd(), line.rn(), line.bits(15, 6));
    let from = letter(line.bits(22, 2), matches!(opcode, 4 | 5))?;
    let name = match opcode {
        0 => "fmov",
        1 => "fabs",
        2 => "fneg",
        3 => "fsqrt",
        4 | 5 | 7 => {
            let to = letter(opcode & 3, true)?;
            if to == from {
                return None;
            }
            return line.name(&["fcvt"]).f(to, rd).f(from, rn).done();
        }
        8 => "frintn",
        9 => "frintp",
        10 => "frintm",
        11 => "frintz",
        12 => "frinta",
        14 => "frintx",
        15 => "frinti",
        _ => return None,
    };
    line.name(&[name]).f(from, rd).f(from, rn).done()
}

/// Conversions with a number of fraction bits.
fn fixed(line: &mut Line<'_>) -> Option<()> {
    let kind = letter(line.bits(22, 2), false)?;
    let (wide, rd, rn, scale) = (line.bit(31), line.rd(), line.rn(), line.bits(10, 6));
    if !wide && scale < 32 {
        return None;
    }
    match line.bits(16, 5) {
        0b00010 => line.name(&["scvtf"]).f(kind, rd).r(wide, rn),
        0b00011 => line.name(&["ucvtf"]).f(kind, rd).r(wide, rn),
        0b11000 => line.name(&["fcvtzs"]).r(wide, rd).f(kind, rn),
        0b11001 => line.name(&["fcvtzu"]).r(wide, rd).f(kind, rn),
        _ => return None,
    };
    line.imm(64 - i64::from(scale)).done()
}

/// Conversions between a general and a floating-point register, and moves of bits.
fn integer(line: &mut Line<'_>) -> Option<()> {
    let (wide, rd, rn, kind) = (line.bit(31), line.rd(), line.rn(), line.bits(22, 2));
    let (rounding, opcode) = (line.bits(19, 2), line.bits(16, 3));
    match (rounding, opcode, kind, wide) {
        (1, 6, 2, true) => return line.name(&["fmov"]).r(true, rd).lane(rn, "d", 1).done(),
        (1, 7, 2, true) => return line.name(&["fmov"]).lane(rd, "d", 1).r(true, rn).done(),
        (0, 6, 0, false) | (0, 6, 1, true) => {
            let letter = letter(kind, false)?;
            return line.name(&["fmov"]).r(wide, rd).f(letter, rn).done();
        }
        (0, 7, 0, false) | (0, 7, 1, true) => {
            let letter = letter(kind, false)?;
            return line.name(&["fmov"]).f(letter, rd).r(wide, rn).done();
        }
        _ => {}
    }
    let kind = letter(kind, false)?;
    match (rounding, opcode) {
        (0, 2) => return line.name(&["scvtf"]).f(kind, rd).r(wide, rn).done(),
        (0, 3) => return line.name(&["ucvtf"]).f(kind, rd).r(wide, rn).done(),
        (0, 4) => line.name(&["fcvtas"]),
        (0, 5) => line.name(&["fcvtau"]),
        (_, 0 | 1) => {
            let rounding = ["n", "p", "m", "z"][rounding as usize];
            line.name(&["fcvt", rounding, if opcode == 0 { "s" } else { "u" }])
        }
        _ => return None,
    };
    line.r(wide, rd).f(kind, rn).done()
}
