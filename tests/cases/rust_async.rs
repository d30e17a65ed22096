//# about: Rust: async functions that suspend and fail, trait objects with destructors, panics caught, threads
//# build O3: -Copt-level=3 -Ccodegen-units=1
use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    task::{Context, Poll, RawWaker, RawWakerVTable, Waker},
};
struct Yield(bool);
impl Future for Yield {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            Poll::Ready(())
        } else {
            self.0 = true;
            Poll::Pending
        }
    }
}
async fn step(i: u64) -> Result<u64, String> {
    Yield(false).await;
    if i % 7 == 3 {
        Err(format!("e{i}"))
    } else {
        Ok(i * i)
    }
}
async fn all(n: u64) -> u64 {
    let mut t = 0;
    for i in 0..n {
        match step(i).await {
            Ok(v) => t += v,
            Err(e) => t += e.len() as u64,
        }
    }
    t
}
trait Op {
    fn go(&self, x: u64) -> u64;
}
struct A(u64);
struct B(Vec<u64>);
impl Op for A {
    fn go(&self, x: u64) -> u64 {
        x.wrapping_mul(self.0)
    }
}
impl Op for B {
    fn go(&self, x: u64) -> u64 {
        self.0.iter().fold(x, |a, b| a ^ b)
    }
}
impl Drop for A {
    fn drop(&mut self) {
        unsafe { DROPS += self.0 }
    }
}
static mut DROPS: u64 = 0;
fn waker() -> Waker {
    fn c(_: *const ()) -> RawWaker {
        RawWaker::new(std::ptr::null(), &V)
    }
    fn n(_: *const ()) {}
    static V: RawWakerVTable = RawWakerVTable::new(c, n, n, n);
    unsafe { Waker::from_raw(c(std::ptr::null())) }
}
fn main() {
    let w = waker();
    let mut cx = Context::from_waker(&w);
    let mut f = Box::pin(all(100));
    let mut polls = 0;
    let t = loop {
        polls += 1;
        if let Poll::Ready(t) = f.as_mut().poll(&mut cx) {
            break t;
        }
    };
    let ops: Vec<Box<dyn Op>> = (0..10)
        .map(|i| -> Box<dyn Op> {
            if i % 2 == 0 {
                Box::new(A(i + 3))
            } else {
                Box::new(B(vec![i, i * 7]))
            }
        })
        .collect();
    let mut m = BTreeMap::new();
    for i in 0..1000u64 {
        *m.entry(ops[(i % 10) as usize].go(i) % 17).or_insert(0u64) += i;
    }
    std::panic::set_hook(Box::new(|_| {}));
    let r = std::panic::catch_unwind(|| {
        let _a = A(1000);
        let v: Vec<u64> = vec![];
        v[std::env::args().count()]
    });
    let h: Vec<_> = (0..4u64)
        .map(|k| {
            std::thread::spawn(move || {
                (0..1000u64)
                    .map(|i| (i ^ k).count_ones() as u64)
                    .sum::<u64>()
            })
        })
        .collect();
    let s: u64 = h.into_iter().map(|h| h.join().unwrap()).sum();
    drop(ops);
    println!("{t} {polls} {m:?} {} {s} {}", r.is_err(), unsafe { DROPS });
}
