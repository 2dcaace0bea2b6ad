//! The inner loops of products, in vector instructions chosen at run time through `pulp`, without unsafe code.

use pulp::{Arch, Simd, WithSimd};

/// How many columns a packed panel holds; a multiple of every vector length.
pub(super) const PANEL: usize = 16;

/// The most left rows that [`dot_rows`] multiplies with one weight row at a time.
pub(super) const ROWS: usize = 4;

/// One row of a weight, as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum WeightRow<'a> {
    F32(&'a [f32]),
    /// Pairs of `bf16`, the first in the low half.
    Bf16Pairs(&'a [u32]),
}

/// The dot products of `row` with one to [`ROWS`] rows of `x`.
///
/// Each row of `x` has as many elements as `row`; for pairs of `bf16` the elements of even number come first, then
/// those of odd number, so that neither side needs shuffling.
pub(super) fn dot_rows(arch: Arch, row: WeightRow<'_>, x: &[&[f32]], results: &mut [f32; ROWS]) {
    struct Dot<'a, const M: usize, const U: usize> {
        row: WeightRow<'a>,
        x: [&'a [f32]; M],
    }
    impl<const M: usize, const U: usize> WithSimd for Dot<'_, M, U> {
        type Output = [f32; M];
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> [f32; M] {
            match self.row {
                WeightRow::F32(row) => dot_f32::<S, M, U>(simd, row, self.x),
                WeightRow::Bf16Pairs(row) => dot_bf16::<S, M>(simd, row, self.x),
            }
        }
    }
    match *x {
        [a] => results[..1].copy_from_slice(&arch.dispatch(Dot::<1, 4> { row, x: [a] })),
        [a, b] => results[..2].copy_from_slice(&arch.dispatch(Dot::<2, 2> { row, x: [a, b] })),
        [a, b, c] => results[..3].copy_from_slice(&arch.dispatch(Dot::<3, 2> { row, x: [a, b, c] })),
        [a, b, c, d] => results.copy_from_slice(&arch.dispatch(Dot::<4, 2> { row, x: [a, b, c, d] })),
        _ => debug_assert!(false, "one to {ROWS} rows"),
    }
}

/// `M` dot products with `U` sums each in flight, so that additions need not wait for one another.
#[inline(always)]
fn dot_f32<S: Simd, const M: usize, const U: usize>(simd: S, row: &[f32], x: [&[f32]; M]) -> [f32; M] {
    let (vectors, tail) = S::as_simd_f32s(row);
    let (groups, rest) = vectors.as_chunks::<U>();
    let mut sums = [[simd.splat_f32s(0.0); U]; M];
    let split = x.map(|x| S::as_simd_f32s(&x[..row.len()]));
    let x_groups = split.map(|(vectors, _)| &vectors.as_chunks::<U>().0[..groups.len()]);
    for (i, group) in groups.iter().enumerate() {
        for m in 0..M {
            for u in 0..U {
                sums[m][u] = simd.mul_add_e_f32s(group[u], x_groups[m][i][u], sums[m][u]);
            }
        }
    }
    let mut results = [0.0; M];
    for m in 0..M {
        let (x_vectors, x_tail) = split[m];
        for (&a, &b) in rest.iter().zip(&x_vectors[groups.len() * U..]) {
            sums[m][0] = simd.mul_add_e_f32s(a, b, sums[m][0]);
        }
        let mut sum = sums[m][0];
        for &other in &sums[m][1..] {
            sum = simd.add_f32s(sum, other);
        }
        results[m] = simd.reduce_sum_f32s(sum);
        for (&a, &b) in tail.iter().zip(x_tail) {
            results[m] += a * b;
        }
    }
    results
}

/// `M` dot products with a row of `bf16` pairs, whose halves are widened by placing their bits.
#[inline(always)]
fn dot_bf16<S: Simd, const M: usize>(simd: S, row: &[u32], x: [&[f32]; M]) -> [f32; M] {
    let (vectors, tail) = S::as_simd_u32s(row);
    let half = row.len();
    let even = x.map(|x| S::as_simd_f32s(&x[..half]));
    let odd = x.map(|x| S::as_simd_f32s(&x[half..2 * half]));
    let even_vectors = even.map(|(vectors_of, _)| &vectors_of[..vectors.len()]);
    let odd_vectors = odd.map(|(vectors_of, _)| &vectors_of[..vectors.len()]);
    let high_half = simd.splat_u32s(0xffff_0000);
    let sixteen = simd.splat_u32s(16);
    // Two vectors a turn: with the two halves that makes four sums in flight for each row of x.
    let mut sums = [[simd.splat_f32s(0.0); 4]; M];
    let (pairs, single) = vectors.as_chunks::<2>();
    let even_pairs = even_vectors.map(|vectors| &vectors.as_chunks::<2>().0[..pairs.len()]);
    let odd_pairs = odd_vectors.map(|vectors| &vectors.as_chunks::<2>().0[..pairs.len()]);
    for (i, pair) in pairs.iter().enumerate() {
        for u in 0..2 {
            let low = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(pair[u], sixteen));
            let high = simd.transmute_f32s_u32s(simd.and_u32s(pair[u], high_half));
            for m in 0..M {
                sums[m][2 * u] = simd.mul_add_e_f32s(low, even_pairs[m][i][u], sums[m][2 * u]);
                sums[m][2 * u + 1] = simd.mul_add_e_f32s(high, odd_pairs[m][i][u], sums[m][2 * u + 1]);
            }
        }
    }
    let mut results = [0.0; M];
    for m in 0..M {
        if let [vector] = *single {
            let last = vectors.len() - 1;
            let low = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(vector, sixteen));
            let high = simd.transmute_f32s_u32s(simd.and_u32s(vector, high_half));
            sums[m][0] = simd.mul_add_e_f32s(low, even_vectors[m][last], sums[m][0]);
            sums[m][1] = simd.mul_add_e_f32s(high, odd_vectors[m][last], sums[m][1]);
        }
        let [a, b, c, d] = sums[m];
        results[m] = simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)));
        for (i, &pair) in tail.iter().enumerate() {
            results[m] += f32::from_bits(pair << 16) * even[m].1[i];
            results[m] += f32::from_bits(pair & 0xffff_0000) * odd[m].1[i];
        }
    }
    results
}

/// Adds to a tile of sums the product of packed panels: `a` holds `rows` elements for each step of the contraction,
/// `b` [`PANEL`] elements. `sums` has a line of `stride` elements for each row, and the tile starts at its first.
pub(super) fn multiply_tile(arch: Arch, rows: usize, a: &[f32], b: &[f32], sums: &mut [f32], stride: usize) {
    struct Tile<'a, const M: usize> {
        a: &'a [f32],
        b: &'a [f32],
        sums: &'a mut [f32],
        stride: usize,
    }
    impl<const M: usize> WithSimd for Tile<'_, M> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Self { a, b, sums, stride } = self;
            match S::F32_LANES {
                4 => tile::<S, M, 4>(simd, a, b, sums, stride),
                8 => tile::<S, M, 2>(simd, a, b, sums, stride),
                16 => tile::<S, M, 1>(simd, a, b, sums, stride),
                2 => tile::<S, M, 8>(simd, a, b, sums, stride),
                _ => tile::<S, M, 16>(simd, a, b, sums, stride),
            }
        }
    }
    match rows {
        1 => arch.dispatch(Tile::<1> { a, b, sums, stride }),
        2 => arch.dispatch(Tile::<2> { a, b, sums, stride }),
        4 => arch.dispatch(Tile::<4> { a, b, sums, stride }),
        _ => arch.dispatch(Tile::<6> { a, b, sums, stride }),
    }
}

/// The panel heights that [`multiply_tile`] knows, for a number of rows in all.
pub(super) fn tile_rows(rows: usize) -> usize {
    match rows {
        0..=1 => 1,
        2 => 2,
        3..=4 => 4,
        _ => 6,
    }
}

#[inline(always)]
fn tile<S: Simd, const M: usize, const V: usize>(
    simd: S,
    a: &[f32],
    b: &[f32],
    sums: &mut [f32],
    stride: usize,
) {
    let mut tile = [[simd.splat_f32s(0.0); V]; M];
    let (a, _) = a.as_chunks::<M>();
    let (b, _) = b.as_chunks::<PANEL>();
    for (a, b) in a.iter().zip(b) {
        let (b, _) = S::as_simd_f32s(b);
        let (b, _) = b.as_chunks::<V>();
        let [b] = b else { return };
        for m in 0..M {
            let a = simd.splat_f32s(a[m]);
            for v in 0..V {
                tile[m][v] = simd.mul_add_e_f32s(a, b[v], tile[m][v]);
            }
        }
    }
    for (m, tile) in tile.iter().enumerate() {
        let (line, _) = S::as_mut_simd_f32s(&mut sums[m * stride..m * stride + PANEL]);
        for (sum, &vector) in line.iter_mut().zip(tile) {
            *sum = simd.add_f32s(*sum, vector);
        }
    }
}
