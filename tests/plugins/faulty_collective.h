/* A collective that keeps every rule: rank 0 hears from all others, adds up in the order of ranks, and
 * tells them. Each file in faulty/ spoils one thing about it: it defines a macro, and includes this. */
#include <stdlib.h>
#include <string.h>

#include "gradcomp/collective.h"

typedef struct star {
	const gradcomp_host *host;
	const gradcomp_links *links;
} star;

#ifdef FAULT_ALLREDUCE
static gradcomp_status star_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                      double scale, gradcomp_error *err);
#endif

static gradcomp_status star_create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                                   void **instance, gradcomp_error *err)
{
	star *s = host->alloc(sizeof *s);
	(void)values;
	if (!s)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "star: no memory");
	*s = (star){host, links};
	*instance = s;
	return GRADCOMP_OK;
}

static void star_destroy(void *instance)
{
#ifndef FAULT_LEAK
	if (instance)
		((star *)instance)->host->release(instance);
#else
	(void)instance;
#endif
}

__attribute__((unused)) static gradcomp_status give(const star *s, int peer, const void *buf, size_t bytes,
                                                    gradcomp_error *err)
{
	gradcomp_request req;
	gradcomp_status st = s->links->send(s->links->ctx, peer, buf, bytes, &req, err);
#ifdef FAULT_MOVES
	gradcomp_request copy = req;
	return st ? st : s->links->wait(s->links->ctx, &copy, err);
#endif
#ifndef FAULT_UNWAITED
	st = st ? st : s->links->wait(s->links->ctx, &req, err);
#endif
	return st;
}

__attribute__((unused)) static gradcomp_status take(const star *s, int peer, void *buf, size_t bytes,
                                                    gradcomp_error *err)
{
	gradcomp_request req;
	gradcomp_status st = s->links->recv(s->links->ctx, peer, buf, bytes, &req, err);
#ifdef FAULT_DEAF
	if (!st)
		s->links->wait(s->links->ctx, &req, err);
	return GRADCOMP_OK;
#else
	return st ? st : s->links->wait(s->links->ctx, &req, err);
#endif
}

/* From `root` to all others. */
__attribute__((unused)) static gradcomp_status tell(const star *s, void *buf, size_t bytes, int root,
                                                    gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	if (s->links->rank != root)
		return take(s, root, buf, bytes, err);
	for (int r = 0; !st && r < s->links->nranks; r++)
		if (r != root)
			st = give(s, r, buf, bytes, err);
	return st;
}

#ifndef FAULT_SCALE
#define FAULT_SCALE scale
#endif
#ifndef FAULT_OP
#define FAULT_OP op
#endif

#ifndef FAULT_ALLREDUCE
static gradcomp_status star_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                      double scale, gradcomp_error *err)
{
	const star *s = instance;
	const gradcomp_links *l = s->links;
	size_t bytes = count * gradcomp_dtype_bytes(dtype);
	int peers = l->nranks > 1;
	void *theirs = peers ? malloc(bytes + 1) : NULL;
	gradcomp_status st = GRADCOMP_OK;
	(void)op;
#ifdef FAULT_CALL
	FAULT_CALL;
#endif
	if (peers && !theirs)
		return s->host->fail(err, GRADCOMP_ERR_NOMEM, "star: no memory for %zu bytes", bytes);
	if (l->rank)
		st = give(s, 0, buf, bytes, err);
	for (int r = 1; !l->rank && !st && r < l->nranks; r++) {
		st = take(s, r, theirs, bytes, err);
		if (!st)
			s->host->operators->reduce(NULL, buf, theirs, count, dtype, FAULT_OP);
	}
	free(theirs);
	if (!l->rank && op == GRADCOMP_SUM && scale != 1.0 && dtype <= GRADCOMP_F64)
		s->host->operators->scale_as(NULL, buf, FAULT_SCALE, count, dtype);
	return st ? st : tell(s, buf, bytes, 0, err);
}
#endif

#ifndef FAULT_ROOT
#define FAULT_ROOT root
#endif

static gradcomp_status star_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	(void)root;
	return tell(instance, buf, bytes, FAULT_ROOT, err);
}

static gradcomp_status star_barrier(void *instance, gradcomp_error *err)
{
#ifdef FAULT_BARRIER
	(void)instance, (void)err;
	return GRADCOMP_OK;
#else
	const star *s = instance;
	gradcomp_status st = GRADCOMP_OK;
	char word = 0;
	if (s->links->rank)
		st = give(s, 0, &word, 1, err);
	for (int r = 1; !s->links->rank && !st && r < s->links->nranks; r++)
		st = take(s, r, &word, 1, err);
	return st ? st : tell(s, &word, 1, 0, err);
#endif
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_collective_v1,
                 .name = FAULT_NAME,
                 .version = "1.0",
                 .summary = "a star, with a fault",
                 .licence = "MIT"},
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER,
	.create = star_create,
	.destroy = star_destroy,
	.allreduce = star_allreduce,
	.broadcast = star_broadcast,
	.barrier = star_barrier,
};
