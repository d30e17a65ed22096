//! What the assembly is for: processor, object format, and the little that their spelling differs in.
//!
//! | | comment | at a line's start | separator | local label | function type |
//! |---|---|---|---|---|---|
//! | x86-64 ELF | `#` | | `;` | `.L` | `@function` |
//! | AArch64 ELF | `//` | `#` | `;` | `.L` | `%function`, `@function` |
//! | Arm ELF | `@` | `#` | `;` | `.L` | `%function` |
//! | x86-64 Mach-O | `#` | | `;` | `L` | (none) |
//! | AArch64 Mach-O | `;`, `//` | `#` | `%%` | `L`, `l` | (none) |

/// Processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// x86-64, AT&T syntax.
    X86_64,
    /// AArch64.
    AArch64,
    /// Armv7 and older: Arm, Thumb, Thumb2.
    Arm,
}

/// Object format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// ELF.
    Elf,
    /// Mach-O.
    MachO,
}

/// Processor and object format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Processor.
    pub arch: Arch,
    /// Object format.
    pub format: Format,
}

impl Target {
    /// The target of a triple as `cc -dumpmachine` prints it, if it is one that can be instrumented.
    ///
    /// ```
    /// use postlink_mip_asm::{Arch, Format, Target};
    /// let target = Target::of_triple("aarch64-linux-gnu").unwrap();
    /// assert_eq!((target.arch, target.format), (Arch::AArch64, Format::Elf));
    /// assert!(Target::of_triple("x86_64-w64-mingw32").is_none());
    /// ```
    pub fn of_triple(triple: &str) -> Option<Target> {
        let triple = triple.trim();
        let (cpu, rest) = triple.split_once('-')?;
        let arch = match cpu {
            "x86_64" | "amd64" | "x86_64h" => Arch::X86_64,
            "aarch64" | "arm64" | "arm64e" => Arch::AArch64,
            cpu if (cpu.starts_with("arm") || cpu.starts_with("thumb"))
                && !cpu.ends_with("eb")
                && !cpu.starts_with("arm64") =>
            {
                Arch::Arm
            }
            _ => return None,
        };
        let format = if ["apple", "darwin", "macos"]
            .iter()
            .any(|name| rest.contains(name))
        {
            Format::MachO
        } else if ["windows", "mingw", "cygwin", "msvc", "gnux32", "ilp32"]
            .iter()
            .any(|name| rest.contains(name))
        {
            return None;
        } else {
            Format::Elf
        };
        if format == Format::MachO && arch == Arch::Arm {
            return None;
        }
        Some(Target { arch, format })
    }

    /// Whether addresses have 64 bits.
    pub fn is_wide(self) -> bool {
        self.arch != Arch::Arm
    }

    /// Bytes of an address; what records of the map are aligned to.
    pub fn word(self) -> u32 {
        if self.is_wide() { 8 } else { 4 }
    }

    /// The directive for an address.
    pub fn address_directive(self) -> &'static str {
        if self.is_wide() { ".quad" } else { ".long" }
    }

    /// What begins labels that leave no symbol after.
    pub fn local_prefix(self) -> &'static str {
        match self.format {
            Format::Elf => ".L",
            Format::MachO => "L",
        }
    }

    /// Whether a name is such a label.
    pub fn is_local(self, name: &[u8]) -> bool {
        match self.format {
            Format::Elf => name.starts_with(b".L"),
            Format::MachO => name.starts_with(b"L") || name.starts_with(b"l"),
        }
    }

    /// Size of pages that the counters are aligned to, so that they can be mapped onto a file: the largest
    /// that the kernels of this processor use. It costs address space only, since the counters take no space
    /// in the file.
    pub fn page(self) -> u32 {
        match self.arch {
            Arch::AArch64 => 0x10000,
            Arch::X86_64 | Arch::Arm => 0x1000,
        }
    }

    pub(crate) fn comments(self) -> &'static [&'static [u8]] {
        match (self.arch, self.format) {
            (Arch::X86_64, _) => &[b"#"],
            (Arch::AArch64, Format::Elf) => &[b"//"],
            (Arch::AArch64, Format::MachO) => &[b";", b"//"],
            (Arch::Arm, _) => &[b"@"],
        }
    }

    pub(crate) fn separator(self) -> &'static [u8] {
        match (self.arch, self.format) {
            (Arch::AArch64, Format::MachO) => b"%%",
            _ => b";",
        }
    }
}
