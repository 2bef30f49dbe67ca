//! What a rendering may take: steps, and how much text and how many items its functions make.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::ast::Pos;
use super::super::json::Budget;
use super::super::value::{Value, held};
use super::{Eval, Fault, Frame, Res};

impl Eval<'_> {
    /// Whether it was asked from outside to stop; asked by functions that take long.
    pub(crate) fn go_on(&self) -> Result<(), Fault> {
        if self.input.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err("stopped".into());
        }
        Ok(())
    }

    /// Refuses a text that is larger than the limit allows; asked before a function makes it.
    pub(crate) fn fits(&self, bytes: usize) -> Result<(), Fault> {
        if bytes > self.input.limits.output { Err(self.too_much()) } else { Ok(()) }
    }

    /// [`fits`](Self::fits), and counts it: all that is made together may be sixteen times as large. What a function gives
    /// back is counted anyway.
    pub(crate) fn produce(&mut self, bytes: usize) -> Result<(), Fault> {
        self.fits(bytes)?;
        self.made(bytes)
    }

    pub(super) fn made(&mut self, bytes: usize) -> Result<(), Fault> {
        self.produced = self.produced.saturating_add(bytes);
        if self.produced > self.input.limits.output.saturating_mul(16) { Err(self.too_much()) } else { Ok(()) }
    }

    /// Refuses a list of so many texts, of so many bytes together, and counts them; asked before it is made.
    pub(crate) fn texts(&mut self, count: usize, bytes: usize) -> Result<(), Fault> {
        /// What a small text takes.
        const TEXT: usize = 32;
        self.items(count)?;
        self.made(bytes.saturating_add(count.saturating_mul(TEXT)))
    }

    /// Refuses a list of so many items; asked before it is made.
    pub(crate) fn items(&self, count: usize) -> Result<(), Fault> {
        self.fits(count.saturating_mul(size_of::<Value>()))
    }

    /// How much text a function may make of a value: [`within`](Self::within) tells whether it wanted more.
    pub(crate) fn budget(&self) -> Budget {
        Budget::new(self.input.limits.output.saturating_add(1))
    }

    /// Refuses what wanted more text than its budget.
    pub(crate) fn within(&self, budget: &Budget) -> Result<(), Fault> {
        if budget.is_out_of_text() { Err(self.too_much()) } else { Ok(()) }
    }

    /// Counts what a function gave back: a text that nobody else holds was made by it, and lists and maps know what they
    /// take as long as they are there.
    pub(super) fn count(&mut self, value: &Value) -> Result<(), Fault> {
        let bytes = match value {
            Value::Str(text) if Arc::strong_count(text) == 1 => text.len(),
            Value::Raw(bytes) | Value::Bytes(bytes) if Arc::strong_count(bytes) == 1 => bytes.len(),
            Value::List(_) | Value::Map(_) | Value::Values(_) => {
                let taken = held().saturating_sub(self.held_before);
                let allowed = self.input.limits.output.saturating_mul(8);
                let many = || Fault::Message(format!("lists and maps of more than {allowed} bytes"));
                return if taken > allowed { Err(many()) } else { Ok(()) };
            }
            _ => return Ok(()),
        };
        self.produce(bytes)
    }

    fn too_much(&self) -> Fault {
        Fault::Message(format!("more than {} bytes of text", self.input.limits.output))
    }

    pub(super) fn step(&mut self, frame: &Frame<'_>, pos: Pos) -> Res<()> {
        self.steps += 1;
        if self.steps.is_multiple_of(1024) {
            if self.input.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return Err(Self::error(frame, pos, "stopped: rendering took too long or was cancelled"));
            }
            if self.steps > self.input.limits.steps {
                return Err(Self::error(frame, pos, format!("more than {} steps", self.input.limits.steps)));
            }
        }
        Ok(())
    }

    pub(super) fn check_output(&self, frame: &Frame<'_>, pos: Pos) -> Res<()> {
        if self.out.len() > self.input.limits.output {
            return Err(Self::error(frame, pos, format!("more than {} bytes of output", self.input.limits.output)));
        }
        Ok(())
    }
}
