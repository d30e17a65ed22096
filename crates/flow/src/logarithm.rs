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

#[cfg(test)]
mod tests {
    use super::*;

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
