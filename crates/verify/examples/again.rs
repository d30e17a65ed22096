use postlink_verify::*;
fn cpu() -> u64 { let s = std::fs::read_to_string("/proc/self/stat").unwrap(); let f: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect(); f[11].parse::<u64>().unwrap() }
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let open = |p: &str| unsafe { memmap2::Mmap::map(&std::fs::File::open(p).unwrap()).unwrap() };
    let (i, o1, o2) = (open(&a[1]), open(&a[2]), open(&a[3]));
    let c0 = cpu();
    let (r, k) = verify_again(&i, &o1, None, &Options::default()).unwrap();
    let c1 = cpu();
    let (r2, _) = verify_again(&i, &o2, Some(k), &Options::default()).unwrap();
    let c2 = cpu();
    let f = verify(&i, &o2, &Options::default()).unwrap();
    let c3 = cpu();
    println!("first {} second {} fresh {}; equal {} {} proved {}", c1 - c0, c2 - c1, c3 - c2, f == r2, r.is_proved(), r2.proved);
}
