//! Lists the models in the Hugging Face cache, and what engines make of them.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use mlxcel_models::{AdapterWeights, Checkpoint};
use mlxcel_session::LoadOptions;
use mlxcel_session::hub::{CachedSnapshot, HubCache, HubName};
use mlxcel_session::mlxcel_core::one_line;
use serde::Serialize;

use crate::engine::{self, EngineChoice};
use crate::inspection::{EngineAnswer, Inspection};
use crate::progress::Progress;
use crate::report::{Failure, expect_folder, print, shown};

/// List the models in the Hugging Face cache: family, size, packing, and whether engines run them
///
/// A model is listed by the name that `--model` accepts, once for each snapshot, and for each GGUF model in
/// it. Engines are asked with `--load` alone, by loading each model; without it the configuration and shapes
/// are read, whatever the size, and a model is supported if its family and packing are known, which all
/// engines run. An adapter is listed with its rank.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The folder of the cache; else HF_HUB_CACHE, else hub in HF_HOME, else huggingface/hub in the user's
    /// cache folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only models whose name has this in it
    #[arg(value_name = "TEXT")]
    filter: Option<String>,
    /// Ask engines by loading each model; the engine iree compiles for that
    #[arg(long)]
    load: bool,
    /// An engine to ask; may be given more than once; defaults to every one that is compiled in
    #[arg(long, value_name = "NAME", requires = "load")]
    backend: Vec<String>,
    /// Print one JSON object: folder, models (name, commit, path, bytes, missing; model_type, parameters,
    /// packing, context if it is supported, adapter_rank if it is an adapter, else error; engines if
    /// they were asked)
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output {
    #[serde(serialize_with = "shown")]
    folder: PathBuf,
    models: Vec<Listed>,
}

/// A model in the cache.
#[derive(Default, Serialize)]
struct Listed {
    name: String,
    commit: String,
    #[serde(serialize_with = "shown")]
    path: PathBuf,
    bytes: u64,
    /// The files that it lacks.
    missing: Vec<String>,
    #[serde(flatten)]
    network: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter_rank: Option<usize>,
    /// Why it is not supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    engines: Vec<EngineAnswer>,
}

#[derive(Serialize)]
struct Network {
    model_type: String,
    parameters: u64,
    packing: Vec<String>,
    activations: String,
    context: usize,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.dir.as_deref().map_or(Ok(()), expect_folder)?;
    let cache = arguments.dir.clone().map(HubCache::at).or_else(HubCache::from_env);
    let cache =
        cache.ok_or_else(|| Failure::Usage("no home folder found; pass the cache with --dir".to_owned()))?;
    let progress = Progress::new();
    let mut models = Vec::new();
    for snapshot in cache.snapshots()? {
        for name in names(&snapshot) {
            let wanted = arguments.filter.as_ref().is_none_or(|filter| name.to_string().contains(filter));
            if wanted {
                models.push(Listed::new(&cache, &name, &snapshot, arguments, &progress)?);
            }
        }
    }
    progress.close();
    let output = Output { folder: cache.folder().to_owned(), models };
    print(arguments.json, &output, |out, output| output.write(out))
}

/// The models of a snapshot by name: itself, or each of its models in GGUF files where there are several.
fn names(snapshot: &CachedSnapshot) -> Vec<HubName> {
    let models = snapshot.gguf_models();
    if models.len() < 2 { vec![snapshot.name.clone()] } else { models }
}

impl Listed {
    fn new(
        cache: &HubCache,
        name: &HubName,
        snapshot: &CachedSnapshot,
        arguments: &Arguments,
        progress: &Progress,
    ) -> Result<Self, Failure> {
        let mut listed = Self {
            name: name.to_string(),
            commit: snapshot.commit.clone(),
            path: snapshot.folder.clone(),
            bytes: snapshot.bytes,
            ..Self::default()
        };
        let found = match cache.find(name) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(listed),
            Err(error) => {
                listed.error = Some(one_line(&error));
                return Ok(listed);
            }
        };
        if found.path != snapshot.folder {
            listed.bytes = std::fs::metadata(&found.path).map_or(listed.bytes, |file| file.len());
        }
        (listed.path, listed.missing) = (found.path, found.missing);
        if !listed.missing.is_empty() {
            return Ok(listed);
        }
        if found.adapter {
            match AdapterWeights::rank(&listed.path.clone().into()) {
                Ok(rank) => listed.adapter_rank = Some(rank),
                Err(error) => listed.error = Some(one_line(&error)),
            }
            return Ok(listed);
        }
        let inspected =
            Checkpoint::open(&listed.path).and_then(|checkpoint| Inspection::new(&checkpoint, None, 1, None));
        match inspected {
            Ok(inspected) => listed.network = Some(inspected.into()),
            Err(error) => listed.error = Some(one_line(&error)),
        }
        if arguments.load && listed.error.is_none() {
            listed.engines = listed.ask(arguments, progress)?;
        }
        Ok(listed)
    }

    fn description(&self) -> String {
        match (&self.network, self.adapter_rank, &self.error) {
            _ if !self.missing.is_empty() => format!("incomplete: without {}", self.missing.join(", ")),
            (Some(network), ..) => network.description(),
            (None, Some(rank), _) => format!("adapter of rank {rank}"),
            (None, None, Some(error)) => format!("not supported: {error}"),
            (None, None, None) => "not supported".to_owned(),
        }
    }

    /// What each engine says.
    fn ask(&self, arguments: &Arguments, progress: &Progress) -> Result<Vec<EngineAnswer>, Failure> {
        let load = progress.watch(LoadOptions::default());
        let ask = |name: String| {
            let engine = EngineChoice { name: Some(&name), ..EngineChoice::default() }.select()?;
            let loaded = engine.backend.load(&self.path.clone().into(), &load);
            Ok(EngineAnswer::of(engine.backend.name(), loaded.as_deref()))
        };
        engine::names(&arguments.backend).into_iter().map(ask).collect()
    }
}

impl Network {
    fn description(&self) -> String {
        let packing = match &self.packing[..] {
            [] => self.activations.clone(),
            packing => packing.join(", "),
        };
        let (model_type, billions) = (&self.model_type, self.parameters as f64 / 1e9);
        format!("{model_type}, {billions:.2} billion parameters, {packing}, context {}", self.context)
    }
}

impl From<Inspection> for Network {
    fn from(inspection: Inspection) -> Self {
        Self {
            model_type: inspection.model_type,
            parameters: inspection.parameters,
            packing: inspection.quantization.into_iter().map(|share| share.packing).collect(),
            activations: inspection.activations,
            context: inspection.context,
        }
    }
}

impl Output {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for model in &self.models {
            writeln!(out, "{:>9.2} GB  {}", model.bytes as f64 / 1e9, model.name)?;
            writeln!(out, "              {}", model.description())?;
            for engine in &model.engines {
                writeln!(out, "              {}: {}", engine.engine, engine.words())?;
            }
        }
        let adapters = self.models.iter().filter(|model| model.adapter_rank.is_some()).count();
        let models = self.models.len() - adapters;
        let adapters = if adapters > 0 { format!(" and {adapters} adapters") } else { String::new() };
        writeln!(out, "{models} models{adapters} in {}", self.folder.display())
    }
}
