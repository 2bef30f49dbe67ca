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

/// Go ignores line breaks in base64.
pub(crate) fn decode_base64(text: &[u8]) -> Result<Vec<u8>, String> {
    let plain: Vec<u8> = text.iter().copied().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
    STANDARD.decode(&plain).map_err(|error| {
        let at = match error {
            base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
            base64::DecodeError::InvalidLength(at) => at - at % 4,
            base64::DecodeError::InvalidPadding => plain.len() - plain.len() % 4,
        };
        format!("illegal base64 data at input byte {at}")
    })
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

fn from_base32(text: &[u8]) -> Result<Vec<u8>, usize> {
    let plain: Vec<u8> = text.iter().copied().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
    let mut out = Vec::with_capacity(plain.len() * 5 / 8);
    for (number, chunk) in plain.chunks(8).enumerate() {
        let start = number * 8;
        if chunk.len() != 8 {
            return Err(start + chunk.len());
        }
        let used = chunk.iter().position(|byte| *byte == b'=').unwrap_or(8);
        if let Some(bad) = chunk[used..].iter().position(|byte| *byte != b'=') {
            return Err(start + used + bad);
        }
        if !matches!(used, 2 | 4 | 5 | 7 | 8) || (used < 8 && start + 8 != plain.len()) {
            return Err(start + used);
        }
        let mut bits = 0_u64;
        for (index, byte) in chunk[..used].iter().enumerate() {
            let value = ALPHABET.iter().position(|known| known == byte).ok_or(start + index)?;
            bits |= (value as u64) << (35 - 5 * index);
        }
        out.extend_from_slice(&bits.to_be_bytes()[3..3 + used * 5 / 8]);
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
