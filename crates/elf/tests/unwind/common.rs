//! What the tests share: files to look at, and gimli's view of rows.

use std::path::PathBuf;

use gimli::UnwindSection;
use postlink_elf::elf::Elf;
use postlink_elf::unwind::eh_frame::{EhFrame, NewFde};
use postlink_elf::unwind::pointer::Bases;
use postlink_elf::unwind::rows::{self, CfaRule, RegRule, Row};

pub type Slice<'d> = gimli::EndianSlice<'d, gimli::LittleEndian>;

/// gimli's reader of one section.
pub struct Gimli<'d> {
    pub section: gimli::EhFrame<Slice<'d>>,
    pub bases: gimli::BaseAddresses,
    context: gimli::UnwindContext<usize>,
}

impl<'d> Gimli<'d> {
    pub fn new(data: &'d [u8], addr: u64, bases: &Bases, machine: u16) -> Self {
        let mut section = gimli::EhFrame::new(data, gimli::LittleEndian);
        if machine == 183 {
            section.set_vendor(gimli::Vendor::AArch64);
        }
        let mut all = gimli::BaseAddresses::default().set_eh_frame(addr);
        if let Some(data) = bases.data {
            all = all.set_got(data);
        }
        Gimli {
            section,
            bases: all,
            context: gimli::UnwindContext::new(),
        }
    }

    pub fn fde(&self, offset: u64) -> gimli::FrameDescriptionEntry<Slice<'d>> {
        self.section
            .fde_from_offset(
                &self.bases,
                gimli::EhFrameOffset(offset as usize),
                gimli::EhFrame::cie_from_offset,
            )
            .expect("gimli reads the FDE")
    }

    /// Rows as ours: offsets from the start, neighbours merged.
    pub fn rows(
        &mut self,
        fde: &gimli::FrameDescriptionEntry<Slice<'d>>,
    ) -> Result<Vec<(u64, Row<'d>)>, gimli::Error> {
        let mut rows: Vec<(u64, Row<'d>)> = Vec::new();
        let mut table = fde.rows(&self.section, &self.bases, &mut self.context)?;
        while let Some(row) = table.next_row()? {
            let offset = row.start_address() - fde.initial_address();
            let ours = convert(&self.section, row);
            // Rows without instructions: several changes at one place, or an advance to the end.
            if row.start_address() == row.end_address() && (offset > 0 || fde.len() > 0) {
                continue;
            }
            if rows.last().is_none_or(|last| last.1 != ours) {
                rows.push((offset, ours));
            }
        }
        Ok(rows)
    }
}

fn convert<'d>(section: &gimli::EhFrame<Slice<'d>>, row: &gimli::UnwindTableRow<usize>) -> Row<'d> {
    let bytes =
        |e: &gimli::UnwindExpression<usize>| e.get(section).expect("inside the section").0.slice();
    let mut out = Row {
        cfa: match row.cfa() {
            gimli::CfaRule::RegisterAndOffset { register, offset } => CfaRule::Offset {
                register: register.0,
                offset: *offset,
            },
            gimli::CfaRule::Expression(e) => CfaRule::Expression(bytes(e)),
        },
        args_size: row.saved_args_size(),
        ..Row::default()
    };
    for (register, rule) in row.registers() {
        let rule = match rule {
            gimli::RegisterRule::Undefined => RegRule::Undefined,
            gimli::RegisterRule::SameValue => RegRule::SameValue,
            gimli::RegisterRule::Offset(o) => RegRule::Offset(*o),
            gimli::RegisterRule::ValOffset(o) => RegRule::ValOffset(*o),
            gimli::RegisterRule::Register(r) => RegRule::Register(r.0),
            gimli::RegisterRule::Expression(e) => RegRule::Expression(bytes(e)),
            gimli::RegisterRule::ValExpression(e) => RegRule::ValExpression(bytes(e)),
            gimli::RegisterRule::Constant(value) => {
                assert_eq!(*register, gimli::AArch64::RA_SIGN_STATE);
                out.ra_signed = *value == 1;
                continue;
            }
            other => panic!("rule {other:?}"),
        };
        out.registers.push((register.0, rule));
    }
    out.registers.sort_by_key(|r| r.0);
    out
}

/// Same but for the argument size.
pub fn same_but_args(a: &Row<'_>, b: &Row<'_>) -> bool {
    (a.cfa, &a.registers[..], a.ra_signed) == (b.cfa, &b.registers[..], b.ra_signed)
}

/// The rows of `from..to`, counted from `from`.
pub fn part<'r, 'd>(rows: &'r [(u64, Row<'d>)], from: u64, to: u64) -> Vec<(u64, &'r Row<'d>)> {
    let mut out: Vec<(u64, &Row<'_>)> = Vec::new();
    for (offset, row) in rows.iter().filter(|r| r.0 < to) {
        if *offset <= from {
            out.clear();
        }
        out.push((offset.saturating_sub(from), row));
    }
    out
}

/// All FDEs of a table that describe code, encoded anew, with their code moved by `shift`.
pub fn encoded_again(table: &EhFrame<'_>, shift: u64) -> Vec<NewFde> {
    let initial: Vec<_> = table
        .cies
        .iter()
        .map(|c| rows::initial_row(c).expect("read before"))
        .collect();
    let live = table.fdes.iter().filter(|f| !f.is_discarded());
    live.map(|fde| {
        let cie = &table.cies[fde.cie];
        let all = rows::rows_from(cie, &initial[fde.cie], fde).expect("read before");
        let refs: Vec<_> = all.iter().map(|(o, r)| (*o, r)).collect();
        let instructions =
            rows::encode(cie, &initial[fde.cie], &refs).expect("rows of the CIE itself");
        NewFde {
            cie: fde.cie,
            start: fde.start + shift,
            len: fde.len,
            lsda: fde.lsda,
            instructions,
        }
    })
    .collect()
}

/// Held by tests that start programs. A program that is being written cannot be started, and between `fork`
/// and `exec` a child of another thread still holds the file open.
pub fn starting_programs() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock().unwrap_or_else(|failed| failed.into_inner())
}

/// A deterministic source of numbers.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }
}

/// A linked 64-bit little-endian ELF file with sections.
pub fn read_elf(path: &std::path::Path) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut file = std::fs::File::open(path).ok()?;
    let mut head = [0; 64];
    file.read_exact(&mut head).ok()?;
    let ok = head.starts_with(b"\x7fELF\x02\x01")
        && matches!(head[16], 2 | 3)
        && matches!(head[18], 62 | 183);
    ok.then(|| std::fs::read(path).ok()).flatten()
}

/// Files of this machine, and those that `POSTLINK_TEST_FILES` lists. With `POSTLINK_TEST_ALL` set: everything in the
/// usual places, however large.
pub fn corpus() -> Vec<PathBuf> {
    let all = std::env::var_os("POSTLINK_TEST_ALL").is_some();
    let mut files = vec![std::env::current_exe().expect("a running test has a file")];
    let fixed = [
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/lib/aarch64-linux-gnu/libc.so.6",
        "/usr/aarch64-linux-gnu/lib/libc.so.6",
        "/usr/aarch64-linux-gnu/lib/libstdc++.so.6",
    ];
    files.extend(fixed.map(PathBuf::from));
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default();
    let mut dirs = vec![(PathBuf::from("/usr/bin"), 40)];
    if all {
        dirs = vec![
            (PathBuf::from("/usr/bin"), usize::MAX),
            (PathBuf::from("/usr/lib/x86_64-linux-gnu"), usize::MAX),
        ];
        files.extend(
            [
                "/usr/lib/llvm-19/bin/llvm-bolt",
                "/usr/lib/llvm-14/lib/libclang-cpp.so.14",
            ]
            .map(PathBuf::from),
        );
    }
    let toolchains = std::fs::read_dir(home.join(".rustup/toolchains"))
        .into_iter()
        .flatten()
        .flatten();
    dirs.extend(toolchains.map(|t| (t.path().join("bin"), if all { usize::MAX } else { 1 })));
    for (dir, most) in dirs {
        let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|e| e.file_type().is_ok_and(|t| t.is_file()))
            .map(|e| e.path())
            .filter(|p| read_elf(p).is_some())
            .filter(|p| {
                all || std::fs::metadata(p).is_ok_and(|m| m.len() < 2 << 20 || p.ends_with("cargo"))
            })
            .collect();
        found.sort();
        let step = (found.len() / most).max(1);
        files.extend(found.into_iter().step_by(step).take(most));
    }
    let named = std::env::var_os("POSTLINK_TEST_FILES").unwrap_or_default();
    files.extend(std::env::split_paths(&named));
    files.retain(|f| f.exists());
    files
}

/// A file's table, with the section's bytes.
pub fn table<'d>(elf: &Elf<'d>) -> (EhFrame<'d>, &'d [u8]) {
    let table = EhFrame::parse(elf).expect("a real file's unwind table");
    let data = elf
        .section(".eh_frame")
        .map_or(&[][..], |(_, s)| elf.section_data(s));
    (table, data)
}
