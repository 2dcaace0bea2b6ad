//! Programs without calls: callees and decompositions written out where they are called.

use mlxcel_stablehlo::{Block, Function, Module, Op, OpKind, TensorType, ValueId};

use super::error::{EvalError, Result};

/// A value of a [`Flat`] program.
pub(super) type Var = usize;

/// A program of one function.
#[derive(Debug)]
pub(super) struct Flat {
    /// The type of every value.
    pub(super) types: Vec<TensorType>,
    /// The block that defines each value.
    pub(super) block_of: Vec<usize>,
    pub(super) body: FlatBlock,
}

/// A straight line of operations.
#[derive(Debug)]
pub(super) struct FlatBlock {
    /// A number that no other block of the program has.
    pub(super) id: usize,
    pub(super) arguments: Vec<Var>,
    pub(super) ops: Vec<FlatOp>,
    pub(super) results: Vec<Var>,
}

/// One operation; never a call or a composite.
#[derive(Debug)]
pub(super) struct FlatOp {
    pub(super) kind: OpKind,
    pub(super) operands: Vec<Var>,
    pub(super) results: Vec<Var>,
    pub(super) regions: Vec<FlatBlock>,
}

/// Writes out `entry` of a verified module.
pub(super) fn flatten(module: &Module, entry: &Function) -> Result<Flat> {
    let mut flattener = Flattener { module, types: Vec::new(), block_of: Vec::new(), blocks: 1 };
    let mut vars = vec![None; entry.values.len()];
    let arguments = entry.arguments.iter();
    let arguments = arguments.map(|argument| flattener.define(entry, &mut vars, argument.value, 0)).collect();
    let mut body = FlatBlock { id: 0, arguments, ops: Vec::new(), results: Vec::new() };
    flattener.ops(entry, &entry.body, &mut vars, &mut body)?;
    body.results = lookup(&vars, &entry.body.results)?;
    Ok(Flat { types: flattener.types, block_of: flattener.block_of, body })
}

struct Flattener<'m> {
    module: &'m Module,
    types: Vec<TensorType>,
    block_of: Vec<usize>,
    blocks: usize,
}

/// The vars of values that verification has shown to be defined.
fn lookup(vars: &[Option<Var>], values: &[ValueId]) -> Result<Vec<Var>> {
    let vars = values.iter().map(|value| vars.get(value.index()).copied().flatten());
    vars.collect::<Option<Vec<Var>>>().ok_or_else(|| unsupported("a value that is used before it is defined"))
}

fn unsupported(what: impl Into<String>) -> EvalError {
    EvalError::Unsupported { what: what.into() }
}

impl Flattener<'_> {
    fn define(&mut self, function: &Function, vars: &mut [Option<Var>], value: ValueId, block: usize) -> Var {
        self.types.push(function.value_type(value).clone());
        self.block_of.push(block);
        let var = self.types.len() - 1;
        vars[value.index()] = Some(var);
        var
    }

    fn ops(
        &mut self,
        function: &Function,
        block: &Block,
        vars: &mut [Option<Var>],
        target: &mut FlatBlock,
    ) -> Result<()> {
        for op in &block.ops {
            let operands = lookup(vars, &op.operands)?;
            match &op.kind {
                OpKind::Composite { decomposition: callee, .. } | OpKind::Call { function: callee } => {
                    let results = self.inline(callee, &operands, target)?;
                    for (value, var) in op.results.iter().zip(results) {
                        vars[value.index()] = Some(var);
                    }
                }
                OpKind::CustomCall { target, .. } => {
                    return Err(unsupported(format!("custom call `{target}`")));
                }
                _ => {
                    let regions = self.regions(function, op, vars)?;
                    let define = |&value| self.define(function, vars, value, target.id);
                    let results = op.results.iter().map(define).collect();
                    target.ops.push(FlatOp { kind: op.kind.clone(), operands, results, regions });
                }
            }
        }
        Ok(())
    }

    fn regions(&mut self, function: &Function, op: &Op, vars: &mut [Option<Var>]) -> Result<Vec<FlatBlock>> {
        let mut regions = Vec::with_capacity(op.regions.len());
        for block in &op.regions {
            let id = self.blocks;
            self.blocks += 1;
            let arguments =
                block.arguments.iter().map(|&value| self.define(function, vars, value, id)).collect();
            let mut region = FlatBlock { id, arguments, ops: Vec::new(), results: Vec::new() };
            self.ops(function, block, vars, &mut region)?;
            region.results = lookup(vars, &block.results)?;
            regions.push(region);
        }
        Ok(regions)
    }

    /// Writes out the body of `callee` and answers its results.
    fn inline(&mut self, callee: &str, operands: &[Var], target: &mut FlatBlock) -> Result<Vec<Var>> {
        let module = self.module;
        let function =
            module.function(callee).ok_or_else(|| EvalError::NoSuchFunction { name: callee.to_owned() })?;
        let mut vars = vec![None; function.values.len()];
        for (argument, &operand) in function.arguments.iter().zip(operands) {
            vars[argument.value.index()] = Some(operand);
        }
        self.ops(function, &function.body, &mut vars, target)?;
        lookup(&vars, &function.body.results)
    }
}
