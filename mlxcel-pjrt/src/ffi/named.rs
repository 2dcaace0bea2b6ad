//! Values with names, as plugins take and give them.

use std::ffi::{c_char, c_int};
use std::slice;

use super::sys;
use crate::options::OptionValue;

/// Options as the plugin reads them; they borrow what they were made of.
pub(super) fn to_plugin(options: &[(String, OptionValue)]) -> Vec<sys::NamedValue> {
    let one = |(name, value): &(String, OptionValue)| {
        let (kind, bits, size): (c_int, u64, usize) = match value {
            OptionValue::Text(text) => (sys::STRING, text.as_ptr() as u64, text.len()),
            OptionValue::Int(value) => (sys::INT64, value.cast_unsigned(), 1),
            OptionValue::Float(value) => (sys::FLOAT, u64::from(value.to_bits()), 1),
            OptionValue::Bool(value) => (sys::BOOL, u64::from(*value), 1),
        };
        sys::NamedValue {
            name: name.as_ptr().cast::<c_char>(),
            name_size: name.len(),
            kind,
            value: bits,
            value_size: size,
            ..Default::default()
        }
    };
    options.iter().map(one).collect()
}

/// Values that a plugin reports, with lists of numbers as text.
///
/// # Safety
/// `values` points to `count` values that the plugin gave and that live.
pub(super) unsafe fn from_plugin(values: *const sys::NamedValue, count: usize) -> Vec<(String, OptionValue)> {
    let mut named = Vec::with_capacity(count);
    // SAFETY: the caller's promise; names and values live as long as the list does.
    for value in unsafe { list(values, count) } {
        // SAFETY: a name is `name_size` bytes; a text or a list is a pointer to `value_size` elements.
        let (name, value) = unsafe {
            let name = text(value.name, value.name_size);
            let value = match value.kind {
                sys::STRING => OptionValue::Text(text(value.value as *const c_char, value.value_size)),
                sys::INT64 => OptionValue::Int(value.value.cast_signed()),
                sys::FLOAT => OptionValue::Float(f32::from_bits(value.value as u32)),
                sys::BOOL => OptionValue::Bool(value.value & 0xff != 0),
                _ => {
                    let numbers = list(value.value as *const i64, value.value_size);
                    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
                    OptionValue::Text(numbers.join("."))
                }
            };
            (name, value)
        };
        named.push((name, value));
    }
    named
}

/// # Safety
/// `bytes` is null, or points to `size` bytes.
pub(super) unsafe fn text(bytes: *const c_char, size: usize) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { list(bytes.cast::<u8>(), size) }).into_owned()
}

/// What a pointer and a count mean in C: nothing where the pointer is null.
///
/// # Safety
/// `first` is null, or points to `count` values that live and do not change as long as the list is used.
pub(super) unsafe fn list<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if first.is_null() { &[] } else { unsafe { slice::from_raw_parts(first, count) } }
}
