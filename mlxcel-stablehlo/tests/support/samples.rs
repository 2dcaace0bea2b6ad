//! Programs by hand: together they have every operation.

#![allow(clippy::unwrap_used, reason = "a test's own programs are well typed by construction")]

use half::{bf16, f16};
use mlxcel_stablehlo::{
    Attribute, BinaryOp, Builder, Comparison, DotDimensions, ElementType, GatherDimensions, Literal, Module,
    ModuleBuilder, Reduction, Result, ScatterDimensions, ScatterUpdate, TensorType, UnaryOp, Value,
};

use ElementType::{BF16, F16, F32, I1, I4, I32, I64, U4, U8, U32};

/// Every sample by its name.
pub fn all() -> Vec<(&'static str, Module)> {
    vec![
        ("constants", module("constants", constants)),
        ("elementwise", module("elementwise", elementwise)),
        ("shapes", module("shapes", shapes)),
        ("indexing", module("indexing", indexing)),
        ("joins", module("joins", joins)),
        ("regions", module("regions", regions)),
        ("functions", functions()),
        ("helpers", module("helpers", helpers)),
        ("names", names()),
    ]
}

fn module<F>(name: &str, body: F) -> Module
where
    F: for<'f> FnOnce(&mut Builder<'f>) -> Result<Vec<Value<'f>>>,
{
    Module::of_function(name, "main", body).unwrap()
}

fn ty(element: ElementType, shape: &[usize]) -> TensorType {
    TensorType::new(element, shape)
}

fn constants<'f>(b: &mut Builder<'f>) -> Result<Vec<Value<'f>>> {
    let floats = [0.0, -0.0, 0.1, 1e-40, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN];
    let many: Vec<i32> = (0..17).collect();
    let literals = [
        Literal::new([2, 4], &floats).unwrap(),
        Literal::new([3], &[f16::from_f32(0.1), f16::NEG_INFINITY, f16::MAX]).unwrap(),
        Literal::new([3], &[bf16::from_f32(0.1), bf16::NAN, bf16::MIN]).unwrap(),
        Literal::new([2], &[i64::MIN, i64::MAX]).unwrap(),
        Literal::new([2], &[u32::MAX, 1]).unwrap(),
        Literal::new([2], &[-128i8, 127]).unwrap(),
        Literal::new([2], &[255u8, 0]).unwrap(),
        Literal::new([2], &[true, false]).unwrap(),
        Literal::from_bytes(ty(I4, &[3]), [0xF1, 0x08]).unwrap(),
        Literal::from_bytes(ty(U4, &[3]), [0xF1, 0x08]).unwrap(),
        Literal::new([17], &many).unwrap(),
        Literal::new([2, 2], &[7u8; 4]).unwrap(),
        Literal::new::<f32>([0, 2], &[]).unwrap(),
        Literal::scalar(2.5f32),
    ];
    let mut values = literals.into_iter().map(|literal| b.constant(literal)).collect::<Result<Vec<_>>>()?;
    values.push(b.scalar(true)?);
    values.push(b.splat(BF16, -1.5, &[2, 3])?);
    values.push(b.iota(ty(I32, &[2, 3]), 1)?);
    Ok(values)
}

fn elementwise<'f>(b: &mut Builder<'f>) -> Result<Vec<Value<'f>>> {
    let x = b.argument("x", ty(F32, &[2, 3]))?;
    let i = b.argument("i", ty(I32, &[2, 3]))?;
    let mut values = Vec::new();
    for op in UnaryOp::ALL {
        let float = !matches!(op, UnaryOp::Not | UnaryOp::CountLeadingZeros | UnaryOp::Popcnt);
        values.push(b.unary(op, if float { x } else { i })?);
    }
    for op in BinaryOp::ALL {
        let bits =
            [BinaryOp::And, BinaryOp::Or, BinaryOp::Xor].contains(&op) || op.name().starts_with("shift");
        let operand = if bits { i } else { x };
        values.push(b.binary(op, operand, operand)?);
    }
    for comparison in Comparison::ALL {
        values.push(b.compare(x, x, comparison)?);
    }
    let unsigned = b.convert(i, U32)?;
    let truth = b.compare(unsigned, unsigned, Comparison::Less)?;
    let one = b.scalar(1.0f32)?;
    let truths = b.compare(truth, truth, Comparison::Equal)?;
    values.extend([b.select(truths, x, x)?, b.clamp(one, x, one)?, b.clamp(x, x, x)?]);
    let yes = b.scalar(true)?;
    values.push(b.select(yes, i, i)?);
    Ok(values)
}

fn shapes<'f>(b: &mut Builder<'f>) -> Result<Vec<Value<'f>>> {
    let x = b.argument("x", ty(F32, &[2, 3]))?;
    let zero = b.scalar(0.0f32)?;
    let bytes = b.bitcast_convert(x, U8)?;
    let row = b.reshape(x, &[6])?;
    Ok(vec![
        row,
        b.broadcast_in_dim(x, &[2, 4, 3], &[0, 2])?,
        b.broadcast_in_dim(x, &[3, 4, 2], &[2, 0])?,
        b.broadcast_like(zero, x)?,
        b.transpose(x, &[1, 0])?,
        b.convert(x, F16)?,
        b.convert(x, I1)?,
        bytes,
        b.bitcast_convert(bytes, F32)?,
        b.slice(x, &[0, 1], &[2, 3])?,
        b.slice_strided(x, &[0, 0], &[2, 3], &[1, 2])?,
        b.concatenate(&[x, x], 1)?,
        b.pad(x, zero, &[1, -1], &[0, 2], &[0, 1])?,
    ])
}

fn indexing<'f>(b: &mut Builder<'f>) -> Result<Vec<Value<'f>>> {
    let x = b.argument("x", ty(F32, &[8, 4]))?;
    let tokens = b.argument("tokens", ty(I32, &[5]))?;
    let position = b.argument("position", ty(I32, &[]))?;
    b.alias(x, 0)?;
    let zero = b.scalar(0i32)?;
    let part = b.dynamic_slice(x, &[position, zero], &[2, 4])?;
    let updated = b.dynamic_update_slice(x, part, &[zero, zero])?;
    let rows = b.take(x, tokens)?;
    let pairs = b.argument("pairs", ty(I64, &[3, 2]))?;
    let windows = GatherDimensions {
        offset_dims: vec![1],
        collapsed_slice_dims: vec![1],
        start_index_map: vec![0, 1],
        index_vector_dim: 1,
        slice_sizes: vec![2, 1],
    };
    let gathered = b.gather(x, pairs, windows)?;
    let vectors = b.reshape(tokens, &[5, 1])?;
    let dimensions = ScatterDimensions {
        update_window_dims: vec![1],
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
    };
    let replaced = b.scatter(x, vectors, rows, dimensions.clone(), ScatterUpdate::Replace, true)?;
    let added = b.scatter(x, vectors, rows, dimensions, ScatterUpdate::Add, false)?;
    Ok(vec![updated, part, rows, gathered, replaced, added])
}

fn joins<'f>(b: &mut Builder<'f>) -> Result<Vec<Value<'f>>> {
    let x = b.argument("x", ty(F32, &[2, 3, 4]))?;
    let y = b.argument("y", ty(F32, &[2, 5, 4]))?;
    let half = b.argument("half", ty(BF16, &[6, 4]))?;
    let i = b.argument("i", ty(U8, &[3]))?;
    let truth = b.argument("truth", ty(I1, &[3]))?;
    let batched = DotDimensions {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contracting: vec![2],
        rhs_contracting: vec![2],
    };
    let plain =
        DotDimensions { lhs_contracting: vec![1], rhs_contracting: vec![1], ..DotDimensions::default() };
    let counts = b.iota(ty(I64, &[2, 3, 4]), 2)?;
    let (largest, places) = b.reduce_argmax(x, counts, 2)?;
    let (most, place) = b.argmax(i, 0)?;
    let mut values = vec![
        b.sum(x, &[0, 2])?,
        b.max(half, &[1])?,
        b.reduce(x, Reduction::Min, &[])?,
        b.reduce(i, Reduction::Product, &[0])?,
        b.reduce(i, Reduction::Max, &[0])?,
        b.reduce(truth, Reduction::And, &[0])?,
        b.reduce(truth, Reduction::Or, &[0])?,
        largest,
        places,
        most,
        place,
        b.dot_general(x, y, batched, F32)?,
    ];
    values.push(b.dot_general(half, half, plain, F32)?);
    values.push(b.dot_general(i, i, DotDimensions::default(), U32)?);
    Ok(values)
}

fn regions<'f>(b: &mut Builder<'f>) -> Result<Vec<Value<'f>>> {
    let x = b.argument("x", ty(F32, &[2, 3]))?;
    let count = b.argument("count", ty(I32, &[]))?;
    let zero = b.scalar(0i32)?;
    b.while_loop(
        &[zero, x],
        |b, args| b.compare(args[0], count, Comparison::Less),
        |b, args| {
            let one = b.scalar(1i32)?;
            Ok(vec![b.add(args[0], one)?, b.multiply(args[1], x)?])
        },
    )
}

fn functions() -> Module {
    let mut module = ModuleBuilder::new("functions");
    module
        .private_function("shared", |b| {
            let x = b.argument("x", ty(F32, &[4]))?;
            Ok(vec![b.negate(x)?, x])
        })
        .unwrap();
    let body = |name: &str| {
        let name = name.to_owned();
        move |b: &mut Builder<'_>| -> Result<()> {
            let x = b.argument(name, ty(F32, &[4]))?;
            let called = b.call("shared", &[x])?;
            let attributes = [
                ("times".to_owned(), Attribute::Int(2)),
                ("scale".to_owned(), Attribute::Float(0.5)),
                ("mode".to_owned(), Attribute::Text("a \"b\"\n".to_owned())),
                ("exact".to_owned(), Attribute::Bool(true)),
            ];
            let twice = b.composite("sample.twice", &[called[0]], &attributes, |b, args| {
                Ok(vec![b.add(args[0], args[0])?])
            })?;
            b.custom_call("sample.kernel", &twice, vec![ty(F32, &[2]), ty(I32, &[])], &attributes, true)?;
            b.custom_call("sample.nothing", &[], vec![], &[], true).map(drop)
        }
    };
    module.function("first", |b| body("x")(b).map(|()| Vec::new())).unwrap();
    module.function("second", |b| body("y")(b).map(|()| Vec::new())).unwrap();
    module.finish()
}

fn helpers<'f>(b: &mut Builder<'f>) -> Result<Vec<Value<'f>>> {
    let table = b.argument("model.embed_tokens.weight", ty(BF16, &[16, 8]))?;
    let tokens = b.argument("tokens", ty(I32, &[3]))?;
    let q_weight = b.argument("q.weight", ty(BF16, &[16, 8]))?;
    let bias = b.argument("q.bias", ty(BF16, &[16]))?;
    let x = b.take(table, tokens)?;
    let q = b.linear(x, q_weight, Some(bias), BF16)?;
    let wide = b.convert(q, F32)?;
    let head = b.argument("head", ty(BF16, &[16, 16]))?;
    let logits = b.linear(wide, head, None, F32)?;
    let again = b.linear(wide, head, None, F32)?;
    let (best, token) = b.argmax(logits, 1)?;
    let logprobs = b.log_softmax(again, 1)?;
    let probabilities = b.softmax(q, 1)?;
    Ok(vec![best, token, logprobs, probabilities])
}

fn names() -> Module {
    let mut module = ModuleBuilder::new("odd name");
    module
        .function("a function", |b| {
            let x = b.argument("model.layers.0/w", ty(F32, &[2]))?;
            let y = b.argument("model_layers_0_w", ty(F32, &[2]))?;
            let z = b.argument("7", ty(F32, &[2]))?;
            let unnamed = b.argument("", ty(F32, &[2]))?;
            b.alias(y, 1)?;
            b.alias(x, 0)?;
            let sum = b.add(x, y)?;
            let attributes = [("an \"attribute\" \u{e9}".to_owned(), Attribute::Float(f32::INFINITY))];
            let made = b.composite("odd.na$me.7", &[sum, z, unnamed], &attributes, |b, args| {
                Ok(vec![b.add(args[1], args[2])?, args[0]])
            })?;
            Ok(made)
        })
        .unwrap();
    module.function("nothing", |_| Ok(Vec::new())).unwrap();
    module.finish()
}
