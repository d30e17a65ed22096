//# about: Rust enums and matches (jump tables), trait objects, closures, iterators, formatting, hash maps, threads with channels
//# all states: rust-static
//# build O3: -Copt-level=3 -Ccodegen-units=1
//# build Os: -Copt-level=s
//# build lto: -Clto=thin
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::mpsc;

#[derive(Clone, Debug)]
enum Op {
    Push(i64),
    Add,
    Mul,
    Sub,
    Dup,
    Swap,
    Drop,
    If(Vec<Op>, Vec<Op>),
    Loop(u8, Vec<Op>),
    Call(String),
}
#[derive(Debug)]
enum Trap {
    Empty(&'static str),
    Unknown(String),
}
impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trap::Empty(what) => write!(f, "empty stack in {what}"),
            Trap::Unknown(name) => write!(f, "no word '{name}'"),
        }
    }
}
trait Word: Send {
    fn call(&self, stack: &mut Vec<i64>) -> Result<(), Trap>;
}
struct Native<F: Fn(i64) -> i64 + Send>(F);
impl<F: Fn(i64) -> i64 + Send> Word for Native<F> {
    fn call(&self, stack: &mut Vec<i64>) -> Result<(), Trap> {
        let x = stack.pop().ok_or(Trap::Empty("native"))?;
        stack.push((self.0)(x));
        Ok(())
    }
}

fn words() -> HashMap<String, Box<dyn Word>> {
    let mut words: HashMap<String, Box<dyn Word>> = HashMap::new();
    words.insert("neg".into(), Box::new(Native(|x: i64| -x)));
    words.insert("half".into(), Box::new(Native(|x| x / 2)));
    words.insert("odd".into(), Box::new(Native(|x| x & 1)));
    words
}

#[inline(never)]
fn run(ops: &[Op], stack: &mut Vec<i64>, words: &HashMap<String, Box<dyn Word>>) -> Result<(), Trap> {
    for op in ops {
        match op {
            Op::Push(n) => stack.push(*n),
            Op::Add | Op::Mul | Op::Sub => {
                let b = stack.pop().ok_or(Trap::Empty("arithmetic"))?;
                let a = stack.pop().ok_or(Trap::Empty("arithmetic"))?;
                stack.push(match op {
                    Op::Add => a.wrapping_add(b),
                    Op::Mul => a.wrapping_mul(b) % 1_000_003,
                    _ => a.wrapping_sub(b),
                });
            }
            Op::Dup => stack.push(*stack.last().ok_or(Trap::Empty("dup"))?),
            Op::Swap => {
                let n = stack.len();
                if n < 2 {
                    return Err(Trap::Empty("swap"));
                }
                stack.swap(n - 1, n - 2);
            }
            Op::Drop => drop(stack.pop().ok_or(Trap::Empty("drop"))?),
            Op::If(yes, no) => {
                let branch = if stack.pop().ok_or(Trap::Empty("if"))? != 0 { yes } else { no };
                run(branch, stack, words)?;
            }
            Op::Loop(n, body) => {
                for _ in 0..*n {
                    run(body, stack, words)?;
                }
            }
            Op::Call(name) => words.get(name).ok_or_else(|| Trap::Unknown(name.clone()))?.call(stack)?,
        }
    }
    Ok(())
}

fn main() {
    let call = |name: &str| Op::Call(name.into());
    let program = vec![
        Op::Push(7),
        Op::Loop(
            200,
            vec![
                Op::Dup,
                call("odd"),
                Op::If(vec![Op::Push(3), Op::Mul, Op::Push(1), Op::Add], vec![call("half"), call("neg"), call("neg")]),
                Op::Push(5),
                Op::Swap,
                Op::Sub,
                call("neg"),
                Op::Push(10),
                Op::Add,
                Op::Push(9),
                Op::Drop,
            ],
        ),
    ];
    let (sender, receiver) = mpsc::channel();
    let threads: Vec<_> = (0..4i64)
        .map(|i| {
            let (program, sender) = (program.clone(), sender.clone());
            std::thread::spawn(move || {
                let words = words();
                for round in 0..50 {
                    let mut stack = vec![i * 100 + round];
                    let result = run(&program, &mut stack, &words);
                    sender.send((i, round, result.map(|()| stack[1]).map_err(|t| t.to_string()))).unwrap();
                }
            })
        })
        .collect();
    drop(sender);
    let results: BTreeMap<_, _> = receiver.iter().map(|(i, round, result)| ((i, round), result)).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let sum: i64 = results.values().flatten().sum();
    println!("{} results, sum {sum}", results.len());
    for bad in [vec![Op::Add], vec![Op::Push(1), Op::Swap], vec![call("nothing")]] {
        println!("{}", run(&bad, &mut vec![], &words()).unwrap_err());
    }
}
