//! An object as the change of another, as packs hold them (gitformat-pack(5)).

use super::Bad;
use crate::core::limits::TooLarge;

/// Applies `delta` to `base`; the result is at most `largest` bytes.
///
/// # Errors
/// It is no delta of `base`, or its result is larger.
pub(super) fn apply(base: &[u8], delta: &[u8], largest: u64) -> Result<Vec<u8>, Bad> {
    const BROKEN: Bad = Bad::Broken("a change does not fit what it changes");
    let mut rest = delta;
    let from = number(&mut rest).ok_or(BROKEN)?;
    let to = number(&mut rest).ok_or(BROKEN)?;
    if from != base.len() as u64 {
        return Err(BROKEN);
    }
    if to > largest {
        return Err(TooLarge { what: "the result of a change in bytes".to_owned(), limit: largest }.into());
    }
    let length = usize::try_from(to).map_err(|_| BROKEN)?;
    let mut made = Vec::with_capacity(length);
    while let Some(command) = byte(&mut rest) {
        let piece = match command {
            0 => return Err(BROKEN),
            1..=0x7f => {
                let (piece, after) = rest.split_at_checked(usize::from(command)).ok_or(BROKEN)?;
                rest = after;
                piece
            }
            0x80.. => {
                let at = field(command, 4, &mut rest).ok_or(BROKEN)?;
                let size = match field(command >> 4, 3, &mut rest).ok_or(BROKEN)? {
                    0 => 0x1_0000,
                    size => size,
                };
                base.get(at..at + size).ok_or(BROKEN)?
            }
        };
        if piece.len() > length - made.len() {
            return Err(BROKEN);
        }
        made.extend_from_slice(piece);
    }
    if made.len() == length { Ok(made) } else { Err(BROKEN) }
}

/// A number of seven bits a byte, the lowest first.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let (mut value, mut shift) = (0_u64, 0_u32);
    loop {
        let next = byte(rest)?;
        // More than any size needs.
        if shift > 56 {
            return None;
        }
        value |= u64::from(next & 0x7f) << shift;
        shift += 7;
        if next & 0x80 == 0 {
            return Some(value);
        }
    }
}

/// A number of `bytes` bytes, of which those are there that have their bit in `present`.
fn field(present: u8, bytes: u8, rest: &mut &[u8]) -> Option<usize> {
    let mut value = 0;
    for index in (0..bytes).filter(|index| present & (1 << index) != 0) {
        value |= usize::from(byte(rest)?) << (8 * index);
    }
    Some(value)
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_applied_as_git_does_or_refused() {
        let broken = || Err("broken");
        let base = b"0123456789";
        for (delta, expected) in [
            (&[10, 3, 0x91, 2, 3][..], Ok("234")),
            (&[10, 5, 0x91, 2, 3, 2, b'a', b'b'], Ok("234ab")),
            (&[10, 4, 0x90, 4], Ok("0123")),
            (&[10, 0], Ok("")),
            (&[0x8a, 0, 1, 1, b'x'], Ok("x")),
            (&[9, 1, 1, b'x'], broken()),
            (&[10, 2, 1, b'x'], broken()),
            (&[10, 1, 2, b'x', b'y'], broken()),
            (&[10, 1, 0], broken()),
            (&[10, 3, 0x91, 8, 3], broken()),
            (&[10, 3, 0x91, 2], broken()),
            (&[10, 3, 3, b'x'], broken()),
            (&[10, 3, 0x80], broken()),
            (&[10], broken()),
            (&[10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], broken()),
            (&[10, 7, 7, 1, 2, 3, 4, 5, 6, 7], Err("large")),
            (&[10, 0xff, 0xff, 0xff, 0xff, 7], Err("large")),
        ] {
            let made = apply(base, delta, 6).map_err(|error| match error {
                Bad::TooLarge(_) => "large",
                _ => "broken",
            });
            assert_eq!(made, expected.map(|text: &str| text.as_bytes().to_vec()), "{delta:?}");
        }
    }
}
