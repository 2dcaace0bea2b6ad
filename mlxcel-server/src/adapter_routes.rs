//! Paths to load and unload adapters, with the names and fields that vLLM has for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use mlxcel_session::ErrorKind;
use serde::Deserialize;

use crate::adapters::Adapters;
use crate::body::{Asked, Body};
use crate::failure::ApiError;
use crate::kinds::{Field, Kind};
use crate::served::{Models, ServedModel};

/// Adds the paths to load and unload adapters, if clients may.
pub(crate) fn add(router: Router<Arc<Models>>, models: &Models) -> Router<Arc<Models>> {
    if !are_allowed(models) {
        return router;
    }
    router.route("/v1/load_lora_adapter", post(load)).route("/v1/unload_lora_adapter", post(unload))
}

/// Whether clients may load and unload adapters.
pub(crate) fn are_allowed(models: &Models) -> bool {
    models.served.iter().filter_map(|app| app.adapters.as_ref()).any(|adapters| adapters.folder.is_some())
}

#[derive(Deserialize)]
pub(crate) struct LoadRequest {
    lora_name: String,
    lora_path: PathBuf,
}

#[derive(Deserialize)]
pub(crate) struct UnloadRequest {
    lora_name: String,
}

impl Asked for LoadRequest {
    fn fields() -> Vec<Field> {
        vec![Field::required("lora_name", Kind::Text), Field::required("lora_path", Kind::Text)]
    }
}

impl Asked for UnloadRequest {
    fn fields() -> Vec<Field> {
        vec![Field::required("lora_name", Kind::Text)]
    }
}

/// The adapters of a model that clients may change, and their folder.
fn changeable(app: &ServedModel) -> Result<(&Arc<Adapters>, &Path), ApiError> {
    let adapters = app.adapters.as_ref().filter(|_| app.adapter.is_none());
    let found = adapters.and_then(|adapters| Some((adapters, adapters.folder.as_deref()?)));
    found.ok_or_else(|| ApiError::unsupported("model", "adapters of this model"))
}

async fn load(Body { request, app, sender }: Body<LoadRequest>) -> Result<String, ApiError> {
    let (adapters, folder) = changeable(&app)?;
    let (pool, folder) = (adapters.pool.clone(), folder.to_owned());
    let LoadRequest { lora_name: name, lora_path: path, .. } = request;
    let done = format!("Success: LoRA adapter '{name}' added successfully.");
    let add = move || {
        // The same answer for what does not exist and what is elsewhere.
        let found = folder.join(&path).canonicalize().ok().filter(|found| found.starts_with(&folder));
        let found = found.ok_or_else(|| {
            ApiError::invalid("lora_path", "there is no such folder in the folder of adapters of this server")
        })?;
        pool.add(&name, found).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::Corrupt => ApiError::invalid("lora_path", error.to_string()),
            _ => error.into(),
        })
    };
    // It does not wait for a slot, and should not wait behind requests that do.
    app.server.workers.run(sender.share.client, add).await??;
    Ok(done)
}

async fn unload(Body { request, app, .. }: Body<UnloadRequest>) -> Result<String, ApiError> {
    let (adapters, _) = changeable(&app)?;
    let name = request.lora_name;
    if adapters.pool.remove(&name).is_err() {
        return Err(ApiError::no_model(&format!("{}:{name}", app.name)));
    }
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}
