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
    let mut keys: Vec<u64> = keys
        .map(|(number, item)| (address(item) - least) << 32 | u64::from(number))
        .collect();
    keys.sort_unstable();
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
}
