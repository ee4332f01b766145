#include "plugins/common/collectives/sublinks.h"

static gradcomp_status send(void *ctx, int peer, const void *buf, size_t bytes, gradcomp_request *req,
                            gradcomp_error *err)
{
	const sublinks *s = ctx;
	return s->parent->send(s->parent->ctx, s->ranks[peer], buf, bytes, req, err);
}

static gradcomp_status recv(void *ctx, int peer, void *buf, size_t bytes, gradcomp_request *req, gradcomp_error *err)
{
	const sublinks *s = ctx;
	return s->parent->recv(s->parent->ctx, s->ranks[peer], buf, bytes, req, err);
}

static gradcomp_status wait(void *ctx, gradcomp_request *req, gradcomp_error *err)
{
	const sublinks *s = ctx;
	return s->parent->wait(s->parent->ctx, req, err);
}

static gradcomp_status test(void *ctx, gradcomp_request *req, int *done, gradcomp_error *err)
{
	const sublinks *s = ctx;
	return s->parent->test(s->parent->ctx, req, done, err);
}

static gradcomp_status recv_reduce(void *ctx, int peer, void *acc, size_t count, gradcomp_dtype dtype, gradcomp_op op,
                                   gradcomp_request *req, gradcomp_error *err)
{
	const sublinks *s = ctx;
	return s->parent->recv_reduce(s->parent->ctx, s->ranks[peer], acc, count, dtype, op, req, err);
}

static gradcomp_status multicast(void *ctx, const int *peers, int n, const void *buf, size_t bytes,
                                 gradcomp_request *reqs, gradcomp_error *err)
{
	const sublinks *s = ctx;
	if (n > s->links.nranks)
		return s->host->fail(err, GRADCOMP_ERR_INVALID, "a multicast to %d of %d ranks", n, s->links.nranks);
	for (int i = 0; i < n; i++)
		s->peers[i] = s->ranks[peers[i]];
	return s->parent->multicast(s->parent->ctx, s->peers, n, buf, bytes, reqs, err);
}

static gradcomp_status failure(void *ctx, gradcomp_error *err)
{
	const sublinks *s = ctx;
	return s->parent->failure(s->parent->ctx, err);
}

/* Nodes are numbered by first appearance here too. */
static int number_nodes(const gradcomp_links *parent, const int *ranks, int n, int32_t *node)
{
	int count = 0;
	for (int r = 0; r < n; r++) {
		int of = 0;
		while (of < r && parent->node[ranks[of]] != parent->node[ranks[r]])
			of++;
		node[r] = of < r ? node[of] : count++;
	}
	return count;
}

gradcomp_status sublinks_create(const gradcomp_host *host, const gradcomp_links *parent, const int *ranks, int n,
                                int me, sublinks **out, gradcomp_error *err)
{
	sublinks *s = host->alloc(sizeof *s + (size_t)n * (sizeof(int32_t) + sizeof(int)));
	if (!s)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "no memory for links to %d ranks", n);
	int32_t *node = (int32_t *)(s + 1);
	s->host = host;
	s->parent = parent;
	s->ranks = ranks;
	s->peers = (int *)(void *)(node + n);
	s->links = (gradcomp_links){.struct_size = sizeof s->links,
	                            .rank = me,
	                            .nranks = n,
	                            .nnodes = number_nodes(parent, ranks, n, node),
	                            .node = node,
	                            .ctx = s,
	                            .send = send,
	                            .recv = recv,
	                            .wait = wait,
	                            .test = test,
	                            .chunk = parent->chunk};
	if (GRADCOMP_HAS(parent, recv_reduce) && parent->recv_reduce)
		s->links.recv_reduce = recv_reduce;
	if (GRADCOMP_HAS(parent, multicast) && parent->multicast)
		s->links.multicast = multicast;
	if (GRADCOMP_HAS(parent, failure) && parent->failure)
		s->links.failure = failure;
	*out = s;
	return GRADCOMP_OK;
}

void sublinks_destroy(sublinks *s)
{
	if (s)
		s->host->release(s);
}
