//! OCaml programs without kept relocations: frame tables are looked up by return address while the garbage collector
//! runs, also of functions that end in a jump through a closure.

use std::fs;
use std::process::Command;

mod support;
use support::done;

const POSTLINK: &str = env!("CARGO_BIN_EXE_postlink");

/// `apply` calls a closure, allocates, and then leaves by a jump through another one.
const SOURCE: &str = r#"
let rec build n = if n = 0 then [] else string_of_int n :: build (n - 1)
let apply f g n =
  let l = f n in
  let s = String.concat "," l in
  g (s ^ string_of_int (List.length l))
let () =
  let total = ref 0 in
  for i = 1 to 300 do
    let f n = Gc.minor (); build n in
    let g s = if i mod 50 = 0 then Gc.compact (); String.length s in
    total := !total + apply (Sys.opaque_identity f) (Sys.opaque_identity g) (i mod 40)
  done;
  Printf.printf "%d\n" !total
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn functions_of_ocaml_with_return_addresses_in_frame_tables_stay_without_relocations() {
    if Command::new("ocamlopt").arg("-version").output().is_err() {
        eprintln!("SKIPPED: ocamlopt is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("app.ml"), SOURCE).unwrap();
    let mut compile = Command::new("ocamlopt");
    done(
        compile
            .args(["-inline", "0", "-o", "app", "app.ml"])
            .current_dir(folder.path()),
    );
    let expected = done(&mut Command::new(at("app"))).stdout;
    let mut instrument = Command::new(POSTLINK);
    instrument
        .arg("instrument")
        .args([at("app"), "-o".into(), at("counting")]);
    done(instrument.arg("--profile").arg(at("profile")));
    assert_eq!(done(&mut Command::new(at("counting"))).stdout, expected);
    for preset in ["safe", "fast"] {
        let mut optimize = Command::new(POSTLINK);
        optimize.arg("optimize").args([
            at("app"),
            "-p".into(),
            at("profile"),
            "-o".into(),
            at("out"),
        ]);
        done(optimize.args(["--preset", preset]));
        assert_eq!(
            done(&mut Command::new(at("out"))).stdout,
            expected,
            "{preset}"
        );
    }
}
