//! Facts about balancing, checked on random graphs against exhaustive search.

use arbitrary::Unstructured;
use arbtest::arbtest;
use postlink_flow::balance::{Arc, Balancer, balance};
use postlink_flow::infer::{Block, Jump, Likely, OUTSIDE, Prices, infer};

fn conserves(nodes: u32, arcs: &[Arc], counts: &[u64]) -> bool {
    let mut excess = vec![0i128; nodes as usize];
    for (a, c) in arcs.iter().zip(counts) {
        excess[a.from as usize] -= i128::from(*c);
        excess[a.to as usize] += i128::from(*c);
    }
    excess.iter().all(|e| *e == 0)
}

fn price(arcs: &[Arc], counts: &[u64]) -> u128 {
    let each = arcs.iter().zip(counts).map(|(a, c)| {
        if *c >= a.wanted {
            u128::from(c - a.wanted) * u128::from(a.more)
        } else {
            u128::from(a.wanted - c) * u128::from(a.less)
        }
    });
    each.sum()
}

/// The least price of all flows with counts up to `most`.
fn cheapest(nodes: u32, arcs: &[Arc], most: u64) -> u128 {
    fn go(nodes: u32, arcs: &[Arc], most: u64, counts: &mut Vec<u64>, best: &mut u128) {
        if counts.len() == arcs.len() {
            if conserves(nodes, arcs, counts) {
                *best = (*best).min(price(arcs, counts));
            }
            return;
        }
        if price(&arcs[..counts.len()], counts) >= *best {
            return;
        }
        for c in 0..=most {
            counts.push(c);
            go(nodes, arcs, most, counts, best);
            counts.pop();
        }
    }
    let mut best = price(arcs, &vec![0; arcs.len()]);
    go(nodes, arcs, most, &mut Vec::new(), &mut best);
    best
}

fn arcs(
    u: &mut Unstructured<'_>,
    nodes: u32,
    count: usize,
    most: u64,
) -> arbitrary::Result<Vec<Arc>> {
    let mut out = Vec::new();
    for _ in 0..count {
        out.push(Arc {
            from: u.int_in_range(0..=nodes - 1)?,
            to: u.int_in_range(0..=nodes - 1)?,
            wanted: u.int_in_range(0..=most)?,
            more: u.int_in_range(0..=9)?,
            less: u.int_in_range(0..=9)?,
        });
    }
    Ok(out)
}

#[test]
fn the_price_is_the_least_of_all_flows() {
    arbtest(|u| {
        let nodes = u.int_in_range(1..=4)?;
        let count = u.int_in_range(0..=6)?;
        let arcs = arcs(u, nodes, count, 3)?;
        let balanced = balance(nodes, &arcs);
        assert!(conserves(nodes, &arcs, &balanced.counts), "{arcs:?}");
        assert!(balanced.optimal);
        assert_eq!(balanced.price, price(&arcs, &balanced.counts));
        // In a cheapest flow no count need exceed what all arcs want together; 5 is enough to find a cheaper
        // one where there is one.
        assert!(
            balanced.price <= cheapest(nodes, &arcs, 5),
            "{arcs:?} {balanced:?}"
        );
        Ok(())
    })
    .budget_ms(2_000);
}

#[test]
fn flow_is_conserved_on_any_graph_and_beyond_the_limit() {
    arbtest(|u| {
        let nodes = u.int_in_range(1..=40)?;
        let count = u.int_in_range(0..=90)?;
        let most = *u.choose(&[1, 100, u64::MAX >> 12])?;
        let arcs = arcs(u, nodes, count, most)?;
        let all = balance(nodes, &arcs);
        assert!(conserves(nodes, &arcs, &all.counts));
        let mut hasty = Balancer::default();
        hasty.limit = u.int_in_range(0..=50)?;
        let some = hasty.balance(nodes, &arcs);
        assert!(conserves(nodes, &arcs, &some.counts));
        assert!(some.price >= all.price);
        assert!(!some.optimal || some.price == all.price);
        // The same space again gives the same.
        assert_eq!(hasty.balance(nodes, &arcs), some);
        Ok(())
    });
}

#[test]
fn counts_that_conserve_flow_are_not_changed() {
    arbtest(|u| {
        let nodes = u.int_in_range(1..=30)?;
        let count = u.int_in_range(0..=60)?;
        let mut arcs = arcs(u, nodes, count, 1_000_000)?;
        let balanced = balance(nodes, &arcs);
        for (a, c) in arcs.iter_mut().zip(&balanced.counts) {
            a.wanted = *c;
        }
        let again = balance(nodes, &arcs);
        assert_eq!(again.counts, balanced.counts);
        assert_eq!(again.price, 0);
        Ok(())
    });
}

/// A random function: blocks in a row, each running into the next or jumping somewhere, with an entry and exits.
fn function(u: &mut Unstructured<'_>) -> arbitrary::Result<(Vec<Block>, Vec<Jump>)> {
    let n = u.int_in_range(1..=20u32)?;
    let known = |u: &mut Unstructured<'_>| -> arbitrary::Result<Option<u64>> {
        Ok(if u.ratio(2, 3)? {
            Some(u.int_in_range(0..=100)?)
        } else {
            None
        })
    };
    let mut blocks = Vec::new();
    let mut jumps = vec![Jump {
        from: OUTSIDE,
        to: 0,
        count: known(u)?,
        likely: Likely::Free,
    }];
    for b in 0..n {
        blocks.push(Block { count: known(u)? });
        if b + 1 < n && u.ratio(4, 5)? {
            jumps.push(Jump {
                from: b,
                to: b + 1,
                count: known(u)?,
                likely: Likely::Falls,
            });
        } else {
            jumps.push(Jump {
                from: b,
                to: OUTSIDE,
                count: None,
                likely: Likely::Free,
            });
        }
        if u.ratio(1, 2)? {
            let to = u.int_in_range(0..=n - 1)?;
            jumps.push(Jump {
                from: b,
                to,
                count: known(u)?,
                likely: Likely::Taken,
            });
        }
    }
    Ok((blocks, jumps))
}

fn check(blocks: &[u64], jumps: &[Jump], counts: &[u64]) {
    for (b, count) in blocks.iter().enumerate() {
        let sum = |pick: &dyn Fn(&Jump) -> u32| -> u64 {
            let own = jumps
                .iter()
                .zip(counts)
                .filter(|(j, _)| pick(j) == b as u32);
            own.map(|(_, c)| *c).sum()
        };
        assert_eq!(sum(&|j| j.to), *count, "into {b}");
        assert_eq!(sum(&|j| j.from), *count, "out of {b}");
    }
}

#[test]
fn inferred_counts_conserve_flow_and_are_a_fixed_point() {
    arbtest(|u| {
        let (mut blocks, mut jumps) = function(u)?;
        let prices = *u.choose(&[Prices::SAMPLED, Prices::BLOCKS, Prices::STALE])?;
        let first = infer(&blocks, &jumps, &prices);
        check(&first.blocks, &jumps, &first.jumps);
        for (b, c) in blocks.iter_mut().zip(&first.blocks) {
            b.count = Some(*c);
        }
        for (j, c) in jumps.iter_mut().zip(&first.jumps) {
            j.count = Some(*c);
        }
        let again = infer(&blocks, &jumps, &prices);
        assert_eq!(
            (again.blocks, again.jumps, again.price),
            (first.blocks, first.jumps, 0)
        );
        Ok(())
    });
}

#[test]
fn a_loop_that_runs_is_reached_from_the_entry() {
    // 0 -> 3 is the only known way; 1 <-> 2 is a loop that 0 leads to and that leads to 3, seen running.
    let known = |count| Block { count: Some(count) };
    let blocks = [known(5), known(100), known(100), known(5)];
    let jump = |from, to, count| Jump {
        from,
        to,
        count: Some(count),
        likely: Likely::Taken,
    };
    let jumps = [
        jump(OUTSIDE, 0, 5),
        jump(0, 3, 5),
        jump(0, 1, 0),
        jump(1, 2, 100),
        jump(2, 1, 100),
        jump(2, 3, 0),
        jump(3, OUTSIDE, 5),
    ];
    let counts = infer(&blocks, &jumps, &Prices::SAMPLED);
    check(&counts.blocks, &jumps, &counts.jumps);
    assert_eq!(counts.jumps, [6, 5, 1, 101, 100, 1, 6]);
}

#[test]
fn missing_counts_of_a_branch_follow_from_its_surroundings() {
    // A diamond of which one arm and the whole are known.
    let block = |count| Block { count };
    let blocks = [
        block(Some(100)),
        block(Some(30)),
        block(None),
        block(Some(100)),
    ];
    let jump = |from, to, likely| Jump {
        from,
        to,
        count: None,
        likely,
    };
    let jumps = [
        jump(OUTSIDE, 0, Likely::Free),
        jump(0, 1, Likely::Taken),
        jump(0, 2, Likely::Falls),
        jump(1, 3, Likely::Taken),
        jump(2, 3, Likely::Falls),
        jump(3, OUTSIDE, Likely::Free),
    ];
    for prices in [Prices::SAMPLED, Prices::BLOCKS, Prices::STALE] {
        let counts = infer(&blocks, &jumps, &prices);
        assert_eq!(counts.jumps, [100, 30, 70, 30, 70, 100]);
    }
}
