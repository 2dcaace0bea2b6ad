//! That the stock compiler would notice a wrong inference: a result type changed by hand is rejected, for
//! every operation whose result type is not the caller's free choice. So is it by our own verifier.

use std::collections::HashSet;

use mlxcel_stablehlo::{ElementType, Function, Module, OpKind, ValueId};

/// The first dimension of its result may be of any size.
fn is_free(kind: &OpKind) -> bool {
    match kind {
        OpKind::Iota { .. } | OpKind::CustomCall { .. } => true,
        // A single number in the text is a splat of any shape.
        OpKind::Constant(literal) => literal.ty().elements() == 1,
        OpKind::BroadcastInDim { dimensions } => !dimensions.contains(&0),
        _ => false,
    }
}

/// The first operation of each kind in the public functions of the samples, with its first result.
fn one_of_each() -> Vec<(&'static str, Module, usize, ValueId)> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for (_, module) in crate::support::samples::all() {
        for (i, function) in module.functions.iter().enumerate().filter(|(_, function)| function.public) {
            for op in &function.body.ops {
                if let Some(&result) = op.results.first()
                    && !is_free(&op.kind)
                    && seen.insert(op.kind.name())
                {
                    found.push((op.kind.name(), module.clone(), i, result));
                }
            }
        }
    }
    found
}

/// Makes the first dimension of a value larger; a scalar gets one.
fn enlarge(function: &mut Function, value: ValueId) {
    let shape = &mut function.values[value.index()].shape;
    match shape.first_mut() {
        Some(size) => *size += 1,
        None => shape.push(2),
    }
}

#[test]
fn a_wrong_result_type_is_rejected() {
    let mut names = Vec::new();
    let mut texts = Vec::new();
    for (name, mut module, function, result) in one_of_each() {
        enlarge(&mut module.functions[function], result);
        assert!(module.verify().is_err(), "our verifier accepts {name} with a wrong result");
        names.push(name);
        texts.push(module.to_string());
    }
    let Some(compiler) = crate::support::stock_compiler() else { return };
    for (name, outcome) in names.iter().zip(crate::support::verify(&compiler, &texts)) {
        assert!(outcome.is_err(), "the stock compiler accepts {name} with a wrong result");
    }
}

#[test]
fn tampered_result_types_of_every_operation_are_rejected() {
    let seen: HashSet<&str> = one_of_each().into_iter().map(|(name, ..)| name).collect();
    let missing: Vec<&str> = crate::support::every_operation()
        .filter(|name| !seen.contains(name) && !["iota", "custom_call"].contains(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_wrong_element_type_is_rejected() {
    for (name, mut module, function, result) in one_of_each() {
        // A conversion is the only operation with an arbitrary result type.
        if name == "convert" || name == "bitcast_convert" {
            continue;
        }
        let ty = &mut module.functions[function].values[result.index()];
        ty.element = if ty.element == ElementType::I8 { ElementType::F16 } else { ElementType::I8 };
        assert!(module.verify().is_err(), "our verifier accepts {name} with a wrong element type");
    }
}
