/* Inside of a coder: a queue of calls, a thread that carries them out one after another over a
 * channel of its own, and the residuals of slots. */
#ifndef CODER_CODER_INTERNAL_H
#define CODER_CODER_INTERNAL_H

#include <stdbool.h>

#include "coder/coder_spec.h"
#include "device/device.h"
#include "gradcomp/coder.h"
#include "job/job.h"

/* Keeps what was lost of the blocks of one tensor. */
typedef struct coder_slot {
	uint32_t number;
	uint64_t total;              /* numbers */
	const device_memory *memory; /* that e is in; NULL: the host's */
	float *e;
	uint64_t counts[]; /* one for each of the group's ranks */
} coder_slot;

typedef enum coder_kind { CODER_REDUCE_SCATTER, CODER_ALL_GATHER } coder_kind;

struct gradcomp_coder_request {
	gradcomp_coder *coder;
	struct gradcomp_coder_request *next; /* the next of those that wait for the thread */
	/* These link the calls that have not been waited for. */
	struct gradcomp_coder_request *live_before, *live_next;
	coder_kind kind;
	void *in, *out; /* an all-gather only reads `in` */
	gradcomp_dtype dtype;
	double scale;
	uint32_t slot_number;
	coder_slot *slot;      /* or NULL */
	uint64_t total, begin; /* numbers of all blocks, and before this rank's */
	void *event;           /* a device's: what the caller gives has been made; then: the call is over */
	bool done;             /* under the coder's lock, like what follows */
	gradcomp_status status;
	gradcomp_error error;
	uint64_t counts[];
};

/* Holds what a coder on a device has beside the others (coder_gpu.c). */
typedef struct coder_gpu coder_gpu;

struct gradcomp_coder {
	gradcomp_job *job;
	gradcomp_group *group;
	job_part part;
	coder_parts parts;
	char *asked, *spec, *collective, *name;
	void *instance;        /* NULL when dense */
	gradcomp_tensor shard; /* the compressor takes it for its model */
	gradcomp_layout layout;
	coll_ctx coll_ctx;
	coder_gpu *gpu; /* NULL: numbers are in host memory */
	pthread_t thread;
	struct trace *trace;

	/* The thread's. */
	float *work; /* room for `room` numbers */
	uint64_t room;
	int told; /* lines about NaN */

	uint16_t trace_id;
	bool keeps;  /* residuals */
	bool passes; /* NaN and Inf */

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t wake, ended;
	gradcomp_coder_request *first, **last;
	gradcomp_coder_request *live; /* those that have not been waited for */
	uint64_t inflight;
	double sent;        /* bytes that a collective on the device has sent, past the channel */
	uint64_t calls;     /* so far: names the runs of each */
	coder_slot **slots; /* by number */
	uint32_t nslots;
	bool stopping;
	gradcomp_coder_stats stats;
};

/* coder_call.c: carries out a call on the coder's thread. What is measured goes to *took. */
gradcomp_status coder_call(gradcomp_coder *c, const gradcomp_coder_request *q, uint64_t call,
                           gradcomp_coder_stats *took, gradcomp_error *err);
/* "reduce-scatter", "all-gather" */
static inline const char *coder_kind_name(coder_kind kind)
{
	return kind == CODER_REDUCE_SCATTER ? "reduce-scatter" : "all-gather";
}
const char *coder_dtype_name(gradcomp_dtype dtype);

/* With a device's `memory` it has no numbers yet. */
coder_slot *coder_slot_make(uint32_t number, const uint64_t *counts, int nranks, uint64_t total,
                            const device_memory *memory);
void coder_slot_free(coder_slot *s);
void coder_slots_free(coder_slot **slots, uint32_t n);
/* With the lock held. NULL: there is none of this number. */
coder_slot *coder_slot_find(const gradcomp_coder *c, uint32_t number);
/* With the lock held: has s, of so many numbers, take the place of the slot of this number, if there is one. Fails, and frees s,
 * without memory; s is NULL when there was none for itself. */
gradcomp_status coder_slot_put(gradcomp_coder *c, uint32_t number, uint64_t total, coder_slot *s, gradcomp_error *err);

#endif
