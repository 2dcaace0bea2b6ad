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
        let (heads, width, pairs) = (self.heads, self.width(), self.pairs);
        let mut tensors: Vec<_> =
            [&[tokens, heads, width][..], &[tokens, width], &[tokens, pairs], &[tokens, pairs]]
                .map(|shape| random.floats(shape, F32, 1.0))
                .into();
        tensors.push(integers(&self.positions));
        for &position in &self.positions {
            let mut values = vec![beyond; LAYERS * self.length * self.width()];
            for row in values.chunks_mut(self.length * self.width()) {
                row[..position * self.width()].fill_with(|| random.next());
            }
            tensors.push(floats(self.cache, &[LAYERS, self.length, self.width()], &values));
        }
        tensors
    }

    /// The mixed values, `[tokens, heads, rank]`, of these operands and what caches hold after the pass, in
    /// double precision.
    fn mixed(&self, operands: &[Tensor], caches: &[Vec<f32>]) -> Vec<f64> {
        let [query, cos, sin] = [0, 2, 3].map(|at| as_f32(operands[at].ty(), operands[at].bytes()));
        let (width, rank, pairs) = (self.width(), self.rank, self.pairs);
        let places = self.rows.iter().zip(&self.positions).zip(caches);
        let places = places.flat_map(|((&row, &position), cache)| {
            (position..position + row).map(move |own| (own, &cache[LAYER * self.length * width..]))
        });
        let mut mixed = Vec::new();
        for (token, (own, cache)) in places.enumerate() {
            let [cos, sin] = [&cos, &sin].map(|table| &table[token * pairs..][..pairs]);
            for head in 0..self.heads {
                let (met, turned) = query[(token * self.heads + head) * width..][..width].split_at(rank);
                let mut whole: Vec<f64> = met.iter().map(|&x| f64::from(x)).collect();
                whole.extend(double::rotated(turned, cos, sin));
                let seen = cache.chunks_exact(width).take(own + 1).map(|entry| (entry, &entry[..rank]));
                mixed.extend(double::attend(&whole, seen, |product| f64::from(SCALE) * product, None));
            }
        }
        mixed
    }

    fn build<'f>(
        &self,
        b: &mut Builder<'f>,
        number: usize,
        results: &mut Vec<Value<'f>>,
    ) -> mlxcel_stablehlo::Result<()> {
        let values = arguments(b, &format!("x{number}"), self.operands(0.0).iter().map(Tensor::ty))?;
        let [query, entry, cos, sin, positions, ref caches @ ..] = values[..] else { unreachable!() };
        for (row, &cache) in caches.iter().enumerate() {
            b.alias(cache, results.len() + 1 + row)?;
        }
        let operands = LatentAttentionOperands { query, entry, cos, sin, positions, caches, selected: &[] };
        let what = LatentAttention { rows: &self.rows, layer: LAYER, scale: SCALE, out: F32 };
        let (mixed, caches) = latent_attention(b, &operands, &what)?;
        results.push(mixed);
        results.extend(caches);
        Ok(())
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
    let module = module_of("attention", &cases, LatentCase::build);
    let operands = |beyond: f32| cases.iter().flat_map(|case| case.operands(beyond)).collect::<Vec<_>>();
    let wanted = evaluated(&module, &operands(0.0));
    // What is behind the last token is not looked at.
    let got = on_device(&module, &crate::testing::host(), &operands(f32::NAN));
    let (mut got, mut wanted) = (&got[..], &wanted[..]);
    for case in &cases {
        let count = 1 + case.rows.len();
        let floats = |wanted: &Tensor, bytes: &[u8]| as_f32(wanted.ty(), bytes);
        let caches: Vec<_> = wanted[1..count].iter().map(|cache| floats(cache, cache.bytes())).collect();
        let mixed = case.mixed(&case.operands(0.0), &caches);
        double::compare(case, F32, &got[0], &mixed);
        for (row, (cache, wanted)) in got[1..count].iter().zip(&wanted[1..]).enumerate() {
            // The positions up to the row's last in its layer.
            let start = LAYER * case.length * case.width();
            let range = start..start + (case.positions[row] + case.rows[row]) * case.width();
            let tolerance = if case.cache == F32 { 3e-6 } else { 8e-3 };
            for (got, wanted) in floats(wanted, cache)[range.clone()].iter().zip(&caches[row][range]) {
                assert!((got - wanted).abs() <= tolerance, "{case:?}: {got} is not {wanted}");
            }
        }
        (got, wanted) = (&got[count..], &wanted[count..]);
    }
}
