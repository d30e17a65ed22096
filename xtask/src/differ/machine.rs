//! What differs between the two machines: registers, and numbers of system calls.

/// Names of the registers in an event, in its order.
const X86: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// A machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// x86-64
    X86,
    /// AArch64
    Aarch64,
}

impl Machine {
    /// By `e_machine`.
    pub fn of(machine: u16) -> Option<Machine> {
        match machine {
            62 => Some(Machine::X86),
            183 => Some(Machine::Aarch64),
            _ => None,
        }
    }

    /// How many registers are compared.
    pub fn registers(self) -> usize {
        match self {
            Machine::X86 => 16,
            Machine::Aarch64 => 32,
        }
    }

    /// A register's name.
    pub fn register(self, index: usize) -> String {
        match self {
            Machine::X86 => X86[index].to_owned(),
            Machine::Aarch64 if index == 31 => "sp".to_owned(),
            Machine::Aarch64 => format!("x{index}"),
        }
    }

    /// The stack pointer.
    pub fn sp(self) -> usize {
        match self {
            Machine::X86 => 4,
            Machine::Aarch64 => 31,
        }
    }

    /// A call may leave anything in it.
    pub fn is_scratch(self, index: usize) -> bool {
        match self {
            Machine::X86 => matches!(index, 0 | 1 | 2 | 6..=11),
            Machine::Aarch64 => index <= 18 || index == 30,
        }
    }

    /// The register of an argument, of the first two.
    pub fn argument(self, number: usize) -> usize {
        match self {
            Machine::X86 => [7, 6][number.min(1)],
            Machine::Aarch64 => number,
        }
    }

    /// The registers of all arguments, on AArch64 with that of where a large result goes.
    pub fn arguments(self) -> &'static [usize] {
        match self {
            Machine::X86 => &[7, 6, 2, 1, 8, 9],
            Machine::Aarch64 => &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        }
    }

    /// It holds one of two arguments, or says, as the number of arguments varies, whether some are in vector registers.
    pub fn is_of_two_or_more(self, index: usize) -> bool {
        let varies = self == Machine::X86 && index == 0;
        varies || index == self.argument(0) || index == self.argument(1)
    }

    /// A call's result may be in it.
    pub fn is_result(self, index: usize) -> bool {
        match self {
            Machine::X86 => matches!(index, 0 | 2),
            Machine::Aarch64 => index <= 1,
        }
    }

    /// What is between a call and its callee may use it: veneers, and recorders of counting programs.
    pub fn is_linkage(self, index: usize, instrumented: bool) -> bool {
        match self {
            Machine::X86 => index == 11 && instrumented,
            Machine::Aarch64 => matches!(index, 16 | 17),
        }
    }

    /// What a system call does that matters here.
    pub fn system(self, number: u32) -> Call {
        match (self, number) {
            (Machine::X86, 9) | (Machine::Aarch64, 222) => Call::Map,
            (Machine::X86, 12) | (Machine::Aarch64, 214) => Call::Break,
            // getpid, gettid, getppid, set_tid_address, clone and its kin
            (Machine::X86, 39 | 186 | 110 | 218 | 56..=58 | 435)
            | (Machine::Aarch64, 172 | 178 | 173 | 96 | 220 | 435) => Call::Process,
            (Machine::X86, 0 | 17) | (Machine::Aarch64, 63 | 67) => Call::Read,
            (Machine::X86, 3) | (Machine::Aarch64, 57) => Call::Close,
            (Machine::X86, 60 | 231) | (Machine::Aarch64, 93 | 94) => Call::Exit,
            _ => Call::Other,
        }
    }
}

/// A kind of system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `mmap`
    Map,
    /// `brk`
    Break,
    /// The result is the number of a process.
    Process,
    /// Reads from an open file.
    Read,
    /// Closes a file.
    Close,
    /// Does not come back.
    Exit,
    /// Any other.
    Other,
}
