//! The capabilities of an engine, as data.

use std::fmt;

use crate::adapter::AdapterLimits;
use crate::error::{Error, ErrorKind, Result};
use crate::sampling::SamplingFields;

/// Declares the capabilities, each once, in the order in which they are printed: its name in [`Capability`],
/// its field, type and value in [`Capabilities::new`], and the builder that sets it. Limits, printing,
/// listings and the conformance kit's requirements follow by the type; see [`Claim`].
macro_rules! capabilities {
    ($($(#[doc = $doc:literal])* $name:ident => $field:ident: $type:ty = $least:expr, $with:ident;)*) => {
        /// What an engine supports for a model, known before a session is opened.
        ///
        /// A claimed capability works; an unclaimed one returns [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported). A
        /// wrapper or a test can withdraw capabilities with the same `with_` methods.
        ///
        /// ```
        /// use mlxcel_core::Capabilities;
        ///
        /// let capabilities = Capabilities::new(4, 1024).with_logits(true).with_rewind(true);
        /// assert_eq!(capabilities.to_string(), "sequences 4, batch rows 1, context 1024, generation, logits, rewind");
        /// ```
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct Capabilities {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        /// One of the [`Capabilities`], by name. Prints in words, such as `top logprobs`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Capability {
            $(
                #[doc = concat!("[`Capabilities::", stringify!($field), "`].")]
                $name,
            )*
        }

        impl Capability {
            /// All of them, in the order in which they are printed.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name of the field in [`Capabilities`].
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($field),)*
                }
            }
        }

        impl Capabilities {
            /// The minimum: `sequences` sequences of up to `context` tokens, one row per pass, greedy generation, no other
            /// optional capability.
            pub fn new(sequences: usize, context: usize) -> Self {
                Self { sequences, context, ..Self { $($field: $least),* } }
            }

            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $with(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*

            /// The value of one capability: for listings.
            pub fn value(&self, capability: Capability) -> CapabilityValue {
                match capability {
                    $(Capability::$name => self.$field.value(),)*
                }
            }

            /// The intersection of these capabilities and `most`, with the smaller of each limit: for wrappers and
            /// tests that withdraw capabilities. The sizes of hidden states and snapshots are not limits and are kept.
            ///
            /// ```
            /// use mlxcel_core::Capabilities;
            ///
            /// let engine = Capabilities::new(4, 1024).with_logits(true).with_rewind(true);
            /// let most = Capabilities::new(8, 512).with_rewind(true).with_fork(true);
            /// assert_eq!(engine.limited_to(&most), Capabilities::new(4, 512).with_rewind(true));
            /// ```
            #[must_use]
            pub fn limited_to(&self, most: &Self) -> Self {
                let mut limited = Self { $($field: self.$field.limited_to(most.$field)),* };
                limited.snapshot_bytes = limited.snapshot_bytes.filter(|_| limited.snapshot);
                limited
            }
        }
    };
}

capabilities! {
    /// The maximum number of open sequences per session.
    Sequences => sequences: usize = 0, with_sequences;
    /// The maximum number of rows per pass over the weights. With 1, every row takes its own pass.
    BatchRows => batch_rows: usize = 1, with_batch_rows;
    /// The maximum number of tokens per sequence.
    Context => context: usize = 0, with_context;
    /// The maximum number of tokens of one row per pass over the weights; [`usize::MAX`] for no limit. A longer row
    /// takes several passes, and a step returns when all of its rows are done. So a scheduler feeds long prompts in
    /// rows of this many tokens, to keep other rows from waiting for the whole prompt.
    PromptChunk => prompt_chunk: usize = usize::MAX, with_prompt_chunk;
    /// [`Answer::Token`](crate::Answer::Token) works, and a sequence can be extended by row after row. A model without it reads
    /// in both directions, so that later tokens change the states of earlier ones: a row is a whole text in a new sequence,
    /// its only answer is [`Answer::Hidden`](crate::Answer::Hidden), and sequences keep no state.
    Generation => generation: bool = true, with_generation;
    /// The number of token types; [`Row::token_types`](crate::Row::token_types) are less than this. 0 if rows have none.
    TokenTypes => token_types: usize = 0, with_token_types;
    /// The largest `top` of [`Answer::Token`](crate::Answer::Token) and [`Answer::Likelihoods`](crate::Answer::Likelihoods):
    /// how many of the most likely tokens can be reported.
    TopLogprobs => top_logprobs: u16 = 0, with_top_logprobs;
    /// [`Answer::Logits`](crate::Answer::Logits) works.
    Logits => logits: bool = false, with_logits;
    /// [`Answer::Likelihoods`](crate::Answer::Likelihoods) works.
    EveryPosition => every_position: bool = false, with_every_position;
    /// [`Positions::Drafts`](crate::Positions::Drafts) works with everything that is claimed for tokens, and with
    /// [`logits`](Self::logits) for logits: one pass verifies several draft tokens, and a rewind drops the wrong ones.
    Verification => verification: bool = false, with_verification;
    /// [`Answer::Hidden`](crate::Answer::Hidden) works and returns vectors of this many elements; `None` if unsupported.
    HiddenStates => hidden_states: Option<usize> = None, with_hidden_states;
    /// [`Want::states`](crate::Want::states) works and returns vectors of this many elements; `None` unless the model was
    /// loaded with [`LoadOptions::output_states`](crate::LoadOptions::output_states).
    OutputStates => output_states: Option<usize> = None, with_output_states;
    /// The model is a [draft head](crate::ModelPart::DraftHead): each row brings [`states`](crate::Row::states) of this many
    /// elements for each token. `None` for models that read tokens alone.
    InputStates => input_states: Option<usize> = None, with_input_states;
    /// A [`TokenMask`](crate::TokenMask) is honoured.
    TokenMasks => token_masks: bool = false, with_token_masks;
    /// [`InferenceSession::rewind`](crate::InferenceSession::rewind) works to every earlier position. Recurrent states and
    /// sliding windows do not remember them all.
    Rewind => rewind: bool = false, with_rewind;
    /// [`InferenceSession::fork`](crate::InferenceSession::fork) works.
    Fork => fork: bool = false, with_fork;
    /// [`InferenceSession::snapshot`](crate::InferenceSession::snapshot) and
    /// [`restore`](crate::InferenceSession::restore) work.
    Snapshot => snapshot: bool = false, with_snapshot;
    /// The maximum size in bytes of the [payload](crate::Snapshot::payload) of a snapshot, which is that of a sequence
    /// of [`context`](Self::context) tokens. Readers of untrusted files read no more. `None` if it is not known.
    SnapshotBytes => snapshot_bytes: Option<u64> = None, with_snapshot_bytes;
    /// [`Model::load_adapter`](crate::Model::load_adapter) works, with this room, and sequences have
    /// [adapters](crate::SequenceOptions::adapter). `None` if the engine has none, or the model was loaded without room.
    Adapters => adapters: Option<AdapterLimits> = None, with_adapters;
    /// A sequence's results are bitwise equal for any batch composition and any prefill chunking.
    BitwiseBatchInvariance => bitwise_batch_invariance: bool = false, with_bitwise_batch_invariance;
    /// The sampling fields that the engine applies itself, beyond greedy decoding.
    Sampling => sampling: SamplingFields = SamplingFields::NONE, with_sampling;
}

/// The value of a [`Capability`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CapabilityValue {
    /// Whether it is claimed.
    Flag(bool),
    /// A limit; `None` for no limit.
    Limit(Option<u64>),
    /// The size of results; `None` if it is not claimed, or not known.
    Size(Option<u64>),
    /// Sampling fields.
    Fields(SamplingFields),
}

/// How capabilities of a type are limited and listed.
trait Claim: Copy {
    fn limited_to(self, most: Self) -> Self;
    fn value(self) -> CapabilityValue;
}

/// Declares for a type how `own` is limited to `most`, and its kind and value in listings.
macro_rules! claims {
    ($($(#[doc = $doc:literal])* $type:ty: $own:ident, $most:ident => $limited:expr, $kind:ident($value:expr);)*) => {$(
        $(#[doc = $doc])*
        impl Claim for $type {
            fn limited_to(self, $most: Self) -> Self {
                let $own = self;
                $limited
            }

            fn value(self) -> CapabilityValue {
                let $own = self;
                CapabilityValue::$kind($value)
            }
        }
    )*};
}

claims! {
    bool: own, most => own && most, Flag(own);
    usize: own, most => own.min(most), Limit((own < usize::MAX).then_some(own as u64));
    u16: own, most => own.min(most), Limit(Some(own.into()));
    /// A size that claims a capability: withdrawn with it.
    Option<usize>: own, most => own.filter(|_| most.is_some()), Size(own.map(|size| size as u64));
    /// An upper bound of a size: that of larger limits is one for smaller ones too.
    Option<u64>: own, _most => own, Size(own);
    /// Listed by the number of slots.
    Option<AdapterLimits>: own, most => own.zip(most).map(|(own, most)| own.limited_to(most)),
        Limit(Some(own.map_or(0, |room| room.slots as u64)));
    SamplingFields: own, most => own.intersection(most), Fields(own);
}

impl Capabilities {
    /// Whether `capability` is claimed: it is true, above 0, some or not empty.
    pub fn claims(&self, capability: Capability) -> bool {
        match self.value(capability) {
            CapabilityValue::Flag(claimed) => claimed,
            CapabilityValue::Limit(limit) => limit != Some(0),
            CapabilityValue::Size(size) => size.is_some(),
            CapabilityValue::Fields(fields) => fields != SamplingFields::NONE,
        }
    }

    /// Returns an error that names `capability` unless it is `claimed`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    pub fn require(claimed: bool, operation: &'static str, capability: &'static str) -> Result<()> {
        if claimed { Ok(()) } else { Err(Self::unclaimed(operation, capability)) }
    }

    /// The error of an optional method that an engine does not implement: it does not claim the capability,
    /// or it should not.
    pub(crate) fn unimplemented(claimed: bool, operation: &'static str, capability: &'static str) -> Error {
        if !claimed {
            return Self::unclaimed(operation, capability);
        }
        let message = "the engine claims this capability, but does not implement the method";
        Error::new(ErrorKind::Internal, operation, message).with_context("capability", capability)
    }

    pub(crate) fn unclaimed(operation: &'static str, capability: &'static str) -> Error {
        Error::unsupported(operation, "the engine does not claim this capability")
            .with_context("capability", capability)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.as_str().replace('_', " "))
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for &capability in Capability::ALL.iter().filter(|&&capability| self.claims(capability)) {
            match self.value(capability) {
                CapabilityValue::Limit(None) => continue,
                CapabilityValue::Flag(_) => write!(f, "{separator}{capability}")?,
                CapabilityValue::Limit(Some(number)) | CapabilityValue::Size(Some(number)) => {
                    write!(f, "{separator}{capability} {number}")?;
                }
                CapabilityValue::Size(None) => write!(f, "{separator}{capability}")?,
                CapabilityValue::Fields(fields) => write!(f, "{separator}device {capability} ({fields})")?,
            }
            separator = ", ";
        }
        Ok(())
    }
}
