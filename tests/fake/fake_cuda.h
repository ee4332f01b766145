/* Inside of the fake device: what its operators and its NCCL are made with. */
#ifndef TESTS_FAKE_FAKE_CUDA_H
#define TESTS_FAKE_FAKE_CUDA_H

#include <cuda_runtime_api.h>
#include <functional>

/* Runs `work` on the stream's thread, after all that was put there before. */
void fake_enqueue(cudaStream_t stream, std::function<void()> work);
/* Counts a launch; false: it is the one that is to fail, and cudaGetLastError()
 * says so. */
bool fake_launch();
/* Before a launch of this kernel: the first one loads it, which waits for all
 * streams. */
void fake_load(const void *kernel);
/* Where `bytes` from p on can be reached by something that runs on a stream:
 * memory of the device, or pinned. Anything else ends the program. NULL stays
 * NULL. */
void *fake_at(const void *p, size_t bytes = 1);
/* Work on a stream takes as long as so many bytes do at the rate that is set, in bytes/s: FAKE_CUDA_RATE, or
 * FAKE_NCCL_RATE; no time where none is. What streams do at the same time shares the rate in equal parts, as it shares
 * a device's memory, or its links. */
class fake_time
{
	class shared_rate *of;
	double end;

      public:
	fake_time(double bytes, const char *rate);
	~fake_time();
};
/* Returns true when it is plain host memory, which only copies may touch. */
bool fake_plain(const void *p);
[[noreturn]] void fake_die(const char *what);

#endif
