//! The checkpoint's default sampling parameters: `generation_config.json`.

use mlxcel_core::{ModelSource, Result, SamplingNumber, SamplingParams};
use serde_json::{Map, Value};

use crate::files;

const FILE: &str = "generation_config.json";

/// transformers' names of numbers that have another name here.
const NAMES: [(&str, &str); 1] = [("no_repeat_ngram", "no_repeat_ngram_size")];

/// The value of a field that is there and not null.
fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// The numbers of the file by their names, as the file's `do_sample` says; `None` if one is of the wrong
/// type.
fn params(fields: &Map<String, Value>) -> Option<Result<SamplingParams>> {
    let sample = field(fields, "do_sample").map_or(Some(false), Value::as_bool)?;
    let mut params = SamplingParams::greedy().with_temperature(1.0);
    for number in SamplingNumber::ALL {
        let name =
            NAMES.iter().find(|(own, _)| *own == number.name()).map_or(number.name(), |(_, name)| name);
        let Some(value) = field(fields, name) else { continue };
        let value = match number.is_whole() {
            true => value.as_i64()? as f64,
            false => value.as_f64()?,
        };
        if let Err(error) = number.set(&mut params, Some(value).filter(|&value| !number.is_off(value))) {
            return Some(Err(error));
        }
    }
    // Without `do_sample` transformers is greedy.
    if !sample {
        params.temperature = 0.0;
    }
    Some(params.validate().map(|()| params))
}

/// The sampling defaults of `source`; greedy if it has none.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`](mlxcel_core::ErrorKind::Corrupt) for a file that is not such JSON, or has a value
/// out of range.
pub(crate) fn read(source: &ModelSource) -> Result<SamplingParams> {
    let fields: Map<String, Value> = files::read_json(source, FILE)?.unwrap_or_default();
    let corrupt = |message| files::corrupt(source, FILE, message);
    params(&fields)
        .ok_or_else(|| corrupt("a sampling parameter is of the wrong type"))?
        .map_err(|error| corrupt("a sampling parameter is out of range").with_source(error))
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
