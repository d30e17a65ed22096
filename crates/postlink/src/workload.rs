//! Commands that run a program: `{}` in them stands for its path.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Whether there is a place for the program in a command.
pub fn names_the_program(words: &[OsString]) -> bool {
    let has_place = |word: &OsString| word.as_bytes().windows(2).any(|w| w == b"{}");
    words.iter().any(has_place)
}

/// Replaces every `{}` in a command by a path.
pub fn fill(words: &[OsString], program: &Path) -> Vec<OsString> {
    let replace = |word: &OsString| {
        OsString::from_vec(replaced(word.as_bytes(), program.as_os_str().as_bytes()))
    };
    words.iter().map(replace).collect()
}

/// The command that runs a workload with a program.
pub fn command(words: &[OsString], program: &Path) -> Result<Command> {
    let words = fill(words, program);
    let (first, rest) = words.split_first().context("no workload")?;
    let mut command = Command::new(first);
    command.args(rest);
    Ok(command)
}

/// Replaces every `{}` in a line for the shell by a path, which stays one word.
pub fn fill_line(line: &str, program: &Path) -> OsString {
    let word = quoted(program.as_os_str().as_bytes());
    OsString::from_vec(replaced(line.as_bytes(), &word))
}

fn replaced(mut from: &[u8], by: &[u8]) -> Vec<u8> {
    let mut to = Vec::new();
    while let Some(at) = from.windows(2).position(|w| w == b"{}") {
        to.extend_from_slice(&from[..at]);
        to.extend_from_slice(by);
        from = &from[at + 2..];
    }
    to.extend_from_slice(from);
    to
}

/// A word for the shell, whatever is in it.
fn quoted(word: &[u8]) -> Vec<u8> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%".contains(byte);
    if !word.is_empty() && word.iter().all(is_plain) {
        return word.to_vec();
    }
    let mut out = vec![b'\''];
    for &byte in word {
        if byte == b'\'' {
            out.extend(b"'\\''");
        } else {
            out.push(byte);
        }
    }
    out.push(b'\'');
    out
}

/// What is put in the place of {}: the program, or a script in a folder that has a runner run it. A workload may
/// use it in any way in which it may use a program, so the runner's words cannot simply be put there.
pub fn runnable(
    program: &Path,
    runner: Option<&str>,
    scripts: &Path,
    name: &str,
) -> Result<PathBuf> {
    let Some(runner) = runner else {
        return Ok(program.to_owned());
    };
    let script = scripts.join(name);
    let mut text = format!("#!/bin/sh\nexec {runner} ").into_bytes();
    text.extend(quoted(program.as_os_str().as_bytes()));
    text.extend(b" \"$@\"\n");
    std::fs::write(&script, text)
        .and_then(|()| std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)))
        .with_context(|| script.display().to_string())?;
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_word_with_quotes_stays_one_word_for_the_shell() {
        for word in ["a 'b' $c", "", "plain", "back\\slash", "new\nline"] {
            let output = Command::new("sh")
                .args([
                    "-c",
                    &format!(
                        "printf %s {}",
                        String::from_utf8(quoted(word.as_bytes())).unwrap()
                    ),
                ])
                .output()
                .unwrap();
            assert_eq!(output.stdout, word.as_bytes());
        }
    }

    #[test]
    fn every_pair_of_braces_becomes_the_program() {
        let workload = ["sh", "-c", "{} a; {} b", "{}", "{", "}"].map(OsString::from);
        let filled = fill(&workload, Path::new("/tmp/p"));
        assert_eq!(
            filled,
            ["sh", "-c", "/tmp/p a; /tmp/p b", "/tmp/p", "{", "}"].map(OsString::from)
        );
        assert!(names_the_program(&workload) && !names_the_program(&filled));
        let line = fill_line("{} < in; {}", Path::new("/a b/c"));
        assert_eq!(line, "'/a b/c' < in; '/a b/c'");
    }
}
