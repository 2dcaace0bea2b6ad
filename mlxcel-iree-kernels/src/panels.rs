//! Checking that weights in panels are read by nothing but kernels that know of panels.

use std::collections::{HashMap, HashSet};

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_stablehlo::{Function, Module, Op, OpKind, ValueId};

use super::kernels::Kernels;

/// Checks every use of a weight in panels.
///
/// # Errors
/// [`ErrorKind::Internal`] where such a weight is no argument of a program, or something else reads it too: what reads a matrix
/// as it is stored would compute with the wrong elements.
pub(super) fn check(module: &Module, kernels: &Kernels) -> Result<()> {
    module.functions.iter().try_for_each(|function| check_function(function, kernels))
}

fn check_function(function: &Function, kernels: &Kernels) -> Result<()> {
    // An argument whose elements are called by another type of their size is still that argument.
    let mut renamed: HashMap<ValueId, ValueId> = HashMap::new();
    function.body.walk(&mut |op| {
        if let (OpKind::BitcastConvert, [from], [to]) = (&op.kind, &op.operands[..], &op.results[..])
            && function.value_type(*from).shape == function.value_type(*to).shape
        {
            renamed.insert(*to, *from);
        }
    });
    let root = |value: ValueId| renamed.get(&value).copied().unwrap_or(value);
    let mut in_panels = HashSet::new();
    function.body.walk(&mut |op| in_panels.extend(reads_of_panels(op, kernels).map(root)));
    let argument = |value: &ValueId| function.arguments.iter().any(|argument| argument.value == *value);
    let mut misread = in_panels.iter().any(|value| !function.public || !argument(value));
    misread |= function.body.results.iter().any(|result| in_panels.contains(&root(*result)));
    function.body.walk(&mut |op| {
        let renames = op.results.first().is_some_and(|result| renamed.contains_key(result));
        let of_panels = if renames { 1 } else { reads_of_panels(op, kernels).count() };
        let all = op.operands.iter().filter(|operand| in_panels.contains(&root(**operand))).count();
        let regions = op.regions.iter().flat_map(|region| &region.results);
        misread |= all > of_panels || regions.into_iter().any(|result| in_panels.contains(&root(*result)));
    });
    if misread {
        let message = "a weight in panels is read as if it lay in rows";
        return Err(Error::new(ErrorKind::Internal, "lower program", message)
            .with_context("function", &function.name));
    }
    Ok(())
}

/// The operands that an operation takes as weights in panels.
fn reads_of_panels<'a>(op: &'a Op, kernels: &'a Kernels) -> impl Iterator<Item = ValueId> + 'a {
    let operands: &[usize] = match &op.kind {
        OpKind::CustomCall { target, .. } => kernels.in_panels(target),
        _ => &[],
    };
    operands.iter().filter_map(|&operand| op.operands.get(operand).copied())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use mlxcel_stablehlo::{Builder, ElementType, ModuleBuilder, TensorType, Value};

    use super::*;
    use crate::kernels::Kernel;

    /// A kernel that takes a weight in panels.
    struct Reader {
        ty: TensorType,
        kernel: Kernel,
        kernels: RefCell<Kernels>,
    }

    impl Reader {
        fn read<'f>(&self, b: &mut Builder<'f>, weight: Value<'f>) -> Value<'f> {
            let results = vec![self.ty.clone()];
            self.kernels.borrow_mut().call(b, &self.kernel, &[weight], results).unwrap()[0]
        }
    }

    type Body = for<'f> fn(&mut Builder<'f>, &Reader, Value<'f>) -> mlxcel_stablehlo::Result<Vec<Value<'f>>>;

    fn checked(body: Body) -> Result<()> {
        let ty = TensorType::new(ElementType::F32, [4, 4]);
        let mut kernel = Kernel::new("read", [1, 1, 1]);
        kernel.panel_operand("weight");
        kernel.result("out");
        let reader = Reader { ty: ty.clone(), kernel, kernels: RefCell::default() };
        let mut module = ModuleBuilder::new("test");
        module
            .function("main", |b| {
                let weight = b.argument("weight", ty)?;
                body(b, &reader, weight)
            })
            .unwrap();
        check(&module.finish(), &reader.kernels.into_inner())
    }

    #[test]
    fn a_weight_in_panels_is_read_by_kernels_alone() {
        checked(|b, reader, weight| Ok(vec![reader.read(b, weight), reader.read(b, weight)])).unwrap();
        let errors = [
            checked(|b, reader, weight| Ok(vec![reader.read(b, weight), weight])).unwrap_err(),
            checked(|b, reader, weight| {
                let renamed = b.bitcast_convert(weight, ElementType::I32)?;
                Ok(vec![reader.read(b, weight), renamed])
            })
            .unwrap_err(),
            checked(|b, reader, weight| Ok(vec![reader.read(b, weight), b.add(weight, weight)?]))
                .unwrap_err(),
            checked(|b, reader, weight| {
                let doubled = b.add(weight, weight)?;
                Ok(vec![reader.read(b, doubled)])
            })
            .unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Internal);
            assert_eq!(error.context("function"), Some("main"));
        }
    }
}
