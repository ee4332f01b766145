/* hier on nodes of all sorts, also such whose ranks are not neighbours: right against
 * double, the same bits on all ranks, and what goes between nodes counted. Then direct's
 * all-to-all. The nodes are the test's: links that say so, and count. */
#include "tests/support/thread_ranks.h"

#include "tests/support/operator_input.h"

#include "base/error.h"
#include "job/job.h"

#include <math.h>

/* With LONG numbers all ranks of a node of three or more read one copy of what goes to all of them. */
enum { MOST = 9, NUMBERS = 4099, LONG = 80021, ROOM = LONG + MOST * MOST, PAYLOAD = 240, SPLITS = 4 };

typedef struct nodes {
	const char *name;
	int P, m;
	int32_t node[MOST];
	int even;   /* ranks of every node, or 0 */
	int shards; /* 0: not looked at */
} nodes;

static const nodes shapes[] = {
	{"2 x 3", 6, 2, {0, 0, 0, 1, 1, 1}, 3, 3},
	{"3 x 2", 6, 3, {0, 0, 1, 1, 2, 2}, 2, 2},
	{"2 x 3 in turn", 6, 2, {0, 1, 0, 1, 0, 1}, 3, 3},
	{"one node", 3, 1, {0, 0, 0}, 3, 3},
	{"one rank a node", 3, 3, {0, 1, 2}, 1, 1},
	{"one rank", 1, 1, {0}, 1, 1},
	/* Over the largest, where an even share for a small node's ranks is not much less. */
	{"3 + 1", 4, 2, {0, 0, 0, 1}, 0, 3},
	{"2 + 2 + 1, mixed", 5, 3, {0, 1, 1, 2, 0}, 0, 2},
	{"4 + 2 + 1, mixed", 7, 3, {2, 0, 1, 0, 0, 1, 0}, 0, 4},
	{"1 + 5", 6, 2, {0, 1, 1, 1, 1, 1}, 0, 5},
	{"5 + 3", 8, 2, {0, 0, 0, 0, 0, 1, 1, 1}, 0, 5},
	/* Two shards on one rank of three, and one on the others, would be worse. */
	{"4 + 3", 7, 2, {0, 0, 0, 0, 1, 1, 1}, 0, 3},
	{"5 + 4", 9, 2, {0, 0, 0, 0, 0, 1, 1, 1, 1}, 0, 4},
};

/* Links with nodes of their own. */
typedef struct counting {
	gradcomp_links links;
	const gradcomp_links *real;
	uint64_t between; /* bytes this rank sent to other nodes */
	int multicasts;
} counting;

typedef struct trial {
	const nodes *of;
	int failed[MOST], holders[MOST]; /* how many shards a rank holds */
	int multicasts[MOST];
	float x[MOST][ROOM];
	uint64_t sharded[MOST], flat[MOST];
} trial;

static float *input[MOST];

static gradcomp_status count_send(void *ctx, int peer, const void *buf, size_t bytes, gradcomp_request *req,
                                  gradcomp_error *err)
{
	counting *c = ctx;
	c->between += c->links.node[peer] != c->links.node[c->links.rank] ? bytes : 0;
	return c->real->send(c->real->ctx, peer, buf, bytes, req, err);
}

static gradcomp_status count_multicast(void *ctx, const int *peers, int n, const void *buf, size_t bytes,
                                       gradcomp_request *reqs, gradcomp_error *err)
{
	counting *c = ctx;
	c->multicasts++;
	for (int i = 0; i < n; i++)
		c->between += c->links.node[peers[i]] != c->links.node[c->links.rank] ? bytes : 0;
	return c->real->multicast(c->real->ctx, peers, n, buf, bytes, reqs, err);
}

static gradcomp_status count_recv(void *ctx, int peer, void *buf, size_t bytes, gradcomp_request *req,
                                  gradcomp_error *err)
{
	const counting *c = ctx;
	return c->real->recv(c->real->ctx, peer, buf, bytes, req, err);
}

static gradcomp_status count_wait(void *ctx, gradcomp_request *req, gradcomp_error *err)
{
	const counting *c = ctx;
	return c->real->wait(c->real->ctx, req, err);
}

static gradcomp_status count_test(void *ctx, gradcomp_request *req, int *done, gradcomp_error *err)
{
	const counting *c = ctx;
	return c->real->test(c->real->ctx, req, done, err);
}

static const struct gradcomp_collective_v1 *make(gradcomp_job *job, const char *name, const gradcomp_links *links,
                                                 void **instance)
{
	gradcomp_error err;
	const plugin *p;
	spec s;
	if (spec_resolve(job->config, GRADCOMP_KIND_COLLECTIVE, name, &p, &s, &err))
		return NULL;
	gradcomp_status st = p->collective->create(&job->host, s.values, links, instance, &err);
	spec_clear(&s);
	return st ? NULL : p->collective;
}

static int wrong(double have, double want, int P)
{
	return !(fabs(have - want) <= 1e-6 * P);
}

/* Blocks that differ, some empty. */
static uint64_t block(int r, uint64_t n)
{
	return r % 3 == 2 ? 0 : n + (uint64_t)r;
}

static int blocks_right(const struct gradcomp_collective_v1 *c, void *h, float *x, int rank, int P, uint64_t n)
{
	uint64_t counts[MOST], bytes[MOST], at[MOST + 1] = {0};
	gradcomp_error err;
	int bad = 0;
	for (int r = 0; r < P; r++) {
		counts[r] = block(r, n / (uint64_t)P);
		bytes[r] = 4 * counts[r];
		at[r + 1] = at[r] + counts[r];
	}
	memcpy(x, input[rank], at[P] * sizeof *x);
	bad |= c->reduce_scatter(h, x, counts, GRADCOMP_F32, GRADCOMP_SUM, 0.5, &err) != 0;
	for (uint64_t i = at[rank]; i < at[rank + 1]; i++) {
		double want = 0;
		for (int r = 0; r < P; r++)
			want += 0.5 * input[r][i];
		bad |= wrong(x[i], want, P);
	}
	for (uint64_t i = 0; i < at[P]; i++)
		x[i] = i >= at[rank] && i < at[rank + 1] ? input[rank][i] : NAN;
	bad |= c->allgather(h, x, bytes, &err) != 0;
	for (int r = 0; r < P; r++)
		bad |= memcmp(x + at[r], input[r] + at[r], bytes[r]) != 0;
	for (int root = 0; root < P; root++) {
		for (uint64_t i = 0; i < n; i++)
			x[i] = rank == root ? input[root][i] : NAN;
		bad |= c->broadcast(h, x, 4 * n, root, &err) != 0 || memcmp(x, input[root], 4 * n);
	}
	return bad | (c->barrier(h, &err) != 0);
}

/* Compares what a node's holders get from the others with all ranks' payloads for everybody. */
static void bytes_between(const struct gradcomp_collective_v1 *c, void *h, const struct gradcomp_collective_v1 *flat,
                          void *ring, counting *links, trial *t, int rank)
{
	static char buf[MOST][MOST * MOST * PAYLOAD];
	int P = t->of->P;
	uint64_t bytes[MOST];
	gradcomp_error err;
	for (int r = 0; r < P; r++)
		bytes[r] = PAYLOAD;
	links->between = 0;
	if (t->holders[rank])
		t->failed[rank] |= c->shard_allgather(h, buf[rank], bytes, &err) != 0;
	t->sharded[rank] = links->between;
	for (int r = 0; r < P; r++)
		bytes[r] = (uint64_t)PAYLOAD * (uint64_t)t->of->even;
	links->between = 0;
	t->failed[rank] |= flat->allgather(ring, buf[rank], bytes, &err) != 0;
	t->flat[rank] = links->between;
}

/* Shards of a node are all of the buffer, each once. Returns what is wrong. */
static int shards_tile(const struct gradcomp_collective_v1 *c, void *h, float *x, uint64_t n, trial *t, int rank)
{
	gradcomp_shard shard = {.struct_size = sizeof shard}, first = {.struct_size = sizeof first};
	gradcomp_error err;
	void *holders;
	int bad = 0, k = 0;
	for (uint64_t i = 0; i < n; i++)
		x[i] = NAN;
	bad |= c->shard(h, n, &first, &err) != 0 || first.nranks != t->of->m;
	while (!bad && !c->shard_at(h, (uint32_t)k, n, &shard, &holders, &err) && shard.rank >= 0) {
		bad |= shard.nranks != t->of->m || shard.begin > n || shard.numel > n - shard.begin;
		bad |= !k && (shard.begin != first.begin || shard.numel != first.numel || shard.rank != first.rank);
		for (uint64_t i = shard.begin; !bad && i < shard.begin + shard.numel; i++) {
			bad |= !isnan(x[i]);
			x[i] = 1;
		}
		k++;
	}
	t->holders[rank] = k;
	bad |= c->local_allgather(h, x, n, &err) != 0;
	for (uint64_t i = 0; i < n; i++)
		bad |= x[i] != 1;
	return bad;
}

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	static const uint64_t sizes[] = {0, 1, 2, 7, NUMBERS, LONG};
	trial *t = arg;
	counting links = {.links.rank = rank};
	gradcomp_error err = {0};
	channel *channel;
	int world[MOST];
	void *h = NULL, *ring = NULL;
	for (int r = 0; r < P; r++)
		world[r] = r;
	if (channel_open(job->transport, 77, world, P, rank, &channel, &err)) {
		t->failed[rank] = 1;
		return;
	}
	links.real = channel_links(channel);
	links.links = (gradcomp_links){.struct_size = sizeof links.links,
	                               .rank = rank,
	                               .nranks = P,
	                               .nnodes = t->of->m,
	                               .node = t->of->node,
	                               .ctx = &links,
	                               .send = count_send,
	                               .recv = count_recv,
	                               .wait = count_wait,
	                               .test = count_test,
	                               .multicast = count_multicast,
	                               .chunk = 4096};
	const struct gradcomp_collective_v1 *c = make(job, "hier", &links.links, &h);
	const struct gradcomp_collective_v1 *flat = make(job, "ring", &links.links, &ring);
	if (!c || !flat) {
		t->failed[rank] = 1;
		return;
	}
	for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
		uint64_t n = sizes[s];
		float *x = t->x[rank];
		memcpy(x, input[rank], 4 * n);
		t->failed[rank] |= c->allreduce(h, x, n, GRADCOMP_F32, GRADCOMP_SUM, 1.0 / P, &err) != 0;
		for (uint64_t i = 0; i < n; i++) {
			double want = 0;
			for (int r = 0; r < P; r++)
				want += (double)input[r][i] / P;
			t->failed[rank] |= wrong(x[i], want, P) << 1;
		}
		ranks_wait();
		t->failed[rank] |= memcmp(x, t->x[0], 4 * n) ? 4 : 0;
		ranks_wait();
		t->failed[rank] |= blocks_right(c, h, x, rank, P, n) << 3;
		t->failed[rank] |= shards_tile(c, h, x, n, t, rank) << 5;
		/* A sum that is spread is everybody's. */
		memcpy(x, input[rank], 4 * n);
		t->failed[rank] |=
			c->local_reduce_scatter(h, x, n, 2.0, &err) != 0 || c->local_allgather(h, x, n, &err) != 0;
		for (uint64_t i = 0; i < n; i++) {
			double want = 0;
			for (int r = 0; r < P; r++)
				want += t->of->node[r] == t->of->node[rank] ? 2.0 * (double)input[r][i] : 0;
			t->failed[rank] |= wrong(x[i], want, 2 * P) << 4;
		}
	}
	t->multicasts[rank] = links.multicasts;
	if (t->of->even)
		bytes_between(c, h, flat, ring, &links, t, rank);
	c->destroy(h);
	flat->destroy(ring);
	channel_close(channel);
}

static void check(const nodes *of, const char *const *settings)
{
	trial *t = calloc(1, sizeof *t);
	int failed = 0;
	uint64_t sharded = 0, flat = 0;
	t->of = of;
	run_ranks(of->P, settings, body, t);
	for (int r = 0; r < of->P; r++) {
		failed |= t->failed[r];
		sharded += t->sharded[r];
		flat += t->flat[r];
	}
	ok(!failed, "hier, %s: all-reduce, reduce-scatter, all-gather, broadcast, barrier, shards (%#x)", of->name,
	   (unsigned)failed);
	int held[MOST] = {0}, ranks[MOST] = {0}, multicasts[MOST] = {0}, differ = 0, once = 1;
	for (int r = 0; r < of->P; r++) {
		held[of->node[r]] += t->holders[r];
		multicasts[of->node[r]] += t->multicasts[r];
		ranks[of->node[r]]++;
	}
	for (int k = 0; k < of->m; k++)
		once &= (multicasts[k] > 0) == (ranks[k] > 2);
	ok(once, "hier, %s: what is long is copied once for all ranks of a node, where they are three or more",
	   of->name);
	for (int k = 0; k < of->m; k++)
		differ |= held[k] != (of->shards ? of->shards : held[0]);
	ok(!differ, "hier, %s: %d shards", of->name, held[0]);
	if (of->even)
		/* A flat all-gather brings each node the payloads of all ranks of the others, n times
		 * as long: once at least, and around a ring what it had sent out too. */
		ok(sharded == (uint64_t)(of->m * (of->m - 1) * of->even * PAYLOAD) &&
		           flat >= sharded * (uint64_t)of->even,
		   "hier, %s: %llu bytes between nodes by shards: 1/%d of all payloads of other nodes exactly (a flat ring: %llu)",
		   of->name, (unsigned long long)sharded, of->even, (unsigned long long)flat);
	free(t);
}

/* Some split of so many ranks over nodes. */
static void check_any(int P, const char *const *settings)
{
	nodes of = {.P = P};
	char name[64];
	int count[MOST] = {0}, to[MOST] = {0}, at;
	for (int r = 0; r < P; r++) {
		of.node[r] = (int)(test_uniform() * P);
		count[of.node[r]]++;
	}
	for (int k = 0; k < P; k++)
		to[k] = count[k] ? of.m++ : 0;
	at = snprintf(name, sizeof name, "ranks on nodes");
	for (int r = 0; r < P; r++) {
		of.node[r] = to[of.node[r]];
		at += snprintf(name + at, sizeof name - (size_t)at, " %d", (int)of.node[r]);
	}
	of.name = name;
	check(&of, settings);
}

static void alltoall_body(gradcomp_job *job, int rank, int P, void *arg)
{
	unsigned char in[2000], out[2000];
	uint64_t in_bytes[MOST], out_bytes[MOST], at = 0;
	gradcomp_error err = {0};
	const plugin *p;
	coll_ctx coll_ctx;
	spec s;
	int *failed = arg, bad = 0;
	if (spec_resolve(job->config, GRADCOMP_KIND_COLLECTIVE, "direct", &p, &s, &err) ||
	    group_coll_open(gradcomp_job_world(job), p, &s, &coll_ctx, &err)) {
		failed[rank] = 1;
		return;
	}
	spec_clear(&s);
	for (int r = 0; r < P; r++) {
		in_bytes[r] = (uint64_t)(rank * 7 + r * 3) % 50;
		out_bytes[r] = (uint64_t)(r * 7 + rank * 3) % 50;
		memset(in + at, 16 * rank + r, in_bytes[r]);
		at += in_bytes[r];
	}
	bad |= coll_ctx.collective->alltoall(coll_ctx.instance, in, in_bytes, out, out_bytes, &err) != 0;
	at = 0;
	for (int r = 0; r < P; r++)
		for (uint64_t i = 0; i < out_bytes[r]; i++)
			bad |= out[at++] != 16 * r + rank;
	failed[rank] |= bad;
	group_coll_close(&coll_ctx);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	test_seed();
	for (int r = 0; r < MOST; r++) {
		input[r] = malloc(ROOM * sizeof(float));
		for (int i = 0; i < ROOM; i++)
			input[r][i] = (float)(test_uniform() - 0.5);
	}
	for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
		check(&shapes[k], settings);
	for (int k = 0; k < SPLITS; k++)
		check_any(MOST - k, settings);
	for (int P = 1; P <= 6; P++) {
		int failed[MOST] = {0}, any = 0;
		run_ranks(P, settings, alltoall_body, failed);
		for (int r = 0; r < P; r++)
			any |= failed[r];
		ok(!any, "direct, %d ranks: every block of an all-to-all goes where it should", P);
	}
	for (int r = 0; r < MOST; r++)
		free(input[r]);
	return done_testing();
}
