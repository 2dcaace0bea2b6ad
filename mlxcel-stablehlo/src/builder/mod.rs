//! Building programs: [`ModuleBuilder`], [`Builder`] and [`Value`].

mod broadcast;
mod constants;
mod control;
mod elementwise;
mod functions;
mod indexed;
mod joins;
mod linear;
mod shape;
mod softmax;

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;

use crate::error::{Error, ErrorKind, Result};
use crate::infer;
use crate::module::{Argument, Block, Function, Module, Op, OpKind, ValueId};
use crate::types::TensorType;

/// Builds a [`Module`], function by function.
#[derive(Debug, Default)]
pub struct ModuleBuilder {
    state: State,
}

/// The functions so far, and what is known about their names.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) module: Module,
    pub(crate) names: HashSet<String>,
    /// Indices of the decompositions made for each composite name.
    pub(crate) decompositions: HashMap<String, Vec<usize>>,
}

impl ModuleBuilder {
    /// A module called `name`, without functions.
    pub fn new(name: impl Into<String>) -> Self {
        let mut state = State::default();
        state.module.name = name.into();
        Self { state }
    }

    /// Adds a public function: `body` makes its arguments and operations and returns its results.
    ///
    /// # Errors
    /// The errors of `body`, a duplicate name, an invalid alias. The module is then unchanged.
    pub fn function<F>(&mut self, name: &str, body: F) -> Result<()>
    where
        F: for<'f> FnOnce(&mut Builder<'f>) -> Result<Vec<Value<'f>>>,
    {
        self.state.add_function(name, true, body)
    }

    /// Adds a function that only other functions of the module [`call`](Builder::call).
    ///
    /// # Errors
    /// The errors of [`function`](Self::function).
    pub fn private_function<F>(&mut self, name: &str, body: F) -> Result<()>
    where
        F: for<'f> FnOnce(&mut Builder<'f>) -> Result<Vec<Value<'f>>>,
    {
        self.state.add_function(name, false, body)
    }

    /// The module.
    pub fn finish(self) -> Module {
        self.state.module
    }
}

impl Module {
    /// A module called `name` with one public function, [made](ModuleBuilder::function) by `body`.
    ///
    /// # Errors
    /// The errors of [`ModuleBuilder::function`].
    pub fn of_function<F>(name: impl Into<String>, function: &str, body: F) -> Result<Self>
    where
        F: for<'f> FnOnce(&mut Builder<'f>) -> Result<Vec<Value<'f>>>,
    {
        let mut module = ModuleBuilder::new(name);
        module.function(function, body)?;
        Ok(module.finish())
    }
}

impl State {
    pub(crate) fn add_function<F>(&mut self, name: &str, public: bool, body: F) -> Result<()>
    where
        F: for<'f> FnOnce(&mut Builder<'f>) -> Result<Vec<Value<'f>>>,
    {
        if name.is_empty() {
            return Err(Error::new(ErrorKind::Name, "func", "the function has no name"));
        }
        if self.names.contains(name) {
            return Err(Error::new(ErrorKind::Name, "func", format!("there is already a function `{name}`")));
        }
        let before = self.module.functions.len();
        let built = self.build(body);
        if built.is_err() {
            self.roll_back(before);
        }
        let mut function = built.map_err(|error| error.within(name))?;
        function.name = name.to_owned();
        function.public = public;
        self.names.insert(function.name.clone());
        self.module.functions.push(function);
        Ok(())
    }

    /// A function without a name, not yet part of the module.
    pub(crate) fn build<F>(&mut self, body: F) -> Result<Function>
    where
        F: for<'f> FnOnce(&mut Builder<'f>) -> Result<Vec<Value<'f>>>,
    {
        let mut builder = Builder::new(self);
        let results = body(&mut builder)?;
        builder.finish(&results)
    }

    /// Forgets the functions from index `length` on.
    fn roll_back(&mut self, length: usize) {
        for function in self.module.functions.drain(length..) {
            self.names.remove(&function.name);
        }
        for indices in self.decompositions.values_mut() {
            indices.retain(|&index| index < length);
        }
    }
}

/// The brand of a function: invariant, so that no two are the same type.
type Brand<'f> = PhantomData<fn(&'f ()) -> &'f ()>;

/// A value of the function that is being built.
///
/// The lifetime identifies the function: a value of one function does not type-check in another. A value made
/// inside a region (the condition or the body of a loop) can only be used there, which is checked at use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value<'f> {
    id: ValueId,
    scope: u32,
    brand: Brand<'f>,
}

impl Value<'_> {
    /// Its id in the finished [`Function`].
    pub fn id(self) -> ValueId {
        self.id
    }
}

/// Builds one function: arguments, then operations, each checked when it is made.
///
/// Every method that makes an operation returns an [`Error`] if the operands do not fit. Nothing is added in
/// this case, and the builder stays usable.
#[derive(Debug)]
pub struct Builder<'f> {
    state: &'f mut State,
    arguments: Vec<Argument>,
    values: Vec<TensorType>,
    /// The function's body and the regions that are open inside of it, innermost last.
    frames: Vec<Frame>,
    scopes: u32,
    brand: Brand<'f>,
}

#[derive(Debug, Default)]
struct Frame {
    scope: u32,
    block: Block,
}

impl<'f> Builder<'f> {
    fn new(state: &'f mut State) -> Self {
        let frames = vec![Frame::default()];
        Self { state, arguments: Vec::new(), values: Vec::new(), frames, scopes: 0, brand: PhantomData }
    }

    /// Adds an argument with the name that callers use.
    ///
    /// # Errors
    /// A duplicate name, a type too large for memory, and a call inside a region, which has no arguments.
    pub fn argument(&mut self, name: impl Into<String>, ty: TensorType) -> Result<Value<'f>> {
        let name = name.into();
        if self.frames.len() != 1 {
            let detail = format!("`{name}` is added inside of a region");
            return Err(Error::new(ErrorKind::Structure, "argument", detail));
        }
        if self.arguments.iter().any(|argument| argument.name == name) {
            let detail = format!("there is already an argument `{name}`");
            return Err(Error::new(ErrorKind::Name, "argument", detail));
        }
        let ty = infer::sized("argument", ty)?;
        let value = self.new_value(ty);
        self.arguments.push(Argument { name, value: value.id, aliases_result: None });
        Ok(value)
    }

    /// Lets result number `result` reuse the storage of `argument`: the caller donates the buffer, and the
    /// result may be written in place.
    ///
    /// # Errors
    /// A value that is not an argument or is aliased already; and, when the function is finished, a result
    /// that does not exist, has another type, or is aliased to two arguments.
    pub fn alias(&mut self, argument: Value<'f>, result: usize) -> Result<()> {
        let found = self.arguments.iter_mut().find(|candidate| candidate.value == argument.id);
        let Some(found) = found else {
            let message = "only an argument can share storage with a result";
            return Err(Error::new(ErrorKind::Structure, "alias", message));
        };
        if let Some(other) = found.aliases_result {
            let detail = format!("the argument `{}` shares storage with result {other} already", found.name);
            return Err(Error::new(ErrorKind::Structure, "alias", detail));
        }
        found.aliases_result = Some(result);
        Ok(())
    }

    /// Whether `value` is an argument of the function, as opposed to the result of an operation or an
    /// argument of a region.
    pub fn is_argument(&self, value: Value<'f>) -> bool {
        self.argument_name(value).is_some()
    }

    /// The name of `value` if it is an [argument](Self::is_argument).
    pub fn argument_name(&self, value: Value<'f>) -> Option<&str> {
        let found = self.arguments.iter().find(|argument| argument.value == value.id);
        found.map(|argument| argument.name.as_str())
    }

    /// The type of `value`.
    pub fn ty(&self, value: Value<'f>) -> &TensorType {
        &self.values[value.id.index()]
    }

    /// The shape of `value`.
    pub fn shape(&self, value: Value<'f>) -> Vec<usize> {
        self.ty(value).shape.clone()
    }

    /// The operation that made `value`, with its operands; none for arguments.
    ///
    /// ```
    /// # use mlxcel_stablehlo::{ElementType, Module, OpKind, TensorType};
    /// # fn main() -> mlxcel_stablehlo::Result<()> {
    /// Module::of_function("demo", "main", |b| {
    ///     let x = b.argument("x", TensorType::new(ElementType::F32, [2]))?;
    ///     let sum = b.add(x, x)?;
    ///     assert!(b.definition(x).is_none());
    ///     assert!(matches!(b.definition(sum), Some((OpKind::Binary(_), operands)) if operands == [x, x]));
    ///     Ok(vec![sum])
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn definition(&self, value: Value<'f>) -> Option<(&OpKind, Vec<Value<'f>>)> {
        self.frames.iter().rev().find_map(|frame| {
            let op = frame.block.ops.iter().rev().find(|op| op.results.contains(&value.id))?;
            let operand = |&id: &ValueId| Value { id, scope: frame.scope, brand: PhantomData };
            Some((&op.kind, op.operands.iter().map(operand).collect()))
        })
    }

    fn new_value(&mut self, ty: TensorType) -> Value<'f> {
        // More than 2^32 values would take hundreds of gigabytes as data before they get here.
        let id = ValueId(self.values.len() as u32);
        self.values.push(ty);
        Value { id, scope: self.frames.last().map_or(0, |frame| frame.scope), brand: PhantomData }
    }

    /// The type of an operand of `op`, where it can be seen from here.
    fn operand(&self, op: &str, value: Value<'f>) -> Result<&TensorType> {
        if self.frames.iter().any(|frame| frame.scope == value.scope) {
            return Ok(self.ty(value));
        }
        let detail = format!("a value of type {} is used outside of the region that made it", self.ty(value));
        Err(Error::new(ErrorKind::Scope, op, detail))
    }

    /// The types of operands of `op`.
    fn operands(&self, op: &str, values: &[Value<'f>]) -> Result<Vec<&TensorType>> {
        values.iter().map(|&value| self.operand(op, value)).collect()
    }

    /// Appends an operation whose types have been checked.
    fn push(
        &mut self,
        kind: OpKind,
        operands: &[Value<'f>],
        results: Vec<TensorType>,
        regions: Vec<Block>,
    ) -> Vec<Value<'f>> {
        let results: Vec<Value<'f>> = results.into_iter().map(|ty| self.new_value(ty)).collect();
        let op = Op { kind, operands: ids(operands), results: ids(&results), regions };
        if let Some(frame) = self.frames.last_mut() {
            frame.block.ops.push(op);
        }
        results
    }

    /// Appends an operation of one result and without regions, whose types have been checked.
    fn push_one(&mut self, kind: OpKind, operands: &[Value<'f>], result: TensorType) -> Value<'f> {
        let value = self.new_value(result);
        let op = Op { kind, operands: ids(operands), results: vec![value.id], regions: Vec::new() };
        if let Some(frame) = self.frames.last_mut() {
            frame.block.ops.push(op);
        }
        value
    }

    /// Appends an operation that another function had, over operands of the same types.
    pub(crate) fn copy_op(
        &mut self,
        kind: OpKind,
        operands: &[Value<'f>],
        results: Vec<TensorType>,
        regions: Vec<Block>,
    ) -> Result<Vec<Value<'f>>> {
        let types = self.operands(kind.name(), operands)?;
        infer::verify(&kind, &types, &results.iter().collect::<Vec<_>>())?;
        Ok(self.push(kind, operands, results, regions))
    }

    /// Builds a region that is entered with values of `arguments`, and answers it with the types of its
    /// results.
    pub(crate) fn region<F>(
        &mut self,
        op: &str,
        arguments: &[TensorType],
        body: F,
    ) -> Result<(Block, Vec<TensorType>)>
    where
        F: FnOnce(&mut Self, &[Value<'f>]) -> Result<Vec<Value<'f>>>,
    {
        self.scopes += 1;
        let depth = self.frames.len();
        self.frames.push(Frame { scope: self.scopes, block: Block::default() });
        let arguments: Vec<Value<'f>> = arguments.iter().map(|ty| self.new_value(ty.clone())).collect();
        let built = body(self, &arguments).and_then(|results| {
            let types = self.operands(op, &results)?.into_iter().cloned().collect();
            Ok((results, types))
        });
        let frame = self.frames.drain(depth..).next();
        let (results, types) = built?;
        let mut block = frame.map(|frame| frame.block).unwrap_or_default();
        block.arguments = ids(&arguments);
        block.results = ids(&results);
        Ok((block, types))
    }

    fn finish(mut self, results: &[Value<'f>]) -> Result<Function> {
        self.operands("return", results)?;
        let mut body = self.frames.swap_remove(0).block;
        body.results = ids(results);
        let function = Function {
            name: String::new(),
            public: false,
            arguments: self.arguments,
            values: self.values,
            body,
        };
        crate::verify::aliases(&function)?;
        Ok(function)
    }
}

fn ids(values: &[Value<'_>]) -> Vec<ValueId> {
    values.iter().map(|value| value.id).collect()
}
