//! Sixteen consecutive codes of one row, and their values, for lookups and rows without a panel.

use mlxcel_models::Packing;
use mlxcel_models::packing::Code;

use super::extent::{Extent, SmallFloat};
use crate::layout::Planes;
use crate::writer::Writer;

/// The codes that are processed at once.
pub(super) const TOGETHER: usize = 16;

const SIXTEEN: Extent = Extent::Vector(TOGETHER);

/// The codes of a bit stream, given as a vector with as many 16-bit elements as a code has bits.
pub(super) fn of_stream(w: &mut Writer, stream: &str, bits: usize) -> String {
    let (stored, integers) = (format!("vector<{bits}xi16>"), SIXTEEN.ty("i32"));
    let first = |code: usize| code * bits / 16;
    let mut taken = |above: usize| {
        let places: Vec<usize> = (0..TOGETHER).map(|code| (first(code) + above).min(bits - 1)).collect();
        let halves = w
            .set("halves", format_args!("vector.shuffle {stream}, {stream} {places:?} : {stored}, {stored}"));
        SIXTEEN.cast(w, "extui", &halves, "i16", "i32")
    };
    let mut window = taken(0);
    if 16 % bits != 0 {
        let above = taken(1);
        let sixteen = SIXTEEN.constant(w, 16, "i32");
        let above = w.arith("above", "shli", &above, &sixteen, &integers);
        window = w.arith("window", "ori", &window, &above, &integers);
    }
    let shifts: Vec<usize> = (0..TOGETHER).map(|code| code * bits % 16).collect();
    bits_of(w, &window, &shifts, bits)
}

/// Codes from `first` on of consecutive units in a panel, given the words of those units in a lane.
pub(super) fn of_words(w: &mut Writer, words: &[String], planes: Planes, first: usize) -> String {
    let integers = SIXTEEN.ty("i32");
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
    let place = SIXTEEN.constant(w, planes.low, "i32");
    let high = w.arith("high", "shli", &high, &place, &integers);
    w.arith("codes", "ori", &codes, &high, &integers)
}

/// `bits` bits of each word, from a bit of its own on.
fn of_places(w: &mut Writer, words: &[String], places: &[(usize, usize)], bits: usize) -> String {
    let mut used: Vec<usize> = places.iter().map(|(word, _)| *word).collect();
    used.dedup();
    let integers = SIXTEEN.ty("i32");
    let window = if let [one] = used[..] {
        w.set("word", format_args!("vector.broadcast {} : i32 to {integers}", words[one]))
    } else {
        let names: Vec<&str> = used.iter().map(|&word| &*words[word]).collect();
        let ty = format!("vector<{}xi32>", used.len());
        let several = w.set("words", format_args!("vector.from_elements {} : {ty}", names.join(", ")));
        let from: Vec<usize> =
            places.iter().filter_map(|(word, _)| used.iter().position(|used| used == word)).collect();
        w.set("words", format_args!("vector.shuffle {several}, {several} {from:?} : {ty}, {ty}"))
    };
    let shifts: Vec<usize> = places.iter().map(|(_, bit)| *bit).collect();
    bits_of(w, &window, &shifts, bits)
}

/// `bits` bits of each element, from a bit of its own on.
fn bits_of(w: &mut Writer, window: &str, shifts: &[usize], bits: usize) -> String {
    let integers = SIXTEEN.ty("i32");
    let shifts = w.constant(format!("dense<{shifts:?}>"), &integers);
    let shifted = w.arith("shifted", "shrui", window, &shifts, &integers);
    let mask = SIXTEEN.constant(w, (1u32 << bits) - 1, "i32");
    w.arith("codes", "andi", &shifted, &mask, &integers)
}

/// The values of codes, in float32.
pub(super) fn numbers(w: &mut Writer, codes: &str, packing: Packing) -> String {
    let (integers, floats) = (SIXTEEN.ty("i32"), SIXTEEN.ty("f32"));
    let kind = match packing.code {
        Code::Integer { zero } => {
            let zero = SIXTEEN.constant(w, zero, "i32");
            let number = w.arith("number", "subi", codes, &zero, &integers);
            return SIXTEEN.cast(w, "sitofp", &number, "i32", "f32");
        }
        Code::E2M1 | Code::Iq4Nl => {
            let table = packing.code.numbers(packing.bits);
            let start = SIXTEEN.float(w, table.first().copied().unwrap_or_default());
            return table.iter().enumerate().skip(1).fold(start, |numbers, (code, &number)| {
                let (code, number) = (SIXTEEN.constant(w, code, "i32"), SIXTEEN.float(w, number));
                let is = w.set("is", format_args!("arith.cmpi eq, {codes}, {code} : {integers}"));
                let is_type = SIXTEEN.ty("i1");
                w.set("number", format_args!("arith.select {is}, {number}, {numbers} : {is_type}, {floats}"))
            });
        }
        Code::E4M3 => SmallFloat::E4M3,
        Code::E5M2 => SmallFloat::E5M2,
    };
    let eight = SIXTEEN.constant(w, 8, "i32");
    let high = w.arith("high", "shli", codes, &eight, &integers);
    let high = SIXTEEN.cast(w, "trunci", &high, "i32", "i16");
    let number = SIXTEEN.small_float(w, &high, kind);
    let factor = SIXTEEN.float(w, kind.factor());
    w.arith("number", "mulf", &number, &factor, &floats)
}
