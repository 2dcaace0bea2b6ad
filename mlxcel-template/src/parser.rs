//! Parsing statements; expressions are in [`expression`](super::expression).

use super::ast::{Expr, Filter, For, Kind, Macro, Statement, StatementKind, Target};
use super::error::{Result, TemplateError};
use super::hidden::hide;
use super::lexer::{Token, tokens};

/// How deep blocks, and brackets and signs of expressions, may be nested.
const MOST_NESTED: usize = 40;

/// What ends a list of statements, when it is the first word of a block.
type Ends = &'static [&'static str];

#[derive(Default)]
pub(super) struct Parser {
    tokens: Vec<(Token, u32)>,
    position: usize,
    nested: usize,
    /// Whether a statement is in a loop, where `break` and `continue` are.
    in_loop: bool,
    /// Whether the macro that is parsed reads arguments without a parameter: by position, by name.
    pub(super) takes_more: (bool, bool, bool),
}

pub(super) fn parse(source: &str) -> Result<Vec<Statement>> {
    let mut parser = Parser { tokens: tokens(source)?, ..Parser::default() };
    let mut statements = parser.statements(&[])?;
    hide(&mut statements);
    Ok(statements)
}

impl Parser {
    pub(super) fn peek(&self) -> &Token {
        self.ahead(0)
    }

    fn ahead(&self, by: usize) -> &Token {
        // The last token is the end, which is never passed.
        let last = self.tokens.len() - 1;
        &self.tokens[(self.position + by).min(last)].0
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.position].1
    }

    pub(super) fn next(&mut self) -> Token {
        if self.position + 1 == self.tokens.len() {
            return Token::End;
        }
        self.position += 1;
        // Nothing goes back.
        std::mem::replace(&mut self.tokens[self.position - 1].0, Token::End)
    }

    pub(super) fn is_sign(&self, sign: &str) -> bool {
        self.is_sign_ahead(0, sign)
    }

    pub(super) fn is_sign_ahead(&self, by: usize, sign: &str) -> bool {
        matches!(self.ahead(by), Token::Sign(found) if *found == sign)
    }

    pub(super) fn is_name_ahead(&self, by: usize, name: &str) -> bool {
        matches!(self.ahead(by), Token::Name(found) if found == name)
    }

    /// Takes a sign, if it is next.
    pub(super) fn takes(&mut self, sign: &str) -> bool {
        let is_next = self.is_sign(sign);
        if is_next {
            self.next();
        }
        is_next
    }

    /// Takes a word, if it is next.
    pub(super) fn takes_name(&mut self, name: &str) -> bool {
        let is_next = self.is_name_ahead(0, name);
        if is_next {
            self.next();
        }
        is_next
    }

    pub(super) fn expect(&mut self, sign: &str) -> Result<()> {
        let line = self.line();
        match self.next() {
            Token::Sign(found) if found == sign => Ok(()),
            other => Err(TemplateError::at(line, format!("'{sign}' is missing before {}", describe(&other)))),
        }
    }

    pub(super) fn name(&mut self) -> Result<String> {
        let line = self.line();
        match self.next() {
            Token::Name(name) => Ok(name),
            other => Err(TemplateError::at(line, format!("a name is missing before {}", describe(&other)))),
        }
    }

    pub(super) fn unexpected(&self, token: &Token, line: u32) -> TemplateError {
        TemplateError::at(line, format!("{} is not expected here", describe(token)))
    }

    /// Runs `parse` one level deeper.
    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.nested == MOST_NESTED {
            return Err(TemplateError::at(self.line(), "the template is nested too deep"));
        }
        self.nested += 1;
        let result = parse(self);
        self.nested -= 1;
        result
    }

    /// Statements up to a block that begins with one of `ends`; its word is read, its arguments are not.
    fn statements(&mut self, ends: Ends) -> Result<Vec<Statement>> {
        let mut statements = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.next() {
                Token::End if ends.is_empty() => return Ok(statements),
                Token::End => {
                    let message = format!("the template ends before '{}'", ends.join("' or '"));
                    return Err(TemplateError::at(line, message));
                }
                Token::Data(text) => StatementKind::Data(text),
                Token::OutputBegin => {
                    let value = self.tuple(Self::expression)?;
                    self.end_of(&Token::OutputEnd)?;
                    StatementKind::Output(value)
                }
                Token::BlockBegin => {
                    if ends.iter().any(|end| self.is_name_ahead(0, end)) {
                        return Ok(statements);
                    }
                    if self.takes_name("generation") {
                        // It marks for training what the assistant said: a scope of its own, and nothing
                        // more.
                        self.end_of_block()?;
                        StatementKind::With(Vec::new(), self.body(&["endgeneration"])?)
                    } else {
                        self.block()?
                    }
                }
                other => return Err(self.unexpected(&other, line)),
            };
            statements.push(Statement { line, kind });
        }
    }

    fn end_of(&mut self, end: &Token) -> Result<()> {
        let line = self.line();
        match self.next() {
            token if token == *end => Ok(()),
            other => Err(self.unexpected(&other, line)),
        }
    }

    fn end_of_block(&mut self) -> Result<()> {
        self.end_of(&Token::BlockEnd)
    }

    /// The statements of a block up to and with its one end.
    fn body(&mut self, ends: Ends) -> Result<Vec<Statement>> {
        let body = self.nested(|parser| parser.statements(ends))?;
        self.next();
        self.end_of_block()?;
        Ok(body)
    }

    fn block(&mut self) -> Result<StatementKind> {
        let line = self.line();
        match self.name()?.as_str() {
            "if" => self.if_block(),
            "for" => self.for_block(),
            "set" => self.set_block(),
            "macro" => {
                let name = self.name()?;
                let parameters = self.parameters()?;
                Ok(StatementKind::Macro(self.macro_body(name, parameters, &["endmacro"])?))
            }
            "call" => {
                let parameters = if self.is_sign("(") { self.parameters()? } else { Vec::new() };
                let call = self.expression()?;
                if !matches!(call.kind, Kind::Call(..)) {
                    return Err(TemplateError::at(line, "a call block calls something"));
                }
                let body = self.macro_body("caller".to_owned(), parameters, &["endcall"])?;
                Ok(StatementKind::Call(call, body))
            }
            "filter" => {
                let first = self.filter()?;
                let filters = self.filters(vec![first])?;
                Ok(StatementKind::Filter(filters, self.body(&["endfilter"])?))
            }
            "with" => {
                let mut assignments = Vec::new();
                while !matches!(self.peek(), Token::BlockEnd) {
                    if !assignments.is_empty() {
                        self.expect(",")?;
                    }
                    let target = self.target()?;
                    self.expect("=")?;
                    assignments.push((target, self.expression()?));
                }
                self.end_of_block()?;
                Ok(StatementKind::With(assignments, self.body(&["endwith"])?))
            }
            "break" if self.in_loop => self.end_of_block().map(|()| StatementKind::Break),
            "continue" if self.in_loop => self.end_of_block().map(|()| StatementKind::Continue),
            "break" | "continue" => Err(TemplateError::at(line, "there is no loop to break or continue")),
            tag @ ("include" | "import" | "from" | "extends" | "block" | "do" | "autoescape") => {
                Err(TemplateError::at(line, format!("the block '{tag}' is not supported")))
            }
            tag => Err(TemplateError::at(line, format!("there is no block '{tag}'"))),
        }
    }

    fn if_block(&mut self) -> Result<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple(Self::expression)?;
            self.end_of_block()?;
            let body = self.nested(|parser| parser.statements(&["elif", "else", "endif"]))?;
            branches.push((condition, body));
            let next = self.name()?;
            if next == "elif" {
                continue;
            }
            self.end_of_block()?;
            let otherwise = if next == "else" { self.body(&["endif"])? } else { Vec::new() };
            return Ok(StatementKind::If(branches, otherwise));
        }
    }

    fn for_block(&mut self) -> Result<StatementKind> {
        let target = self.target()?;
        if !self.takes_name("in") {
            return Err(TemplateError::at(self.line(), "'in' is missing"));
        }
        let iterable = self.tuple(|parser| parser.nested(Self::or))?;
        let condition = if self.takes_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.takes_name("recursive");
        self.end_of_block()?;
        let outer = std::mem::replace(&mut self.in_loop, true);
        let body = self.nested(|parser| parser.statements(&["else", "endfor"]))?;
        self.in_loop = outer;
        let has_else = self.name()? == "else";
        self.end_of_block()?;
        let otherwise = if has_else { self.body(&["endfor"])? } else { Vec::new() };
        Ok(StatementKind::For(Box::new(For { target, iterable, condition, recursive, body, otherwise })))
    }

    fn set_block(&mut self) -> Result<StatementKind> {
        let target = self.target()?;
        if self.takes("=") {
            let value = self.tuple(Self::expression)?;
            self.end_of_block()?;
            return Ok(StatementKind::Set(target, value));
        }
        let filters = self.filters(Vec::new())?;
        Ok(StatementKind::SetBlock(target, filters, self.body(&["endset"])?))
    }

    /// These filters and those that follow them, up to the end of the block.
    fn filters(&mut self, mut filters: Vec<Filter>) -> Result<Vec<Filter>> {
        while self.takes("|") {
            filters.push(self.filter()?);
        }
        self.end_of_block()?;
        Ok(filters)
    }

    /// Names, with commas between them.
    fn target(&mut self) -> Result<Target> {
        let first = self.nested(Self::single_target)?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.takes(",") {
            if self.is_sign(")") || self.is_sign("=") || self.is_name_ahead(0, "in") {
                break;
            }
            targets.push(self.nested(Self::single_target)?);
        }
        Ok(Target::Tuple(targets))
    }

    fn single_target(&mut self) -> Result<Target> {
        if self.takes("(") {
            let inside = self.target()?;
            self.expect(")")?;
            return Ok(inside);
        }
        let line = self.line();
        let name = self.name()?;
        if matches!(name.as_str(), "true" | "True" | "false" | "False" | "none" | "None" | "loop") {
            return Err(TemplateError::at(line, format!("'{name}' cannot be assigned to")));
        }
        if self.takes(".") {
            return Ok(Target::Attribute(name, self.name()?));
        }
        Ok(Target::Name(name))
    }

    fn parameters(&mut self) -> Result<Vec<(String, Option<Expr>)>> {
        self.expect("(")?;
        self.separated(")", |parser| {
            let name = parser.name()?;
            let default = if parser.takes("=") { Some(parser.expression()?) } else { None };
            Ok((name, default))
        })
    }

    fn macro_body(
        &mut self,
        name: String,
        parameters: Vec<(String, Option<Expr>)>,
        ends: Ends,
    ) -> Result<Macro> {
        self.end_of_block()?;
        let in_loop = std::mem::replace(&mut self.in_loop, false);
        let outer = std::mem::take(&mut self.takes_more);
        let body = self.body(ends)?;
        self.in_loop = in_loop;
        let takes_more = self.takes_more;
        // What a macro within it reads counts, as in Jinja.
        self.takes_more = (outer.0 | takes_more.0, outer.1 | takes_more.1, outer.2 | takes_more.2);
        Ok(Macro { name, parameters, takes_more, body })
    }
}

/// A token in words.
fn describe(token: &Token) -> String {
    match token {
        Token::Data(_) => "text".to_owned(),
        Token::BlockBegin => "'{%'".to_owned(),
        Token::BlockEnd => "'%}'".to_owned(),
        Token::OutputBegin => "'{{'".to_owned(),
        Token::OutputEnd => "'}}'".to_owned(),
        Token::Name(name) => format!("'{name}'"),
        Token::Text(text) => format!("the string '{text}'"),
        Token::Int(value) => format!("the number {value}"),
        Token::Float(value) => format!("the number {value}"),
        Token::Sign(sign) => format!("'{sign}'"),
        Token::End => "the end of the template".to_owned(),
    }
}
