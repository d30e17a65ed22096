//! The program as `llvm-bat-dump`: its options, its output.
//!
//! `llvm-bat-dump FILE [--dump-all] [--translate=ADDRESS]…`. Numbers may be decimal, or hexadecimal with
//! `0x`, octal with `0`, binary with `0b`. Options have one dash or two. What it prints goes to standard
//! output, as in LLVM 19.
//!
//! Where LLVM's reader would take a broken section for what it seems to say, ours says what is wrong: a
//! parent that BOLT 19 numbered wrongly is put right in the list of cold parts.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use postlink_elf::bat::parents::Parents;
use postlink_elf::bat::{Bat, Entry, EntryKind, SECTION, Translator};
use postlink_elf::elf::{Elf, SymbolTable};

use super::Arguments;
use super::options::{self, Given, Tool};
use crate::input::Input;

/// Its name.
pub const NAME: &str = "llvm-bat-dump";

const TOOL: Tool = Tool {
    name: NAME,
    overview: "address translation tables of a binary as text",
    usage: "llvm-bat-dump [options] <executable>",
    options: &[
        options::switch("dump-all", "dump all BAT tables"),
        options::value("translate", "translate addresses using BAT"),
    ],
    aliases: &[],
};

/// What the command line says.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    file: String,
    dump_all: bool,
    translate: Vec<u64>,
}

/// Runs with these arguments (without the program's name).
pub fn main(arguments: Arguments<'_>) -> ExitCode {
    let wanted = match TOOL.parse(arguments).and_then(|given| wanted(&given)) {
        Ok(wanted) => wanted,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run(&wanted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", crate::errors::line(&error));
            ExitCode::FAILURE
        }
    }
}

fn wanted(given: &Given) -> Result<Wanted> {
    let [file] = &given.positional[..] else {
        let what = if given.positional.is_empty() {
            "Not enough positional command line arguments specified!\nMust specify at least 1 positional argument"
        } else {
            "Too many positional arguments specified!\nCan specify at most 1 positional arguments"
        };
        bail!("{what}: See: {NAME} --help");
    };
    let address = |text: &String| {
        number(text).ok_or_else(|| {
            anyhow!("for the --translate option: '{text}' value invalid for ulong argument!")
        })
    };
    Ok(Wanted {
        file: file.clone(),
        dump_all: given.switch("dump-all", false)?,
        translate: given
            .values("translate")
            .iter()
            .map(address)
            .collect::<Result<_>>()?,
    })
}

/// A number with the prefixes of C.
fn number(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, radix) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (&lower[..], 10),
    };
    u64::from_str_radix(digits, radix).ok()
}

fn run(wanted: &Wanted) -> Result<()> {
    let file = &wanted.file;
    let path = Path::new(file);
    if !path.exists() {
        bail!("{NAME}: '{file}': No such file or directory.");
    }
    let input = Input::open(path)?;
    let elf = input.elf()?;
    if elf.section(SECTION).is_none() {
        bail!("error: no BAT table found.");
    }
    let bat = Bat::read(&elf)
        .context(
            "BOLT-ERROR: failed to parse BOLT address translation table. Malformed BAT section",
        )?
        .unwrap_or_default();
    let parents = Parents::with_symbols(&bat, &elf);
    let translator = Translator::new(&bat, &parents);
    let mut out = BufWriter::new(std::io::stdout().lock());
    writeln!(out, "BOLT-INFO: Parsed {} BAT entries", translator.len())?;
    if wanted.dump_all {
        dump(&mut out, &bat, &parents, &translator)?;
    }
    if !wanted.translate.is_empty() {
        translate(&mut out, &elf, &translator, &wanted.translate)?;
    }
    out.flush()?;
    Ok(())
}

/// All tables by address, then which part belongs to what.
fn dump(out: &mut impl Write, bat: &Bat, parents: &Parents, translator: &Translator) -> Result<()> {
    writeln!(out, "BAT tables for {} functions:", translator.len())?;
    let mut all: Vec<(u64, bool, usize)> = bat
        .hot()
        .iter()
        .enumerate()
        .map(|(i, h)| (h.start, false, i))
        .collect();
    all.extend(
        bat.cold()
            .iter()
            .enumerate()
            .map(|(i, c)| (c.start, true, i)),
    );
    all.sort_unstable();
    all.dedup_by_key(|x| x.0);
    for (start, cold, i) in all {
        write!(out, "Function Address: 0x{start:X}")?;
        let (entries, function) = if cold {
            let parent = parents.of(i).map(|p| bat.hot()[p as usize].start);
            (bat.cold_entries(&bat.cold()[i]), parent)
        } else {
            let hot = &bat.hot()[i];
            write!(out, ", hash: {:#x}", hot.hash)?;
            (bat.hot_entries(hot), Some(start))
        };
        writeln!(out, "\nBB mappings:")?;
        for e in entries {
            entry(out, e, function, translator)?;
        }
        if !cold {
            let hot = &bat.hot()[i];
            writeln!(out, "NumBlocks: {}", hot.blocks)?;
            let secondary = bat.secondary(hot);
            if !secondary.is_empty() {
                writeln!(out, "{} secondary entry points:", secondary.len())?;
                for offset in secondary {
                    writeln!(out, "{offset:#x}")?;
                }
            }
        }
        writeln!(out)?;
    }
    if bat.cold().is_empty() {
        return Ok(());
    }
    writeln!(out, "{} cold mappings:", bat.cold().len())?;
    for (i, cold) in bat.cold().iter().enumerate() {
        let parent = parents.of(i).map_or(0, |p| bat.hot()[p as usize].start);
        writeln!(out, "0x{:X} -> {parent:X}", cold.start)?;
    }
    writeln!(out)?;
    Ok(())
}

fn entry(
    out: &mut impl Write,
    e: &Entry,
    function: Option<u64>,
    translator: &Translator,
) -> Result<()> {
    write!(out, "0x{:X} -> 0x{:X}", e.output, e.input)?;
    match e.kind {
        EntryKind::Branch => writeln!(out, " (branch)")?,
        // Of several blocks at an input offset the function knows the first.
        EntryKind::Block { hash, .. } => {
            let known = function.and_then(|f| translator.block(f, e.input.into()));
            let hash = known
                .filter(|b| b.input == e.input)
                .map_or(hash, |b| b.hash);
            writeln!(out, " hash: {hash:#x}")?;
        }
    }
    Ok(())
}

/// Addresses by the function symbol at or before them.
fn translate(
    out: &mut impl Write,
    elf: &Elf<'_>,
    translator: &Translator,
    addresses: &[u64],
) -> Result<()> {
    use postlink_elf::raw::STT_FUNC;
    // Of several at an address the last counts; undefined ones have the address 0.
    let functions: BTreeMap<u64, &[u8]> = elf
        .symbols(SymbolTable::Static)
        .iter()
        .filter(|s| s.kind == STT_FUNC)
        .map(|s| (s.value, s.name))
        .collect();
    writeln!(out, "Translating addresses according to parsed BAT tables:")?;
    for &address in addresses {
        let Some((start, name)) = functions.range(..=address).next_back() else {
            writeln!(out, "No function symbol found for 0x{address:X}")?;
            continue;
        };
        let offset = translator.translate(*start, address - start, false);
        writeln!(
            out,
            "0x{address:X} -> {} + 0x{offset:X}",
            String::from_utf8_lossy(name)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> Result<Wanted> {
        wanted(&TOOL.parse(&mut line.split(' ').map(str::to_owned))?)
    }

    #[test]
    fn options_have_one_dash_or_two_and_values_after_an_equals_sign_or_in_the_next_argument() {
        let expected = Wanted {
            file: "a.out".into(),
            dump_all: true,
            translate: vec![0x401000, 8, 5],
        };
        let line = "--translate=0x401000 a.out -dump-all -translate 010 --translate=0b101";
        assert_eq!(given(line).unwrap(), expected);
        assert!(given("a.out b.out").is_err());
        assert!(given("--dump-all").is_err());
        assert!(given("a.out --dump").is_err());
        assert!(given("a.out --translate=1z").is_err());
    }
}
