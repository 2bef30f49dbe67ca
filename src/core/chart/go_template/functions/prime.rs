//! The first prime from a number drawn at random.
//!
//! OpenSSL's own test is made for numbers that an enemy may have chosen: it makes 64 rounds on each prime, which takes
//! longer than to find it. Numbers drawn at random need few. The search goes on from one draw, as OpenSSL's does, on all
//! cores: what is found does not depend on how many there are.

use std::sync::LazyLock;

use openssl::bn::{BigNum, BigNumContext, BigNumRef};
use openssl::error::ErrorStack;
use rayon::prelude::*;
use thiserror::Error;

/// Why there is no prime.
#[derive(Debug, Error)]
pub(super) enum Halt {
    #[error(transparent)]
    Library(#[from] ErrorStack),
    #[error("stopped")]
    Stopped,
}

/// Numbers with a factor below are sorted out before the expensive test.
const SMALL: u32 = 20_000;

/// How many odd numbers are looked at: of 1024 bits, one in 355 is prime.
const WINDOW: u32 = 1 << 14;

/// The bases of Miller and Rabin's test. A random odd number of 1024 bits that passes a single one is composite with a
/// chance of less than 2^-100 (Damgård, Landrock and Pomerance).
const BASES: [u32; 5] = [2, 3, 5, 7, 11];

static SMALL_PRIMES: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut primes: Vec<u32> = Vec::new();
    for n in (3..SMALL).step_by(2) {
        if primes.iter().take_while(|p| **p * **p <= n).all(|p| n % p != 0) {
            primes.push(n);
        }
    }
    primes
});

/// The first prime from `start` on that `fits`, which is odd and larger than the small primes. `None` if none is near.
pub(super) fn from(
    start: &BigNumRef,
    fits: impl Fn(&BigNumRef) -> Result<bool, Halt> + Sync,
) -> Result<Option<BigNum>, Halt> {
    let mut composite = vec![false; WINDOW as usize];
    for prime in SMALL_PRIMES.iter().copied() {
        // start + 2k is a multiple of the prime for k = -start / 2, and every prime-th k from there.
        let missing = (u64::from(prime) - start.mod_word(prime)?) % u64::from(prime);
        let first = missing * u64::from(prime.div_ceil(2)) % u64::from(prime);
        for multiple in composite.iter_mut().skip(usize::try_from(first).unwrap_or(0)).step_by(prime as usize) {
            *multiple = true;
        }
    }
    let left: Vec<u32> = (0..WINDOW).zip(&composite).filter(|(_, composite)| !**composite).map(|(k, _)| k).collect();
    // A prime is near: whoever is free takes the next few, so that nobody looks far behind the first one.
    for few in left.chunks(2 * rayon::current_num_threads()) {
        let found = few.par_iter().with_max_len(1).find_map_first(|k| prime_at(start, 2 * k, &fits).transpose());
        if found.is_some() {
            return found.transpose();
        }
    }
    Ok(None)
}

/// The number that far behind `start`, if it fits and is prime.
fn prime_at(
    start: &BigNumRef,
    distance: u32,
    fits: impl Fn(&BigNumRef) -> Result<bool, Halt>,
) -> Result<Option<BigNum>, Halt> {
    let mut candidate = start.to_owned()?;
    candidate.add_word(distance)?;
    let prime = fits(&candidate)? && is_prime(&candidate, &mut BigNumContext::new_secure()?)?;
    Ok(prime.then_some(candidate))
}

/// Whether a number drawn at random is prime.
pub(super) fn is_prime(number: &BigNumRef, context: &mut BigNumContext) -> Result<bool, ErrorStack> {
    for base in BASES {
        if !passes(number, base, context)? {
            return Ok(false);
        }
    }
    Ok(true)
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
        for (number, prime) in [
            // 2^127 - 1 and 2^89 - 1
            ("7fffffffffffffffffffffffffffffff", true),
            ("01ffffffffffffffffffffff", true),
            // 2^67 - 1 = 193707721 * 761838257287
            ("07ffffffffffffffff", false),
            ("80000000000000000000000000000001", false),
            // 3215031751 is a strong pseudoprime to the bases 2, 3, 5 and 7.
            ("bfa17dc7", false),
        ] {
            let number_of = BigNum::from_hex_str(number).unwrap();
            assert_eq!(is_prime(&number_of, &mut context).unwrap(), prime, "{number}");
        }
    }

    #[test]
    fn the_first_prime_is_found() {
        let mut context = BigNumContext::new().unwrap();
        for start in ["01fffffffffffffffffff001", "c0000000000000000000000000000001", "0f4241"] {
            let start = BigNum::from_hex_str(start).unwrap();
            let found = from(&start, |_| Ok(true)).unwrap().unwrap();
            let mut slow = start.to_owned().unwrap();
            while !slow.is_prime(20, &mut context).unwrap() {
                slow.add_word(2).unwrap();
            }
            assert_eq!(found, slow, "from {start}");
        }
        let stopped = from(&BigNum::from_u32(1_000_001).unwrap(), |_| Err(Halt::Stopped));
        assert!(matches!(stopped, Err(Halt::Stopped)));
        let none = from(&BigNum::from_u32(1_000_001).unwrap(), |_| Ok(false)).unwrap();
        assert!(none.is_none());
    }
}
