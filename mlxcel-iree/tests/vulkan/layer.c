// A layer of Vulkan for tests, between the loader and the driver. Files in the folder that the variable
// MLXCEL_TEST_LAYER names direct it:
//
// in_use     is written: how many bytes of memory are allocated
// limit      an allocation beyond this many bytes fails
// lost       the device is lost at the next submission, which the driver does not get
// hangs      the device is lost after the next submission
// subgroups  the size of subgroups that is reported in the place of the driver's
//
// All devices of a process are of one driver here, so its functions are looked up once for all.

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>

#define MOST_ALLOCATIONS 65536

static PFN_vkGetInstanceProcAddr instance_function;
static PFN_vkGetDeviceProcAddr device_function;
static PFN_vkGetPhysicalDeviceProperties2 get_properties;
static PFN_vkAllocateMemory allocate;
static PFN_vkFreeMemory release;
static PFN_vkQueueSubmit2 submit;
static PFN_vkWaitSemaphores wait_for;
static PFN_vkGetSemaphoreCounterValue counter_value;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  VkDeviceMemory memory;
  VkDeviceSize bytes;
} allocations[MOST_ALLOCATIONS];
static size_t allocation_count;
static VkDeviceSize bytes_in_use;
static volatile bool is_lost;

static FILE* open_file(const char* name, const char* mode) {
  const char* folder = getenv("MLXCEL_TEST_LAYER");
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", folder ? folder : ".", name);
  return fopen(path, mode);
}

static bool exists(const char* name) {
  FILE* file = open_file(name, "r");
  if (file) fclose(file);
  return file != NULL;
}

// The number in a file, or `otherwise` without the file.
static unsigned long long number(const char* name, unsigned long long otherwise) {
  FILE* file = open_file(name, "r");
  if (!file) return otherwise;
  if (fscanf(file, "%llu", &otherwise) != 1) abort();
  fclose(file);
  return otherwise;
}

static void write_bytes_in_use(void) {
  FILE* file = open_file("in_use", "w");
  if (!file) return;
  fprintf(file, "%llu", (unsigned long long)bytes_in_use);
  fclose(file);
}

static VkResult VKAPI_CALL allocate_memory(VkDevice device, const VkMemoryAllocateInfo* info,
                                           const VkAllocationCallbacks* callbacks, VkDeviceMemory* memory) {
  VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
  pthread_mutex_lock(&lock);
  if (bytes_in_use + info->allocationSize <= number("limit", ~0ull) && allocation_count < MOST_ALLOCATIONS) {
    result = allocate(device, info, callbacks, memory);
  }
  if (result == VK_SUCCESS) {
    allocations[allocation_count].memory = *memory;
    allocations[allocation_count++].bytes = info->allocationSize;
    bytes_in_use += info->allocationSize;
    write_bytes_in_use();
  }
  pthread_mutex_unlock(&lock);
  return result;
}

static void VKAPI_CALL free_memory(VkDevice device, VkDeviceMemory memory,
                                   const VkAllocationCallbacks* callbacks) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; memory && i < allocation_count; ++i) {
    if (allocations[i].memory == memory) {
      bytes_in_use -= allocations[i].bytes;
      allocations[i] = allocations[--allocation_count];
      write_bytes_in_use();
      break;
    }
  }
  release(device, memory, callbacks);
  pthread_mutex_unlock(&lock);
}

static VkResult VKAPI_CALL queue_submit(VkQueue queue, uint32_t count, const VkSubmitInfo2* submits,
                                        VkFence fence) {
  if (exists("lost")) is_lost = true;
  if (is_lost) return VK_ERROR_DEVICE_LOST;
  VkResult result = submit(queue, count, submits, fence);
  if (exists("hangs")) is_lost = true;
  return result;
}

// What the driver was given ends before the device is reported lost: the driver still uses its memory.
static VkResult VKAPI_CALL wait_semaphores(VkDevice device, const VkSemaphoreWaitInfo* info,
                                           uint64_t timeout) {
  VkResult result = wait_for(device, info, timeout);
  return is_lost ? VK_ERROR_DEVICE_LOST : result;
}

static VkResult VKAPI_CALL semaphore_counter_value(VkDevice device, VkSemaphore semaphore, uint64_t* value) {
  VkResult result = counter_value(device, semaphore, value);
  return is_lost ? VK_ERROR_DEVICE_LOST : result;
}

static void VKAPI_CALL physical_device_properties(VkPhysicalDevice device,
                                                  VkPhysicalDeviceProperties2* properties) {
  get_properties(device, properties);
  uint32_t size = (uint32_t)number("subgroups", 0);
  for (VkBaseOutStructure* next = properties->pNext; size && next; next = next->pNext) {
    if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES) {
      ((VkPhysicalDeviceSubgroupProperties*)next)->subgroupSize = size;
    } else if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES) {
      ((VkPhysicalDeviceSubgroupSizeControlProperties*)next)->minSubgroupSize = size;
      ((VkPhysicalDeviceSubgroupSizeControlProperties*)next)->maxSubgroupSize = size;
    }
  }
}

static VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo* info,
                                           const VkAllocationCallbacks* callbacks, VkInstance* instance) {
  VkLayerInstanceCreateInfo* chain = (VkLayerInstanceCreateInfo*)info->pNext;
  while (chain->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || chain->function != VK_LAYER_LINK_INFO) {
    chain = (VkLayerInstanceCreateInfo*)chain->pNext;
  }
  instance_function = chain->u.pLayerInfo->pfnNextGetInstanceProcAddr;
  chain->u.pLayerInfo = chain->u.pLayerInfo->pNext;
  PFN_vkCreateInstance create = (PFN_vkCreateInstance)instance_function(NULL, "vkCreateInstance");
  VkResult result = create(info, callbacks, instance);
  if (result != VK_SUCCESS) return result;
  get_properties = (PFN_vkGetPhysicalDeviceProperties2)instance_function(*instance, "vkGetPhysicalDeviceProperties2");
  return result;
}

static VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo* info,
                                         const VkAllocationCallbacks* callbacks, VkDevice* device) {
  VkLayerDeviceCreateInfo* chain = (VkLayerDeviceCreateInfo*)info->pNext;
  while (chain->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || chain->function != VK_LAYER_LINK_INFO) {
    chain = (VkLayerDeviceCreateInfo*)chain->pNext;
  }
  PFN_vkGetInstanceProcAddr next = chain->u.pLayerInfo->pfnNextGetInstanceProcAddr;
  device_function = chain->u.pLayerInfo->pfnNextGetDeviceProcAddr;
  chain->u.pLayerInfo = chain->u.pLayerInfo->pNext;
  PFN_vkCreateDevice create = (PFN_vkCreateDevice)next(NULL, "vkCreateDevice");
  VkResult result = create(physical, info, callbacks, device);
  if (result != VK_SUCCESS) return result;
  allocate = (PFN_vkAllocateMemory)device_function(*device, "vkAllocateMemory");
  release = (PFN_vkFreeMemory)device_function(*device, "vkFreeMemory");
  submit = (PFN_vkQueueSubmit2)device_function(*device, "vkQueueSubmit2");
  wait_for = (PFN_vkWaitSemaphores)device_function(*device, "vkWaitSemaphores");
  counter_value = (PFN_vkGetSemaphoreCounterValue)device_function(*device, "vkGetSemaphoreCounterValue");
  // A device that is opened after one was lost is another one.
  is_lost = false;
  return result;
}

static PFN_vkVoidFunction VKAPI_CALL get_instance_function(VkInstance instance, const char* name);
static PFN_vkVoidFunction VKAPI_CALL get_device_function(VkDevice device, const char* name);

static PFN_vkVoidFunction own(const char* name) {
  const struct {
    const char* name;
    PFN_vkVoidFunction function;
  } functions[] = {
      {"vkGetInstanceProcAddr", (PFN_vkVoidFunction)get_instance_function},
      {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)get_device_function},
      {"vkCreateInstance", (PFN_vkVoidFunction)create_instance},
      {"vkCreateDevice", (PFN_vkVoidFunction)create_device},
      {"vkGetPhysicalDeviceProperties2", (PFN_vkVoidFunction)physical_device_properties},
      {"vkAllocateMemory", (PFN_vkVoidFunction)allocate_memory},
      {"vkFreeMemory", (PFN_vkVoidFunction)free_memory},
      {"vkQueueSubmit2", (PFN_vkVoidFunction)queue_submit},
      {"vkWaitSemaphores", (PFN_vkVoidFunction)wait_semaphores},
      {"vkGetSemaphoreCounterValue", (PFN_vkVoidFunction)semaphore_counter_value},
  };
  for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); ++i) {
    if (!strcmp(name, functions[i].name)) return functions[i].function;
  }
  return NULL;
}

static PFN_vkVoidFunction VKAPI_CALL get_instance_function(VkInstance instance, const char* name) {
  PFN_vkVoidFunction function = own(name);
  if (function || !instance_function) return function;
  return instance_function(instance, name);
}

static PFN_vkVoidFunction VKAPI_CALL get_device_function(VkDevice device, const char* name) {
  PFN_vkVoidFunction function = own(name);
  return function ? function : device_function(device, name);
}

VKAPI_ATTR VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface* interface) {
  interface->loaderLayerInterfaceVersion = CURRENT_LOADER_LAYER_INTERFACE_VERSION;
  interface->pfnGetInstanceProcAddr = get_instance_function;
  interface->pfnGetDeviceProcAddr = get_device_function;
  interface->pfnGetPhysicalDeviceProcAddr = NULL;
  return VK_SUCCESS;
}
