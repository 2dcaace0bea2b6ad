//! Tests that the documentation names only arguments that exist.

#[path = "../../tests/blocks.rs"]
mod blocks;

use std::iter::once;
use std::process::Command as Process;

use clap::Command;

use super::definition;
use blocks::pages;

/// Before a block: its shell finds no other program, and prints the arguments of this one.
const SHELL: &str = "mlxcel() { printf '%s\\0' \"$@\"; printf '\\n\\0'; }; ";

/// Flags in the prose that are options of other programs.
const FOREIGN: [&str; 3] = ["--release", "--no-default-features", "--sentence-transformers-dense-modules"];

#[test]
fn the_lines_of_all_console_blocks_are_valid_arguments() {
    let mut lines = 0;
    for page in pages() {
        for block in page.blocks() {
            let block = block.replace("time mlxcel ", "mlxcel ").replace("image/bin/mlxcel ", "mlxcel ");
            let mut shell = Process::new("/bin/sh");
            let typed = shell.arg("-c").arg(format!("{SHELL}{block}")).env("PATH", "").output().unwrap();
            let typed = String::from_utf8(typed.stdout).unwrap();
            for line in typed.split_terminator("\n\0") {
                lines += 1;
                let words = once("mlxcel").chain(line.split_terminator('\0'));
                if let Err(error) = definition().try_get_matches_from(words)
                    && error.use_stderr()
                {
                    panic!("{}: {}: {error}", page.name, line.replace('\0', " "));
                }
            }
        }
    }
    assert!(lines > 20, "{lines} lines");
}

#[test]
fn the_flags_and_subcommands_in_the_prose_exist() {
    let mut program = definition();
    program.build();
    let mut flags = 0;
    for page in pages().iter().filter(|page| page.is_for_users()) {
        for code in page.codes() {
            let words: Vec<&str> = code.split_whitespace().collect();
            let command = match words[..] {
                ["mlxcel", name, ..] if !name.starts_with('-') && !is_placeholder(name) => {
                    let found = program.find_subcommand(name);
                    found.unwrap_or_else(|| panic!("{}: there is no `mlxcel {name}`", page.name))
                }
                ["mlxcel", ..] => &program,
                [first, ..] if first.starts_with("--") => &program,
                _ => continue,
            };
            for flag in words.iter().filter(|word| word.starts_with("--") && !FOREIGN.contains(word)) {
                flags += 1;
                let name = flag[2..].split('=').next().unwrap_or_default();
                assert!(has_option(command, name), "{}: `{code}` has an unknown {flag}", page.name);
            }
        }
    }
    assert!(flags > 100, "{flags} flags");
}

/// Whether a word stands for another, such as `SUBCOMMAND`.
fn is_placeholder(word: &str) -> bool {
    word.chars().all(|letter| letter.is_ascii_uppercase())
}

/// Whether a command, or one below it, has this option.
fn has_option(command: &Command, name: &str) -> bool {
    let own = command.get_arguments().any(|argument| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long() == Some(name) || aliases.contains(&name)
    });
    own || command.get_subcommands().any(|below| has_option(below, name))
}
