//! What goes into a program and comes out: buffers with a shape and an element type.

use mlxcel_core::{Error, ErrorKind, FaultPoint, Result};
use mlxcel_stablehlo::ElementType;

use super::buffer::Buffer;
use super::device::Device;
use super::handle::Handle;
use super::memory::ALIGNMENT;
use super::status::check;
use super::sys;

/// An argument of a program: a dense row-major tensor in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a> {
    /// Where the bytes are.
    pub buffer: &'a Buffer,
    /// Where the tensor begins in the buffer, in bytes; a multiple of [`ALIGNMENT`].
    pub offset: usize,
    /// The dimensions, outermost first.
    pub shape: &'a [usize],
    /// The type of the elements.
    pub element: ElementType,
}

impl<'a> Argument<'a> {
    /// A tensor at the beginning of a buffer.
    pub fn new(buffer: &'a Buffer, shape: &'a [usize], element: ElementType) -> Self {
        Self { buffer, offset: 0, shape, element }
    }

    /// The same as IREE takes it.
    fn view(&self) -> Result<View> {
        let invalid = |message| {
            Error::new(ErrorKind::InvalidInput, "pass an argument", message)
                .with_context("shape", format_args!("{:?}", self.shape))
                .with_context("element", self.element.mlir())
        };
        let elements = self
            .shape
            .iter()
            .try_fold(1usize, |product, &dimension| product.checked_mul(dimension))
            .ok_or_else(|| invalid("the tensor is larger than memory"))?;
        let len = self.element.bytes_for(elements);
        let begin = self.buffer.storage_offset().wrapping_add(self.offset);
        // Generated code loads whole vectors from addresses that it takes for aligned.
        if !begin.is_multiple_of(ALIGNMENT) {
            return Err(invalid("a tensor must be aligned to 64 bytes").with_context("offset", begin));
        }
        let element = to_iree(self.element)?;
        let part = self.buffer.part(self.offset, len)?;
        // SAFETY: buffer and shape are live for the call; the view copies the shape, retains the buffer and
        // is ours. The part has as many bytes as the elements take, at an address that is aligned.
        unsafe {
            Handle::create("pass an argument", |out| {
                sys::iree_hal_buffer_view_create(
                    part.as_ptr(),
                    self.shape.len(),
                    self.shape.as_ptr(),
                    element,
                    sys::iree_hal_encoding_types_t_IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR,
                    sys::host_allocator(),
                    out,
                )
            })
        }
    }
}

/// A tensor in IREE's hands.
pub(super) type View = Handle<sys::iree_hal_buffer_view_t>;

/// The leading arguments of a function that do not change from call to call (a model's weights), made once.
///
/// A program must only read them: one that updates such an argument, which IREE may do in place, changes it
/// for every later call, and faults where the memory is mapped read-only.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    views: Vec<ConstantView>,
}

#[derive(Clone)]
struct ConstantView {
    view: View,
    /// Keeps alive what the buffer depends on beyond its own memory.
    buffer: Buffer,
}

impl std::fmt::Debug for ConstantView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.buffer.fmt(f)
    }
}

impl Constants {
    /// Prepares arguments, in the order in which the function takes them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for tensors that their buffer does not contain or that are not aligned to
    /// [`ALIGNMENT`], [`ErrorKind::Unsupported`] for element types that the runtime does not have.
    pub fn new(arguments: &[Argument<'_>]) -> Result<Self> {
        let views = arguments
            .iter()
            .map(|argument| Ok(ConstantView { view: argument.view()?, buffer: argument.buffer.clone() }))
            .collect::<Result<_>>()?;
        Ok(Self { views })
    }

    /// How many arguments they are.
    pub(crate) fn len(&self) -> usize {
        self.views.len()
    }
}

/// One call's arguments as IREE takes them, in order: the constants, then the rest.
pub(super) fn input_list(device: &Device, constants: &Constants, rest: &[Argument<'_>]) -> Result<List> {
    device.check_fault(FaultPoint::Allocation, "pass an argument")?;
    let list = List::with_capacity(constants.len() + rest.len())?;
    for constant in &constants.views {
        expect_device(device, &constant.buffer)?;
        list.push(&constant.view)?;
    }
    for argument in rest {
        expect_device(device, argument.buffer)?;
        if argument.buffer.is_read_only() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "pass an argument",
                "imported memory is read-only and can be passed as a constant only",
            ));
        }
        list.push(&argument.view()?)?;
    }
    Ok(list)
}

fn expect_device(device: &Device, buffer: &Buffer) -> Result<()> {
    if device.is(buffer.device()) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        "pass an argument",
        "the buffer is on another device than the program",
    ))
}

/// A list of tensors for one call; it stays on the thread that made it.
pub(super) struct List(Handle<sys::iree_vm_list_t>);

impl List {
    /// An empty list with room for `capacity` tensors.
    pub(super) fn with_capacity(capacity: usize) -> Result<Self> {
        // SAFETY: a zeroed type definition is the variant type, which holds anything; the list is ours.
        unsafe {
            Handle::create("call a program", |out| {
                sys::iree_vm_list_create(Default::default(), capacity, sys::host_allocator(), out)
            })
        }
        .map(Self)
    }

    /// Appends a tensor.
    fn push(&self, view: &View) -> Result<()> {
        // SAFETY: list and view are live, and nothing else uses the list, which is not shared; it retains the
        // view. The reference that is made here is moved into the list, which leaves a null one to
        // release, or, when that fails, released. The status is that of the call.
        unsafe {
            let mut reference = sys::iree_hal_buffer_view_retain_ref(view.as_ptr());
            let status = sys::iree_vm_list_push_ref_move(self.0.as_ptr(), &mut reference);
            sys::iree_vm_ref_release(&mut reference);
            check(status, "call a program")
        }
    }

    /// How many tensors it holds.
    pub(super) fn len(&self) -> usize {
        // SAFETY: the list is live.
        unsafe { sys::iree_vm_list_size(self.0.as_ptr()) }
    }

    /// The tensor at `index`, if there is one.
    pub(super) fn get(&self, index: usize) -> Option<View> {
        // SAFETY: the list is live and nobody writes to it meanwhile; the call checks index and type and
        // returns a reference that is ours, or null.
        unsafe { Handle::from_owned(sys::iree_vm_list_get_buffer_view_retain(self.0.as_ptr(), index)) }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::iree_vm_list_t {
        self.0.as_ptr()
    }
}

/// IREE's element types, with the corresponding type. An integer of a program has no sign to IREE unless
/// StableHLO calls it unsigned.
const ELEMENT_TYPES: [(ElementType, sys::iree_hal_element_types_t); 11] = [
    (ElementType::F32, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_FLOAT_32),
    (ElementType::F16, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_FLOAT_16),
    (ElementType::BF16, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_BFLOAT_16),
    (ElementType::I64, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_INT_64),
    (ElementType::I32, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_INT_32),
    (ElementType::I8, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_INT_8),
    (ElementType::I4, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_INT_4),
    (ElementType::I1, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_BOOL_8),
    (ElementType::U32, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_UINT_32),
    (ElementType::U8, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_UINT_8),
    (ElementType::U4, sys::iree_hal_element_types_t_IREE_HAL_ELEMENT_TYPE_UINT_4),
];

/// IREE's code of an element type.
fn to_iree(element: ElementType) -> Result<sys::iree_hal_element_type_t> {
    ELEMENT_TYPES.iter().find(|(ours, _)| *ours == element).map(|(_, theirs)| *theirs).ok_or_else(|| {
        Error::unsupported("pass an argument", "the runtime does not support this element type")
            .with_context("element", element)
    })
}

/// The element type of IREE's code.
pub(super) fn from_iree(code: sys::iree_hal_element_type_t) -> Result<ElementType> {
    ELEMENT_TYPES.iter().find(|(_, theirs)| *theirs == code).map(|(ours, _)| *ours).ok_or_else(|| {
        Error::unsupported("call a program", "a result has an unknown element type")
            .with_context("code", format_args!("{code:#x}"))
    })
}
