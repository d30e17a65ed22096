//! Which functions a binary has and how far they reach, as BOLT sees it.
//!
//! Profiles speak of functions by name and offset, so both sides must cut a binary up in the same way. The
//! rules are those of BOLT 19:
//!
//! * Symbols are taken by address, in the order of [`crate::names`].
//! * Functions are function symbols in code, and other symbols in code that no function covers. A function
//!   symbol inside another function is an entry of that one. The size is the larger one of symbol and unwind
//!   entry, and what follows up to the next function for those without size.
//! * Stubs of the procedure linkage table, and code that only an unwind entry tells of, are functions as well.
//! * An address in the padding after a function belongs to it (its *reach*), a trace may not leave its *size*.

use std::borrow::Cow;

use postlink_elf::FormatError;
use postlink_elf::elf::{Elf, Section, SymbolTable};
use postlink_elf::raw;
use postlink_elf::unwind::eh_frame::EhFrame;
use postlink_isa::{Flow, Isa};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::names::{self, Class, Name, Named, fragment_of, stub_size};

/// A function.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// First address.
    pub start: u64,
    /// Bytes of code.
    pub size: u64,
    /// Bytes up to the next function or object.
    pub reach: u64,
    /// Section that it is in.
    pub section: u32,
    /// A stub of the procedure linkage table: its code is not looked into.
    pub stub: bool,
    /// Split off by the compiler: `name.cold`, `name.part.0.cold.1` …
    pub fragment: bool,
    /// There are fragments that were split off a function of this name.
    pub split: bool,
    /// Its boundaries contradict those of something else: traces in it are not believed.
    pub doubtful: bool,
    /// Its names in [`Functions::names_of`].
    names: (u32, u32),
}

impl Function {
    /// Whether an address is in its code.
    pub fn contains(&self, address: u64) -> bool {
        address >= self.start && address - self.start < self.size
    }
}

/// The functions of a binary, by address.
#[derive(Debug, Default)]
pub struct Functions<'d> {
    list: Vec<Function>,
    names: Vec<Name<'d>>,
    /// Addresses inside functions that symbols name, ascending.
    entries: Vec<u64>,
    /// Data: start, size, name; ascending.
    objects: Vec<(u64, u64, Name<'d>)>,
}

/// What bounds functions: a symbol.
struct Bound {
    address: u64,
    size: u64,
    kind: u8,
    global: bool,
    private: bool,
    marker: bool,
}

/// While they are looked for.
struct Search<'e, 'd> {
    elf: &'e Elf<'d>,
    list: Vec<Function>,
    names: Vec<(u64, Name<'d>)>,
    entries: Vec<u64>,
    bounds: Vec<Bound>,
    objects: Vec<(u64, u64, Name<'d>)>,
}

impl<'d> Functions<'d> {
    /// Finds the functions of a file. Without a symbol table, those that are exported or have unwind entries.
    pub fn find<I: Isa>(elf: &Elf<'d>, unwind: &EhFrame<'d>) -> Result<Functions<'d>, FormatError> {
        let mut search = Search {
            elf,
            list: Vec::new(),
            names: Vec::new(),
            entries: Vec::new(),
            bounds: Vec::new(),
            objects: Vec::new(),
        };
        search.symbols(unwind);
        search.stubs::<I>()?;
        search.unwind_entries(unwind);
        search.boundaries();
        let Search {
            mut list,
            mut names,
            mut entries,
            objects,
            ..
        } = search;
        names.sort_by_key(|name| name.0);
        let mut at = 0;
        for function in &mut list {
            while names.get(at).is_some_and(|name| name.0 < function.start) {
                at += 1;
            }
            let first = at;
            while names.get(at).is_some_and(|name| name.0 == function.start) {
                at += 1;
            }
            function.names = (first as u32, at as u32);
        }
        entries.sort_unstable();
        entries.dedup();
        let stems: FxHashSet<&[u8]> = list
            .iter()
            .filter(|f| f.fragment)
            .flat_map(|f| &names[f.names.0 as usize..f.names.1 as usize])
            .filter_map(|name| fragment_of(name.1.base()))
            .collect();
        if !stems.is_empty() {
            for function in &mut list {
                let range = function.names.0 as usize..function.names.1 as usize;
                function.split = names[range]
                    .iter()
                    .any(|name| stems.contains(name.1.base()));
            }
        }
        Ok(Functions {
            list,
            names: names.into_iter().map(|name| name.1).collect(),
            entries,
            objects,
        })
    }

    /// All of them, by address.
    pub fn list(&self) -> &[Function] {
        &self.list
    }

    /// The function that an address belongs to, padding included.
    #[inline]
    pub fn at(&self, address: u64) -> Option<usize> {
        let after = self.list.partition_point(|f| f.start <= address);
        let index = after.checked_sub(1)?;
        let function = &self.list[index];
        (address - function.start < function.reach).then_some(index)
    }

    /// The names of a function, the first one first.
    pub fn names_of(&self, function: usize) -> &[Name<'d>] {
        self.list.get(function).map_or(&[], |f| {
            self.names
                .get(f.names.0 as usize..f.names.1 as usize)
                .unwrap_or_default()
        })
    }

    /// The name that profiles use. With `by_file`, of a local function the one with the file in it: its
    /// number changes less.
    pub fn name(&self, function: usize, by_file: bool) -> Cow<'d, [u8]> {
        let names = self.names_of(function);
        let chosen = names
            .iter()
            .find(|name| by_file && matches!(name, Name::InFile(..)))
            .or(names.first());
        match chosen {
            Some(name) => name.text(),
            None => Cow::Borrowed(b"".as_slice()),
        }
    }

    /// Addresses in a function, its start excepted, that symbols name as entries.
    pub fn entries_of(&self, function: usize) -> &[u64] {
        let Some(f) = self.list.get(function) else {
            return &[];
        };
        let from = self.entries.partition_point(|&at| at <= f.start);
        let to = self
            .entries
            .partition_point(|&at| at < f.start.saturating_add(f.size));
        self.entries.get(from..to).unwrap_or_default()
    }

    /// The object that an address is in: its index.
    pub fn object_at(&self, address: u64) -> Option<usize> {
        let after = self.objects.partition_point(|object| object.0 <= address);
        let index = after.checked_sub(1)?;
        let (start, size, _) = self.objects[index];
        (address - start < size).then_some(index)
    }

    /// Start and name of an object.
    pub fn object(&self, index: usize) -> Option<(u64, Cow<'d, [u8]>)> {
        let (start, _, name) = self.objects.get(index)?;
        Some((*start, name.text()))
    }
}

impl<'d> Search<'_, 'd> {
    fn symbols(&mut self, unwind: &EhFrame<'d>) {
        let elf = self.elf;
        let mut table = elf.symbols(SymbolTable::Static);
        if table.is_empty() {
            table = elf.symbols(SymbolTable::Dynamic);
        }
        let mut previous: Option<usize> = None;
        names::each(elf, &table, |named| {
            let symbol = &named.symbol;
            let address = symbol.value;
            self.bounds.push(Bound {
                address,
                size: symbol.size,
                kind: symbol.kind,
                global: symbol.binding != raw::STB_LOCAL,
                private: symbol.name.starts_with(b".L"),
                marker: named.class == Class::Marker,
            });
            // Markers tell data in code and have no place among names.
            let Some(name) = named.name else {
                return;
            };
            let section = elf.sections.get(symbol.section as usize);
            let Some(section) =
                section.filter(|s| symbol.section != raw::SHN_ABS && address != s.end())
            else {
                return;
            };
            if section.flags & raw::SHF_EXECINSTR == 0 {
                if symbol.size > 0 && named.class != Class::Section && !section.is_tbss() {
                    self.objects.push((address, symbol.size, name));
                }
                return;
            }
            previous = self.code(named, section, previous, unwind).or(previous);
        });
        // An object within another one, or a second name of it, has nothing to say.
        self.objects.sort_by_key(|object| object.0);
        self.objects.dedup_by_key(|object| object.0);
    }

    /// A symbol in code. The function it is a name of, if it is that of one.
    fn code(
        &mut self,
        named: &Named<'d>,
        section: &Section<'d>,
        previous: Option<usize>,
        unwind: &EhFrame<'d>,
    ) -> Option<usize> {
        let symbol = &named.symbol;
        let address = symbol.value;
        let is_function = named.class == Class::Function;
        if let Some(before) = previous.and_then(|at| self.list.get(at)).copied() {
            let bound = self.bounds.last()?;
            if !is_function {
                let inside = before.contains(address);
                if inside || before.size == 0 && self.tolerates(&before, bound) {
                    return None;
                }
            }
            if before.contains(address) && address != before.start {
                if !self.tolerates(&before, bound) {
                    self.entries.push(address);
                    self.bounds.pop();
                }
                return None;
            }
        }
        let mut size = symbol.size;
        let mut doubtful = false;
        let after = unwind.fdes.partition_point(|fde| fde.start < address);
        match unwind.fdes.get(after) {
            Some(fde) if fde.start == address => size = size.max(fde.len),
            _ => {
                let before = after.checked_sub(1).and_then(|at| unwind.fdes.get(at));
                doubtful = before.is_some_and(|fde| address > fde.start && address < fde.end());
            }
        }
        if section.size == 0 {
            return None;
        }
        let fragment = fragment_of(symbol.name).is_some();
        // At one address symbols follow each other.
        let known = self.list.last().is_some_and(|f| f.start == address);
        if !known {
            self.list.push(Function {
                start: address,
                size,
                reach: 0,
                section: symbol.section,
                stub: false,
                fragment,
                split: false,
                doubtful,
                names: (0, 0),
            });
        }
        let index = self.list.len() - 1;
        let function = &mut self.list[index];
        function.size = function.size.max(size);
        function.fragment |= fragment;
        let from = self.names.len();
        for name in [named.name, named.by_file].into_iter().flatten() {
            let repeated = self.names[..from]
                .iter()
                .rev()
                .take_while(|other| other.0 == address)
                .any(|other| other.1 == name);
            if !repeated {
                self.names.push((address, name));
            }
        }
        Some(index)
    }

    /// Whether a symbol may be in a function without ending it.
    fn tolerates(&self, function: &Function, bound: &Bound) -> bool {
        let section = self.elf.sections.get(function.section as usize);
        if !section.is_some_and(|s| bound.address >= s.addr && bound.address < s.end()) {
            return false;
        }
        bound.marker
            || bound.size == 0 && function.contains(bound.address)
            || bound.kind == raw::STT_NOTYPE && !bound.global
    }

    /// Names the stubs of procedure linkage tables by what they jump to.
    fn stubs<I: Isa>(&mut self) -> Result<(), FormatError> {
        let elf = self.elf;
        let mut slots: FxHashMap<u64, u32> = FxHashMap::default();
        let mut found = Vec::new();
        for (index, section) in elf.sections.iter().enumerate() {
            let Some(mut entry) = stub_size(section).filter(|_| section.is_alloc()) else {
                continue;
            };
            if slots.is_empty() {
                slots = elf
                    .dyn_relocs()?
                    .iter()
                    .filter(|reloc| reloc.symbol != 0)
                    .map(|reloc| (reloc.addr, reloc.symbol))
                    .collect();
            }
            let dynamic = elf.symbols(SymbolTable::Dynamic);
            let code = elf.section_data(section);
            let function = |offset: u64| Function {
                start: section.addr.saturating_add(offset),
                size: 0,
                reach: 0,
                section: index as u32,
                stub: true,
                fragment: false,
                split: false,
                doubtful: false,
                names: (0, 0),
            };
            if elf.machine == raw::EM_AARCH64 {
                // A head of two entries' size; then one for each slot, in the order of the relocations.
                const JUMP_SLOT: u32 = 1026;
                let slots: Vec<u32> = elf
                    .dyn_relocs()?
                    .iter()
                    .filter(|reloc| reloc.kind == JUMP_SLOT)
                    .map(|reloc| reloc.symbol)
                    .collect();
                for (number, symbol) in slots.iter().enumerate() {
                    let at = 32 + 16 * number as u64;
                    let named = dynamic.get(*symbol as usize);
                    if let Some(symbol) =
                        named.filter(|_| section.name == ".plt" && at < section.size)
                    {
                        found.push((function(at), Name::Stub(symbol.name)));
                    }
                }
                if section.size > 0 {
                    found.push((function(0), Name::Head(section.name)));
                }
                continue;
            }
            let mut offset = 0u64;
            let mut named_first = false;
            while let Some(bytes) = usize::try_from(offset)
                .ok()
                .and_then(|at| code.get(at..)?.get(..entry as usize))
            {
                let mut target = None;
                let mut at = section.addr.saturating_add(offset);
                let start = at;
                while let Some(rest) = bytes.get((at - start) as usize..).filter(|r| !r.is_empty())
                {
                    let Some(insn) = I::decode(rest, at) else {
                        break;
                    };
                    if offset == 0 && entry == 8 && insn.traits.landing_pad {
                        entry = 16;
                    }
                    if insn.flow == Flow::IndirectJump {
                        target = insn.field.map(|field| field.target);
                        break;
                    }
                    at = insn.end();
                }
                let symbol = target
                    .and_then(|slot| slots.get(&slot))
                    .and_then(|&symbol| dynamic.get(symbol as usize));
                if let Some(symbol) = symbol {
                    named_first |= offset == 0;
                    found.push((function(offset), Name::Stub(symbol.name)));
                }
                offset += entry;
            }
            if !named_first && section.size > 0 {
                found.push((function(0), Name::Head(section.name)));
            }
        }
        self.add(found);
        Ok(())
    }

    /// Functions that only unwind entries tell of.
    fn unwind_entries(&mut self, unwind: &EhFrame<'d>) {
        let mut found = Vec::new();
        for fde in unwind.fdes.iter().filter(|fde| !fde.is_discarded()) {
            let after = self.list.partition_point(|f| f.start <= fde.start);
            let before = after.checked_sub(1).map(|at| &self.list[at]);
            let known = before.is_some_and(|f| f.start == fde.start || f.contains(fde.start));
            let section = self.elf.section_at(fde.start).filter(|(_, s)| s.is_code());
            if let (false, Some((section, _))) = (known, section) {
                let function = Function {
                    start: fde.start,
                    size: fde.len,
                    reach: 0,
                    section: section as u32,
                    stub: false,
                    fragment: false,
                    split: false,
                    doubtful: false,
                    names: (0, 0),
                };
                found.push((function, Name::Unwind(fde.start)));
            }
        }
        self.add(found);
    }

    fn add(&mut self, found: Vec<(Function, Name<'d>)>) {
        if found.is_empty() {
            return;
        }
        for (function, name) in found {
            self.names.push((function.start, name));
            self.list.push(function);
        }
        // Stable: what was there before keeps its place.
        self.list.sort_by_key(|f| f.start);
        self.list.dedup_by_key(|f| f.start);
    }

    /// Says how far each function reaches.
    fn boundaries(&mut self) {
        let mut list = std::mem::take(&mut self.list);
        for index in 0..list.len() {
            let next = list.get(index + 1).map(|f| f.start);
            let function = &mut list[index];
            let mut at = self.bounds.partition_point(|b| b.address <= function.start);
            while let Some(bound) = self.bounds.get(at) {
                if next.is_some_and(|next| bound.address >= next)
                    || !self.tolerates(function, bound)
                {
                    break;
                }
                if !bound.private && !bound.marker {
                    self.entries.push(bound.address);
                }
                at += 1;
            }
            let section = self.elf.sections.get(function.section as usize);
            let ends = [
                section.map(Section::end),
                self.bounds.get(at).map(|b| b.address),
                next,
            ];
            let end = ends.into_iter().flatten().min().unwrap_or(function.start);
            let reach = end.saturating_sub(function.start);
            if reach < function.size {
                function.doubtful = true;
                function.reach = function.size;
                continue;
            }
            function.reach = reach;
            if function.size == 0 && !function.doubtful {
                function.size = reach;
            }
        }
        self.list = list;
    }
}
