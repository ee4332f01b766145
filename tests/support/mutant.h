/* Wraps every function of a compressor, to break one thing about it at a place and a time. tests/contract/mutants.py
 * puts this into a copy of a good plugin, before its descriptor, whose functions it has named BASE_...; what is broken
 * are the macros M_..., which are nothing where they are not defined. */
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifndef M_WHEN
#define M_WHEN 1
#endif

typedef struct mutant {
	void *base;
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	uint64_t decodes, encodes; /* calls */
	uint64_t seen[64];         /* numel of a bucket, by its index */
	double value;              /* the value of its own parameter */
	char room[64], room_too[64];
} mutant;

#ifdef M_GLOBAL
M_GLOBAL
#endif

/* Number i of a bucket, and what of it is remembered. */
static __attribute__((unused)) float *mutant_at(const gradcomp_work *work, const mutant *m, float *const *of,
                                                uint64_t i)
{
	uint32_t t = 0;
	while (i >= m->layout->tensors[work->bucket->first + t].numel)
		i -= m->layout->tensors[work->bucket->first + t++].numel;
	return of[t] + i;
}
#define X(i) (*mutant_at(work, m, work->x, (i)))
#define E(i) (*mutant_at(work, m, work->error, (i)))
/* The numbers of a bucket that are broken: from `a` to `b`, every `by`. */
#define EACH(a, b, by) for (uint64_t i = (a); i < (b) && i < numel; i += (by))

static uint64_t mutant_hash(const void *data, size_t n)
{
	uint64_t h = 1469598103934665603u;
	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211u;
	return h;
}

/* From 0.01 to 0.11, of whatever it is. */
static __attribute__((unused)) float mutant_share(uint64_t what)
{
	return 0.01f + (float)(mutant_hash(&what, sizeof what) % 1000) * 1e-4f;
}

static gradcomp_status mutant_create(const gradcomp_host *host, const gradcomp_value *values,
                                     const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	mutant *m;
	gradcomp_status st;
	const uint64_t step = 0;
	(void)step;
#ifdef M_CREATE_FIRST
	if (M_WHEN) {
		M_CREATE_FIRST;
	}
#endif
	m = host->alloc(sizeof *m);
	if (!m)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "mutant: no memory");
	m->host = host;
	m->layout = layout;
#ifdef M_PARAMS
	m->value = values[0].f;
#endif
	st = BASE_create(host, values, layout, &m->base, err);
#ifdef M_CREATE
	if (!st && (M_WHEN)) {
		M_CREATE;
	}
#endif
	if (st) {
		host->release(m);
		return st;
	}
	*instance = m;
	return GRADCOMP_OK;
}

static void mutant_destroy(void *instance)
{
	mutant *m = instance;
	if (!m)
		return;
#ifdef M_DESTROY
	M_DESTROY;
#endif
	BASE_destroy(m->base);
	m->host->release(m);
}

static gradcomp_status mutant_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *wanted,
                                   gradcomp_error *err)
{
	mutant *m = instance;
	gradcomp_status st = BASE_plan(m->base, bucket, step, wanted, err);
#ifdef M_PLAN
	if (M_WHEN) {
		M_PLAN;
	}
#endif
	return st;
}

static __attribute__((unused)) gradcomp_status mutant_encode(void *instance, const gradcomp_work *work, uint32_t round,
                                                             gradcomp_payload *out, gradcomp_error *err)
{
	mutant *m = instance;
	const gradcomp_bucket *bucket = work->bucket;
	const uint64_t step = work->step, numel = bucket->numel;
	unsigned char was = out->capacity ? *(unsigned char *)out->data : 0;
	gradcomp_status st = GRADCOMP_OK;
	(void)step, (void)numel, (void)was;
#ifdef M_ENCODE_FIRST
	if (M_WHEN) {
		M_ENCODE_FIRST;
	}
#endif
	st = BASE_encode(m->base, work, round, out, err);
#ifdef M_ENCODE
	if (!st && (M_WHEN)) {
		M_ENCODE;
	}
#endif
	return st;
}

static __attribute__((unused)) gradcomp_status mutant_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                                             const gradcomp_payload *in, uint32_t n,
                                                             gradcomp_error *err)
{
	mutant *m = instance;
	const gradcomp_bucket *bucket = work->bucket;
	const uint64_t step = work->step, numel = bucket->numel;
	gradcomp_plan wanted = {.struct_size = sizeof wanted};
	gradcomp_status st = BASE_plan(m->base, bucket, step, &wanted, err);
	int last = round + 1 == wanted.nrounds;
	(void)numel, (void)last;
#ifdef M_DECODE_FIRST
	if (M_WHEN) {
		M_DECODE_FIRST;
	}
#endif
	if (!st)
		st = BASE_decode(m->base, work, round, in, n, err);
#ifdef M_DECODE
	if (!st && last && numel && (M_WHEN)) {
		M_DECODE;
	}
#endif
	m->decodes += last;
	return st;
}

#ifdef BASE_merge
static gradcomp_status mutant_merge(void *instance, const gradcomp_work *work, uint32_t round,
                                    const gradcomp_payload *a, const gradcomp_payload *b, gradcomp_payload *out,
                                    gradcomp_error *err)
{
	mutant *m = instance;
	const gradcomp_bucket *bucket = work->bucket;
	const uint64_t step = work->step;
	gradcomp_status st;
	(void)bucket, (void)step;
#ifdef M_MERGE_FIRST
	if (M_WHEN) {
		M_MERGE_FIRST;
	}
#endif
	st = BASE_merge(m->base, work, round, a, b, out, err);
#ifdef M_MERGE
	if (!st && (M_WHEN)) {
		M_MERGE;
	}
#endif
	return st;
}
#endif

#ifdef BASE_code
/* Returns the bound for runs of numel numbers. */
static uint64_t mutant_code_bound(void *instance, uint64_t numel)
{
	uint64_t bound = BASE_code_bound(((mutant *)instance)->base, numel);
#ifdef M_BOUND
	bound = M_BOUND;
#endif
	return bound;
}

static gradcomp_status mutant_code(void *instance, const float *in, uint64_t numel, uint64_t counter, void *out,
                                   uint64_t *bytes, gradcomp_error *err)
{
	mutant *m = instance;
	gradcomp_status st;
#ifdef M_CODE_FIRST
	M_CODE_FIRST;
#endif
	st = BASE_code(m->base, in, numel, counter, out, bytes, err);
#ifdef M_CODE
	if (!st) {
		M_CODE;
	}
#endif
	return st;
}

static gradcomp_status mutant_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t numel,
                                          gradcomp_error *err)
{
	mutant *m = instance;
	gradcomp_status st;
#ifdef M_CODE_DECODE_FIRST
	M_CODE_DECODE_FIRST;
#endif
	st = BASE_code_decode(m->base, in, bytes, out, numel, err);
#ifdef M_CODE_DECODE
	if (!st) {
		M_CODE_DECODE;
	}
#endif
	return st;
}

static gradcomp_status mutant_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out,
                                              uint64_t numel, gradcomp_error *err)
{
	mutant *m = instance;
	gradcomp_status st = BASE_code_decode_add(m->base, in, bytes, out, numel, err);
#ifdef M_CODE_DECODE_ADD
	if (!st) {
		M_CODE_DECODE_ADD;
	}
#endif
	return st;
}
#endif

#ifdef BASE_code_on
static gradcomp_status mutant_code_on(void *instance, const gradcomp_operators *operators, void *queue, int *fault,
                                      gradcomp_error *err)
{
	return BASE_code_on(((mutant *)instance)->base, operators, queue, fault, err);
}
#endif

#ifdef BASE_cost
static gradcomp_status mutant_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *costs,
                                   gradcomp_error *err)
{
	mutant *m = instance;
	gradcomp_status st = BASE_cost(m->base, bucket, step, costs, err);
#ifdef M_COST
	if (M_WHEN) {
		M_COST;
	}
#endif
	return st;
}
#endif

#ifdef BASE_choice
static const char *mutant_choice(void *instance, uint32_t tensor)
{
	return BASE_choice(((mutant *)instance)->base, tensor);
}
#endif

#ifdef BASE_measured
static gradcomp_status mutant_measured(void *instance, const gradcomp_measured *measured, uint64_t step,
                                       gradcomp_error *err)
{
	return BASE_measured(((mutant *)instance)->base, measured, step, err);
}
#endif

#ifdef M_SAVES
/* Its counters, behind a mark. */
enum { MUTANT_SAVED = 24 };
static gradcomp_status mutant_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	mutant *m = instance;
	uint64_t words[3] = {0x746e6174756d + m->layout->ntensors, m->decodes, m->encodes};
	*bytes = MUTANT_SAVED;
	if (!out)
		return GRADCOMP_OK;
#ifndef M_SAVES_ANYWHERE
	if (capacity < MUTANT_SAVED)
		return m->host->fail(err, GRADCOMP_ERR_INVALID, "mutant: no room to save");
#endif
	memcpy(out, words, capacity < MUTANT_SAVED ? capacity : MUTANT_SAVED);
	return GRADCOMP_OK;
}

static gradcomp_status mutant_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err)
{
	mutant *m = instance;
	uint64_t words[3] = {0, 0, 0};
#ifdef M_LOAD_FIRST
	M_LOAD_FIRST;
#endif
	memcpy(words, in, bytes < MUTANT_SAVED ? bytes : MUTANT_SAVED);
#ifndef M_LOADS_ALL
	if (bytes != MUTANT_SAVED || words[0] != 0x746e6174756d + m->layout->ntensors)
		return m->host->fail(err, GRADCOMP_ERR_INVALID, "mutant: %llu bytes are no state",
		                     (unsigned long long)bytes);
#endif
	m->decodes = words[1];
	m->encodes = words[2];
	return GRADCOMP_OK;
}
#endif
