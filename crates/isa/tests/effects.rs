//! Effects against known answers, and against the processor: what an instruction is said not to read must not matter to
//! it, and what it is said to overwrite must not shine through.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;

use std::collections::HashMap;
use std::path::Path;

use common::machine::{FLAGS, Machine, Noise, State};
use common::{hex, text_of};
use iced_x86::{CpuidFeature, Decoder, FlowControl, Instruction, Mnemonic, OpKind};
use postlink_isa::x86_64::X86_64;
use postlink_isa::{Code, Decode, Effects};

const AT: u64 = 0x1000;

/// "rax rcx, zf" style names of a set.
fn names(set: u64) -> String {
    let registers = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15",
    ];
    let flags = ["cf", "pf", "af", "zf", "sf", "of", "df"];
    let mut list = Vec::new();
    if set & 0xffff == 0xffff {
        list.push("gpr");
    } else {
        list.extend(
            (0..16)
                .filter(|bit| set >> bit & 1 != 0)
                .map(|bit| registers[bit]),
        );
    }
    list.extend(
        (0..7)
            .filter(|bit| set >> (32 + bit) & 1 != 0)
            .map(|bit| flags[bit]),
    );
    list.join(" ")
}

fn effects(text: &str) -> Effects {
    let bytes = hex(text);
    let insn = X86_64::decode(&bytes, AT).unwrap_or_else(|| panic!("{text} does not decode"));
    X86_64::effects(&bytes, &insn)
}

#[test]
fn reads_and_kills_are_as_the_manual_says() {
    let all = "gpr cf pf af zf sf of df";
    let cases = [
        ("89 d8", "rbx", "rax"),                             // mov eax,ebx
        ("66 89 d8", "rbx", ""),                             // mov ax,bx
        ("88 dc", "rbx", ""),                                // mov ah,bl
        ("48 8b 44 91 08", "rcx rdx", "rax"),                // mov rax,[rcx+rdx*4+8]
        ("48 89 44 91 08", "rax rcx rdx", ""),               // mov [rcx+rdx*4+8],rax
        ("48 8d 04 91", "rcx rdx", "rax"),                   // lea rax,[rcx+rdx*4]
        ("31 c0", "", "rax cf pf zf sf of"),                 // xor eax,eax
        ("48 29 db", "", "rbx cf pf af zf sf of"),           // sub rbx,rbx
        ("66 31 c0", "", "cf pf zf sf of"),                  // xor ax,ax
        ("31 d8", "rax rbx", "rax cf pf zf sf of"),          // xor eax,ebx
        ("48 01 d8", "rax rbx", "rax cf pf af zf sf of"),    // add rax,rbx
        ("48 ff c0", "rax", "rax pf af zf sf of"),           // inc rax
        ("48 39 d8", "rax rbx", "cf pf af zf sf of"),        // cmp rax,rbx
        ("48 85 c0", "rax", "cf pf zf sf of"),               // test rax,rax
        ("48 11 d8", "rax rbx cf", "rax cf pf af zf sf of"), // adc rax,rbx
        ("48 0f 44 c3", "rbx zf", ""),                       // cmove rax,rbx
        ("0f 94 c0", "zf", ""),                              // sete al
        ("48 0f b1 0b", "rax rcx rbx", "cf pf af zf sf of"), // cmpxchg [rbx],rcx
        ("48 87 d8", "rax rbx", "rax rbx"),                  // xchg rax,rbx
        ("48 d3 e0", "rax rcx", "rax"),                      // shl rax,cl
        ("48 c1 e0 04", "rax", "rax cf pf zf sf"),           // shl rax,4
        ("48 c1 e0 40", "rax", "rax"),                       // shl rax,64: nothing happens
        ("48 f7 e3", "rax rbx", "rax rdx cf of"),            // mul rbx
        ("48 99", "rax", "rdx"),                             // cqo
        ("f3 a4", "rcx rsi rdi df", ""),                     // rep movsb
        ("f3 a6", "rcx rsi rdi df", ""),                     // repe cmpsb
        ("a6", "rsi rdi df", "rsi rdi cf pf af zf sf of"),   // cmpsb
        ("50", "rax rsp", "rsp"),                            // push rax
        ("58", "rsp", "rax rsp"),                            // pop rax
        ("9c", "rsp cf pf af zf sf of df", "rsp"),           // pushfq
        ("9d", "rsp", "rsp cf pf af zf sf of df"),           // popfq
        ("9f", "cf pf af zf sf", ""),                        // lahf
        ("9e", "rax", "cf pf af zf sf"),                     // sahf
        ("c9", "rbp", "rsp rbp"),                            // leave
        ("fd", "", "df"),                                    // std
        ("f9", "", "cf"),                                    // stc
        ("0f a2", "rax rcx", "rax rcx rdx rbx"),             // cpuid
        ("0f 05", "gpr df", "rcx r11"),                      // syscall
        ("0f 34", all, ""),                                  // sysenter
        ("cd 80", all, ""),                                  // int 0x80
        ("0f 0b", all, ""),                                  // ud2
        ("c7 f8 00 00 00 00", all, ""),                      // xbegin
        ("e8 00 00 00 00", "gpr df", "cf pf af zf sf of"),   // call
        ("ff d0", "gpr df", "cf pf af zf sf of"),            // call rax
        ("ff e0", "gpr df", ""),                             // jmp rax
        ("c3", "gpr df", ""),                                // ret
        ("eb 00", "", ""),                                   // jmp
        ("74 00", "zf", ""),                                 // je
        ("7f 00", "zf sf of", ""),                           // jg
        ("e2 00", "rcx", ""),                                // loop
        ("e1 00", "rcx zf", ""),                             // loope
        ("67 e3 00", "rcx", ""),                             // jecxz
        ("c4 e2 f0 f2 c3", "rcx rbx", "rax cf zf sf of"),    // andn rax,rcx,rbx
        ("c4 e2 f9 f7 c3", "rax rbx", "rax"),                // shlx rax,rbx,rax
        ("66 0f 2e c1", "", "cf pf af zf sf of"),            // ucomisd xmm0,xmm1
        ("66 48 0f 7e c0", "", "rax"),                       // movq rax,xmm0
        ("f3 48 0f 1e c8", "", ""),                          // rdsspq rax
        ("f3 0f bc c3", "rbx", ""),                          // tzcnt eax,ebx
        ("0f bc c3", "rbx", "zf"),                           // bsf eax,ebx
        ("0f 1f 44 00 00", "", ""),                          // nop
        ("90", "", ""),
    ];
    for (text, reads, kills) in cases {
        let effects = effects(text);
        let known = |set: u64| names(set & 0x7f_0000_ffff);
        assert_eq!(
            (known(effects.reads.0), known(effects.kills.0)),
            (reads.into(), kills.into()),
            "{text}"
        );
    }
}

#[test]
fn what_does_not_decode_reads_everything() {
    let insn = X86_64::decode(&[0x90], AT).unwrap();
    assert_eq!(
        X86_64::effects(&[0x06], &insn),
        Effects {
            reads: postlink_isa::RegSet::ALL,
            ..Effects::default()
        }
    );
    assert_eq!(
        X86_64::effects(&[], &insn),
        Effects {
            reads: postlink_isa::RegSet::ALL,
            ..Effects::default()
        }
    );
}

#[test]
fn the_registers_of_an_address_are_read() {
    let mut count = 0;
    for (addr, text) in text_of(&std::env::current_exe().unwrap()).unwrap() {
        X86_64::sweep(&text, addr, |insn| {
            let at = (insn.addr - addr) as usize;
            let bytes = &text[at..at + usize::from(insn.len)];
            let instruction = Decoder::new(64, bytes, 0).decode();
            for register in [instruction.memory_base(), instruction.memory_index()] {
                if register.is_gpr() && !insn.traits.nop {
                    let reads = X86_64::effects(bytes, insn).reads;
                    assert!(
                        reads.0 >> register.full_register().number() & 1 != 0,
                        "{bytes:02x?}"
                    );
                    count += 1;
                }
            }
            true
        });
    }
    assert!(count > 10_000, "{count}");
}

/// Whether it can be run with any register contents, and gives the same result each time.
fn runnable(instruction: &Instruction) -> bool {
    use CpuidFeature as F;
    let available = instruction
        .cpuid_features()
        .iter()
        .all(|feature| match feature {
            F::INTEL8086
            | F::INTEL186
            | F::INTEL286
            | F::INTEL386
            | F::INTEL486
            | F::X64
            | F::CMOV => true,
            F::SSE | F::SSE2 | F::CMPXCHG16B => true,
            F::BMI1 => std::is_x86_feature_detected!("bmi1"),
            F::BMI2 => std::is_x86_feature_detected!("bmi2"),
            F::ADX => std::is_x86_feature_detected!("adx"),
            F::LZCNT => std::is_x86_feature_detected!("lzcnt"),
            F::POPCNT => std::is_x86_feature_detected!("popcnt"),
            F::MOVBE => std::is_x86_feature_detected!("movbe"),
            _ => false,
        });
    let harmless = !instruction.is_privileged()
        && !instruction.is_stack_instruction()
        && !instruction.is_save_restore_instruction()
        && !matches!(
            instruction.mnemonic(),
            Mnemonic::Div | Mnemonic::Idiv | Mnemonic::Xlatb | Mnemonic::Popf
        )
        && !instruction.is_string_instruction()
        && instruction.segment_prefix() == iced_x86::Register::None;
    let registers_only =
        (0..instruction.op_count()).all(|index| match instruction.op_kind(index) {
            OpKind::Memory => {
                instruction.mnemonic() == Mnemonic::Lea && !instruction.is_ip_rel_memory_operand()
            }
            OpKind::Register => {
                let register = instruction.op_register(index);
                register.full_register() != iced_x86::Register::RSP && register.is_gpr()
            }
            kind => !matches!(
                kind,
                OpKind::MemorySegSI | OpKind::MemorySegESI | OpKind::MemorySegRSI
            ),
        });
    instruction.flow_control() == FlowControl::Next && available && harmless && registers_only
}

/// Runs the instruction from pairs of states that differ in one register or flag.
fn check(machine: &Machine, noise: &mut Noise, bytes: &[u8]) {
    let insn = X86_64::decode(bytes, AT).unwrap();
    let Effects { reads, kills } = X86_64::effects(bytes, &insn);
    let code: Code<u64> = Code {
        bytes: bytes.to_vec(),
        fixups: Vec::new(),
        stack: Vec::new(),
    };
    let members: Vec<u32> = (0..16)
        .filter(|&register| register != 4)
        .chain(32..39)
        .collect();
    for round in 0..members.len() * 3 {
        let member = members[round % members.len()];
        if reads.0 >> member & 1 != 0 {
            continue;
        }
        let one = noise.state(machine);
        let mut two = one;
        let differs = match member {
            0..16 => {
                two.regs[member as usize] = noise.next();
                0
            }
            _ => 1 << [0, 2, 4, 6, 7, 11, 10][member as usize - 32],
        };
        two.flags ^= differs;
        let (mut one, mut two) = (machine.run(&code, &one), machine.run(&code, &two));
        if kills.0 >> member & 1 == 0 {
            forget(&mut one, member, differs);
            forget(&mut two, member, differs);
        }
        assert_eq!(
            one,
            two,
            "{bytes:02x?}: {} matters, but it is said to read {} and to overwrite {}",
            names(1 << member),
            names(reads.0),
            names(kills.0)
        );
    }
}

fn forget(state: &mut State, member: u32, flag: u64) {
    if member < 16 {
        state.regs[member as usize] = 0;
    }
    state.flags &= FLAGS & !flag;
}

#[test]
fn the_processor_agrees_on_instructions_of_real_programs() {
    let mut kinds: HashMap<(iced_x86::Code, u64), u32> = HashMap::new();
    let mut samples: Vec<Vec<u8>> = Vec::new();
    let own = std::env::current_exe().unwrap();
    for path in [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/bin/python3",
    ] {
        for (addr, text) in text_of(Path::new(path))
            .or_else(|| text_of(&own))
            .unwrap_or_default()
        {
            X86_64::sweep(&text, addr, |insn| {
                let at = (insn.addr - addr) as usize;
                let bytes = &text[at..at + usize::from(insn.len)];
                let instruction = Decoder::new(64, bytes, 0).decode();
                // A few of each operation, with and without equal operands.
                let same = u64::from(instruction.op0_register() == instruction.op1_register());
                let count = kinds.entry((instruction.code(), same)).or_default();
                if *count < 4 && runnable(&instruction) {
                    *count += 1;
                    samples.push(bytes.to_vec());
                }
                true
            });
        }
    }
    // What compilers seldom write.
    let rare = "c0 d0 09; c0 d8 09; 66 c1 d0 11; c0 e0 20; c0 e0 09; 66 0f a4 d8 14; 66 0f a5 d8; 48 d1 d8; c0 c8 08; d2 d0;
        0f bc c3; 0f bd c3; 66 0f bc c3; 48 0f bb c3; 0f ba f8 40; f3 0f bc c3; 48 0f c8; 66 0f c8; d6; f5; fc; 98; 66 98; 99;
        48 0f c1 d8; 0f b0 d8; 0f b1 d8; 48 0f b1 d8; 66 0f 38 f6 c3; f3 48 0f 38 f6 c3; 0f c0 e0; 86 e0; f6 e4; 69 c3 01 02 03 04;
        66 6b c3 05; 0f 42 c3; 66 0f 42 c3; 19 c0; 48 1b c0; 83 e0 00; 83 c8 ff; 66 29 c0; 28 c0; 30 e4; 30 e0";
    let mut noise = Noise(2);
    let machine = Machine::new();
    samples.extend(
        rare.split(';')
            .map(hex)
            .filter(|bytes| runnable(&Decoder::new(64, bytes, 0).decode())),
    );
    assert!(samples.len() > 300, "only {} samples", samples.len());
    println!("{} samples", samples.len());
    for bytes in &samples {
        check(&machine, &mut noise, bytes);
    }
}

#[test]
fn loads_and_stores_are_told_as_llvm_describes_instructions() {
    // (bytes, loads, stores)
    let known: &[(&[u8], bool, bool)] = &[
        (&[0x48, 0x8b, 0x07], true, false),        // mov (%rdi),%rax
        (&[0x48, 0x89, 0x07], false, true),        // mov %rax,(%rdi)
        (&[0x48, 0xff, 0x07], true, true),         // incq (%rdi)
        (&[0x48, 0x8d, 0x07], false, false),       // lea (%rdi),%rax
        (&[0x50], false, true),                    // push %rax
        (&[0x58], true, false),                    // pop %rax
        (&[0xff, 0x37], true, true),               // push (%rdi)
        (&[0xe8, 0, 0, 0, 0], false, false),       // call
        (&[0xff, 0x17], true, false),              // call *(%rdi)
        (&[0xff, 0xd0], false, false),             // call *%rax
        (&[0xc3], false, false),                   // ret
        (&[0x0f, 0x1f, 0x40, 0x00], false, false), // nopl 0(%rax)
        (&[0x48, 0x39, 0x07], true, false),        // cmp %rax,(%rdi)
        (&[0xf3, 0x48, 0xa5], true, true),         // rep movsq
        (&[0x48, 0x01, 0xd8], false, false),       // add %rbx,%rax
    ];
    for (bytes, loads, stores) in known {
        let insn = X86_64::decode(bytes, 0x1000).expect("it is an instruction");
        let memory = X86_64::memory(bytes, &insn);
        assert_eq!(
            (memory.loads, memory.stores),
            (*loads, *stores),
            "{bytes:02x?}"
        );
    }
}

#[test]
fn an_indirect_branch_needs_the_registers_of_its_operand() {
    let needs = |text: &str| {
        let bytes = hex(text);
        let insn = X86_64::decode(&bytes, 0x1000).expect("it decodes");
        // Not the stack pointer, which a call moves.
        X86_64::operand_registers(&bytes, &insn).0 & 0xffef
    };
    assert_eq!(needs("ff d0"), 1); // call *%rax
    assert_eq!(needs("41 ff d3"), 1 << 11); // call *%r11
    assert_eq!(needs("41 ff 54 c3 08"), 1 << 11 | 1); // call *8(%r11,%rax,8)
    assert_eq!(needs("41 ff e3"), 1 << 11); // jmp *%r11
    assert_eq!(needs("ff 25 00 00 00 00"), 0); // jmp *0(%rip)
    assert_eq!(needs("e8 00 00 00 00"), 0); // a direct call
}
