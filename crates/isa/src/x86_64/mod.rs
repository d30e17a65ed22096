//! x86-64.
//!
//! | file | subject |
//! |---|---|
//! | [`mod@decode`] | bytes to [`Insn`]: where it ends, where it goes, which field holds an address |
//! | `common` | the encodings that compiled code is made of, decoded by tables, with their effects |
//! | [`branch`] | fields read and written; jumps, calls and nops encoded |
//! | [`effects`] | registers and flags that an instruction reads and overwrites |
//! | [`table`] | what kind of table an indirect jump goes through |
//! | [`counter`] | the increment of a counter |
//! | `promote` | indirect calls that are compared with functions first |
//! | [`site`] | recorders of indirect call targets, and the layout of their tables |
//! | `stack` | instructions that have nothing to do with the stack |
//! | [`text`] | instructions as text |
//! | [`mod@places`] | what bytes could be, wherever instructions begin |
//! | [`mnemonic`] | what instructions are called, for hashes |
//! | [`runtime`] | the start-up routine of an instrumented program |
//!
//! # Members of a [`RegSet`]
//!
//! | bit | member |
//! |---|---|
//! | 0..=15 | `rax rcx rdx rbx rsp rbp rsi rdi r8 … r15`, by their number in the encoding |
//! | 32 | [`CF`] carry |
//! | 33 | [`PF`] parity |
//! | 34 | [`AF`] adjust |
//! | 35 | [`ZF`] zero |
//! | 36 | [`SF`] sign |
//! | 37 | [`OF`] overflow |
//! | 38 | [`DF`] direction |
//!
//! [`Decode::FLAGS`] holds the first six: those that instructions compute. DF is a mode, which the ABI wants clear at
//! every call and return, so it is never dead.
//!
//! Vector, x87 and mask registers are not modelled, and nothing that is emitted here touches them.

mod branch;
mod common;
mod constants;
mod counter;
mod coverage;
mod decode;
mod effects;
mod frames;
mod huge;
mod mnemonic;
mod places;
mod promote;
mod question;
pub(crate) mod runtime;
pub mod site;
mod stack;
mod table;
pub mod text;
pub mod threads;
mod values;

use crate::coverage::{CallCounter, Covers, MipRuntime, SlowConfig};
use crate::frames::StackOps;
use crate::{
    BiasedMemory, Code, Compares, Cond, CounterMode, CounterPlace, Counters, Decode, Effects,
    Encode, FixupKind, Forks, HugePages, Insn, Isa, JumpShape, LabelLoad, Memory, OutOfRange,
    PerThreadMemory, Place, Question, Reach, RegSet, Runtime, RuntimeConfig, RuntimeError, SiteRef,
    TableLoad, Values,
};

/// The instruction set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct X86_64;

/// The carry flag as a member of a [`RegSet`].
pub const CF: RegSet = RegSet(1 << 32);
/// The parity flag as a member of a [`RegSet`].
pub const PF: RegSet = RegSet(1 << 33);
/// The adjust flag as a member of a [`RegSet`].
pub const AF: RegSet = RegSet(1 << 34);
/// The zero flag as a member of a [`RegSet`].
pub const ZF: RegSet = RegSet(1 << 35);
/// The sign flag as a member of a [`RegSet`].
pub const SF: RegSet = RegSet(1 << 36);
/// The overflow flag as a member of a [`RegSet`].
pub const OF: RegSet = RegSet(1 << 37);
/// The direction flag as a member of a [`RegSet`].
pub const DF: RegSet = RegSet(1 << 38);

impl Decode for X86_64 {
    const NAME: &'static str = "x86-64";

    const WIDEST: u64 = 64;

    const INSTRUCTION_ALIGNMENT: u64 = 1;

    const TABLE_ENTRIES: &'static [(u64, u32)] = &[(4, 0)];

    fn places(bytes: &[u8], addr: u64, found: &mut impl FnMut(Place, u64)) {
        places::places(bytes, addr, found);
    }

    fn may_call_descriptor(_before: &[u8], bytes: &[u8]) -> bool {
        // call *(%rax), with prefixes that only fill space
        matches!(bytes, [.., 0xff, 0x10])
    }

    const FLAGS: RegSet = RegSet(CF.0 | PF.0 | AF.0 | ZF.0 | SF.0 | OF.0);

    const LIVE_AT_EXIT: RegSet = RegSet(0xffff | DF.0);

    const CALL_SCRATCH: RegSet = RegSet::EMPTY;

    // rbx, rbp, r12 to r15.
    const KEPT_BY_CALLS: RegSet = RegSet(1 << 3 | 1 << 5 | 0xf << 12);

    const STUB_SCRATCH: RegSet = RegSet(1 << 11);

    const SOUGHT: RegSet = Self::FLAGS;

    const LOOK_AHEAD: usize = 12;

    const ADDS_DISTANCES: bool = true;

    fn decode(bytes: &[u8], addr: u64) -> Option<Insn> {
        decode::decode(bytes, addr)
    }

    fn sweep(bytes: &[u8], addr: u64, visit: impl FnMut(&Insn) -> bool) -> Option<u64> {
        decode::sweep(bytes, addr, visit)
    }

    fn list(
        bytes: &[u8],
        addr: u64,
        list: &mut Vec<Insn>,
        visit: impl FnMut(&Insn),
    ) -> Option<u64> {
        decode::list(bytes, addr, list, visit)
    }

    fn effects(bytes: &[u8], insn: &Insn) -> Effects {
        effects::effects(bytes, insn)
    }

    fn operand_registers(bytes: &[u8], insn: &Insn) -> RegSet {
        effects::operand_registers(bytes, insn)
    }

    fn memory(bytes: &[u8], insn: &Insn) -> Memory {
        effects::memory(bytes, insn)
    }

    fn mnemonics(bytes: &[u8], addr: u64, visit: impl FnMut(&Insn, &str)) {
        mnemonic::sweep(bytes, addr, visit);
    }

    fn is_canonical(cond: Cond) -> bool {
        matches!(cond.0, 0x2 | 0x4 | 0x7 | 0x8 | 0xa | 0xc | 0x0 | 0xf)
    }

    fn read_field(kind: FixupKind, bytes: &[u8], place: u64) -> Option<u64> {
        branch::read_field(kind, bytes, place)
    }

    /// Everything reaches 2 GiB.
    fn is_near(_: &Insn) -> bool {
        false
    }

    fn jump_shape<'c>(path: &[Insn], code: impl Fn(&Insn) -> &'c [u8]) -> JumpShape {
        table::jump_shape(path, code)
    }

    fn jump_slot<'c>(path: &[Insn], _: impl Fn(&Insn) -> &'c [u8]) -> Option<u64> {
        path.last()?.field.map(|field| field.target)
    }

    const STUB_ALIGNMENT: usize = 8;

    fn values(bytes: &[u8], insn: &Insn) -> Values {
        values::values(bytes, insn)
    }

    fn question(bytes: &[u8], addr: u64, cond: Cond) -> Question {
        question::question(bytes, addr, cond)
    }

    fn bounds(cond: Cond, taken: bool, compares: &Compares) -> Option<u64> {
        values::bounds(cond, taken, compares)
    }

    fn last_number(bytes: &[u8], insn: &Insn) -> Option<u64> {
        decode::last_number(bytes, insn)
    }

    fn table_load(bytes: &[u8], insn: &Insn) -> Option<TableLoad> {
        values::table_load(bytes, insn)
    }

    fn adds(bytes: &[u8], insn: &Insn) -> Option<(u8, u8)> {
        values::adds(bytes, insn)
    }

    fn jump_register(bytes: &[u8], insn: &Insn) -> Option<u8> {
        values::jump_register(bytes, insn)
    }

    fn stub_slot(bytes: &[u8], addr: u64) -> Option<u64> {
        let first = Self::decode(bytes, addr)?;
        let jump = if first.traits.landing_pad {
            Self::decode(bytes.get(usize::from(first.len)..)?, first.end())?
        } else {
            first
        };
        let is_jump = jump.flow == crate::Flow::IndirectJump;
        jump.slot().filter(|_| is_jump)
    }

    /// One instruction shows it.
    fn formed<'c>(_: &[Insn], _: impl Fn(&Insn) -> &'c [u8]) -> Vec<(u8, u64)> {
        Vec::new()
    }
}

impl Encode for X86_64 {
    const PADDING: u8 = 0xcc;

    const FAR_CONDITIONS_BY_STUB: bool = false;

    fn write_field(
        kind: FixupKind,
        bytes: &mut [u8],
        place: u64,
        target: u64,
    ) -> Result<(), OutOfRange> {
        branch::write_field(kind, bytes, place, target)
    }

    fn invert(cond: Cond) -> Cond {
        Cond(cond.0 ^ 1)
    }

    fn jump_len(reach: Reach) -> usize {
        branch::jump_len(reach)
    }

    fn cond_jump_len(reach: Reach) -> usize {
        branch::cond_jump_len(reach)
    }

    fn short_cond_len(original: &[u8]) -> usize {
        branch::short_cond_len(original)
    }

    fn reaches_short(_: Option<Cond>, distance: i64) -> bool {
        i8::try_from(distance).is_ok()
    }

    fn put_jump<T>(out: &mut Code<T>, reach: Reach, target: T) {
        branch::put_jump(out, reach, target);
    }

    fn put_cond_jump<T>(out: &mut Code<T>, cond: Cond, reach: Reach, target: T) {
        branch::put_cond_jump(out, cond, reach, target);
    }

    fn put_short_cond<T>(out: &mut Code<T>, original: &[u8], target: T) {
        branch::put_short_cond(out, original, target);
    }

    fn put_call<T>(out: &mut Code<T>, target: T) {
        branch::put_call(out, target);
    }

    fn put_entry<T>(out: &mut Code<T>, _: &[u8], target: T) {
        branch::put_jump(out, Reach::Long, target);
    }

    fn put_far<T: Copy>(_: &mut Code<T>, _: &[u8], _: T) -> bool {
        false
    }

    const SLOT_CALLS_ARE_SHORT: bool = true;
    const CALLS_PUSH: bool = true;

    fn leaves_stack(bytes: &[u8], insn: &Insn) -> bool {
        stack::leaves_stack(bytes, insn)
    }

    fn put_through_slot<T: Copy>(out: &mut Code<T>, jump: bool, slot: T) -> bool {
        branch::put_through_slot(out, jump, slot);
        true
    }

    fn fold_constants<'c, T>(
        bytes: &[u8],
        addr: u64,
        constant: impl Fn(u64, u64) -> Option<&'c [u8]>,
        found: impl FnMut(&Insn, Option<Code<T>>),
    ) {
        constants::fold(bytes, addr, constant, found);
    }

    fn put_promoted_call<T: Copy>(
        out: &mut Code<T>,
        original: &[u8],
        insn: &Insn,
        fixed: bool,
        functions: &[(T, T)],
        slot: impl Fn(u64) -> T,
    ) -> bool {
        promote::put_promoted_call(out, original, insn, fixed, functions, slot)
    }

    fn put_table_load<T>(out: &mut Code<T>, original: &[u8], displacement: T) -> bool {
        values::put_table_load(out, original, displacement)
    }

    fn put_label_load<T>(
        out: &mut Code<T>,
        original: &[u8],
        how: LabelLoad,
        wide: bool,
        table: T,
    ) -> bool {
        how == LabelLoad::Displaced && !wide && values::put_label_load(out, original, table)
    }

    fn put_label_fallback<T: Copy>(
        out: &mut Code<T>,
        to: u8,
        entry: T,
        base: Option<(u8, T)>,
    ) -> bool {
        base.is_none() && values::put_label_fallback(out, to, entry)
    }

    fn put_restored<T>(out: &mut Code<T>, target: (u8, T), distance: Option<(u8, i32)>) -> bool {
        values::put_restored(out, target, distance)
    }

    fn put_index_guard<T>(out: &mut Code<T>, register: u8, last: u32, old: T) -> bool {
        values::put_index_guard(out, register, last, old)
    }

    fn put_nops(out: &mut Vec<u8>, len: usize) {
        branch::put_nops(out, len);
    }
}

impl Counters for X86_64 {
    const COUNTER_UNIT: u64 = 4096;
    const UNWIND_STACK: u16 = 7;
    const STACK: u8 = 4;
    const CALL_PUSHES: i64 = 8;
    const CIE: &'static [u8] = &frames::CIE;

    fn stack_ops(bytes: &[u8], insn: &Insn) -> Option<StackOps> {
        frames::stack_ops(bytes, insn)
    }

    fn unwind_register(register: u8) -> u16 {
        // From the System V ABI: a, d, c, b, si, di, bp, sp, then by number.
        match register {
            1 => 2,
            2 => 1,
            4 => 7,
            5 => 6,
            6 => 4,
            7 => 5,
            other => other.into(),
        }
    }

    fn has_atomic_one(_: &[u8]) -> bool {
        false
    }

    fn has_exclusive_load(_: &[u8]) -> bool {
        false
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
        counter::put_counter(out, mode, live, counter);
    }

    fn put_site<T: Copy>(
        out: &mut Code<T>,
        mode: CounterMode,
        _fixed: bool,
        original: &[u8],
        insn: &Insn,
        refer: impl Fn(SiteRef) -> T,
    ) -> bool {
        site::put_site(out, mode, original, insn, refer)
    }

    fn put_site_slow<T: Copy>(out: &mut Code<T>, mode: CounterMode, image: (u64, u64)) {
        site::put_site_slow(out, mode, image);
    }
}

impl Runtime for X86_64 {
    fn huge_pages(config: &HugePages) -> Result<Vec<u8>, RuntimeError> {
        Ok(huge::routine(config)?)
    }

    fn runtime(config: &RuntimeConfig<'_>) -> Result<Vec<u8>, RuntimeError> {
        runtime::runtime(config)
    }

    const PER_THREAD: Option<PerThreadMemory> = Some(runtime::PER_THREAD);

    const BIASED: Option<BiasedMemory> = Some(runtime::BIASED);

    fn biased_runtime(config: &RuntimeConfig<'_>) -> Result<Vec<u8>, RuntimeError> {
        runtime::biased_runtime(config)
    }

    fn biased_obstacle(bytes: &[u8], addr: u64) -> Option<(u64, &'static str)> {
        threads::biased_obstacle(bytes, addr)
    }

    const ENTRY_SCRATCH: RegSet = RegSet(1 << 11 | Self::FLAGS.0);

    fn put_entry_check<T>(out: &mut Code<T>, save: bool, ready: T, enter: T) {
        threads::put_entry_check(out, save, ready, enter);
    }

    fn put_fork_check<T>(out: &mut Code<T>, ready: T, enter: T) {
        threads::put_fork_check(out, ready, enter);
    }

    fn per_thread_obstacle(
        bytes: &[u8],
        addr: u64,
        stays: bool,
        forks: impl Fn(&Insn) -> Forks,
    ) -> Option<(u64, &'static str)> {
        threads::obstacle(bytes, addr, stays, forks)
    }

    #[inline]
    fn may_be_per_thread_obstacle(bytes: &[u8]) -> bool {
        threads::may_be_obstacle(bytes)
    }

    fn uses_thread_segment(bytes: &[u8]) -> bool {
        threads::uses_segment(bytes)
    }

    fn is_privileged(bytes: &[u8]) -> bool {
        threads::is_privileged(bytes)
    }

    fn per_thread_runtime(config: &RuntimeConfig<'_>) -> Result<(Vec<u8>, u64), RuntimeError> {
        runtime::per_thread_runtime(config)
    }
}

impl Isa for X86_64 {}

impl Covers for X86_64 {
    const FRONT: Option<u64> = Some(coverage::STORE);
    const CHANGES_POINTERS: bool = true;
    const WHOLE_ENTRIES: bool = false;

    /// mov $15, %rax; syscall
    const SIGNAL_RETURN: &[u8] = &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];

    const LANDING_PAD: &[u8] = &[];
    const NEAR: Option<u64> = None;

    fn covered_len(_: RegSet, _: bool) -> usize {
        coverage::STORE as usize
    }

    /// A store of a constant destroys nothing.
    fn put_covered<T: Copy>(out: &mut Code<T>, _: RegSet, _: bool, covered: T) {
        coverage::put_covered(out, covered);
    }

    fn put_called<T: Copy>(out: &mut Code<T>, live: RegSet, counter: CallCounter<T>) {
        coverage::put_call(out, live, counter);
    }

    fn slow(config: SlowConfig) -> Result<Vec<u8>, RuntimeError> {
        coverage::slow(config).map_err(|error| RuntimeError::Assemble {
            why: error.to_string(),
        })
    }

    fn mip_runtime(
        config: &RuntimeConfig<'_>,
        mip: MipRuntime<'_>,
    ) -> Result<Vec<u8>, RuntimeError> {
        runtime::mip_runtime(config, mip)
    }
}
