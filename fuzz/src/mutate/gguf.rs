//! Changes of GGUF files: of entries of metadata, of what describes tensors, of counts, of what follows.

use std::borrow::Cow;

use fastrand::Rng;

use super::{bytes, choose, interesting, rounds};

/// A file taken apart; put together again, its counts and offsets are right unless they are changed on
/// purpose.
#[derive(Clone)]
struct File<'b> {
    entries: Vec<Entry<'b>>,
    tensors: Vec<Tensor>,
    data: &'b [u8],
}

#[derive(Clone)]
struct Entry<'b> {
    key: Vec<u8>,
    kind: u32,
    value: Cow<'b, [u8]>,
}

#[derive(Clone)]
struct Tensor {
    name: Vec<u8>,
    sizes: Vec<u64>,
    kind: u32,
    offset: u64,
}

/// Changes a GGUF file; other bytes are changed one by one.
pub(super) fn mutate(base: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let Some(mut file) = File::parse(base) else { return bytes::mutate(base, other, rng) };
    let other = File::parse(other);
    for _ in 0..rounds(rng) {
        change(&mut file, other.as_ref(), rng);
    }
    let mut made = file.write();
    match rng.u8(..24) {
        // The version, the number of tensors, that of entries.
        0 => put(&mut made, 4 + 4 * rng.usize(..5), interesting(rng)),
        1 => made.truncate(rng.usize(..=made.len())),
        _ => {}
    }
    made
}

fn change<'b>(file: &mut File<'b>, other: Option<&File<'b>>, rng: &mut Rng) {
    let (entry, tensor) = (rng.usize(..file.entries.len().max(1)), rng.usize(..file.tensors.len().max(1)));
    match rng.u8(..16) {
        0 if entry < file.entries.len() => drop(file.entries.remove(entry)),
        1 if tensor < file.tensors.len() => drop(file.tensors.remove(tensor)),
        2 => file.data = &file.data[..rng.usize(..=file.data.len())],
        3 => {
            if let Some(taken) = other.and_then(|other| choose(&other.entries, rng)) {
                file.entries.retain(|entry| entry.key != taken.key);
                file.entries.push(taken.clone());
            }
        }
        4 => {
            if let Some(taken) = other.and_then(|other| choose(&other.tensors, rng)) {
                file.tensors.push(taken.clone());
            }
        }
        5..=10 => {
            if let Some(entry) = file.entries.get_mut(entry) {
                change_entry(entry, rng);
            }
        }
        _ => {
            let names: Vec<_> = file.tensors.iter().map(|tensor| tensor.name.clone()).collect();
            if let Some(tensor) = file.tensors.get_mut(tensor) {
                change_tensor(tensor, &names, rng);
            }
        }
    }
}

fn change_entry(entry: &mut Entry<'_>, rng: &mut Rng) {
    let value = entry.value.to_mut();
    match rng.u8(..8) {
        // A number of any kind.
        0 => {
            entry.kind = *choose(&[0, 1, 2, 3, 4, 5, 10, 11], rng).unwrap_or(&4);
            let width = [1, 1, 2, 2, 4, 4, 8, 8][match entry.kind {
                10 => 6,
                11 => 7,
                kind => kind as usize,
            }];
            *value = interesting(rng).to_le_bytes()[..width].to_vec();
        }
        1 => {
            let number =
                *choose(&[0.0, -1.0, 1e-30, 1e30, f32::NAN, f32::INFINITY, 0.5], rng).unwrap_or(&0.0);
            (entry.kind, *value) = (6, number.to_le_bytes().to_vec());
        }
        2 => (entry.kind, *value) = (7, vec![rng.u8(..3)]),
        3 => {
            let words = [
                "", "llama", "gpt2", "gemma3", "deepseek2", "mamba2", "yarn", "qwen2", "{{ x }}", "\u{2581}a",
            ];
            (entry.kind, *value) = (8, text(choose(&words, rng).unwrap_or(&"").as_bytes()));
        }
        // A whole number stays one.
        4 if matches!(entry.kind, 4 | 5) => {
            let most = 1 << rng.u8(..=20);
            *value = rng.u32(..=most).to_le_bytes().to_vec();
        }
        // The count of an array.
        5 if entry.kind == 9 => put(value, 4, interesting(rng)),
        6 => entry.key = bytes::mutate(&entry.key, b".count", rng),
        _ => *value = bytes::mutate(value, b"\x08\0\0\0\0\0\0\0", rng),
    }
}

fn change_tensor(tensor: &mut Tensor, names: &[Vec<u8>], rng: &mut Rng) {
    match rng.u8(..6) {
        0 => {
            tensor.kind = *choose(&[0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 16, 20, 23, 24, 30, 39, 40], rng)
                .unwrap_or(&0)
        }
        1 => tensor.offset = if rng.bool() { interesting(rng) as u64 } else { 32 * rng.u64(..4096) },
        2 => drop(tensor.sizes.pop()),
        3 => tensor.sizes.push(1 << rng.u8(..4)),
        4 => tensor.name = choose(names, rng).cloned().unwrap_or_default(),
        _ => {
            let number = if rng.bool() { interesting(rng) as u64 } else { 32 * rng.u64(..64) };
            let at = rng.usize(..tensor.sizes.len().max(1));
            if let Some(size) = tensor.sizes.get_mut(at) {
                *size = number;
            }
        }
    }
}

/// Writes a number over eight bytes, as far as they are there.
fn put(bytes: &mut [u8], at: usize, number: i128) {
    for (byte, new) in bytes.iter_mut().skip(at).zip(number.to_le_bytes()).take(8) {
        *byte = new;
    }
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

impl<'b> File<'b> {
    fn parse(file: &'b [u8]) -> Option<Self> {
        let mut rest = file.strip_prefix(b"GGUF\x03\0\0\0")?;
        let (tensors, entries) = (number(&mut rest)?, number(&mut rest)?);
        let mut this = Self { entries: Vec::new(), tensors: Vec::new(), data: &[] };
        for _ in 0..entries {
            let key = string(&mut rest)?.to_vec();
            let kind = small(&mut rest)?;
            let start = rest;
            skip(kind, &mut rest)?;
            let value = start.get(..start.len() - rest.len())?;
            this.entries.push(Entry { key, kind, value: value.into() });
        }
        for _ in 0..tensors {
            let name = string(&mut rest)?.to_vec();
            let rank = small(&mut rest)?;
            let sizes = (0..rank.min(8)).map(|_| number(&mut rest)).collect::<Option<_>>()?;
            let (kind, offset) = (small(&mut rest)?, number(&mut rest)?);
            this.tensors.push(Tensor { name, sizes, kind, offset });
        }
        let begin = (file.len() - rest.len()).next_multiple_of(32);
        this.data = file.get(begin..).unwrap_or_default();
        Some(this)
    }

    fn write(&self) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.entries.len() as u64).to_le_bytes());
        for Entry { key, kind, value } in &self.entries {
            file.extend(text(key));
            file.extend(kind.to_le_bytes());
            file.extend(&value[..]);
        }
        for Tensor { name, sizes, kind, offset } in &self.tensors {
            file.extend(text(name));
            file.extend((sizes.len() as u32).to_le_bytes());
            file.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
        }
        file.resize(file.len().next_multiple_of(32), 0);
        [&file, self.data].concat()
    }
}

fn take<'b>(rest: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, behind) = rest.split_at_checked(count)?;
    *rest = behind;
    Some(taken)
}

fn small(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?))
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?))
}

fn string<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = usize::try_from(number(rest)?).ok()?;
    take(rest, length)
}

/// Goes behind a value of a kind.
fn skip(kind: u32, rest: &mut &[u8]) -> Option<()> {
    const WIDTHS: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
    match kind {
        8 => string(rest).map(drop),
        9 => {
            let (kind, count) = (small(rest)?, number(rest)?);
            if kind == 8 {
                return (0..count).try_for_each(|_| string(rest).map(drop));
            }
            let width = *WIDTHS.get(kind as usize).filter(|width| **width > 0)?;
            take(rest, usize::try_from(count).ok()?.checked_mul(width)?).map(drop)
        }
        kind => take(rest, *WIDTHS.get(kind as usize)?).map(drop),
    }
}
