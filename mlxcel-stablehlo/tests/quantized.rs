//! Embeddings and packed weights, against the arithmetic written out value by value.

#![cfg(feature = "eval")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by them")]

use half::{bf16, f16};
use mlxcel_stablehlo::eval::{Input, Program, Tensor};
use mlxcel_stablehlo::{
    Attribute, Builder, Element, ElementType, ErrorKind, Module, ModuleBuilder, OpKind, QuantizedWeight,
    Result, Value, composites,
};

use ElementType::{BF16, F16, F32, I32, U32};

fn module<F>(arguments: &[Tensor], body: F) -> Result<Module>
where
    F: for<'f> FnOnce(&mut Builder<'f>, &[Value<'f>]) -> Result<Value<'f>>,
{
    let mut module = ModuleBuilder::new("packed");
    module.function("main", |b| {
        let mut values = Vec::new();
        for (i, argument) in arguments.iter().enumerate() {
            values.push(b.argument(format!("x{i}"), argument.ty().clone())?);
        }
        Ok(vec![body(b, &values)?])
    })?;
    Ok(module.finish())
}

fn run<F>(arguments: &[Tensor], body: F) -> Tensor
where
    F: for<'f> FnOnce(&mut Builder<'f>, &[Value<'f>]) -> Result<Value<'f>>,
{
    let program = Program::plan(&module(arguments, body).unwrap(), "main").unwrap();
    program.run(arguments.iter().cloned().map(Input::Owned).collect()).unwrap().remove(0)
}

fn tensor<T: Element>(shape: &[usize], elements: &[T]) -> Tensor {
    Tensor::from_slice(shape.to_vec(), elements).unwrap()
}

/// A stream of numbers without a pattern.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    }
}

/// A packed matrix as tensors (words, scales, biases), and its values.
struct Packed {
    parts: [Tensor; 3],
    values: Vec<f64>,
    bits: usize,
    group_size: usize,
}

impl Packed {
    fn new(rows: usize, columns: usize, bits: usize, group_size: usize, element: ElementType) -> Self {
        let mut next = random((rows * columns + bits * group_size) as u64);
        let q: Vec<u32> = (0..rows * columns).map(|_| (next() % (1 << bits)) as u32).collect();
        let pack = |values: &[u32]| values.iter().rev().fold(0, |word, value| word << bits | value);
        let words: Vec<u32> = q.chunks(32 / bits).map(pack).collect();
        let groups = columns / group_size;
        // Numbers of few bits, which every floating-point type holds exactly.
        let mut small =
            || -> Vec<f32> { (0..rows * groups).map(|_| (next() % 65) as f32 / 32.0 - 1.0).collect() };
        let (scales, biases) = (small(), small());
        let values = (q.iter().enumerate())
            .map(|(i, &q)| {
                let group = i / columns * groups + i % columns / group_size;
                f64::from(scales[group]) * f64::from(q) + f64::from(biases[group])
            })
            .collect();
        let floats = |values: &[f32]| {
            let shape = [rows, groups];
            match element {
                BF16 => tensor(&shape, &values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()),
                F16 => tensor(&shape, &values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>()),
                _ => tensor(&shape, values),
            }
        };
        let parts = [tensor(&[rows, columns * bits / 32], &words), floats(&scales), floats(&biases)];
        Self { parts, values, bits, group_size }
    }

    fn weight<'f>(&self, parts: &[Value<'f>]) -> QuantizedWeight<'f> {
        let &[words, scales, biases] = parts else { panic!("three parts") };
        QuantizedWeight { words, scales, biases, bits: self.bits, group_size: self.group_size }
    }
}

const FORMS: [(usize, usize, ElementType); 6] =
    [(4, 32, F16), (4, 64, BF16), (4, 128, F32), (8, 32, BF16), (8, 64, F32), (8, 128, F16)];

#[test]
fn a_packed_weight_multiplies_like_its_values() {
    let (rows, outputs, inputs) = (3, 5, 256);
    for (bits, group_size, element) in FORMS {
        let packed = Packed::new(outputs, inputs, bits, group_size, element);
        let mut next = random(7);
        let mut numbers =
            |count: usize| -> Vec<f32> { (0..count).map(|_| (next() % 65) as f32 / 32.0 - 1.0).collect() };
        let (x, bias) = (numbers(rows * inputs), numbers(outputs));
        let arguments: Vec<Tensor> = [tensor(&[rows, inputs], &x), tensor(&[outputs], &bias)]
            .into_iter()
            .chain(packed.parts.clone())
            .collect();
        let result =
            run(&arguments, |b, v| b.quantized_linear(v[0], packed.weight(&v[2..]), Some(v[1]), F32));
        for (i, &got) in result.as_slice::<f32>().unwrap().iter().enumerate() {
            let (row, output) = (i / outputs, i % outputs);
            let weights = &packed.values[output * inputs..][..inputs];
            let products = x[row * inputs..][..inputs].iter().zip(weights);
            let wanted = products.map(|(&x, &w)| f64::from(x) * w).sum::<f64>() + f64::from(bias[output]);
            let scale = f64::from(1 << bits) * inputs as f64;
            assert!(
                (f64::from(got) - wanted).abs() < 1e-7 * scale,
                "{bits}/{group_size}: {got}, not {wanted}"
            );
        }
    }
}

#[test]
fn rows_are_looked_up_unpacked_and_in_f32() {
    let ids = [4, 0, 99, -1];
    let nearest = [4, 0, 4, 0];
    for (bits, group_size, element) in FORMS {
        let packed = Packed::new(5, 256, bits, group_size, element);
        let arguments: Vec<Tensor> =
            std::iter::once(tensor(&[2, 2], &ids)).chain(packed.parts.clone()).collect();
        let result = run(&arguments, |b, v| b.quantized_embedding(packed.weight(&v[1..]), v[0]));
        assert_eq!(result.ty().shape, [2, 2, 256]);
        let wanted: Vec<f32> = nearest
            .iter()
            .flat_map(|row| packed.values[row * 256..][..256].iter().map(|&value| value as f32))
            .collect();
        assert_eq!(result.as_slice::<f32>().unwrap(), wanted);
    }
    let table: Vec<bf16> = (0..15).map(|i| bf16::from_f32(i as f32)).collect();
    let result = run(&[tensor(&[5, 3], &table), tensor(&[4], &ids)], |b, v| b.embedding(v[0], v[1]));
    assert_eq!(result.ty().to_string(), "tensor<4x3xf32>");
    let wanted: Vec<f32> =
        nearest.iter().flat_map(|row| [0, 1, 2].map(|column| (row * 3 + column) as f32)).collect();
    assert_eq!(result.as_slice::<f32>().unwrap(), wanted);
}

#[test]
fn those_who_replace_them_learn_how_weights_are_packed() {
    let packed = Packed::new(2, 64, 4, 32, BF16);
    let arguments: Vec<Tensor> =
        std::iter::once(tensor(&[1, 64], &[1.0f32; 64])).chain(packed.parts.clone()).collect();
    let module =
        module(&arguments, |b, v| b.quantized_linear(v[0], packed.weight(&v[1..]), None, BF16)).unwrap();
    let main = module.function("main").unwrap();
    let OpKind::Composite { name, attributes, .. } = &main.body.ops[0].kind else { panic!("{module}") };
    assert_eq!(name, composites::QUANTIZED_LINEAR);
    let wanted =
        [("bits", 4), ("group_size", 32)].map(|(name, value)| (name.to_owned(), Attribute::Int(value)));
    assert_eq!(attributes[..], wanted);
}

#[test]
fn misfits_are_refused_by_name() {
    let sizes: [(&str, ElementType, &[usize]); 8] = [
        ("x", F32, &[3, 64]),
        ("words", U32, &[5, 8]),
        ("groups", BF16, &[5, 2]),
        ("ids", I32, &[3]),
        ("other groups", BF16, &[5, 1]),
        ("no words", I32, &[5, 8]),
        ("bias", F32, &[5]),
        ("no rows", U32, &[0, 8]),
    ];
    type Misuse = for<'f> fn(&mut Builder<'f>, &[Value<'f>], QuantizedWeight<'f>) -> Result<Value<'f>>;
    let misuses: [(ErrorKind, &str, Misuse); 13] = [
        (ErrorKind::Shape, "x must be [.., K]", |b, v, w| b.quantized_linear(v[6], w, None, F32)),
        (ErrorKind::Element, "x, bias and the result", |b, v, w| b.quantized_linear(v[3], w, None, F32)),
        (ErrorKind::Element, "the result (i32)", |b, v, w| b.quantized_linear(v[0], w, None, I32)),
        (ErrorKind::Shape, "bias must be [N]", |b, v, w| b.quantized_linear(v[0], w, Some(v[0]), F32)),
        (ErrorKind::Attribute, "4 or 8 bits, not 3", |b, v, w| {
            b.quantized_linear(v[0], QuantizedWeight { bits: 3, ..w }, None, F32)
        }),
        (ErrorKind::Attribute, "group size 12 is no multiple of the 8 values", |b, v, w| {
            b.quantized_linear(v[0], QuantizedWeight { group_size: 12, ..w }, None, F32)
        }),
        (ErrorKind::Attribute, "group size 0 ", |b, v, w| {
            b.quantized_linear(v[0], QuantizedWeight { group_size: 0, ..w }, None, F32)
        }),
        (ErrorKind::Shape, "64 columns are no multiple of the group size 40", |b, v, w| {
            b.quantized_linear(v[0], QuantizedWeight { group_size: 40, ..w }, None, F32)
        }),
        (ErrorKind::Shape, "scales and biases must be [5, 2]", |b, v, w| {
            b.quantized_linear(v[0], QuantizedWeight { scales: v[4], ..w }, None, F32)
        }),
        (ErrorKind::Element, "words must be of ui32", |b, v, w| {
            b.quantized_embedding(QuantizedWeight { words: v[5], ..w }, v[3])
        }),
        (ErrorKind::Element, "ids must be integers", |b, v, w| b.quantized_embedding(w, v[0])),
        (ErrorKind::Element, "table must be of floats, ids of integers", |b, v, _| b.embedding(v[0], v[0])),
        (ErrorKind::Shape, "table must be [V, H]", |b, v, _| b.embedding(v[6], v[3])),
    ];
    for (kind, says, misuse) in misuses {
        let error = ModuleBuilder::new("misuse")
            .function("main", |b| {
                let mut v = Vec::new();
                for (name, element, shape) in sizes {
                    v.push(b.argument(name, mlxcel_stablehlo::TensorType::new(element, shape))?);
                }
                let weight =
                    QuantizedWeight { words: v[1], scales: v[2], biases: v[2], bits: 4, group_size: 32 };
                Ok(vec![misuse(b, &v, weight)?])
            })
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}
