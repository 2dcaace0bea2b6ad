//! The file of answers, which an interrupted run is resumed from.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;

use mlxcel_session::ErrorKind;
use serde::Deserialize;
use serde_json::Value;

use crate::report::Failure;

/// How a run treats a file of answers that is there.
#[derive(Clone, Copy)]
pub(super) enum Existing {
    /// It is an error unless it is empty.
    Keep,
    /// Its answers are removed.
    Replace,
    /// The run continues after its answers.
    Resume,
}

/// The file of answers. It is not changed before the model is ready.
pub(super) struct Answers<'a> {
    path: &'a Path,
    file: File,
    /// The number of answers that are kept, and their bytes.
    pub(super) done: usize,
    length: u64,
    /// The number of answers in the file, with those that are not kept.
    pub(super) found: usize,
}

impl<'a> Answers<'a> {
    /// Opens the file at `path`, which must not be that of the `prompts`, and counts the answers that a
    /// resumed run keeps.
    pub(super) fn open(path: &'a Path, prompts: &Path, existing: Existing) -> Result<Self, Failure> {
        if is_same(path, prompts) {
            return Err(refused(path, "this is the file of the prompts; choose another file"));
        }
        let is_filled = fs::metadata(path).is_ok_and(|there| there.is_file() && there.len() > 0);
        if is_filled && matches!(existing, Existing::Keep) {
            let way_out =
                "the file exists and is not empty; continue it with --resume, replace it with --force";
            return Err(refused(path, way_out));
        }
        let is_resumed = matches!(existing, Existing::Resume);
        let mut options = OpenOptions::new();
        options.read(is_resumed).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(|error| refused(path, error))?;
        let mut answers = Self { path, file, done: 0, length: 0, found: 0 };
        if is_resumed {
            answers.count()?;
        }
        Ok(answers)
    }

    /// Counts the answers before the first error that may pass, whose prompt is tried again. All lines must be
    /// answers, as those after such an error are removed.
    fn count(&mut self) -> Result<(), Failure> {
        let (mut lines, mut line) = (BufReader::new(&self.file), Vec::new());
        let mut has_failed = false;
        while lines.read_until(b'\n', &mut line).map_err(|error| refused(self.path, error))? > 0 {
            let number = self.found;
            let is_whole = line.ends_with(b"\n");
            let written = if is_whole { written(&line, number) } else { cut_off(&line, number) };
            let Some(written) = written else {
                let (path, line) = (self.path.display(), number + 1);
                return Err(Failure::Usage(format!("resume {path}:{line}: the line is not answer {number}")));
            };
            has_failed |= written == Written::Failed;
            if is_whole && !has_failed {
                self.done += 1;
                self.length += line.len() as u64;
            }
            self.found += usize::from(is_whole);
            line.clear();
        }
        Ok(())
    }

    /// Removes everything that is not kept. Pipes and devices have nothing to remove.
    pub(super) fn begin(mut self) -> Result<Sink<'a>, Failure> {
        let mut cut = || -> io::Result<()> {
            if self.file.metadata()?.is_file() {
                self.file.set_len(self.length)?;
                self.file.seek(SeekFrom::End(0))?;
            }
            Ok(())
        };
        cut().map_err(|error| refused(self.path, error))?;
        Ok(Sink { out: Box::new(self.file), path: Some(self.path) })
    }
}

/// Where answers go.
pub(super) struct Sink<'a> {
    out: Box<dyn Write>,
    /// None for standard output.
    path: Option<&'a Path>,
}

impl Sink<'_> {
    pub(super) fn stdout() -> Self {
        Self { out: Box::new(io::stdout()), path: None }
    }

    /// Writes an answer at once, for an interrupted run to be resumed after it.
    pub(super) fn write(&mut self, answer: &Value) -> Result<(), Failure> {
        let written = self.out.write_all(format!("{answer}\n").as_bytes()).and_then(|()| self.out.flush());
        written.map_err(|error| match self.path {
            Some(path) => Failure::Finding(format!("write {}: {error}", path.display())),
            None => Failure::Output(error),
        })
    }
}

fn refused(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("write {}: {why}", path.display()))
}

/// Whether both paths lead to one file, through links too.
fn is_same(one: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;

        let file = |path| fs::metadata(path).ok().filter(fs::Metadata::is_file);
        let place = |path| file(path).map(|there| (there.dev(), there.ino()));
        place(one).is_some_and(|one| place(other) == Some(one))
    }
    #[cfg(not(unix))]
    one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// The kinds of errors that a prompt has again when it is tried again.
const PROMPT_ERRORS: [ErrorKind; 4] =
    [ErrorKind::InvalidInput, ErrorKind::CapacityExceeded, ErrorKind::Unsupported, ErrorKind::TooComplex];

/// What a line of an earlier run is.
#[derive(PartialEq)]
enum Written {
    Kept,
    /// It failed for a reason that may be gone.
    Failed,
    CutOff,
}

/// The line as the answer number `index`, if it is that.
fn written(line: &[u8], index: usize) -> Option<Written> {
    #[derive(Deserialize)]
    struct Head {
        index: usize,
        error: Option<String>,
        kind: Option<String>,
    }
    let head = serde_json::from_slice::<Head>(line).ok().filter(|head| head.index == index)?;
    let is_of_prompt = || PROMPT_ERRORS.iter().any(|kind| head.kind.as_deref() == Some(kind.as_str()));
    Some(if head.error.is_none() || is_of_prompt() { Written::Kept } else { Written::Failed })
}

/// The line as the beginning of the answer number `index`, if it can be that.
fn cut_off(line: &[u8], index: usize) -> Option<Written> {
    let start = format!("{{\"index\":{index},");
    let is_beginning = line.starts_with(start.as_bytes()) || start.as_bytes().starts_with(line);
    is_beginning.then_some(Written::CutOff)
}
