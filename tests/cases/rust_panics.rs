//# about: Rust panics through many frames, caught, with drops on the way, in threads, with a backtrace
//# stdout: caught 334 dropped 4334 sum 332667
//# stdout: thread panicked true
//# stdout: backtrace names this function true
//# build O0: -Copt-level=0
//# build panic-lto: -Clto=fat -Ccodegen-units=1
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

struct Guard<'a>(&'a Cell<u32>);
impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[inline(never)]
fn deep(depth: u32, x: u32, dropped: &Cell<u32>) -> u32 {
    let _first = Guard(dropped);
    if depth == 0 {
        assert!(x % 3 != 0, "multiple of three");
        return x;
    }
    let mut kept = vec![Guard(dropped)];
    let r = deep(depth - 1, x, dropped);
    if r % 2 == 0 {
        kept.clear();
    }
    std::mem::forget(kept);
    r
}

#[inline(never)]
fn names_itself() -> bool {
    format!("{}", std::backtrace::Backtrace::force_capture()).contains("names_itself")
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    let dropped = Cell::new(0);
    let (mut caught, mut sum) = (0, 0u64);
    for x in 0..1000 {
        match panic::catch_unwind(AssertUnwindSafe(|| deep(2, x, &dropped))) {
            Ok(value) => sum += u64::from(value),
            Err(payload) => {
                caught += 1;
                assert_eq!(payload.downcast_ref::<&str>(), Some(&"multiple of three"));
            }
        }
    }
    println!("caught {caught} dropped {} sum {sum}", dropped.get());
    let thread = std::thread::spawn(|| {
        let dropped = Cell::new(0);
        deep(30, 3, &dropped)
    });
    println!("thread panicked {}", thread.join().is_err());
    println!("backtrace names this function {}", names_itself());
}
