//! Loads that linkers move into veneers for erratum 843419 of Cortex-A53. In a stripped program nothing tells of the
//! veneers: functions seemed to end at the branch to one, and went on in old code, where nothing is counted.

use std::fs;

use postlink_verify::{FunctionReport, Options, Verdict, verify};

mod support;
use support::folder::Folder;
use support::{is_installed, sequences};

const GCC: &str = "aarch64-linux-gnu-gcc";

/// `user` has an `adrp` in one of the last two words of a page, a store, and a load by the page: the third of them is
/// moved into a veneer. Behind it is a loop.
const SOURCE: &str = r#"
#include <stdio.h>
__asm__(".pushsection .text.user, \"ax\", %progbits\n .p2align 12\n .zero 4096 - 16\n"
        " .globl user\n .type user, %function\n"
        "user:\n .cfi_startproc\n nop\n nop\n adrp x1, place\n str xzr, [sp, #-16]!\n .cfi_def_cfa_offset 16\n"
        " ldr x2, [x1, :lo12:place]\n mov x3, #3\n"
        "1: add x2, x2, x0\n subs x3, x3, #1\n b.ne 1b\n"
        " str x2, [x1, :lo12:place]\n add sp, sp, #16\n .cfi_def_cfa_offset 0\n mov x0, x2\n ret\n .cfi_endproc\n"
        " .size user, . - user\n .popsection\n"
        ".pushsection .bss.place, \"aw\", %nobits\n .p2align 3\nplace: .zero 8\n .popsection");
long user(long n);
int main(void) {
    long last = 0;
    for (long i = 0; i < 100; i++) last = user(2);
    printf("%ld\n", last);
    return 0;
}
"#;
/// Words of `user`, and where they are.
const ADRP: usize = 2;
const BRANCH: usize = 4;

/// A program with a veneer, stripped if no relocations are kept, and where `user` and the veneer are in the file.
struct Veneer {
    folder: Folder,
    user: usize,
    veneer: usize,
}

fn word(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes"))
}

fn put(image: &mut [u8], at: usize, word: u32) {
    image[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

impl Veneer {
    /// `None` without the tools.
    fn new(kept: bool) -> Option<Veneer> {
        if ![GCC, "qemu-aarch64"].into_iter().all(is_installed) {
            return None;
        }
        let folder = Folder::new();
        fs::write(folder.path("app.c"), SOURCE).expect("written");
        // Else the linker makes an `adr` of the `adrp`, which reaches.
        let fix = "-Wl,--fix-cortex-a53-843419=adrp";
        let relocations = if kept { "-Wl,-q" } else { "-pie" };
        let flags = [
            "-O2",
            "-pie",
            "-fPIE",
            fix,
            relocations,
            "-o",
            "app",
            "app.c",
        ];
        folder.run(GCC, &flags);
        let names = folder.run("aarch64-linux-gnu-nm", &["app"]);
        let line = names.lines().find(|l| l.ends_with(" user"));
        let user = line.and_then(|l| usize::from_str_radix(&l[..16], 16).ok());
        let user = user.expect("its address, which is its place in the file as well");
        if !kept {
            folder.run("aarch64-linux-gnu-strip", &["-s", "app"]);
        }
        let image = fs::read(folder.path("app")).expect("it was linked");
        let branch = word(&image, user + 4 * BRANCH);
        assert_eq!(branch >> 26, 5, "the linker made a veneer");
        let veneer = user + 4 * BRANCH + 4 * (branch & 0x03ff_ffff) as usize;
        Some(Veneer {
            folder,
            user,
            veneer,
        })
    }

    /// Instruments the program, and gives the counts of the blocks of `user`, if it moved.
    fn counts(&self) -> Option<Vec<u64>> {
        self.folder.instrument("app", "run.plraw");
        let _ = fs::remove_file(self.folder.path("run.plraw"));
        let counting = self.folder.emulate("app.inst");
        assert_eq!(counting, self.folder.emulate("app"));
        let shown = self
            .folder
            .postlink(&["show", "run.plraw", "--binary", "app", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        let at = self.user as u64;
        let mut functions = shown["functions"].as_array().expect("functions").iter();
        let user = functions.find(|f| f["address"] == at)?;
        let blocks = user["blocks"].as_array().expect("blocks").iter();
        let counts = blocks.map(|b| b["count"].as_u64().expect("a count"));
        Some(counts.collect())
    }
}

#[test]
fn a_load_that_the_linker_moved_into_a_veneer_is_in_its_place_again() {
    for kept in [false, true] {
        let Some(program) = Veneer::new(kept) else {
            return;
        };
        assert_eq!(program.folder.emulate("app"), "600\n");
        // With symbols the veneer is a part of the function, without unwind information: such functions stay.
        let counts = (!kept).then(|| vec![100, 300, 100]);
        assert_eq!(program.counts(), counts);
        let optimized = |arguments: &[&str]| {
            let optimize = ["optimize", "app", "-p", "run.plraw", "-o", "out"];
            program.folder.postlink(&[&optimize, arguments].concat());
            assert_eq!(program.folder.emulate("out"), "600\n", "{arguments:?}");
        };
        for seed in ["1", "2", "3"] {
            // With breakpoints in old code.
            optimized(&["--stress", seed, "--poison"]);
        }
        // The last one only where all references are known.
        let presets = ["safe", "fast", "max", "size"];
        let presets = presets.iter().take(if kept { 4 } else { 3 });
        for preset in presets {
            optimized(&["--preset", preset]);
            program.folder.postlink(&["verify", "app", "out"]);
        }
        // Old code that is left is what it was.
        if !kept {
            let [old, new] =
                ["app", "out"].map(|name| fs::read(program.folder.path(name)).expect("a file"));
            let branch = program.user + 4 * BRANCH;
            assert_eq!(word(&old, branch), word(&new, branch));
        }
    }
}

/// What only looks like a veneer is code like any other for the checker: the load uses another register than the `adrp`
/// forms, the branch comes back elsewhere, or there is no `adrp`. Input and output are changed alike.
#[test]
fn pairs_of_branches_that_are_no_veneer_are_read_as_they_are() {
    let Some(program) = Veneer::new(false) else {
        return;
    };
    program.counts();
    let image = fs::read(program.folder.path("app")).expect("it was linked");
    let output = fs::read(program.folder.path("app.inst")).expect("it was written");
    let adrp = program.user + 4 * ADRP;
    let back = program.veneer + 4;
    for (at, other) in [
        (program.veneer, word(&image, program.veneer) | 31 << 5),
        (back, word(&image, back) + 1),
        (adrp, 0x1000_0001),
    ] {
        let (mut input, mut output) = (image.clone(), output.clone());
        put(&mut input, at, other);
        put(&mut output, at, other);
        let report = verify(&input, &output, &Options::default()).expect("both can be read");
        let user = program.user as u64;
        let failed = |f: &FunctionReport| f.old == user && f.verdict != Verdict::Proved;
        assert!(report.functions.iter().any(failed), "{at:#x}");
    }
    // A word that nothing reads is no matter.
    let (mut input, mut output) = (image, output);
    put(&mut input, program.veneer + 8, 0x1234);
    put(&mut output, program.veneer + 8, 0x1234);
    let report = verify(&input, &output, &Options::default()).expect("both can be read");
    assert!(report.is_proved());
}

/// The checker takes the veneer for what it is in the output alone.
#[test]
fn a_veneer_that_changed_is_refused() {
    let Some(program) = Veneer::new(false) else {
        return;
    };
    program.counts();
    let read = |name: &str| fs::read(program.folder.path(name)).expect("a file");
    let (input, output) = (read("app"), read("app.inst"));
    let proved = |image: &[u8]| {
        verify(&input, image, &Options::default()).is_ok_and(|report| report.is_proved())
    };
    assert!(proved(&output));
    for (at, changed) in [
        (program.veneer, 1 << 10),
        (program.veneer + 4, 1),
        (program.user + 4 * BRANCH, 1),
    ] {
        let mut other = output.clone();
        let old = word(&other, at);
        assert_eq!(old, word(&input, at));
        put(&mut other, at, old ^ changed);
        assert!(!proved(&other), "{at:#x}");
    }
    // The load in new code, which the veneer stands for.
    let load = word(&input, program.veneer).to_le_bytes();
    let copies = (0..output.len() - 4).step_by(4);
    let new: Vec<usize> = copies
        .filter(|at| *at != program.veneer && output[*at..at + 4] == load)
        .collect();
    assert_eq!(new.len(), 1, "{new:x?}");
    let mut other = output.clone();
    let word = word(&other, new[0]);
    put(&mut other, new[0], word ^ 1 << 10);
    assert!(!proved(&other));
}

/// The linker sees to it that no sequence that the processor may get wrong is at the end of a page, and so does the
/// rewriter.
#[test]
fn new_code_has_no_sequence_that_the_processor_gets_wrong() {
    const FEW: usize = 400;
    if ![GCC, "qemu-aarch64"].into_iter().all(is_installed) {
        return;
    }
    let folder = Folder::new();
    let functions: Vec<(String, u32)> = (0..FEW).map(|n| (format!("few_{n}"), 4)).collect();
    sequences::build(&folder, &functions);
    let read = |name: &str| fs::read(folder.path(name)).expect("a file");
    let input = read("app");
    assert_eq!(
        sequences::at_ends_of_pages(&input),
        [0; 0],
        "the linker saw to it"
    );
    assert_eq!(folder.emulate("app"), format!("{}\n", 4 * FEW));
    folder.instrument("app", "run.plraw");
    assert_eq!(folder.emulate("app.inst"), folder.emulate("app"));
    let made = |options: &[&str]| {
        let optimize = [
            "optimize",
            "app",
            "-p",
            "run.plraw",
            "-o",
            "out",
            "--move-all",
        ];
        folder.postlink(&[&optimize[..], options].concat());
        assert_eq!(folder.emulate("out"), folder.emulate("app"));
        read("out")
    };
    let random = ["--stress", "1"];
    let optimized = [&["--preset", "safe"], &["--preset", "max"], &random].map(|o| made(o));
    for output in optimized.into_iter().chain([read("app.inst")]) {
        assert_eq!(sequences::at_ends_of_pages(&output), [0; 0]);
        let report = verify(&input, &output, &Options::default()).expect("both can be read");
        assert!(report.is_proved());
        assert!(report.functions.len() >= FEW, "{}", report.functions.len());
        assert!(report.assumptions.iter().all(|a| a.id != "A18"));
    }
}
