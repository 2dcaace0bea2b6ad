//! Bit streams of codes, and column permutations.

/// Writes the codes of `bits` bits that `stream` holds, the first in the lowest bits, one a byte.
pub(super) fn unpack(stream: &[u8], bits: usize, codes: &mut [u8]) {
    let mask = (1u64 << bits) - 1;
    let (mut window, mut held) = (0u64, 0);
    let mut words = stream.as_chunks::<4>().0.iter();
    for code in codes {
        if held < bits {
            let word = words.next().map_or(0, |word| u32::from_le_bytes(*word));
            window |= u64::from(word) << held;
            held += 32;
        }
        // The mask leaves 8 bits at most.
        *code = (window & mask) as u8;
        window >>= bits;
        held -= bits;
    }
}

/// The inverse of [`unpack`].
pub(super) fn pack(codes: impl IntoIterator<Item = u8>, bits: usize, stream: &mut [u8]) {
    let (mut window, mut held) = (0u64, 0);
    let mut words = stream.as_chunks_mut::<4>().0.iter_mut();
    for code in codes {
        window |= u64::from(code) << held;
        held += bits;
        if held >= 32 {
            if let Some(word) = words.next() {
                // The lower half.
                *word = (window as u32).to_le_bytes();
            }
            window >>= 32;
            held -= 32;
        }
    }
}

/// The group of each column, from the bytes of a tensor of I32.
pub(super) fn groups(bytes: &[u8]) -> impl ExactSizeIterator<Item = i32> {
    bytes.as_chunks().0.iter().map(|group| i32::from_le_bytes(*group))
}

/// The columns by group, those of one group in their own order.
pub(super) fn order(bytes: &[u8]) -> Vec<usize> {
    let groups: Vec<_> = groups(bytes).collect();
    let mut order: Vec<_> = (0..groups.len()).collect();
    order.sort_by_key(|&column| groups.get(column).copied());
    order
}

/// Puts the codes of one row in another order: code `j` becomes that at `order[j]`. `scratch` has a byte for
/// each.
pub(super) fn reorder(row: &mut [u8], bits: usize, order: &[usize], scratch: &mut [u8]) {
    unpack(row, bits, scratch);
    pack(order.iter().map(|&column| scratch.get(column).copied().unwrap_or_default()), bits, row);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_every_width_are_read_back() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let codes: Vec<_> =
                (0..64u8).map(|code| code.wrapping_mul(37) & ((1u16 << bits) - 1) as u8).collect();
            let mut stream = vec![0; 8 * bits];
            pack(codes.iter().copied(), bits, &mut stream);
            let mut read = vec![0; 64];
            unpack(&stream, bits, &mut read);
            assert_eq!(read, codes, "{bits} bits");
        }
    }

    #[test]
    fn columns_of_a_group_keep_their_order() {
        let bytes: Vec<_> = [1i32, 0, 1, 0].into_iter().flat_map(i32::to_le_bytes).collect();
        assert_eq!(order(&bytes), [1, 3, 0, 2]);
        let mut row = [0x10, 0x32, 0x54, 0x76];
        reorder(&mut row, 4, &[7, 6, 5, 4, 3, 2, 1, 0], &mut [0; 8]);
        assert_eq!(row, [0x67, 0x45, 0x23, 0x01]);
    }
}
