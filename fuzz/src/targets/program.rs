//! Programs that are well formed, evaluated.

use mlxcel_portable::eval::{Input, Program, Tensor};
use mlxcel_stablehlo::{ElementType, Module, OpKind, TensorType};

use crate::outcome::Outcome;
use crate::target::{Format, Target};

#[path = "../../../mlxcel-stablehlo/tests/support/mod.rs"]
#[allow(clippy::unwrap_used, missing_docs, reason = "a part of the tests of another package")]
mod support;

use support::random::{Extent, program};

pub(super) const TARGET: Target = Target {
    name: "program",
    about: "decisions of the Builder: the program verifies and prints, and evaluates to the same whatever else is returned",
    format: Format::Decisions,
    run,
    longest: 2048,
    ..Target::USUAL
};

#[allow(clippy::panic, reason = "a finding")]
fn run(input: &[u8]) -> Outcome {
    let decisions: Vec<u32> = input.iter().map(|&byte| byte.into()).collect();
    let mut module = program(&decisions, Extent::Whole);
    if let Err(error) = module.verify() {
        panic!("{error}\n{module}");
    }
    let text = module.to_string();
    // The meaning of a custom call is unknown: it returns its operands.
    for op in module.functions.iter_mut().flat_map(|function| &mut function.body.ops) {
        if matches!(op.kind, OpKind::CustomCall { .. }) {
            op.kind = OpKind::Reshape;
        }
    }
    let inputs = inputs(&module);
    let all = evaluate(&module, &inputs);
    let Some(main) = module.functions.iter_mut().find(|function| function.name == "main") else {
        return Outcome::new("no function");
    };
    let kinds: std::collections::BTreeSet<&str> = main.body.ops.iter().map(|op| op.kind.name()).collect();
    let outcome = Outcome::new(format!("{kinds:?}"));
    // The last value alone: what it is made of is joined, moved and updated in place.
    let last = main.body.results.len() - 1;
    main.body.results = vec![main.body.results[last]];
    let alone = evaluate(&module, &inputs);
    let (together, alone) = (&all[last], &alone[0]);
    assert_eq!(together.ty(), alone.ty());
    let whole = !together.ty().element.is_float();
    assert!(!whole || together.bytes() == alone.bytes(), "{text}");
    outcome
}

#[allow(clippy::panic, reason = "a finding")]
fn evaluate(module: &Module, inputs: &[Tensor]) -> Vec<Tensor> {
    let results =
        Program::plan(module, "main").map(|program| program.run(inputs.iter().map(Input::from).collect()));
    match results {
        Ok(Ok(results)) => results,
        Ok(Err(error)) => panic!("{error}\n{module}"),
        Err(error) => panic!("{error}\n{module}"),
    }
}

/// Small numbers for each argument.
fn inputs(module: &Module) -> Vec<Tensor> {
    let Some(main) = module.function("main") else { return Vec::new() };
    let types = main.arguments.iter().map(|argument| main.value_type(argument.value).clone());
    types.enumerate().filter_map(|(number, ty)| tensor(ty, number)).collect()
}

fn tensor(ty: TensorType, number: usize) -> Option<Tensor> {
    let bytes = (0..ty.bytes()).map(|at| match ty.element {
        ElementType::I1 => ((at + number) % 2) as u8,
        // The exponents of small numbers, or small whole numbers.
        _ => [0, 0x3c, 0, 0x40, 0, 0xbe, 1, 0][(at + number) % 8],
    });
    Tensor::from_bytes(ty.clone(), &bytes.collect::<Vec<u8>>()).ok()
}
