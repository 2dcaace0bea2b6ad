//! Runs a model on mlxcel's IREE while the IREE of another package is in use in the same program.

use std::error::Error;
use std::ffi::c_void;
use std::ptr;

use eerie_sys::runtime as other;
use mlxcel_session::{Message, Model, OpenOptions, Options};

unsafe extern "C" {
    /// The other package's: ours has a name of its own.
    fn iree_allocator_libc_ctl(
        this: *mut c_void,
        command: other::iree_allocator_command_t,
        params: *const c_void,
        inout: *mut *mut c_void,
    ) -> other::iree_status_t;
}

/// An instance of the other IREE's VM.
struct Instance(*mut other::iree_vm_instance_t);

impl Instance {
    fn new() -> Result<Self, String> {
        let host = other::iree_allocator_t { self_: ptr::null_mut(), ctl: Some(iree_allocator_libc_ctl) };
        let mut instance = ptr::null_mut();
        // SAFETY: the allocator is the other package's own, and an instance that is created is ours.
        let status = unsafe {
            let capacity = other::IREE_VM_TYPE_CAPACITY_DEFAULT as usize;
            other::iree_vm_instance_create(capacity, host, &mut instance)
        };
        if !status.is_null() || instance.is_null() {
            return Err("the other IREE made no instance".to_owned());
        }
        let instance = Self(instance);
        // SAFETY: the instance is live, and its types have not been registered.
        if !unsafe { other::iree_hal_module_register_all_types(instance.0) }.is_null() {
            return Err("the other IREE registered no types".to_owned());
        }
        Ok(instance)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: the reference is ours and is released once.
        unsafe { other::iree_vm_instance_release(self.0) }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: beside-eerie CHECKPOINT_FOLDER")?;
    let before = Instance::new()?;
    let model = Model::open_with(folder, &OpenOptions::default().with_backend("iree"))?;
    drop(before);
    let _beside = Instance::new()?;
    let question = Message::user("Tell me a story about a fox named Pip.");
    let mut story = String::new();
    for piece in model.chat(&[question], &Options::new(64))? {
        story.push_str(&piece?);
    }
    println!("{story}");
    if !story.contains("Pip") {
        return Err(format!("the text is not a story about Pip: {story:?}").into());
    }
    Ok(())
}
