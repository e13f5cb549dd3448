//! Structures that name their own type in `stype`. Must never give a blank one the number of
//! another type.

use crate::bindings::*;

/// A structure that begins with `stype` and `pNext`.
///
/// # Safety
/// The type is `repr(C)`, begins like `ze_base_desc_t`, may be all zero, and `STYPE` is the number
/// of this type alone: [`find`](crate::find) casts by that number.
pub unsafe trait Structure: Default {
    /// The number that the specification gives this type.
    const STYPE: ze_structure_type_t;

    /// All zero except `stype`: to be filled in by the program, or by the function that it is
    /// handed to.
    fn blank() -> Self;
}

macro_rules! structures {
    ($($name:ident = $number:ident;)*) => {$(
        // SAFETY: generated from the header: `repr(C)`, plain data; the number is the one the
        // specification gives it.
        unsafe impl Structure for $name {
            const STYPE: ze_structure_type_t = ze_structure_type_t::$number;

            fn blank() -> Self {
                Self { stype: Self::STYPE, ..Self::default() }
            }
        }

        const _: () = {
            assert!(std::mem::offset_of!($name, stype) == std::mem::offset_of!(ze_base_desc_t, stype));
            assert!(std::mem::offset_of!($name, pNext) == std::mem::offset_of!(ze_base_desc_t, pNext));
        };
    )*};
}

structures! {
    ze_init_driver_type_desc_t = ZE_STRUCTURE_TYPE_INIT_DRIVER_TYPE_DESC;
    ze_driver_properties_t = ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES;
    ze_driver_ipc_properties_t = ZE_STRUCTURE_TYPE_DRIVER_IPC_PROPERTIES;
    ze_device_properties_t = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
    ze_device_memory_properties_t = ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES;
    ze_device_external_memory_properties_t = ZE_STRUCTURE_TYPE_DEVICE_EXTERNAL_MEMORY_PROPERTIES;
    ze_pci_ext_properties_t = ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES;
    ze_context_desc_t = ZE_STRUCTURE_TYPE_CONTEXT_DESC;
    ze_command_queue_desc_t = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
    ze_command_queue_group_properties_t = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES;
    ze_command_list_desc_t = ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC;
    ze_fence_desc_t = ZE_STRUCTURE_TYPE_FENCE_DESC;
    ze_event_pool_desc_t = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC;
    ze_event_desc_t = ZE_STRUCTURE_TYPE_EVENT_DESC;
    ze_device_mem_alloc_desc_t = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC;
    ze_host_mem_alloc_desc_t = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC;
    ze_memory_allocation_properties_t = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES;
    ze_memory_free_ext_desc_t = ZE_STRUCTURE_TYPE_MEMORY_FREE_EXT_DESC;
    ze_physical_mem_desc_t = ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC;
    ze_external_memory_export_desc_t = ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_DESC;
    ze_external_memory_export_fd_t = ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_EXPORT_FD;
    ze_external_memory_import_fd_t = ZE_STRUCTURE_TYPE_EXTERNAL_MEMORY_IMPORT_FD;
}
