//! Names of split files: `model-00001-of-00003.gguf` and so on.

/// The name of one file of a split GGUF model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufSplit<'a> {
    prefix: &'a str,
    /// The number of this file, from one on.
    pub number: usize,
    /// The number of files.
    pub count: usize,
}

const EXTENSION: &str = ".gguf";

impl<'a> GgufSplit<'a> {
    /// The parts of a name; `None` if it is not that of one of several files.
    pub fn parse(name: &'a str) -> Option<Self> {
        let stem = name.strip_suffix(EXTENSION)?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            if plain { text.parse::<usize>().ok() } else { None }
        };
        let (number, count) = (digits(number)?, digits(count)?);
        (1..=count).contains(&number).then_some(Self { prefix, number, count })
    }

    /// The names of all files, in order.
    pub fn all(&self) -> impl Iterator<Item = String> + use<> {
        let (prefix, count) = (self.prefix.to_owned(), self.count);
        (1..=count).map(move |number| format!("{prefix}-{number:05}-of-{count:05}{EXTENSION}"))
    }
}

/// The names of all files of the model that the file `name` is of.
pub(super) fn files_of(name: &str) -> Vec<String> {
    match GgufSplit::parse(name) {
        Some(split) => split.all().collect(),
        None => vec![name.to_owned()],
    }
}

/// The models among the names of a folder's files: of one that is split, its first file. Projectors of images
/// lie beside the models that they are for.
pub fn gguf_models(names: &[String]) -> Vec<String> {
    let files = names.iter().filter(|name| name.ends_with(EXTENSION) && !name.starts_with("mmproj"));
    let mut models: Vec<_> = files
        .filter_map(|name| match GgufSplit::parse(name) {
            Some(split) => split.all().next(),
            None => Some(name.clone()),
        })
        .collect();
    models.sort();
    models.dedup();
    models
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_model_is_one_whichever_of_its_files_is_named() {
        let split = GgufSplit::parse("a-b-00002-of-00003.gguf").unwrap();
        assert_eq!((split.number, split.count), (2, 3));
        assert_eq!(split.all().last().unwrap(), "a-b-00003-of-00003.gguf");
        for name in [
            "a.gguf",
            "a-1-of-2.gguf",
            "a-00003-of-00002.gguf",
            "a-00000-of-00002.gguf",
            "a-00001-of-00002.bin",
        ] {
            assert_eq!(GgufSplit::parse(name), None, "{name}");
        }
        let names = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj-a.gguf", "README.md"]
            .map(str::to_owned);
        assert_eq!(gguf_models(&names), ["a-00001-of-00002.gguf"]);
    }
}
