//! Latent attention.

use mlxcel_graph::cached::{LatentAttention, LatentAttentionOperands, latent_attention};

use super::*;

/// One call of the composite.
#[derive(Clone, Debug)]
struct LatentCase {
    rows: Vec<usize>,
    positions: Vec<usize>,
    heads: usize,
    rank: usize,
    pairs: usize,
    length: usize,
    cache: ElementType,
}

impl LatentCase {
    fn width(&self) -> usize {
        self.rank + 2 * self.pairs
    }

    /// The operands; caches hold numbers before each row's position and `beyond` behind.
    fn operands(&self, beyond: f32) -> Vec<Tensor> {
        let mut random = Random(7);
        let tokens: usize = self.rows.iter().sum();
        let floats = |shape: &[usize], random: &mut Random| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| random.next()).collect();
            tensor(shape, F32, &values)
        };
        let mut tensors = vec![
            floats(&[tokens, self.heads, self.width()], &mut random),
            floats(&[tokens, self.width()], &mut random),
            floats(&[tokens, self.pairs], &mut random),
            floats(&[tokens, self.pairs], &mut random),
        ];
        let positions: Vec<i32> = self.positions.iter().map(|&position| position as i32).collect();
        tensors.push(Tensor::from_slice(vec![positions.len()], &positions).unwrap());
        for &position in &self.positions {
            let mut values = vec![beyond; LAYERS * self.length * self.width()];
            for row in values.chunks_mut(self.length * self.width()) {
                row[..position * self.width()].fill_with(|| random.next());
            }
            tensors.push(tensor(&[LAYERS, self.length, self.width()], self.cache, &values));
        }
        tensors
    }

    fn module(cases: &[Self]) -> Module {
        let mut module = ModuleBuilder::new("attention");
        module
            .function("main", |b| {
                let mut results = Vec::new();
                for (number, case) in cases.iter().enumerate() {
                    let operands = case.operands(0.0);
                    let mut values = Vec::new();
                    for (i, operand) in operands.iter().enumerate() {
                        values.push(b.argument(format!("x{i}.{number}"), operand.ty().clone())?);
                    }
                    let [query, entry, cos, sin, positions, ref caches @ ..] = values[..] else {
                        unreachable!()
                    };
                    for (row, &cache) in caches.iter().enumerate() {
                        b.alias(cache, results.len() + 1 + row)?;
                    }
                    let operands = LatentAttentionOperands { query, entry, cos, sin, positions, caches };
                    let what = LatentAttention { rows: &case.rows, layer: LAYER, scale: 0.2, out: F32 };
                    let (mixed, caches) = latent_attention(b, &operands, &what)?;
                    results.push(mixed);
                    results.extend(caches);
                }
                Ok(results)
            })
            .unwrap();
        module.finish()
    }
}

#[test]
fn latent_attention_has_kernels() {
    let case = |rows: &[usize], positions: &[usize], cache| LatentCase {
        rows: rows.to_vec(),
        positions: positions.to_vec(),
        heads: 6,
        rank: 24,
        pairs: 4,
        length: 160,
        cache,
    };
    let cases = [
        case(&[1], &[70], F32),
        case(&[20, 1, 1], &[40, 0, 100], BF16),
        LatentCase { heads: 16, rank: 512, pairs: 32, ..case(&[5, 1], &[31, 7], BF16) },
        LatentCase { heads: 16, rank: 512, pairs: 32, length: 8192, ..case(&[1], &[600], F16) },
    ];
    let module = LatentCase::module(&cases);
    let operands = |beyond: f32| cases.iter().flat_map(|case| case.operands(beyond)).collect::<Vec<_>>();
    let wanted = evaluated(&module, &operands(0.0));
    // What is behind the last token is not looked at.
    let got = on_device(&module, &crate::testing::host(), &operands(f32::NAN));
    let (mut got, mut wanted) = (&got[..], &wanted[..]);
    for case in &cases {
        for (i, (got, wanted)) in got.iter().zip(wanted).take(1 + case.rows.len()).enumerate() {
            // Of a cache, the positions up to the row's last in its layer.
            let size = case.length * case.width();
            let range = match i {
                0 => 0..wanted.ty().elements(),
                row => {
                    LAYER * size..LAYER * size + (case.positions[row - 1] + case.rows[row - 1]) * case.width()
                }
            };
            let tolerance = if i > 0 && case.cache != F32 { 8e-3 } else { 3e-6 };
            let [got, wanted] = [got, wanted.bytes()].map(|bytes| as_f32(wanted.ty(), bytes));
            for (got, wanted) in got[range.clone()].iter().zip(&wanted[range]) {
                assert!((got - wanted).abs() <= tolerance, "{case:?}: {got} is not {wanted}");
            }
        }
        let count = 1 + case.rows.len();
        (got, wanted) = (&got[count..], &wanted[count..]);
    }
}
