/* The factors of a warm start, for checkpoints. */
#include <string.h>

#include "powersgd.h"

/* The saved state: this header, then Q of all compressed tensors, in the byte
 * order of the machine. */
typedef struct saved {
	char magic[8];
	uint32_t version, warm;
	uint64_t floats, shapes;
} saved;

static saved header(const powersgd *p)
{
	saved s = {.magic = "powersgd",
	           .version = 1,
	           .warm = (uint32_t)p->warm,
	           .floats = p->q_floats,
	           .shapes = 14695981039346656037u};
	for (uint32_t i = 0; i < p->layout->ntensors; i++) {
		const uint64_t dims[] = {p->tensors[i].n, p->tensors[i].m, p->tensors[i].r};
		for (int k = 0; k < 3; k++)
			s.shapes = (s.shapes ^ dims[k]) * 1099511628211u;
	}
	return s;
}

gradcomp_status powersgd_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	const powersgd *p = instance;
	saved s = header(p);
	*bytes = sizeof s + p->q_floats * sizeof *p->Q;
	if (!out)
		return GRADCOMP_OK;
	if (capacity < *bytes)
		return p->host->fail(err, GRADCOMP_ERR_INVALID,
		                     "powersgd: state needs %llu bytes, there is room for %llu",
		                     (unsigned long long)*bytes, (unsigned long long)capacity);
	memcpy(out, &s, sizeof s);
	if (p->Q)
		memcpy((char *)out + sizeof s, p->Q, p->q_floats * sizeof *p->Q);
	return GRADCOMP_OK;
}

gradcomp_status powersgd_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err)
{
	powersgd *p = instance;
	saved want = header(p), got;
	uint64_t total = sizeof want + p->q_floats * sizeof *p->Q;
	if (bytes < sizeof got)
		return p->host->fail(err, GRADCOMP_ERR_INVALID, "powersgd: a state of %llu bytes is cut short",
		                     (unsigned long long)bytes);
	memcpy(&got, in, sizeof got);
	if (memcmp(got.magic, want.magic, sizeof got.magic))
		return p->host->fail(err, GRADCOMP_ERR_INVALID, "powersgd: this is not a state of powersgd");
	if (got.version != want.version)
		return p->host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
		                     "powersgd: state of version %u, this plugin reads %u", got.version,
		                     want.version);
	if (got.shapes != want.shapes || got.floats != want.floats || got.warm != want.warm || bytes != total)
		return p->host
		        ->fail(err, GRADCOMP_ERR_MISMATCH,
		               "powersgd: state of another model or other parameters (%llu floats in %llu bytes, "
		               "this one has %llu in %llu)",
		               (unsigned long long)got.floats, (unsigned long long)bytes,
		               (unsigned long long)want.floats, (unsigned long long)total);
	if (p->Q)
		memcpy(p->Q, (const char *)in + sizeof got, p->q_floats * sizeof *p->Q);
	return GRADCOMP_OK;
}
