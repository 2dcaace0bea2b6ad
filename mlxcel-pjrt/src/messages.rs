//! XLA's protocol buffers, as far as they are written and read here; fields are numbered as in
//! `compile_options.proto`, `xla_data.proto` and `hlo.proto`.

use std::collections::BTreeMap;

use mlxcel_core::{Error, ErrorKind, Result};
use prost::{Message, Oneof};

use crate::collectives::Collective;
use crate::options::OptionValue;

/// What programs are compiled with: `devices` are the numbers of the devices that share a program, each a
/// partition of it; `overrides` the compiler's own options by name (`xla_…`), each replacing its default.
pub(crate) fn compile_options(devices: &[i32], overrides: &[(String, OptionValue)]) -> Vec<u8> {
    let computation = |device: &i32| ComputationDevice { replica_device_ids: vec![i64::from(*device)] };
    let build = BuildOptions {
        // No single device: the assignment says which.
        device_ordinal: -1,
        replicas: 1,
        partitions: devices.len() as i64,
        use_spmd_partitioning: devices.len() > 1,
        device_assignment: Some(DeviceAssignment {
            replicas: 1,
            computations: devices.len() as i32,
            computation_devices: devices.iter().map(computation).collect(),
        }),
    };
    let value = |value: &OptionValue| match value {
        OptionValue::Text(text) => Value::Text(text.clone()),
        OptionValue::Bool(value) => Value::Bool(*value),
        OptionValue::Int(value) => Value::Int(*value),
        OptionValue::Float(value) => Value::Double(f64::from(*value)),
    };
    let overrides = overrides.iter().map(|(name, of)| (name.clone(), Override { value: Some(value(of)) }));
    CompileOptions { build: Some(build), overrides: overrides.collect() }.encode_to_vec()
}

/// The collectives of an `HloModuleProtoWithConfig`, in the order of the program.
/// Fails with [`ErrorKind::Corrupt`] if the bytes are not such a message.
pub(crate) fn collectives(module: &[u8]) -> Result<Vec<Collective>> {
    let module = HloModuleWithConfig::decode(module).map_err(|error| {
        let message = "the plugin returned the compiled program in an unknown format";
        Error::new(ErrorKind::Corrupt, "inspect program", message).with_source(error)
    })?;
    let computations = module.module.into_iter().flat_map(|module| module.computations);
    Ok(computations
        .flat_map(|computation| computation.instructions)
        .filter_map(Instruction::collective)
        .collect())
}

#[derive(Clone, PartialEq, Message)]
struct CompileOptions {
    #[prost(message, optional, tag = "3")]
    build: Option<BuildOptions>,
    #[prost(btree_map = "string, message", tag = "7")]
    overrides: BTreeMap<String, Override>,
}

#[derive(Clone, PartialEq, Message)]
struct BuildOptions {
    #[prost(int64, tag = "1")]
    device_ordinal: i64,
    #[prost(int64, tag = "4")]
    replicas: i64,
    #[prost(int64, tag = "5")]
    partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignment>,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceAssignment {
    #[prost(int32, tag = "1")]
    replicas: i32,
    #[prost(int32, tag = "2")]
    computations: i32,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

#[derive(Clone, PartialEq, Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Override {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

#[derive(Clone, PartialEq, Message)]
struct HloModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    module: Option<HloModule>,
}

#[derive(Clone, PartialEq, Message)]
struct HloModule {
    #[prost(message, repeated, tag = "3")]
    computations: Vec<Computation>,
}

#[derive(Clone, PartialEq, Message)]
struct Computation {
    #[prost(message, repeated, tag = "2")]
    instructions: Vec<Instruction>,
}

#[derive(Clone, PartialEq, Message)]
struct Instruction {
    #[prost(string, tag = "2")]
    opcode: String,
    #[prost(message, optional, tag = "3")]
    shape: Option<Shape>,
}

impl Instruction {
    fn collective(self) -> Option<Collective> {
        /// Operations whose names begin like this move data; those that end in `-done` wait for another.
        const NAMES: [&str; 5] =
            ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"];
        let moves = NAMES.iter().any(|name| self.opcode.starts_with(name)) && !self.opcode.ends_with("-done");
        let operation = moves.then(|| self.opcode.trim_end_matches("-start").to_owned())?;
        Some(Collective { operation, bytes: self.shape.map_or(0, |shape| shape.bytes()) })
    }
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(int32, tag = "2")]
    element: i32,
    #[prost(int64, repeated, tag = "3")]
    dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    tuple: Vec<Shape>,
}

impl Shape {
    fn bytes(&self) -> u64 {
        // Numbers of `PrimitiveType`; a tuple has no elements of its own.
        let element = match self.element {
            3 | 7 | 10 | 16 => 2,
            4 | 8 | 11 => 4,
            5 | 9 | 12 | 15 => 8,
            13 => 0,
            _ => 1,
        };
        let own = self
            .dimensions
            .iter()
            .fold(element, |bytes: u64, size| bytes.saturating_mul(size.unsigned_abs()));
        self.tuple.iter().fold(own, |bytes, part| bytes.saturating_add(part.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hexadecimal(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn compile_options_are_those_that_xla_writes() {
        // Fields 1, 4, 5, 6 and 9 of what jaxlib 0.10.2 serializes for four partitions on these devices.
        let build = "08ffffffffffffffffff01200128043001";
        let assignment = "4a18080110041a030a01051a030a01061a030a01071a030a0109";
        let options = compile_options(&[5, 6, 7, 9], &[]);
        assert_eq!(hexadecimal(&options), format!("1a2b{build}{assignment}"));
        // Its overrides.
        let overrides = [
            ("b".to_owned(), OptionValue::Bool(true)),
            ("d".to_owned(), OptionValue::Float(1.5)),
            ("i".to_owned(), OptionValue::Int(7)),
            ("xla_cpu_foo".to_owned(), OptionValue::Text("bar".to_owned())),
        ];
        let expected = "3a070a0162120210013a0e0a0164120921000000000000f83f3a070a0169120218073a140a0b786c615f6370755f666f6f12050a03626172";
        assert!(hexadecimal(&compile_options(&[0], &overrides)).ends_with(expected));
    }

    #[test]
    fn collectives_are_read_with_their_bytes() {
        // An instruction with opcode and shape f32[2,3], in a computation, in a module.
        let instruction = |opcode: &str| {
            let shape = [0x10, 11, 0x1a, 2, 2, 3];
            let opcode = [&[0x12, opcode.len() as u8], opcode.as_bytes()].concat();
            let message = [&opcode[..], &[0x1a, shape.len() as u8], &shape].concat();
            [&[0x12, message.len() as u8], &message[..]].concat()
        };
        let computation =
            ["add", "all-reduce", "all-gather-start", "all-gather-done"].map(instruction).concat();
        let module = [&[0x1a, computation.len() as u8], &computation[..]].concat();
        let whole = [&[0x0a, module.len() as u8], &module[..]].concat();
        let collective = |operation: &str| Collective { operation: operation.to_owned(), bytes: 24 };
        assert_eq!(collectives(&whole).unwrap(), [collective("all-reduce"), collective("all-gather")]);
        assert_eq!(collectives(&whole[..whole.len() - 1]).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(collectives(&[0xff; 12]).is_err());
    }
}
