//! Which plain scalars are timestamps.
//!
//! A timestamp is read as the string it is, but a *string* that looks like one is written in quotes. The forms are
//! those that `parseTimestamp` of `go.yaml.in/yaml/v2` accepts by way of Go's `time.Parse`.

/// Whether the plain scalar `text` is a timestamp: `2006-1-2`, `2006-1-2 15:4:5.9`, `2006-1-2T15:4:5.9+01:00`.
pub(super) fn is_timestamp(text: &str) -> bool {
    let mut rest = Rest(text.as_bytes());
    if rest.date().is_none() {
        return false;
    }
    match rest.0.first() {
        None => true,
        Some(b'T' | b't') => {
            rest.0 = &rest.0[1..];
            rest.time().and_then(|()| rest.zone()).is_some() && rest.0.is_empty()
        }
        Some(b' ') => {
            let spaces = rest.0.iter().take_while(|byte| **byte == b' ').count();
            rest.0 = &rest.0[spaces..];
            rest.time().is_some() && rest.0.is_empty()
        }
        Some(_) => false,
    }
}

fn days_in(year: u32, month: u32) -> u32 {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn byte(&mut self, wanted: u8) -> Option<()> {
        let (first, rest) = self.0.split_first()?;
        (*first == wanted).then(|| self.0 = rest)
    }

    /// A number of one digit up to `most` digits.
    fn number(&mut self, most: usize) -> Option<u32> {
        let digits = self.0.iter().take(most).take_while(|byte| byte.is_ascii_digit()).count();
        let (number, rest) = self.0.split_at(digits);
        self.0 = rest;
        (digits > 0).then(|| number.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0')))
    }

    fn date(&mut self) -> Option<()> {
        let before = self.0.len();
        let year = self.number(4).filter(|_| before - self.0.len() == 4)?;
        self.byte(b'-')?;
        let month = self.number(2)?;
        self.byte(b'-')?;
        let day = self.number(2)?;
        ((1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day)).then_some(())
    }

    /// Exactly two digits.
    fn pair(&mut self) -> Option<u32> {
        let before = self.0.len();
        self.number(2).filter(|_| before - self.0.len() == 2)
    }

    fn time(&mut self) -> Option<()> {
        let hour = self.number(2)?;
        self.byte(b':')?;
        let minute = self.number(2)?;
        self.byte(b':')?;
        let second = self.number(2)?;
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        if let [b'.' | b',', digit, ..] = self.0
            && digit.is_ascii_digit()
        {
            let fraction = self.0[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            self.0 = &self.0[1 + fraction..];
        }
        Some(())
    }

    fn zone(&mut self) -> Option<()> {
        if self.byte(b'Z').is_some() {
            return Some(());
        }
        self.byte(b'+').or_else(|| self.byte(b'-'))?;
        let hours = self.pair()?;
        self.byte(b':')?;
        let minutes = self.pair()?;
        // Go allows offsets of 24 hours and of 60 minutes.
        (hours <= 24 && minutes <= 60).then_some(())
    }
}
