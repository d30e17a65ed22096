//! Where control goes after an instruction: the only thing that the inserter wants to know about instructions.
//!
//! By mnemonic and target alone. What is not known to branch is taken to continue; inline assembly is treated
//! elsewhere, since there nothing is certain.

use crate::lexer;
use crate::target::Arch;

/// Where control goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow<'a> {
    /// To the next instruction.
    Next,
    /// To the next instruction, if what is called returns.
    Call(Option<&'a [u8]>),
    /// Here.
    Jump(&'a [u8]),
    /// Here or to the next instruction.
    Branch(&'a [u8]),
    /// Not known.
    Indirect,
    /// Out of the function or to the next instruction: on Arm whatever leaves may have a condition.
    Perhaps,
    /// Into the instructions after it, which are a table of branches.
    Into,
    /// Back to the caller.
    Return,
    /// Nowhere: a trap.
    Stop,
}

impl<'a> Flow<'a> {
    /// The label that it names.
    pub fn target(self) -> Option<&'a [u8]> {
        match self {
            Flow::Jump(label) | Flow::Branch(label) => Some(label),
            _ => None,
        }
    }

    /// Whether the next instruction cannot follow.
    pub fn ends(self) -> bool {
        matches!(
            self,
            Flow::Jump(_) | Flow::Indirect | Flow::Return | Flow::Stop
        )
    }
}

/// Where control goes after an instruction.
pub fn flow(arch: Arch, text: &[u8]) -> Flow<'_> {
    match arch {
        Arch::X86_64 => x86_64(text),
        Arch::AArch64 => aarch64(text),
        Arch::Arm => arm(text),
    }
}

/// The name that an operand consists of, without what follows an `@`.
fn label(operand: &[u8]) -> Option<&[u8]> {
    let mut found = None;
    lexer::names(operand, |name| {
        found.get_or_insert(name);
    });
    found
}

fn x86_64(text: &[u8]) -> Flow<'_> {
    let (mut mnemonic, mut rest) = lexer::word(text);
    while matches!(
        mnemonic,
        b"rep"
            | b"repz"
            | b"repe"
            | b"repne"
            | b"repnz"
            | b"lock"
            | b"bnd"
            | b"notrack"
            | b"data16"
            | b"addr32"
            | b"cs"
            | b"ds"
            | b"rex64"
    ) || mnemonic.starts_with(b"{")
    {
        (mnemonic, rest) = lexer::word(rest);
    }
    let direct = || {
        if rest.starts_with(b"*") {
            None
        } else {
            label(rest)
        }
    };
    match mnemonic {
        b"jmp" | b"jmpq" | b"ljmp" => direct().map_or(Flow::Indirect, Flow::Jump),
        b"call" | b"callq" | b"lcall" => Flow::Call(direct()),
        b"ret" | b"retq" | b"iretq" | b"sysretq" | b"lret" | b"lretq" => Flow::Return,
        b"ud2" | b"ud1" | b"ud0" | b"hlt" => Flow::Stop,
        b"xbegin" => label(rest).map_or(Flow::Next, Flow::Branch),
        [b'j', ..] | [b'l', b'o', b'o', b'p', ..] => label(rest).map_or(Flow::Next, Flow::Branch),
        _ => Flow::Next,
    }
}

fn aarch64(text: &[u8]) -> Flow<'_> {
    let (mnemonic, rest) = lexer::word(text);
    let last = || lexer::operands(rest).last().and_then(label);
    match mnemonic {
        b"b" => last().map_or(Flow::Indirect, Flow::Jump),
        b"bl" => Flow::Call(last()),
        b"blr" | b"blraa" | b"blraaz" | b"blrab" | b"blrabz" => Flow::Call(None),
        b"br" | b"braa" | b"braaz" | b"brab" | b"brabz" => Flow::Indirect,
        b"ret" | b"retaa" | b"retab" | b"eret" => Flow::Return,
        b"brk" | b"udf" | b"hlt" => Flow::Stop,
        b"cbz" | b"cbnz" | b"tbz" | b"tbnz" => last().map_or(Flow::Next, Flow::Branch),
        [b'b', b'.', ..] | [b'b', b'c', b'.', ..] => last().map_or(Flow::Next, Flow::Branch),
        [b'b', condition @ ..] if is_condition(condition) => {
            last().map_or(Flow::Next, Flow::Branch)
        }
        _ => Flow::Next,
    }
}

fn is_condition(text: &[u8]) -> bool {
    matches!(
        text,
        b"eq"
            | b"ne"
            | b"cs"
            | b"hs"
            | b"cc"
            | b"lo"
            | b"mi"
            | b"pl"
            | b"vs"
            | b"vc"
            | b"hi"
            | b"ls"
            | b"ge"
            | b"lt"
            | b"gt"
            | b"le"
    )
}

fn arm(text: &[u8]) -> Flow<'_> {
    let (mnemonic, rest) = lexer::word(text);
    let mnemonic = mnemonic
        .strip_suffix(b".n")
        .or(mnemonic.strip_suffix(b".w"))
        .unwrap_or(mnemonic);
    // With a condition, what would end a block may continue.
    let (base, conditional) = match mnemonic {
        b"bls" | b"blt" | b"ble" => (&b"b"[..], true),
        [base @ .., a, b]
            if is_condition(&[*a, *b])
                && (matches!(
                    base,
                    b"b" | b"bl" | b"blx" | b"bx" | b"pop" | b"mov" | b"ldr" | b"add" | b"sub"
                ) || base.starts_with(b"ldm")) =>
        {
            (base, true)
        }
        _ => (mnemonic, false),
    };
    let first = lexer::operands(rest).next().unwrap_or_default();
    let to_pc = match base {
        b"mov" | b"ldr" | b"add" | b"sub" => first == b"pc",
        _ => {
            (base == b"pop" || base.starts_with(b"ldm"))
                && rest.windows(2).any(|pair| pair == b"pc")
        }
    };
    let ending = |flow: Flow<'static>| if conditional { Flow::Perhaps } else { flow };
    match base {
        b"b" => match label(rest) {
            Some(target) if conditional => Flow::Branch(target),
            Some(target) => Flow::Jump(target),
            None => Flow::Indirect,
        },
        b"bl" | b"blx" => Flow::Call(label(rest).filter(|_| base == b"bl")),
        b"bx" if rest == b"lr" => ending(Flow::Return),
        b"bx" => ending(Flow::Indirect),
        b"tbb" | b"tbh" => Flow::Indirect,
        b"cbz" | b"cbnz" => lexer::operands(rest)
            .last()
            .and_then(label)
            .map_or(Flow::Next, Flow::Branch),
        b"udf" => Flow::Stop,
        _ if !to_pc => Flow::Next,
        b"mov" if rest.ends_with(b"lr") => ending(Flow::Return),
        b"ldr"
            if lexer::operands(rest)
                .nth(1)
                .is_some_and(|from| from.starts_with(b"[sp]")) =>
        {
            ending(Flow::Return)
        }
        b"add" | b"sub" if lexer::operands(rest).nth(1) == Some(b"pc") => Flow::Into,
        // A table after it, and a way on if the index is too large.
        b"ldr" | b"add" | b"sub" if conditional => Flow::Into,
        b"mov" | b"ldr" | b"add" | b"sub" => ending(Flow::Indirect),
        _ => ending(Flow::Return),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_of_all_targets_are_known() {
        let x86 = |text: &'static str| flow(Arch::X86_64, text.as_bytes());
        assert_eq!(x86("jmp\t.L4"), Flow::Jump(b".L4"));
        assert_eq!(x86("notrack jmp *%rax"), Flow::Indirect);
        assert_eq!(x86("jne .L4"), Flow::Branch(b".L4"));
        assert_eq!(x86("call foo@PLT"), Flow::Call(Some(b"foo")));
        assert_eq!(x86("callq *8(%rax)"), Flow::Call(None));
        assert_eq!(x86("rep ret"), Flow::Return);
        assert_eq!(x86("rep stosq"), Flow::Next);
        assert_eq!(x86("leaq .L4(%rip), %rax"), Flow::Next);
        let a64 = |text: &'static str| flow(Arch::AArch64, text.as_bytes());
        assert_eq!(a64("b.ne\t.L4"), Flow::Branch(b".L4"));
        assert_eq!(a64("tbz w0, #3, .LBB0_2"), Flow::Branch(b".LBB0_2"));
        assert_eq!(a64("bic w0, w1, w2"), Flow::Next);
        assert_eq!(a64("br x3"), Flow::Indirect);
        assert_eq!(a64("bl foo"), Flow::Call(Some(b"foo")));
        let arm = |text: &'static str| flow(Arch::Arm, text.as_bytes());
        assert_eq!(arm("bls .L4"), Flow::Branch(b".L4"));
        assert_eq!(arm("blne foo"), Flow::Call(Some(b"foo")));
        assert_eq!(arm("popeq {r4, pc}"), Flow::Perhaps);
        assert_eq!(arm("pop {r4, pc}"), Flow::Return);
        assert_eq!(arm("bic r0, r0, r1"), Flow::Next);
        assert_eq!(arm("bxeq lr"), Flow::Perhaps);
        assert_eq!(arm("ldmfd sp!, {r4, pc}"), Flow::Return);
        assert_eq!(arm("ldr pc, [sp], #4"), Flow::Return);
        assert_eq!(arm("addls pc, pc, r3, lsl #2"), Flow::Into);
        assert_eq!(arm("add pc, r2, r3"), Flow::Indirect);
        assert_eq!(arm("add r2, pc, r3"), Flow::Next);
        assert_eq!(arm("cbnz r0, .L4"), Flow::Branch(b".L4"));
    }
}
