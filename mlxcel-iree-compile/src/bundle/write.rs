//! Writes a bundle: the programs of every target, the checkpoint's files, and the manifest last.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use mlxcel_core::{Control, LoadProgress, LoadStage, ModelSource, Result};
use mlxcel_graph::{ProgramShape, ProgramWriter, WeightArgument};
use mlxcel_iree_target::manifest::{AdapterRoom, FileEntry, MANIFEST, Manifest, Target};
use mlxcel_iree_target::threads::share_out;
use mlxcel_iree_target::{ProgramOptions, describe};
use mlxcel_models::{AdapterWeights, Checkpoint};

use super::checkpoint_files::side_files;
use super::staging::{OPERATION, Staging};
use super::targets::{BundleTarget, plain_name};
use super::{BundleOptions, laid_out, record};
use crate::toolchain::Toolchain;
use crate::wanted::graph_options;

/// Writes a bundle of the model in `source` to the folder `destination`, by `wanted` and `options`, with the
/// compiler and cache of `toolchain`, and returns its manifest.
///
/// The folder is written atomically, via a temporary name next to it. Cross-compiling needs nothing from the
/// target machine. Engines with the same cache trust the bundle ([`is_recorded`](super::is_recorded)).
///
/// # Errors
///
/// Those of opening the checkpoint; [`ErrorKind::Toolchain`](mlxcel_core::ErrorKind::Toolchain) for a
/// compiler that is not of the exact release;
/// [`ErrorKind::InvalidInput`](mlxcel_core::ErrorKind::InvalidInput) for options out of range, for an unknown
/// or duplicate target, and if `destination` exists (only a bundle can be
/// [replaced](BundleOptions::replace)); [`ErrorKind::Toolchain`](mlxcel_core::ErrorKind::Toolchain) and
/// [`ErrorKind::Compile`](mlxcel_core::ErrorKind::Compile) of the compiler;
/// [`ErrorKind::ResourceExhausted`](mlxcel_core::ErrorKind::ResourceExhausted) if the disk is full, and other
/// errors of writing. Partial output is removed.
pub fn write(
    toolchain: &Toolchain,
    wanted: &ProgramOptions,
    source: &ModelSource,
    destination: impl AsRef<Path>,
    options: &BundleOptions,
) -> Result<Manifest> {
    let control = options.load.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
    // Whatever fails must fail before the bundle is published.
    let cache = toolchain.cache()?;
    let staging = Staging::begin(destination.as_ref(), options.replace)?;
    let checkpoint = Checkpoint::from_source(source)?;
    let decoder = checkpoint.decoder()?;
    let mut graph = graph_options(&options.load, wanted, OPERATION)?;
    graph.adapters = options.room()?;
    graph.every_position = options.every_position;
    graph.verification = options.verification;
    graph.hidden_states = options.hidden_states;
    let targets = BundleTarget::all(toolchain, wanted, options, &decoder, &mut graph)?;
    let writer = ProgramWriter::new(decoder.clone(), &graph)?;
    let shapes = graph.programs(&decoder)?;

    let programs = shapes.iter().map(|shape| describe::program(&writer.signature(shape), shape)).collect();
    let model = describe::model(&checkpoint, &decoder);
    let mut manifest = Manifest::new(model, &decoder, &writer.weights, &graph, programs)?;
    manifest.targets = compile(&targets, &shapes, &staging, options, &control)?;
    if targets.iter().any(BundleTarget::is_compiled) {
        manifest.compiler = toolchain.release_revision(options.load.cancel.as_ref())?;
    }
    let laid_out = in_panels(&mut manifest.targets).filter(|_| options.weights && options.laid_out_weights);
    let laid_out = laid_out.map(|target| (target, &writer.weights[..]));
    manifest.files = copy_checkpoint(&checkpoint, &staging, laid_out, options, &control)?;
    if let Some(room) = graph.adapters {
        let mut described = AdapterRoom::new(room, &writer.residents);
        for (name, source) in &options.adapters {
            let fits = AdapterWeights::read(source, &decoder, room);
            fits.map_err(|error| error.with_context("adapter", name.escape_debug()))?;
            AdapterWeights::copy(source, |file, content| {
                let path = format!("adapters/{name}/{file}");
                manifest.files.push(staging.add(&path, content, &control, &|_| {})?);
                Ok(())
            })?;
            described.included.push(name.clone());
        }
        manifest.adapters = Some(described);
    }
    manifest.weights_included = options.weights;
    let text = manifest.to_json()?;
    staging.add(MANIFEST, text.as_bytes(), &control, &|_| {})?;
    control.check(OPERATION)?;
    staging.publish()?;
    record::record(&cache, text.as_bytes(), destination.as_ref());
    Ok(manifest)
}

/// Makes every program for every target, several at once.
fn compile(
    targets: &[BundleTarget],
    shapes: &[ProgramShape],
    staging: &Staging,
    options: &BundleOptions,
    control: &Control<'_>,
) -> Result<Vec<Target>> {
    let work: Vec<_> =
        targets.iter().flat_map(|target| shapes.iter().map(move |shape| (target, shape))).collect();
    let total = work.len() as u64;
    let report = |done: usize| {
        if let Some(progress) = &options.load.progress {
            progress(LoadProgress::new(LoadStage::Compile, done as u64, total));
        }
    };
    let make = |target: &BundleTarget, shape: &ProgramShape| {
        control.check(OPERATION)?;
        let content = target.make(shape, options)?;
        let path = format!("{}/{}.{}", target.folder(), describe::file_stem(shape), target.extension());
        staging.add(&path, &content, control, &|_| {})
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (done, mut made) = (AtomicUsize::new(0), vec![None; work.len()]);
    report(0);
    share_out(OPERATION, threads, work.iter().zip(&mut made).collect(), |(&(target, shape), file)| {
        let program = make(target, shape)
            .map_err(|error| error.with_context("program", shape).with_context("target", &target.name))?;
        *file = Some(program);
        report(done.fetch_add(1, Ordering::Relaxed) + 1);
        Ok(())
    })?;
    let mut files = made.into_iter().flatten();
    targets
        .iter()
        .map(|target| {
            let mut description = Target::new(
                target.name.clone(),
                target.required_features.clone(),
                &target.layouts()?,
                target.entry().to_owned(),
                files.by_ref().take(shapes.len()).collect(),
            );
            if let Some(program) = target.device_check(options)? {
                let path = format!("{}/device-check.{}", target.folder(), target.extension());
                description.device_check = Some(staging.add(&path, &program, control, &|_| {})?);
            }
            Ok(description)
        })
        .collect()
}

/// The target whose programs take weights in panels, if it is the only one.
fn in_panels(targets: &mut [Target]) -> Option<&mut Target> {
    let mut wanting = targets.iter_mut().filter(|target| !target.weight_layouts.is_empty());
    let target = wanting.next()?;
    wanting.next().is_none().then_some(target)
}

/// Copies what a bundle needs of its checkpoint, and writes the weights as a target takes them.
fn copy_checkpoint(
    checkpoint: &Checkpoint,
    staging: &Staging,
    laid_out: Option<(&mut Target, &[WeightArgument])>,
    options: &BundleOptions,
    control: &Control<'_>,
) -> Result<Vec<FileEntry>> {
    let mut files = Vec::new();
    side_files(checkpoint, options.weights, |name, content| {
        files.push(staging.add(name, content, control, &|_| {})?);
        Ok(())
    })?;
    if !options.weights {
        return Ok(files);
    }
    checkpoint.expect_own_weights()?;
    let files_bytes: u64 = checkpoint.copied_weight_files().map(|(_, content)| content.len() as u64).sum();
    let weight_bytes = |(_, weights): &(_, &[WeightArgument])| -> u64 {
        weights.iter().map(|weight| weight.ty.bytes() as u64).sum()
    };
    let total = files_bytes + laid_out.as_ref().map_or(0, weight_bytes);
    let done = std::cell::Cell::new(0);
    let wrote = |bytes: u64| {
        done.set(done.get() + bytes);
        if let Some(progress) = &options.load.progress {
            progress(LoadProgress::new(LoadStage::Weights, done.get(), total));
        }
    };
    for (name, content) in checkpoint.copied_weight_files() {
        files.push(staging.add(&name, content, control, &wrote)?);
    }
    if let Some((target, weights)) = laid_out {
        let (path, layouts) = (format!("weights/{}.bin", plain_name(&target.target)), target.layouts()?);
        let written = laid_out::write(checkpoint, weights, &layouts, staging, &path, control, &wrote)?;
        target.laid_out = Some(written);
    }
    Ok(files)
}
