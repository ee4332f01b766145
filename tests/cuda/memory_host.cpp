/* The emulated device. Its memory is the host's, so the sanitisers see every access. */
#include <chrono>

#include "tests/cuda/emulate.h"
#include "tests/cuda/device_memory.h"
#include "operators/cuda/cuda_module.h"

extern "C" const cuda_module gradcomp_operators_cuda;

extern "C" int cuda_missing(char *, size_t)
{
	return 0;
}

const gradcomp_operators *device_table(const char **)
{
	return gradcomp_operators_cuda.table;
}

const int device_can_fail = 1;

void device_fail_launch(long k)
{
	emulate_fail(k);
}

long device_queued(void)
{
	return emulate_queued;
}

int device_moved(long *read, long *written)
{
	return races_moved(read, written);
}

void *device_alloc(size_t bytes)
{
	/* The exact size, on a boundary as cudaMalloc() gives, full of rubbish. */
#ifdef GRADCOMP_RACES
	void *p = races_device_alloc(bytes);
#else
	void *p = nullptr;
	if (posix_memalign(&p, 256, bytes ? bytes : 1))
		exit(1);
#endif
	return memset(p, 0xa7, bytes);
}

void device_free(void *p)
{
#ifdef GRADCOMP_RACES
	races_device_free(p);
#else
	free(p);
#endif
}

void to_device(void *to, const void *from, size_t bytes)
{
	if (bytes)
		memcpy(to, from, bytes);
}

void from_device(void *to, const void *from, size_t bytes)
{
	if (bytes)
		memcpy(to, from, bytes);
}

void device_copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

double device_seconds(void (*work)(void *), void *ctx, int repeat)
{
	auto begin = std::chrono::steady_clock::now();
	for (int i = 0; i < repeat; i++)
		work(ctx);
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / repeat;
}
