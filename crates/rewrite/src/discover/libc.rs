//! Names of library functions of which it is known how they come back, and the questions that names alone answer.
//!
//! What follows for calls of a program is said in [`nonlocal_exits`](super::nonlocal_exits).

use postlink_elf::elf::{Elf, SymbolTable};
use postlink_elf::unwind::eh_frame::EhFrame;
use rustc_hash::FxHashSet;

/// What may be the last that a process does, or the last of its program: signals that it sends itself, and other
/// programs that take its place.
pub const MAY_END: &[&[u8]] = &[
    b"kill",
    b"killpg",
    b"raise",
    b"tgkill",
    b"pthread_kill",
    b"execve",
    b"execv",
    b"execvp",
    b"execvpe",
    b"execl",
    b"execlp",
    b"execle",
    b"execveat",
    b"fexecve",
];

/// What never returns.
pub const NO_RETURN: &[&[u8]] = &[
    b"abort",
    b"exit",
    b"_exit",
    b"_Exit",
    b"quick_exit",
    b"pthread_exit",
    b"__assert_fail",
    b"__assert_perror_fail",
    b"__stack_chk_fail",
    b"__chk_fail",
    b"__fortify_fail",
    b"__cxa_throw",
    b"__cxa_rethrow",
    b"__cxa_bad_cast",
    b"__cxa_bad_typeid",
    b"__cxa_throw_bad_array_new_length",
    b"__cxa_call_unexpected",
    b"__cxa_pure_virtual",
    b"__cxa_call_terminate",
    b"__clang_call_terminate",
    b"_Unwind_Resume",
    b"longjmp",
    b"_longjmp",
    b"siglongjmp",
    b"__longjmp_chk",
    b"_ZSt9terminatev",
    b"rust_panic",
    b"rust_begin_unwind",
];

/// What leaves frames without returning from them.
pub const UNWINDERS: &[&[u8]] = &[
    b"longjmp",
    b"_longjmp",
    b"siglongjmp",
    b"__longjmp_chk",
    b"_Unwind_RaiseException",
    b"_Unwind_Resume",
    b"_Unwind_ForcedUnwind",
    b"__cxa_throw",
    b"__cxa_rethrow",
    b"pthread_exit",
    b"swapcontext",
    b"setcontext",
];

/// What may return more than once.
pub const TWICE: &[&[u8]] = &[
    b"setjmp",
    b"_setjmp",
    b"sigsetjmp",
    b"__sigsetjmp",
    b"getcontext",
    b"fork",
    b"_Fork",
    b"vfork",
    b"__vfork",
    b"__fork",
    b"__libc_fork",
    b"forkpty",
];

/// What returns in a new process with memory of its own, or may. `vfork` does not count: its child shares the
/// parent's memory.
pub const FORKS: &[&[u8]] = &[
    b"fork",
    b"_Fork",
    b"__fork",
    b"__libc_fork",
    b"forkpty",
    b"daemon",
];

/// Makes any system call.
pub const SYSCALL: &[u8] = b"syscall";

/// Library functions that neither call back nor unwind.
pub const SAFE: &[&[u8]] = &[
    b"memcpy",
    b"memmove",
    b"mempcpy",
    b"memset",
    b"wmemset",
    b"memcmp",
    b"bcmp",
    b"memchr",
    b"memrchr",
    b"rawmemchr",
    b"strlen",
    b"strnlen",
    b"wcslen",
    b"strcmp",
    b"strncmp",
    b"strcasecmp",
    b"strncasecmp",
    b"strchr",
    b"strrchr",
    b"strchrnul",
    b"strstr",
    b"strcasestr",
    b"strcpy",
    b"strncpy",
    b"stpcpy",
    b"stpncpy",
    b"strcat",
    b"strncat",
    b"strspn",
    b"strcspn",
    b"strpbrk",
    b"strcoll",
    b"strdup",
    b"strtol",
    b"strtoul",
    b"strtoll",
    b"strtoull",
    b"strtod",
    b"strtof",
    b"strtold",
    b"strerror",
    b"strftime",
    b"__memcpy_chk",
    b"__memmove_chk",
    b"__memset_chk",
    b"__strcpy_chk",
    b"__strcat_chk",
    b"__strncpy_chk",
    b"malloc",
    b"calloc",
    b"realloc",
    b"free",
    b"posix_memalign",
    b"aligned_alloc",
    b"malloc_usable_size",
    b"memalign",
    b"_ZdlPv",
    b"_ZdlPvm",
    b"_ZdaPv",
    b"_ZdaPvm",
    b"__errno_location",
    b"__ctype_b_loc",
    b"__ctype_tolower_loc",
    b"__ctype_toupper_loc",
    b"__tls_get_addr",
    b"toupper",
    b"tolower",
    b"isalnum",
    b"isspace",
    b"snprintf",
    b"vsnprintf",
    b"sprintf",
    b"printf",
    b"fprintf",
    b"vfprintf",
    b"fputs",
    b"fputc",
    b"putc",
    b"puts",
    b"putchar",
    b"fwrite",
    b"fread",
    b"fgets",
    b"fgetc",
    b"getc",
    b"ungetc",
    b"fflush",
    b"fopen",
    b"fopen64",
    b"fclose",
    b"fseek",
    b"ftell",
    b"ferror",
    b"feof",
    b"__snprintf_chk",
    b"__sprintf_chk",
    b"__printf_chk",
    b"__fprintf_chk",
    b"__vsnprintf_chk",
    b"__vfprintf_chk",
    b"time",
    b"gettimeofday",
    b"clock_gettime",
    b"clock",
    b"localtime_r",
    b"gmtime_r",
    b"localtime",
    b"gmtime",
    b"mktime",
    b"getenv",
    b"getpid",
    b"gettid",
    b"pow",
    b"exp",
    b"log",
    b"log10",
    b"log2",
    b"sin",
    b"cos",
    b"tan",
    b"asin",
    b"acos",
    b"atan",
    b"atan2",
    b"sinh",
    b"cosh",
    b"tanh",
    b"floor",
    b"ceil",
    b"fmod",
    b"sqrt",
    b"trunc",
    b"round",
    b"ldexp",
    b"frexp",
    b"modf",
    b"fabs",
    b"cbrt",
    b"exp2",
    b"hypot",
    b"floorf",
    b"ceilf",
    b"fmodf",
    b"powf",
    b"__cxa_begin_catch",
    b"__cxa_allocate_exception",
    b"__cxa_free_exception",
    b"__cxa_guard_acquire",
    b"__cxa_guard_release",
    b"__cxa_get_globals",
    b"__dynamic_cast",
    b"__gxx_personality_v0",
    b"pthread_mutex_lock",
    b"pthread_mutex_unlock",
    b"pthread_mutex_trylock",
    b"pthread_self",
    b"pthread_getspecific",
    b"pthread_setspecific",
    b"pthread_rwlock_rdlock",
    b"pthread_rwlock_wrlock",
    b"pthread_rwlock_unlock",
    b"open",
    b"open64",
    b"close",
    b"fstat",
    b"fstat64",
    b"stat",
    b"stat64",
    b"lstat",
    b"lstat64",
    b"lseek",
    b"lseek64",
    b"mmap",
    b"mmap64",
    b"munmap",
    b"madvise",
    b"mprotect",
    b"ftruncate",
    b"access",
    b"unlink",
    b"fcntl",
    b"fcntl64",
    b"epoll_ctl",
    b"isatty",
    b"sysconf",
];

/// Whether any of the program's symbols is a means of leaving frames without returning. A file without
/// `.symtab` may have one without a name: if it is static, or if exceptions are handled in it.
pub fn can_unwind(elf: &Elf<'_>, eh: &EhFrame<'_>) -> bool {
    let handles = || eh.fdes.iter().any(|f| f.lsda.is_some_and(|l| l != 0));
    if elf.symbols(SymbolTable::Static).is_empty() && (is_static(elf) || handles()) {
        return true;
    }
    let set: FxHashSet<&[u8]> = UNWINDERS.iter().copied().collect();
    [SymbolTable::Dynamic, SymbolTable::Static].iter().any(|t| {
        let table = elf.symbols(*t);
        postlink_parallel::any(table.len(), |i| {
            table
                .get(i)
                .is_some_and(|s| set.contains(base_name(s.name)))
        })
    })
}

/// Whether a file is linked with no other.
pub fn is_static(elf: &Elf<'_>) -> bool {
    use postlink_elf::raw::DT_NEEDED;
    elf.interpreter().is_none() && elf.dynamic_value(DT_NEEDED).is_none()
}

/// Whether calls to an imported function neither unwind nor call back.
pub fn is_safe(name: &[u8]) -> bool {
    SAFE.contains(&base_name(name))
}

/// Whether an imported function returns in a new process.
pub fn forks(name: &[u8]) -> bool {
    FORKS.contains(&base_name(name))
}

/// Whether a function of that name, of a library, is declared not to return.
pub fn never_returns(name: &[u8]) -> bool {
    let name = base_name(name);
    NO_RETURN.contains(&name) || throws(name)
}

/// Whether it is one of the C++ library's functions that do nothing but throw (`std::__throw_out_of_range`).
pub fn throws(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b"_ZSt") else {
        return false;
    };
    let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
    digits > 0 && rest[digits..].starts_with(b"__throw_")
}

/// A symbol's name without its version.
pub fn base_name(name: &[u8]) -> &[u8] {
    name.split(|c| *c == b'@').next().unwrap_or(name)
}
