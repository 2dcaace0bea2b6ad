//! A compiled program on its devices.

use std::ptr;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_stablehlo::TensorType;

use super::buffer::Buffer;
use super::client::{Client, pointer};
use super::plugin::Plugin;
use super::{named, sys};

/// A compiled program, loaded.
pub(crate) struct Executable {
    client: Client,
    raw: *mut sys::RawLoadedExecutable,
    /// On how many devices it runs, and how many results each gives.
    devices: usize,
    outputs: usize,
}

// SAFETY: PJRT's executables may be used from any thread.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        let arguments = sys::LoadedDestroy { executable: self.raw, ..Default::default() };
        let plugin = self.client.plugin();
        plugin.free(plugin.api().loaded_destroy, arguments, "free program");
    }
}

/// The program apart from its devices, freed with it.
struct Unloaded<'a> {
    plugin: &'a Plugin,
    raw: *mut sys::RawExecutable,
}

impl Drop for Unloaded<'_> {
    fn drop(&mut self) {
        let arguments = sys::ExecutableDestroy { executable: self.raw, ..Default::default() };
        self.plugin.free(self.plugin.api().executable_destroy, arguments, "free program");
    }
}

impl Executable {
    /// Compiles a module in MLIR's text for `devices` devices; `options` is a serialized
    /// `CompileOptionsProto`. Fails with [`ErrorKind::Compile`] where the plugin refuses it.
    pub(crate) fn compile(client: &Client, module: &str, options: &[u8], devices: usize) -> Result<Self> {
        const OPERATION: &str = "compile program";
        const FORMAT: &[u8] = b"mlir";
        let program = sys::Program {
            code: pointer(module.as_bytes()),
            code_size: module.len(),
            format: pointer(FORMAT),
            format_size: FORMAT.len(),
            ..Default::default()
        };
        let arguments = sys::ClientCompile {
            client: client.raw(),
            program: &program,
            options: pointer(options),
            options_size: options.len(),
            ..Default::default()
        };
        let plugin = client.plugin();
        let made = plugin.call_as(plugin.api().client_compile, arguments, OPERATION, ErrorKind::Compile)?;
        Self::new(client, made.executable, devices)
    }

    /// Loads what [`serialize`](Self::serialize) gave, which has to come from the same plugin: it is machine
    /// code. Fails with [`ErrorKind::Corrupt`] where it is none.
    pub(crate) fn load(client: &Client, bytes: &[u8], devices: usize) -> Result<Self> {
        let arguments = sys::DeserializeAndLoad {
            client: client.raw(),
            bytes: pointer(bytes),
            size: bytes.len(),
            ..Default::default()
        };
        let (plugin, operation) = (client.plugin(), "load program");
        let function = plugin.api().executable_deserialize_and_load;
        let loaded = plugin.call_as(function, arguments, operation, ErrorKind::Corrupt)?;
        Self::new(client, loaded.executable, devices)
    }

    fn new(client: &Client, raw: *mut sys::RawLoadedExecutable, devices: usize) -> Result<Self> {
        let mut executable = Self { client: client.clone(), raw, devices, outputs: 0 };
        let unloaded = executable.unloaded()?;
        let arguments = sys::ExecutableNumOutputs { executable: unloaded.raw, ..Default::default() };
        let plugin = unloaded.plugin;
        let outputs = plugin.call(plugin.api().executable_num_outputs, arguments, "load program")?.count;
        drop(unloaded);
        executable.outputs = outputs;
        Ok(executable)
    }

    fn unloaded(&self) -> Result<Unloaded<'_>> {
        let arguments = sys::GetExecutable { loaded: self.raw, ..Default::default() };
        let plugin = self.client.plugin();
        let raw = plugin.call(plugin.api().loaded_get_executable, arguments, "look at program")?.executable;
        Ok(Unloaded { plugin, raw })
    }

    /// What [`load`](Self::load) takes.
    /// Fails with [`ErrorKind::Unsupported`] where the plugin does not give it.
    pub(crate) fn serialize(&self) -> Result<Vec<u8>> {
        let unloaded = self.unloaded()?;
        let arguments = sys::ExecutableSerialize { executable: unloaded.raw, ..Default::default() };
        let plugin = unloaded.plugin;
        let given = plugin.call(plugin.api().executable_serialize, arguments, "serialize program")?;
        // SAFETY: so many bytes live until they are deleted.
        let bytes = unsafe { named::list(given.bytes.cast(), given.size) }.to_vec();
        if let Some(delete) = given.delete {
            // SAFETY: it is called once, and the bytes are not used again.
            unsafe { delete(given.serialized) };
        }
        Ok(bytes)
    }

    /// What the compiler made of the program, in a format that it names: XLA gives `hlo_with_config`, a
    /// protocol buffer. Fails with [`ErrorKind::Unsupported`] where the plugin does not give it.
    pub(crate) fn optimized(&self) -> Result<Vec<u8>> {
        const OPERATION: &str = "look at program";
        let unloaded = self.unloaded()?;
        let plugin = unloaded.plugin;
        let ask = |program: &mut sys::Program| {
            let arguments = sys::OptimizedProgram { executable: unloaded.raw, program, ..Default::default() };
            plugin.call(plugin.api().executable_optimized_program, arguments, OPERATION)
        };
        // First for its size, then for its bytes.
        let mut program = sys::Program::default();
        ask(&mut program)?;
        let mut bytes = vec![0u8; program.code_size];
        program.code = bytes.as_mut_ptr().cast();
        ask(&mut program)?;
        Ok(bytes)
    }

    /// Runs the program on `arguments`, a list for each device; gives the results of each, of these types on
    /// a device. Arguments that the program takes over are consumed. The results may still be being
    /// computed: reading them waits.
    pub(crate) fn run(&self, arguments: &[Vec<&Buffer>], results: &[TensorType]) -> Result<Vec<Vec<Buffer>>> {
        const OPERATION: &str = "run program";
        let takes = arguments.first().map_or(0, Vec::len);
        let even = arguments.iter().all(|list| list.len() == takes);
        if arguments.len() != self.devices || !even || results.len() != self.outputs {
            let message =
                "the program runs on another number of devices or returns another number of results";
            return Err(Error::new(ErrorKind::Internal, OPERATION, message)
                .with_context("devices", self.devices)
                .with_context("results", self.outputs));
        }
        let lists: Vec<Vec<*mut sys::RawBuffer>> =
            arguments.iter().map(|list| list.iter().map(|buffer| buffer.raw()).collect()).collect();
        let lists: Vec<*const *mut sys::RawBuffer> = lists.iter().map(Vec::as_ptr).collect();
        let mut outputs = vec![vec![ptr::null_mut(); self.outputs]; self.devices];
        let places: Vec<*mut *mut sys::RawBuffer> = outputs.iter_mut().map(Vec::as_mut_ptr).collect();
        let mut options = sys::ExecuteOptions::default();
        let call = sys::Execute {
            executable: self.raw,
            options: &mut options,
            arguments: lists.as_ptr(),
            device_count: self.devices,
            argument_count: takes,
            outputs: places.as_ptr(),
            ..Default::default()
        };
        let plugin = self.client.plugin();
        plugin.call(plugin.api().loaded_execute, call, OPERATION)?;
        let own = |list: Vec<*mut sys::RawBuffer>| {
            list.into_iter()
                .zip(results)
                .map(|(raw, ty)| Buffer::new(self.client.clone(), raw, ty.clone()))
                .collect()
        };
        Ok(outputs.into_iter().map(own).collect())
    }
}
