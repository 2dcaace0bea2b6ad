//! Programs that are put together wrongly are refused, and leave the builder as it was; and what types can
//! hold.

use crate::refusal;
use mlxcel_stablehlo::{
    Attribute, BinaryOp, Comparison, ElementType, ErrorKind, Literal, Module, ModuleBuilder, Result,
    TensorType, UnaryOp, infer,
};

use ElementType::{BF16, F16, F32, I1, I4, I8, I32, I64, U8, U32};

/// Each line: the kind and the words of the error, and the misuse.
macro_rules! says {
    ($($kind:ident, $text:literal, |$b:ident| $misuse:expr;)*) => {$(
        let error = refusal!(|$b, _| $misuse);
        assert_eq!(error.kind(), ErrorKind::$kind, "{error}");
        assert_eq!(error.to_string(), concat!($text, ", in `main`"));
    )*};
}

/// Misuse whose error has no operands to show.
#[test]
fn builder_misuse_is_an_error() {
    let twice = [("a".to_owned(), Attribute::Int(1)), ("a".to_owned(), Attribute::Int(2))];
    says! {
        Attribute, "iota: dimension 1 of result tensor<2xf32>, which has rank 1",
            |b| b.iota(TensorType::new(F32, [2]), 1);
        Element, "iota: result tensor<2xi1> must be of numbers", |b| b.iota(TensorType::new(I1, [2]), 0);
        Attribute, "constant: 128 is not a value of i8", |b| b.splat(I8, 128.0, &[2]);
        Attribute, "constant: 0.5 is not a value of i32", |b| b.splat(I32, 0.5, &[]);
        Overflow, "argument: a tensor<18446744073709551615x18446744073709551615x0xf32> is larger than memory can address",
            |b| b.argument("huge", TensorType::new(F32, [usize::MAX, usize::MAX, 0]));
        Name, "argument: there is already an argument `x`", |b| b.argument("x", TensorType::scalar(F32));
        Attribute, "concatenate: at least one operand is needed", |b| b.concatenate(&[], 0);
        Name, "call: there is no function `nowhere`, at least not yet", |b| b.call("nowhere", &[]);
        Name, "custom_call: the target has no name", |b| b.custom_call("", &[], vec![], &[], false);
        Name, "custom_call: the attribute name `a` is empty or given twice",
            |b| b.custom_call("t", &[], vec![], &twice, false);
    }
    for name in ["linear", "", "a.", ".a", "1a.b", "a$.b", "a.b c"] {
        let error = refusal!(|b, _| b.composite(name, &[], &[], |_, _| Ok(Vec::new())));
        assert_eq!(error.kind(), ErrorKind::Name, "{error}");
    }
}

#[test]
fn errors_inside_composites_say_where() {
    let error = refusal!(|b, v| b.composite("my.op", &[v.x], &[], |b, args| Ok(vec![b.not(args[0])?])));
    assert_eq!(
        error.to_string(),
        "not: operand must be of integers or truth values (operand: tensor<2x3xf32>), in `my.op`, in `main`"
    );
    let error = refusal!(|b, v| {
        b.composite("my.op", &[v.x], &[], |b, _| Ok(vec![b.argument("more", TensorType::scalar(F32))?]))
    });
    assert_eq!(error.kind(), ErrorKind::Structure);
}

#[test]
fn values_cannot_be_used_outside_of_their_region() {
    let error = refusal!(|b, v| {
        let mut leaked = None;
        b.while_loop(
            &[v.index],
            |b, args| b.compare(args[0], v.index, Comparison::Less),
            |b, args| {
                leaked = Some(b.add(args[0], args[0])?);
                Ok(args.to_vec())
            },
        )?;
        b.negate(leaked.unwrap())
    });
    assert_eq!(error.kind(), ErrorKind::Scope);
    assert_eq!(
        error.to_string(),
        "negate: a value of type tensor<i32> is used outside of the region that made it, in `main`"
    );
}

#[test]
fn a_failed_region_leaves_the_builder_usable() {
    let module = Module::of_function("recovered", "main", |b| {
        let x = b.argument("x", TensorType::scalar(I32))?;
        let mut leaked = None;
        let outcome = b.while_loop(
            &[x],
            |b, args| {
                leaked = Some(b.negate(args[0])?);
                b.not(leaked.unwrap())
            },
            |_, args| Ok(args.to_vec()),
        );
        assert!(outcome.is_err());
        assert!(b.negate(leaked.unwrap()).is_err());
        Ok(vec![b.abs(x)?])
    })
    .unwrap();
    module.verify().unwrap();
    assert_eq!(module.functions[0].body.ops.len(), 1);
}

#[test]
fn arguments_belong_to_functions() {
    let error = refusal!(|b, v| {
        b.while_loop(
            &[v.index],
            |b, _| b.argument("late", TensorType::scalar(I1)),
            |_, args| Ok(args.to_vec()),
        )
    });
    assert_eq!(error.to_string(), "argument: `late` is added inside of a region, in `main`");
}

#[test]
fn impossible_aliases_are_refused() {
    let aliased = |result: usize, twice: bool| {
        let outcome = ModuleBuilder::new("alias").function("main", |b| {
            let x = b.argument("x", TensorType::new(F32, [2]))?;
            let y = b.argument("y", TensorType::new(F32, [3]))?;
            let z = b.argument("z", TensorType::new(F32, [2]))?;
            b.alias(x, result)?;
            if twice {
                b.alias(z, result)?;
            }
            Ok(vec![x, y])
        });
        outcome.map_err(|error| error.to_string())
    };
    assert_eq!(aliased(0, false), Ok(()));
    let says = |outcome: Result<(), String>, text: &str| {
        assert_eq!(outcome, Err(format!("alias: {text}, in `main`")))
    };
    says(aliased(2, false), "argument `x` shares storage with result 2, but there are 2");
    says(
        aliased(1, false),
        "argument `x` is tensor<2xf32>, but result 1, which shares its storage, is tensor<3xf32>",
    );
    says(aliased(0, true), "result 0 shares storage with two arguments, one of them `z`");
    let error = refusal!(|b, v| {
        let sum = b.add(v.x, v.x)?;
        b.alias(sum, 0)
    });
    assert_eq!(error.to_string(), "alias: only an argument can share storage with a result, in `main`");
    let error = refusal!(|b, v| {
        b.alias(v.x, 0)?;
        b.alias(v.x, 1)
    });
    assert_eq!(error.to_string(), "alias: the argument `x` shares storage with result 0 already, in `main`");
}

#[test]
fn a_failed_function_leaves_the_module_as_it_was() {
    let mut module = ModuleBuilder::new("undone");
    let broken = module.function("main", |b| {
        let x = b.argument("x", TensorType::new(F32, [2]))?;
        b.composite("my.op", &[x], &[], |b, args| Ok(vec![b.negate(args[0])?]))?;
        b.not(x).map(|_| Vec::new())
    });
    assert!(broken.is_err());
    module
        .function("main", |b| {
            let x = b.argument("x", TensorType::new(F32, [2]))?;
            b.composite("my.op", &[x], &[], |b, args| Ok(vec![b.abs(args[0])?]))
        })
        .unwrap();
    assert!(module.function("main", |_| Ok(Vec::new())).is_err());
    assert!(module.function("my.op.0", |_| Ok(Vec::new())).is_err());
    assert!(module.function("", |_| Ok(Vec::new())).is_err());
    let module = module.finish();
    let names: Vec<&str> = module.functions.iter().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["my.op.0", "main"]);
    module.verify().unwrap();
}

/// Every operation of one and two operands against every element type, by its documented rule.
#[test]
fn elementwise_operations_check_their_operand_types() {
    let [floats, signed, unsigned] =
        [&[F32, F16, BF16][..], &[I64, I32, I8, I4], &[U32, U8, ElementType::U4]];
    let numbers = [floats, signed, unsigned].concat();
    let integers = [signed, unsigned].concat();
    let with_truth = [&integers[..], &[I1]].concat();
    let check = |taken: &[ElementType], infer: &dyn Fn(&TensorType) -> Result<TensorType>, name: &str| {
        for element in ElementType::ALL {
            let ty = TensorType::new(element, [2]);
            let wanted = taken.contains(&element).then(|| ty.clone());
            assert_eq!(infer(&ty).ok(), wanted, "{name} of {element}");
        }
    };
    for op in UnaryOp::ALL {
        let taken = match op {
            UnaryOp::Abs | UnaryOp::Sign => &[floats, signed].concat(),
            UnaryOp::Negate => &numbers,
            UnaryOp::Not => &with_truth,
            UnaryOp::CountLeadingZeros | UnaryOp::Popcnt => &integers,
            _ => floats,
        };
        check(taken, &|ty| infer::unary(op, ty), op.name());
    }
    for op in BinaryOp::ALL {
        let taken = match op {
            BinaryOp::Atan2 => floats,
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => &with_truth,
            BinaryOp::ShiftLeft | BinaryOp::ShiftRightArithmetic | BinaryOp::ShiftRightLogical => &integers,
            _ => &numbers,
        };
        check(taken, &|ty| infer::binary(op, ty, ty), op.name());
    }
}

#[test]
fn literals_are_checked_against_their_type() {
    assert!(Literal::new([2], &[1.0f32]).is_none());
    assert!(Literal::new([usize::MAX, usize::MAX], &[1.0f32]).is_none());
    assert!(Literal::new::<f32>([usize::MAX, usize::MAX, 0], &[]).is_some());
    assert!(Literal::from_bytes(TensorType::new(I1, [2]), [0u8, 2]).is_none());
    assert!(Literal::from_bytes(TensorType::new(I4, [3]), [0u8, 2]).is_some());
    for (element, least, most) in
        [(I4, -8.0, 7.0), (ElementType::U4, 0.0, 15.0), (U8, 0.0, 255.0), (I1, 0.0, 1.0)]
    {
        assert!(Literal::scalar_from_f64(element, least).is_some());
        assert!(Literal::scalar_from_f64(element, most).is_some());
        assert!(Literal::scalar_from_f64(element, least - 1.0).is_none());
        assert!(Literal::scalar_from_f64(element, most + 1.0).is_none());
        assert!(Literal::scalar_from_f64(element, f64::NAN).is_none());
    }
}
