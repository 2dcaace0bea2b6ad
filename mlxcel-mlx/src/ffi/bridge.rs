//! The functions of `cpp/bridge.h`, as cxx binds them. Each one that may throw returns a `Result`.

// For the macro's expanded code.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments, missing_docs, unreachable_pub)]

use super::region::Region;

#[cxx::bridge(namespace = "mlxcel")]
pub(crate) mod sys {
    /// An element type.
    #[repr(u8)]
    #[derive(Debug)]
    enum ElementCode {
        Bool,
        U8,
        U16,
        U32,
        U64,
        I8,
        I16,
        I32,
        I64,
        F16,
        BF16,
        F32,
        F64,
    }

    /// An operation on each element of one array.
    #[repr(u8)]
    #[derive(Debug)]
    enum UnaryCode {
        Erf,
        Exp,
        Negative,
        Sigmoid,
        Sqrt,
        Square,
        Tanh,
    }

    /// An operation on the elements of two arrays, broadcast against each other.
    #[repr(u8)]
    #[derive(Debug)]
    enum BinaryCode {
        Add,
        Subtract,
        Multiply,
        Divide,
        Maximum,
        Minimum,
        LogAddExp,
        Equal,
        Less,
        LessEqual,
        Greater,
        GreaterEqual,
        LogicalAnd,
        LogicalOr,
    }

    /// A reduction along axes.
    #[repr(u8)]
    #[derive(Debug)]
    enum ReduceCode {
        LogSumExp,
        Max,
        Sum,
    }

    extern "Rust" {
        type Region;
    }

    // SAFETY: functions declared without `unsafe` here are sound to call with any arguments. Functions of
    // `cpp/bridge.cc` check lengths, and MLX checks ranks, shapes and types of arrays when an operation
    // is created: they throw, and cxx makes each function that may throw return a `Result`. Arrays are
    // reference-counted and owned by `UniquePtr`; as none of them is `Send`, they stay on their thread.
    // Indices are values, which the C++ side does not check (`take`, `take_along_axis`, `put_along_axis`,
    // `scatter_add_axis`, `gather_mm`, `gather_qmm`): token ids are checked against the vocabulary before a
    // row runs, all other indices come from operations whose results are within an axis (`argmax`,
    // `argsort`, `arange`).
    unsafe extern "C++" {
        include!("mlxcel-mlx/cpp/bridge.h");

        /// `mlx::core::array`: a node of the graph, with its data once it is evaluated.
        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type Tensor;
        /// Several arrays.
        type Arrays;

        fn library_version() -> Result<String>;
        fn initialize(memory_limit: usize) -> Result<()>;
        fn device_count(gpu: bool) -> Result<i32>;
        fn use_device(gpu: bool) -> Result<()>;

        fn arrays_new() -> Result<UniquePtr<Arrays>>;
        fn arrays_push(list: Pin<&mut Arrays>, item: &Tensor) -> Result<()>;
        fn arrays_len(list: &Arrays) -> usize;
        fn arrays_get(list: &Arrays, index: usize) -> Result<UniquePtr<Tensor>>;

        fn duplicate(a: &Tensor) -> UniquePtr<Tensor>;
        fn element_of(a: &Tensor) -> Result<ElementCode>;
        fn dimension_count(a: &Tensor) -> usize;
        fn dimension(a: &Tensor, axis: usize) -> Result<i32>;
        fn byte_count(a: &Tensor) -> usize;
        #[allow(dead_code, reason = "only tests check where memory is reused")]
        fn data_address(a: &Tensor) -> Result<usize>;

        fn from_bytes(bytes: &[u8], shape: &[i32], element: ElementCode) -> Result<UniquePtr<Tensor>>;
        /// # Safety
        /// `region` keeps `bytes` alive, unchanged and at their address.
        unsafe fn from_region(
            region: Box<Region>,
            bytes: &[u8],
            shape: &[i32],
            element: ElementCode,
        ) -> Result<UniquePtr<Tensor>>;
        fn scalar(value: f32, element: ElementCode) -> Result<UniquePtr<Tensor>>;
        fn full(shape: &[i32], value: f32, element: ElementCode) -> Result<UniquePtr<Tensor>>;
        fn arange(start: i32, stop: i32, element: ElementCode) -> Result<UniquePtr<Tensor>>;
        fn evaluate(list: &Arrays) -> Result<()>;
        fn evaluate_async(list: &Arrays) -> Result<()>;
        fn read(a: &Tensor, out: &mut [u8]) -> Result<()>;

        fn astype(a: &Tensor, element: ElementCode) -> Result<UniquePtr<Tensor>>;
        fn reinterpret(a: &Tensor, element: ElementCode) -> Result<UniquePtr<Tensor>>;
        fn reshape(a: &Tensor, shape: &[i32]) -> Result<UniquePtr<Tensor>>;
        fn transpose(a: &Tensor, axes: &[i32]) -> Result<UniquePtr<Tensor>>;
        fn expand_dims(a: &Tensor, axes: &[i32]) -> Result<UniquePtr<Tensor>>;
        fn squeeze(a: &Tensor, axes: &[i32]) -> Result<UniquePtr<Tensor>>;
        fn broadcast_to(a: &Tensor, shape: &[i32]) -> Result<UniquePtr<Tensor>>;
        fn concatenate(list: &Arrays, axis: i32) -> Result<UniquePtr<Tensor>>;
        fn contiguous(a: &Tensor) -> Result<UniquePtr<Tensor>>;

        fn slice(a: &Tensor, start: &[i32], stop: &[i32], strides: &[i32]) -> Result<UniquePtr<Tensor>>;
        fn slice_update(
            a: &Tensor,
            update: &Tensor,
            start: &[i32],
            stop: &[i32],
            strides: &[i32],
        ) -> Result<UniquePtr<Tensor>>;
        fn take(a: &Tensor, indices: &Tensor, axis: i32) -> Result<UniquePtr<Tensor>>;
        fn take_along_axis(a: &Tensor, indices: &Tensor, axis: i32) -> Result<UniquePtr<Tensor>>;
        fn put_along_axis(
            a: &Tensor,
            indices: &Tensor,
            values: &Tensor,
            axis: i32,
        ) -> Result<UniquePtr<Tensor>>;
        fn scatter_add_axis(
            a: &Tensor,
            indices: &Tensor,
            values: &Tensor,
            axis: i32,
        ) -> Result<UniquePtr<Tensor>>;

        fn unary(code: UnaryCode, a: &Tensor) -> Result<UniquePtr<Tensor>>;
        fn binary(code: BinaryCode, a: &Tensor, b: &Tensor) -> Result<UniquePtr<Tensor>>;
        fn select(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<UniquePtr<Tensor>>;
        fn matmul(a: &Tensor, b: &Tensor) -> Result<UniquePtr<Tensor>>;
        fn gather_mm(a: &Tensor, b: &Tensor, indices: &Tensor, sorted: bool) -> Result<UniquePtr<Tensor>>;

        fn reduce(code: ReduceCode, a: &Tensor, axes: &[i32], keep: bool) -> Result<UniquePtr<Tensor>>;
        fn softmax(a: &Tensor, axis: i32) -> Result<UniquePtr<Tensor>>;
        fn argmax(a: &Tensor, axis: i32, keep: bool) -> Result<UniquePtr<Tensor>>;
        fn cumsum(a: &Tensor, axis: i32, inclusive: bool) -> Result<UniquePtr<Tensor>>;
        fn sort(a: &Tensor, axis: i32) -> Result<UniquePtr<Tensor>>;
        fn argsort(a: &Tensor, axis: i32) -> Result<UniquePtr<Tensor>>;
        fn partition(a: &Tensor, kth: i32, axis: i32) -> Result<UniquePtr<Tensor>>;

        /// # Safety
        /// Pointers are null or to live arrays.
        unsafe fn rms_norm(x: &Tensor, weight: *const Tensor, eps: f32) -> Result<UniquePtr<Tensor>>;
        /// # Safety
        /// Pointers are null or to live arrays.
        unsafe fn layer_norm(
            x: &Tensor,
            weight: *const Tensor,
            bias: *const Tensor,
            eps: f32,
        ) -> Result<UniquePtr<Tensor>>;
        fn rope(x: &Tensor, dims: i32, offset: i32, freqs: &Tensor) -> Result<UniquePtr<Tensor>>;
        fn rope_at(x: &Tensor, dims: i32, offset: &Tensor, freqs: &Tensor) -> Result<UniquePtr<Tensor>>;
        /// # Safety
        /// Pointers are null or to live arrays.
        unsafe fn attention(
            queries: &Tensor,
            keys: &Tensor,
            values: &Tensor,
            scale: f32,
            causal: bool,
            mask: *const Tensor,
            sinks: *const Tensor,
        ) -> Result<UniquePtr<Tensor>>;

        fn quantize(w: &Tensor, group_size: i32, bits: i32, mode: &str) -> Result<UniquePtr<Arrays>>;
        /// # Safety
        /// Pointers are null or to live arrays.
        unsafe fn dequantize(
            w: &Tensor,
            scales: &Tensor,
            biases: *const Tensor,
            group_size: i32,
            bits: i32,
            mode: &str,
            element: ElementCode,
        ) -> Result<UniquePtr<Tensor>>;
        /// # Safety
        /// Pointers are null or to live arrays.
        unsafe fn quantized_matmul(
            x: &Tensor,
            w: &Tensor,
            scales: &Tensor,
            biases: *const Tensor,
            transposed: bool,
            group_size: i32,
            bits: i32,
            mode: &str,
        ) -> Result<UniquePtr<Tensor>>;
        /// # Safety
        /// Pointers are null or to live arrays.
        unsafe fn gather_qmm(
            x: &Tensor,
            w: &Tensor,
            scales: &Tensor,
            biases: *const Tensor,
            indices: &Tensor,
            transposed: bool,
            group_size: i32,
            bits: i32,
            mode: &str,
            sorted: bool,
        ) -> Result<UniquePtr<Tensor>>;
    }
}
