//! The report on paper: light whatever the screen's theme, without controls; long tables are cut, and it is said.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use super::VIEWS;
use super::browser::Browser;
use super::support::folder::Folder;
use super::support::is_installed;

/// A page's PDF as text.
fn text_of(folder: &Folder, pdf: &[u8]) -> String {
    fs::write(folder.path("page.pdf"), pdf).expect("the folder is ours");
    let arguments = ["-layout", "page.pdf", "-"];
    let output = Command::new("pdftotext")
        .args(arguments)
        .current_dir(folder.dir())
        .output()
        .expect("it is there");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Shares of the first page's points that are white and that are dark.
fn white_and_dark(folder: &Folder) -> (f64, f64) {
    let output = Command::new("pdftoppm")
        .args(["-r", "40", "-l", "1", "-gray", "page.pdf", "page"])
        .current_dir(folder.dir())
        .output()
        .expect("it is there");
    assert!(output.status.success(), "{output:?}");
    let file = fs::read_dir(folder.dir())
        .expect("the folder is ours")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "pgm"))
        .expect("a picture");
    let picture = fs::read(&file).expect("it was written");
    fs::remove_file(file).expect("the folder is ours");
    // "P5\nWIDTH HEIGHT\n255\n", then a byte for each point.
    let begin = 1 + picture
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .nth(2)
        .expect("a header")
        .0;
    let points = &picture[begin..];
    let share = |test: &dyn Fn(u8) -> bool| {
        points.iter().filter(|p| test(**p)).count() as f64 / points.len() as f64
    };
    (share(&|p| p > 250), share(&|p| p < 60))
}

#[test]
fn every_view_is_printed_light_and_whole_from_a_dark_screen() {
    if !is_installed("pdftotext") {
        return;
    }
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let folder = Folder::prepared(&["-g"]);
    browser.size(1280, 900);
    browser.open(&folder.page());
    browser.evaluate(
        "document.documentElement.dataset.theme === 'dark' || document.getElementById('theme-button').click()",
    );
    for (view, words) in VIEWS.into_iter().zip([
        &["What was proved", "Where the instructions are", "classify"][..],
        &["Before", "After", "Cache lines touched"],
        &["work", "classify", "square", "moved"],
        &["Width: share of all instructions"],
        &["Called by", "executions"],
        &["blocks ran", "returns", "callq"],
        &["What the bytes are for", "output"],
        &["overlap", "classify"],
        &["app.c", "Never ran"],
    ]) {
        browser.evaluate(&format!("location.hash = '#{view}'"));
        browser.until(&format!(
            "document.querySelector('main').dataset.view === '{view}'"
        ));
        browser.evaluate("new Promise((r) => setTimeout(r, 150))");
        let pdf = browser.paper();
        let text = text_of(&folder, &pdf);
        for word in words {
            assert!(text.contains(word), "{view}: {word} is not in {text}");
        }
        assert!(!text.contains("Search by name"), "{view}: {text}");
        let (white, dark) = white_and_dark(&folder);
        assert!(
            white > 0.45 && dark < 0.2,
            "{view}: {white} white, {dark} dark"
        );
        let pages = text.matches('\x0c').count();
        assert!(pages <= 5, "{view}: {pages} pages");
        // The screen is as it was.
        browser.until("document.documentElement.dataset.theme === 'dark'");
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// It was a page of blank paper for every 20 functions, as only rows that were on the screen existed.
#[test]
fn of_a_long_table_the_first_rows_are_printed_and_the_rest_is_counted() {
    if !is_installed("pdftotext") {
        return;
    }
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let folder = Folder::new();
    let mut source = "#include <stdio.h>\n".to_owned();
    for k in 0..500 {
        let line = format!("__attribute__((noipa)) int f{k:03}(int x) {{ return x * {k} + 1; }}");
        writeln!(source, "{line}").expect("a string takes everything");
    }
    source.push_str("int main(void) {\n  int n = 0;\n");
    for k in 0..500 {
        // The first are the hottest.
        let line = format!("  for (int i = 0; i < {}; i++) n += f{k:03}(i);", 501 - k);
        writeln!(source, "{line}").expect("a string takes everything");
    }
    source.push_str("  return n == 7;\n}\n");
    folder.build("app", "app.c", &source, &["-O1"]);
    folder.count_run("app", "run.plraw", &[]);
    folder.postlink(&["report", "app", "-p", "run.plraw", "-o", "report.html"]);
    browser.size(1280, 900);
    browser.open(&folder.path("report.html"));
    browser.press("3");
    browser.until("document.querySelectorAll('.vt-row').length > 10");
    let pdf = browser.paper();
    let text = text_of(&folder, &pdf);
    for name in ["main", "f000", "f100", "f190"] {
        assert!(text.contains(name), "{name} is not in {text}");
    }
    assert!(!text.contains("f300"), "{text}");
    assert!(text.contains("more rows are not printed"), "{text}");
    let pages = text.matches('\x0c').count();
    assert!((3..=14).contains(&pages), "{pages} pages");
    // On the screen only the visible rows are there again.
    browser.until("document.querySelectorAll('.vt-row').length < 60");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
