//! Which arguments of a program are weights that kernels alone read: those lie in panels, and all others as they are stored.
//!
//! Whoever writes a program and whoever loads weights for it ask here, and so agree whatever else a decoder has matrices for.

use std::collections::HashMap;

use mlxcel_graph::packed::{PACKED_EMBEDDING, PACKED_EXPERT_LINEAR, PACKED_LINEAR};
use mlxcel_stablehlo::{Argument, ElementType, Function, Module, Op, OpKind, ValueId, composites};

use super::layout::Contents;
use super::quantized;

/// What each argument of the public function of `module` is to kernels; none where something else reads it too, or nothing.
pub fn weights(module: &Module) -> Vec<Option<Contents>> {
    let public = module.functions.iter().find(|function| function.public);
    public.map_or_else(Vec::new, |function| {
        let read = of_function(function);
        function.arguments.iter().map(|argument| read.get(&argument.value).copied()).collect()
    })
}

/// The same by the names of arguments.
pub(super) fn by_name(module: &Module) -> HashMap<String, Contents> {
    let public = module.functions.iter().filter(|function| function.public);
    public
        .flat_map(|function| {
            let read = of_function(function);
            let found =
                |argument: &Argument| Some((argument.name.clone(), read.get(&argument.value).copied()?));
            function.arguments.iter().filter_map(found).collect::<Vec<_>>()
        })
        .collect()
}

fn of_function(function: &Function) -> HashMap<ValueId, Contents> {
    let mut read: HashMap<ValueId, Option<Contents>> =
        function.arguments.iter().map(|argument| (argument.value, None)).collect();
    let mut misread: Vec<ValueId> = function.body.results.clone();
    // The parts of a packed weight lie in panels together or not at all.
    let mut together: Vec<Vec<ValueId>> = Vec::new();
    function.body.walk(&mut |op| {
        let parts = weights_of(op, function).unwrap_or_default();
        for (index, operand) in op.operands.iter().enumerate() {
            let Some(known) = read.get_mut(operand) else { continue };
            match parts.iter().find(|(part, _)| *part == index) {
                Some((_, contents)) if known.is_none_or(|known| known == *contents) => {
                    *known = Some(*contents)
                }
                _ => misread.push(*operand),
            }
        }
        misread.extend(op.regions.iter().flat_map(|region| &region.results));
        if parts.len() > 1 {
            together.push(parts.iter().map(|(part, _)| op.operands[*part]).collect());
        }
    });
    for value in misread {
        read.insert(value, None);
    }
    while let Some(torn) = together.iter().find(|parts| {
        let count = parts.iter().filter(|part| read.get(part).copied().flatten().is_some()).count();
        count > 0 && count < parts.len()
    }) {
        for part in torn {
            read.insert(*part, None);
        }
    }
    read.into_iter().filter_map(|(value, contents)| Some((value, contents?))).collect()
}

/// The operands of an operation that its kernel reads in panels, if it is one that there is a kernel for.
fn weights_of(op: &Op, function: &Function) -> Option<Vec<(usize, Contents)>> {
    let OpKind::Composite { name, attributes, .. } = &op.kind else { return None };
    let types: Vec<_> = op.operands.iter().map(|&operand| function.value_type(operand)).collect();
    // Where the weight begins, whether it has a dimension of experts, and how many operands there are beside it.
    let (first, rank, others) = match name.as_str() {
        composites::LINEAR | PACKED_LINEAR => (1, 2, 1..=2),
        composites::EMBEDDING | PACKED_EMBEDDING => (0, 2, 1..=1),
        composites::EXPERT_LINEAR | PACKED_EXPERT_LINEAR => (1, 3, 2..=3),
        _ => return None,
    };
    let weight = types.get(first)?;
    let contents = if [PACKED_LINEAR, PACKED_EMBEDDING, PACKED_EXPERT_LINEAR].contains(&name.as_str()) {
        quantized::known(attributes, types.get(first..)?)?.1
    } else {
        attributes.is_empty().then(|| vec![Contents::Values(weight.element)])?
    };
    let some = types.iter().all(|ty| ty.elements() > 0);
    if name == composites::EMBEDDING && types.get(1)?.element != ElementType::I32 {
        return None;
    }
    if !others.contains(&types.len().saturating_sub(contents.len())) || weight.rank() != rank || !some {
        return None;
    }
    Some((first..).zip(contents).collect())
}

#[cfg(test)]
mod tests {
    use mlxcel_graph::packed::{PackedWeight, packed_linear};
    use mlxcel_models::Packing;
    use mlxcel_stablehlo::ElementType::{BF16, F32, I32, U32};
    use mlxcel_stablehlo::{ModuleBuilder, TensorType};

    use super::*;

    #[test]
    fn only_what_kernels_alone_read_lies_in_panels() {
        let mut module = ModuleBuilder::new("test");
        module
            .function("main", |b| {
                let mut argument =
                    |name: &str, element, shape: &[usize]| b.argument(name, TensorType::new(element, shape));
                let x = argument("x", F32, &[1, 64])?;
                let ids = argument("ids", I32, &[1])?;
                let table = argument("table", BF16, &[96, 64])?;
                let shared = argument("shared", BF16, &[96, 64])?;
                let factors = argument("factors", F32, &[64, 64])?;
                let heads = argument("heads", F32, &[1, 64, 64])?;
                let experts = argument("experts", F32, &[3, 32, 64])?;
                let words = argument("words", U32, &[96, 8])?;
                let scales = argument("scales", BF16, &[96, 2])?;
                let biases = argument("biases", BF16, &[96, 2])?;
                let torn = argument("torn", U32, &[96, 8])?;
                let packing = Packing::affine(4, 32, mlxcel_models::ElementType::BF16);
                let of = |codes| PackedWeight { packing, parts: vec![codes, scales, biases] };
                let rows = b.embedding(table, ids)?;
                let mut results = vec![b.linear(rows, table, None, F32)?];
                results.push(b.linear(x, shared, None, F32)?);
                results.push(b.convert(shared, F32)?);
                results.push(b.multiply(factors, factors)?);
                results.push(b.reshape(heads, &[64, 64])?);
                let block = b.reshape(x, &[1, 1, 64])?;
                results.push(b.expert_linear(block, experts, ids, None, F32)?);
                results.push(packed_linear(b, x, &of(words), None, F32)?);
                // Its scales are what the other's words need in panels, and its own words are a result.
                results.push(packed_linear(b, x, &of(torn), None, F32)?);
                results.push(torn);
                Ok(results)
            })
            .unwrap();
        let module = module.finish();
        let values = |element| Some(Contents::Values(element));
        let wanted = [None, None, values(BF16), None, None, None, values(F32), None, None, None, None];
        assert_eq!(weights(&module), wanted);
        let names = by_name(&module);
        assert_eq!(names.len(), 2);
        assert_eq!((names.get("table"), names.get("experts")), (wanted[2].as_ref(), wanted[6].as_ref()));
    }
}
