//! Integer weights in packings other than MLX's own, converted to its affine mode.
//!
//! MLX's affine mode can multiply the codes of GPTQ, AWQ, compressed-tensors and many GGUF types; their
//! scales and offsets have other formats. Two-level scales are multiplied here, and the number subtracted
//! from codes becomes a bias. In float32 that is exact if factors and zero points together have no more than
//! 24 significant bits, which holds for all of these formats with 16-bit scales.

use mlxcel_core::Result;
use mlxcel_models::packing::{Code, Offset, Scale};
use mlxcel_models::{Packing, Part};

use crate::array::{Array, DType, eval};

/// Scales and biases of groups, as MLX's affine mode takes them.
#[derive(Debug)]
pub(super) struct Parameters {
    pub(super) scales: Array,
    pub(super) biases: Array,
}

/// The number subtracted from every code of a packing that the affine mode supports; none for other packings.
pub(super) fn zero(packing: &Packing) -> Option<u8> {
    let Code::Integer { zero } = packing.code else { return None };
    let scaled = matches!(packing.scale, Scale::Float(_) | Scale::Bytes { .. });
    (scaled && [32, 64, 128].contains(&packing.group_size)).then_some(zero)
}

impl Parameters {
    /// The parameters of a packing with `zero` subtracted from its codes, with its parts as `stored` reads
    /// them. Their type is `rounded` if given; otherwise that of the scales if it is exact, or float32.
    pub(super) fn new(
        packing: &Packing,
        zero: u8,
        rounded: Option<DType>,
        stored: impl Fn(Part) -> Result<Array>,
    ) -> Result<Self> {
        let floats = |part: Part| stored(part)?.astype(DType::F32);
        let scales = match packing.scale {
            Scale::Bytes { groups, .. } => {
                shared(&floats(Part::ScaleFactors)?, &floats(Part::Scales)?, groups)?
            }
            _ => floats(Part::Scales)?,
        };
        let offsets = match packing.offset {
            Offset::None => None,
            Offset::Float(_) => Some(floats(Part::Offsets)?),
            Offset::Zeros => Some(scales.multiply(&floats(Part::Offsets)?)?.negative()?),
            Offset::Bytes { groups, .. } => {
                Some(shared(&floats(Part::OffsetFactors)?, &floats(Part::Offsets)?, groups)?.negative()?)
            }
        };
        let of_zero = scales.multiply_scalar(-f32::from(zero))?;
        let biases = match offsets {
            Some(offsets) => offsets.add(&of_zero)?,
            None => of_zero,
        };
        let stored = match packing.scale {
            Scale::Float(element) => DType::of(element),
            _ => None,
        };
        let dtype = match (rounded, stored) {
            (Some(rounded), _) => rounded,
            (None, Some(stored)) if is_exact(&biases, stored)? => stored,
            _ => DType::F32,
        };
        let parameters = Self { scales: scales.astype(dtype)?, biases: biases.astype(dtype)? };
        eval([&parameters.scales, &parameters.biases])?;
        Ok(parameters)
    }
}

/// Numbers of groups (`[…, n · groups]`), times the factor that each `groups` of them share (`[…, n]`).
fn shared(factors: &Array, numbers: &Array, groups: usize) -> Result<Array> {
    let mut apart = factors.shape();
    apart.push(groups);
    let products = numbers.reshape(&apart)?.multiply(&factors.expand_dims(&[-1])?)?;
    products.reshape(&numbers.shape())
}

/// Whether a type represents all these numbers exactly.
fn is_exact(numbers: &Array, dtype: DType) -> Result<bool> {
    let axes: Vec<i32> = (0..).take(numbers.rank()).collect();
    let lost = numbers.astype(dtype)?.astype(DType::F32)?.subtract(numbers)?.square()?;
    Ok(lost.max(&axes, false)?.to_vec::<f32>()? == [0.0])
}

#[cfg(test)]
mod tests {
    use mlxcel_models::ElementType;

    use super::*;

    fn values(array: &Array) -> Vec<f32> {
        array.astype(DType::F32).unwrap().to_vec().unwrap()
    }

    /// The parameters of a packing, with each part one row of these numbers.
    fn parameters(packing: &str, rounded: Option<DType>, parts: &[(Part, DType, &[f32])]) -> Parameters {
        let packing: Packing = packing.parse().unwrap();
        let stored = |wanted: Part| {
            let (_, dtype, numbers) = parts.iter().find(|(part, ..)| *part == wanted).unwrap();
            Array::from_slice(numbers, &[1, numbers.len()])?.astype(*dtype)
        };
        Parameters::new(&packing, zero(&packing).unwrap(), rounded, stored).unwrap()
    }

    #[test]
    fn zeros_become_biases() {
        let scales: &[f32] = &[0.5, 1.0 + 1.0 / 1024.0];
        let halves = [(Part::Scales, DType::F16, scales)];
        let symmetric = parameters("u4-8/32 f16", None, &halves);
        assert_eq!(symmetric.biases.dtype().unwrap(), DType::F16, "times a power of two");
        assert_eq!(values(&symmetric.biases), [-4.0, -8.0078125]);
        let zeros: &[f32] = &[3.0, 13.0];
        let with_zeros = [halves[0], (Part::Offsets, DType::U8, zeros)];
        let exact = parameters("u4/64 f16 - u8*scale", None, &with_zeros);
        assert_eq!((exact.scales.dtype().unwrap(), values(&exact.scales)), (DType::F32, scales.to_vec()));
        assert_eq!(values(&exact.biases), [-1.5, -13.0 * (1.0 + 1.0 / 1024.0)]);
        let rounded = parameters("u4/64 f16 - u8*scale", Some(DType::F16), &with_zeros);
        assert_eq!(
            (rounded.biases.dtype().unwrap(), values(&rounded.biases)),
            (DType::F16, vec![-1.5, -13.015625])
        );
    }

    #[test]
    fn numbers_beyond_halves_stay_in_float32() {
        let found = parameters("u8-128/32 f16", None, &[(Part::Scales, DType::F16, &[600.0])]);
        assert_eq!((found.biases.dtype().unwrap(), values(&found.biases)), (DType::F32, vec![-76800.0]));
    }

    #[test]
    fn scales_of_two_levels_are_multiplied() {
        let found = parameters(
            "u4/32 u8*f16/2 - u8*f16/2",
            None,
            &[
                (Part::Scales, DType::U8, &[1.0, 2.0, 3.0, 63.0]),
                (Part::ScaleFactors, DType::F16, &[0.5, 0.25]),
                (Part::Offsets, DType::U8, &[4.0, 0.0, 1.0, 5.0]),
                (Part::OffsetFactors, DType::F16, &[2.0, 4.0]),
            ],
        );
        assert_eq!(values(&found.scales), [0.5, 1.0, 0.75, 15.75]);
        assert_eq!(values(&found.biases), [-8.0, 0.0, -4.0, -20.0]);
    }

    #[test]
    fn other_codes_and_groups_are_not_supported() {
        assert_eq!(zero(&Packing::symmetric(4, 8, 128, ElementType::F16)), Some(8));
        for other in ["u6-32/16 i8*f16/16", "iq4nl/32 f16", "e4m3/128 f32", "e2m1/32 e8m0", "u4-8/96 f16"] {
            assert_eq!(zero(&other.parse().unwrap()), None, "{other}");
        }
    }
}
