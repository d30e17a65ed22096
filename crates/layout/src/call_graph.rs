//! The weighted call graph that function ordering works on.
//!
//! Profiles are not consistent: a function may have fewer samples than calls were seen to it (calls
//! from code without a profile are unknown, sampled call counts are rounded), and a call to itself
//! says nothing about where to put it. `CallGraph` is the graph after cleaning:
//!
//! * only functions with samples are nodes; the rest has no influence and keeps its order after
//!   them;
//! * several arcs between the same two functions in the same direction are one, with the mean of
//!   their offsets;
//! * no arc leads to its own function;
//! * the arcs into a function have together at most as many calls as the function has samples.

/// A function, as far as its place is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Size in bytes of what will be placed: the hot part only, if the function is split.
    pub size: u64,
    /// How often it was executed, or was found executing. 0: not in the profile.
    pub samples: u64,
}

/// Calls from one function to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arc {
    /// Index of the calling function.
    pub caller: u32,
    /// Index of the called function.
    pub callee: u32,
    /// Number of calls.
    pub count: u64,
    /// Mean offset of the calls from the start of the caller, in bytes.
    pub offset: u64,
}

/// An arc of the cleaned graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) caller: u32,
    pub(crate) callee: u32,
    pub(crate) count: f64,
    pub(crate) offset: f64,
}

/// A cleaned call graph; see the [module](self).
#[derive(Debug)]
pub(crate) struct CallGraph {
    /// At least 1 byte each.
    pub(crate) sizes: Vec<f64>,
    /// 0 for a function that is not in the profile.
    pub(crate) samples: Vec<f64>,
    /// By caller, then callee.
    pub(crate) calls: Vec<Call>,
}

impl CallGraph {
    pub(crate) fn new(functions: &[Function], arcs: &[Arc]) -> Self {
        let samples: Vec<f64> = functions
            .iter()
            .map(|function| function.samples as f64)
            .collect();
        let has_samples = |function: u32| {
            samples
                .get(function as usize)
                .is_some_and(|&samples| samples > 0.0)
        };
        let mut sorted: Vec<Arc> = arcs
            .iter()
            .filter(|arc| arc.caller != arc.callee && arc.count > 0)
            .filter(|arc| has_samples(arc.caller) && has_samples(arc.callee))
            .copied()
            .collect();
        // All fields, so that sums do not depend on the order of the list.
        sorted.sort_unstable_by_key(|arc| (arc.caller, arc.callee, arc.offset, arc.count));
        let mut calls: Vec<Call> = sorted
            .chunk_by(|a, b| (a.caller, a.callee) == (b.caller, b.callee))
            .map(|same| {
                let size = functions[same[0].caller as usize].size;
                let count: f64 = same.iter().map(|arc| arc.count as f64).sum();
                let offsets: f64 = same
                    .iter()
                    .map(|arc| arc.count as f64 * arc.offset.min(size) as f64)
                    .sum();
                Call {
                    caller: same[0].caller,
                    callee: same[0].callee,
                    count,
                    offset: offsets / count,
                }
            })
            .collect();

        let mut incoming = vec![0.0; functions.len()];
        for call in &calls {
            incoming[call.callee as usize] += call.count;
        }
        for call in &mut calls {
            let (samples, incoming) = (
                samples[call.callee as usize],
                incoming[call.callee as usize],
            );
            if incoming > samples {
                call.count *= samples / incoming;
            }
        }
        let sizes = functions
            .iter()
            .map(|function| function.size.max(1) as f64)
            .collect();
        Self {
            sizes,
            samples,
            calls,
        }
    }

    /// The functions in the profile, ascending.
    pub(crate) fn hot(&self) -> impl Iterator<Item = u32> {
        (0u32..)
            .zip(&self.samples)
            .filter(|&(_, &samples)| samples > 0.0)
            .map(|(function, _)| function)
    }

    /// An order of all functions from one of those in the profile: the rest after, as it was.
    pub(crate) fn complete(&self, mut order: Vec<u32>) -> Vec<u32> {
        let cold = (0u32..)
            .zip(&self.samples)
            .filter(|&(_, &samples)| samples <= 0.0);
        order.extend(cold.map(|(function, _)| function));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions(functions: &[(u64, u64)]) -> Vec<Function> {
        functions
            .iter()
            .map(|&(size, samples)| Function { size, samples })
            .collect()
    }

    #[test]
    fn arcs_into_a_function_are_lowered_to_its_samples() {
        let arc = |caller, callee, count| Arc {
            caller,
            callee,
            count,
            offset: 0,
        };
        let graph = CallGraph::new(
            &functions(&[(10, 5), (10, 60), (10, 5)]),
            &[arc(0, 1, 90), arc(2, 1, 30), arc(1, 1, 1000), arc(1, 2, 4)],
        );
        let counts: Vec<(u32, u32, f64)> = graph
            .calls
            .iter()
            .map(|call| (call.caller, call.callee, call.count))
            .collect();
        assert_eq!(counts, [(0, 1, 45.0), (1, 2, 4.0), (2, 1, 15.0)]);
    }

    #[test]
    fn arcs_of_the_same_functions_are_united_at_their_mean_offset() {
        let arc = |offset, count| Arc {
            caller: 0,
            callee: 1,
            count,
            offset,
        };
        let graph = CallGraph::new(
            &functions(&[(100, 5), (10, 60)]),
            &[arc(10, 30), arc(50, 10), arc(u64::MAX, 0)],
        );
        assert_eq!(
            graph.calls,
            [Call {
                caller: 0,
                callee: 1,
                count: 40.0,
                offset: 20.0
            }]
        );
    }

    #[test]
    fn functions_without_samples_take_no_part() {
        let arc = |caller, callee| Arc {
            caller,
            callee,
            count: 1,
            offset: 0,
        };
        let graph = CallGraph::new(
            &functions(&[(9, 0), (9, 1), (9, 1)]),
            &[arc(0, 1), arc(1, 0), arc(1, 7)],
        );
        assert_eq!(graph.calls, []);
        assert_eq!(graph.hot().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(graph.complete(vec![2, 1]), [2, 1, 0]);
    }
}
