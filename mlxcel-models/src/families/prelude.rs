//! What nearly every family uses: config fields, blocks, Llama's structure, and the parts of a description.

pub(super) use mlxcel_core::Result;

pub(super) use super::blocks::{
    AttentionBiases, PROJECTIONS, UNGATED, between_norms, by_head, core, parallel, plain, plain_attention,
    plain_norm, post_norm, pre_norm, sequential,
};
pub(super) use super::outline::Outline;
pub(super) use super::roles::Roles;
pub(super) use super::settings::{
    FULL, LARGEST_CONTEXT, LARGEST_HEAD_COUNT, LARGEST_HEAD_DIM, LARGEST_LAYER_COUNT, LARGEST_VOCABULARY,
    LARGEST_WIDTH, LINEAR, SLIDING, SizeDefaults, Sizes, activation, expect_flag, expect_number,
    expect_shared, expect_text, flag, head_dim, layer_kinds, layer_types, layer_windows, number,
    optional_positive, positive, sliding_windows, window,
};
pub(super) use super::structure::{HEAD_NORMS, MlpForm, Variant};
pub(super) use super::{Conversion, Family};
pub(super) use crate::config::Fields;
pub(super) use crate::decoder::{
    Activation, Attention, AttentionCore, AttentionMask, Block, Decoder, ExpertGroups, Gating, HeadNorm,
    Linear, Mixer, Mlp, Norm, NormKind, NormScope, Operation, Router, Scoring, Selection, SharedExpert,
    WeightRef,
};
pub(super) use crate::rope::{Partial, Rope, RopeSettings};
