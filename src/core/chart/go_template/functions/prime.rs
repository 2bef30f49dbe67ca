//! Whether a number drawn at random is prime.
//!
//! OpenSSL's own test is made for numbers that an enemy may have chosen: it makes 64 rounds on each prime, which takes
//! longer than to find it. Numbers drawn at random need few.

use std::sync::LazyLock;

use openssl::bn::{BigNum, BigNumContext, BigNumRef};
use openssl::error::ErrorStack;

/// Numbers with a factor below are sorted out before the expensive test.
const SMALL: u32 = 2000;

/// The bases of Miller and Rabin's test. A random odd number of 1024 bits that passes a single one is composite with a
/// chance of less than 2^-100 (Damgård, Landrock and Pomerance).
const BASES: [u32; 5] = [2, 3, 5, 7, 11];

/// Products of small odd primes, each of which fits 32 bits.
static PRODUCTS: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let mut products = vec![1_u64];
    let odd = (3..u64::from(SMALL)).step_by(2);
    for prime in odd.filter(|n| (3..*n).step_by(2).take_while(|d| d * d <= *n).all(|d| n % d != 0)) {
        match products.last_mut() {
            Some(last) if u32::try_from(*last * prime).is_ok() => *last *= prime,
            _ => products.push(prime),
        }
    }
    products
});

/// Whether the number, given as its bytes too, is prime. It must be odd, larger than the small primes, and random.
pub(super) fn is_prime(number: &BigNumRef, bytes: &[u8], context: &mut BigNumContext) -> Result<bool, ErrorStack> {
    if has_small_factor(bytes) {
        return Ok(false);
    }
    for base in BASES {
        if !passes(number, base, context)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn has_small_factor(bytes: &[u8]) -> bool {
    PRODUCTS.iter().any(|product| {
        let remainder = bytes.chunks(4).fold(0_u64, |remainder, chunk| {
            chunk.iter().fold(remainder, |value, byte| value << 8 | u64::from(*byte)) % product
        });
        greatest_common_divisor(*product, remainder) != 1
    })
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// One round of Miller and Rabin's test.
fn passes(number: &BigNumRef, base: u32, context: &mut BigNumContext) -> Result<bool, ErrorStack> {
    let mut below = number.to_owned()?;
    below.sub_word(1)?;
    let mut twos = 0;
    while !below.is_bit_set(twos) {
        twos += 1;
    }
    let mut odd = BigNum::new()?;
    odd.rshift(&below, twos)?;
    let mut power = BigNum::new()?;
    let base = BigNum::from_u32(base)?;
    power.mod_exp(&base, &odd, number, context)?;
    if power == below || power == BigNum::from_u32(1)? {
        return Ok(true);
    }
    for _ in 1..twos {
        let mut square = BigNum::new()?;
        square.mod_sqr(&power, number, context)?;
        if square == below {
            return Ok(true);
        }
        power = square;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_are_told_from_products() {
        let mut context = BigNumContext::new().unwrap();
        // 2^127 - 1 and 2^89 - 1 are prime; 2047 * 2^k + 1 shapes pass some bases.
        for (number, prime) in [
            ("7fffffffffffffffffffffffffffffff", true),
            ("01ffffffffffffffffffffff", true),
            // 2^67 - 1 = 193707721 * 761838257287
            ("07ffffffffffffffff", false),
            ("80000000000000000000000000000001", false),
            // 3215031751 is a strong pseudoprime to the bases 2, 3, 5 and 7.
            ("bfa17dc7", false),
        ] {
            let number_of = BigNum::from_hex_str(number).unwrap();
            let found = is_prime(&number_of, &number_of.to_vec(), &mut context).unwrap();
            assert_eq!(found, prime, "{number}");
        }
    }
}
