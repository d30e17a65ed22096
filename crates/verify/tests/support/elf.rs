//! The little of ELF that the tests read and write by themselves.

use std::collections::BTreeMap;

/// Whether a file is for AArch64.
pub fn is_a64(d: &[u8]) -> bool {
    u16_at(d, 18) == 183
}

pub fn u16_at(d: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(d[at..at + 2].try_into().unwrap())
}

pub fn u32_at(d: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(d[at..at + 4].try_into().unwrap())
}

pub fn u64_at(d: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(d[at..at + 8].try_into().unwrap())
}

pub(super) fn put32(d: &mut [u8], at: usize, v: i64) {
    d[at..at + 4].copy_from_slice(&i32::try_from(v).expect("it is near").to_le_bytes());
}

#[derive(Clone, Debug)]
pub struct Section {
    pub name: String,
    pub kind: u32,
    pub flags: u64,
    pub addr: u64,
    pub offset: usize,
    pub size: usize,
    pub link: usize,
}

pub fn sections(d: &[u8]) -> Vec<Section> {
    let (at, n, names) = (
        u64_at(d, 40) as usize,
        u16_at(d, 60) as usize,
        u16_at(d, 62) as usize,
    );
    let raw = |i: usize| &d[at + 64 * i..at + 64 * i + 64];
    let strings = u64_at(raw(names), 24) as usize;
    (0..n)
        .map(|i| {
            let r = raw(i);
            let name = strings + u32_at(r, 0) as usize;
            let len = d[name..].iter().position(|&b| b == 0).unwrap();
            Section {
                name: String::from_utf8_lossy(&d[name..name + len]).into_owned(),
                kind: u32_at(r, 4),
                flags: u64_at(r, 8),
                addr: u64_at(r, 16),
                offset: u64_at(r, 24) as usize,
                size: u64_at(r, 32) as usize,
                link: u32_at(r, 40) as usize,
            }
        })
        .collect()
}

/// File offset of an address.
pub fn offset(d: &[u8], addr: u64) -> usize {
    (0..u16_at(d, 56) as usize)
        .map(|i| u64_at(d, 32) as usize + 56 * i)
        .filter(|&p| u32_at(d, p) == 1)
        .find_map(|p| {
            let (off, va, size) = (u64_at(d, p + 8), u64_at(d, p + 16), u64_at(d, p + 32));
            (va <= addr && addr < va + size).then(|| (off + addr - va) as usize)
        })
        .unwrap_or_else(|| panic!("{addr:#x} is not in the file"))
}

/// Functions with size in `.text`: (name, start, end).
pub fn functions(d: &[u8]) -> Vec<(String, u64, u64)> {
    let s = sections(d);
    let table = s
        .iter()
        .find(|s| s.kind == 2)
        .expect("there is a symbol table");
    let strings = &s[table.link];
    let holds = |value: u64| {
        let mut code = s
            .iter()
            .filter(|s| s.name == ".text" || s.name == "bounded");
        code.any(|c| c.addr <= value && value < c.addr + c.size as u64)
    };
    let mut all: BTreeMap<u64, (String, u64)> = BTreeMap::new();
    for e in d[table.offset..table.offset + table.size].chunks(24) {
        let (value, size) = (u64_at(e, 8), u64_at(e, 16));
        if e[4] & 15 == 2 && size > 0 && holds(value) {
            let at = strings.offset + u32_at(e, 0) as usize;
            let len = d[at..].iter().position(|&b| b == 0).unwrap();
            all.insert(
                value,
                (
                    String::from_utf8_lossy(&d[at..at + len]).into_owned(),
                    value + size,
                ),
            );
        }
    }
    all.into_iter().map(|(a, (n, e))| (n, a, e)).collect()
}

/// Puts the new segment at the end, to its place in the file and its address, and has the spare program
/// header and that of the search table say so.
pub(super) fn put_segment(
    out: &mut Vec<u8>,
    d: &[u8],
    new: &[u8],
    (file_at, segment): (usize, u64),
    (hdr_at, hdr_len): (u64, u64),
) {
    out.resize(file_at, 0);
    out.extend(new);
    for i in 0..u16_at(d, 56) as usize {
        let p = u64_at(d, 32) as usize + 56 * i;
        let set = |out: &mut Vec<u8>, at: usize, v: u64| {
            out[p + at..p + at + 8].copy_from_slice(&v.to_le_bytes())
        };
        match u32_at(d, p) {
            0 => {
                out[p..p + 8].copy_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
                for (at, v) in [
                    (8, file_at as u64),
                    (16, segment),
                    (24, segment),
                    (32, new.len() as u64),
                    (40, new.len() as u64),
                    (48, page(d)),
                ] {
                    set(out, at, v);
                }
            }
            0x6474_e550 => {
                for (at, v) in [
                    (8, file_at as u64 + hdr_at - segment),
                    (16, hdr_at),
                    (24, hdr_at),
                    (32, hdr_len),
                    (40, hdr_len),
                ] {
                    set(out, at, v);
                }
            }
            _ => {}
        }
    }
}

/// Puts a note at the end, and section headers with one for it after that.
pub(super) fn put_note(out: &mut Vec<u8>, d: &[u8], note: &[u8]) {
    let note_at = out.len().next_multiple_of(4);
    out.resize(note_at, 0);
    out.extend(note);
    out.resize(out.len().next_multiple_of(8), 0);
    let table_offset = out.len();
    let n = u16_at(d, 60);
    let mut headers = d[u64_at(d, 40) as usize..][..64 * usize::from(n)].to_vec();
    headers.extend([0u8; 64]);
    let h = 64 * usize::from(n);
    headers[h + 4] = 7;
    headers[h + 24..h + 32].copy_from_slice(&(note_at as u64).to_le_bytes());
    headers[h + 32..h + 40].copy_from_slice(&(note.len() as u64).to_le_bytes());
    out.extend(headers);
    out[40..48].copy_from_slice(&(table_offset as u64).to_le_bytes());
    out[60..62].copy_from_slice(&(n + 1).to_le_bytes());
}

/// The largest page that a machine's kernels have.
pub(super) fn page(d: &[u8]) -> u64 {
    if is_a64(d) { 0x10000 } else { 4096 }
}
