//! The names of the composites that the helpers make, for engines that replace them.

/// [`Builder::linear`](crate::Builder::linear): `x: [.., K]`, `weight: [N, K]` and perhaps `bias: [N]` to `[.., N]`. No
/// attributes.
pub const LINEAR: &str = "mlxcel.linear";

/// [`Builder::rms_norm`](crate::Builder::rms_norm): `x: [.., H]` and `weight: [H]` to `[.., H]`. Attribute `eps`, a float.
pub const RMS_NORM: &str = "mlxcel.rms_norm";

/// [`Builder::attention`](crate::Builder::attention): `q: [H, T, d]`, `k: [G, S, d]`, `v: [G, S, e]` and `mask: [T, S]` to
/// `[T, H * e]`. Attribute `scale`, a float.
pub const ATTENTION: &str = "mlxcel.attention";
