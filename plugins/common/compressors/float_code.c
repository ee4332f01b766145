#include "plugins/common/compressors/float_code.h"

gradcomp_status float_code_create(const float_code *form, void **instance, gradcomp_error *err)
{
	const gradcomp_host *host = form->c.host;
	float_code *p = host->alloc(sizeof *p);
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory", form->c.name);
	*p = *form;
	p->op = host->operators;
	*instance = p;
	return GRADCOMP_OK;
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

gradcomp_status float_code_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                uint64_t *bytes, gradcomp_error *err)
{
	const float_code *p = instance;
	(void)counter, (void)err;
	p->op->float8_pack(p->queue, out, in, n, p->block, p->type, (int)p->scales);
	*bytes = float_code_bound(instance, n);
	return GRADCOMP_OK;
}

/* add: out += what is decoded. */
static gradcomp_status decode(float_code *p, const uint8_t *in, uint64_t bytes, float *out, uint64_t n, int add,
                              gradcomp_error *err)
{
	int bad = 0, *fault = p->fault ? p->fault : &bad;
	gradcomp_status st = sdk_coded_length(&p->c, bytes, float_code_bound(p, n), n, err);
	if (st)
		return st;
	(add ? p->op->float8_add : p->op->float8_read)(p->queue, out, in, n, p->block, p->type, (int)p->scales, fault);
	return !bad ? GRADCOMP_OK
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
	cost->passes = dense ? 0 : 5;
	return GRADCOMP_OK;
}
