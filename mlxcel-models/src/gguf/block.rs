//! Block types of GGUF tensors.

use crate::element::ElementType;

/// A GGUF block type: consecutive values of a row with shared scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockType {
    /// 32 values of 4 bits and a scale.
    Q4_0,
    /// 32 values of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 values of 5 bits and a scale.
    Q5_0,
    /// 32 values of 5 bits, a scale and a minimum.
    Q5_1,
    /// 32 values of 8 bits and a scale.
    Q8_0,
    /// 256 values of 2 bits, in groups of 16 with scales and minima of 4 bits.
    Q2K,
    /// 256 values of 3 bits, in groups of 16 with scales of 6 bits.
    Q3K,
    /// 256 values of 4 bits, in groups of 32 with scales and minima of 6 bits.
    Q4K,
    /// 256 values of 5 bits, in groups of 32 with scales and minima of 6 bits.
    Q5K,
    /// 256 values of 6 bits, in groups of 16 with scales of 8 bits.
    Q6K,
    /// 32 values of a codebook and a scale.
    Iq4Nl,
    /// 256 values of the same codebook, in groups of 32 with scales of 6 bits.
    Iq4Xs,
    /// 32 floats of 4 bits and a power of two.
    Mxfp4,
}

/// A block type with its number in the file, its name, and how many values and bytes a block has.
const BLOCKS: &[(BlockType, u32, &str, usize, usize)] = &[
    (BlockType::Q4_0, 2, "Q4_0", 32, 18),
    (BlockType::Q4_1, 3, "Q4_1", 32, 20),
    (BlockType::Q5_0, 6, "Q5_0", 32, 22),
    (BlockType::Q5_1, 7, "Q5_1", 32, 24),
    (BlockType::Q8_0, 8, "Q8_0", 32, 34),
    (BlockType::Q2K, 10, "Q2_K", 256, 84),
    (BlockType::Q3K, 11, "Q3_K", 256, 110),
    (BlockType::Q4K, 12, "Q4_K", 256, 144),
    (BlockType::Q5K, 13, "Q5_K", 256, 176),
    (BlockType::Q6K, 14, "Q6_K", 256, 210),
    (BlockType::Iq4Nl, 20, "IQ4_NL", 32, 18),
    (BlockType::Iq4Xs, 23, "IQ4_XS", 256, 136),
    (BlockType::Mxfp4, 39, "MXFP4", 32, 17),
];

/// The types whose elements are stored as they are, by their numbers.
const PLAIN: &[(ElementType, u32)] = &[
    (ElementType::F32, 0),
    (ElementType::F16, 1),
    (ElementType::I8, 24),
    (ElementType::I16, 25),
    (ElementType::I32, 26),
    (ElementType::I64, 27),
    (ElementType::F64, 28),
    (ElementType::BF16, 30),
];

/// Types that exist and are not read, so that errors can name them.
const OTHERS: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
];

crate::named::serialize_by_name!(BlockType, |name| BLOCKS
    .iter()
    .find(|block| block.2 == name)
    .map(|block| block.0));

impl BlockType {
    /// The name in GGUF.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// The values per block.
    pub const fn values(self) -> usize {
        self.row().3
    }

    /// The bytes per block.
    pub const fn bytes(self) -> usize {
        self.row().4
    }

    const fn row(self) -> &'static (Self, u32, &'static str, usize, usize) {
        // The table lists every type in its order of declaration, which a test holds.
        &BLOCKS[self as usize]
    }
}

/// The type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorType {
    Plain(ElementType),
    Blocks(BlockType),
}

impl TensorType {
    /// The type with this number; the name of one that is not read, as far as it has one.
    pub(super) fn from_number(number: u32) -> Result<Self, String> {
        if let Some((element, _)) = PLAIN.iter().find(|(_, known)| *known == number) {
            return Ok(Self::Plain(*element));
        }
        if let Some((block, ..)) = BLOCKS.iter().find(|row| row.1 == number) {
            return Ok(Self::Blocks(*block));
        }
        let name = OTHERS.iter().find(|(known, _)| *known == number).map(|(_, name)| (*name).to_owned());
        Err(name.unwrap_or_else(|| format!("number {number}")))
    }

    /// How many bytes a row of `columns` values has; none where they do not fill whole blocks.
    pub(super) fn row_bytes(self, columns: usize) -> Option<usize> {
        match self {
            Self::Plain(element) => element.byte_len(columns),
            Self::Blocks(block) if columns.is_multiple_of(block.values()) => {
                (columns / block.values()).checked_mul(block.bytes())
            }
            Self::Blocks(_) => None,
        }
    }

    /// How many values share a block.
    pub(super) fn block_values(self) -> usize {
        match self {
            Self::Plain(_) => 1,
            Self::Blocks(block) => block.values(),
        }
    }
}

/// The names of the types that are read, for errors.
pub(super) fn known_names() -> String {
    let plain =
        PLAIN.iter().filter(|(element, _)| element.is_dense_float()).map(|(element, _)| element.name());
    plain.chain(BLOCKS.iter().map(|row| row.2)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_declaration() {
        for (index, row) in BLOCKS.iter().enumerate() {
            assert_eq!(row.0 as usize, index, "{}", row.2);
            assert_eq!(TensorType::from_number(row.1), Ok(TensorType::Blocks(row.0)));
        }
        assert_eq!(BlockType::Mxfp4 as usize + 1, BLOCKS.len());
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(TensorType::Blocks(BlockType::Q4K).row_bytes(512), Some(288));
        assert_eq!(TensorType::Blocks(BlockType::Q4K).row_bytes(128), None);
        assert_eq!(TensorType::Plain(ElementType::F16).row_bytes(3), Some(6));
        assert_eq!(TensorType::Plain(ElementType::F64).row_bytes(usize::MAX), None);
        assert_eq!(TensorType::from_number(16), Err("IQ2_XXS".to_owned()));
    }
}
