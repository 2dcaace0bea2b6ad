//! Opens bundles and checks them against the model and the machine.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use mlxcel_core::{CancelToken, Error, ErrorKind, LoadOptions, ModelSource, Result};
use mlxcel_graph::{
    GraphModelOptions, IndependentRows, KvCacheType, ProgramShape, WeightArgument, weight_arguments,
};
use mlxcel_iree_kernels::{Layouts, independent_rows};
use mlxcel_iree_target::manifest::{FileEntry, MANIFEST, Manifest, OPERATION, Target, Weight};
use mlxcel_iree_target::{CompileBackends, CompileTarget, DeviceDescription, ResolvedTarget};
use mlxcel_models::{Checkpoint, Decoder};

use super::source::Source;
use crate::engine::{LaidOutWeights, Made, ProgramSource};

/// A bundle, open for reading.
///
/// ```no_run
/// let bundle = mlxcel_iree::bundle::Bundle::open("story-bundle")?;
/// println!("{}", bundle.manifest());
/// bundle.verify()?;
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Bundle {
    source: Source,
    manifest: Manifest,
}

impl Bundle {
    /// Opens the bundle in `folder`: reads its manifest.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none, [`ErrorKind::Corrupt`] for a manifest that is damaged or
    /// names files outside of the folder, [`ErrorKind::Unsupported`] for a bundle of another format
    /// version, of an incompatible version of this crate, or compiled for another release of IREE.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let source = ModelSource::from(folder.as_ref());
        Self::find(&source)?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, OPERATION, "the folder has no bundle.json")
                .with_context("path", folder.as_ref().display())
        })
    }

    /// The bundle that `source` is; none where it has no manifest.
    pub(crate) fn find(source: &ModelSource) -> Result<Option<Self>> {
        let Some(text) = Source::new(source).manifest()? else { return Ok(None) };
        Self::parse(source, &text).map(Some)
    }

    /// The bundle in `source` whose manifest is `text`.
    pub(crate) fn parse(source: &ModelSource, text: &[u8]) -> Result<Self> {
        let source = Source::new(source);
        let manifest = Manifest::parse(text, &source.locate(MANIFEST))?;
        Ok(Self { source, manifest })
    }

    /// The bundle's manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads every file of the bundle, weights included, and compares its checksum.
    ///
    /// Opening a model verifies its programs fully, and its weights by the fingerprint, which samples them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] and [`ErrorKind::Corrupt`] for the first file that is missing or changed.
    pub fn verify(&self) -> Result<()> {
        self.manifest.all_files().try_for_each(|file| self.source.verify(file))
    }

    /// Refuses a checkpoint that is not the one that the programs were made from.
    pub(crate) fn check_model(&self, checkpoint: &Checkpoint, decoder: &Decoder) -> Result<()> {
        let model = &self.manifest.model;
        if decoder.output_states.is_some() {
            let message = "bundles have no programs for draft heads and the hidden states that they read; load the checkpoint itself";
            return Err(Error::unsupported("open bundle", message).with_context("field", "output_states"));
        }
        // The bundle's own folder was not swapped by the user: its files were changed.
        let own = self.manifest.weights_included && self.source.is_at(checkpoint.path());
        let kind = if own { ErrorKind::Corrupt } else { ErrorKind::InvalidInput };
        let refused =
            |message: &'static str| Error::new(kind, "compare the weights with the bundle", message);
        let figures = [
            ("model_type", model.model_type.clone(), decoder.model_type.clone()),
            ("vocabulary_size", model.vocabulary_size.to_string(), decoder.vocabulary_size.to_string()),
            ("hidden_size", model.hidden_size.to_string(), decoder.hidden_size.to_string()),
            ("layers", model.layers.to_string(), decoder.layers.len().to_string()),
        ];
        for (field, bundled, found) in figures {
            if bundled != found {
                return Err(refused("the programs belong to a model of another architecture")
                    .with_context("field", field)
                    .with_context("bundle", bundled.escape_debug())
                    .with_context("checkpoint", found.escape_debug()));
            }
        }
        let found: Vec<Weight> = weight_arguments(decoder)?.iter().map(Weight::from).collect();
        let count = found.len().max(self.manifest.weights.len());
        let differs = (0..count).find(|&index| found.get(index) != self.manifest.weights.get(index));
        if let Some(index) = differs {
            let name = |weight: Option<&Weight>| {
                weight.map_or("none".to_owned(), |weight| weight.tensor.to_string())
            };
            return Err(refused("the programs need other weights than the checkpoint has")
                .with_context("bundle", name(self.manifest.weights.get(index)).escape_debug())
                .with_context("checkpoint", name(found.get(index)).escape_debug()));
        }
        let fingerprint = checkpoint.fingerprint();
        if fingerprint != model.fingerprint {
            let message = if own {
                "the weights or config.json have changed since the bundle was written"
            } else {
                "the programs belong to another checkpoint of this architecture: its weights or config.json differ"
            };
            return Err(refused(message)
                .with_context("bundle", model.fingerprint.escape_debug())
                .with_context("checkpoint", fingerprint));
        }
        Ok(())
    }

    /// The options of a model with these programs that satisfies `options`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for another precision or KV cache than that of the programs, and for
    /// adapters if they have no room for any; [`ErrorKind::InvalidInput`] for more tokens, sequences, or
    /// adapters or larger ranks than they have room for.
    pub(crate) fn graph_options(
        &self,
        options: &LoadOptions,
        kv_cache: KvCacheType,
    ) -> Result<GraphModelOptions> {
        let bundled = &self.manifest;
        let mut graph = bundled.graph_options()?;
        if options.precision != graph.precision {
            let [asked, bundled] = [options.precision.to_string(), bundled.precision.clone()];
            return Err(contradiction(ErrorKind::Unsupported, "precision", asked, bundled));
        }
        if kv_cache != graph.kv_cache {
            return Err(contradiction(ErrorKind::Unsupported, "KV cache", kv_cache, graph.kv_cache));
        }
        let mut figures = Vec::new();
        figures.extend(options.capacity.map(|asked| ("capacity", asked, bundled.capacity)));
        figures.extend(options.sequences.map(|asked| ("sequences", asked, bundled.sequences)));
        if let Some(asked) = options.adapters {
            let room = graph.adapters.ok_or_else(|| {
                let message = "the programs of the bundle have no room for adapters; write it with room, by --adapter-slots and \
                               --adapter-rank, or load the checkpoint without it";
                Error::unsupported(OPERATION, message).with_context("field", "adapters")
            })?;
            figures.extend([
                ("adapter_slots", asked.slots, room.slots),
                ("adapter_rank", asked.rank, room.rank),
            ]);
        }
        if let Some((field, asked, room)) = figures.into_iter().find(|(_, asked, room)| asked > room) {
            return Err(contradiction(ErrorKind::InvalidInput, field, asked, room));
        }
        graph.capacity = options.capacity.or(graph.capacity);
        if let Some(sequences) = options.sequences {
            (graph.sequences, graph.texts) = (sequences, sequences);
        }
        Ok(graph)
    }

    /// Where the programs of target number `index` compute rows independently of each other.
    pub(crate) fn independent_rows(
        &self,
        index: usize,
        backends: &CompileBackends,
        decoder: &Decoder,
        graph: &GraphModelOptions,
    ) -> Result<IndependentRows> {
        match self.manifest.targets.get(index) {
            Some(target) => independent_rows(decoder, resolve(target, backends)?.hardware()?, graph),
            None => Ok(IndependentRows::No),
        }
    }

    /// `error`, which says that `source` cannot be opened, in terms of this bundle where weights were left
    /// out of it.
    pub(crate) fn explain_missing_weights(&self, source: &ModelSource, error: Error) -> Error {
        let own = matches!(source, ModelSource::Folder(folder) if self.source.is_at(Some(folder)));
        if !own || self.manifest.weights_included || error.kind() != ErrorKind::NotFound {
            return error;
        }
        Error::new(
            ErrorKind::NotFound,
            OPERATION,
            "the bundle was written without weights; load its checkpoint's folder, with `IreeBackend::with_bundle`",
        )
        .with_source(error)
    }

    /// The index of the target to run on `device`: of those that fit, the one that uses most features of the
    /// processor; `only`, where it is given.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if none fits, with why.
    pub(crate) fn choose_target(
        &self,
        backends: &CompileBackends,
        only: Option<&CompileTarget>,
        device: &DeviceDescription,
    ) -> Result<usize> {
        let only = only.map(|target| backends.resolve(target)).transpose()?;
        let mut best: Option<(usize, usize)> = None;
        let mut refusals = Vec::new();
        for (index, target) in self.manifest.targets.iter().enumerate() {
            if only.as_ref().is_some_and(|only| only.to_string() != target.target) {
                continue;
            }
            let features = target.required_features.len();
            match check_device(target, backends, device) {
                Ok(()) if best.is_none_or(|(_, most)| features > most) => best = Some((index, features)),
                Ok(()) => {}
                Err(refusal) => refusals.push(refusal),
            }
        }
        if let Some((index, _)) = best {
            return Ok(index);
        }
        // Of one target there is one reason; of several, each has its own.
        if let ([_], Some(refusal)) = (&refusals[..], refusals.first()) {
            return Err(refusal.clone());
        }
        let targets =
            self.manifest.targets.iter().map(|target| target.target.as_str()).collect::<Vec<_>>().join(" ");
        let mut error = Error::unsupported("load bundle", "the bundle has no programs for this device")
            .with_context("targets", targets.escape_debug())
            .with_context("device", device);
        if let Some(only) = only {
            error = error.with_context("asked_for", only);
        }
        Err(match refusals.into_iter().next() {
            Some(first) => error.with_source(first),
            None => error,
        })
    }

    /// The programs for `target`, which is one of the manifest's, checked to be whole and to be all that a
    /// model with `graph` needs.
    pub(crate) fn programs(
        self,
        target: usize,
        graph: &GraphModelOptions,
        decoder: &Decoder,
    ) -> Result<BundledPrograms> {
        for shape in graph.programs(decoder)? {
            if self.manifest.program(&shape).is_none() {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    OPERATION,
                    "the manifest lacks a required program",
                )
                .with_context("program", shape));
            }
        }
        let programs = BundledPrograms { bundle: self, target };
        programs.files().iter().try_for_each(|file| programs.bundle.source.verify(file))?;
        Ok(programs)
    }
}

/// The programs of a bundle for one target.
#[derive(Clone, Debug)]
pub(crate) struct BundledPrograms {
    bundle: Bundle,
    target: usize,
}

/// The error of an option that the bundle's programs do not honour.
fn contradiction<T: std::fmt::Display>(kind: ErrorKind, field: &'static str, asked: T, bundled: T) -> Error {
    let message = format!(
        "the bundle's programs were compiled with another {field}; use the same, or write a new bundle"
    );
    Error::new(kind, "load bundle", message)
        .with_context("field", field)
        .with_context("asked_for", asked)
        .with_context("bundle", bundled)
}

/// What a target's name means.
fn resolve(target: &Target, backends: &CompileBackends) -> Result<ResolvedTarget> {
    target.target.parse().and_then(|target: CompileTarget| backends.resolve(&target))
}

/// Refuses a device that does not run the programs for `target`.
fn check_device(target: &Target, backends: &CompileBackends, device: &DeviceDescription) -> Result<()> {
    let refused = |message: &'static str| {
        Error::unsupported("match a program with its device", message)
            .with_context("target", target.target.escape_debug())
            .with_context("device", device)
    };
    if target.is_text() {
        return Err(refused("these programs are text for other compilers"));
    }
    target.layouts()?;
    let resolved =
        resolve(target, backends).map_err(|error| refused("the target is unknown").with_source(error))?;
    resolved.check_device(device)?;
    // The reader resolves the target's name; the writer records the features that code may use.
    let has = |feature: &str| {
        device.processor.as_ref().is_none_or(|processor| processor.features().any(|known| known == feature))
    };
    let missing: Vec<&str> =
        target.required_features.iter().map(String::as_str).filter(|feature| !has(feature)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(refused("the program was compiled for a processor with more instructions")
        .with_context("missing", missing.join(", ").escape_debug()))
}

impl BundledPrograms {
    fn target(&self) -> Option<&Target> {
        self.bundle.manifest.targets.get(self.target)
    }

    fn files(&self) -> &[FileEntry] {
        self.target().map_or(&[], |target| &target.programs)
    }
}

impl ProgramSource for BundledPrograms {
    fn layouts(&self) -> Result<Layouts> {
        self.target().map_or_else(|| Ok(Layouts::default()), Target::layouts)
    }

    fn laid_out(&self, weights: &[WeightArgument]) -> Result<Option<LaidOutWeights>> {
        let Some(laid_out) = self.target().and_then(|target| target.laid_out.as_ref()) else {
            return Ok(None);
        };
        let content = self.bundle.source.map(&laid_out.file)?;
        let places = laid_out.check(weights, (*content).as_ref())?;
        Ok(Some(LaidOutWeights { content, places }))
    }

    fn takes_long(&self) -> bool {
        false
    }

    fn device_check(&self, _: Option<&CancelToken>) -> Result<Cow<'static, [u8]>> {
        let file = self.target().and_then(|target| target.device_check.as_ref()).ok_or_else(|| {
            let message =
                "the bundle has no program to check the device with; write it anew with this version";
            Error::unsupported(OPERATION, message)
        })?;
        self.bundle.source.read(file)
    }

    /// The compiled program for `shape`, checked against its checksum.
    fn program(&self, shape: &ProgramShape, _: Option<&CancelToken>) -> Result<Made> {
        let index = self.bundle.manifest.program(shape);
        let file = index.and_then(|index| self.files().get(index)).ok_or_else(|| {
            Error::new(ErrorKind::Internal, OPERATION, "the bundle has no program for this shape")
                .with_context("program", shape)
        })?;
        Ok(Made { vmfb: self.bundle.source.read(file)?, compile_time: Duration::ZERO })
    }
}

impl fmt::Display for BundledPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bundled for {}", self.target().map_or("", |target| &target.target))
    }
}
