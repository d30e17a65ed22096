//! `postlink report`: its data agrees with what `show` and the checker say, the page works in a browser, and
//! odd programs and names do no harm.
//!
//! The pages are opened in Chromium: every view in both themes and at two widths, searched, zoomed, without a
//! word in the console. Set `POSTLINK_PICTURES` to a folder to have the pictures of that written there.

mod browser;
mod keyboard;
mod paper;
mod startup;
#[path = "../support/mod.rs"]
mod support;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use browser::Browser;
use serde_json::Value;
use support::folder::Folder;

const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
struct op { int (*run)(int); };
static __attribute__((noipa)) int twice(int x) { return x * 2; }
static __attribute__((noipa)) int square(int x) { return x * x; }
__attribute__((noipa)) int never_called(int x) { return x - 3; }
__attribute__((noipa)) int classify(int x) {
    switch (x & 7) {
    case 0: return x + 11;
    case 1: return x * 3;
    case 2: return x - 7;
    case 3: return x ^ 21;
    case 4: return x | 5;
    case 5: return x & 1023;
    default: return x / 3;
    }
}
__attribute__((noipa)) int work(struct op *ops, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        if (i == 123456789) {
            puts("never");
            exit(3);
        }
        sum += ops[i % 3 == 0].run(i) + classify(i);
    }
    return sum;
}
int main(int argc, char **argv) {
    struct op ops[2] = { { twice }, { square } };
    printf("%d\n", work(ops, argc > 1 ? atoi(argv[1]) : 9000));
    return 0;
}
"#;

impl Folder {
    fn build(&self, name: &str, file: &str, source: &str, options: &[&str]) {
        fs::write(self.path(file), source).expect("the folder is ours");
        let mut arguments = vec!["-O2", "-Wl,-q", "-o", name, file];
        arguments.extend(options);
        self.run(Path::new("gcc"), &arguments);
    }

    /// `report.html` with everything on it.
    fn page(&self) -> PathBuf {
        let files = ["app", "-p", "run.plraw", "--optimized", "app.opt"];
        let more = ["--compare", "other.plraw", "-o", "report.html"];
        self.postlink(&[&["report"], &files[..], &more[..]].concat());
        self.path("report.html")
    }

    /// The program above with two profiles and an output.
    fn prepared(options: &[&str]) -> Folder {
        let folder = Folder::new();
        folder.build("app", "app.c", SOURCE, options);
        folder.count_run("app", "run.plraw", &[]);
        folder.count_run("app", "other.plraw", &["77"]);
        folder.postlink(&["optimize", "app", "-p", "run.plraw", "-o", "app.opt"]);
        folder
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["report"];
        all.extend(arguments);
        all.extend(["--json", "-o", "report.json"]);
        self.postlink(&all);
        let text = fs::read_to_string(self.path("report.json")).expect("it was written");
        serde_json::from_str(&text).expect("JSON")
    }
}

fn number_of(report: &Value, name: &str) -> usize {
    let names = report["ran"]["name"].as_array().expect("names");
    names
        .iter()
        .position(|n| n == name)
        .unwrap_or_else(|| panic!("{name} is not among {names:?}"))
}

#[test]
fn the_data_is_what_show_and_the_checker_say() {
    let folder = Folder::prepared(&["-g"]);
    let report = folder.json(&["app", "-p", "run.plraw", "--optimized", "app.opt"]);
    let shown: Value =
        serde_json::from_str(&folder.postlink(&["show", "run.plraw", "--binary", "app", "--json"]))
            .expect("JSON");
    for function in shown["functions"].as_array().expect("functions") {
        let f = number_of(&report, function["name"].as_str().expect("a name"));
        for (ours, theirs) in [
            ("entries", "entries"),
            ("instructions", "instructions"),
            ("size", "size"),
        ] {
            assert_eq!(
                report["ran"][ours][f], function[theirs],
                "{ours} of {}",
                function["name"]
            );
        }
    }
    let ran = shown["functions"].as_array().expect("functions").len();
    assert_eq!(report["ran"]["name"].as_array().expect("names").len(), ran);
    // Calls by caller and callee, the indirect ones too: `work` calls `square` for every third number.
    let (work, square) = (number_of(&report, "work"), number_of(&report, "square"));
    let mut caller = 0;
    let mut found = None;
    for (k, step) in report["calls"]["caller"]
        .as_array()
        .expect("callers")
        .iter()
        .enumerate()
    {
        caller += step.as_u64().expect("a number");
        if caller == work as u64 && report["calls"]["callee"][k] == square {
            found = Some((
                report["calls"]["count"][k].as_u64(),
                report["calls"]["indirect"][k].as_u64(),
            ));
        }
    }
    assert_eq!(found, Some((Some(3000), Some(3000))));
    // The proof is the checker's, run anew.
    let proof = &report["verdict"]["proof"];
    let checked: Value =
        serde_json::from_str(&folder.postlink(&["verify", "app", "app.opt", "--json"]))
            .expect("JSON");
    assert_eq!(proof["proved"], true);
    assert_eq!(proof["functions"], checked["proved"]);
    // Lines: what ran, how often, and what did not.
    let line = |text: &str| {
        SOURCE
            .lines()
            .position(|l| l.contains(text))
            .expect("it is there") as u64
            + 1
    };
    let coverage = report["coverage"].as_array().expect("files");
    let own = coverage
        .iter()
        .find(|file| {
            report["files"][file["file"].as_u64().expect("a number") as usize]
                .as_str()
                .is_some_and(|n| n.ends_with("app.c"))
        })
        .expect("app.c is covered");
    let mut at = 0;
    let counts: std::collections::HashMap<u64, u64> = own["line"]
        .as_array()
        .expect("lines")
        .iter()
        .zip(own["count"].as_array().expect("counts"))
        .map(|(step, n)| {
            at += step.as_u64().expect("a number");
            (at, n.as_u64().expect("a number"))
        })
        .collect();
    assert_eq!(counts.get(&line("int square(int x)")), Some(&3000));
    assert_eq!(
        counts.get(&line("puts(\"never\")")).copied().unwrap_or(0),
        0
    );
    assert_eq!(counts.get(&line("never_called(int x)")), Some(&0));
}

#[test]
fn blocks_are_followed_to_their_new_places_also_past_jumps_to_jumps() {
    let folder = Folder::prepared(&[]);
    let report = folder.json(&["app", "-p", "run.plraw", "--optimized", "app.opt"]);
    let (before, after) = (&report["layout"]["before"], &report["layout"]["after"]);
    assert_eq!(after["unplaced"], 0, "every block that ran has a new place");
    // What ran is somewhere else, on no more cache lines.
    assert!(after["hotBytes"].as_u64() > Some(0));
    let lines = |side: &Value| side["touched"][0].as_u64().expect("a number");
    assert!(
        lines(after) <= lines(before),
        "{} -> {}",
        lines(before),
        lines(after)
    );
    let taken = report["verdict"]["taken"].as_array().expect("two numbers");
    assert!(taken[1].as_u64() <= taken[0].as_u64(), "{taken:?}");
    // Every new place holds the instructions of the old one: the first byte at least, where the block does
    // not begin with its branch.
    let input = fs::read(folder.path("app")).expect("the input");
    let output = fs::read(folder.path("app.opt")).expect("the output");
    let mut compared = 0;
    for graph in report["graphs"].as_array().expect("graphs") {
        let f = graph["function"].as_u64().expect("a number") as usize;
        let starts = report["ran"]["start"].as_array().expect("starts");
        let mut at: i64 = starts[..=f]
            .iter()
            .map(|n| n.as_i64().expect("a number"))
            .sum();
        for (b, step) in graph["start"]
            .as_array()
            .expect("blocks")
            .iter()
            .enumerate()
        {
            at += step.as_i64().expect("a number");
            let (Some(shift), Some(size)) = (graph["moved"][b].as_i64(), graph["size"][b].as_u64())
            else {
                continue;
            };
            if size < 8 {
                continue;
            }
            let (old, new) = (
                bytes_at(&input, at as u64),
                bytes_at(&output, (at + shift) as u64),
            );
            assert_eq!(old, new, "block at {at:#x}");
            compared += 1;
        }
    }
    assert!(compared > 5, "only {compared} blocks compared");
}

/// The byte at an address of an ELF file, by its program headers.
fn bytes_at(file: &[u8], address: u64) -> u8 {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| u16::from_le_bytes(file[at..at + 2].try_into().expect("two bytes"));
    let (table, size, number) = (
        word(32) as usize,
        usize::from(half(54)),
        usize::from(half(56)),
    );
    for k in 0..number {
        let header = table + k * size;
        let (offset, start, length) = (word(header + 8), word(header + 16), word(header + 32));
        if file[header] == 1 && start <= address && address < start + length {
            return file[(offset + address - start) as usize];
        }
    }
    panic!("{address:#x} is in no segment");
}

#[test]
fn an_empty_profile_and_a_wrong_output_are_errors() {
    let folder = Folder::prepared(&[]);
    fs::write(folder.path("none.plraw"), b"").expect("the folder is ours");
    let message = folder.refused(&["report", "app", "-p", "none.plraw", "-o", "r.html"]);
    assert!(message.contains("no profile with counts"), "{message}");
    let message = folder.refused(&[
        "report",
        "app",
        "-p",
        "run.plraw",
        "--optimized",
        "app",
        "-o",
        "r.html",
    ]);
    assert!(message.contains("was not made by postlink"), "{message}");
    let message = folder.refused(&[
        "report",
        "app",
        "-p",
        "run.plraw",
        "--optimized",
        "app.inst",
        "-o",
        "r.html",
    ]);
    assert!(message.contains("instrumented"), "{message}");
    let message = folder.refused(&["report", "app", "-p", "run.plraw", "-o", "app"]);
    assert!(message.contains("is the input itself"), "{message}");
    assert!(!folder.path("r.html").exists());
}

#[test]
fn open_hands_the_page_to_the_desktop_and_its_absence_is_no_error() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    folder.build("app", "app.c", SOURCE, &[]);
    folder.count_run("app", "run.plraw", &[]);
    let open = |path: &Path| {
        let program = Path::new(env!("CARGO_BIN_EXE_postlink"));
        let arguments = [
            "report",
            "app",
            "-p",
            "run.plraw",
            "-o",
            "report.html",
            "--open",
        ];
        let output = folder
            .command(program, &arguments)
            .env("PATH", path)
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    };
    let desktop = folder.path("desktop");
    fs::create_dir(&desktop).expect("the folder is ours");
    let said = open(&desktop);
    assert!(
        said.contains("warning: the page cannot be opened: xdg-open"),
        "{said}"
    );
    let opener = desktop.join("xdg-open");
    fs::write(&opener, "#!/bin/sh\necho \"$1\" > opened\n").expect("the folder is ours");
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    let said = open(&desktop);
    assert!(!said.contains("warning"), "{said}");
    let opened = fs::read_to_string(folder.path("opened")).expect("it was called");
    assert_eq!(opened, "report.html\n");
    assert!(folder.path("report.html").exists());
}

#[test]
fn functions_without_symbols_have_a_report() {
    // Found by their unwind entries alone.
    let source = "\t.text\n.Lone:\n\t.cfi_startproc\n\tleal 1(%rdi), %eax\n\ttestl %edi, %edi\n\tjle 1f\n\taddl $3, %eax\n1:\tret\n\t.cfi_endproc\n\
        \t.globl main\n\t.type main, @function\nmain:\n\t.cfi_startproc\n\tpushq %rbx\n\t.cfi_def_cfa_offset 16\n\t.cfi_offset 3, -16\n\tmovl $500, %ebx\n\
        2:\tmovl %ebx, %edi\n\tcall .Lone\n\tdecl %ebx\n\tjns 2b\n\txorl %eax, %eax\n\tpopq %rbx\n\t.cfi_def_cfa_offset 8\n\tret\n\t.cfi_endproc\n\t.size main, .-main\n\
        \t.section .note.GNU-stack,\"\",@progbits\n";
    let folder = Folder::new();
    folder.build("app", "app.s", source, &["-no-pie"]);
    folder.count_run("app", "run.plraw", &[]);
    let report = folder.json(&["app", "-p", "run.plraw"]);
    let names = report["ran"]["name"].as_array().expect("names");
    let unnamed = names
        .iter()
        .position(|n| n.as_str().is_some_and(|n| n.starts_with("fun_")));
    let unnamed = unnamed.unwrap_or_else(|| panic!("{names:?}"));
    assert_eq!(report["ran"]["entries"][unnamed], 501);
    assert!(report["notes"].to_string().contains("no debug information"));
    folder.postlink(&["report", "app", "-p", "run.plraw", "-o", "report.html"]);
}

/// A library of LLVM's had 23,000 functions that ran and not one name, though it exports 36,000.
#[test]
fn exported_names_are_used_where_a_file_was_stripped_of_others() {
    let folder = Folder::new();
    fs::write(folder.path("app.c"), SOURCE).expect("the folder is ours");
    folder.run(
        Path::new("gcc"),
        &["-O2", "-rdynamic", "-o", "app", "app.c"],
    );
    folder.run(Path::new("strip"), &["app"]);
    folder.count_run("app", "run.plraw", &[]);
    let report = folder.json(&["app", "-p", "run.plraw"]);
    let entries = |name: &str| report["ran"]["entries"][number_of(&report, name)].as_u64();
    assert_eq!(
        (entries("classify"), entries("work")),
        (Some(9000), Some(1))
    );
    let names = report["ran"]["name"].as_array().expect("names");
    // `square` is static: nobody knows its name any more.
    assert!(
        names
            .iter()
            .any(|n| n.as_str().is_some_and(|n| n.starts_with("fun_")))
    );
    let shown = folder.postlink(&[
        "show",
        "run.plraw",
        "--binary",
        "app",
        "--blocks",
        "classify",
    ]);
    assert!(shown.contains("classify"), "{shown}");
}

/// Functions with markup in their names, one with a name of 10 kB.
fn odd_names() -> (String, Vec<String>) {
    let names = vec![
        "<script>window.hit=1</script>".to_owned(),
        "</script><img src=x onerror='window.hit=1'>".to_owned(),
        "<!--<script>".to_owned(),
        "a&amp;b<b>c".to_owned(),
        "\u{202e}evil\u{2028}line".to_owned(),
        "x".repeat(10_000),
    ];
    let mut text = "\t.text\n".to_owned();
    for (k, name) in names.iter().enumerate() {
        writeln!(
            text,
            "\t.globl \"{name}\"\n\t.type \"{name}\", @function\n\"{name}\":\n\t.cfi_startproc\n\tleal {k}(%rdi), %eax\n\ttestl %edi, %edi\n\tjle 1f\n\taddl $3, %eax\n1:\tret\n\t.cfi_endproc\n\t.size \"{name}\", .-\"{name}\""
        )
        .expect("a string takes everything");
    }
    text.push_str("\t.globl main\n\t.type main, @function\nmain:\n\t.cfi_startproc\n\tpushq %rbx\n\t.cfi_def_cfa_offset 16\n\t.cfi_offset 3, -16\n\tmovl $500, %ebx\n2:");
    for name in &names {
        writeln!(text, "\tmovl %ebx, %edi\n\tcall \"{name}\"").expect("a string takes everything");
    }
    text.push_str("\tdecl %ebx\n\tjns 2b\n\txorl %eax, %eax\n\tpopq %rbx\n\t.cfi_def_cfa_offset 8\n\tret\n\t.cfi_endproc\n\t.size main, .-main\n\t.section .note.GNU-stack,\"\",@progbits\n");
    (text, names)
}

#[test]
fn markup_in_names_stays_text() {
    let folder = Folder::new();
    let (source, names) = odd_names();
    folder.build("app", "app.s", &source, &["-no-pie"]);
    folder.count_run("app", "run.plraw", &[]);
    let report = folder.json(&["app", "-p", "run.plraw"]);
    for name in &names[..5] {
        number_of(&report, name);
    }
    let longest = report["ran"]["name"]
        .as_array()
        .expect("names")
        .iter()
        .filter_map(Value::as_str)
        .map(|n| n.chars().count())
        .max();
    assert_eq!(longest, Some(401), "cut, with a sign that it was");
    folder.postlink(&["report", "app", "-p", "run.plraw", "-o", "report.html"]);
    let page = fs::read_to_string(folder.path("report.html")).expect("it was written");
    assert!(
        !page.contains("window.hit"),
        "names are not in the document as they are"
    );
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.size(1200, 800);
    browser.open(&folder.path("report.html"));
    for view in VIEWS {
        browser.evaluate(&format!("location.hash = '#{view}'"));
        browser.until(&format!(
            "document.querySelector('main').dataset.view === '{view}'"
        ));
    }
    for f in 0..names.len() {
        browser.evaluate(&format!("location.hash = '#function/{f}'"));
        browser.until(&format!(
            "location.hash === '#function/{f}' && !!document.querySelector('main h2')"
        ));
    }
    browser.evaluate("location.hash = '#functions'");
    browser.until("document.querySelectorAll('.vt-row').length > 5");
    let shown = browser.evaluate(
        "[...document.querySelectorAll('.vt-row')].map((r) => r.children[1].textContent)",
    );
    let shown: Vec<&str> = shown
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for name in &names[..5] {
        assert!(
            shown.contains(&name.as_str()),
            "{name} is not shown as it is: {shown:?}"
        );
    }
    assert_eq!(browser.evaluate("window.hit === undefined && !document.querySelector('main img, main script, main b > b')"), true);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_long_name_does_not_move_the_columns_after_it() {
    let folder = Folder::new();
    let (source, _) = odd_names();
    folder.build("app", "app.s", &source, &["-no-pie"]);
    folder.count_run("app", "run.plraw", &[]);
    folder.postlink(&["report", "app", "-p", "run.plraw", "-o", "report.html"]);
    let Some(mut browser) = Browser::start() else {
        return;
    };
    for width in [1280, 390] {
        browser.size(width, 800);
        browser.open(&folder.path("report.html"));
        browser.evaluate("location.hash = '#functions'");
        browser.until("document.querySelectorAll('.vt-row').length > 5");
        let places = browser.evaluate("[document.querySelector('.vt-head'), ...document.querySelectorAll('.vt-row')].map((row) => [...row.children].map((cell) => Math.round(cell.getBoundingClientRect().right)).join()).filter((places, k, all) => all.indexOf(places) === k)");
        assert_eq!(places.as_array().map(Vec::len), Some(1), "{places}");
    }
}

const VIEWS: [&str; 9] = [
    "verdict",
    "layout",
    "functions",
    "flame",
    "calls",
    "function",
    "sizes",
    "compare",
    "coverage",
];

/// The least contrast of text with what is after it, with the text: WCAG's formula, colours mixed as they are
/// upon each other.
const CONTRAST: &str = r#"(() => {
  const parse = (c) => { const m = c.match(/color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)(?: \/ ([\d.e-]+))?\)/); if (m) return [m[1] * 255, m[2] * 255, m[3] * 255, m[4] === undefined ? 1 : +m[4]]; const n = (c.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number); return [n[0], n[1], n[2], n[3] === undefined ? 1 : n[3]]; };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const luminance = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (node) => { const stack = []; for (let n = node; n; n = n.parentElement) { const c = parse(getComputedStyle(n).backgroundColor); if (c[3] > 0) { stack.push(c); if (c[3] === 1) break; } } return stack.reverse().reduce((under, c) => over(c, under), [255, 255, 255, 1]); };
  let worst = [99, ''];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || e.closest('script, style, noscript, [hidden], svg, dialog:not([open]), .skip') || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    let alpha = 1;
    for (let n = e; n; n = n.parentElement) alpha *= Number(getComputedStyle(n).opacity);
    const back = behind(e), fore = over((([r, g, b, a]) => [r, g, b, a * alpha])(parse(style.color)), back);
    const [x, y] = [luminance(fore), luminance(back)].sort((a, b) => b - a);
    const ratio = (x + 0.05) / (y + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.className + ': ' + walk.currentNode.textContent.trim().slice(0, 60)];
  }
  return worst;
})()"#;

#[test]
fn every_view_works_in_both_themes_and_at_two_widths() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let folder = Folder::prepared(&["-g"]);
    folder.postlink(&[
        "report",
        "app",
        "-p",
        "run.plraw",
        "--optimized",
        "app.opt",
        "--compare",
        "other.plraw",
        "-o",
        "report.html",
    ]);
    browser.size(1280, 900);
    browser.open(&folder.path("report.html"));
    let pictures = std::env::var_os("POSTLINK_PICTURES").map(PathBuf::from);
    for theme in ["light", "dark"] {
        for width in [1280, 390] {
            browser.size(width, 900);
            browser.evaluate(&format!(
                "document.documentElement.dataset.theme = '{theme}'"
            ));
            for view in VIEWS {
                browser.evaluate("location.hash = '#none'");
                browser.evaluate(&format!("location.hash = '#{view}'"));
                browser.until(&format!("document.querySelector('main').dataset.view === '{view}' && location.hash === '#{view}'"));
                browser.evaluate("new Promise((r) => setTimeout(r, 150))");
                let wide = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
                assert!(
                    wide.as_i64() <= Some(0),
                    "{view} is {wide} pixels wider than {width}"
                );
                let tab = browser.evaluate("(() => { const tab = document.querySelector('#tabs [aria-selected=true]').getBoundingClientRect(), tabs = document.getElementById('tabs').getBoundingClientRect(); return Math.max(tabs.left - tab.left, tab.right - tabs.right); })()");
                assert!(
                    tab.as_f64() <= Some(1.0),
                    "the tab of {view} is out of sight by {tab} pixels"
                );
                let contrast = browser.evaluate(CONTRAST);
                assert!(
                    contrast[0].as_f64() >= Some(4.5),
                    "{view}, {theme}: {contrast}"
                );
                let picture = browser.picture();
                assert!(
                    picture.starts_with(b"\x89PNG") && picture.len() > 4000,
                    "{view}: an empty picture"
                );
                if let Some(folder) = &pictures {
                    fs::write(folder.join(format!("{view}-{theme}-{width}.png")), picture)
                        .expect("the folder can be written to");
                }
            }
        }
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn functions_that_ran_in_the_second_profile_alone_are_not_covered_by_the_first() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let folder = Folder::new();
    let source = "#include <stdio.h>\n__attribute__((noipa)) int one(int x) { return x * 3; }\n\
        __attribute__((noipa)) int two(int x) { return x ^ 7; }\n\
        int main(int argc, char **argv) { printf(\"%d\\n\", argc > 1 ? one(two(argc)) : one(argc)); return 0; }\n";
    folder.build("app", "app.c", source, &[]);
    folder.count_run("app", "run.plraw", &[]);
    folder.count_run("app", "other.plraw", &["x"]);
    let report = folder.json(&["app", "-p", "run.plraw", "--compare", "other.plraw"]);
    let instructions = &report["ran"]["instructions"];
    assert_eq!(instructions[number_of(&report, "two")], 0);
    let numbers = instructions.as_array().expect("numbers").iter();
    let ran = numbers.filter(|n| n.as_u64() > Some(0)).count();
    let files = ["app", "-p", "run.plraw", "--compare", "other.plraw"];
    folder.postlink(&[&["report"], &files[..], &["-o", "report.html"]].concat());
    browser.open(&folder.path("report.html"));
    for (view, words) in [
        ("verdict", format!("{ran}of ")),
        ("coverage", format!("functions: {ran} of ")),
    ] {
        browser.evaluate(&format!("location.hash = '#{view}'"));
        browser.until(&format!(
            "document.querySelector('main').dataset.view === '{view}'"
        ));
        let text = browser.evaluate("document.querySelector('main').textContent");
        assert!(
            text.as_str().is_some_and(|text| text.contains(&words)),
            "{view}: {words:?} is not in {text}"
        );
    }
}

#[test]
fn views_are_searched_sorted_zoomed_and_used_by_keys() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let folder = Folder::prepared(&["-g"]);
    folder.postlink(&[
        "report",
        "app",
        "-p",
        "run.plraw",
        "--optimized",
        "app.opt",
        "--compare",
        "other.plraw",
        "-o",
        "report.html",
    ]);
    browser.size(1280, 900);
    browser.open(&folder.path("report.html"));
    // Keys choose the views, and / goes to the search.
    browser.press("3");
    browser
        .until("location.hash === '#functions' && document.querySelectorAll('.vt-row').length > 3");
    browser.press("/");
    assert_eq!(browser.evaluate("document.activeElement.type"), "search");
    let search = |browser: &mut Browser, text: &str| {
        browser.evaluate(&format!("(() => {{ const i = document.querySelector('main input[type=search]'); i.value = '{text}'; i.dispatchEvent(new Event('input')); }})()"));
    };
    search(&mut browser, "SQUA");
    browser.until("document.querySelectorAll('.vt-row').length === 1 && document.querySelector('.vt-row').textContent.includes('square')");
    search(&mut browser, "no such function");
    browser.until("document.querySelectorAll('.vt-row').length === 0");
    search(&mut browser, "");
    // By name, up and down.
    let first = "document.querySelector('.vt-row[style*=\"top: 0px\"], .vt-row[style*=\"top:0px\"]').children[1].textContent";
    browser.evaluate("document.querySelector('.vt-head [data-name=name]').click()");
    let up = browser.evaluate(first);
    browser.evaluate("document.querySelector('.vt-head [data-name=name]').click()");
    let down = browser.evaluate(first);
    assert!(up.as_str() < down.as_str(), "{up} {down}");
    browser.evaluate("document.querySelector('.vt').focus()");
    browser.press("ArrowDown");
    browser.press("Enter");
    browser.until("location.hash.startsWith('#function/')");
    // A graph: blocks can be chosen, the listing follows, orders change.
    let work = browser.evaluate("(() => { location.hash = '#functions'; })()");
    assert!(work.is_null());
    browser.until("document.querySelectorAll('.vt-row').length > 3");
    browser.evaluate("[...document.querySelectorAll('.vt-row')].find((r) => r.children[1].textContent === 'work').click()");
    browser.until("document.querySelectorAll('.graphbox .node').length > 3 && document.querySelectorAll('.graphbox .edge').length > 3");
    browser.evaluate("document.querySelectorAll('.graphbox .node')[2].dispatchEvent(new MouseEvent('click', {bubbles: true}))");
    browser.until("document.querySelectorAll('.listing .blk.sel').length === 1");
    assert_eq!(
        browser.evaluate("document.querySelector('.listing').textContent.includes('app.c:')"),
        true
    );
    assert_eq!(browser.evaluate("[...document.querySelectorAll('.listing .calls')].some((c) => c.textContent.includes('square'))"), true);
    let scale = "document.querySelector('.graphbox svg > g').getAttribute('transform')";
    let before = browser.evaluate(scale);
    browser.evaluate("document.querySelector('.graphbox .zoom button').click()");
    assert_ne!(browser.evaluate(scale), before);
    browser.evaluate("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Side by side').click()");
    browser.until("document.querySelectorAll('.listing .cols > div').length === 2");
    // The layout: found, zoomed.
    browser.press("2");
    browser.until("document.querySelectorAll('canvas.map').length === 2");
    search(&mut browser, "classify");
    browser.until("document.querySelectorAll('.suggest li').length >= 1");
    browser.evaluate("document.querySelector('.suggest li').dispatchEvent(new MouseEvent('mousedown', {bubbles: true, cancelable: true}))");
    browser.until("document.querySelector('main').textContent.includes('of all instructions')");
    let label =
        "document.querySelector('canvas.map').parentElement.querySelector('.mono').textContent";
    browser.until(&format!("{label}.length > 0"));
    let before = browser.evaluate(label);
    browser.evaluate("[...document.querySelectorAll('.maphead button')].find((b) => b.textContent === 'All').click()");
    assert_eq!(
        browser.evaluate(&format!("{label}.startsWith('all code')")),
        true,
        "{before}"
    );
    browser.evaluate(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'Rows').click()",
    );
    // The flame graph: a click zooms.
    browser.press("4");
    browser.until("!!document.querySelector('main canvas') && document.querySelector('main canvas').height > 20");
    search(&mut browser, "square");
    // Until it is drawn, a click meets nothing.
    browser.until("(() => { const c = document.querySelector('main canvas'), r = c.getBoundingClientRect(); for (const type of ['pointermove', 'click']) c.dispatchEvent(new PointerEvent(type, {clientX: r.left + 40, clientY: r.top + 30, bubbles: true})); return document.querySelector('main').textContent.includes('of all instructions here'); })()");
    // Coverage: into a file and back.
    browser.press("9");
    browser.until("document.querySelectorAll('.vt-row').length >= 1");
    browser.evaluate("[...document.querySelectorAll('.vt-row')].find((r) => r.textContent.includes('app.c')).click()");
    browser.until("document.querySelectorAll('.source div.n').length > 0 && document.querySelectorAll('.source div.y').length > 0");
    assert_eq!(
        browser.evaluate("document.querySelector('.source').textContent.includes('never_called')"),
        true
    );
    // The other theme by its key, and the help.
    let theme = browser.evaluate("document.documentElement.dataset.theme");
    browser.press("t");
    assert_ne!(
        browser.evaluate("document.documentElement.dataset.theme"),
        theme
    );
    browser.press("?");
    browser.until("document.querySelector('dialog').open");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_program_for_aarch64_has_the_same_report() {
    let tools = ["aarch64-linux-gnu-gcc", "qemu-aarch64"];
    let is_there = |tool: &&str| {
        std::process::Command::new(tool)
            .arg("--version")
            .output()
            .is_ok()
    };
    if let Some(tool) = tools.iter().find(|tool| !is_there(tool)) {
        eprintln!("SKIPPED: {tool} is not installed");
        return;
    }
    let folder = Folder::new();
    fs::write(folder.path("app.c"), SOURCE).expect("the folder is ours");
    let options = ["-O2", "-g", "-Wl,-q", "-o", "app", "app.c"];
    folder.run(Path::new(tools[0]), &options);
    folder.instrument("app", "run.plraw");
    folder.run(
        Path::new(tools[1]),
        &["-L", "/usr/aarch64-linux-gnu", "app.inst"],
    );
    folder.postlink(&["optimize", "app", "-p", "run.plraw", "-o", "app.opt"]);
    let given = ["app", "-p", "run.plraw", "--optimized", "app.opt"];
    let report = folder.json(&given);
    let entries = |name: &str| report["ran"]["entries"][number_of(&report, name)].as_u64();
    assert_eq!(
        (entries("square"), entries("classify")),
        (Some(3000), Some(9000))
    );
    assert_eq!(report["verdict"]["proof"]["proved"], true);
    assert_eq!(
        report["layout"]["after"]["unplaced"], 0,
        "every block that ran has a new place"
    );
    folder.postlink(&[&["report"], &given[..], &["-o", "report.html"]].concat());
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.size(1280, 900);
    browser.open(&folder.path("report.html"));
    for view in VIEWS {
        browser.evaluate(&format!("location.hash = '#{view}'"));
        browser.until(&format!(
            "document.querySelector('main').dataset.view === '{view}'"
        ));
    }
    let work = number_of(&report, "work");
    browser.evaluate(&format!("location.hash = '#function/{work}'"));
    browser.until(&format!(
        "location.hash === '#function/{work}' && !!document.querySelector('main h2')"
    ));
    let text = browser.evaluate("document.querySelector('main').innerText");
    let text = text.as_str().expect("text");
    // A call through a register, as this machine writes it.
    assert!(text.contains("blr"), "{text}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn tune_writes_a_report_with_its_times() {
    let folder = Folder::new();
    folder.build("app", "app.c", SOURCE, &[]);
    folder.postlink(&[
        "tune",
        "app",
        "-o",
        "app.opt",
        "--measure",
        "2",
        "--report",
        "report.html",
        "--",
        "{}",
        "50",
    ]);
    assert!(folder.path("report.html").exists());
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.open(&folder.path("report.html"));
    let text = browser.evaluate("document.querySelector('main').innerText");
    let text = text.as_str().expect("text");
    for part in [
        "No difference shown",
        "2 pairs of runs",
        "Proved",
        "functions moved",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn two_hundred_thousand_functions_fit_on_a_page() {
    // Every eighth runs: 25,000, with names as long as those of C++.
    const ALL: usize = 200_000;
    let folder = Folder::new();
    let mut text = "\t.text\n".to_owned();
    let name = |k: usize| {
        format!(
            "_ZN4llvm{}12SelectionDAG{}7combineEPNS_6SDNodeEj",
            format_args!("3p{:02}", k % 90),
            format_args!("8f{k:07}")
        )
    };
    for k in 0..ALL {
        let name = name(k);
        writeln!(text, "\t.type {name}, @function\n{name}:\n\tleal 1(%rdi), %eax\n\tcmpl ${}, %eax\n\tjg 1f\n\taddl $3, %eax\n1:\tret\n\t.size {name}, .-{name}", k % 120).expect("a string takes everything");
    }
    text.push_str(
        "\t.globl main\n\t.type main, @function\nmain:\n\tpushq %rbx\n\tmovl $40, %ebx\n2:",
    );
    for k in (0..ALL).step_by(8) {
        writeln!(text, "\tmovl %ebx, %edi\n\tcall {}", name(k)).expect("a string takes everything");
    }
    text.push_str("\tdecl %ebx\n\tjns 2b\n\txorl %eax, %eax\n\tpopq %rbx\n\tret\n\t.size main, .-main\n\t.section .note.GNU-stack,\"\",@progbits\n");
    folder.build("app", "app.s", &text, &["-no-pie"]);
    folder.count_run("app", "run.plraw", &[]);
    folder.postlink(&["report", "app", "-p", "run.plraw", "-o", "report.html"]);
    let size = fs::metadata(folder.path("report.html"))
        .expect("it was written")
        .len();
    assert!(size <= 3_000_000, "{size} bytes");
    let Some(mut browser) = Browser::start() else {
        return;
    };
    browser.size(1280, 900);
    browser.open(&folder.path("report.html"));
    for view in VIEWS {
        browser.evaluate(&format!("location.hash = '#{view}'"));
        browser.until(&format!(
            "document.querySelector('main').dataset.view === '{view}'"
        ));
    }
    browser.press("3");
    browser.until("document.querySelectorAll('.vt-row').length > 10 && document.querySelectorAll('.vt-row').length < 100");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
