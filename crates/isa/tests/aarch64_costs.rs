//! What counting costs on AArch64, instruction by instruction: the table of `docs/aarch64.md` is made here
//! from what the encoder emits, beside llvm-bolt's sequence.
//! `POSTLINK_BLESS=1 cargo test -p postlink-isa --test aarch64_costs` writes it.

use std::fmt::Write as _;

use postlink_isa::aarch64::AArch64;
use postlink_isa::{Code, CounterMode, CounterPlace, Counters, Decode, RegSet, SiteRef};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/aarch64.md");
const BEGIN: &str = "<!-- begin of the table made by crates/isa/tests/aarch64_costs.rs -->\n";
const END: &str = "<!-- end of the table -->\n";

/// The words of llvm-bolt's counter in its design document ("Enabling AArch64 Instrumentation Support in
/// BOLT", `main`).
const BOLT_COUNTER: [u32; 10] = [
    0xa9bf_07e0, // stp x0, x1, [sp, #-16]!
    0xd53b_4201, // mrs x1, nzcv
    0xd000_0000, // adrp x0, counter
    0x9101_6000, // add x0, x0, #:lo12:counter
    0xf81f_0fe2, // str x2, [sp, #-16]!
    0xd280_0022, // mov x2, #1
    0xf822_001f, // stadd x2, [x0]
    0xf841_07e2, // ldr x2, [sp], #16
    0xd51b_4201, // msr nzcv, x1
    0xa8c1_07e0, // ldp x0, x1, [sp], #16
];

/// The same document's call site of an indirect call, the call included; its handler and trampoline come on top.
const BOLT_SITE: [u32; 10] = [
    0xa9bf_07e0, // stp x0, x1, [sp, #-16]!
    0xaa00_03e0, // mov x0, target
    0xf2e0_0001, // movk x1, #0, lsl #48
    0xf2c0_0001, // movk x1, #0, lsl #32
    0xf2a0_0001, // movk x1, #0, lsl #16
    0xf280_0041, // movk x1, #2
    0xa9bf_07e0, // stp x0, x1, [sp, #-16]!
    0x9000_0000, // adrp x0, handler
    0x911a_5000, // add x0, x0, #:lo12:handler
    0xd63f_0000, // blr x0
];

/// What a sequence does.
#[derive(Default, PartialEq, Eq, Debug)]
struct Cost {
    instructions: usize,
    /// Loads and stores at the stack pointer.
    stack: usize,
    /// Other loads and stores; an atomic addition is one.
    memory: usize,
    /// Moves of the flags.
    flags: usize,
}

impl Cost {
    fn of(words: impl Iterator<Item = u32>) -> Cost {
        let mut cost = Cost::default();
        for w in words {
            cost.instructions += 1;
            if w & 0xffdf_ffe0 == 0xd51b_4200 {
                cost.flags += 1;
            } else if w & 0x0a00_0000 == 0x0800_0000 {
                // Loads and stores of all kinds; their address register is in bits 5 to 9.
                if w >> 5 & 31 == 31 {
                    cost.stack += 1;
                } else {
                    cost.memory += 1;
                }
            }
        }
        cost
    }

    fn row(&self, what: &str) -> String {
        format!(
            "| {what} | {} | {} | {} | {} | {} |\n",
            self.instructions,
            4 * self.instructions,
            self.memory,
            self.stack,
            self.flags
        )
    }
}

fn words(code: &Code<()>) -> impl Iterator<Item = u32> + '_ {
    code.bytes
        .chunks_exact(4)
        .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
}

/// A counter where so many registers are dead.
fn counter(mode: CounterMode, dead: u32) -> Cost {
    // x16, x17, x9, …: whichever are chosen.
    let free: RegSet = [16, 17, 9][..dead as usize]
        .iter()
        .fold(RegSet(0), |set, r| RegSet(set.0 | 1 << r));
    let live = RegSet(0xf_ffff_ffff & !free.0);
    let mut code: Code<()> = Code::default();
    AArch64::put_counter(&mut code, mode, live, CounterPlace::one(()));
    assert_eq!(code.bytes.len(), AArch64::counter_len(mode, live));
    Cost::of(words(&code))
}

/// The recorder of `blr x8`.
fn recorder(mode: CounterMode) -> usize {
    let blr = 0xd63f_0100u32.to_le_bytes();
    let insn = AArch64::decode(&blr, 0x1000).expect("it is an instruction");
    let mut code: Code<()> = Code::default();
    assert!(AArch64::put_site(
        &mut code,
        mode,
        false,
        &blr,
        &insn,
        |_: SiteRef| ()
    ));
    code.bytes.len() / 4
}

fn table() -> String {
    let mut text = String::from(
        "| counter | instructions | bytes | accesses of the counter | of the stack | moves of the flags |\n|---|--:|--:|--:|--:|--:|\n",
    );
    let modes = [
        (CounterMode::Plain, 2, "plain"),
        (
            CounterMode::AtomicOne,
            2,
            "atomic, by `stadd` (where the program relies on such instructions already)",
        ),
        (CounterMode::Atomic, 3, "atomic, by an exclusive pair"),
    ];
    for (mode, needed, name) in modes {
        for dead in (0..=needed).rev() {
            let registers = match dead {
                0 => "no register dead".to_owned(),
                1 => "one register dead".to_owned(),
                n if n == needed => format!("{n} registers dead, as mostly"),
                n => format!("{n} registers dead"),
            };
            text += &counter(mode, dead).row(&format!("postlink, {name}; {registers}"));
        }
    }
    text += &Cost::of(BOLT_COUNTER.into_iter()).row("llvm-bolt, design document");
    text.push('\n');
    let (site, plain, atomic) = (
        BOLT_SITE.len(),
        recorder(CounterMode::Plain),
        recorder(CounterMode::Atomic),
    );
    let _ = writeln!(
        text,
        "At an indirect call, postlink's site stays one instruction (4 bytes), `bl` to a recorder of {plain} instructions ({} bytes; atomic by an \
         exclusive pair: {atomic}), one for each site, which saves nothing on its usual path. llvm-bolt's site has {site} instructions ({} bytes) with the call, \
         then runs through a trampoline of 10 and a handler of 5, and a function that saves all registers.",
        4 * plain,
        4 * site,
    );
    text
}

#[test]
fn the_documents_table_of_costs_is_what_the_encoder_emits() {
    let document = std::fs::read_to_string(DOCUMENT).expect("docs/aarch64.md");
    let (before, rest) = document.split_once(BEGIN).expect("the table's begin");
    let (written, after) = rest.split_once(END).expect("the table's end");
    let real = table();
    if std::env::var_os("POSTLINK_BLESS").is_some() {
        let text = [before, BEGIN, &real, END, after].concat();
        std::fs::write(DOCUMENT, text).expect("docs/aarch64.md can be written");
        return;
    }
    assert_eq!(written, real, "POSTLINK_BLESS=1 writes it anew");
}

#[test]
fn a_counter_between_dead_registers_is_half_of_the_design_document_s_and_leaves_stack_and_flags_alone()
 {
    let bolt = Cost::of(BOLT_COUNTER.into_iter());
    assert_eq!(
        bolt,
        Cost {
            instructions: 10,
            stack: 4,
            memory: 1,
            flags: 2
        }
    );
    for mode in [CounterMode::Plain, CounterMode::AtomicOne] {
        let ours = counter(mode, 2);
        assert!(ours.instructions <= 4 && ours.stack == 0 && ours.flags == 0);
        let worst = counter(mode, 0);
        assert!(worst.instructions <= 6 && worst.stack == 2 && worst.flags == 0);
    }
}
