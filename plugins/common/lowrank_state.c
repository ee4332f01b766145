/* The factors that last from step to step, for checkpoints: behind the head the P
 * and the Q of all compressed tensors as far as they are kept, in the byte order of
 * the machine. They are the same on all ranks. */
#include "lowrank.h"
#include "saved.h"

#include <string.h>

typedef struct lengths {
	uint64_t P, Q; /* bytes */
} lengths;

static lengths measure(const lowrank *l)
{
	const lowrank_place *end = &l->tensors[l->layout->ntensors].at;
	return (lengths){l->P ? end->P * sizeof *l->P : 0, l->Q ? end->Q * sizeof *l->Q : 0};
}

static saved head(const lowrank *l, const lengths *n)
{
	uint64_t ranks = saved_mix(SAVED_SEED, n->P);
	for (uint32_t i = 0; i < l->layout->ntensors; i++)
		ranks = saved_mix(ranks, l->tensors[i].r);
	return saved_head(l->layout, l->name, 1, ranks, n->P + n->Q);
}

gradcomp_status lowrank_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	const lowrank *l = instance;
	lengths n = measure(l);
	saved s = head(l, &n);
	void *body;
	gradcomp_status st = saved_begin(l->host, &s, out, capacity, bytes, &body, err);
	if (body && n.P)
		memcpy(body, l->P, n.P);
	if (body && n.Q)
		memcpy((char *)body + n.P, l->Q, n.Q);
	return st;
}

gradcomp_status lowrank_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err)
{
	lowrank *l = instance;
	lengths n = measure(l);
	saved want = head(l, &n);
	gradcomp_status st = saved_check(l->host, &want, in, bytes, err);
	const char *body = (const char *)in + sizeof want;
	if (!st && n.P)
		memcpy(l->P, body, n.P);
	if (!st && n.Q)
		memcpy(l->Q, body + n.P, n.Q);
	return st;
}
