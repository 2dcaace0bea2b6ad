//! The part of PJRT's C API that is used, as `pjrt_c_api.h` of OpenXLA (Apache-2.0) lays it out; written by
//! hand.
//!
//! Every structure begins with its size, by which either side knows which fields the other has. Fields are
//! those of version 0.113 of the API; a plugin that is older reads those in front, one that is newer takes
//! the ones that it adds as not given.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

/// The version of the API that this file was written after. Another major version is another layout.
pub(super) const MAJOR: c_int = 0;
pub(super) const MINOR: c_int = 113;

/// Handles of a plugin: nothing is known of what they point to.
macro_rules! opaque {
    ($($name:ident),*) => {
        $(#[repr(C)]
        pub(super) struct $name {
            _private: [u8; 0],
        })*
    };
}

opaque!(
    Error, Event, RawClient, RawDevice, RawBuffer, RawExecutable, RawLoadedExecutable, Description,
    SerializedExecutable
);

/// Structures that are zero where nothing is given, and whose size stands in front.
macro_rules! arguments {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $ty:ty,)* })*) => {
        $($(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(super) struct $name {
            pub(super) struct_size: usize,
            pub(super) extension_start: *mut c_void,
            $(pub(super) $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: numbers, truth values, pointers and optional functions are all valid as zeros.
                let mut zeros: Self = unsafe { std::mem::zeroed() };
                zeros.struct_size = size_of::<Self>();
                zeros
            }
        })*
    };
}

arguments! {
    ApiVersion { major: c_int, minor: c_int, }
    ErrorDestroy { error: *mut Error, }
    ErrorMessage { error: *const Error, message: *const c_char, message_size: usize, }
    ErrorGetCode { error: *const Error, code: c_int, }
    /// A value with a name; `value` is a pointer, an integer, a float or a truth value by `kind`.
    NamedValue { name: *const c_char, name_size: usize, kind: c_int, value: u64, value_size: usize, }
    PluginInitialize {}
    PluginAttributes { attributes: *const NamedValue, count: usize, }
    EventDestroy { event: *mut Event, }
    EventAwait { event: *mut Event, }
    ClientCreate {
        options: *const NamedValue,
        option_count: usize,
        kv_get: *const c_void,
        kv_get_argument: *mut c_void,
        kv_put: *const c_void,
        kv_put_argument: *mut c_void,
        client: *mut RawClient,
        kv_try_get: *const c_void,
        kv_try_get_argument: *mut c_void,
    }
    ClientDestroy { client: *mut RawClient, }
    /// Of the platform's name, and of its version likewise.
    ClientText { client: *mut RawClient, text: *const c_char, text_size: usize, }
    ClientDevices { client: *mut RawClient, devices: *const *mut RawDevice, count: usize, }
    Program { code: *const c_char, code_size: usize, format: *const c_char, format_size: usize, }
    ClientCompile {
        client: *mut RawClient,
        program: *const Program,
        options: *const c_char,
        options_size: usize,
        executable: *mut RawLoadedExecutable,
    }
    BufferFromHost {
        client: *mut RawClient,
        data: *const c_void,
        element: c_int,
        dims: *const i64,
        dim_count: usize,
        byte_strides: *const i64,
        stride_count: usize,
        semantics: c_int,
        device: *mut RawDevice,
        memory: *mut c_void,
        layout: *mut c_void,
        done: *mut Event,
        buffer: *mut RawBuffer,
    }
    DeviceDescription { device: *mut RawDevice, description: *mut Description, }
    DescriptionId { description: *mut Description, id: c_int, }
    DescriptionText { description: *mut Description, text: *const c_char, text_size: usize, }
    ExecutableDestroy { executable: *mut RawExecutable, }
    ExecutableNumOutputs { executable: *mut RawExecutable, count: usize, }
    OptimizedProgram { executable: *mut RawExecutable, program: *mut Program, }
    ExecutableSerialize {
        executable: *const RawExecutable,
        bytes: *const c_char,
        size: usize,
        serialized: *mut SerializedExecutable,
        delete: Option<unsafe extern "C" fn(*mut SerializedExecutable)>,
    }
    LoadedDestroy { executable: *mut RawLoadedExecutable, }
    GetExecutable { loaded: *mut RawLoadedExecutable, executable: *mut RawExecutable, }
    ExecuteOptions {
        send_callbacks: *mut c_void,
        recv_callbacks: *mut c_void,
        send_count: usize,
        recv_count: usize,
        launch_id: c_int,
        non_donatable: *const i64,
        non_donatable_count: usize,
        context: *mut c_void,
        call_location: *const c_char,
        task_count: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
        multi_slice: *mut c_void,
        major_to_minor_callbacks: bool,
        output_callbacks: *mut c_void,
        output_callback_count: usize,
    }
    Execute {
        executable: *mut RawLoadedExecutable,
        options: *mut ExecuteOptions,
        arguments: *const *const *mut RawBuffer,
        device_count: usize,
        argument_count: usize,
        outputs: *const *mut *mut RawBuffer,
        complete: *mut *mut Event,
        device: *mut RawDevice,
    }
    DeserializeAndLoad {
        client: *mut RawClient,
        bytes: *const c_char,
        size: usize,
        executable: *mut RawLoadedExecutable,
        options: *const c_char,
        options_size: usize,
        load_options: *mut c_void,
    }
    BufferDestroy { buffer: *mut RawBuffer, }
    BufferIsDeleted { buffer: *mut RawBuffer, deleted: bool, }
    BufferToHost {
        buffer: *mut RawBuffer,
        layout: *mut c_void,
        data: *mut c_void,
        size: usize,
        event: *mut Event,
    }
    BufferPointer { buffer: *mut RawBuffer, pointer: usize, }
}

arguments! {
    /// How the host wants elements to lie: `PJRT_Buffer_MemoryLayout` in its tiled form (`kind` 0), here without tiles.
    HostLayout { tiled: Tiled, kind: c_int, }
    Tiled {
        minor_to_major: *const i64,
        minor_to_major_size: usize,
        tile_dims: *const i64,
        tile_dim_sizes: *const usize,
        tile_count: usize,
    }
}

/// A function of a plugin; its structure carries arguments and results.
pub(super) type Call<A> = Option<unsafe extern "C" fn(*mut A) -> *mut Error>;
/// One that cannot fail.
pub(super) type Tell<A> = Option<unsafe extern "C" fn(*mut A)>;
/// One that is not used.
type Unused = *const c_void;

/// What a plugin gives: its functions in the order of the header, up to the last that is used.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Api {
    pub(super) struct_size: usize,
    extension_start: *mut c_void,
    pub(super) version: ApiVersion,
    pub(super) error_destroy: Tell<ErrorDestroy>,
    pub(super) error_message: Tell<ErrorMessage>,
    pub(super) error_get_code: Call<ErrorGetCode>,
    pub(super) plugin_initialize: Call<PluginInitialize>,
    pub(super) plugin_attributes: Call<PluginAttributes>,
    pub(super) event_destroy: Call<EventDestroy>,
    event_is_ready: Unused,
    event_error: Unused,
    pub(super) event_await: Call<EventAwait>,
    event_on_ready: Unused,
    pub(super) client_create: Call<ClientCreate>,
    pub(super) client_destroy: Call<ClientDestroy>,
    pub(super) client_platform_name: Call<ClientText>,
    client_process_index: Unused,
    pub(super) client_platform_version: Call<ClientText>,
    client_devices: Unused,
    pub(super) client_addressable_devices: Call<ClientDevices>,
    client_lookup: [Unused; 3],
    pub(super) client_compile: Call<ClientCompile>,
    client_default_device_assignment: Unused,
    pub(super) client_buffer_from_host: Call<BufferFromHost>,
    pub(super) description_id: Call<DescriptionId>,
    description_process_index: Unused,
    description_attributes: Unused,
    pub(super) description_kind: Call<DescriptionText>,
    description_debug_string: Unused,
    description_to_string: Unused,
    pub(super) device_get_description: Call<DeviceDescription>,
    devices: [Unused; 5],
    memories: [Unused; 5],
    pub(super) executable_destroy: Call<ExecutableDestroy>,
    executable_name: [Unused; 3],
    pub(super) executable_num_outputs: Call<ExecutableNumOutputs>,
    executable_costs: [Unused; 3],
    pub(super) executable_optimized_program: Call<OptimizedProgram>,
    pub(super) executable_serialize: Call<ExecutableSerialize>,
    pub(super) loaded_destroy: Call<LoadedDestroy>,
    pub(super) loaded_get_executable: Call<GetExecutable>,
    loaded_state: [Unused; 3],
    pub(super) loaded_execute: Call<Execute>,
    pub(super) executable_deserialize_and_load: Call<DeserializeAndLoad>,
    loaded_fingerprint: Unused,
    pub(super) buffer_destroy: Call<BufferDestroy>,
    buffer_types: [Unused; 5],
    buffer_places: [Unused; 4],
    pub(super) buffer_is_deleted: Call<BufferIsDeleted>,
    buffer_copy_to_device: Unused,
    pub(super) buffer_to_host: Call<BufferToHost>,
    buffer_is_on_cpu: Unused,
    buffer_ready_event: Unused,
    pub(super) buffer_unsafe_pointer: Call<BufferPointer>,
}

impl Api {
    /// What any plugin of this major version has: enough to say what it is.
    pub(super) const LEAST: usize = offset_of!(Api, error_destroy);
}

/// `GetPjrtApi`, which every plugin exports.
pub(super) type GetApi = unsafe extern "C" fn() -> *const Api;

/// When the plugin may read the caller's memory.
pub(super) const IMMUTABLE_ONLY_DURING_CALL: c_int = 0;
pub(super) const IMMUTABLE_UNTIL_TRANSFER_COMPLETES: c_int = 1;

/// The kinds of [`NamedValue`].
pub(super) const STRING: c_int = 0;
pub(super) const INT64: c_int = 1;
pub(super) const FLOAT: c_int = 3;
pub(super) const BOOL: c_int = 4;

// Places in the table are counted in the header's list of functions; these are as in a C compiler's.
const _: () = {
    const FUNCTIONS: usize = 16 + 24;
    assert!(offset_of!(Api, error_destroy) == FUNCTIONS);
    assert!(offset_of!(Api, client_create) == FUNCTIONS + 10 * 8);
    assert!(offset_of!(Api, client_buffer_from_host) == FUNCTIONS + 22 * 8);
    assert!(offset_of!(Api, device_get_description) == FUNCTIONS + 29 * 8);
    assert!(offset_of!(Api, executable_destroy) == FUNCTIONS + 40 * 8);
    assert!(offset_of!(Api, executable_optimized_program) == FUNCTIONS + 48 * 8);
    assert!(offset_of!(Api, loaded_execute) == FUNCTIONS + 55 * 8);
    assert!(offset_of!(Api, buffer_destroy) == FUNCTIONS + 58 * 8);
    assert!(offset_of!(Api, buffer_unsafe_pointer) == FUNCTIONS + 73 * 8);
};
