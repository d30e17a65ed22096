//! Vectors (Advanced SIMD), and the same operations on scalars in vector registers.

use super::{Line, float};

/// How a vector is divided, by log₂ of the size of an element in bytes, and whether it has 128 bits. `1d`
/// only where it is allowed.
pub(super) fn arrangement(size: u32, whole: bool, single: bool) -> Option<&'static str> {
    Some(match (size, whole) {
        (0, false) => "8b",
        (0, true) => "16b",
        (1, false) => "4h",
        (1, true) => "8h",
        (2, false) => "2s",
        (2, true) => "4s",
        (3, true) => "2d",
        (3, false) if single => "1d",
        _ => return None,
    })
}

/// Letters of scalars, by log₂ of the size in bytes.
const LETTERS: [char; 4] = ['b', 'h', 's', 'd'];
/// The same of lanes.
const LANES: [&str; 4] = ["b", "h", "s", "d"];

pub(super) fn print(line: &mut Line<'_>) -> Option<()> {
    let word = line.word;
    if word & 0x5e00_0000 == 0x1e00_0000 {
        return if line.bit(29) {
            None
        } else {
            float::print(line)
        };
    }
    if line.bit(31) {
        return None;
    }
    let scalar = line.bit(28);
    if scalar && !line.bit(30) {
        return None;
    }
    // Without the bit that tells scalars.
    let plain = word & !0x1000_0000;
    if line.bit(24) {
        if !line.bit(10) {
            return by_element(line, scalar);
        }
        if line.bit(23) {
            return None;
        }
        return match line.bits(19, 4) {
            0 if scalar => None,
            0 => constant(line),
            _ => shift(line, scalar),
        };
    }
    if plain & 0x0020_0400 == 0x0020_0400 {
        return three_same(line, scalar);
    }
    if plain & 0x0020_0c00 == 0x0020_0000 {
        return three_different(line, scalar);
    }
    if plain & 0x003e_0c00 == 0x0020_0800 {
        return two(line, scalar);
    }
    if plain & 0x003e_0c00 == 0x0030_0800 {
        return across(line, scalar);
    }
    if plain & 0x00e0_8400 == 0x0000_0400 {
        return copy(line, scalar);
    }
    if scalar {
        return None;
    }
    match word & 0x3fe0_8c00 {
        0x0e00_0000 | 0x0e00_1000 => return table(line),
        _ => {}
    }
    if word & 0x3f20_8c00 == 0x0e00_0800 {
        return permute(line);
    }
    if word & 0x3fe0_8400 == 0x2e00_0000 {
        let whole = line.bit(30);
        let (rd, rn, rm, at) = (line.rd(), line.rn(), line.rm(), line.bits(11, 4));
        if !whole && at > 7 {
            return None;
        }
        let shape = arrangement(0, whole, false)?;
        return line
            .name(&["ext"])
            .v(rd, shape)
            .v(rn, shape)
            .v(rm, shape)
            .imm(i64::from(at))
            .done();
    }
    None
}

fn table(line: &mut Line<'_>) -> Option<()> {
    let (rd, rn, rm, count) = (line.rd(), line.rn(), line.rm(), line.bits(13, 2) + 1);
    let shape = arrangement(0, line.bit(30), false)?;
    line.name(&[if line.bit(12) { "tbx" } else { "tbl" }])
        .v(rd, shape);
    line.next().raw("{ ");
    for number in 0..count {
        if number > 0 {
            line.raw(", ");
        }
        line.raw("v").put((rn + number) & 31).raw(".16b");
    }
    line.raw(" }").v(rm, shape).done()
}

fn permute(line: &mut Line<'_>) -> Option<()> {
    let (rd, rn, rm) = (line.rd(), line.rn(), line.rm());
    let shape = arrangement(line.bits(22, 2), line.bit(30), false)?;
    let name = match line.bits(12, 3) {
        1 => "uzp1",
        2 => "trn1",
        3 => "zip1",
        5 => "uzp2",
        6 => "trn2",
        7 => "zip2",
        _ => return None,
    };
    line.name(&[name])
        .v(rd, shape)
        .v(rn, shape)
        .v(rm, shape)
        .done()
}

fn copy(line: &mut Line<'_>, scalar: bool) -> Option<()> {
    let (rd, rn, number, opcode) = (line.rd(), line.rn(), line.rm(), line.bits(11, 4));
    let (whole, inverse) = (line.bit(30), line.bit(29));
    let size = number.trailing_zeros();
    if size > 3 {
        return None;
    }
    let lane = number >> (size + 1);
    let letter = LANES[size as usize];
    if scalar {
        if inverse || opcode != 0 {
            return None;
        }
        return line
            .name(&["mov"])
            .f(LETTERS[size as usize], rd)
            .lane(rn, letter, lane)
            .done();
    }
    let wide = size == 3;
    match (inverse, opcode) {
        (true, _) if whole => {
            let from = line.bits(11, 4);
            line.name(&["mov"])
                .lane(rd, letter, lane)
                .lane(rn, letter, from >> size)
                .done()
        }
        (false, 0 | 1) => {
            let shape = arrangement(size, whole, false)?;
            line.name(&["dup"]).v(rd, shape);
            match opcode {
                0 => line.lane(rn, letter, lane),
                _ => line.r(wide, rn),
            }
            .done()
        }
        (false, 3) if whole => line
            .name(&["mov"])
            .lane(rd, letter, lane)
            .r(wide, rn)
            .done(),
        (false, 5) if size < 2 || (size == 2 && whole) => line
            .name(&["smov"])
            .r(whole, rd)
            .lane(rn, letter, lane)
            .done(),
        (false, 7) if wide == whole => {
            let name = if size < 2 { "umov" } else { "mov" };
            line.name(&[name]).r(wide, rd).lane(rn, letter, lane).done()
        }
        _ => None,
    }
}

fn constant(line: &mut Line<'_>) -> Option<()> {
    let (rd, whole, inverse, mode) = (line.rd(), line.bit(30), line.bit(29), line.bits(12, 4));
    if line.bit(11) {
        return None;
    }
    let byte = line.bits(16, 3) << 5 | line.bits(5, 5);
    let half = mode & 0b1100 == 0b1000;
    let size = if half { 1 } else { 2 };
    match mode {
        0b1110 if !inverse => {
            let shape = arrangement(0, whole, false)?;
            return line
                .name(&["movi"])
                .v(rd, shape)
                .imm(i64::from(byte))
                .done();
        }
        0b1110 => {
            line.name(&["movi"]);
            if whole {
                line.v(rd, "2d")
            } else {
                line.f('d', rd)
            };
            let full = (0..8)
                .filter(|bit| byte >> bit & 1 != 0)
                .fold(0u64, |sum, bit| sum | 0xff << (bit * 8));
            // Sixteen characters, the prefix of a number included.
            let digits = match full {
                0 => "#0000000000000000".to_owned(),
                _ => format!("#{full:#016x}"),
            };
            line.word(&digits);
            return line.done();
        }
        0b1111 => {
            let shape = match (inverse, whole) {
                (false, _) => arrangement(2, whole, false)?,
                (true, true) => "2d",
                (true, false) => return None,
            };
            line.name(&["fmov"]).v(rd, shape);
            return float::constant(line, byte);
        }
        _ => {}
    }
    let ones = mode & 0b1110 == 0b1100;
    let accumulates = !ones && mode & 1 != 0;
    let name = match (accumulates, inverse) {
        (true, false) => "orr",
        (true, true) => "bic",
        (false, false) => "movi",
        (false, true) => "mvni",
    };
    let amount = match (ones, half) {
        (true, _) => 8 << (mode & 1),
        (_, true) => (mode >> 1 & 1) * 8,
        _ => (mode >> 1 & 3) * 8,
    };
    let shape = arrangement(size, whole, false)?;
    line.name(&[name]).v(rd, shape).imm(i64::from(byte));
    if amount != 0 {
        line.shift(if ones { "msl" } else { "lsl" }, amount);
    }
    line.done()
}

fn shift(line: &mut Line<'_>, scalar: bool) -> Option<()> {
    let (rd, rn, whole, unsigned) = (line.rd(), line.rn(), line.bit(30), line.bit(29));
    let (number, opcode) = (line.bits(16, 7), line.bits(11, 5));
    let size = 31 - (number >> 3).max(1).leading_zeros();
    let bits = 8 << size;
    let (left, right) = (number.wrapping_sub(bits), 2 * bits - number);
    let u = if unsigned { "u" } else { "s" };
    // Narrowing and lengthening: the element is that of the narrow side.
    if matches!(opcode, 0x10..=0x14) {
        if scalar && matches!(opcode, 0x14) || size > 2 || (scalar && opcode < 0x12 && !unsigned) {
            return None;
        }
        let two = if whole && !scalar { "2" } else { "" };
        if opcode == 0x14 {
            let (narrow, broad) = (
                arrangement(size, whole, false)?,
                arrangement(size + 1, true, false)?,
            );
            return line
                .name(&[u, "shll", two])
                .v(rd, broad)
                .v(rn, narrow)
                .imm(i64::from(left))
                .done();
        }
        let name = match (opcode, unsigned) {
            (0x10, false) => "shrn",
            (0x11, false) => "rshrn",
            (0x10, true) => "sqshrun",
            (0x11, true) => "sqrshrun",
            (0x12, false) => "sqshrn",
            (0x13, false) => "sqrshrn",
            (0x12, true) => "uqshrn",
            _ => "uqrshrn",
        };
        line.name(&[name, two]);
        if scalar {
            line.f(LETTERS[size as usize], rd)
                .f(LETTERS[size as usize + 1], rn)
        } else {
            let (narrow, broad) = (
                arrangement(size, whole, false)?,
                arrangement(size + 1, true, false)?,
            );
            line.v(rd, narrow).v(rn, broad)
        };
        return line.imm(i64::from(right)).done();
    }
    let only_double = scalar && !matches!(opcode, 0x0c | 0x0e | 0x1c | 0x1f);
    if only_double && size != 3 {
        return None;
    }
    let (name, amount) = match (opcode, unsigned) {
        (0x00, _) => ([u, "shr"], right),
        (0x02, _) => ([u, "sra"], right),
        (0x04, _) => ([u, "rshr"], right),
        (0x06, _) => ([u, "rsra"], right),
        (0x08, true) => (["sri", ""], right),
        (0x0a, false) => (["shl", ""], left),
        (0x0a, true) => (["sli", ""], left),
        (0x0c, true) => (["sqshlu", ""], left),
        (0x0e, _) => ([u, "qshl"], left),
        (0x1c, _) if size > 1 => ([u, "cvtf"], right),
        (0x1f, _) if size > 1 => (["fcvtz", u], right),
        _ => return None,
    };
    line.name(&name);
    two_of(line, scalar, size, whole, rd, rn)?;
    line.imm(i64::from(amount)).done()
}

/// Two registers of one kind.
fn two_of(
    line: &mut Line<'_>,
    scalar: bool,
    size: u32,
    whole: bool,
    rd: u32,
    rn: u32,
) -> Option<()> {
    if scalar {
        let letter = LETTERS[(size & 3) as usize];
        return line.f(letter, rd).f(letter, rn).done();
    }
    let shape = arrangement(size, whole, false)?;
    line.v(rd, shape).v(rn, shape).done()
}

fn three_same(line: &mut Line<'_>, scalar: bool) -> Option<()> {
    let (rd, rn, rm, whole, unsigned) =
        (line.rd(), line.rn(), line.rm(), line.bit(30), line.bit(29));
    let (size, opcode) = (line.bits(22, 2), line.bits(11, 5));
    let u = if unsigned { "u" } else { "s" };
    let mut width = size;
    let name: [&str; 2] = match (opcode, unsigned) {
        (0x03, _) => {
            width = 0;
            let names = if unsigned {
                ["eor", "bsl", "bit", "bif"]
            } else {
                ["and", "bic", "orr", "orn"]
            };
            if scalar {
                return None;
            }
            if size == 2 && !unsigned && rn == rm {
                let shape = arrangement(0, whole, false)?;
                return line.name(&["mov"]).v(rd, shape).v(rn, shape).done();
            }
            [names[size as usize], ""]
        }
        (0x18.., _) => {
            width = 2 | size & 1;
            let high = size & 2 != 0;
            let name = match (opcode, unsigned, high) {
                (0x18, false, false) => "fmaxnm",
                (0x18, false, true) => "fminnm",
                (0x19, false, false) => "fmla",
                (0x19, false, true) => "fmls",
                (0x1a, false, false) => "fadd",
                (0x1a, false, true) => "fsub",
                (0x1b, false, false) => "fmulx",
                (0x1c, false, false) => "fcmeq",
                (0x1e, false, false) => "fmax",
                (0x1e, false, true) => "fmin",
                (0x1f, false, false) => "frecps",
                (0x1f, false, true) => "frsqrts",
                (0x18, true, false) => "fmaxnmp",
                (0x18, true, true) => "fminnmp",
                (0x1a, true, false) => "faddp",
                (0x1a, true, true) => "fabd",
                (0x1b, true, false) => "fmul",
                (0x1c, true, false) => "fcmge",
                (0x1c, true, true) => "fcmgt",
                (0x1d, true, false) => "facge",
                (0x1d, true, true) => "facgt",
                (0x1e, true, false) => "fmaxp",
                (0x1e, true, true) => "fminp",
                (0x1f, true, false) => "fdiv",
                _ => return None,
            };
            let scalars = [
                "fmulx", "fcmeq", "frecps", "frsqrts", "fabd", "fcmge", "fcmgt", "facge", "facgt",
            ];
            if scalar && !scalars.contains(&name) {
                return None;
            }
            [name, ""]
        }
        _ => {
            let name = match (opcode, unsigned) {
                (0x00, _) => [u, "hadd"],
                (0x01, _) => [u, "qadd"],
                (0x02, _) => [u, "rhadd"],
                (0x04, _) => [u, "hsub"],
                (0x05, _) => [u, "qsub"],
                (0x06, false) => ["cmgt", ""],
                (0x06, true) => ["cmhi", ""],
                (0x07, false) => ["cmge", ""],
                (0x07, true) => ["cmhs", ""],
                (0x08, _) => [u, "shl"],
                (0x09, _) => [u, "qshl"],
                (0x0a, _) => [u, "rshl"],
                (0x0b, _) => [u, "qrshl"],
                (0x0c, _) => [u, "max"],
                (0x0d, _) => [u, "min"],
                (0x0e, _) => [u, "abd"],
                (0x0f, _) => [u, "aba"],
                (0x10, false) => ["add", ""],
                (0x10, true) => ["sub", ""],
                (0x11, false) => ["cmtst", ""],
                (0x11, true) => ["cmeq", ""],
                (0x12, false) => ["mla", ""],
                (0x12, true) => ["mls", ""],
                (0x13, false) => ["mul", ""],
                (0x13, true) => ["pmul", ""],
                (0x14, _) => [u, "maxp"],
                (0x15, _) => [u, "minp"],
                (0x16, false) => ["sqdmulh", ""],
                (0x16, true) => ["sqrdmulh", ""],
                (0x17, false) => ["addp", ""],
                _ => return None,
            };
            let allowed = match opcode {
                0x00 | 0x02 | 0x04 | 0x0c..=0x0f | 0x12 | 0x14 | 0x15 => size < 3,
                0x13 => size == 0 || (!unsigned && size < 3),
                0x16 => size == 1 || size == 2,
                _ => true,
            };
            let in_scalars = match opcode {
                0x01 | 0x05 | 0x09 | 0x0b => true,
                0x06..=0x08 | 0x0a | 0x10 | 0x11 => size == 3,
                0x16 => true,
                _ => false,
            };
            if !allowed || (scalar && !in_scalars) {
                return None;
            }
            name
        }
    };
    line.name(&name);
    two_of(line, scalar, width, whole, rd, rn)?;
    if scalar {
        line.f(LETTERS[width as usize], rm)
    } else {
        line.v(rm, arrangement(width, whole, false)?)
    }
    .done()
}

fn three_different(line: &mut Line<'_>, scalar: bool) -> Option<()> {
    let (rd, rn, rm, whole, unsigned) =
        (line.rd(), line.rn(), line.rm(), line.bit(30), line.bit(29));
    let (size, opcode) = (line.bits(22, 2), line.bits(12, 4));
    let u = if unsigned { "u" } else { "s" };
    let two = if whole && !scalar { "2" } else { "" };
    let double = matches!(opcode, 9 | 11 | 13);
    if scalar {
        if !double || unsigned || !(1..=2).contains(&size) {
            return None;
        }
        let (narrow, broad) = (LETTERS[size as usize], LETTERS[size as usize + 1]);
        line.name(&[["sqdmlal", "sqdmlsl", "sqdmull"][(opcode as usize - 9) / 2]]);
        return line.f(broad, rd).f(narrow, rn).f(narrow, rm).done();
    }
    let name: [&str; 2] = match (opcode, unsigned) {
        (0, _) => [u, "addl"],
        (1, _) => [u, "addw"],
        (2, _) => [u, "subl"],
        (3, _) => [u, "subw"],
        (4, false) => ["addhn", ""],
        (4, true) => ["raddhn", ""],
        (5, _) => [u, "abal"],
        (6, false) => ["subhn", ""],
        (6, true) => ["rsubhn", ""],
        (7, _) => [u, "abdl"],
        (8, _) => [u, "mlal"],
        (9, false) => ["sqdmlal", ""],
        (10, _) => [u, "mlsl"],
        (11, false) => ["sqdmlsl", ""],
        (12, _) => [u, "mull"],
        (13, false) => ["sqdmull", ""],
        (14, false) if size == 0 => ["pmull", ""],
        _ => return None,
    };
    if size == 3 || (double && size == 0) {
        return None;
    }
    let (narrow, broad) = (
        arrangement(size, whole, false)?,
        arrangement(size + 1, true, false)?,
    );
    let [first, second] = name;
    line.name(&[first, second, two]);
    match opcode {
        1 | 3 => line.v(rd, broad).v(rn, broad).v(rm, narrow),
        4 | 6 => line.v(rd, narrow).v(rn, broad).v(rm, broad),
        _ => line.v(rd, broad).v(rn, narrow).v(rm, narrow),
    }
    .done()
}

fn two(line: &mut Line<'_>, scalar: bool) -> Option<()> {
    let (rd, rn, whole, unsigned) = (line.rd(), line.rn(), line.bit(30), line.bit(29));
    let (size, opcode) = (line.bits(22, 2), line.bits(12, 5));
    let u = if unsigned { "u" } else { "s" };
    let two = if whole && !scalar { "2" } else { "" };
    let (float, high) = (2 | size & 1, size & 2 != 0);
    // (name, size of elements, whether it is compared with 0 and how this is written)
    let (name, width, zero): ([&str; 2], u32, &str) = match (opcode, unsigned) {
        (0x00, false) if size < 3 => (["rev64", ""], size, ""),
        (0x00, true) if size < 2 => (["rev32", ""], size, ""),
        (0x01, false) if size == 0 => (["rev16", ""], size, ""),
        (0x02 | 0x06, _) if size < 3 && !scalar => {
            let name = if opcode == 2 { "addlp" } else { "adalp" };
            let (narrow, broad) = (
                arrangement(size, whole, false)?,
                arrangement(size + 1, whole, true)?,
            );
            return line.name(&[u, name]).v(rd, broad).v(rn, narrow).done();
        }
        (0x03, false) => (["suqadd", ""], size, ""),
        (0x03, true) => (["usqadd", ""], size, ""),
        (0x04, false) if size < 3 => (["cls", ""], size, ""),
        (0x04, true) if size < 3 => (["clz", ""], size, ""),
        (0x05, false) if size == 0 => (["cnt", ""], size, ""),
        (0x05, true) if size == 0 => (["mvn", ""], 0, ""),
        (0x05, true) if size == 1 => (["rbit", ""], 0, ""),
        (0x07, false) => (["sqabs", ""], size, ""),
        (0x07, true) => (["sqneg", ""], size, ""),
        (0x08, false) => (["cmgt", ""], size, "#0"),
        (0x08, true) => (["cmge", ""], size, "#0"),
        (0x09, false) => (["cmeq", ""], size, "#0"),
        (0x09, true) => (["cmle", ""], size, "#0"),
        (0x0a, false) => (["cmlt", ""], size, "#0"),
        (0x0b, false) => (["abs", ""], size, ""),
        (0x0b, true) => (["neg", ""], size, ""),
        (0x12 | 0x14, _) if size < 3 => {
            let name = match (opcode, unsigned) {
                (0x12, false) => "xtn",
                (0x12, true) => "sqxtun",
                (_, false) => "sqxtn",
                (_, true) => "uqxtn",
            };
            if scalar {
                if name == "xtn" {
                    return None;
                }
                let (narrow, broad) = (LETTERS[size as usize], LETTERS[size as usize + 1]);
                return line.name(&[name]).f(narrow, rd).f(broad, rn).done();
            }
            let (narrow, broad) = (
                arrangement(size, whole, false)?,
                arrangement(size + 1, true, false)?,
            );
            return line.name(&[name, two]).v(rd, narrow).v(rn, broad).done();
        }
        (0x13, true) if size < 3 && !scalar => {
            let (narrow, broad) = (
                arrangement(size, whole, false)?,
                arrangement(size + 1, true, false)?,
            );
            line.name(&["shll", two]).v(rd, broad).v(rn, narrow);
            return line.imm(8 << size).done();
        }
        (0x16, false) if !high && !scalar => {
            let (narrow, broad) = (
                arrangement(size + 1, whole, false)?,
                arrangement(size + 2, true, false)?,
            );
            return line.name(&["fcvtn", two]).v(rd, narrow).v(rn, broad).done();
        }
        (0x16, true) if size == 1 => {
            if scalar {
                return line.name(&["fcvtxn"]).f('s', rd).f('d', rn).done();
            }
            return line
                .name(&["fcvtxn", two])
                .v(rd, arrangement(2, whole, false)?)
                .v(rn, "2d")
                .done();
        }
        (0x17, false) if !high && !scalar => {
            let (narrow, broad) = (
                arrangement(size + 1, whole, false)?,
                arrangement(size + 2, true, false)?,
            );
            return line.name(&["fcvtl", two]).v(rd, broad).v(rn, narrow).done();
        }
        (0x0c, false) if high => (["fcmgt", ""], float, "#0.0"),
        (0x0c, true) if high => (["fcmge", ""], float, "#0.0"),
        (0x0d, false) if high => (["fcmeq", ""], float, "#0.0"),
        (0x0d, true) if high => (["fcmle", ""], float, "#0.0"),
        (0x0e, false) if high => (["fcmlt", ""], float, "#0.0"),
        (0x0f, false) if high => (["fabs", ""], float, ""),
        (0x0f, true) if high => (["fneg", ""], float, ""),
        (0x18, false) => (["frint", if high { "p" } else { "n" }], float, ""),
        (0x18, true) if !high => (["frinta", ""], float, ""),
        (0x19, false) => (["frint", if high { "z" } else { "m" }], float, ""),
        (0x19, true) => (["frint", if high { "i" } else { "x" }], float, ""),
        (0x1a, _) => ([if high { "fcvtp" } else { "fcvtn" }, u], float, ""),
        (0x1b, _) => ([if high { "fcvtz" } else { "fcvtm" }, u], float, ""),
        (0x1c, _) if !high => (["fcvta", u], float, ""),
        (0x1c, false) if size == 2 => (["urecpe", ""], 2, ""),
        (0x1c, true) if size == 2 => (["ursqrte", ""], 2, ""),
        (0x1d, _) if !high => ([u, "cvtf"], float, ""),
        (0x1d, false) => (["frecpe", ""], float, ""),
        (0x1d, true) => (["frsqrte", ""], float, ""),
        (0x1f, true) if high => (["fsqrt", ""], float, ""),
        (0x1f, false) if high && scalar => (["frecpx", ""], float, ""),
        _ => return None,
    };
    let in_scalars = match opcode {
        0x03 | 0x07 => true,
        0x08..=0x0b => size == 3,
        0x0c..=0x0e | 0x1a | 0x1b | 0x1d => true,
        0x1c => !high,
        0x1f => !unsigned,
        _ => false,
    };
    if scalar && !in_scalars {
        return None;
    }
    line.name(&name);
    two_of(line, scalar, width, whole, rd, rn)?;
    if !zero.is_empty() {
        line.word(zero);
    }
    line.done()
}

/// Over all lanes of a vector; of scalars: over two.
fn across(line: &mut Line<'_>, scalar: bool) -> Option<()> {
    let (rd, rn, whole, unsigned) = (line.rd(), line.rn(), line.bit(30), line.bit(29));
    let (size, opcode) = (line.bits(22, 2), line.bits(12, 5));
    let high = size & 2 != 0;
    if scalar {
        let (name, size) = match (opcode, unsigned, high) {
            (0x1b, false, true) if size == 3 => ("addp", 3),
            (0x0c, true, false) => ("fmaxnmp", 2 | size & 1),
            (0x0c, true, true) => ("fminnmp", 2 | size & 1),
            (0x0d, true, false) => ("faddp", 2 | size & 1),
            (0x0f, true, false) => ("fmaxp", 2 | size & 1),
            (0x0f, true, true) => ("fminp", 2 | size & 1),
            _ => return None,
        };
        let shape = if size == 3 { "2d" } else { "2s" };
        return line
            .name(&[name])
            .f(LETTERS[size as usize], rd)
            .v(rn, shape)
            .done();
    }
    let u = if unsigned { "u" } else { "s" };
    if matches!(opcode, 0x0c | 0x0f) {
        let name = match (opcode, high) {
            (0x0c, false) => "fmaxnmv",
            (0x0c, true) => "fminnmv",
            (_, false) => "fmaxv",
            (_, true) => "fminv",
        };
        if !unsigned || !whole || size & 1 != 0 {
            return None;
        }
        return line.name(&[name]).f('s', rd).v(rn, "4s").done();
    }
    if size == 3 || (size == 2 && !whole) {
        return None;
    }
    let name = match (opcode, unsigned) {
        (0x03, _) => [u, "addlv"],
        (0x0a, _) => [u, "maxv"],
        (0x1a, _) => [u, "minv"],
        (0x1b, false) => ["addv", ""],
        _ => return None,
    };
    let shape = arrangement(size, whole, false)?;
    let letter = LETTERS[size as usize + usize::from(opcode == 3)];
    line.name(&name).f(letter, rd).v(rn, shape).done()
}

fn by_element(line: &mut Line<'_>, scalar: bool) -> Option<()> {
    let (rd, rn, whole, unsigned) = (line.rd(), line.rn(), line.bit(30), line.bit(29));
    let (size, opcode) = (line.bits(22, 2), line.bits(12, 4));
    let (h, l, m) = (line.bits(11, 1), line.bits(21, 1), line.bits(20, 1));
    let u = if unsigned { "u" } else { "s" };
    if matches!(opcode, 1 | 5 | 9) {
        let name = match (opcode, unsigned) {
            (1, false) => "fmla",
            (5, false) => "fmls",
            (9, false) => "fmul",
            (9, true) => "fmulx",
            _ => return None,
        };
        let (lane, letter) = match (size, l) {
            (2, _) => (h << 1 | l, "s"),
            (3, 0) => (h, "d"),
            _ => return None,
        };
        line.name(&[name]);
        two_of(line, scalar, size, whole, rd, rn)?;
        let rm = line.rm();
        return line.lane(rm, letter, lane).done();
    }
    let (rm, lane, letter) = match size {
        1 => (line.rm() & 15, h << 2 | l << 1 | m, "h"),
        2 => (line.rm(), h << 1 | l, "s"),
        _ => return None,
    };
    let (name, long): ([&str; 2], bool) = match (opcode, unsigned) {
        (0, true) => (["mla", ""], false),
        (4, true) => (["mls", ""], false),
        (8, false) => (["mul", ""], false),
        (2, _) => ([u, "mlal"], true),
        (6, _) => ([u, "mlsl"], true),
        (10, _) => ([u, "mull"], true),
        (3, false) => (["sqdmlal", ""], true),
        (7, false) => (["sqdmlsl", ""], true),
        (11, false) => (["sqdmull", ""], true),
        (12, false) => (["sqdmulh", ""], false),
        (13, false) => (["sqrdmulh", ""], false),
        _ => return None,
    };
    if scalar && !matches!(opcode, 3 | 7 | 11 | 12 | 13) {
        return None;
    }
    let [first, second] = name;
    line.name(&[
        first,
        second,
        if long && whole && !scalar { "2" } else { "" },
    ]);
    match (long, scalar) {
        (false, _) => two_of(line, scalar, size, whole, rd, rn)?,
        (true, true) => {
            line.f(LETTERS[size as usize + 1], rd)
                .f(LETTERS[size as usize], rn);
        }
        (true, false) => {
            line.v(rd, arrangement(size + 1, true, false)?)
                .v(rn, arrangement(size, whole, false)?);
        }
    }
    line.lane(rm, letter, lane).done()
}
