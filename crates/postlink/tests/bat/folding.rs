//! Profiles of programs in which identical functions were folded: they have all counts in the function that stands for
//! the others, and are as good for folding again.

use std::process::Command;

use super::{Bench, emulate, is_there, postlink, run, text};

const SOURCE: &str = r#"
#include <cstdio>
#include <cstdlib>
struct A; struct B; struct C;
template <class T> __attribute__((noipa)) long mix(long a, long b) {
  for (int i = 0; i < 3; i++) a = a * 31 + b;
  return a;
}
template <class T> __attribute__((noipa)) long outer(long n) {
  long s = 1;
  for (long i = 0; i < n; i++) s = mix<T>(s, i) % 1000003;
  return s;
}
int main(int argc, char **argv) {
  long n = argc > 1 ? atol(argv[1]) : 2000, total = 0;
  for (long k = 0; k < n / 100; k++) total += outer<A>(30) - outer<B>(40) + outer<C>(k % 50);
  printf("%ld\n", total);
}
"#;

/// Optimises with a profile. Gives how many functions were folded.
fn optimise(bench: &Bench, profile: &str, output: &str) -> u64 {
    let account = text(&run(postlink()
        .args(["optimize", "--enable-bat", "--icf=all", "--json", "-p"])
        .args([bench.at(profile), bench.at("p")])
        .arg("-o")
        .arg(bench.at(output))));
    let account: serde_json::Value = serde_json::from_str(&account).expect("JSON");
    let folded = &account["optimize"]["folding"]["folded"];
    folded.as_u64().expect("a number")
}

#[test]
fn a_profile_of_folded_functions_is_one_of_those_that_stand_for_them() {
    let missing = "no profile is made of a program with folded functions";
    if !is_there("qemu-x86_64", missing) {
        return;
    }
    for link in [&[][..], &["-no-pie"]] {
        let bench = Bench::built(SOURCE, "g++", link);
        let plain = bench.at("p");
        emulate(&bench, &plain, &bench.at("first.script"));
        bench.aggregate(&plain, "first.script", "first.fdata");
        assert_eq!(optimise(&bench, "first.fdata", "folded"), 4, "{link:?}");
        let folded = bench.at("folded");
        emulate(&bench, &folded, &bench.at("second.script"));
        bench.aggregate(&folded, "second.script", "second.fdata");
        // Of three instances of each template one has counts now.
        let profile = std::fs::read_to_string(bench.at("second.fdata")).expect("it was written");
        for template in ["_Z3mixI", "_Z5outerI"] {
            let instances = ["1A", "1B", "1C"].map(|class| format!("{template}{class}"));
            let counted = instances.iter().filter(|name| profile.contains(*name));
            assert_eq!(counted.count(), 1, "{link:?}, {template}: {profile}");
        }
        assert_eq!(optimise(&bench, "second.fdata", "again"), 4, "{link:?}");
        let output = |name| text(&run(Command::new(bench.at(name)).arg("3000")));
        assert_eq!(output("folded"), output("p"));
        assert_eq!(output("again"), output("p"));
    }
}
