/* gradcomp/compressor.h: the interface of a compressor plugin.
 *
 * A compressor turns what a rank wants to add to the average into a smaller
 * payload, and payloads back into the average. It is a shared object NAME.so
 * with one exported constant:
 *
 *     GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = { ... };
 *
 * Notation, per tensor of d elements on rank w of P: g the local gradient, e
 * the error memory, u = g + e what is compressed, a the average every rank ends
 * with. The contract:
 *
 *  1. Conservation: sum_w u_w = P a + sum_w e'_w, to rounding. A plugin with
 *     GRADCOMP_TRAIT_ERROR_FEEDBACK writes e'; an unbiased one need not. Where a
 *     parameter makes the method forget on purpose, `neutral` names the values with
 *     which it does not. A method whose average is no mean over all ranks says so with
 *     conserves(); then this holds with one rank.
 *  2. Agreement: `a` is bit-identical on all ranks, for every P and every size
 *     including 0 and 1. Given equal payloads, decode() must produce equal bits.
 *  3. Honest bytes: a payload holds the bytes of the method's formula and no
 *     more than a fixed header.
 *  4. Resume: save() and load() in mid-run continue to the bit.
 *  5. State belongs to tensors, never to buckets: buckets are rebuilt.
 *  6. encode() only ever sees finite numbers. When any rank's gradient, or u, has a
 *     NaN or an Inf the host runs the exchange with marked payloads, calls no
 *     decode() for that bucket, makes the result NaN on all ranks and leaves
 *     error memory and state arrays alone. Therefore: persistent state (error
 *     memory, state arrays, warm-start factors, counters) is written in
 *     decode() only. A plugin with GRADCOMP_TRAIT_PASSES_NONFINITE opts out of
 *     this and sees everything. On a device decode() is called all the same, see
 *     gradcomp_work.hold.
 *  7. Finite gradients never end a job. Where what is made of them overflows, the result is NaN on
 *     all ranks, and the host clears error memory and state arrays of the bucket on all of them. It
 *     sees for itself that a sum of floats is not finite. Everything else the plugin says, with
 *     GRADCOMP_ERR_OVERFLOW: from encode() when this rank's own numbers overflow, from decode() when
 *     what all ranks have got does, hence on all of them. No more is then called for the bucket in
 *     this step. On a device it sets work->fault[1] instead, and goes on; what it then sends must
 *     be a sound payload. What the plugin keeps of its own stays finite.
 *
 * How a bucket goes through a plugin, every step, on every rank alike:
 *
 *     plan(step)               -> rounds, each with its payload pattern
 *     for each round r:
 *         encode(r)            x = u       -> this rank's payload
 *         ... the host exchanges it as the pattern says ...
 *         decode(r)            what came back -> state, and in the last round
 *                              x = a, error = e'
 *
 * Thread rule. The host never runs two functions of one instance at the same
 * time, but for merge() and the code functions, which it may run on one bucket
 * while others run on other buckets: they write to nothing of the instance that
 * others touch. Of the code functions it runs at most one code() and one decoder of
 * an instance at a time, so that each may have a workspace of its own there. It may run functions on different
 * threads, and those of different instances at the same time, create() and check() too. Buckets interleave: after
 * encode(b0, 0) may come encode(b1, 0) before decode(b0, 0), but decode(b, r)
 * comes before encode(b, r+1). What an encode leaves for its decode goes into
 * `scratch`, which lives from the first encode to the last decode of the bucket
 * in a step. On a device, work of one bucket may run beside that of another, on another queue: what an instance has
 * there belongs to tensors. What a function is given is good until it returns, but for host and
 * layout, which outlive the instance. No function blocks, allocates (but for create),
 * sleeps, forks, changes signal handlers or writes to stdout.
 */
#ifndef GRADCOMP_COMPRESSOR_H
#define GRADCOMP_COMPRESSOR_H

#include "gradcomp/abi.h"
#include "gradcomp/operators.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Traits. */
#define GRADCOMP_TRAIT_ERROR_FEEDBACK (1u << 0)   /* the host keeps e and adds it to g; see keeps_error() */
#define GRADCOMP_TRAIT_SHAPED (1u << 1)           /* works tensor by tensor: `flat` may be NULL */
#define GRADCOMP_TRAIT_PASSES_NONFINITE (1u << 2) /* NaN and Inf come out as they went in */
#define GRADCOMP_TRAIT_CUDA (1u << 3)             /* accepts GRADCOMP_CUDA work */
#define GRADCOMP_TRAIT_STOCHASTIC (1u << 4)       /* draws random numbers in encode */
/* The optimizer must apply no momentum (DGC). The plugin gets the bare gradient,
 * and its error memory is the last of its state arrays. */
#define GRADCOMP_TRAIT_OWN_MOMENTUM (1u << 5)
#define GRADCOMP_TRAIT_UNBIASED (1u << 6) /* E[a] = mean u without error memory */
#define GRADCOMP_TRAIT_LOSSLESS (1u << 7) /* CODED: what is decoded is what was coded, to the bit */
/* With GRADCOMP_TRAIT_CUDA: what save() gives, decode() writes on a device only where work->hold
 * allows. A plugin with neither save() nor this works as well; one with save() and
 * without this makes the host wait in every step. */
#define GRADCOMP_TRAIT_HOLDS (1u << 8)
#define GRADCOMP_TRAIT_ALIKE (1u << 9) /* save() gives the same on all ranks: the host loads nothing else */

/* Says what a round's payloads are, hence which collective can carry them. */
typedef enum gradcomp_pattern {
	GRADCOMP_SUMMED = 0,   /* payloads add element by element: all-reduce */
	GRADCOMP_GATHERED = 1, /* everybody needs everybody's: all-gather(v) */
	GRADCOMP_MERGED = 2,   /* two payloads make one: merge(), on a tree; all have `bound` bytes */
	/* The bucket's own floats, summed in place under the code functions, whose
	 * losses go to the error memory of the rank that made them. The only round;
	 * encode() is not called, decode() may be NULL. */
	GRADCOMP_CODED = 3
} gradcomp_pattern;
#define GRADCOMP_PATTERN_BIT(p) (1u << (p))

/* One tensor of the model. */
typedef struct gradcomp_tensor {
	const char *name;     /* for messages; never NULL */
	uint64_t numel;       /* product of dims; 0 is allowed */
	uint64_t offset;      /* where it starts in the layout, in elements */
	const uint64_t *dims; /* ndim of them, outermost first */
	uint32_t ndim;        /* 0 for a scalar */
	gradcomp_dtype dtype; /* the type of the caller's gradient; work is always F32 */
	uint64_t reserved[2];
} gradcomp_tensor;

/* All tensors of one reducer, in backward order: any run of neighbours is a
 * contiguous range. Equal on all ranks but for `rank`. Owned by the host, valid
 * as long as the instance. */
typedef struct gradcomp_layout {
	uint32_t struct_size;
	uint32_t ntensors;
	const gradcomp_tensor *tensors;
	uint64_t numel;
	int32_t rank, nranks;
	uint64_t seed; /* equal on all ranks */
	/* The patterns that plan() may ask for with this job's collective: the descriptor's `patterns`, or its
	 * `instead`, see gradcomp_compatible_patterns(). */
	uint32_t patterns;
	/* Where work will be, for a plugin with GRADCOMP_TRAIT_CUDA that cannot do with some
	 * parameters there: create() then gives GRADCOMP_ERR_UNSUPPORTED, and is called
	 * again for work on the host. Its plan() asks the device's table (host->operators_on())
	 * how much scratch operators take: tables differ in that. */
	gradcomp_device device;
} gradcomp_layout;

/* A run of neighbouring tensors reduced together. */
typedef struct gradcomp_bucket {
	uint32_t struct_size;
	uint32_t index;
	uint32_t first, ntensors; /* tensors[first .. first + ntensors - 1] of the layout */
	uint64_t offset, numel;   /* in elements of the layout */
} gradcomp_bucket;

/* One exchange of a bucket's plan. */
typedef struct gradcomp_round {
	gradcomp_pattern pattern;
	gradcomp_dtype dtype; /* SUMMED: of the payload's elements; no F8 type */
	uint32_t flags;       /* GRADCOMP_ROUND_* */
	uint32_t reserved0;
	uint64_t count; /* SUMMED: elements, equal on all ranks. CODED: floats */
	uint64_t bound; /* GATHERED, MERGED: the most bytes a payload can have */
	uint64_t reserved[2];
} gradcomp_round;

/* SUMMED, of floats: the host delivers the mean instead of the sum (the division is done
 * once, in the exchange). */
#define GRADCOMP_ROUND_MEAN (1u << 0)
/* SUMMED in F32: the payload is `flat` itself, reduced in place; encode() is
 * not called. */
#define GRADCOMP_ROUND_IN_PLACE (1u << 1)
/* GATHERED: every rank's payload has exactly `bound` bytes, so that lengths need
 * not be exchanged first. */
#define GRADCOMP_ROUND_FIXED (1u << 2)

#define GRADCOMP_MAX_ROUNDS 8

/* Filled by plan(). The host zeroes it and sets struct_size first. */
typedef struct gradcomp_plan {
	uint32_t struct_size;
	uint32_t nrounds; /* 1..GRADCOMP_MAX_ROUNDS */
	gradcomp_round rounds[GRADCOMP_MAX_ROUNDS];
	uint64_t scratch_bytes;
} gradcomp_plan;

/* A packed buffer, its data aligned to 8. In encode() data and capacity (>= count * element size, or
 * bound) are the host's; the plugin sets bytes. In decode() it is read-only. */
typedef struct gradcomp_payload {
	void *data;
	uint64_t capacity;
	uint64_t bytes;
} gradcomp_payload;

/* A bucket in flight. All buffers are the host's and live on `device`. */
typedef struct gradcomp_work {
	uint32_t struct_size;
	gradcomp_device device;
	const gradcomp_bucket *bucket;
	uint64_t step; /* 0, 1, 2, ... equal on all ranks; goes on after a load */
	/* x[i], of tensor first+i: u before, a after the last decode. In between it is
	 * the plugin's to overwrite from decode() on; encode() only reads it. */
	float *const *x;
	/* The same as one contiguous run of bucket->numel, or NULL for a SHAPED
	 * plugin whose tensors lie apart. */
	float *flat;
	/* Error memory, written by the last decode; its old content is in u already.
	 * NULL without GRADCOMP_TRAIT_ERROR_FEEDBACK. error[i] and error_flat are the
	 * same memory. Never overlaps x. */
	float *const *error;
	float *error_flat;
	/* state[s]: the bucket's part of array s (see state_arrays). */
	float *const *state;
	void *scratch; /* scratch_bytes of the plan, aligned to 64 */
	uint64_t scratch_bytes;
	const struct gradcomp_operators_v1 *operators_v1; /* for ABI 1 and 2, see gradcomp_host */
	void *queue;                                      /* stream for the operators; NULL on the host */
	/* A word on `device` for operators that check what peers sent. When it is set
	 * by the end of the bucket's step the host fails the job. A plugin on the host
	 * reads it at once, to name the rank. Behind it is the word for what has overflowed, see 7. above. */
	int *fault;
	/* On a device the host does not know yet, when it calls decode(), whether a rank's gradient was
	 * not finite. Then this word there is not 0 when decode()'s work runs, on finite numbers
	 * that mean nothing, and state that lasts stays as it is: the host puts error memory and
	 * state arrays back itself; what the plugin keeps it writes by copy_if(..., hold, 0).
	 * NULL: decode() is called for good buckets only. */
	const int *hold;
	const gradcomp_operators *operators; /* on memory of `device`; since ABI 3 */
} gradcomp_work;

/* A planner and the auto-tuner reckon with this; see cost(). The host zeroes it and sets struct_size first. */
typedef struct gradcomp_cost {
	uint32_t struct_size;
	uint32_t rounds;
	double wire_bytes; /* payload bytes of this rank a step, before the collective's factor */
	double passes;     /* times the bucket is read or written, encode and decode together */
	double flops;
} gradcomp_cost;

/* The host has measured this of a job's steps, equal on all ranks; see measured(). */
typedef struct gradcomp_measured {
	uint32_t struct_size;
	uint32_t ntensors;
	const double *backward; /* seconds between this tensor's gradient and the one before, by tensor of the layout */
	/* An exchange of a bucket: a + b * (payload bytes of a rank) seconds. */
	double exchange_a, exchange_b;
	double encode_a, encode_b; /* encode and decode of a bucket: a + b * numel */
	double reserved[4];
} gradcomp_measured;

struct gradcomp_compressor_v1 {
	gradcomp_plugin_info info;
	uint32_t traits;   /* GRADCOMP_TRAIT_* */
	uint32_t patterns; /* GRADCOMP_PATTERN_BIT()s that plan() may ask for */
	/* Resident F32 arrays of the layout the host keeps, saves and loads for the
	 * instance beside the error memory (momentum, velocity); zeroed at first. */
	uint32_t state_arrays;
	/* GRADCOMP_PATTERN_BIT()s that plan() can do with in place of `patterns`, see
	 * gradcomp_layout; 0: none. */
	uint32_t instead;
	uint64_t max_bucket; /* largest bucket it can count, in elements; 0: no limit */

	/* Optional. Checks what single rows cannot (one parameter against another).
	 * Needs no job. */
	gradcomp_status (*check)(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err);

	/* Makes an instance for one reducer. May allocate. On failure nothing is
	 * left behind and *instance is untouched. `host` and `layout` outlive it. */
	gradcomp_status (*create)(const gradcomp_host *host, const gradcomp_value *values,
	                          const gradcomp_layout *layout, void **instance, gradcomp_error *err);
	/* destroy(NULL) is fine. */
	void (*destroy)(void *instance);

	/* Plans the rounds of this bucket at this step, as a function of its arguments and of state that is equal
	 * on all ranks. Called before the first encode of the bucket in a step, and for planning at any other time. */
	gradcomp_status (*plan)(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
	                        gradcomp_error *err);

	/* Writes this rank's payload of round `round`. For SUMMED, out->bytes must come out as count * element
	 * size. */
	gradcomp_status (*encode)(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
	                          gradcomp_error *err);

	/* Takes what the exchange brought. SUMMED: n = 1, the sum (or mean). GATHERED: n = P, in[w] is rank w's,
	 * in[rank] this rank's own; lengths and content of the others are untrusted and must be checked. MERGED:
	 * n = 1. In the last round x and error are complete when it returns. */
	gradcomp_status (*decode)(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
	                          uint32_t n, gradcomp_error *err);

	/* MERGED only: out = a (+) b, one of them this rank's, the other untrusted. What
	 * is dropped is noted in scratch and added to this rank's own error memory by
	 * decode(). A rank of a step of P ranks merges at most 2 + log2(P) times. out
	 * overlaps neither. */
	gradcomp_status (*merge)(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *a,
	                         const gradcomp_payload *b, gradcomp_payload *out, gradcomp_error *err);

	/* CODED only: a code for runs of n floats, used inside a collective, on one
	 * of its threads. `counter` names the run, for stochastic rounding; no two
	 * runs of a rank share one, in whatever step. code returns through *bytes at most
	 * code_bound(n), which is at most 4 n + n / 64 + 64; decode_add adds to out
	 * what decode writes. `in` is untrusted, aligned to 8.
	 *
	 * Partial sums of finite numbers are coded too, and may be Inf: code() of a run that has
	 * an Inf, or what a decoder has made of one, gives what decodes to a NaN or an Inf
	 * somewhere in the run. So the host finds it in the sum, which it makes NaN on all ranks. */
	uint64_t (*code_bound)(void *instance, uint64_t n);
	gradcomp_status (*code)(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
	                        uint64_t *bytes, gradcomp_error *err);
	gradcomp_status (*code_decode)(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
	                               gradcomp_error *err);
	gradcomp_status (*code_decode_add)(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
	                                   gradcomp_error *err);

	/* Save and load state beyond the host's arrays, as a byte string. save(NULL, 0) asks for the length; NULL
	 * functions: there is none. load() gets what save() of this or an older version of the plugin gave, for an
	 * equal layout; the content is untrusted. What all ranks save alike also goes into states for any number of
	 * ranks: then layout->nranks was another, and load() refuses what it cannot use. */
	gradcomp_status (*save)(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
	gradcomp_status (*load)(void *instance, const void *in, uint64_t bytes, gradcomp_error *err);

	/* Optional. Estimates what a bucket costs, for planners. Needs no exchange. */
	gradcomp_status (*cost)(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
	                        gradcomp_error *err);

	/* Optional. Says what is done with tensor `tensor` of the layout, in a word or two for the report ("rank
	 * 4", "dense"). Lives as long as the instance. NULL function: the plugin's name stands for all. */
	const char *(*choice)(void *instance, uint32_t tensor);

	/* Optional, for CODED with GRADCOMP_TRAIT_CUDA. Makes the code functions of this instance from now on work
	 * on memory of that device, put their work on `queue`, and note what is wrong with input in *fault. There a
	 * code has exactly code_bound(n) bytes. Called before the first step. Not called where the collective takes
	 * no device memory: then codes are of host memory, wherever work is. */
	gradcomp_status (*code_on)(void *instance, const gradcomp_operators *operators, void *queue, int *fault,
	                           gradcomp_error *err);

	/* Optional. Takes what was measured, between two steps, before plan() of step `step`; the same arguments on
	 * all ranks. May come again when times have changed. A plugin whose densities or ranks follow the machine
	 * sets them here; they are part of its state. */
	gradcomp_status (*measured)(void *instance, const gradcomp_measured *m, uint64_t step, gradcomp_error *err);

	/* Optional, with GRADCOMP_TRAIT_ERROR_FEEDBACK. Returns 1 when the host is to keep an error memory with
	 * these values. 0: it keeps none, and work->error and error_flat are NULL. Hosts that do not know this
	 * function keep one. NULL function: it keeps one. */
	int (*keeps_error)(const gradcomp_value *values);

	/* Optional. Returns the SPEC of the schedule that these values are made for, as "wfbp" where each tensor is
	 * sent by itself; NULL: any. The host takes it where neither the program nor a setting names one, else it
	 * warns. NULL function: any. */
	const char *(*schedule)(const gradcomp_value *values);

	/* Optional: parameters as in a SPEC, "momentum=0,clip=0", with which nothing is forgotten, cut off or made
	 * equal on purpose. With them rule 1 holds and, under GRADCOMP_TRAIT_UNBIASED, E[a] = mean u; with other
	 * values they need not. No name of a parameter says so by itself. NULL: they hold with all values. */
	const char *neutral;

	/* Optional. Returns 1 when rule 1 holds for any number of ranks with these values, made neutral. 0: the
	 * average is no mean over all ranks, as where a number is divided by how many sent it, and rule 1 holds
	 * with one rank only. NULL function: it holds. */
	int (*conserves)(const gradcomp_value *values);

	/* Optional, with code_on(). Says how code() lays out n numbers, so that collectives on a device can cut a
	 * long code in pieces, and add up those of all ranks at once (codes_sum()). code() of a run whose length is
	 * a multiple of `grain` must be that of its parts, but for what it draws at random. With it code_on() may
	 * come between any two codes with another queue, while work on the one before goes on. */
	void (*code_layout)(void *instance, uint64_t n, gradcomp_code_layout *out);

	uint64_t reserved[1];
};

/* Returns 1 when the host keeps an error memory for instances with these values. */
static inline int gradcomp_keeps_error(const struct gradcomp_compressor_v1 *c, const gradcomp_value *values)
{
	return c->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK && (!c->keeps_error || c->keeps_error(values));
}

/* The constant that NAME.so exports. In C++ a constant without this would be the file's own. */
extern GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1;

#ifdef __cplusplus
}
#endif
#endif
