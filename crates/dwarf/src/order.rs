//! The order of things by address, without moving them: what is sorted is numbers of eight bytes, not structures of
//! several times as many, compared by all of their fields.

use std::cmp::Ordering;

/// The numbers of items in the order of their addresses, those with the same one as `then` says, and those that it
/// calls equal as they came.
pub(crate) fn by_address<T>(
    items: &[T],
    address: impl Fn(&T) -> u64,
    then: impl Fn(&T, &T) -> Ordering,
) -> Vec<u32> {
    let least = items.iter().map(&address).min().unwrap_or(0);
    let far = |item: &T| (address(item) - least) >> 32 != 0;
    let compare = |a: &u32, b: &u32| match (items.get(*a as usize), items.get(*b as usize)) {
        (Some(a), Some(b)) => address(a).cmp(&address(b)).then_with(|| then(a, b)),
        _ => Ordering::Equal, // they are numbers of items
    };
    let mut order: Vec<u32>;
    if items.iter().any(far) {
        order = (0..items.len() as u32).collect();
        order.sort_by(compare);
        return order;
    }
    let keys = (0u32..).zip(items);
    let keys = keys.map(|(number, item)| (address(item) - least) << 32 | u64::from(number));
    let keys = by_upper_half(keys.collect());
    order = keys.iter().map(|key| *key as u32).collect();
    let mut first = 0;
    for same in keys.chunk_by(|a, b| a >> 32 == b >> 32) {
        if let Some(numbers) = order
            .get_mut(first..first + same.len())
            .filter(|numbers| numbers.len() > 1)
        {
            numbers.sort_by(compare);
        }
        first += same.len();
    }
    order
}

/// Puts items where an order says: what is at its first place is the number of the item that comes first. Each number
/// is there once.
// The numbers are those of [`by_address`].
#[allow(clippy::indexing_slicing)]
pub(crate) fn arrange<T: Copy>(items: &mut [T], mut order: Vec<u32>) {
    for first in 0..order.len() {
        // A cycle of items of which each takes the place of the one before; those that are in their place are done.
        let moved = items[first];
        let mut place = first;
        loop {
            let from = order[place] as usize;
            order[place] = place as u32;
            if from == first {
                break;
            }
            items[place] = items[from];
            place = from;
        }
        items[place] = moved;
    }
}

/// Sorts numbers by their upper halves. Their lower halves ascend, and do so then where the upper ones are the same.
fn by_upper_half(mut keys: Vec<u64>) -> Vec<u64> {
    // Digit by digit from the lowest, which takes longer for a few.
    const BITS: u32 = 11;
    const MANY: usize = 1 << BITS;
    if keys.len() < MANY {
        keys.sort_unstable();
        return keys;
    }
    let highest = keys.iter().max().map_or(0, |key| key >> 32);
    let bits = u64::BITS - highest.leading_zeros();
    let mut sorted = vec![0; keys.len()];
    for low in (0..bits).step_by(BITS as usize) {
        let digit = |key: &u64| (key >> (32 + low)) as usize & (MANY - 1);
        let mut places = [0usize; MANY];
        for key in &keys {
            if let Some(count) = places.get_mut(digit(key)) {
                *count += 1;
            }
        }
        let mut behind = 0;
        for place in &mut places {
            let count = *place;
            *place = behind;
            behind += count;
        }
        for key in &keys {
            let Some(place) = places.get_mut(digit(key)) else {
                continue;
            };
            if let Some(to) = sorted.get_mut(*place) {
                *to = *key;
            }
            *place += 1;
        }
        std::mem::swap(&mut keys, &mut sorted);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_all_fields() {
        arbtest::arbtest(|u| {
            let wide = *u.choose(&[4u32, 31, 32, 33, 60])?;
            let mut items = Vec::new();
            for _ in 0..u.int_in_range(0..=40)? {
                let address = (u.int_in_range(0..=9u64)? << wide) + u.int_in_range(0..=2)?;
                items.push((address, u.int_in_range(0..=3u8)?));
            }
            let order = by_address(&items, |i| i.0, |a, b| a.1.cmp(&b.1));
            let found: Vec<_> = order.iter().map(|n| items[*n as usize]).collect();
            let mut arranged = items.clone();
            arrange(&mut arranged, order.clone());
            assert_eq!(arranged, found);
            let mut numbers = order.clone();
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..items.len() as u32));
            // By the second as well, or stable.
            let order = by_address(&items, |i| i.0, |_, _| Ordering::Equal);
            let mut stable = items.clone();
            stable.sort_by_key(|i| i.0);
            assert!(order.iter().map(|n| items[*n as usize]).eq(stable));
            items.sort_unstable();
            assert_eq!(found, items);
            Ok(())
        });
    }

    #[test]
    fn many_are_sorted_as_few_are() {
        let mut number = 1u64;
        for bits in [0, 1, 11, 12, 23, 32] {
            let random = |_| {
                number = number.wrapping_mul(6364136223846793005).wrapping_add(1);
                if bits == 0 { 0 } else { number >> (64 - bits) }
            };
            let items: Vec<u64> = (0..5000).map(random).collect();
            let mut order: Vec<u32> = (0..5000).collect();
            order.sort_by_key(|i| items[*i as usize]);
            assert_eq!(by_address(&items, |i| *i, |_, _| Ordering::Equal), order);
        }
    }
}
