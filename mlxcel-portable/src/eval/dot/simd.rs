//! The inner loops of products, in vector instructions chosen at run time through `pulp`, without unsafe
//! code.

use pulp::{Arch, Simd, WithSimd};

/// How many rows of one operand a packed panel holds, side by side in vectors; a multiple of every vector
/// length.
pub(super) const PANEL: usize = 16;

/// How many rows of the other operand [`multiply_tile`] multiplies with a panel at a time: as many as sums
/// fit into the registers of AVX2, and leave room for the operands.
pub(super) const TILE: usize = 6;

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
/// Each row of `x` has as many elements as `row`; for pairs of `bf16` the elements of even number come first,
/// then those of odd number, so that neither side needs shuffling.
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

/// Rows of an operand: each starts `stride` elements after the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    pub(super) elements: &'a [f32],
    pub(super) stride: usize,
}

/// Adds to a tile of sums the products of [`TILE`] rows with a panel: [`PANEL`] rows of the other operand
/// side by side for each step of the contraction. The sums of each row are a line of `stride` elements; the
/// tile starts at the first.
pub(super) fn multiply_tile(arch: Arch, rows: Rows<'_>, panel: &[f32], sums: &mut [f32], stride: usize) {
    struct Tile<'a> {
        rows: Rows<'a>,
        panel: &'a [f32],
        sums: &'a mut [f32],
        stride: usize,
    }
    impl WithSimd for Tile<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Self { rows, panel, sums, stride } = self;
            match S::F32_LANES {
                4 => tile::<S, 4>(simd, rows, panel, sums, stride),
                8 => tile::<S, 2>(simd, rows, panel, sums, stride),
                16 => tile::<S, 1>(simd, rows, panel, sums, stride),
                2 => tile::<S, 8>(simd, rows, panel, sums, stride),
                _ => tile::<S, 16>(simd, rows, panel, sums, stride),
            }
        }
    }
    arch.dispatch(Tile { rows, panel, sums, stride });
}

#[inline(always)]
fn tile<S: Simd, const V: usize>(simd: S, rows: Rows<'_>, panel: &[f32], sums: &mut [f32], stride: usize) {
    let (steps, _) = panel.as_chunks::<PANEL>();
    let depth = steps.len();
    let mut lines = [&[] as &[f32]; TILE];
    for (i, line) in lines.iter_mut().enumerate() {
        *line = &rows.elements[i * rows.stride..][..depth];
    }
    let mut tile = [[simd.splat_f32s(0.0); V]; TILE];
    // Two steps a turn, so that the addresses of six rows are not half of the work.
    let (turns, rest) = steps.as_chunks::<2>();
    let pairs = lines.map(|line| &line.as_chunks::<2>().0[..turns.len()]);
    for (turn, [first, second]) in turns.iter().enumerate() {
        let (x, _) = S::as_simd_f32s(first);
        for (pairs, sums) in pairs.iter().zip(&mut tile) {
            add_product(simd, pairs[turn][0], x, sums);
        }
        let (x, _) = S::as_simd_f32s(second);
        for (pairs, sums) in pairs.iter().zip(&mut tile) {
            add_product(simd, pairs[turn][1], x, sums);
        }
    }
    if let [step] = rest {
        let (x, _) = S::as_simd_f32s(step);
        for (line, sums) in lines.iter().zip(&mut tile) {
            add_product(simd, line[depth - 1], x, sums);
        }
    }
    for (i, tile) in tile.iter().enumerate() {
        let (line, _) = S::as_mut_simd_f32s(&mut sums[i * stride..i * stride + PANEL]);
        for (sum, &vector) in line.iter_mut().zip(tile) {
            *sum = simd.add_f32s(*sum, vector);
        }
    }
}

#[inline(always)]
fn add_product<S: Simd>(simd: S, element: f32, x: &[S::f32s], sums: &mut [S::f32s]) {
    let element = simd.splat_f32s(element);
    for (sum, &x) in sums.iter_mut().zip(x) {
        *sum = simd.mul_add_e_f32s(element, x, *sum);
    }
}

/// Reads dense `bf16` bytes at any address as `f32`.
pub(super) fn widen_bf16(arch: Arch, bytes: &[u8], lanes: &mut [f32]) {
    struct Widen<'a>(&'a [u8], &'a mut [f32]);
    impl WithSimd for Widen<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            // Plain code, which the compiler turns into the vector instructions of `S`.
            for (lane, &bits) in self.1.iter_mut().zip(self.0.as_chunks::<2>().0) {
                *lane = f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16);
            }
        }
    }
    arch.dispatch(Widen(bytes, lanes));
}
