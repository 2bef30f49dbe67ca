//! Encodings and digests.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256, Sha512};

use super::super::value::Value;
use super::{Function, Out, Ty};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("b64enc", &[Ty::Str], |_, args| Ok(Value::from(STANDARD.encode(bytes(&args[0]))))),
    Function::new("b64dec", &[Ty::Str], b64dec),
    Function::new("b32enc", &[Ty::Str], |_, args| Ok(Value::from(base32(bytes(&args[0]))))),
    Function::new("b32dec", &[Ty::Str], |_, args| {
        Ok(match from_base32(bytes(&args[0])) {
            Ok(decoded) => Value::from_bytes(decoded),
            Err(at) => Value::from(format!("illegal base32 data at input byte {at}")),
        })
    }),
    Function::new("sha1sum", &[Ty::Str], |_, args| Ok(Value::from(hex(&sha1::Sha1::digest(bytes(&args[0])))))),
    Function::new("sha256sum", &[Ty::Str], |_, args| Ok(Value::from(hex(&Sha256::digest(bytes(&args[0])))))),
    Function::new("sha512sum", &[Ty::Str], |_, args| Ok(Value::from(hex(&Sha512::digest(bytes(&args[0])))))),
    Function::new("adler32sum", &[Ty::Str], |_, args| {
        let (a, b) = bytes(&args[0]).iter().fold((1_u32, 0_u32), |(a, b), byte| {
            let a = (a + u32::from(*byte)) % 65521;
            (a, (b + a) % 65521)
        });
        Ok(Value::from(((b << 16) | a).to_string()))
    }),
];

fn bytes(value: &Value) -> &[u8] {
    value.bytes().unwrap_or_default()
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        _ = write!(out, "{byte:02x}");
        out
    })
}

/// Go ignores line breaks in base64, and what is left in the bits of the last character.
pub(crate) fn decode_base64(text: &[u8]) -> Result<Vec<u8>, String> {
    decode_groups(text).map_err(|at| format!("illegal base64 data at input byte {at}"))
}

fn decode_groups(text: &[u8]) -> Result<Vec<u8>, usize> {
    let line_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let skip = |mut at: usize| {
        while text.get(at).is_some_and(line_break) {
            at += 1;
        }
        at
    };
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let mut at = 0;
    loop {
        let (mut bits, mut read) = (0_u32, 0);
        while read < 4 {
            let Some(byte) = text.get(at) else {
                return if read == 0 { Ok(out) } else { Err(at - read) };
            };
            at += 1;
            if line_break(byte) {
                continue;
            }
            if *byte == b'=' {
                if read < 2 {
                    return Err(at - 1);
                }
                if read == 2 {
                    at = skip(at);
                    match text.get(at) {
                        None => return Err(text.len()),
                        Some(b'=') => at += 1,
                        Some(_) => return Err(at - 1),
                    }
                }
                at = skip(at);
                if at < text.len() {
                    return Err(at);
                }
                bits <<= 6 * (4 - read);
                out.extend_from_slice(&bits.to_be_bytes()[1..read]);
                return Ok(out);
            }
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return Err(at - 1),
            };
            bits = bits << 6 | u32::from(value);
            read += 1;
        }
        out.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
}

fn b64dec(_: &mut super::Eval<'_>, args: &[Value]) -> Out {
    Ok(match decode_base64(bytes(&args[0])) {
        Ok(decoded) => Value::from_bytes(decoded),
        Err(message) => Value::from(message),
    })
}

const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn base32(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(5) * 8);
    for chunk in bytes.chunks(5) {
        let mut group = [0_u8; 8];
        group[3..3 + chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_be_bytes(group);
        let used = (chunk.len() * 8).div_ceil(5);
        for index in 0..8 {
            let at = usize::try_from((bits >> (35 - 5 * index)) & 31).unwrap_or(0);
            out.push(if index < used { char::from(ALPHABET[at]) } else { '=' });
        }
    }
    out
}

/// As Go reads it: the error is the place that it complains about.
fn from_base32(text: &[u8]) -> Result<Vec<u8>, usize> {
    let plain: Vec<u8> = text.iter().copied().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
    let mut out = Vec::with_capacity(plain.len() * 5 / 8);
    let mut start = 0;
    while start < plain.len() {
        let (mut bits, mut used) = (0_u64, 0);
        while used < 8 {
            let at = start + used;
            let Some(byte) = plain.get(at) else { return Err(start) };
            let behind = plain.len() - at - 1;
            if *byte == b'=' && used >= 2 && behind < 8 {
                if behind + used < 7 {
                    return Err(plain.len());
                }
                if let Some(bad) = (at + 1..start + 8).find(|at| plain.get(*at).is_some_and(|byte| *byte != b'=')) {
                    return Err(bad - 1);
                }
                if matches!(used, 1 | 3 | 6) {
                    return Err(at);
                }
                break;
            }
            let value = ALPHABET.iter().position(|known| known == byte).ok_or(at)?;
            bits |= (value as u64) << (35 - 5 * used);
            used += 1;
        }
        out.extend_from_slice(&bits.to_be_bytes()[3..3 + used * 5 / 8]);
        if used < 8 {
            break;
        }
        start += 8;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base32_goes_both_ways() {
        for (text, encoded) in [("", ""), ("f", "MY======"), ("foobar", "MZXW6YTBOI======"), ("fooba", "MZXW6YTB")] {
            assert_eq!(base32(text.as_bytes()), encoded);
            assert_eq!(from_base32(encoded.as_bytes()).unwrap(), text.as_bytes());
        }
    }
}
