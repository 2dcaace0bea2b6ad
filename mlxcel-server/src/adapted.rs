//! A served model with one of its adapters, which requests name as `MODEL:ADAPTER`.

use std::collections::BTreeMap;

use mlxcel_session::ErrorKind;

use crate::adapters::Acquired;
use crate::failure::ApiError;
use crate::sender::Sender;
use crate::served::ServedModel;

impl ServedModel {
    /// The same model with an adapter.
    pub(crate) fn adapted(&self, adapter: &str) -> Self {
        let name = format!("{}:{adapter}", self.name);
        Self { name, adapter: Some(adapter.to_owned()), ..self.clone() }
    }

    /// This model with each of its adapters.
    pub(crate) fn adapted_models(&self) -> impl Iterator<Item = Self> {
        let adapters = self.adapters.as_ref().map(|adapters| adapters.pool.list()).unwrap_or_default();
        adapters.into_iter().map(|adapter| self.adapted(&adapter.name))
    }

    /// The name of the model without the adapter, if it has one.
    pub(crate) fn parent(&self) -> Option<&str> {
        self.name.strip_suffix(self.adapter.as_ref()?)?.strip_suffix(':')
    }

    /// The adapter of this model's requests, if it has one, for the request of `sender`.
    pub(crate) async fn acquire_adapter(&self, sender: &mut Sender) -> Result<Option<Acquired>, ApiError> {
        let (Some(adapters), Some(name)) = (&self.adapters, &self.adapter) else { return Ok(None) };
        let acquired = match adapters.loaded(name) {
            Ok(Some(acquired)) => Ok(acquired),
            Ok(None) => {
                sender.wait_in(&self.server.waiting)?;
                adapters.acquire(sender.share.client, name, self.limits().time).await
            }
            Err(error) => Err(error),
        };
        match acquired {
            Ok(acquired) => Ok(Some(acquired)),
            // It was unloaded since the request came.
            Err(error) if error.kind() == ErrorKind::NotFound && !adapters.pool.contains(name) => {
                Err(ApiError::no_model(&self.name))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Fails for a request that names an adapter, where what it wants is computed without one.
    pub(crate) fn expect_no_adapter(&self, what: &str) -> Result<(), ApiError> {
        match self.adapter {
            None => Ok(()),
            Some(_) => Err(ApiError::unsupported("model", &format!("{what} with an adapter"))),
        }
    }

    /// The figures of requests with adapters, by their names: requests, tokens of prompts, reused ones, and
    /// generated tokens. Adapters without a name, such as those that were unloaded, are `other`: names
    /// are as many as adapters.
    pub(crate) fn adapter_figures(&self) -> BTreeMap<String, [u64; 4]> {
        let mut figures = BTreeMap::<String, [u64; 4]>::new();
        let named = self.adapters.as_ref().map(|adapters| adapters.pool.list()).unwrap_or_default();
        for stats in self.engine.adapter_stats() {
            let name = named.iter().find(|own| own.identity.is_some() && own.identity == stats.adapter);
            let name = name.map_or("other", |own| &own.name).to_owned();
            let own = [stats.requests, stats.prompt_tokens, stats.reused_tokens, stats.generated_tokens];
            let sums = figures.entry(name).or_default();
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        figures
    }
}
