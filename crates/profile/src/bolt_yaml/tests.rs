use super::*;

/// As perf2bolt 19 writes it.
const TEXT: &str = "---
header:
  profile-version: 1
  binary-name:     './t'
  binary-build-id: 994ff20b0e9739a137d963a1c831f968b25b74eb
  profile-flags:   [ lbr ]
  profile-origin:  perf data aggregator
  profile-events:  ''
  dfs-order:       false
  hash-func:       xxh3
functions:
  - name:            'qsort@PLT'
    fid:             12
    hash:            0x0
    exec:            4
    nblocks:         0
  - name:            main
    fid:             2
    hash:            0xED32D2F24831562E
    exec:            0
    nblocks:         7
    blocks:
      - bid:             4
        insns:           8
        hash:            0xEF2B4CCC6F700060
        succ:            [ { bid: 4, cnt: 7359, mis: 3 }, { bid: 5, cnt: 4 } ]
      - bid:             5
        insns:           13
        exec:            9
        calls:           [ { off: 0x12, fid: 12, cnt: 4 }, { off: 0x1A, 
                                                             fid: 10, disc: 1, 
                                                             cnt: 2, mis: 1 }, 
                           { off: 0x1F, fid: 12, cnt: 1 } ]
        succ:            [ { bid: 3, cnt: 1 }, { bid: 6, cnt: 0 } ]
...
";

fn parsed(text: &str) -> BoltYaml {
    read_bytes(Path::new("x.yaml"), text.as_bytes()).unwrap()
}

fn text(profile: &BoltYaml) -> String {
    String::from_utf8(to_bytes(profile)).unwrap()
}

fn error(text: &str) -> String {
    read_bytes(Path::new("x.yaml"), text.as_bytes())
        .unwrap_err()
        .to_string()
}

#[test]
fn what_is_read_is_written_as_llvm_lays_it_out() {
    let profile = parsed(TEXT);
    assert_eq!(profile.header.hash_function, HashFunction::Xxh3);
    assert!(!profile.header.dfs_order);
    assert_eq!(profile.functions.len(), 2);
    assert_eq!(profile.functions[1].blocks[1].calls[1].discriminator, 1);
    assert_eq!(text(&profile), TEXT);
}

#[test]
fn absent_keys_have_their_meaning() {
    let profile = parsed(
        "---\nheader:\n  profile-version: 1\n  binary-name: a\n  profile-flags: [ sample ]\nfunctions: []\n...\n",
    );
    assert!(profile.header.dfs_order && profile.header.sample && !profile.header.lbr);
    assert_eq!(profile.header.hash_function, HashFunction::StdHash);
    assert_eq!(parsed(&text(&profile)), profile);
}

#[test]
fn keys_of_other_releases_survive() {
    let extended = TEXT
        .replace("    blocks:\n", "    inline_tree:     [ {  }, { g: 1, p: 2, cs: 3 } ]\n    blocks:\n")
        .replace("        exec:            9\n", "        exec:            9\n        probes:\n          - blk: [ 1, 2 ]\n            ids: [ 0 ]\n")
        .replace("...\n", "pseudo_probe_desc:\n  gs: [ 0x1, 0x2 ]\n  gh: [ 0 ]\n...\n");
    let profile = parsed(&extended);
    assert_eq!(profile.extra[0].0, b"pseudo_probe_desc");
    assert_eq!(profile.functions[1].extra[0].0, b"inline_tree");
    let again = text(&profile);
    assert!(
        again.contains("probes:          [ { blk: [ 1, 2 ], ids: [ 0 ] } ]"),
        "{again}"
    );
    assert_eq!(parsed(&again), profile);
}

#[test]
fn pseudo_probes_are_read_as_llvm_bolt_writes_them_and_written_alike() {
    let extended = TEXT
        .replace("    blocks:\n", "    inline_tree:     [ { g: 0 }, { g: 1, cs: 3 }, { p: 1, cs: 4 } ]\n    blocks:\n")
        .replace(
            "        exec:            9\n",
            "        exec:            9\n        probes:          [ { blk: [ 1, 2 ] }, { ids: [ 1, 2 ] } ]\n",
        )
        .replace("...\n", "pseudo_probe_desc:\n  gs: [ 0xA, 0xB ]\n  gh: [ 1, 0 ]\n  hs: [ 0x7, 0x8 ]\n...\n");
    let profile = parsed(&extended);
    let functions = profile.source_functions();
    let of = |guid, hash| probes::SourceFunction { guid, hash };
    assert_eq!(functions, [of(0xa, 8), of(0xb, 7)]);
    let function = &profile.functions[1];
    let node = |function, parent, site| probes::Inlined {
        function,
        parent,
        site,
    };
    let tree = function.inline_tree();
    assert_eq!(tree, [node(0, 0, 0), node(1, 0, 3), node(1, 1, 4)]);
    let block = function.blocks.iter().find(|b| !b.extra.is_empty());
    let block = block.expect("one has probes");
    let probe = |node, number| probes::BlockProbe { node, number };
    let expected = [probe(0, 1), probe(0, 2), probe(1, 1), probe(2, 1)];
    assert_eq!(block.probes(), expected);
    let mut again = profile.clone();
    again.set_source_functions(&functions);
    again.functions[1].set_inline_tree(&tree);
    let copy = again.functions[1]
        .blocks
        .iter_mut()
        .find(|b| !b.extra.is_empty());
    copy.expect("one has probes").set_probes(&expected);
    assert_eq!(again, profile);
    // A short text that says very many.
    let list = |count: u32| {
        (1..=count)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let with = |count: u32| {
        let many = format!("{{ blk: [ {} ], ids: [ {} ] }}", list(count), list(count));
        let profile = parsed(&extended.replace("{ blk: [ 1, 2 ] }", &many));
        let blocks = profile.functions[1].blocks.iter();
        blocks.map(|b| b.probes().len()).max()
    };
    assert_eq!((with(200), with(300)), (Some(200 * 200 + 2), Some(0)));
    // A node that comes before its parent, and numbers that name nothing.
    let broken = parsed(&extended.replace("{ p: 1, cs: 4 }", "{ p: 7, cs: 4 }"));
    assert!(broken.functions[1].inline_tree().is_empty());
    assert!(
        parsed(&extended.replace("[ 1, 0 ]", "[ 1, 9 ]"))
            .source_functions()
            .is_empty()
    );
}

#[test]
fn pseudo_probes_of_two_lists_of_functions_are_not_mixed() {
    let with = |guids: &str| {
        let desc =
            format!("pseudo_probe_desc:\n  gs: [ {guids} ]\n  gh: [ 0, 0 ]\n  hs: [ 0x7 ]\n...\n");
        parsed(&TEXT.replace("...\n", &desc))
    };
    let (a, b) = (with("0xA, 0xB"), with("0xB, 0xA"));
    let (x, y) = (Path::new("x"), Path::new("y"));
    let sum = |b: &BoltYaml| merge(vec![(x, a.clone()), (y, b.clone())]).expect("of one program");
    assert_eq!(sum(&a).source_functions().len(), 2);
    assert!(sum(&b).source_functions().is_empty());
}

#[test]
fn damage_is_an_error_with_line_and_value() {
    assert_eq!(error(""), "x.yaml:1: a BOLT profile without \"header\"");
    assert_eq!(
        error(&TEXT.replace("version: 1", "version: 2")),
        "x.yaml:2: BOLT profile of version 2, only 1 can be read"
    );
    assert_eq!(
        error(&TEXT.replace("exec:            4", "exec:            -4")),
        "x.yaml:12: \"exec\" of a function must be a number below 2^64, is \"-4\""
    );
    assert_eq!(
        error(&TEXT.replace("    nblocks:         7\n", "")),
        "x.yaml:17: a function without \"nblocks\""
    );
    assert_eq!(
        error(&TEXT.replace("cnt: 7359,", "cnt: 7359")),
        "x.yaml:17: \"cnt\" of a successor must be a number below 2^64, is \"7359 mis: 3\""
    );
    assert!(
        error(&TEXT.replace(
            "{ bid: 4, cnt: 7359, mis: 3 }",
            "{ bid: 4, cnt: 7359, mis: 3 ]"
        ))
        .contains("x.yaml:26: expected , or }")
    );
    assert!(
        error(&TEXT.replace("[ lbr ]", "[ ibr ]"))
            .contains("a list of lbr, sample, memevent, is \"ibr\"")
    );
    assert!(
        error(&TEXT.replace("'./t'", "&anchor x")).contains("expected a plain or quoted value")
    );
}

#[test]
fn merging_keeps_the_header_follows_names_and_does_not_depend_on_order() {
    let a = parsed(TEXT);
    let mut b = a.clone();
    b.functions.reverse();
    b.functions[1].fid = 3;
    for block in &mut b.functions[0].blocks {
        block
            .calls
            .iter_mut()
            .filter(|call| call.fid == 12)
            .for_each(|call| call.fid = 3);
    }
    let (x, y) = (Path::new("x"), Path::new("y"));
    let sum = merge(vec![(x, a.clone()), (y, b.clone())]).unwrap();
    assert_eq!(sum, merge(vec![(y, b.clone()), (x, a.clone())]).unwrap());
    assert_eq!(sum.header, a.header);
    let main = &sum.functions[0];
    assert_eq!(
        (&main.name[..], main.fid, sum.functions[1].fid),
        (&b"main"[..], 1, 2)
    );
    let calls: Vec<_> = main.blocks[1]
        .calls
        .iter()
        .map(|call| (call.offset, call.fid, call.count))
        .collect();
    assert_eq!(calls, [(0x12, 2, 8), (0x1a, 0, 4), (0x1f, 2, 2)]);
    assert_eq!(
        main.blocks[0].successors[0],
        Successor {
            bid: 4,
            count: 14718,
            mispredictions: 6
        }
    );
    let tree = merge(vec![
        (x, merge(vec![(x, a.clone()), (y, b.clone())]).unwrap()),
        (y, a.clone()),
    ])
    .unwrap();
    assert_eq!(
        tree,
        merge(vec![(y, a.clone()), (x, a.clone()), (y, b.clone())]).unwrap()
    );

    b.functions[0].hash = 1;
    let text = merge(vec![(x, a.clone()), (y, b)]).unwrap_err().to_string();
    assert!(
        text.contains("0xed32d2f24831562e (function main) in the first, 0x1 in the second"),
        "{text}"
    );
    let mut c = a.clone();
    c.header.hash_function = HashFunction::StdHash;
    assert!(
        merge(vec![(x, a), (y, c)])
            .unwrap_err()
            .to_string()
            .contains("Xxh3 in the first, StdHash in the second")
    );
}

#[test]
fn many_functions_are_read_in_pieces_in_their_order() {
    let (head, rest) = TEXT.split_at(TEXT.find("  - name").unwrap());
    let list = rest.strip_suffix("...\n").unwrap();
    let many = format!("{head}{}...\n", list.repeat(2000));
    let profile = parsed(&many);
    assert_eq!(profile.functions.len(), 4000);
    assert!(text(&profile) == many, "the text is not the same");
}

#[test]
fn any_text_is_read_or_refused_and_what_is_read_survives() {
    arbtest::arbtest(|u| {
        let mut bytes = TEXT.as_bytes().to_vec();
        for _ in 0..u.int_in_range(0..=5)? {
            let at = u.choose_index(bytes.len())?;
            match u.int_in_range(0..=3)? {
                0 => bytes[at] = u.arbitrary()?,
                1 => bytes[at] = *u.choose(b"[]{}:,-'\"# \n")?,
                2 => {
                    bytes.remove(at);
                }
                _ => bytes.insert(at, *u.choose(b"[]{}:,-'\"# \n")?),
            }
        }
        if let Ok(profile) = read_bytes(Path::new("x"), &bytes) {
            let again = to_bytes(&profile);
            // Keys of unknown fields are written as they are, and may be no keys any more.
            if let Ok(reread) = read_bytes(Path::new("y"), &again) {
                assert_eq!(to_bytes(&reread), again);
            }
        }
        let any: Vec<u8> = u.arbitrary()?;
        let _ = read_bytes(Path::new("x"), &any);
        let _ = read_bytes(
            Path::new("x"),
            &[b"a: ".to_vec(), b"[".repeat(5000)].concat(),
        );
        Ok(())
    });
}
