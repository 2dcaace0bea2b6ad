//! Weights as the programs of a model take them, each model's in one file of the cache: who opens the model
//! again maps it, and nothing is copied.
//!
//! The weights are at the file's beginning, so that pages of the file are pages of the weights; behind them
//! are a checksum of every block, the boot of the system in which the blocks were last known to be right, and
//! a label. In that boot a file is taken as it is: what was written is what is read, even before the system
//! has brought it to the disk. In another one every block is compared with its checksum first, because the
//! machine may have stopped in between.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mlxcel_graph::WeightArgument;
use mlxcel_iree_kernels::Layouts;
use mlxcel_iree_target::hex;
use mlxcel_iree_target::laid_out::Places;
use mlxcel_models::files::read_bounded;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::entry::{Checked, Label, open, read_or_remove};
use super::evict;
use super::key::Parts;
use super::lock::Lock;
use super::{Cache, WEIGHTS};

/// The last bytes of the file; the last of them is the version of the layout.
const MAGIC: &[u8; 8] = b"mlxcwts\x01";
/// The length of the description, and the magic.
const FOOTER: u64 = 16;
/// The most that a description may be: of a terabyte of weights it is 6 MB.
const LONGEST_DESCRIPTION: u64 = 64 << 20;
/// What is written and checked at a time. Blocks of the size of a huge page lie in huge pages of the page
/// cache where the file system has them, and are mapped as such.
pub const BLOCK: usize = 2 << 20;
/// What stays free on the disk.
const RESERVE: u64 = 1 << 30;

/// Identifies the weights of a checkpoint in the layout of some programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsKey {
    name: String,
    bytes: u64,
}

impl WeightsKey {
    /// The key of `weights`, laid out as `layouts` say, of the checkpoint with this
    /// [stamp](mlxcel_models::Checkpoint::stamp).
    pub fn new(stamp: &str, weights: &[WeightArgument], layouts: &Layouts) -> Self {
        let places = Places::of(weights);
        let mut parts = Parts::new();
        parts.add("mlxcel weights 1");
        parts.add(env!("CARGO_PKG_VERSION"));
        parts.add(stamp);
        for (weight, range) in weights.iter().zip(places.ranges()) {
            parts.add(&weight.name);
            parts.add(&weight.tensor.to_string());
            parts.add_bytes(&range.start.to_le_bytes());
            parts.add_bytes(&range.end.to_le_bytes());
            parts.add(&layouts.get(&weight.name).map(|panels| panels.to_string()).unwrap_or_default());
        }
        Self { name: hex(&parts.finish()), bytes: places.bytes }
    }
}

/// What stands behind the weights.
#[derive(Serialize, Deserialize)]
struct Description {
    /// The boot of the system in which the file was written or checked last, where systems tell.
    boot: Option<String>,
    /// The CRC-32 of each block.
    blocks: Vec<u32>,
    program: String,
    target: String,
}

impl Cache {
    /// The file with the weights of `key`, checked; `None` if the cache has no such file. A damaged file is
    /// removed.
    pub fn weights(&self, key: &WeightsKey) -> Option<File> {
        let path = weights_path(self.folder.as_ref()?, key);
        read_or_remove(&path, |path| read(path, key.bytes)).ok()?
    }

    /// Begins to keep the weights of `key`; none where they are not kept: without a folder that can be
    /// written, beyond the limit, without room on the disk, or while another process does it.
    pub fn keep_weights(&self, key: &WeightsKey) -> Option<NewWeights> {
        let folder = self.folder.as_ref().filter(|_| key.bytes > 0 && key.bytes <= self.limit)?;
        let begin = || -> io::Result<Option<NewWeights>> {
            fs::create_dir_all(folder)?;
            let needed = key.bytes.saturating_add(RESERVE);
            if fs4::available_space(folder)? < needed || longest_file() < needed {
                tracing::debug!(folder = %folder.display(), bytes = key.bytes, "no room to keep weights");
                return Ok(None);
            }
            let lock = Lock::open(&folder.join(format!("{}.lock", key.name)))?;
            if !lock.is_free() {
                return Ok(None);
            }
            let file = evict::new_part(folder)?;
            let path = weights_path(folder, key);
            Ok(Some(NewWeights { file, path, bytes: key.bytes, limit: self.limit, lock }))
        };
        begin().unwrap_or_else(|error| {
            tracing::debug!(folder = %folder.display(), %error, "weights are not kept");
            None
        })
    }
}

fn weights_path(folder: &Path, key: &WeightsKey) -> PathBuf {
    folder.join(format!("{}{WEIGHTS}", key.name))
}

/// Weights that are being written to the cache. Dropped before it is finished, nothing is left of it.
pub struct NewWeights {
    file: NamedTempFile,
    path: PathBuf,
    bytes: u64,
    limit: u64,
    lock: Lock,
}

impl NewWeights {
    /// The file, in whose first bytes the weights have to be written, in blocks of [`BLOCK`].
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Where the file is while it is written.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Publishes the file, with the [checksum](checksum) of each block, and makes room for it.
    ///
    /// # Errors
    /// Those of the file system, of whose folder nothing has changed then.
    pub fn finish(self, blocks: Vec<u32>, program: &str, target: &str) -> io::Result<File> {
        let Self { mut file, path, bytes, limit, lock } = self;
        let (program, target) = (program.to_owned(), target.to_owned());
        let description = Description { boot: boot(), blocks, program, target };
        describe(file.as_file_mut(), bytes, &description)?;
        if description.boot.is_none() {
            file.as_file().sync_all()?;
        }
        let kept = open(file.path())?;
        file.persist(&path).map_err(|error| error.error)?;
        lock.remove();
        evict::make_room(WEIGHTS, limit, &path);
        Ok(kept)
    }
}

/// The checksum of a block.
pub fn checksum(block: &[u8]) -> u32 {
    crc32fast::hash(block)
}

/// Writes what stands behind the weights, which have so many bytes, and ends the file there.
fn describe(file: &mut File, bytes: u64, description: &Description) -> io::Result<()> {
    let mut text = serde_json::to_vec(description)?;
    let length = text.len() as u64;
    text.extend_from_slice(&length.to_le_bytes());
    text.extend_from_slice(MAGIC);
    file.seek(SeekFrom::Start(bytes))?;
    file.write_all(&text)?;
    file.set_len(bytes + text.len() as u64)
}

/// Reads what stands behind the weights, which have so many bytes.
fn description(file: &mut File) -> Checked<(Description, u64)> {
    let length = file.metadata()?.len();
    let Some(footer) = length.checked_sub(FOOTER) else { return Ok(Err("it is shorter than its footer")) };
    let mut bytes = [0; FOOTER as usize];
    file.seek(SeekFrom::Start(footer))?;
    file.read_exact(&mut bytes)?;
    let (described, magic) = bytes.split_at(8);
    let described = described.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
    if magic != MAGIC || described > LONGEST_DESCRIPTION {
        return Ok(Err("it is not a file of weights of this version"));
    }
    let Some(start) = footer.checked_sub(described) else {
        return Ok(Err("its length differs from the recorded one"));
    };
    file.seek(SeekFrom::Start(start))?;
    let text = read_bounded(file.take(described), described)?;
    Ok(serde_json::from_slice(&text).map(|found| (found, start)).map_err(|_| "its description is damaged"))
}

/// Opens a file of so many bytes of weights, and checks it if this was not done since the system started.
fn read(path: &Path, bytes: u64) -> Checked<File> {
    let mut file = open(path)?;
    let (mut found, start) = match description(&mut file)? {
        Ok(found) => found,
        Err(reason) => return Ok(Err(reason)),
    };
    if start != bytes || found.blocks.len() as u64 != bytes.div_ceil(BLOCK as u64) {
        return Ok(Err("it belongs to other weights"));
    }
    let boot = boot();
    if boot.is_none() || found.boot != boot {
        if !blocks_match(&mut file, bytes, &found.blocks)? {
            return Ok(Err("a checksum is wrong"));
        }
        found.boot = boot;
        // In a folder that cannot be written it is checked each time.
        let writable = File::options().write(true).open(path);
        let _ = writable.and_then(|mut writable| describe(&mut writable, start, &found));
    }
    // In a folder that cannot be written there is nothing to evict either.
    let _ = file.set_modified(SystemTime::now());
    Ok(Ok(file))
}

fn blocks_match(file: &mut File, bytes: u64, sums: &[u32]) -> io::Result<bool> {
    file.seek(SeekFrom::Start(0))?;
    let mut block = vec![0; BLOCK];
    let mut left = bytes;
    for sum in sums {
        let block = &mut block[..usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK))];
        file.read_exact(block)?;
        left -= block.len() as u64;
        if checksum(block) != *sum {
            return Ok(false);
        }
    }
    Ok(left == 0)
}

/// What an entry is, for people who look into the cache; none where it says nothing sensible.
pub(super) fn label(path: &Path) -> Option<Label> {
    let (found, _) = description(&mut open(path).ok()?).ok()?.ok()?;
    Some(Label { program: found.program, target: found.target, compiler: String::new() })
}

/// Compares every block with its checksum.
pub(super) fn verify(path: &Path) -> Checked<()> {
    let mut file = open(path)?;
    let (found, start) = match description(&mut file)? {
        Ok(found) => found,
        Err(reason) => return Ok(Err(reason)),
    };
    Ok(if blocks_match(&mut file, start, &found.blocks)? { Ok(()) } else { Err("a checksum is wrong") })
}

/// How long a file of this process may be: a signal ends it at the first byte beyond.
fn longest_file() -> u64 {
    #[cfg(unix)]
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    #[cfg(not(unix))]
    let limit = None;
    limit.unwrap_or(u64::MAX)
}

/// What the system calls the time since it was started; none where it has no name.
fn boot() -> Option<String> {
    let file = cfg!(target_os = "linux").then(|| File::open("/proc/sys/kernel/random/boot_id"))?.ok()?;
    let name = String::from_utf8(read_bounded(file, 128).ok()?).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use mlxcel_core::ErrorKind;
    use mlxcel_graph::weight_arguments;

    use super::*;
    use crate::testing::checkpoint;

    const BYTES: usize = 2 * BLOCK + 1234;

    fn cache(folder: &Path) -> Cache {
        Cache::open(Some(folder)).unwrap()
    }

    fn key(name: &str) -> WeightsKey {
        WeightsKey { name: name.to_owned(), bytes: BYTES as u64 }
    }

    fn content() -> Vec<u8> {
        (0..BYTES).map(|at| (at % 251) as u8).collect()
    }

    /// Keeps [`content`], and returns where.
    fn keep(cache: &Cache, key: &WeightsKey) -> PathBuf {
        let mut new = cache.keep_weights(key).unwrap();
        new.file.write_all(&content()).unwrap();
        let sums = content().chunks(BLOCK).map(checksum).collect();
        let mut kept = new.finish(sums, "weights of llama", "panels-8").unwrap();
        let mut found = vec![0; BYTES];
        kept.read_exact(&mut found).unwrap();
        assert_eq!(found, content());
        weights_path(cache.folder().unwrap(), key)
    }

    /// Changes a byte, and says that the system was started anew since the file was written.
    fn change(path: &Path, at: u64, restarted: bool) {
        let mut file = File::options().read(true).write(true).open(path).unwrap();
        let (mut found, start) = description(&mut file).unwrap().unwrap();
        if restarted {
            found.boot = Some("another".to_owned());
            describe(&mut file, start, &found).unwrap();
        }
        let mut byte = [0];
        file.seek(SeekFrom::Start(at)).unwrap();
        file.read_exact(&mut byte).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&[byte[0] ^ 1]).unwrap();
    }

    #[test]
    fn kept_weights_are_found_until_something_of_them_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, key) = (cache(folder.path()), key("a"));
        assert!(cache.weights(&key).is_none());
        let path = keep(&cache, &key);
        assert!(cache.weights(&key).is_some());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o444;
            fs::write(folder.path().join("plain"), "").unwrap();
            let plain = fs::metadata(folder.path().join("plain")).unwrap().permissions().mode() & 0o444;
            assert_eq!(mode, plain, "other users may read them");
        }
        assert!(cache.weights(&WeightsKey { bytes: 5, ..key.clone() }).is_none(), "of other weights");
        assert!(!path.exists());

        // After a restart all blocks are compared, once.
        let path = keep(&cache, &key);
        change(&path, 0, true);
        change(&path, 0, false);
        assert!(cache.weights(&key).is_some());
        let (checked, _) = description(&mut File::open(&path).unwrap()).unwrap().unwrap();
        assert_eq!(checked.boot, boot());
        for at in [0, BLOCK as u64, BYTES as u64 - 1] {
            let path = keep(&cache, &key);
            change(&path, at, true);
            assert!(cache.weights(&key).is_none(), "{at}");
            assert!(!path.exists());
        }
        // A file of which the end is missing, or whose footer states more than there is.
        for (length, footer) in [(BYTES as u64 + 9, None), (BYTES as u64 / 2, None), (24, Some(u64::MAX))] {
            let path = keep(&cache, &key);
            let mut file = File::options().write(true).open(&path).unwrap();
            file.set_len(length).unwrap();
            if let Some(footer) = footer {
                file.seek(SeekFrom::Start(8)).unwrap();
                file.write_all(&[&footer.to_le_bytes()[..], MAGIC].concat()).unwrap();
            }
            assert!(cache.weights(&key).is_none(), "{length}");
            assert!(!path.exists());
        }
    }

    #[test]
    fn weights_are_listed_verified_and_evicted_like_programs() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let path = keep(&cache, &key("a"));
        let entries = cache.entries().unwrap();
        let [entry] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((&*entry.program, &*entry.target), ("weights of llama", "panels-8"));
        cache.verify(entry).unwrap();
        change(&path, 5, false);
        assert_eq!(cache.verify(entry).unwrap_err().kind(), ErrorKind::Corrupt);

        // Those that were not used for long make room, whatever the size of programs.
        File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        fs::write(folder.path().join("old.vmfb"), [0; 100]).unwrap();
        let small = cache.clone().with_limit(BYTES as u64 + 1000);
        keep(&small, &key("b"));
        assert!(!path.exists() && folder.path().join("old.vmfb").exists());
        assert_eq!(cache.prune(0).unwrap().entries, 2);
    }

    #[test]
    fn weights_are_not_kept_without_room_and_while_another_process_keeps_them() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        assert!(cache.clone().with_limit(1).keep_weights(&key("a")).is_none());
        let huge = WeightsKey { bytes: 1 << 60, ..key("a") };
        assert!(cache.clone().with_limit(u64::MAX).keep_weights(&huge).is_none());
        let first = cache.keep_weights(&key("a")).unwrap();
        assert!(cache.keep_weights(&key("a")).is_none());
        assert!(cache.keep_weights(&key("b")).is_some());
        // Given up: nothing is left but the lock's file, which is swept later.
        drop(first);
        let left = || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(left().all(|name| name.to_string_lossy().ends_with(".lock")));
        keep(&cache, &key("a"));
        // A folder that cannot be made.
        let blocked = folder.path().join("file");
        fs::write(&blocked, "").unwrap();
        assert!(Cache::open(Some(&blocked)).unwrap().keep_weights(&key("a")).is_none());
    }

    #[test]
    fn keys_depend_on_files_layouts_and_weights() {
        let weights = weight_arguments(&checkpoint("llama").decoder().unwrap()).unwrap();
        let layouts = Layouts::default();
        let key = WeightsKey::new("stamp", &weights, &layouts);
        assert_eq!(key, WeightsKey::new("stamp", &weights, &layouts));
        assert_ne!(key, WeightsKey::new("stomp", &weights, &layouts));
        assert_ne!(key, WeightsKey::new("stamp", &weights[1..], &layouts));
    }
}
