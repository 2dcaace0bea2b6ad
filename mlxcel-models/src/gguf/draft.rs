//! GGUF files for tests, valid and invalid.

/// A file, while it is put together.
#[derive(Clone, Default)]
pub(super) struct Draft {
    alignment: usize,
    entries: Vec<(String, Vec<u8>)>,
    /// Of each tensor all that describes it but the offset, and that, if it is not to follow the one before.
    tensors: Vec<(Vec<u8>, Option<usize>, Vec<u8>)>,
}

/// The kinds of numbers that tests need.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    U32,
    I32,
    F32,
    F64,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::U32 => 4,
            Self::I32 => 5,
            Self::F32 => 6,
            Self::F64 => 12,
        }
    }

    fn bytes(self, number: f64) -> Vec<u8> {
        match self {
            Self::U32 => (number as u32).to_le_bytes().to_vec(),
            Self::I32 => (number as i32).to_le_bytes().to_vec(),
            Self::F32 => (number as f32).to_le_bytes().to_vec(),
            Self::F64 => number.to_le_bytes().to_vec(),
        }
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Draft {
    pub(super) fn new() -> Self {
        Self { alignment: 32, ..Self::default() }
    }

    /// An entry whose value, kind included, are these bytes.
    pub(super) fn raw(&mut self, key: &str, value: &[u8]) -> &mut Self {
        self.entries.push((key.to_owned(), value.to_vec()));
        self
    }

    pub(super) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.raw(key, &[8u32.to_le_bytes().to_vec(), text(value)].concat())
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, &[&7u32.to_le_bytes()[..], &[u8::from(value)]].concat())
    }

    pub(super) fn number(&mut self, key: &str, kind: Kind, value: f64) -> &mut Self {
        self.raw(key, &[kind.number().to_le_bytes().to_vec(), kind.bytes(value)].concat())
    }

    pub(super) fn texts(&mut self, key: &str, values: &[&str]) -> &mut Self {
        self.array(key, 8, values.len(), values.iter().flat_map(|value| text(value)).collect())
    }

    pub(super) fn numbers(&mut self, key: &str, kind: Kind, values: &[f64]) -> &mut Self {
        let bytes = values.iter().flat_map(|value| kind.bytes(*value)).collect();
        self.array(key, kind.number(), values.len(), bytes)
    }

    fn array(&mut self, key: &str, kind: u32, count: usize, bytes: Vec<u8>) -> &mut Self {
        let head = [&9u32.to_le_bytes()[..], &kind.to_le_bytes(), &(count as u64).to_le_bytes()].concat();
        self.raw(key, &[head, bytes].concat())
    }

    /// A tensor of a type's number, its outermost size first.
    pub(super) fn tensor(&mut self, name: &str, ty: u32, shape: &[usize], bytes: &[u8]) -> &mut Self {
        self.tensors.push((describe(name, ty, shape), None, bytes.to_vec()));
        self
    }

    /// A tensor that says it is at this offset, without bytes of its own.
    pub(super) fn tensor_at(&mut self, name: &str, ty: u32, shape: &[usize], offset: usize) -> &mut Self {
        self.tensors.push((describe(name, ty, shape), Some(offset), Vec::new()));
        self
    }

    pub(super) fn aligned(&mut self, alignment: usize) -> &mut Self {
        self.alignment = alignment;
        self
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            file.extend(text(key));
            file.extend(value);
        }
        let mut data = Vec::new();
        for (description, offset, bytes) in &self.tensors {
            data.resize(usize::next_multiple_of(data.len(), self.alignment), 0);
            file.extend(description);
            file.extend((offset.unwrap_or(data.len()) as u64).to_le_bytes());
            data.extend(bytes);
        }
        file.resize(file.len().next_multiple_of(self.alignment), 0);
        [file, data].concat()
    }
}

fn describe(name: &str, ty: u32, shape: &[usize]) -> Vec<u8> {
    let mut bytes = text(name);
    bytes.extend((shape.len() as u32).to_le_bytes());
    bytes.extend(shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
    bytes.extend(ty.to_le_bytes());
    bytes
}
