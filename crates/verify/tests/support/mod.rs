//! A rewriter that is as small as it can be, to have real outputs to check and to spoil.
//!
//! It shares nothing with the checker (another decoder, its own tables) nor with the real rewriter. Functions
//! are cut into blocks, put in reverse order into a hot and a cold fragment with long jumps only, and get new
//! unwind tables, LSDAs and jump table entries. To have space for the new program header without moving
//! anything, the *input* already has a spare one: the linker's PT_GNU_PROPERTY, blanked out, which no program
//! needs.

#![allow(dead_code, unused_imports, clippy::type_complexity)]

mod a64;
mod area;
mod elf;
mod insn;
mod programs;

pub use elf::{functions, is_a64, offset, sections, u16_at, u32_at, u64_at};
pub use insn::I;
pub use programs::PROGRAMS;

use area::{read_area, read_uleb, sleb, uleb, write_area};
use elf::put32;
use gimli::{
    BaseAddresses, CfaRule, EhFrame, LittleEndian, RegisterRule, UnwindContext, UnwindSection,
};
use iced_x86::{Decoder, FlowControl, Instruction, Mnemonic, OpKind};
use insn::{SIGNED, decode, is_nop, is_short_cond, low_target, page_target};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

/// Compiles a program and returns it with its spare program header; `None` without the compiler.
pub fn compile(name: &str, source: &str, compiler: &str, flags: &[&str]) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let ext = if compiler.ends_with("++") { "cpp" } else { "c" };
    let (src, out) = (
        dir.path().join(format!("{name}.{ext}")),
        dir.path().join(name),
    );
    std::fs::write(&src, source).expect("the source can be written");
    let status = Command::new(compiler)
        .arg(&src)
        .arg("-o")
        .arg(&out)
        .args(["-O2", "-Wl,--build-id"])
        .args(flags)
        .status()
        .ok()?;
    assert!(status.success(), "{compiler} refused {name}");
    let mut file = std::fs::read(&out).expect("the compiler wrote its output");
    // Nothing in these programs reads their notes.
    let kind = if is_a64(&file) { 4 } else { 0x6474_e553 };
    let spare = (0..u16_at(&file, 56) as usize)
        .map(|i| u64_at(&file, 32) as usize + 56 * i)
        .find(|&at| u32_at(&file, at) == kind)
        .expect("the linker makes this program header");
    file[spare..spare + 56].fill(0);
    Some(file)
}

/// Runs a program image and returns its output and status.
pub fn run(image: &[u8], args: &[&str]) -> (String, Option<i32>) {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path: PathBuf = dir.path().join("program");
    std::fs::write(&path, image).expect("it can be written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let out = if is_a64(image) {
        let mut command = Command::new("qemu-aarch64");
        match command
            .args(["-L", "/usr/aarch64-linux-gnu"])
            .arg(&path)
            .args(args)
            .output()
        {
            Ok(out) => out,
            Err(e) => {
                eprintln!("qemu-aarch64 is not here ({e}): the program is not run");
                return (String::new(), None);
            }
        }
    } else {
        // Another thread's child may hold the file open for a moment that was just written.
        let busy = |out: &std::io::Result<_>| {
            let error = out.as_ref().err().map(std::io::Error::kind);
            error == Some(std::io::ErrorKind::ExecutableFileBusy)
        };
        let mut out = Command::new(&path).args(args).output();
        for _ in 0..100 {
            if !busy(&out) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            out = Command::new(&path).args(args).output();
        }
        out.expect("it starts")
    };
    (
        String::from_utf8_lossy(&out.stdout).into_owned(),
        out.status.code(),
    )
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Change pointers in data and addresses in code too, not only calls.
    pub pointers: bool,
    /// Write jumps at the old entries.
    pub entry_jumps: bool,
    /// Move also functions that pointers may not follow because of what is in front of them.
    pub any_front: bool,
    /// Place every fragment so many bytes after a multiple of 16.
    pub shift: u64,
    /// As if no relocations had been kept: tables stay, and jumps through them continue in old code.
    pub bare: bool,
}

#[derive(Clone, Debug)]
struct Block {
    start: u64,
    end: u64,
    insns: Vec<I>,
}

#[derive(Clone, Debug)]
struct Moved {
    start: u64,
    end: u64,
    /// New order: indices of blocks, hot then cold.
    hot: Vec<usize>,
    cold: Vec<usize>,
    blocks: Vec<Block>,
    /// New ranges.
    new: Vec<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub struct Rewritten {
    pub image: Vec<u8>,
    /// (name, old entry, new ranges)
    pub moved: Vec<(String, u64, Vec<(u64, u64)>)>,
}

/// Entries of relative jump tables that belong to a function: (address of the entry, base, label).
fn table_entries(d: &[u8], insns: &[I], start: u64, end: u64) -> Vec<(u64, u64, u64)> {
    let jumps = |i: &Instruction| {
        i.flow_control() == FlowControl::IndirectBranch && i.op0_kind() == OpKind::Register
    };
    if !insns.iter().filter_map(I::x86).any(jumps) {
        return Vec::new();
    }
    let bases: BTreeSet<u64> = insns
        .iter()
        .filter(|i| i.mnemonic() == Mnemonic::Lea && i.is_ip_rel_memory_operand())
        .map(|i| i.ip_rel_memory_address())
        .collect();
    let mut out = Vec::new();
    for &base in &bases {
        let next = bases.range(base + 1..).next().copied().unwrap_or(u64::MAX);
        let mut at = base;
        while at < next {
            let word = u32_at(d, offset(d, at)) as i32;
            let label = base.wrapping_add_signed(i64::from(word));
            if word == 0 || label < start || label >= end {
                break;
            }
            out.push((at, base, label));
            at += 4;
        }
    }
    out
}

/// Moves the named functions (all if empty).
pub fn rewrite(input: &[u8], names: &[&str], options: Options) -> Rewritten {
    let d = input;
    let mut out = d.to_vec();
    let all = functions(d);
    let chosen: Vec<_> = all
        .iter()
        .filter(|f| {
            names.is_empty() && (f.0.starts_with("_Z") || !f.0.starts_with('_'))
                || names.contains(&f.0.as_str())
        })
        // Pointers may not follow what is after start-up code without a size: what is in front of it could be anything.
        .filter(|f| {
            let before = all.iter().filter(|g| g.2 <= f.1).map(|g| g.2).max();
            !options.pointers || options.any_front || before.is_some_and(|end| f.1 - end < 16)
        })
        .cloned()
        .collect();
    let loads: Vec<usize> = (0..u16_at(d, 56) as usize)
        .map(|i| u64_at(d, 32) as usize + 56 * i)
        .filter(|&p| u32_at(d, p) == 1)
        .collect();
    let limit = loads
        .iter()
        .map(|&p| u64_at(d, p + 16) + u64_at(d, p + 40))
        .max()
        .unwrap();
    let page = elf::page(d);
    let segment = limit.next_multiple_of(page) + page;
    let file_at = d.len().next_multiple_of(page as usize);

    // Old unwind table.
    let ss = sections(d);
    let eh = ss
        .iter()
        .find(|s| s.name == ".eh_frame")
        .expect("there is an unwind table")
        .clone();
    let frame_bytes = &d[eh.offset..eh.offset + eh.size];
    let mut frame = EhFrame::new(frame_bytes, LittleEndian);
    if is_a64(d) {
        frame.set_vendor(gimli::Vendor::AArch64);
    }
    let frame = frame;
    let bases = BaseAddresses::default().set_eh_frame(eh.addr);
    let fde_of = |start: u64| {
        frame
            .fde_for_address(&bases, start, |s, b, o| s.cie_from_offset(b, o))
            .ok()
    };

    // Cut into blocks.
    let mut moved: Vec<Moved> = Vec::new();
    for (_, start, end) in &chosen {
        let (start, end) = (*start, *end);
        let insns = decode(d, start, end);
        let mut leaders: BTreeSet<u64> = BTreeSet::from([start]);
        for i in &insns {
            if i.is_jcc_short_or_near() || i.is_jmp_short_or_near() || is_short_cond(i) {
                if (start..end).contains(&i.near_branch_target()) {
                    leaders.insert(i.near_branch_target());
                }
                leaders.insert(i.next_ip());
            }
        }
        for (_, _, label) in table_entries(d, &insns, start, end) {
            leaders.insert(label);
        }
        for table in a64::tables(d, &insns) {
            leaders.extend(table.labels);
        }
        if let Some(fde) = fde_of(start)
            && let Some(gimli::Pointer::Direct(lsda)) = fde.lsda()
        {
            for s in read_area(d, lsda, start).sites {
                if s.2 != 0 {
                    leaders.insert(s.2);
                }
            }
        }
        let mut blocks: Vec<Block> = Vec::new();
        for i in insns {
            if leaders.contains(&i.ip()) {
                blocks.push(Block {
                    start: i.ip(),
                    end: i.ip(),
                    insns: Vec::new(),
                });
            }
            let b = blocks.last_mut().expect("the start is a leader");
            b.end = i.next_ip();
            b.insns.push(i);
        }
        let hot_count = blocks.len() - blocks.len() / 3;
        let mut hot: Vec<usize> = (1..hot_count).rev().collect();
        hot.insert(0, 0);
        moved.push(Moved {
            start,
            end,
            hot,
            cold: (hot_count..blocks.len()).rev().collect(),
            blocks,
            new: Vec::new(),
        });
    }

    let arm = is_a64(d);
    let jump_len = if arm { 4 } else { 5 };
    // Addresses: every length is known beforehand, since only long forms are used.
    let size_of = |m: &Moved, order: &[usize], k: usize| -> u64 {
        let b = &m.blocks[order[k]];
        let body: u64 = b
            .insns
            .iter()
            .map(|i| match () {
                _ if let I::A64(w) = i => w.new_len(),
                _ if is_nop(i) => 0,
                _ if is_short_cond(i) => 9,
                _ if i.is_jcc_short_or_near() => 6,
                _ if i.is_jmp_short_or_near() => 5,
                _ => i.len() as u64,
            })
            .sum();
        body + if needs_jump(m, order, k) { jump_len } else { 0 }
    };
    let mut address: BTreeMap<u64, u64> = BTreeMap::new();
    let mut at = segment + 64;
    for m in &mut moved {
        for order in [m.hot.clone(), m.cold.clone()] {
            if order.is_empty() {
                continue;
            }
            at = at.next_multiple_of(16) + options.shift;
            let start = at;
            for k in 0..order.len() {
                address.insert(m.blocks[order[k]].start, at);
                at += size_of(m, &order, k);
            }
            m.new.push((start, at));
            at += if arm { 4 } else { 7 };
        }
    }
    // Veneers, and new tables.
    let mut veneers: BTreeMap<u64, u64> = BTreeMap::new();
    let mut tables: Vec<(a64::Table, u64)> = Vec::new();
    if arm {
        at = at.next_multiple_of(16);
        for i in moved
            .iter()
            .flat_map(|m| &m.blocks)
            .flat_map(|b| &b.insns)
            .filter(|i| i.is_call_near())
        {
            let target = i.near_branch_target();
            // A guarded program's veneers may lead to landing pads alone.
            let lands = !ss.iter().any(|s| s.name == ".note.gnu.property")
                || u32_at(d, offset(d, target)) == 0xd503_245f;
            if lands && !moved.iter().any(|m| m.start == target) && !veneers.contains_key(&target) {
                veneers.insert(target, at);
                at += 12;
            }
        }
        for m in &moved {
            let insns: Vec<I> = m.blocks.iter().flat_map(|b| b.insns.clone()).collect();
            // Every other function keeps its table, and its old labels jump to the new ones.
            for t in a64::tables(d, &insns)
                .into_iter()
                .filter(|_| m.start / 64 % 2 == 0)
            {
                let count = t.labels.len() as u64;
                tables.push((t, at));
                at += 4 * count;
            }
        }
    }
    let code_end = at.next_multiple_of(64);
    // int3, or udf.
    let mut new = vec![if arm { 0 } else { 0xccu8 }; (code_end - segment) as usize];
    for (&target, &at) in &veneers {
        for (n, w) in a64::veneer(at, target).into_iter().enumerate() {
            put32(
                &mut new,
                (at - segment) as usize + 4 * n,
                i64::from(w as i32),
            );
        }
    }
    let entries: BTreeMap<u64, u64> = moved.iter().map(|m| (m.start, m.new[0].0)).collect();
    let go = |t: u64| entries.get(&t).copied().unwrap_or(t);

    // Code, and for each new instruction the old one it came from.
    let mut origin: Vec<Vec<(u64, u64, u64)>> = Vec::new();
    for m in &moved {
        let mut from = Vec::new();
        // Instructions of table jumps, written anew.
        let mut jumps: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        if arm {
            let words: BTreeMap<u64, a64::Word> = m
                .blocks
                .iter()
                .flat_map(|b| &b.insns)
                .filter_map(|i| Some((i.ip(), i.a64()?)))
                .collect();
            for (t, table) in tables.iter().filter(|t| (m.start..m.end).contains(&t.0.at)) {
                let start = m
                    .blocks
                    .iter()
                    .rev()
                    .find(|b| b.start <= t.at)
                    .expect("it is in a block");
                let place = |old: u64| {
                    let before = start
                        .insns
                        .iter()
                        .filter(|i| i.ip() < old)
                        .filter_map(I::a64);
                    address[&start.start] + before.map(a64::Word::new_len).sum::<u64>()
                };
                let base = address[&m.start];
                jumps.extend(a64::table_jump(&words, t, *table, base, place));
                for (n, label) in t.labels.iter().enumerate() {
                    let entry = (address[label] as i64 - base as i64) / 4;
                    put32(&mut new, (table - segment) as usize + 4 * n, entry);
                }
            }
        }
        for order in [&m.hot, &m.cold] {
            for k in 0..order.len() {
                let b = &m.blocks[order[k]];
                let mut at = address[&b.start];
                let inside = |t: u64| {
                    if (m.start..m.end).contains(&t) {
                        address[&t]
                    } else {
                        go(t)
                    }
                };
                let last = b.insns.len() - 1;
                for (n, i) in b.insns.iter().enumerate() {
                    if is_nop(i) {
                        continue;
                    }
                    let here = (at - segment) as usize;
                    let bytes = &d[offset(d, i.ip())..][..i.len()];
                    let len;
                    if let I::A64(w) = *i {
                        let next_block = order.get(k + 1).map(|&x| m.blocks[x].start);
                        let words = if let Some(words) = jumps.get(&w.ip) {
                            words.clone()
                        } else if w.is_cond() {
                            let invert = n == last
                                && next_block == Some(w.target())
                                && address.contains_key(&i.next_ip());
                            a64::cond(
                                w,
                                invert,
                                at,
                                inside(if invert { i.next_ip() } else { w.target() }),
                            )
                        } else if w.is_jump() {
                            vec![a64::b(at, inside(w.target()))]
                        } else if w.is_call() {
                            vec![a64::bl(
                                at,
                                veneers
                                    .get(&w.target())
                                    .copied()
                                    .unwrap_or_else(|| go(w.target())),
                            )]
                        } else if w.is_adr() {
                            let to = if options.pointers {
                                go(w.target())
                            } else {
                                w.target()
                            };
                            vec![
                                a64::adrp(w.w & 31, at, to),
                                a64::add(w.w & 31, w.w & 31, to),
                            ]
                        } else if w.is_literal() {
                            let (to, reg) = (w.target(), w.w & 31);
                            let wide = w.w >> 30 == 1;
                            let scale = if wide { 3 } else { 2 };
                            let form =
                                [0xb940_0000u32, 0xf940_0000, 0xb980_0000][(w.w >> 30) as usize];
                            vec![
                                a64::adrp(reg, at, to),
                                form | (to as u32 & 0xfff) >> scale << 10 | reg << 5 | reg,
                            ]
                        } else if w.is_adrp() {
                            let to = page_target(&b.insns, n)
                                .map_or(w.target(), |t| if options.pointers { go(t) } else { t });
                            vec![a64::adrp(w.w & 31, at, to)]
                        } else if let Some(to) = low_target(&b.insns, n)
                            .filter(|t| options.pointers && entries.contains_key(t))
                        {
                            vec![w.w & !0x003f_fc00 | (go(to) as u32 & 0xfff) << 10]
                        } else {
                            vec![w.w]
                        };
                        assert_eq!(4 * words.len() as u64, w.new_len(), "{w:x?}");
                        len = 4 * words.len() as u64;
                        for (n, w) in words.into_iter().enumerate() {
                            put32(&mut new, here + 4 * n, i64::from(w as i32));
                        }
                    } else if is_short_cond(i) {
                        len = 9;
                        new[here..here + 4].copy_from_slice(&[bytes[0], 2, 0xeb, 5]);
                        new[here + 4] = 0xe9;
                        put32(
                            &mut new,
                            here + 5,
                            inside(i.near_branch_target()) as i64 - (at as i64 + 9),
                        );
                    } else if i.is_jcc_short_or_near() {
                        len = 6;
                        let mut cc = bytes
                            .iter()
                            .find(|b| (0x70..0x90).contains(*b))
                            .expect("a conditional branch has its condition")
                            & 15;
                        let fall = i.next_ip();
                        let mut target = i.near_branch_target();
                        if n == last
                            && order
                                .get(k + 1)
                                .is_some_and(|&x| m.blocks[x].start == target)
                            && address.contains_key(&fall)
                        {
                            cc ^= 1;
                            target = fall;
                        }
                        new[here..here + 2].copy_from_slice(&[0x0f, 0x80 | cc]);
                        put32(&mut new, here + 2, inside(target) as i64 - (at as i64 + 6));
                    } else if i.is_jmp_short_or_near() {
                        len = 5;
                        new[here] = 0xe9;
                        put32(
                            &mut new,
                            here + 1,
                            inside(i.near_branch_target()) as i64 - (at as i64 + 5),
                        );
                    } else {
                        len = i.len() as u64;
                        new[here..here + i.len()].copy_from_slice(bytes);
                        if i.is_call_near() {
                            put32(
                                &mut new,
                                here + i.len() - 4,
                                go(i.near_branch_target()) as i64 - (at as i64 + len as i64),
                            );
                        } else if i.is_ip_rel_memory_operand() {
                            let mut target = i.ip_rel_memory_address();
                            if options.pointers && i.mnemonic() == Mnemonic::Lea {
                                target = go(target);
                            }
                            let field = Decoder::with_ip(64, bytes, i.ip(), 0).decode_and_offsets();
                            put32(
                                &mut new,
                                here + field,
                                target as i64 - (at as i64 + len as i64),
                            );
                        }
                    }
                    from.push((at, at + len, i.ip()));
                    at += len;
                }
                if needs_jump(m, order, k) {
                    let here = (at - segment) as usize;
                    // The way that the last branch does not take.
                    let mut to = b.end;
                    if let Some(i) = b.insns.last()
                        && i.is_jcc_short_or_near()
                        && order
                            .get(k + 1)
                            .is_some_and(|&x| m.blocks[x].start == i.near_branch_target())
                    {
                        to = i.near_branch_target();
                    }
                    if arm {
                        put32(&mut new, here, i64::from(a64::b(at, inside(to)) as i32));
                    } else {
                        new[here] = 0xe9;
                        put32(&mut new, here + 1, inside(to) as i64 - (at as i64 + 5));
                    }
                    from.push((at, at + jump_len, to));
                }
            }
        }
        from.sort();
        origin.push(from);
    }

    // Jump tables, old entries, staying calls, pointers.
    for m in &moved {
        let insns: Vec<I> = m.blocks.iter().flat_map(|b| b.insns.clone()).collect();
        let entries_of_tables = if options.bare {
            Vec::new()
        } else {
            table_entries(d, &insns, m.start, m.end)
        };
        for (at, base, label) in entries_of_tables {
            let o = offset(d, at);
            // What is no instruction's start was no table entry.
            if let Some(&new) = address.get(&label) {
                put32(&mut out, o, new as i64 - base as i64);
            }
        }
        for t in a64::tables(d, &insns)
            .iter()
            .filter(|t| !tables.iter().any(|x| x.0.at == t.at))
        {
            for label in &t.labels {
                // After a landing pad, which stays.
                let behind = if u32_at(d, offset(d, *label)) & 0xffff_ff3f == 0xd503_241f {
                    4
                } else {
                    0
                };
                let (o, to) = (offset(d, *label) + behind, address[label]);
                out[o..o + 4].copy_from_slice(
                    &a64::b(label + behind as u64, to + behind as u64).to_le_bytes(),
                );
            }
        }
        if options.entry_jumps && arm && m.end - m.start >= 8 {
            let o = offset(d, m.start);
            let skip = if matches!(u32_at(d, o), 0xd503_245f | 0xd503_24df) {
                4
            } else {
                0
            };
            let jump = a64::b(m.start + skip, m.new[0].0);
            if matches!(u32_at(d, o), 0xd503_233f) {
                // paciasp let calls in; bti c does that alone.
                out[o..o + 4].copy_from_slice(&0xd503_245fu32.to_le_bytes());
                out[o + 4..o + 8].copy_from_slice(&a64::b(m.start + 4, m.new[0].0).to_le_bytes());
            } else {
                out[o + skip as usize..o + skip as usize + 4].copy_from_slice(&jump.to_le_bytes());
            }
        } else if options.entry_jumps && !arm && m.end - m.start >= 9 {
            let o = offset(d, m.start);
            let skip = if d[o..].starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
                4
            } else {
                0
            };
            out[o + skip] = 0xe9;
            put32(
                &mut out,
                o + skip + 1,
                m.new[0].0 as i64 - (m.start as i64 + skip as i64 + 5),
            );
        }
    }
    for (_, start, end) in &all {
        if entries.contains_key(start) || options.bare {
            continue;
        }
        for (n, i) in decode(d, *start, *end).iter().enumerate() {
            let o = offset(d, i.ip());
            if let I::A64(w) = *i {
                let all = decode(d, *start, *end);
                if w.is_call() && entries.contains_key(&w.target()) {
                    out[o..o + 4].copy_from_slice(&a64::bl(w.ip, go(w.target())).to_le_bytes());
                } else if options.pointers
                    && w.is_adrp()
                    && page_target(&all, n).is_some_and(|t| entries.contains_key(&t))
                {
                    let to = page_target(&all, n).map(&go).expect("it was found");
                    out[o..o + 4].copy_from_slice(&a64::adrp(w.w & 31, w.ip, to).to_le_bytes());
                } else if let Some(to) =
                    low_target(&all, n).filter(|t| options.pointers && entries.contains_key(t))
                {
                    let low = w.w & !0x003f_fc00 | (go(to) as u32 & 0xfff) << 10;
                    out[o..o + 4].copy_from_slice(&low.to_le_bytes());
                }
            } else if i.is_call_near() && entries.contains_key(&i.near_branch_target()) {
                put32(
                    &mut out,
                    o + i.len() - 4,
                    go(i.near_branch_target()) as i64 - i.next_ip() as i64,
                );
            } else if options.pointers
                && i.mnemonic() == Mnemonic::Lea
                && i.is_ip_rel_memory_operand()
                && entries.contains_key(&i.ip_rel_memory_address())
            {
                put32(
                    &mut out,
                    o + i.len() - 4,
                    go(i.ip_rel_memory_address()) as i64 - i.next_ip() as i64,
                );
            }
        }
    }
    if options.pointers {
        for s in ss.iter().filter(|s| s.kind == 4 && s.flags & 2 != 0) {
            for at in (s.offset..s.offset + s.size).step_by(24) {
                if matches!(u32_at(d, at + 8), 8 | 1027) {
                    let to = go(u64_at(d, at + 16));
                    out[at + 16..at + 24].copy_from_slice(&to.to_le_bytes());
                }
            }
        }
        // SHT_RELR: an even word is a place, an odd one a bitmap of the 63 words after the last.
        for s in ss.iter().filter(|s| s.kind == 19) {
            let mut next = 0u64;
            for w in d[s.offset..s.offset + s.size]
                .chunks(8)
                .map(|w| u64_at(w, 0))
            {
                let places: Vec<u64> = if w & 1 == 0 {
                    vec![w]
                } else {
                    (0..63)
                        .filter(|b| w >> (b + 1) & 1 != 0)
                        .map(|b| next + 8 * b)
                        .collect()
                };
                next = if w & 1 == 0 { w + 8 } else { next + 63 * 8 };
                for p in places {
                    let o = offset(d, p);
                    out[o..o + 8].copy_from_slice(&go(u64_at(d, o)).to_le_bytes());
                }
            }
        }
        for s in ss.iter().filter(|s| s.kind == 11) {
            for at in (s.offset + 24..s.offset + s.size).step_by(24) {
                let to = go(u64_at(d, at + 8));
                out[at + 8..at + 16].copy_from_slice(&to.to_le_bytes());
            }
        }
    }
    for s in ss.iter().filter(|s| s.kind == 2) {
        for at in (s.offset + 24..s.offset + s.size).step_by(24) {
            if d[at + 4] & 15 == 2 {
                let to = go(u64_at(d, at + 8));
                out[at + 8..at + 16].copy_from_slice(&to.to_le_bytes());
            }
        }
    }

    // Unwind tables: a copy of the old section, and new FDEs after it.
    let mut areas = Vec::new();
    let areas_at = code_end;
    let mut table: Vec<u8> = Vec::new();
    let mut search: Vec<(u64, u64)> = Vec::new();
    struct New {
        start: u64,
        end: u64,
        lsda: u64,
        cie: usize,
        program: Vec<u8>,
    }
    let mut fresh: Vec<New> = Vec::new();
    let mut context = UnwindContext::new();
    for (m, from) in moved.iter().zip(&origin) {
        let Some(fde) = fde_of(m.start) else { continue };
        let mut rows = Vec::new();
        let mut run = fde.rows(&frame, &bases, &mut context).expect("it runs");
        while let Some(row) = run.next_row().expect("it runs") {
            let CfaRule::RegisterAndOffset { register, offset } = row.cfa().clone() else {
                panic!("no expressions in tests")
            };
            let registers: BTreeMap<u16, i64> = row
                .registers()
                .map(|(r, rule)| match rule {
                    RegisterRule::Offset(o) => (r.0, *o),
                    // Whether the return address is signed.
                    RegisterRule::Constant(c) => (r.0, *c as i64),
                    other => panic!("{other:?} is not for tests"),
                })
                .collect();
            rows.push((
                row.start_address(),
                row.end_address(),
                register.0,
                offset,
                registers,
                row.saved_args_size(),
            ));
        }
        let row_at = |a: u64| {
            rows.iter()
                .find(|r| r.0 <= a && a < r.1)
                .expect("the FDE covers its function")
                .clone()
        };
        for &(start, end) in &m.new {
            let mut program = Vec::new();
            let (mut here, mut state) = (start, None);
            let mut signed = false;
            let unit = fde.cie().code_alignment_factor();
            for &(s, _, old) in from.iter().filter(|f| (start..end).contains(&f.0)) {
                let row = row_at(old);
                let now = (row.2, row.3, row.4, row.5);
                if state.as_ref() == Some(&now) {
                    continue;
                }
                if s > here {
                    program.push(4);
                    program.extend((((s - here) / unit) as u32).to_le_bytes());
                    here = s;
                }
                program.push(0x0c);
                uleb(&mut program, u64::from(now.0));
                uleb(&mut program, now.1 as u64);
                if state.as_ref().map_or(0, |s| s.3) != now.3 {
                    program.push(0x2e);
                    uleb(&mut program, now.3);
                }
                if let Some((_, _, before, _)) = &state {
                    let before: &BTreeMap<u16, i64> = before;
                    for r in before
                        .keys()
                        .filter(|r| !now.2.contains_key(r) && **r != SIGNED)
                    {
                        program.push(6);
                        uleb(&mut program, u64::from(*r));
                    }
                }
                if (now.2.get(&SIGNED) == Some(&1)) != signed {
                    program.push(0x2d);
                    signed = !signed;
                }
                for (r, o) in now.2.iter().filter(|(r, _)| **r != SIGNED) {
                    program.push(0x11);
                    uleb(&mut program, u64::from(*r));
                    sleb(&mut program, o / -8);
                }
                state = Some(now);
            }
            let mut lsda = 0;
            if let Some(gimli::Pointer::Direct(old)) = fde.lsda() {
                let area = read_area(d, old, m.start);
                let mut sites: Vec<(u64, u64, u64, u64)> = Vec::new();
                for &(s, e, old) in from.iter().filter(|f| (start..end).contains(&f.0)) {
                    let Some(site) = area.sites.iter().find(|x| x.0 <= old && old < x.1) else {
                        continue;
                    };
                    let pad = if site.2 == 0 { 0 } else { address[&site.2] };
                    match sites.last_mut() {
                        Some(l) if l.1 == s && (l.2, l.3) == (pad, site.3) => l.1 = e,
                        _ => sites.push((s, e, pad, site.3)),
                    }
                }
                while !(areas_at as usize + areas.len()).is_multiple_of(4) {
                    areas.push(0);
                }
                lsda = areas_at + areas.len() as u64;
                let encoding = d[offset(d, old) + 1];
                areas.extend(write_area(
                    &area, encoding, segment, &sites, start, lsda, segment,
                ));
            }
            fresh.push(New {
                start,
                end,
                lsda,
                cie: fde.cie().offset(),
                program,
            });
        }
    }
    let table_at = (areas_at + areas.len() as u64).next_multiple_of(8);
    areas.resize((table_at - areas_at) as usize, 0);
    // The old entries, moved: pointers relative to themselves lose the distance.
    let shift = table_at as i64 - eh.addr as i64;
    let mut at = 0usize;
    let mut lsda_encoded: BTreeMap<usize, Option<bool>> = BTreeMap::new();
    while at + 4 <= frame_bytes.len() && u32_at(frame_bytes, at) != 0 {
        let len = u32_at(frame_bytes, at) as usize + 4;
        let mut entry = frame_bytes[at..at + len].to_vec();
        let adjust = |entry: &mut [u8], p: usize| {
            let v = i64::from(u32_at(entry, p) as i32);
            if v != 0 {
                put32(entry, p, v - shift);
            }
        };
        let id = u32_at(&entry, 4) as usize;
        if id == 0 {
            let augmentation: Vec<u8> = entry[9..]
                .iter()
                .take_while(|b| **b != 0)
                .copied()
                .collect();
            let mut p = 9 + augmentation.len() + 1;
            read_uleb(&entry, &mut p);
            read_uleb(&entry, &mut p);
            read_uleb(&entry, &mut p);
            read_uleb(&entry, &mut p);
            let mut lsda_relative = None;
            for c in &augmentation[1..] {
                match c {
                    b'P' => {
                        if entry[p] & 0x70 == 0x10 {
                            adjust(&mut entry, p + 1);
                        }
                        p += 5;
                    }
                    b'S' => {}
                    b'L' => {
                        lsda_relative = Some(entry[p] & 0x70 == 0x10);
                        p += 1;
                    }
                    _ => p += 1,
                }
            }
            lsda_encoded.insert(at, lsda_relative);
        } else {
            let old_start =
                (eh.addr as i64 + at as i64 + 8 + i64::from(u32_at(&entry, 8) as i32)) as u64;
            adjust(&mut entry, 8);
            if lsda_encoded[&(at + 4 - id)] == Some(true) {
                adjust(&mut entry, 17);
            }
            search.push((old_start, table_at + at as u64));
        }
        table.extend(entry);
        at += len;
    }
    for f in fresh {
        let here = table.len();
        let mut e = Vec::new();
        e.extend([0u8; 4]);
        e.extend(((here + 4 - f.cie) as u32).to_le_bytes());
        e.extend(((f.start as i64 - (table_at as i64 + here as i64 + 8)) as i32).to_le_bytes());
        e.extend(((f.end - f.start) as u32).to_le_bytes());
        if let Some(relative) = lsda_encoded[&f.cie] {
            e.push(4);
            let base = if relative {
                table_at as i64 + here as i64 + 17
            } else {
                0
            };
            e.extend(
                if f.lsda == 0 {
                    0
                } else {
                    (f.lsda as i64 - base) as i32
                }
                .to_le_bytes(),
            );
        } else {
            e.push(0);
        }
        e.extend(f.program);
        e.resize(e.len().next_multiple_of(8), 0);
        let len = e.len() as u32 - 4;
        e[..4].copy_from_slice(&len.to_le_bytes());
        search.push((f.start, table_at + here as u64));
        table.extend(e);
    }
    table.extend([0; 4]);
    let hdr_at = (table_at + table.len() as u64).next_multiple_of(4);
    table.resize((hdr_at - table_at) as usize, 0);
    let mut hdr = vec![1, 0x1b, 3, 0x3b];
    hdr.extend(((table_at as i64 - (hdr_at as i64 + 4)) as i32).to_le_bytes());
    hdr.extend((search.len() as u32).to_le_bytes());
    search.sort();
    for (a, f) in search {
        hdr.extend(((a as i64 - hdr_at as i64) as i32).to_le_bytes());
        hdr.extend(((f as i64 - hdr_at as i64) as i32).to_le_bytes());
    }
    let hdr_len = hdr.len() as u64;
    new.extend(areas);
    new.extend(table);
    new.extend(hdr);

    elf::put_segment(&mut out, d, &new, (file_at, segment), (hdr_at, hdr_len));
    elf::put_note(&mut out, d, &note(d, &moved, options));
    let name = |a: u64| {
        chosen
            .iter()
            .find(|c| c.1 == a)
            .map(|c| c.0.clone())
            .unwrap_or_default()
    };
    let entry = if options.bare {
        u64_at(d, 24)
    } else {
        go(u64_at(d, 24))
    };
    out[24..32].copy_from_slice(&entry.to_le_bytes());
    Rewritten {
        image: out,
        moved: moved
            .iter()
            .map(|m| (name(m.start), m.start, m.new.clone()))
            .collect(),
    }
}

/// Whether a block's fall-through must become a jump.
fn needs_jump(m: &Moved, order: &[usize], k: usize) -> bool {
    let b = &m.blocks[order[k]];
    let Some(last) = b.insns.last() else {
        return false;
    };
    if last.ends() || b.end >= m.end {
        return false;
    }
    let next = order.get(k + 1).map(|&x| m.blocks[x].start);
    if last.is_jcc_short_or_near() && next == Some(last.near_branch_target()) {
        return false;
    }
    next != Some(b.end)
}

trait Offsets {
    fn decode_and_offsets(&mut self) -> usize;
}
impl Offsets for Decoder<'_> {
    fn decode_and_offsets(&mut self) -> usize {
        let i = self.decode();
        self.get_constant_offsets(&i).displacement_offset()
    }
}

/// The claim.
fn note(d: &[u8], moved: &[Moved], options: Options) -> Vec<u8> {
    let build_id = sections(d)
        .iter()
        .find(|s| s.name == ".note.gnu.build-id")
        .map(|s| d[s.offset + 16..s.offset + s.size].to_vec())
        .unwrap_or_default();
    let version = 1 + u8::from(options.bare);
    let mut desc = vec![version, 0, 0, 0, 1, build_id.len() as u8];
    desc.extend(build_id);
    if options.bare {
        // e_type 2 is a fixed address.
        desc.extend([if u16_at(d, 16) == 2 { 2 } else { 1 }, 0]);
    }
    uleb(&mut desc, moved.len() as u64);
    let (mut previous, mut end) = (0u64, 0u64);
    for m in moved {
        uleb(&mut desc, m.start - previous);
        previous = m.start;
        uleb(&mut desc, 1);
        sleb(&mut desc, 0);
        uleb(&mut desc, m.end - m.start);
        uleb(&mut desc, m.new.len() as u64);
        for &(s, e) in &m.new {
            sleb(&mut desc, s.wrapping_sub(end) as i64);
            uleb(&mut desc, e - s);
            end = e;
        }
        uleb(&mut desc, 0);
        if options.bare {
            let jumps = options.entry_jumps && m.end - m.start >= 9;
            desc.extend([2 * u8::from(jumps), 0]);
            let insns = m.blocks.iter().flat_map(|b| &b.insns);
            let mut back: Vec<u64> = insns
                .filter_map(I::x86)
                .filter(|i| i.flow_control() == FlowControl::IndirectBranch)
                .filter(|i| !i.is_ip_rel_memory_operand())
                .map(Instruction::ip)
                .collect();
            back.sort_unstable();
            uleb(&mut desc, back.len() as u64);
            for (k, at) in back.iter().enumerate() {
                match k.checked_sub(1) {
                    None => sleb(&mut desc, at.wrapping_sub(m.start) as i64),
                    Some(before) => uleb(&mut desc, at - back[before]),
                }
            }
        }
    }
    let mut note = Vec::new();
    note.extend(9u32.to_le_bytes());
    note.extend((desc.len() as u32).to_le_bytes());
    note.extend(1u32.to_le_bytes());
    note.extend(b"postlink\0\0\0\0");
    note.extend(desc);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// The program with all functions moved as if no relocations had been kept, but for those that a checker refuses: it
/// is given input and output, and gives the old entries of what it cannot prove.
pub fn without_relocations(input: &[u8], refused: impl Fn(&[u8], &[u8]) -> Vec<u64>) -> Rewritten {
    let options = Options {
        pointers: false,
        entry_jumps: true,
        any_front: true,
        shift: 0,
        bare: true,
    };
    let mut rewritten = rewrite(input, &[], options);
    for _ in 0..4 {
        let failed = refused(input, &rewritten.image);
        if failed.is_empty() {
            break;
        }
        let stay = |m: &&(String, u64, Vec<(u64, u64)>)| !failed.contains(&m.1);
        let names: Vec<String> = rewritten
            .moved
            .iter()
            .filter(stay)
            .map(|m| m.0.clone())
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        rewritten = rewrite(input, &names, options);
    }
    rewritten
}
