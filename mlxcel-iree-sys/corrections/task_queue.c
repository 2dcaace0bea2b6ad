// IREE's queues for CPUs, compiled in the place of their own file, with one correction.
//
// Whoever submits an operation that has nothing to wait for pushes it to the list of ready ones, and then
// schedules the queue that it reads from the operation. A worker that drains the queue may have run and freed the
// operation in between, if the system interrupts the submitting thread there: the address of the executor is then
// read from freed memory, and the process crashes. Here the queue is read before the operation is pushed.

#include "iree/hal/drivers/local_task/task_queue.h"
#include "iree/task/executor.h"

// The queue of the operation that was pushed in a scope around; here none was.
static iree_hal_task_queue_t* const mlxcel_queue = NULL;

#undef iree_hal_task_queue_op_slist_push
#define iree_hal_task_queue_op_slist_push(list, pushed)  \
  iree_hal_task_queue_t* mlxcel_queue = (pushed)->queue; \
  (iree_hal_task_queue_op_slist_push)(&mlxcel_queue->ready_list, pushed)

static void mlxcel_schedule(iree_task_executor_t* executor,
                            iree_task_process_t* process) {
  iree_task_executor_schedule_process(executor, process);
}

#undef iree_task_executor_schedule_process
#define iree_task_executor_schedule_process(wanted_executor, wanted_process) \
  mlxcel_schedule(mlxcel_queue ? mlxcel_queue->executor : (wanted_executor), \
                  mlxcel_queue ? &mlxcel_queue->process : (wanted_process))

#include "iree/hal/drivers/local_task/task_queue.c"
