//! Threads: those that call, and those that compute.

use super::*;

#[test]
fn one_program_serves_several_threads() {
    for device in devices() {
        let add_function = function(&device, "add");
        thread::scope(|scope| {
            for worker in 0..4 {
                let (device, add_function) = (&device, &add_function);
                scope.spawn(move || {
                    for call in 0..200 {
                        let a = upload(device, &[worker as f32; 4]);
                        let b = upload(device, &[call as f32; 4]);
                        assert_eq!(add(add_function, &a, &b), [(worker + call) as f32; 4]);
                    }
                });
            }
        });
    }
}

#[test]
fn calls_of_one_program_from_several_threads_run_at_once() {
    let most = thread::available_parallelism().map_or(1, usize::from).min(2);
    for device in devices() {
        let update = function(&device, "update");
        let (started, ended) = (Instant::now(), AtomicBool::new(false));
        thread::scope(|scope| {
            for worker in 0..2 {
                let (device, update, ended) = (&device, &update, &ended);
                scope.spawn(move || {
                    let mut cache = device.allocate(1024 * 64 * 4).unwrap();
                    let row = upload(device, &[1.0 + worker as f32; 64]);
                    for step in 0.. {
                        let [updated, sum] = updated(update, [&cache, &row], step % 1024);
                        let rows = (step + 1).min(1024) as f32;
                        assert_eq!(floats(&sum.buffer), [64.0 * rows * (1.0 + worker as f32)]);
                        cache = updated.buffer;
                        if ended.load(Ordering::Relaxed) {
                            break;
                        }
                        assert!(started.elapsed() < Duration::from_secs(60), "the calls take turns");
                        ended.fetch_or(update.most_calls_at_once() >= most, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(update.most_calls_at_once() <= 2);
    }
}

#[test]
fn the_number_of_threads_is_honoured() {
    for threads in [1, 2, 3] {
        let device = Device::open(&DeviceOptions { threads: Some(threads), ..Default::default() }).unwrap();
        assert_eq!(device.threads(), threads);
        let a = upload(&device, &[1.0; 4]);
        assert_eq!(add(&function(&device, "add"), &a, &a), [2.0; 4]);
    }
    let [task, sync, _] = devices();
    assert!((1..=thread::available_parallelism().unwrap().get()).contains(&task.threads()));
    assert_eq!(sync.threads(), 1);
    for (driver, threads) in [(Driver::LocalTask, 0), (Driver::LocalTask, 257), (Driver::LocalSync, 2)] {
        let error = Device::open(&DeviceOptions { driver, threads: Some(threads), ..Default::default() })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_profiled_device_records_when_each_dispatch_ran() {
    for (driver, threads) in [(Driver::LocalTask, 1), (Driver::LocalTask, 2), (Driver::LocalSync, 1)] {
        let options = DeviceOptions { driver, threads: Some(threads), profile: true, ..Default::default() };
        let device = Device::open(&options).unwrap();
        assert!(device.take_events().unwrap().dispatches.is_empty());
        let add_function = function(&device, "add");
        let (a, b) = (upload(&device, &[1.0; 4]), upload(&device, &[2.0; 4]));
        for _ in 0..3 {
            add(&add_function, &a, &b);
            let events = device.take_events().unwrap();
            let [event] = &events.dispatches[..] else { panic!("{driver} {threads}: {events:?}") };
            assert!(event.name.contains("add"), "{event:?}");
            assert_eq!((event.workgroups, events.lost), (1, 0));
            assert!(event.busy > 0 && event.busy <= event.end - event.start, "{event:?}");
        }
        let update = function(&device, "update");
        let cache = device.allocate(1024 * 64 * 4).unwrap();
        let row = upload(&device, &[1.0; 64]);
        let outputs = updated(&update, [&cache, &row], 7);
        // Results outlive the program, and the last of them the device's other users.
        drop((add_function, update, cache, row, a, b));
        let events = device.take_events().unwrap();
        assert!(events.dispatches.len() >= 2, "{events:?}");
        drop(device);
        assert_eq!(outputs[0].buffer.size(), 1024 * 64 * 4);
    }
    let device = Device::open(&DeviceOptions::default()).unwrap();
    add(&function(&device, "add"), &upload(&device, &[1.0; 4]), &upload(&device, &[2.0; 4]));
    assert!(device.take_events().unwrap().dispatches.is_empty(), "nobody asked for it");
}

/// The CPUs that each worker thread of this process may use, as the system prints them.
#[cfg(target_os = "linux")]
fn cpus_of_workers() -> Vec<String> {
    let field = |text: &str, name: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    statuses
        .filter(|text| field(text, "Name:").is_some_and(|name| name.starts_with("iree-worker")))
        .filter_map(|text| field(&text, "Cpus_allowed_list:"))
        .collect()
}

#[test]
#[cfg(target_os = "linux")]
fn workers_run_on_their_assigned_cpus() {
    use crate::affinity::Affinity;

    let allowed = crate::affinity::allowed_cpus().unwrap();
    let cpu = allowed[allowed.len() - 1];
    let single = |cpu: usize| cpus_of_workers().iter().filter(|list| **list == cpu.to_string()).count();
    let open = |affinity, threads| Device::open(&DeviceOptions { affinity, threads, ..Default::default() });
    // A worker goes to its place by itself, once it runs.
    let comes_true = |condition: &dyn Fn() -> bool| {
        (0..1000).any(|_| {
            condition() || {
                thread::sleep(Duration::from_millis(10));
                false
            }
        })
    };
    // Elsewhere in this process workers may use all CPUs.
    if allowed.len() > 1 {
        assert_eq!(single(cpu), 0);
        let device = open(Affinity::Cores(vec![cpu]), None).unwrap();
        assert_eq!(device.threads(), 1);
        assert!(comes_true(&|| single(cpu) == 1));
        assert_eq!(
            add(&function(&device, "add"), &upload(&device, &[1.0; 4]), &upload(&device, &[2.0; 4])),
            [3.0; 4]
        );
        drop(device);
        let device = open(Affinity::Pinned, None).unwrap();
        assert!(device.threads() <= allowed.len());
        let pinned = || allowed.iter().filter(|cpu| single(**cpu) == 1).count();
        assert!(comes_true(&|| pinned() == device.threads()), "each on its own");
        drop(device);
        assert_eq!(open(Affinity::Pinned, Some(1)).unwrap().threads(), 1);
    }
    let error = open(Affinity::Cores(vec![cpu, 1_000_000]), None).unwrap_err();
    assert_eq!((error.kind(), error.context("cpus")), (ErrorKind::InvalidInput, Some("1000000")));
    let error = open(Affinity::Cores(vec![cpu]), Some(0)).unwrap_err();
    assert_eq!((error.kind(), error.context("threads")), (ErrorKind::InvalidInput, Some("0")));
    let options =
        DeviceOptions { driver: Driver::LocalSync, affinity: Affinity::Pinned, ..Default::default() };
    assert_eq!(Device::open(&options).unwrap_err().kind(), ErrorKind::Unsupported);
}
