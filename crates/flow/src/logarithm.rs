//! Logarithms and exponentials of additions and multiplications alone: the same bits on every machine, which a C
//! library's are not. Good to about 1 in 10^12, which is more than what rests on them needs.

use std::f64::consts::{LN_2, SQRT_2};

/// The natural logarithm of a positive, normal number.
pub fn ln(x: f64) -> f64 {
    let bits = x.max(f64::MIN_POSITIVE).to_bits();
    let mut power = (bits >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        power += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1))
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let mut sum = 0.0;
    for k in (0..9).rev() {
        sum = sum * square + 1.0 / f64::from(2 * k + 1);
    }
    f64::from(power) * LN_2 + 2.0 * t * sum
}

/// `e` to the power of a number; 0 below -700, as of 700 above it.
pub fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    let x = x.min(700.0);
    let power = (x / LN_2).round();
    let rest = x - power * LN_2;
    let mut sum = 1.0;
    for k in (1..=12).rev() {
        sum = 1.0 + sum * rest / f64::from(k);
    }
    sum * f64::from_bits(((power as i64 + 1023) as u64) << 52)
}

/// How many numbers [`exp_each`] works on at a time.
const TOGETHER: usize = 8;

/// [`exp`] of each number, in its place, with the same bits. The divisions of one series wait for each other, those of
/// several do not: a list takes a fraction of the time that its numbers take one by one.
pub fn exp_each(list: &mut [f64]) {
    let (parts, rest) = list.as_chunks_mut::<TOGETHER>();
    for part in parts {
        let (mut power, mut left) = ([0.0; TOGETHER], [0.0; TOGETHER]);
        for k in 0..TOGETHER {
            let x = part[k].clamp(-700.0, 700.0);
            power[k] = (x / LN_2).round();
            left[k] = x - power[k] * LN_2;
        }
        let mut sum = [1.0; TOGETHER];
        for term in (1..=12).rev() {
            for (sum, left) in sum.iter_mut().zip(left) {
                *sum = 1.0 + *sum * left / f64::from(term);
            }
        }
        for k in 0..TOGETHER {
            let scale = f64::from_bits(((power[k] as i64 + 1023) as u64) << 52);
            part[k] = if part[k] < -700.0 {
                0.0
            } else {
                sum[k] * scale
            };
        }
    }
    rest.iter_mut().for_each(|x| *x = exp(*x));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_same_bits_as_its_numbers() {
        let edges = [0.0, -0.0, -700.0, -700.1, 700.0, 1e9, -1e9, f64::INFINITY];
        let list = || {
            let numbers = (-4000..4003).map(|k| f64::from(k) * 0.1937);
            edges.into_iter().chain(numbers)
        };
        let mut all: Vec<f64> = list().collect();
        exp_each(&mut all);
        for (x, exps) in list().zip(all) {
            assert_eq!(exps.to_bits(), exp(x).to_bits(), "{x}");
        }
    }

    #[test]
    fn both_agree_with_the_library() {
        for k in -600..600 {
            let x = f64::from(k) * 0.37;
            let (own, theirs) = (exp(x), x.exp());
            assert!(
                (own - theirs).abs() <= 1e-12 * theirs,
                "exp {x}: {own} {theirs}"
            );
            let (own, theirs) = (ln(theirs), theirs.ln());
            assert!(
                (own - theirs).abs() <= 1e-12 * (1.0 + theirs.abs()),
                "ln: {own} {theirs}"
            );
        }
    }
}
