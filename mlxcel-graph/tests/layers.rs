//! Layers reject operands that do not fit, with an error that names the layer.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test fails by it")]

use mlxcel_graph::layers;
use mlxcel_stablehlo::{Builder, ElementType, ErrorKind, ModuleBuilder, Result, TensorType, Value};

use ElementType::{BF16, F32, I1, I32, U32};

#[test]
fn mismatched_operands_are_rejected_by_name() {
    let arguments: [(&str, ElementType, &[usize]); 15] = [
        ("x", F32, &[3, 2, 64]),
        ("weight", F32, &[4, 5, 64]),
        ("experts", I32, &[3]),
        ("words", U32, &[4, 5, 8]),
        ("groups", BF16, &[4, 5, 2]),
        ("scores", F32, &[3, 4]),
        ("ids", I32, &[3, 2]),
        ("bias", F32, &[4, 5]),
        ("words of one", U32, &[5, 8]),
        ("row", F32, &[2, 3]),
        ("mask", I1, &[2, 3]),
        ("norm", F32, &[3]),
        ("head", F32, &[2, 1, 3]),
        ("queries", F32, &[3, 2, 1]),
        ("keys", F32, &[2, 3, 1]),
    ];
    type Misuse = for<'f> fn(&mut Builder<'f>, &[Value<'f>]) -> Result<Value<'f>>;
    let misuses: [(&str, ErrorKind, Misuse); 20] = [
        ("expert_linear", ErrorKind::Element, |b, v| layers::expert_linear(b, v[0], v[3], v[2], None, F32)),
        ("expert_linear", ErrorKind::Shape, |b, v| layers::expert_linear(b, v[0], v[5], v[2], None, F32)),
        ("expert_linear", ErrorKind::Element, |b, v| layers::expert_linear(b, v[0], v[1], v[2], None, I32)),
        ("expert_linear", ErrorKind::Element, |b, v| layers::expert_linear(b, v[0], v[1], v[0], None, F32)),
        ("expert_linear", ErrorKind::Shape, |b, v| layers::expert_linear(b, v[0], v[1], v[6], None, F32)),
        ("expert_linear", ErrorKind::Shape, |b, v| layers::expert_linear(b, v[1], v[1], v[2], None, F32)),
        ("expert_linear", ErrorKind::Shape, |b, v| {
            layers::expert_linear(b, v[0], v[1], v[2], Some(v[5]), F32)
        }),
        ("top_k", ErrorKind::Attribute, |b, v| Ok(layers::top_k(b, v[5], 5)?.0)),
        ("top_k", ErrorKind::Element, |b, v| Ok(layers::top_k(b, v[6], 1)?.0)),
        ("group_by_expert", ErrorKind::Element, |b, v| Ok(layers::group_by_expert(b, v[5], 4, 2)?.pairs)),
        ("group_by_expert", ErrorKind::Attribute, |b, v| Ok(layers::group_by_expert(b, v[6], 0, 2)?.pairs)),
        ("rms_norm", ErrorKind::Shape, |b, v| layers::rms_norm(b, v[9], v[9], 1e-5)),
        ("rms_norm", ErrorKind::Attribute, |b, v| layers::rms_norm(b, v[9], v[11], f32::NAN)),
        ("rope", ErrorKind::Shape, |b, v| layers::rope(b, v[9], v[9], v[9])),
        ("rope", ErrorKind::Shape, |b, v| layers::rope(b, v[12], v[9], v[9])),
        ("attention", ErrorKind::Element, |b, v| layers::attention(b, v[9], v[9], v[9], v[9], 1.0, F32)),
        ("attention", ErrorKind::Shape, |b, v| layers::attention(b, v[9], v[9], v[9], v[10], 1.0, F32)),
        ("attention", ErrorKind::Shape, |b, v| layers::attention(b, v[13], v[14], v[14], v[10], 1.0, F32)),
        ("embedding", ErrorKind::Element, |b, v| layers::embedding(b, v[9], v[9])),
        ("embedding", ErrorKind::Shape, |b, v| layers::embedding(b, v[11], v[2])),
    ];
    for (index, (op, kind, misuse)) in misuses.into_iter().enumerate() {
        let error = ModuleBuilder::new("misuse")
            .function("main", |b| {
                let mut v = Vec::new();
                for (name, element, shape) in arguments {
                    v.push(b.argument(name, TensorType::new(element, shape))?);
                }
                Ok(vec![misuse(b, &v)?])
            })
            .unwrap_err();
        assert_eq!((error.op(), error.kind()), (op, kind), "misuse {index}: {error}");
    }
}
