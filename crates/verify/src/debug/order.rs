//! Things sorted by address where there are hundreds of thousands of them: by numbers of eight bytes, digit by digit,
//! and not by comparing structures.

use std::cmp::Ordering;

/// From so many on it is faster than comparing.
const MANY: usize = 2048;
/// Bits of a digit.
const DIGIT: u32 = 11;

/// Sorts by address, those with the same one as `then` says, and those that it calls equal as they came.
pub(super) fn sort_by_address<T: Copy>(
    items: &mut [T],
    address: impl Fn(&T) -> u64,
    then: impl Fn(&T, &T) -> Ordering,
) {
    let compare = |a: &T, b: &T| address(a).cmp(&address(b)).then_with(|| then(a, b));
    if items.is_sorted_by(|a, b| compare(a, b).is_le()) {
        return;
    }
    let least = items.iter().map(&address).min().unwrap_or(0);
    let most = items.iter().map(&address).max().unwrap_or(0);
    // A key is an address and the number of its item, 32 bits each.
    let fits = u32::try_from(most - least).is_ok() && u32::try_from(items.len()).is_ok();
    if items.len() < MANY || !fits {
        items.sort_by(compare);
        return;
    }
    let keys = items.iter().zip(0u64..);
    let keys = keys.map(|(item, number)| (address(item) - least) << 32 | number);
    let keys = by_upper_half(keys.collect(), most - least);
    put_in_order(items, keys);
    for same in items.chunk_by_mut(|a, b| address(a) == address(b)) {
        if same.len() > 1 {
            same.sort_by(&then);
        }
    }
}

/// Sorts keys by their upper halves, which have a highest value; those with the same one stay in order.
fn by_upper_half(mut keys: Vec<u64>, highest: u64) -> Vec<u64> {
    let bits = u64::BITS - highest.leading_zeros();
    let mut sorted = vec![0; keys.len()];
    for low in (0..bits).step_by(DIGIT as usize) {
        let digit = |key: u64| (key >> (32 + low)) as usize & ((1 << DIGIT) - 1);
        let mut next = [0usize; 1 << DIGIT];
        keys.iter().for_each(|key| next[digit(*key)] += 1);
        let mut before = 0;
        for place in &mut next {
            before += std::mem::replace(place, before);
        }
        for key in &keys {
            let place = &mut next[digit(*key)];
            sorted[*place] = *key;
            *place += 1;
        }
        std::mem::swap(&mut keys, &mut sorted);
    }
    keys
}

/// Puts each item where the number in the lower half of a key says which one is to be there.
fn put_in_order<T: Copy>(items: &mut [T], mut keys: Vec<u64>) {
    let number = |key: u64| key as u32 as usize;
    for start in 0..items.len() {
        let first = items[start];
        let mut at = start;
        // Around a circle of places. One that is right is its own.
        loop {
            let from = number(std::mem::replace(&mut keys[at], at as u64));
            if from == start || from == at {
                break;
            }
            items[at] = items[from];
            at = from;
        }
        items[at] = first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_in_the_same_order() {
        let mut random = 1u64;
        for (count, bits) in [(50, 4), (4000, 6), (4000, 20), (4000, 32), (4000, 40)] {
            let mut next = |bits: u32| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                random >> (64 - bits)
            };
            let all: Vec<(u64, u64, usize)> = (0..count)
                .map(|i| (0x40_0000 + next(bits), next(1), i))
                .collect();
            for by_second in [false, true] {
                let then = |a: &(u64, u64, usize), b: &(u64, u64, usize)| {
                    if by_second {
                        a.1.cmp(&b.1)
                    } else {
                        Ordering::Equal
                    }
                };
                let (mut found, mut right) = (all.clone(), all.clone());
                sort_by_address(&mut found, |item| item.0, then);
                right.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| then(a, b)));
                assert_eq!(found, right, "{count} of {bits} bits");
            }
        }
    }
}
