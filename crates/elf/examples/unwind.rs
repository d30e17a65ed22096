//! Shows the unwind tables of an ELF file, and what becomes of them when they are written anew.
//!
//! ```text
//! cargo run --release -p postlink-elf --example unwind -- FILE            totals, and the time that each step takes
//! cargo run --release -p postlink-elf --example unwind -- FILE 0x401234   rows and call sites of the code at an
//! address
//! ```

use std::error::Error;
use std::time::Instant;

use postlink_elf::elf::Elf;
use postlink_elf::unwind::eh_frame::{EhFrame, Fde, NewFde, merged_sizes, write_merged};
use postlink_elf::unwind::lsda::Lsda;
use postlink_elf::unwind::rows::{self, CfaRule, RegRule, Row};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (path, addr) = (arguments.next(), arguments.next());
    let path = path.ok_or("usage: unwind FILE [ADDRESS]")?;
    let file = std::fs::File::open(&path).map_err(|e| format!("{path}: {e}"))?;
    // SAFETY: the file is not written while it is looked at.
    let data = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| format!("{path}: {e}"))?;
    let elf = Elf::parse(&data)?;
    match addr {
        Some(addr) => {
            let digits = addr.trim_start_matches("0x");
            let addr = u64::from_str_radix(digits, 16)
                .map_err(|e| format!("{addr} is no address: {e}"))?;
            let table = EhFrame::parse(&elf)?;
            let fde = table
                .fde_at(addr)
                .ok_or_else(|| format!("no unwind entry covers {addr:#x}"))?;
            show(&elf, &table, fde)
        }
        None => totals(&elf),
    }
}

/// One function.
fn show(elf: &Elf<'_>, table: &EhFrame<'_>, fde: &Fde<'_>) -> Result<(), Box<dyn Error>> {
    let cie = &table.cies[fde.cie];
    println!(
        "{:#x}..{:#x}  FDE at offset {:#x}, CIE at {:#x} \"{}\"",
        fde.start,
        fde.end(),
        fde.offset,
        cie.offset,
        cie.augmentation.escape_ascii()
    );
    let all = rows::rows(cie, fde)?;
    for (offset, row) in &all {
        println!("  {:#x}  {}", fde.start + offset, describe(row));
    }
    let refs: Vec<_> = all.iter().map(|(o, r)| (*o, r)).collect();
    let again = rows::encode(cie, &rows::initial_row(cie)?, &refs)?;
    println!(
        "  {} bytes of instructions, {} when encoded anew",
        fde.instructions.len(),
        again.len()
    );
    if let Some(at) = fde.lsda {
        let lsda = Lsda::parse(elf, at, fde.start)?;
        println!(
            "  LSDA at {at:#x}, {} types, {} bytes of actions",
            lsda.types.len(),
            lsda.actions.len()
        );
        for site in &lsda.call_sites {
            let pad = site
                .landing_pad
                .map_or_else(|| "none".to_string(), |p| format!("{p:#x}"));
            println!(
                "    {:#x}..{:#x}  landing pad {pad}, action {}",
                site.start,
                site.end(),
                site.action
            );
        }
    }
    Ok(())
}

fn describe(row: &Row<'_>) -> String {
    let mut text = match row.cfa {
        CfaRule::Offset { register, offset } => format!("CFA=r{register}{offset:+}"),
        CfaRule::Expression(e) => format!("CFA={e:02x?}"),
    };
    for (register, rule) in &row.registers {
        text += &match rule {
            RegRule::Undefined => format!(" r{register}=undefined"),
            RegRule::SameValue => format!(" r{register}=same"),
            RegRule::Offset(o) => format!(" r{register}=[CFA{o:+}]"),
            RegRule::ValOffset(o) => format!(" r{register}=CFA{o:+}"),
            RegRule::Register(other) => format!(" r{register}=r{other}"),
            RegRule::Expression(e) => format!(" r{register}=[{e:02x?}]"),
            RegRule::ValExpression(e) => format!(" r{register}={e:02x?}"),
        };
    }
    if row.args_size != 0 {
        text += &format!(" args={}", row.args_size);
    }
    if row.ra_signed {
        text += " signed";
    }
    text
}

/// The whole file.
fn totals(elf: &Elf<'_>) -> Result<(), Box<dyn Error>> {
    let mut clock = Clock(Instant::now());
    let table = EhFrame::parse(elf)?;
    clock.lap(&format!(
        "parse {} CIEs and {} FDEs",
        table.cies.len(),
        table.fdes.len()
    ));

    let initial = table
        .cies
        .iter()
        .map(rows::initial_row)
        .collect::<Result<Vec<_>, _>>()?;
    let mut count = 0;
    for fde in &table.fdes {
        rows::visit_rows(&table.cies[fde.cie], &initial[fde.cie], fde, |_, _| {
            count += 1;
            Ok(())
        })?;
    }
    clock.lap(&format!("visit {count} rows"));

    let mut new = Vec::with_capacity(table.fdes.len());
    for fde in table.fdes.iter().filter(|f| !f.is_discarded()) {
        let cie = &table.cies[fde.cie];
        let all = rows::rows_from(cie, &initial[fde.cie], fde)?;
        let refs: Vec<_> = all.iter().map(|(o, r)| (*o, r)).collect();
        let instructions = rows::encode(cie, &initial[fde.cie], &refs)?;
        new.push(NewFde {
            cie: fde.cie,
            start: fde.start,
            len: fde.len,
            lsda: fde.lsda,
            instructions,
        });
    }
    let old_size: usize = table.fdes.iter().map(|f| f.bytes.len()).sum();
    let cies = EhFrame {
        fdes: Vec::new(),
        ..table.clone()
    };
    let new_size = merged_sizes(&cies, &new).0 - merged_sizes(&cies, &[]).0;
    clock.lap(&format!(
        "collect rows and encode: FDEs of {old_size} bytes become {new_size}"
    ));

    let (frame, header) = merged_sizes(&table, &new);
    let (mut frame, mut header) = (vec![0; frame as usize], vec![0; header as usize]);
    let at = elf.extent().1.next_multiple_of(0x1000);
    write_merged(
        &table,
        &new,
        at + header.len() as u64,
        &mut frame,
        at,
        &mut header,
    )?;
    clock.lap(&format!(
        "write a table of both: {} and {} bytes",
        frame.len(),
        header.len()
    ));

    let (mut areas, mut sites, mut size) = (0, 0, 0);
    for fde in &table.fdes {
        let Some(at) = fde.lsda else { continue };
        let lsda = Lsda::parse(elf, at, fde.start)?;
        areas += 1;
        sites += lsda.call_sites.len();
        size += lsda.encode(&lsda.call_sites, fde.start, at)?.len();
    }
    clock.lap(&format!(
        "parse and encode {areas} LSDAs with {sites} call sites, {size} bytes"
    ));
    Ok(())
}

struct Clock(Instant);

impl Clock {
    fn lap(&mut self, what: &str) {
        println!("{:8.1} ms  {what}", self.0.elapsed().as_secs_f64() * 1e3);
        self.0 = Instant::now();
    }
}
