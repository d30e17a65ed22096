//! Loads and stores.

use super::{EXTENSIONS, Line, SHIFTS};

pub(super) fn print(line: &mut Line<'_>) -> Option<()> {
    match line.word >> 24 & 0x3f {
        0x08 => exclusive(line),
        0x0c => structures(line),
        0x0d => lanes(line),
        0x18 | 0x1c => literal(line),
        0x28 | 0x29 | 0x2c | 0x2d => pair(line),
        0x38 | 0x3c => match (line.bit(21), line.bits(10, 2)) {
            (false, mode) => unscaled(line, mode),
            (true, 2) => indexed(line),
            (true, 0) => atomic(line),
            _ => None,
        },
        0x39 | 0x3d => scaled(line),
        _ => None,
    }
}

/// Suffix of an access to a byte or half, by log₂ of its size.
fn narrow(size: u32) -> &'static str {
    ["b", "h", "", ""][(size & 3) as usize]
}

/// `[base, #distance]`; without a distance of 0.
fn at(line: &mut Line<'_>, rn: u32, distance: i64) -> Option<()> {
    line.next().raw("[");
    base(line, rn);
    if distance != 0 {
        line.imm(distance);
    }
    line.raw("]").done()
}

/// The first register between brackets.
fn base(line: &mut Line<'_>, rn: u32) {
    match rn {
        31 => line.raw("sp"),
        _ => line.raw("x").put(rn),
    };
}

/// A name between `st` or `ld` and the suffix.
fn both(load: bool) -> &'static str {
    if load { "ld" } else { "st" }
}

fn exclusive(line: &mut Line<'_>) -> Option<()> {
    let (size, load, ordered) = (line.bits(30, 2), line.bit(22), line.bit(15));
    let (rs, rt, rt2, rn, wide) = (
        line.rm(),
        line.rd(),
        line.ra(),
        line.rn(),
        line.bits(30, 2) == 3,
    );
    match (line.bit(23), line.bit(21)) {
        (false, pair) => {
            if pair && size < 2 {
                // Compare and swap of a pair: size 0 represents 32 bits.
                if rt2 != 31 || rs & 1 != 0 || rt & 1 != 0 {
                    return None;
                }
                line.name(&[
                    "casp",
                    if load { "a" } else { "" },
                    if ordered { "l" } else { "" },
                ]);
                for number in [rs, rs + 1, rt, rt + 1] {
                    line.r(size == 1, number);
                }
                return at(line, rn, 0);
            }
            let order = match (ordered, load) {
                (false, _) => "",
                (true, true) => "a",
                (true, false) => "l",
            };
            let suffix = if pair { "p" } else { "r" };
            line.name(&[both(load), order, "x", suffix, narrow(size)]);
            if !load {
                line.r(false, rs);
            }
            line.r(wide, rt);
            if pair {
                line.r(wide, rt2);
            }
        }
        (true, false) => {
            let name = match (load, ordered) {
                (false, true) => "stlr",
                (true, true) => "ldar",
                (false, false) => "stllr",
                (true, false) => "ldlar",
            };
            line.name(&[name, narrow(size)]).r(wide, rt);
        }
        (true, true) => {
            if rt2 != 31 {
                return None;
            }
            line.name(&[
                "cas",
                if load { "a" } else { "" },
                if ordered { "l" } else { "" },
                narrow(size),
            ]);
            line.r(wide, rs).r(wide, rt);
        }
    }
    at(line, rn, 0)
}

fn literal(line: &mut Line<'_>) -> Option<()> {
    let (size, rt, distance) = (line.bits(30, 2), line.rd(), line.signed(5, 19) * 4);
    if line.bit(26) {
        let letter = *['s', 'd', 'q'].get(size as usize)?;
        return line.name(&["ldr"]).f(letter, rt).label(distance).done();
    }
    match size {
        0 | 1 => line.name(&["ldr"]).r(size == 1, rt),
        2 => line.name(&["ldrsw"]).r(true, rt),
        _ => {
            line.name(&["prfm"]);
            hint(line, rt)
        }
    };
    line.label(distance).done()
}

/// What a prefetch is for.
fn hint<'l, 'o>(line: &'l mut Line<'o>, number: u32) -> &'l mut Line<'o> {
    let (kind, level) = (number >> 3, number >> 1 & 3);
    if kind == 3 || level == 3 {
        return line.imm(i64::from(number));
    }
    line.word(["pld", "pli", "pst"][kind as usize])
        .raw("l")
        .put(level + 1);
    line.raw(if number & 1 != 0 { "strm" } else { "keep" })
}

fn pair(line: &mut Line<'_>) -> Option<()> {
    let (opcode, float, mode, load) = (
        line.bits(30, 2),
        line.bit(26),
        line.bits(23, 2),
        line.bit(22),
    );
    let (rt, rt2, rn) = (line.rd(), line.ra(), line.rn());
    let (letter, size) = match (float, opcode) {
        (true, 0) => ('s', 4),
        (true, 1) => ('d', 8),
        (true, 2) => ('q', 16),
        (false, 0) => ('w', 4),
        (false, 1) if load && mode != 0 => ('x', 4),
        (false, 2) => ('x', 8),
        _ => return None,
    };
    let words = !float && opcode == 1;
    line.name(&[
        both(load),
        if mode == 0 { "np" } else { "p" },
        if words { "sw" } else { "" },
    ]);
    for number in [rt, rt2] {
        if float {
            line.f(letter, number)
        } else {
            line.r(letter == 'x', number)
        };
    }
    address(line, mode, rn, line.signed(15, 7) * size)
}

/// An address by its mode: 1 changes the base after, 3 before the access.
fn address(line: &mut Line<'_>, mode: u32, rn: u32, distance: i64) -> Option<()> {
    match mode {
        1 => {
            at(line, rn, 0)?;
            line.imm(distance).done()
        }
        3 => {
            line.next().raw("[");
            base(line, rn);
            line.imm(distance).raw("]!").done()
        }
        _ => at(line, rn, distance),
    }
}

/// A load or store of one register, without its address: its name, with `between` before the suffix, and the
/// register. Returns log₂ of the size.
fn access(line: &mut Line<'_>, between: &str) -> Option<u32> {
    let (size, opcode, rt) = (line.bits(30, 2), line.bits(22, 2), line.rd());
    if line.bit(26) {
        let (letter, size) = match (opcode & 2 != 0, size) {
            (true, 0) => ('q', 4),
            (true, _) => return None,
            (false, size) => (['b', 'h', 's', 'd'][size as usize], size),
        };
        line.name(&[both(opcode & 1 != 0), between, "r"])
            .f(letter, rt);
        return Some(size);
    }
    match (opcode, size) {
        (0 | 1, _) => {
            line.name(&[both(opcode == 1), between, "r", narrow(size)])
                .r(size == 3, rt);
        }
        (2, 3) => {
            if between == "t" {
                return None;
            }
            line.name(&["prf", between, "m"]);
            hint(line, rt);
        }
        (2, _) => {
            line.name(&["ld", between, "rs", ["b", "h", "w"][size as usize]])
                .r(true, rt);
        }
        (_, 0 | 1) => {
            line.name(&["ld", between, "rs", narrow(size)]).r(false, rt);
        }
        _ => return None,
    }
    Some(size)
}

fn unscaled(line: &mut Line<'_>, mode: u32) -> Option<()> {
    let (rn, distance) = (line.rn(), line.signed(12, 9));
    let prefetch = line.word >> 22 == 0x3e2;
    if (prefetch && mode != 0) || (mode == 2 && line.bit(26)) {
        return None;
    }
    access(line, ["u", "", "t", ""][mode as usize])?;
    address(line, mode, rn, distance)
}

fn scaled(line: &mut Line<'_>) -> Option<()> {
    let (rn, number) = (line.rn(), i64::from(line.bits(10, 12)));
    let size = access(line, "")?;
    at(line, rn, number << size)
}

fn indexed(line: &mut Line<'_>) -> Option<()> {
    let (rn, rm, option, scale) = (line.rn(), line.rm(), line.bits(13, 3), line.bit(12));
    if option & 2 == 0 {
        return None;
    }
    let size = access(line, "")?;
    line.next().raw("[");
    base(line, rn);
    line.r(option & 1 != 0, rm);
    let name = if option == 3 {
        SHIFTS[0]
    } else {
        EXTENSIONS[option as usize]
    };
    match (scale, option) {
        (true, _) => {
            line.shift(name, size);
        }
        (false, 3) => {}
        (false, _) => {
            line.word(name);
        }
    }
    line.raw("]").done()
}

/// Atomic operations of Armv8.1.
fn atomic(line: &mut Line<'_>) -> Option<()> {
    let (size, rs, rt, rn) = (line.bits(30, 2), line.rm(), line.rd(), line.rn());
    let (acquire, release) = (line.bit(23), line.bit(22));
    if line.bit(26) {
        return None;
    }
    let wide = size == 3;
    let a = if acquire { "a" } else { "" };
    let l = if release { "l" } else { "" };
    if line.bit(15) {
        match line.bits(12, 3) {
            0 => line
                .name(&["swp", a, l, narrow(size)])
                .r(wide, rs)
                .r(wide, rt),
            4 if rs == 31 && acquire && !release => line.name(&["ldapr", narrow(size)]).r(wide, rt),
            _ => return None,
        };
        return at(line, rn, 0);
    }
    let name =
        ["add", "clr", "eor", "set", "smax", "smin", "umax", "umin"][line.bits(12, 3) as usize];
    if rt == 31 && !acquire {
        line.name(&["st", name, l, narrow(size)]).r(wide, rs);
    } else {
        line.name(&["ld", name, a, l, narrow(size)])
            .r(wide, rs)
            .r(wide, rt);
    }
    at(line, rn, 0)
}

/// `{ v0.16b, v1.16b }`: vectors one after the other, and 0 after 31.
fn list(line: &mut Line<'_>, first: u32, count: u32, arrangement: &str) {
    line.next().raw("{ ");
    for number in 0..count {
        if number > 0 {
            line.raw(", ");
        }
        line.raw("v")
            .put((first + number) & 31)
            .raw(".")
            .raw(arrangement);
    }
    line.raw(" }");
}

/// After the address: what the base grows by.
fn growth(line: &mut Line<'_>, bytes: u32) -> Option<()> {
    let (after, rn, rm) = (line.bit(23), line.rn(), line.rm());
    at(line, rn, 0)?;
    match (after, rm) {
        (false, _) => line,
        (true, 31) => line.imm(i64::from(bytes)),
        (true, _) => line.r(true, rm),
    }
    .done()
}

fn structures(line: &mut Line<'_>) -> Option<()> {
    let (number, count) = match line.bits(12, 4) {
        0 => ("4", 4),
        2 => ("1", 4),
        4 => ("3", 3),
        6 => ("1", 3),
        7 => ("1", 1),
        8 => ("2", 2),
        10 => ("1", 2),
        _ => return None,
    };
    let (whole, size, rt) = (line.bit(30), line.bits(10, 2), line.rd());
    if line.bit(31) || line.bit(21) || (!line.bit(23) && line.rm() != 0) {
        return None;
    }
    let arrangement = super::vector::arrangement(size, whole, true)?;
    if arrangement == "1d" && number != "1" {
        return None;
    }
    line.name(&[both(line.bit(22)), number]);
    list(line, rt, count, arrangement);
    growth(line, count * if whole { 16 } else { 8 })
}

fn lanes(line: &mut Line<'_>) -> Option<()> {
    let (whole, load, rt) = (line.bits(30, 1), line.bit(22), line.rd());
    let (opcode, s, size) = (line.bits(13, 3), line.bits(12, 1), line.bits(10, 2));
    if line.bit(31) || (!line.bit(23) && line.rm() != 0) {
        return None;
    }
    let count = (opcode & 1) * 2 + line.bits(21, 1) + 1;
    let number = ["1", "2", "3", "4"][count as usize - 1];
    if opcode >= 6 {
        if !load || s != 0 {
            return None;
        }
        let arrangement = super::vector::arrangement(size, whole == 1, true)?;
        line.name(&["ld", number, "r"]);
        list(line, rt, count, arrangement);
        return growth(line, count << size);
    }
    let (letter, lane, bytes) = match (opcode >> 1, size) {
        (0, _) => ("b", whole << 3 | s << 2 | size, 1),
        (1, 0 | 2) => ("h", whole << 2 | s << 1 | size >> 1, 2),
        (2, 0) => ("s", whole << 1 | s, 4),
        (2, 1) if s == 0 => ("d", whole, 8),
        _ => return None,
    };
    line.name(&[both(load), number]);
    list(line, rt, count, letter);
    line.raw("[").put(lane).raw("]");
    growth(line, count * bytes)
}
