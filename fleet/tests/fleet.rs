//! The program as it is used: profiles in, shards, the same bytes out as `postlink merge` makes.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{
    Folder, ID, builds, counters, fleet, four, profile, refused, run, symbol, text, weighted,
};
use postlink_profile::preaggregated::{self, Dialect};
use postlink_profile::{Weighted, any, fdata, merge, plprof};

#[test]
fn counters_give_the_bytes_of_merge_in_any_order_and_tree() {
    let folder = Folder::new();
    let expected = four(&folder);
    let shards = folder.name("shards");
    assert_eq!(folder.shards("shards").len(), 4);
    assert_eq!(profile(&folder, &[&shards], "a.plprof", &[]), expected);
    for threads in ["1", "7"] {
        let more = ["--threads", threads, "--memory", "64M"];
        assert_eq!(profile(&folder, &[&shards], "a.plprof", &more), expected);
    }
    // A tree: two of them merged, and the others alone.
    let files = folder.shards("shards");
    let (a, b) = (files[1].to_str().unwrap(), files[3].to_str().unwrap());
    let (tree, all) = (folder.name("tree"), folder.name("all"));
    fleet(&["merge", a, b, "-o", &tree]);
    let (c, d) = (files[0].to_str().unwrap(), files[2].to_str().unwrap());
    assert_eq!(profile(&folder, &[c, &tree, d], "b.plprof", &[]), expected);
    // What is in a merged file and beside it counts once.
    let twice = profile(&folder, &[&shards, &tree], "c.plprof", &[]);
    assert_eq!(twice, expected);
    fleet(&["merge", &shards, &tree, "-o", &all]);
    assert_eq!(profile(&folder, &[&all], "d.plprof", &[]), expected);
    assert_eq!(
        profile(&folder, &[&all, &tree, c], "e.plprof", &[]),
        expected
    );
}

#[test]
fn merging_in_place_leaves_one_file_and_the_same_sum() {
    let folder = Folder::new();
    let expected = four(&folder);
    let shards = folder.name("shards");
    fleet(&["merge", &shards, "-o", &shards, "--replace"]);
    assert_eq!(folder.shards("shards").len(), 1);
    assert_eq!(profile(&folder, &[&shards], "a.plprof", &[]), expected);
    // Once more changes nothing, not even the file.
    let before = folder.shards("shards");
    fleet(&["merge", &shards, "-o", &shards, "--replace"]);
    assert_eq!(folder.shards("shards"), before);
    // Nor does adding what is in it.
    let added = fleet(&["add", &folder.name("2.plprof:2"), "-o", &shards]);
    assert!(
        text(&added).contains("is there already"),
        "{}",
        text(&added)
    );
    assert_eq!(folder.shards("shards"), before);
}

#[test]
fn a_profile_is_added_once_and_a_named_run_again() {
    let folder = Folder::new();
    let path = folder.counters("p", &counters(1, 1));
    let shards = folder.name("shards");
    let day = ["--day", "2026-01-02"];
    for (run, expected) in [("", 1), ("", 1), ("host7", 2), ("host7", 2), ("host8", 3)] {
        let mut arguments = vec!["add", &path, "-o", &shards, "--run", run];
        arguments.extend(day);
        fleet(&arguments);
        assert_eq!(folder.shards("shards").len(), expected, "{run}");
    }
    let sum = merge(&[weighted(&path, 3)]).unwrap();
    let mut bytes = Vec::new();
    plprof::write_to(&mut bytes, &sum.profile).unwrap();
    assert_eq!(profile(&folder, &[&shards], "a.plprof", &[]), bytes);
}

#[test]
fn functions_give_the_bytes_of_merge() {
    let folder = Folder::new();
    let a = folder.file(
        "a.fdata",
        "1 main 0 1 f\\ x 4 3 7\n0 [unknown] 0 1 main 0 0 18446744073709551615\n1 main 8 0 libc.so 1f 0 2\n4 main 4 4 data 8 3\n",
    );
    let b = folder.file(
        "b.fdata",
        "1 main 0 1 f\\ x 4 1 1\n0 [unknown] 0 1 main 0 0 1\n1 back\\\\slash 8 1 main c 2 2\n",
    );
    let shards = folder.name("shards");
    let weight = format!("{b}:5");
    fleet(&["add", &a, &weight, "--build-id", ID, "-o", &shards]);
    let merged = fdata::merge(&[weighted(&a, 1), weighted(&b, 5)]).unwrap();
    let mut expected = Vec::new();
    fdata::write_to(&mut expected, &merged).unwrap();
    let found = profile(&folder, &[&shards], "out.fdata", &[]);
    assert_eq!(
        String::from_utf8(found).unwrap(),
        String::from_utf8(expected).unwrap()
    );
    // Samples do not add to branches.
    let samples = folder.file("s.fdata", "no_lbr cycles\n1 main 4 9\n");
    fleet(&["add", &samples, "--build-id", ID, "-o", &shards]);
    let out = folder.name("x.fdata");
    let message = refused(&["profile", &shards, "--build-id", ID, "-o", &out]);
    assert!(message.contains("branches, samples"), "{message}");
    let one = profile(&folder, &[&shards], "s2.fdata", &["--map", "samples"]);
    assert_eq!(one, folder.bytes("s.fdata"));
}

#[test]
fn addresses_give_the_bytes_of_merge() {
    let folder = Folder::new();
    let a = folder.file(
        "a.preagg",
        "E cycles\nB 1060 1080 10 2\nT 1080 1090 10a0 7 1\nR 10b0 1060 ffffffffffffffff 3\nF 1060 1070 8\nf 1060 1078 9\nr 1062 1078 9\nS 1060 4\nB X:0 1060 5 5\nB 1060 X:0 1 0\n",
    );
    let b = folder.file(
        "b.preagg",
        "E branches\nB 1060 1080 18446744073709551615 2\nT 1080 1090 10a0 7 0\nS 1060 3\n",
    );
    let shards = folder.name("shards");
    let weight = format!("{a}:3");
    fleet(&["add", &weight, &b, "--build-id", ID, "-o", &shards]);
    let inputs = [weighted(&a, 3), weighted(&b, 1)];
    let merged = any::merge_addresses(&inputs, &Default::default()).unwrap();
    let mut expected = Vec::new();
    preaggregated::write_to(&mut expected, &merged, Dialect::V22, |place| {
        (!place.is_outside()).then_some(place.address)
    })
    .unwrap();
    let found = profile(&folder, &[&shards], "out.preagg", &[]);
    assert_eq!(
        String::from_utf8(found).unwrap(),
        String::from_utf8(expected).unwrap()
    );
}

#[test]
fn one_recording_gives_rows_of_every_file_in_it() {
    let folder = Folder::new();
    let path = folder.file(
        "a.preagg",
        "B deadbeef01:10 deadbeef01:20 3 1\nB deadbeef01:18 beef:40 4 0\nT beef:44 deadbeef01:1c deadbeef01:20 5\nB beef:48 beef:40 6 0\nS aa:8 7\nS 8 9\n",
    );
    let shards = folder.name("shards");
    fleet(&["add", &path, "-o", &shards]);
    let sql = "SELECT build_id, sum(count) AS n FROM counts WHERE kind <> 'profile' AND kind <> 'statistic' GROUP BY build_id ORDER BY build_id";
    let csv = fleet(&["query", sql, &shards, "--format", "csv"]);
    assert_eq!(
        String::from_utf8(csv.stdout).unwrap(),
        "build_id,n\n,9\naa,7\nbeef,15\ndeadbeef01,12\n"
    );
    let found = profile(&folder, &[&shards], "out.preagg", &[]);
    assert_eq!(
        String::from_utf8(found).unwrap(),
        "T 0 1c 20 5\nB 10 20 3 1\nB 18 0 4 0\n"
            .lines()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .fold(String::new(), |all, line| all + line + "\n")
    );
}

#[test]
fn a_damaged_or_cut_shard_is_named_and_left_out_only_if_asked() {
    let folder = Folder::new();
    four(&folder);
    let shards = folder.name("shards");
    let victim = folder.shards("shards")[1].clone();
    let name = victim.file_name().unwrap().to_str().unwrap().to_owned();
    let whole = std::fs::read(&victim).unwrap();
    let out = folder.name("out.plprof");
    let ask = ["profile", &shards, "--build-id", ID, "-o", &out];
    let mut flipped = whole.clone();
    flipped[whole.len() / 3] ^= 4;
    let damages: [(&str, &[u8], &str); 5] = [
        ("cut", &whole[..whole.len() / 2], "where \"PAR1\" must be"),
        ("one bit", &flipped, "the hash of its bytes is"),
        ("empty", &[], "0 bytes"),
        ("other", b"1 main 0 1 main 4 0 1\n", "PAR1"),
        (
            "footer",
            b"PAR1....\xff\xff\xff\x7fPAR1",
            "length of the footer is 2147483647",
        ),
    ];
    for (what, bytes, expected) in damages {
        std::fs::write(&victim, bytes).unwrap();
        let message = refused(&ask);
        assert!(
            message.contains(&name) && message.contains(expected),
            "{what}: {message}"
        );
        let mut skipping = ask.to_vec();
        skipping.push("--skip-damaged");
        let said = text(&fleet(&skipping));
        assert!(
            said.contains(&name) && said.contains("1 damaged files were left out, 3 are used"),
            "{what}: {said}"
        );
        let check = run(&["check", &shards]);
        assert!(!check.status.success() && text(&check).contains(&name));
    }
    std::fs::write(&victim, &whole).unwrap();
    fleet(&["check", &shards]);
}

/// Adding, merging and writing profiles where there is no space left gives an error and leaves nothing behind.
#[test]
fn a_full_disk_is_an_error_and_leaves_no_part_of_a_file() {
    let folder = Folder::new();
    let expected = four(&folder);
    let shards = folder.name("shards");
    let before = folder.shards("shards");
    let limited = |arguments: &str| {
        let program = env!("CARGO_BIN_EXE_postlink-fleet");
        // A limit of one block of 512 bytes for files, whose signal is ignored, is what a full disk looks like to a
        // writer.
        let script = format!("ulimit -f 1; trap '' XFSZ; exec {program} {arguments}");
        Command::new("bash").args(["-c", &script]).output().unwrap()
    };
    let merged = limited(&format!("merge {shards} -o {shards} --replace"));
    assert!(!merged.status.success());
    let message = text(&merged);
    assert!(message.contains("cannot write a shard"), "{message}");
    assert_eq!(folder.shards("shards"), before);
    let new = folder.counters("5.plprof", &counters(5, 0xabc));
    let added = limited(&format!("add {new} -o {shards}"));
    assert!(!added.status.success());
    assert_eq!(folder.shards("shards"), before);
    assert_eq!(profile(&folder, &[&shards], "a.plprof", &[]), expected);
}

#[test]
fn two_builds_with_one_id_are_told_and_can_be_chosen() {
    let folder = Folder::new();
    let a = folder.counters("a.plprof", &counters(1, 0x11));
    let b = folder.counters("b.plprof", &counters(2, 0x22));
    let shards = folder.name("shards");
    fleet(&["add", &a, &b, "-o", &shards]);
    let out = folder.name("out.plprof");
    let message = refused(&["profile", &shards, "--build-id", ID, "-o", &out]);
    assert!(
        message.contains("0000000000000011 (500 counters, 20 call sites), 0000000000000022"),
        "{message}"
    );
    let said = text(&fleet(&["quality", &shards]));
    assert!(said.contains("2 counter maps"), "{said}");
    let more = ["--map", "0000000000000022"];
    let one = profile(&folder, &[&shards], "b2.plprof", &more);
    assert_eq!(one, folder.bytes("b.plprof"));
}

#[test]
fn quality_says_what_is_missing_and_which_clock_lies() {
    let folder = Folder::new();
    let shards = folder.name("shards");
    let path = folder.file("a.preagg", "T 10 20 30 40 1\nS 20 2\n");
    let add = ["add", &path, "--build-id", ID, "-o", &shards, "--day"];
    let mut lying = add.to_vec();
    lying.push("2999-01-01");
    let said = text(&fleet(&lying));
    assert!(said.contains("2999-01-01, and today is"), "{said}");
    let ask = [
        "quality",
        &shards,
        "--build-id",
        ID,
        "--today",
        "2026-11-23",
    ];
    let output = run(&ask);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output);
    assert!(
        said.contains("a clock lied") && said.contains("40 taken branches, 100000 are enough"),
        "{said}"
    );
    let mut enough = ask.to_vec();
    enough.extend(["--min-branches", "40"]);
    let said = text(&fleet(&enough));
    assert!(
        said.contains("one for each 16.0 bytes") && said.contains("\n  enough"),
        "{said}"
    );
    let old = folder.name("old");
    let path = folder.file("b.preagg", "T 10 20 30 400000 1\n");
    fleet(&[
        "add",
        &path,
        "--build-id",
        ID,
        "-o",
        &old,
        "--day",
        "2026-01-01",
    ]);
    let said = text(&fleet(&["quality", &old, "--today", "2026-11-23"]));
    assert!(said.contains("326 days old, 30 are allowed"), "{said}");
}

#[test]
fn expiring_removes_old_days_and_keeps_the_rest_of_merged_files() {
    let folder = Folder::new();
    let shards = folder.name("shards");
    for (seed, day) in [(1, "2026-01-01"), (2, "2026-02-01"), (3, "2026-03-01")] {
        let path = folder.counters(&format!("{seed}.plprof"), &counters(seed, 1));
        fleet(&["add", &path, "-o", &shards, "--day", day]);
    }
    fleet(&["merge", &shards, "-o", &shards, "--replace"]);
    fleet(&["expire", &shards, "--before", "2026-02-01", "--dry-run"]);
    let all = ["1.plprof", "2.plprof", "3.plprof"].map(|name| weighted(&folder.name(name), 1));
    let bytes = |inputs: &[Weighted]| {
        let mut bytes = Vec::new();
        plprof::write_to(&mut bytes, &merge(inputs).unwrap().profile).unwrap();
        bytes
    };
    assert_eq!(profile(&folder, &[&shards], "a.plprof", &[]), bytes(&all));
    let until = ["--until", "2026-01-31"];
    let first = profile(&folder, &[&shards], "f.plprof", &until);
    assert_eq!(first, bytes(&all[..1]));
    fleet(&["expire", &shards, "--before", "2026-02-01"]);
    assert_eq!(folder.shards("shards").len(), 1);
    assert_eq!(
        profile(&folder, &[&shards], "b.plprof", &[]),
        bytes(&all[1..])
    );
    // What has expired does not come back.
    let first = &folder.name("1.plprof");
    let said = text(&fleet(&[
        "add",
        first,
        "-o",
        &shards,
        "--day",
        "2026-01-01",
    ]));
    assert!(said.contains("is there already"), "{said}");
    fleet(&["expire", &shards, "--before", "2027-01-01"]);
    assert!(folder.shards("shards").is_empty());
}

#[test]
fn a_small_memory_spills_and_gives_the_same_rows() {
    let folder = Folder::new();
    let mut text = String::new();
    for at in 0..60_000u64 {
        let from = at.wrapping_mul(0x9e37_79b9) & 0xff_ffff;
        text += &format!("B {from:x} {:x} {} {}\n", from ^ 0x5555, at + 1, at & 1);
    }
    let path = folder.file("a.preagg", &text);
    let shards = folder.name("shards");
    for run in ["a", "b"] {
        fleet(&["add", &path, "--build-id", ID, "--run", run, "-o", &shards]);
    }
    let temporary = folder.name("temporary");
    let (small, large) = (folder.name("small"), folder.name("large"));
    fleet(&["merge", &shards, "-o", &large]);
    let limits = ["--memory", "24M", "--temporary", &temporary];
    let mut arguments = vec!["merge", &shards, "-o", &small];
    arguments.extend(["--memory", "2M", "--temporary", &temporary]);
    let said = self::text(&fleet(&arguments));
    assert!(said.contains("bytes went to temporary files"), "{said}");
    let names = |folder: Vec<PathBuf>| folder[0].file_name().unwrap().to_owned();
    // The name has the hash of all bytes.
    assert_eq!(names(folder.shards("small")), names(folder.shards("large")));
    assert_eq!(
        profile(&folder, &[&small], "a.preagg.preagg", &limits),
        profile(&folder, &[&shards], "b.preagg", &[])
    );
}

#[test]
fn wrong_requests_are_sentences() {
    let folder = Folder::new();
    four(&folder);
    let shards = folder.name("shards");
    let out = folder.name("out.plprof");
    let empty = folder.name("empty");
    std::fs::create_dir(&empty).unwrap();
    let yaml = folder.file("a.yaml", "---\nheader:\n");
    let wrong: [(&[&str], &str); 7] = [
        (
            &["profile", &shards, "--build-id", "00", "-o", &out],
            "it has none at all",
        ),
        (
            &["profile", &shards, "--build-id", ID, "-o", "x.fdata"],
            "of counter",
        ),
        (
            &["profile", &shards, "--build-id", ID, "-o", "x.doc"],
            ".plprof (counters)",
        ),
        (&["query", "SELECT 1", &empty], "no shard there"),
        (&["query", "SELECT nothing FROM counts", &shards], "nothing"),
        (&["add", &yaml, "-o", &shards], "postlink convert"),
        (&["query", "SELECT 1", "/nowhere"], "/nowhere"),
    ];
    for (arguments, expected) in wrong {
        let message = refused(arguments);
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
    assert!(!Path::new("x.fdata").exists());
}

#[test]
fn counts_of_code_that_only_moved_are_carried_over_to_a_new_build() {
    let folder = Folder::new();
    let Some((old, new)) = builds(&folder) else {
        println!("SKIPPED: gcc is not installed");
        return;
    };
    let (same, size) = symbol(&old, "same");
    let (changed, _) = symbol(&old, "changed");
    let (moved, moved_size) = symbol(&new, "same");
    assert!(moved != same && moved_size == size);
    let (a, b) = (same + 4, same + size - 1);
    let text = format!(
        "B {a:x} {b:x} 30 2\nT {b:x} {a:x} {b:x} 7\nF {a:x} {b:x} 5\nS {a:x} 9\nB {:x} {changed:x} 40 0\nB X:0 {same:x} 3 0\n",
        changed + 4
    );
    let shards = folder.name("shards");
    let profile_text = folder.file("a.preagg", &text);
    fleet(&["add", &profile_text, "--binary", &old, "-o", &shards]);
    let out = folder.name("stale");
    let said = self::text(&fleet(&[
        "stale", &shards, "--from", &old, "--to", &new, "-o", &out,
    ]));
    // 30 + 7 + 5 + 9 + 3 of these and 40.
    assert!(said.contains("57.4 % of the counts"), "{said}");
    let sql = "SELECT DISTINCT build_id AS id FROM counts";
    let ids = fleet(&["query", sql, &out, "--format", "csv"]);
    let id = String::from_utf8(ids.stdout).unwrap();
    let id = id.trim_start_matches("id\n").trim();
    let written = folder.name("new.preagg");
    fleet(&["profile", &out, "--build-id", id, "-o", &written]);
    let (a, b) = (moved + 4, moved + size - 1);
    let mut expected = vec![
        format!("B {a:x} {b:x} 30 2"),
        format!("T {b:x} {a:x} {b:x} 7"),
        format!("F {a:x} {b:x} 5"),
        format!("S {a:x} 9"),
        format!("B 0 {moved:x} 3 0"),
    ];
    expected.sort();
    let found = std::fs::read_to_string(&written).unwrap();
    let mut found: Vec<&str> = found.lines().collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    // A build that has no rows, and one that is the same.
    let message = refused(&["stale", &shards, "--from", &new, "--to", &old, "-o", &out]);
    assert!(message.contains("no count of the build"), "{message}");
    let message = refused(&["stale", &shards, "--from", &new, "--to", &new, "-o", &out]);
    assert!(message.contains("the same build"), "{message}");
}

/// Adding up takes some seconds, as it is stopped for ten elevenths of the time: else it would take millions of rows.
/// The terminal is one that `script` makes.
#[test]
fn a_terminal_is_told_how_many_rows_are_left_and_a_pipe_nothing() {
    let folder = Folder::new();
    let branches: String = (0..100_000u64)
        .map(|k| {
            format!(
                "B {:x} {:x} {} 0\n",
                0x1000 + 7 * k,
                0x2000 + 13 * k,
                k % 9 + 1
            )
        })
        .collect();
    let (profile, shards) = (folder.file("a.preagg", &branches), folder.name("shards"));
    let runs = if cfg!(debug_assertions) { 8 } else { 40 };
    for run in 0..runs {
        let run = run.to_string();
        let labels = ["--build-id", ID, "--run", &run, "-o", &shards];
        fleet(&[&["add", &profile][..], &labels].concat());
    }
    let piped = text(&fleet(&["merge", &shards, "-o", &folder.name("piped")]));
    assert!(
        !piped.contains('\r') && !piped.contains(" left"),
        "{piped:?}"
    );
    let program = env!("CARGO_BIN_EXE_postlink-fleet");
    // What has ended and was not waited for yet can still be stopped, but has no program any more.
    let merge_shown = |attempt: u32| {
        let line = format!(
            "stty cols 150; '{program}' merge '{shards}' -o '{}' & id=$!; \
             while [ -e /proc/$id/exe ]; do kill -STOP $id; sleep 0.2; kill -CONT $id; sleep 0.02; done; wait $id",
            folder.name(&format!("merged{attempt}"))
        );
        let shown = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm")
            .output()
            .expect("script, of util-linux");
        let shown = text(&shown);
        let rows: Vec<u64> = shown
            .split('\r')
            .filter(|part| part.contains(" rows read, about ") && part.contains(" left ("))
            .filter_map(|part| {
                let (read, _) = part.split_once("merge: ")?.1.split_once(" of ")?;
                read.replace(',', "").parse().ok()
            })
            .collect();
        (shown, rows)
    };
    // Where the machine has much other work the shell may stop the program once or not at all before it is done.
    let (shown, rows) = (0..10)
        .map(merge_shown)
        .find(|(_, rows)| rows.len() >= 2)
        .expect("one of ten runs is stopped twice while it reads");
    assert!(rows.is_sorted(), "{shown:?}");
    assert!(rows.last() > rows.first(), "{shown:?}");
    assert!(
        shown.contains("shards"),
        "what came of it is said: {shown:?}"
    );
}
