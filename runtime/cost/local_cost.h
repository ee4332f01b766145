/* The local work of a compressor, timed: steps of one rank on a bucket of one matrix, on the host or on a device,
 * without links. Steps come after every warm-up. For one thread. */
#ifndef COST_LOCAL_COST_H
#define COST_LOCAL_COST_H

#include "device/device.h"
#include "gradcomp/compressor.h"

/* The device that a compressor is timed on: a stream with timers. */
typedef struct local_device {
	const device_calls *d;
	const device_memory *memory;
	const gradcomp_operators *ops;
	const gradcomp_host *host; /* whose memory streams can use */
	void *stream;
} local_device;

/* Floats that are coded at a time: a ring's pieces stay in the second-level cache. */
enum { LOCAL_PIECE = 65536, LOCAL_PARTS = 16, LOCAL_MARKS = 4 };

typedef struct local_cost {
	/* Seconds of the last step. For a CODED round encode is code(), lost is what computes the error that it
	 * leaves, decode is code_decode_add(), in pieces of LOCAL_PIECE; decode has merge() too where there are
	 * several parts. */
	double encode, lost, decode;
	uint64_t bytes; /* payloads of all rounds of the last step */
	gradcomp_plan plan;
	float *x; /* the bucket: what came of it */
	const struct gradcomp_compressor_v1 *compressor;
	void *instance;

	const local_device *on; /* NULL: the host */
	const gradcomp_host *host;
	void *marks[LOCAL_MARKS]; /* timers on the device */
	double at[LOCAL_MARKS];   /* and times of the host */
	uint64_t dims[2], step;
	gradcomp_tensor tensor;
	gradcomp_layout layout;
	gradcomp_bucket bucket;
	bool keeps_error;
	float *error, **state;
	struct local_room {
		void *p;
		uint64_t bytes;
	} scratch, payload, merged;
	int *words; /* on the device: a fault, and an overflow */
	int parts;
} local_cost;

/* The bucket has rows x columns numbers; a GATHERED round decodes this rank's payload `parts` times, as if it had
 * come from so many ranks, at most LOCAL_PARTS. `patterns` are those of the collective, 0: any. `host`, `on` and
 * `values` outlive it. NOMEM, or the compressor's error; nothing is left then. */
gradcomp_status local_cost_open(local_cost *l, const gradcomp_host *host, const local_device *on,
                                const struct gradcomp_compressor_v1 *compressor, const gradcomp_value *values,
                                uint64_t rows, uint64_t columns, uint32_t patterns, int parts, gradcomp_error *err);
/* A step on u, which is memory of the host; NULL: on normally distributed numbers. */
gradcomp_status local_cost_step(local_cost *l, const float *u, gradcomp_error *err);
/* Waits for the device. */
void local_cost_close(local_cost *l);

#endif
