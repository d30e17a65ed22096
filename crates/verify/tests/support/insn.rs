//! Instructions of either machine.

use super::{a64, is_a64, offset, u32_at};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

/// An instruction of either machine.
#[derive(Clone, Copy, Debug)]
pub enum I {
    X86(Instruction),
    A64(a64::Word),
}

impl I {
    pub(super) fn a64(&self) -> Option<a64::Word> {
        if let I::A64(w) = *self { Some(w) } else { None }
    }
    pub(super) fn x86(&self) -> Option<&Instruction> {
        if let I::X86(i) = self { Some(i) } else { None }
    }
    pub(super) fn ip(&self) -> u64 {
        match self {
            I::X86(i) => i.ip(),
            I::A64(w) => w.ip,
        }
    }
    pub(super) fn len(&self) -> usize {
        match self {
            I::X86(i) => i.len(),
            I::A64(_) => 4,
        }
    }
    pub(super) fn next_ip(&self) -> u64 {
        self.ip() + self.len() as u64
    }
    pub(super) fn is_jcc_short_or_near(&self) -> bool {
        match self {
            I::X86(i) => i.is_jcc_short_or_near(),
            I::A64(w) => w.is_cond(),
        }
    }
    pub(super) fn is_jmp_short_or_near(&self) -> bool {
        match self {
            I::X86(i) => i.is_jmp_short_or_near(),
            I::A64(w) => w.is_jump(),
        }
    }
    pub(super) fn is_call_near(&self) -> bool {
        match self {
            I::X86(i) => i.is_call_near(),
            I::A64(w) => w.is_call(),
        }
    }
    pub(super) fn near_branch_target(&self) -> u64 {
        match self {
            I::X86(i) => i.near_branch_target(),
            I::A64(w) => w.target(),
        }
    }
    pub(super) fn is_ip_rel_memory_operand(&self) -> bool {
        self.x86()
            .is_some_and(Instruction::is_ip_rel_memory_operand)
    }
    pub(super) fn ip_rel_memory_address(&self) -> u64 {
        self.x86().map_or(0, Instruction::ip_rel_memory_address)
    }
    pub(super) fn mnemonic(&self) -> Mnemonic {
        self.x86().map_or(Mnemonic::INVALID, Instruction::mnemonic)
    }
    pub(super) fn ends(&self) -> bool {
        match self {
            I::X86(i) => matches!(
                i.flow_control(),
                FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Return
                    | FlowControl::Exception
            ),
            I::A64(w) => w.ends(),
        }
    }
}

pub(super) fn decode(d: &[u8], start: u64, end: u64) -> Vec<I> {
    let at = offset(d, start);
    if is_a64(d) {
        let word = |n: u64| a64::Word {
            ip: start + 4 * n,
            w: u32_at(d, at + 4 * n as usize),
        };
        return (0..(end - start) / 4).map(|n| I::A64(word(n))).collect();
    }
    let mut decoder = Decoder::with_ip(
        64,
        &d[at..at + (end - start) as usize],
        start,
        DecoderOptions::NONE,
    );
    let mut out = Vec::new();
    while decoder.can_decode() {
        out.push(I::X86(decoder.decode()));
    }
    out
}

pub(super) fn is_short_cond(i: &I) -> bool {
    matches!(
        i.mnemonic(),
        Mnemonic::Jrcxz | Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne
    )
}

pub(super) fn is_nop(i: &I) -> bool {
    let I::X86(i) = i else {
        return i.a64().is_some_and(a64::Word::is_nop);
    };
    matches!(
        i.code(),
        Code::Nopd | Code::Nopw | Code::Nopq | Code::Nop_rm16 | Code::Nop_rm32 | Code::Nop_rm64
    )
}

/// The pseudo-register that says whether the return address is signed.
pub(super) const SIGNED: u16 = 34;

/// The number of the `add` that makes an address of `adrp` number `n`, in the same register; and the address.
pub(super) fn page_pair(insns: &[I], n: usize) -> Option<(usize, u64)> {
    let page = insns.get(n)?.a64().filter(|w| w.is_adrp())?;
    let reg = page.w & 31;
    for (m, low) in insns.iter().enumerate().skip(n + 1).take(8) {
        let w = low.a64()?.w;
        if w & 0xffc0_0000 == 0x9100_0000 && w >> 5 & 31 == reg {
            return Some((m, page.target() + u64::from(w >> 10 & 0xfff)));
        }
        let fields = if w & 0x1c00_0000 == 0x1000_0000 { 2 } else { 4 };
        let names_it = [w & 31, w >> 5 & 31, w >> 16 & 31, w >> 10 & 31][..fields].contains(&reg);
        if names_it || low.is_jcc_short_or_near() || low.is_call_near() || low.ends() {
            return None;
        }
    }
    None
}

pub(super) fn page_target(insns: &[I], n: usize) -> Option<u64> {
    page_pair(insns, n).map(|p| p.1)
}

/// The same for the `add`.
pub(super) fn low_target(insns: &[I], n: usize) -> Option<u64> {
    (n.saturating_sub(8)..n)
        .find_map(|m| page_pair(insns, m).filter(|p| p.0 == n))
        .map(|p| p.1)
}
