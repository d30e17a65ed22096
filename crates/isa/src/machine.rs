//! Which instruction set a program is of, and code that is generic over [`crate::Isa`] run for it.

/// A machine whose programs can be worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// AArch64.
    AArch64,
}

impl Machine {
    /// By the number that ELF files have for it (`e_machine`).
    pub fn of_elf(number: u16) -> Option<Machine> {
        match number {
            62 => Some(Machine::X86_64),
            183 => Some(Machine::AArch64),
            _ => None,
        }
    }
}

/// Evaluates an expression with the instruction set of a [`Machine`] under a name.
///
/// ```
/// use postlink_isa::{Isa, Machine, with_isa};
///
/// /// Bytes of the instruction at the start of `code`.
/// fn length<I: Isa>(code: &[u8]) -> Option<u8> {
///     Some(I::decode(code, 0x1000)?.len)
/// }
///
/// let machine = Machine::of_elf(183).expect("AArch64");
/// let ret = 0xd65f03c0u32.to_le_bytes();
/// assert_eq!(with_isa!(machine, I => length::<I>(&ret)), Some(4));
/// ```
#[macro_export]
macro_rules! with_isa {
    ($machine:expr, $isa:ident => $body:expr) => {
        match $machine {
            $crate::Machine::X86_64 => {
                type $isa = $crate::x86_64::X86_64;
                $body
            }
            $crate::Machine::AArch64 => {
                type $isa = $crate::aarch64::AArch64;
                $body
            }
        }
    };
}
