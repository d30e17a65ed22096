//! Functions that are entered by their old entries, where the linker kept no relocations: which of them move.

mod support;

use support::folder::Folder;
use support::is_installed;

/// `tiny` is called through a pointer, and a new layout saves it nothing. `worth` is too, but jumps over code that
/// never runs twenty times a call. `direct` is called by functions that move.
const SOURCE: &str = r#"
#include <stdio.h>
#define APART __attribute__((noinline, noipa))
int worth(int x);
__asm__(".text\n.skip 512,0xcc\n.p2align 4\n.globl worth\n.type worth,@function\nworth:\n.cfi_startproc\n mov %edi,%eax\n mov $20,%ecx\n"
 "1: test %ecx,%ecx\n jne 2f\n imul $77,%eax,%eax\n add $5,%eax\n2: add $3,%eax\n sub $1,%ecx\n jne 1b\n ret\n.cfi_endproc\n.size worth,.-worth\n");
APART int tiny(int x) { return x * 3 + 1; }
APART int direct(int x) { return x ^ 85; }
int (*volatile table[])(int) = {tiny, worth};
APART int drive(int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) sum = sum * 5 + table[i & 1](i) + direct(i);
  return sum;
}
int main(int argc, char **argv) { printf("%d\n", drive(3000 * argc)); return 0; }
"#;

/// Names of functions that move, of those that the source has apart.
fn moved(folder: &Folder, options: &[&str]) -> Vec<String> {
    let plain = folder.run(folder.path("app"), &[]);
    let arguments = ["optimize", "app", "-p", "run.plraw", "-o", "opt"];
    folder.postlink(&[&arguments[..], options].concat());
    assert_eq!(folder.run(folder.path("opt"), &[]), plain, "{options:?}");
    let said = folder.postlink(&["verify", "app", "opt", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let functions = said["functions"].as_array().expect("functions");
    let names = functions.iter().filter_map(|f| f["name"].as_str());
    let mut names: Vec<String> = names
        .filter(|name| ["tiny", "worth", "direct", "drive"].contains(name))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    names
}

fn counted(flags: &[&str]) -> Folder {
    let folder = Folder::new();
    let app = folder.compile("app", SOURCE, flags);
    let plain = folder.run(&app, &[]);
    folder.postlink(&["instrument", "app", "-o", "counting"]);
    folder.counting_prints(&plain);
    folder
}

#[test]
fn functions_stay_whose_old_entries_cost_more_than_their_layout_saves() {
    if !is_installed("gcc") {
        return;
    }
    let all = ["direct", "drive", "tiny", "worth"];
    let folder = counted(&["-fPIE", "-pie"]);
    assert_eq!(moved(&folder, &[]), ["direct", "drive", "worth"]);
    assert_eq!(moved(&folder, &["--move-all"]), all);
    let arguments = ["optimize", "app", "-p", "run.plraw", "-o", "opt"];
    let said = folder.attempt(&arguments);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    let why =
        "entered by pointers or from other files more often than a new layout would save branches";
    assert!(said.contains(why), "{said}");
    // Where pointers follow, calls through them cost nothing.
    let folder = counted(&["-fPIE", "-pie", "-Wl,-q"]);
    assert_eq!(moved(&folder, &[]), all);
}
