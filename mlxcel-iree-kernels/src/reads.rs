//! Which arguments of a lowered program are read by kernels, which take weights in panels, and which by
//! anything else, which takes them as stored.

use std::collections::{BTreeSet, HashMap};

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_stablehlo::{Function, Module, Op, OpKind, ValueId};

use super::kernels::Kernels;

/// The arguments of a program that something reads, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reads {
    /// Those that a kernel takes in panels.
    pub(super) in_panels: BTreeSet<String>,
    /// Those that anything takes as stored.
    pub(super) as_stored: BTreeSet<String>,
}

impl Reads {
    /// The reads of `module`, whose kernels are `kernels`.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if a kernel takes a value in panels that is not an argument, and so was never
    /// packed.
    pub(super) fn of(module: &Module, kernels: &Kernels) -> Result<Self> {
        let mut reads = Self::default();
        module.functions.iter().try_for_each(|function| reads.add(function, kernels))?;
        Ok(reads)
    }

    /// Those that are read both ways, and so cannot be in panels.
    pub(super) fn torn(&self) -> impl Iterator<Item = &String> {
        self.in_panels.intersection(&self.as_stored)
    }

    fn add(&mut self, function: &Function, kernels: &Kernels) -> Result<()> {
        let names: HashMap<ValueId, &String> =
            function.arguments.iter().map(|argument| (argument.value, &argument.name)).collect();
        // An argument bitcast to another type of the same size is still that argument.
        let mut renamed: HashMap<ValueId, ValueId> = HashMap::new();
        function.body.walk(&mut |op| {
            if let Some((from, to)) = renaming(op, function) {
                renamed.insert(to, renamed.get(&from).copied().unwrap_or(from));
            }
        });
        let name =
            |value: &ValueId| names.get(renamed.get(value).unwrap_or(value)).map(|name| (*name).clone());
        let mut computed = false;
        let mut stored: Vec<ValueId> = function.body.results.clone();
        function.body.walk(&mut |op| {
            let taken = panel_operands(op, kernels);
            for (index, operand) in op.operands.iter().enumerate() {
                if taken.contains(&index) {
                    let name = name(operand);
                    computed |= name.is_none();
                    // Arguments of a called function are as stored.
                    self.as_stored.extend(name.clone().filter(|_| !function.public));
                    self.in_panels.extend(name);
                } else if renaming(op, function).is_none() {
                    stored.push(*operand);
                }
            }
            stored.extend(op.regions.iter().flat_map(|region| &region.results));
        });
        self.as_stored.extend(stored.iter().filter_map(name));
        if computed {
            let message =
                "a kernel takes a value that is not an argument of the program as a weight in panels";
            return Err(Error::new(ErrorKind::Internal, "lower program", message)
                .with_context("function", &function.name));
        }
        Ok(())
    }
}

/// The operand and result of a bitcast that keeps the shape.
fn renaming(op: &Op, function: &Function) -> Option<(ValueId, ValueId)> {
    match (&op.kind, &op.operands[..], &op.results[..]) {
        (OpKind::BitcastConvert, &[from], &[to])
            if function.value_type(from).shape == function.value_type(to).shape =>
        {
            Some((from, to))
        }
        _ => None,
    }
}

/// The operands that an operation takes as weights in panels.
fn panel_operands<'a>(op: &Op, kernels: &'a Kernels) -> &'a [usize] {
    match &op.kind {
        OpKind::CustomCall { target, .. } => kernels.in_panels(target),
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use mlxcel_stablehlo::{Builder, ElementType, Module, TensorType, Value};

    use super::*;
    use crate::kernels::{Description, Kernel};

    /// A kernel that takes a weight in panels.
    struct Reader {
        ty: TensorType,
        kernels: RefCell<Kernels>,
    }

    #[derive(Debug)]
    struct Read;

    impl Description for Read {
        fn kernel(&self) -> Kernel {
            let mut kernel = Kernel::new("read", [1, 1, 1]);
            kernel.panel_operand("weight");
            kernel.result("out");
            kernel
        }
    }

    impl Reader {
        fn read<'f>(&self, b: &mut Builder<'f>, weight: Value<'f>) -> Value<'f> {
            let results = vec![self.ty.clone()];
            self.kernels.borrow_mut().call(b, &Read, &[weight], results).unwrap()[0]
        }
    }

    type Body = for<'f> fn(&mut Builder<'f>, &Reader, Value<'f>) -> mlxcel_stablehlo::Result<Vec<Value<'f>>>;

    fn reads(body: Body) -> Result<Reads> {
        let ty = TensorType::new(ElementType::F32, [4, 4]);
        let reader = Reader { ty: ty.clone(), kernels: RefCell::default() };
        let module = Module::of_function("test", "main", |b| {
            let weight = b.argument("weight", ty)?;
            body(b, &reader, weight)
        })
        .unwrap();
        Reads::of(&module, &reader.kernels.into_inner())
    }

    #[test]
    fn reads_by_kernels_are_told_from_other_reads() {
        let kernels_alone: [Body; 2] = [
            |b, reader, weight| Ok(vec![reader.read(b, weight), reader.read(b, weight)]),
            |b, reader, weight| {
                let renamed = b.bitcast_convert(weight, ElementType::I32)?;
                Ok(vec![reader.read(b, renamed)])
            },
        ];
        for body in kernels_alone {
            let reads = reads(body).unwrap();
            assert!(reads.in_panels.contains("weight") && reads.as_stored.is_empty());
        }
        let both: [Body; 3] = [
            |b, reader, weight| Ok(vec![reader.read(b, weight), weight]),
            |b, reader, weight| {
                let renamed = b.bitcast_convert(weight, ElementType::I32)?;
                Ok(vec![reader.read(b, weight), renamed])
            },
            |b, reader, weight| Ok(vec![reader.read(b, weight), b.add(weight, weight)?]),
        ];
        for body in both {
            assert_eq!(reads(body).unwrap().torn().collect::<Vec<_>>(), ["weight"]);
        }
        let computed: Body = |b, reader, weight| {
            let doubled = b.add(weight, weight)?;
            Ok(vec![reader.read(b, doubled)])
        };
        let error = reads(computed).unwrap_err();
        assert_eq!((error.kind(), error.context("function")), (ErrorKind::Internal, Some("main")));
    }
}
