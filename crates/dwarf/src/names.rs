//! Numbers of attributes, forms and tags that this crate tells apart (DWARF 5, section 7.5; GNU extensions from GCC's
//! `dwarf2.def`). The names are those of the standard without their prefix.

/// Attributes (`DW_AT_…`).
pub(crate) mod at {
    pub const LOCATION: u16 = 0x02;
    pub const STMT_LIST: u16 = 0x10;
    pub const LOW_PC: u16 = 0x11;
    pub const HIGH_PC: u16 = 0x12;
    pub const STRING_LENGTH: u16 = 0x19;
    pub const LOWER_BOUND: u16 = 0x22;
    pub const RETURN_ADDR: u16 = 0x2a;
    pub const START_SCOPE: u16 = 0x2c;
    pub const BIT_STRIDE: u16 = 0x2e;
    pub const UPPER_BOUND: u16 = 0x2f;
    pub const COUNT: u16 = 0x37;
    pub const DATA_MEMBER_LOCATION: u16 = 0x38;
    pub const COMP_DIR: u16 = 0x1b;
    pub const FRAME_BASE: u16 = 0x40;
    pub const MACRO_INFO: u16 = 0x43;
    pub const SEGMENT: u16 = 0x46;
    pub const STATIC_LINK: u16 = 0x48;
    pub const USE_LOCATION: u16 = 0x4a;
    pub const VTABLE_ELEM_LOCATION: u16 = 0x4d;
    pub const ALLOCATED: u16 = 0x4e;
    pub const ASSOCIATED: u16 = 0x4f;
    pub const DATA_LOCATION: u16 = 0x50;
    pub const BYTE_STRIDE: u16 = 0x51;
    pub const ENTRY_PC: u16 = 0x52;
    pub const RANGES: u16 = 0x55;
    pub const RANK: u16 = 0x71;
    pub const STR_OFFSETS_BASE: u16 = 0x72;
    pub const ADDR_BASE: u16 = 0x73;
    pub const RNGLISTS_BASE: u16 = 0x74;
    pub const DWO_NAME: u16 = 0x76;
    pub const MACROS: u16 = 0x79;
    pub const CALL_RETURN_PC: u16 = 0x7d;
    pub const CALL_PC: u16 = 0x81;
    pub const LOCLISTS_BASE: u16 = 0x8c;
    pub const GNU_MACROS: u16 = 0x2119;
    pub const GNU_DWO_NAME: u16 = 0x2130;
    pub const GNU_DWO_ID: u16 = 0x2131;
    pub const GNU_RANGES_BASE: u16 = 0x2132;
    pub const GNU_ADDR_BASE: u16 = 0x2133;
    pub const GNU_LOCVIEWS: u16 = 0x2137;
    /// Takes up bytes that an alternate abbreviation has left; in the vendors' space and not known to be in use.
    pub const PADDING: u16 = 0x3d51;
}

/// Forms (`DW_FORM_…`).
pub(crate) mod form {
    pub const ADDR: u16 = 0x01;
    pub const BLOCK2: u16 = 0x03;
    pub const BLOCK4: u16 = 0x04;
    pub const DATA2: u16 = 0x05;
    pub const DATA4: u16 = 0x06;
    pub const DATA8: u16 = 0x07;
    pub const STRING: u16 = 0x08;
    pub const BLOCK: u16 = 0x09;
    pub const BLOCK1: u16 = 0x0a;
    pub const DATA1: u16 = 0x0b;
    pub const FLAG: u16 = 0x0c;
    pub const SDATA: u16 = 0x0d;
    pub const STRP: u16 = 0x0e;
    pub const UDATA: u16 = 0x0f;
    pub const REF_ADDR: u16 = 0x10;
    pub const REF1: u16 = 0x11;
    pub const REF2: u16 = 0x12;
    pub const REF4: u16 = 0x13;
    pub const REF8: u16 = 0x14;
    pub const REF_UDATA: u16 = 0x15;
    pub const INDIRECT: u16 = 0x16;
    pub const SEC_OFFSET: u16 = 0x17;
    pub const EXPRLOC: u16 = 0x18;
    pub const FLAG_PRESENT: u16 = 0x19;
    pub const STRX: u16 = 0x1a;
    pub const ADDRX: u16 = 0x1b;
    pub const REF_SUP4: u16 = 0x1c;
    pub const STRP_SUP: u16 = 0x1d;
    pub const DATA16: u16 = 0x1e;
    pub const LINE_STRP: u16 = 0x1f;
    pub const REF_SIG8: u16 = 0x20;
    pub const IMPLICIT_CONST: u16 = 0x21;
    pub const LOCLISTX: u16 = 0x22;
    pub const RNGLISTX: u16 = 0x23;
    pub const REF_SUP8: u16 = 0x24;
    pub const STRX1: u16 = 0x25;
    pub const STRX2: u16 = 0x26;
    pub const STRX3: u16 = 0x27;
    pub const STRX4: u16 = 0x28;
    pub const ADDRX1: u16 = 0x29;
    pub const ADDRX2: u16 = 0x2a;
    pub const ADDRX3: u16 = 0x2b;
    pub const ADDRX4: u16 = 0x2c;
    pub const GNU_ADDR_INDEX: u16 = 0x1f01;
    pub const GNU_STR_INDEX: u16 = 0x1f02;
    pub const GNU_REF_ALT: u16 = 0x1f20;
    pub const GNU_STRP_ALT: u16 = 0x1f21;
    pub const LLVM_ADDRX_OFFSET: u16 = 0x2001;
}

/// Tags (`DW_TAG_…`). What has code is known by its attributes, never by its tag, but for these.
pub(crate) mod tag {
    pub const GNU_CALL_SITE: u16 = 0x4109;
}
