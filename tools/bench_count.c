#include "tools/bench_count.h"

static gradcomp_status count_send(void *ctx, int peer, const void *buf, size_t bytes, gradcomp_request *req,
                                  gradcomp_error *err)
{
	counted_links *c = ctx;
	c->bytes += bytes;
	c->messages++;
	return c->inner->send(c->inner->ctx, peer, buf, bytes, req, err);
}

static gradcomp_status pass_recv(void *ctx, int peer, void *buf, size_t bytes, gradcomp_request *req,
                                 gradcomp_error *err)
{
	const gradcomp_links *l = ((counted_links *)ctx)->inner;
	return l->recv(l->ctx, peer, buf, bytes, req, err);
}

static gradcomp_status pass_wait(void *ctx, gradcomp_request *req, gradcomp_error *err)
{
	const gradcomp_links *l = ((counted_links *)ctx)->inner;
	return l->wait(l->ctx, req, err);
}

static gradcomp_status pass_test(void *ctx, gradcomp_request *req, int *done, gradcomp_error *err)
{
	const gradcomp_links *l = ((counted_links *)ctx)->inner;
	return l->test(l->ctx, req, done, err);
}

static gradcomp_status pass_recv_reduce(void *ctx, int peer, void *acc, size_t count, gradcomp_dtype dtype,
                                        gradcomp_op op, gradcomp_request *req, gradcomp_error *err)
{
	const gradcomp_links *l = ((counted_links *)ctx)->inner;
	return l->recv_reduce(l->ctx, peer, acc, count, dtype, op, req, err);
}

static gradcomp_status count_multicast(void *ctx, const int *peers, int n, const void *buf, size_t bytes,
                                       gradcomp_request *reqs, gradcomp_error *err)
{
	counted_links *c = ctx;
	c->bytes += bytes * (uint64_t)n;
	c->messages += (uint64_t)n;
	return c->inner->multicast(c->inner->ctx, peers, n, buf, bytes, reqs, err);
}

void count_links(counted_links *c, const gradcomp_links *inner)
{
	*c = (counted_links){.inner = inner,
	                     .api = {.struct_size = sizeof c->api,
	                             .rank = inner->rank,
	                             .nranks = inner->nranks,
	                             .nnodes = inner->nnodes,
	                             .node = inner->node,
	                             .ctx = c,
	                             .send = count_send,
	                             .recv = pass_recv,
	                             .wait = pass_wait,
	                             .test = pass_test,
	                             .chunk = inner->chunk,
	                             .recv_reduce = inner->recv_reduce ? pass_recv_reduce : NULL,
	                             .multicast = inner->multicast ? count_multicast : NULL}};
}

static uint64_t code_bound(void *ctx, uint64_t n)
{
	const counted_codec *c = ctx;
	return c->plugin->code_bound(c->instance, n);
}

static gradcomp_status count_code(void *ctx, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
                                  gradcomp_error *err)
{
	counted_codec *c = ctx;
	c->calls++;
	c->numbers += n;
	return c->plugin->code(c->instance, in, n, counter, out, bytes, err);
}

static gradcomp_status decode(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n, gradcomp_error *err)
{
	const counted_codec *c = ctx;
	return c->plugin->code_decode(c->instance, in, bytes, out, n, err);
}

static gradcomp_status decode_add(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n,
                                  gradcomp_error *err)
{
	const counted_codec *c = ctx;
	return c->plugin->code_decode_add(c->instance, in, bytes, out, n, err);
}

void count_codec(counted_codec *c, const struct gradcomp_compressor_v1 *plugin, void *instance)
{
	*c = (counted_codec){.plugin = plugin,
	                     .instance = instance,
	                     .api = {.struct_size = sizeof c->api,
	                             .ctx = c,
	                             .bound = code_bound,
	                             .code = count_code,
	                             .decode = decode,
	                             .decode_add = decode_add}};
}
