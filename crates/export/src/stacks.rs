//! Chains of callers, from counts of calls.
//!
//! Counters say how often a function called another, not through which of its own callers. What a function costs is
//! divided among its callers in proportion to their calls, as gprof does: a call costs the same for every caller. What
//! was executed in a function itself is as counted, and the chains of a function add up to it exactly: what is left
//! after the deepest and the rarest chains were cut off has no callers.
//!
//! Source: S. Graham, P. Kessler, M. McKusick, *gprof: a Call Graph Execution Profiler*, 1982.

use postlink_rewrite::facts::Facts;

/// Deepest chain.
const DEEPEST: u32 = 120;
/// Chains in which less than this share of all instructions is executed are cut off.
const RAREST: f64 = 1e-6;
/// Rounds after which costs of recursive functions are taken as they are.
const ROUNDS: usize = 60;

/// A function in a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Number of the function.
    pub function: u32,
    /// Number of the node that calls it, which is smaller than its own.
    pub caller: Option<u32>,
    /// Instructions executed in the function itself, by this chain.
    pub own: u64,
    /// Calls from the caller, by this chain; estimated.
    pub calls: f64,
}

/// A call of one function by another: callee, how often.
type Out = Vec<Vec<(u32, f64)>>;

struct Costs {
    out: Out,
    /// How often each function was executed.
    runs: Vec<f64>,
    /// Instructions of one execution, with all that it calls.
    inclusive: Vec<f64>,
    /// Executions that no call from within the program explains.
    outside: Vec<f64>,
    own: Vec<u64>,
}

impl Costs {
    fn new(facts: &Facts) -> Costs {
        let n = facts.functions.len();
        let (mut out, mut into): (Out, _) = (vec![Vec::new(); n], vec![0.0; n]);
        for call in facts.calls.iter().filter(|call| call.count > 0) {
            let count = call.count as f64;
            into[call.callee as usize] += count;
            let calls = &mut out[call.caller as usize];
            match calls.iter_mut().find(|c| c.0 == call.callee) {
                Some(found) => found.1 += count,
                None => calls.push((call.callee, count)),
            }
        }
        let ran = |f: usize| facts.functions[f].ran.as_ref();
        let own: Vec<u64> = (0..n)
            .map(|f| ran(f).map_or(0, |r| r.instructions))
            .collect();
        let entries = |f: usize| ran(f).map_or(0, |r| r.entries) as f64;
        let runs: Vec<f64> = (0..n).map(|f| entries(f).max(into[f]).max(1.0)).collect();
        let all: f64 = own.iter().map(|own| *own as f64).sum();
        let alone: Vec<f64> = (0..n).map(|f| own[f] as f64 / runs[f]).collect();
        let mut inclusive = alone.clone();
        for _ in 0..ROUNDS {
            let mut moved = 0.0f64;
            for f in (0..n).rev() {
                let calls = out[f].iter();
                let callees: f64 = calls
                    .map(|(g, count)| count / runs[f] * inclusive[*g as usize])
                    .sum();
                // More than everything cannot be: recursion that never ends by the counts.
                let sum = (alone[f] + callees).min(all);
                moved = moved.max((sum - inclusive[f]).abs() / sum.max(1.0));
                inclusive[f] = sum;
            }
            if moved < 1e-4 {
                break;
            }
        }
        let outside = (0..n).map(|f| (entries(f) - into[f]).max(0.0)).collect();
        Costs {
            out,
            runs,
            inclusive,
            outside,
            own,
        }
    }
}

/// All chains: callers in front of callees.
pub fn stacks(facts: &Facts) -> Vec<Node> {
    let costs = Costs::new(facts);
    let all: f64 = costs.own.iter().map(|own| *own as f64).sum();
    let least = all * RAREST;
    let mut nodes: Vec<Node> = Vec::new();
    let mut depth: Vec<u32> = Vec::new();
    let is_worth = |f: u32, calls: f64| calls * costs.inclusive[f as usize] > least;
    for (f, outside) in costs.outside.iter().enumerate() {
        if is_worth(f as u32, *outside) {
            nodes.push(node(f as u32, None, *outside));
            depth.push(1);
        }
    }
    let mut next = 0;
    while let Some(caller) = nodes.get(next).copied() {
        let f = caller.function as usize;
        for (callee, count) in &costs.out[f] {
            let calls = count * caller.calls / costs.runs[f];
            if depth[next] < DEEPEST && is_worth(*callee, calls) {
                nodes.push(node(*callee, Some(next as u32), calls));
                depth.push(depth[next] + 1);
            }
        }
        next += 1;
    }
    share_out(&costs, &mut nodes);
    nodes
}

fn node(function: u32, caller: Option<u32>, calls: f64) -> Node {
    Node {
        function,
        caller,
        own: 0,
        calls,
    }
}

/// Divides each function's own instructions among its chains; the rest is in a chain without callers.
fn share_out(costs: &Costs, nodes: &mut Vec<Node>) {
    let mut placed = vec![0.0; costs.own.len()];
    for node in nodes.iter() {
        placed[node.function as usize] += node.calls;
    }
    let mut left = costs.own.clone();
    for node in nodes.iter_mut() {
        let f = node.function as usize;
        // Chains of recursive functions may add up to more than all.
        let share = node.calls / costs.runs[f].max(placed[f]);
        node.own = ((costs.own[f] as f64 * share) as u64).min(left[f]);
        left[f] -= node.own;
    }
    for (f, left) in left.into_iter().enumerate().filter(|(_, left)| *left > 0) {
        nodes.push(Node {
            own: left,
            ..node(f as u32, None, 0.0)
        });
    }
}

/// The functions of a node's chain, the outermost first.
pub fn chain(nodes: &[Node], mut at: usize) -> Vec<u32> {
    let mut chain = vec![nodes[at].function];
    while let Some(caller) = nodes[at].caller {
        at = caller as usize;
        chain.push(nodes[at].function);
    }
    chain.reverse();
    chain
}
