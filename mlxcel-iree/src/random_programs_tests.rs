//! Random programs of the `Builder` on the device, compiled by the stock compiler without kernels of ours,
//! against the evaluator.
//!
//! Every value of a program comes back from the device, and each operation is compared individually with the
//! evaluator's result for the same
//! operands: so no rounding adds up, and a difference names its operation.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::error::Error as _;

use mlxcel_iree_runtime::{Device, DeviceOptions, Driver, Program};
use mlxcel_portable::eval::{Input, Program as Evaluated, Tensor};
use mlxcel_stablehlo::{
    Argument as Parameter, BinaryOp, Block, ElementType, Function, Module, Op, OpKind, TensorType, UnaryOp,
    ValueId,
};

use crate::testing::call;
use mlxcel_iree_compile::compiler::{CompileOptions, Compiler};

#[path = "../../mlxcel-stablehlo/tests/support/mod.rs"]
#[allow(missing_docs, reason = "a part of the tests of another package")]
mod support;

use support::random::{Extent, program};

/// How many programs are tried; more by `MLXCEL_RANDOM_PROGRAMS`.
const PROGRAMS: u64 = 16;

/// How many are compiled at once, as functions of one module: starting the compiler takes longer than one
/// does, but one without code takes further runs of the compiler over its neighbours.
const AT_ONCE: u64 = 16;

/// Programs that the stock compiler is known to have no code for: they are tried with more programs only,
/// since finding that out takes another run of it.
const WITHOUT_CODE: [u64; 1] = [26];

/// Decisions in a program: about six make an operation.
const DECISIONS: usize = 72;

/// Numbers in a row that look random (splitmix64).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A program whose function `main` returns everything that it computes, and its input tensors.
struct Case {
    module: Module,
    inputs: Vec<Tensor>,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut noise = Noise(seed);
        let decisions: Vec<u32> = (0..DECISIONS).map(|_| noise.next() as u32).collect();
        let mut module = program(&decisions, Extent::Run);
        let main = main_mut(&mut module);
        give_what_is_the_same_everywhere(main);
        main.body.results = main.body.ops.iter().flat_map(|op| &op.results).copied().collect();
        let types = main.arguments.iter().map(|argument| main.value_type(argument.value).clone());
        let inputs = types.map(|ty| input(ty, &mut noise)).collect();
        Self { module, inputs }
    }

    fn main(&self) -> &Function {
        self.module.function("main").unwrap()
    }

    /// Its functions, under names that no other program of a module has.
    fn functions(&self, number: u64) -> impl Iterator<Item = Function> {
        self.module.functions.clone().into_iter().map(move |mut function| {
            function.name = format!("{}_{number}", function.name);
            rename_callees(&mut function.body, number);
            function
        })
    }
}

/// Makes arguments of tensors that are one number everywhere, but for divisors and for indices of `scatter`,
/// whose code writes wherever they say: operations then have something to compute. (The stock compiler also
/// takes the sum over such a tensor for the number itself.)
fn give_what_is_the_same_everywhere(main: &mut Function) {
    let is_bound = |op: &&Op| {
        matches!(op.kind, OpKind::Binary(BinaryOp::Divide | BinaryOp::Remainder) | OpKind::Scatter { .. })
    };
    let bound: Vec<ValueId> = main.body.ops.iter().filter(is_bound).map(|op| op.operands[1]).collect();
    let constants: Vec<ValueId> = (main.body.ops.iter())
        .filter(|op| matches!(op.kind, OpKind::Constant(_)))
        .flat_map(|op| op.results.clone())
        .collect();
    let is_given = |op: &Op| {
        let same = matches!(op.kind, OpKind::BroadcastInDim { .. }) && constants.contains(&op.operands[0]);
        same && !bound.contains(&op.results[0])
    };
    let (given, kept) = main.body.ops.drain(..).partition::<Vec<_>, _>(is_given);
    main.body.ops = kept;
    main.arguments.extend(given.into_iter().enumerate().map(|(number, op)| Parameter {
        name: format!("given.{number}"),
        value: op.results[0],
        aliases_result: None,
    }));
}

fn main_mut(module: &mut Module) -> &mut Function {
    module.functions.iter_mut().find(|function| function.name == "main").unwrap()
}

fn rename_callees(block: &mut Block, number: u64) {
    for op in &mut block.ops {
        if let OpKind::Composite { decomposition: callee, .. } | OpKind::Call { function: callee } =
            &mut op.kind
        {
            *callee = format!("{callee}_{number}");
        }
        op.regions.iter_mut().for_each(|region| rename_callees(region, number));
    }
}

/// An input of mostly small numbers.
fn input(ty: TensorType, noise: &mut Noise) -> Tensor {
    let bytes = (0..ty.elements()).flat_map(|_| {
        let draw = noise.next();
        let small = (draw / 32 % 33) as i64 - 16;
        match ty.element {
            ElementType::I1 => vec![(draw % 2) as u8],
            element if element.is_float() => {
                let value = match draw % 32 {
                    0 => f32::NAN,
                    1 => f32::INFINITY,
                    2 => -0.0,
                    _ => small as f32 * 0.37,
                };
                from_f32(element, value)
            }
            element => {
                let value = if element.is_signed() { small } else { small.abs() };
                value.to_le_bytes()[..element.bits() / 8].to_vec()
            }
        }
    });
    let bytes: Vec<u8> = bytes.collect();
    Tensor::from_bytes(ty, &bytes).unwrap()
}

fn from_f32(element: ElementType, value: f32) -> Vec<u8> {
    match element {
        ElementType::BF16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
        ElementType::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    }
}

/// Element by element, each as a number that holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Float(f32),
    Whole(i128),
}

fn numbers(tensor: &Tensor) -> Vec<Number> {
    let element = tensor.ty().element;
    let width = element.bytes_for(1);
    let number = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(bytes);
        let (bits, unused) = (u64::from_le_bytes(wide), 64 - 8 * width);
        match element {
            ElementType::F32 => Number::Float(f32::from_bits(bits as u32)),
            ElementType::F16 => Number::Float(half::f16::from_bits(bits as u16).to_f32()),
            ElementType::BF16 => Number::Float(half::bf16::from_bits(bits as u16).to_f32()),
            element if element.is_signed() => Number::Whole((((bits << unused) as i64) >> unused).into()),
            _ => Number::Whole(bits.into()),
        }
    };
    tensor.bytes().chunks_exact(width).map(number).collect()
}

/// The values of a program, on the device.
fn compute(function: &mlxcel_iree_runtime::Function, device: &Device, case: &Case) -> Vec<Tensor> {
    let results = call(device, function, case.inputs.iter().map(|tensor| (tensor.ty(), tensor.bytes())));
    (results.iter().zip(case.main().result_types()))
        .map(|(result, ty)| Tensor::from_bytes(ty.clone(), &result.bytes).unwrap())
        .collect()
}

/// What `op` reads: its operands, and values from outside that its regions use.
fn reads(op: &Op) -> Vec<ValueId> {
    fn inner(block: &Block, made: &mut Vec<ValueId>, read: &mut Vec<ValueId>) {
        made.extend(&block.arguments);
        for op in &block.ops {
            read.extend(&op.operands);
            made.extend(&op.results);
            op.regions.iter().for_each(|region| inner(region, made, read));
        }
        read.extend(&block.results);
    }
    let (mut made, mut read) = (Vec::new(), op.operands.clone());
    op.regions.iter().for_each(|region| inner(region, &mut made, &mut read));
    read.retain(|value| !made.contains(value));
    read.sort();
    read.dedup();
    read
}

/// A module whose `main` is `op` alone, of what it [reads].
fn alone(module: &Module, op: &Op) -> Module {
    let mut module = module.clone();
    let main = main_mut(&mut module);
    let parameter = |(number, value)| Parameter { name: format!("x.{number}"), value, aliases_result: None };
    main.arguments = reads(op).into_iter().enumerate().map(parameter).collect();
    main.body = Block { arguments: Vec::new(), ops: vec![op.clone()], results: op.results.clone() };
    module
}

/// Whether the specification leaves no choice for an element that was computed from these.
fn is_determined(op: &Op, operands: &[Number], result: ElementType) -> bool {
    match op.kind {
        // A float that the integer type cannot hold.
        OpKind::Convert if !result.is_float() && result != ElementType::I1 => match operands {
            [Number::Float(x)] => {
                let bits = result.bits() as i32 - i32::from(result.is_signed());
                let least = if result.is_signed() { -2f32.powi(bits) } else { 0.0 };
                x.trunc() >= least && x.trunc() < 2f32.powi(bits)
            }
            _ => true,
        },
        // The stock compiler approximates these by functions that have no number here: powers of negative
        // bases (by logarithms), the angle of nothing (by a quotient), cube roots of infinity.
        OpKind::Binary(BinaryOp::Power) => {
            !matches!(operands, [Number::Float(base), _] if base.is_sign_negative())
        }
        OpKind::Binary(BinaryOp::Atan2) => *operands != [Number::Float(0.0); 2],
        OpKind::Unary(UnaryOp::Cbrt) => !matches!(operands, [Number::Float(x)] if x.is_infinite()),
        _ => true,
    }
}

/// How often an operation rounds to the type of its result, one after another.
fn roundings(op: &Op) -> f32 {
    if matches!(op.kind, OpKind::Composite { .. }) { 4.0 } else { 1.0 }
}

/// The units in the last place by which a float may be off, of functions that are approximated.
fn units(op: &Op) -> f32 {
    match op.kind {
        OpKind::Unary(
            UnaryOp::Sine | UnaryOp::Cosine | UnaryOp::Tanh | UnaryOp::Cbrt | UnaryOp::Logistic,
        )
        | OpKind::Binary(BinaryOp::Power | BinaryOp::Atan2)
        | OpKind::Composite { .. } => 64.0,
        _ => 8.0,
    }
}

/// A bound of the terms that an operation adds up.
fn terms(op: &Op, operands: &[&Tensor]) -> f32 {
    let largest = |tensor: &Tensor| {
        let magnitude = |number| if let Number::Float(x) = number { x.abs() } else { 0.0 };
        numbers(tensor).into_iter().map(magnitude).fold(0.0, f32::max)
    };
    let count = |tensor: &Tensor| tensor.ty().elements() as f32;
    match &op.kind {
        OpKind::Reduce { .. } | OpKind::Scatter { .. } => {
            operands.iter().map(|x| largest(x) * count(x)).sum()
        }
        OpKind::DotGeneral { dimensions } => {
            let extents =
                dimensions.lhs_contracting.iter().map(|&dimension| operands[0].ty().shape[dimension] as f32);
            largest(operands[0]) * largest(operands[1]) * extents.product::<f32>()
        }
        _ => 0.0,
    }
}

/// Whether the device's element is right: integers exactly, floats but for rounding.
fn close(actual: Number, expected: Number, element: ElementType, op: &Op, terms: f32) -> bool {
    let (Number::Float(a), Number::Float(b)) = (actual, expected) else { return actual == expected };
    let unit = match element {
        ElementType::F32 => f32::EPSILON,
        ElementType::F16 => 1.0 / 1024.0,
        _ => 1.0 / 128.0,
    };
    // Processors with half-precision arithmetic (AVX512-FP16) round each partial sum to f16.
    let partial_sums = if element == ElementType::F16 { unit * terms } else { 0.0 };
    let approximated = units(op) * f32::EPSILON * (b.abs().max(1.0) + terms);
    a == b
        || (a.is_nan() && b.is_nan())
        || (a - b).abs() <= roundings(op) * unit * b.abs() + partial_sums + approximated
}

/// How the values of a case differ from what the evaluator makes of each operation's operands.
fn differences(case: &Case, results: Vec<Tensor>) -> Vec<String> {
    let main = case.main();
    let arguments = main.arguments.iter().map(|argument| argument.value).zip(case.inputs.iter().cloned());
    let values: HashMap<ValueId, Tensor> =
        arguments.chain(main.body.results.iter().copied().zip(results)).collect();
    let mut differences = Vec::new();
    for op in &main.body.ops {
        let single = alone(&case.module, op);
        let read: Vec<&Tensor> = reads(op).iter().map(|value| &values[value]).collect();
        let operands: Vec<&Tensor> = op.operands.iter().map(|value| &values[value]).collect();
        let expected = Evaluated::plan(&single, "main").unwrap();
        let expected = expected.run(read.iter().map(|&tensor| Input::from(tensor)).collect()).unwrap();
        let terms = terms(op, &operands);
        for (value, expected) in op.results.iter().zip(&expected) {
            let element = expected.ty().element;
            let (actual, expected) = (numbers(&values[value]), numbers(expected));
            let wrong = (0..actual.len()).find(|&at| {
                let elementwise = operands.iter().all(|operand| operand.ty().elements() == actual.len());
                let from: Vec<_> =
                    operands.iter().filter(|_| elementwise).map(|operand| numbers(operand)[at]).collect();
                is_determined(op, &from, element) && !close(actual[at], expected[at], element, op, terms)
            });
            if let Some(at) = wrong {
                let shown: Vec<_> = operands.iter().map(|operand| numbers(operand)).collect();
                differences.push(format!(
                    "element {at} is {:?} on the device and {:?} by the evaluator, in\n{single}\nof {shown:?}",
                    actual[at], expected[at]
                ));
            }
        }
    }
    differences
}

/// The programs compiled, or the number of one that the compiler has no code for, with its words.
fn compile(compiler: &Compiler, cases: &BTreeMap<u64, Case>) -> Result<Vec<u8>, (u64, String)> {
    compile_all(compiler, cases.iter().map(|(&number, case)| (number, case))).map_err(|error| {
        let words = error.source().unwrap().to_string();
        let number = words.split_once("@main_").and_then(|(_, rest)| rest.split_once('(')?.0.parse().ok());
        (number.unwrap_or_else(|| unlinked(compiler, cases, &words)), words)
    })
}

/// The programs compiled as one module.
fn compile_all<'c>(
    compiler: &Compiler,
    cases: impl Iterator<Item = (u64, &'c Case)>,
) -> mlxcel_core::Result<Vec<u8>> {
    let functions = cases.flat_map(|(number, case)| case.functions(number)).collect();
    let module = Module { name: "random".to_owned(), functions };
    compiler.compile(&module.to_string(), &CompileOptions::new(crate::testing::host()), None)
}

/// The number of a program that the linker refuses: it names functions of the compiler's library alone, such
/// as the one that rounds to bf16 where the processor has no instruction for it.
fn unlinked(compiler: &Compiler, cases: &BTreeMap<u64, Case>, words: &str) -> u64 {
    assert!(words.contains("undefined symbol"), "{words}");
    let mut numbers: Vec<u64> = cases.keys().copied().collect();
    while numbers.len() > 1 {
        let second = numbers.split_off(numbers.len() / 2);
        if compile_all(compiler, numbers.iter().map(|number| (*number, &cases[number]))).is_ok() {
            numbers = second;
        }
    }
    numbers[0]
}

#[test]
fn the_stock_compiler_and_the_evaluator_agree_on_random_programs() {
    let programs = env::var("MLXCEL_RANDOM_PROGRAMS").map_or(PROGRAMS, |count| count.parse().unwrap());
    let compiler = crate::testing::compiler();
    let device = Device::open(&DeviceOptions { driver: Driver::LocalSync, ..Default::default() }).unwrap();
    let (mut found, mut operations, mut without_code) = (Vec::new(), 0, 0);
    for first in (0..programs).step_by(AT_ONCE as usize) {
        let seeds = (first..programs.min(first + AT_ONCE))
            .filter(|seed| programs > PROGRAMS || !WITHOUT_CODE.contains(seed));
        let mut cases: BTreeMap<u64, Case> = seeds.map(|seed| (seed, Case::new(seed))).collect();
        let artifact = loop {
            match compile(&compiler, &cases) {
                Ok(artifact) => break artifact,
                Err((refused, why)) => {
                    println!("program {} has no code: {why}", refused);
                    cases.remove(&refused);
                    without_code += 1;
                }
            }
        };
        let program = Program::load(&device, &artifact).unwrap();
        for (&number, case) in &cases {
            let function = program.function(&format!("main_{number}")).unwrap();
            operations += case.main().body.ops.len();
            let differences = differences(case, compute(&function, &device, case));
            if !differences.is_empty() {
                found.push(format!("program {number}: {}\nin {}", differences.join("\n"), case.module));
            }
        }
    }
    println!(
        "{operations} operations of {programs} programs: {} programs differ, {without_code} have no code",
        found.len()
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(20 * without_code <= programs, "{without_code} of {programs} programs have no code");
}
