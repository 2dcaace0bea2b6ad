//! The checkpoint's default sampling parameters: `generation_config.json`.

use mlxcel_core::{ModelSource, Result, SamplingParams};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::files;

const FILE: &str = "generation_config.json";

/// The fields of the file that are about sampling; what it does not have, or is null, is none.
#[derive(Default, Deserialize)]
#[serde(default)]
struct GenerationConfig {
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repetition_penalty: Option<f32>,
    no_repeat_ngram_size: Option<i64>,
}

impl GenerationConfig {
    fn params(self) -> SamplingParams {
        // 0 and below turn these off.
        let count = |count: Option<i64>| {
            count.filter(|&count| count > 0).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
        };
        let mut params = SamplingParams::greedy();
        if self.do_sample == Some(true) {
            params.temperature = self.temperature.unwrap_or(1.0);
        }
        params.top_k = count(self.top_k);
        (params.top_p, params.min_p, params.typical_p) = (self.top_p, self.min_p, self.typical_p);
        params.repetition_penalty = self.repetition_penalty;
        params.no_repeat_ngram = count(self.no_repeat_ngram_size);
        params
    }
}

/// The sampling defaults of `source`; greedy if it has none.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`](mlxcel_core::ErrorKind::Corrupt) for a file that is not such JSON, or has a value out of range.
pub(crate) fn read(source: &ModelSource) -> Result<SamplingParams> {
    // A map first: serde would take a list for a structure too.
    let fields: Map<String, Value> = files::read_json(source, FILE)?.unwrap_or_default();
    let corrupt = |message| files::corrupt(source, FILE, message);
    let config = GenerationConfig::deserialize(Value::Object(fields))
        .map_err(|error| corrupt("a sampling parameter is of the wrong type").with_source(error))?;
    let params = config.params();
    params.validate().map_err(|error| corrupt("a sampling parameter is out of range").with_source(error))?;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use mlxcel_core::ErrorKind;

    use super::*;

    fn read_text(text: &str) -> Result<SamplingParams> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), text).unwrap();
        read(&ModelSource::from(folder.path()))
    }

    #[test]
    fn generation_config_is_read() {
        let text = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, "typical_p": 1.0,
            "repetition_penalty": 1.05, "no_repeat_ngram_size": 3, "eos_token_id": [1, 2], "max_length": 20}"#;
        let expected = SamplingParams::greedy()
            .with_temperature(0.6)
            .with_top_k(20)
            .with_top_p(0.95)
            .with_min_p(0.0)
            .with_typical_p(1.0)
            .with_repetition_penalty(1.05)
            .with_no_repeat_ngram(3);
        assert_eq!(read_text(text).unwrap(), expected);
        assert_eq!(read_text(r#"{"do_sample": true, "top_k": 64}"#).unwrap().temperature, 1.0);
        // Without `do_sample` transformers is greedy, whatever else is there.
        let greedy =
            read_text(r#"{"temperature": 0.6, "top_p": null, "top_k": 0, "no_repeat_ngram_size": -1}"#);
        assert_eq!(greedy.unwrap(), SamplingParams::greedy());
        assert_eq!(read(&ModelSource::BuiltIn("none".into())).unwrap(), SamplingParams::greedy());
    }

    #[test]
    fn invalid_generation_config_is_corrupt() {
        for text in [
            "",
            "[]",
            r#"{"do_sample": 1}"#,
            r#"{"temperature": "hot"}"#,
            r#"{"do_sample": true, "temperature": -1}"#,
            r#"{"do_sample": true, "temperature": 1e39}"#,
            r#"{"top_p": 1.5}"#,
            r#"{"top_k": 1e400}"#,
            r#"{"top_k": 99999999999999999999}"#,
            r#"{"repetition_penalty": 0}"#,
        ] {
            let error = read_text(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
            assert!(error.context("path").unwrap().ends_with(FILE), "{text}");
        }
        assert_eq!(read_text(r#"{"top_k": 9999999999}"#).unwrap().top_k, Some(u32::MAX));
    }
}
