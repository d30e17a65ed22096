//! The 64-bit little-endian ELF structures: layout, reading, writing, and the numbers that this crate knows by name.
//!
//! Every structure here is a plain value that is read from and written to a fixed number of bytes. Nothing is cast:
//! tables may be at any offset, and a `[u8; 64]` copied field by field compiles to the same loads. Reading never fails
//! for lack of alignment, and fails as `None` for lack of bytes; what the values *mean* is checked by [`crate::elf`].
//!
//! | structure | bytes | fields in order (size) |
//! |---|---|---|
//! | file header | 64 | e_ident (16), e_type (2), e_machine (2), e_version (4), e_entry (8), e_phoff (8), e_shoff (8), e_flags (4), e_ehsize (2), e_phentsize (2), e_phnum (2), e_shentsize (2), e_shnum (2), e_shstrndx (2) |
//! | program header | 56 | p_type (4), p_flags (4), p_offset (8), p_vaddr (8), p_paddr (8), p_filesz (8), p_memsz (8), p_align (8) |
//! | section header | 64 | sh_name (4), sh_type (4), sh_flags (8), sh_addr (8), sh_offset (8), sh_size (8), sh_link (4), sh_info (4), sh_addralign (8), sh_entsize (8) |
//! | symbol | 24 | st_name (4), st_info (1), st_other (1), st_shndx (2), st_value (8), st_size (8) |
//! | relocation | 24 | r_offset (8), r_type (4), r_sym (4), r_addend (8) |
//! | dynamic entry | 16 | d_tag (8), d_val (8) |
//! | note | 12 + | n_namesz (4), n_descsz (4), n_type (4), name, padding, description, padding |
//!
//! Source: System V gABI, chapters 4 and 5; names of processor- and system-specific values as in glibc's `elf.h`.

#![allow(missing_docs)] // the names are the gABI's own, and the table above is their documentation

/// Size of the file header.
pub const EHDR: u64 = 64;
/// Size of a program header.
pub const PHDR: u64 = 56;
/// Size of a section header.
pub const SHDR: u64 = 64;
/// Size of a symbol.
pub const SYM: u64 = 24;
/// Size of a relocation with addend.
pub const RELA: u64 = 24;
/// Size of an entry of the dynamic section.
pub const DYN: u64 = 16;

pub const ET_EXEC: u16 = 2;
pub const ET_DYN: u16 = 3;

pub const EM_X86_64: u16 = 62;
pub const EM_AARCH64: u16 = 183;

/// `e_phnum` of a file whose real count is in `sh_info` of section 0.
pub const PN_XNUM: u16 = 0xffff;

pub const PT_NULL: u32 = 0;
pub const PT_LOAD: u32 = 1;
pub const PT_DYNAMIC: u32 = 2;
pub const PT_INTERP: u32 = 3;
pub const PT_NOTE: u32 = 4;
pub const PT_PHDR: u32 = 6;
pub const PT_TLS: u32 = 7;
pub const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
pub const PT_GNU_STACK: u32 = 0x6474_e551;
pub const PT_GNU_RELRO: u32 = 0x6474_e552;
pub const PT_GNU_PROPERTY: u32 = 0x6474_e553;

pub const PF_X: u32 = 1;
pub const PF_W: u32 = 2;
pub const PF_R: u32 = 4;

pub const SHT_NULL: u32 = 0;
pub const SHT_PROGBITS: u32 = 1;
pub const SHT_SYMTAB: u32 = 2;
pub const SHT_STRTAB: u32 = 3;
pub const SHT_RELA: u32 = 4;
pub const SHT_HASH: u32 = 5;
pub const SHT_DYNAMIC: u32 = 6;
pub const SHT_NOTE: u32 = 7;
pub const SHT_NOBITS: u32 = 8;
pub const SHT_REL: u32 = 9;
pub const SHT_DYNSYM: u32 = 11;
pub const SHT_GROUP: u32 = 17;
pub const SHT_SYMTAB_SHNDX: u32 = 18;
pub const SHT_RELR: u32 = 19;
/// LLVM's compact relocations (provisional number).
pub const SHT_CREL: u32 = 0x4000_0014;
pub const SHT_GNU_HASH: u32 = 0x6fff_fff6;
pub const SHT_X86_64_UNWIND: u32 = 0x7000_0001;
pub const SHT_GNU_VERDEF: u32 = 0x6fff_fffd;
pub const SHT_GNU_VERNEED: u32 = 0x6fff_fffe;
pub const SHT_GNU_VERSYM: u32 = 0x6fff_ffff;

pub const SHF_WRITE: u64 = 1;
pub const SHF_ALLOC: u64 = 2;
pub const SHF_EXECINSTR: u64 = 4;
pub const SHF_INFO_LINK: u64 = 0x40;
pub const SHF_TLS: u64 = 0x400;
pub const SHF_COMPRESSED: u64 = 0x800;

pub const SHN_UNDEF: u32 = 0;
/// First of the reserved section indexes.
pub const SHN_LORESERVE: u32 = 0xff00;
pub const SHN_ABS: u32 = 0xfff1;
pub const SHN_COMMON: u32 = 0xfff2;
/// The real index is in `SHT_SYMTAB_SHNDX`, or for `e_shstrndx` in `sh_link` of section 0.
pub const SHN_XINDEX: u32 = 0xffff;

pub const STB_LOCAL: u8 = 0;
pub const STT_NOTYPE: u8 = 0;
pub const STT_FUNC: u8 = 2;
pub const STT_SECTION: u8 = 3;
pub const STT_FILE: u8 = 4;
pub const STT_TLS: u8 = 6;
pub const STT_GNU_IFUNC: u8 = 10;

pub const DT_NULL: i64 = 0;
pub const DT_NEEDED: i64 = 1;
pub const DT_PLTRELSZ: i64 = 2;
pub const DT_PLTGOT: i64 = 3;
pub const DT_HASH: i64 = 4;
pub const DT_STRTAB: i64 = 5;
pub const DT_SYMTAB: i64 = 6;
pub const DT_RELA: i64 = 7;
pub const DT_RELASZ: i64 = 8;
pub const DT_RELAENT: i64 = 9;
pub const DT_STRSZ: i64 = 10;
pub const DT_SYMENT: i64 = 11;
pub const DT_INIT: i64 = 12;
pub const DT_FINI: i64 = 13;
pub const DT_SONAME: i64 = 14;
pub const DT_REL: i64 = 17;
pub const DT_PLTREL: i64 = 20;
pub const DT_TEXTREL: i64 = 22;
pub const DT_JMPREL: i64 = 23;
pub const DT_INIT_ARRAY: i64 = 25;
pub const DT_INIT_ARRAYSZ: i64 = 27;
pub const DT_FLAGS: i64 = 30;
pub const DT_RELRSZ: i64 = 35;
pub const DT_RELR: i64 = 36;
pub const DT_RELRENT: i64 = 37;
pub const DT_ANDROID_REL: i64 = 0x6000_000f;
/// Compact relocations that the loader applies.
pub const DT_CREL: i64 = 38;
pub const DT_ANDROID_RELA: i64 = 0x6000_0011;
pub const DT_ANDROID_RELR: i64 = 0x6fff_e000;
pub const DT_ANDROID_RELRSZ: i64 = 0x6fff_e001;
pub const DT_ANDROID_RELRENT: i64 = 0x6fff_e003;
pub const DT_GNU_HASH: i64 = 0x6fff_fef5;
pub const DT_VERSYM: i64 = 0x6fff_fff0;
pub const DT_RELACOUNT: i64 = 0x6fff_fff9;
pub const DT_FLAGS_1: i64 = 0x6fff_fffb;
pub const DT_VERDEF: i64 = 0x6fff_fffc;
pub const DT_VERNEED: i64 = 0x6fff_fffe;

pub const R_X86_64_NONE: u32 = 0;
pub const R_X86_64_64: u32 = 1;
pub const R_X86_64_PC32: u32 = 2;
pub const R_X86_64_PLT32: u32 = 4;
pub const R_X86_64_GLOB_DAT: u32 = 6;
pub const R_X86_64_JUMP_SLOT: u32 = 7;
pub const R_X86_64_RELATIVE: u32 = 8;
pub const R_X86_64_GOTPCREL: u32 = 9;
pub const R_X86_64_32: u32 = 10;
pub const R_X86_64_32S: u32 = 11;
pub const R_X86_64_PC64: u32 = 24;
pub const R_X86_64_GOTOFF64: u32 = 25;
pub const R_X86_64_GOTPC64: u32 = 29;
pub const R_X86_64_PLTOFF64: u32 = 31;
pub const R_X86_64_TLSDESC_CALL: u32 = 35;
pub const R_X86_64_TLSDESC: u32 = 36;
pub const R_X86_64_IRELATIVE: u32 = 37;
pub const R_X86_64_GOTPCRELX: u32 = 41;
pub const R_X86_64_REX_GOTPCRELX: u32 = 42;
pub const R_AARCH64_NONE: u32 = 256;
pub const R_AARCH64_ABS64: u32 = 257;
pub const R_AARCH64_ABS32: u32 = 258;
pub const R_AARCH64_PREL64: u32 = 260;
pub const R_AARCH64_PREL32: u32 = 261;
pub const R_AARCH64_MOVW_UABS_G0: u32 = 263;
pub const R_AARCH64_MOVW_UABS_G0_NC: u32 = 264;
pub const R_AARCH64_MOVW_UABS_G1: u32 = 265;
pub const R_AARCH64_MOVW_UABS_G1_NC: u32 = 266;
pub const R_AARCH64_MOVW_UABS_G2: u32 = 267;
pub const R_AARCH64_MOVW_UABS_G2_NC: u32 = 268;
pub const R_AARCH64_MOVW_UABS_G3: u32 = 269;
pub const R_AARCH64_MOVW_SABS_G0: u32 = 270;
pub const R_AARCH64_MOVW_SABS_G1: u32 = 271;
pub const R_AARCH64_MOVW_SABS_G2: u32 = 272;
pub const R_AARCH64_ADR_PREL_PG_HI21: u32 = 275;
pub const R_AARCH64_ADR_PREL_PG_HI21_NC: u32 = 276;
pub const R_AARCH64_ADD_ABS_LO12_NC: u32 = 277;
pub const R_AARCH64_LDST8_ABS_LO12_NC: u32 = 278;
pub const R_AARCH64_LDST16_ABS_LO12_NC: u32 = 284;
pub const R_AARCH64_LDST32_ABS_LO12_NC: u32 = 285;
pub const R_AARCH64_LDST64_ABS_LO12_NC: u32 = 286;
pub const R_AARCH64_MOVW_PREL_G0: u32 = 287;
pub const R_AARCH64_MOVW_PREL_G0_NC: u32 = 288;
pub const R_AARCH64_MOVW_PREL_G1: u32 = 289;
pub const R_AARCH64_MOVW_PREL_G1_NC: u32 = 290;
pub const R_AARCH64_MOVW_PREL_G2: u32 = 291;
pub const R_AARCH64_MOVW_PREL_G2_NC: u32 = 292;
pub const R_AARCH64_MOVW_PREL_G3: u32 = 293;
pub const R_AARCH64_LDST128_ABS_LO12_NC: u32 = 299;
pub const R_AARCH64_ADR_GOT_PAGE: u32 = 311;
pub const R_AARCH64_LD64_GOT_LO12_NC: u32 = 312;
pub const R_AARCH64_TLSDESC_CALL: u32 = 569;
pub const R_AARCH64_GLOB_DAT: u32 = 1025;
pub const R_AARCH64_JUMP_SLOT: u32 = 1026;
pub const R_AARCH64_RELATIVE: u32 = 1027;
pub const R_AARCH64_TLSDESC: u32 = 1031;
pub const R_AARCH64_IRELATIVE: u32 = 1032;

pub const NT_GNU_BUILD_ID: u32 = 3;

/// `N` bytes at an offset.
pub fn array<const N: usize>(data: &[u8], at: u64) -> Option<[u8; N]> {
    let at = usize::try_from(at).ok()?;
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Little-endian 16-bit word at an offset.
pub fn u16_at(data: &[u8], at: u64) -> Option<u16> {
    array(data, at).map(u16::from_le_bytes)
}

/// Little-endian 32-bit word at an offset.
pub fn u32_at(data: &[u8], at: u64) -> Option<u32> {
    array(data, at).map(u32::from_le_bytes)
}

/// Little-endian 64-bit word at an offset.
pub fn u64_at(data: &[u8], at: u64) -> Option<u64> {
    array(data, at).map(u64::from_le_bytes)
}

/// Declares a structure of little-endian fields with its reader and writer, so that the two cannot disagree.
macro_rules! structure {
    ($(#[$doc:meta])* $name:ident, $size:literal, { $($field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $(pub $field: $ty,)* }

        impl $name {
            /// Its bytes in a file.
            pub const LEN: usize = $size;

            /// Reads it at an offset; `None` where the bytes end too early.
            pub fn read(data: &[u8], at: u64) -> Option<Self> {
                let bytes: [u8; $size] = array(data, at)?;
                let mut rest = &bytes[..];
                $(
                    let (field, tail) = rest.split_at(size_of::<$ty>());
                    // The sizes of the fields add up to the structure's, which `bytes` has: see `check` below.
                    let $field = <$ty>::from_le_bytes(field.try_into().expect("split at the field's size"));
                    rest = tail;
                )*
                let _ = rest;
                Some($name { $($field,)* })
            }

            /// Its bytes.
            pub fn bytes(&self) -> [u8; $size] {
                const { assert!(0 $(+ size_of::<$ty>())* == $size, "fields fill the structure") }
                let mut out = [0; $size];
                let mut at = 0;
                $(
                    out[at..at + size_of::<$ty>()].copy_from_slice(&self.$field.to_le_bytes());
                    at += size_of::<$ty>();
                )*
                let _ = at;
                out
            }
        }
    };
}

structure! {
    /// File header, without `e_ident`'s 16 bytes in front.
    Ehdr, 48, {
        e_type: u16,
        e_machine: u16,
        e_version: u32,
        e_entry: u64,
        e_phoff: u64,
        e_shoff: u64,
        e_flags: u32,
        e_ehsize: u16,
        e_phentsize: u16,
        e_phnum: u16,
        e_shentsize: u16,
        e_shnum: u16,
        e_shstrndx: u16,
    }
}

structure! {
    /// Program header.
    Phdr, 56, {
        p_type: u32,
        p_flags: u32,
        p_offset: u64,
        p_vaddr: u64,
        p_paddr: u64,
        p_filesz: u64,
        p_memsz: u64,
        p_align: u64,
    }
}

structure! {
    /// Section header.
    Shdr, 64, {
        sh_name: u32,
        sh_type: u32,
        sh_flags: u64,
        sh_addr: u64,
        sh_offset: u64,
        sh_size: u64,
        sh_link: u32,
        sh_info: u32,
        sh_addralign: u64,
        sh_entsize: u64,
    }
}

structure! {
    /// Symbol.
    Sym, 24, {
        st_name: u32,
        st_info: u8,
        st_other: u8,
        st_shndx: u16,
        st_value: u64,
        st_size: u64,
    }
}

structure! {
    /// Relocation with addend; `r_info` is split into its halves.
    Rela, 24, {
        r_offset: u64,
        r_type: u32,
        r_sym: u32,
        r_addend: i64,
    }
}

/// The records of a section of relocations with addends, in their order.
pub fn relas(records: &[u8]) -> impl Iterator<Item = Rela> + '_ {
    let entries = records.chunks_exact(Rela::LEN);
    entries.filter_map(|entry| Rela::read(entry, 0))
}
