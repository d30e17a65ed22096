//! What is claimed of AArch64 instructions, against what a processor (an emulated one, if need be) does:
//! random instructions of every class are run in random states, and whatever they are not said to read is
//! changed.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use postlink_isa::aarch64::AArch64;
use postlink_isa::{Decode, Effects, Flow};

fn effects(word: u32) -> Option<Effects> {
    let bytes = word.to_le_bytes();
    let insn = AArch64::decode(&bytes, 0x1000)?;
    (insn.flow == Flow::Next && insn.field.is_none()).then(|| AArch64::effects(&bytes, &insn))
}

/// A generator of words that is the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }
}

/// Classes: the bits that are fixed, and their values. Whatever else is random.
const PLAIN: [(u32, u32, usize); 10] = [
    (0x1c00_0000, 0x1000_0000, 500), // numbers
    (0x1f00_0000, 0x0a00_0000, 300), // logical
    (0x1f00_0000, 0x0b00_0000, 400), // addition
    (0x1fe0_0000, 0x1a00_0000, 200), // with carry
    (0x1fe0_0000, 0x1a40_0000, 200), // conditional compare
    (0x1fe0_0000, 0x1a80_0000, 200), // conditional select
    (0x1fe0_0000, 0x1ac0_0000, 400), // one and two sources
    (0x1f00_0000, 0x1b00_0000, 300), // three sources
    (0x5f00_0000, 0x1e00_0000, 600), // scalar floating point
    (0x9fe0_8400, 0x0e00_0400, 300), // copies of vectors
];

/// The same with memory, whose base is x27 or x28 and whose other registers are neither.
const MEMORY: [(u32, u32, usize); 7] = [
    (0x3f00_0000, 0x0800_0000, 500), // exclusive, ordered, compare and swap
    (0x3c00_0000, 0x2800_0000, 500), // pairs
    (0x3b20_0000, 0x3800_0000, 500), // unscaled, written back
    (0x3b20_0c00, 0x3820_0000, 500), // atomic
    (0x3b20_0c00, 0x3820_0800, 300), // register offset
    (0x3b00_0000, 0x3900_0000, 300), // scaled
    (0xbe00_0000, 0x0c00_0000, 300), // structures
];

#[test]
fn what_is_not_read_does_not_matter_and_what_is_killed_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("harness");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/aarch64/harness.c");
    let built = Command::new("aarch64-linux-gnu-gcc")
        .args(["-O1", "-static", "-march=armv8.5-a", "-o"])
        .arg(&program)
        .arg(source)
        .status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no aarch64-linux-gnu-gcc to build the harness with");
        return;
    }
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut records = Vec::new();
    let mut add = |word: u32, memory: bool| {
        if let Some(e) = effects(word) {
            for number in [u64::from(word), e.reads.0, e.kills.0, u64::from(memory)] {
                records.extend_from_slice(&number.to_le_bytes());
            }
        }
    };
    for (mask, value, count) in PLAIN {
        for _ in 0..count {
            let word = random.next() & !mask | value;
            // The stack pointer cannot be written here.
            let writes_sp = word & 31 == 31 && mask != 0x5f00_0000;
            // Nor is a return address checked.
            let authenticates = word & 0x5fff_0000 == 0x5ac1_0000;
            if !writes_sp && !authenticates {
                add(word, false);
            }
        }
    }
    for (mask, value, count) in MEMORY {
        for _ in 0..count {
            let word = random.next() & !mask | value;
            let base = 27 + (word >> 5 & 1);
            let word = word & !(31 << 5) | base << 5;
            let other = |low: u32| !matches!(word >> low & 31, 27 | 28);
            if other(0) && other(10) && other(16) {
                // Scaled offsets reach too far.
                add(
                    if mask == 0x3b00_0000 {
                        word & !(0xfc0 << 10)
                    } else {
                        word
                    },
                    true,
                );
            }
        }
    }
    let input = directory.path().join("input");
    fs::File::create(&input)
        .unwrap()
        .write_all(&records)
        .unwrap();
    let native = cfg!(target_arch = "aarch64");
    let mut command = if native {
        Command::new(&program)
    } else {
        Command::new("qemu-aarch64")
    };
    if !native {
        command.args(["-cpu", "max"]).arg(&program);
    }
    let output = match command
        .stdin(fs::File::open(&input).unwrap())
        .stderr(Stdio::inherit())
        .output()
    {
        Ok(output) => String::from_utf8(output.stdout).unwrap(),
        Err(_) => {
            eprintln!("SKIPPED: no qemu-aarch64 to run the harness with");
            return;
        }
    };
    let last = output.lines().last().unwrap_or("nothing");
    let ran: usize = last
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    assert!(last.ends_with(", 0 wrong"), "{output}");
    assert!(ran > 1800, "only few instructions ran: {last}");
}

#[test]
fn values_that_compilers_keep_in_dead_looking_registers_are_seen() {
    let reads = |word: u32, register: u32| effects(word).unwrap().reads.0 >> register & 1 == 1;
    assert!(reads(0xf280_0020, 0), "movk keeps the rest of x0");
    assert!(reads(0x3300_1c41, 1), "bfxil keeps the rest of w1");
    assert!(
        reads(0xd503_233f, 30) && reads(0xd503_233f, 31),
        "paciasp signs x30 with sp"
    );
    assert!(reads(0x4e08_1c41, 2), "mov v1.d[0], x2");
    assert!(reads(0x0481_0000, 7), "what is not known reads everything");
}

#[test]
fn calls_and_returns_leave_two_registers_to_stubs() {
    for word in [0x9400_0001u32, 0xd63f_0000, 0xd65f_03c0, 0xd61f_0200] {
        let bytes = word.to_le_bytes();
        let insn = AArch64::decode(&bytes, 0x1000).unwrap();
        let reads = AArch64::effects(&bytes, &insn).reads;
        assert_eq!(
            reads.0 >> 16 & 1,
            u64::from(word == 0xd61f_0200),
            "{word:x}"
        );
        assert_eq!(reads.0 >> 17 & 1, 0, "{word:x}");
        assert_eq!(reads.0 & 0xffff, 0xffff, "{word:x}");
    }
}

#[test]
fn loads_and_stores_are_told_from_each_other() {
    // (word, loads, stores)
    let known = [
        (0xf940_0020, true, false),  // ldr x0, [x1]
        (0xf900_0020, false, true),  // str x0, [x1]
        (0xa940_0c22, true, false),  // ldp x2, x3, [x1]
        (0xa900_0c22, false, true),  // stp x2, x3, [x1]
        (0x5800_0040, true, false),  // ldr x0, .+8
        (0xd800_0040, false, false), // prfm pldl1keep, .+8
        (0xf980_0020, false, false), // prfm pldl1keep, [x1]
        (0x3980_0020, true, false),  // ldrsb x0, [x1]
        (0x3dc0_0020, true, false),  // ldr q0, [x1]
        (0x3d80_0020, false, true),  // str q0, [x1]
        (0xc85f_7c20, true, false),  // ldxr x0, [x1]
        (0xc802_7c20, false, true),  // stxr w2, x0, [x1]
        (0xc8df_fc20, true, false),  // ldar x0, [x1]
        (0xc89f_fc20, false, true),  // stlr x0, [x1]
        (0xc8a2_7c20, true, true),   // cas x2, x0, [x1]
        (0xf822_0020, true, true),   // ldadd x2, x0, [x1]
        (0xf8bf_c020, true, false),  // ldapr x0, [x1]
        (0x4c40_7020, true, false),  // ld1 {v0.16b}, [x1]
        (0x4c00_7020, false, true),  // st1 {v0.16b}, [x1]
        (0x8b01_0000, false, false), // add x0, x0, x1
        (0x9400_0001, false, false), // bl
        (0xd65f_03c0, false, false), // ret
    ];
    for (word, loads, stores) in known {
        let bytes = u32::to_le_bytes(word);
        let insn = AArch64::decode(&bytes, 0x1000).expect("it is an instruction");
        let memory = AArch64::memory(&bytes, &insn);
        assert_eq!((memory.loads, memory.stores), (loads, stores), "{word:08x}");
    }
}

#[test]
fn an_indirect_branch_needs_its_register() {
    let needs = |word: u32| {
        let bytes = word.to_le_bytes();
        let insn = AArch64::decode(&bytes, 0x1000).expect("it decodes");
        AArch64::operand_registers(&bytes, &insn).0
    };
    let stubs = |word| needs(word) & AArch64::STUB_SCRATCH.0;
    assert_eq!(stubs(0xd63f_0100), 0); // blr x8
    assert_eq!(needs(0xd63f_0100) & 1 << 8, 1 << 8);
    assert_eq!(stubs(0xd61f_0200), 1 << 16); // br x16
    assert_eq!(stubs(0xd73f_0911), 1 << 17); // blraa x8, x17
    assert_eq!(needs(0x9400_0001), 0); // bl
}
