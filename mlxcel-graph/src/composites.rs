//! The names of every composite that this crate makes, for engines that replace them.
//!
//! A composite is one operation with a decomposition into plain operations that defines exactly what it
//! computes. The functions of [`layers`](crate::layers), [`packed`](crate::packed) and
//! [`cached`](crate::cached) make them; a compiler that does not know a name compiles the decomposition.

use mlxcel_stablehlo::Attribute;

/// The attribute `rows`: the number of tokens of each row with commas between.
pub(crate) fn rows_attribute(rows: &[usize]) -> (String, Attribute) {
    let tokens = rows.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    ("rows".to_owned(), Attribute::Text(tokens))
}

/// [`layers::linear`](crate::layers::linear): `x: [.., K]`, `weight: [N, K]` and perhaps `bias: [N]` to `[..,
/// N]`. No attributes.
pub const LINEAR: &str = "mlxcel.linear";

/// [`packed::packed_linear`](crate::packed::packed_linear): `x: [.., K]`, the parts of a weight `[N, K]` and
/// perhaps `bias: [N]` to `[.., N]`. Attribute `packing`, a text.
pub const PACKED_LINEAR: &str = "mlxcel.packed_linear";

/// [`layers::expert_linear`](crate::layers::expert_linear): `x: [R, B, K]` or `[1, B, K]`, `weight: [E, N,
/// K]`, `experts: [R]` i32 and perhaps `bias: [E, N]` to `[R, B, N]`. No attributes.
pub const EXPERT_LINEAR: &str = "mlxcel.expert_linear";

/// [`packed::packed_expert_linear`](crate::packed::packed_expert_linear): `x: [R, B, K]` or `[1, B, K]`, the
/// parts of weights `[E, N, K]`, `experts: [R]` i32 and perhaps `bias: [E, N]` to `[R, B, N]`. Attribute
/// `packing`, a text.
pub const PACKED_EXPERT_LINEAR: &str = "mlxcel.packed_expert_linear";

/// [`layers::embedding`](crate::layers::embedding): `table: [V, H]` and integer `ids` of any shape to
/// `[..ids, H]` f32. No attributes.
pub const EMBEDDING: &str = "mlxcel.embedding";

/// [`packed::packed_embedding`](crate::packed::packed_embedding): the parts of a table `[V, H]` and integer
/// `ids` of any shape to `[..ids, H]` f32. Attribute `packing`, a text.
pub const PACKED_EMBEDDING: &str = "mlxcel.packed_embedding";

/// [`layers::rms_norm`](crate::layers::rms_norm): `x: [.., H]` and `weight: [H]` to `[.., H]`. Attribute
/// `eps`, a float.
pub const RMS_NORM: &str = "mlxcel.rms_norm";

/// [`layers::top_k`](crate::layers::top_k): `x: [T, E]` to values `[T, k]` and indices `[T, k]` i32.
/// Attribute `k`, an integer.
pub const TOP_K: &str = "mlxcel.top_k";

/// [`layers::attention`](crate::layers::attention): `q: [H, T, d]`, `k: [G, S, d]`, `v: [G, S, e]` and `mask:
/// [T, S]` to `[T, H * e]`. Attribute `scale`, a float.
///
/// Inside decompositions it can have the attribute `soft_cap`, a float, and more operands, each marked by an
/// attribute of its name: `biases: [D, H]` f32 and `sinks: [H]`.
pub const ATTENTION: &str = "mlxcel.attention";

/// [`layers::text_attention`](crate::layers::text_attention): `query: [N, H, d]`, `key` and `value: [N, G,
/// d]`, all f32, the `firsts` and `ends: [N]` i32 of the tokens' texts, and perhaps `biases: [D, H]` f32 and
/// `sinks: [H]` of floats to `[N, H * d]`. Attribute `scale`, a float. Where they apply: `soft_cap`, a float;
/// `window`, an integer; `sinks` and `biases`, true where there are such; `alibi`, true where the distance of
/// tokens lowers scores. There are no kernels for the last two.
pub const TEXT_ATTENTION: &str = "mlxcel.text_attention";

/// [`cached::cached_attention`](crate::cached::cached_attention): `query: [N, H, d]`, `key` and `value: [N,
/// G, d]`, perhaps `cos` and `sin: [N, r/2]`, all f32, `positions: [rows]` i32, perhaps `sinks: [H]` of
/// floats, and a cache `[layers, 2, G, length, w]` a row to `[N, H * d]` and the caches.
///
/// Attributes: `layer`, an integer; `rows`, the tokens of each row with commas between; `scale`, a float.
/// Where they apply: `soft_cap`, a float; `window`, an integer, and `chunked`, true where it is the length of
/// chunks; `rotary`, false where there are no `cos` and `sin`; `sinks`, true where there are such.
pub const CACHED_ATTENTION: &str = "mlxcel.cached_attention";

/// [`cached::latent_attention`](crate::cached::latent_attention): `query: [N, H, r + p]`, `entry: [N, r +
/// p]`, `cos` and `sin: [N, p/2]`, all f32, `positions: [rows]` i32 and a cache `[layers, length, r + p]` a
/// row to `[N, H * r]` and the caches. Attributes `layer`, an integer; `rows`, the tokens of each row with
/// commas between; `scale`, a float. If there is the attribute `selected`, true, a mask `[tokens, length]` i1
/// a row follows the caches.
pub const LATENT_ATTENTION: &str = "mlxcel.latent_attention";

/// [`cached::select_positions`](crate::cached::select_positions): `query: [N, H, d]`, `key: [N, d]`,
/// `weights: [N, H]`, all f32, `positions: [rows]` i32 and a cache `[layers, length, d]` a row to the caches,
/// and to a mask `[tokens, length / rate]` i1 a row if there is the attribute `selected`, true. Attributes
/// `layer`, an integer; `rows`, the tokens of each row with commas between; `count`, an integer; `rate`, an
/// integer, if it is not 1.
pub const SELECT_POSITIONS: &str = "mlxcel.select_positions";

/// [`layers::gated_delta_rule`](crate::layers::gated_delta_rule): `query` and `key: [N, Hk, k]`, `value: [N,
/// Hv, v]`, `decay: [N, Hv]` or `[N, Hv, k]`, `beta: [N, Hv]`, all f32, `counts: [rows]` i32 and a state
/// `[layers, Hv, k, v]` f32 a row to `[N, Hv, v]` and the states. Attributes `layer`, an integer; `rows`, the
/// tokens of each row with commas between.
pub const GATED_DELTA_RULE: &str = "mlxcel.gated_delta_rule";

/// [`layers::generalized_delta_rule`](crate::layers::generalized_delta_rule): `query` and `key: [N, H, k]`,
/// `value: [N, H, v]`, `decay`, `removal` and `rewrite: [N, H, k]`, all f32, `counts: [rows]` i32 and a state
/// `[layers, H, k, v]` f32 a row to `[N, H, v]` and the states. Attributes `layer`, an integer; `rows`, the
/// tokens of each row with commas between.
pub const GENERALIZED_DELTA_RULE: &str = "mlxcel.generalized_delta_rule";

/// [`layers::selective_state_space`](crate::layers::selective_state_space): `x: [N, H, p]`, `dt: [N, H]`,
/// `rate: [1, H]` or `[1, H, n]`, `input` and `output: [N, G, n]`, all f32, `counts: [rows]` i32 and a state
/// `[layers, H, p, n]` f32 a row to `[N, H, p]` and the states. Attributes `layer`, an integer; `rows`, the
/// tokens of each row with commas between.
pub const SELECTIVE_STATE_SPACE: &str = "mlxcel.selective_state_space";
