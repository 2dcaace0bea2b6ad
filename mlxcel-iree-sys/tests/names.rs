//! What a linker sees of the archive: nothing that another IREE in the same program defines as well.
#![cfg(all(target_os = "linux", feature = "vendored", not(feature = "dist"), not(feature = "cuda")))]

use std::error::Error;
use std::fs;
use std::path::Path;

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSymbol, SymbolScope};

#[test]
fn every_symbol_has_our_prefix_and_is_hidden() -> Result<(), Box<dyn Error>> {
    let bytes = fs::read(Path::new(env!("OUT_DIR")).join("libmlxcel_iree.a"))?;
    let archive = ArchiveFile::parse(&*bytes)?;
    let mut symbols = 0;
    for member in archive.members() {
        let object = object::File::parse(member?.data(&*bytes)?)?;
        for symbol in object.symbols().filter(|symbol| symbol.is_global() && symbol.is_definition()) {
            let name = symbol.name()?;
            assert!(name.starts_with("mlxcel_"), "{name}");
            assert_eq!(symbol.scope(), SymbolScope::Linkage, "{name} can be exported");
            symbols += 1;
        }
    }
    assert!(symbols > 1000, "{symbols}");
    Ok(())
}

#[test]
fn renamed_functions_can_be_called() {
    // SAFETY: the allocator is a function of the archive; an instance that is created is ours, and given back
    // once.
    unsafe {
        let host = mlxcel_iree_sys::iree_allocator_t {
            self_: std::ptr::null_mut(),
            ctl: Some(mlxcel_iree_sys::iree_allocator_libc_ctl),
        };
        let mut instance = std::ptr::null_mut();
        let capacity = mlxcel_iree_sys::IREE_VM_TYPE_CAPACITY_DEFAULT as usize;
        let status = mlxcel_iree_sys::iree_vm_instance_create(capacity, host, &mut instance);
        assert!(status.is_null() && !instance.is_null());
        mlxcel_iree_sys::iree_vm_instance_release(instance);
    }
}
