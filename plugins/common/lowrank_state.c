/* The factors that last from step to step, for checkpoints. They are the same on
 * all ranks. */
#include "lowrank.h"

#include <string.h>

/* The saved state: this header, then the P and the Q of all compressed tensors
 * as far as they are kept, in the byte order of the machine. */
typedef struct saved {
	char compressor[16];
	uint32_t version, nranks;
	uint64_t shapes, ranks; /* digests of all n and m, and of all r */
	uint64_t P, Q;          /* floats */
} saved;

static saved header(const lowrank *l)
{
	const lowrank_place *end = &l->tensors[l->layout->ntensors].at;
	saved s = {.version = 1,
	           .nranks = (uint32_t)l->layout->nranks,
	           .shapes = 14695981039346656037u,
	           .ranks = 14695981039346656037u,
	           .P = l->P ? end->P : 0,
	           .Q = l->Q ? end->Q : 0};
	strncpy(s.compressor, l->name, sizeof s.compressor - 1);
	for (uint32_t i = 0; i < l->layout->ntensors; i++) { /* FNV-1a, a word at a time */
		const gradcomp_tensor *t = &l->layout->tensors[i];
		for (uint32_t k = 0; k < t->ndim; k++)
			s.shapes = (s.shapes ^ t->dims[k]) * 1099511628211u;
		s.shapes = (s.shapes ^ ~(uint64_t)t->ndim) * 1099511628211u;
		s.ranks = (s.ranks ^ l->tensors[i].r) * 1099511628211u;
	}
	return s;
}

gradcomp_status lowrank_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	const lowrank *l = instance;
	saved s = header(l);
	uint64_t P = s.P * sizeof *l->P, Q = s.Q * sizeof *l->Q;
	*bytes = sizeof s + P + Q;
	if (!out)
		return GRADCOMP_OK;
	if (capacity < *bytes)
		return l->host->fail(err, GRADCOMP_ERR_INVALID, "%s: state needs %llu bytes, there is room for %llu",
		                     l->name, (unsigned long long)*bytes, (unsigned long long)capacity);
	memcpy(out, &s, sizeof s);
	if (P)
		memcpy((char *)out + sizeof s, l->P, P);
	if (Q)
		memcpy((char *)out + sizeof s + P, l->Q, Q);
	return GRADCOMP_OK;
}

static gradcomp_status check(const lowrank *l, const saved *got, const saved *want, uint64_t bytes,
                             gradcomp_error *err)
{
	const gradcomp_host *h = l->host;
	uint64_t total = sizeof *want + (want->P + want->Q) * sizeof(float);
	if (memcmp(got->compressor, want->compressor, sizeof got->compressor))
		return h->fail(err, GRADCOMP_ERR_MISMATCH, "%s: this is not a state of %s", l->name, l->name);
	if (got->version != want->version)
		return h->fail(err, GRADCOMP_ERR_UNSUPPORTED, "%s: state of version %u, this plugin reads %u", l->name,
		               got->version, want->version);
	if (got->nranks != want->nranks)
		return h->fail(err, GRADCOMP_ERR_MISMATCH, "%s: state of a job of %u ranks, this one has %u", l->name,
		               got->nranks, want->nranks);
	if (got->shapes != want->shapes)
		return h->fail(err, GRADCOMP_ERR_MISMATCH, "%s: state of a model whose tensors have other shapes",
		               l->name);
	if (got->ranks != want->ranks || got->P != want->P || got->Q != want->Q)
		return h->fail(err, GRADCOMP_ERR_MISMATCH,
		               "%s: state of other parameters: its factors have %llu and %llu floats, here %llu and "
		               "%llu",
		               l->name, (unsigned long long)got->P, (unsigned long long)got->Q,
		               (unsigned long long)want->P, (unsigned long long)want->Q);
	if (bytes != total)
		return h->fail(err, GRADCOMP_ERR_INVALID, "%s: a state of %llu bytes, %llu are right", l->name,
		               (unsigned long long)bytes, (unsigned long long)total);
	return GRADCOMP_OK;
}

gradcomp_status lowrank_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err)
{
	lowrank *l = instance;
	saved want = header(l), got;
	if (bytes < sizeof got)
		return l->host->fail(err, GRADCOMP_ERR_INVALID, "%s: a state of %llu bytes is cut short", l->name,
		                     (unsigned long long)bytes);
	memcpy(&got, in, sizeof got);
	gradcomp_status st = check(l, &got, &want, bytes, err);
	if (st)
		return st;
	const char *from = (const char *)in + sizeof got;
	if (want.P)
		memcpy(l->P, from, want.P * sizeof *l->P);
	if (want.Q)
		memcpy(l->Q, from + want.P * sizeof *l->P, want.Q * sizeof *l->Q);
	return GRADCOMP_OK;
}
