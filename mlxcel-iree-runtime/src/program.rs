//! Compiled programs, loaded onto a device.

use std::fmt;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use mlxcel_core::{Error, ErrorKind, FaultPoint, Result};
use mlxcel_stablehlo::{ElementType, TensorType};

use super::argument::{Argument, Constants, List, View, from_iree, input_list};
use super::buffer::Buffer;
use super::device::Device;
use super::handle::{Handle, missing};
use super::lent::Lender;
use super::memory::HostMemory;
use super::status::{check, check_content};
use super::sys;

/// What loading does, in the words of its errors.
const OPERATION: &str = "load a compiled program";

/// A compiled program on a device; clones are the same program.
#[derive(Clone, Debug)]
pub struct Program(Arc<Loaded>);

/// What a program consists of; results hold on to it, because they may point into its constants.
// Fields are released in this order: the states of the module, the module, the bytes that it was read from.
pub(super) struct Loaded {
    /// The states of the modules. IREE's contexts are used by one thread at a time, so each thread that
    /// calls the program has one of its own meanwhile; modules do not change and are shared.
    contexts: Lender<Handle<sys::iree_vm_context_t>>,
    module: Handle<sys::iree_vm_module_t>,
    _bytes: HostMemory,
    device: Device,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = self.device.enter();
    }
}

impl Program {
    /// Loads a compiled program (a `vmfb`).
    ///
    /// A file that is cut off, or is something else, is an error that says so. That is not a defence: the
    /// file carries machine code, which cannot be verified, and the runtime trusts more of it than that.
    /// The caller has to know that they are what a compiler wrote, as the artifact cache does by their
    /// checksum.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`] for a program of another release or another kind of
    /// device, [`ErrorKind::ResourceExhausted`].
    pub fn load(device: &Device, vmfb: &[u8]) -> Result<Self> {
        device.enter()?;
        // The loader reads the file in place and wants it aligned.
        let mut bytes = HostMemory::zeroed(vmfb.len())?;
        bytes.as_mut_slice().copy_from_slice(vmfb);
        let contents =
            sys::iree_const_byte_span_t { data: bytes.as_mut_slice().as_ptr(), data_length: vmfb.len() };
        // SAFETY: the instance is live; the module reads the bytes where they are and does not free them, and
        // they outlive it, because the owner of the module (this struct, and through it every result)
        // drops it first.
        let module = unsafe {
            Handle::create_with(
                OPERATION,
                |status, operation| check_content(status, operation),
                |out| {
                    sys::iree_vm_bytecode_module_create(
                        device.instance().as_ptr(),
                        sys::iree_vm_bytecode_module_flags_e_IREE_VM_BYTECODE_MODULE_FLAG_NONE,
                        contents,
                        sys::null_allocator(),
                        sys::host_allocator(),
                        out,
                    )
                },
            )?
        };
        let context = new_context(device, &module)?;
        // More calls at once than there are cores gain nothing; each takes memory for the program's code and
        // state.
        let most = thread::available_parallelism().map_or(1, usize::from);
        let contexts = Lender::new(context, most);
        let loaded = Loaded { contexts, module, _bytes: bytes, device: device.clone() };
        Ok(Self(Arc::new(loaded)))
    }

    /// The function that the program exports under `name`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub fn function(&self, name: &str) -> Result<Function> {
        let operation = "look up a function";
        let mut function = sys::iree_vm_function_t::default();
        // SAFETY: the module is live, the name is readable for the call, and the function is written by it.
        // The status is that of the call.
        let found = unsafe {
            let status = sys::iree_vm_module_lookup_function_by_name(
                self.0.module.as_ptr(),
                sys::iree_vm_function_linkage_e_IREE_VM_FUNCTION_LINKAGE_EXPORT,
                sys::string_view(name),
                &mut function,
            );
            check(status, operation)
        };
        found.map_err(|error| error.with_context("function", name))?;
        let (mut arguments, mut results) = (0, 0);
        // SAFETY: the function belongs to the live module, which its signature points into. The status is
        // that of the call.
        unsafe {
            let signature = sys::iree_vm_function_signature(&function);
            let status = sys::iree_vm_function_call_count_arguments_and_results(
                &signature, &mut arguments, &mut results,
            );
            check(status, operation)?;
        }
        let name = name.to_owned();
        Ok(Function {
            program: Arc::clone(&self.0),
            function: FunctionRef(function),
            name,
            arguments,
            results,
        })
    }
}

/// Held while executables are loaded: for each of them IREE clears and queries the processor's features
/// again, without a lock, so an executable that another thread loads meanwhile may find that the processor
/// has no features.
static LOADING: Mutex<()> = Mutex::new(());

/// A state of `module` in which a program is called.
fn new_context(
    device: &Device,
    module: &Handle<sys::iree_vm_module_t>,
) -> Result<Handle<sys::iree_vm_context_t>> {
    let _loading = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut modules = [device.hal_module().as_ptr(), module.as_ptr()];
    // SAFETY: instance and modules are live, and several threads may make states of one module at once; the
    // context retains them and is ours. `Loaded` drops it before the bytes that the module was read from.
    unsafe {
        Handle::create_with(
            OPERATION,
            |status, operation| check_content(status, operation),
            |out| {
                sys::iree_vm_context_create_with_modules(
                    device.instance().as_ptr(),
                    0,
                    modules.len(),
                    modules.as_mut_ptr(),
                    sys::host_allocator(),
                    out,
                )
            },
        )
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A function of a module: a pointer to the module and a number.
#[derive(Clone, Copy)]
struct FunctionRef(sys::iree_vm_function_t);

// SAFETY: it is plain data; the module that it points to is immutable once loaded, and is kept alive by the
// program that every `Function` holds.
unsafe impl Send for FunctionRef {}
// SAFETY: nothing of it can be changed through a shared reference, and each call has a context of the module
// to itself.
unsafe impl Sync for FunctionRef {}

/// A function of a program, ready to be called.
#[derive(Clone)]
pub struct Function {
    program: Arc<Loaded>,
    function: FunctionRef,
    name: String,
    arguments: usize,
    results: usize,
}

/// A tensor that a function returned.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exactly its bytes; in the storage of an argument where the program computed it in place.
    pub buffer: Buffer,
    /// Element type and shape.
    pub ty: TensorType,
}

/// Why a call gave nothing.
#[derive(Debug)]
pub struct CallError {
    /// What went wrong.
    pub error: Error,
    /// Whether the program may have begun, and written to arguments that it updates. Before, they are as
    /// they were.
    pub begun: bool,
}

impl CallError {
    fn before(error: Error) -> Self {
        Self { error, begun: false }
    }
}

impl From<Error> for CallError {
    /// An error after which arguments may have been written to.
    fn from(error: Error) -> Self {
        Self { error, begun: true }
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        error.error
    }
}

impl Function {
    /// How many arguments it takes.
    #[cfg(test)]
    pub(crate) fn argument_count(&self) -> usize {
        self.arguments
    }

    /// How many calls have been in progress at once, at most.
    #[cfg(test)]
    pub(crate) fn most_calls_at_once(&self) -> usize {
        self.program.contexts.made()
    }

    /// Calls the function with `constants` followed by `arguments` and waits for its results.
    ///
    /// A program may compute a result in the storage of an argument that it updates: such an argument holds
    /// the result afterwards (see [`Buffer::shares_storage_with`]). Calls of one program from several
    /// threads run at once, as many as there are cores; what they update must not be the same.
    ///
    /// # Errors
    ///
    /// The errors of [`CallError`], which says whether the arguments are unchanged.
    pub fn invoke(
        &self,
        constants: &Constants,
        arguments: &[Argument<'_>],
    ) -> Result<Vec<Output>, CallError> {
        let operation = "call a program";
        let named = |error: Error| error.with_context("function", &self.name);
        let before = |error| CallError::before(named(error));
        let given = constants.len() + arguments.len();
        if given != self.arguments {
            let error = Error::new(ErrorKind::InvalidInput, operation, "the number of arguments is wrong")
                .with_context("takes", self.arguments)
                .with_context("given", given);
            return Err(before(error));
        }
        let Loaded { contexts, module, device, .. } = &*self.program;
        device.enter().map_err(before)?;
        let inputs = input_list(device, constants, arguments).map_err(before)?;
        let outputs = List::with_capacity(self.results).map_err(before)?;
        let call = |context: &Handle<sys::iree_vm_context_t>| {
            // SAFETY: context, function and lists are live, and nothing else uses them during the call: the
            // context is lent to this call alone, the lists are local. The call returns when the
            // results are there. The program's own code checks the number, shapes and types of
            // its arguments. The status is that of the call.
            unsafe {
                let status = sys::iree_vm_invoke(
                    context.as_ptr(),
                    self.function.0,
                    0,
                    std::ptr::null(),
                    inputs.as_ptr(),
                    outputs.as_ptr(),
                    sys::host_allocator(),
                );
                check(status, operation)
            }
        };
        let called = contexts.with(|| new_context(device, module), call).map_err(before)?;
        called.map_err(named)?;
        device.check_fault(FaultPoint::Dispatch, operation)?;
        let output = |index| {
            let not_a_tensor =
                || Error::unsupported(operation, "a result is not a tensor").with_context("result", index);
            self.output(&outputs.get(index).ok_or_else(not_a_tensor)?).map_err(named)
        };
        Ok((0..outputs.len()).map(output).collect::<Result<_>>()?)
    }

    fn output(&self, view: &View) -> Result<Output> {
        // SAFETY: the view is live; the calls read its fields, of which the dimensions are as many as the
        // rank and are copied while it is, and the buffer, which it holds, gets a reference of its
        // own.
        let (buffer, shape, code) = unsafe {
            let rank = sys::iree_hal_buffer_view_shape_rank(view.as_ptr());
            let shape = if rank == 0 {
                Vec::new()
            } else {
                slice::from_raw_parts(sys::iree_hal_buffer_view_shape_dims(view.as_ptr()), rank).to_vec()
            };
            let buffer = Handle::from_borrowed(sys::iree_hal_buffer_view_buffer(view.as_ptr()));
            (buffer, shape, sys::iree_hal_buffer_view_element_type(view.as_ptr()))
        };
        let element: ElementType = from_iree(code)?;
        let buffer = buffer.ok_or_else(|| missing("call a program"))?;
        let buffer = Buffer::returned(buffer, Arc::clone(&self.program), self.program.device.clone());
        Ok(Output { buffer, ty: TensorType::new(element, shape) })
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.name)
            .field("arguments", &self.arguments)
            .field("results", &self.results)
            .finish_non_exhaustive()
    }
}
