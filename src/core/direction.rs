//! Characters that turn the direction of the text around them: what is shown could be read as something else.

/// Unicode's marks, embeddings, overrides and isolates of a direction (UAX #9).
pub fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
