/* gradcomp/coder.h: reduce-scatter and all-gather under a code, for programs that shard. Experimental: it may change
 * from one release to the next. "Errors:" are as in gradcomp.h.
 *
 * A coder is a group, a compressor that gives a code (compressor.h: pattern CODED) and a
 * collective that serves coded reduce-scatter and all-gather (collective.h). Blocks may have
 * any lengths and are looked at as flat runs of numbers, so a program that shards its
 * parameters (FSDP, ZeRO) sends fewer bytes both ways:
 *
 *     gradcomp_coder *grads, *weights;
 *     gradcomp_coder_create(group, "block:bits=4", NULL, &grads, &err);
 *     gradcomp_coder_create(group, "block:bits=8", NULL, &weights, &err);
 *     for (...) {
 *             gradcomp_coder_all_gather(weights, shard, full, counts, GRADCOMP_F32, &err);
 *             ...                                                  // forward, backward
 *             gradcomp_coder_reduce_scatter(grads, gradient, own, counts, GRADCOMP_F32,
 *                                           1.0 / nranks, layer, &err);
 *     }
 *
 * Which compressors: those that give a code (pattern CODED) and keep no state: block (8, 4 or 2 bits
 * a number), fp8, fp4, natural, zfp, lossless, cast. none sends the numbers as they are, in their own type; sums of 16-bit
 * numbers are then rounded to it at every hop, while cast adds floats. Others work on matrices or select numbers (powersgd,
 * topk and so on), which a flat shard does not allow: GRADCOMP_ERR_UNSUPPORTED, with what to take
 * instead.
 *
 * Calls. Those on one coder are carried out one after another in the order in which they were
 * started, by a thread of the coder's: all ranks of the group start the same calls in the same
 * order, with the same counts, element type, scale and slot. As many may be in flight as the
 * program likes. Two coders are independent of each other and work at the same time, on one
 * group too; that is how gathers overtake reduce-scatters. Every call begins with an all-reduce
 * of a few words, which finds out ranks that do not mean the same call (GRADCOMP_ERR_MISMATCH
 * names one, what it asks for and what the first rank does; the job fails) and numbers that are
 * not finite.
 *
 * Numbers are in host memory, or with `device` in a GPU's (a pointer to another place than that
 * is not recognised), of type F32, F16 or BF16, the same for input and output. Work is
 * done in F32: a 16-bit input is widened once, tile by tile, on its way into the coder's
 * workspace (4 bytes a number of the largest call, kept), and the result rounded once, to
 * nearest even.
 *
 * Error. x is what was given, D a code and its decoding, |D(x) - x| <= b for a block of numbers
 * of magnitude up to m; block: b = m / (2^bits - 2) with rounding to nearest, twice that when
 * stochastic; fp4: b = m / 4; fp8 and natural: a share of the number itself, see doc/user/coder.md; zfp: see
 * doc/user/compressors.md; lossless and none: 0. An all-gather codes each
 * number once: an error up to b. A reduce-scatter over a ring codes partial sums P - 1 times, over
 * `direct` each rank's part once: errors of P - 1 codes add up. Rounding in F32, and in a
 * 16-bit type at the end, is beside that.
 *
 * Residual (error feedback; Seide et al., Interspeech 2014). A reduce-scatter with a slot keeps
 * what its codes lost on this rank and adds it to what the next call with that slot is given:
 *
 *     u_w = in_w + e_w        sum_w u_w = out / scale + sum_w e'_w     in every block
 *
 * to rounding in F32. A slot is a number the program gives to a tensor (or a flat run of them);
 * it takes 4 bytes for each number of `in`, from its first call on. Codes that lose nothing
 * keep none, nor does cast, nor a group of one rank.
 *
 * NaN and Inf. A reduce-scatter that any rank gave a NaN or Inf codes nothing: `out` is NaN on
 * all ranks and residuals stay as they were. In an all-gather the block that has one is NaN on
 * all ranks, its owner included; other blocks are as ever. A line in the log names the rank.
 * Finite numbers whose sum is not: the owner's block has NaN or Inf there, and the slot is
 * cleared on ranks whose residual is not finite. none, lossless and cast pass NaN and Inf on.
 *
 * Agreement. After an all-gather `out` has the same bits on all ranks; its owner, too, has what
 * its block decodes to. Equal inputs give equal outputs from run to run, and after save and
 * load, with a collective that promises it (collective.h).
 *
 * On a GPU (options.device = GRADCOMP_CUDA) buffers are in memory of the device that is current in the
 * threads that make the coder and call it, and the caller's stream is options.queue. A call reads its buffers after
 * what that stream had when it was started, and has ended, for test() and wait(), as soon as it is on
 * the device: nothing waits for the device, and what is put on the stream after wait(), or after a blocking
 * call, comes after the call. Buffers are the coder's until then. A coder keeps about six calls ahead of
 * the device. So a failure of the device, damage that peers sent (the result is NaN) and the
 * failure of a rank in a call that has ended show in a later call, and times, `nonfinite` and lines in
 * the log come some calls late. Collectives that take CUDA memory are served (nccl, hier), and compressors that
 * code there (block, cast, fp8, fp4, natural) and none. A stream that is being captured into a graph is refused.
 *
 * Threads. start, test, wait and the blocking calls may come from any thread; what order calls
 * have is what order they are started in, so that threads that share a coder must settle it
 * among themselves. create, free, save and load: one at a time, beside no other call.
 *
 * Failures. When a rank dies, leaves or does not answer, all requests in flight and all later
 * calls fail with GRADCOMP_ERR_PEER or _TIMEOUT and a text that names the rank and its host, as
 * everywhere (gradcomp.h); outputs then hold anything. Arguments that are wrong are refused
 * before anything is sent, with GRADCOMP_ERR_INVALID, _UNSUPPORTED or _RANGE; since they are
 * wrong on all ranks alike the job goes on.
 */
#ifndef GRADCOMP_CODER_H
#define GRADCOMP_CODER_H

#include "gradcomp/gradcomp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gradcomp_coder gradcomp_coder;
/* A call in flight. Ends with gradcomp_coder_wait(). */
typedef struct gradcomp_coder_request gradcomp_coder_request;

/* In place of a slot: what codes lose is forgotten. */
#define GRADCOMP_CODER_NO_SLOT UINT32_MAX

typedef struct gradcomp_coder_options {
	uint32_t struct_size;
	uint32_t reserved0;
	/* SPEC; NULL: the job's (of numbers on a GPU gradcomp.device_collective), or where nobody named one and the
	 * default serves no coded reduce-scatter and all-gather, the first installed one that does. */
	const char *collective;
	uint64_t seed;    /* for codes that draw random numbers; equal on all ranks */
	const char *name; /* this coder's, in the report, the timeline and messages; NULL: "coder". Copied */
	/* Where numbers are, a gradcomp_device. GRADCOMP_CUDA: see On a GPU, above. */
	uint32_t device;
	uint32_t reserved1;
	void *queue; /* the caller's stream, a cudaStream_t, with CUDA */
	/* With CUDA: where the coder's device memory comes from, as gradcomp_reducer_options has it: both, or NULL:
	 * cudaMalloc() and cudaFree(). Called on the threads that make, load and free the coder and on its own. */
	void *(*device_alloc)(void *device_ctx, size_t bytes, void *stream);
	void (*device_release)(void *device_ctx, void *p);
	void *device_ctx;
} gradcomp_coder_options;

/* Makes a coder. Collective over `group`: all ranks make the same coder. spec: of the compressor; NULL: the job's.
 * `options` may be NULL. What one rank cannot do is said on all of them; GRADCOMP_ERR_MISMATCH names ranks with
 * another SPEC, collective or seed; nothing is left behind then and the job goes on. *out is freed by
 * gradcomp_coder_free(), before the group.
 * Errors: INVALID, NOTFOUND, INSECURE, ABI: a SPEC, an option or a plugin is wrong. UNSUPPORTED: the compressor
 * gives no code, or the collective carries none. MISMATCH: ranks ask for other coders. Else a failure. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_coder_create(gradcomp_group *group, const char *spec,
                                                                            const gradcomp_coder_options *options,
                                                                            gradcomp_coder **out, gradcomp_error *err);
/* Waits for what is in flight; requests that were not waited for are gone with it. Local. NULL
 * is fine.
 * Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL void gradcomp_coder_free(gradcomp_coder *coder);

/* Checks that a coder could be made of these SPECs, without a job; NULL stands for what the configuration says.
 * GRADCOMP_ERR_UNSUPPORTED for a compressor that gives no code, or a collective that does not carry one; the text
 * says which can.
 * Errors: INVALID, NOTFOUND, INSECURE, ABI: a SPEC or a plugin is wrong. UNSUPPORTED: as said. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_coder_check(const char *spec, const char *collective,
                                                                           gradcomp_error *err);

/* out = scale * sum over ranks of their block of this rank, counts[rank] numbers. `in` holds nranks
 * blocks one after another, block r of counts[r] numbers, and may be used as workspace: its
 * content is undefined afterwards. `out` may be this rank's block in `in`, else they do not overlap.
 * counts: nranks of them, equal on all ranks, read before the call returns; 0 is fine, also
 * everywhere. scale: finite, not 0. slot: see Residual; a slot keeps the counts of its first
 * call, others are GRADCOMP_ERR_MISMATCH. Buffers may be NULL for no numbers.
 * Errors: INVALID, UNSUPPORTED, RANGE: an argument, before anything is sent. MISMATCH: other ranks mean another
 * call, or the slot has other counts. Else a failure. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_coder_reduce_scatter(gradcomp_coder *coder, void *in,
                                                                                    void *out, const uint64_t *counts,
                                                                                    gradcomp_dtype dtype, double scale,
                                                                                    uint32_t slot, gradcomp_error *err);
/* out: nranks blocks one after another, block r the decoded code of rank r's `in`, counts[r]
 * numbers. `in` may be this rank's block in `out`, else they do not overlap; it is only read.
 * Errors: as of gradcomp_coder_reduce_scatter(). */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_coder_all_gather(gradcomp_coder *coder, const void *in,
                                                                                void *out, const uint64_t *counts,
                                                                                gradcomp_dtype dtype,
                                                                                gradcomp_error *err);

/* The same, but they return at once. Buffers are the coder's until the request has been waited
 * for. *request: to be waited for once. On failure it is NULL and nothing was started.
 * Errors: as of gradcomp_coder_reduce_scatter(); what other ranks do is said by test() and wait(). */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status
gradcomp_coder_reduce_scatter_start(gradcomp_coder *coder, void *in, void *out, const uint64_t *counts,
                                    gradcomp_dtype dtype, double scale, uint32_t slot, gradcomp_coder_request **request,
                                    gradcomp_error *err);
/* The same of an all-gather. Errors: as of gradcomp_coder_reduce_scatter_start(). */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status
gradcomp_coder_all_gather_start(gradcomp_coder *coder, const void *in, void *out, const uint64_t *counts,
                                gradcomp_dtype dtype, gradcomp_coder_request **request, gradcomp_error *err);
/* *done = 1 when the call has ended, well or not: wait() will not sleep. Never sleeps. Returns
 * how it ended; GRADCOMP_OK while it goes on. The request must still be waited for.
 * Errors: those of the call that was started. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_coder_test(gradcomp_coder_request *request, int *done,
                                                                          gradcomp_error *err);
/* Returns when the call has ended, how it ended, and frees the request. NULL: returns GRADCOMP_OK.
 * Errors: those of the call that was started. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_coder_wait(gradcomp_coder_request *request,
                                                                          gradcomp_error *err);

/* Saves this rank's state (residuals of all slots, how many runs were coded) as a byte string. With buf NULL only
 * *bytes is set. GRADCOMP_ERR_STATE while a call is in flight.
 * Errors: STATE: a call is in flight. INVALID: capacity is less than *bytes. Else the failure that the job has had. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_coder_save(gradcomp_coder *coder, void *buf,
                                                                          uint64_t capacity, uint64_t *bytes,
                                                                          gradcomp_error *err);
/* Takes up a state saved by the same rank of a coder with the same compressor, seed and number of
 * ranks: it continues to the bit. All ranks load states of the same moment. On failure the coder
 * is as before: GRADCOMP_ERR_INVALID for bytes that are no state or damaged, _MISMATCH for one of
 * another compressor, seed or rank, _UNSUPPORTED for one of another version, _STATE while a call
 * is in flight.
 * Errors: INVALID: no state, or damaged. MISMATCH: of another compressor, seed or rank. UNSUPPORTED: of another
 * version. STATE: a call is in flight. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_coder_load(gradcomp_coder *coder, const void *buf,
                                                                          uint64_t bytes, gradcomp_error *err);

/* Copies what a slot keeps, in the order of its blocks, to `numbers` in host memory, which has room for `capacity`, so that a
 * program may carry it to other ranks. With NULL only *total is set, to 0 where nothing has been lost yet.
 * Errors: STATE: a call is in flight. INVALID: there is less room than *total. Else a failure of the device. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_coder_read_slot(gradcomp_coder *coder, uint32_t slot,
                                                                               float *numbers, uint64_t capacity,
                                                                               uint64_t *total, gradcomp_error *err);
/* Puts numbers in the place of what a slot keeps: counts[r] for block r, as the calls with that slot will have them. They
 * are only read. What is owed is the sum over ranks. On failure the coder is as before.
 * Errors: STATE: a call is in flight. INVALID: no slot's number, NULL, NaN or Inf. RANGE: more numbers than can be counted.
 * UNSUPPORTED: the compressor loses nothing. Else a failure of the device. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_coder_write_slot(gradcomp_coder *coder, uint32_t slot,
                                                                                const uint64_t *counts,
                                                                                const float *numbers,
                                                                                gradcomp_error *err);

/* Counters since creation. */
typedef struct gradcomp_coder_stats {
	uint32_t struct_size; /* set by the caller */
	uint32_t slots;
	uint64_t reduce_scatters, all_gathers; /* that have ended well */
	uint64_t nonfinite;                    /* those of them with a NaN or Inf */
	double dense_bytes;      /* this rank would have sent so many with the numbers as they are, in their type */
	double wire_bytes;       /* payload bytes handed to the links by this rank */
	double convert_s;        /* to and from F32, and with residuals */
	double exchange_s;       /* coding, sending, adding */
	double exposed_s;        /* that the program slept in wait() and blocking calls */
	uint64_t residual_bytes; /* memory of slots */
} gradcomp_coder_stats;
/* Fills *stats, whose struct_size is set. Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL void gradcomp_coder_get_stats(gradcomp_coder *coder, gradcomp_coder_stats *stats);
/* Return the full SPECs in use, "block:bits=4,..." and "ring:...". Owned by the coder. Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL const char *gradcomp_coder_spec(const gradcomp_coder *coder);
/* Returns the full SPEC of the collective in use. Owned by the coder. Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL const char *gradcomp_coder_collective(const gradcomp_coder *coder);

#ifdef __cplusplus
}
#endif
#endif
