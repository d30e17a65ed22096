//! `postlink bat`: address translation tables, read and asked.

use std::io::{BufRead, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use postlink_elf::bat::parents::Parents;
use postlink_elf::bat::{Bat, Entry, EntryKind, SECTION, Translator};
use postlink_elf::elf::{Elf, SymbolTable};
use serde::Serialize;

use crate::errors::Usage;
use crate::input::Input;
use crate::ui::{Ui, bytes, count};

/// Look into the address translation tables of an optimised program
///
/// `postlink optimize --enable-bat` and `llvm-bolt --enable-bat` put tables into their output
/// (.note.bolt_bat) that say where in the program that went in each piece of code came from. With them a
/// profile of the optimised program becomes one of the original: `postlink aggregate` and `perf2bolt` do
/// that.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink bat dump ./app.opt
  postlink bat dump ./app.opt --function main
  postlink bat dump ./app.opt --json | jq '.functions | length'
  postlink bat translate ./app.opt 0x60005f 0x60024b
  perf script -F ip | postlink bat translate ./app.opt")]
pub struct BatCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List functions and their split-off parts, with what is where
    Dump(Dump),
    /// Say where in the original program addresses of the optimised one came from
    ///
    /// A line each: the address, then function and offset in the original. Code without a table is where it
    /// was. Addresses are link-time addresses, hexadecimal; the prefix 0x is optional.
    Translate(Translate),
}

#[derive(Args, Debug)]
struct Dump {
    /// The optimised program
    #[arg(value_name = "BINARY")]
    binary: PathBuf,
    /// Only this function with its parts (a symbol's name)
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Translate {
    /// The optimised program
    #[arg(value_name = "BINARY")]
    binary: PathBuf,
    /// Addresses; without any they are read from standard input, the first word of each line
    #[arg(value_name = "ADDRESS")]
    addresses: Vec<String>,
    /// The addresses are those of branches that were taken: name the branch in the original, not the place
    /// within its block
    #[arg(long)]
    branches: bool,
}

impl BatCommand {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        match self.what {
            What::Dump(dump) => dump.run(ui),
            What::Translate(translate) => translate.run(ui),
        }
    }
}

/// A program's tables.
struct Tables<'d> {
    bat: Bat,
    parents: Parents,
    symbols: Symbols<'d>,
}

impl<'d> Tables<'d> {
    fn load(ui: &Ui, path: &Path, elf: &Elf<'d>) -> Result<Tables<'d>> {
        let named = || path.display().to_string();
        let Some(bat) = Bat::read(elf).with_context(named)? else {
            bail!(
                "{}: has no address translation tables ({SECTION}): optimise with --enable-bat",
                named()
            );
        };
        let parents = Parents::with_symbols(&bat, elf);
        if parents.corrected > 0 {
            ui.warn(format_args!(
                "{} of {} split-off parts name the wrong function, as BOLT 19 writes them if such parts are below hot ones; corrected",
                count(parents.corrected),
                count(bat.cold().len())
            ));
        }
        if parents.unknown > 0 {
            ui.warn(format_args!(
                "{} of {} split-off parts name a function that does not exist",
                count(parents.unknown),
                count(bat.cold().len())
            ));
        }
        Ok(Tables {
            bat,
            parents,
            symbols: Symbols::new(elf),
        })
    }
}

/// Functions by address.
pub(super) struct Symbols<'d> {
    /// Address, size, name; ascending.
    list: Vec<(u64, u64, &'d [u8])>,
}

impl<'d> Symbols<'d> {
    fn new(elf: &Elf<'d>) -> Self {
        const FUNCTIONS: [u8; 2] = [2, 10]; // STT_FUNC, STT_GNU_IFUNC
        let mut list: Vec<(u64, u64, &[u8])> = Vec::new();
        for table in [SymbolTable::Static, SymbolTable::Dynamic] {
            let symbols = elf.symbols(table);
            list.extend(
                symbols
                    .iter()
                    .filter(|s| FUNCTIONS.contains(&s.kind) && s.section != 0)
                    .map(|s| (s.value, s.size, s.name)),
            );
            if !list.is_empty() {
                break;
            }
        }
        // Of several names for an address the first in the table counts.
        list.sort_by_key(|s| s.0);
        list.dedup_by_key(|s| s.0);
        Symbols { list }
    }

    /// The last function that begins at or before an address.
    fn before(&self, address: u64) -> Option<(u64, u64, &'d [u8])> {
        let n = self.list.partition_point(|s| s.0 <= address);
        self.list.get(n.checked_sub(1)?).copied()
    }

    fn name(&self, start: u64) -> String {
        match self.before(start) {
            Some((at, _, name)) if at == start => String::from_utf8_lossy(name).into_owned(),
            _ => format!("{start:#x}"),
        }
    }
}

/// An entry, as JSON has it.
#[derive(Serialize)]
struct EntryJson {
    output: u32,
    input: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
}

impl From<&Entry> for EntryJson {
    fn from(e: &Entry) -> Self {
        let (block, hash) = match e.kind {
            EntryKind::Block { index, hash } => (Some(index), Some(format!("{hash:#018x}"))),
            EntryKind::Branch => (None, None),
        };
        EntryJson {
            output: e.output,
            input: e.input,
            block,
            hash,
        }
    }
}

#[derive(Serialize)]
struct FunctionJson {
    name: String,
    address: u64,
    hash: String,
    blocks: u64,
    entry_points: Vec<u32>,
    entries: Vec<EntryJson>,
}

#[derive(Serialize)]
struct PartJson {
    name: String,
    address: u64,
    /// Address of the function that it is a part of.
    function: Option<u64>,
    entries: Vec<EntryJson>,
}

#[derive(Serialize)]
struct AllJson {
    functions: Vec<FunctionJson>,
    parts: Vec<PartJson>,
    corrected: usize,
    unknown: usize,
}

impl Dump {
    fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("bat dump");
        watched.phases.begin("read");
        let input = Input::open(&self.binary)?;
        let elf = input.elf()?;
        let tables = Tables::load(ui, &self.binary, &elf)?;
        let Tables {
            bat,
            parents,
            symbols,
        } = &tables;
        let wanted = |start: u64| {
            self.function
                .as_ref()
                .is_none_or(|n| symbols.name(start) == *n)
        };
        let hot: Vec<usize> = (0..bat.hot().len())
            .filter(|i| wanted(bat.hot()[*i].start))
            .collect();
        let cold: Vec<usize> = (0..bat.cold().len())
            .filter(|i| match parents.of(*i) {
                Some(parent) => hot.binary_search(&(parent as usize)).is_ok(),
                None => wanted(bat.cold()[*i].start),
            })
            .collect();
        if let Some(name) = &self.function
            && hot.is_empty()
            && cold.is_empty()
        {
            bail!(
                "{}: no function {name} has an address translation table: it did not move, or does not exist",
                self.binary.display()
            );
        }
        watched.printing();
        let mut out = BufWriter::new(std::io::stdout().lock());
        if self.json {
            let all = AllJson {
                functions: hot
                    .iter()
                    .map(|i| &bat.hot()[*i])
                    .map(|h| FunctionJson {
                        name: symbols.name(h.start),
                        address: h.start,
                        hash: format!("{:#018x}", h.hash),
                        blocks: h.blocks,
                        entry_points: bat.secondary(h).to_vec(),
                        entries: bat.hot_entries(h).iter().map(EntryJson::from).collect(),
                    })
                    .collect(),
                parts: cold
                    .iter()
                    .map(|i| (&bat.cold()[*i], parents.of(*i)))
                    .map(|(c, parent)| PartJson {
                        name: symbols.name(c.start),
                        address: c.start,
                        function: parent.map(|p| bat.hot()[p as usize].start),
                        entries: bat.cold_entries(c).iter().map(EntryJson::from).collect(),
                    })
                    .collect(),
                corrected: parents.corrected,
                unknown: parents.unknown,
            };
            serde_json::to_writer_pretty(&mut out, &all)?;
            writeln!(out)?;
        } else {
            for i in hot {
                let h = &bat.hot()[i];
                writeln!(
                    out,
                    "{:#x} {}: {} blocks, hash {:#018x}",
                    h.start,
                    symbols.name(h.start),
                    h.blocks,
                    h.hash
                )?;
                for offset in bat.secondary(h) {
                    writeln!(out, "  entry point at {offset:#x}")?;
                }
                list(&mut out, bat.hot_entries(h))?;
            }
            for i in cold {
                let c = &bat.cold()[i];
                let parent = parents
                    .of(i)
                    .map(|p| symbols.name(bat.hot()[p as usize].start));
                writeln!(
                    out,
                    "{:#x} {}: part of {}",
                    c.start,
                    symbols.name(c.start),
                    parent.as_deref().unwrap_or("no function")
                )?;
                list(&mut out, bat.cold_entries(c))?;
            }
        }
        out.flush()?;
        watched.finish();
        let size = elf.section(SECTION).map_or(0, |(_, s)| s.size);
        ui.say(format_args!(
            "{}: {} functions, {} split-off parts, {} entries in {}",
            self.binary.display(),
            count(bat.hot().len()),
            count(bat.cold().len()),
            count(bat.len()),
            bytes(size)
        ));
        Ok(ExitCode::SUCCESS)
    }
}

fn list(out: &mut impl Write, entries: &[Entry]) -> std::io::Result<()> {
    for e in entries {
        match e.kind {
            EntryKind::Block { index, hash } => writeln!(
                out,
                "  {:#8x} <- {:#8x}  block {index}, hash {hash:#018x}",
                e.output, e.input
            )?,
            EntryKind::Branch => writeln!(out, "  {:#8x} <- {:#8x}", e.output, e.input)?,
        }
    }
    Ok(())
}

impl Translate {
    fn run(self, ui: &Ui) -> Result<ExitCode> {
        let input = Input::open(&self.binary)?;
        let elf = input.elf()?;
        let Tables {
            bat,
            parents,
            symbols,
        } = Tables::load(ui, &self.binary, &elf)?;
        let asked = Asked {
            translator: Translator::new(&bat, &parents),
            symbols,
            elf: &elf,
            branches: self.branches,
        };
        let mut out = BufWriter::new(std::io::stdout().lock());
        if self.addresses.is_empty() {
            for (n, line) in std::io::stdin().lock().lines().enumerate() {
                let line = line.context("standard input")?;
                let Some(word) = line.split_whitespace().next() else {
                    continue;
                };
                let address = parse(word)
                    .with_context(|| format!("standard input, line {}: {line:?}", n + 1))?;
                asked.answer(&mut out, address)?;
            }
        } else {
            for word in &self.addresses {
                let address = parse(word).map_err(|e| Usage(e.to_string()))?;
                asked.answer(&mut out, address)?;
            }
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

fn parse(word: &str) -> Result<u64> {
    let digits = word
        .strip_prefix("0x")
        .or_else(|| word.strip_prefix("0X"))
        .unwrap_or(word);
    u64::from_str_radix(digits, 16)
        .map_err(|e| anyhow!("{word:?} is no hexadecimal address of 64 bits: {e}"))
}

struct Asked<'a, 'd> {
    translator: Translator,
    symbols: Symbols<'d>,
    elf: &'a Elf<'d>,
    branches: bool,
}

impl Asked<'_, '_> {
    fn answer(&self, out: &mut impl Write, address: u64) -> std::io::Result<()> {
        let code = self.elf.section_at(address).filter(|(_, s)| s.is_code());
        let symbol = self.symbols.before(address);
        let table = self.translator.fragment_before(address).filter(|t| {
            let start = self.translator.start(*t);
            // In the same section, and no function without a table begins between.
            code.is_some_and(|(_, s)| s.addr <= start) && symbol.is_none_or(|s| s.0 <= start)
        });
        match (table, symbol) {
            _ if code.is_none() => writeln!(out, "{address:#x} not in code"),
            (Some(t), _) => {
                let start = self.translator.start(t);
                let offset = self
                    .translator
                    .translate_in(t, address - start, self.branches);
                let function = self.translator.function(t).unwrap_or(start);
                writeln!(
                    out,
                    "{address:#x} {}+{offset:#x}",
                    self.symbols.name(function)
                )
            }
            (None, Some((start, size, name))) if address - start < size || size == 0 => writeln!(
                out,
                "{address:#x} {}+{:#x}",
                String::from_utf8_lossy(name),
                address - start
            ),
            _ => writeln!(out, "{address:#x} in no function"),
        }
    }
}
