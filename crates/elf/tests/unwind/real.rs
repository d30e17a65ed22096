//! Every FDE and LSDA of real files: rows as gimli reads them, and everything that is written read again.

use gimli::UnwindSection;
use postlink_elf::elf::Elf;
use postlink_elf::unwind::eh_frame::{EhFrame, merged_sizes, write_merged};
use postlink_elf::unwind::lsda::Lsda;
use postlink_elf::unwind::pointer::Bases;
use postlink_elf::unwind::rows;

use crate::common::{
    Gimli, corpus, encoded_again, part, read_elf, same_but_args, starting_programs, table,
};

#[derive(Default, Debug)]
struct Seen {
    files: usize,
    cies: usize,
    fdes: usize,
    discarded: usize,
    rows: usize,
    args_differ: usize,
    gimli_refuses: usize,
    old_bytes: usize,
    new_bytes: usize,
    old_padded: usize,
    new_padded_4: usize,
    new_padded_8: usize,
}

/// Instructions without the padding after them.
fn unpadded(mut instructions: &[u8]) -> usize {
    while let [rest @ .., 0] = instructions {
        instructions = rest;
    }
    instructions.len()
}

fn compare_rows(elf: &Elf<'_>, seen: &mut Seen) {
    let (table, data) = table(elf);
    let mut gimli = Gimli::new(data, table.addr, &table.bases, elf.machine);
    seen.files += 1;
    seen.cies += table.cies.len();
    // gimli stops at the first end marker; up to there both must see the same entries.
    let offsets: std::collections::HashSet<u64> = table.fdes.iter().map(|f| f.offset).collect();
    let mut entries = gimli.section.entries(&gimli.bases);
    let mut count = 0;
    while let Some(entry) = entries.next().expect("gimli reads the entries") {
        let gimli::CieOrFde::Fde(fde) = entry else {
            continue;
        };
        count += 1;
        assert!(offsets.contains(&(fde.offset() as u64)));
    }
    assert!(count <= table.fdes.len());
    for fde in &table.fdes {
        let cie = &table.cies[fde.cie];
        let theirs = gimli.fde(fde.offset);
        let address = |p: gimli::Pointer| p.pointer();
        // A null pointer stays null for us and for run-time readers; gimli adds the base to it.
        if fde.start != 0 {
            assert_eq!(theirs.initial_address(), fde.start);
        }
        assert_eq!(theirs.len(), fde.len);
        if let Some(lsda) = fde.lsda {
            assert_eq!(theirs.lsda().map(address), Some(lsda));
        }
        assert_eq!(theirs.cie().offset() as u64, cie.offset);
        assert_eq!(
            theirs.cie().personality().map(address),
            cie.personality.map(|p| p.1)
        );
        assert_eq!(
            theirs.cie().return_address_register().0,
            cie.ra_register as u16
        );
        assert_eq!(theirs.cie().is_signal_trampoline(), cie.signal_frame);
        seen.fdes += 1;
        seen.discarded += usize::from(fde.is_discarded());

        let ours =
            rows::rows(cie, fde).unwrap_or_else(|e| panic!("rows of {:#x}: {}", fde.start, e.what));
        seen.rows += ours.len();
        let expected = match gimli.rows(&theirs) {
            // Half of a frame address after an expression: run-time unwinders know what that means, gimli does not.
            Err(gimli::Error::CfiInstructionInInvalidContext)
                if fde.instructions.contains(&0x0f) =>
            {
                seen.gimli_refuses += 1;
                continue;
            }
            expected => expected.expect("gimli reads the rows"),
        };
        // gimli restores the argument size with the other state; libgcc, and we, do not.
        if fde.instructions.contains(&0x2e) && fde.instructions.contains(&0x0b) && ours != expected
        {
            seen.args_differ += 1;
            let at =
                |rows: &[(u64, rows::Row<'_>)], offset| rows.iter().rposition(|r| r.0 <= offset);
            for offset in ours.iter().chain(&expected).map(|r| r.0) {
                let (a, b) = (
                    at(&ours, offset).expect("first at 0"),
                    at(&expected, offset).expect("first at 0"),
                );
                assert!(
                    same_but_args(&ours[a].1, &expected[b].1),
                    "at {:#x}+{offset:#x}",
                    fde.start
                );
            }
        } else {
            assert_eq!(ours, expected, "rows of {:#x}", fde.start);
        }
    }
}

fn compare_encoding(elf: &Elf<'_>, seen: &mut Seen) {
    let (table, _) = table(elf);
    for (fde, new) in table
        .fdes
        .iter()
        .filter(|f| !f.is_discarded())
        .zip(encoded_again(&table, 0))
    {
        let again = postlink_elf::unwind::eh_frame::Fde {
            instructions: &new.instructions,
            bytes: &new.instructions,
            ..fde.clone()
        };
        let cie = &table.cies[fde.cie];
        let (old, new_rows) = (rows::rows(cie, fde), rows::rows(cie, &again));
        assert_eq!(
            old, new_rows,
            "rows of {:#x} after encoding {:02x?}",
            fde.start, new.instructions
        );
        let head = fde.bytes.len() - fde.instructions.len();
        seen.old_bytes += unpadded(fde.instructions);
        seen.new_bytes += new.instructions.len();
        seen.old_padded += fde.bytes.len();
        seen.new_padded_4 += (head + new.instructions.len()).next_multiple_of(4);
        seen.new_padded_8 += (head + new.instructions.len()).next_multiple_of(8);
    }
}

/// All old FDEs, and all of them again for code 256 MiB further on, in two parts each.
fn compare_merged(elf: &Elf<'_>) -> usize {
    let (old, _) = table(elf);
    const SHIFT: u64 = 0x1000_0000;
    let mut new = Vec::new();
    for fde in old.fdes.iter().filter(|f| !f.is_discarded()) {
        let cie = &old.cies[fde.cie];
        let initial = rows::initial_row(cie).expect("read before");
        let all = rows::rows(cie, fde).expect("read before");
        let middle = all.get(all.len() / 2).map_or(0, |r| r.0);
        for (from, to) in [(middle, fde.len), (0, middle)] {
            if from < to {
                let instructions =
                    rows::encode(cie, &initial, &part(&all, from, to)).expect("its own CIE");
                let start = fde.start + SHIFT + from;
                new.push(postlink_elf::unwind::eh_frame::NewFde {
                    cie: fde.cie,
                    start,
                    len: to - from,
                    lsda: fde.lsda,
                    instructions,
                });
            }
        }
    }
    let (frame_size, header_size) = merged_sizes(&old, &new);
    let (mut frame, mut header) = (
        vec![0xaa; frame_size as usize],
        vec![0xaa; header_size as usize],
    );
    let header_addr = elf.extent().1.next_multiple_of(0x1000) + 0x2000_0000;
    let frame_addr = header_addr + header_size.next_multiple_of(8);
    write_merged(&old, &new, frame_addr, &mut frame, header_addr, &mut header)
        .expect("within reach");

    let merged = EhFrame::parse_section(&frame, frame_addr, old.bases)
        .expect("what was written can be read");
    assert_eq!(merged.cies.len(), old.cies.len());
    assert_eq!(merged.fdes.len(), old.fdes.len() + new.len());
    for (a, b) in old.cies.iter().zip(&merged.cies) {
        assert_eq!(
            (a.personality, a.augmentation, a.instructions),
            (b.personality, b.augmentation, b.instructions)
        );
    }
    // The list ends with the marker, and gimli walks all of it.
    let mut gimli = Gimli::new(&frame, frame_addr, &old.bases, elf.machine);
    let mut entries = gimli.section.entries(&gimli.bases);
    let mut count = 0;
    while entries.next().expect("gimli reads the entries").is_some() {
        count += 1;
    }
    assert_eq!(count, merged.cies.len() + merged.fdes.len());
    assert_eq!(frame[frame.len() - 4..], [0; 4]);

    let mut bases = gimli::BaseAddresses::default()
        .set_eh_frame_hdr(header_addr)
        .set_eh_frame(frame_addr);
    bases = bases.set_got(old.bases.data.unwrap_or(0));
    let parsed = gimli::EhFrameHdr::new(&header, gimli::LittleEndian)
        .parse(&bases, 8)
        .expect("gimli reads the header");
    assert_eq!(parsed.eh_frame_ptr(), gimli::Pointer::Direct(frame_addr));
    if merged.fdes.iter().all(|f| f.is_discarded()) {
        assert!(parsed.table().is_none());
        return 0;
    }
    let search = parsed.table().expect("there is a table");
    let mut pairs = search.iter(&bases);
    let mut before = 0;
    let mut entries = 0;
    while let Some((code, _)) = pairs.next().expect("gimli reads the table") {
        assert!(code.pointer() > before, "ascending without duplicates");
        before = code.pointer();
        entries += 1;
    }
    let mut starts: Vec<_> = merged
        .fdes
        .iter()
        .filter(|f| !f.is_discarded())
        .map(|f| f.start)
        .collect();
    starts.dedup();
    assert_eq!(entries, starts.len());

    for fde in old.fdes.iter().filter(|f| !f.is_discarded()) {
        let cie = &old.cies[fde.cie];
        let expected = rows::rows(cie, fde).expect("read before");
        for shift in [0, SHIFT] {
            let ends = [fde.start + shift, fde.end() - 1 + shift];
            for addr in ends {
                let found = search.lookup(addr, &bases).expect("found");
                let offset = search.pointer_to_offset(found).expect("in the section").0 as u64;
                let theirs = gimli.fde(offset);
                assert!(
                    theirs.contains(addr)
                        || old
                            .fdes
                            .iter()
                            .filter(|f| f.start <= fde.end() && f.end() > fde.start)
                            .count()
                            > 1
                );
                if !theirs.contains(addr) {
                    continue;
                }
                assert_eq!(
                    theirs
                        .lsda()
                        .map(|p| p.pointer())
                        .filter(|_| fde.lsda.is_some()),
                    fde.lsda
                );
                let rows = match gimli.rows(&theirs) {
                    Err(gimli::Error::CfiInstructionInInvalidContext) if shift == 0 => continue,
                    rows => rows.expect("gimli reads the rows"),
                };
                let at = addr - shift - fde.start;
                let row = &expected.iter().rfind(|r| r.0 <= at).expect("first at 0").1;
                let got = &rows
                    .iter()
                    .rfind(|r| r.0 <= addr - theirs.initial_address())
                    .expect("first at 0")
                    .1;
                assert!(same_but_args(row, got), "row at {addr:#x}");
                let ours = merged.fde_at(addr).expect("covered");
                assert!(ours.start <= addr && addr < ours.end());
            }
        }
    }
    new.len()
}

#[test]
fn rows_of_real_files_are_as_gimli_reads_them_and_survive_encoding() {
    let mut seen = Seen::default();
    for path in corpus() {
        let Some(data) = read_elf(&path) else {
            continue;
        };
        let Ok(elf) = Elf::parse(&data) else {
            eprintln!("not readable: {}", path.display());
            continue;
        };
        let _where = OnPanic(&path);
        compare_rows(&elf, &mut seen);
        compare_encoding(&elf, &mut seen);
    }
    eprintln!("{seen:#?}");
    assert!(seen.files > 2 && seen.rows > seen.fdes && seen.fdes > 1000);
    // Compilers know more than rows tell, but not much.
    assert!(seen.new_bytes < seen.old_bytes + seen.old_bytes / 50);
}

#[test]
fn merged_tables_of_real_files_are_found_by_gimli_with_the_same_rows() {
    let mut written = 0;
    for path in corpus() {
        let Some(data) = read_elf(&path) else {
            continue;
        };
        let Ok(elf) = Elf::parse(&data) else { continue };
        let _where = OnPanic(&path);
        written += compare_merged(&elf);
    }
    eprintln!("{written} new FDEs");
    assert!(written > 1000);
}

#[test]
fn language_data_of_real_files_survives_encoding() {
    let (mut files, mut areas, mut sites, mut typed, mut specs, mut old, mut new) =
        (0, 0, 0, 0, 0, 0, 0);
    for path in corpus() {
        let Some(data) = read_elf(&path) else {
            continue;
        };
        let Ok(elf) = Elf::parse(&data) else { continue };
        let _where = OnPanic(&path);
        let (table, _) = table(&elf);
        let mut places: Vec<_> = table
            .fdes
            .iter()
            .filter_map(|f| Some((f.lsda?, f)))
            .collect();
        places.sort_by_key(|p| p.0);
        files += usize::from(!places.is_empty());
        for (i, (addr, fde)) in places.iter().enumerate() {
            let lsda = Lsda::parse(&elf, *addr, fde.start).unwrap_or_else(|e| panic!("{}", e.what));
            for site in &lsda.call_sites {
                assert!(
                    site.start >= fde.start && site.end() <= fde.end(),
                    "a call site outside its function"
                );
            }
            for at in [*addr, addr + 0x10_0001] {
                let out = lsda
                    .encode(&lsda.call_sites, fde.start, at)
                    .unwrap_or_else(|e| panic!("{}", e.what));
                let bases = Bases {
                    data: None,
                    position_independent: elf.etype == 3,
                };
                let again = Lsda::parse_bytes(&out, at, fde.start, &bases)
                    .unwrap_or_else(|e| panic!("{}", e.what));
                assert_eq!(again.call_sites, lsda.call_sites);
                assert!(again.same_tables(&lsda));
                if at == *addr {
                    let end = places.get(i + 1).map_or(*addr, |p| p.0);
                    // The next one's start bounds this one's size; a gap can be another section.
                    if end - addr < 2 * out.len() as u64 + 16 {
                        old += end - addr;
                        new += (out.len() as u64).next_multiple_of(4);
                    }
                }
            }
            areas += 1;
            sites += lsda.call_sites.len();
            typed += usize::from(!lsda.types.is_empty());
            specs += usize::from(!lsda.specs.is_empty());
        }
    }
    eprintln!(
        "{files} files, {areas} areas, {sites} call sites, {typed} with types, {specs} with specifications; {old} bytes became {new}"
    );
    assert!(areas > 500 && typed > 10);
}

const SIGNED: &str = r#"
struct Guard { int n; Guard(int); ~Guard(); };
extern "C" int other(int, ...);
int early(int n) {
  if (n < 3) return other(n);
  Guard a(n), b(other(n));
  try { n += other(n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10); } catch (int e) { n = e; } catch (...) { other(7); throw; }
  for (int i = 0; i < n; i++) if (other(i) == 4) return other(i) + 1;
  return n;
}
int wide(int n) { alignas(64) int room[1000]; other((long)room & 1); int *more = (int *)__builtin_alloca(n); return other(*more) + room[n]; }
int leaf(int n) { return n * 3; }
"#;

#[test]
fn aarch64_libraries_with_signed_return_addresses_are_read_and_written() {
    let _alone = starting_programs();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (source, output) = (dir.path().join("signed.cpp"), dir.path().join("signed.so"));
    std::fs::write(&source, SIGNED).expect("a temporary file");
    let (mut seen, mut signed) = (Seen::default(), 0);
    for protection in ["none", "pac-ret+leaf", "pac-ret+b-key", "standard"] {
        for optimisation in ["-O0", "-O2"] {
            let built = std::process::Command::new("clang++-19")
                .args([
                    "--target=aarch64-linux-gnu",
                    "-nostdlib",
                    "-shared",
                    "-fPIC",
                    "-fuse-ld=lld-19",
                    "-Wl,--eh-frame-hdr",
                ])
                .args(["-fasynchronous-unwind-tables", optimisation])
                .arg(format!("-mbranch-protection={protection}"))
                .arg(&source)
                .arg("-o")
                .arg(&output)
                .output();
            if !built.is_ok_and(|b| b.status.success()) {
                eprintln!("no clang++-19 with lld-19 for AArch64");
                return;
            }
            let data = std::fs::read(&output).expect("just built");
            let elf = Elf::parse(&data).expect("just built");
            let (table, _) = table(&elf);
            let key_b = table.cies.iter().any(|c| c.augmentation.contains(&b'B'));
            assert_eq!(key_b, protection == "pac-ret+b-key");
            for fde in &table.fdes {
                let all = rows::rows(&table.cies[fde.cie], fde).expect("a compiler's program");
                signed += all.iter().filter(|r| r.1.ra_signed).count();
                if let Some(lsda) = fde.lsda {
                    let lsda =
                        Lsda::parse(&elf, lsda, fde.start).unwrap_or_else(|e| panic!("{}", e.what));
                    let out = lsda
                        .encode(&lsda.call_sites, fde.start, lsda.addr)
                        .unwrap_or_else(|e| panic!("{}", e.what));
                    assert_eq!(
                        Lsda::parse_bytes(&out, lsda.addr, fde.start, &table.bases).as_ref(),
                        Ok(&lsda)
                    );
                }
            }
            compare_encoding(&elf, &mut seen);
            // gimli does not know the letter.
            if !key_b {
                compare_rows(&elf, &mut seen);
                compare_merged(&elf);
            }
        }
    }
    eprintln!("{signed} rows with a signed return address, {seen:?}");
    assert!(signed > 10);
}

/// Says which file a failure is about.
struct OnPanic<'a>(&'a std::path::Path);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in {}", self.0.display());
        }
    }
}
