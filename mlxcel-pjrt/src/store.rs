//! Compiled programs on disk, filed under everything that they were made from.
//!
//! An executable is machine code of one plugin for one kind of device. It is filed under the SHA-256 sum of
//! the program's text, the options of compiler and client, the flags in the environment, the plugin's file
//! (its name, size and time), its versions, the platform's, and the processor; published by renaming, and
//! checked when it is read: the sum that it begins with is that of its key and its program. What cannot be
//! stored is compiled again; a plugin that does not serialize programs has none stored.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcetera::BaseStrategy as _;
use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::files::read_regular;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::ffi::{Client, Executable};
use crate::mesh::MeshDevices;
use crate::platform::Platform;

/// The variable that names the folder of mlxcel's caches.
const FOLDER_VARIABLE: &str = "MLXCEL_CACHE_DIR";
/// Beyond so many bytes those go that were not used for the longest time.
const LIMIT: u64 = 4 << 30;
/// The most bytes of an entry. Weights are no part of a program.
const LONGEST: u64 = 1 << 30;
/// What the name of an entry ends in.
const ENDING: &str = "pjrt";
/// What the name of an entry begins with while it is written.
const PART: &str = ".part-";
/// The age at which a part counts as abandoned: its process was killed.
const ABANDONED: Duration = Duration::from_secs(3600);
/// The variables with flags of plugins' compilers: they change programs like compile options do.
const FLAGS: [&str; 2] = ["XLA_FLAGS", "LIBTPU_INIT_ARGS"];
/// The length of a SHA-256 sum.
const SUM: usize = 32;

/// Where compiled programs are kept.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    /// None where nothing is kept.
    folder: Option<PathBuf>,
    /// What all keys of this client begin with.
    identity: Vec<u8>,
}

impl Store {
    /// The store in `folder`, else in `pjrt` under what `MLXCEL_CACHE_DIR` names, else under the user's cache
    /// folder, for programs of this client. `is_off` keeps nothing.
    pub(crate) fn open(folder: Option<&Path>, is_off: bool, client: &Client) -> Result<Self> {
        let variable = || env::var_os(FOLDER_VARIABLE).filter(|value| !value.is_empty());
        let users = || Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("mlxcel"));
        let default = || variable().map(PathBuf::from).or_else(users).map(|folder| folder.join("pjrt"));
        let mut folder = folder.map(Path::to_owned).or_else(default).filter(|_| !is_off);
        let platform = Platform::of(client)?;
        let processor = processor();
        // Code for a processor that cannot be told from others is not kept.
        folder = folder.filter(|_| processor.is_some() || !platform.name.eq_ignore_ascii_case("cpu"));
        let file = file_identity(&platform.plugin);
        // A plugin is the same wherever it lies.
        let platform = Platform { plugin: PathBuf::new(), ..platform };
        let (flags, options) = (flags(|name| env::var_os(name)), client.options());
        let version = env!("CARGO_PKG_VERSION");
        let identity = format!("{version} {platform:?} {processor:?} {file:?} {flags:?} {options:?}");
        Ok(Self { folder, identity: identity.into_bytes() })
    }

    /// The program of this text on these devices, and whether it was compiled.
    /// Fails with [`ErrorKind::Compile`] where the plugin refuses it.
    pub(crate) fn get(&self, mesh: &MeshDevices, text: &str) -> Result<(Executable, bool)> {
        let key = key([&self.identity, &mesh.options, text.as_bytes()]);
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = self.folder.as_ref().map(|folder| folder.join(format!("{name}.{ENDING}")));
        if let Some(bytes) = path.as_deref().and_then(|path| read(path, &key)) {
            match Executable::load(&mesh.client, &bytes, mesh.count()) {
                Ok(executable) => return Ok((executable, false)),
                Err(error) => tracing::warn!(%error, "a stored program does not load and is compiled again"),
            }
        }
        let executable = Executable::compile(&mesh.client, text, &mesh.options, mesh.count())?;
        if let Some(path) = path {
            match executable.serialize().and_then(|bytes| write(&path, &key, &bytes)) {
                Ok(()) => make_room(&path),
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    tracing::debug!(%error, "the plugin's programs are not stored");
                }
                Err(error) => tracing::warn!(%error, "a compiled program could not be stored"),
            }
        }
        Ok((executable, true))
    }
}

/// Identifies this machine's processor; empty if the system does not report it.
#[allow(clippy::disallowed_methods, reason = "the kernel's own file")]
fn processor() -> Option<String> {
    const TELLING: [&str; 6] = ["vendor_id", "cpu family", "model", "flags", "Features", "CPU "];
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let lines = text.lines().filter(|line| TELLING.iter().any(|name| line.starts_with(name)));
    // Those of every core, each once.
    let lines: BTreeSet<&str> = lines.collect();
    (!lines.is_empty()).then(|| format!("{} {lines:?}", env::consts::ARCH))
}

/// The name of a plugin's file, its size, and when it was written.
fn file_identity(path: &Path) -> Option<(String, u64, u128)> {
    let data = fs::metadata(path).ok()?;
    let written = data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    Some((path.file_name()?.to_string_lossy().into_owned(), data.len(), written))
}

/// The flags of compilers in the environment, and if a variable names a file of flags, which.
fn flags(variable: impl Fn(&str) -> Option<OsString>) -> [impl fmt::Debug; FLAGS.len()] {
    FLAGS.map(|name| variable(name).map(|value| (file_identity(Path::new(&value)), value)))
}

/// What an entry is filed under.
type Key = [u8; SUM];

/// The key of a program. Each part is preceded by its length, so that different parts never have equal bytes.
fn key(parts: [&[u8]; 3]) -> Key {
    let mut sum = Sha256::new();
    for part in parts {
        sum.update((part.len() as u64).to_le_bytes());
        sum.update(part);
    }
    sum.finalize().into()
}

/// What an entry begins with: a program that stands under another one's key has another sum.
fn sum(key: &Key, program: &[u8]) -> Key {
    Sha256::new().chain_update(key).chain_update(program).finalize().into()
}

/// An entry, if it is whole and that of `key`: its sum, then the program. One that is not is removed.
fn read(path: &Path, key: &Key) -> Option<Vec<u8>> {
    let mut bytes = match read_regular(path, LONGEST) {
        Ok(bytes) => bytes,
        // Nothing that was written is that long.
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Vec::new(),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(entry = %path.display(), %error, "a stored program could not be read");
            }
            return None;
        }
    };
    let is_whole = bytes.len() > SUM && sum(key, &bytes[SUM..]) == bytes[..SUM];
    if !is_whole {
        tracing::warn!(entry = %path.display(), "a stored program is corrupt and is compiled again");
        let _ = fs::remove_file(path);
        return None;
    }
    // The time of the last use; a folder that cannot be written is not tidied either.
    let _ = fs::File::options().append(true).open(path).and_then(|file| file.set_modified(SystemTime::now()));
    bytes.drain(..SUM);
    Some(bytes)
}

/// A new file in `folder`, to be renamed once it is written. All may read it, as far as the umask lets them, so
/// that a store that one user filled, as the build of an image does, serves others.
fn new_part(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // Only their owner writes them: they are code.
        builder.permissions(fs::Permissions::from_mode(0o644));
    }
    builder.prefix(PART).tempfile_in(folder)
}

/// Publishes an entry: readers see none, or all of it.
fn write(path: &Path, key: &Key, program: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let written = fs::create_dir_all(folder).and_then(|()| {
        let mut file = new_part(folder)?;
        file.write_all(&sum(key, program))?;
        file.write_all(program)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)
    });
    written.map(drop).map_err(|error| Error::io("store a compiled program", path, error))
}

/// Removes the entries that were not used for the longest time, but for `kept`, until the others fit, and
/// before them what killed processes left.
fn make_room(kept: &Path) {
    let Some(entries) = kept.parent().and_then(|folder| fs::read_dir(folder).ok()) else { return };
    let files = entries.flatten().filter_map(|entry| {
        let data = entry.metadata().ok()?;
        Some((data.modified().ok()?, data.len(), entry.path()))
    });
    let is_part = |path: &Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PART))
    };
    let (parts, others): (Vec<_>, Vec<_>) = files.partition(|(_, _, path)| is_part(path));
    for (written, _, part) in parts {
        if written.elapsed().is_ok_and(|age| age >= ABANDONED) {
            let _ = fs::remove_file(part);
        }
    }
    let is_entry = |path: &Path| path.extension().is_some_and(|ending| ending == ENDING);
    let mut found: Vec<(SystemTime, u64, PathBuf)> =
        others.into_iter().filter(|(_, _, path)| is_entry(path)).collect();
    found.sort();
    let mut total: u64 = found.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in found {
        if total <= LIMIT {
            return;
        }
        if path != kept && fs::remove_file(&path).is_ok() {
            total -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_intact_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/a.pjrt");
        let (key, other) = ([1; SUM], [2; SUM]);
        assert!(read(&path, &key).is_none());
        write(&path, &key, b"program").unwrap();
        assert_eq!(read(&path, &key).unwrap(), b"program");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(read(&path, &key).is_none() && !path.exists());
        // Whole, and of another program.
        write(&path, &other, b"program").unwrap();
        assert!(read(&path, &key).is_none() && !path.exists());
    }

    #[test]
    fn programs_of_other_flags_are_other_programs() {
        let of = |name: &'static str, value: &'static str| {
            format!("{:?}", flags(|own| (own == name).then(|| value.into())))
        };
        let fast = "--xla_cpu_enable_fast_math=true";
        let found = [of("XLA_FLAGS", fast), of("LIBTPU_INIT_ARGS", fast), of("XLA_FLAGS", ""), of("", "")];
        let distinct: BTreeSet<_> = found.iter().collect();
        assert_eq!(distinct.len(), found.len(), "{found:?}");
        assert_ne!(key([b"a", b"b", b"c"]), key([b"ab", b"", b"c"]));
        assert_eq!(key([b"a", b"b", b"c"]), key([b"a", b"b", b"c"]));
    }

    #[test]
    fn parts_of_killed_processes_are_removed_after_an_hour() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, age: Duration| {
            let path = folder.path().join(name);
            let file = fs::File::create(&path).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            path
        };
        let (written, abandoned) = (of(".part-a", ABANDONED / 2), of(".part-b", 2 * ABANDONED));
        let (entry, other) = (of("a.pjrt", 2 * ABANDONED), of("part", 2 * ABANDONED));
        make_room(&entry);
        assert_eq!(
            [&written, &abandoned, &entry, &other].map(|path| path.exists()),
            [true, false, true, true]
        );
    }

    #[cfg(unix)]
    #[test]
    fn other_users_may_read_entries() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (entry, plain) = (folder.path().join("a.pjrt"), folder.path().join("plain"));
        write(&entry, &[1; SUM], b"program").unwrap();
        fs::write(&plain, "").unwrap();
        let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o444;
        assert_eq!(mode(&entry), mode(&plain));
    }

    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_instead_of_entries_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, device) = (folder.path().join("a.pjrt"), folder.path().join("b.pjrt"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
        for path in [pipe, device] {
            assert!(read(&path, &[1; SUM]).is_none());
            // The compiled program replaces it.
            write(&path, &[1; SUM], b"program").unwrap();
            assert_eq!(read(&path, &[1; SUM]).unwrap(), b"program");
        }
    }
}
