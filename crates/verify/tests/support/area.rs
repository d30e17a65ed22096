//! Exception tables (LSDAs), read and written anew.

use super::{offset, u32_at};

pub(super) fn uleb(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

pub(super) fn sleb(out: &mut Vec<u8>, mut v: i64) {
    loop {
        let b = v as u8 & 0x7f;
        v >>= 7;
        if (v == 0 && b & 0x40 == 0) || (v == -1 && b & 0x40 != 0) {
            out.push(b);
            return;
        }
        out.push(b | 0x80);
    }
}

pub(super) fn read_uleb(d: &[u8], at: &mut usize) -> u64 {
    let (mut v, mut shift) = (0u64, 0);
    loop {
        let b = d[*at];
        *at += 1;
        v |= u64::from(b & 0x7f) << shift;
        shift += 7;
        if b & 0x80 == 0 {
            return v;
        }
    }
}

/// Landing pads and their call sites, as the input's LSDA has them.
#[derive(Clone, Debug, Default)]
pub(super) struct Area {
    pub(super) sites: Vec<(u64, u64, u64, u64)>,
    pub(super) actions: Vec<u8>,
    pub(super) types: Vec<u64>,
}

pub(super) fn read_area(d: &[u8], addr: u64, function: u64) -> Area {
    let mut at = offset(d, addr);
    assert_eq!(d[at], 0xff, "the compiler omits the landing pad base");
    let encoding = d[at + 1];
    at += 2;
    let mut types_end = None;
    if encoding != 0xff {
        assert!(matches!(encoding & 0x7f, 0x1b | 3));
        let len = read_uleb(d, &mut at) as usize;
        types_end = Some(at + len);
    }
    assert_eq!(d[at], 1);
    at += 1;
    let len = read_uleb(d, &mut at) as usize;
    let end = at + len;
    let mut area = Area::default();
    while at < end {
        let (s, l, p, a) = (
            read_uleb(d, &mut at),
            read_uleb(d, &mut at),
            read_uleb(d, &mut at),
            read_uleb(d, &mut at),
        );
        area.sites.push((
            function + s,
            function + s + l,
            if p == 0 { 0 } else { function + p },
            a,
        ));
    }
    if let Some(types_end) = types_end {
        let first_type = area_types(d, end, types_end);
        area.actions = d[end..first_type].to_vec();
        let relative = encoding & 0x70 == 0x10;
        let base = addr.wrapping_sub(offset(d, addr) as u64);
        let mut t = types_end;
        while t > first_type {
            t -= 4;
            let word = u32_at(d, t) as i32;
            area.types.push(if word == 0 || !relative {
                word as u64
            } else {
                base.wrapping_add(t as u64)
                    .wrapping_add_signed(i64::from(word))
            });
        }
    } else {
        // Cleanups alone need no actions.
        area.actions = Vec::new();
    }
    area
}

/// Where the type table begins: after as many types as the largest filter says.
pub(super) fn area_types(d: &[u8], actions: usize, end: usize) -> usize {
    let mut at = actions;
    let mut largest = 0u64;
    // Records are (filter, next), one byte each in programs as small as these.
    while at + 1 < end
        && d[at] & 0x80 == 0
        && d[at] < 0x20
        && (d[at + 1] == 0 || d[at + 1] >= 0x70)
        && (end - at) >= 4 * largest as usize
    {
        if d[at] == 0 && d[at + 1] == 0 && at + 2 + 4 * largest as usize >= end {
            break;
        }
        largest = largest.max(u64::from(d[at]));
        at += 2;
    }
    end - 4 * largest as usize
}

pub(super) fn write_area(
    area: &Area,
    encoding: u8,
    base: u64,
    sites: &[(u64, u64, u64, u64)],
    function: u64,
    at: u64,
    lowest: u64,
) -> Vec<u8> {
    let mut table = Vec::new();
    for &(s, e, p, a) in sites {
        uleb(&mut table, s - function);
        uleb(&mut table, e - s);
        uleb(&mut table, if p == 0 { 0 } else { p - base });
        uleb(&mut table, a);
    }
    let _ = lowest;
    let mut out = vec![0x1b];
    out.extend(((base as i64 - (at as i64 + 1)) as i32).to_le_bytes());
    out.push(encoding);
    let mut tail = vec![1u8];
    uleb(&mut tail, table.len() as u64);
    tail.extend(table);
    tail.extend(&area.actions);
    if encoding != 0xff {
        // The distance field has a fixed length here: five bytes.
        let start = out.len() + 5;
        while !(start + tail.len()).is_multiple_of(4) {
            tail.push(0);
        }
        let distance = tail.len() + 4 * area.types.len();
        for i in 0..5 {
            out.push((distance >> (7 * i)) as u8 & 0x7f | if i < 4 { 0x80 } else { 0 });
        }
    }
    out.extend(tail);
    if encoding != 0xff {
        for &t in area.types.iter().rev() {
            let here = if encoding & 0x70 == 0x10 {
                at as i64 + out.len() as i64
            } else {
                0
            };
            out.extend(
                if t == 0 {
                    0i32
                } else {
                    (t as i64 - here) as i32
                }
                .to_le_bytes(),
            );
        }
    }
    out
}
