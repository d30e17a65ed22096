//! Padding in front of functions.
//!
//! A function that begins in the middle of a cache line may be in one line more than its length needs, and each line of
//! hot code takes the place of another in the cache. Beginning every function at a line costs 32 bytes each on average,
//! which makes more lines than it saves; beginning none at anything costs a line for about each second small function.
//!
//! [`at_lines`]: only functions that would be in one line more begin at a line, the densest (samples per byte) first,
//! as far as a limit on the length of all code allows. The others follow each other without padding.
//!
//! [`by_misses`]: where all code that ran does not fit into the cache, padding goes where it saves most expected misses
//! for a byte. That needs to know how often each line of a function is fetched, not only how often it is entered: a
//! function's line that seldom runs may be shared with the next function, and one that is always in the cache anyway is
//! worth no padding.

use postlink_flow::logarithm::{exp, exp_each, ln};
use rustc_hash::FxHashMap;

use crate::call_graph::Function;
use crate::heap::Gain;

/// Bytes of a cache line.
const LINE: u64 = 64;
/// Lines that code of a program has in a cache of 512: libraries have the rest.
const ROOM: usize = 448;
/// Prices of a byte of padding that are tried.
const STEPS: usize = 24;

/// By function: its alignment, so that functions in `order` need no more than `limit` bytes, unless they do without
/// padding at lines. `least`, by function: what its alignment has to be at least, a power of two; 1 if it is not there.
///
/// ```
/// use postlink_layout::call_graph::Function;
/// use postlink_layout::padding::at_lines;
/// let functions = [(40, 9), (40, 8), (24, 7)].map(|(size, samples)| Function { size, samples });
/// // The second would be in two lines; the third fits into the rest of its line.
/// assert_eq!(at_lines(&[0, 1, 2], &functions, &[], 200), [1, 64, 1]);
/// // No space for that.
/// assert_eq!(at_lines(&[0, 1, 2], &functions, &[], 110), [1, 1, 1]);
/// ```
pub fn at_lines(order: &[u32], functions: &[Function], least: &[u64], limit: u64) -> Vec<u64> {
    let density = |i: u32| {
        let function = functions[i as usize];
        Gain(function.samples as f64 / function.size.max(1) as f64)
    };
    let mut densest: Vec<u32> = (0..functions.len() as u32).collect();
    densest.sort_by_key(|i| std::cmp::Reverse(density(*i)));
    let mut rank = vec![0; functions.len()];
    for (place, i) in densest.iter().enumerate() {
        rank[*i as usize] = place;
    }
    let of_densest = |number: usize| {
        let mut alignment: Vec<u64> = (0..functions.len())
            .map(|i| least.get(i).copied().unwrap_or(1).max(1))
            .collect();
        let mut at = 0u64;
        for i in order.iter().map(|i| *i as usize) {
            let size = functions[i].size;
            let start = at.next_multiple_of(alignment[i]);
            let lines = (start.saturating_add(size)).div_ceil(LINE) - start / LINE;
            if rank[i] < number && lines > size.div_ceil(LINE) {
                alignment[i] = alignment[i].max(LINE);
            }
            at = at.next_multiple_of(alignment[i]).saturating_add(size);
        }
        (alignment, at)
    };
    // Padding grows with the number of functions that have it, by and large: the largest number that fits is near.
    let (mut fits, mut too_many) = (0, functions.len() + 1);
    while fits + 1 < too_many {
        let number = fits.midpoint(too_many);
        if of_densest(number).1 <= limit {
            fits = number
        } else {
            too_many = number
        }
    }
    of_densest(fits).0
}

/// Code of a function that runs equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Bytes from the start of the function.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// How often it ran.
    pub runs: u64,
}

/// What a line costs that is fetched a number of times, by Che's approximation of a cache that replaces the least
/// recently used line: a line stays for a time that is the same for all of them, and misses if it is not fetched in it.
/// That time is such that as many lines as there is room for are in the cache ("Hierarchical Web caching systems", Che,
/// Tung and Wang, 2002).
///
/// A line that is fetched `n` times misses `n e^-nt` times, and takes `1 - e^-nt` of the room of a line, which costs
/// others the misses that one line less makes.
#[derive(Clone, Copy, Debug)]
struct LineCost {
    time: f64,
    room: f64,
}

impl LineCost {
    /// `None` if all lines have room.
    fn new(fetches: &[u64]) -> Option<Self> {
        let mut rates: Vec<u64> = fetches.iter().copied().filter(|n| *n > 0).collect();
        if rates.len() <= ROOM {
            return None;
        }
        // Many lines are fetched equally often. Sums go over all of them, in their order, where it matters.
        let of_lines = rates.clone();
        rates.sort_unstable();
        rates.dedup();
        let places: Vec<usize> = of_lines
            .iter()
            .map(|n| rates.partition_point(|rate| rate < n))
            .collect();
        let mut lines_of = vec![0.0; rates.len()];
        places.iter().for_each(|place| lines_of[*place] += 1.0);
        let rates: Vec<f64> = rates.into_iter().map(|n| n as f64).collect();
        let mut away = vec![0.0; rates.len()];
        let of_half = |time: f64, (rates, away): (&[f64], &mut [f64])| {
            for (away, n) in away.iter_mut().zip(rates) {
                *away = -n * time;
            }
            exp_each(away);
        };
        let at_time = |time: f64, away: &mut [f64]| {
            let half = rates.len() / 2;
            let (a, b) = (rates.split_at(half), away.split_at_mut(half));
            postlink_parallel::join(|| of_half(time, (a.0, b.0)), || of_half(time, (a.1, b.1)));
        };
        // Two sums of so many numbers differ by less than this part of them, in whatever order they are added.
        let precision = 2.0 * places.len() as f64 * f64::EPSILON;
        let mut is_too_short = |time: f64| {
            at_time(time, &mut away);
            let of_rates = sum_in_any_order(&lines_of, &away);
            let error = precision * of_rates.max(ROOM as f64);
            if (of_rates - ROOM as f64).abs() > error {
                return of_rates < ROOM as f64;
            }
            let lines = places.iter().map(|place| 1.0 - away[*place]).sum::<f64>();
            lines < ROOM as f64
        };
        // With a time of 1 divided by the fetches of the most frequent line at most 1 - 1/e of all lines are there; and
        // all but a few when each has been fetched 64 times.
        let most = rates.iter().copied().fold(1.0, f64::max);
        let ends = (ln(1.0 / (most * 1e6)), ln(64.0));
        let (mut low, mut high) = ends;
        for _ in 0..64 {
            let time = (low + high) / 2.0;
            // There is no number between the two, and both have been tried.
            if time == low && low != ends.0 || time == high && high != ends.1 {
                break;
            }
            if is_too_short(exp(time)) {
                low = time;
            } else {
                high = time;
            }
        }
        let time = exp(low);
        at_time(time, &mut away);
        let rate = |power: i32| {
            places
                .iter()
                .map(|place| rates[*place].powi(power) * away[*place])
                .sum::<f64>()
        };
        Some(Self {
            time,
            room: rate(2) / rate(1).max(f64::MIN_POSITIVE),
        })
    }

    fn of(self, fetches: u64) -> f64 {
        let n = fetches as f64;
        self.with(n, exp(-n * self.time))
    }

    /// What a line costs that is fetched `n` times, and that `away` is the share of.
    fn with(self, n: f64, away: f64) -> f64 {
        n * away + self.room * (1.0 - away)
    }

    /// What a line costs that is fetched as often as each stretch runs.
    fn of_stretches(self, stretches: &[Stretch]) -> Vec<PricedStretch> {
        let away = stretches.iter().map(|s| -(s.runs as f64) * self.time);
        let mut away: Vec<f64> = away.collect();
        exp_each(&mut away);
        let priced = |(stretch, away): (&Stretch, f64)| PricedStretch {
            stretch: *stretch,
            cost: self.with(stretch.runs as f64, away),
        };
        stretches.iter().zip(away).map(priced).collect()
    }
}

/// The sum of how many lines of each rate are there, where a share of them is `away`: in four sums, which take no
/// longer than one does.
fn sum_in_any_order(lines: &[f64], away: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    for (lines, away) in lines.chunks(4).zip(away.chunks(4)) {
        for ((sum, lines), away) in sums.iter_mut().zip(lines).zip(away) {
            *sum += lines * (1.0 - away);
        }
    }
    sums.iter().sum()
}

/// A stretch, and what a line costs that is fetched as often as it runs.
#[derive(Clone, Copy)]
struct PricedStretch {
    stretch: Stretch,
    cost: f64,
}

/// Calls `line` for each line of a function at `start`: its number, and the stretch in it that runs most.
fn lines<S: Copy>(
    start: u64,
    stretches: &[S],
    of: impl Fn(&S) -> &Stretch,
    mut line: impl FnMut(u64, S),
) {
    let mut last: Option<(u64, S)> = None;
    for s in stretches.iter().filter(|s| of(s).len > 0) {
        let stretch = of(s);
        let from = start + stretch.offset;
        for number in from / LINE..=(from + stretch.len - 1) / LINE {
            match &mut last {
                Some((same, most)) if *same == number => {
                    if stretch.runs > of(most).runs {
                        *most = *s;
                    }
                }
                _ => {
                    if let Some((number, most)) = last.replace((number, *s)) {
                        line(number, most);
                    }
                }
            }
        }
    }
    if let Some((number, most)) = last {
        line(number, most);
    }
}

/// What lines cost that two functions share, by how often they are fetched: most pairs of functions are tried more than
/// once.
struct Shared {
    cost: LineCost,
    known: FxHashMap<u64, f64>,
}

impl Shared {
    fn of(&mut self, fetches: u64) -> f64 {
        let cost = self.cost;
        let known = self.known.entry(fetches);
        *known.or_insert_with(|| cost.of(fetches))
    }
}

/// The last line of functions that follow each other. One that two functions share is fetched by both, as if they ran
/// at different times.
#[derive(Clone, Default)]
struct Last {
    number: u64,
    fetches: u64,
    cost: f64,
}

impl Last {
    /// What the `k`-th function adds to the cost of the lines in front of it.
    fn added(&self, start: u64, (code, k): (&Code, usize), shared: &mut Shared) -> f64 {
        let mut sum = 0.0;
        code.lines(start, k, |line| {
            sum += if line.number == self.number {
                shared.of(line.runs.saturating_add(self.fetches)) - self.cost
            } else {
                line.cost
            };
        });
        sum
    }

    fn put(&mut self, start: u64, (code, k): (&Code, usize), shared: &mut Shared) {
        code.lines(start, k, |line| {
            *self = if line.number == self.number {
                let fetches = line.runs.saturating_add(self.fetches);
                Last {
                    number: line.number,
                    fetches,
                    cost: shared.of(fetches),
                }
            } else {
                Last {
                    number: line.number,
                    fetches: line.runs,
                    cost: line.cost,
                }
            };
        });
    }
}

/// A line of a function: how often it is fetched, and what it costs.
#[derive(Clone, Copy)]
struct Line {
    /// From the line in which the function begins, or from the first of all lines.
    number: u64,
    runs: u64,
    cost: f64,
}

/// Distances of the places from which a function's lines are known.
const STEP: u64 = 16;
/// So many of them are in a line.
const PLACES: usize = (LINE / STEP) as usize;

/// So many functions' lines are found together.
const PART: usize = 512;

/// The code of functions, in the order in which they follow each other, with what lines cost. Most places that are
/// tried are aligned; from there a function's lines are found once.
struct Code {
    stretches: Vec<PricedStretch>,
    aligned: Vec<Line>,
    /// By function, and one more: its first stretch, and by place in a line its first one of `aligned`.
    first: Vec<(usize, [usize; PLACES])>,
}

impl Code {
    /// `stretches`, by function.
    fn new(order: &[u32], stretches: &[Vec<Stretch>], cost: LineCost) -> Self {
        let parts = postlink_parallel::map_parts(order.len(), PART, |part| {
            Self::of_part(&order[part], stretches, cost)
        });
        let sum = |len: fn(&Self) -> usize| parts.iter().map(len).sum();
        let mut code = Self {
            stretches: Vec::with_capacity(sum(|part| part.stretches.len())),
            aligned: Vec::with_capacity(sum(|part| part.aligned.len())),
            first: Vec::with_capacity(order.len() + 1),
        };
        for part in parts {
            let (own, aligned) = (code.stretches.len(), code.aligned.len());
            let moved = |(first, lines): (usize, [usize; PLACES])| {
                (own + first, lines.map(|line| aligned + line))
            };
            code.first.extend(part.first.into_iter().map(moved));
            code.stretches.extend(part.stretches);
            code.aligned.extend(part.aligned);
        }
        let end = [code.aligned.len(); PLACES];
        code.first.push((code.stretches.len(), end));
        code
    }

    /// The same for some functions that follow each other, without the end of the last.
    fn of_part(order: &[u32], stretches: &[Vec<Stretch>], cost: LineCost) -> Self {
        let own = order.iter().flat_map(|i| &stretches[*i as usize]);
        let all = cost.of_stretches(&own.copied().collect::<Vec<_>>());
        let mut aligned = Vec::new();
        let mut first = Vec::with_capacity(order.len());
        let mut from = 0;
        for count in order.iter().map(|i| stretches[*i as usize].len()) {
            let own = &all[from..from + count];
            let mut lines = [0; PLACES];
            for (place, first) in lines.iter_mut().enumerate() {
                *first = aligned.len();
                priced_lines(place as u64 * STEP, own, |line| aligned.push(line));
            }
            first.push((from, lines));
            from += count;
        }
        Self {
            stretches: all,
            aligned,
            first,
        }
    }

    /// Calls `line` for each line of the function with number `k` in the order, at `start`.
    fn lines(&self, start: u64, k: usize, mut line: impl FnMut(Line)) {
        let (own, next) = (&self.first[k], &self.first[k + 1]);
        if !start.is_multiple_of(STEP) {
            return priced_lines(start, &self.stretches[own.0..next.0], line);
        }
        let place = (start % LINE / STEP) as usize;
        let end = own.1.get(place + 1).unwrap_or(&next.1[0]);
        for known in &self.aligned[own.1[place]..*end] {
            line(Line {
                number: start / LINE + known.number,
                ..*known
            });
        }
    }
}

/// Calls `line` for each line of a function at `start`.
fn priced_lines(start: u64, stretches: &[PricedStretch], mut line: impl FnMut(Line)) {
    lines(
        start,
        stretches,
        |s| &s.stretch,
        |number, most| {
            line(Line {
                number,
                runs: most.stretch.runs,
                cost: most.cost,
            });
        },
    );
}

/// Alignments that are tried besides what a function needs.
const ALIGNMENTS: [u64; 3] = [16, 32, LINE];

/// As [`at_lines`], but by what lines cost: padding goes where it saves most misses that a cache of 32 KiB is expected
/// to have, by how often each line of the functions is fetched ([`LineCost`]). `stretches`, by function: its code in
/// the order of offsets.
///
/// If all code that ran has room in the cache, what is taken is that of [`at_lines`].
pub fn by_misses(
    order: &[u32],
    functions: &[Function],
    stretches: &[Vec<Stretch>],
    least: &[u64],
    limit: u64,
) -> Vec<u64> {
    let usual = at_lines(order, functions, least, limit);
    let (mut at, mut fetched, mut last) = (0u64, Vec::new(), 0);
    for i in order.iter().map(|i| *i as usize) {
        at = at.next_multiple_of(usual[i]);
        lines(
            at,
            &stretches[i],
            |s| s,
            |number, most| {
                match fetched.last_mut() {
                    Some(before) if number == last => *before = most.runs.saturating_add(*before),
                    _ => fetched.push(most.runs),
                }
                last = number;
            },
        );
        at = at.saturating_add(functions[i].size);
    }
    let Some(cost) = LineCost::new(&fetched) else {
        return usual;
    };
    let padder = Padder {
        order,
        functions,
        least,
        code: Code::new(order, stretches, cost),
        nothing: Last {
            cost: cost.of(0),
            ..Last::default()
        },
    };
    let mut shared = [(); 2].map(|()| Shared {
        cost,
        known: FxHashMap::default(),
    });
    // The dearer a byte, the fewer there are, by and large: the lowest price at which they fit is near. What its ends
    // come to is known when the first prices between them were tried.
    let ends = (
        ln((cost.room * 1e3).max(1.0)),
        ln((cost.room * 1e-9).max(1e-12)),
    );
    let mut search = Search {
        fits: (ends.0, None),
        too_many: (ends.1, None),
    };
    let mut taken: Option<Padded> = None;
    let mut step = 0;
    while step < STEPS {
        // Two at the same time: the next price, and the one that seems to follow.
        let price = search.next();
        let further = search.follower(limit);
        let [own, other] = &mut shared;
        let (first, second) = postlink_parallel::join(
            || padder.padded(exp(price), own),
            || padder.padded(exp(further), other),
        );
        search.tried(price, first, limit, &mut taken);
        step += 1;
        if step < STEPS && search.next() == further {
            search.tried(further, second, limit, &mut taken);
            step += 1;
        }
    }
    let last = || padder.padded(exp(search.fits.0), &mut shared[0]);
    let Padded { alignment, end } = taken.unwrap_or_else(last);
    if end <= limit { alignment } else { usual }
}

/// The search for the lowest price of a byte at which padding fits: logarithms of two prices between which it is, and
/// where the code ends with them if they were tried.
struct Search {
    fits: (f64, Option<u64>),
    too_many: (f64, Option<u64>),
}

impl Search {
    /// The price to be tried.
    fn next(&self) -> f64 {
        f64::midpoint(self.fits.0, self.too_many.0)
    }

    /// The price that comes after that one, if the code ends with it about in the middle of where it ends with the
    /// prices beside it.
    fn follower(&self, limit: u64) -> f64 {
        let between = |a: u64, b: u64| a.midpoint(b) <= limit;
        let seems_to_fit = match (self.fits.1, self.too_many.1) {
            (Some(a), Some(b)) => between(a, b),
            // Few prices are low enough for too much padding.
            (_, None) => true,
            (None, _) => false,
        };
        let middle = self.next();
        if seems_to_fit {
            f64::midpoint(middle, self.too_many.0)
        } else {
            f64::midpoint(self.fits.0, middle)
        }
    }

    /// With a price, which is the [next](Self::next), the code is padded so; what fits is `taken`.
    fn tried(&mut self, price: f64, padded: Padded, limit: u64, taken: &mut Option<Padded>) {
        if padded.end <= limit {
            self.fits = (price, Some(padded.end));
            *taken = Some(padded);
        } else {
            self.too_many = (price, Some(padded.end));
        }
    }
}

/// Alignments by function, and where the code ends with them.
struct Padded {
    alignment: Vec<u64>,
    end: u64,
}

/// What [`by_misses`] pads.
struct Padder<'a> {
    order: &'a [u32],
    functions: &'a [Function],
    least: &'a [u64],
    code: Code,
    /// What is in front of the first function.
    nothing: Last,
}

impl Padder<'_> {
    /// Weighs what padding a function costs against `price`, the least number of misses that a byte must save.
    fn padded(&self, price: f64, shared: &mut Shared) -> Padded {
        let mut alignment: Vec<u64> = (0..self.functions.len())
            .map(|i| self.least.get(i).copied().unwrap_or(1).max(1))
            .collect();
        let (mut at, mut last) = (0u64, self.nothing.clone());
        for (k, i) in self.order.iter().map(|i| *i as usize).enumerate() {
            let own = alignment[i];
            let mut value = |align: u64| {
                let start = at.next_multiple_of(align);
                last.added(start, (&self.code, k), shared) + price * (start - at) as f64
            };
            let mut best = (value(own), own);
            let mut tried = at.next_multiple_of(own);
            for align in ALIGNMENTS.into_iter().filter(|align| *align > own) {
                // Of the same place the value is the same.
                let start = at.next_multiple_of(align);
                if std::mem::replace(&mut tried, start) == start {
                    continue;
                }
                let value = value(align);
                if value < best.0 {
                    best = (value, align);
                }
            }
            alignment[i] = best.1;
            let start = at.next_multiple_of(best.1);
            last.put(start, (&self.code, k), shared);
            at = start.saturating_add(self.functions[i].size);
        }
        Padded { alignment, end: at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions(list: &[(u64, u64)]) -> Vec<Function> {
        let function = |&(size, samples)| Function { size, samples };
        list.iter().map(function).collect()
    }

    #[test]
    fn the_densest_functions_get_what_room_there_is() {
        // Each but the first would cross into a line, and takes 24 bytes of padding not to.
        let list = functions(&[(40, 1), (40, 5), (40, 9)]);
        assert_eq!(at_lines(&[0, 1, 2], &list, &[], 168), [1, 64, 64]);
        assert_eq!(at_lines(&[0, 1, 2], &list, &[], 167), [1, 1, 1]);
        // The second ends at 124, and the third would at 168.
        let list = functions(&[(50, 1), (60, 9), (40, 2)]);
        assert_eq!(at_lines(&[0, 1, 2], &list, &[], 168), [1, 64, 64]);
        assert_eq!(at_lines(&[0, 1, 2], &list, &[], 165), [1, 64, 1]);
    }

    #[test]
    fn alignment_for_pointers_is_kept() {
        let list = functions(&[(10, 1), (10, 1), (10, 1)]);
        assert_eq!(at_lines(&[2, 1, 0], &list, &[16, 128, 2], 0), [16, 128, 2]);
        assert_eq!(at_lines(&[], &[], &[], 0), []);
    }

    #[test]
    fn a_function_of_many_lines_begins_where_it_needs_no_more() {
        // 130 bytes are in three lines from 0, 64 … and up to offset 62.
        let list = functions(&[(62, 1), (130, 1), (1, 1), (130, 1)]);
        assert_eq!(at_lines(&[0, 1, 2, 3], &list, &[], 1000), [1, 1, 1, 1]);
        let list = functions(&[(63, 1), (130, 1)]);
        assert_eq!(at_lines(&[0, 1], &list, &[], 1000), [1, 64]);
    }

    /// Functions that are a line each and run at many rates, as many as do not fit.
    fn filler() -> Vec<(Function, Vec<Stretch>)> {
        (0..600)
            .map(|i| function(64, &[(0, 64, 1 << (i % 16))]))
            .collect()
    }

    fn function(size: u64, stretches: &[(u64, u64, u64)]) -> (Function, Vec<Stretch>) {
        let samples = stretches.first().map_or(0, |s| s.2);
        let stretch = |&(offset, len, runs): &(u64, u64, u64)| Stretch { offset, len, runs };
        (
            Function { size, samples },
            stretches.iter().map(stretch).collect(),
        )
    }

    fn padded(list: &[(Function, Vec<Stretch>)], limit: u64) -> Vec<u64> {
        let (functions, stretches): (Vec<_>, Vec<_>) = list.iter().cloned().unzip();
        let order: Vec<u32> = (0..functions.len() as u32).collect();
        by_misses(&order, &functions, &stretches, &[], limit)
    }

    #[test]
    fn a_function_whose_second_line_never_runs_needs_no_padding() {
        // Both would be in two lines from 40 on. Of the one the second line is never fetched, of the other it is.
        let size = 600 * 64;
        let mut list = filler();
        list.push(function(40, &[(0, 40, 2)]));
        list.push(function(40, &[(0, 24, 2), (24, 16, 0)]));
        let alignment = padded(&list, size + 1000);
        assert_eq!(
            alignment[601], 1,
            "its first part shares the line in front of it"
        );
        list[601] = function(40, &[(0, 40, 2)]);
        let alignment = padded(&list, size + 1000);
        // From 600 lines and 40 bytes on, multiples of 32 and of 64 are the same place.
        assert_eq!(
            alignment[601], 32,
            "what seldom runs misses in either of two lines, shared or not"
        );
    }

    #[test]
    fn padding_by_misses_keeps_the_limit_and_needed_alignment() {
        let mut list = filler();
        for i in 0..300u64 {
            list.push(function(40 + i % 7, &[(0, 40, 1 + i % 50)]));
        }
        let (functions, stretches): (Vec<_>, Vec<_>) = list.iter().cloned().unzip();
        let order: Vec<u32> = (0..functions.len() as u32).collect();
        let least: Vec<u64> = (0..functions.len()).map(|i| 1 << (i % 4)).collect();
        let end = |alignment: &[u64]| {
            let place = |at: u64, i: &u32| {
                at.next_multiple_of(alignment[*i as usize]) + functions[*i as usize].size
            };
            order.iter().fold(0, place)
        };
        for percent in [0, 1, 3, 10] {
            let limit = end(&least) * (100 + percent) / 100;
            let alignment = by_misses(&order, &functions, &stretches, &least, limit);
            assert!(end(&alignment) <= limit, "{percent} %");
            assert!(alignment.iter().zip(&least).all(|(a, b)| a >= b));
        }
    }

    #[test]
    fn code_that_fits_is_padded_as_by_density() {
        let list: Vec<_> = [(40, 9), (40, 8), (24, 7)]
            .map(|(size, runs)| function(size, &[(0, size, runs)]))
            .into();
        assert_eq!(padded(&list, 200), [1, 64, 1]);
        assert_eq!(by_misses(&[], &[], &[], &[], 0), []);
    }

    #[test]
    fn the_cost_of_a_line_is_highest_at_middle_rates() {
        // 1,000 lines of one rate, and 448 places: each is there with that probability.
        let cost = LineCost::new(&vec![100; 1000]).unwrap_or(LineCost {
            time: 0.0,
            room: 0.0,
        });
        let there = 1.0 - exp(-100.0 * cost.time);
        assert!((there - 0.448).abs() < 1e-6, "{there}");
        // One place less: of 100 fetches of each of them, one in 1,000 more fails: 100 in all.
        assert!((cost.room - 100.0).abs() < 1e-6, "{}", cost.room);
        assert_eq!(cost.of(0), 0.0);
        assert!(cost.of(1_000_000) < cost.of(200) && cost.of(10) < cost.of(200));
    }

    #[test]
    fn counts_of_any_size_give_some_padding() {
        let mut list = filler();
        list.push(function(u64::from(u32::MAX), &[(0, 10, u64::MAX)]));
        list.push(function(10, &[(0, 10, u64::MAX)]));
        list.push(function(10, &[]));
        assert_eq!(padded(&list, 0).len(), 603);
    }
}
