//! A short run of the targets about probes, samples and sample profiles.

use std::process::Command;

use postlink_fuzzing::probes as fuzzing;

#[test]
fn damaged_probes_are_decoded_or_refused() {
    arbtest::arbtest(|u| {
        fuzzing::check_probes(&fuzzing::probes(u)?);
        Ok(())
    })
    .budget_ms(1_800);
}

#[test]
fn damaged_descriptors_are_decoded_or_refused() {
    arbtest::arbtest(|u| {
        fuzzing::check_descriptors(&fuzzing::descriptors(u)?);
        Ok(())
    })
    .budget_ms(1_200);
}

#[test]
fn damaged_sample_profiles_are_read_or_refused() {
    arbtest::arbtest(|u| {
        fuzzing::check_sample_profile(&fuzzing::sample_profile(u)?);
        Ok(())
    })
    .budget_ms(1_800);
}

#[test]
fn damaged_scripts_are_read_or_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (source, program) = (dir.path().join("p.c"), dir.path().join("p"));
    let text = "
        static int f(int x) { switch (x & 7) { case 0: return 5; case 1: return x * 3; case 3: return x;
          case 4: return x - 9; case 5: return ~x; default: return x; } }
        __attribute__((noinline)) int g(int x) { int s = 0; while (x-- > 0) s += f(x); return s; }
        int main(int argc, char **argv) { return g(argc) + g(argc + 1); }";
    std::fs::write(&source, text).expect("the directory is ours");
    // Clang adds probes, and gcc does without.
    let clang = Command::new("clang-19")
        .args(["-O2", "-g", "-fpseudo-probe-for-profiling", "-o"])
        .args([&program, &source])
        .status();
    if !clang.is_ok_and(|status| status.success()) {
        eprintln!("the program has no probes: clang-19 is not installed");
        let gcc = Command::new("gcc")
            .args(["-O2", "-g", "-o"])
            .args([&program, &source])
            .status();
        assert!(gcc.expect("gcc is needed for this test").success());
    }
    let program = std::fs::read(program).expect("it has just been made");
    arbtest::arbtest(|u| {
        let script = fuzzing::script(u, &program)?;
        fuzzing::check_script(&script, &program);
        Ok(())
    })
    .budget_ms(3_600);
}
