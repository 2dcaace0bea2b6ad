//! Names of the composites that the helpers make, for engines that replace them.

/// [`Builder::linear`](crate::Builder::linear): `x: [.., K]`, `weight: [N, K]` and perhaps `bias: [N]` to `[.., N]`. No
/// attributes.
pub const LINEAR: &str = "mlxcel.linear";

/// [`Builder::rms_norm`](crate::Builder::rms_norm): `x: [.., H]` and `weight: [H]` to `[.., H]`. Attribute `eps`, a float.
pub const RMS_NORM: &str = "mlxcel.rms_norm";

/// [`Builder::attention`](crate::Builder::attention): `q: [H, T, d]`, `k: [G, S, d]`, `v: [G, S, e]` and `mask: [T, S]` to
/// `[T, H * e]`. Attribute `scale`, a float.
///
/// Inside decompositions it can have the attribute `soft_cap`, a float, and a fifth operand `sinks: [H]`, marked by the
/// attribute `sinks`.
pub const ATTENTION: &str = "mlxcel.attention";

/// [`Builder::embedding`](crate::Builder::embedding): `table: [V, H]` and integer `ids` of any shape to `[..ids, H]` f32. No
/// attributes.
pub const EMBEDDING: &str = "mlxcel.embedding";

/// [`Builder::expert_linear`](crate::Builder::expert_linear): `x: [R, B, K]` or `[1, B, K]`, `weight: [E, N, K]`,
/// `experts: [R]` i32 and perhaps `bias: [E, N]` to `[R, B, N]`. No attributes.
pub const EXPERT_LINEAR: &str = "mlxcel.expert_linear";

/// [`Builder::top_k`](crate::Builder::top_k): `x: [T, E]` to values `[T, k]` and indices `[T, k]` i32. Attribute `k`, an
/// integer.
pub const TOP_K: &str = "mlxcel.top_k";
