//! The parts that a YAML text is made of.

use std::borrow::Cow;

use super::cursor::Mark;

pub(super) struct Token<'a> {
    pub(super) kind: TokenKind<'a>,
    pub(super) mark: Mark,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TokenKind<'a> {
    StreamEnd,
    /// `%YAML 1.1`, the version.
    Version(u32, u32),
    /// `%TAG !e! tag:example.com,2000:`, handle and prefix.
    TagDirective(&'a str, String),
    /// `---`
    DocumentStart,
    /// `...`
    DocumentEnd,
    BlockSequenceStart,
    BlockMappingStart,
    /// The indentation of a block collection ends.
    BlockEnd,
    /// `[`
    FlowSequenceStart,
    /// `]`
    FlowSequenceEnd,
    /// `{`
    FlowMappingStart,
    /// `}`
    FlowMappingEnd,
    /// `-`
    BlockEntry,
    /// `,`
    FlowEntry,
    /// A key follows; `?` or nothing in the text.
    Key,
    /// `:`
    Value,
    Alias(&'a str),
    Anchor(&'a str),
    /// Handle (may be empty) and suffix.
    Tag(&'a str, String),
    Scalar {
        text: Cow<'a, str>,
        /// Written without quotes and not as a block.
        plain: bool,
    },
}
