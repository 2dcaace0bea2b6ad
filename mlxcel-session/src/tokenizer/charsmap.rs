//! The charsmap of a SentencePiece normalizer: a trie of character sequences, and what they are replaced by.
//!
//! Four bytes that say how long the trie is, the trie as a double array of 32-bit units, and the
//! replacements, each ended by a zero byte (the format of SentencePiece's `precompiled_charsmap` and of the
//! Darts library). The crate `tokenizers` follows its indices unchecked, so all of them are validated here
//! first.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokenizers::normalizers::Precompiled;

/// How many bytes a replacement may have; the longest of Unicode's own has 33.
const LONGEST: usize = 64;

/// A normalizer of a charsmap in Base64, and how many bytes its longest replacement has.
pub(super) fn read(text: &str) -> Result<(Precompiled, usize), String> {
    let bytes = BASE64_STANDARD.decode(text).map_err(|error| format!("a charsmap is not Base64: {error}"))?;
    let longest = check(&bytes).ok_or("a charsmap points outside of itself")?;
    if longest > LONGEST {
        return Err(format!("a replacement of {longest} bytes in a charsmap is longer than {LONGEST}"));
    }
    let normalizer = Precompiled::from(&bytes).map_err(|error| error.to_string())?;
    Ok((normalizer, longest))
}

/// The length of the longest replacement; none where an index leads outside.
fn check(bytes: &[u8]) -> Option<usize> {
    let (size, rest) = bytes.split_first_chunk::<4>()?;
    let size = usize::try_from(u32::from_le_bytes(*size)).ok()?;
    if size == 0 || size % 4 != 0 || size > rest.len() {
        return None;
    }
    let (trie, replacements) = rest.split_at(size);
    let replacements = std::str::from_utf8(replacements).ok()?;
    let trie: Vec<usize> =
        trie.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit) as usize).collect();
    let mut longest = 0;
    for (position, &unit) in trie.iter().enumerate() {
        let is_value = unit >> 31 == 1;
        if is_value {
            // No byte leads to it but the end of a sequence.
            continue;
        }
        let next = position ^ ((unit >> 10) << ((unit & (1 << 9)) >> 6));
        // Any byte may follow: all units of its block are there.
        if next | 0xff >= trie.len() {
            return None;
        }
        let has_value = (unit >> 8) & 1 == 1;
        if has_value {
            let start = trie[next] & ((1 << 31) - 1);
            let replacement = replacements.get(start..)?;
            longest = longest.max(replacement.find('\0').unwrap_or(replacement.len()));
        }
    }
    Some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A charsmap that replaces "a" by "bc".
    fn charsmap() -> Vec<u8> {
        let mut trie = vec![0u32; 512];
        // The root's children are in the block that begins at 256.
        trie[0] = 1 << 10 << 8;
        trie[256 ^ usize::from(b'a')] = u32::from(b'a') | 1 << 8 | ((256 ^ u32::from(b'a')) ^ 256) << 10;
        trie[256] = 1 << 31 | 1;
        let mut bytes = (4 * trie.len() as u32).to_le_bytes().to_vec();
        bytes.extend(trie.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(b"\0bc\0");
        bytes
    }

    #[test]
    fn a_charsmap_is_parsed_with_its_longest_replacement() {
        assert_eq!(check(&charsmap()), Some(2));
        assert_eq!(Precompiled::from(&charsmap()).unwrap().normalize_string("xay"), "xbcy");
    }

    #[test]
    fn a_charsmap_with_out_of_range_offsets_is_rejected() {
        for bytes in [
            &[][..],
            &[0; 4],
            &[255; 4],
            &[4, 0, 0, 0],
            &[4, 0, 0, 0, 255, 255, 255, 127],
            &[3, 0, 0, 0, 1, 2, 3],
        ] {
            assert_eq!(check(bytes), None, "{bytes:?}");
        }
        let mut beyond = charsmap();
        beyond[4 + 4 * 256] = 200;
        assert_eq!(check(&beyond), None);
        let mut outside = charsmap();
        outside[11] = 0x7f;
        assert_eq!(check(&outside), None);
    }

    #[test]
    fn base64_is_decoded_strictly() {
        let text = BASE64_STANDARD.encode(charsmap());
        assert!(read(&text).is_ok());
        let padded = text.ends_with('=');
        for wrong in ["a", "ab", "a===", "aGVs=bG8", "a=b=", "ab c", &text[..text.len() - 1]] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(padded, "the last one lacks padding");
    }
}
