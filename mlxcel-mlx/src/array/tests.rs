use std::error::Error as _;
use std::sync::Arc;

use mlxcel_core::ErrorKind;

use super::*;
use crate::device::Device;

fn row(values: &[f32]) -> Array {
    Device::Cpu.select().unwrap();
    Array::from_slice(values, &[1, values.len()]).unwrap()
}

#[test]
fn the_cpu_device_is_available() {
    assert_eq!(Device::Cpu.count().unwrap(), 1);
}

#[test]
fn arrays_round_trip_values() {
    let a = row(&[1.0, 2.0, 3.0]);
    assert_eq!((a.shape(), a.dim(-1), a.rank(), a.byte_len()), (vec![1, 3], 3, 2, 12));
    assert_eq!(a.dtype().unwrap(), DType::F32);
    assert_eq!(a.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(a.transpose(&[1, 0]).unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    let b = a.astype(DType::BF16).unwrap();
    assert_eq!(b.to_vec::<half::bf16>().unwrap(), [1.0, 2.0, 3.0].map(half::bf16::from_f32));
    assert_eq!(a.sum(&[0, 1], false).unwrap().to_vec::<f32>().unwrap(), [6.0]);
    assert_eq!(a.to_vec::<i32>().unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(format!("{a:?}"), "Array { shape: [1, 3], dtype: F32 }");
}

#[test]
fn errors_keep_mlxs_message() {
    let error = row(&[1.0, 2.0]).matmul(&row(&[1.0, 2.0, 3.0])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    let words = error.source().unwrap().to_string();
    assert!(words.contains("[matmul]") && words.contains("(1,2)"), "{words}");
}

#[test]
fn out_of_memory_is_an_error_and_the_engine_continues() {
    Device::Cpu.select().unwrap();
    let counted = |len: i32| Array::arange(0, len, DType::F32).unwrap();
    let column = counted(1 << 21).reshape(&[1 << 21, 1]).unwrap();
    let sum = column.add(&counted(1 << 22)).unwrap();
    assert_eq!(sum.byte_len(), 1 << 45);
    // More often than MLX has concurrent tasks: a failed one must not be counted forever.
    for _ in 0..40 {
        let (small, sum) = (counted(9).exp().unwrap(), sum.negative().unwrap());
        let error = eval([&small, &sum]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error:?}");
        assert_eq!(eval_async([&small, &sum]).unwrap_err().kind(), ErrorKind::ResourceExhausted);
    }
    drop((sum, column));
    // Failed allocations do not count as memory in use.
    assert_eq!(row(&[1.0, 2.0]).exp().unwrap().to_vec::<f32>().unwrap()[0], 1f32.exp());
}

#[test]
fn borrowed_memory_is_used_in_place_and_released() {
    Device::Cpu.select().unwrap();
    struct Lent(Vec<f32>);
    impl AsRef<[u8]> for Lent {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }
    let lent = Arc::new(Lent((0..4096).map(|i| i as f32).collect()));
    let a = Array::from_shared(&lent, &[64, 64], DType::F32).unwrap();
    assert_eq!(Arc::strong_count(&lent), 2);
    // An operation may overwrite an operand without other owners, but not this one.
    let row = a.slice(&[1, 0], &[2, 64]).unwrap();
    assert_eq!(row.to_vec::<f32>().unwrap(), (64..128).map(|i| i as f32).collect::<Vec<_>>());
    let negative = a.negative().unwrap();
    drop((a, row));
    assert_eq!(negative.to_vec::<f32>().unwrap()[77], -77.0);
    drop(negative);
    assert_eq!(lent.0[77], 77.0);
    assert_eq!(Arc::strong_count(&lent), 1);
}

#[test]
fn a_shape_must_match_its_values() {
    Device::Cpu.select().unwrap();
    let error = Array::from_slice(&[1.0f32], &[2]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(Array::from_slice(&[1.0f32], &[usize::MAX, 2]).is_err());
}

#[test]
fn packed_products_match_the_dequantized_weight() {
    Device::Cpu.select().unwrap();
    let weight: Vec<f32> = (0..8 * 64).map(|i| ((i * 37) % 64) as f32 / 32.0 - 1.0).collect();
    let weight = Array::from_slice(&weight, &[8, 64]).unwrap();
    let x = Array::from_slice(&(0..64).map(|i| (i as f32).sin()).collect::<Vec<_>>(), &[1, 64]).unwrap();
    for (mode, group, bits) in [
        (Mode::Affine, 64, 4),
        (Mode::Affine, 32, 8),
        (Mode::Mxfp4, 32, 4),
        (Mode::Mxfp8, 32, 8),
        (Mode::Nvfp4, 16, 4),
    ] {
        let packed = Packed::quantize(&weight, group, bits, mode).unwrap();
        assert_eq!(packed.biases.is_some(), mode == Mode::Affine);
        let values = packed.dequantize(DType::F32).unwrap();
        let expected = x.matmul(&values.transpose(&[1, 0]).unwrap()).unwrap().to_vec::<f32>().unwrap();
        let product = packed.multiply(&x, true).unwrap().to_vec::<f32>().unwrap();
        for (a, b) in product.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-4, "{mode:?}: {a} {b}");
        }
    }
    assert!(Packed::quantize(&weight, 48, 4, Mode::Affine).is_err());
}
