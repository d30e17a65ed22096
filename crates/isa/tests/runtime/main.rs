//! The start-up routine in real programs, which are run in all sorts of surroundings.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "../common/mod.rs"]
mod common;
mod trouble;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::program::{
    BODY, BUILD_ID, CHECK, COUNTERS, HEADER, Kind, Program, ROUTINE, SCRATCH, at, call, count,
    exit, go_to, lea,
};
use iced_x86::code_asm::*;
use iced_x86::{Code as Op, IcedError, Register};
use postlink_isa::x86_64::X86_64;
use postlink_isa::{
    Code, CounterMode, Counters, Decode, Runtime, RuntimeConfig, RuntimeEntry, RuntimeError,
    SiteRef,
};
use tempfile::TempDir;

/// Held while a program is written and while a process is started: a process that is forked in between would hold the
/// file open for writing, and then it cannot be run.
static FORK: Mutex<()> = Mutex::new(());

fn spawn(command: &mut Command) -> Child {
    let _guard = FORK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    command.spawn().unwrap()
}

fn output(command: &mut Command) -> Output {
    spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
        .wait_with_output()
        .unwrap()
}

/// A directory with a program in it.
struct Case {
    directory: TempDir,
}

impl Case {
    fn new(program: &Program<'_>) -> Case {
        let case = Case {
            directory: tempfile::tempdir().unwrap(),
        };
        let _guard = FORK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        program.write(&case.path("program"));
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The program, to be run in the directory, with an environment of `POSTLINK_PROFILE` alone.
    fn command(&self, profile: Option<&str>) -> Command {
        let mut command = Command::new(self.path("program"));
        command
            .current_dir(self.directory.path())
            .env_clear()
            .stdin(Stdio::null());
        if let Some(profile) = profile {
            command.env("POSTLINK_PROFILE", profile);
        }
        command
    }

    /// Runs it to its normal end with nothing said.
    fn run(&self, profile: Option<&str>) -> Output {
        silent(output(&mut self.command(profile)))
    }

    /// The files beside the program.
    fn others(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "program")
            .collect();
        names.sort();
        names
    }

    /// The counters in a profile, whose header must be whole and whose size right.
    fn counters(&self, name: &str) -> Vec<u64> {
        counters(&self.path(name))
    }
}

fn silent(output: Output) -> Output {
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    output
}

fn counters(path: &Path) -> Vec<u64> {
    let file = fs::read(path).unwrap();
    assert_eq!(file.len(), 0x3000);
    assert_eq!(file[..HEADER.len()], *HEADER);
    assert!(file[HEADER.len()..0x1000].iter().all(|&byte| byte == 0));
    file[0x1000..]
        .chunks(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// A program that counts to 1000 in counter 3 and to 2 in the last, and ends with what is in the latter.
fn counting() -> Program<'static> {
    Program {
        body: &count_and_exit,
        ..Program::default()
    }
}

const LAST: u64 = 0x2000 / 8 - 1;

fn count_and_exit(a: &mut CodeAssembler) -> Result<(), IcedError> {
    count(a, 3, 1000)?;
    count(a, LAST, 2)?;
    exit(a, 0)
}

/// The same, but called as an initialiser, first thing in a program.
fn counting_called() -> Program<'static> {
    Program {
        called: true,
        next: None,
        entry: &|a| {
            call(a, ROUTINE)?;
            go_to(a, BODY)
        },
        ..counting()
    }
}

/// What the failing programs below say about their counters: they end with the low byte of one.
fn ends_with_counter(a: &mut CodeAssembler) -> Result<(), IcedError> {
    count(a, 3, 42)?;
    at(a, Op::Mov_r64_rm64, Register::RDI, COUNTERS + 24)?;
    a.mov(eax, 231)?;
    a.syscall()
}

#[test]
fn counts_are_in_the_file_that_the_environment_names() {
    for program in [
        counting(),
        Program {
            kind: Kind::Moved,
            ..counting()
        },
        counting_called(),
    ] {
        let case = Case::new(&program);
        for run in 1..4 {
            case.run(Some("out"));
            assert_eq!(case.others(), ["out"]);
            let counters = case.counters("out");
            assert_eq!(
                (counters[3], counters[LAST as usize]),
                (run * 1000, run * 2)
            );
            assert_eq!(counters.iter().sum::<u64>(), run * 1002);
        }
        let mode = fs::metadata(case.path("out")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 & !0o666, 0, "{mode:o}");
    }
}

#[test]
fn without_a_name_the_pattern_stands() {
    let program = Program {
        pattern: "built-in",
        ..counting()
    };
    let called = Program {
        pattern: "built-in",
        ..counting_called()
    };
    for program in [program, called] {
        for profile in [None, Some("")] {
            let case = Case::new(&program);
            case.run(profile);
            assert_eq!(case.others(), ["built-in"]);
            assert_eq!(case.counters("built-in")[3], 1000);
        }
    }
}

#[test]
fn escapes_are_expanded_in_name_and_pattern() {
    let mut host = [0u8; 256];
    // SAFETY: the buffer is as long as is said.
    assert_eq!(
        unsafe { libc::gethostname(host.as_mut_ptr().cast(), host.len()) },
        0
    );
    let host: String = host
        .iter()
        .take_while(|&&byte| byte != 0)
        .map(|&byte| char::from(byte))
        .collect();
    let template = "%p-%b-%h-%m-%%-x%%p";
    let expected = |process: u32| format!("{process}-{BUILD_ID}-{host}--%-x%p");
    for program in [counting(), counting_called()] {
        let with_pattern = Program {
            pattern: template,
            ..program
        };
        for profile in [None, Some(template)] {
            let case = Case::new(&with_pattern);
            let child = spawn(case.command(profile).stderr(Stdio::piped()));
            let process = child.id();
            silent(child.wait_with_output().unwrap());
            assert_eq!(case.others(), [expected(process)]);
        }
    }
    let case = Case::new(&counting());
    case.run(Some("%x%"));
    case.run(Some("%"));
    case.run(Some("%m%mplain%m"));
    assert_eq!(case.others(), ["%", "%x%", "plain"]);
}

#[test]
fn only_the_variable_of_that_very_name_counts() {
    for program in [counting(), counting_called()] {
        let case = Case::new(&program);
        let mut command = case.command(Some("right"));
        for (name, value) in [
            ("POSTLINK_PROFIL", "a"),
            ("POSTLINK_PROFILES", "b"),
            ("XPOSTLINK_PROFILE", "c"),
        ] {
            command.env(name, value);
        }
        command
            .env("OTHER", "POSTLINK_PROFILE=d")
            .env("POSTLINK", "")
            .env("ZZZ", "");
        silent(output(&mut command));
        assert_eq!(case.others(), ["right"]);
    }
}

#[test]
fn the_variable_is_found_anywhere_in_a_large_environment() {
    for program in [counting(), counting_called()] {
        let case = Case::new(&program);
        // Around the buffer's length, so that every part of the variable falls on its end once; and far after.
        let near = (4040..4110).chain([8100, 8180, 70_000, 100_000]);
        for (run, padding) in near.enumerate() {
            let mut command = case.command(None);
            // The environment is sorted by name.
            command
                .env("A", "x".repeat(padding))
                .env("POSTLINK_PROFILE", "out")
                .env("Z", "y".repeat(padding));
            silent(output(&mut command));
            assert_eq!(case.others(), ["out"], "{padding}");
            assert_eq!(
                case.counters("out")[3],
                (run as u64 + 1) * 1000,
                "{padding}"
            );
        }
    }
}

#[test]
fn registers_flags_and_stack_are_as_found() {
    // Everything gets a pattern, the routine runs, everything is written out after the counters' scratch page.
    const SAVED: u64 = SCRATCH + 0x100;
    const REGISTERS: [AsmRegister64; 15] = [
        rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
    ];
    fn load(a: &mut CodeAssembler, flags: i32) -> Result<(), IcedError> {
        at(a, Op::Mov_rm64_r64, Register::RSP, SAVED)?;
        a.push(flags)?;
        a.popfq()?;
        for (number, register) in REGISTERS.into_iter().enumerate() {
            a.mov(register, 0x1111_2222_3333_4400u64 + number as u64)?;
        }
        Ok(())
    }
    fn store(a: &mut CodeAssembler) -> Result<(), IcedError> {
        at(a, Op::Mov_rm64_r64, Register::RSP, SAVED + 8)?;
        for (number, register) in REGISTERS.into_iter().enumerate() {
            at(
                a,
                Op::Mov_rm64_r64,
                register.into(),
                SAVED + 24 + number as u64 * 8,
            )?;
        }
        a.pushfq()?;
        a.pop(rax)?;
        at(a, Op::Mov_rm64_r64, Register::RAX, SAVED + 16)?;
        a.cld()?;
        a.mov(eax, 1)?;
        a.mov(edi, 1)?;
        lea(a, rsi, SAVED)?;
        a.mov(edx, 18 * 8)?;
        a.syscall()?;
        exit(a, 0)
    }
    let (set, clear) = (0x202 | 0x8d5 | 0x400, 0x202);
    let jumped: [common::program::Program<'_>; 2] = [
        Program {
            entry: &|a| {
                load(a, 0x202 | 0x8d5 | 0x400)?;
                go_to(a, ROUTINE)
            },
            body: &store,
            ..Program::default()
        },
        Program {
            kind: Kind::Moved,
            entry: &|a| {
                load(a, 0x202)?;
                go_to(a, ROUTINE)
            },
            body: &store,
            ..Program::default()
        },
    ];
    let called = [
        Program {
            called: true,
            next: None,
            entry: &|a| {
                load(a, 0x202 | 0x8d5 | 0x400)?;
                call(a, ROUTINE)?;
                go_to(a, BODY)
            },
            body: &store,
            ..Program::default()
        },
        Program {
            called: true,
            next: Some(BODY + 0x800),
            more: vec![(BODY + 0x800, vec![0xc3])],
            entry: &|a| {
                load(a, 0x202)?;
                call(a, ROUTINE)?;
                go_to(a, BODY)
            },
            body: &store,
            ..Program::default()
        },
    ];
    for (program, flags) in jumped.iter().chain(&called).zip([set, clear, set, clear]) {
        let case = Case::new(program);
        // Success; an error line; a long environment.
        for (profile, fails) in [
            ("out", false),
            ("no/such/directory", true),
            ("%p%p%h", false),
        ] {
            let output = output(&mut case.command(Some(profile)));
            assert_eq!(output.status.code(), Some(0));
            assert_eq!(!output.stderr.is_empty(), fails);
            let words: Vec<u64> = output
                .stdout
                .chunks(8)
                .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                .collect();
            assert_eq!(words[0], words[1], "rsp");
            assert_eq!(words[2], flags as u64, "flags");
            for (number, word) in words[3..].iter().enumerate() {
                assert_eq!(
                    *word,
                    0x1111_2222_3333_4400 + number as u64,
                    "register {number}"
                );
            }
        }
    }
}

/// Runs a program whose profile cannot be had: it says so in one line and ends as it would.
fn fails(case: &Case, mut command: Command, line: &str) {
    let output = output(&mut command);
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!("postlink: {line}; this run is not recorded\n")
    );
    assert_eq!(
        output.status.code(),
        Some(42),
        "{output:?} in {:?}",
        case.directory
    );
}

#[test]
fn a_profile_that_cannot_be_opened_is_one_line_and_no_harm() {
    for program in [counting(), counting_called()] {
        let case = Case::new(&Program {
            body: &ends_with_counter,
            ..program
        });
        fs::write(case.path("file"), "").unwrap();
        fs::create_dir(case.path("directory")).unwrap();
        let open = |name: &str, text: &str| {
            fails(
                &case,
                case.command(Some(name)),
                &format!("cannot open profile {name}: errno {text}"),
            );
        };
        open("no/such", "2 (No such file or directory)");
        open("directory", "21 (Is a directory)");
        open("file/x", "20 (Not a directory)");
        open(&"x".repeat(300), "36 (File name too long)");
        open("/proc/1/no", "2 (No such file or directory)");
        for long in [
            "y".repeat(4096),
            "y".repeat(100_000),
            format!("{}%h", "y".repeat(4095)),
        ] {
            fails(
                &case,
                case.command(Some(&long)),
                "the name of the profile has 4096 bytes or more",
            );
        }
        for device in ["/dev/null", "/dev/full"] {
            fails(
                &case,
                case.command(Some(device)),
                &format!("profile {device} is not a regular file"),
            );
        }
        assert_eq!(case.others(), ["directory", "file"]);
        // The longest that the kernel takes.
        assert_eq!(
            output(&mut case.command(Some(&format!("{}x", "./".repeat(2047))))).stderr,
            b""
        );
        assert_eq!(case.counters("x")[3], 42);
        // SAFETY: asks, and changes nothing.
        if unsafe { libc::geteuid() } != 0 {
            fs::set_permissions(case.path("directory"), fs::Permissions::from_mode(0o555)).unwrap();
            open("directory/x", "13 (Permission denied)");
        }
    }
}

#[test]
fn a_directory_that_another_user_may_not_write_is_an_error_line() {
    // SAFETY: asks, and changes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return; // The test above does it.
    }
    let case = Case::new(&Program {
        body: &ends_with_counter,
        ..counting()
    });
    fs::set_permissions(case.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = case.command(Some("out"));
    command.uid(65534).gid(65534);
    fails(
        &case,
        command,
        "cannot open profile out: errno 13 (Permission denied)",
    );
}

#[test]
fn a_file_of_another_program_is_left_alone() {
    for program in [counting(), counting_called()] {
        let case = Case::new(&Program {
            body: &ends_with_counter,
            ..program
        });
        let whole = |header: &[u8], len: usize| {
            let mut file = header.to_vec();
            file.resize(len, 0);
            file
        };
        let mut wrong = HEADER.to_vec();
        wrong[CHECK - 1] ^= 1;
        let mut wrong_magic = HEADER.to_vec();
        wrong_magic[7] ^= 1;
        let mut begun = HEADER.to_vec();
        begun[..8].fill(0);
        begun[12] ^= 1;
        let files = [
            whole(&wrong, 0x3000),
            whole(&wrong_magic, 0x3000),
            whole(&begun, 0x3000),
            whole(HEADER, 0x2fff),
            whole(HEADER, 0x3001),
            whole(HEADER, 0x4000),
            whole(b"x", 1),
            whole(b"a letter to my mother", 0x3000),
        ];
        for file in files {
            fs::write(case.path("out"), &file).unwrap();
            fails(
                &case,
                case.command(Some("out")),
                "profile out belongs to another program or build (%b in its name keeps them apart)",
            );
            assert_eq!(fs::read(case.path("out")).unwrap(), file);
        }
    }
}

#[test]
fn a_header_left_unfinished_is_finished() {
    let case = Case::new(&counting());
    // What a process leaves that is killed between two bytes.
    for done in [0, 1, 20, CHECK, HEADER.len()] {
        let mut file = HEADER[..done.max(8)].to_vec();
        file[..8].fill(0);
        file.resize(0x3000, 0);
        fs::write(case.path("out"), &file).unwrap();
        case.run(Some("out"));
        assert_eq!(case.counters("out")[3], 1000);
    }
    // Bytes of the header that need not agree.
    let mut file = fs::read(case.path("out")).unwrap();
    file[CHECK] ^= 0x55;
    fs::write(case.path("out"), &file).unwrap();
    case.run(Some("out"));
    let now = fs::read(case.path("out")).unwrap();
    assert_eq!(now[..0x1000], file[..0x1000]);
    assert_eq!(now[0x1018..0x1020], 2000u64.to_le_bytes());
}

#[test]
fn a_forked_child_counts_into_the_same_file() {
    let case = Case::new(&Program {
        body: &|a| {
            count(a, 0, 1)?;
            a.mov(eax, 57)?; // fork
            a.syscall()?;
            a.mov(r12d, eax)?;
            count(a, 1, 5000)?;
            let mut child = a.create_label();
            a.test(r12d, r12d)?;
            a.je(child)?;
            a.mov(edi, r12d)?; // wait4(child, 0, 0, 0)
            a.xor(esi, esi)?;
            a.xor(edx, edx)?;
            a.xor(r10d, r10d)?;
            a.mov(eax, 61)?;
            a.syscall()?;
            a.set_label(&mut child)?;
            exit(a, 0)
        },
        ..Program::default()
    });
    case.run(Some("out"));
    assert_eq!(case.counters("out")[..3], [1, 10_000, 0]);
}

#[test]
fn a_killed_program_has_recorded_all_that_it_counted() {
    let case = Case::new(&Program {
        body: &|a| {
            // Count, and write a byte after each thousand, for ever.
            let mut again = a.create_label();
            a.set_label(&mut again)?;
            count(a, 3, 1000)?;
            a.mov(eax, 1)?;
            a.mov(edi, 1)?;
            lea(a, rsi, SCRATCH)?;
            a.mov(edx, 1)?;
            a.syscall()?;
            a.jmp(again)
        },
        ..Program::default()
    });
    let mut child = spawn(case.command(Some("out")).stdout(Stdio::piped()));
    let mut said = [0; 20];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    let counted = case.counters("out")[3];
    assert!(counted >= 20_000, "{counted}");
}

#[test]
fn many_processes_at_once_share_a_file_without_losing_a_count() {
    for (kind, processes) in [(Kind::Fixed, 12), (Kind::Moved, 12)] {
        let case = Case::new(&Program { kind, ..counting() });
        for round in 0..8 {
            let name = format!("out{round}");
            let children: Vec<_> = (0..processes)
                .map(|_| spawn(case.command(Some(&name)).stderr(Stdio::piped())))
                .collect();
            for child in children {
                silent(child.wait_with_output().unwrap());
            }
            let counters = case.counters(&name);
            assert_eq!(
                (counters[3], counters[LAST as usize]),
                (processes * 1000, processes * 2)
            );
        }
    }
}

#[test]
fn what_was_counted_before_the_start_is_added() {
    for kind in [Kind::Fixed, Kind::Moved] {
        let case = Case::new(&Program {
            kind,
            entry: &|a| {
                count(a, 3, 7)?;
                count(a, 0x1000 / 8 - 1, 9)?;
                // The second site: two targets, external, overflow.
                for (word, value) in [(0, 0x1111), (1, 5), (2, 0x2222), (3, 6), (6, 7), (7, 8)] {
                    a.mov(eax, value)?;
                    at(
                        a,
                        Op::Mov_rm64_r64,
                        Register::RAX,
                        COUNTERS + 0x1040 + word * 8,
                    )?;
                }
                // The last site: only external calls.
                count(a, 0x2000 / 8 - 2, 3)?;
                go_to(a, ROUTINE)
            },
            body: &|a| {
                count(a, 3, 1)?;
                exit(a, 0)
            },
            ..Program::default()
        });
        case.run(Some("out"));
        case.run(Some("out"));
        let counters = case.counters("out");
        assert_eq!((counters[3], counters[0x1ff]), (16, 18));
        assert_eq!(
            counters[0x200..0x210],
            [0, 0, 0, 0, 0, 0, 0, 0, 0x1111, 10, 0x2222, 12, 0, 0, 14, 16]
        );
        assert_eq!(counters[0x3f8..], [0, 0, 0, 0, 0, 0, 6, 0]);
        // Other targets were there first.
        let mut file = fs::read(case.path("out")).unwrap();
        for (word, value) in [
            (0u64, 0x2222u64),
            (1, 100),
            (2, 0x3333),
            (3, 100),
            (4, 0x4444),
            (5, 100),
            (6, 100),
            (7, 100),
        ] {
            file[0x2040 + word as usize * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        fs::write(case.path("out"), &file).unwrap();
        case.run(Some("out"));
        assert_eq!(
            case.counters("out")[0x208..0x210],
            [0x2222, 106, 0x3333, 100, 0x4444, 100, 107, 113]
        );
    }
}

#[test]
fn moved_programs_record_the_same_targets() {
    // An indirect call in the body, by way of a recorder; and one of an address outside the image.
    const RECORDER: u64 = 0x5000;
    const SLOW: u64 = 0x5100;
    const TARGET: u64 = 0x5400;
    let link = |code: &Code<u64>, at: u64| common::machine::link(code, at);
    for kind in [Kind::Fixed, Kind::Moved] {
        let base = Program {
            kind,
            ..Program::default()
        }
        .base();
        let original = common::hex("ff d0");
        let insn = X86_64::decode(&original, 0).unwrap();
        let (mut recorder, mut slow) = (Code::default(), Code::default());
        assert!(X86_64::put_site(
            &mut recorder,
            CounterMode::Plain,
            false,
            &original,
            &insn,
            |what| match what {
                SiteRef::Table(word) => COUNTERS + 0x1000 + u64::from(word) * 8,
                SiteRef::Bias => SCRATCH,
                SiteRef::Slow => SLOW,
                SiteRef::Original(_) | SiteRef::OwnersTable(_) | SiteRef::Owner => unreachable!(),
            }
        ));
        X86_64::put_site_slow::<u64>(&mut slow, CounterMode::Plain, (base, base + 0xa000));
        let mut stack_code = Code::<u64>::default();
        stack_code.bytes.push(0xc3);
        let case = Case::new(&Program {
            kind,
            body: &|a| {
                let mut again = a.create_label();
                a.mov(ebx, 10)?;
                a.set_label(&mut again)?;
                lea(a, rax, TARGET)?;
                call(a, RECORDER)?;
                a.dec(ebx)?;
                a.jne(again)?;
                // A page outside the image, with a return in it.
                a.xor(edi, edi)?;
                a.mov(esi, 4096)?;
                a.mov(edx, 7)?;
                a.mov(r10d, 0x22)?;
                a.or(r8, -1)?;
                a.xor(r9d, r9d)?;
                a.mov(eax, 9)?;
                a.syscall()?;
                a.mov(byte_ptr(rax), 0xc3)?;
                call(a, RECORDER)?;
                exit(a, 0)
            },
            more: vec![
                (RECORDER, link(&recorder, RECORDER)),
                (SLOW, link(&slow, SLOW)),
                (TARGET, link(&stack_code, TARGET)),
            ],
            ..Program::default()
        });
        for run in 1..5 {
            case.run(Some("out"));
            assert_eq!(
                case.counters("out")[0x200..0x208],
                [base + TARGET, run * 10, 0, 0, 0, 0, run, 0]
            );
        }
    }
}

#[test]
fn a_shared_library_records_wherever_it_is_loaded() {
    let Some(host) = ["/bin/true", "/usr/bin/true"]
        .into_iter()
        .find(|path| Path::new(path).exists())
    else {
        return;
    };
    let case = Case::new(&Program {
        kind: Kind::Library,
        body: &|a| {
            // Registers of an initialiser are the callee's to keep or not; rbx is to keep.
            a.push(rbx)?;
            count(a, 5, 77)?;
            a.pop(rbx)?;
            a.ret()
        },
        ..Program::default()
    });
    for run in 1..4 {
        let mut command = Command::new(host);
        command.current_dir(case.directory.path());
        command
            .env_clear()
            .env("LD_PRELOAD", case.path("program"))
            .env("POSTLINK_PROFILE", case.path("out"));
        silent(output(&mut command));
        assert_eq!(case.counters("out")[5], run * 77);
    }
}

#[test]
fn the_start_is_quick_even_with_many_counters() {
    // A million counters: 8 MiB.
    let case = Case::new(&Program {
        counters_len: 0x80_0000,
        ..counting()
    });
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        case.run(Some("out"));
        best = best.min(start.elapsed());
    }
    println!("{best:?} for a whole run with 8 MiB of counters");
    assert!(best < Duration::from_millis(500), "{best:?}");
}

fn config() -> RuntimeConfig<'static> {
    RuntimeConfig {
        at: 0x40_1000,
        counters: 0x50_0000,
        counters_len: 0x2000,
        sites_offset: 0x1000,
        bias_slot: 0x60_0000,
        header: HEADER,
        header_check: CHECK,
        pattern: "postlink.%p",
        build_id: BUILD_ID,
        entry: RuntimeEntry::Library { next: None },
    }
}

#[test]
fn what_cannot_be_built_is_refused_with_its_reason() {
    let refused = |config: RuntimeConfig<'_>| X86_64::runtime(&config).unwrap_err().to_string();
    assert!(X86_64::runtime(&config()).is_ok());
    let long = "x".repeat(4096);
    for (pattern, why) in [
        ("a%", "ends in a single %"),
        ("a%q", "%q is none of"),
        ("", "has 0 bytes"),
        ("a\0b", "a zero byte"),
        (&long, "has 4096 bytes"),
    ] {
        assert!(
            refused(RuntimeConfig {
                pattern,
                ..config()
            })
            .contains(why)
        );
    }
    assert!(
        refused(RuntimeConfig {
            build_id: "../x",
            ..config()
        })
        .contains("no hexadecimal digit")
    );
    for (header, header_check) in [
        (&HEADER[..7], 7),
        (&[0; 20][..], 8),
        (&[1; 4097][..], 8),
        (HEADER, 7),
        (HEADER, 99),
    ] {
        let error = X86_64::runtime(&RuntimeConfig {
            header,
            header_check,
            ..config()
        })
        .unwrap_err();
        assert!(matches!(error, RuntimeError::Header { .. }), "{error}");
    }
    for (counters, counters_len, sites_offset) in [
        (0x50_0800, 0x2000, 0),
        (0x50_0000, 0x2001, 0),
        (0x50_0000, 0, 0),
        (0x50_0000, 0x2000, 0x2040),
        (0x50_0000, 0x2000, 0x20),
        (!0xfff, 0x1000, 0),
        (0, !0xfff, 0),
    ] {
        let error = X86_64::runtime(&RuntimeConfig {
            counters,
            counters_len,
            sites_offset,
            ..config()
        })
        .unwrap_err();
        assert!(matches!(error, RuntimeError::Counters { .. }), "{error}");
    }
    for next in [0x40_1000 + 0x8001_0000, 0xffff_ffff_0000_0000] {
        let error = X86_64::runtime(&RuntimeConfig {
            entry: RuntimeEntry::Program { next },
            ..config()
        })
        .unwrap_err();
        assert!(matches!(error, RuntimeError::Range(_)), "{error}");
    }
}

#[test]
fn no_configuration_panics() {
    arbtest::arbtest(|noise| {
        let (pattern, header): (String, Vec<u8>) = noise.arbitrary()?;
        let near = 0x40_0000u64;
        let mut word = || -> arbitrary::Result<u64> {
            Ok(match noise.int_in_range(0..=2)? {
                0 => noise.arbitrary()?,
                1 => near + (noise.arbitrary::<u64>()? & 0xff_f000),
                _ => 0u64.wrapping_sub(noise.arbitrary::<u64>()? & 0xf_f000),
            })
        };
        let (at, counters, counters_len, sites_offset, bias_slot, next) =
            (word()?, word()?, word()?, word()? & !63, word()?, word()?);
        let config = RuntimeConfig {
            at,
            counters,
            counters_len,
            sites_offset: sites_offset.min(counters_len),
            bias_slot,
            header: if header.len() < 8 { HEADER } else { &header },
            header_check: noise.int_in_range(7..=40)?,
            pattern: if pattern.is_empty() { "x%p" } else { &pattern },
            build_id: BUILD_ID,
            entry: *noise.choose(&[
                RuntimeEntry::Program { next },
                RuntimeEntry::Library { next: Some(next) },
                RuntimeEntry::Library { next: None },
            ])?,
        };
        if let Err(error) = X86_64::runtime(&config) {
            assert!(
                !error.to_string().contains("assemble"),
                "{error}: {config:x?}"
            );
        }
        Ok(())
    });
}

#[test]
fn the_same_configuration_gives_the_same_bytes_and_no_vector_register() {
    for entry in [
        RuntimeEntry::Program { next: 0x40_0000 },
        RuntimeEntry::Library { next: None },
    ] {
        let bytes = X86_64::runtime(&RuntimeConfig { entry, ..config() }).unwrap();
        assert_eq!(
            bytes,
            X86_64::runtime(&RuntimeConfig { entry, ..config() }).unwrap()
        );
        assert!(bytes.len() < 4096, "{}", bytes.len());
        let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, 0x40_1000, 0);
        for instruction in &mut decoder {
            if instruction.is_invalid() || instruction.ip() > 0x40_1000 + 0x600 {
                break;
            }
            for operand in 0..instruction.op_count() {
                let register = instruction.op_register(operand);
                assert!(
                    !register.is_vector_register() && !register.is_st(),
                    "{instruction:?}"
                );
            }
        }
    }
}
