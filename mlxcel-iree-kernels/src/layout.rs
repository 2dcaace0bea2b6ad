//! How the bytes of a weight lie on the device: as stored, or in panels, the layout that kernels for CPUs
//! read.
//!
//! A kernel computes several outputs at once, one per vector lane, so values for the same input should be
//! adjacent. A layout achieves this by permuting a matrix within its own bytes: shape, element type and size
//! stay, so that programs take the same arguments with any layout. Weights are permuted once, when they are
//! loaded to the device.

use std::fmt;

use mlxcel_stablehlo::ElementType;

/// Bytes of a row that are permuted together: a cache line.
const BLOCK: usize = 64;

/// The lane counts with kernels.
const LANES: [usize; 3] = [4, 8, 16];

/// How the rows `[outputs, inputs]` of a weight lie in memory; those of experts, `[experts, outputs,
/// inputs]`, matrix by matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightLayout {
    /// Row by row, as checkpoints store them.
    Rows,
    /// `outputs / lanes` panels of `lanes` rows each, then the remaining rows, as stored.
    ///
    /// A panel is `[inputs / depth][lanes][depth]`: `depth` consecutive inputs of one row are adjacent,
    /// followed by those of the next row. If `depth` does not divide the inputs, the last block is
    /// `[lanes][inputs % depth]`. Codes whose unit is several words (3, 5 and 6 bits) are `[inputs /
    /// depth][words][lanes]`, each word being of one of their planes.
    Panels {
        /// The rows of a panel.
        lanes: usize,
        /// The consecutive values of a row that stay together.
        depth: usize,
    },
}

/// What the elements of a weight's tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorRole {
    /// Values: `[outputs, inputs]`.
    Dense(ElementType),
    /// Codes of `bits` bits, packed into words of 32 bits: `[outputs, words]`.
    QuantizedWords {
        /// The bits of a code.
        bits: usize,
    },
    /// 8-bit floats as codes, packed into words of 32 bits: `[outputs, words]`.
    QuantizedFloats,
    /// Scales or offsets of groups of inputs: `[outputs, groups]`.
    GroupParameters(ElementType),
}

/// How codes lie in the words of a panel: the lower bits in one plane, and the bits above them, if their
/// number is no power of two, in another, so that a shift and a mask extract four codes, each in its own
/// byte.
///
/// A unit, some consecutive codes of a row, fills whole words of both planes: first those of the lower bits,
/// then one of the higher. In a word, the codes `4i` to `4i + 3` of its plane are in the four bytes, from bit
/// `i` times the plane's bits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planes {
    /// The lower bits of a code.
    pub(crate) low: usize,
    /// The bits above them, or 0.
    pub(crate) high: usize,
}

impl Planes {
    /// The planes for codes of `bits` bits.
    pub(crate) fn of(bits: usize) -> Option<Self> {
        let (low, high) = match bits {
            2 | 4 | 8 => (bits, 0),
            3 => (2, 1),
            5 => (4, 1),
            6 => (4, 2),
            _ => return None,
        };
        Some(Self { low, high })
    }

    /// The codes of a unit.
    pub(crate) fn codes(self) -> usize {
        32 / if self.high > 0 { self.high } else { self.low }
    }

    /// The words of a unit.
    pub(crate) fn words(self) -> usize {
        self.codes() * (self.low + self.high) / 32
    }

    /// The word of a unit with the lower bits of code `code`, and their lowest bit in it.
    pub(crate) fn low_bit(self, code: usize) -> (usize, usize) {
        let per_word = 32 / self.low;
        (code / per_word, code % 4 * 8 + code % per_word / 4 * self.low)
    }

    /// The lowest of code `code`'s higher bits in the unit's last word.
    pub(crate) fn high_bit(self, code: usize) -> usize {
        code % 4 * 8 + code / 4 * self.high
    }

    /// The mask of `bits` bits in each byte of a word.
    pub(crate) fn mask(bits: usize) -> u32 {
        0x0101_0101 * ((1 << bits) - 1)
    }
}

impl WeightLayout {
    /// The layout of a tensor of `contents` and `shape` (packed values in words, as stored) for kernels whose
    /// vectors have `lanes` lanes of 32 bits; without such kernels, as stored.
    pub fn of(contents: TensorRole, shape: &[usize], lanes: Option<usize>) -> Self {
        let (Some(lanes), Some(depth)) = (lanes, contents.depth()) else { return Self::Rows };
        let is_of_matrices = match *shape {
            [_, _] => true,
            // Kernels load `depth` adjacent values as one element, so each matrix must begin at a multiple of
            // it.
            [_, outputs, inputs] => {
                !matches!(contents, TensorRole::Dense(_)) || (outputs * inputs).is_multiple_of(depth)
            }
            _ => false,
        };
        if is_of_matrices && LANES.contains(&lanes) { Self::Panels { lanes, depth } } else { Self::Rows }
    }
}

/// The number of matrices of a weight of `shape`: those of experts are stacked.
pub fn matrices(shape: &[usize]) -> usize {
    let leading = shape.len().saturating_sub(2);
    shape[..leading].iter().product()
}

impl TensorRole {
    /// The consecutive values of a row that kernels want together: those that fill 32 bits; pairs of `f16`
    /// are of no use.
    fn depth(self) -> Option<usize> {
        match self {
            Self::Dense(ElementType::F32 | ElementType::F16) => Some(1),
            Self::Dense(ElementType::BF16) => Some(2),
            Self::QuantizedWords { bits } => Planes::of(bits).map(Planes::codes),
            Self::QuantizedFloats => Some(2),
            Self::GroupParameters(_) => self.unit().map(|_| 1),
            _ => None,
        }
    }

    /// Whether kernels read such tensors.
    pub(crate) fn is_kernels(self) -> bool {
        self.depth().is_some()
    }

    /// The unit that is moved as a whole when such a matrix is permuted.
    fn unit(self) -> Option<Unit> {
        match self {
            Self::Dense(ElementType::F32 | ElementType::BF16) | Self::GroupParameters(ElementType::F32) => {
                Some(Unit::Word)
            }
            Self::QuantizedFloats
            | Self::Dense(ElementType::F16)
            | Self::GroupParameters(ElementType::F16 | ElementType::BF16) => Some(Unit::Half),
            Self::GroupParameters(ElementType::U8 | ElementType::I8) => Some(Unit::Byte),
            Self::QuantizedWords { bits: 8 } => Some(Unit::Word),
            Self::QuantizedWords { bits: 4 } => Some(Unit::Nibbles),
            Self::QuantizedWords { bits } => Planes::of(bits).map(Unit::Planes),
            _ => None,
        }
    }
}

impl fmt::Display for TensorRole {
    /// Such as `bf16`, `u4` (codes of four bits), `e8` (codes that are floats) and `groups-bf16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(element) => f.write_str(element.mlir()),
            Self::QuantizedWords { bits } => write!(f, "u{bits}"),
            Self::QuantizedFloats => f.write_str("e8"),
            Self::GroupParameters(element) => write!(f, "groups-{}", element.mlir()),
        }
    }
}

impl TensorRole {
    /// Parses a printed name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let element = |name| ElementType::ALL.into_iter().find(|element| element.mlir() == name);
        if let Some(name) = name.strip_prefix("groups-") {
            return element(name).map(Self::GroupParameters);
        }
        if name == "e8" {
            return Some(Self::QuantizedFloats);
        }
        let bits = name.strip_prefix('u').and_then(|bits| bits.parse().ok());
        bits.map(|bits| Self::QuantizedWords { bits }).or_else(|| element(name).map(Self::Dense))
    }
}

/// The unit that is moved as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// 8 bits.
    Byte,
    /// 16 bits: one value or a pair.
    Half,
    /// 32 bits: one value, a pair, or four.
    Word,
    /// 32 bits that are eight values of four bits. Byte `j` of a stored word has values `2j` and `2j + 1`;
    /// byte `j` of a panel's word has `j` and `j + 4`, so a mask and a shift give a kernel four bytes
    /// each, for consecutive inputs.
    Nibbles,
    /// The words of codes with these planes.
    Planes(Planes),
}

/// Packs a matrix into panels.
#[derive(Clone, Copy, Debug)]
pub struct Packer {
    lanes: usize,
    unit: Unit,
    row_bytes: usize,
}

impl Packer {
    /// The packer of a tensor of `contents` with rows of `row_bytes` into `layout`; `None` if it stays as
    /// stored.
    pub fn new(layout: WeightLayout, contents: TensorRole, row_bytes: usize) -> Option<Self> {
        let WeightLayout::Panels { lanes, .. } = layout else { return None };
        Some(Self { lanes, unit: contents.unit()?, row_bytes })
    }

    /// The bytes of a panel, both packed and stored: the granularity for dividing work.
    pub fn panel_bytes(&self) -> usize {
        self.lanes * self.row_bytes
    }

    /// Packs `source`, rows from the first of a panel on, into `target` of the same length.
    ///
    /// Rows after the last whole panel, the last of a matrix, are copied unchanged; so each of several
    /// [`matrices`] is packed separately.
    pub fn pack(&self, source: &[u8], target: &mut [u8]) {
        let panel = self.panel_bytes();
        if panel == 0 {
            return;
        }
        let (sources, mut targets) = (source.chunks_exact(panel), target.chunks_exact_mut(panel));
        let rest = sources.remainder();
        for (source, target) in sources.zip(targets.by_ref()) {
            match (self.unit, self.lanes) {
                (Unit::Byte, _) => self.rest(source, target, 0, 1, |_| {}),
                (Unit::Planes(Planes { low: 2, high: 0 }), _) => self.planes::<2, 0>(source, target),
                (Unit::Planes(Planes { low: 2, .. }), _) => self.planes::<2, 1>(source, target),
                (Unit::Planes(Planes { high: 1, .. }), _) => self.planes::<4, 1>(source, target),
                (Unit::Planes(_), _) => self.planes::<4, 2>(source, target),
                (Unit::Half, 4) => self.halves::<1>(source, target),
                (Unit::Half, 8) => self.halves::<2>(source, target),
                (Unit::Half, _) => self.halves::<4>(source, target),
                (Unit::Word, 4) => self.words::<2>(source, target, |word| word),
                (Unit::Word, 8) => self.words::<4>(source, target, |word| word),
                (Unit::Word, _) => self.words::<8>(source, target, |word| word),
                (Unit::Nibbles, 4) => self.words::<2>(source, target, spread_nibbles),
                (Unit::Nibbles, 8) => self.words::<4>(source, target, spread_nibbles),
                (Unit::Nibbles, _) => self.words::<8>(source, target, spread_nibbles),
            }
        }
        targets.into_remainder().copy_from_slice(rest);
    }

    /// One panel of `2 · PAIRS` lanes in units of 32 bits. `change` maps two of them at a time.
    fn words<const PAIRS: usize>(&self, source: &[u8], target: &mut [u8], change: impl Fn(u64) -> u64) {
        let blocks = self.row_bytes / BLOCK;
        let (units, _) = target.as_chunks_mut::<8>().0.as_chunks_mut::<PAIRS>();
        let (blocks_of_units, _) = units.as_chunks_mut::<{ BLOCK / 4 }>();
        for (block, units) in blocks_of_units.iter_mut().enumerate().take(blocks) {
            for pair in 0..PAIRS {
                let [a, b] = [0, 1].map(|lane| self.block(source, 2 * pair + lane, block));
                for ((a, b), [even, odd]) in a.iter().zip(b).zip(units.as_chunks_mut().0) {
                    let [a, b] = [a, b].map(|words| change(u64::from_le_bytes(*words)));
                    even[pair] = (a & LOW_WORD | b << 32).to_le_bytes();
                    odd[pair] = (a >> 32 | b & !LOW_WORD).to_le_bytes();
                }
            }
        }
        self.rest(source, target, blocks * BLOCK, 4, |unit| {
            if let Ok(word) = <[u8; 4]>::try_from(&*unit) {
                unit.copy_from_slice(&change(u32::from_le_bytes(word).into()).to_le_bytes()[..4]);
            }
        });
    }

    /// One panel of `4 · QUADS` lanes in units of 16 bits.
    fn halves<const QUADS: usize>(&self, source: &[u8], target: &mut [u8]) {
        let blocks = self.row_bytes / BLOCK;
        let (units, _) = target.as_chunks_mut::<8>().0.as_chunks_mut::<QUADS>();
        let (blocks_of_units, _) = units.as_chunks_mut::<{ BLOCK / 2 }>();
        for (block, units) in blocks_of_units.iter_mut().enumerate().take(blocks) {
            for quad in 0..QUADS {
                let rows = [0, 1, 2, 3].map(|lane| self.block(source, 4 * quad + lane, block));
                for (k, columns) in units.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let transposed = transpose_halves(rows.map(|row| u64::from_le_bytes(row[k])));
                    for (column, values) in columns.iter_mut().zip(transposed) {
                        column[quad] = values.to_le_bytes();
                    }
                }
            }
        }
        self.rest(source, target, blocks * BLOCK, 2, |_| {});
    }

    /// One panel of codes in units of several words: the lower `LOW` bits in one plane, the higher `HIGH` in
    /// another.
    ///
    /// The planes are constants, so that every shift and mask is one.
    fn planes<const LOW: usize, const HIGH: usize>(&self, source: &[u8], target: &mut [u8]) {
        let (words, lanes) = (Planes { low: LOW, high: HIGH }.words(), self.lanes);
        let mut unit = [0; MOST_WORDS];
        for (index, target) in target.chunks_exact_mut(words * lanes * 4).enumerate() {
            let (target, _) = target.as_chunks_mut::<4>();
            for lane in 0..lanes {
                let stored = source.get(lane * self.row_bytes + index * words * 4..);
                let stored = stored.and_then(|rest| rest.get(..words * 4)).unwrap_or_default();
                split::<LOW, HIGH>(stored, &mut unit);
                for (word, target) in unit.iter().zip(target[lane..].iter_mut().step_by(lanes)) {
                    *target = word.to_le_bytes();
                }
            }
        }
    }

    /// Block `index` of a row of a panel.
    fn block<'a>(&self, source: &'a [u8], lane: usize, index: usize) -> &'a [[u8; 8]; BLOCK / 8] {
        const NOTHING: &[[u8; 8]; BLOCK / 8] = &[[0; 8]; BLOCK / 8];
        let block = source.get(lane * self.row_bytes + index * BLOCK..).and_then(|rest| rest.get(..BLOCK));
        block.and_then(|block| block.as_chunks().0.first_chunk()).unwrap_or(NOTHING)
    }

    /// The remainder of a panel's rows after their first `begin` bytes, in units of `unit` bytes and a
    /// smaller last one, each mapped by `change`.
    fn rest(&self, source: &[u8], target: &mut [u8], begin: usize, unit: usize, change: impl Fn(&mut [u8])) {
        for at in (begin..self.row_bytes).step_by(unit) {
            let size = unit.min(self.row_bytes - at);
            let to = &mut target[at * self.lanes..][..size * self.lanes];
            for (lane, to) in to.chunks_exact_mut(size).enumerate() {
                to.copy_from_slice(&source[lane * self.row_bytes + at..][..size]);
                change(to);
            }
        }
    }
}

/// The most words of a unit.
const MOST_WORDS: usize = 5;

/// The words of a unit from its codes, the bit stream `stored`.
fn split<const LOW: usize, const HIGH: usize>(stored: &[u8], words: &mut [u32; MOST_WORDS]) {
    *words = [0; MOST_WORDS];
    let planes = Planes { low: LOW, high: HIGH };
    let bits = planes.low + planes.high;
    let last = planes.words() - 1;
    for (eight, stored) in stored.chunks_exact(bits).enumerate() {
        let mut stream = [0; 8];
        stream[..bits].copy_from_slice(stored);
        let codes = spread_codes(u64::from_le_bytes(stream), bits);
        for half in 0..2 {
            let four = (codes >> (32 * half)) as u32;
            let code = 8 * eight + 4 * half;
            let (word, bit) = planes.low_bit(code);
            words[word] |= (four & Planes::mask(planes.low)) << bit;
            if planes.high > 0 {
                words[last] |= (four >> planes.low & Planes::mask(planes.high)) << planes.high_bit(code);
            }
        }
    }
}

/// Eight adjacent codes of `bits` bits, each moved to its own byte.
fn spread_codes(codes: u64, bits: usize) -> u64 {
    // Four, then two, then one code move apart at a time.
    [(4, 32), (2, 16), (1, 8)].into_iter().fold(codes, |codes, (count, apart)| {
        let all = u64::MAX / ((1u128 << (2 * apart)) - 1) as u64;
        let low = codes & (all * ((1 << (count * bits)) - 1));
        low | ((codes >> (count * bits)) & (all * ((1 << (count * bits)) - 1))) << apart
    })
}

const LOW_WORD: u64 = 0xffff_ffff;

/// Two words of eight values of four bits in the order of panels: value `j` goes from nibble `j` to nibble
/// `2j`, and value `j + 4` to nibble `2j + 1`.
fn spread_nibbles(words: u64) -> u64 {
    /// Spreads the four nibbles in the lower half of each word.
    fn spread(halves: u64) -> u64 {
        let bytes = (halves | halves << 8) & 0x00ff_00ff_00ff_00ff;
        (bytes | bytes << 4) & 0x0f0f_0f0f_0f0f_0f0f
    }
    let low = words & 0x0000_ffff_0000_ffff;
    let high = words >> 16 & 0x0000_ffff_0000_ffff;
    spread(low) | spread(high) << 4
}

/// The transpose of four rows of four halves, the first half of a row in its lowest bits.
fn transpose_halves([a, b, c, d]: [u64; 4]) -> [u64; 4] {
    const EVEN: u64 = 0x0000_ffff_0000_ffff;
    let pairs = |x: u64, y: u64| [x & EVEN | (y & EVEN) << 16, x >> 16 & EVEN | y & !EVEN];
    let [ab02, ab13] = pairs(a, b);
    let [cd02, cd13] = pairs(c, d);
    let words = |x: u64, y: u64| [x & LOW_WORD | y << 32, x >> 32 | y & !LOW_WORD];
    let [[column0, column2], [column1, column3]] = [words(ab02, cd02), words(ab13, cd13)];
    [column0, column1, column2, column3]
}

#[cfg(test)]
mod tests;
