//! Programs in the forms that XLA for processors is fast in.

use mlxcel_stablehlo::print::CustomCall;
use mlxcel_stablehlo::{ElementType, Function, Module, Op, OpKind, TensorType, ValueId};

/// What keeps XLA from computing an update again wherever a part of its result is read, and from copying the
/// whole cache for that.
const BARRIER: &str = "mlxcel.barrier";

/// `module` in those forms; [`barrier`] has to print it.
pub(super) fn rewrite(module: &mut Module) {
    for function in &mut module.functions {
        for op in std::mem::take(&mut function.body.ops) {
            let ops = match &op.kind {
                OpKind::DotGeneral { .. } => doubled(function, op),
                OpKind::DynamicUpdateSlice => kept_apart(function, op),
                _ => vec![op],
            };
            function.body.ops.extend(ops);
        }
    }
}

/// How the barriers that [`rewrite`] adds are written.
pub(super) fn barrier(call: &CustomCall<'_>) -> Option<String> {
    let text =
        || format!("\"stablehlo.optimization_barrier\"({}) : {}", call.operands.join(", "), call.signature);
    (call.target == BARRIER).then(text)
}

fn made(kind: OpKind, operands: Vec<ValueId>, result: ValueId) -> Op {
    Op { kind, operands, results: vec![result], regions: Vec::new() }
}

fn kept_apart(function: &mut Function, mut op: Op) -> Vec<Op> {
    let result = op.results[0];
    let updated = function.add_value(function.value_type(result).clone());
    op.results = vec![updated];
    let kind =
        OpKind::CustomCall { target: BARRIER.to_owned(), attributes: Vec::new(), has_side_effect: false };
    vec![op, made(kind, vec![updated], result)]
}

/// A product of one row with a bfloat16 matrix computes the row twice and keeps the first. XLA multiplies two
/// rows and more by the matrix as it is stored; for a single row it writes all of the matrix to memory in
/// float32, which takes 10 to 30 times as long.
fn doubled(function: &mut Function, op: Op) -> Vec<Op> {
    let OpKind::DotGeneral { dimensions } = &op.kind else { return vec![op] };
    let [lhs, rhs, product] =
        [op.operands[0], op.operands[1], op.results[0]].map(|value| function.value_type(value).clone());
    let paired = [&dimensions.lhs_batch[..], &dimensions.lhs_contracting].concat();
    let mut free = (0..lhs.rank()).filter(|at| !paired.contains(at));
    let halves = [&lhs, &rhs].iter().all(|ty| ty.element == ElementType::BF16);
    let row = free.next().filter(|&row| halves && lhs.shape[row] == 1 && free.all(|at| lhs.shape[at] == 1));
    let Some(row) = row else { return vec![op] };
    // Of the product, free dimensions of the left operand stand behind those of the batch.
    let row_of_product = dimensions.lhs_batch.len();
    let (start, limit, stride) = (vec![0; product.rank()], product.shape.clone(), vec![1; product.rank()]);
    let mut twice = |mut ty: TensorType, at: usize| {
        ty.shape[at] = 2;
        function.add_value(ty)
    };
    let [rows, products] = [twice(lhs, row), twice(product, row_of_product)];
    vec![
        made(OpKind::Concatenate { dimension: row }, vec![op.operands[0]; 2], rows),
        made(op.kind, vec![rows, op.operands[1]], products),
        made(OpKind::Slice { start, limit, stride }, vec![products], op.results[0]),
    ]
}

#[cfg(test)]
mod tests {
    use mlxcel_stablehlo::{DotDimensions, Printer};

    use super::*;

    /// The text of a product of these types, rewritten.
    fn product(element: ElementType, lhs: &[usize], rhs: &[usize], dimensions: DotDimensions) -> String {
        let built = Module::of_function("demo", "main", |b| {
            let [x, w] = [
                b.argument("x", TensorType::new(element, lhs))?,
                b.argument("w", TensorType::new(element, rhs))?,
            ];
            Ok(vec![b.dot_general(x, w, dimensions, ElementType::F32)?])
        });
        let mut module = built.unwrap();
        rewrite(&mut module);
        module.verify().unwrap();
        module.to_string()
    }

    #[test]
    fn a_single_row_is_padded_to_two_and_sliced() {
        let linear = || DotDimensions {
            lhs_contracting: vec![1],
            rhs_contracting: vec![1],
            ..DotDimensions::default()
        };
        let text = product(ElementType::BF16, &[1, 8], &[4, 8], linear());
        assert!(text.contains("(tensor<2x8xbf16>, tensor<4x8xbf16>) -> tensor<2x4xf32>"), "{text}");
        assert!(text.contains("(tensor<2x4xf32>) -> tensor<1x4xf32>"), "{text}");
        // Several heads, each with a row and a matrix of its own.
        let heads = DotDimensions {
            lhs_batch: vec![1],
            rhs_batch: vec![0],
            lhs_contracting: vec![2],
            rhs_contracting: vec![2],
        };
        let text = product(ElementType::BF16, &[1, 3, 8], &[3, 4, 8], heads);
        assert!(text.contains("(tensor<2x3x8xbf16>, tensor<3x4x8xbf16>) -> tensor<3x2x4xf32>"), "{text}");
        // What needs none of it.
        for (element, rows) in [(ElementType::F32, 1), (ElementType::BF16, 3)] {
            assert!(!product(element, &[rows, 8], &[4, 8], linear()).contains("concatenate"));
        }
    }

    #[test]
    fn updates_are_read_behind_a_barrier() {
        let ty = |size| TensorType::new(ElementType::F32, [size]);
        let built = Module::of_function("demo", "main", |b| {
            let [kept, new] = [b.argument("kept", ty(8))?, b.argument("new", ty(2))?];
            let at = b.scalar(3i32)?;
            Ok(vec![b.dynamic_update_slice(kept, new, &[at])?])
        });
        let mut module = built.unwrap();
        rewrite(&mut module);
        module.verify().unwrap();
        let text = Printer::new(&module).custom_calls(&barrier).to_string();
        let line = "%2 = \"stablehlo.optimization_barrier\"(%1) : (tensor<8xf32>) -> tensor<8xf32>";
        assert!(text.contains(line) && text.contains("return %2"), "{text}");
    }
}
