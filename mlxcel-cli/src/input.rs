//! What programs read from standard input and from files that arguments name: text, of a bounded length.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

use mlxcel_models::files::read_bounded;

use crate::report::Failure;

/// Standard input in errors.
pub(crate) const STDIN: &str = "the prompt from standard input";

/// How long a text may be, in bytes; what is beyond it fits no context.
const LONGEST: usize = 32 << 20;

/// All of `input`.
///
/// # Errors
///
/// [`Failure::Usage`] where it cannot be read, is not UTF-8, or is too long.
pub(crate) fn text(input: impl Read) -> Result<String, Failure> {
    whole(input).map_err(|why| unread(STDIN, &why))
}

/// All of the file at `path`.
///
/// # Errors
///
/// Those of [`text`], with the path.
pub(crate) fn file(path: &Path) -> Result<String, Failure> {
    let text = File::open(path).map_err(|error| error.to_string()).and_then(whole);
    text.map_err(|why| unread(&path.display().to_string(), &why))
}

/// The next line of `input`, without its end; none after the last.
///
/// # Errors
///
/// Those of [`text`], with the `name` of the input.
pub(crate) fn line(input: impl BufRead, name: &str) -> Result<Option<String>, Failure> {
    let mut bytes = Vec::new();
    let read = input.take(LONGEST as u64 + 1).read_until(b'\n', &mut bytes);
    if read.map_err(|error| unread(name, &error.to_string()))? == 0 {
        return Ok(None);
    }
    let mut line = checked(bytes).map_err(|why| unread(name, &why))?;
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    Ok(Some(line))
}

/// The `given` texts, or if there are none, the lines of standard input but for blank ones.
///
/// # Errors
///
/// Those of [`text`].
pub(crate) fn texts(given: &[String]) -> Result<Vec<String>, Failure> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let mut input = io::stdin().lock();
    let mut texts = Vec::new();
    while let Some(text) = line(&mut input, STDIN)? {
        if !text.trim().is_empty() {
            texts.push(text);
        }
    }
    Ok(texts)
}

fn whole(input: impl Read) -> Result<String, String> {
    // One byte more, to say that it is too long.
    checked(read_bounded(input.take(LONGEST as u64 + 1), u64::MAX).map_err(|error| error.to_string())?)
}

fn checked(bytes: Vec<u8>) -> Result<String, String> {
    if bytes.len() > LONGEST {
        return Err(format!("it exceeds {LONGEST} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| format!("it is not UTF-8 ({})", error.utf8_error()))
}

fn unread(name: &str, why: &str) -> Failure {
    Failure::Usage(format!("read {name}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_one_at_a_time_and_unbounded_input_is_rejected() {
        let mut input = &b"one\r\n\ntwo"[..];
        let mut next = || line(&mut input, STDIN).unwrap();
        assert_eq!(next().as_deref(), Some("one"));
        assert_eq!(next().as_deref(), Some(""));
        assert_eq!((next().as_deref(), next()), (Some("two"), None));
        let Err(Failure::Usage(endless)) = text(std::io::repeat(0)) else { panic!("taken") };
        assert!(endless.contains("exceeds"), "{endless}");
        let endless = line(std::io::BufReader::new(std::io::repeat(b'a')), STDIN);
        assert!(matches!(endless, Err(Failure::Usage(_))));
    }

    #[test]
    fn read_errors_name_the_file_instead_of_standard_input() {
        for path in ["/dev/zero", "/nothing/here", "."] {
            let Err(Failure::Usage(words)) = file(Path::new(path)) else { panic!("taken") };
            assert!(words.starts_with(&format!("read {path}: ")), "{words}");
        }
    }

    #[test]
    fn input_that_is_not_utf8_is_rejected_with_its_position() {
        for failure in [text(&b"a\xff"[..]).err(), line(&b"a\xff\n"[..], STDIN).err()] {
            let Some(Failure::Usage(words)) = failure else { panic!("taken") };
            assert_eq!(
                words,
                "read the prompt from standard input: it is not UTF-8 (invalid utf-8 sequence of 1 bytes from index 1)"
            );
        }
    }
}
