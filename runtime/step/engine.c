#include "step/engine.h"

#include "base/error.h"
#include "plugin/descriptor.h"
#include "step/layout.h"

#include <stdlib.h>
#include <string.h>

gradcomp_status engine_create_instance(engine *eng, const gradcomp_host *host, const gradcomp_value *values,
                                       gradcomp_error *err)
{
	gradcomp_error own = {0};
	gradcomp_status st = eng->compressor->create(host, values, &eng->layout, &eng->instance, &own);
	return descriptor_compressor_status(eng->compressor, "create", st, &own, err);
}

gradcomp_status engine_merge(const engine *eng, const gradcomp_work *work, uint32_t round, const gradcomp_payload *a,
                             const gradcomp_payload *b, gradcomp_payload *out, gradcomp_error *err)
{
	gradcomp_error own = {0};
	gradcomp_status st = eng->compressor->merge(eng->instance, work, round, a, b, out, &own);
	return descriptor_compressor_status(eng->compressor, "merge", st, &own, err);
}

/* Allocates an array, zeroed, where the compressor works. */
static gradcomp_status array(const engine *eng, size_t bytes, const char *what, float **out, gradcomp_error *err)
{
	device_arena *a = eng->arrays.arena;
	void *p = NULL;
	if (a) {
		const char *why = device_arena_alloc(a, &p, bytes);
		*out = p;
		if (!why)
			why = a->memory.d->zero(a->compute, p, bytes);
		return why ? error_set(err, GRADCOMP_ERR_NOMEM, "no CUDA memory for %s of %zu bytes: %s", what, bytes,
		                       why)
		           : GRADCOMP_OK;
	}
	*out = calloc(1, bytes);
	return *out ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %s of %zu bytes", what, bytes);
}

static void array_free(const engine *eng, float *p)
{
	if (eng->arrays.arena)
		device_arena_release(eng->arrays.arena, p);
	else
		free(p);
}

/* Allocates the error memory in the form that the SPEC asks for. */
static gradcomp_status error_array(engine *eng, size_t bytes, gradcomp_error *err)
{
	float average;
	const memory_form form = memory_rows_asked(&eng->compressor->info, eng->values, &average);
	if (!memory_rows_special(&eng->compressor->info, eng->values))
		return array(eng, bytes, "an error memory", &eng->arrays.error, err);
	if (eng->arrays.arena)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "compressor '%s': " ENGINE_NO_GPU_MEMORY,
		                 eng->compressor_spec);
	eng->arrays.packed = error_memory_make(&eng->layout, eng->job->host.operators, form, average);
	return eng->arrays.packed ? GRADCOMP_OK
	                          : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for an error memory of %llu numbers",
	                                      (unsigned long long)eng->layout.numel);
}

gradcomp_status engine_allocate(engine *eng, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	size_t bytes = eng->layout.numel * sizeof(float) + sizeof(float);
	uint32_t states = eng->compressor->state_arrays;
	if (gradcomp_keeps_error(eng->compressor, eng->values) && !eng->list.shards) {
		st = error_array(eng, bytes, err);
		if (st)
			return st;
	}
	eng->arrays.state = calloc(states + 1, sizeof *eng->arrays.state);
	eng->room.lengths = calloc((size_t)eng->layout.nranks, 2 * sizeof *eng->room.lengths);
	eng->meter.norms = calloc(eng->layout.ntensors, sizeof *eng->meter.norms);
	if (!eng->arrays.state || !eng->room.lengths || !eng->meter.norms)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	for (uint32_t s = 0; !st && s < states && !eng->list.shards; s++)
		st = array(eng, bytes, "a state array", &eng->arrays.state[s], err);
	eng->arrays.memory = eng->arrays.error;
	if (states && !eng->list.shards && (eng->compressor->traits & GRADCOMP_TRAIT_OWN_MOMENTUM))
		eng->arrays.memory = eng->arrays.state[states - 1];
	return st;
}

bool engine_has_error(const engine *eng)
{
	return eng->arrays.error || eng->arrays.packed;
}

uint32_t engine_arrays_count(const engine *eng)
{
	return engine_has_error(eng) + eng->compressor->state_arrays;
}

uint32_t engine_held_back(const engine *eng)
{
	return eng->arrays.memory && eng->arrays.memory != eng->arrays.error ? engine_arrays_count(eng) - 1
	       : engine_has_error(eng)                                       ? 0
	                                                                     : engine_arrays_count(eng);
}

/* Returns where array s is; NULL: it is packed. */
static float *array_at(const engine *eng, uint32_t s)
{
	return !engine_has_error(eng) ? eng->arrays.state[s] : s ? eng->arrays.state[s - 1] : eng->arrays.error;
}

/* Packed numbers are read and written in runs, since what they go to or come from may stand on any byte. */
enum { RUN = 1024 };

gradcomp_status engine_read(const engine *eng, uint32_t s, uint64_t at, uint64_t n, void *to, gradcomp_error *err)
{
	const float *from = array_at(eng, s);
	float run[RUN];
	if (from)
		return device_arena_copy(eng->arrays.arena, to, from + at, n * sizeof *from, err);
	for (uint64_t k = 0, some; k < n; k += some) {
		some = n - k < RUN ? n - k : RUN;
		error_memory_read(eng->arrays.packed, at + k, some, run);
		memcpy((char *)to + k * sizeof *run, run, some * sizeof *run);
	}
	return GRADCOMP_OK;
}

gradcomp_status engine_write(const engine *eng, uint32_t s, uint64_t at, uint64_t n, const void *from,
                             gradcomp_error *err)
{
	float *to = array_at(eng, s), run[RUN];
	if (to)
		return device_arena_copy(eng->arrays.arena, to + at, from, n * sizeof *to, err);
	for (uint64_t k = 0, some; k < n; k += some) {
		some = n - k < RUN ? n - k : RUN;
		memcpy(run, (const char *)from + k * sizeof *run, some * sizeof *run);
		error_memory_write(eng->arrays.packed, at + k, some, run);
	}
	return GRADCOMP_OK;
}

gradcomp_status engine_undo_open(engine *eng, gradcomp_error *err)
{
	uint32_t arrays = engine_arrays_count(eng);
	engine_undo *u = eng->arrays.undo = calloc(1, sizeof *u);
	gradcomp_status st = GRADCOMP_OK;
	if (u) {
		u->arrays = arrays;
		u->array = calloc(arrays + 1, sizeof *u->array);
		u->step = calloc(eng->layout.ntensors + 1, sizeof *u->step);
	}
	if (!u || !u->array || !u->step)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to keep what a step overwrites");
	for (uint32_t s = 0; !st && s < arrays; s++)
		st = array(eng, eng->layout.numel * sizeof(float) + sizeof(float), "a copy of what a step overwrites",
		           &u->array[s], err);
	return st;
}

void engine_undo_close(engine_undo *u)
{
	for (uint32_t s = 0; u && u->array && s < u->arrays; s++)
		free(u->array[s]);
	if (u) {
		free(u->array);
		free(u->step);
		free(u->own);
	}
	free(u);
}

gradcomp_status engine_keep(engine *eng, const bucket *b, gradcomp_error *err)
{
	size_t bytes = b->pub.numel * sizeof(float);
	const char *why = NULL;
	const device_arena *a = eng->arrays.arena;
	/* On the host BEGIN copies the error memory as it adds it. */
	for (uint32_t s = !a && engine_has_error(eng); !why && s < eng->arrays.undo->arrays; s++) {
		float *to = eng->arrays.undo->array[s] + b->pub.offset;
		const float *from = array_at(eng, s) + b->pub.offset;
		if (a)
			why = bytes ? a->memory.d->copy(a->compute, to, from, bytes) : NULL;
		else
			memcpy(to, from, bytes);
	}
	for (uint32_t i = 0; i < b->pub.ntensors; i++)
		eng->arrays.undo->step[b->pub.first + i] = eng->step + 1;
	return device_check(why, "what a step overwrites could not be kept", err);
}

gradcomp_status engine_keep_all(engine *eng, void *own, uint64_t nown, gradcomp_error *err)
{
	engine_undo *u = eng->arrays.undo;
	gradcomp_status st = GRADCOMP_OK;
	free(u->own);
	u->own = own;
	u->nown = nown;
	for (uint32_t s = 0; !st && s < u->arrays; s++)
		st = engine_read(eng, s, 0, eng->layout.numel, u->array[s], err);
	for (uint32_t i = 0; i < eng->layout.ntensors; i++)
		u->step[i] = eng->step + 1;
	return st;
}

void engine_undo_forget(engine_undo *u, uint32_t ntensors)
{
	memset(u->step, 0, ntensors * sizeof *u->step);
	free(u->own);
	u->own = NULL;
}

/* Moves an array of the engine's into host memory. */
static gradcomp_status take(const engine *eng, float **p, gradcomp_error *err)
{
	size_t bytes = eng->layout.numel * sizeof(float);
	gradcomp_status st;
	float *to;
	if (!eng->arrays.arena)
		return GRADCOMP_OK;
	to = malloc(bytes + 1);
	st = to ? device_arena_copy(eng->arrays.arena, to, *p, bytes, err)
	        : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %zu bytes of a reducer's state", bytes);
	array_free(eng, *p);
	*p = to;
	return st;
}

/* The packed error memory as an array. */
static gradcomp_status unpack(const engine *eng, float **to, gradcomp_error *err)
{
	*to = malloc(eng->layout.numel * sizeof **to + 1);
	if (!*to)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the %llu numbers of a reducer's state",
		                 (unsigned long long)eng->layout.numel);
	error_memory_read(eng->arrays.packed, 0, eng->layout.numel, *to);
	return GRADCOMP_OK;
}

gradcomp_status engine_take(engine *eng, float **array, engine_undo **undo, gradcomp_error *err)
{
	engine_undo *u = *undo = eng->arrays.undo;
	gradcomp_status st = GRADCOMP_OK;
	eng->arrays.undo = NULL;
	for (uint32_t s = 0; s < u->arrays; s++) {
		gradcomp_status one;
		array[s] = array_at(eng, s);
		one = array[s] ? take(eng, &array[s], err) : unpack(eng, &array[s], err);
		st = st ? st : one;
		one = take(eng, &u->array[s], err);
		st = st ? st : one;
	}
	eng->arrays.error = NULL;
	for (uint32_t s = 0; s < eng->compressor->state_arrays; s++)
		eng->arrays.state[s] = NULL;
	return st;
}

void engine_free(engine *eng)
{
	for (uint32_t s = 0; eng->arrays.undo && eng->arrays.undo->array && s < eng->arrays.undo->arrays; s++) {
		array_free(eng, eng->arrays.undo->array[s]);
		eng->arrays.undo->array[s] = NULL;
	}
	engine_undo_close(eng->arrays.undo);
	if (eng->instance)
		eng->compressor->destroy(eng->instance);
	for (uint32_t s = 0; eng->arrays.state && s < eng->compressor->state_arrays; s++)
		array_free(eng, eng->arrays.state[s]);
	free(eng->arrays.state);
	free(eng->room.lengths);
	free(eng->meter.norms);
	array_free(eng, eng->arrays.error);
	error_memory_free(eng->arrays.packed);
}

void engine_next_step(engine *eng)
{
	for (engine *in = eng->list.shards; in; in = in->next)
		in->step = eng->step;
}

static gradcomp_status divide(engine *eng, bucket_list *to, gradcomp_error *err)
{
	(void)eng, (void)to, (void)err;
	return GRADCOMP_OK;
}

static gradcomp_status move(engine *eng, const bucket_list *to, float *room, gradcomp_error *err)
{
	(void)eng, (void)to, (void)room, (void)err;
	return GRADCOMP_OK;
}

static void carry(engine *eng, const bucket_list *to)
{
	(void)eng, (void)to;
}

static gradcomp_status measured(engine *eng, const gradcomp_measured *m, gradcomp_error *err)
{
	return eng->compressor->measured(eng->instance, m, eng->step, err);
}

static const char *choice(const engine *eng, uint32_t tensor)
{
	return eng->compressor->choice ? eng->compressor->choice(eng->instance, tensor) : eng->compressor->info.name;
}

static const residual_norm *norm(engine *eng, uint32_t tensor)
{
	return &eng->meter.norms[tensor];
}

const engine_levels engine_one_level = {divide, move, carry, measured, choice, norm};

/* Reports a plugin that has failed and gives no reason, or a status above 0, which peers would not take for one. */
static gradcomp_status wordless(const engine *eng, const bucket *b, const task *t, gradcomp_status st,
                                gradcomp_error *err)
{
	int exchanges = task_exchanges(t->kind);
	const char *calls = exchanges                ? "a call"
	                    : t->kind == TASK_BEGIN  ? "plan()"
	                    : t->kind == TASK_ENCODE ? "encode()"
	                                             : "decode()";
	const char *kind = exchanges ? "collective" : "compressor";
	const char *name = exchanges ? eng->coll_ctx.collective->info.name : eng->compressor->info.name;
	const char *tensor = eng->layout.tensors[b->pub.first].name;
	if (st > 0)
		return error_set(
			err, GRADCOMP_ERR_INTERNAL,
			"%s '%s': %s returned %d in round %u of step %llu, for the bucket of '%s': 0 or a negative status is right",
			kind, name, calls, (int)st, t->round, (unsigned long long)eng->step, tensor);
	return error_set(err, st,
	                 "%s '%s': %s failed in round %u of step %llu, for the bucket of '%s', and gave no reason (%s)",
	                 kind, name, calls, t->round, (unsigned long long)eng->step, tensor, gradcomp_strerror(st));
}

gradcomp_status engine_do(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	const engine_ops *ops = eng->ways.ops;
	switch (t->kind) {
	case TASK_BEGIN:
	case TASK_LOCAL_BEGIN:
		return ops->begin(eng, b, t, err);
	case TASK_ENCODE:
		return ops->encode(eng, b, t, err);
	case TASK_DECODE:
		return ops->decode(eng, b, t, err);
	case TASK_LOCAL_END:
	case TASK_FINISH:
		return ops->finish(eng, b, t, err);
	default:
		return ops->exchange(eng, b, t, err);
	}
}

gradcomp_status engine_run(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	gradcomp_status st = eng->ways.device->calls->run(eng, b, t, err);
	return st > 0 || (st && !*err->text) ? wordless(eng, b, t, st, err) : st;
}
