//! What `postlink show` draws in a terminal: bars, the graph of one function, colours where they are wanted.

mod support;

use support::folder::Folder;

const SOURCE: &str = r#"
#include <stdlib.h>
__attribute__((noipa)) int step(int x) { return x * 3 + 1; }
__attribute__((noipa)) int work(int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        if (i == 123456789)
            abort();
        sum += step(i);
    }
    return sum;
}
int main(void) { return work(9000) == 17; }
"#;

fn counted() -> Folder {
    let folder = Folder::new();
    folder.compile("app", SOURCE, &["-Wl,-q"]);
    folder.postlink(&["instrument", "app", "-o", "inst", "--profile", "run.plraw"]);
    folder.run(folder.path("inst"), &[]);
    folder
}

#[test]
fn bars_are_as_long_as_the_shares_are_large() {
    let folder = counted();
    let text = folder.postlink(&["show", "run.plraw", "--binary", "app"]);
    let rows: Vec<(f64, usize)> = text
        .lines()
        .filter(|line| line.contains(" % █"))
        .map(|line| {
            let share = line.split(" %").next().expect("a share").trim();
            (share.parse().expect("a number"), line.matches('█').count())
        })
        .collect();
    assert!(rows.len() >= 2, "{text}");
    // The first bar is the longest, and the others are in proportion, to a whole block.
    let (most, longest) = rows[0];
    for (share, bar) in &rows {
        let wanted = share / most * longest as f64;
        assert!(
            (*bar as f64 - wanted).abs() <= 1.0,
            "{share} %: {bar} in {text}"
        );
    }
    assert!(!text.contains('\x1b'), "a pipe has no colours: {text:?}");
}

#[test]
fn a_graph_in_box_characters_has_exact_counts_and_shares_that_do_not_round_to_nothing() {
    let folder = counted();
    let text = folder.postlink(&["show", "run.plraw", "--binary", "app", "--graph", "work"]);
    assert!(text.starts_with("work at 0x"), "{text}");
    assert!(text.contains(", entered 1 time;"), "{text}");
    // The loop ran 9,000 times and went on 8,999 of them; the call of abort never ran.
    assert!(text.contains("×9,000 "), "{text}");
    assert!(
        text.contains("> 99.9 %") && text.contains("< 0.1 %"),
        "{text}"
    );
    let boxes = text.lines().filter(|line| line.starts_with('╭')).count();
    assert!((3..=5).contains(&boxes), "{text}");
    assert_eq!(
        boxes,
        text.lines().filter(|line| line.starts_with('╰')).count()
    );
    // All lines of boxes have their borders below one another, and an arrow leads back up.
    let border = |line: &str| line.chars().position(|c| "╮╯│┤┬┴".contains(c));
    let inner = text.lines().filter(|line| line.starts_with('│'));
    let mut right: Vec<_> = inner
        .map(|line| border(&line.chars().skip(1).collect::<String>()))
        .collect();
    right.dedup();
    assert_eq!(right.len(), 1, "{text}");
    assert!(text.contains('◀'), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    let coloured = folder
        .command(
            std::path::Path::new(env!("CARGO_BIN_EXE_postlink")),
            &[
                "--color",
                "always",
                "show",
                "run.plraw",
                "--binary",
                "app",
                "--graph",
                "work",
            ],
        )
        .env_remove("NO_COLOR")
        .output()
        .expect("it starts");
    let coloured = String::from_utf8_lossy(&coloured.stdout).into_owned();
    // Red for what is executed most, blue for what is executed now and then.
    assert!(
        coloured.contains("\x1b[31m") && coloured.contains("\x1b[34m"),
        "{coloured:?}"
    );
    // Without its colours it is the same.
    let mut plain = String::new();
    let mut inside = false;
    for c in coloured.chars() {
        match c {
            '\x1b' => inside = true,
            'm' if inside => inside = false,
            c if !inside => plain.push(c),
            _ => {}
        }
    }
    assert_eq!(plain, text);
}
