//! Plans the output: which modules are packed and how, what else is written, and in which file.

mod layout;

use std::collections::HashSet;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::read::{Float, Scheme, WeightRows};
use mlxcel_models::{
    Checkpoint, Conversion, Decoder, ElementType, Linear, Operation, TensorView, WeightRef, WeightRole,
};
use serde_json::{Map, Value, json};

use super::codec::Codec;
use super::names::{experts_module, module_of};
use super::recipe::Choice;
use super::{OPERATION, QuantizeOptions};

use layout::files;
pub(super) use layout::{Content, Entry, File, Item, Purpose, Rows};

pub(super) const INDEX: &str = "model.safetensors.index.json";

/// All files of weights.
pub(super) struct Plan<'a> {
    pub(super) files: Vec<File<'a>>,
    pub(super) bytes_before: u64,
    /// How the modules are packed, if they are.
    pub(super) settings: Option<Value>,
    /// The modules that are not packed because no whole number of groups fits into a row.
    pub(super) unpacked: Vec<String>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        options: &QuantizeOptions,
        purpose: Purpose<'a>,
    ) -> Result<Self> {
        let decoder = checkpoint.decoder()?;
        let (items, unpacked) = Planner::new(checkpoint, &decoder, options, purpose).plan()?;
        let bytes_before = items.iter().map(|item| item.bytes_before).sum();
        let settings = purpose.packs.then(|| settings(&items, options.scheme));
        Ok(Self { files: files(items, options.shard_bytes), bytes_before, settings, unpacked })
    }

    /// The index of shards, where there are any.
    pub(super) fn index(&self) -> Option<Value> {
        if self.files.len() == 1 {
            return None;
        }
        let total: u64 = self.files.iter().map(|file| file.bytes).sum();
        let mut places = Map::new();
        for file in &self.files {
            for entry in file.items.iter().flat_map(|item| &item.entries) {
                places.insert(entry.name.clone(), file.name.clone().into());
            }
        }
        Some(json!({ "metadata": { "total_size": total }, "weight_map": places }))
    }

    pub(super) fn items(&self) -> impl Iterator<Item = &Item<'a>> {
        self.files.iter().flat_map(|file| &file.items)
    }
}

/// The settings of a quantized checkpoint: those of all modules, and by name those of modules that differ.
fn settings(items: &[Item<'_>], default: Scheme) -> Value {
    let told = |Scheme { mode, bits, group_size }: Scheme| json!({ "group_size": group_size, "bits": bits, "mode": mode.name() });
    let mut settings = told(default);
    for item in items {
        if let (Content::Packed { codec, .. }, Some(settings)) = (&item.content, settings.as_object_mut())
            && codec.scheme != default
        {
            settings.insert(item.name.clone(), told(codec.scheme));
        }
    }
    settings
}

/// What is being planned.
struct Planner<'a, 'p> {
    checkpoint: &'a Checkpoint,
    decoder: &'p Decoder,
    choice: Choice<'p>,
    purpose: Purpose<'a>,
    activations: Float,
    items: Vec<Item<'a>>,
    /// The tensors that are in items.
    written: HashSet<String>,
    /// The modules whose own tensors are in items.
    modules: HashSet<String>,
    /// Which overrides named a module.
    is_used: Vec<bool>,
    /// Those of [`Plan::unpacked`].
    unpacked: Vec<String>,
}

impl<'a, 'p> Planner<'a, 'p> {
    fn new(
        checkpoint: &'a Checkpoint,
        decoder: &'p Decoder,
        options: &'p QuantizeOptions,
        purpose: Purpose<'a>,
    ) -> Self {
        Self {
            checkpoint,
            decoder,
            purpose,
            choice: Choice {
                default: options.scheme,
                recipe: options.recipe,
                overrides: &options.overrides,
                conversion: Conversion::of(&decoder.model_type),
                layers: decoder.layers.len(),
            },
            activations: Float::of(decoder.element_type).unwrap_or(Float::BF16),
            items: Vec::new(),
            written: HashSet::new(),
            modules: HashSet::new(),
            is_used: vec![false; options.overrides.len()],
            unpacked: Vec::new(),
        }
    }

    fn plan(mut self) -> Result<(Vec<Item<'a>>, Vec<String>)> {
        self.add_matrices()?;
        let restacked = self.add_experts()?;
        if self.purpose.packs {
            self.check()?;
        }
        self.check_changes()?;
        self.add_others(restacked && self.choice.conversion.shifted_norms)?;
        Ok((self.items, self.unpacked))
    }

    /// The matrices that are multiplied with and the embedding, in the tensors that they are stored in: fused
    /// ones are one.
    fn add_matrices(&mut self) -> Result<()> {
        let decoder = self.decoder;
        let roles = decoder.weight_roles();
        for id in decoder.products() {
            let weight = decoder.weight(id);
            // Of what is packed its parts have no meaning without its settings.
            if !(weight.shape.len() == 2 || weight.packed.is_some())
                || roles.get(id.index()) == Some(&WeightRole::Experts)
                || weight.transposed
                || !weight.stack.is_empty()
                || self.written.contains(&weight.tensor)
            {
                continue;
            }
            if let Some(module) = module_of(&weight.tensor) {
                let rows = WeightRows::of_whole(self.checkpoint, weight)?;
                self.add_module(module.to_owned(), weight, rows)?;
            }
        }
        Ok(())
    }

    /// The experts of all layers, as three stacks each; whether those were something else before.
    fn add_experts(&mut self) -> Result<bool> {
        let decoder = self.decoder;
        let mut restacked = false;
        for block in decoder.layers.iter().flat_map(|layer| &layer.blocks) {
            let Operation::Experts(experts) = &block.operation else { continue };
            for (projection, linear) in [experts.gate, experts.up, experts.down].into_iter().enumerate() {
                if projection == 0 && linear == experts.up {
                    continue; // These have no gate.
                }
                let Linear { weight, bias, .. } = linear;
                let weight = decoder.weight(weight);
                let Some(module) = experts_module(&self.choice.conversion, &weight.tensor, projection) else {
                    let message = "these experts have unknown names and cannot be quantized";
                    return Err(Error::unsupported(OPERATION, message).with_context("tensor", &weight.tensor));
                };
                restacked |= module_of(&weight.tensor) != Some(&module);
                let rows = WeightRows::new(self.checkpoint, weight.clone())?;
                self.add_module(module.clone(), weight, rows)?;
                if let Some(bias) = bias {
                    self.add_dense(format!("{module}.bias"), decoder.weight(bias).clone(), 0.0)?;
                }
            }
        }
        Ok(restacked)
    }

    /// A module with the values of `weight`, packed if groups fit into its rows.
    fn add_module(&mut self, published: String, weight: &WeightRef, rows: Option<WeightRows>) -> Result<()> {
        self.note(weight);
        let module = self.choice.conversion.name(&published);
        let scheme = self.choice.of(&module);
        for (is_used, named) in self.is_used.iter_mut().zip(self.choice.overrides) {
            *is_used |= named.matches(&module);
        }
        let Some(rows) = rows else { return Ok(()) };
        let Rows { stored: rows, change } = self.changed(&published, rows)?;
        let fits = rows.columns() > 0 && rows.columns().is_multiple_of(scheme.group_size) && rows.count() > 0;
        if !fits || !self.purpose.packs {
            self.unpacked.extend(self.purpose.packs.then(|| module.clone()));
            let name = format!("{module}.weight");
            return self.add_rows(name, Rows { stored: rows, change }, 0.0);
        }
        let codec = Codec { scheme, source: rows.exact(), scales: rows.float(self.activations) };
        codec.packing().check(rows.columns())?;
        let (values, columns) = (rows.columns() * rows.count(), rows.columns());
        let entry = |role, element: ElementType, bytes: usize| {
            let mut shape = rows.shape().to_vec();
            if let Some(last) = shape.last_mut() {
                *last = bytes / (values / columns) * 8 / element.bits();
            }
            Entry { name: format!("{module}.{role}"), element, shape, bytes: bytes as u64, offset: 0 }
        };
        let mut entries = vec![entry("weight", ElementType::U32, codec.code_bytes(values))];
        let scale = if codec.has_biases() { codec.scales.element() } else { ElementType::U8 };
        entries.push(entry("scales", scale, codec.scale_bytes(values)));
        if codec.has_biases() {
            entries.push(entry("biases", scale, codec.scale_bytes(values)));
        }
        let bytes_before = rows.bytes();
        self.items.push(Item {
            name: module,
            content: Content::Packed { rows: Rows { stored: rows, change }, codec },
            entries,
            bytes_before,
        });
        Ok(())
    }

    /// A weight that stays dense, as the network sees it.
    fn add_dense(&mut self, name: String, weight: WeightRef, added: f32) -> Result<()> {
        self.note(&weight);
        match WeightRows::new(self.checkpoint, weight)? {
            Some(stored) => self.add_rows(name, Rows { stored, change: None }, added),
            None => Ok(()),
        }
    }

    fn changed(&self, module: &str, stored: WeightRows) -> Result<Rows<'a>> {
        let change = self.purpose.adapter.and_then(|adapter| adapter.modules.get(module));
        let shape = [stored.count(), stored.columns()];
        if change.is_some_and(|change| change.is_transposed || [change.outputs, change.inputs] != shape) {
            return Err(unchangeable(module));
        }
        Ok(Rows { stored, change })
    }

    /// Refuses an adapter of which something would be left out.
    fn check_changes(&self) -> Result<()> {
        let written: HashSet<&str> = self.items.iter().filter_map(Item::changed_module).collect();
        let mut modules = self.purpose.adapter.iter().flat_map(|adapter| adapter.modules.keys());
        match modules.find(|module| !written.contains(module.as_str())) {
            Some(module) => Err(unchangeable(module)),
            None => Ok(()),
        }
    }

    fn add_rows(&mut self, name: String, rows: Rows<'a>, added: f32) -> Result<()> {
        let stored = &rows.stored;
        let float = stored.float(self.activations);
        let bytes = (stored.columns() * stored.count() * float.bytes()) as u64;
        let (shape, bytes_before) = (stored.shape().to_vec(), stored.bytes());
        let entry = Entry { name: name.clone(), element: float.element(), shape, bytes, offset: 0 };
        let content = Content::Dense { rows, float, added };
        self.items.push(Item { name, content, entries: vec![entry], bytes_before });
        Ok(())
    }

    /// Keeps in mind that the tensors of a weight are written.
    fn note(&mut self, weight: &WeightRef) {
        for part in weight.tensors() {
            for tensor in part.names() {
                self.written.insert(tensor.to_owned());
                if let Some(module) = module_of(tensor) {
                    self.modules.insert(module.to_owned());
                }
            }
        }
    }

    /// Refuses options that say nothing about this model.
    fn check(&self) -> Result<()> {
        let packed: Vec<_> =
            self.items.iter().filter(|item| matches!(item.content, Content::Packed { .. })).collect();
        let refuse = |message: String, field: &'static str| {
            Err(Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("field", field))
        };
        if packed.is_empty() {
            let group_size = self.choice.default.group_size;
            return refuse(format!("no matrix has rows divisible into groups of {group_size}"), "group_size");
        }
        if let Some(recipe) = self.choice.recipe
            && !self.items.iter().any(|item| item.name.contains("down_proj"))
        {
            return refuse(format!("{recipe} needs modules called down_proj, and there are none"), "recipe");
        }
        match self.choice.overrides.iter().zip(&self.is_used).find(|(_, is_used)| !**is_used) {
            None => Ok(()),
            Some((named, _)) => {
                refuse(format!("no module is named '{}'", named.pattern.escape_debug()), "tensor")
            }
        }
    }

    /// All other tensors of the checkpoint. Where `shifts`, factors of norms are written as mlx-lm converts
    /// Qwen3-Next.
    fn add_others(&mut self, shifts: bool) -> Result<()> {
        let checkpoint = self.checkpoint;
        let decoder = self.decoder;
        let of_network: HashSet<&str> = decoder.weights().flat_map(WeightRef::names).collect();
        let was_packed = decoder.weights().any(|weight| weight.packed.is_some());
        let is_float = |view: &TensorView<'_>| Float::of(view.element_type).is_some();
        let module = |name: &str| name.rsplit_once('.').map_or(name, |(module, _)| module).to_owned();
        let others = || checkpoint.tensors().filter(|(name, _)| !self.written.contains(*name));
        // What is left of packed modules that the network does not have could not be read without the
        // settings that go.
        let unreadable: HashSet<String> =
            others().filter(|(_, view)| !is_float(view)).map(|(name, _)| module(name)).collect();
        let is_kept = |name: &str, view: &TensorView<'_>| {
            let readable = is_float(view)
                && !unreadable.contains(&module(name))
                && !self.modules.contains(&module(name));
            of_network.contains(name) || !was_packed || readable
        };
        let mut kept: Vec<_> = others().filter(|(name, view)| is_kept(name, view)).collect();
        if shifts {
            let layers = decoder.layers.len();
            kept.retain(|(name, _)| {
                !name.contains("mtp.") && layer_of(name).is_none_or(|layer| layer < layers)
            });
        }
        for (published, view) in kept {
            let name = self.choice.conversion.name(published);
            if shifts && is_shifted_norm(&name) && view.shape.len() == 1 {
                let weight = WeightRef::new(published, view.element_type, view.shape);
                self.add_dense(name, weight, 1.0)?;
                continue;
            }
            let shape = match view.shape[..] {
                // The same bytes, as mlx-lm has them.
                [channels, 1, taps] if shifts && name.ends_with("conv1d.weight") => vec![channels, taps, 1],
                _ => view.shape,
            };
            let bytes = view.bytes.len() as u64;
            let entry = Entry { name: name.clone(), element: view.element_type, shape, bytes, offset: 0 };
            let content = Content::Stored(view.bytes);
            self.items.push(Item { name, content, entries: vec![entry], bytes_before: bytes });
        }
        Ok(())
    }
}

/// The error for a module whose change cannot be merged while weights are unpacked or packed.
fn unchangeable(module: &str) -> Error {
    let message = "the adapter changes a matrix that is stacked or transposed, and merging it is supported only into dense weights";
    Error::unsupported(OPERATION, message).with_context("module", module.escape_debug())
}

fn layer_of(name: &str) -> Option<usize> {
    let (_, inner) = name.split_once("layers.")?;
    inner.split('.').next()?.parse().ok()
}

/// Whether Qwen3-Next stores these factors less one where mlx-lm does not.
fn is_shifted_norm(name: &str) -> bool {
    let ends = [
        ".input_layernorm.weight",
        ".post_attention_layernorm.weight",
        "model.norm.weight",
        ".q_norm.weight",
        ".k_norm.weight",
    ];
    ends.iter().any(|end| name.ends_with(end))
}
