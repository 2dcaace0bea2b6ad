//! The file of one artifact: a header that says what it is and how long, with a checksum, a label for people,
//! the artifact.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::SystemTime;

use mlxcel_models::files::{open_regular, read_bounded};
use sha2::{Digest, Sha256};

use super::evict::new_part;
use super::key::{Key, ProgramSum};
use crate::diagnostics::shorten;

/// The first bytes of every entry; the last of them is the version of the layout.
const MAGIC: &[u8; 8] = b"mlxcart\x03";
/// Magic, checksum of all that follows; then the key's sums, length of the label, length of the artifact.
const HEADER: usize = MAGIC_AND_CHECKSUM + 64 + 8 + 8;
const MAGIC_AND_CHECKSUM: usize = 8 + 32;
/// The most that a label may be: what is longer is damage.
const LONGEST_LABEL: u64 = 64 << 10;
/// The most that an artifact may be. Weights are no part of it: programs have a few megabytes.
const LONGEST_ARTIFACT: u64 = 1 << 30;

/// What a file of the cache holds, or why it is not what it claims to be.
pub(super) type Checked<T> = io::Result<Result<T, &'static str>>;

/// What an artifact is, for people who look into the cache; it is not a part of the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    /// The program, in words.
    pub(crate) program: String,
    /// The target that it is compiled for.
    pub(crate) target: String,
    /// What the compiler says it is.
    pub(crate) compiler: String,
}

impl Label {
    fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, value) in
            [("program", &self.program), ("target", &self.target), ("compiler", &self.compiler)]
        {
            let value = value.replace(['\n', '\r'], " ");
            let _ = writeln!(text, "{name}: {}", shorten(&value, 1000));
        }
        text
    }

    fn from_text(text: &str) -> Self {
        let value = |name: &str| {
            let mut values = text.lines().filter_map(|line| line.split_once(": "));
            values.find(|(key, _)| *key == name).map_or_else(String::new, |(_, value)| value.to_owned())
        };
        Self { program: value("program"), target: value("target"), compiler: value("compiler") }
    }
}

/// What an entry has to be of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'a> {
    /// This program, made by this compiler.
    Key(&'a Key),
    /// This program, whichever compiler made it.
    Program(&'a ProgramSum),
}

impl Wanted<'_> {
    fn is(&self, key: &Key) -> bool {
        match self {
            Self::Key(wanted) => key == *wanted,
            Self::Program(wanted) => key.program() == *wanted,
        }
    }
}

/// What `read` finds in the file at `path`, if there is one; a damaged file is removed, so that it is made
/// again.
///
/// # Errors
/// Errors of the operating system, with its message.
pub(super) fn read_or_remove<T>(
    path: &Path,
    read: impl FnOnce(&Path) -> Checked<T>,
) -> io::Result<Option<T>> {
    match read(path) {
        Ok(Ok(content)) => Ok(Some(content)),
        Ok(Err(reason)) => {
            tracing::warn!(entry = %path.display(), reason, "an entry of the cache is corrupt and is made again");
            // If it cannot be removed, it is replaced or fails this check again.
            let _ = fs::remove_file(path);
            Ok(None)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            tracing::warn!(entry = %path.display(), %error, "an entry of the cache could not be read");
            Err(error)
        }
    }
}

/// Reads an artifact and checks that it is whole and what is wanted. The time of the file becomes that of its
/// last use.
pub(super) fn read(path: &Path, wanted: Wanted<'_>) -> Checked<Vec<u8>> {
    let mut file = open(path)?;
    let header = match Header::read(&mut file)? {
        Ok(header) if wanted.is(&header.key) => header,
        Ok(_) => return Ok(Err("it belongs to another program")),
        Err(reason) => return Ok(Err(reason)),
    };
    let artifact = header.content(&file)?;
    if artifact.is_ok() {
        // In a folder that cannot be written there is nothing to evict either.
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(artifact)
}

/// Opens a file of the cache; a pipe in its place is an error and does not block.
pub(super) fn open(path: &Path) -> io::Result<File> {
    open_regular(path)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is not a regular file"))
}

/// Writes a small file below the cache's folder: readers see the old text or the new one.
pub(super) fn write_text(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)?;
    let mut file = new_part(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Checks that an entry is whole, and that of the key called `name`.
pub(super) fn verify(path: &Path, name: &str) -> Checked<()> {
    let mut file = open(path)?;
    Ok(match Header::read(&mut file)? {
        Ok(header) if header.key.name() == name => header.content(&file)?.map(drop),
        Ok(_) => Err("it belongs to another program"),
        Err(reason) => Err(reason),
    })
}

/// Reads what an entry says of itself, without checking that it is whole; none where it says nothing
/// sensible.
pub(super) fn label(path: &Path) -> Option<Label> {
    let mut file = open(path).ok()?;
    let mut header = [0; HEADER];
    file.read_exact(&mut header).ok()?;
    let (label, _) = lengths(&header)?;
    let text = read_bounded(file.take(label), label).ok()?;
    Some(Label::from_text(std::str::from_utf8(&text).ok()?))
}

/// What an entry begins with.
struct Header {
    bytes: [u8; HEADER],
    key: Key,
    label: usize,
    /// How many bytes follow.
    rest: u64,
}

impl Header {
    /// Reads it, and checks that the file has the length that it states: only then is more of it read.
    fn read(file: &mut File) -> Checked<Self> {
        let length = file.metadata()?.len();
        if length < HEADER as u64 {
            return Ok(Err("it is shorter than its header"));
        }
        let mut bytes = [0; HEADER];
        file.read_exact(&mut bytes)?;
        Ok(Self::parse(bytes, length))
    }

    fn parse(bytes: [u8; HEADER], length: u64) -> Result<Self, &'static str> {
        if !bytes.starts_with(MAGIC) {
            return Err("it is not an artifact of this version");
        }
        let (label, artifact) = lengths(&bytes).ok_or("its label is too long")?;
        let rest = label.checked_add(artifact).filter(|rest| rest.checked_add(HEADER as u64) == Some(length));
        let rest = rest.ok_or("its length differs from the recorded one")?;
        if artifact > LONGEST_ARTIFACT {
            return Err("it is longer than any program");
        }
        let sums = bytes[MAGIC_AND_CHECKSUM..].first_chunk().ok_or("it is shorter than its header")?;
        Ok(Self { key: Key::from_bytes(sums), bytes, label: label as usize, rest })
    }

    /// The artifact, which `file` has next, if all is as it was written.
    fn content(&self, file: &File) -> Checked<Vec<u8>> {
        let mut content = match read_bounded(file, self.rest) {
            Ok(content) if content.len() as u64 == self.rest => content,
            Err(error) if error.kind() != io::ErrorKind::FileTooLarge => return Err(error),
            _ => return Ok(Err("its length changed while it was read")),
        };
        let sum = Sha256::new().chain_update(&self.bytes[MAGIC_AND_CHECKSUM..]).chain_update(&content);
        if sum.finalize()[..] != self.bytes[MAGIC.len()..MAGIC_AND_CHECKSUM] {
            return Ok(Err("its checksum is wrong"));
        }
        content.drain(..self.label);
        Ok(Ok(content))
    }
}

/// The lengths of label and artifact that a header states.
fn lengths(header: &[u8]) -> Option<(u64, u64)> {
    let number = |at: usize| header.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let (label, artifact) = (number(HEADER - 16)?, number(HEADER - 8)?);
    (label <= LONGEST_LABEL).then_some((label, artifact))
}

/// Publishes an entry: readers see the old state or all of the new one, also when the machine stops in
/// between.
pub(super) fn write(path: &Path, key: &Key, label: &Label, artifact: &[u8]) -> io::Result<()> {
    let (folder, label) = (path.parent().unwrap_or(path), label.to_text());
    let mut header = Vec::with_capacity(HEADER + label.len());
    header.extend_from_slice(&key.to_bytes());
    header.extend_from_slice(&(label.len() as u64).to_le_bytes());
    header.extend_from_slice(&(artifact.len() as u64).to_le_bytes());
    header.extend_from_slice(label.as_bytes());
    let checksum = Sha256::new().chain_update(&header).chain_update(artifact).finalize();

    let mut file = new_part(folder)?;
    file.write_all(MAGIC)?;
    file.write_all(&checksum)?;
    file.write_all(&header)?;
    file.write_all(artifact)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The rename itself is durable once the folder is written; where folders cannot be opened there is
    // nothing to do.
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}
