//! The subcommands, and what their help has in common.

mod batch;
#[cfg(feature = "iree")]
mod bundle;
#[cfg(feature = "iree")]
mod cache;
mod chat;
#[cfg(feature = "iree")]
mod devices;
// Pages name the subcommands of all features.
#[cfg(all(test, unix, feature = "iree", feature = "pjrt"))]
mod documented;
mod embed;
mod generate;
mod inspect;
mod manual;
mod merge;
mod models;
mod quantize;
mod rerank;
mod score;
mod serve;
#[cfg(feature = "iree")]
mod tune;
mod verify;

use clap::{Arg, CommandFactory, Parser, Subcommand};

use crate::config;
use crate::report::Failure;

/// How every subcommand ends.
const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  it failed, or found something wrong
  2  the arguments or the input are invalid
One line on standard error says what went wrong.";

/// Run language models: generate, chat, serve, score, embed, rerank, quantize.
///
/// Without --model, the bundled story teller runs: a small model that tells stories about animals.
#[derive(Parser)]
#[command(name = "mlxcel", version, propagate_version = true)]
pub(crate) struct Program {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Generate(Box<generate::Arguments>),
    Chat(Box<chat::Arguments>),
    Serve(Box<serve::Arguments>),
    Batch(Box<batch::Arguments>),
    Score(Box<score::Arguments>),
    Embed(Box<embed::Arguments>),
    Rerank(Box<rerank::Arguments>),
    Quantize(Box<quantize::Arguments>),
    Merge(Box<merge::Arguments>),
    #[cfg(feature = "iree")]
    Bundle(Box<bundle::Arguments>),
    Inspect(Box<inspect::Arguments>),
    Verify(Box<verify::Arguments>),
    Models(models::Arguments),
    #[cfg(feature = "iree")]
    Cache(cache::Arguments),
    #[cfg(feature = "iree")]
    Devices(devices::Arguments),
    #[cfg(feature = "iree")]
    Tune(tune::Arguments),
    Completions(manual::Completions),
    Man(manual::Pages),
}

/// The program's arguments, with the exit status in the help of every subcommand. A negative number is the
/// value of the option before it, so that an error names the option and its range.
pub(crate) fn definition() -> clap::Command {
    let with_status = |command: clap::Command| command.after_help(EXIT_STATUS);
    let negative = |argument: Arg| {
        let takes_value = argument.get_action().takes_values() && !argument.is_positional();
        if takes_value { argument.allow_negative_numbers(true) } else { argument }
    };
    let common = |command: clap::Command| {
        with_status(command).mut_args(negative).mut_subcommands(|nested| nested.mut_args(negative))
    };
    config::with_option(with_status(Program::command()).mut_subcommands(common))
}

impl Command {
    /// Runs it. A subcommand that is ended by a signal removes what it had half made; `chat` and `serve`
    /// listen to signals themselves, and end in order.
    pub(crate) fn run(self) -> Result<(), Failure> {
        #[cfg(unix)]
        if !matches!(self, Self::Chat(_) | Self::Serve(_)) {
            crate::signals::clean_up_on_signals(&crate::interrupt::Interrupt::default());
        }
        match self {
            Self::Generate(arguments) => generate::run(&arguments),
            Self::Chat(arguments) => chat::run(*arguments),
            Self::Serve(arguments) => serve::run(*arguments),
            Self::Batch(arguments) => batch::run(&arguments),
            Self::Score(arguments) => score::run(&arguments),
            Self::Embed(arguments) => embed::run(&arguments),
            Self::Rerank(arguments) => rerank::run(&arguments),
            Self::Quantize(arguments) => quantize::run(&arguments),
            Self::Merge(arguments) => merge::run(&arguments),
            #[cfg(feature = "iree")]
            Self::Bundle(arguments) => bundle::run(&arguments),
            Self::Inspect(arguments) => inspect::run(&arguments),
            Self::Verify(arguments) => verify::run(&arguments),
            Self::Models(arguments) => models::run(&arguments),
            #[cfg(feature = "iree")]
            Self::Cache(arguments) => cache::run(&arguments),
            #[cfg(feature = "iree")]
            Self::Devices(arguments) => devices::run(&arguments),
            #[cfg(feature = "iree")]
            Self::Tune(arguments) => tune::run(&arguments),
            Self::Completions(arguments) => manual::completions(&arguments),
            Self::Man(arguments) => manual::pages(&arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        definition().debug_assert();
    }
}
