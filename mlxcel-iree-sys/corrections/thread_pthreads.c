// IREE's threads of Linux and Android, compiled in the place of their own file, with one correction.
//
// A new thread reads its own handle to set its name, and a worker to set its affinity. glibc and Android store the
// handle before the thread runs; musl stores it after the thread was started. A thread that is faster reads a null
// handle there, musl follows it, and the process crashes. Here a new thread first waits until its handle is stored.

// Before any header of the system: it asks for what is not in POSIX.
#include "iree/base/threading/thread_impl.h"

#if defined(IREE_PLATFORM_ANDROID) || defined(IREE_PLATFORM_LINUX)

#include <pthread.h>

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

#endif

#include "iree/base/threading/thread_pthreads.c"
