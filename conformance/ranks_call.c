#include "conformance/call.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "conformance/crash.h"
#include "conformance/hooks.h"

gradcomp_status ranks_broke(ranks *s, rule r, const char *fmt, ...)
{
	va_list ap;
	s->broke = r;
	s->err.status = GRADCOMP_ERR_INTERNAL;
	va_start(ap, fmt);
	vsnprintf(s->err.text, sizeof s->err.text, fmt, ap);
	va_end(ap);
	return GRADCOMP_ERR_INTERNAL;
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
	call_left(e->c->which);
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
