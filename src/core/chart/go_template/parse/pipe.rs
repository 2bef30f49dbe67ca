//! Pipelines: their variables, commands and operands.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::ast::{Command, Expr, Operand, Pipe};
use super::super::eval::with_stack;
use super::super::functions;
use super::super::lex::Token;
use super::number::{character, number};
use super::{ParseError, Parsed, Parser, Scope, Words, fail, unexpected};

impl<'s> Parser<'s> {
    /// A pipeline; what ends it is left.
    pub(super) fn pipe(&mut self, scope: &mut Scope<'s>, words: &mut Words<'s>, context: &str) -> Parsed<Pipe> {
        let (pos, _) = words.peek_word()?;
        let (names, assign) = Self::targets(words, context)?;
        let mut commands: Vec<Command> = Vec::new();
        loop {
            let word = words.next_word()?;
            match &word.1 {
                Token::Close { .. } | Token::CloseParen => {
                    if commands.is_empty() {
                        return fail(word.0, format!("missing value for {context}"));
                    }
                    words.back(word);
                    break;
                }
                Token::Bool(_)
                | Token::Char(_)
                | Token::Dot
                | Token::Field(_)
                | Token::Identifier(_)
                | Token::Number(_)
                | Token::Nil
                | Token::Str(_)
                | Token::Variable(_)
                | Token::OpenParen => {
                    words.back(word);
                    let command = self.command(scope, words)?;
                    if !commands.is_empty() && !executable(&command.word.expr) {
                        return fail(
                            command.word.pos,
                            format!("non executable command in pipeline stage {}", commands.len() + 1),
                        );
                    }
                    commands.push(command);
                }
                _ => return unexpected(&word, context),
            }
        }
        let targets = if assign {
            let mut targets = Vec::with_capacity(names.len());
            for name in names {
                let slot = scope.find(name).flatten();
                scope.visible.extend(slot.is_none().then_some((name, None)));
                targets.push(slot);
            }
            targets
        } else {
            let mut targets = Vec::with_capacity(names.len());
            for name in names {
                match scope.declare(name) {
                    Some(slot) => targets.push(Some(slot)),
                    None => return fail(pos, "too many variables"),
                }
            }
            targets
        };
        Ok(Pipe { pos, targets, commands })
    }

    /// `$x :=`, `$x =`, `$i, $x :=`
    fn targets(words: &mut Words<'s>, context: &str) -> Parsed<(SmallVec<[&'s str; 2]>, bool)> {
        let mut names = SmallVec::new();
        loop {
            let word = words.peek_word()?;
            let Token::Variable(name) = word.1 else { return Ok((names, false)) };
            words.next_word()?;
            let behind = words.next()?;
            let spaced = behind.1 == Token::Space;
            let next = if spaced { words.next_word()? } else { behind.clone() };
            match next.1 {
                Token::Assign | Token::Declare => {
                    names.push(name);
                    return Ok((names, next.1 == Token::Assign));
                }
                Token::Comma => {
                    names.push(name);
                    if context == "range" && names.len() < 2 {
                        match words.peek_word()? {
                            (_, Token::Variable(_) | Token::Close { .. } | Token::CloseParen) => continue,
                            (pos, _) => return fail(pos, "range can only initialize variables"),
                        }
                    }
                    return fail(word.0, format!("too many declarations in {context}"));
                }
                _ => {
                    words.back(next);
                    if spaced {
                        words.back(behind);
                    }
                    words.back(word);
                    return Ok((names, false));
                }
            }
        }
    }

    fn command(&mut self, scope: &mut Scope<'s>, words: &mut Words<'s>) -> Parsed<Command> {
        let mut operands = Vec::new();
        loop {
            let start = words.peek_word()?;
            if let Some(operand) = self.operand(scope, words)? {
                operands.push(operand);
            }
            let word = words.next()?;
            match word.1 {
                Token::Space => {}
                Token::Close { .. } | Token::CloseParen => {
                    words.back(word);
                    break;
                }
                // Nothing may follow it.
                Token::Pipe => break,
                _ => return unexpected(&word, "operand"),
            }
            if operands.is_empty() {
                return unexpected(&start, "operand");
            }
        }
        let mut operands = operands.into_iter();
        match operands.next() {
            Some(word) => Ok(Command { word, args: operands.collect() }),
            None => fail(words.peek()?.0, "empty command"),
        }
    }

    fn operand(&mut self, scope: &mut Scope<'s>, words: &mut Words<'s>) -> Parsed<Option<Operand>> {
        let Some(term) = self.term(scope, words)? else { return Ok(None) };
        let mut fields: Vec<Arc<str>> = Vec::new();
        while let (_, Token::Field(name)) = words.peek()? {
            fields.push(name.into());
            words.next()?;
        }
        if fields.is_empty() {
            return Ok(Some(term));
        }
        let pos = term.pos;
        let expr = match term.expr {
            Expr::Field(names) => Expr::Field(names.iter().cloned().chain(fields).collect()),
            Expr::Variable(slot, names) => Expr::Variable(slot, names.iter().cloned().chain(fields).collect()),
            Expr::Bool(_) | Expr::Str(_) | Expr::Raw(_) | Expr::Int(_) | Expr::Float(..) | Expr::Nil | Expr::Dot => {
                return fail(pos, "unexpected . after term");
            }
            expr => Expr::Chain(Box::new(Operand { pos, expr }), fields.into()),
        };
        Ok(Some(Operand { pos, expr }))
    }

    fn term(&mut self, scope: &mut Scope<'s>, words: &mut Words<'s>) -> Parsed<Option<Operand>> {
        let word = words.next_word()?;
        let pos = word.0;
        let expr = match &word.1 {
            Token::Identifier(name) => match functions::find(name) {
                Some(function) => {
                    if function.of_helm_4 && self.of_helm_4.is_none() {
                        self.of_helm_4 = Some((pos, function.name));
                    }
                    Expr::Function(function)
                }
                None => return fail(pos, format!("function {name:?} not defined")),
            },
            Token::Dot => Expr::Dot,
            Token::Nil => Expr::Nil,
            Token::Bool(value) => Expr::Bool(*value),
            Token::Variable(name) => match scope.find(name) {
                Some(Some(slot)) => Expr::Variable(slot, Box::default()),
                Some(None) => Expr::Undefined((*name).into()),
                None => return fail(pos, format!("undefined variable {name:?}")),
            },
            Token::Field(name) => Expr::Field(Box::new([(*name).into()])),
            Token::Number(text) => number(text).map_err(|message| ParseError { pos, message })?,
            Token::Char(text) => match character(text) {
                Some(c) => Expr::Int(i64::from(c)),
                None => return fail(pos, format!("malformed character constant: {text}")),
            },
            Token::Str(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Expr::Str(text.into()),
                Err(_) => Expr::Raw((&**bytes).into()),
            },
            Token::OpenParen => {
                self.deeper(pos)?;
                // A declaration in parentheses is visible from there on, as in Go.
                let pipe = with_stack(|| self.pipe(scope, words, "parenthesized pipeline"))?;
                let end = words.next_word()?;
                if end.1 != Token::CloseParen {
                    return fail(end.0, "unclosed left paren");
                }
                self.depth -= 1;
                Expr::Pipe(Box::new(pipe))
            }
            _ => {
                words.back(word);
                return Ok(None);
            }
        };
        Ok(Some(Operand { pos, expr }))
    }
}

fn executable(expr: &Expr) -> bool {
    !matches!(
        expr,
        Expr::Bool(_) | Expr::Dot | Expr::Nil | Expr::Int(_) | Expr::Float(..) | Expr::Str(_) | Expr::Raw(_)
    )
}
