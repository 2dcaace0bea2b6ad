// IREE's threads of Linux and Android, compiled in the place of their own file, with two corrections.
//
// A new thread reads its own handle to set its name, and a worker to set its affinity. glibc and Android store the
// handle before the thread runs; musl stores it after the thread was started. A thread that is faster reads a null
// handle there, musl follows it, and the process crashes. Here a new thread first waits until its handle is stored.
//
// A worker without a place of its own asks for every CPU, also for those that the process was not given (by `taskset`
// or a container's start). Here it keeps the CPUs of the thread that created it.

// Before any header of the system: it asks for what is not in POSIX.
#include "iree/base/threading/thread_impl.h"

#if defined(IREE_PLATFORM_ANDROID) || defined(IREE_PLATFORM_LINUX)

#include <pthread.h>
#include <sched.h>

// Held by whoever creates a thread, until the handle is stored.
static pthread_mutex_t mlxcel_creating = PTHREAD_MUTEX_INITIALIZER;

static void* iree_thread_start_routine(void* thread);

static void* mlxcel_start_routine(void* thread) {
  pthread_mutex_lock(&mlxcel_creating);
  pthread_mutex_unlock(&mlxcel_creating);
  return iree_thread_start_routine(thread);
}

static int mlxcel_create(pthread_t* handle, const pthread_attr_t* attributes,
                         void* thread) {
  pthread_mutex_lock(&mlxcel_creating);
  int result =
      pthread_create(handle, attributes, mlxcel_start_routine, thread);
  pthread_mutex_unlock(&mlxcel_creating);
  return result;
}

#define pthread_create(handle, attributes, routine, thread) \
  mlxcel_create(handle, attributes, thread)

// Whether these are all CPUs that a set can have, which is what a worker without a place asks for.
static int mlxcel_is_any(const cpu_set_t* set) {
  return CPU_COUNT(set) == CPU_SETSIZE;
}

#define pthread_setaffinity_np(handle, size, set) \
  (mlxcel_is_any(set) ? 0 : pthread_setaffinity_np(handle, size, set))
#define sched_setaffinity(id, size, set) \
  (mlxcel_is_any(set) ? 0 : sched_setaffinity(id, size, set))

#endif

#include "iree/base/threading/thread_pthreads.c"
