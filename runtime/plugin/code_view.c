#include "plugin/code_view.h"

#include "base/error.h"
#include "plugin/descriptor.h"

static uint64_t code_bound(void *ctx, uint64_t n)
{
	const code_source *s = ctx;
	return s->compressor->code_bound(s->instance, n);
}

static gradcomp_status code(void *ctx, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
                            gradcomp_error *err)
{
	const code_source *s = ctx;
	uint64_t bound = code_bound(ctx, n);
	gradcomp_error own = {0};
	gradcomp_status st = s->compressor->code(s->instance, in, n, counter, out, bytes, &own);
	st = descriptor_compressor_status(s->compressor, "code", st, &own, err);
	if (!st && *bytes > bound)
		st = error_set(err, GRADCOMP_ERR_INTERNAL,
		               "compressor '%s' made a code of %llu bytes for %llu numbers where it promised at "
		               "most %llu",
		               s->compressor->info.name, (unsigned long long)*bytes, (unsigned long long)n,
		               (unsigned long long)bound);
	return st;
}

static gradcomp_status decode(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n, gradcomp_error *err)
{
	const code_source *s = ctx;
	gradcomp_error own = {0};
	gradcomp_status st = s->compressor->code_decode(s->instance, in, bytes, out, n, &own);
	return descriptor_compressor_status(s->compressor, "code_decode", st, &own, err);
}

static gradcomp_status decode_add(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n,
                                  gradcomp_error *err)
{
	const code_source *s = ctx;
	gradcomp_error own = {0};
	gradcomp_status st = s->compressor->code_decode_add(s->instance, in, bytes, out, n, &own);
	return descriptor_compressor_status(s->compressor, "code_decode_add", st, &own, err);
}

static void layout(void *ctx, uint64_t n, gradcomp_code_layout *out)
{
	const code_source *s = ctx;
	s->compressor->code_layout(s->instance, n, out);
}

gradcomp_codec code_view(code_source *source)
{
	return (gradcomp_codec){.struct_size = sizeof(gradcomp_codec),
	                        .flags = code_view_flags(source->compressor),
	                        .ctx = source,
	                        .bound = code_bound,
	                        .code = code,
	                        .decode = decode,
	                        .decode_add = decode_add,
	                        .layout = source->compressor->code_layout ? layout : NULL};
}
