/* A model whose gradients are in GPU memory, beside one in host memory that gets the
 * same: they must come to the same. The device may be a fake or a real one. */
#ifndef TESTS_FAKE_GPU_MODEL_H
#define TESTS_FAKE_GPU_MODEL_H

#include "tests/fake/device_ranks.h"

#include <cuda_runtime_api.h>
#include <math.h>

#define N_TENSORS 5
static const uint64_t tensor_dims[N_TENSORS][2] = {{33, 17}, {0, 5}, {1, 1}, {20003, 1}, {64, 31}};
static const char *const tensor_names[N_TENSORS] = {"w1", "empty", "scale", "long", "w2"};
static uint64_t test_seed_value;

static uint64_t mixed(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t tensor_numel(int t)
{
	return tensor_dims[t][0] * tensor_dims[t][1];
}

/* Any rank's gradient. */
static float made(int rank, int step, int t, uint64_t i)
{
	uint64_t h = mixed((uint64_t)rank * 1000003 + (uint64_t)step * 10007 + (uint64_t)t * 101 + i * 7919);
	h = mixed(test_seed_value + h);
	return (float)((double)(h >> 11) / 9007199254740992.0 - 0.5);
}

static void cuda_must(cudaError_t e, const char *what)
{
	if (e) {
		printf("Bail out! %s: %s\n", what, cudaGetErrorString(e));
		exit(1);
	}
}

/* Models on the device give these as options. */
typedef struct gpu_model_memory {
	void *(*alloc)(void *ctx, size_t bytes, void *stream);
	void (*release)(void *ctx, void *p);
	void *ctx;
} gpu_model_memory;
static gpu_model_memory gpu_memory;
static uint32_t gpu_delay; /* likewise, of all models */

/* The calling thread's mode from now on; returns what it was. */
static enum cudaStreamCaptureMode capture_mode(enum cudaStreamCaptureMode mode)
{
	cuda_must(cudaThreadExchangeStreamCaptureMode(&mode), "a thread's mode");
	return mode;
}

typedef struct gpu_model {
	gradcomp_device device;
	gradcomp_dtype dtype;
	cudaStream_t queue;
	char *host[N_TENSORS]; /* pinned: what goes up, and what came down */
	void *grad[N_TENSORS]; /* memory that the reducer gets */
	gradcomp_reducer *red;
	int done;
} gpu_model;

static void gpu_done(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err)
{
	(void)tensor, (void)err;
	__atomic_add_fetch((int *)ctx, status ? 1000 : 1, __ATOMIC_SEQ_CST);
}

static size_t gpu_bytes(const gpu_model *m, int t)
{
	return tensor_numel(t) * gradcomp_dtype_bytes(m->dtype);
}

static void gpu_model_close(gpu_model *m)
{
	gradcomp_reducer_free(m->red);
	enum cudaStreamCaptureMode usual = capture_mode(cudaStreamCaptureModeRelaxed);
	for (int t = 0; t < N_TENSORS; t++) {
		cuda_must(cudaFreeHost(m->host[t]), "cudaFreeHost");
		if (m->device == GRADCOMP_CUDA)
			cuda_must(cudaFree(m->grad[t]), "cudaFree");
	}
	cudaStreamDestroy(m->queue);
	capture_mode(usual);
}

__attribute__((unused)) static gradcomp_status gpu_model_open(gpu_model *m, gradcomp_group *g, gradcomp_device device,
                                                              gradcomp_dtype dtype, const char *compressor,
                                                              const char *collective, uint64_t bucket_bytes,
                                                              gradcomp_error *err)
{
	gradcomp_tensor_desc desc[N_TENSORS];
	memset(m, 0, sizeof *m);
	m->device = device;
	m->dtype = dtype;
	cuda_must(cudaStreamCreateWithFlags(&m->queue, cudaStreamNonBlocking), "a stream");
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = compressor,
	                              .collective = collective,
	                              .bucket_bytes = bucket_bytes,
	                              .seed = 5,
	                              .done = gpu_done,
	                              .ctx = &m->done,
	                              .device = device,
	                              .queue = m->queue,
	                              .delay = gpu_delay};
	if (device == GRADCOMP_CUDA) {
		o.device_alloc = gpu_memory.alloc;
		o.device_release = gpu_memory.release;
		o.device_ctx = gpu_memory.ctx;
	}
	enum cudaStreamCaptureMode usual = capture_mode(cudaStreamCaptureModeRelaxed);
	for (int t = 0; t < N_TENSORS; t++) {
		void *p;
		desc[t] = (gradcomp_tensor_desc){
			.name = tensor_names[t], .dims = tensor_dims[t], .ndim = 2, .dtype = dtype};
		cuda_must(cudaHostAlloc(&p, gpu_bytes(m, t) + 1, 0), "pinned memory");
		m->host[t] = m->grad[t] = p;
		if (device == GRADCOMP_CUDA) {
			cuda_must(cudaMalloc(&p, gpu_bytes(m, t) + 1), "device memory");
			m->grad[t] = p;
		}
	}
	capture_mode(usual);
	gradcomp_status st = gradcomp_reducer_create(g, desc, N_TENSORS, &o, &m->red, err);
	if (st)
		gpu_model_close(m);
	return st;
}

/* Number i of tensor t, as it came down. */
static float gpu_value(const gpu_model *m, int t, uint64_t i)
{
	uint16_t h;
	uint32_t w;
	float f;
	if (m->dtype == GRADCOMP_F32)
		return ((const float *)(const void *)m->host[t])[i];
	memcpy(&h, m->host[t] + 2 * i, 2); /* BF16 */
	w = (uint32_t)h << 16;
	memcpy(&f, &w, 4);
	return f;
}

/* BF16 gets numbers that it has. */
static void gpu_put(gpu_model *m, int t, uint64_t i, float v)
{
	uint32_t w;
	memcpy(&w, &v, 4);
	if (m->dtype == GRADCOMP_F32)
		memcpy(m->host[t] + 4 * i, &v, 4);
	else
		memcpy(m->host[t] + 2 * i, (char *)&w + 2, 2);
}

/* Number 77 of "w2" may be odd in these ways. */
enum { GPU_NAN = 1, GPU_BIG = 2 /* 3e38 */ };

/* One step; nothing is waited for between what makes a gradient and its ready(). */
__attribute__((unused)) static gradcomp_status gpu_step(gpu_model *m, int rank, int step, int poison,
                                                        gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int t = 0; t < N_TENSORS; t++)
		for (uint64_t i = 0; i < tensor_numel(t); i++)
			gpu_put(m, t, i, step < 0 ? 0 : made(rank, step, t, i));
	if (poison)
		gpu_put(m, 4, 77, poison == GPU_BIG ? 3e38f : NAN);
	for (int k = 0; !st && k < N_TENSORS; k++) {
		int t = (rank * 3 + step + 1 + k) % N_TENSORS;
		if (m->device == GRADCOMP_CUDA)
			cuda_must(cudaMemcpyAsync(m->grad[t], m->host[t], gpu_bytes(m, t), cudaMemcpyDefault, m->queue),
			          "copy");
		st = gradcomp_reducer_ready(m->red, (uint32_t)t, m->grad[t], err);
	}
	if (!st)
		st = gradcomp_reducer_wait(m->red, err);
	for (int t = 0; !st && m->device == GRADCOMP_CUDA && t < N_TENSORS; t++)
		cuda_must(cudaMemcpyAsync(m->host[t], m->grad[t], gpu_bytes(m, t), cudaMemcpyDefault, m->queue),
		          "copy");
	/* Somebody may capture a stream meanwhile. */
	enum cudaStreamCaptureMode usual = capture_mode(cudaStreamCaptureModeRelaxed);
	cuda_must(cudaStreamSynchronize(m->queue), "the stream");
	capture_mode(usual);
	return st;
}

__attribute__((unused)) static uint64_t gpu_fingerprint(const gpu_model *m)
{
	uint64_t h = 0;
	for (int t = 0; t < N_TENSORS; t++)
		for (size_t i = 0; i < gpu_bytes(m, t); i++)
			h = mixed(h ^ (unsigned char)m->host[t][i]) + 1;
	return h;
}

/* The largest difference between two models' results; NaNs must be at the same places. */
__attribute__((unused)) static double gpu_distance(const gpu_model *a, const gpu_model *b)
{
	double worst = 0;
	for (int t = 0; t < N_TENSORS; t++)
		for (uint64_t i = 0; i < tensor_numel(t); i++) {
			float x = gpu_value(a, t, i), y = gpu_value(b, t, i);
			double off = isnan(x) && isnan(y) ? 0 : fabs((double)x - y);
			if (!(off <= worst))
				worst = isnan(off) ? INFINITY : off;
		}
	return worst;
}

#endif
