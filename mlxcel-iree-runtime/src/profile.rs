//! When each dispatch ran: the runtime's own profiling of a device, received here instead of in a file.
//!
//! A device that is profiled has a *sink*, an object with a table of functions to which the runtime gives
//! chunks of records when it is flushed. Used are the names of functions, which come when a program first
//! runs, and one record for each dispatch: of the processor by the host's clock, of a GPU by the GPU's, which
//! is told beside the host's at every flush.

use std::collections::HashMap;
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlxcel_core::Result;

use super::handle::{Handle, missing};
use super::status::check;
use super::sys;

const OPERATION: &str = "profile the device";

/// One run of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DispatchEvent {
    /// The name of the kernel's function.
    pub name: Arc<str>,
    /// How many workgroups it was cut into.
    pub workgroups: u64,
    /// When the first of its workgroups started, in nanoseconds of a clock of the device that only counts up.
    pub start: i64,
    /// When the last one ended.
    pub end: i64,
    /// How long workers computed it, summed over them.
    pub busy: i64,
    /// Which submission it was in, and which of its commands it was.
    pub command: (u64, u32),
}

/// What happened since it was last asked.
#[derive(Debug, Default)]
pub struct Events {
    /// Dispatches, in about the order in which they ended.
    pub dispatches: Vec<DispatchEvent>,
    /// How many more there were, which the runtime had no room for.
    pub lost: u64,
}

/// The profiling of one device, from its opening to its end.
pub(super) struct Profiling {
    device: Handle<sys::iree_hal_device_t>,
    state: Arc<Mutex<State>>,
}

/// What the sink has received.
#[derive(Default)]
struct State {
    /// Names by executable and ordinal.
    names: HashMap<(u64, u32), Arc<str>>,
    /// Since the last flush, in ticks of the device's clock where it has one.
    events: Events,
    clock: Clock,
}

/// The clock of a GPU, as it was told beside the host's: first and last, in ticks and nanoseconds.
#[derive(Clone, Copy, Default)]
struct Clock(Option<[(u64, u64); 2]>);

impl Clock {
    /// Less than this apart, two readings say nothing of the length of a tick.
    const APART: u64 = 1_000_000;

    fn read(&mut self, ticks: u64, nanoseconds: u64) {
        let last = (ticks, nanoseconds);
        self.0 = Some([self.0.map_or(last, |[first, _]| first), last]);
    }

    /// The nanoseconds of a tick; 1 until the clock has been read twice.
    fn tick(self) -> f64 {
        match self.0 {
            Some([first, last]) if last.0 > first.0 && last.1 > first.1 + Self::APART => {
                (last.1 - first.1) as f64 / (last.0 - first.0) as f64
            }
            _ => 1.0,
        }
    }

    /// `ticks` as nanoseconds since the first reading.
    fn nanoseconds(self, ticks: i64) -> i64 {
        let first = self.0.map_or(0, |[first, _]| first.0);
        (ticks.wrapping_sub(first as i64) as f64 * self.tick()) as i64
    }
}

impl Profiling {
    /// Begins to profile a device on which nothing runs yet; `is_local` tells the processor from a GPU.
    pub(super) fn begin(device: &Handle<sys::iree_hal_device_t>, is_local: bool) -> Result<Self> {
        let state = Arc::<Mutex<State>>::default();
        let sink = Sink::create(Arc::clone(&state))?;
        let families = if is_local {
            sys::iree_hal_device_profiling_data_family_bits_t_IREE_HAL_DEVICE_PROFILING_DATA_HOST_EXECUTION_EVENTS
        } else {
            sys::iree_hal_device_profiling_data_family_bits_t_IREE_HAL_DEVICE_PROFILING_DATA_DISPATCH_EVENTS
                | sys::iree_hal_device_profiling_data_family_bits_t_IREE_HAL_DEVICE_PROFILING_DATA_EXECUTABLE_METADATA
        };
        let options = sys::iree_hal_device_profiling_options_t {
            data_families: families.into(),
            sink: sink.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the device is live and idle; the options are read during the call, and the sink is retained
        // by it. The status is that of the call.
        unsafe { check(sys::iree_hal_device_profiling_begin(device.as_ptr(), &options), OPERATION)? };
        Ok(Self { device: device.clone(), state })
    }

    /// What happened since the last call; calls of programs that have returned are in it whole.
    pub(super) fn take(&self) -> Result<Events> {
        // SAFETY: the device is live; flushing may go on beside work of the device. The status is that of the
        // call.
        unsafe { check(sys::iree_hal_device_profiling_flush(self.device.as_ptr()), OPERATION)? };
        let mut state = lock(&self.state);
        let mut events = std::mem::take(&mut state.events);
        if state.clock.0.is_some() {
            for event in &mut events.dispatches {
                event.start = state.clock.nanoseconds(event.start);
                event.end = state.clock.nanoseconds(event.end);
                event.busy = event.end - event.start;
            }
        }
        Ok(events)
    }

    /// Waits until submitted work of the device is done, such as freeing memory, which is asynchronous
    /// otherwise.
    fn drain(&self) -> Result<()> {
        const ANY_QUEUE: sys::iree_hal_queue_affinity_t = sys::iree_hal_queue_affinity_t::MAX;
        // SAFETY: device and semaphore are live for the calls, and the semaphore is ours; both lists are read
        // during the call, the one to wait for being empty. Each status is that of its call.
        unsafe {
            let semaphore: Handle<sys::iree_hal_semaphore_t> = Handle::create(OPERATION, |out| {
                sys::iree_hal_semaphore_create(self.device.as_ptr(), ANY_QUEUE, 0, 0, out)
            })?;
            let (mut raw, mut value) = (semaphore.as_ptr(), 1);
            let signal =
                sys::iree_hal_semaphore_list_t { count: 1, semaphores: &mut raw, payload_values: &mut value };
            let nothing = sys::iree_hal_semaphore_list_t {
                count: 0,
                semaphores: ptr::null_mut(),
                payload_values: ptr::null_mut(),
            };
            check(
                sys::iree_hal_device_queue_barrier(self.device.as_ptr(), ANY_QUEUE, nothing, signal, 0),
                OPERATION,
            )?;
            check(sys::iree_hal_semaphore_wait(semaphore.as_ptr(), 1, sys::infinite_timeout(), 0), OPERATION)
        }
    }
}

impl Drop for Profiling {
    fn drop(&mut self) {
        // A device that cannot run an empty submission has nothing under way either.
        let _ = self.drain();
        // SAFETY: the device is live and idle, and this ends what `begin` began, once. The status is that of
        // the call.
        let ended = unsafe { check(sys::iree_hal_device_profiling_end(self.device.as_ptr()), OPERATION) };
        // There is no one to report to; the status was freed.
        let _ = ended;
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The object that is passed to the runtime. It begins as every object of the runtime does: with a count and
/// a table.
#[repr(C)]
struct Sink {
    resource: sys::iree_hal_resource_t,
    state: Arc<Mutex<State>>,
}

static TABLE: sys::iree_hal_profile_sink_vtable_t = sys::iree_hal_profile_sink_vtable_t {
    destroy: Some(destroy),
    begin_session: Some(begin_session),
    write: Some(write),
    end_session: Some(end_session),
};

impl Sink {
    fn create(state: Arc<Mutex<State>>) -> Result<Handle<sys::iree_hal_profile_sink_t>> {
        let vtable = (&raw const TABLE).cast();
        let sink = Box::new(Self { resource: sys::iree_hal_resource_t { ref_count: 1, vtable }, state });
        let raw = Box::into_raw(sink).cast::<sys::iree_hal_profile_sink_t>();
        // SAFETY: the object begins as the runtime's do, by `repr(C)`, with one reference, which becomes the
        // handle's; the last one released is reported to `destroy`, through the static table.
        unsafe { Handle::from_owned(raw) }.ok_or_else(|| missing(OPERATION))
    }
}

/// Frees the sink when its last reference is released.
unsafe extern "C" fn destroy(sink: *mut sys::iree_hal_profile_sink_t) {
    // SAFETY: the pointer is that of `create`, and this is called once, when the last reference is released.
    drop(unsafe { Box::from_raw(sink.cast::<Sink>()) });
}

unsafe extern "C" fn begin_session(
    _sink: *mut sys::iree_hal_profile_sink_t,
    _metadata: *const sys::iree_hal_profile_chunk_metadata_t,
) -> sys::iree_status_t {
    ptr::null_mut()
}

unsafe extern "C" fn end_session(
    _sink: *mut sys::iree_hal_profile_sink_t,
    _metadata: *const sys::iree_hal_profile_chunk_metadata_t,
    _code: sys::iree_status_code_t,
) -> sys::iree_status_t {
    ptr::null_mut()
}

/// Takes a chunk; success, always: what is not understood is not needed.
unsafe extern "C" fn write(
    sink: *mut sys::iree_hal_profile_sink_t,
    metadata: *const sys::iree_hal_profile_chunk_metadata_t,
    count: sys::iree_host_size_t,
    spans: *const sys::iree_const_byte_span_t,
) -> sys::iree_status_t {
    // SAFETY: the runtime gives the sink that it was given, which is live and of which nobody has a mutable
    // reference, and metadata, `count` spans and what they point to, which are readable for the call.
    // Nothing is kept of them.
    unsafe {
        let metadata = &*metadata;
        let content = bytes(metadata.content_type.data.cast(), metadata.content_type.size);
        let state = &mut *lock(&(*sink.cast::<Sink>()).state);
        if content.ends_with(b".host-execution-events") || content.ends_with(b".dispatch-events") {
            state.events.lost += metadata.dropped_record_count;
        }
        for index in 0..count {
            let span = &*spans.add(index);
            state.receive(content, bytes(span.data, span.data_length));
        }
    }
    ptr::null_mut()
}

/// # Safety
/// `data` is readable for `len` bytes as long as the result is used.
unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise is this function's.
    unsafe { slice::from_raw_parts(data, len) }
}

impl State {
    fn receive(&mut self, content: &[u8], chunk: &[u8]) {
        if content.ends_with(b".executable-functions") {
            for (record, rest) in records::<sys::iree_hal_profile_executable_function_record_t>(chunk) {
                let name = rest.get(..record.name_length as usize).unwrap_or_default();
                let name = String::from_utf8_lossy(name).into();
                self.names.insert((record.executable_id, record.function_ordinal), name);
            }
        } else if content.ends_with(b".host-execution-events") {
            for (record, _) in records::<sys::iree_hal_profile_host_execution_event_t>(chunk) {
                self.executed(&record);
            }
        } else if content.ends_with(b".dispatch-events") {
            for (record, _) in records::<sys::iree_hal_profile_dispatch_event_t>(chunk) {
                self.dispatched(&record);
            }
        } else if content.ends_with(b".clock-correlations") {
            for (record, _) in records::<sys::iree_hal_profile_clock_correlation_record_t>(chunk) {
                self.clock.read(record.device_tick, record.host_cpu_timestamp_ns);
            }
        }
    }

    fn dispatched(&mut self, record: &sys::iree_hal_profile_dispatch_event_t) {
        let (start, end) = (record.start_tick.cast_signed(), record.end_tick.cast_signed());
        self.events.dispatches.push(DispatchEvent {
            name: self.name(record.executable_id, record.function_ordinal),
            workgroups: workgroups(record.workgroup_count),
            start,
            end,
            busy: end.saturating_sub(start),
            command: (record.submission_id, record.command_index),
        });
    }

    fn name(&self, executable: u64, function: u32) -> Arc<str> {
        self.names.get(&(executable, function)).map_or_else(|| Arc::from("unnamed"), Arc::clone)
    }

    fn executed(&mut self, record: &sys::iree_hal_profile_host_execution_event_t) {
        // Dispatches only: the work of a queue, of which they are parts, is recorded as well.
        if record.type_ != sys::iree_hal_profile_queue_event_type_e_IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_DISPATCH
        {
            return;
        }
        let (start, end) = (record.start_host_time_ns, record.end_host_time_ns);
        // Where workers' shares are not counted there is one worker.
        let busy = match record.tile_duration_sum_ns {
            0 => end.saturating_sub(start),
            sum => sum,
        };
        let command = (record.submission_id, record.command_index);
        // A worker that has the device to itself does a dispatch in several goes, each with a record of its
        // own.
        if let Some(last) = self.events.dispatches.last_mut()
            && last.command == command
            && record.command_index != u32::MAX
        {
            (last.end, last.busy) = (end, last.busy.saturating_add(busy));
            return;
        }
        self.events.dispatches.push(DispatchEvent {
            name: self.name(record.executable_id, record.function_ordinal),
            workgroups: workgroups(record.workgroup_count),
            start,
            end,
            busy,
            command,
        });
    }
}

fn workgroups(count: [u32; 3]) -> u64 {
    count.map(u64::from).iter().product()
}

/// A record of the runtime's: plain numbers, behind the length of the record, which may hold more behind
/// them.
///
/// # Safety
/// Any bytes are a value of the type, and its first field is its length in bytes.
unsafe trait Record: Copy {}
// SAFETY: it consists of integers, the first one being `record_length`.
unsafe impl Record for sys::iree_hal_profile_executable_function_record_t {}
// SAFETY: it consists of integers, the first one being `record_length`.
unsafe impl Record for sys::iree_hal_profile_host_execution_event_t {}
// SAFETY: it consists of integers, the first one being `record_length`.
unsafe impl Record for sys::iree_hal_profile_dispatch_event_t {}
// SAFETY: it consists of integers, the first one being `record_length`.
unsafe impl Record for sys::iree_hal_profile_clock_correlation_record_t {}

/// The records of a chunk, each with what stands behind it; up to the first that does not fit.
fn records<R: Record>(mut chunk: &[u8]) -> impl Iterator<Item = (R, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*chunk.first_chunk()?) as usize;
        if length < size_of::<R>() || length > chunk.len() {
            return None;
        }
        let (record, rest) = chunk.split_at(length);
        chunk = rest;
        // SAFETY: the length was held to be at least that of `R`, so there are as many bytes; they need no
        // alignment, and by the promise of `Record` any bytes are one.
        let value = unsafe { ptr::read_unaligned(record.as_ptr().cast::<R>()) };
        Some((value, record.get(size_of::<R>()..).unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_as_long_as_two_readings_of_the_clocks_say() {
        let mut clock = Clock::default();
        assert_eq!(clock.nanoseconds(7), 7);
        clock.read(1_000, 5_000_000);
        clock.read(1_010, 5_000_500);
        assert_eq!(clock.nanoseconds(1_300), 300, "too close to measure a tick by");
        clock.read(101_000, 15_000_000);
        assert_eq!(clock.nanoseconds(1_300), 30_000, "100 ns a tick");
    }

    #[test]
    fn records_that_do_not_fit_end_a_chunk() {
        type Event = sys::iree_hal_profile_host_execution_event_t;
        let of_length = |length: u32, bytes: usize| {
            let mut chunk = length.to_ne_bytes().to_vec();
            chunk.resize(bytes, 0);
            records::<Event>(&chunk).count()
        };
        let size = size_of::<Event>();
        assert_eq!(of_length(size as u32, size), 1);
        assert_eq!(of_length(size as u32 + 8, size + 8), 1);
        assert_eq!(of_length(size as u32, 2 * size), 1, "a record of no length follows");
        assert_eq!(of_length(size as u32 - 1, size), 0);
        assert_eq!(of_length(u32::MAX, size), 0);
        assert_eq!(records::<Event>(&[1, 2]).count(), 0);
    }
}
