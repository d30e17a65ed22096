//! `postlink disasm`: code as text, with probes and source locations.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use postlink_isa::x86_64::text::Syntax;
use postlink_profgen::dwarf::Lines;
use postlink_profgen::dwarf::split::Files;
use postlink_profgen::{EM_AARCH64, EM_X86_64, Listing, Machine, probe};

use crate::input::Input;
use crate::ui::Ui;

/// Print code with its probes and source locations
///
/// The layout is that of llvm-profgen --show-disassembly-only.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  postlink disasm ./app --probes
  postlink disasm ./app --probes --source --intel --function main")]
pub struct Disasm {
    /// The program or shared library
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print the pseudo probes above the instruction they are at
    #[arg(long)]
    pub probes: bool,
    /// Print source locations, innermost first, from debug information
    #[arg(long)]
    pub source: bool,
    /// Write instructions of x86-64 as Intel does, not as AT&T
    #[arg(long)]
    pub intel: bool,
    /// Only these symbols
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub function: Vec<String>,
}

impl Disasm {
    pub fn run(self, ui: &Ui) -> Result<ExitCode> {
        let mut watched = ui.phases("disasm");
        watched.phases.begin("probes");
        let named = || self.file.display().to_string();
        let input = Input::open(&self.file)?;
        let elf = input.elf_or_object()?;
        let Some(machine) = Machine::of(&elf) else {
            bail!(
                "{}: e_machine is {}, but only x86-64 ({EM_X86_64}) and AArch64 ({EM_AARCH64}) can be printed",
                named(),
                elf.machine
            );
        };
        let probes = if self.probes {
            probe::load(&elf).with_context(named)?
        } else {
            None
        };
        if self.probes && probes.is_none() {
            ui.warn(format_args!("{}: no pseudo probes", named()));
        }
        watched.phases.begin("lines");
        let files = if self.source {
            Files::of_program(&elf).with_context(named)?
        } else {
            Files::NONE
        };
        let lines = if self.source {
            Some(Lines::load_split(&elf, &files).with_context(named)?)
        } else {
            None
        };
        let only = self.function.iter().map(|name| name.as_bytes().to_vec());
        let only = (!self.function.is_empty()).then(|| only.collect());
        let name = named();
        watched.printing();
        // Large pieces are written at once: a buffer would only copy them.
        let mut out = std::io::stdout();
        Listing {
            elf: &elf,
            name: &name,
            probes: probes.as_ref(),
            lines: lines.as_ref(),
            machine,
            syntax: if self.intel {
                Syntax::Intel
            } else {
                Syntax::Att
            },
            canonical: false,
            only: only.as_ref(),
        }
        .write(&mut out)?;
        out.flush()?;
        watched.finish();
        Ok(ExitCode::SUCCESS)
    }
}
