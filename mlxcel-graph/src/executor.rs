//! What an engine supplies to run decoder graphs.

use std::time::Duration;

use mlxcel_core::{CancelToken, Result};

use crate::shape::ProgramShape;

/// Runs decoder programs and keeps KV caches where it computes.
///
/// # Contract
///
/// *For implementers*: caches are zero when allocated. `run` may give a cache's storage to the program and put what comes back
/// in its place; after an error the caches of that run are not used again. Calls on one executor come from many threads.
pub trait Executor: Send + Sync + 'static {
    /// The KV cache of one sequence: a tensor of [`KvLayout::shape`].
    type Cache: Send;

    /// Makes the program for `shape` ready to run, if it is not: this is where compiling happens. Gives the time it took to
    /// compile, zero where nothing was.
    ///
    /// # Errors
    ///
    /// Of kind `Toolchain`, `Compile`, `Cancelled` and such; no sequence is harmed by them.
    fn prepare(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Duration>;

    /// A cache of zeros with room for `length` positions.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` where memory is short.
    fn allocate(&self, layout: &KvLayout, length: usize) -> Result<Self::Cache>;

    /// Copies the first `positions` of `from` to `to`; both may have room for more.
    ///
    /// # Errors
    ///
    /// `Device` where the device fails.
    fn copy(
        &self,
        layout: &KvLayout,
        from: (&Self::Cache, usize),
        to: (&mut Self::Cache, usize),
        positions: usize,
    ) -> Result<()>;

    /// Reads the first `positions` of a cache of `length`, segment after segment.
    ///
    /// # Errors
    ///
    /// `Device` where the device fails.
    fn read(
        &self,
        layout: &KvLayout,
        cache: &Self::Cache,
        length: usize,
        positions: usize,
    ) -> Result<Vec<u8>>;

    /// Writes what [`read`](Self::read) gave into a cache of `length`.
    ///
    /// # Errors
    ///
    /// `Device` where the device fails.
    fn write(
        &self,
        layout: &KvLayout,
        cache: &mut Self::Cache,
        length: usize,
        positions: usize,
        bytes: &[u8],
    ) -> Result<()>;

    /// Runs the program for `shape`, which [`prepare`](Self::prepare) made ready, over one cache a row; the program writes the
    /// rows' keys and values into them. `logits` lists the output rows whose logits are wanted.
    ///
    /// # Errors
    ///
    /// `Device` and such: the caches are then in an unknown state.
    fn run(
        &self,
        shape: &ProgramShape,
        inputs: &StepInputs,
        caches: &mut [&mut Self::Cache],
        logits: &[usize],
    ) -> Result<StepOutputs>;
}

/// The small inputs of one pass, as the program takes them; weights and caches are the executor's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepInputs {
    /// `[tokens]`: the token ids of all rows, each row padded to its room.
    pub tokens: Vec<i32>,
    /// `[rows]`: the position of each row's first token.
    pub positions: Vec<i32>,
    /// `[rows]`: the index, among the tokens of all rows, of each row's last token that is no padding.
    pub last: Vec<i32>,
    /// For each rotary embedding of the network, cosines and sines, `[tokens, rotary_dim / 2]` each.
    pub rotary: Vec<(Vec<f32>, Vec<f32>)>,
}

impl StepInputs {
    /// The inputs as bytes in the order of the program's arguments.
    pub fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        let integers = [&self.tokens, &self.positions, &self.last].map(|values| bytemuck::cast_slice(values));
        let tables =
            self.rotary.iter().flat_map(|(cos, sin)| [bytemuck::cast_slice(cos), bytemuck::cast_slice(sin)]);
        integers.into_iter().chain(tables)
    }

    /// The bytes of all inputs.
    pub fn bytes(&self) -> usize {
        self.arguments().map(<[u8]>::len).sum()
    }
}

/// What one pass gives, an entry an output row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutputs {
    /// The likeliest token and its natural log probability.
    pub best: Vec<(u32, f32)>,
    /// The logits (`[vocabulary]`) of the output rows that were asked for, in that order.
    pub logits: Vec<Vec<f32>>,
}

impl StepOutputs {
    /// Reads the program's first result: `[output rows, 2]` 32-bit words, token and log probability by turns.
    pub fn decode_best(words: &[u32]) -> Vec<(u32, f32)> {
        words.chunks_exact(2).map(|pair| (pair[0], f32::from_bits(pair[1]))).collect()
    }
}

/// How a KV cache lies in memory: `[layers, 2, kv_heads, length, head_dim]`, keys then values. In 8 bits, four bytes follow the
/// values of each position: the float32 that they are multiples of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// How many layers keep keys and values.
    pub layers: usize,
    /// How many key/value heads each has.
    pub kv_heads: usize,
    /// The size of a head.
    pub head_dim: usize,
    /// The element type.
    pub element: mlxcel_stablehlo::ElementType,
}

/// A contiguous part of two caches that hold the same positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSegment {
    /// Where it starts in the one, in bytes.
    pub from: usize,
    /// Where it starts in the other, in bytes.
    pub to: usize,
    /// How long it is, in bytes.
    pub bytes: usize,
}

impl KvLayout {
    /// The shape of a cache with room for `length` positions.
    pub fn shape(&self, length: usize) -> [usize; 5] {
        [self.layers, 2, self.kv_heads, length, self.row_width()]
    }

    /// The bytes of a cache with room for `length` positions.
    pub fn bytes(&self, length: usize) -> usize {
        self.segments() * length * self.row_bytes()
    }

    /// The parts that make up the first `positions` of a cache of `from` positions and of one of `to`. A packed copy is a
    /// cache of exactly `positions`.
    pub fn copy_segments(
        &self,
        from: usize,
        to: usize,
        positions: usize,
    ) -> impl Iterator<Item = KvSegment> + use<> {
        let row = self.row_bytes();
        (0..self.segments()).map(move |i| KvSegment {
            from: i * from * row,
            to: i * to * row,
            bytes: positions * row,
        })
    }

    fn segments(&self) -> usize {
        self.layers * 2 * self.kv_heads
    }

    fn row_bytes(&self) -> usize {
        self.element.bytes_for(self.row_width())
    }

    /// The elements of one position, head and part: in 8 bits, a scale of four bytes stands behind the values.
    fn row_width(&self) -> usize {
        match self.element {
            mlxcel_stablehlo::ElementType::I8 => self.head_dim + 4,
            _ => self.head_dim,
        }
    }
}
