//! The runtime against small compiled programs, on both local devices.

mod threads;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use mlxcel_core::ErrorKind;
use mlxcel_iree_compile::compiler::{CompileOptions, Compiler};
use mlxcel_iree_target::CompileBackends;
use mlxcel_stablehlo::ElementType::{self, F32, I32};

use super::device::MAX_THREADS;
use super::*;

const PROGRAM: &str = r#"
module @test {
  func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @update(%cache: tensor<1024x64xf32> {tf.aliasing_output = 0 : i32}, %row: tensor<1x64xf32>, %at: tensor<i32>)
      -> (tensor<1024x64xf32>, tensor<f32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %f = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.dynamic_update_slice %cache, %row, %at, %zero
        : (tensor<1024x64xf32>, tensor<1x64xf32>, tensor<i32>, tensor<i32>) -> tensor<1024x64xf32>
    %1 = stablehlo.reduce(%0 init: %f) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<1024x64xf32>, tensor<f32>) -> tensor<f32>
    return %0, %1 : tensor<1024x64xf32>, tensor<f32>
  }
  func.func @same(%a: tensor<4xf32>) -> tensor<4xf32> {
    return %a : tensor<4xf32>
  }
  func.func @table() -> tensor<4xi32> {
    %0 = stablehlo.constant dense<[5, 6, 7, 8]> : tensor<4xi32>
    return %0 : tensor<4xi32>
  }
  func.func @types(%a: tensor<3xi8>, %b: tensor<3xui8>, %c: tensor<3xi1>, %d: tensor<3xui32>, %e: tensor<3xi64>,
                   %f: tensor<3xbf16>, %g: tensor<3xf16>)
      -> (tensor<3xi8>, tensor<3xui8>, tensor<3xi1>, tensor<3xui32>, tensor<3xi64>, tensor<3xbf16>, tensor<3xf16>) {
    %0 = stablehlo.add %a, %a : tensor<3xi8>
    %1 = stablehlo.add %b, %b : tensor<3xui8>
    %2 = stablehlo.not %c : tensor<3xi1>
    %3 = stablehlo.add %d, %d : tensor<3xui32>
    %4 = stablehlo.add %e, %e : tensor<3xi64>
    %5 = stablehlo.add %f, %f : tensor<3xbf16>
    %6 = stablehlo.add %g, %g : tensor<3xf16>
    return %0, %1, %2, %3, %4, %5, %6
        : tensor<3xi8>, tensor<3xui8>, tensor<3xi1>, tensor<3xui32>, tensor<3xi64>, tensor<3xbf16>, tensor<3xf16>
  }
}
"#;

/// The program above, compiled once for all tests.
pub(super) fn vmfb() -> &'static [u8] {
    static VMFB: OnceLock<Vec<u8>> = OnceLock::new();
    VMFB.get_or_init(|| {
        let compiler = Compiler::locate(None).expect("no IREE compiler: run `cargo xtask setup`");
        let target = CompileBackends::builtin().resolve(&"llvm-cpu:host".parse().unwrap()).unwrap();
        compiler.compile(PROGRAM, &CompileOptions::new(target), None).unwrap()
    })
}

/// The processor in its two ways, and as a device with memory of its own.
fn devices() -> [Device; 3] {
    let open = |driver| Device::open(&DeviceOptions { driver, ..Default::default() }).unwrap();
    [open(Driver::LocalTask), open(Driver::LocalSync), Device::open_apart().unwrap()]
}

fn function(device: &Device, name: &str) -> Function {
    Program::load(device, vmfb()).unwrap().function(name).unwrap()
}

fn upload(device: &Device, values: &[f32]) -> Buffer {
    device.upload(bytemuck::cast_slice(values)).unwrap()
}

fn floats(buffer: &Buffer) -> Vec<f32> {
    let mut values = vec![0f32; buffer.size() / 4];
    buffer.read(0, bytemuck::cast_slice_mut(&mut values)).unwrap();
    values
}

fn add(function: &Function, a: &Buffer, b: &Buffer) -> Vec<f32> {
    let arguments = [Argument::new(a, &[4], F32), Argument::new(b, &[4], F32)];
    let outputs = function.invoke(&Constants::default(), &arguments).unwrap();
    assert_eq!(outputs.len(), 1);
    assert_eq!(outputs[0].ty.shape, [4]);
    assert_eq!(outputs[0].ty.element, F32);
    floats(&outputs[0].buffer)
}

/// Writes `row` into `cache` at a position: the cache, and the sum of its elements.
fn updated(update: &Function, [cache, row]: [&Buffer; 2], at: i32) -> [Output; 2] {
    let at = cache.device().upload(&at.to_le_bytes()).unwrap();
    let arguments = [
        Argument::new(cache, &[1024, 64], F32),
        Argument::new(row, &[1, 64], F32),
        Argument::new(&at, &[], I32),
    ];
    update.invoke(&Constants::default(), &arguments).unwrap().try_into().unwrap()
}

#[test]
fn a_program_computes_on_every_device() {
    for device in devices() {
        let add_function = function(&device, "add");
        assert_eq!(add_function.argument_count(), 2);
        let (a, b) = (upload(&device, &[1.0, 2.0, 3.0, 4.0]), upload(&device, &[10.0, 20.0, 30.0, 40.0]));
        assert_eq!(add(&add_function, &a, &b), [11.0, 22.0, 33.0, 44.0]);
    }
}

#[test]
fn an_updated_argument_is_returned_in_place() {
    for device in devices() {
        let update = function(&device, "update");
        let mut cache = device.allocate(1024 * 64 * 4).unwrap();
        let address_of_cache = cache.clone();
        for step in 0..5 {
            let row = upload(&device, &[1.0; 64]);
            let [updated, sum] = updated(&update, [&cache, &row], step * 7);
            assert!(updated.buffer.shares_storage_with(&address_of_cache), "updated in place");
            assert!(!sum.buffer.shares_storage_with(&address_of_cache));
            assert_eq!(updated.buffer.storage_offset(), 0);
            assert_eq!(floats(&sum.buffer), [64.0 * (step + 1) as f32]);
            cache = updated.buffer;
        }
        let values = floats(&cache);
        assert_eq!(values[14 * 64], 1.0);
        assert_eq!(values[15 * 64], 0.0);
    }
}

#[test]
fn constants_are_prepared_once_and_serve_many_calls() {
    for device in devices() {
        let add_function = function(&device, "add");
        let weight = upload(&device, &[1.0, 2.0, 3.0, 4.0]);
        let constants = Constants::new(&[Argument::new(&weight, &[4], F32)]).unwrap();
        drop(weight);
        for call in 0..10 {
            let b = upload(&device, &[call as f32; 4]);
            let outputs = add_function.invoke(&constants, &[Argument::new(&b, &[4], F32)]).unwrap();
            let expected: Vec<f32> = (1..=4).map(|value| (value + call) as f32).collect();
            assert_eq!(floats(&outputs[0].buffer), expected);
        }
    }
}

#[test]
fn every_element_type_keeps_its_code() {
    for device in devices() {
        let types = function(&device, "types");
        let elements = [
            ElementType::I8,
            ElementType::U8,
            ElementType::I1,
            ElementType::U32,
            ElementType::I64,
            ElementType::BF16,
            ElementType::F16,
        ];
        let buffers: Vec<Buffer> =
            elements.iter().map(|element| device.allocate(element.bytes_for(3)).unwrap()).collect();
        let arguments: Vec<Argument<'_>> = buffers
            .iter()
            .zip(elements)
            .map(|(buffer, element)| Argument::new(buffer, &[3], element))
            .collect();
        let outputs = types.invoke(&Constants::default(), &arguments).unwrap();
        for (output, element) in outputs.iter().zip(elements) {
            assert_eq!(output.ty.element, element);
            assert_eq!(output.buffer.size(), element.bytes_for(3));
        }
    }
}

#[test]
fn part_of_a_buffer_is_an_argument() {
    for device in devices() {
        let add_function = function(&device, "add");
        let both = device.allocate(128).unwrap();
        both.write(0, bytemuck::cast_slice(&[1f32; 4])).unwrap();
        both.write(64, bytemuck::cast_slice(&[2f32; 4])).unwrap();
        let second = Argument { buffer: &both, offset: 64, shape: &[4], element: F32 };
        let outputs =
            add_function.invoke(&Constants::default(), &[Argument::new(&both, &[4], F32), second]).unwrap();
        assert_eq!(floats(&outputs[0].buffer), [3.0; 4]);

        let unaligned = Argument { offset: 16, ..second };
        let error = add_function.invoke(&Constants::default(), &[unaligned, second]).unwrap_err().error;
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("64 bytes"), "{error}");
    }
}

#[test]
fn wrong_arguments_are_errors() {
    for device in devices() {
        let add_function = function(&device, "add");
        let a = upload(&device, &[0.0; 4]);
        let small = upload(&device, &[0.0; 2]);
        let none = Constants::default();
        let one = [Argument::new(&a, &[4], F32)];
        let error = add_function.invoke(&none, &one).unwrap_err().error;
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!((error.context("takes"), error.context("given")), (Some("2"), Some("1")));

        for wrong in [
            Argument::new(&a, &[2, 2], F32),
            Argument::new(&a, &[3], F32),
            Argument::new(&a, &[4], I32),
            Argument::new(&a, &[], F32),
            Argument::new(&small, &[4], F32),
            Argument::new(&a, &[usize::MAX, 2], F32),
            Argument { buffer: &a, offset: usize::MAX - 63, shape: &[4], element: F32 },
        ] {
            let error = add_function.invoke(&none, &[one[0], wrong]).unwrap_err().error;
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{wrong:?}: {error}");
        }
        assert_eq!(add(&add_function, &a, &a), [0.0; 4], "the program still works");
    }
}

#[test]
fn errors_keep_irees_message() {
    let [device, ..] = devices();
    let add_function = function(&device, "add");
    let a = upload(&device, &[0.0; 4]);
    let arguments = [Argument::new(&a, &[4], F32), Argument::new(&a, &[2, 2], F32)];
    let error = add_function.invoke(&Constants::default(), &arguments).unwrap_err().error;
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("input1") && source.contains("INVALID_ARGUMENT"), "{source}");
}

#[test]
fn buffers_of_another_device_are_refused() {
    let [one, other, _] = devices();
    let add_function = function(&one, "add");
    let (a, b) = (upload(&one, &[0.0; 4]), upload(&other, &[0.0; 4]));
    let arguments = [Argument::new(&a, &[4], F32), Argument::new(&b, &[4], F32)];
    let error = add_function.invoke(&Constants::default(), &arguments).unwrap_err().error;
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(a.copy_to(0, &b, 0, 16).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_missing_function_is_named() {
    let [device, ..] = devices();
    let error = Program::load(&device, vmfb()).unwrap().function("nope").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.context("function"), Some("nope"));
}

#[test]
fn damaged_programs_are_refused() {
    let [device, ..] = devices();
    let good = vmfb();
    let mut damaged: Vec<Vec<u8>> =
        vec![Vec::new(), vec![0; 64], vec![0xff; 4096], b"not a program".to_vec()];
    for part in 1..16 {
        damaged.push(good[..good.len() * part / 16].to_vec());
    }
    // The flatbuffer's table of contents, byte by byte: it may survive (padding), it must not crash.
    for bytes in &damaged {
        let error = Program::load(&device, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{} bytes: {error}", bytes.len());
    }
    for at in (0..good.len().min(512)).step_by(3) {
        let mut bytes = good.to_vec();
        bytes[at] ^= 0x5a;
        let _ = Program::load(&device, &bytes);
    }
}

#[test]
fn buffers_round_trip_bytes() {
    for device in devices() {
        let buffer = device.allocate(100).unwrap();
        let mut all = [1u8; 100];
        buffer.read(0, &mut all).unwrap();
        assert_eq!(all, [0; 100], "memory is zeroed");
        buffer.write(90, &[7; 10]).unwrap();
        let mut tail = [0; 12];
        buffer.read(88, &mut tail).unwrap();
        assert_eq!(tail, [0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);

        let other = device.allocate(64).unwrap();
        buffer.copy_to(90, &other, 1, 10).unwrap();
        let mut head = [0; 12];
        other.read(0, &mut head).unwrap();
        assert_eq!(head, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);

        for error in [
            buffer.write(91, &[0; 10]).unwrap_err(),
            buffer.read(usize::MAX, &mut [0; 2]).unwrap_err(),
            buffer.copy_to(95, &other, 0, 6).unwrap_err(),
            buffer.copy_to(0, &other, 60, 5).unwrap_err(),
            buffer.copy_to(0, &buffer, 5, 10).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(device.allocate(0).unwrap().size(), 0);
        assert_eq!(device.allocate(usize::MAX / 2).unwrap_err().kind(), ErrorKind::ResourceExhausted);
    }
}

#[test]
fn large_uploads_are_complete() {
    let bytes: Vec<u8> = (0..(33 << 20) + 77).map(|index: usize| (index % 251) as u8).collect();
    let mut back = vec![0; bytes.len()];
    for device in devices() {
        device.upload(&bytes).unwrap().read(0, &mut back).unwrap();
        assert!(back == bytes);
        device.allocate(bytes.len()).unwrap().read(0, &mut back).unwrap();
        assert!(back.iter().all(|&byte| byte == 0));
    }
}

/// Bytes at an aligned address, which count their ends.
struct Counted {
    bytes: Vec<u8>,
    start: usize,
    ends: Arc<AtomicUsize>,
}

impl Counted {
    fn new(values: &[f32], ends: &Arc<AtomicUsize>) -> Self {
        let mut bytes = vec![0; values.len() * 4 + 2 * ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        bytes[start..start + values.len() * 4].copy_from_slice(bytemuck::cast_slice(values));
        Self { bytes, start, ends: Arc::clone(ends) }
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.ends.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn imported_memory_is_used_in_place_and_released_once() {
    let [task, sync, _] = devices();
    for device in [task, sync] {
        let ends = Arc::new(AtomicUsize::new(0));
        let memory = Arc::new(Counted::new(&[1.0, 2.0, 3.0, 4.0], &ends));
        let imported = device.import(&memory, 0..16).unwrap();
        assert!(imported.is_read_only());
        assert_eq!(Arc::strong_count(&memory), 2);
        drop(memory);

        let add_function = function(&device, "add");
        let constants = Constants::new(&[Argument::new(&imported, &[4], F32)]).unwrap();
        let b = upload(&device, &[1.0; 4]);
        let outputs = add_function.invoke(&constants, &[Argument::new(&b, &[4], F32)]).unwrap();
        assert_eq!(floats(&outputs[0].buffer), [2.0, 3.0, 4.0, 5.0]);

        let arguments = [Argument::new(&b, &[4], F32), Argument::new(&imported, &[4], F32)];
        let error = add_function.invoke(&Constants::default(), &arguments).unwrap_err().error;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "only a constant may be read-only");
        assert_eq!(imported.write(0, &[0]).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(b.copy_to(0, &imported, 0, 4).unwrap_err().kind(), ErrorKind::InvalidInput);

        drop(imported);
        assert_eq!(ends.load(Ordering::SeqCst), 0, "the constants hold it");
        drop((constants, outputs));
        assert_eq!(ends.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_result_that_is_an_imported_constant_is_read_only_too() {
    let [task, sync, _] = devices();
    for device in [task, sync] {
        let memory = Arc::new(Counted::new(&[1.0, 2.0, 3.0, 4.0], &Arc::default()));
        let imported = device.import(&memory, 0..16).unwrap();
        let constants = Constants::new(&[Argument::new(&imported, &[4], F32)]).unwrap();
        let outputs = function(&device, "same").invoke(&constants, &[]).unwrap();
        let result = &outputs[0].buffer;
        assert!(result.shares_storage_with(&imported));
        assert!(result.is_read_only());
        assert_eq!(result.write(0, &[0]).unwrap_err().kind(), ErrorKind::InvalidInput);
        let again =
            function(&device, "same").invoke(&Constants::default(), &[Argument::new(result, &[4], F32)]);
        assert_eq!(again.unwrap_err().error.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn imported_memory_is_copied_to_a_device_with_its_own() {
    let [.., apart] = devices();
    let ends = Arc::new(AtomicUsize::new(0));
    let memory = Arc::new(Counted::new(&[1.0, 2.0, 3.0, 4.0], &ends));
    let imported = apart.import(&memory, 0..16).unwrap();
    drop(memory);
    assert_eq!(ends.load(Ordering::SeqCst), 1, "it is not needed any more");
    assert!(!imported.is_read_only());
    assert_eq!(floats(&imported), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(apart.import(&Arc::new([0u8; 4]), 0..0).unwrap().size(), 0);
}

#[test]
fn unaligned_memory_is_copied() {
    let [device, ..] = devices();
    let ends = Arc::new(AtomicUsize::new(0));
    let memory = Arc::new(Counted::new(&[1.0, 2.0, 3.0, 4.0], &ends));
    let copied = device.import(&memory, 4..12).unwrap();
    assert!(!copied.is_read_only());
    assert_eq!(floats(&copied), [2.0, 3.0]);
    assert_eq!(Arc::strong_count(&memory), 1);
    assert_eq!(device.import(&memory, 0..usize::MAX).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn everything_may_be_dropped_in_any_order() {
    for device in devices() {
        let program = Program::load(&device, vmfb()).unwrap();
        let table = program.function("table").unwrap();
        let add_function = program.function("add").unwrap();
        let a = upload(&device, &[1.0; 4]);
        drop((device, program));
        let sum = add_function
            .invoke(&Constants::default(), &[Argument::new(&a, &[4], F32), Argument::new(&a, &[4], F32)])
            .unwrap();
        let constant = table.invoke(&Constants::default(), &[]).unwrap();
        drop((a, table, add_function));
        assert_eq!(floats(&sum[0].buffer), [2.0; 4]);
        let mut values = [0i32; 4];
        constant[0].buffer.read(0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        assert_eq!(values, [5, 6, 7, 8], "a result that may lie in the program's file");
    }
}

#[test]
fn an_unknown_device_lists_the_known_ones() {
    assert_eq!("local-sync".parse::<Driver>().unwrap(), Driver::LocalSync);
    let error = "tpu".parse::<Driver>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.context("known").unwrap().starts_with("local-task, local-sync"));
}

#[test]
fn a_device_that_was_left_out_names_its_feature() {
    for driver in [Driver::Cuda, Driver::Vulkan] {
        match driver.name().parse::<Driver>() {
            Ok(parsed) => assert!(parsed == driver && driver.is_built_in()),
            Err(error) => {
                assert!(!driver.is_built_in());
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.message().contains(&format!("feature `{driver}`")), "{error}");
            }
        }
    }
}

#[test]
fn a_topology_has_room_for_as_many_threads_as_the_options_document() {
    let topology = Box::<sys::iree_task_topology_t>::default();
    // SAFETY: the topology is all zero, which is one without groups; its capacity is asked for, and nothing
    // else.
    let capacity = unsafe { sys::iree_task_topology_group_capacity(&*topology) };
    assert_eq!(capacity, MAX_THREADS);
    assert_eq!(capacity, topology.groups.len());
}

#[test]
fn the_runtime_is_of_the_release_that_programs_are_compiled_for() {
    assert_eq!(mlxcel_iree_sys::VERSION, mlxcel_iree_target::RELEASE);
}
