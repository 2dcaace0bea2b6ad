//! Checking load options.

use crate::adapter::AdapterLimits;
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::load::{LoadOptions, ModelPart, Precision};

const OPERATION: &str = "load model";

/// For engines: describes which [`LoadOptions`] an engine supports. [`check`](Self::check) rejects others
/// with the contract's error kinds and the field's name, and fills in defaults.
///
/// ```
/// use mlxcel_core::{ErrorKind, LoadOptions, OptionSupport, Precision};
///
/// // A model with sequences of up to 4096 tokens; an engine that holds 8 of them unless told otherwise.
/// let support =
///     OptionSupport::new(4096, 8).with_devices(&["cpu"]).with_precisions(&[Precision::Exact, Precision::Native]);
/// let checked = support.check(&LoadOptions::default().with_capacity(512))?;
/// assert_eq!((checked.capacity, checked.sequences, checked.threads), (512, 8, None));
/// let refused = support.check(&LoadOptions::default().with_device("gpu")).unwrap_err();
/// assert_eq!((refused.kind(), refused.context("field")), (ErrorKind::InvalidInput, Some("device")));
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OptionSupport<'a> {
    capacity: usize,
    sequences: usize,
    most_sequences: usize,
    threads: usize,
    devices: &'a [&'a str],
    precisions: &'a [Precision],
    adapters: bool,
    output_states: bool,
    draft_heads: bool,
}

/// Load options checked by [`OptionSupport::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckedOptions<'a> {
    /// The numeric precision.
    pub precision: Precision,
    /// The maximum number of tokens per sequence.
    pub capacity: usize,
    /// The maximum number of concurrent sequences per session.
    pub sequences: usize,
    /// The number of compute threads, if set.
    pub threads: Option<usize>,
    /// The device, if set.
    pub device: Option<&'a str>,
    /// The room for adapters, if set.
    pub adapters: Option<AdapterLimits>,
    /// Whether rows can return hidden states.
    pub output_states: bool,
}

impl<'a> OptionSupport<'a> {
    /// Support for up to `capacity` tokens per sequence, `sequences` concurrent sequences by default and any
    /// number on request, every precision, up to [`LoadOptions::MAX_THREADS`] threads, no named device,
    /// no adapters, no output states, and no draft heads.
    pub fn new(capacity: usize, sequences: usize) -> Self {
        Self {
            capacity,
            sequences,
            most_sequences: usize::MAX,
            threads: LoadOptions::MAX_THREADS,
            devices: &[],
            precisions: &Precision::ALL,
            adapters: false,
            output_states: false,
            draft_heads: false,
        }
    }

    /// Sets the maximum number of concurrent sequences.
    #[must_use]
    pub fn with_most_sequences(mut self, most: usize) -> Self {
        self.most_sequences = most;
        self.sequences = self.sequences.min(most);
        self
    }

    setters! {
        /// Sets the maximum number of threads; 1 for an engine that computes on the caller's thread.
        with_threads(most: usize) => threads = most;
        /// Sets the names of supported devices.
        with_devices(names: &'a [&'a str]) => devices = names;
        /// Sets the supported precisions.
        with_precisions(precisions: &'a [Precision]) => precisions = precisions;
        /// Supports adapters, in up to [`AdapterLimits::MAX_SLOTS`] slots of up to
        /// [`AdapterLimits::MAX_RANK`].
        with_adapters() => adapters = true;
        /// Supports [`LoadOptions::output_states`].
        with_output_states() => output_states = true;
    }

    /// Supports [draft heads](ModelPart::DraftHead), those of [other checkpoints](LoadOptions::draft_head)
    /// too, and [output states](Self::with_output_states), which they read.
    #[must_use]
    pub fn with_draft_heads(mut self) -> Self {
        self.draft_heads = true;
        self.with_output_states()
    }

    /// Checks all options except [`LoadOptions::prepare`] and [`LoadOptions::progress`], which every engine
    /// supports.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`] if already cancelled; [`ErrorKind::Unsupported`] for an unsupported precision,
    /// adapters or draft heads; [`ErrorKind::InvalidInput`] for numbers out of range or an unknown device.
    /// Each names the `field`.
    pub fn check(&self, options: &LoadOptions) -> Result<CheckedOptions<'a>> {
        if options.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
            return Err(Error::new(ErrorKind::Cancelled, OPERATION, "it was cancelled"));
        }
        if !self.precisions.contains(&options.precision) {
            return Err(Error::unsupported(OPERATION, "the engine does not support this precision")
                .with_context("field", "precision")
                .with_context("precision", options.precision)
                .with_context("known", list(self.precisions)));
        }
        let head = (options.part != ModelPart::Whole).then_some("part");
        let head = head.or(options.draft_head.as_ref().map(|_| "draft_head"));
        if let Some(field) = head.filter(|_| !self.draft_heads) {
            let message = "the engine does not support draft heads";
            return Err(Error::unsupported(OPERATION, message).with_context("field", field));
        }
        if options.output_states && !self.output_states {
            let message = "the engine does not return the hidden states that draft heads read";
            return Err(Error::unsupported(OPERATION, message).with_context("field", "output_states"));
        }
        Ok(CheckedOptions {
            precision: options.precision,
            capacity: within("capacity", options.capacity.unwrap_or(self.capacity), self.capacity)?,
            sequences: within("sequences", options.sequences.unwrap_or(self.sequences), self.most_sequences)?,
            threads: options.threads.map(|threads| within("threads", threads, self.threads)).transpose()?,
            device: options.device.as_deref().map(|name| self.device(name)).transpose()?,
            adapters: options.adapters.map(|room| self.room(room)).transpose()?,
            output_states: options.output_states,
        })
    }

    fn room(&self, room: AdapterLimits) -> Result<AdapterLimits> {
        if !self.adapters {
            let message = "the engine does not support adapters";
            return Err(Error::unsupported(OPERATION, message).with_context("field", "adapters"));
        }
        within("adapter_slots", room.slots, AdapterLimits::MAX_SLOTS)?;
        within("adapter_rank", room.rank, AdapterLimits::MAX_RANK)?;
        Ok(room)
    }

    fn device(&self, name: &str) -> Result<&'a str> {
        self.devices.iter().copied().find(|known| *known == name).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, OPERATION, "the device does not exist")
                .with_context("field", "device")
                .with_context("device", name)
                .with_context("known", list(self.devices))
        })
    }
}

/// A figure from 1 to the limit.
fn within(field: &'static str, value: usize, limit: usize) -> Result<usize> {
    if (1..=limit).contains(&value) {
        return Ok(value);
    }
    let error = Error::new(ErrorKind::InvalidInput, OPERATION, "the value must be from 1 to the limit")
        .with_context("field", field)
        .with_context(field, value);
    Err(if limit == usize::MAX { error } else { error.with_context("limit", limit) })
}

fn list(values: &[impl std::fmt::Display]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_options_are_rejected_by_name() {
        let support = OptionSupport::new(100, 4)
            .with_most_sequences(3)
            .with_threads(2)
            .with_devices(&["cpu"])
            .with_precisions(&[Precision::Exact]);
        let exact = LoadOptions::default().with_precision(Precision::Exact);
        let said = exact.clone().with_capacity(100).with_sequences(1).with_threads(2).with_device("cpu");
        let checked = support.check(&said).unwrap();
        let expected = CheckedOptions {
            precision: Precision::Exact,
            capacity: 100,
            sequences: 1,
            threads: Some(2),
            device: Some("cpu"),
            adapters: None,
            output_states: false,
        };
        assert_eq!(checked, expected);
        let silent = CheckedOptions { sequences: 3, threads: None, device: None, ..expected };
        assert_eq!(support.check(&exact).unwrap(), silent);
        let invalid = ErrorKind::InvalidInput;
        for (field, kind, options) in [
            ("precision", ErrorKind::Unsupported, LoadOptions::default()),
            ("capacity", invalid, exact.clone().with_capacity(0)),
            ("capacity", invalid, exact.clone().with_capacity(101)),
            ("sequences", invalid, exact.clone().with_sequences(0)),
            ("sequences", invalid, exact.clone().with_sequences(4)),
            ("threads", invalid, exact.clone().with_threads(0)),
            ("threads", invalid, exact.clone().with_threads(3)),
            ("device", invalid, exact.clone().with_device("gpu")),
            ("adapters", ErrorKind::Unsupported, exact.clone().with_adapters(AdapterLimits::new(1, 8))),
            ("part", ErrorKind::Unsupported, exact.clone().with_part(ModelPart::DraftHead)),
            ("output_states", ErrorKind::Unsupported, exact.clone().with_output_states(true)),
            ("draft_head", ErrorKind::Unsupported, exact.clone().with_draft_head("head")),
        ] {
            let error = support.check(&options).unwrap_err();
            assert_eq!((error.kind(), error.context("field")), (kind, Some(field)));
        }
        let adapters = |slots, rank| {
            support.with_adapters().check(&exact.clone().with_adapters(AdapterLimits::new(slots, rank)))
        };
        assert_eq!(adapters(2, 8).unwrap().adapters, Some(AdapterLimits::new(2, 8)));
        for (slots, rank, field) in [
            (0, 8, "adapter_slots"),
            (1025, 8, "adapter_slots"),
            (1, 0, "adapter_rank"),
            (1, 1025, "adapter_rank"),
        ] {
            assert_eq!(adapters(slots, rank).unwrap_err().context("field"), Some(field));
        }
        let states = exact.clone().with_output_states(true);
        assert!(support.with_output_states().check(&states).unwrap().output_states);
        let head = states.with_part(ModelPart::DraftHead);
        let refused = support.with_output_states().check(&head).unwrap_err();
        assert_eq!((refused.kind(), refused.context("field")), (ErrorKind::Unsupported, Some("part")));
        assert!(support.with_draft_heads().check(&head).is_ok());
        let cancel = CancelToken::new();
        cancel.cancel();
        let error = support.check(&exact.with_cancel(cancel)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }
}
