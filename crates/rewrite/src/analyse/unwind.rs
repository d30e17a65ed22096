//! What the unwind tables of a function say.

use std::borrow::Cow;

use postlink_elf::unwind::eh_frame::{Cie, Fde};
use postlink_elf::unwind::lsda::{Lsda, PadBase};
use postlink_elf::unwind::rows::{self, CfaRule, RegRule, Row};

use postlink_isa::{Isa, RegSet};

use crate::discover::{Piece, Program, lsda_of};
use crate::pin::Pin;

/// What becomes of a function's rows when its tables are read. They are large, so those of many functions are not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// They are looked at, and made once more when they are carried over.
    #[default]
    Checked,
    /// They are looked at, and kept for that.
    Kept,
    /// They were looked at before.
    Unread,
}

/// First address of a piece, and what holds from which offset on.
pub type PieceRows<'d> = (u64, Vec<(u64, Row<'d>)>);

/// What a function's unwind tables say.
pub struct FunctionUnwind<'d> {
    /// Index of the CIE that new entries use.
    pub cie: usize,
    /// By piece of the function: first address, unwind entry.
    pub pieces: Vec<(u64, u32)>,
    /// By piece of the function: first address, and what holds from which offset on. Empty if they are not kept.
    pub rows: Vec<PieceRows<'d>>,
    /// By piece of the function.
    pub lsdas: Vec<Option<Lsda<'d>>>,
    /// All pieces' exception tables in one, if there are any: what new ones are made of.
    pub table: Option<Lsda<'d>>,
    /// What the reader of the tables can do.
    pub pad_base: PadBase,
    /// The reader is asked about any instruction that faults, not about calls alone.
    pub faults: bool,
}

impl<'d> FunctionUnwind<'d> {
    /// Reads the tables of a function; `None` if it has none.
    pub fn read(program: &Program<'d>, function: usize, rows: Rows) -> Result<Option<Self>, Pin> {
        let f = &program.functions[function];
        let with = f
            .pieces
            .iter()
            .filter(|p| program.pieces[**p as usize].fde.is_some())
            .count();
        if with == 0 {
            let mut pieces = f.pieces.iter().map(|p| &program.pieces[*p as usize]);
            if pieces.any(|piece| begins_late(program, piece)) {
                return Err(Pin::PartlyUnwindable);
            }
            return Ok(None);
        }
        if with != f.pieces.len() {
            return Err(Pin::PartlyUnwindable);
        }
        let mut this = FunctionUnwind {
            cie: 0,
            pieces: Vec::new(),
            rows: Vec::new(),
            lsdas: Vec::new(),
            table: None,
            pad_base: PadBase::Shortest,
            faults: false,
        };
        let mut first_cie = None;
        for p in &f.pieces {
            let piece = &program.pieces[*p as usize];
            let Some(index) = piece.fde else {
                return Err(Pin::PartlyUnwindable);
            };
            let fde = &program.eh.fdes[index as usize];
            if fde.start != piece.start || fde.start + fde.len < piece.end {
                return Err(Pin::UnwindTable);
            }
            let cie = &program.eh.cies[fde.cie];
            if rows == Rows::Kept {
                let initial = program.initial_row(fde.cie)?;
                let list = rows::rows_from(cie, initial, fde).map_err(|_| Pin::UnwindTable)?;
                if list.is_empty() || list.iter().any(|(_, row)| reads_program_counter(row)) {
                    return Err(Pin::UnwindTable);
                }
                this.rows.push((fde.start, list));
            } else if rows != Rows::Unread {
                check_rows(cie, program.initial_row(fde.cie)?, fde)?;
            }
            let lsda = lsda_of(program, *p as usize)?;
            let first = *first_cie.get_or_insert(fde.cie);
            let other = &program.eh.cies[first];
            if (cie.ra_register, cie.signal_frame, cie.personality)
                != (other.ra_register, other.signal_frame, other.personality)
            {
                return Err(Pin::MixedUnwinding);
            }
            if let Some(l) = &lsda {
                if let Some(table) = &this.table {
                    this.table = Some(table.union(l).ok_or(Pin::MixedUnwinding)?);
                } else {
                    this.table = Some(l.clone());
                    this.cie = fde.cie;
                    let personality = program.personalities[fde.cie].ok_or(Pin::ExceptionTable)?;
                    (this.pad_base, this.faults) = (personality.pad_base, personality.faults);
                }
            }
            this.pieces.push((fde.start, index));
            this.lsdas.push(lsda);
        }
        if this.table.is_none() {
            this.cie = first_cie.unwrap_or(0);
        }
        Ok(Some(this))
    }

    /// What [`read`](Self::read) says of a function of one piece, if it has no exception table.
    pub(crate) fn check_plain(program: &Program<'d>, piece: &Piece) -> Option<Result<(), Pin>> {
        let Some(index) = piece.fde else {
            let partly = begins_late(program, piece);
            return Some(if partly {
                Err(Pin::PartlyUnwindable)
            } else {
                Ok(())
            });
        };
        let fde = &program.eh.fdes[index as usize];
        if fde.lsda.is_some_and(|lsda| lsda != 0) {
            return None;
        }
        if fde.start != piece.start || fde.start + fde.len < piece.end {
            return Some(Err(Pin::UnwindTable));
        }
        let cie = &program.eh.cies[fde.cie];
        let initial = program.initial_row(fde.cie);
        Some(initial.and_then(|initial| check_rows(cie, initial, fde)))
    }

    /// By piece of the function: first address, and what holds from which offset on: what was kept, or read again.
    pub fn known_rows(&self, program: &Program<'d>) -> Result<Cow<'_, [PieceRows<'d>]>, Pin> {
        if self.rows.is_empty() {
            self.all_rows(program).map(Cow::Owned)
        } else {
            Ok(Cow::Borrowed(&self.rows))
        }
    }

    fn all_rows(&self, program: &Program<'d>) -> Result<Vec<PieceRows<'d>>, Pin> {
        let of = |(start, index): &(u64, u32)| {
            let fde = &program.eh.fdes[*index as usize];
            let (cie, initial) = (&program.eh.cies[fde.cie], program.initial_row(fde.cie)?);
            let rows = rows::rows_from(cie, initial, fde).map_err(|_| Pin::UnwindTable)?;
            Ok((*start, rows))
        };
        self.pieces.iter().map(of).collect()
    }

    /// General registers by which some row finds something, but for the stack pointer. Inserted code must not change
    /// them, also where no instruction reads them any more: up to the end of `pop %rbp` the frame is found by `rbp`.
    pub fn reads<I: Isa>(&self, program: &Program<'d>) -> Result<RegSet, Pin> {
        let pieces = self.known_rows(program)?;
        let rows = pieces.iter().flat_map(|(_, rows)| rows);
        Ok(rows.fold(RegSet::EMPTY, |set, (_, row)| set.or(row_reads::<I>(row))))
    }

    /// Whether the function's frame is described in the same way at two addresses, each with its piece.
    pub fn is_alike(&self, program: &Program<'_>, a: (u64, u16), b: (u64, u16)) -> bool {
        let rows = (self.row(program, a), self.row(program, b));
        matches!(rows, (Some(a), Some(b)) if a == b)
    }

    /// Whether the canonical frame address is found in the same way at two addresses, each with its piece. Where saved
    /// registers were is still described behind the instructions that restore them.
    pub fn has_same_frame(&self, program: &Program<'_>, a: (u64, u16), b: (u64, u16)) -> bool {
        let rows = (self.row(program, a), self.row(program, b));
        matches!(rows, (Some(a), Some(b)) if a.cfa == b.cfa)
    }

    fn row<'p>(&self, program: &Program<'p>, (addr, piece): (u64, u16)) -> Option<rows::Row<'p>> {
        let (start, index) = self.pieces.get(usize::from(piece))?;
        let fde = &program.eh.fdes[*index as usize];
        let (cie, initial) = (
            &program.eh.cies[fde.cie],
            program.initial_row(fde.cie).ok()?,
        );
        let rows = rows::rows_from(cie, initial, fde).ok()?;
        let behind = rows.partition_point(|r| r.0 <= addr.wrapping_sub(*start));
        let row = rows.into_iter().nth(behind.checked_sub(1)?)?.1;
        Some(row)
    }

    /// The exception table whose actions and types new ones share, and what landing pads may be counted from.
    pub fn table(&self) -> Option<(&Lsda<'d>, PadBase)> {
        self.table.as_ref().map(|t| (t, self.pad_base))
    }

    /// Whether all code must stay in one fragment: the reader of the tables counts landing pads from the
    /// start of the fragment that throws.
    pub fn one_fragment(&self) -> bool {
        self.table.is_some() && self.pad_base == PadBase::FunctionStart
    }
}

/// Whether the unwind entry of a piece begins behind its first instruction, as where an assembler's macro puts
/// `endbr64` in front of `.cfi_startproc`.
fn begins_late(program: &Program<'_>, piece: &Piece) -> bool {
    let fdes = &program.eh.fdes;
    let first = fdes.partition_point(|f| f.start <= piece.start);
    let mut inside = fdes[first..].iter().take_while(|f| f.start < piece.end);
    // Empty functions have entries too.
    inside.any(|f| f.len > 0)
}

/// Whether the rows of an entry can be carried over.
fn check_rows<'d>(cie: &Cie<'d>, initial: &Row<'d>, fde: &Fde<'d>) -> Result<(), Pin> {
    let (mut is_empty, mut depends) = (true, false);
    rows::visit_bounded(cie, initial, fde, |_, row| {
        is_empty = false;
        depends |= reads_program_counter(row);
    })
    .map_err(|_| Pin::UnwindTable)?;
    if is_empty || depends {
        return Err(Pin::UnwindTable);
    }
    Ok(())
}

/// See [`FunctionUnwind::reads`].
fn row_reads<I: Isa>(row: &Row<'_>) -> RegSet {
    const DW_OP_BREG0: u8 = 0x70;
    let register = |number: u16| {
        // Most rows name this one alone.
        if number == I::UNWIND_STACK {
            return RegSet::EMPTY;
        }
        let is_it = |r: &u8| I::unwind_register(*r) == number && *r != I::STACK;
        let register = (0..32).find(is_it);
        register.map_or(RegSet::EMPTY, |r| RegSet(1 << r))
    };
    // Any byte that could be the operation counts.
    let expression = |bytes: &[u8]| {
        let bases = bytes.iter().filter_map(|b| b.checked_sub(DW_OP_BREG0));
        let bases = bases.filter(|base| *base < 32);
        bases.fold(RegSet::EMPTY, |set, base| set.or(register(base.into())))
    };
    let cfa = match row.cfa {
        CfaRule::Offset { register: base, .. } => register(base),
        CfaRule::Expression(bytes) => expression(bytes),
    };
    row.registers.iter().fold(cfa, |set, (_, rule)| match rule {
        RegRule::Register(other) => set.or(register(*other)),
        RegRule::Expression(bytes) | RegRule::ValExpression(bytes) => set.or(expression(bytes)),
        _ => set,
    })
}

/// Whether a row has an expression that may read the program counter (x86-64: DWARF register 16), as those of
/// PLT stubs do: it would mean something else in another place. Any byte that could be the operation counts.
fn reads_program_counter(row: &Row<'_>) -> bool {
    const DW_OP_BREG16: u8 = 0x80;
    let cfa = match &row.cfa {
        CfaRule::Expression(e) => e.contains(&DW_OP_BREG16),
        CfaRule::Offset { .. } => false,
    };
    cfa || row.registers.iter().any(|(_, rule)| match rule {
        RegRule::Expression(e) | RegRule::ValExpression(e) => e.contains(&DW_OP_BREG16),
        _ => false,
    })
}
