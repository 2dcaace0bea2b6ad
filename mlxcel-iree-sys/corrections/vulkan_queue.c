// IREE's queues for Vulkan, compiled in the place of their own file, with one correction.
//
// The tables of the addresses that dispatches use are mapped memory. Of the kinds that can be mapped the
// allocator prefers memory of the host, from which every dispatch of a discrete GPU then fetches its table
// over the bus. Here it is memory of the device where some can be mapped.

#include "iree/hal/drivers/vulkan/allocator.h"

// The queue calls this for its tables only.
static iree_status_t mlxcel_allocate_near_device(
    iree_hal_allocator_t* allocator, const iree_hal_buffer_params_t* params,
    iree_device_size_t size, iree_hal_buffer_t** out_buffer) {
  iree_hal_buffer_params_t near_device = *params;
  near_device.type |= IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL;
  iree_status_t status = iree_hal_vulkan_allocator_allocate_direct_buffer(
      allocator, &near_device, size, out_buffer);
  if (iree_status_is_ok(status)) return status;
  iree_status_free(status);
  return iree_hal_vulkan_allocator_allocate_direct_buffer(allocator, params,
                                                          size, out_buffer);
}

#undef iree_hal_vulkan_allocator_allocate_direct_buffer
#define iree_hal_vulkan_allocator_allocate_direct_buffer \
  mlxcel_allocate_near_device

#include "iree/hal/drivers/vulkan/queue.c"
