//! `CompileOptionsProto`, XLA's options of a compilation, encoded as a protocol buffer.

use crate::options::OptionValue;

/// What a program is compiled with.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompileOptions<'a> {
    /// The numbers of the devices that share the program, each a partition of it.
    pub(crate) devices: &'a [i32],
    /// The compiler's own options by name (`xla_…`), each in the place of its default.
    pub(crate) overrides: &'a [(String, OptionValue)],
}

/// Fields of a message, in the wire format of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn int(&mut self, field: u64, value: i64) {
        self.varint(field << 3);
        self.varint(value.cast_unsigned());
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }
}

impl CompileOptions<'_> {
    /// The message as bytes. Fields are numbered as in XLA's `compile_options.proto`.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let partitions = self.devices.len() as i64;
        let mut build = Message::default();
        // No single device: the assignment below says which.
        build.int(1, -1);
        build.int(4, 1);
        build.int(5, partitions);
        if partitions > 1 {
            build.int(6, 1);
        }
        let mut assignment = Message::default();
        assignment.int(1, 1);
        assignment.int(2, partitions);
        for device in self.devices {
            // A packed list of the one replica's device.
            let (mut list, mut computation) = (Message::default(), Message::default());
            list.varint(i64::from(*device).cast_unsigned());
            computation.bytes(1, &list.0);
            assignment.bytes(3, &computation.0);
        }
        build.bytes(9, &assignment.0);
        let mut message = Message::default();
        message.bytes(3, &build.0);
        for (name, value) in self.overrides {
            let (mut entry, mut field) = (Message::default(), Message::default());
            match value {
                OptionValue::Text(text) => field.bytes(1, text.as_bytes()),
                OptionValue::Bool(value) => field.int(2, i64::from(*value)),
                OptionValue::Int(value) => field.int(3, *value),
                OptionValue::Float(value) => field.double(4, f64::from(*value)),
            }
            entry.bytes(1, name.as_bytes());
            entry.bytes(2, &field.0);
            message.bytes(7, &entry.0);
        }
        message.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hexadecimal(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn messages_are_those_that_xla_writes() {
        // Fields 1, 4, 5, 6 and 9 of what jaxlib 0.10.2 serializes for four partitions on these devices.
        let options = CompileOptions { devices: &[5, 6, 7, 9], overrides: &[] };
        let build = "08ffffffffffffffffff01200128043001";
        let assignment = "4a18080110041a030a01051a030a01061a030a01071a030a0109";
        assert_eq!(hexadecimal(&options.encode()), format!("1a2b{build}{assignment}"));
        // Its overrides.
        let overrides = [
            ("b".to_owned(), OptionValue::Bool(true)),
            ("d".to_owned(), OptionValue::Float(1.5)),
            ("i".to_owned(), OptionValue::Int(7)),
            ("xla_cpu_foo".to_owned(), OptionValue::Text("bar".to_owned())),
        ];
        let options = CompileOptions { devices: &[0], overrides: &overrides };
        let expected = "3a070a0162120210013a0e0a0164120921000000000000f83f3a070a0169120218073a140a0b786c615f6370755f666f6f12050a03626172";
        assert!(hexadecimal(&options.encode()).ends_with(expected));
    }
}
