// How many workgroups a worker claims at once, in the place of IREE's own number.
//
// IREE has workers claim one workgroup after another of a small dispatch, and eight at a time of a large one.
// Neighbouring workgroups read neighbouring memory. Claimed one by one they alternate between workers, so each
// begins with memory that nobody prefetched, and prefetches at its end what another worker reads. Claims of
// eight leave a worker without work for up to eight workgroups at the end.
//
// Here a claim is an equal share of the workgroups that are left, but at most eight: neighbours stay together,
// and claims become smaller towards the end (guided self-scheduling, Polychronopoulos and Kuck 1987).

#include <stdint.h>

static inline uint32_t mlxcel_tiles_to_claim(uint32_t left,
                                             uint32_t worker_count) {
  const uint32_t share = left / worker_count;
  return share < 1 ? 1 : share > 8 ? 8 : share;
}
