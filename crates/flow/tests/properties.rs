//! Facts about counter placement and flow solution, checked on random graphs against independent
//! oracles.

use arbitrary::Unstructured;
use arbtest::arbtest;
use postlink_flow::{Edge, Graph, Placer, Solver, Uncountable, place, solve};

/// A random graph with a flow on it that a program could have produced: a sum of closed walks.
fn graph_with_flow(u: &mut Unstructured<'_>) -> arbitrary::Result<(Graph, Vec<u64>)> {
    let nodes = u.int_in_range(1..=12)?;
    let mut edges: Vec<Edge> = Vec::new();
    let mut flow: Vec<u64> = Vec::new();
    for _ in 0..u.int_in_range(0..=4)? {
        let start = u.int_in_range(0..=nodes - 1)?;
        let steps = u.int_in_range(0..=8)?;
        let times = *u.choose(&[0, 1, 2, 7, 1_000, u32::MAX as u64, 1 << 62])?;
        let mut walk = vec![start];
        for _ in 0..steps {
            walk.push(u.int_in_range(0..=nodes - 1)?);
        }
        walk.push(start);
        for step in walk.windows(2) {
            let found = edges
                .iter()
                .position(|edge| (edge.from, edge.to) == (step[0], step[1]));
            match found {
                // Sometimes a parallel edge, as from a jump table.
                Some(edge) if !u.ratio(1, 8)? && flow[edge].checked_add(times).is_some() => {
                    flow[edge] += times
                }
                _ => {
                    edges.push(Edge {
                        from: step[0],
                        to: step[1],
                        weight: Some(f32::from(u.arbitrary::<u8>()? % 16)),
                    });
                    flow.push(times);
                }
            }
        }
    }
    for _ in 0..u.int_in_range(0..=6)? {
        let (from, to) = (
            u.int_in_range(0..=nodes - 1)?,
            u.int_in_range(0..=nodes - 1)?,
        );
        edges.push(Edge {
            from,
            to,
            weight: Some(u.arbitrary()?),
        });
        flow.push(0);
    }
    Ok((Graph { nodes, edges }, flow))
}

fn components(graph: &Graph) -> usize {
    let mut label: Vec<u32> = (0..graph.nodes).collect();
    loop {
        let before = label.clone();
        for edge in &graph.edges {
            let low = label[edge.from as usize].min(label[edge.to as usize]);
            label[edge.from as usize] = low;
            label[edge.to as usize] = low;
        }
        if label == before {
            break;
        }
    }
    label.sort_unstable();
    label.dedup();
    label.len()
}

/// Whether conservation determines the edges outside `counted`: their columns of the incidence
/// matrix are independent. Elimination modulo a prime, which is exact because the matrix is totally
/// unimodular.
fn determines(graph: &Graph, counted: impl Fn(usize) -> bool) -> bool {
    const P: i64 = 1_000_003;
    let unknown: Vec<&Edge> = graph
        .edges
        .iter()
        .enumerate()
        .filter(|&(id, _)| !counted(id))
        .map(|(_, e)| e)
        .collect();
    let mut rows: Vec<Vec<i64>> = (0..graph.nodes)
        .map(|node| {
            unknown
                .iter()
                .map(|e| i64::from(e.to == node) - i64::from(e.from == node))
                .collect()
        })
        .collect();
    // As long as the columns are independent, the rank is the number of columns seen.
    for rank in 0..unknown.len() {
        let column = rank;
        let Some(pivot) = (rank..rows.len()).find(|&row| rows[row][column].rem_euclid(P) != 0)
        else {
            return false;
        };
        rows.swap(rank, pivot);
        let pivot = rows[rank].clone();
        for row in &mut rows[rank + 1..] {
            // Entries stay within -1, 0, 1 up to sign in a totally unimodular matrix, so the
            // inverse is the entry itself.
            let factor = row[column] * pivot[column];
            for (value, base) in row.iter_mut().zip(&pivot) {
                *value = (*value - factor * base) % P;
            }
        }
    }
    true
}

#[test]
fn solving_the_placed_counters_gives_back_every_edge() {
    let (mut placer, mut solver) = (Placer::default(), Solver::default());
    arbtest(|u| {
        let (graph, flow) = graph_with_flow(u)?;
        let counted = placer.place(&graph).unwrap().to_vec();
        let counts: Vec<u64> = counted.iter().map(|&edge| flow[edge as usize]).collect();
        let solution = solver.solve(&graph, &counted, &counts);
        assert_eq!(solution.edges, flow);
        assert_eq!(
            (
                solution.inconsistent,
                solution.negative,
                solution.undetermined
            ),
            (0, 0, 0)
        );
        assert_eq!(
            *solution,
            solve(&graph, &counted, &counts),
            "used memory makes no difference"
        );
        assert_eq!(
            counted,
            place(&graph).unwrap(),
            "used memory makes no difference"
        );
        Ok(())
    });
}

#[test]
fn counters_are_edges_minus_nodes_plus_components() {
    arbtest(|u| {
        let (graph, _) = graph_with_flow(u)?;
        let counted = place(&graph).unwrap();
        assert_eq!(
            counted.len() + graph.nodes as usize,
            graph.edges.len() + components(&graph)
        );
        assert!(counted.is_sorted());
        Ok(())
    });
}

#[test]
fn no_sufficient_set_of_counters_is_cheaper() {
    arbtest(|u| {
        let nodes = u.int_in_range(1..=5)?;
        let mut edges = Vec::new();
        for _ in 0..u.int_in_range(0..=9)? {
            let (from, to) = (
                u.int_in_range(0..=nodes - 1)?,
                u.int_in_range(0..=nodes - 1)?,
            );
            let weight = if u.ratio(1, 5)? {
                None
            } else {
                Some(f32::from(u.int_in_range(0u8..=9)?))
            };
            edges.push(Edge { from, to, weight });
        }
        let graph = Graph { nodes, edges };

        let mut cheapest: Option<(usize, f32)> = None;
        'sets: for set in 0..1usize << graph.edges.len() {
            let mut cost = 0.0;
            for (id, edge) in graph
                .edges
                .iter()
                .enumerate()
                .filter(|&(id, _)| set >> id & 1 == 1)
            {
                let _ = id;
                match edge.weight {
                    Some(weight) => cost += weight,
                    None => continue 'sets,
                }
            }
            if determines(&graph, |id| set >> id & 1 == 1) {
                let candidate = (set.count_ones() as usize, cost);
                cheapest = Some(match cheapest {
                    Some((n, c)) => (n.min(candidate.0), c.min(candidate.1)),
                    None => candidate,
                });
            }
        }

        match (place(&graph), cheapest) {
            (Ok(counted), Some((number, cost))) => {
                assert!(determines(&graph, |id| counted.contains(&(id as u32))));
                let mine: f32 = counted
                    .iter()
                    .map(|&id| graph.edges[id as usize].weight.unwrap())
                    .sum();
                assert_eq!((counted.len(), mine), (number, cost));
            }
            (Err(error), None) => assert!(graph.edges[error.edge() as usize].weight.is_none()),
            (mine, brute) => panic!("place: {mine:?}, brute force: {brute:?}"),
        }
        Ok(())
    });
}

#[test]
fn nothing_panics_on_arbitrary_input() {
    arbtest(|u| {
        let nodes = u.int_in_range(0..=6)?;
        let mut edges = Vec::new();
        for _ in 0..u.int_in_range(0..=10)? {
            let weight = if u.arbitrary()? {
                Some(f32::from_bits(u.arbitrary()?))
            } else {
                None
            };
            edges.push(Edge {
                from: u.int_in_range(0..=7)?,
                to: u.int_in_range(0..=7)?,
                weight,
            });
        }
        let graph = Graph { nodes, edges };
        let _ = place(&graph);
        let counted: Vec<u32> = (0..u.int_in_range(0..=12)?)
            .map(|_| u.int_in_range(0..=12))
            .collect::<arbitrary::Result<_>>()?;
        let counts: Vec<u64> = (0..u.int_in_range(0..=12)?)
            .map(|_| u.arbitrary())
            .collect::<arbitrary::Result<_>>()?;
        let solution = solve(&graph, &counted, &counts);
        assert_eq!(solution.edges.len(), graph.edges.len());
        assert_eq!(solution.inconsistent == 0, solution.negative == 0);
        Ok(())
    });
}

fn edge(from: u32, to: u32, weight: f32) -> Edge {
    Edge {
        from,
        to,
        weight: Some(weight),
    }
}

#[test]
fn equal_weights_put_the_counters_on_the_last_edges() {
    let graph = Graph {
        nodes: 2,
        edges: vec![
            edge(0, 1, 1.0),
            edge(1, 0, 1.0),
            edge(0, 1, 1.0),
            edge(1, 1, 0.0),
        ],
    };
    assert_eq!(place(&graph).unwrap(), [1, 2, 3]);
}

#[test]
fn weights_order_as_numbers_and_not_a_number_is_zero() {
    let weights = [
        f32::NEG_INFINITY,
        -1.0,
        -0.0,
        f32::NAN,
        0.0,
        f32::MIN_POSITIVE,
        3.0,
        f32::INFINITY,
    ];
    for (heavy, &weight) in weights.iter().enumerate() {
        for (light, &other) in weights.iter().enumerate() {
            let graph = Graph {
                nodes: 2,
                edges: vec![edge(0, 1, weight), edge(1, 0, other)],
            };
            let as_number = |w: f32| if w.is_nan() { 0.0 } else { w };
            let expected = if as_number(weight) >= as_number(other) {
                1
            } else {
                0
            };
            assert_eq!(
                place(&graph).unwrap(),
                [expected],
                "{heavy} against {light}"
            );
        }
    }
}

#[test]
fn uncountable_edges_are_inferred_even_if_they_are_cold() {
    let graph = Graph {
        nodes: 2,
        edges: vec![
            edge(0, 1, 100.0),
            Edge {
                from: 1,
                to: 0,
                weight: None,
            },
            edge(1, 0, 90.0),
        ],
    };
    assert_eq!(place(&graph).unwrap(), [0, 2]);
    assert_eq!(solve(&graph, &[0, 2], &[10, 4]).edges, [10, 6, 4]);
}

#[test]
fn a_cycle_of_uncountable_edges_is_refused_with_its_closing_edge() {
    let none = |from, to| Edge {
        from,
        to,
        weight: None,
    };
    let graph = Graph {
        nodes: 3,
        edges: vec![none(0, 1), edge(1, 2, 1.0), none(2, 1), none(2, 0)],
    };
    let error = place(&graph).unwrap_err();
    assert_eq!(
        error,
        Uncountable::Cycle {
            edge: 3,
            from: 2,
            to: 0
        }
    );
    assert_eq!(
        error.to_string(),
        "edge 3 from node 2 to node 0 closes a cycle of edges that cannot carry a counter"
    );
    let out = Graph {
        nodes: 2,
        edges: vec![edge(0, 2, 1.0)],
    };
    assert_eq!(
        place(&out).unwrap_err().to_string(),
        "edge 0 refers to node 2, but the graph has 2 nodes"
    );
}

#[test]
fn torn_counters_disturb_only_the_edges_that_they_contradict() {
    // Two loops through node 0; the counter of the first lags behind.
    let graph = Graph {
        nodes: 3,
        edges: vec![
            edge(0, 1, 9.0),
            edge(1, 0, 1.0),
            edge(1, 0, 2.0),
            edge(0, 2, 9.0),
            edge(2, 0, 1.0),
        ],
    };
    let counted = place(&graph).unwrap();
    assert_eq!(counted, [1, 2, 4]);
    let fine = solve(&graph, &counted, &[3, 4, 5]);
    assert_eq!(fine.edges, [7, 3, 4, 5, 5]);
    // Counting edge 0 instead of 2: 3 went in, 5 came back by edge 1.
    let torn = solve(&graph, &[0, 1, 4], &[3, 5, 5]);
    assert_eq!(torn.edges, [3, 5, 0, 5, 5]);
    assert_eq!((torn.inconsistent, torn.negative), (2, 1));
}

#[test]
fn counts_at_the_limit_saturate_and_do_not_wrap() {
    let graph = Graph {
        nodes: 2,
        edges: vec![edge(0, 1, 1.0), edge(0, 1, 1.0), edge(1, 0, 2.0)],
    };
    let solution = solve(&graph, &[0, 1], &[u64::MAX, u64::MAX]);
    assert_eq!(solution.edges, [u64::MAX; 3]);
    let solution = solve(&graph, &[0, 2], &[u64::MAX, 1]);
    assert_eq!(solution.edges, [u64::MAX, 0, 1]);
    assert_eq!(solution.inconsistent, u64::MAX - 1);
}

#[test]
fn edges_that_the_counters_cannot_tell_are_undetermined() {
    let graph = Graph {
        nodes: 3,
        edges: vec![
            edge(0, 1, 1.0),
            edge(1, 0, 1.0),
            edge(1, 2, 1.0),
            edge(2, 2, 1.0),
        ],
    };
    // The cycle 0 - 1 and the self loop stay open; the bridge carries no flow.
    let solution = solve(&graph, &[], &[]);
    assert_eq!((solution.edges, solution.undetermined), (vec![0; 4], 3));
}

#[test]
fn a_path_of_a_million_nodes_needs_no_recursion() {
    let nodes = 1_000_000;
    let mut edges: Vec<Edge> = (1..nodes).map(|node| edge(node - 1, node, 1.0)).collect();
    edges.push(edge(nodes - 1, 0, 0.5));
    let graph = Graph { nodes, edges };
    let counted = place(&graph).unwrap();
    assert_eq!(counted, [nodes - 1]);
    let solution = solve(&graph, &counted, &[42]);
    assert!(solution.edges.iter().all(|&count| count == 42));
}
