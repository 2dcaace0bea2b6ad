//! An engine as its author writes it: on `mlxcel-core` alone, with device sampling, masks, rewind, fork and
//! snapshots.
//!
//! Its model counts: after some tokens, those near their sum are likely.
#![forbid(unsafe_code)]

mod session;

use std::sync::Arc;

use mlxcel_core::{
    Backend, Capabilities, Error, ErrorKind, Faults, InferenceSession, LoadOptions, Model, ModelInfo,
    ModelSource, OptionSupport, Result, SamplingField, SessionOptions,
};

use session::Counting;

/// The engine.
#[derive(Clone, Debug, Default)]
pub struct MyBackend {
    /// When the device fails; for tests.
    pub faults: Option<Faults>,
}

impl Backend for MyBackend {
    fn name(&self) -> &str {
        "my"
    }

    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
        let ModelSource::BuiltIn(name) = source else {
            return Err(Error::unsupported("load model", "this engine reads no files"));
        };
        let vocabulary = name
            .strip_prefix("count-to-")
            .and_then(|number| number.parse().ok())
            .filter(|vocabulary| (2..=4096).contains(vocabulary))
            .ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "load model", "no such model").with_context("model", name)
            })?;
        let checked = OptionSupport::new(256, 4).with_threads(1).check(options)?;
        let (capacity, sequences) = (checked.capacity, checked.sequences);
        let mut info = ModelInfo::new(self.name(), "counter", vocabulary);
        info.capacity = capacity;
        info.precision = options.precision;
        info.fingerprint.clone_from(name);
        info.state_format = "tokens/1".to_owned();
        let sampling = [SamplingField::Temperature, SamplingField::TopK, SamplingField::LogitBias];
        let capabilities = Capabilities::new(sequences, capacity)
            .with_batch_rows(sequences)
            .with_logits(true)
            .with_token_masks(true)
            .with_rewind(true)
            .with_fork(true)
            .with_snapshot(true)
            .with_bitwise_batch_invariance(true)
            .with_sampling(sampling.into_iter().collect());
        Ok(Arc::new(Counter { info, capabilities, faults: self.faults.clone() }))
    }
}

/// The model.
#[derive(Clone, Debug)]
struct Counter {
    info: ModelInfo,
    capabilities: Capabilities,
    faults: Option<Faults>,
}

impl Model for Counter {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open_session(&self, options: &SessionOptions) -> Result<Box<dyn InferenceSession>> {
        let capacity = options.capacity.unwrap_or(self.info.capacity);
        if capacity == 0 || capacity > self.info.capacity {
            return Err(Error::new(ErrorKind::InvalidInput, "open session", "the capacity is out of range")
                .with_context("field", "capacity"));
        }
        let mut model = self.clone();
        model.capabilities.context = capacity;
        Ok(Box::new(Counting::new(model)))
    }
}
