//! Heads of checkpoints for sequence classification, as rerankers have them.

use mlxcel_core::{Error, Result};
use serde_json::Value;

use super::{HeadLayer, TextHead, TokenPooling};
use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::{Activation, Decoder};
use crate::element::ElementType;
use crate::families::activation;
use crate::read::formats::matrix;

const OPERATION: &str = "read classifier";

impl TextHead {
    /// The head of a checkpoint whose `architectures` are for sequence classification: it makes one score
    /// (logit) for each class from the hidden states of `decoder`. `None` for other checkpoints.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for the heads of other families, and the errors
    /// of reading a weight.
    pub fn of_classifier(checkpoint: &Checkpoint, decoder: &Decoder) -> Result<Option<Self>> {
        let config = checkpoint.config();
        let architectures = config.texts("architectures")?.unwrap_or_default();
        let Some(architecture) =
            architectures.iter().find(|name| name.ends_with("ForSequenceClassification"))
        else {
            return Ok(None);
        };
        let hidden = decoder.hidden_size;
        let values = |name: &str, shape: &[usize]| values(checkpoint, name, shape);
        let dense = |module: &str, bias: bool, activation: Option<Activation>| -> Result<HeadLayer> {
            let weight = matrix_values(checkpoint, module, [hidden, hidden])?;
            let bias = if bias { Some(values(&format!("{module}.bias"), &[hidden])?) } else { None };
            Ok(HeadLayer::Dense { weight, bias, activation })
        };
        let classes = |module: &str, bias: bool| -> Result<HeadLayer> {
            let name = format!("{module}.weight");
            let count = checkpoint.tensor(&name)?.shape.first().copied().unwrap_or_default();
            let weight = matrix_values(checkpoint, module, [count, hidden])?;
            let bias = if bias { Some(values(&format!("{module}.bias"), &[count])?) } else { None };
            Ok(HeadLayer::Dense { weight, bias, activation: None })
        };
        let mut token_layers = Vec::new();
        let (pooling, layers) = match *architecture {
            "BertForSequenceClassification"
            | "ErnieForSequenceClassification"
            | "NomicBertForSequenceClassification"
            | "GteForSequenceClassification" => {
                const POOLER: &str = "pooler.dense";
                let bases = ["bert.", "ernie.", "nomic_bert.", "gte.", "new."];
                let has = |base: &&str| checkpoint.has(&format!("{base}{POOLER}.bias"));
                let base = bases.into_iter().find(has).unwrap_or("bert.");
                let pooler = dense(&format!("{base}{POOLER}"), true, Some(Activation::Tanh))?;
                (TokenPooling::First, vec![pooler, classes("classifier", true)?])
            }
            "RobertaForSequenceClassification"
            | "CamembertForSequenceClassification"
            | "MPNetForSequenceClassification"
            | "XLMRobertaForSequenceClassification"
            | "JinaEmbeddingsV3ForSequenceClassification" => {
                let first = dense("classifier.dense", true, Some(Activation::Tanh))?;
                (TokenPooling::First, vec![first, classes("classifier.out_proj", true)?])
            }
            // Whatever the activation of its MLPs.
            "ElectraForSequenceClassification" => {
                let first = dense("classifier.dense", true, Some(Activation::Gelu))?;
                (TokenPooling::First, vec![first, classes("classifier.out_proj", true)?])
            }
            "DistilBertForSequenceClassification" => {
                let first = dense("pre_classifier", true, Some(Activation::Relu))?;
                (TokenPooling::First, vec![first, classes("classifier", true)?])
            }
            "ModernBertForSequenceClassification" => {
                let pooling = pooling(config, "cls")?;
                let activation = activation(config, "classifier_activation", Activation::Gelu)?;
                let bias = config.flag("classifier_bias")?.unwrap_or(false);
                let norm_bias = config.flag("norm_bias")?.unwrap_or(false);
                let norm = HeadLayer::Norm {
                    weight: values("head.norm.weight", &[hidden])?,
                    bias: if norm_bias { Some(values("head.norm.bias", &[hidden])?) } else { None },
                    epsilon: config.positive("norm_eps")?.unwrap_or(1e-5) as f32,
                };
                let first = dense("head.dense", bias, Some(activation))?;
                (pooling, vec![first, norm, classes("classifier", true)?])
            }
            "NeoBERTForSequenceClassification" => {
                let first = dense("dense", true, Some(Activation::Tanh))?;
                (TokenPooling::First, vec![first, classes("classifier", true)?])
            }
            "EuroBertForSequenceClassification" => {
                let first = dense("dense", true, Some(Activation::Gelu))?;
                let classes = classes("classifier", true)?;
                if config.text(POOLING)?.is_none_or(|name| name == "late") {
                    // The mean of scores is the score of the mean.
                    token_layers.push(first);
                    (TokenPooling::Mean, vec![classes])
                } else {
                    (pooling(config, "bos")?, vec![first, classes])
                }
            }
            // Decoders: the score of the last token.
            _ if decoder.head.is_some() && checkpoint.has("score.weight") => {
                let scores = if answers_yes_or_no(config)? {
                    difference(&matrix_values(checkpoint, "score", [2, hidden])?)
                } else {
                    classes("score", false)?
                };
                (TokenPooling::Last, vec![scores])
            }
            other => {
                let message = format!("heads of '{}' are not supported", other.escape_debug());
                return Err(config.unsupported("architectures", message));
            }
        };
        let poolings = vec![pooling];
        Ok(Some(Self { inputs: hidden, token_layers, poolings, includes_prompt: true, layers }))
    }

    /// Whether a checkpoint's classes are the answers yes and no, as Qwen3-Reranker has them in GGUF files.
    /// The head that [`of_classifier`](Self::of_classifier) reads then scores the one against the other.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for labels that are no object.
    pub fn answers_yes_or_no(checkpoint: &Checkpoint) -> Result<bool> {
        answers_yes_or_no(checkpoint.config())
    }
}

/// The field of the pooling before a classifier.
const POOLING: &str = "classifier_pooling";

/// The pooling before the classifier: that of the first token, which is called `first` and the default, or
/// the mean.
fn pooling(config: Fields<'_>, first: &str) -> Result<TokenPooling> {
    match config.text(POOLING)?.unwrap_or(first) {
        "mean" => Ok(TokenPooling::Mean),
        name if name == first => Ok(TokenPooling::First),
        other => {
            let message = format!(
                "pooling by '{}' is not supported for classifiers; {first} and mean are",
                other.escape_debug()
            );
            Err(config.unsupported(POOLING, message))
        }
    }
}

/// Whether there are the classes "yes" and "no", in this order.
fn answers_yes_or_no(config: Fields<'_>) -> Result<bool> {
    let Some(labels) = config.object("id2label")? else { return Ok(false) };
    let label = |class: &str| labels.get(class).and_then(Value::as_str);
    Ok(labels.keys().count() == 2 && label("0") == Some("yes") && label("1") == Some("no"))
}

/// The score of the first of two classes less that of the second: the logit whose sigmoid is the probability
/// of the first. `weight` has a row for each.
fn difference(weight: &[f32]) -> HeadLayer {
    let (first, second) = weight.split_at(weight.len() / 2);
    let weight = first.iter().zip(second).map(|(first, second)| first - second).collect();
    HeadLayer::Dense { weight, bias: None, activation: None }
}

/// The values of a matrix, which may be packed.
pub(super) fn matrix_values(checkpoint: &Checkpoint, module: &str, shape: [usize; 2]) -> Result<Vec<f32>> {
    let weight = matrix(checkpoint, module, &shape)?;
    let bytes = checkpoint.expanded_weight(&weight, ElementType::F32)?;
    Ok(super::modules::floats(ElementType::F32, &bytes).unwrap_or_default())
}

/// The values of a dense tensor.
fn values(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let view = checkpoint.tensor(name)?;
    let floats = super::modules::floats(view.element_type, view.bytes).filter(|_| view.shape == shape);
    floats.ok_or_else(|| {
        Error::unsupported(
            OPERATION,
            "the weights of classifiers must be floats of 16 or 32 bits, of the expected shape",
        )
        .with_context("tensor", name)
        .with_context("shape", format_args!("{:?}", view.shape))
    })
}
