//! Charts: load, merge values, render with one of the engines.
