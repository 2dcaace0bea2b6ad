//! Parsing expressions.

use super::ast::{Arguments, Binary, Comparison, Expr, Filter, Kind, Unary};
use super::error::{Result, TemplateError};
use super::lexer::Token;
use super::parser::Parser;

/// How deep an expression may be: brackets in brackets, and operators in a row.
const MOST_DEPTH: u16 = 120;

impl Parser {
    /// An expression, with `a if b else c`.
    pub(super) fn expression(&mut self) -> Result<Expr> {
        self.nested(|parser| {
            let mut value = parser.or()?;
            while parser.takes_name("if") {
                let line = value.line;
                let test = parser.or()?;
                let otherwise =
                    if parser.takes_name("else") { Some(Box::new(parser.expression()?)) } else { None };
                value = node(line, Kind::Choice(Box::new((test, value)), otherwise))?;
            }
            Ok(value)
        })
    }

    /// An expression without `if`, which has another meaning there.
    pub(super) fn or(&mut self) -> Result<Expr> {
        let mut left = self.and()?;
        while self.takes_name("or") {
            left = node(left.line, Kind::Or(Box::new((left, self.and()?))))?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr> {
        let mut left = self.not()?;
        while self.takes_name("and") {
            left = node(left.line, Kind::And(Box::new((left, self.not()?))))?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr> {
        let line = self.line();
        if self.takes_name("not") {
            let value = self.nested(Self::not)?;
            return node(line, Kind::Unary(Unary::Not, Box::new(value)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expr> {
        let left = self.sum()?;
        let mut others = Vec::new();
        loop {
            let comparison = match self.peek() {
                Token::Sign("==") => Comparison::Equal,
                Token::Sign("!=") => Comparison::Unequal,
                Token::Sign("<") => Comparison::Less,
                Token::Sign("<=") => Comparison::LessOrEqual,
                Token::Sign(">") => Comparison::Greater,
                Token::Sign(">=") => Comparison::GreaterOrEqual,
                Token::Name(name) if name == "in" => Comparison::In,
                Token::Name(name) if name == "not" && self.is_name_ahead(1, "in") => {
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            others.push((comparison, self.sum()?));
        }
        if others.is_empty() {
            return Ok(left);
        }
        node(left.line, Kind::Compare(Box::new(left), others))
    }

    fn sum(&mut self) -> Result<Expr> {
        self.left_to_right(&[("+", Binary::Add), ("-", Binary::Subtract)], Self::concatenation)
    }

    fn concatenation(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_sign("~") {
            return Ok(first);
        }
        let line = first.line;
        let mut parts = vec![first];
        while self.takes("~") {
            parts.push(self.product()?);
        }
        node(line, Kind::Concat(parts))
    }

    fn product(&mut self) -> Result<Expr> {
        const OPERATORS: [(&str, Binary); 4] = [
            ("*", Binary::Multiply),
            ("/", Binary::Divide),
            ("//", Binary::FloorDivide),
            ("%", Binary::Remainder),
        ];
        self.left_to_right(&OPERATORS, Self::power)
    }

    fn power(&mut self) -> Result<Expr> {
        self.left_to_right(&[("**", Binary::Power)], |parser| parser.unary(true))
    }

    /// Operands with these operators between them, of which the first binds first.
    fn left_to_right(
        &mut self,
        operators: &[(&str, Binary)],
        operand: fn(&mut Self) -> Result<Expr>,
    ) -> Result<Expr> {
        let mut left = operand(self)?;
        while let Some(&(_, operator)) = operators.iter().find(|(sign, _)| self.takes(sign)) {
            left = node(left.line, Kind::Binary(operator, Box::new((left, operand(self)?))))?;
        }
        Ok(left)
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        let line = self.line();
        let operators = [("-", Unary::Minus), ("+", Unary::Plus)];
        let value = if let Some((_, operator)) = operators.into_iter().find(|(sign, _)| self.takes(sign)) {
            let value = self.nested(|parser| parser.unary(false))?;
            node(line, Kind::Unary(operator, Box::new(value)))?
        } else {
            let primary = self.primary()?;
            self.postfix(primary)?
        };
        if with_filters { self.filters_and_tests(value) } else { Ok(value) }
    }

    fn primary(&mut self) -> Result<Expr> {
        let line = self.line();
        let kind = match self.next() {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => Kind::Bool(true),
                "false" | "False" => Kind::Bool(false),
                "none" | "None" => Kind::None,
                _ => {
                    self.takes_more.0 |= name == "varargs";
                    self.takes_more.1 |= name == "kwargs";
                    self.takes_more.2 |= name == "caller";
                    Kind::Name(name)
                }
            },
            Token::Text(mut text) => {
                while let Token::Text(more) = self.peek() {
                    text.push_str(more);
                    self.next();
                }
                Kind::Text(text)
            }
            Token::Int(value) => Kind::Int(value),
            Token::Float(value) => Kind::Float(value),
            Token::Sign("(") => {
                let inside = if self.is_sign(")") {
                    node(line, Kind::Tuple(Vec::new()))?
                } else {
                    self.tuple(Self::expression)?
                };
                self.expect(")")?;
                return Ok(inside);
            }
            Token::Sign("[") => Kind::List(self.separated("]", Self::expression)?),
            Token::Sign("{") => Kind::Dict(self.separated("}", |parser| {
                let key = parser.expression()?;
                parser.expect(":")?;
                Ok((key, parser.expression()?))
            })?),
            other => return Err(self.unexpected(&other, line)),
        };
        node(line, kind)
    }

    /// One expression, or several with commas between them, which are a tuple.
    pub(super) fn tuple(&mut self, item: fn(&mut Self) -> Result<Expr>) -> Result<Expr> {
        let line = self.line();
        let first = item(self)?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.takes(",") {
            let ended = matches!(
                self.peek(),
                Token::Sign(")" | "]" | "}" | "=") | Token::BlockEnd | Token::OutputEnd
            );
            if ended {
                break;
            }
            items.push(item(self)?);
        }
        node(line, Kind::Tuple(items))
    }

    /// Items with commas between them, up to and with `end`.
    pub(super) fn separated<T>(
        &mut self,
        end: &'static str,
        item: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.takes(end) {
            if !items.is_empty() {
                self.expect(",")?;
                if self.takes(end) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Attributes, items and calls after `value`.
    fn postfix(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            let line = self.line();
            let kind = if self.takes(".") {
                match self.next() {
                    Token::Name(name) => Kind::Attribute(Box::new(value), name),
                    Token::Int(index) => Kind::Item(Box::new((value, node(line, Kind::Int(index))?))),
                    other => return Err(self.unexpected(&other, line)),
                }
            } else if self.takes("[") {
                let kind = self.subscript(value)?;
                self.expect("]")?;
                kind
            } else if self.is_sign("(") {
                Kind::Call(Box::new(value), self.arguments()?)
            } else {
                return Ok(value);
            };
            value = node(line, kind)?;
        }
    }

    fn subscript(&mut self, value: Expr) -> Result<Kind> {
        let mut parts = [None, None, None];
        if !self.is_sign(":") {
            let index = self.tuple(Self::expression)?;
            if !self.is_sign(":") {
                return Ok(Kind::Item(Box::new((value, index))));
            }
            parts[0] = Some(index);
        }
        for part in &mut parts[1..] {
            if !self.takes(":") {
                break;
            }
            if !self.is_sign(":") && !self.is_sign("]") {
                *part = Some(self.expression()?);
            }
        }
        Ok(Kind::Slice(Box::new(value), Box::new(parts)))
    }

    /// The arguments of a call, with their brackets.
    pub(super) fn arguments(&mut self) -> Result<Arguments> {
        self.expect("(")?;
        let mut arguments = Arguments::default();
        let items = self.separated(")", |parser| {
            let line = parser.line();
            if parser.is_sign("*") || parser.is_sign("**") {
                return Err(TemplateError::at(line, "arguments from a list or dictionary are not supported"));
            }
            if let (Token::Name(name), true) = (parser.peek().clone(), parser.is_sign_ahead(1, "=")) {
                parser.next();
                parser.next();
                return Ok((Some(name), parser.expression()?));
            }
            Ok((None, parser.expression()?))
        })?;
        for (name, value) in items {
            match name {
                Some(name) => arguments.named.push((name, value)),
                None if arguments.named.is_empty() => arguments.positional.push(value),
                None => {
                    let message = "an argument without name follows one with a name";
                    return Err(TemplateError::at(value.line, message));
                }
            }
        }
        Ok(arguments)
    }

    /// Filters, tests and calls after `value`.
    fn filters_and_tests(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            let line = self.line();
            let kind = if self.takes("|") {
                Kind::Filter(Box::new(value), self.filter()?)
            } else if self.takes_name("is") {
                self.test(value)?
            } else if self.is_sign("(") {
                Kind::Call(Box::new(value), self.arguments()?)
            } else {
                return Ok(value);
            };
            value = node(line, kind)?;
        }
    }

    /// A filter's name and arguments.
    pub(super) fn filter(&mut self) -> Result<Filter> {
        let line = self.line();
        let name = self.dotted_name()?;
        let arguments = if self.is_sign("(") { self.arguments()? } else { Arguments::default() };
        Ok(Filter { line, name, arguments })
    }

    fn test(&mut self, value: Expr) -> Result<Kind> {
        let negated = self.takes_name("not");
        let name = self.dotted_name()?;
        let arguments = match self.peek() {
            Token::Sign("(") => self.arguments()?,
            Token::Name(word) if ["else", "or", "and", "is", "if", "in", "not"].contains(&word.as_str()) => {
                Arguments::default()
            }
            Token::Name(_) | Token::Text(_) | Token::Int(_) | Token::Float(_) | Token::Sign("[" | "{") => {
                let primary = self.primary()?;
                Arguments { positional: vec![self.postfix(primary)?], named: Vec::new() }
            }
            _ => Arguments::default(),
        };
        Ok(Kind::Test(Box::new(value), name, arguments, negated))
    }

    fn dotted_name(&mut self) -> Result<String> {
        let mut name = self.name()?;
        while self.takes(".") {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name)
    }
}

/// An expression of bounded depth.
fn node(line: u32, kind: Kind) -> Result<Expr> {
    let mut inner = 0;
    kind.parts(&mut |part| inner = part.depth.max(inner));
    if inner >= MOST_DEPTH {
        return Err(TemplateError::at(line, "the expression is too deep"));
    }
    Ok(Expr { line, depth: inner + 1, kind })
}
