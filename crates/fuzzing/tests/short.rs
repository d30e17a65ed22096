//! A short run of everything that `cargo fuzz` runs for long.

use std::path::Path;
use std::process::Command;

use postlink_fuzzing as fuzzing;

/// A small program with a switch, calls, pointers and unwind tables.
fn program(dir: &Path) -> Vec<u8> {
    let (source, program) = (dir.join("p.c"), dir.join("p"));
    let text = "
        #include <stdio.h>
        static int f(int x) { switch (x & 7) { case 0: return 5; case 1: return x * 3; case 2: puts(\"a\"); case 3: return x;
          case 4: return x - 9; case 5: return ~x; default: return printf(\"%d\", x); } }
        static int g(int x) { int s = 0; while (x-- > 0) s += f(x); return s; }
        int (*table[])(int) = { f, g };
        int main(int argc, char **argv) { return table[argc & 1](argc); }";
    std::fs::write(&source, text).expect("the directory is ours");
    let status = Command::new("gcc")
        .args(["-O2", "-Wl,-q", "-o"])
        .args([&program, &source])
        .status();
    assert!(status.expect("gcc is needed for this test").success());
    std::fs::read(program).expect("gcc has just made it")
}

#[test]
fn damaged_programs_are_answered_or_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let whole = program(dir.path());
    fuzzing::check_elf(&whole, dir.path());
    arbtest::arbtest(|u| {
        let data = fuzzing::damaged(u, &whole)?;
        fuzzing::check_elf(&data, dir.path());
        Ok(())
    })
    .budget_ms(9_000);
}

#[test]
fn arbitrary_frames_are_read_or_refused() {
    arbtest::arbtest(|u| {
        let addr = u.arbitrary()?;
        fuzzing::check_unwind(&fuzzing::frames(u)?, addr);
        Ok(())
    })
    .budget_ms(2_400);
}

#[test]
fn arbitrary_maps_of_basic_blocks_are_read_or_refused() {
    arbtest::arbtest(|u| {
        fuzzing::check_bb_addr_map(&fuzzing::bb_addr_map(u)?);
        Ok(())
    })
    .budget_ms(1_200);
}

#[test]
fn arbitrary_raw_profiles_are_read_or_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    arbtest::arbtest(|u| {
        fuzzing::check_raw_profile(&fuzzing::raw_profile(u)?, dir.path());
        Ok(())
    })
    .budget_ms(2_400);
}

#[test]
fn arbitrary_code_is_decoded_within_its_bounds() {
    arbtest::arbtest(|u| {
        let addr = u64::from(u.arbitrary::<u32>()?);
        fuzzing::check_code(&fuzzing::code(u)?, addr);
        Ok(())
    })
    .budget_ms(2_400);
}

#[test]
fn profiles_of_every_format_are_read_or_refused_and_come_back_from_being_written() {
    use fuzzing::profiles::*;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let makers = [
        fdata_text,
        preaggregated_text,
        script_text,
        yaml_text,
        recording,
        pprof_profile,
        otlp_profiles,
        simpleperf_report,
        temporal_text,
        trace,
    ];
    for make in makers {
        arbtest::arbtest(|u| {
            check_profile(&make(u)?, dir.path());
            Ok(())
        })
        .budget_ms(1_800);
    }
}

#[test]
fn profiles_that_suit_a_program_or_not_are_attached_to_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let program = program(dir.path());
    let functions = fuzzing::attach::functions(&program);
    assert!(functions.len() > 3, "{functions:?}");
    arbtest::arbtest(|u| {
        let text = fuzzing::attach::named(u, &functions)?;
        fuzzing::attach::check(u, &program, &text)
    })
    .budget_ms(3_000);
}

#[test]
fn arbitrary_translation_tables_are_read_or_refused() {
    arbtest::arbtest(|u| {
        fuzzing::check_bat(&fuzzing::bat_section(u)?);
        Ok(())
    })
    .budget_ms(2_400);
}

#[test]
fn arbitrary_machine_profiles_are_read_or_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    arbtest::arbtest(|u| {
        fuzzing::mip::check_map(&fuzzing::mip::map(u)?);
        Ok(())
    })
    .budget_ms(1_200);
    arbtest::arbtest(|u| {
        fuzzing::mip::check_profile(&fuzzing::mip::profile(u)?);
        Ok(())
    })
    .budget_ms(1_800);
    arbtest::arbtest(|u| {
        let (map, raw) = fuzzing::mip::raw(u)?;
        fuzzing::mip::check_raw(&map, &raw, dir.path());
        Ok(())
    })
    .budget_ms(1_800);
}

#[test]
fn any_assembly_has_an_answer_that_holds_all_of_it() {
    let mut instrumented = 0usize;
    arbtest::arbtest(|u| {
        instrumented += fuzzing::assembly::check(u)?;
        Ok(())
    });
    assert!(instrumented > 0, "the generator makes no functions");
}
