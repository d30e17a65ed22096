//! Data processing with registers.

use super::{EXTENSIONS, Line, SHIFTS};

pub(super) fn print(line: &mut Line<'_>) -> Option<()> {
    match line.bits(24, 5) {
        0b01010 => logical(line),
        0b01011 if line.bit(21) => add_extended(line),
        0b01011 => add(line),
        0b11010 => match line.bits(21, 3) {
            0 => carry(line),
            2 => compare(line),
            4 => select(line),
            6 if line.bit(30) => one_source(line),
            6 => two_sources(line),
            _ => None,
        },
        0b11011 => three_sources(line),
        _ => None,
    }
}

/// The last register of an instruction, shifted.
fn shifted(line: &mut Line<'_>, wide: bool) -> Option<()> {
    let (rm, kind, amount) = (line.rm(), line.bits(22, 2), line.bits(10, 6));
    if !wide && amount > 31 {
        return None;
    }
    line.r(wide, rm);
    if kind != 0 || amount != 0 {
        line.shift(SHIFTS[kind as usize], amount);
    }
    line.done()
}

fn logical(line: &mut Line<'_>) -> Option<()> {
    let (wide, rd, rn) = (line.bit(31), line.rd(), line.rn());
    let plain = line.bits(22, 2) == 0 && line.bits(10, 6) == 0;
    match (line.bits(29, 2), line.bit(21)) {
        (1, false) if rn == 31 && plain => line.name(&["mov"]).r(wide, rd),
        (1, true) if rn == 31 => line.name(&["mvn"]).r(wide, rd),
        (3, false) if rd == 31 => line.name(&["tst"]).r(wide, rn),
        (opcode, inverted) => {
            let names = if inverted {
                ["bic", "orn", "eon", "bics"]
            } else {
                ["and", "orr", "eor", "ands"]
            };
            line.name(&[names[opcode as usize]]).r(wide, rd).r(wide, rn)
        }
    };
    shifted(line, wide)
}

fn add(line: &mut Line<'_>) -> Option<()> {
    let (wide, subtract, flags) = (line.bit(31), line.bit(30), line.bit(29));
    let (rd, rn) = (line.rd(), line.rn());
    if line.bits(22, 2) == 3 {
        return None;
    }
    let s = if flags { "s" } else { "" };
    match (subtract, flags) {
        (true, true) if rd == 31 => line.name(&["cmp"]).r(wide, rn),
        (false, true) if rd == 31 => line.name(&["cmn"]).r(wide, rn),
        (true, _) if rn == 31 => line.name(&["neg", s]).r(wide, rd),
        (true, _) => line.name(&["sub", s]).r(wide, rd).r(wide, rn),
        (false, _) => line.name(&["add", s]).r(wide, rd).r(wide, rn),
    };
    shifted(line, wide)
}

fn add_extended(line: &mut Line<'_>) -> Option<()> {
    let (wide, subtract, flags) = (line.bit(31), line.bit(30), line.bit(29));
    let (rd, rn, rm) = (line.rd(), line.rn(), line.rm());
    let (option, amount) = (line.bits(13, 3), line.bits(10, 3));
    if line.bits(22, 2) != 0 || amount > 4 {
        return None;
    }
    match (subtract, flags) {
        (true, true) if rd == 31 => line.name(&["cmp"]),
        (false, true) if rd == 31 => line.name(&["cmn"]),
        (true, true) => line.name(&["subs"]).r(wide, rd),
        (false, true) => line.name(&["adds"]).r(wide, rd),
        (true, false) => line.name(&["sub"]).rsp(wide, rd),
        (false, false) => line.name(&["add"]).rsp(wide, rd),
    };
    line.rsp(wide, rn).r(wide && option & 3 == 3, rm);
    // With the stack pointer, the extension that changes nothing is a shift.
    let stack = rn == 31 || (rd == 31 && !flags);
    if stack && option == if wide { 3 } else { 2 } {
        if amount != 0 {
            line.shift(SHIFTS[0], amount);
        }
        return line.done();
    }
    let name = EXTENSIONS[option as usize];
    match amount {
        0 => line.word(name),
        _ => line.shift(name, amount),
    }
    .done()
}

fn carry(line: &mut Line<'_>) -> Option<()> {
    let (wide, subtract) = (line.bit(31), line.bit(30));
    let (rd, rn, rm) = (line.rd(), line.rn(), line.rm());
    if line.bits(10, 6) != 0 {
        return None;
    }
    let s = if line.bit(29) { "s" } else { "" };
    match subtract {
        true if rn == 31 => line.name(&["ngc", s]).r(wide, rd),
        true => line.name(&["sbc", s]).r(wide, rd).r(wide, rn),
        false => line.name(&["adc", s]).r(wide, rd).r(wide, rn),
    };
    line.r(wide, rm).done()
}

fn compare(line: &mut Line<'_>) -> Option<()> {
    if !line.bit(29) || line.bit(10) || line.bit(4) {
        return None;
    }
    let (wide, rn, rm) = (line.bit(31), line.rn(), line.rm());
    let (flags, condition) = (line.bits(0, 4), line.bits(12, 4));
    line.name(&[if line.bit(30) { "ccmp" } else { "ccmn" }])
        .r(wide, rn);
    if line.bit(11) {
        line.imm(i64::from(rm))
    } else {
        line.r(wide, rm)
    };
    line.imm(i64::from(flags)).cond(condition).done()
}

fn select(line: &mut Line<'_>) -> Option<()> {
    let (wide, rd, rn, rm) = (line.bit(31), line.rd(), line.rn(), line.rm());
    let condition = line.bits(12, 4);
    if line.bit(29) || line.bit(11) {
        return None;
    }
    let opposite = condition ^ 1;
    let opcode = line.bits(30, 1) << 1 | line.bits(10, 1);
    if condition < 14 && rn == rm {
        match (opcode, rn) {
            (1, 31) => return line.name(&["cset"]).r(wide, rd).cond(opposite).done(),
            (2, 31) => return line.name(&["csetm"]).r(wide, rd).cond(opposite).done(),
            (1..=3, _) => {
                let name = ["cinc", "cinv", "cneg"][opcode as usize - 1];
                return line
                    .name(&[name])
                    .r(wide, rd)
                    .r(wide, rn)
                    .cond(opposite)
                    .done();
            }
            _ => {}
        }
    }
    line.name(&[["csel", "csinc", "csinv", "csneg"][opcode as usize]]);
    line.r(wide, rd)
        .r(wide, rn)
        .r(wide, rm)
        .cond(condition)
        .done()
}

fn one_source(line: &mut Line<'_>) -> Option<()> {
    let (wide, rd, rn) = (line.bit(31), line.rd(), line.rn());
    if line.bit(29) || line.rm() != 0 {
        return None;
    }
    let name = match (line.bits(10, 6), wide) {
        (0, _) => "rbit",
        (1, _) => "rev16",
        (2, true) => "rev32",
        (2, false) | (3, true) => "rev",
        (4, _) => "clz",
        (5, _) => "cls",
        _ => return None,
    };
    line.name(&[name]).r(wide, rd).r(wide, rn).done()
}

fn two_sources(line: &mut Line<'_>) -> Option<()> {
    let (wide, rd, rn, rm) = (line.bit(31), line.rd(), line.rn(), line.rm());
    if line.bit(29) {
        return None;
    }
    let opcode = line.bits(10, 6);
    let name = match opcode {
        2 => "udiv",
        3 => "sdiv",
        8..=11 => SHIFTS[opcode as usize - 8],
        16..=23 => {
            let size = opcode & 3;
            if (size == 3) != wide {
                return None;
            }
            let c = if opcode & 4 != 0 { "c" } else { "" };
            line.name(&["crc32", c, ["b", "h", "w", "x"][size as usize]]);
            return line.r(false, rd).r(false, rn).r(wide, rm).done();
        }
        _ => return None,
    };
    line.name(&[name])
        .r(wide, rd)
        .r(wide, rn)
        .r(wide, rm)
        .done()
}

fn three_sources(line: &mut Line<'_>) -> Option<()> {
    let (wide, rd, rn, rm, ra) = (line.bit(31), line.rd(), line.rn(), line.rm(), line.ra());
    if line.bits(29, 2) != 0 {
        return None;
    }
    let subtract = line.bit(15);
    let (names, source, third) = match (line.bits(21, 3), wide, subtract) {
        (0, _, false) => (["mul", "madd"], wide, true),
        (0, _, true) => (["mneg", "msub"], wide, true),
        (1, true, false) => (["smull", "smaddl"], false, true),
        (1, true, true) => (["smnegl", "smsubl"], false, true),
        (5, true, false) => (["umull", "umaddl"], false, true),
        (5, true, true) => (["umnegl", "umsubl"], false, true),
        (2, true, false) => (["smulh"; 2], true, false),
        (6, true, false) => (["umulh"; 2], true, false),
        _ => return None,
    };
    let shown = third && ra != 31;
    line.name(&[names[usize::from(shown)]])
        .r(wide, rd)
        .r(source, rn)
        .r(source, rm);
    if shown {
        line.r(wide, ra);
    }
    line.done()
}
