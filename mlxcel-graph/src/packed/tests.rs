//! Names, attributes and refusals of composites over packed weights.

use mlxcel_models::packing::Packing;
use mlxcel_models::{ElementType as Stored, Part};
use mlxcel_stablehlo::{Builder, ElementType, Module, ModuleBuilder, OpKind, Result, TensorType, Value};

use super::*;

#[test]
fn composite_attributes_describe_the_packing() {
    let packing = Packing { ordered: true, ..Packing::NVFP4 };
    let module = Module::of_function("packed", "main", |b| {
        let x = b.argument("x", TensorType::new(ElementType::F32, [1, 64]))?;
        let codes = b.argument("codes", TensorType::new(ElementType::U32, [3, 8]))?;
        let scales = b.argument("scales", TensorType::new(ElementType::U8, [3, 4]))?;
        let weight = PackedWeight { packing, parts: vec![codes, scales] };
        Ok(vec![packed_linear(b, x, &weight, None, ElementType::BF16)?])
    })
    .unwrap();
    let main = module.function("main").unwrap();
    let OpKind::Composite { name, attributes, .. } = &main.body.ops[0].kind else { panic!("{module}") };
    assert_eq!((&**name, packing_of(attributes)), (PACKED_LINEAR, Some(Packing::NVFP4)));
    assert_eq!(packing_of(&[]), None);
}

#[test]
fn mismatched_operands_are_rejected_by_name() {
    type Misuse = for<'f> fn(&mut Builder<'f>, &[Value<'f>], PackedWeight<'f>) -> Result<Value<'f>>;
    let f32 = ElementType::F32;
    let misuses: [(&str, Misuse); 7] = [
        ("x must be [.., K]", |b, v, w| packed_linear(b, v[4], &w, None, ElementType::F32)),
        ("x, bias and the result (i32)", |b, v, w| packed_linear(b, v[0], &w, None, ElementType::I32)),
        ("do not match [5, 64] packed as u4/32 bf16 + bf16", |b, v, mut w| {
            w.parts.swap(0, 1);
            w.parts[0] = v[1];
            w.parts[1] = v[0];
            packed_linear(b, v[0], &w, None, ElementType::F32)
        }),
        ("rows of 64 values cannot be packed as u4/48", |b, v, mut w| {
            w.packing.group_size = 48;
            packed_linear(b, v[0], &w, None, ElementType::F32)
        }),
        ("must have codes", |b, v, mut w| {
            w.parts.clear();
            packed_linear(b, v[0], &w, None, ElementType::F32)
        }),
        ("ids must be integers", |b, v, w| packed_embedding(b, &w, v[0])),
        ("codes must be [.., N", |b, v, w| packed_expert_linear(b, v[0], &w, v[3], None, ElementType::F32)),
    ];
    for (says, misuse) in misuses {
        let error = ModuleBuilder::new("misuse")
            .function("main", |b| {
                let mut v = Vec::new();
                for (name, element, shape) in [
                    ("x", f32, &[3, 64][..]),
                    ("codes", ElementType::U32, &[5, 8]),
                    ("groups", ElementType::BF16, &[5, 2]),
                    ("experts", ElementType::I32, &[3]),
                    ("short", f32, &[3, 32]),
                ] {
                    v.push(b.argument(name, TensorType::new(element, shape))?);
                }
                let packing = Packing::affine(4, 32, Stored::BF16);
                let weight = PackedWeight { packing, parts: vec![v[1], v[2], v[2]] };
                Ok(vec![misuse(b, &v, weight)?])
            })
            .unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(operand_parts(&Packing { ordered: true, ..Packing::MXFP4 }).last(), Some(Part::Scales));
}
