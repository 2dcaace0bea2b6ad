// Streams of the CPU, which threads take over from each other.
#pragma once

namespace mlxcel {

// Makes a stream that no other thread uses this thread's default for the CPU, until the thread ends. MLX would start
// a thread for each thread that computes, and keep it until the process ends.
void borrow_cpu_stream();

} // namespace mlxcel
