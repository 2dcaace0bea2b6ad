//! A parsed template. Its depth is bounded by the parser, so that whatever walks it needs a bounded stack.

/// An expression, where it stands, and how deep it is.
#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub(super) line: u32,
    pub(super) depth: u16,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Name(String),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<(Expr, Expr)>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    /// `a < b <= c`
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// `a ~ b ~ c`
    Concat(Vec<Expr>),
    /// `a if test else b`: test, a, b.
    Choice(Box<(Expr, Expr)>, Option<Box<Expr>>),
    Attribute(Box<Expr>, String),
    Item(Box<(Expr, Expr)>),
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Arguments),
    Filter(Box<Expr>, Filter),
    /// Value, name, arguments, and whether it is `is not`.
    Test(Box<Expr>, String, Arguments, bool),
}

impl Kind {
    /// Visits the expressions that it is made of.
    pub(super) fn parts<'a>(&'a self, visit: &mut impl FnMut(&'a Expr)) {
        match self {
            Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Text(_) | Self::Name(_) => {}
            Self::List(items) | Self::Tuple(items) | Self::Concat(items) => items.iter().for_each(visit),
            Self::Dict(entries) => entries.iter().flat_map(|(key, value)| [key, value]).for_each(visit),
            Self::Unary(_, value) | Self::Attribute(value, _) => visit(value),
            Self::Binary(_, pair) | Self::And(pair) | Self::Or(pair) | Self::Item(pair) => {
                [&pair.0, &pair.1].into_iter().for_each(visit);
            }
            Self::Compare(first, others) => {
                visit(first);
                others.iter().for_each(|(_, other)| visit(other));
            }
            Self::Choice(pair, otherwise) => {
                [&pair.0, &pair.1].into_iter().chain(otherwise.as_deref()).for_each(visit);
            }
            Self::Slice(value, parts) => {
                visit(value);
                parts.iter().flatten().for_each(visit);
            }
            Self::Call(value, arguments)
            | Self::Test(value, _, arguments, _)
            | Self::Filter(value, Filter { arguments, .. }) => {
                visit(value);
                arguments.parts(visit);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unary {
    Not,
    Minus,
    Plus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(String, Expr)>,
}

impl Arguments {
    /// Visits their values.
    pub(super) fn parts<'a>(&'a self, visit: &mut impl FnMut(&'a Expr)) {
        self.positional.iter().chain(self.named.iter().map(|(_, value)| value)).for_each(visit);
    }
}

/// The name and arguments of a filter.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) line: u32,
    pub(super) name: String,
    pub(super) arguments: Arguments,
}

#[derive(Clone, Debug)]
pub(super) enum Target {
    Name(String),
    /// `ns.name`
    Attribute(String, String),
    Tuple(Vec<Target>),
}

#[derive(Clone, Debug)]
pub(super) struct Statement {
    pub(super) line: u32,
    pub(super) kind: StatementKind,
}

#[derive(Clone, Debug)]
pub(super) enum StatementKind {
    Data(String),
    Output(Expr),
    /// The branches with their conditions, and `else`.
    If(Vec<(Expr, Vec<Statement>)>, Vec<Statement>),
    For(Box<For>),
    Set(Target, Expr),
    SetBlock(Target, Vec<Filter>, Vec<Statement>),
    Macro(Macro),
    /// Call, and the body as a macro.
    Call(Expr, Macro),
    Filter(Vec<Filter>, Vec<Statement>),
    With(Vec<(Target, Expr)>, Vec<Statement>),
    /// Makes names undefined.
    Hide(Vec<String>),
    Break,
    Continue,
}

#[derive(Clone, Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) iterable: Expr,
    pub(super) condition: Option<Expr>,
    /// Whether its body may call `loop` with items of the next level.
    pub(super) recursive: bool,
    pub(super) body: Vec<Statement>,
    pub(super) otherwise: Vec<Statement>,
}

#[derive(Clone, Debug)]
pub(super) struct Macro {
    pub(super) name: String,
    /// Names, and defaults where they have one.
    pub(super) parameters: Vec<(String, Option<Expr>)>,
    /// Whether the body reads `varargs`, `kwargs` and `caller`: arguments without a parameter are an error
    /// else.
    pub(super) takes_more: (bool, bool, bool),
    pub(super) body: Vec<Statement>,
}
