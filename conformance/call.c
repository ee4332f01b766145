#include "conformance/call.h"

#include <fenv.h>
#include <pthread.h>
#include <stdbool.h>

#include "conformance/crash.h"
#include "conformance/hooks.h"
#include "conformance/process.h"

static call_state own_state;
call_state *call_now = &own_state;

bool call_in_step(void)
{
	return call_now->which >= CALL_PLAN && call_now->which <= CALL_CODE_DECODE_ADD;
}

const char *call_primitive(int bit)
{
	static const char *const names[PRIMITIVES] = {
		"allreduce", "reduce_scatter",  "allgather",       "alltoall", "broadcast", "barrier",
		"merge",     "coded_allreduce", "coded_allgather", "exchange", "shard",     "coded_reduce_scatter"};

	return names[bit];
}

const char *call_name(call_which which)
{
	static const char *const names[CALL_PRIMITIVE] = {"no function", "create",
	                                                  "destroy",     "plan",
	                                                  "encode",      "decode",
	                                                  "merge",       "code",
	                                                  "code_decode", "code_decode_add",
	                                                  "save",        "load",
	                                                  "cost",        "code() beside code_decode",
	                                                  "predict",     "choice"};

	return which < CALL_PRIMITIVE ? names[which] : call_primitive((int)(which - CALL_PRIMITIVE));
}

void call_begin(call_which which, int rank, int nranks, uint32_t round)
{
	call_now->rank = rank;
	call_now->nranks = nranks;
	call_now->round = round;
	call_now->count++;
	call_now->which = which;
}

/* On the thread that has made the call. */
static void look_at_floats(call_which which)
{
	int now = process_floats();

	if (!now)
		return;
	if (!call_now->floats) {
		call_now->floats = now;
		call_now->floats_by = which;
	}
	fesetenv(FE_DFL_ENV);
}

void call_end(void)
{
	look_at_floats(call_now->which);
	call_now->which = CALL_NONE;
}

static gradcomp_status dispatch(ranks *s, const call *c)
{
	const struct gradcomp_compressor_v1 *p = s->plugin;
	void *instance = s->instance[c->rank];
	gradcomp_error *err = &s->err;

	switch (c->which) {
	case CALL_PLAN:
		return p->plan(instance, c->bucket, s->step, c->plan, err);
	case CALL_ENCODE:
		return p->encode(instance, c->work, c->round, c->out, err);
	case CALL_DECODE:
		return p->decode(instance, c->work, c->round, c->in, c->n, err);
	case CALL_MERGE:
		return p->merge(instance, c->work, c->round, c->in, c->peer, c->out, err);
	case CALL_CODE:
		return p->code(instance, c->from, c->count, c->counter, c->to, c->bytes, err);
	case CALL_CODE_DECODE:
		return p->code_decode(instance, c->from, c->capacity, c->to, c->count, err);
	case CALL_CODE_DECODE_ADD:
		return p->code_decode_add(instance, c->from, c->capacity, c->to, c->count, err);
	case CALL_SAVE:
		return p->save(instance, c->to, c->capacity, c->bytes, err);
	case CALL_LOAD:
		return p->load(instance, c->from, c->capacity, err);
	case CALL_COST:
		return p->cost(instance, c->bucket, s->step, c->cost, err);
	default:
		return host_fail(err, GRADCOMP_ERR_INTERNAL, "the harness called nothing");
	}
}

typedef struct elsewhere {
	ranks *s;
	const call *c;
	gradcomp_status st;
} elsewhere;

static void *run_elsewhere(void *ctx)
{
	elsewhere *e = ctx;

	crash_stack();
	e->st = dispatch(e->s, e->c);
	look_at_floats(e->c->which);
	return NULL;
}

gradcomp_status ranks_call(ranks *s, const call *c)
{
	/* It may run beside others of the instance. So may the code functions, but one of
	 * each direction at a time, which may therefore have workspaces there. */
	int shared = c->which == CALL_MERGE;
	elsewhere e = {s, c, GRADCOMP_OK};
	int noted = hooks_count();
	pthread_attr_t small;
	pthread_t thread;

	if (shared)
		host_lock(1);
	call_begin(c->which, c->rank, s->P, c->round);
	if (s->device)
		guard_fence(1);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, CALL_STACK);
	if (s->hop && !pthread_create(&thread, &small, run_elsewhere, &e))
		pthread_join(thread, NULL);
	else
		e.st = dispatch(s, c);
	pthread_attr_destroy(&small);
	if (s->device)
		guard_fence(0);
	call_end();
	if (e.st > 0)
		e.st = ranks_broke(s, RULE_DESCRIPTOR, "%s() returns %d: 0 or a negative status is right",
		                   call_name(c->which), (int)e.st);
	if (e.st)
		hooks_forget(noted);
	if (shared)
		host_lock(0);
	return e.st;
}
