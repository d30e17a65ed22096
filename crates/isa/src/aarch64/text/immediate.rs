//! Data processing with an immediate.

use super::{Line, SHIFTS};

pub(super) fn print(line: &mut Line<'_>) -> Option<()> {
    match line.bits(23, 3) {
        0 | 1 => address(line),
        2 => add(line),
        4 => logical(line),
        5 => wide(line),
        6 => bitfield(line),
        7 => extract(line),
        _ => None,
    }
}

fn address(line: &mut Line<'_>) -> Option<()> {
    let number = line.signed(5, 19) << 2 | i64::from(line.bits(29, 2));
    let rd = line.rd();
    if line.bit(31) {
        let page = (line.addr & !0xfff).wrapping_add_signed(number << 12);
        let distance = page.wrapping_sub(line.addr) as i64;
        return line.name(&["adrp"]).r(true, rd).label(distance).done();
    }
    line.name(&["adr"]).r(true, rd).label(number).done()
}

fn add(line: &mut Line<'_>) -> Option<()> {
    let (wide, subtract, flags) = (line.bit(31), line.bit(30), line.bit(29));
    let (rd, rn, shifted) = (line.rd(), line.rn(), line.bit(22));
    let number = i64::from(line.bits(10, 12));
    if !subtract && !flags && number == 0 && !shifted && (rd == 31 || rn == 31) {
        return line.name(&["mov"]).rsp(wide, rd).rsp(wide, rn).done();
    }
    if flags && rd == 31 {
        line.name(&[if subtract { "cmp" } else { "cmn" }]);
    } else {
        line.name(&[
            if subtract { "sub" } else { "add" },
            if flags { "s" } else { "" },
        ]);
        if flags {
            line.r(wide, rd)
        } else {
            line.rsp(wide, rd)
        };
    }
    line.rsp(wide, rn).imm(number);
    if shifted {
        line.shift(SHIFTS[0], 12);
    }
    line.done()
}

/// The number that 13 bits of a logical instruction represent: a run of ones, rotated, repeated in elements
/// of 2 to 64 bits.
fn bit_mask(wide: bool, n: u32, rotation: u32, ones: u32) -> Option<u64> {
    let len = 31 - (n << 6 | (!ones & 0x3f)).leading_zeros().min(31);
    if len == 0 || (!wide && n != 0) {
        return None;
    }
    let size = 1u32 << len;
    let (ones, rotation) = (ones & (size - 1), rotation & (size - 1));
    if ones == size - 1 {
        return None;
    }
    let run = (1u64 << (ones + 1)) - 1;
    let full = u64::MAX >> (64 - size);
    let element = match rotation {
        0 => run,
        _ => (run >> rotation | run << (size - rotation)) & full,
    };
    let mut value = element;
    let mut width = size;
    while width < 64 {
        value |= value << width;
        width *= 2;
    }
    Some(if wide { value } else { value & 0xffff_ffff })
}

/// Whether a single `movz` gives the value.
fn by_movz(value: u64) -> bool {
    (0..64)
        .step_by(16)
        .any(|shift| value & !(0xffff << shift) == 0)
}

/// Whether a single `movz` or `movn` gives the value.
fn by_wide_move(value: u64, wide: bool) -> bool {
    let inverse = if wide { !value } else { !value & 0xffff_ffff };
    by_movz(value) || by_movz(inverse)
}

fn logical(line: &mut Line<'_>) -> Option<()> {
    let wide = line.bit(31);
    let value = bit_mask(wide, line.bits(22, 1), line.bits(16, 6), line.bits(10, 6))?;
    let (rd, rn) = (line.rd(), line.rn());
    match line.bits(29, 2) {
        1 if rn == 31 && !by_wide_move(value, wide) => {
            return line
                .name(&["mov"])
                .rsp(wide, rd)
                .imm(as_signed(value, wide))
                .done();
        }
        3 if rd == 31 => return line.name(&["tst"]).r(wide, rn).mask(value).done(),
        3 => line.name(&["ands"]).r(wide, rd),
        opcode => line
            .name(&[["and", "orr", "eor"][opcode as usize]])
            .rsp(wide, rd),
    };
    line.r(wide, rn).mask(value).done()
}

fn as_signed(value: u64, wide: bool) -> i64 {
    if wide {
        value as i64
    } else {
        i64::from(value as i32)
    }
}

fn wide(line: &mut Line<'_>) -> Option<()> {
    let (wide, rd) = (line.bit(31), line.rd());
    let (number, shift) = (u64::from(line.bits(5, 16)), line.bits(21, 2) * 16);
    if !wide && shift > 16 {
        return None;
    }
    let value = number << shift;
    let name = match line.bits(29, 2) {
        0 => {
            let value = if wide { !value } else { !value & 0xffff_ffff };
            if (number != 0 || shift == 0) && !by_movz(value) {
                return line
                    .name(&["mov"])
                    .r(wide, rd)
                    .imm(as_signed(value, wide))
                    .done();
            }
            "movn"
        }
        2 if !(number == 0 && shift != 0) => {
            return line
                .name(&["mov"])
                .r(wide, rd)
                .imm(as_signed(value, wide))
                .done();
        }
        2 => "movz",
        3 => "movk",
        _ => return None,
    };
    line.name(&[name]).r(wide, rd).imm(number as i64);
    if shift != 0 {
        line.shift(SHIFTS[0], shift);
    }
    line.done()
}

fn bitfield(line: &mut Line<'_>) -> Option<()> {
    let (wide, rd, rn) = (line.bit(31), line.rd(), line.rn());
    let (from, to) = (line.bits(16, 6), line.bits(10, 6));
    let last = if wide { 63 } else { 31 };
    let opcode = line.bits(29, 2);
    if line.bit(22) != wide || from > last || to > last || opcode == 3 {
        return None;
    }
    let whole = |line: &mut Line<'_>, name: &str, amount: u32| {
        line.name(&[name])
            .r(wide, rd)
            .r(wide, rn)
            .imm(i64::from(amount))
            .done()
    };
    match (opcode, from, to) {
        (0, 0, 7) => return line.name(&["sxtb"]).r(wide, rd).r(false, rn).done(),
        (0, 0, 15) => return line.name(&["sxth"]).r(wide, rd).r(false, rn).done(),
        (0, 0, 31) if wide => return line.name(&["sxtw"]).r(wide, rd).r(false, rn).done(),
        (2, 0, 7) if !wide => return line.name(&["uxtb"]).r(wide, rd).r(false, rn).done(),
        (2, 0, 15) if !wide => return line.name(&["uxth"]).r(wide, rd).r(false, rn).done(),
        (0, _, _) if to == last => return whole(line, "asr", from),
        (2, _, _) if to == last => return whole(line, "lsr", from),
        (2, _, _) if to + 1 == from => return whole(line, "lsl", last - to),
        _ => {}
    }
    let put = to < from;
    line.name(&[match (opcode, put) {
        (0, true) => "sbfiz",
        (0, false) => "sbfx",
        (1, true) => "bfi",
        (1, false) => "bfxil",
        (_, true) => "ubfiz",
        (_, false) => "ubfx",
    }]);
    line.r(wide, rd).r(wide, rn);
    if put {
        line.imm(i64::from(last + 1 - from)).imm(i64::from(to) + 1)
    } else {
        line.imm(i64::from(from)).imm(i64::from(to - from) + 1)
    }
    .done()
}

fn extract(line: &mut Line<'_>) -> Option<()> {
    let (wide, amount) = (line.bit(31), line.bits(10, 6));
    if line.bit(22) != wide || line.bits(29, 2) != 0 || line.bit(21) || (!wide && amount > 31) {
        return None;
    }
    let (rd, rn, rm) = (line.rd(), line.rn(), line.rm());
    line.name(&[if rn == rm { "ror" } else { "extr" }])
        .r(wide, rd)
        .r(wide, rn);
    if rn != rm {
        line.r(wide, rm);
    }
    line.imm(i64::from(amount)).done()
}
