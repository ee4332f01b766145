/* The device, the driver and how fast memory is copied: the first thing that a run
 * says. Exit status 77 and the reason in the last line where there is no device. */
#include <cuda_runtime_api.h>
#include <stdio.h>

enum { MB = 1 << 20, REPEAT = 20 };

static int must(cudaError_t e, const char *what)
{
	if (e)
		printf("not ok 1 - %s: %s\n", what, cudaGetErrorString(e));
	return e != cudaSuccess;
}

static int copy_rate(void)
{
	const size_t bytes = (size_t)512 * MB;
	void *from = NULL, *to = NULL;
	cudaEvent_t begin, end;
	float ms = 0;
	if (must(cudaMalloc(&from, bytes), "512 MB of device memory") || must(cudaMalloc(&to, bytes), "512 MB more") ||
	    must(cudaMemset(from, 0x3d, bytes), "filling it") || must(cudaEventCreate(&begin), "an event") ||
	    must(cudaEventCreate(&end), "an event"))
		return 1;
	for (int i = -2; i < REPEAT; i++) {
		if (i == 0)
			cudaEventRecord(begin, 0);
		cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, 0);
	}
	cudaEventRecord(end, 0);
	if (must(cudaEventSynchronize(end), "copies on the device") ||
	    must(cudaEventElapsedTime(&ms, begin, end), "timing them"))
		return 1;
	printf("figure: cudaMemcpyAsync of 512 MB, read and written = %.0f GB/s\n", 2e-6 * (double)bytes * REPEAT / ms);
	return 0;
}

int main(void)
{
	int n = 0, driver = 0, runtime = 0, memory = 0, clock = 0;
	cudaError_t e = cudaGetDeviceCount(&n);
	struct cudaDeviceProp p;
	setvbuf(stdout, NULL, _IOLBF, 0);
	cudaDriverGetVersion(&driver);
	cudaRuntimeGetVersion(&runtime);
	printf("# the driver serves CUDA %d.%d, this is linked with %d.%d\n", driver / 1000, driver % 1000 / 10,
	       runtime / 1000, runtime % 1000 / 10);
	if (e || !n) {
		printf("1..0 # SKIP no CUDA device: %s\n", e ? cudaGetErrorString(e) : "none is visible");
		return 77;
	}
	if (must(cudaGetDeviceProperties(&p, 0), "the device's properties"))
		return 1;
	cudaDeviceGetAttribute(&memory, cudaDevAttrMemoryClockRate, 0);
	cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0);
	printf("# %d device(s); the first: %s, sm_%d%d, %d multiprocessors, %zu MB, L2 %d MB\n", n, p.name, p.major,
	       p.minor, p.multiProcessorCount, p.totalGlobalMem / MB, p.l2CacheSize / MB);
	printf("# shared memory a block: %zu KB, at most %zu KB; a multiprocessor: %zu KB, %d registers, %d threads\n",
	       p.sharedMemPerBlock / 1024, p.sharedMemPerBlockOptin / 1024, p.sharedMemPerMultiprocessor / 1024,
	       p.regsPerMultiprocessor, p.maxThreadsPerMultiProcessor);
	printf("# clocks, at most: %d MHz, memory %d MHz\n", clock / 1000, memory / 1000);
	if (copy_rate())
		return 1;
	printf("ok 1 - the device copies\n");
	return 0;
}
