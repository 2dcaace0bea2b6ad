//! The adapters of a server, and the one of a program with one sequence.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use mlxcel_server::Server;
use mlxcel_session::{Adapter, AdapterLimits, AdapterPool, LoadOptions, Model, ModelSource, hub};

use crate::engine::path;
use crate::model::is_missing;
use crate::report::Failure;

/// The slots, if clients may load adapters, and the rank that these may have, as peers have it.
const SLOTS: usize = 8;
const RANK: usize = 16;

/// The adapter that all texts of a program are generated with.
#[derive(Args)]
pub(crate) struct AdapterArgument {
    /// Generate with this LoRA adapter: a folder as PEFT or mlx-lm writes it, with adapter_config.json, a GGUF
    /// file, or `org/name` in the Hugging Face cache
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
}

impl AdapterArgument {
    /// Adds the room that the adapter needs.
    pub(crate) fn make_room(&self, load: LoadOptions) -> Result<LoadOptions, Failure> {
        let Some(source) = &self.adapter else { return Ok(load) };
        Ok(load.with_adapters(AdapterLimits::new(1, rank(source)?)))
    }

    /// Loads the adapter into a model with that room.
    pub(crate) fn load(&self, model: &Model) -> Result<Option<Adapter>, Failure> {
        Ok(self.adapter.as_deref().map(|source| model.load_adapter(source)).transpose()?)
    }
}

/// The files of an adapter: a folder or file, or what the Hugging Face cache has under a name.
pub(crate) fn find(adapter: &Path, load: &LoadOptions) -> Result<ModelSource, Failure> {
    let source = hub::locate(adapter, load)?;
    if path(&source).is_some_and(is_missing) {
        let what = "no such folder or file; pass the folder of a LoRA adapter, a GGUF file or org/name";
        return Err(Failure::Usage(format!("--adapter {}: {what}", adapter.display())));
    }
    Ok(source)
}

fn rank(adapter: &Path) -> Result<usize, Failure> {
    Ok(Model::adapter_rank(find(adapter, &LoadOptions::default())?)?)
}

/// The adapters of a bundle, and the room for others.
#[cfg(feature = "iree")]
#[derive(Args)]
pub(crate) struct BundledAdapters {
    /// Put the LoRA adapter in DIR, as PEFT or mlx-lm writes it or a GGUF file, into the bundle as
    /// `adapters/NAME`. Can be repeated
    #[arg(long, value_name = "NAME=DIR")]
    adapter: Vec<NamedAdapter>,
    /// Compile programs with room for so many loaded adapters; defaults to the number of --adapter, and to 8
    /// with --adapter-rank
    #[arg(long, value_name = "N")]
    adapter_slots: Option<usize>,
    /// The maximum rank of an adapter; defaults to the largest of --adapter, and to 16 with --adapter-slots
    #[arg(long, value_name = "N")]
    adapter_rank: Option<usize>,
}

#[cfg(feature = "iree")]
impl BundledAdapters {
    /// Adds the room that the programs have.
    pub(crate) fn make_room(&self, load: LoadOptions) -> Result<LoadOptions, Failure> {
        if self.adapter.is_empty() && self.adapter_slots.is_none() && self.adapter_rank.is_none() {
            return Ok(load);
        }
        let own = if self.adapter.is_empty() { SLOTS } else { self.adapter.len() };
        let slots = self.adapter_slots.unwrap_or(own);
        let ranks = self.adapter.iter().map(|own| rank(&own.folder));
        let largest = ranks.collect::<Result<Vec<_>, _>>()?.into_iter().max();
        Ok(load.with_adapters(AdapterLimits::new(slots, self.adapter_rank.or(largest).unwrap_or(RANK))))
    }

    /// The adapters that are put in, with their names.
    pub(crate) fn included(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.adapter.iter().map(|own| (own.name.as_str(), own.folder.as_path()))
    }
}

/// What a server is told about adapters.
#[derive(Args)]
pub(crate) struct AdapterArguments {
    /// Serve the LoRA adapter in DIR, as PEFT or mlx-lm writes it or a GGUF file, as the model `MODEL:NAME`
    /// too. Can be repeated
    #[arg(long, value_name = "NAME=DIR")]
    adapter: Vec<NamedAdapter>,
    /// Let clients load adapters from folders in DIR, and unload them, with `/v1/load_lora_adapter` and
    /// `/v1/unload_lora_adapter`
    #[arg(long, value_name = "DIR")]
    adapters_at_runtime: Option<PathBuf>,
    /// How many adapters are in memory; others are loaded when requests need them. Defaults to the number of
    /// --adapter, and to 8 or more with --adapters-at-runtime
    #[arg(long, value_name = "N")]
    adapter_slots: Option<usize>,
    /// The maximum rank of an adapter; defaults to the largest of --adapter, and to 16 or more with
    /// --adapters-at-runtime
    #[arg(long, value_name = "N")]
    adapter_rank: Option<usize>,
}

#[derive(Clone, Debug)]
struct NamedAdapter {
    name: String,
    folder: PathBuf,
}

impl FromStr for NamedAdapter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, folder) = text.split_once('=').ok_or("write NAME=DIR")?;
        Ok(Self { name: name.to_owned(), folder: folder.into() })
    }
}

impl AdapterArguments {
    /// The room that the model needs.
    pub(crate) fn room(&self) -> Result<Option<AdapterLimits>, Failure> {
        let at_runtime = self.adapters_at_runtime.is_some();
        if self.adapter.is_empty() && !at_runtime {
            if self.adapter_slots.is_some() || self.adapter_rank.is_some() {
                let message = "--adapter-slots and --adapter-rank need --adapter or --adapters-at-runtime";
                return Err(Failure::Usage(message.to_owned()));
            }
            return Ok(None);
        }
        let least = |least: usize| if at_runtime { least } else { 1 };
        let slots = self.adapter_slots.unwrap_or(self.adapter.len().max(least(SLOTS)));
        let rank = match self.adapter_rank {
            Some(rank) => rank,
            None => {
                let ranks = self.adapter.iter().map(|own| rank(&own.folder));
                ranks.collect::<Result<Vec<_>, _>>()?.into_iter().fold(least(RANK), usize::max)
            }
        };
        Ok(Some(AdapterLimits::new(slots, rank)))
    }

    /// Adds the adapters of `model`, which is called `name`, to a server.
    pub(crate) fn serve(&self, mut server: Server, name: &str, model: &Model) -> Result<Server, Failure> {
        if model.capabilities().adapters.is_none() {
            return Ok(server);
        }
        let pool = AdapterPool::new(model)?;
        for NamedAdapter { name, folder } in &self.adapter {
            pool.add(name, folder.as_path())?;
        }
        server = server.with_adapters(name, pool);
        if let Some(folder) = &self.adapters_at_runtime {
            server = server.with_adapter_folder(folder);
        }
        Ok(server)
    }
}
