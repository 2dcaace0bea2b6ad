//! Sixteen consecutive codes of one row, and their values, for lookups and rows without a panel.

use mlxcel_models::Packing;
use mlxcel_models::packing::Code;

use super::small_float::SmallFloat;
use crate::layout::Planes;
use crate::value::{Operand, Type};
use crate::writer::Writer;

/// The codes that are processed at once.
pub(super) const TOGETHER: usize = 16;

/// The type of [`TOGETHER`] codes.
const CODES: Type = Type::vector(TOGETHER, "i32");

/// The codes of a bit stream, given as a vector with as many 16-bit elements as a code has bits.
pub(super) fn of_stream(w: &mut Writer, stream: &Operand, bits: usize) -> Operand {
    let first = |code: usize| code * bits / 16;
    let mut taken = |above: usize| {
        let places: Vec<usize> = (0..TOGETHER).map(|code| (first(code) + above).min(bits - 1)).collect();
        let halves = w.shuffle("halves", stream, stream, &places);
        w.cast("cast", "extui", &halves, "i32")
    };
    let mut window = taken(0);
    if 16 % bits != 0 {
        let above = taken(1);
        let sixteen = w.constant(16, CODES);
        let above = w.arith("above", "shli", &above, &sixteen);
        window = w.arith("window", "ori", &window, &above);
    }
    let shifts: Vec<usize> = (0..TOGETHER).map(|code| code * bits % 16).collect();
    bits_of(w, &window, &shifts, bits)
}

/// Codes from `first` on of consecutive units in a panel, given the words of those units in a lane.
pub(super) fn of_words(w: &mut Writer, words: &[Operand], planes: Planes, first: usize) -> Operand {
    let unit =
        |code: usize| ((first + code) / planes.codes() * planes.words(), (first + code) % planes.codes());
    let low: Vec<(usize, usize)> = (0..TOGETHER)
        .map(|code| {
            let (start, code) = unit(code);
            let (word, bit) = planes.low_bit(code);
            (start + word, bit)
        })
        .collect();
    let codes = of_places(w, words, &low, planes.low);
    if planes.high == 0 {
        return codes;
    }
    let high: Vec<(usize, usize)> = (0..TOGETHER)
        .map(|code| {
            let (start, code) = unit(code);
            (start + planes.words() - 1, planes.high_bit(code))
        })
        .collect();
    let high = of_places(w, words, &high, planes.high);
    let place = w.constant(planes.low, CODES);
    let high = w.arith("high", "shli", &high, &place);
    w.arith("codes", "ori", &codes, &high)
}

/// `bits` bits of each word, from a bit of its own on.
fn of_places(w: &mut Writer, words: &[Operand], places: &[(usize, usize)], bits: usize) -> Operand {
    let mut used: Vec<usize> = places.iter().map(|(word, _)| *word).collect();
    used.dedup();
    let window = if let [one] = used[..] {
        w.broadcast("word", &words[one], TOGETHER)
    } else {
        let several: Vec<Operand> = used.iter().map(|&word| words[word].clone()).collect();
        let several = w.elements("words", &several);
        let from: Vec<usize> =
            places.iter().filter_map(|(word, _)| used.iter().position(|used| used == word)).collect();
        w.shuffle("words", &several, &several, &from)
    };
    let shifts: Vec<usize> = places.iter().map(|(_, bit)| *bit).collect();
    bits_of(w, &window, &shifts, bits)
}

/// `bits` bits of each element, from a bit of its own on.
fn bits_of(w: &mut Writer, window: &Operand, shifts: &[usize], bits: usize) -> Operand {
    let shifts = w.constant(format_args!("{shifts:?}"), CODES);
    let shifted = w.arith("shifted", "shrui", window, &shifts);
    let mask = w.constant((1u32 << bits) - 1, CODES);
    w.arith("codes", "andi", &shifted, &mask)
}

/// The values of codes, in float32.
pub(super) fn numbers(w: &mut Writer, codes: &Operand, packing: Packing) -> Operand {
    let floats = CODES.of("f32");
    let kind = match packing.code {
        Code::Integer { zero } => {
            let zero = w.constant(zero, CODES);
            let number = w.arith("number", "subi", codes, &zero);
            return w.cast("cast", "sitofp", &number, "f32");
        }
        Code::E2M1 | Code::Iq4Nl => {
            let table = packing.code.numbers(packing.bits);
            let start = w.float(table.first().copied().unwrap_or_default(), floats);
            return table.iter().enumerate().skip(1).fold(start, |numbers, (code, &number)| {
                let (code, number) = (w.constant(code, CODES), w.float(number, floats));
                let is = w.compare("is", "eq", codes, &code);
                w.select("number", &is, &number, &numbers)
            });
        }
        Code::E4M3 => SmallFloat::E4M3,
        Code::E5M2 => SmallFloat::E5M2,
    };
    let eight = w.constant(8, CODES);
    let high = w.arith("high", "shli", codes, &eight);
    let high = w.cast("cast", "trunci", &high, "i16");
    let number = kind.widened(w, &high);
    let factor = w.float(kind.factor(), floats);
    w.arith("number", "mulf", &number, &factor)
}
