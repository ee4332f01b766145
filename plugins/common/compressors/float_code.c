#include "plugins/common/compressors/float_code.h"

#include <string.h>

gradcomp_status float_code_create(const float_code *form, int rotate, const gradcomp_layout *layout, void **instance,
                                  gradcomp_error *err)
{
	const gradcomp_host *host = form->c.host;
	gradcomp_status st = GRADCOMP_OK;
	float_code *p = host->alloc(sizeof *p);
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory", form->c.name);
	*p = *form;
	p->op = host->operators;
	if (rotate)
		st = rotation_open(&p->r, host, p->c.name, p->block, layout, err);
	if (st)
		host->release(p);
	else
		*instance = p;
	return st;
}

void float_code_destroy(void *instance)
{
	float_code *p = instance;
	if (p)
		p->c.host->release(p);
}

uint64_t float_code_bound(void *instance, uint64_t n)
{
	const float_code *p = instance;
	return gradcomp_float8_scales(n, p->block, p->scales) + gradcomp_float8_codes(n, p->type);
}

/* A run that is rotated, and what its decoding finds wrong. */
typedef struct rotated {
	const float_code *p;
	int bad;
} rotated;

static void rotated_sizes(void *ctx, uint64_t n, uint64_t *values, uint64_t *codes)
{
	const rotated *t = ctx;
	*values = gradcomp_float8_scales(n, t->p->block, t->p->scales);
	*codes = gradcomp_float8_codes(n, t->p->type);
}

static void rotated_pack(void *ctx, void *out, const float *x, uint64_t n, uint64_t at)
{
	const rotated *t = ctx;
	(void)at;
	t->p->op->float8_pack(NULL, out, x, n, t->p->block, t->p->type, (int)t->p->scales);
}

static void rotated_read(void *ctx, float *y, const void *in, uint64_t n)
{
	rotated *t = ctx;
	int bad = 0;
	t->p->op->float8_read(NULL, y, in, n, t->p->block, t->p->type, (int)t->p->scales, &bad);
	if (bad)
		memset(y, 0, n * sizeof *y);
	t->bad |= bad;
}

static rotation_code rotated_code(rotated *t)
{
	return (rotation_code){.ctx = t, .sizes = rotated_sizes, .pack = rotated_pack, .read = rotated_read};
}

gradcomp_status float_code_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                uint64_t *bytes, gradcomp_error *err)
{
	const float_code *p = instance;
	rotated t = {p, 0};
	const rotation_code code = rotated_code(&t);
	(void)counter, (void)err;
	if (p->r.width)
		rotation_pack(&p->r, &code, out, in, n);
	else
		p->op->float8_pack(p->queue, out, in, n, p->block, p->type, (int)p->scales);
	*bytes = float_code_bound(instance, n);
	return GRADCOMP_OK;
}

/* add: out += what is decoded. */
static gradcomp_status decode(float_code *p, const uint8_t *in, uint64_t bytes, float *out, uint64_t n, int add,
                              gradcomp_error *err)
{
	rotated t = {p, 0};
	const rotation_code code = rotated_code(&t);
	int *fault = p->fault ? p->fault : &t.bad;
	gradcomp_status st = sdk_coded_length(&p->c, bytes, float_code_bound(p, n), n, err);
	if (st)
		return st;
	if (p->r.width)
		rotation_read(&p->r, &code, out, in, n, add);
	else
		(add ? p->op->float8_add : p->op->float8_read)(p->queue, out, in, n, p->block, p->type, (int)p->scales,
		                                               fault);
	return !t.bad ? GRADCOMP_OK
	              : p->c.host->fail(err, GRADCOMP_ERR_MISMATCH,
	                                "%s: a run of %llu numbers came with %sa scale that is none", p->c.name,
	                                (unsigned long long)n,
	                                p->type == GRADCOMP_F4E2M1 ? "" : "a code that is NaN or Inf, or ");
}

gradcomp_status float_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                  gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 0, err);
}

gradcomp_status float_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                      gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 1, err);
}

gradcomp_status float_code_on(void *instance, const gradcomp_operators *operators, void *queue, int *fault,
                              gradcomp_error *err)
{
	float_code *p = instance;
	(void)err;
	p->op = operators;
	p->queue = queue;
	p->fault = fault;
	return GRADCOMP_OK;
}

void float_code_layout(void *instance, uint64_t n, gradcomp_code_layout *out)
{
	const float_code *p = instance;
	*out = (gradcomp_code_layout){.struct_size = sizeof *out,
	                              .grain = p->block,
	                              .coding = {.struct_size = sizeof out->coding,
	                                         .kind = GRADCOMP_CODING_FLOAT8,
	                                         .block = p->block,
	                                         .type = p->type,
	                                         .powers = p->scales},
	                              .values = gradcomp_float8_scales(n, p->block, p->scales),
	                              .codes = gradcomp_float8_codes(n, p->type),
	                              .fault = p->fault};
}

gradcomp_status float_code_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                gradcomp_error *err)
{
	const float_code *p = instance;
	const int dense = step < p->c.start_step;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = dense ? 4.0 * (double)bucket->numel : (double)float_code_bound(instance, bucket->numel);
	cost->passes = dense ? 0 : p->r.width ? 9 : 5;
	return GRADCOMP_OK;
}
