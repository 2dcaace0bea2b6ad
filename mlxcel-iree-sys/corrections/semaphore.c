// IREE's semaphores, compiled in the place of their own file, with one correction.
//
// A waiting thread is woken by the callback of a worker, and spins until that callback has returned. If all cores
// are busy, the system often wakes it on the worker's core and stops the worker for it: it then spins for the rest
// of its time slice. Here it gives the core back.

#include "iree/base/threading/processor.h"
#include "iree/base/threading/thread.h"

#define iree_processor_yield iree_thread_yield
#include "iree/async/semaphore.c"
