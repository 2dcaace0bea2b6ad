//! The configuration file: the user's defaults of common options.
//!
//! It never gives leave to anything: options such as `--trust-bundle` are not among those that it can have.

use std::env;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, value_parser};
use etcetera::BaseStrategy;
use mlxcel_models::files::read_regular;
use mlxcel_session::mlxcel_core::SamplingNumber;
use toml::de::{DeTable, DeValue};

use crate::report::Failure;

/// The subcommands that run a model: they take their defaults from the file.
const SUBCOMMANDS: [&str; 7] = ["generate", "chat", "serve", "batch", "score", "embed", "rerank"];

/// The options that the file can have, besides the numbers of sampling.
const OPTIONS: [&str; 12] = [
    "model", "backend", "precision", "context", "threads", "kv-cache", "affinity", "device", "mesh", "seed",
    "host", "port",
];

/// Options that the library reads from the environment, with the variable.
const VARIABLES: [(&str, &str); 1] = [("backend", "MLXCEL_BACKEND")];

/// The variable that names the file; if it is empty, there is none.
const CONFIG: &str = "MLXCEL_CONFIG";

/// The most bytes of the file.
const LONGEST: u64 = 1 << 20;

const HELP: &str = "The file with defaults of common options; defaults to MLXCEL_CONFIG, else mlxcel/mlxcel.toml in the user's \
                    configuration folder, if it is there";

const LONG_HELP: &str = "\
The file with defaults of common options; defaults to MLXCEL_CONFIG, else mlxcel/mlxcel.toml in the user's configuration folder \
(such as ~/.config), if it is there. With an empty MLXCEL_CONFIG there is none

It is TOML with the names of options: model, backend, precision, context, threads, kv-cache, affinity, device, mesh, seed, the \
numbers of sampling (temperature, top-p, …), host and port, such as `model = \"org/name\"`. Each is the default of the subcommands \
that have the option; arguments come first, then variables such as MLXCEL_BACKEND, then the file.";

/// `program` with the option that names the file.
pub(crate) fn with_option(program: Command) -> Command {
    let option = || {
        let option =
            Arg::new("config").long("config").value_name("FILE").value_parser(value_parser!(PathBuf));
        option.help(HELP).long_help(LONG_HELP)
    };
    let add = |program: Command, name| program.mut_subcommand(name, |command| command.arg(option()));
    SUBCOMMANDS.into_iter().fold(program, add)
}

/// An option that the file has.
struct Setting {
    /// The name of the option, without dashes.
    option: String,
    value: String,
    line: usize,
}

/// A program with the defaults of the file.
pub(crate) struct Defaults {
    pub(crate) program: Command,
    path: PathBuf,
    settings: Vec<Setting>,
}

impl Defaults {
    /// The place in the file of the default that `error` is about: it names the option, or the value if that
    /// is a text, and no argument of `matches` overrides it.
    pub(crate) fn origin(&self, error: &str, matches: &ArgMatches) -> Option<String> {
        let (_, matches) = matches.subcommand()?;
        let is_named = |setting: &&Setting| {
            let option = format!("--{}", setting.option);
            let words = || error.split(|letter: char| letter.is_whitespace() || "():,'".contains(letter));
            let is_text = setting.value.parse::<f64>().is_err();
            words().any(|word| word == option || is_text && word == setting.value)
        };
        let is_default = |setting: &&Setting| {
            let id = setting.option.replace('-', "_");
            matches.try_contains_id(&id).is_ok()
                && matches.value_source(&id) == Some(ValueSource::DefaultValue)
        };
        let found = self.settings.iter().filter(is_default).find(is_named)?;
        Some(format!("{}:{}", self.path.display(), found.line))
    }
}

/// `program` with the defaults of the file, if the subcommand that was `asked` for takes some and there is a
/// file.
///
/// # Errors
///
/// A failure that names file and line if it cannot be read, or has an unknown option or a value that the
/// option does not accept.
pub(crate) fn with_defaults(program: Command, asked: &ArgMatches) -> Result<Option<Defaults>, Failure> {
    let Some((name, matches)) = asked.subcommand().filter(|(name, _)| SUBCOMMANDS.contains(name)) else {
        return Ok(None);
    };
    let Some(path) = path(matches)? else { return Ok(None) };
    let mut defaults = read(&path)?;
    for subcommand in program.get_subcommands().filter(|command| SUBCOMMANDS.contains(&command.get_name())) {
        for default in &defaults {
            if let Some(argument) = argument(subcommand, &default.option) {
                check(argument, &default.value).map_err(|what| failure(&path, default.line, &what))?;
            }
        }
    }
    defaults.retain(|default| {
        !VARIABLES.iter().any(|(option, variable)| *option == default.option && is_set(variable))
    });
    let set = |subcommand: Command, Setting { option, value, .. }: &Setting| {
        let Some(id) = argument(&subcommand, option).map(|argument| argument.get_id().clone()) else {
            return subcommand;
        };
        // Commands live as long as the program.
        subcommand.mut_arg(id, |argument| argument.default_value(&*value.clone().leak()))
    };
    let program = program.mut_subcommand(name, |subcommand| defaults.iter().fold(subcommand, set));
    Ok(Some(Defaults { program, path, settings: defaults }))
}

/// The file: the one that the user names, or that in the user's configuration folder, if it is there.
fn path(matches: &ArgMatches) -> Result<Option<PathBuf>, Failure> {
    let named = matches.get_one::<PathBuf>("config").cloned();
    match named.or_else(|| env::var_os(CONFIG).map(PathBuf::from)) {
        Some(path) if path.as_os_str().is_empty() => Ok(None),
        Some(path) => Ok(Some(path)),
        None => {
            let Ok(folders) = etcetera::choose_base_strategy() else { return Ok(None) };
            let path = folders.config_dir().join("mlxcel").join("mlxcel.toml");
            // A file that cannot be looked at is there, and the error says so.
            Ok(Some(path).filter(|path| path.try_exists().unwrap_or(true)))
        }
    }
}

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}

fn argument<'c>(subcommand: &'c Command, option: &str) -> Option<&'c Arg> {
    subcommand.get_arguments().find(|argument| argument.get_long() == Some(option))
}

fn failure(path: &Path, line: usize, what: &str) -> Failure {
    Failure::Usage(format!("{}:{line}: {what}", path.display()))
}

/// Reads the file.
fn read(path: &Path) -> Result<Vec<Setting>, Failure> {
    let unread = |what: &dyn std::fmt::Display| Failure::Usage(format!("{}: {what}", path.display()));
    let bytes = read_regular(path, LONGEST).map_err(|error| unread(&error))?;
    let text = String::from_utf8(bytes).map_err(|error| unread(&error))?;
    let line = |at: usize| 1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count();
    let table = DeTable::parse(&text)
        .map_err(|error| failure(path, error.span().map_or(1, |span| line(span.start)), error.message()))?;
    let mut defaults = Vec::new();
    for (option, value) in table.get_ref() {
        let line = line(option.span().start);
        let option = option.get_ref().to_string();
        if !known().any(|known| known == option) {
            let known: Vec<String> = known().collect();
            let what = format!("unknown option {option:?}; the file can have {}", known.join(", "));
            return Err(failure(path, line, &what));
        }
        let value = match value.get_ref() {
            DeValue::String(value) => value.to_string(),
            DeValue::Integer(value) if value.radix() == 10 => value.as_str().to_owned(),
            DeValue::Float(value) => value.as_str().to_owned(),
            _ => return Err(failure(path, line, &format!("{option} must be a text or a decimal number"))),
        };
        defaults.push(Setting { option, value, line });
    }
    Ok(defaults)
}

/// The options that the file can have.
fn known() -> impl Iterator<Item = String> {
    let numbers = SamplingNumber::ALL.iter().map(|number| number.name().replace('_', "-"));
    OPTIONS.into_iter().map(str::to_owned).chain(numbers)
}

/// Whether `argument` accepts `value`; else why not.
fn check(argument: &Arg, value: &str) -> Result<(), String> {
    // Commands live as long as the program.
    let name: &'static str = argument.get_long().unwrap_or_default().to_owned().leak();
    let alone = Arg::new(name).required(true).allow_hyphen_values(true);
    let alone = alone.value_parser(argument.get_value_parser().clone());
    let command = Command::new("mlxcel").no_binary_name(true).arg(alone);
    match command.try_get_matches_from([value]) {
        Ok(_) => Ok(()),
        Err(error) => Err(crate::report::clap_message(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::definition;

    #[test]
    fn each_option_of_the_file_is_one_of_a_subcommand_and_gives_no_leave() {
        let program = definition();
        let commands = program.get_subcommands().filter(|command| SUBCOMMANDS.contains(&command.get_name()));
        let commands: Vec<_> = commands.collect();
        assert_eq!(commands.len(), SUBCOMMANDS.len());
        for option in known() {
            assert!(commands.iter().any(|command| argument(command, &option).is_some()), "{option}");
            assert!(!["trust-bundle", "api-key", "config"].contains(&&*option));
        }
    }
}
