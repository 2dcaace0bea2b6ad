//! Writes weight files: values are processed in blocks and packed by several threads.

use std::fs::File as Target;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::PathBuf;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::Checkpoint;
use mlxcel_models::read::{Float, Scratch, WeightRows};

use super::codec::{Codec, Deviation};
use super::folder::Folder;
use super::plan::{Content, File, Item, Rows};
use super::workers::{BLOCK, COPIED, TASK, Workers};
use super::{OPERATION, QuantizeOptions};

/// The writer of weights.
pub(super) struct Work<'a> {
    checkpoint: &'a Checkpoint,
    workers: Workers<'a>,
}

impl<'a> Work<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, options: &'a QuantizeOptions, total: u64) -> Self {
        let workers = Workers::new(OPERATION, &options.write, total);
        Self { checkpoint, workers }
    }

    /// Fails if the work is to end.
    pub(super) fn check(&self) -> Result<()> {
        self.workers.check()
    }

    /// Counts what was written before.
    pub(super) fn skip(&mut self, file: &File<'_>) -> Result<()> {
        self.workers.wrote(file.items.iter().map(|item| item.bytes_before).sum())
    }

    /// Writes a file, and answers what packing changed, for each item that is packed.
    pub(super) fn write(&mut self, folder: &Folder, file: &File<'_>) -> Result<Vec<Deviation>> {
        let mut target = Output { file: folder.create()?, path: folder.place(&file.name), begin: 0 };
        let header = file.header()?;
        target.write(0, &header)?;
        target.begin = header.len() as u64;
        let mut deviations = Vec::new();
        for item in &file.items {
            match &item.content {
                Content::Stored(bytes) => {
                    let mut at = item.entries.first().map_or(0, |entry| entry.offset);
                    for block in bytes.chunks(COPIED) {
                        target.write(at, block)?;
                        at += block.len() as u64;
                        self.workers.wrote(block.len() as u64)?;
                    }
                }
                Content::Dense { rows, float, added } => {
                    self.expand(&mut target, item, rows, *float, *added)?
                }
                Content::Packed { rows, codec } => {
                    deviations.push(self.pack(&mut target, item, rows, *codec)?)
                }
            }
        }
        let note = serde_json::to_vec(&deviations).map_err(|error| {
            Error::new(ErrorKind::Internal, OPERATION, "the quantization errors cannot be stored")
                .with_source(error)
        })?;
        folder.finish(&target.file, &file.name, &note)?;
        Ok(deviations)
    }

    /// Writes the values of a weight as floats, with `added` added.
    fn expand(
        &mut self,
        target: &mut Output,
        item: &Item<'_>,
        rows: &Rows<'_>,
        float: Float,
        added: f32,
    ) -> Result<()> {
        let stored = &rows.stored;
        let mut at = item.entries.first().map_or(0, |entry| entry.offset);
        let (mut scratch, mut values, mut bytes) = (Scratch::default(), Vec::new(), Vec::new());
        for block in blocks(0..stored.count(), TASK / stored.columns().max(1)) {
            values.resize(block.len() * stored.columns(), 0.0);
            rows.read(self.checkpoint, block.clone(), &mut scratch, &mut values)?;
            if added != 0.0 {
                values.iter_mut().for_each(|value| *value += added);
            }
            if rows.change.is_some() && !float.holds(&values) {
                let message = "a merged value is too large for the weight's type";
                return Err(Error::unsupported(OPERATION, message)
                    .with_context("tensor", stored.name())
                    .with_context("type", float.element()));
            }
            bytes.resize(values.len() * float.bytes(), 0);
            float.write(&values, &mut bytes);
            target.write(at, &bytes)?;
            at += bytes.len() as u64;
            self.workers.wrote(share(item, stored, &block))?;
        }
        Ok(())
    }

    fn pack(
        &mut self,
        target: &mut Output,
        item: &Item<'_>,
        rows: &Rows<'_>,
        codec: Codec,
    ) -> Result<Deviation> {
        let columns = rows.stored.columns();
        let mut all = Deviation::default();
        let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        for block in blocks(0..rows.stored.count(), BLOCK / columns) {
            let values = block.len() * columns;
            codes.resize(codec.code_bytes(values), 0);
            scales.resize(codec.scale_bytes(values), 0);
            biases.resize(if codec.has_biases() { scales.len() } else { 0 }, 0);
            // Tasks do not depend on the number of threads, so that sums do not either.
            let rows_of_task = (TASK / columns).max(1);
            let task = rows_of_task * columns;
            let mut biases_of_tasks = biases.chunks_mut(codec.scale_bytes(task));
            let mut tasks: Vec<_> = blocks(block.clone(), rows_of_task)
                .zip(codes.chunks_mut(codec.code_bytes(task)))
                .zip(scales.chunks_mut(codec.scale_bytes(task)))
                .map(|((rows, codes), scales)| Task {
                    rows,
                    codes,
                    scales,
                    biases: biases_of_tasks.next().unwrap_or_default(),
                    result: Ok(Deviation::default()),
                })
                .collect();
            let scratch = || (Scratch::default(), Vec::new());
            self.workers.share_out(tasks.iter_mut(), scratch, |(scratch, values), task| {
                task.result = task.run(self.checkpoint, rows, codec, scratch, values);
            });
            for task in tasks {
                all.add(task.result?);
            }
            let before = block.start * columns;
            let [code_bytes, scale_bytes] = [codec.code_bytes(before), codec.scale_bytes(before)];
            let parts = [(&codes, code_bytes), (&scales, scale_bytes), (&biases, scale_bytes)];
            for (entry, (bytes, before)) in item.entries.iter().zip(parts) {
                target.write(entry.offset + before as u64, bytes)?;
            }
            self.workers.wrote(share(item, &rows.stored, &block))?;
        }
        Ok(all)
    }
}

/// WeightRows that a thread packs, and where to.
struct Task<'a> {
    rows: Range<usize>,
    codes: &'a mut [u8],
    scales: &'a mut [u8],
    biases: &'a mut [u8],
    result: Result<Deviation>,
}

impl Task<'_> {
    fn run(
        &mut self,
        checkpoint: &Checkpoint,
        rows: &Rows<'_>,
        codec: Codec,
        scratch: &mut Scratch,
        values: &mut Vec<f32>,
    ) -> Result<Deviation> {
        values.resize(self.rows.len() * rows.stored.columns(), 0.0);
        rows.read(checkpoint, self.rows.clone(), scratch, values)?;
        codec.pack(values, self.codes, self.scales, self.biases).ok_or_else(|| {
            let message = "the weight contains infinite or NaN values";
            Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("tensor", rows.stored.name())
        })
    }
}

/// Ranges of up to `length` rows.
fn blocks(rows: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let (end, length) = (rows.end, length.max(1));
    rows.step_by(length).map(move |start| start..(start + length).min(end))
}

/// The bytes of the source that rows of an item are.
fn share(item: &Item<'_>, rows: &WeightRows, block: &Range<usize>) -> u64 {
    let up_to =
        |row: usize| (u128::from(item.bytes_before) * row as u128 / rows.count().max(1) as u128) as u64;
    up_to(block.end) - up_to(block.start)
}

/// A file, written at places.
struct Output {
    file: Target,
    path: PathBuf,
    /// Where its tensors begin.
    begin: u64,
}

impl Output {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let written =
            self.file.seek(SeekFrom::Start(self.begin + at)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| Error::io(OPERATION, &self.path, error))
    }
}
