//! The few instructions that are put in, as words.
//!
//! Registers are numbers, 31 being `sp` or the zero register as the instruction has it. Offsets are in bytes
//! and must fit; a debug build asserts that, as all of them are written down here in this crate.

/// `b` to itself; the distance is filled in.
pub const B: u32 = 0x1400_0000;
/// `bl` to itself.
pub const BL: u32 = 0x9400_0000;
/// `nop`
pub const NOP: u32 = 0xd503_201f;
/// `bti c`
pub const BTI_C: u32 = 0xd503_245f;
/// `bti j`
pub const BTI_J: u32 = 0xd503_249f;
/// `paciasp`
pub const PACIASP: u32 = 0xd503_233f;
/// `pacibsp`
pub const PACIBSP: u32 = 0xd503_237f;
/// `ret`
pub const RET: u32 = 0xd65f_03c0;
/// `clrex`
pub const CLREX: u32 = 0xd503_3f5f;
/// `svc #0`
pub const SVC: u32 = 0xd400_0001;
/// The stack pointer, or the zero register.
pub const SP: u32 = 31;

/// Offset in units of `1 << scale`, twelve bits.
fn unsigned(offset: u32, scale: u32) -> u32 {
    assert!(
        offset.is_multiple_of(1 << scale) && offset >> scale < 4096,
        "{offset}"
    );
    (offset >> scale & 0xfff) << 10
}

/// `adrp d, #0`
pub fn adrp(d: u32) -> u32 {
    0x9000_0000 | d
}
/// `adr d, #0`
pub fn adr(d: u32) -> u32 {
    0x1000_0000 | d
}
/// `add d, n, #value` (31 is `sp`)
pub fn add_imm(d: u32, n: u32, value: u32) -> u32 {
    0x9100_0000 | unsigned(value, 0) | n << 5 | d
}
/// `sub d, n, #value`
pub fn sub_imm(d: u32, n: u32, value: u32) -> u32 {
    0xd100_0000 | unsigned(value, 0) | n << 5 | d
}
/// `sub d, n, #value, lsl #12`
pub fn sub_imm_high(d: u32, n: u32, value: u32) -> u32 {
    0xd140_0000 | unsigned(value, 0) | n << 5 | d
}
/// `add wd, wn, #value`
pub fn add32_imm(d: u32, n: u32, value: u32) -> u32 {
    0x1100_0000 | unsigned(value, 0) | n << 5 | d
}
/// `tst wn, #63`
pub fn tst32_63(n: u32) -> u32 {
    0x7200_1400 | n << 5 | SP
}
/// `and wd, wn, #63`
pub fn and32_63(d: u32, n: u32) -> u32 {
    0x1200_1400 | n << 5 | d
}
/// `and d, n, #~0xfff`
pub fn page_of(d: u32, n: u32) -> u32 {
    0x9274_cc00 | n << 5 | d
}
/// `cmp n, #value`
pub fn cmp_imm(n: u32, value: u32) -> u32 {
    0xf100_0000 | unsigned(value, 0) | n << 5 | SP
}
/// `cmn n, #value`
pub fn cmn_imm(n: u32, value: u32) -> u32 {
    0xb100_0000 | unsigned(value, 0) | n << 5 | SP
}
/// `cmp n, m`
pub fn cmp(n: u32, m: u32) -> u32 {
    0xeb00_0000 | m << 16 | n << 5 | SP
}
/// `add d, n, m` (31 is zero)
pub fn add(d: u32, n: u32, m: u32) -> u32 {
    0x8b00_0000 | m << 16 | n << 5 | d
}
/// `add d, n, m, lsl #shift`
pub fn add_lsl(d: u32, n: u32, m: u32, shift: u32) -> u32 {
    add(d, n, m) | (shift & 63) << 10
}
/// `sub d, n, m`
pub fn sub(d: u32, n: u32, m: u32) -> u32 {
    0xcb00_0000 | m << 16 | n << 5 | d
}
/// `mov d, m` (31 is zero)
pub fn mov(d: u32, m: u32) -> u32 {
    0xaa00_03e0 | m << 16 | d
}
/// `orr d, n, m`
pub fn orr(d: u32, n: u32, m: u32) -> u32 {
    0xaa00_0000 | m << 16 | n << 5 | d
}
/// `and d, n, m`
pub fn and(d: u32, n: u32, m: u32) -> u32 {
    0x8a00_0000 | m << 16 | n << 5 | d
}
/// `lsr d, n, #shift`
pub fn lsr(d: u32, n: u32, shift: u32) -> u32 {
    0xd340_fc00 | (shift & 63) << 16 | n << 5 | d
}
/// `movz d, #value, lsl #16*part`
pub fn movz(d: u32, value: u16, part: u32) -> u32 {
    0xd280_0000 | (part & 3) << 21 | u32::from(value) << 5 | d
}
/// `movn d, #value`
pub fn movn(d: u32, value: u16) -> u32 {
    0x9280_0000 | u32::from(value) << 5 | d
}
/// `movk d, #value, lsl #16*part`
pub fn movk(d: u32, value: u16, part: u32) -> u32 {
    0xf280_0000 | (part & 3) << 21 | u32::from(value) << 5 | d
}
/// `sxtw d, wn`
pub fn sxtw(d: u32, n: u32) -> u32 {
    0x9340_7c00 | n << 5 | d
}
/// `mul d, n, m`
pub fn mul(d: u32, n: u32, m: u32) -> u32 {
    0x9b00_7c00 | m << 16 | n << 5 | d
}
/// `udiv d, n, m`
pub fn udiv(d: u32, n: u32, m: u32) -> u32 {
    0x9ac0_0800 | m << 16 | n << 5 | d
}
/// `msub d, n, m, a`: `a - n * m`
pub fn msub(d: u32, n: u32, m: u32, a: u32) -> u32 {
    0x9b00_8000 | m << 16 | a << 10 | n << 5 | d
}
/// `ldr t, [n, #offset]`
pub fn ldr(t: u32, n: u32, offset: u32) -> u32 {
    0xf940_0000 | unsigned(offset, 3) | n << 5 | t
}
/// `str t, [n, #offset]`
pub fn str(t: u32, n: u32, offset: u32) -> u32 {
    0xf900_0000 | unsigned(offset, 3) | n << 5 | t
}
/// `ldr wt, [n, #offset]`
pub fn ldr32(t: u32, n: u32, offset: u32) -> u32 {
    0xb940_0000 | unsigned(offset, 2) | n << 5 | t
}
/// `str wt, [n, #offset]`
pub fn str32(t: u32, n: u32, offset: u32) -> u32 {
    0xb900_0000 | unsigned(offset, 2) | n << 5 | t
}
/// `sturb wt, [n]`; the offset is filled in.
pub fn sturb(t: u32, n: u32) -> u32 {
    0x3800_0000 | n << 5 | t
}
/// `ldrsw t, [n, #offset]`
pub fn ldrsw(t: u32, n: u32, offset: u32) -> u32 {
    0xb980_0000 | unsigned(offset, 2) | n << 5 | t
}
/// `ldrb wt, [n, #offset]`
pub fn ldrb(t: u32, n: u32, offset: u32) -> u32 {
    0x3940_0000 | unsigned(offset, 0) | n << 5 | t
}
/// `strb wt, [n, #offset]`
pub fn strb(t: u32, n: u32, offset: u32) -> u32 {
    0x3900_0000 | unsigned(offset, 0) | n << 5 | t
}
/// Nine bits of a signed offset.
fn nine(offset: i32) -> u32 {
    assert!((-256..256).contains(&offset), "{offset}");
    (offset as u32 & 0x1ff) << 12
}
/// `ldrb wt, [n], #step`
pub fn ldrb_post(t: u32, n: u32, step: i32) -> u32 {
    0x3840_0400 | nine(step) | n << 5 | t
}
/// `strb wt, [n], #step`
pub fn strb_post(t: u32, n: u32, step: i32) -> u32 {
    0x3800_0400 | nine(step) | n << 5 | t
}
/// `strb wt, [n, #step]!`
pub fn strb_pre(t: u32, n: u32, step: i32) -> u32 {
    0x3800_0c00 | nine(step) | n << 5 | t
}
/// `ldr t, [n], #step`
pub fn ldr_post(t: u32, n: u32, step: i32) -> u32 {
    0xf840_0400 | nine(step) | n << 5 | t
}
/// `str t, [n, #step]!`
pub fn str_pre(t: u32, n: u32, step: i32) -> u32 {
    0xf800_0c00 | nine(step) | n << 5 | t
}
/// `ldrb wt, [n, m]`
pub fn ldrb_reg(t: u32, n: u32, m: u32) -> u32 {
    0x3860_6800 | m << 16 | n << 5 | t
}
/// `strb wt, [n, m]`
pub fn strb_reg(t: u32, n: u32, m: u32) -> u32 {
    0x3820_6800 | m << 16 | n << 5 | t
}
/// `str t, [n, m]`
pub fn str_reg(t: u32, n: u32, m: u32) -> u32 {
    0xf820_6800 | m << 16 | n << 5 | t
}
/// Seven bits of a signed offset of pairs.
fn seven(offset: i32) -> u32 {
    assert!((-512..512).contains(&offset) && offset % 8 == 0, "{offset}");
    ((offset >> 3) as u32 & 0x7f) << 15
}
/// `stp a, b, [n, #offset]`
pub fn stp(a: u32, b: u32, n: u32, offset: i32) -> u32 {
    0xa900_0000 | seven(offset) | b << 10 | n << 5 | a
}
/// `ldp a, b, [n, #offset]`
pub fn ldp(a: u32, b: u32, n: u32, offset: i32) -> u32 {
    0xa940_0000 | seven(offset) | b << 10 | n << 5 | a
}
/// `stp a, b, [n, #step]!`
pub fn stp_pre(a: u32, b: u32, n: u32, step: i32) -> u32 {
    0xa980_0000 | seven(step) | b << 10 | n << 5 | a
}
/// `ldp a, b, [n], #step`
pub fn ldp_post(a: u32, b: u32, n: u32, step: i32) -> u32 {
    0xa8c0_0000 | seven(step) | b << 10 | n << 5 | a
}
/// `ldaxr t, [n]`
pub fn ldaxr(t: u32, n: u32) -> u32 {
    0xc85f_fc00 | n << 5 | t
}
/// `ldxr t, [n]`
pub fn ldxr(t: u32, n: u32) -> u32 {
    0xc85f_7c00 | n << 5 | t
}
/// `stxr ws, t, [n]`
pub fn stxr(s: u32, t: u32, n: u32) -> u32 {
    0xc800_7c00 | s << 16 | n << 5 | t
}
/// `stlxr ws, t, [n]`
pub fn stlxr(s: u32, t: u32, n: u32) -> u32 {
    0xc800_fc00 | s << 16 | n << 5 | t
}
/// `stadd t, [n]` (large system extensions)
pub fn stadd(t: u32, n: u32) -> u32 {
    0xf820_001f | t << 16 | n << 5
}
/// `mrs t, nzcv`
pub fn mrs_nzcv(t: u32) -> u32 {
    0xd53b_4200 | t
}
/// `msr nzcv, t`
pub fn msr_nzcv(t: u32) -> u32 {
    0xd51b_4200 | t
}
/// `br n`
pub fn br(n: u32) -> u32 {
    0xd61f_0000 | n << 5
}
/// `blr n`
pub fn blr(n: u32) -> u32 {
    0xd63f_0000 | n << 5
}
/// `ret n`
pub fn ret(n: u32) -> u32 {
    0xd65f_0000 | n << 5
}
/// `cbz t` over so many instructions from here, itself included (negative: back).
pub fn cbz(t: u32, distance: i32) -> u32 {
    0xb400_0000 | (distance as u32 & 0x7_ffff) << 5 | t
}
/// `cbz wt`
pub fn cbz32(t: u32, distance: i32) -> u32 {
    0x3400_0000 | (distance as u32 & 0x7_ffff) << 5 | t
}
/// `cbnz t`
pub fn cbnz(t: u32, distance: i32) -> u32 {
    0xb500_0000 | (distance as u32 & 0x7_ffff) << 5 | t
}
/// `cbnz wt`
pub fn cbnz32(t: u32, distance: i32) -> u32 {
    0x3500_0000 | (distance as u32 & 0x7_ffff) << 5 | t
}
/// `b.cond`
pub fn b_cond(cond: u32, distance: i32) -> u32 {
    0x5400_0000 | (distance as u32 & 0x7_ffff) << 5 | cond
}
/// Condition codes.
pub mod cond {
    /// equal
    pub const EQ: u32 = 0;
    /// not equal
    pub const NE: u32 = 1;
    /// unsigned higher or same
    pub const HS: u32 = 2;
    /// unsigned lower
    pub const LO: u32 = 3;
    /// signed less or equal
    pub const LE: u32 = 13;
}
