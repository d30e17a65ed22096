//! From instructions to blocks.
//!
//! A block ends where control does not simply go on (a jump, a return, a call that may come back in another
//! way or not at all, a system call), at the end of its piece, and in front of a leader. Its last instruction
//! is copied like the others, unless it is a direct jump, which is encoded again for its new place.

use postlink_isa::{FixupKind, Flow, Forks, Insn, Isa};
use smallvec::SmallVec;

use super::build::FunctionCode;
use super::graph::{Block, BlockId, Callee, Cfg, ExclusiveRegion, Field, Site, Term, Use};
use super::indirect::IndirectJumps;
use crate::discover::{NonlocalExits, Program};
use crate::pin::Pin;

/// Where a block goes, as input addresses: where its jump leads, then where it falls through to. 0 stands for none.
pub(super) type Targets = [u64; 2];

/// Which block begins at an address: a list with a place for each byte of the function. Most functions are short, and a
/// hash table takes longer to fill than that.
#[derive(Default)]
pub(super) struct BlockIndex {
    /// By piece: its range, and the place of its first byte in the list.
    pieces: SmallVec<[(u64, u64, usize); 2]>,
    /// By byte of all pieces: the block that begins there, or [`NO_BLOCK`].
    blocks: Vec<BlockId>,
}

/// In [`BlockIndex`]: no block begins there.
const NO_BLOCK: BlockId = BlockId::MAX;

impl BlockIndex {
    /// Forgets the function that it was of, and is of one with these pieces.
    fn begin(&mut self, ranges: &[(u64, u64)]) {
        self.pieces.clear();
        let mut size = 0;
        for &(start, end) in ranges {
            self.pieces.push((start, end, size));
            size += (end - start) as usize;
        }
        self.blocks.clear();
        self.blocks.resize(size, NO_BLOCK);
    }

    fn place(&self, addr: u64) -> Option<usize> {
        let holds = |p: &&(u64, u64, usize)| addr >= p.0 && addr < p.1;
        let &(start, _, first) = self.pieces.iter().find(holds)?;
        Some(first + (addr - start) as usize)
    }

    /// A block begins at an address in the function.
    fn insert(&mut self, addr: u64, block: BlockId) {
        if let Some(place) = self.place(addr).and_then(|at| self.blocks.get_mut(at)) {
            *place = block;
        }
    }

    /// The block that begins at an address.
    pub fn get(&self, addr: u64) -> Option<BlockId> {
        let block = self.blocks.get(self.place(addr)?)?;
        (*block != NO_BLOCK).then_some(*block)
    }
}

/// Cuts the function into blocks at `leaders`, which are ascending. Notes in `index` which block begins at an
/// address, and in `targets` for each block where it goes. The graph that is given is empty.
pub(super) fn cut<I: Isa>(
    code: &FunctionCode<'_, '_>,
    nonlocal_exits: &NonlocalExits,
    jumps: &IndirectJumps,
    leaders: &[u64],
    (mut cfg, index, targets): (Cfg, &mut BlockIndex, &mut Vec<Targets>),
) -> Result<Cfg, Pin> {
    let about = leaders.len() + code.seen.ends;
    targets.clear();
    index.begin(&code.ranges);
    cfg.blocks.reserve(about);
    cfg.field_index.reserve(about + 1);
    cfg.fields.reserve(code.seen.fields);
    let mut cutter = Cutter {
        code,
        nonlocal_exits,
        jumps,
        cfg,
        targets,
        ahead: &[],
        absolute: &[],
        forms: false,
        twice: false,
    };
    let mut found = 0usize;
    for (piece, &(from, to)) in code.pieces.iter().enumerate() {
        // Within a piece addresses only rise, and so does the place in the sorted list.
        cutter.ahead = &leaders[leaders.partition_point(|l| *l < code.ranges[piece].0)..];
        let (start, end) = code.ranges[piece];
        cutter.absolute = code.program.refs.absolute_fields_in(start, end);
        cutter.forms = !code.program.refs.formed_in(start, end).is_empty();
        cutter.twice = false;
        let mut k = from;
        while k < to {
            let start = code.insns[k].addr;
            index.insert(start, cutter.cfg.blocks.len() as BlockId);
            found += usize::from(cutter.is_leader(start));
            k = cutter.block::<I>(piece, k, to)?;
        }
    }
    let Cutter { mut cfg, .. } = cutter;
    cfg.field_index.push(cfg.fields.len() as u32);
    if found != leaders.len() {
        return Err(Pin::BranchIntoInstruction);
    }
    Ok(cfg)
}

struct Cutter<'a, 'd> {
    code: &'a FunctionCode<'a, 'd>,
    nonlocal_exits: &'a NonlocalExits,
    jumps: &'a IndirectJumps,
    cfg: Cfg,
    targets: &'a mut Vec<Targets>,
    /// Leaders that have not been come to.
    ahead: &'a [u64],
    /// Absolute fields of the piece that have not been come to.
    absolute: &'a [(u64, FixupKind)],
    /// Some instructions of the piece form an address together.
    forms: bool,
    /// What was just cut off may come back more than once.
    twice: bool,
}

/// An instruction as the last one of a block.
struct Ending {
    targets: Targets,
    /// The block ends here.
    done: bool,
    /// The instruction is copied, not re-encoded.
    copied: bool,
}

impl<'a> Cutter<'a, '_> {
    fn is_leader(&mut self, addr: u64) -> bool {
        while let [first, rest @ ..] = self.ahead
            && *first < addr
        {
            self.ahead = rest;
        }
        self.ahead.first() == Some(&addr)
    }

    /// The absolute fields of an instruction, which is behind those that were asked about before.
    fn absolute_fields(&mut self, insn: &Insn) -> &'a [(u64, FixupKind)] {
        while let [first, rest @ ..] = self.absolute
            && first.0 < insn.addr
        {
            self.absolute = rest;
        }
        let own = self.absolute.iter().take_while(|f| f.0 < insn.end());
        let (own, rest) = self.absolute.split_at(own.count());
        self.absolute = rest;
        own
    }

    /// Cuts off the block that begins with instruction `k`, and gives the number of the instruction after it.
    /// `to` is one past the piece's last.
    fn block<I: Isa>(&mut self, piece: usize, mut k: usize, to: usize) -> Result<usize, Pin> {
        let code = self.code;
        self.cfg.field_index.push(self.cfg.fields.len() as u32);
        let start = code.insns[k].addr;
        let mut block = Block {
            start,
            end: start,
            term_at: start,
            term: Term::Fall,
            succ: 0,
            nsucc: 0,
            entry: false,
            landing_pad: false,
            nonlocal_exits: false,
            faults_from: u64::MAX,
            returns_twice: std::mem::take(&mut self.twice),
            unlikely: piece > 0,
            watch: ExclusiveRegion::default(),
            piece: piece as u16,
        };
        loop {
            k += self.quiet(&code.insns[k..to]);
            let insn = code.insns[k];
            k += 1;
            let last = insn.end() >= code.ranges[piece].1 || k >= to;
            let ending = self.instruction(&insn, last, &mut block)?;
            block.end = insn.end();
            block.term_at = insn.end();
            if ending.copied {
                let anchor = code.anchor(&insn).is_some();
                let absolute = self.absolute_fields(&insn);
                push_fields::<I>(code.program, &insn, anchor, absolute, &mut self.cfg.fields);
            } else {
                block.term_at = insn.addr;
            }
            if ending.done {
                self.cfg.blocks.push(block);
                self.targets.push(ending.targets);
                return Ok(k);
            }
        }
    }

    /// How many instructions there are in front of the first that may end the block or have fields, or is the last.
    fn quiet(&self, insns: &[Insn]) -> usize {
        if self.forms {
            return 0;
        }
        let leader = self.ahead.iter().find(|leader| **leader > insns[0].addr);
        let field = self.absolute.iter().find(|field| field.0 >= insns[0].addr);
        // One that begins there may be the next.
        let end = leader.map_or(u64::MAX, |leader| *leader);
        let end = field.map_or(end, |field| end.min(field.0));
        let is_quiet = |pair: &[Insn]| {
            let [insn, next] = pair else { return false };
            let plain = insn.flow == Flow::Next && insn.field.is_none();
            plain && !insn.traits.system_call && next.addr < end
        };
        insns.windows(2).take_while(|pair| is_quiet(pair)).count()
    }

    /// What an instruction means for the block that it is in. `last`: the piece ends after it.
    fn instruction(&mut self, insn: &Insn, last: bool, block: &mut Block) -> Result<Ending, Pin> {
        let next = insn.end();
        let falls = if last { 0 } else { next };
        let mut ending = Ending {
            targets: [0; 2],
            done: true,
            copied: true,
        };
        match insn.flow {
            Flow::Next => {
                // The thread may end here (glibc's threads do, in a loop around it), or two go on.
                self.twice = insn.traits.system_call && !last;
                ending.done = last || self.twice || self.is_leader(next);
                ending.targets[0] = falls;
                if last {
                    block.term = Term::Stop;
                }
            }
            Flow::Jump { .. } | Flow::CondJump { .. } | Flow::ShortCond { .. } => {
                ending.copied = false;
                ending.targets = self.branch(insn, last, block)?;
            }
            Flow::Call { .. } | Flow::IndirectCall => {
                let id = self.cfg.blocks.len() as BlockId;
                if insn.flow == Flow::IndirectCall {
                    self.site(insn, false);
                }
                // Even a call that is known not to return keeps the edge to what follows it: the proof knows no names.
                let call = self.nonlocal_exits.call(self.code.program, insn);
                if call.forks != Forks::Never {
                    self.cfg.forks.push((id, next));
                }
                block.nonlocal_exits = call.nonlocal_exits;
                block.unlikely |= call.no_return;
                if last {
                    block.term = Term::Stop;
                } else {
                    ending.targets[0] = falls;
                    self.twice = call.returns_twice;
                    ending.done = call.nonlocal_exits || call.returns_twice || self.is_leader(next);
                }
            }
            Flow::IndirectJump => match self.jumps.by_address.get(&insn.addr) {
                Some(&(Some(dispatch), leaves)) => {
                    block.term = Term::Dispatch { dispatch, leaves };
                    // The target is an old address, though a jump to new code may be there, but for tables of new
                    // code's own.
                    let own = self.jumps.own.contains(&insn.addr);
                    if !self.code.program.refs.kept && !own {
                        self.cfg.falls_back.push(insn.addr);
                    }
                }
                _ if falls_back(self.code.program, insn) => {
                    block.term = Term::FallBack;
                    self.cfg.falls_back.push(insn.addr);
                    if !self.jumps.through_tables.contains(&insn.addr) {
                        self.cfg.plain_jumps.push(insn.addr);
                    }
                }
                _ => {
                    block.term = Term::IndirectOut;
                    self.site(insn, true);
                }
            },
            Flow::Return => block.term = Term::Return,
            Flow::Trap if !last => {
                block.unlikely = true;
                ending.done = self.is_leader(next);
                ending.targets[0] = falls;
            }
            Flow::Stop | Flow::Trap => {
                block.term = Term::Stop;
                block.unlikely = true;
            }
        }
        Ok(ending)
    }

    /// A direct jump, conditional or not: how the block ends, and where it goes.
    fn branch(&self, insn: &Insn, last: bool, block: &mut Block) -> Result<Targets, Pin> {
        let inside = |target: u64| self.code.contains(target);
        if insn.traits.prefixed && !matches!(insn.flow, Flow::ShortCond { .. }) {
            return Err(Pin::PrefixedBranch);
        }
        if last && !matches!(insn.flow, Flow::Jump { .. }) {
            return Err(Pin::FallsOffItsEnd);
        }
        let next = insn.end();
        let (term, targets) = match insn.flow {
            Flow::Jump { target } if inside(target) => (Term::Jump, [target, 0]),
            Flow::Jump { target } => (Term::JumpOut { target }, [0; 2]),
            Flow::CondJump { cond, target } if inside(target) => {
                (Term::Cond { cond }, [target, next])
            }
            Flow::CondJump { cond, target } => (Term::CondOut { cond, target }, [next, 0]),
            Flow::ShortCond { target } if inside(target) => (Term::ShortCond, [target, next]),
            Flow::ShortCond { target } => (Term::ShortCondOut { target }, [next, 0]),
            _ => return Ok([0; 2]),
        };
        block.term = term;
        Ok(targets)
    }

    /// Notes an indirect call, or a jump that is one.
    fn site(&mut self, insn: &Insn, tail: bool) {
        self.cfg.sites.push(Site {
            at: insn.addr,
            len: insn.len,
            block: self.cfg.blocks.len() as BlockId,
            tail,
            callee: Callee::of(self.code.program, insn),
        });
    }
}

/// Whether an indirect jump goes to old code: its tables stay what they were if the linker kept no
/// relocations. What a constant slot holds is a function, and what a resolver chooses for one, too.
pub(super) fn falls_back(program: &Program<'_>, insn: &Insn) -> bool {
    let refs = &program.refs;
    let is_inside = |target| program.piece_at(target).is_some_and(|p| p.start != target);
    let leaves = |slot| {
        let target = refs.constant_slot(slot);
        refs.lasting_import_at(slot).is_some()
            || target
                .or_else(|| refs.lasting_resolver_of(slot))
                .is_some_and(|target| !is_inside(target))
    };
    !refs.kept && !insn.slot().is_some_and(leaves)
}

/// Notes the fields of an instruction; `anchor`: it forms an address that stays what it is, although it is in
/// this function. `absolute`: its absolute fields.
fn push_fields<I: Isa>(
    program: &Program<'_>,
    insn: &Insn,
    anchor: bool,
    absolute: &[(u64, FixupKind)],
    fields: &mut Vec<Field>,
) {
    if let Some(target) = program.refs.formed_at(insn.addr) {
        let kind = insn.field.map_or(FixupKind::Low12 { scale: 0 }, |f| f.kind);
        fields.push(Field {
            at: insn.addr,
            kind,
            role: Use::Address,
            target,
        });
    } else if let Some(f) = insn.field {
        let role = match insn.flow {
            Flow::Call { .. } => Use::Call,
            _ if insn.traits.forms_address && !anchor => Use::Address,
            _ => Use::Memory,
        };
        fields.push(Field {
            at: insn.addr + u64::from(f.at),
            kind: f.kind,
            role,
            target: f.target,
        });
    }
    for &(at, kind) in absolute {
        let width = if kind == FixupKind::Abs64 { 8 } else { 4 };
        let Some(target) = program
            .elf
            .bytes_at(at, width)
            .and_then(|b| I::read_field(kind, b, at))
        else {
            continue;
        };
        if fields.last().is_some_and(|f| f.at == at) {
            continue;
        }
        fields.push(Field {
            at,
            kind,
            role: Use::Address,
            target,
        });
    }
}
