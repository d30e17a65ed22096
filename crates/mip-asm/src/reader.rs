//! Reads assembly as far as an inserter must: sections, functions, and who names which label.
//!
//! # What is read
//!
//! One pass over the [statements](crate::lexer) keeps track of the current section (`.section`, `.text`,
//! `.pushsection`, `.previous`, …) and of the function that is open in each section. A function begins
//!
//! * in ELF at a label of `.type NAME, @function` in a section of code, and ends at its `.size`;
//! * in Mach-O at a label without `L` in a section of code, and ends at its `.cfi_endproc`, or where the next
//!   one begins.
//!
//! Compilers leave a section in the middle of a function, for a jump table or for the part that is cold, and
//! come back: so a function is a list of ranges of statements.
//!
//! # Who names a label
//!
//! Whether a label begins a block, and whether an insertion may be after it, depends on who names it: [`Label`].
//!
//! # What is left alone
//!
//! Functions that inline assembly defines, files with directives that change the meaning of text
//! (`.altmacro`, `.include`, `.intel_syntax`). The body of `.macro`, `.rept` and their like is not looked
//! into. Everything left alone is counted under its reason.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::flow::{self, Flow};
use crate::lexer::{self, Kind, Statement};
use crate::report::{Reason, Report};
use crate::target::{Arch, Format, Target};

/// Who names a label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// Number of branches to it, saturating.
    pub branches: u32,
    /// Whether it is called.
    pub called: bool,
    /// Whether another instruction names it, or data that the program can see.
    pub address_taken: bool,
    /// Whether distances to it are stored in less than four bytes: what is between must not grow.
    pub narrow: bool,
    /// Whether the exception table measures something from the function's start to it…
    pub eh_to: bool,
    /// …or from it: then it is no landing pad, but a call site's start.
    pub eh_from: bool,
}

impl Label {
    /// Whether it can be reached in another way than from the statement before.
    pub fn begins_block(&self) -> bool {
        self.branches > 0 || self.called || self.address_taken || self.is_landing_pad()
    }

    /// Whether an exception's landing is there.
    pub fn is_landing_pad(&self) -> bool {
        self.eh_to && !self.eh_from
    }
}

/// A section, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// Its name, as it was written.
    pub name: &'a [u8],
    /// Signature of its group, if it is in one that is a COMDAT.
    pub comdat: Option<&'a [u8]>,
    kind: Contents,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Code,
    Data,
    Exceptions,
    /// Debug information and its like: who is named there is of no interest.
    Notes,
}

/// A function.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// Its symbol, without quotes.
    pub name: &'a [u8],
    /// Index of its section in [`Unit::sections`].
    pub section: usize,
    /// Its statements, label first.
    pub ranges: Vec<Range<usize>>,
    /// Index of the statement before which it ends.
    pub end: Option<usize>,
    /// Whether it is Thumb code.
    pub thumb: bool,
    /// Whether it is a weak definition of Mach-O.
    pub weak: bool,
    /// Something in it that only the assembler understands.
    pub opaque: bool,
}

impl Function<'_> {
    /// Indexes of its statements.
    pub fn statements(&self) -> impl Iterator<Item = usize> + '_ {
        self.ranges.iter().cloned().flatten()
    }
}

/// What a file says.
#[derive(Debug)]
pub struct Unit<'a> {
    /// The text.
    pub source: &'a [u8],
    /// Its statements.
    pub statements: Vec<Statement>,
    /// Its sections.
    pub sections: Vec<Section<'a>>,
    /// Its functions, in order.
    pub functions: Vec<Function<'a>>,
    /// Who names which label.
    pub labels: FxHashMap<&'a [u8], Label>,
}

/// A name without its quotes.
pub fn unquoted(name: &[u8]) -> &[u8] {
    match name {
        [b'"', inner @ .., b'"'] => inner,
        _ => name,
    }
}

/// Reads a file, or says why not to touch it at all.
pub fn read<'a>(source: &'a [u8], target: Target, report: &mut Report) -> Result<Unit<'a>, Reason> {
    if u32::try_from(source.len()).is_err() {
        return Err(Reason::TooLarge);
    }
    let statements = lexer::statements(source, target);
    let mut typed = FxHashSet::default();
    let mut weak = FxHashSet::default();
    for statement in &statements {
        if statement.kind != Kind::Directive {
            continue;
        }
        let (directive, rest) = lexer::word(statement.text(source));
        match directive {
            b".type" => {
                let mut operands = lexer::operands(rest);
                if let (Some(name), Some(b"@function" | b"%function" | b"STT_FUNC")) =
                    (operands.next(), operands.next())
                {
                    typed.insert(unquoted(name));
                }
            }
            b".weak_definition" | b".weak_def_can_be_hidden" => {
                weak.insert(unquoted(rest));
            }
            b".altmacro" => return Err(Reason::Directive(".altmacro")),
            b".include" => return Err(Reason::Directive(".include")),
            b".intel_syntax" => return Err(Reason::Directive(".intel_syntax")),
            _ => {}
        }
    }
    let mut reader = Reader {
        target,
        unit: Unit {
            source,
            statements,
            sections: vec![],
            functions: vec![],
            labels: FxHashMap::default(),
        },
        typed,
        weak,
        by_key: FxHashMap::default(),
        open: vec![],
        current: 0,
        previous: 0,
        stack: vec![],
        thumb: false,
        app: false,
        skip: 0,
    };
    reader.current = reader.section(b".text", b"", b"");
    for index in 0..reader.unit.statements.len() {
        reader.statement(index, report);
    }
    Ok(reader.unit)
}

struct Reader<'a> {
    target: Target,
    unit: Unit<'a>,
    typed: FxHashSet<&'a [u8]>,
    weak: FxHashSet<&'a [u8]>,
    by_key: FxHashMap<&'a [u8], usize>,
    /// The function that is open in each section.
    open: Vec<Option<usize>>,
    current: usize,
    previous: usize,
    stack: Vec<(usize, usize)>,
    thumb: bool,
    app: bool,
    /// Depth of definitions and repetitions around.
    skip: u32,
}

impl<'a> Reader<'a> {
    fn statement(&mut self, index: usize, report: &mut Report) {
        let statement = self.unit.statements[index];
        let text = statement.text(self.unit.source);
        if self.skip > 0 || statement.kind == Kind::Directive {
            let (directive, _) = lexer::word(text);
            match directive {
                b".macro" | b".rept" | b".irp" | b".irpc" => {
                    self.skip = self.skip.saturating_add(1);
                    self.spoil();
                }
                b".endm" | b".endr" => self.skip = self.skip.saturating_sub(1),
                b".if" | b".ifdef" | b".ifndef" | b".ifc" | b".ifeq" | b".ifne" | b".else"
                | b".elseif" => self.spoil(),
                _ => {}
            }
            if self.skip > 0 {
                return;
            }
        }
        match statement.kind {
            Kind::AppStart => self.app = true,
            Kind::AppEnd => self.app = false,
            Kind::Label => self.label(index, text, report),
            Kind::Directive => self.directive(index, text),
            Kind::Instruction => self.instruction(text),
            Kind::Assignment => self.refer(text, |label| label.address_taken = true),
        }
        self.append(index);
    }

    /// Adds a statement to the function that is open in the current section.
    fn append(&mut self, index: usize) {
        let Some(function) = self.open[self.current] else {
            return;
        };
        let ranges = &mut self.unit.functions[function].ranges;
        match ranges.last_mut() {
            Some(range) if range.end == index => range.end = index + 1,
            _ => ranges.push(index..index + 1),
        }
    }

    fn spoil(&mut self) {
        if let Some(function) = self.open[self.current] {
            self.unit.functions[function].opaque = true;
        }
    }

    fn label(&mut self, index: usize, token: &'a [u8], report: &mut Report) {
        let name = unquoted(token);
        let section = &self.unit.sections[self.current];
        let is_function = section.kind == Contents::Code
            && match self.target.format {
                Format::Elf => self.typed.contains(name),
                Format::MachO => {
                    !self.target.is_local(name)
                        && !name.is_empty()
                        && !name[0].is_ascii_digit()
                        && !name.starts_with(b"ltmp")
                }
            };
        if !is_function {
            return;
        }
        if self.app {
            report.leave(Reason::InlineAssembly);
            return;
        }
        if let Some(open) = self.open[self.current] {
            // Another name for the same place, or an entry in the middle.
            let function = &self.unit.functions[open];
            let begun = function
                .statements()
                .any(|i| self.unit.statements[i].kind == Kind::Instruction);
            if !begun {
                return;
            }
            if self.target.format == Format::Elf {
                report.leave(Reason::SecondEntry);
                self.unit.functions[open].opaque = true;
                return;
            }
            self.close(index);
        }
        self.open[self.current] = Some(self.unit.functions.len());
        self.unit.functions.push(Function {
            name,
            section: self.current,
            ranges: vec![],
            end: None,
            thumb: self.thumb,
            weak: self.weak.contains(name),
            opaque: false,
        });
    }

    fn close(&mut self, index: usize) {
        if let Some(open) = self.open[self.current].take() {
            self.unit.functions[open].end = Some(index);
        }
    }

    fn refer(&mut self, text: &'a [u8], mut note: impl FnMut(&mut Label)) {
        let labels = &mut self.unit.labels;
        lexer::names(text, |name| note(labels.entry(name).or_default()));
    }

    fn instruction(&mut self, text: &'a [u8]) {
        if self.app {
            // Who knows what it does with them.
            return self.refer(text, |label| label.address_taken = true);
        }
        match flow::flow(self.target.arch, text) {
            Flow::Jump(name) | Flow::Branch(name) => {
                let label = self.unit.labels.entry(name).or_default();
                label.branches = label.branches.saturating_add(1);
            }
            Flow::Call(Some(name)) => {
                self.unit.labels.entry(name).or_default().called = true;
            }
            Flow::Next if text.contains(&self.target.local_prefix().as_bytes()[0]) => {
                self.refer(text, |label| label.address_taken = true);
            }
            _ => {}
        }
    }

    fn directive(&mut self, index: usize, text: &'a [u8]) {
        let (directive, rest) = lexer::word(text);
        match directive {
            b".text" | b".data" | b".bss" => {
                let section = self.section(directive, b"", rest);
                self.enter(section);
            }
            b".section" => {
                let section = self.section_of(rest);
                self.enter(section);
            }
            b".pushsection" => {
                self.stack.push((self.current, self.previous));
                let section = self.section_of(rest);
                self.enter(section);
            }
            b".popsection" => {
                if let Some((current, previous)) = self.stack.pop() {
                    (self.current, self.previous) = (current, previous);
                }
            }
            b".previous" => std::mem::swap(&mut self.current, &mut self.previous),
            b".subsection" => {
                let name = self.unit.sections[self.current].name;
                let section = self.section(name, b"", rest);
                self.enter(section);
            }
            b".size" if self.target.format == Format::Elf => {
                let name = lexer::operands(rest).next().map(unquoted);
                let open = self.open[self.current];
                if open.is_some_and(|open| Some(self.unit.functions[open].name) == name) {
                    self.close(index);
                }
            }
            b".cfi_endproc" if self.target.format == Format::MachO => self.close(index + 1),
            b".thumb" => self.thumb = true,
            b".arm" => self.thumb = false,
            b".code" => self.thumb = rest == b"16",
            b".set" | b".equ" => self.refer(rest, |label| label.address_taken = true),
            b".long" | b".quad" | b".word" | b".xword" | b".int" | b".4byte" | b".8byte"
            | b".dword" | b".octa" => self.data(rest, false),
            b".byte" | b".hword" | b".short" | b".2byte" | b".value" | b".uleb128"
            | b".sleb128" => self.data(rest, true),
            _ => {}
        }
    }

    /// Data that may name labels.
    fn data(&mut self, text: &'a [u8], narrow: bool) {
        match self.unit.sections[self.current].kind {
            Contents::Notes => {}
            Contents::Exceptions => {
                for operand in lexer::operands(text) {
                    let mut first = true;
                    self.refer(operand, |label| {
                        if first {
                            label.eh_to = true;
                        } else {
                            label.eh_from = true;
                        }
                        first = false;
                    });
                }
            }
            Contents::Code | Contents::Data => self.refer(text, |label| {
                label.address_taken = true;
                label.narrow |= narrow;
            }),
        }
    }

    fn enter(&mut self, section: usize) {
        self.previous = std::mem::replace(&mut self.current, section);
    }

    /// The section of a directive's operands.
    fn section_of(&mut self, rest: &'a [u8]) -> usize {
        if self.target.format == Format::MachO {
            return self.section(rest, b"", b"");
        }
        let name = lexer::operands(rest).next().unwrap_or_default();
        // After the flags are whatever the flags call for: entry size, linked section, group.
        let others = &rest[name.len().min(rest.len())..];
        if others.is_empty() {
            // Told without flags: the last of that name.
            if let Some(&section) = self.by_key.get(name) {
                return section;
            }
        }
        self.section(name, others, b"")
    }

    fn section(&mut self, name: &'a [u8], others: &'a [u8], number: &'a [u8]) -> usize {
        let source = self.unit.source;
        // Names and operands are in one piece in the text: that piece is the key. A piece of no file is its own.
        let key = if others.is_empty() && number.is_empty() {
            name
        } else {
            let tail = if others.is_empty() { number } else { others };
            let start = (name.as_ptr() as usize).wrapping_sub(source.as_ptr() as usize);
            let end = (tail.as_ptr() as usize)
                .wrapping_sub(source.as_ptr() as usize)
                .wrapping_add(tail.len());
            source.get(start..end).unwrap_or(tail)
        };
        if let Some(&section) = self.by_key.get(key) {
            self.by_key.insert(name, section);
            return section;
        }
        let flags = lexer::operands(others.strip_prefix(b",").unwrap_or(others))
            .next()
            .unwrap_or_default();
        let comdat = (self.target.format == Format::Elf
            && unquoted(flags).contains(&b'G')
            && lexer::operands(others).any(|operand| operand == b"comdat"))
        .then(|| {
            let all: Vec<&[u8]> = lexer::operands(others).collect();
            let at = all.iter().rposition(|operand| *operand == b"comdat");
            at.and_then(|at| all.get(at.checked_sub(1)?)).copied()
        })
        .flatten();
        let section = self.unit.sections.len();
        self.unit.sections.push(Section {
            name,
            comdat,
            kind: contents(self.target, name, unquoted(flags)),
        });
        self.open.push(None);
        self.by_key.insert(key, section);
        self.by_key.insert(name, section);
        section
    }
}

fn contents(target: Target, name: &[u8], flags: &[u8]) -> Contents {
    let name = unquoted(name);
    let starts = |prefixes: &[&[u8]]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if starts(&[b".gcc_except_table", b"__TEXT,__gcc_except_tab"]) {
        Contents::Exceptions
    } else if starts(&[
        b".debug",
        b".zdebug",
        b".eh_frame",
        b".note",
        b".comment",
        b".llvm",
        b".stack_sizes",
        b".pseudo_probe",
        b".ARM.e",
        b".gnu",
        b"__DWARF",
        b"__LD",
        b"__LLVM",
    ]) {
        Contents::Notes
    } else if match target.format {
        Format::Elf => starts(&[b".text", b".init", b".fini"]) || flags.contains(&b'x'),
        Format::MachO => {
            starts(&[b"__TEXT,__text", b".text"])
                || name.windows(17).any(|part| part == b"pure_instructions")
        }
    } {
        Contents::Code
    } else {
        Contents::Data
    }
}

/// Whether an instruction must stay the first of a block: a landing pad for indirect jumps, where the
/// processor checks for one.
pub fn must_be_first(arch: Arch, text: &[u8]) -> bool {
    let (mnemonic, rest) = lexer::word(text);
    match arch {
        Arch::X86_64 => mnemonic == b"endbr64",
        Arch::AArch64 => {
            matches!(mnemonic, b"bti" | b"paciasp" | b"pacibsp")
                || (mnemonic == b"hint"
                    && matches!(
                        rest,
                        b"#25"
                            | b"#27"
                            | b"25"
                            | b"27"
                            | b"34"
                            | b"#34"
                            | b"36"
                            | b"#36"
                            | b"38"
                            | b"#38"
                    ))
        }
        Arch::Arm => false,
    }
}
