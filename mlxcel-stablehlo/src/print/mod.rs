//! MLIR text of a [`Module`], as unmodified StableHLO tools read it.
//!
//! Entry points come first. Values are numbered in printing order; arguments keep their names as far as
//! MLIR's syntax allows. Every operation is printed with the types of its operands and results, so that a
//! tool checks them against its own inference.

mod literal;
mod ops;
mod regions;
mod text;

use std::collections::HashSet;
use std::fmt::{self, Write};

use crate::module::{Attribute, Block, Function, Module, Op, OpKind, ValueId};
use text::{Symbol, identifier};

/// Prints a [`Module`] as text, with compiler-specific additions. `Module`'s own `Display` prints the plain
/// text.
///
/// ```
/// # use mlxcel_stablehlo::{ElementType, Module, Printer, TensorType};
/// # fn main() -> mlxcel_stablehlo::Result<()> {
/// let ty = TensorType::new(ElementType::F32, [4]);
/// let module = Module::of_function("demo", "main", |b| {
///     let x = b.argument("x", ty.clone())?;
///     b.custom_call("kernel", &[x], vec![ty.clone()], &[], false)
/// })?;
/// let printer = Printer::new(&module)
///     .declarations("  util.global private @table : tensor<4xf32>\n")
///     .custom_calls(&|call| Some(format!("my.kernel {} : {}", call.operands[0], call.signature)));
/// assert!(printer.to_string().contains("%0 = my.kernel %x : (tensor<4xf32>) -> tensor<4xf32>"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Printer<'p> {
    module: &'p Module,
    declarations: &'p str,
    custom_calls: Option<&'p CustomCallPrinter<'p>>,
    highest_precision: bool,
}

/// Formats custom calls for a [`Printer`]: returns the text after the `=`, or `None` to print the StableHLO
/// operation.
pub type CustomCallPrinter<'p> = dyn Fn(&CustomCall<'_>) -> Option<String> + 'p;

/// A custom call that is being printed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CustomCall<'a> {
    /// The target name.
    pub target: &'a str,
    /// Its attributes.
    pub attributes: &'a [(String, Attribute)],
    /// The names of its operands, such as `%x` or `%3#1`.
    pub operands: Vec<&'a str>,
    /// `(operand types) -> result types`.
    pub signature: &'a str,
}

impl<'p> Printer<'p> {
    /// Prints `module` plainly.
    pub fn new(module: &'p Module) -> Self {
        Self { module, declarations: "", custom_calls: None, highest_precision: false }
    }

    /// Prints `text`, whole lines, before the functions.
    #[must_use]
    pub fn declarations(mut self, text: &'p str) -> Self {
        self.declarations = text;
        self
    }

    /// Formats custom calls with `write`.
    #[must_use]
    pub fn custom_calls(mut self, write: &'p CustomCallPrinter<'p>) -> Self {
        self.custom_calls = Some(write);
        self
    }

    /// If `highest`, requests the highest precision for `dot_general`: some devices otherwise multiply
    /// float32 operands in fewer bits.
    #[must_use]
    pub fn highest_precision(mut self, highest: bool) -> Self {
        self.highest_precision = highest;
        self
    }
}

impl fmt::Debug for Printer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Printer").field("module", &self.module.name).finish_non_exhaustive()
    }
}

impl fmt::Display for Printer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.module.name.as_str() {
            "" => f.write_str("module {\n")?,
            name => writeln!(f, "module {} {{", Symbol(name))?,
        }
        f.write_str(self.declarations)?;
        let (public, private): (Vec<&Function>, Vec<&Function>) =
            self.module.functions.iter().partition(|function| function.public);
        for function in public.into_iter().chain(private) {
            Writer::new(f, function, self).function()?;
        }
        f.write_str("}\n")
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Printer::new(self), f)
    }
}

/// Writes one function.
struct Writer<'w, 'm> {
    out: &'w mut dyn Write,
    function: &'m Function,
    custom_calls: Option<&'m CustomCallPrinter<'m>>,
    highest_precision: bool,
    /// How each value is referred to; empty until it has been defined.
    names: Vec<String>,
    numbered: usize,
    depth: usize,
}

impl<'w, 'm> Writer<'w, 'm> {
    fn new(out: &'w mut dyn Write, function: &'m Function, printer: &Printer<'m>) -> Self {
        let names = vec![String::new(); function.values.len()];
        let Printer { module: _, declarations: _, custom_calls, highest_precision } = *printer;
        Self { out, function, custom_calls, highest_precision, names, numbered: 0, depth: 1 }
    }

    fn function(mut self) -> fmt::Result {
        self.indent()?;
        let function = self.function;
        let visibility = if function.public { "public" } else { "private" };
        write!(self.out, "func.func {visibility} {}(", Symbol(&function.name))?;
        let mut taken = HashSet::new();
        for (i, argument) in function.arguments.iter().enumerate() {
            let name = identifier(&argument.name, &mut taken);
            let separator = if i == 0 { "" } else { ", " };
            write!(self.out, "{separator}%{name}: {}", self.ty(argument.value))?;
            if let Some(result) = argument.aliases_result {
                write!(self.out, " {{tf.aliasing_output = {result} : i32}}")?;
            }
            self.set_name(argument.value, format!("%{name}"));
        }
        self.out.write_str(")")?;
        let results = &function.body.results;
        if !results.is_empty() {
            write!(self.out, " -> {}", self.types(results, true))?;
        }
        self.out.write_str(" {\n")?;
        self.block(&function.body, "return")?;
        self.indent()?;
        self.out.write_str("}\n")
    }

    /// The operations of a block and its terminator.
    fn block(&mut self, block: &Block, terminator: &str) -> fmt::Result {
        self.depth += 1;
        for op in &block.ops {
            self.op(op)?;
        }
        self.indent()?;
        self.out.write_str(terminator)?;
        if !block.results.is_empty() {
            write!(self.out, " {} : {}", self.list(&block.results), self.types(&block.results, false))?;
        }
        self.out.write_str("\n")?;
        self.depth -= 1;
        Ok(())
    }

    /// Starts a line with the names of the results of an operation.
    fn define(&mut self, results: &[ValueId]) -> fmt::Result {
        self.indent()?;
        match results {
            [] => {}
            [single] => {
                let name = self.fresh();
                write!(self.out, "{name} = ")?;
                self.set_name(*single, name);
            }
            several => {
                let name = self.fresh();
                write!(self.out, "{name}:{} = ", several.len())?;
                for (i, &result) in several.iter().enumerate() {
                    self.set_name(result, format!("{name}#{i}"));
                }
            }
        }
        Ok(())
    }

    fn fresh(&mut self) -> String {
        self.numbered += 1;
        format!("%{}", self.numbered - 1)
    }

    fn set_name(&mut self, value: ValueId, name: String) {
        if let Some(slot) = self.names.get_mut(value.index()) {
            *slot = name;
        }
    }

    fn name(&self, value: ValueId) -> &str {
        self.names.get(value.index()).map_or("", String::as_str)
    }

    fn ty(&self, value: ValueId) -> String {
        self.function.values.get(value.index()).map(ToString::to_string).unwrap_or_default()
    }

    /// Names, separated by commas.
    fn list(&self, values: &[ValueId]) -> String {
        values.iter().map(|&value| self.name(value)).collect::<Vec<_>>().join(", ")
    }

    /// Types, separated by commas; in parentheses unless there is just one and `grouped`, as result lists
    /// are.
    fn types(&self, values: &[ValueId], grouped: bool) -> String {
        let list = values.iter().map(|&value| self.ty(value)).collect::<Vec<_>>().join(", ");
        if grouped && values.len() != 1 { format!("({list})") } else { list }
    }

    /// `(operand types) -> result types`.
    fn signature(&self, op: &Op) -> String {
        format!("({}) -> {}", self.types(&op.operands, false), self.types(&op.results, true))
    }

    fn indent(&mut self) -> fmt::Result {
        (0..self.depth).try_for_each(|_| self.out.write_str("  "))
    }

    fn op(&mut self, op: &Op) -> fmt::Result {
        match &op.kind {
            OpKind::While => self.while_loop(op),
            OpKind::Scatter { dimensions, update, unique_indices } => {
                self.scatter(op, dimensions, *update, *unique_indices)
            }
            OpKind::Reduce { reduction, dimensions } => self.reduce(op, *reduction, dimensions),
            OpKind::ReduceArgMax { dimension } => self.reduce_argmax(op, *dimension),
            _ => self.plain(op),
        }
    }
}
