// IREE's command buffers for Vulkan, compiled in the place of their own file, with one correction.
//
// A command buffer that is executed several times is recorded for Vulkan once: before each further execution
// the queue writes the addresses of the buffers that dispatches use into a table. Copies, fills and updates
// have no such table. They keep the buffers of the first execution, and further ones read and write those.
//
// The queue records a command buffer anew if it has dispatches through descriptors. So it does here if it
// moves bytes otherwise than by dispatches.

// Functions have the prefix of generated/names.h; the original is renamed.
#undef iree_hal_vulkan_command_buffer_has_descriptor_dispatches
#define iree_hal_vulkan_command_buffer_has_descriptor_dispatches \
  mlxcel_iree_hal_vulkan_command_buffer_has_descriptor_dispatches_alone

#include "iree/hal/drivers/vulkan/command_buffer.c"

bool mlxcel_iree_hal_vulkan_command_buffer_has_descriptor_dispatches(
    iree_hal_command_buffer_t* base_command_buffer) {
  if (iree_hal_vulkan_command_buffer_has_descriptor_dispatches(
          base_command_buffer)) {
    return true;
  }
  iree_hal_vulkan_command_buffer_iterator_t iterator =
      iree_hal_vulkan_command_buffer_iterator(
          iree_hal_vulkan_command_buffer_cast(base_command_buffer));
  const iree_hal_vulkan_command_t* command = NULL;
  while (iree_hal_vulkan_command_buffer_iterator_next(
      &iterator, &command, /*out_command_index=*/NULL)) {
    switch (command->type) {
      case IREE_HAL_VULKAN_COMMAND_TYPE_COPY_BUFFER:
      case IREE_HAL_VULKAN_COMMAND_TYPE_FILL_BUFFER:
      case IREE_HAL_VULKAN_COMMAND_TYPE_UPDATE_BUFFER:
        return true;
      default:
        break;
    }
  }
  return false;
}
