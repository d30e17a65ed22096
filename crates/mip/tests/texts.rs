//! What is printed, character for character.

use std::path::Path;

use postlink_mip::{Edge, InferredBlock, Profile, Trace, order, outline, report, yaml};

const YAML: &str = "\
---
Header:
  File Type:       [ .mip ]
  Profile Type:    [ Function Coverage ]
  Module Hash:     0xDEADBEEF
Profiles:
  - Function Name:   foo
    Function Signature: 0x5CF8C24CDB18BDAC
    Raw Profile Data Address: 0x20
    Encoded Function Address: 0x100
    Function Size:   0x10
    Control Flow Graph Signature: 0xE7715
    Raw Profile Count: 1
    Function Call Count: 1
    Function Order Sum: 0
    Basic Block Profiles:
      - Offset:          0x0
        Covered:         true
      - Offset:          0x4
        Covered:         false
    Call Edges:      []
  - Function Name:   main
    Function Signature: 0xDB956436E78DD5FA
    Raw Profile Data Address: 0x21
    Encoded Function Address: 0x110
    Function Size:   0x30
    Control Flow Graph Signature: 0x1111
    Raw Profile Count: 0
    Function Call Count: 0
    Function Order Sum: 0
    Basic Block Profiles:
      - Offset:          0x0
        Covered:         false
    Call Edges:      []
...
";

fn profile() -> Profile {
    yaml::read(Path::new("y"), YAML.as_bytes()).unwrap()
}

fn options() -> report::Options<'static> {
    report::Options {
        filter: &|_| true,
        symbolizer: None,
        color: false,
    }
}

fn text(print: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    print(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn yaml_of_the_vectors_is_read_and_written_byte_for_byte() {
    assert_eq!(yaml::write(&profile(), None), YAML);
    let bytes = postlink_mip::mip::to_bytes(&profile());
    assert_eq!(bytes.len(), 182);
    let again = postlink_mip::mip::read(Path::new("p"), &bytes).unwrap();
    assert_eq!(yaml::write(&again, None), YAML);
}

#[test]
fn the_scalar_file_type_of_older_texts_is_read() {
    let old = YAML.replace("[ .mip ]", ".mip");
    assert_eq!(
        yaml::read(Path::new("y"), old.as_bytes()).unwrap(),
        profile()
    );
}

#[test]
fn yaml_has_all_that_a_profile_has() {
    let mut full = profile();
    full.identity = 0xABC;
    full.functions[0].inferred = vec![InferredBlock {
        offset: 8,
        from: vec![0, 1],
    }];
    full.functions[1].edges = vec![Edge {
        source: -5,
        weight: 9,
    }];
    full.traces = vec![Trace {
        key: 1,
        functions: vec![1, 0],
        weight: 3,
    }];
    for name in [
        "a b",
        "'",
        "x\"y",
        "1e5",
        "~",
        "operator<<",
        "a\tb",
        "-x",
        "ünï",
        "",
    ] {
        full.functions[0].name = name.into();
        full.functions[0].signature = postlink_mip::hash::md5_64(name.as_bytes());
        let text = yaml::write(&full, None);
        let read = yaml::read(Path::new("y"), text.as_bytes());
        assert_eq!(read.unwrap(), full, "{text}");
    }
}

#[test]
fn yaml_that_is_wrong_is_refused_with_the_key() {
    for (from, to, message) in [
        (
            "Function Size:   0x10",
            "Function Size:   ten",
            "profile 1: \"Function Size\" must be a number of 32 bits, is \"ten\"",
        ),
        (
            "0x5CF8C24CDB18BDAC",
            "0x1",
            "profile 1: the signature of foo is 0x5CF8C24CDB18BDAC, not 0x1",
        ),
        (
            "    Raw Profile Count: 1\n",
            "",
            "profile 1: a profile has no \"Raw Profile Count\"",
        ),
        (
            "[ Function Coverage ]",
            "[ Magic ]",
            "unknown profile type \"Magic\"",
        ),
        ("Profiles:", "Profile:", "unexpected \"Profile\""),
    ] {
        let text = YAML.replacen(from, to, 1);
        let error = yaml::read(Path::new("y"), text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn show_covered_and_info_print_the_texts_of_the_original() {
    let profile = profile();
    assert_eq!(
        text(|out| report::show(out, &profile, options()).unwrap()),
        "foo\n  Call Count: 1\n  Block Coverage:\n     HOT  COLD\n\nmain\n  Call Count: 0\n\n"
    );
    let mut count = report::CoveredCount::default();
    let names = text(|out| {
        count = report::covered(out, &profile, options(), report::Covered::Names).unwrap();
    });
    assert_eq!((names.as_str(), count.total), ("foo\n", 1));
    assert_eq!(
        text(|out| report::Info::of(&profile).print(out).unwrap()),
        "Total Raw Profile Count: 1\nTotal Machine Functions: 2\nProfiled Machine Functions: 1\n\
         Total Machine Basic Blocks: 3\nCovered Machine Basic Blocks: 1\nTotal Call Edges: 0\n"
    );
}

#[test]
fn blocks_stand_eight_on_a_line_and_order_sums_are_shown() {
    let mut profile = profile();
    let foo = &mut profile.functions[0];
    let mut block = foo.blocks[0];
    block.covered = true;
    foo.blocks = vec![block; 8];
    foo.order_sum = 7;
    profile.functions.truncate(1);
    assert_eq!(
        text(|out| report::show(out, &profile, options()).unwrap()),
        "foo\n  Call Count: 1\n  Order Sum: 7\n  Block Coverage:\n     HOT  HOT  HOT  HOT  HOT  HOT  HOT  HOT \n     HOT \n\n"
    );
}

/// Functions a, b, c, … of 64 bytes with the given (runs, order sum).
fn ordered(counts: &[(u32, u64)]) -> Profile {
    let mut profile = profile();
    let one = profile.functions[1].clone();
    profile.functions = (0i64..)
        .zip(counts)
        .map(|(index, &(raw_count, order_sum))| {
            let mut function = one.clone();
            function.name = match u8::try_from(index) {
                Ok(letter) if letter < 26 => vec![b'a' + letter],
                _ => format!("f{index}").into_bytes(),
            };
            function.signature = postlink_mip::hash::md5_64(&function.name);
            function.address = index * 64;
            function.size = 64;
            function.raw_count = raw_count;
            function.call_count = raw_count.into();
            function.order_sum = order_sum;
            function
        })
        .collect();
    profile
}

#[test]
fn functions_are_ordered_by_the_average_of_their_first_calls() {
    // Averages 3, none, 1.5, 3, and sums whose products do not fit 64 bits.
    let profile = ordered(&[(2, 6), (0, 0), (2, 3), (1, 3), (u32::MAX, u64::MAX)]);
    let order = order::by_first_call(&profile);
    assert_eq!(order, [2, 0, 3, 4]);
    let file = |format| String::from_utf8(order::file(&profile, &order[..2], format)).unwrap();
    assert_eq!(file(order::Format::Symbols), "c\na\n");
    assert_eq!(
        file(order::Format::Gold).lines().collect::<Vec<_>>()[..4],
        [
            ".text.c",
            ".text.hot.c",
            ".text.startup.c",
            ".text.unlikely.c"
        ]
    );
    assert!(file(order::Format::Ld).starts_with(".text : {\n  *(.text.c .text.hot.c "));
}

#[test]
fn coverage_alone_has_no_order_for_the_start_nor_edges() {
    let profile = profile();
    assert_eq!(order::by_first_call(&profile), [0]);
    assert_eq!(order::by_start_up(&profile), None);
    assert_eq!(order::by_call_graph(&profile), None);
}

#[test]
fn callers_and_callees_come_together() {
    let mut profile = ordered(&[(9, 9), (9, 9), (9, 9), (9, 9), (0, 0)]);
    let call = |from: i64, weight| Edge {
        source: from * 64 + 64, // the call is the last instruction
        weight,
    };
    profile.functions[3].edges = vec![call(0, 9)];
    profile.functions[1].edges = vec![call(2, 9)];
    let order = order::by_call_graph(&profile).unwrap();
    let place = |f: u32| order.iter().position(|&g| g == f).unwrap();
    assert_eq!(order.len(), 4);
    assert_eq!(place(3), place(0) + 1);
    assert_eq!(place(1), place(2) + 1);
}

#[test]
fn functions_of_one_start_share_pages() {
    // 256 functions of 64 bytes; starts call every 16th.
    let mut profile = ordered(&[(1, 1); 256]);
    let trace: Vec<u32> = (0..256).step_by(16).collect();
    for &f in &trace {
        profile.functions[f as usize].order_sum = 1;
    }
    profile.traces = vec![Trace {
        key: 1,
        functions: trace,
        weight: 1,
    }];
    let order = order::by_start_up(&profile).unwrap();
    let pages = |layout: &[u32]| order::pages_touched(&profile, layout, 1024);
    assert_eq!(pages(&order::by_address(&profile)), [16]);
    assert_eq!(pages(&order), [1]);
}

#[test]
fn similar_cold_functions_lie_together() {
    let profile = ordered(&[(0, 0), (0, 0), (0, 0), (0, 0), (1, 0)]);
    let one: Vec<u8> = (0..64).collect();
    let two: Vec<u8> = (100..164).collect();
    let code = |f: u32| {
        Some(if f.is_multiple_of(2) {
            &one[..]
        } else {
            &two[..]
        })
    };
    let order = order::by_similarity(&profile, code);
    assert!(order == [0, 2, 1, 3] || order == [1, 3, 0, 2], "{order:?}");
}

#[test]
fn cold_blocks_in_a_row_are_one_candidate() {
    let mut profile = profile();
    let foo = &mut profile.functions[0];
    let block = |offset, covered| postlink_mip::Block { offset, covered };
    foo.size = 100;
    foo.blocks = vec![
        block(10, false),
        block(20, false),
        block(0, false), // it vanished
        block(50, true),
        block(60, false),
    ];
    assert_eq!(outline::cold_runs(foo), [(10, 40), (60, 40)]);
    let found = outline::candidates(&profile, 1, 16);
    assert_eq!(
        found
            .iter()
            .map(|c| (c.function, c.advice, c.bytes))
            .collect::<Vec<_>>(),
        [
            (0, outline::Advice::ColdBlocks, 80),
            (1, outline::Advice::NeverRan, 0x30)
        ]
    );
}
