//! Comments are at most 120 columns wide: `rustfmt` does not look at them on a stable toolchain.
//!
//! Excepted are lines that cannot be broken: rows of tables, drawings, code in documentation, links, and the
//! directives of test programs.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

const WIDEST: usize = 120;

/// The job. `Ok(false)` when a comment is too wide; each is printed with its place.
pub fn check(root: &Path) -> Result<bool> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "*.rs"])
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    ensure!(output.status.success(), "git ls-files: {}", output.status);
    let mut good = true;
    for name in output.stdout.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let name = String::from_utf8_lossy(name);
        // A file that was deleted, and not yet in a commit.
        let Ok(text) = fs::read_to_string(root.join(&*name)) else {
            continue;
        };
        for (line, width) in too_wide(&text) {
            println!("{name}:{line}: a comment of {width} columns; {WIDEST} are possible");
            good = false;
        }
    }
    Ok(good)
}

/// Lines, counted from 1, of comments that are too wide, and how wide they are.
fn too_wide(text: &str) -> Vec<(usize, usize)> {
    let mut found = vec![];
    let mut in_code = false;
    for (line, number) in text.lines().zip(1..) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_code = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']);
        if comment.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let width = line.chars().count();
        if width > WIDEST && !in_code && !is_exempt(comment) {
            found.push((number, width));
        }
    }
    found
}

/// Whether the text of a comment cannot be broken.
fn is_exempt(comment: &str) -> bool {
    comment.starts_with('#')
        || comment.starts_with("     ")
        || comment.trim_start().starts_with('|')
        || comment.contains("://")
        || comment.contains(['─', '►', '◄'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_comments_are_found_and_tables_drawings_code_and_links_are_not() {
        let wide = "word ".repeat(30);
        let text = format!(
            "//! short\n/// {wide}\nlet x = \"{wide}\";\n// | {wide} | {wide} |\n/// ```\n/// {wide}\n/// ```\n    // {wide}\n\
             // see https://example.org/{wide}\n//! a ──► {wide}\n//# about: {wide}\n"
        );
        let lines: Vec<usize> = too_wide(&text).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [2, 8]);
        assert_eq!(too_wide(&"/".repeat(120)), []);
    }
}
