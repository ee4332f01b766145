/* A compressor of this build, loaded by its SPEC, and its code run on its own: one
 * rank, buffers with a wall behind them. One thread. */
#ifndef TESTS_SUPPORT_CODEC_FIXTURE_H
#define TESTS_SUPPORT_CODEC_FIXTURE_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/guard.h"
#include "conformance/host.h"
#include "gradcomp/compressor.h"
#include "operators/operator_tables.h"
#include "config/spec.h"
#include "tests/support/tap.h"

typedef struct codec {
	const char *spec;
	void *so;
	const struct gradcomp_compressor_v1 *plugin;
	struct spec parsed;
	gradcomp_host host;
	gradcomp_layout layout;
	void *instance;
	gradcomp_error err;
} codec;

__attribute__((unused)) static void codec_close(codec *c)
{
	if (c->instance)
		c->plugin->destroy(c->instance);
	spec_clear(&c->parsed);
	if (c->so)
		dlclose(c->so);
}

/* The plugin and its values, without an instance. */
__attribute__((unused)) static gradcomp_status codec_load(codec *c, const char *text)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4096], name[SPEC_NAME_MAX] = "";
	*c = (codec){.spec = text};
	host_services(&c->host, operators_cpu());
	spec_name(text, name, NULL);
	snprintf(path, sizeof path, "%s/lib/gradcomp/compressors/%s.so", build ? build : ".", name);
	c->so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	c->plugin = c->so ? dlsym(c->so, "gradcomp_compressor_v1") : NULL;
	if (!c->plugin)
		return host_fail(&c->err, GRADCOMP_ERR_NOTFOUND, "%s", dlerror());
	gradcomp_status st = spec_parse(&c->plugin->info, text, &c->parsed, &c->err);
	return !st && c->plugin->check ? c->plugin->check(&c->host, c->parsed.values, &c->err) : st;
}

/* Opens a codec as rank `rank` of `nranks`, of a model of one tensor of n numbers. */
__attribute__((unused)) static int codec_open(codec *c, const char *text, int rank, int nranks, uint64_t n)
{
	static gradcomp_tensor tensor;
	static uint64_t dims[1];
	gradcomp_status st = codec_load(c, text);
	dims[0] = n;
	tensor = (gradcomp_tensor){.name = "tensor", .numel = n, .dims = dims, .ndim = 1};
	c->layout = (gradcomp_layout){.struct_size = sizeof c->layout,
	                              .ntensors = 1,
	                              .tensors = &tensor,
	                              .numel = n,
	                              .rank = rank,
	                              .nranks = nranks,
	                              .seed = 42};
	if (!st)
		st = c->plugin->create(&c->host, c->parsed.values, &c->layout, &c->instance, &c->err);
	if (st)
		ok(0, "%s: %s", text, c->err.text);
	return !st;
}

/* Codes x under guard: what came out is *wire, to be freed. 0 when it fails or breaks
 * its bound. */
__attribute__((unused)) static int codec_code(codec *c, const float *x, uint64_t n, uint64_t counter, guarded *wire,
                                              uint64_t *bytes)
{
	uint64_t bound = c->plugin->code_bound(c->instance, n);
	guarded in = guard("input", n * sizeof(float), 8);
	*wire = guard("coded", bound, 8);
	memcpy(in.data, x, n * sizeof(float));
	guard_lock(&in, 1);
	*bytes = UINT64_MAX;
	gradcomp_status st =
		c->plugin->code(c->instance, (float *)(void *)in.data, n, counter, wire->data, bytes, &c->err);
	guard_free(&in);
	return !st && *bytes <= bound && bound <= 4 * n + n / 64 + 64 && guard_intact(wire);
}

/* Decodes `bytes` bytes of `from`, which are put right before a wall, onto y. */
__attribute__((unused)) static gradcomp_status codec_decode(codec *c, const void *from, uint64_t bytes, float *y,
                                                            uint64_t n, int add)
{
	guarded in = guard("coded", bytes, 8), out = guard("output", n * sizeof(float), 8);
	memcpy(in.data, from, bytes);
	memcpy(out.data, y, n * sizeof(float));
	guard_lock(&in, 1);
	gradcomp_status st =
		(add ? c->plugin->code_decode_add : c->plugin->code_decode)(c->instance, in.data, bytes,
	                                                                    (float *)(void *)out.data, n, &c->err);
	memcpy(y, out.data, n * sizeof(float));
	if (!guard_intact(&out))
		st = GRADCOMP_ERR_INTERNAL;
	guard_free(&in), guard_free(&out);
	return st;
}

#endif
