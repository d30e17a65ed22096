//! Translation by the tables of `.note.bolt_bat` ([`postlink_elf::bat`]), of any tool that writes them.

use postlink_elf::bat::parents::Parents;
use postlink_elf::bat::{Bat, Translator};
use postlink_elf::elf::Elf;

use crate::translate::{Shape, ShapeBlock, Translate};
use postlink_elf::FormatError;

/// A binary's tables.
#[derive(Debug)]
pub struct Tables {
    translator: Translator,
    remarks: Vec<String>,
}

impl Tables {
    /// Reads them; `None` if the binary has none.
    pub fn read(elf: &Elf<'_>) -> Result<Option<Tables>, FormatError> {
        let Some(bat) = Bat::read(elf)? else {
            return Ok(None);
        };
        let parents = Parents::with_symbols(&bat, elf);
        let mut remarks = Vec::new();
        if parents.corrected > 0 {
            remarks.push(format!(
                "{} of {} split-off parts had the wrong function in the translation tables, as BOLT 19 writes them if such parts are below hot ones; corrected",
                parents.corrected,
                bat.cold().len()
            ));
        }
        if parents.unknown > 0 {
            remarks.push(format!(
                "{} of {} split-off parts have no function in the translation tables: their samples are counted under the parts' own names",
                parents.unknown,
                bat.cold().len()
            ));
        }
        Ok(Some(Tables {
            translator: Translator::new(&bat, &parents),
            remarks,
        }))
    }
}

impl Translate for Tables {
    fn parent(&self, function: u64) -> Option<u64> {
        self.translator.parent(function)
    }

    fn input_offset(&self, function: u64, offset: u64, is_branch: bool) -> u64 {
        self.translator.translate(function, offset, is_branch)
    }

    fn knows(&self, function: u64) -> bool {
        self.translator.fragment_at(function).is_some()
    }

    fn fall_throughs(&self, function: u64, from: u64, to: u64, each: &mut dyn FnMut(u64, u64)) {
        let Some(table) = self.translator.fragment_at(function) else {
            return;
        };
        let mut edges = Vec::new();
        self.translator.fall_throughs(table, from, to, &mut edges);
        for (from, to) in edges {
            each(from.into(), to.into());
        }
    }

    fn block_at(&self, function: u64, offset: u64) -> Option<u64> {
        let table = self.translator.fragment_at(function)?;
        self.translator.block_at(table, offset).map(u64::from)
    }

    fn shape(&self, function: u64) -> Option<Shape> {
        let (hash, count) = self.translator.function_hash(function)?;
        let blocks = self.translator.blocks(function).iter();
        Some(Shape {
            hash,
            count: u32::try_from(count).ok()?,
            blocks: blocks
                .map(|b| ShapeBlock {
                    start: b.input.into(),
                    index: b.index,
                    hash: b.hash,
                    instructions: 0,
                })
                .collect(),
            entries: self
                .translator
                .entry_points(function)
                .iter()
                .map(|offset| u64::from(*offset))
                .collect(),
        })
    }

    fn remarks(&self) -> &[String] {
        &self.remarks
    }
}
