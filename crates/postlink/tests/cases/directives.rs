//! The `//#` lines on top of a case: what it is about, how it is built, what it must do.
//!
//! | line | meaning |
//! |---|---|
//! | `about: TEXT` | what the case is for (required) |
//! | `kinds: NAME…` | the link kinds it is built for; default: all of its language |
//! | `also: NAME…` | kinds of AArch64 that it is built for beside the two of its turn |
//! | `all states: NAME…` | kinds that it is built for, and goes through all states in |
//! | `not KIND: REASON` | left out of this kind, and listed as skipped with the reason; `KIND` may be `gcc`, `clang`, `aarch64` or a link |
//! | `flags: …` | for the compiler |
//! | `link: …` | for the linker's command line, after the objects |
//! | `build NAME: FLAGS` | one more build with these flags added, in the position-independent kinds; of AArch64 only for cases that name its kinds |
//! | `with: FILE…` | more sources of the same program |
//! | `lib: FILE` | a source built into a shared library of its own, which stays as it is |
//! | `driver: link\|dlopen` | how the `so` kinds reach the case; default `link` |
//! | `args: …` | arguments of the program |
//! | `exit: N`, `signal: N` | how it must end; default `exit: 0` |
//! | `stdout: LINE` | a line that it must print, in this order and nothing else; without any such line the output is only compared |
//! | `instrument: …`, `optimize: …` | options added to those commands |
//! | `moved: NAME…` | functions that must have moved, and be proved |
//! | `pinned: NAME…` | functions that must have stayed |
//! | `refused: NAME…` | functions that the rewriter may move and the checker refuse, in some state: no others may be |
//! | `count NAME: N` | how often the profile must say that the function was entered |
//! | `profile: empty` | the workload ends before it has counted anything: no profile is asked for |
//! | `needs: TOOL…` | programs that must be on the machine |
//! | `needs relocations: REASON` | without kept relocations an assumption does not hold of the program, which sees the difference |
//! | `debug: updated` | the debug information of each optimised program describes code where it is now, and is proved, without a loss |
//! | `led: NAME…`, `long: NAME…` | without kept relocations: functions that must have moved, with their old entries as they were, or with jumps there |
//! | `stay: NAME…` | without kept relocations: functions that must have stayed |
//! | `own tables: NAME…` | without kept relocations: functions that must have moved, with jump tables of new code's own and no jump that continues in old code |
//! | `in old code: NAME…` | without kept relocations: functions that must have moved, and have jumps that continue in old code |
//! | `falls back: REASON` | code of old bodies runs, so they are not overwritten under stress |

use std::fs;
use std::path::{Path, PathBuf};

/// How the program must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Signal(i32),
}

/// How a `so` kind reaches the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    Link,
    Dlopen,
}

/// An additional set of flags.
#[derive(Clone, Debug)]
pub struct Build {
    pub name: String,
    pub flags: Vec<String>,
}

/// A case, as its directives describe it.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub source: PathBuf,
    pub kinds: Option<Vec<String>>,
    pub also: Vec<String>,
    pub all_states: Vec<String>,
    /// (kind, compiler or link; reason)
    pub not: Vec<(String, String)>,
    pub flags: Vec<String>,
    pub link: Vec<String>,
    pub builds: Vec<Build>,
    pub with: Vec<PathBuf>,
    pub lib: Option<PathBuf>,
    pub driver: Driver,
    pub args: Vec<String>,
    pub end: End,
    pub stdout: Vec<String>,
    pub instrument: Vec<String>,
    pub optimize: Vec<String>,
    pub moved: Vec<String>,
    pub pinned: Vec<String>,
    pub refused: Vec<String>,
    pub counts: Vec<(String, u64)>,
    pub profile_expected: bool,
    pub needs: Vec<String>,
    /// Debug information must be updated.
    pub debug: bool,
    /// An assumption that is made without kept relocations does not hold of it.
    pub needs_relocations: bool,
    /// Without kept relocations: functions without, and with, a jump at the old entry.
    pub led: Vec<String>,
    pub long: Vec<String>,
    /// Without kept relocations: functions that are left in place.
    pub stay: Vec<String>,
    /// Without kept relocations: functions all of whose table jumps have tables of their own.
    pub own_tables: Vec<String>,
    /// Without kept relocations: functions that continue in old code.
    pub goes_on_in_old_code: Vec<String>,
    /// Why old bodies continue running.
    pub falls_back: Option<String>,
}

impl Case {
    /// A number that is another one for most other cases, and the same whatever other cases there are.
    pub fn number(&self) -> usize {
        self.name.bytes().fold(0, |hash: usize, b| {
            hash.wrapping_mul(31).wrapping_add(usize::from(b))
        })
    }

    /// Reads a source file's directives; an unknown one is an error, so that none is ignored by a typing mistake.
    pub fn read(source: &Path) -> Result<Case, String> {
        let text = fs::read_to_string(source).map_err(|e| format!("{}: {e}", source.display()))?;
        let dir = source.parent().unwrap_or(Path::new("."));
        let mut case = Case {
            name: source
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            source: source.to_owned(),
            kinds: None,
            also: vec![],
            all_states: vec![],
            not: vec![],
            flags: vec![],
            link: vec![],
            builds: vec![],
            with: vec![],
            lib: None,
            driver: Driver::Link,
            args: vec![],
            end: End::Exit(0),
            stdout: vec![],
            instrument: vec![],
            optimize: vec![],
            moved: vec![],
            pinned: vec![],
            refused: vec![],
            counts: vec![],
            profile_expected: true,
            needs: vec![],
            debug: false,
            falls_back: None,
            needs_relocations: false,
            led: vec![],
            long: vec![],
            stay: vec![],
            own_tables: vec![],
            goes_on_in_old_code: vec![],
        };
        let mut about = false;
        for (number, line) in text.lines().enumerate() {
            let Some(directive) = line.strip_prefix("//#") else {
                break;
            };
            let wrong =
                |what: &str| format!("{}:{}: {what}: '{line}'", source.display(), number + 1);
            let (key, value) = directive
                .split_once(':')
                .ok_or_else(|| wrong("a directive needs a ':'"))?;
            let (key, value) = (key.trim(), value.trim());
            let words = || {
                value
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            let number = || value.parse::<i32>().map_err(|e| wrong(&e.to_string()));
            match key.split_once(' ').unwrap_or((key, "")) {
                ("about", "") => about = !value.is_empty(),
                ("kinds", "") => case.kinds = Some(words()),
                ("also", "") => case.also = words(),
                ("all", "states") => case.all_states = words(),
                ("not", kind) if !kind.is_empty() => {
                    case.not.push((kind.to_owned(), value.to_owned()))
                }
                ("flags", "") => case.flags = words(),
                ("link", "") => case.link = words(),
                ("build", name) if !name.is_empty() => case.builds.push(Build {
                    name: name.to_owned(),
                    flags: words(),
                }),
                ("with", "") => case.with = words().iter().map(|w| dir.join(w)).collect(),
                ("lib", "") => case.lib = Some(dir.join(value)),
                ("driver", "") => {
                    case.driver = match value {
                        "link" => Driver::Link,
                        "dlopen" => Driver::Dlopen,
                        _ => return Err(wrong("the driver is 'link' or 'dlopen'")),
                    }
                }
                ("args", "") => case.args = words(),
                ("exit", "") => case.end = End::Exit(number()?),
                ("signal", "") => case.end = End::Signal(number()?),
                ("stdout", "") => case.stdout.push(value.to_owned()),
                ("instrument", "") => case.instrument = words(),
                ("optimize", "") => case.optimize = words(),
                ("moved", "") => case.moved.extend(words()),
                ("pinned", "") => case.pinned.extend(words()),
                ("refused", "") => case.refused.extend(words()),
                ("count", name) if !name.is_empty() => {
                    let count = value.parse::<u64>().map_err(|e| wrong(&e.to_string()))?;
                    case.counts.push((name.to_owned(), count));
                }
                ("profile", "") if value == "empty" => case.profile_expected = false,
                ("needs", "") => case.needs = words(),
                ("debug", "") if value == "updated" => case.debug = true,
                ("needs", "relocations") if !value.is_empty() => case.needs_relocations = true,
                ("led", "") => case.led.extend(words()),
                ("long", "") => case.long.extend(words()),
                ("stay", "") => case.stay.extend(words()),
                ("own", "tables") => case.own_tables.extend(words()),
                ("in", "old code") => case.goes_on_in_old_code.extend(words()),
                ("falls", "back") if !value.is_empty() => case.falls_back = Some(value.to_owned()),
                _ => return Err(wrong("unknown directive")),
            }
        }
        if !about {
            return Err(format!(
                "{}: the first lines need '//# about: …'",
                source.display()
            ));
        }
        Ok(case)
    }
}
