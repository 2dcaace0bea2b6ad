//! What leaves the cache, and when.

use super::*;

/// A cache with entries of about a kilobyte, used that many seconds ago.
fn filled(bench: &Bench, ages: &[u64]) -> Vec<Key> {
    let cache = bench.cache();
    let now = SystemTime::now();
    let fill = |(number, &age): (usize, &u64)| {
        let key = bench.key(&number.to_string());
        let label = Label { program: format!("program {number}"), ..Label::default() };
        cache.reserve(&key, None).unwrap().unwrap().store(&label, &[number as u8; 1000]).unwrap();
        let file = fs::File::open(entry_path(&bench.path("cache"), &key)).unwrap();
        file.set_modified(now - Duration::from_secs(age)).unwrap();
        key
    };
    ages.iter().enumerate().map(fill).collect()
}

#[test]
fn the_least_recently_used_entry_is_evicted() {
    let bench = Bench::new();
    let keys = filled(&bench, &[300, 500, 400, 200]);
    assert!(bench.cache().read(&keys[1]).is_some(), "a use of what was the oldest");
    let entry = bench.cache().entries().unwrap()[0].bytes;
    let new = bench.key("new");
    let cache = bench.cache().with_limit(3 * entry + 100);
    cache.reserve(&new, None).unwrap().unwrap().store(&Label::default(), &[9; 1000]).unwrap();
    let there = |key: &Key| entry_path(&bench.path("cache"), key).exists();
    assert_eq!(keys.iter().map(there).collect::<Vec<_>>(), [false, true, false, true]);
    assert!(there(&new));
}

#[test]
fn entries_in_use_are_never_evicted() {
    let bench = Bench::new();
    let keys = filled(&bench, &[5, 500, 0]);
    let new = bench.key("new");
    let cache = bench.cache().with_limit(0);
    cache.reserve(&new, None).unwrap().unwrap().store(&Label::default(), &[9; 1000]).unwrap();
    let found: Vec<bool> = keys.iter().chain([&new]).map(|key| cache.read(key).is_some()).collect();
    assert_eq!(found, [true, false, true, true]);
}

#[test]
fn leftovers_of_killed_processes_are_removed() {
    let bench = Bench::new();
    filled(&bench, &[5]);
    let leave = |name: &str, age: u64| {
        let file = fs::File::create(bench.path("cache").join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    };
    leave(".part-old", 7200);
    leave(".part-new", 60);
    leave("old.lock", 7200);
    leave("new.lock", 60);
    leave("held.lock", 7200);
    let held = Lock::open(&bench.path("cache").join("held.lock")).unwrap();
    held.wait(None).unwrap();
    evict::make_room(".vmfb", u64::MAX, &bench.path("cache/new.vmfb"));
    let left = |name: &str| bench.path("cache").join(name).exists();
    assert_eq!(
        [".part-old", ".part-new", "old.lock", "new.lock", "held.lock"].map(left),
        [false, true, false, true, true]
    );
    bench.cache().clear().unwrap();
    assert_eq!([".part-new", "new.lock", "held.lock"].map(left), [false, false, true]);
    assert_eq!(bench.cache().entries().unwrap(), []);
}

#[test]
fn cache_entries_can_be_listed_verified_and_removed() {
    let bench = Bench::new();
    assert_eq!(bench.cache().entries().unwrap(), []);
    let options = options().with_label("llama 64@256\nsecond line");
    bench.artifacts().get("program", &options, None).unwrap();
    let cache = bench.cache();
    let entries = cache.entries().unwrap();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!(entry.program, "llama 64@256 second line");
    assert_eq!(entry.target, crate::testing::host().to_string());
    assert_eq!(entry.compiler, "3.13.0 @ one");
    assert_eq!(entry.key, bench.key("program").name());
    assert_eq!(entry.bytes, fs::metadata(bench.entry()).unwrap().len());
    assert!(entry.last_used.elapsed().unwrap() < Duration::from_secs(60));
    cache.verify(entry).unwrap();

    let whole = fs::read(bench.entry()).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        fs::write(bench.entry(), flipped).unwrap();
        assert_eq!(cache.verify(entry).unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
        assert_eq!(cache.entries().unwrap().len(), 1);
    }
    fs::write(bench.entry(), "x").unwrap();
    assert_eq!(cache.entries().unwrap()[0].program, "");
    cache.remove(entry).unwrap();
    cache.remove(entry).unwrap();
    assert_eq!(cache.verify(entry).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(cache.entries().unwrap(), []);
}

#[test]
fn pruning_removes_the_oldest_until_it_fits() {
    let bench = Bench::new();
    filled(&bench, &[30, 20, 10]);
    let cache = bench.cache();
    let entries = cache.entries().unwrap();
    assert_eq!(
        entries.iter().map(|entry| entry.program.as_str()).collect::<Vec<_>>(),
        ["program 2", "program 1", "program 0"]
    );
    assert_eq!(cache.prune(u64::MAX).unwrap(), Pruned::default());
    let pruned = cache.prune(entries[0].bytes * 2).unwrap();
    assert_eq!((pruned.entries, pruned.bytes), (1, entries[2].bytes));
    assert_eq!(cache.entries().unwrap(), entries[..2]);
    assert_eq!(cache.prune(0).unwrap().entries, 2);
    assert_eq!(Cache::open(Some(Path::new("/nowhere/at/all"))).unwrap().prune(0).unwrap(), Pruned::default());
}
