//! Maps tensor names to the roles of a [`Decoder`](crate::Decoder), and checks every shape against the
//! config.

use std::cell::RefCell;

use mlxcel_core::{Error, ErrorKind, ModelPart, Result};

use super::outline::DraftHeadModules;
use super::settings::Sizes;
use super::text::TextModel;
use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::{Linear, Norm, NormKind, Selection, WeightId, WeightRef, WeightTable};
use crate::element::ElementType;
use crate::read::formats::{dense, has_matrix, integers, matrix, mxfp4};

pub(super) const OPERATION: &str = "describe decoder";

/// A checkpoint whose tensors get roles, and the table of those that have one.
pub(super) struct Roles<'a> {
    checkpoint: &'a Checkpoint,
    text: TextModel<'a>,
    /// The settings of the text model.
    pub(super) config: Fields<'a>,
    part: ModelPart,
    /// What stands before the names of tensors in references to weights.
    prefix: &'static str,
    table: RefCell<WeightTable>,
}

impl<'a> Roles<'a> {
    /// No tensor has a role yet.
    pub(super) fn new(checkpoint: &'a Checkpoint, text: TextModel<'a>, part: ModelPart) -> Self {
        Self { checkpoint, text, config: text.config, part, prefix: "", table: RefCell::default() }
    }

    /// The same of a checkpoint that belongs to another one, where the names of its tensors begin with
    /// `prefix`.
    pub(super) fn under(mut self, prefix: &'static str) -> Self {
        self.prefix = prefix;
        self
    }

    /// Gives a weight of the checkpoint that this one belongs to a role.
    pub(super) fn borrow(&self, weight: &WeightRef) -> WeightId {
        self.table.borrow_mut().add(weight.clone())
    }

    /// Whether the draft head is described instead of the model.
    pub(super) fn is_draft_head(&self) -> bool {
        self.part == ModelPart::DraftHead
    }

    /// The error for a family whose draft heads are not known.
    pub(super) fn unknown_draft_head(&self) -> Error {
        let family = self.text.model_type.escape_debug();
        let message = format!("draft heads of the model type '{family}' are not supported");
        Error::unsupported(OPERATION, message)
    }

    /// The modules of the draft head.
    ///
    /// # Errors
    ///
    /// [`unknown_draft_head`](Self::unknown_draft_head), or
    /// [`NotFound`](mlxcel_core::ErrorKind::NotFound) if the checkpoint does not have them.
    pub(super) fn expect_draft_head(&self, modules: Option<DraftHeadModules>) -> Result<DraftHeadModules> {
        let modules = modules.ok_or_else(|| self.unknown_draft_head())?;
        if self.has_matrix(&modules.projection) {
            return Ok(modules);
        }
        let message = "the checkpoint has no draft head; converters often leave it out";
        Err(Error::new(ErrorKind::NotFound, OPERATION, message)
            .with_context("tensor", format!("{}.weight", modules.projection)))
    }

    /// The decoder's name, and a note about what is left out.
    pub(super) fn title(&self) -> (String, Vec<String>) {
        (self.text.model_type.to_owned(), self.text.notes())
    }

    /// The architecture of the GGUF file that the weights are in.
    pub(super) fn gguf_architecture(&self) -> Option<&'static str> {
        self.checkpoint.gguf_architecture()
    }

    /// Whether the model is the text part of another.
    pub(super) fn is_wrapped(&self) -> bool {
        self.text.wrapper.is_some()
    }

    /// The weights that were added, in their order; none is left here.
    pub(super) fn take_weights(&self) -> WeightTable {
        self.table.take()
    }

    /// What stands before the names of the model's modules, after what wraps a text model: `base`, or its part
    /// behind the first dot where the model was saved without its head. The module `probe` shows which.
    pub(super) fn base(&self, base: &str, probe: &str) -> String {
        let inside = base.split_once('.').map_or("", |(_, inside)| inside);
        let candidates =
            self.text.prefixes().iter().flat_map(|outer| [base, inside].map(|base| format!("{outer}{base}")));
        let found = candidates.into_iter().find(|prefix| self.has_matrix(&format!("{prefix}{probe}")));
        found.unwrap_or_else(|| base.to_owned())
    }

    /// Whether the head is the embedding's `table`, and its weight. `tied` is what the settings say; a head
    /// of other values that is in the files goes before them, as in transformers. Those of models that
    /// wrap a text model contradict each other, so there the head is tied unless there is one.
    pub(super) fn head(&self, name: &str, table: WeightRef, tied: bool) -> Result<(bool, WeightRef)> {
        let own = self.text.prefixes().iter().map(|outer| format!("{outer}{name}"));
        let own = own.into_iter().find(|name| self.has_matrix(name));
        let differs = own.as_ref().is_some_and(|own| self.differs(&format!("{own}.weight"), &table.tensor));
        let tied = if self.is_wrapped() { own.is_none() } else { tied };
        let [vocabulary, hidden] = table.shape[..] else { return Ok((true, table)) };
        if tied && !differs {
            return Ok((true, table));
        }
        let weight = self.matrix(own.as_deref().unwrap_or(name), vocabulary, hidden)?;
        Ok((false, weight))
    }

    /// Whether a decoder was saved without its head, to make embeddings or classes of texts: the files do not
    /// have it, and either the names of tensors begin with the network's own modules (`is_bare`) or
    /// `architectures` names no class that generates. The table of embeddings stands in, as where the head is
    /// tied to it.
    pub(super) fn lacks_head(&self, head: &str, is_bare: bool) -> Result<bool> {
        if self.is_wrapped() || self.has_matrix(head) {
            return Ok(false);
        }
        const GENERATING: [&str; 3] = ["ForCausalLM", "LMHeadModel", "ForConditionalGeneration"];
        let classes = self.checkpoint.config().texts("architectures")?.unwrap_or_default();
        let generates = |class: &&str| GENERATING.iter().any(|suffix| class.ends_with(suffix));
        Ok(is_bare || (!classes.is_empty() && !classes.iter().any(generates)))
    }

    /// Whether two tensors of one type and shape have different values, by samples of them: tables that were
    /// trained apart differ nearly everywhere.
    fn differs(&self, a: &str, b: &str) -> bool {
        const SAMPLE: usize = 1024;
        const SAMPLES: usize = 16;
        let (Ok((a, _)), Ok((b, _))) = (self.checkpoint.located(a), self.checkpoint.located(b)) else {
            return false;
        };
        let alike = a.element_type == b.element_type && a.shape == b.shape && a.bytes.len() == b.bytes.len();
        let stride = (a.bytes.len() / SAMPLES).max(SAMPLE);
        let samples = a.bytes.chunks(stride).zip(b.bytes.chunks(stride));
        alike && samples.into_iter().any(|(a, b)| a.iter().take(SAMPLE).ne(b.iter().take(SAMPLE)))
    }

    /// The type of activations: `dtype`, or `torch_dtype` in the older layout, else that of the values of
    /// `table`.
    pub(super) fn activation_type(&self, table: &WeightRef) -> Result<ElementType> {
        let named = match element_type(self.config)? {
            Some(element) => Some(element),
            None => element_type(self.checkpoint.config())?,
        };
        Ok(named.unwrap_or_else(|| table.value_type()))
    }

    /// Gives a weight a role.
    pub(super) fn add(&self, weight: WeightRef) -> WeightId {
        self.table.borrow_mut().add(weight.under(self.prefix))
    }

    /// Whether there is a tensor called `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.checkpoint.has(name)
    }

    /// Whether there is a matrix of the module called `module`, dense or packed.
    pub(super) fn has_matrix(&self, module: &str) -> bool {
        has_matrix(self.checkpoint, module)
    }

    /// The first of `names` that is a tensor, or the first if none is.
    pub(super) fn first_tensor(&self, names: &[String]) -> String {
        names.iter().find(|name| self.has(name)).or(names.first()).cloned().unwrap_or_default()
    }

    /// The first of `modules` that is a matrix, dense or packed, or the first if none is.
    pub(super) fn first_matrix(&self, modules: &[String]) -> String {
        let there = modules.iter().find(|module| self.has_matrix(module));
        there.or(modules.first()).cloned().unwrap_or_default()
    }

    /// The shape of the tensor called `name`, if there is one.
    pub(super) fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.checkpoint.located(name).ok().map(|(view, _)| view.shape)
    }

    /// The tensor `name`, dense and of `shape`; it has no role yet.
    pub(super) fn dense(&self, name: &str, shape: &[usize]) -> Result<WeightRef> {
        dense(self.checkpoint, name, shape)
    }

    /// The dense tensor `name` of `shape`, with a role.
    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> Result<WeightId> {
        self.dense(name, shape).map(|weight| self.add(weight))
    }

    /// The dense tensor `name` of `shape`, with a role, if it is there.
    pub(super) fn tensor_if_there(&self, name: &str, shape: &[usize]) -> Result<Option<WeightId>> {
        self.has(name).then(|| self.tensor(name, shape)).transpose()
    }

    /// The tensor `name` of `shape`, of whole numbers below `bound`, with a role.
    pub(super) fn integers(&self, name: &str, shape: &[usize], bound: usize) -> Result<WeightId> {
        integers::table(self.checkpoint, name, shape, bound).map(|weight| self.add(weight))
    }

    /// The matrix `{module}.weight`, dense or packed; it has no role yet.
    pub(super) fn matrix(&self, module: &str, rows: usize, columns: usize) -> Result<WeightRef> {
        matrix(self.checkpoint, module, &[rows, columns])
    }

    /// The matrices `[count, rows, columns]` that `{module}.weight` holds, dense or packed; they have no role
    /// yet.
    pub(super) fn matrices(
        &self,
        module: &str,
        count: usize,
        rows: usize,
        columns: usize,
    ) -> Result<WeightRef> {
        matrix(self.checkpoint, module, &[count, rows, columns])
    }

    /// The matrices `[count, rows, columns]` that `{name}_blocks` and `{name}_scales` hold; they have no role
    /// yet.
    pub(super) fn blocks(&self, name: &str, shape: [usize; 3]) -> Result<WeightRef> {
        mxfp4::stack(self.checkpoint, name, shape)
    }

    /// The vector `{module}.bias`, if there is to be one; it has no role yet.
    pub(super) fn bias(&self, module: &str, width: usize, there: bool) -> Result<Option<WeightRef>> {
        there.then(|| self.dense(&format!("{module}.bias"), &[width])).transpose()
    }

    /// The projection whose tensors are `{name}.weight`, dense or quantized, and, if `bias`, `{name}.bias`.
    pub(super) fn linear(&self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Result<Linear> {
        let weight = self.matrix(name, outputs, inputs)?;
        Ok(self.projection(weight, self.bias(name, outputs, bias)?))
    }

    /// The rows of several projections, whose tensors are `{name}.weight` and, if `bias`, `{name}.bias`.
    pub(super) fn fused(&self, name: &str, rows: usize, inputs: usize, bias: bool) -> Result<Fused<'_>> {
        let weight = self.matrix(name, rows, inputs)?;
        Ok(Fused { roles: self, weight, bias: self.bias(name, rows, bias)? })
    }

    /// The projection by a weight `[outputs, inputs]`, or a stack of those for experts, and a bias.
    pub(super) fn projection(&self, weight: WeightRef, bias: Option<WeightRef>) -> Linear {
        let size = |back: usize| weight.shape.len().checked_sub(back).map_or(1, |index| weight.shape[index]);
        let (outputs, inputs) = (size(2), size(1));
        Linear { weight: self.add(weight), bias: bias.map(|bias| self.add(bias)), inputs, outputs }
    }

    /// The root-mean-square norm whose tensor is `{name}.weight`.
    pub(super) fn rms_norm(&self, name: &str, width: usize, epsilon: f32) -> Result<Norm> {
        let weight = Some(self.tensor(&format!("{name}.weight"), &[width])?);
        Ok(Norm { kind: NormKind::Rms, weight, bias: None, epsilon, offset: 0.0, width })
    }

    /// The layer norm whose tensors are `{name}.weight` and, if `bias`, `{name}.bias`.
    pub(super) fn layer_norm(&self, name: &str, width: usize, epsilon: f32, bias: bool) -> Result<Norm> {
        let norm = self.rms_norm(name, width, epsilon)?;
        let bias = self.bias(name, width, bias)?.map(|bias| self.add(bias));
        Ok(Norm { kind: NormKind::Layer, bias, ..norm })
    }
}

/// A matrix whose rows are those of several projections, with their biases.
pub(super) struct Fused<'a> {
    pub(super) roles: &'a Roles<'a>,
    pub(super) weight: WeightRef,
    pub(super) bias: Option<WeightRef>,
}

impl Fused<'_> {
    /// The projection that has these rows.
    pub(super) fn select(&self, rows: Selection) -> Linear {
        let part = |whole: &WeightRef| whole.clone().select(rows);
        self.roles.projection(part(&self.weight), self.bias.as_ref().map(part))
    }

    /// The projection that has the rows from `start` on.
    pub(super) fn rows(&self, start: usize, outputs: usize) -> Linear {
        self.select(Selection::rows(start, outputs))
    }

    /// The projections of queries, keys and values, which follow each other with as many rows each.
    pub(super) fn thirds(&self, outputs: usize) -> [Linear; 3] {
        [0, 1, 2].map(|index| self.rows(index * outputs, outputs))
    }

    /// The projections of queries, keys and values, which follow each other.
    pub(super) fn in_order(&self, sizes: &Sizes) -> [Linear; 3] {
        let (queries, keys) = (sizes.query_width(), sizes.kv_width());
        [(0, queries), (queries, keys), (queries + keys, keys)].map(|(start, rows)| self.rows(start, rows))
    }

    /// The same where the three follow each other for every key/value head, with the queries that share it.
    pub(super) fn by_group(&self, sizes: &Sizes) -> [Linear; 3] {
        let (width, runs) = (sizes.head_dim, sizes.kv_heads);
        let queries = sizes.query_heads / runs * width;
        let parts = [(0, queries), (queries, width), (queries + width, width)];
        let stride = queries + 2 * width;
        parts.map(|(start, run)| self.select(Selection { axis: 0, start, run, stride, runs }))
    }
}

/// Refuses a packed weight whose columns are in an order of their own, which only products with a single
/// matrix undo.
pub(super) fn refuse_order(weight: &WeightRef, what: &str) -> Result<()> {
    if weight.packing().is_none_or(|packing| !packing.ordered) {
        return Ok(());
    }
    let message = format!(
        "{what} with their own column order are not supported; quantize without act-order (`desc_act`), or with static \
         groups"
    );
    Err(Error::unsupported(OPERATION, message).with_context("tensor", &weight.tensor))
}

/// The type that `dtype` or `torch_dtype` names.
fn element_type(config: Fields<'_>) -> Result<Option<ElementType>> {
    let key = if config.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    Ok(match config.text(key)? {
        None => None,
        Some("bfloat16") => Some(ElementType::BF16),
        Some("float16") => Some(ElementType::F16),
        Some("float32") => Some(ElementType::F32),
        Some(other) => {
            let message = format!(
                "activations of type '{}' are not supported; bfloat16, float16 and float32 are",
                other.escape_debug()
            );
            return Err(config.unsupported(key, message));
        }
    })
}
