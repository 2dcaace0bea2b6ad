//! The contestants, and how each is started.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::results::{Contestant, Program};
use crate::packed::Form;
use crate::peak::Arithmetic;
use crate::serve::Engine;
use crate::shapes::Shapes;
use crate::worker::name;
use crate::{gguf, peers};

/// One of our configurations: an engine, a type of weights and a precision, which defaults to `native`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ours {
    Bf16,
    Bf16Exact,
    #[value(name = "8bit")]
    EightBit,
    #[value(name = "8bit-exact")]
    EightBitExact,
    #[value(name = "8bit-fast")]
    EightBitFast,
    #[value(name = "4bit")]
    FourBit,
    #[value(name = "4bit-exact")]
    FourBitExact,
    #[value(name = "4bit-fast")]
    FourBitFast,
    /// 4 bits in groups of 128 and the embedding in bfloat16, as in `gptq`, `awq` and `fp8`
    #[value(name = "4bit-linears")]
    FourBitLinears,
    Gptq,
    Awq,
    Fp8,
    MlxBf16,
    #[value(name = "mlx-8bit")]
    MlxEightBit,
    #[value(name = "mlx-4bit")]
    MlxFourBit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LlamaCpp {
    Bf16,
    #[value(name = "q8_0")]
    Q8,
    #[value(name = "q4_0")]
    Q4,
    /// The embedding, also the head, in 4 bits as well; `q4_0` has it in 6
    #[value(name = "q4_0-pure")]
    Q4Pure,
    #[value(name = "q4_k_m")]
    Q4Km,
    #[value(name = "q6_k")]
    Q6K,
    #[value(name = "iq4_nl")]
    Iq4Nl,
}

impl LlamaCpp {
    /// How programs multiply these weights by default.
    fn arithmetic(self) -> Arithmetic {
        if self == Self::Bf16 { Arithmetic::Halves } else { Arithmetic::Bytes }
    }
}

/// A precision of our engine on llama.cpp's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SameFiles {
    Native,
    Fast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Candle {
    F32,
    Bf16,
}

/// A mistral.rs type; those of fewer bits are quantized while loading. It multiplies no bf16 on processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MistralRs {
    F32,
    #[value(name = "q8_0")]
    Q8,
    #[value(name = "q4_0")]
    Q4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MlxLm {
    F32,
    Bf16,
    #[value(name = "4bit")]
    FourBit,
    #[value(name = "4bit-f32")]
    FourBitF32,
}

/// How much of the plan a contestant is measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Everything, long contexts included.
    Long,
    /// Everything else.
    Usual,
    /// No batches.
    Single,
    /// The shortest prompt and a few tokens, once: each takes seconds.
    Little,
}

/// A contestant to start.
pub(super) struct Entry {
    pub(super) result: Contestant,
    pub(super) effort: Effort,
    /// The weights as a file or a folder, if loading them is compared with copying them.
    pub(super) weights: Option<PathBuf>,
    /// Names and versions of the libraries, once it was started.
    pub(super) versions: Vec<(String, String)>,
    command: Box<dyn Fn() -> Command>,
}

impl Entry {
    fn new(result: Contestant, effort: Effort, command: impl Fn() -> Command + 'static) -> Self {
        Self { result, effort, weights: None, versions: Vec::new(), command: Box::new(command) }
    }

    pub(super) fn command(&self) -> Command {
        (self.command)()
    }
}

/// State shared by all contestants.
pub(super) struct Common<'a> {
    pub(super) shapes: &'a Shapes,
    /// The folder of the bfloat16 checkpoint.
    pub(super) checkpoint: &'a Path,
    pub(super) threads: usize,
    pub(super) capacity: usize,
    pub(super) sequences: usize,
    /// The IREE engine's program cache in this run.
    pub(super) cache: &'a Path,
}

impl Common<'_> {
    /// One of our configurations. The folder of a quantized checkpoint is created if missing.
    pub(super) fn ours(&self, which: Ours) -> Result<Entry> {
        let (engine, bits, precision) = match which {
            Ours::Bf16 => (Engine::Iree, None, "native"),
            Ours::Bf16Exact => (Engine::Iree, None, "exact"),
            Ours::EightBit => (Engine::Iree, Some(8), "native"),
            Ours::EightBitExact => (Engine::Iree, Some(8), "exact"),
            Ours::EightBitFast => (Engine::Iree, Some(8), "fast"),
            Ours::FourBit => (Engine::Iree, Some(4), "native"),
            Ours::FourBitExact => (Engine::Iree, Some(4), "exact"),
            Ours::FourBitFast => (Engine::Iree, Some(4), "fast"),
            Ours::FourBitLinears => return self.ours_of_form(which, Form::Affine),
            Ours::Gptq => return self.ours_of_form(which, Form::Gptq),
            Ours::Awq => return self.ours_of_form(which, Form::Awq),
            Ours::Fp8 => return self.ours_of_form(which, Form::Fp8),
            Ours::MlxBf16 => (Engine::Mlx, None, "native"),
            Ours::MlxEightBit => (Engine::Mlx, Some(8), "native"),
            Ours::MlxFourBit => (Engine::Mlx, Some(4), "native"),
        };
        let weights = bits.map_or_else(|| "bf16".to_owned(), |bits| format!("{bits}bit"));
        // A group of 64 has a scale and a bias of 16 bits.
        let stored_bits = bits.map_or(16.0, |bits| bits as f64 + 0.5);
        // The MLX engine quantizes while loading.
        let folder = match (engine, bits) {
            (Engine::Iree, Some(bits)) => self.shapes.provide_quantized(self.checkpoint, bits)?,
            _ => self.checkpoint.to_owned(),
        };
        let quantized_here = bits.filter(|_| engine == Engine::Mlx);
        self.engine(engine, &weights, precision, folder, stored_bits, quantized_here)
    }

    /// The IREE engine on a checkpoint in another tool's format, which is created if missing.
    fn ours_of_form(&self, which: Ours, form: Form) -> Result<Entry> {
        let folder = self.shapes.provide_packed(self.checkpoint, form)?;
        let bits = self.stored_bits(&folder.join("model.safetensors"))?;
        self.engine(Engine::Iree, &name(&which), "native", folder, bits, None)
    }

    /// The IREE engine on a llama.cpp file, which is created if missing.
    pub(super) fn ours_of_llama_cpp(
        &self,
        program: &Path,
        which: LlamaCpp,
        precision: &str,
    ) -> Result<Entry> {
        let file = self.gguf(program, which)?;
        let bits = self.stored_bits(&file)?;
        let mut entry = self.engine(Engine::Iree, &name(&which), precision, file, bits, None)?;
        // A checkpoint of ours may hold the same type.
        entry.result.name = format!("mlxcel {}.gguf {precision}", name(&which));
        Ok(entry)
    }

    /// The bits per value in a file.
    fn stored_bits(&self, file: &Path) -> Result<f64> {
        let length = std::fs::metadata(file).with_context(|| format!("looking at {}", file.display()))?.len();
        Ok(length as f64 * 8.0 / self.shapes.parameters() as f64)
    }

    /// One of our engines on a folder or a file with this many bits per value.
    fn engine(
        &self,
        engine: Engine,
        weights: &str,
        precision: &str,
        folder: PathBuf,
        stored_bits: f64,
        quantized_here: Option<usize>,
    ) -> Result<Entry> {
        let program = if engine == Engine::Iree { Program::Iree } else { Program::Mlx };
        let named = if engine == Engine::Iree { "mlxcel" } else { "mlxcel mlx" };
        let mut result =
            Contestant::new(format!("{named} {weights} {precision}"), program, weights, Some(precision));
        self.count_bytes(&mut result, stored_bits);
        result.arithmetic = match (engine, weights, precision) {
            // Its products are libraries'.
            (Engine::Mlx, ..) => None,
            (_, _, "exact") | (_, "fp8", _) => Some(Arithmetic::Floats),
            (_, "bf16", _) => Some(Arithmetic::Halves),
            (_, _, "fast") => Some(Arithmetic::Bytes),
            _ => Some(Arithmetic::TwoBytes),
        };
        let this = std::env::current_exe().context("finding this program")?;
        let cache = (engine == Engine::Iree).then(|| self.cache.to_owned());
        let weights = quantized_here.is_none().then(|| folder.clone());
        let precision = precision.to_owned();
        let numbers = [("threads", self.threads), ("capacity", self.capacity), ("sequences", self.sequences)];
        let command = move || {
            let mut command = Command::new(&this);
            command
                .args(["serve", "--engine", &name(&engine), "--precision", &precision, "--model"])
                .arg(&folder);
            for (name, number) in numbers {
                command.arg(format!("--{name}")).arg(number.to_string());
            }
            if let Some(cache) = &cache {
                command.arg("--cache").arg(cache);
            }
            if let Some(bits) = quantized_here {
                command.arg("--bits").arg(bits.to_string());
            }
            command
        };
        let effort = effort(&result.weights);
        Ok(Entry { weights, ..Entry::new(result, effort, command) })
    }

    /// The file of a llama.cpp type, created if missing.
    fn gguf(&self, program: &Path, which: LlamaCpp) -> Result<PathBuf> {
        let file = gguf::provide(self.shapes, self.checkpoint)?;
        if which == LlamaCpp::Bf16 {
            return Ok(file);
        }
        let kind = name(&which);
        let quantized = self.checkpoint.join(format!("{kind}.gguf"));
        peers::quantize_gguf(program, &file, &quantized, &kind, self.threads)?;
        Ok(quantized)
    }

    pub(super) fn llama_cpp(&self, program: &Path, which: LlamaCpp) -> Result<Entry> {
        let kind = name(&which);
        let file = self.gguf(program, which)?;
        // It reports the actual number when it is started.
        let bits = match which {
            LlamaCpp::Bf16 => 16.0,
            // Blocks of 32 have a scale of 16 bits.
            LlamaCpp::Q8 => 8.5,
            LlamaCpp::Q4 | LlamaCpp::Q4Pure | LlamaCpp::Q4Km | LlamaCpp::Iq4Nl => 4.5,
            LlamaCpp::Q6K => 6.5625,
        };
        let mut result = self.peer("llama.cpp", Program::LlamaCpp, &kind, bits);
        result.arithmetic = Some(which.arithmetic());
        let (program, threads, capacity) = (program.to_owned(), self.threads, self.capacity);
        let weights = Some(file.clone());
        let command = move || peers::llama_cpp(&program, &file, threads, capacity);
        Ok(Entry { weights, ..Entry::new(result, effort(&kind), command) })
    }

    /// A program with weights in a file, which come from llama.cpp's type.
    fn on_file(&self, label: &str, program: Program, which: LlamaCpp, weights: &Path) -> Result<Contestant> {
        let result = self.peer(label, program, &name(&which), self.stored_bits(weights)?);
        Ok(Contestant { arithmetic: Some(which.arithmetic()), ..result })
    }

    /// ik_llama.cpp with a file of llama.cpp's.
    pub(super) fn ik_llama_cpp(
        &self,
        llama_cpp: &Path,
        python: &str,
        packages: &Path,
        which: LlamaCpp,
    ) -> Result<Entry> {
        let file = self.gguf(llama_cpp, which)?;
        let result = self.on_file("ik_llama.cpp", Program::IkLlamaCpp, which, &file)?;
        let (python, packages) = (python.to_owned(), packages.to_owned());
        let (threads, capacity) = (self.threads, self.capacity);
        let weights = Some(file.clone());
        let command = move || peers::ik_llama_cpp(&python, &packages, &file, threads, capacity);
        Ok(Entry { weights, ..Entry::new(result, effort(&name(&which)), command) })
    }

    /// OpenVINO GenAI with a file of llama.cpp's, which it converts once.
    pub(super) fn openvino(
        &self,
        llama_cpp: &Path,
        python: &str,
        packages: &Path,
        which: LlamaCpp,
    ) -> Result<Entry> {
        let file = self.gguf(llama_cpp, which)?;
        let kind = name(&which);
        let folder = self.checkpoint.join(format!("openvino-{kind}"));
        peers::convert_to_openvino(python, packages, &file, &folder)?;
        let weights = folder.join("openvino_model.bin");
        let result = self.on_file("OpenVINO", Program::OpenVino, which, &weights)?;
        let (python, packages, threads) = (python.to_owned(), packages.to_owned(), self.threads);
        let command = move || peers::openvino(&python, &packages, &folder, threads);
        Ok(Entry { weights: Some(weights), ..Entry::new(result, effort(&kind), command) })
    }

    /// ONNX Runtime GenAI with a model in 4 bits, which it builds once.
    pub(super) fn onnxruntime(&self, python: &str) -> Result<Entry> {
        let folder = self.checkpoint.join("onnxruntime-int4");
        peers::convert_to_onnxruntime(python, self.checkpoint, &folder)?;
        let weights = folder.join("model.onnx.data");
        let mut result = self.peer("ONNX Runtime", Program::OnnxRuntime, "int4", self.stored_bits(&weights)?);
        result.arithmetic = Some(Arithmetic::Bytes);
        let (python, threads) = (python.to_owned(), self.threads);
        let command = move || peers::onnxruntime(&python, &folder, threads);
        Ok(Entry { weights: Some(weights), ..Entry::new(result, effort("int4"), command) })
    }

    pub(super) fn candle(&self, program: &Path, which: Candle) -> Result<Entry> {
        let shapes = self.shapes;
        if shapes.experts.is_some() {
            bail!("its llama has no experts");
        }
        if shapes.head_dim * shapes.heads != shapes.hidden {
            bail!("its llama derives the head size from the hidden size, and these shapes differ");
        }
        let kind = name(&which);
        let bits = if which == Candle::F32 { 32.0 } else { 16.0 };
        let mut result = self.peer("candle", Program::Candle, &kind, bits);
        result.arithmetic = (which == Candle::F32).then_some(Arithmetic::Floats);
        let (program, checkpoint, threads) = (program.to_owned(), self.checkpoint.to_owned(), self.threads);
        let effort = if which == Candle::F32 { Effort::Single } else { Effort::Little };
        Ok(Entry::new(result, effort, move || peers::rayon(&program, &checkpoint, &kind, threads)))
    }

    pub(super) fn mistral_rs(&self, program: &Path, which: MistralRs) -> Result<Entry> {
        if self.shapes.experts.is_some() {
            bail!("the shapes of its experts are not measured");
        }
        let kind = name(&which);
        let bits = match which {
            MistralRs::F32 => 32.0,
            MistralRs::Q8 => 8.5,
            MistralRs::Q4 => 4.5,
        };
        let mut result = self.peer("mistral.rs", Program::MistralRs, &kind, bits);
        let floats = which == MistralRs::F32;
        result.arithmetic = Some(if floats { Arithmetic::Floats } else { Arithmetic::Bytes });
        let (program, checkpoint, threads) = (program.to_owned(), self.checkpoint.to_owned(), self.threads);
        Ok(Entry::new(result, Effort::Single, move || peers::rayon(&program, &checkpoint, &kind, threads)))
    }

    pub(super) fn mlx_lm(&self, python: &str, packages: &Path, which: MlxLm) -> Entry {
        let kind = name(&which);
        let bits = match which {
            MlxLm::F32 => 32.0,
            MlxLm::Bf16 => 16.0,
            MlxLm::FourBit => 4.5,
            MlxLm::FourBitF32 => 5.0,
        };
        let result = self.peer("mlx-lm", Program::MlxLm, &kind, bits);
        let (python, packages) = (python.to_owned(), packages.to_owned());
        let checkpoint = self.checkpoint.to_owned();
        Entry::new(result, Effort::Little, move || peers::mlx_lm(&python, &packages, &checkpoint, &kind))
    }

    /// Another program, with weights of a type that has this many bits.
    fn peer(&self, name: &str, program: Program, kind: &str, bits: f64) -> Contestant {
        let mut result = Contestant::new(format!("{name} {kind}"), program, kind, None);
        self.count_bytes(&mut result, bits);
        result
    }

    /// Counts the bytes of weights that a token reads and does not read, at this many bits.
    fn count_bytes(&self, result: &mut Contestant, bits: f64) {
        let bytes = |parameters: usize| parameters as f64 * bits / 8.0;
        result.unread_bytes = bytes(self.shapes.unread_parameters());
        result.weight_bytes = bytes(self.shapes.parameters()) - result.unread_bytes;
    }
}

fn effort(weights: &str) -> Effort {
    if weights == "bf16" { Effort::Long } else { Effort::Usual }
}
