//! Surroundings in which something is missing or forbidden: files, memory, system calls, rights.

use super::*;

/// Closes the three standard files in the child.
fn close_standard_files(command: &mut Command) {
    // SAFETY: closes file descriptors between fork and exec, where nothing else runs.
    unsafe {
        command.pre_exec(|| {
            (0..3).for_each(|file| {
                libc::close(file);
            });
            Ok(())
        });
    }
}

#[test]
fn a_program_without_standard_files_is_recorded_or_runs_all_the_same() {
    let case = Case::new(&Program {
        body: &ends_with_counter,
        ..counting()
    });
    for (profile, recorded) in [("out", true), ("no/such", false)] {
        let mut command = case.command(Some(profile));
        close_standard_files(&mut command);
        assert_eq!(spawn(&mut command).wait().unwrap().code(), Some(42));
        assert_eq!(case.path(profile).exists(), recorded);
    }
    assert_eq!(case.counters("out")[3], 42);
}

#[test]
fn a_limit_on_file_size_is_an_error_line_and_no_signal() {
    let case = Case::new(&Program {
        body: &ends_with_counter,
        ..counting()
    });
    let limited = |limit: u64| {
        let mut command = case.command(Some("out"));
        // SAFETY: sets a limit of the child between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let limit = libc::rlimit {
                    rlim_cur: limit,
                    rlim_max: limit,
                };
                if libc::setrlimit(libc::RLIMIT_FSIZE, &limit) == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            });
        }
        command
    };
    fails(
        &case,
        limited(0x2fff),
        "cannot extend profile out: errno 27 (File too large)",
    );
    assert_eq!(output(&mut limited(0x3000)).stderr, b"");
    assert_eq!(case.counters("out")[3], 42);
}

#[test]
fn limited_memory_is_an_error_line() {
    let case = Case::new(&Program {
        body: &ends_with_counter,
        counters_len: 0x100_0000,
        ..counting()
    });
    let mut command = case.command(Some("out"));
    // SAFETY: sets a limit of the child between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit {
                rlim_cur: 0x180_0000,
                rlim_max: 0x180_0000,
            };
            libc::setrlimit(libc::RLIMIT_AS, &limit);
            Ok(())
        });
    }
    fails(
        &case,
        command,
        "cannot map profile out: errno 12 (Cannot allocate memory)",
    );
}

/// Lets system call `number` fail with `errno` in the child.
fn forbid(command: &mut Command, number: u32, errno: u32) {
    let filter = move |code: u16, jump_if: u8, jump_else: u8, value: u32| libc::sock_filter {
        code,
        jt: jump_if,
        jf: jump_else,
        k: value,
    };
    // SAFETY: installs a filter in the child between fork and exec; the kernel copies it.
    unsafe {
        command.pre_exec(move || {
            let mut filter = [
                filter(0x20, 0, 0, 0),                // load the number
                filter(0x15, 0, 1, number),           // equal?
                filter(0x06, 0, 0, 0x5_0000 | errno), // fail
                filter(0x06, 0, 0, 0x7fff_0000),      // allow
            ];
            let program = libc::sock_fprog {
                len: filter.len() as u16,
                filter: filter.as_mut_ptr(),
            };
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, 2, &program as *const libc::sock_fprog) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

#[test]
fn any_system_call_may_fail() {
    let texts: [(u32, u32, Option<&str>); 9] = [
        (
            libc::SYS_open as u32,
            libc::EPERM as u32,
            Some("cannot open profile out: errno 1 (Operation not permitted)"),
        ),
        (
            libc::SYS_fstat as u32,
            38,
            Some("cannot get the size of profile out: errno 38 (unknown error)"),
        ),
        (
            libc::SYS_mmap as u32,
            19,
            Some("cannot map profile out: errno 19 (No such device)"),
        ),
        (
            libc::SYS_fallocate as u32,
            28,
            Some("cannot extend profile out: errno 28 (No space left on device)"),
        ),
        (libc::SYS_fallocate as u32, 95, None),
        (libc::SYS_fallocate as u32, 1, None),
        (libc::SYS_getrlimit as u32, 1, None),
        (libc::SYS_munmap as u32, 1, None),
        (libc::SYS_uname as u32, 1, None),
    ];
    for (number, errno, line) in texts {
        let case = Case::new(&Program {
            body: &ends_with_counter,
            ..counting()
        });
        let mut command = case.command(Some(if number == libc::SYS_uname as u32 {
            "%hout"
        } else {
            "out"
        }));
        forbid(&mut command, number, errno);
        match line {
            Some(line) => fails(&case, command, line),
            None => {
                let output = output(&mut command);
                assert_eq!(
                    (output.status.code(), output.stderr),
                    (Some(42), Vec::new()),
                    "{number} {errno}"
                );
                assert_eq!(case.counters("out")[3], 42);
            }
        }
    }
}

#[test]
fn a_library_without_proc_uses_the_pattern() {
    let case = Case::new(&Program {
        pattern: "built-in",
        ..counting_called()
    });
    let mut command = case.command(Some("out"));
    forbid(&mut command, libc::SYS_read as u32, libc::EACCES as u32);
    silent(output(&mut command));
    assert_eq!(case.others(), ["built-in"]);
    // Its first two openings are of /proc; where they fail, so does the third, and says which name it had.
    for (errno, line) in [
        (
            libc::ENOENT,
            "cannot open profile built-in: errno 2 (No such file or directory)",
        ),
        (
            libc::EACCES,
            "no profile is written by a program that may not read its /proc/self",
        ),
    ] {
        let case = Case::new(&Program {
            pattern: "built-in",
            body: &ends_with_counter,
            ..counting_called()
        });
        let mut command = case.command(Some("out"));
        forbid(&mut command, libc::SYS_open as u32, errno as u32);
        fails(&case, command, line);
    }
}

const MORE_RIGHTS: &str = "no profile is written by a program with more rights than its caller";

#[test]
fn a_program_that_the_kernel_calls_secure_writes_no_profile() {
    // A stack as the kernel makes it: no arguments, the variable, and an auxiliary vector of two entries.
    for (secure, name) in [
        (0u64, b"POSTLINK_PROFILE=out\0"),
        (1, b"POSTLINK_PROFILE=abc\0"),
    ] {
        const STACK: u64 = SCRATCH + 0x800;
        let case = Case::new(&Program {
            entry: &|a| {
                for (word, value) in [
                    (0, 0),
                    (1, 0),
                    (3, 0),
                    (4, 6),
                    (5, 4096),
                    (6, 23),
                    (7, secure),
                    (8, 0),
                    (9, 0),
                ] {
                    a.mov(rax, value)?;
                    at(a, Op::Mov_rm64_r64, Register::RAX, STACK + word * 8)?;
                }
                lea(a, rax, BODY + 0x800)?;
                at(a, Op::Mov_rm64_r64, Register::RAX, STACK + 16)?;
                // What is below stays the kernel's stack.
                a.mov(rcx, rsp)?;
                a.sub(rsp, 0x100)?;
                lea(a, rsi, STACK)?;
                a.mov(rdi, rsp)?;
                a.mov(ecx, 80)?;
                a.rep().movsb()?;
                go_to(a, ROUTINE)
            },
            body: &ends_with_counter,
            more: vec![(BODY + 0x800, name.to_vec())],
            ..Program::default()
        });
        if secure == 1 {
            fails(&case, case.command(None), MORE_RIGHTS);
            assert_eq!(case.others(), Vec::<String>::new());
        } else {
            assert_eq!(output(&mut case.command(None)).stderr, b"");
            assert_eq!(case.counters("out")[3], 42);
        }
    }
}

#[test]
fn a_program_of_another_user_writes_no_profile() {
    // SAFETY: asks, and changes nothing.
    let root = unsafe { libc::geteuid() } == 0;
    if !root
        || !fs::read_to_string("/proc/self/status")
            .unwrap()
            .contains("NoNewPrivs:\t0")
    {
        return; // Only root can make such a program, and only where it means anything.
    }
    for program in [counting(), counting_called()] {
        let program = Program {
            body: &ends_with_counter,
            ..program
        };
        let case = Case::new(&program);
        let path = std::ffi::CString::new(case.path("program").to_str().unwrap()).unwrap();
        // SAFETY: the path ends in a zero byte, and the result has space.
        let (owned, nosuid) = unsafe {
            let mut system: libc::statvfs = std::mem::zeroed();
            let known = libc::statvfs(path.as_ptr(), &mut system) == 0;
            (
                libc::chown(path.as_ptr(), 65534, 65534) == 0,
                !known || system.f_flag & libc::ST_NOSUID != 0,
            )
        };
        if !owned || nosuid {
            return;
        }
        fs::set_permissions(case.path("program"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::set_permissions(case.directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let line = if program.called {
            "no profile is written by a program that may not read its /proc/self"
        } else {
            MORE_RIGHTS
        };
        fails(&case, case.command(Some("out")), line);
        assert_eq!(case.others(), Vec::<String>::new());
    }
}
