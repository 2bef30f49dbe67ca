//! Random functions. Each draw comes from the input's seed, so that the same input renders the same text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use super::super::eval::{Eval, Fault};
use super::super::print;
use super::super::value::Value;
use super::math::int;
use super::{Function, Out, Ty, text};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::new("randAlphaNum", &[Ty::Int], |eval, args| {
        characters(eval, "randAlphaNum", args, |byte| byte.is_ascii_alphanumeric())
    }),
    Function::new("randAlpha", &[Ty::Int], |eval, args| {
        characters(eval, "randAlpha", args, |byte| byte.is_ascii_alphabetic())
    }),
    Function::new("randAscii", &[Ty::Int], |eval, args| {
        characters(eval, "randAscii", args, |byte| (32..127).contains(&byte))
    }),
    Function::new("randNumeric", &[Ty::Int], |eval, args| {
        characters(eval, "randNumeric", args, |byte| byte.is_ascii_digit())
    }),
    Function::new("randBytes", &[Ty::Int], |eval, args| {
        let Ok(count) = usize::try_from(int(&args[0])) else { return Err("makeslice: len out of range".into()) };
        eval.fits(count.saturating_mul(2))?;
        let mut bytes = vec![0; count];
        stream(eval, "randBytes", args)?.fill(&mut bytes);
        Ok(secret(eval, STANDARD.encode(bytes)))
    }),
    Function::new("randInt", &[Ty::Int, Ty::Int], |eval, args| {
        let (low, high) = (int(&args[0]), int(&args[1]));
        match high.checked_sub(low).and_then(|span| u64::try_from(span).ok()).filter(|span| *span > 0) {
            Some(span) => {
                let drawn = stream(eval, "randInt", args)?.below(span);
                Ok(Value::Int(low.wrapping_add(i64::try_from(drawn).unwrap_or(0))))
            }
            None => Err("invalid argument to Intn".into()),
        }
    }),
    Function::new("uuidv4", &[], |eval, args| {
        let mut bytes = [0; 16];
        stream(eval, "uuidv4", args)?.fill(&mut bytes);
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex = super::encoding::hex(&bytes);
        Ok(Value::from(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])))
    }),
    Function::new("shuffle", &[Ty::Str], |eval, args| {
        let mut characters: Vec<char> = text(&args[0]).chars().collect();
        let mut draws = stream(eval, "shuffle", args)?;
        for at in (1..characters.len()).rev() {
            let other = usize::try_from(draws.below(at as u64 + 1)).unwrap_or(0);
            characters.swap(at, other);
        }
        Ok(Value::from(characters.into_iter().collect::<String>()))
    }),
];

/// Bytes that only the seed and the place of the draw decide.
pub(crate) struct Stream {
    key: [u8; 32],
    counter: u64,
    block: [u8; 32],
    used: usize,
    /// Set from outside to stop: what searches among draws may take long.
    stop: Option<Arc<AtomicBool>>,
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    // HMAC takes keys of any length.
    let Ok(mut mac) = <Hmac<Sha256> as Mac>::new_from_slice(key) else { return [0; 32] };
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Plain HMAC-SHA256.
pub(crate) fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let Ok(mut mac) = <Hmac<Sha256> as Mac>::new_from_slice(key) else { return [0; 32] };
    mac.update(message);
    mac.finalize().into_bytes().into()
}

impl Stream {
    /// Whether it was asked from outside to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            if self.used == self.block.len() {
                self.block = hmac(&self.key, &[&self.counter.to_be_bytes()]);
                self.counter += 1;
                self.used = 0;
            }
            *byte = self.block[self.used];
            self.used += 1;
        }
    }

    /// A number below `span`, all equally likely.
    pub(crate) fn below(&mut self, span: u64) -> u64 {
        let zone = u64::MAX - u64::MAX % span.max(1);
        loop {
            let mut bytes = [0; 8];
            self.fill(&mut bytes);
            let drawn = u64::from_be_bytes(bytes);
            if drawn < zone {
                return drawn % span.max(1);
            }
        }
    }
}

/// Where a call draws: the file that is rendered, the one the call stands in, the text of its line, the function, its
/// arguments, and how often the same was drawn before. Neither line numbers nor versions are in it: what is drawn survives
/// a new release and an edit elsewhere.
pub(crate) struct Place([u8; 32]);

impl Place {
    /// The place of the call being made.
    pub(crate) fn of(eval: &mut Eval<'_>, function: &str, args: &[Value]) -> Self {
        let mut arguments = Sha256::new();
        for arg in args {
            let mut printed = Vec::new();
            print::write(&mut printed, arg, &mut eval.budget());
            arguments.update((printed.len() as u64).to_be_bytes());
            arguments.update(&printed);
        }
        let (line, arguments) = (eval.line(), arguments.finalize());
        let parts: [&[u8]; 7] = [
            eval.input.release.namespace.as_bytes(),
            eval.input.release.name.as_bytes(),
            eval.entry.as_bytes(),
            eval.site.0.as_bytes(),
            line.as_bytes(),
            function.as_bytes(),
            &arguments,
        ];
        let site = hmac(b"site", &parts);
        let ordinal = eval.draws.entry(site).or_insert(0);
        let number = *ordinal;
        *ordinal += 1;
        Self(hmac(b"place", &[&site, &number.to_be_bytes()]))
    }

    /// Its name in a keyring. Arguments may be secret: nobody gets them out of it without knowing them.
    pub(crate) fn id(&self) -> String {
        super::encoding::hex(&self.0[..16])
    }

    /// The draws there: a key derived (HKDF's extract and expand) from the seed, for the `generation`th making.
    pub(crate) fn draws(&self, eval: &mut Eval<'_>, generation: u32) -> Result<Stream, Fault> {
        eval.go_on()?;
        let Some(seed) = eval.input.seed else {
            eval.needs_seed = true;
            return Err("random functions need a seed".into());
        };
        let secret = hmac(b"clusterstack template randomness v1", &[&seed.0]);
        let key = hmac(&secret, &[&self.0, &generation.to_be_bytes()]);
        Ok(Stream { key, counter: 0, block: [0; 32], used: 32, stop: eval.input.stop.clone() })
    }
}

/// The draws of the call being made.
pub(crate) fn stream(eval: &mut Eval<'_>, function: &str, args: &[Value]) -> Result<Stream, Fault> {
    Place::of(eval, function, args).draws(eval, 0)
}

/// A text that was drawn.
fn secret(eval: &mut Eval<'_>, text: String) -> Value {
    eval.secrets.add(&text);
    Value::from(text)
}

fn characters(eval: &mut Eval<'_>, name: &str, args: &[Value], wanted: fn(u8) -> bool) -> Out {
    let Ok(count) = usize::try_from(int(&args[0])) else { return Ok(Value::from("")) };
    eval.fits(count)?;
    let set: Vec<char> = (0..128_u8).filter(|byte| wanted(*byte)).map(char::from).collect();
    let mut draws = stream(eval, name, args)?;
    let pick = |_| set[usize::try_from(draws.below(set.len() as u64)).unwrap_or(0)];
    let drawn = (0..count).map(pick).collect();
    Ok(secret(eval, drawn))
}
