use std::fs;

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{Capabilities, Control, InferenceSessionExt, Model, Row, SessionOptions};

use super::*;
use crate::sync::{explore, explore_once, thread};

/// A session of the reference engine, with rewind or without.
struct Setup {
    info: ModelInfo,
    session: Box<dyn InferenceSession>,
    cache: PrefixCache,
}

impl Setup {
    fn new(rewind: bool, budget: u64) -> Self {
        let capabilities =
            Capabilities::new(8, 4096).with_snapshot(true).with_rewind(rewind).with_logits(true);
        let model = ReferenceBackend::new().with_capabilities(capabilities).model().unwrap();
        let session = model.open_session(&SessionOptions::default()).unwrap();
        let cache = PrefixCache::new(budget);
        Self { info: model.info().clone(), session, cache }
    }

    /// Computes `tokens` from what is known of them, keeps and closes the sequence; how many were known.
    fn compute(&mut self, tokens: &[TokenId]) -> usize {
        let options = SequenceOptions::default();
        let (sequence, known) =
            self.cache.open_sequence(&self.info, &mut *self.session, &options, tokens).unwrap();
        assert_eq!(self.session.state(sequence).unwrap().position, known);
        let identity = StateIdentity::of_sequence(&self.info, &options);
        let branch = self.cache.branch(&identity, tokens, self.session.capabilities().rewind);
        let mut at = known;
        // Another thread may have evicted what was reused.
        for end in branch.into_iter().filter(|&branch| branch > known).chain([tokens.len()]) {
            self.session.run_row(Row::extend(sequence, &tokens[at..end]), &Control::default()).unwrap();
            self.cache.keep(&self.info, &mut *self.session, sequence, &options, &tokens[..end]).unwrap();
            at = end;
        }
        self.session.close(sequence).unwrap();
        known
    }
}

fn text(first: usize, rest: TokenId, length: usize) -> Vec<TokenId> {
    (0..length).map(|i| if i < first { (i % 50) as TokenId } else { rest }).collect()
}

#[test]
fn with_rewind_any_common_prefix_is_reused() {
    explore_once(|| {
        let mut setup = Setup::new(true, 1 << 20);
        assert_eq!(setup.compute(&text(40, 60, 60)), 0);
        assert_eq!(setup.compute(&text(40, 61, 60)), 40);
        assert_eq!(setup.compute(&text(40, 61, 60)), 59, "the last token is computed");
        assert_eq!(setup.compute(&text(40, 61, 80)), 60);
        assert_eq!(setup.compute(&text(LEAST_TOKENS - 1, 62, 60)), 0, "too short a beginning");
        let stats = setup.cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.reused_tokens), (3, 2, 159));
        assert_eq!(stats.entries, 3, "the longer text took the place of the shorter one");
    });
}

#[test]
fn without_rewind_only_complete_states_are_reused() {
    explore_once(|| {
        let mut setup = Setup::new(false, 1 << 20);
        assert_eq!(setup.compute(&text(40, 60, 60)), 0);
        assert_eq!(
            setup.compute(&text(40, 61, 60)),
            0,
            "the second one leaves a state where it leaves the first"
        );
        assert_eq!(setup.compute(&text(40, 62, 60)), 40);
        assert_eq!(setup.compute(&text(40, 62, 80)), 60);
        assert_eq!(setup.compute(&text(40, 62, 60)), 40, "the last token is computed");
        assert_eq!(setup.compute(&text(40, 62, 60)), 59, "and what is before it was left by the last one");
    });
}

#[test]
fn the_budget_is_kept_by_evicting_the_least_recently_used() {
    explore_once(|| {
        let mut setup = Setup::new(true, 0);
        setup.compute(&text(0, 1, 100));
        assert_eq!(setup.cache.stats().entries, 0, "larger than the budget");
        let mut setup = Setup::new(true, 1 << 20);
        setup.compute(&text(0, 1, 100));
        let one = setup.cache.stats().bytes;
        setup.cache.lock().budget = 3 * one + one / 2;
        for token in 2..10 {
            setup.compute(&text(0, token, 100));
            // This one is used again and again.
            assert_eq!(setup.compute(&text(0, 1, 100)), 99);
            let stats = setup.cache.stats();
            assert!(stats.bytes <= setup.cache.lock().budget && stats.entries <= 3, "{stats:?}");
        }
        assert_eq!(setup.cache.stats().entries, 3);
        assert!(format!("{:?}", setup.cache).contains("entries: 3"));
        setup.cache.clear();
        assert_eq!((setup.cache.stats().entries, setup.cache.stats().bytes), (0, 0));
    });
}

#[test]
fn prefixes_on_disk_serve_the_next_run_and_corrupt_ones_are_ignored() {
    explore_once(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut setup = Setup::new(true, 1 << 20);
        let texts = [text(0, 1, 100), text(0, 2, 100), text(0, 3, 100)];
        texts.iter().for_each(|text| assert_eq!(setup.compute(text), 0));
        setup.cache.save(folder.path()).unwrap();
        setup.cache.save(folder.path()).unwrap();

        let mut next = Setup::new(true, 1 << 20);
        assert_eq!(next.cache.load(&next.info, folder.path()).unwrap(), 3);
        assert_eq!(next.compute(&texts[1]), 99);
        let other = ModelInfo::new("other", "model", 64);
        assert_eq!(next.cache.load(&other, folder.path()).unwrap(), 0, "another model's");
        assert_eq!(next.cache.load(&next.info, &folder.path().join("none")).unwrap(), 0);
        let small = Setup::new(true, setup.cache.stats().bytes * 2 / 3);
        let loaded = small.cache.load(&small.info, folder.path()).unwrap();
        assert!(loaded == 1 || loaded == 2, "{loaded}");

        let model = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let file = disk_entries(&model).remove(0);
        let bytes = fs::read(&file).unwrap();
        for at in [0, 9, 13, 20, 30, bytes.len() / 2, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(&file, damaged).unwrap();
            let next = Setup::new(true, 1 << 20);
            assert_eq!(next.cache.load(&next.info, folder.path()).unwrap(), 2, "byte {at}");
        }
        fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        let next = Setup::new(true, 1 << 20);
        assert_eq!(next.cache.load(&next.info, folder.path()).unwrap(), 2, "cut");
        // What is no longer held is not kept either.
        next.cache.save(folder.path()).unwrap();
        assert_eq!(disk_entries(&model).len(), 2);
        // A folder in the place of an entry is none, and does not keep others from being saved.
        fs::remove_file(&disk_entries(&model)[0]).unwrap();
        fs::create_dir_all(disk_entries(&model)[0].with_extension("prefix").with_file_name("a.prefix"))
            .unwrap();
        assert_eq!(next.cache.load(&next.info, folder.path()).unwrap(), 1);
        setup.cache.save(folder.path()).unwrap();
        for entry in disk_entries(&model) {
            let _ = fs::remove_file(&entry);
            fs::create_dir_all(entry).unwrap();
        }
        setup.cache.save(folder.path()).unwrap();
        assert_eq!(next.cache.load(&next.info, folder.path()).unwrap(), 0);
    });
}

#[test]
fn an_entry_that_the_engine_rejects_is_removed() {
    explore_once(|| {
        let mut setup = Setup::new(true, 1 << 20);
        let tokens = text(0, 1, 100);
        let model = StateIdentity::of(&setup.info);
        let foreign = Snapshot::new(model.clone().with_adapter("another"), 100, [1, 2, 3]);
        assert!(setup.cache.lock().insert(&model, tokens.clone(), foreign, true));
        assert_eq!(setup.compute(&tokens), 0);
        assert_eq!(setup.compute(&tokens), 99);
    });
}

#[test]
fn the_budget_and_the_count_of_bytes_hold_whichever_thread_is_first() {
    explore(4000, || {
        let budget = {
            let mut setup = Setup::new(true, 1 << 20);
            setup.compute(&text(20, 1, 24));
            setup.cache.stats().bytes * 2
        };
        let cache = PrefixCache::new(budget);
        let threads: Vec<_> = (1..4)
            .map(|number| {
                let cache = cache.clone();
                thread::spawn(move || {
                    let mut setup = Setup::new(number != 2, 0);
                    setup.cache = cache;
                    setup.compute(&text(20, number, 24));
                    let stats = setup.cache.stats();
                    assert!(stats.bytes <= budget && stats.entries <= 2, "{stats:?}");
                    setup.compute(&text(20, number, 25));
                })
            })
            .collect();
        cache.clear();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let inner = cache.lock();
        let entries = inner.maps.values().flat_map(|map| map.iter());
        assert_eq!(inner.bytes, entries.map(|(tokens, entry)| entry.bytes(tokens)).sum::<u64>());
        assert!(inner.bytes <= budget);
        assert_eq!(inner.stats.hits + inner.stats.misses, 6);
    });
}

fn disk_entries(folder: &Path) -> Vec<std::path::PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.filter(|path| path.extension().is_some()).collect();
    files.sort();
    files
}
