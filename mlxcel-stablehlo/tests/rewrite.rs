//! Replacing and decomposing composites, and the verification of modules that were changed by hand.

use mlxcel_stablehlo::{
    Attribute, Block, Builder, Comparison, ElementType, ErrorKind, Function, Module, OpKind, Result,
    TensorType, Value,
};

use ElementType::{F32, I32};

/// A loop whose body has a composite that has another composite in its decomposition.
fn nested() -> Module {
    Module::of_function("nested", "main", |b| {
        let x = b.argument("x", TensorType::new(F32, [4]))?;
        let count = b.argument("count", TensorType::scalar(I32))?;
        b.alias(x, 1)?;
        b.while_loop(
            &[count, x],
            |b, args| {
                let zero = b.scalar(0i32)?;
                b.compare(args[0], zero, Comparison::Greater)
            },
            |b, args| {
                let one = b.scalar(1i32)?;
                let outer = b.composite("my.outer", &[args[1]], &[], |b, args| {
                    let attributes = [("times".to_owned(), Attribute::Int(2))];
                    b.composite("my.inner", args, &attributes, |b, args| Ok(vec![b.add(args[0], args[0])?]))
                })?;
                Ok(vec![b.subtract(args[0], one)?, outer[0]])
            },
        )
    })
    .unwrap()
}

fn operations(module: &Module) -> Vec<&str> {
    let mut names = Vec::new();
    for function in &module.functions {
        function.body.walk(&mut |op| names.push(op.kind.name()));
    }
    names
}

fn functions(module: &Module) -> Vec<&str> {
    module.functions.iter().map(|function| function.name.as_str()).collect()
}

#[test]
fn an_identity_rewrite_returns_the_same_module() {
    let module = nested();
    assert_eq!(module.rewrite_composites(|_, _| Ok(None)).unwrap(), module);
    for (name, module) in crate::support::samples::all() {
        let again = module.rewrite_composites(|_, _| Ok(None)).unwrap();
        assert_eq!(again.to_string(), module.to_string(), "{name}");
    }
}

#[test]
fn composites_are_replaced_inside_of_regions_and_decompositions() {
    let module = nested()
        .rewrite_composites(|composite, b| {
            if composite.name != "my.inner" {
                return Ok(None);
            }
            assert_eq!(composite.attribute("times"), Some(&Attribute::Int(2)));
            assert_eq!(composite.attribute("missing"), None);
            let doubled =
                b.composite("my.other", composite.operands, &[], |b, args| Ok(vec![b.abs(args[0])?]))?;
            Ok(Some(vec![b.negate(doubled[0])?]))
        })
        .unwrap();
    module.verify().unwrap();
    assert_eq!(functions(&module), ["my.other.0", "my.outer.0", "main"]);
    assert!(!operations(&module).contains(&"add"));
    assert!(module.to_string().contains("stablehlo.negate"));
}

#[test]
fn replacing_a_composite_removes_its_decomposition() {
    let module = nested()
        .rewrite_composites(|composite, b| match composite.name {
            "my.outer" => b.negate(composite.operands[0]).map(|value| Some(vec![value])),
            other => panic!("{other} is out of reach by now"),
        })
        .unwrap();
    assert_eq!(functions(&module), ["main"]);
    module.verify().unwrap();
}

#[test]
fn a_replacement_of_another_type_is_refused() {
    let error = nested()
        .rewrite_composites(|_, b| b.splat(F32, 0.0, &[3]).map(|value| Some(vec![value])))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert_eq!(
        error.to_string(),
        "composite: `my.outer` is replaced by [tensor<3xf32>], but its results are [tensor<4xf32>], in `main`"
    );
}

#[test]
fn new_decompositions_do_not_take_names_that_are_in_use() {
    let module = nested()
        .rewrite_composites(|composite, b| {
            if composite.name != "my.inner" {
                return Ok(None);
            }
            b.composite("my.outer", composite.operands, &[], |b, args| Ok(vec![b.abs(args[0])?])).map(Some)
        })
        .unwrap();
    module.verify().unwrap();
    assert_eq!(functions(&module), ["my.outer.1", "my.outer.0", "main"]);
}

#[test]
fn composites_decompose_by_name_or_all() {
    let inner = nested().decompose_composites(|name| name == "my.inner").unwrap();
    assert_eq!(functions(&inner), ["my.outer.0", "main"]);
    let outer = nested().decompose_composites(|name| name == "my.outer").unwrap();
    assert_eq!(functions(&outer), ["my.inner.0", "main"]);
    let all = nested().decompose_composites(|_| true).unwrap();
    assert_eq!(functions(&all), ["main"]);
    assert_eq!(
        operations(&all),
        ["while", "constant", "compare", "constant", "add", "subtract"],
        "the body of the loop adds"
    );
    assert_eq!(all.functions[0].arguments, nested().function("main").unwrap().arguments);
    for module in [inner, outer, all] {
        module.verify().unwrap();
    }
}

fn linear<'f>(b: &mut Builder<'f>, x: Value<'f>, w: Value<'f>, out: ElementType) -> Result<Value<'f>> {
    b.composite("my.linear", &[x, w], &[], |b, args| Ok(vec![b.linear(args[0], args[1], None, out)?]))
        .map(|results| results[0])
}

#[test]
fn equal_decompositions_are_shared() {
    let module = Module::of_function("shared", "main", |b| {
        let x = b.argument("x", TensorType::new(F32, [2, 8]))?;
        let w = b.argument("w", TensorType::new(F32, [8, 8]))?;
        let y = linear(b, x, w, F32)?;
        let z = linear(b, y, w, F32)?;
        let half = linear(b, z, w, ElementType::BF16)?;
        Ok(vec![z, half])
    })
    .unwrap();
    assert_eq!(functions(&module), ["my.linear.0", "my.linear.1", "main"]);
    let mut used = Vec::new();
    module.functions[2].body.walk(&mut |op| used.extend(op.callee()));
    assert_eq!(used, ["my.linear.0", "my.linear.0", "my.linear.1"]);
    assert_eq!(
        module.functions[2].body.ops[0].kind,
        OpKind::Composite {
            name: "my.linear".to_owned(),
            decomposition: "my.linear.0".to_owned(),
            attributes: Vec::new(),
        }
    );
}

fn main_body(module: &mut Module) -> &mut Block {
    &mut main_function(module).body
}

fn main_function(module: &mut Module) -> &mut Function {
    module.functions.iter_mut().find(|function| function.public).unwrap()
}

fn loop_body(module: &mut Module) -> &mut Block {
    &mut main_body(module).ops[0].regions[1]
}

/// The name and the decomposition of the composite in the outer decomposition.
fn inner_composite(module: &mut Module) -> [&mut String; 2] {
    match &mut module.functions[1].body.ops[0].kind {
        OpKind::Composite { name, decomposition, .. } => [name, decomposition],
        other => panic!("the outer decomposition is {}", other.name()),
    }
}

type Change = fn(&mut Module);

/// Changes to [`nested`], and what the verifier says of each.
const TAMPERED: &[(Change, &str)] = &[
    (|module| module.functions.swap_remove(0).name.clear(), "there is no function"),
    (|module| module.functions[1].name = "my.inner.0".to_owned(), "is empty or taken"),
    (|module| loop_body(module).ops.swap(0, 2), "is used where it is not defined"),
    (|module| loop_body(module).results.clear(), "the body must return"),
    (|module| drop(main_body(module).ops[0].regions.pop()), "2 regions are needed, not 1"),
    (|module| main_body(module).ops[0].operands.clear(), "entered with"),
    (|module| loop_body(module).arguments.clear(), "entered with"),
    (
        |module| {
            let leaked = loop_body(module).results[0];
            main_body(module).results[0] = leaked;
        },
        "is used where it is not defined",
    ),
    (
        |module| {
            let op = loop_body(module).ops[0].clone();
            loop_body(module).ops.push(op);
        },
        "is defined twice",
    ),
    (|module| main_function(module).values.clear(), "has no type"),
    (|module| *inner_composite(module)[1] = "my.outer.0".to_owned(), "`my.outer.0` calls itself"),
    (
        |module| main_function(module).arguments[0].aliases_result = Some(0),
        "argument `x` is tensor<4xf32>, but result 0",
    ),
    (|module| inner_composite(module)[0].clear(), "must be words separated by dots"),
];

#[test]
fn hand_edited_modules_are_verified() {
    for (change, says) in TAMPERED {
        let mut module = nested();
        change(&mut module);
        // Neither printing nor rewriting a broken module panics.
        let _ = module.to_string();
        assert!(module.rewrite_composites(|_, _| Ok(None)).is_err(), "{says}");
        let error = module.verify().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
