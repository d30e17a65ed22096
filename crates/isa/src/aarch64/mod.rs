//! AArch64, little-endian, as Linux and the AAPCS64 use it.
//!
//! | file | subject |
//! |---|---|
//! | [`mod@decode`] | words to [`Insn`]: where control goes, which field holds an address |
//! | [`branch`] | fields read and written; jumps, calls and nops encoded |
//! | [`effects`] | registers and flags that an instruction reads and overwrites |
//! | [`places`] | addresses that words could name, wherever they are |
//! | [`encode`] | the few instructions that are put in, as words |
//! | [`table`] | what kind of table an indirect jump goes through |
//! | [`mod@values`] | what instructions leave in registers; jumps through tables, encoded again |
//! | [`counter`] | the increment of a counter |
//! | [`coverage`] | counters of machine profiles |
//! | [`site`] | recorders of indirect call targets |
//! | [`runtime`] | the start-up routine of an instrumented program |
//!
//! # Members of a [`RegSet`]
//!
//! | bit | member |
//! |---|---|
//! | 0..=30 | `x0 … x30` |
//! | 31 | `sp` (register 31 as a zero register is no member) |
//! | 32..=35 | [`N`], [`Z`], [`C`], [`V`] |
//!
//! Vector, predicate and system registers are not modelled, and nothing that is emitted here touches them.
//!
//! # Conditions
//!
//! A [`Cond`] is the whole branch instruction with its displacement cleared: `b.cond`, `bc.cond`, `cbz`,
//! `cbnz`, `tbz`, `tbnz`. So its register, width and bit number come along, and its inverse differs in one
//! bit.
//!
//! # `x16` and `x17`
//!
//! The procedure call standard leaves them to whatever is between a call and its callee: stubs and veneers.
//! No value is in them across a call or return of a compiled function, not even with inter-procedural
//! register allocation. That makes them dead before every call and return ([`Decode::CALL_SCRATCH`]), and free
//! for recorders. Hand-written assembly breaks the rule among its own routines, so functions without unwind
//! information are not taken to keep it.
//!
//! # How jump tables move
//!
//! Compilers write tables of bytes, half-words and words, whose entries are distances in instructions from a
//! label in the code, the *anchor*, which an `adr` forms ([`JumpShape::Anchored`]). There is no space in a
//! byte for where the blocks of a moved function are. So neither table nor anchor move: the copied code forms
//! the *old* anchor (`adr` becomes `adrp` and `add`, as the old text may be out of its reach), the table is
//! read where it is, and the `br` arrives at the old block, whose first instruction (after `bti`, if there is
//! one) has become a `b` to the new block. A target too many or too few in the reconstruction does no harm:
//! every instruction of the old body continues doing what it did. Tables of words relative to the table itself
//! (`.word L - table`, relocations kept by the linker) are rewritten in place as on x86-64.
//!
//! Where the linker kept no relocations, jumps of which index and table are known go through tables of new code's own
//! ([`mod@values`]), and the others as above.

mod branch;
mod constants;
mod counter;
mod coverage;
mod decode;
mod effects;
mod encode;
mod erratum;
mod frames;
mod huge;
mod places;
mod question;
mod runtime;
mod site;
mod table;
pub mod text;
mod values;

use crate::coverage::{CallCounter, Covers, MipRuntime, SlowConfig};
use crate::frames::StackOps;
use crate::{
    Code, Compares, Cond, CounterMode, CounterPlace, Counters, Decode, Effects, Encode, FixupKind,
    HugePages, Insn, Isa, JumpShape, LabelLoad, Memory, OutOfRange, Place, Question, Reach, RegSet,
    Runtime, RuntimeConfig, RuntimeError, SiteRef, TableInPlace, TableJump, TableLoad, Values,
};

/// The instruction set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AArch64;

/// The negative flag as a member of a [`RegSet`].
pub const N: RegSet = RegSet(1 << 32);
/// The zero flag as a member of a [`RegSet`].
pub const Z: RegSet = RegSet(1 << 33);
/// The carry flag as a member of a [`RegSet`].
pub const C: RegSet = RegSet(1 << 34);
/// The overflow flag as a member of a [`RegSet`].
pub const V: RegSet = RegSet(1 << 35);

/// All four flags.
pub const NZCV: RegSet = RegSet(0xf << 32);
/// `x0 … x30` and `sp`.
pub const GENERAL: RegSet = RegSet(0xffff_ffff);
/// See [`Counters::COUNTER_UNIT`].
const UNIT: u64 = 0x10000;

/// `x16` and `x17`.
pub const SCRATCH: RegSet = RegSet(0x3_0000);

impl Decode for AArch64 {
    const NAME: &'static str = "AArch64";

    const FLAGS: RegSet = NZCV;

    const LIVE_AT_EXIT: RegSet = RegSet(GENERAL.0 & !SCRATCH.0);

    const CALL_SCRATCH: RegSet = SCRATCH;

    // x18 to x29.
    const KEPT_BY_CALLS: RegSet = RegSet(0x3ffc_0000);

    const STUB_SCRATCH: RegSet = SCRATCH;

    const SOUGHT: RegSet = RegSet(0x3_ffff);

    const LOOK_AHEAD: usize = 32;

    const ADDS_DISTANCES: bool = false;

    fn decode(bytes: &[u8], addr: u64) -> Option<Insn> {
        decode::decode(bytes, addr)
    }

    fn sweep(bytes: &[u8], addr: u64, visit: impl FnMut(&Insn) -> bool) -> Option<u64> {
        decode::sweep(bytes, addr, visit)
    }

    fn effects(bytes: &[u8], insn: &Insn) -> Effects {
        effects::effects(bytes, insn)
    }

    fn operand_registers(bytes: &[u8], insn: &Insn) -> RegSet {
        effects::operand_registers(bytes, insn)
    }

    fn memory(bytes: &[u8], _: &Insn) -> Memory {
        effects::touches(bytes)
    }

    fn read_field(kind: FixupKind, bytes: &[u8], place: u64) -> Option<u64> {
        branch::read_field(kind, bytes, place)
    }

    fn veneer_target(bytes: &[u8], addr: u64) -> Option<u64> {
        branch::veneer_target(bytes, addr)
    }

    fn is_near(insn: &Insn) -> bool {
        branch::is_near(insn)
    }

    fn jump_shape<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> JumpShape {
        table::jump_shape(path, code)
    }

    fn table_in_place<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> Option<TableInPlace> {
        table::table_in_place(path, code)
    }

    fn jump_slot<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> Option<u64> {
        table::jump_slot(path, code)
    }

    // Of one instruction that has the offset in it: a vector.
    const WIDEST: u64 = 16;

    const INSTRUCTION_ALIGNMENT: u64 = 4;

    const TABLE_ENTRIES: &'static [(u64, u32)] = &[(1, 2), (2, 2), (4, 2), (4, 0), (8, 0)];

    fn is_unallocated(bytes: &[u8]) -> bool {
        // By bits 28 to 25 (Arm Architecture Reference Manual, C4.1): 0 is reserved, or SME's where bit 31 is set; 1
        // and 3 are unallocated. Of the instructions that generate exceptions there are those with 0 to 3 and 5 in
        // bits 23 to 21.
        let word = bytes.first_chunk().map(|word| u32::from_le_bytes(*word));
        word.is_some_and(|word| match word >> 25 & 0xf {
            0 => word >> 31 == 0,
            1 | 3 => true,
            _ => word >> 24 == 0xd4 && matches!(word >> 21 & 7, 4 | 6 | 7),
        })
    }

    fn places(bytes: &[u8], addr: u64, found: &mut impl FnMut(Place, u64)) {
        places::places(bytes, addr, found);
    }

    fn in_parts(
        bytes: &[u8],
        addr: u64,
        wanted: &dyn Fn(u64) -> bool,
        found: &mut dyn FnMut(Place, u64),
    ) {
        places::in_parts(bytes, addr, wanted, found);
    }

    fn numbers(bytes: &[u8], addr: u64, found: &mut dyn FnMut(u64)) {
        places::numbers(bytes, addr, found);
    }

    fn values(bytes: &[u8], insn: &Insn) -> Values {
        values::values(bytes, insn)
    }

    fn question(bytes: &[u8], addr: u64, cond: Cond) -> Question {
        question::question(bytes, addr, cond)
    }

    fn bounds(cond: Cond, taken: bool, compares: &Compares) -> Option<u64> {
        values::bounds(cond, taken, compares)
    }

    const HAS_LABEL_LOADS: bool = true;

    fn table_load(bytes: &[u8], _: &Insn) -> Option<TableLoad> {
        values::table_load(bytes)
    }

    fn table_jump<'c>(
        path: &[Insn],
        code: impl Fn(&Insn) -> &'c [u8],
        forms: bool,
    ) -> Option<TableJump> {
        values::table_jump(path, code, forms)
    }

    fn jump_register(bytes: &[u8], _: &Insn) -> Option<u8> {
        values::jump_register(bytes)
    }

    const STUB_ALIGNMENT: usize = 4;

    fn stub_slot(bytes: &[u8], addr: u64) -> Option<u64> {
        branch::stub_slot(bytes, addr)
    }

    fn may_call_descriptor(before: &[u8], bytes: &[u8]) -> bool {
        // add x0, x0, #low; blr: the four instructions of the sequence are always together.
        let word = |bytes: &[u8]| bytes.last_chunk().map(|word| u32::from_le_bytes(*word));
        word(before).is_some_and(|w| w & 0xffc0_03ff == 0x9100_0000)
            && word(bytes).is_some_and(|w| w & 0xffff_fc1f == 0xd63f_0000)
    }

    fn formed<'c>(insns: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> Vec<(u8, u64)> {
        table::formed(insns, code)
    }
}

impl Encode for AArch64 {
    const PADDING: u8 = 0;

    const FAR_CONDITIONS_BY_STUB: bool = true;

    fn not_near_end_of_page(code: &[u8]) -> Vec<u32> {
        erratum::places(code)
    }

    fn is_near_end_of_page(addr: u64) -> bool {
        erratum::is_near_end_of_page(addr)
    }

    fn write_field(
        kind: FixupKind,
        bytes: &mut [u8],
        place: u64,
        target: u64,
    ) -> Result<(), OutOfRange> {
        branch::write_field(kind, bytes, place, target)
    }

    fn invert(cond: Cond) -> Cond {
        branch::invert(cond)
    }

    fn jump_len(_: Reach) -> usize {
        4
    }

    fn cond_jump_len(reach: Reach) -> usize {
        branch::cond_jump_len(reach)
    }

    fn short_cond_len(original: &[u8]) -> usize {
        original.len()
    }

    fn reaches_short(cond: Option<Cond>, distance: i64) -> bool {
        branch::reaches_short(cond, distance)
    }

    fn put_jump<T>(out: &mut Code<T>, _: Reach, target: T) {
        branch::put_jump(out, target);
    }

    fn put_cond_jump<T>(out: &mut Code<T>, cond: Cond, reach: Reach, target: T) {
        branch::put_cond_jump(out, cond, reach, target);
    }

    /// There are no such instructions here: every conditional branch has an inverse.
    fn put_short_cond<T>(_: &mut Code<T>, _: &[u8], _: T) {}

    fn put_call<T>(out: &mut Code<T>, target: T) {
        branch::put_call(out, target);
    }

    fn put_entry<T>(out: &mut Code<T>, original: &[u8], target: T) {
        branch::put_entry(out, original, target);
    }

    /// ±128 MiB.
    const BRANCH_REACH: u64 = (1 << 27) - 4;

    fn put_veneer<T: Copy>(out: &mut Code<T>, target: T) {
        branch::put_veneer(out, target);
    }

    fn put_far_entry<T: Copy>(out: &mut Code<T>, original: &[u8], target: T) {
        branch::put_far_entry(out, original, target);
    }

    fn put_far<T: Copy>(out: &mut Code<T>, original: &[u8], target: T) -> bool {
        branch::put_far(out, original, target)
    }

    const SLOT_CALLS_ARE_SHORT: bool = false;
    const CALLS_PUSH: bool = false;

    fn put_through_slot<T: Copy>(out: &mut Code<T>, jump: bool, slot: T) -> bool {
        if !jump {
            branch::put_call_through_slot(out, slot);
        }
        !jump
    }

    fn fold_constants<'c, T>(
        bytes: &[u8],
        addr: u64,
        constant: impl Fn(u64, u64) -> Option<&'c [u8]>,
        found: impl FnMut(&Insn, Option<Code<T>>),
    ) {
        constants::fold(bytes, addr, constant, found);
    }

    fn put_label_load<T>(
        out: &mut Code<T>,
        original: &[u8],
        how: LabelLoad,
        wide: bool,
        table: T,
    ) -> bool {
        values::put_label_load(out, original, how, wide, table)
    }

    fn put_label_fallback<T: Copy>(
        out: &mut Code<T>,
        to: u8,
        entry: T,
        base: Option<(u8, T)>,
    ) -> bool {
        values::put_label_fallback(out, to, entry, base)
    }

    fn put_base_guard<T: Copy>(out: &mut Code<T>, base: u8, scratch: u8, table: T, old: T) -> bool {
        values::put_base_guard(out, base, scratch, table, old)
    }

    fn put_table_base<T>(out: &mut Code<T>, original: &[u8], table: T) -> bool {
        values::put_table_base(out, original, table)
    }

    fn put_table_jump<T: Copy>(out: &mut Code<T>, original: &[u8], table: T) -> bool {
        values::put_table_jump(out, original, table)
    }

    fn put_nops(out: &mut Vec<u8>, len: usize) {
        branch::put_nops(out, len);
    }
}

impl Counters for AArch64 {
    const COUNTER_UNIT: u64 = UNIT;
    const UNWIND_STACK: u16 = 31;
    const STACK: u8 = 31;
    const CALL_PUSHES: i64 = 0;
    const CIE: &'static [u8] = &frames::CIE;

    fn stack_ops(bytes: &[u8], insn: &Insn) -> Option<StackOps> {
        frames::stack_ops(bytes, insn)
    }

    fn unwind_register(register: u8) -> u16 {
        register.into()
    }

    fn has_atomic_one(bytes: &[u8]) -> bool {
        counter::has_atomic_one(bytes)
    }

    fn has_exclusive_load(bytes: &[u8]) -> bool {
        counter::has_exclusive_load(bytes)
    }

    fn counter_len(mode: CounterMode, live: RegSet) -> usize {
        counter::counter_len(mode, live)
    }

    fn put_counter<T: Copy>(
        out: &mut Code<T>,
        mode: CounterMode,
        live: RegSet,
        counter: CounterPlace<T>,
    ) {
        counter::put_counter(out, mode, live, counter.counter);
    }

    fn put_site<T: Copy>(
        out: &mut Code<T>,
        mode: CounterMode,
        fixed: bool,
        original: &[u8],
        insn: &Insn,
        refer: impl Fn(SiteRef) -> T,
    ) -> bool {
        site::put_site(out, mode, fixed, original, insn, refer)
    }

    fn put_site_slow<T: Copy>(out: &mut Code<T>, mode: CounterMode, image: (u64, u64)) {
        site::put_site_slow(out, mode, image);
    }
}

impl Runtime for AArch64 {
    fn huge_pages(config: &HugePages) -> Result<Vec<u8>, RuntimeError> {
        Ok(huge::routine(config)?)
    }

    fn runtime(config: &RuntimeConfig<'_>) -> Result<Vec<u8>, RuntimeError> {
        runtime::runtime(config)
    }
}

impl Isa for AArch64 {}

impl Covers for AArch64 {
    const FRONT: Option<u64> = None;
    const CHANGES_POINTERS: bool = false;
    const WHOLE_ENTRIES: bool = true;

    /// mov x8, #139; svc #0
    const SIGNAL_RETURN: &[u8] = &[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

    const LANDING_PAD: &[u8] = &encode::BTI_C.to_le_bytes();
    const NEAR: Option<u64> = Some(1 << 20);

    fn covered_len(live: RegSet, near: bool) -> usize {
        coverage::covered_len(live, near)
    }

    fn put_covered<T: Copy>(out: &mut Code<T>, live: RegSet, near: bool, covered: T) {
        coverage::put_covered(out, live, near, covered);
    }

    fn put_called<T: Copy>(out: &mut Code<T>, live: RegSet, counter: CallCounter<T>) {
        coverage::put_call(out, live, counter);
    }

    fn slow(config: SlowConfig) -> Result<Vec<u8>, RuntimeError> {
        Ok(coverage::slow(config)?)
    }

    fn mip_runtime(
        config: &RuntimeConfig<'_>,
        mip: MipRuntime<'_>,
    ) -> Result<Vec<u8>, RuntimeError> {
        runtime::mip_runtime(config, mip)
    }
}
