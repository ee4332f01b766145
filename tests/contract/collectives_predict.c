/* predict() of every installed collective against what goes over the links: bytes that a rank
 * sends and a node lets out, and messages on the critical path.
 *
 * Groups are those that predict() speaks of: nodes with equally many ranks. That path is
 * found by clocks that messages carry: posting one takes half a unit, its way the other half,
 * and a rank that waits for a message is as late as it came. */
#include "tests/support/collective_layouts.h"

#include "tests/support/collective_codes.h"

enum { SIZES = 5, FLIGHT = 4096 };
/* One piece a block, of the first two. */
static const uint64_t sizes[SIZES] = {64, 4096, 30000, 120000, 400000};

typedef struct post {
	gradcomp_request *req;
	double at;
} post;

/* Links that carry clocks. */
typedef struct clocked {
	gradcomp_links links;
	const gradcomp_links *real;
	double now;
	double sent, left; /* bytes */
	uint64_t codes;
	post coming[64];
} clocked;

/* By sender and receiver: when messages come. */
static struct lane {
	pthread_mutex_t lock;
	double at[FLIGHT];
	int in, out;
} lanes[RANKS][RANKS];

static gradcomp_status clocked_send(void *ctx, int peer, const void *buf, size_t bytes, gradcomp_request *req,
                                    gradcomp_error *err)
{
	clocked *c = ctx;
	struct lane *l = &lanes[c->links.rank][peer];
	c->now += 0.5;
	c->sent += (double)bytes;
	c->left += c->links.node[peer] != c->links.node[c->links.rank] ? (double)bytes : 0;
	pthread_mutex_lock(&l->lock);
	l->at[l->in++ % FLIGHT] = c->now + 0.5;
	pthread_mutex_unlock(&l->lock);
	return c->real->send(c->real->ctx, peer, buf, bytes, req, err);
}

/* Receives match in the order of posting; so does what is noted of them. */
static gradcomp_status clocked_multicast(void *ctx, const int *peers, int n, const void *buf, size_t bytes,
                                         gradcomp_request *reqs, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int i = 0; !st && i < n; i++)
		st = clocked_send(ctx, peers[i], buf, bytes, &reqs[i], err);
	return st;
}

static gradcomp_status clocked_recv(void *ctx, int peer, void *buf, size_t bytes, gradcomp_request *req,
                                    gradcomp_error *err)
{
	clocked *c = ctx;
	int k = 0;
	while (k < 63 && c->coming[k].req && c->coming[k].req != req)
		k++;
	struct lane *l = &lanes[peer][c->links.rank];
	c->coming[k].req = req;
	pthread_mutex_lock(&l->lock);
	c->coming[k].at = -1.0 - (peer * FLIGHT + l->out++ % FLIGHT);
	pthread_mutex_unlock(&l->lock);
	return c->real->recv(c->real->ctx, peer, buf, bytes, req, err);
}

static gradcomp_status clocked_wait(void *ctx, gradcomp_request *req, gradcomp_error *err)
{
	clocked *c = ctx;
	gradcomp_status st = c->real->wait(c->real->ctx, req, err);
	for (int k = 0; !st && k < 64; k++) {
		if (c->coming[k].req != req)
			continue;
		int place = (int)(-1.0 - c->coming[k].at), peer = place / FLIGHT;
		struct lane *l = &lanes[peer][c->links.rank];
		pthread_mutex_lock(&l->lock);
		double at = l->at[place % FLIGHT];
		pthread_mutex_unlock(&l->lock);
		c->now = at > c->now ? at : c->now;
		c->coming[k].req = NULL;
	}
	return st;
}

static gradcomp_status clocked_test(void *ctx, gradcomp_request *req, int *done, gradcomp_error *err)
{
	clocked *c = ctx;
	return c->real->test(c->real->ctx, req, done, err);
}

static const struct {
	const char *name;
	uint32_t bit;
	int coded;
} primitives[] = {
	{"all-reduce", GRADCOMP_CAN_ALLREDUCE, 0},
	{"reduce-scatter", GRADCOMP_CAN_REDUCE_SCATTER, 0},
	{"all-gather", GRADCOMP_CAN_ALLGATHER, 0},
	{"all-to-all", GRADCOMP_CAN_ALLTOALL, 0},
	{"broadcast", GRADCOMP_CAN_BROADCAST, 0},
	{"barrier", GRADCOMP_CAN_BARRIER, 0},
	{"merge", GRADCOMP_CAN_MERGE, 0},
	{"coded all-reduce", GRADCOMP_CAN_CODED_ALLREDUCE, 1},
	{"coded all-gather", GRADCOMP_CAN_CODED_ALLGATHER, 1},
	{"coded reduce-scatter", GRADCOMP_CAN_CODED_REDUCE_SCATTER, 1},
	{"exchange", GRADCOMP_CAN_EXCHANGE, 1},
	{"shards", GRADCOMP_CAN_SHARD, 0},
};
enum { PRIMITIVES = sizeof primitives / sizeof primitives[0] };

typedef struct count {
	double sent, left, longest;
} count;

typedef struct trial {
	const char *spec;
	const struct gradcomp_collective_v1 *plugin;
	char cannot[508], failed[508];
	const layout *l;
	count at[PRIMITIVES][SIZES][RANKS];
	gradcomp_call_load said[PRIMITIVES][SIZES];
	gradcomp_status status[PRIMITIVES][SIZES];
} trial;

typedef struct place {
	const struct gradcomp_collective_v1 *c;
	void *instance;
	clocked *links;
	char *a, *b;
	float *memory;
	test_code code;
} place;

/* Makes calls as predict() counts: bytes of the whole, of a block, or for each other rank. */
static gradcomp_status call(place *p, uint32_t bit, uint64_t bytes, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = p->c;
	int P = p->links->links.nranks;
	uint64_t n = bytes / 4, counts[RANKS], blocks[RANKS];
	float *x = (float *)(void *)p->a, *residual = (float *)(void *)p->b;
	gradcomp_codec codec = test_codec(&p->code);
	test_merger merging = {.dropped = residual};
	gradcomp_merger merger = {.struct_size = sizeof merger, .ctx = &merging, .merge = test_merge};
	gradcomp_payload payload = {p->a, bytes, bytes};
	const gradcomp_exchange exchange = {.struct_size = sizeof exchange,
	                                    .buf = x,
	                                    .count = n,
	                                    .scale = 1,
	                                    .codec = &codec,
	                                    .counter = 1,
	                                    .residual = residual,
	                                    .server_error = p->memory};
	gradcomp_status st;
	for (int r = 0; r < P; r++) {
		counts[r] = n / (uint64_t)P + ((uint64_t)r < n % (uint64_t)P);
		blocks[r] = bytes;
	}
	switch (bit) {
	case GRADCOMP_CAN_ALLREDUCE:
		return c->allreduce(p->instance, x, n, GRADCOMP_F32, GRADCOMP_SUM, 1.0, err);
	case GRADCOMP_CAN_REDUCE_SCATTER:
		return c->reduce_scatter(p->instance, x, counts, GRADCOMP_F32, GRADCOMP_SUM, 1.0, err);
	case GRADCOMP_CAN_ALLGATHER:
		return c->allgather(p->instance, p->a, blocks, err);
	case GRADCOMP_CAN_ALLTOALL:
		return c->alltoall(p->instance, p->a, blocks, p->b, blocks, err);
	case GRADCOMP_CAN_BROADCAST:
		return c->broadcast(p->instance, p->a, bytes, 0, err);
	case GRADCOMP_CAN_BARRIER:
		return c->barrier(p->instance, err);
	case GRADCOMP_CAN_MERGE:
		return c->merge(p->instance, &payload, bytes, &merger, err);
	case GRADCOMP_CAN_CODED_ALLREDUCE:
		return c->coded_allreduce(p->instance, x, n, 1.0, &codec, 1, residual, err);
	case GRADCOMP_CAN_CODED_REDUCE_SCATTER:
		return c->coded_reduce_scatter(p->instance, x, counts, 1.0, &codec, 1, residual, err);
	case GRADCOMP_CAN_CODED_ALLGATHER:
		for (int r = 0; r < P; r++)
			blocks[r] = n;
		return c->coded_allgather(p->instance, x, blocks, &codec, 1, residual, err);
	case GRADCOMP_CAN_EXCHANGE:
		return c->exchange(p->instance, &exchange, err);
	default:
		st = c->local_reduce_scatter(p->instance, x, n, 1.0, err);
		return st ? st : c->local_allgather(p->instance, x, n, err);
	}
}

static void measure(trial *t, place *p, int rank)
{
	gradcomp_error err = {0};
	clocked *c = p->links;
	for (int what = 0; what < PRIMITIVES; what++) {
		for (int s = 0; p->c->serves & primitives[what].bit && s < SIZES; s++) {
			/* All lanes begin at 0. */
			for (int k = 0; k < 64; k++)
				c->coming[k].req = NULL;
			for (int r = 0; r < RANKS; r++)
				lanes[rank][r].in = lanes[rank][r].out = 0;
			c->now = c->sent = c->left = 0;
			ranks_wait();
			if (call(p, primitives[what].bit, sizes[s], &err))
				snprintf(t->failed, sizeof t->failed, "%s", err.text);
			t->at[what][s][rank] = (count){c->sent, c->left, c->now};
			ranks_wait();
		}
	}
}

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	trial *t = arg;
	const gradcomp_links *real = NULL;
	const plugin *plugin;
	spec s;
	gradcomp_error err = {0};
	clocked *c = calloc(1, sizeof *c);
	place p = {.links = c,
	           .a = calloc(RANKS, sizes[SIZES - 1]),
	           .b = calloc(RANKS, sizes[SIZES - 1]),
	           .memory = calloc(1, sizes[SIZES - 1]),
	           .code = {.kind = CODE_EXACT, .host = &job->host}};
	gradcomp_status st = spec_resolve(job->config, GRADCOMP_KIND_COLLECTIVE, t->spec, &plugin, &s, &err);
	(void)P;
	if (!st)
		st = gradcomp_links_open(gradcomp_job_world(job), &real, &err);
	if (!st) {
		c->real = real;
		c->links = *real;
		c->links.ctx = c;
		c->links.send = clocked_send;
		c->links.recv = clocked_recv;
		c->links.wait = clocked_wait;
		c->links.test = clocked_test;
		c->links.recv_reduce = NULL;
		c->links.multicast = clocked_multicast;
		p.c = plugin->collective;
		st = p.c->create(&job->host, s.values, &c->links, &p.instance, &err);
	}
	if (st)
		snprintf(t->cannot, sizeof t->cannot, "%s", err.text);
	if (rank == 0 && !st) {
		t->plugin = p.c;
		for (int what = 0; p.c->predict && what < PRIMITIVES; what++)
			for (int k = 0; k < SIZES; k++) {
				t->said[what][k] = (gradcomp_call_load){.struct_size = sizeof(gradcomp_call_load)};
				t->status[what][k] =
					p.c->predict(s.values, real->nranks, real->nnodes, primitives[what].bit,
				                     sizes[k], &t->said[what][k], &err);
			}
	}
	if (!st && p.c->predict) {
		/* The time that is measured once, at the first call, is none of a call's. */
		if (p.c->serves & GRADCOMP_CAN_ALLREDUCE)
			call(&p, GRADCOMP_CAN_ALLREDUCE, 64, &err);
		ranks_wait();
		measure(t, &p, rank);
	}
	if (p.instance)
		p.c->destroy(p.instance);
	gradcomp_links_close(gradcomp_job_world(job), real);
	spec_clear(&s);
	free(p.a), free(p.b), free(p.memory), free(c);
}

static int near(double said, double counted, double off)
{
	return said >= counted - off && said <= counted + off;
}

/* Around a ring the clocks agree; its broadcast is a tree. Blocks that go around the end of a circle go as two
 * messages; and where ranks are no power of two, who is added may lie off the longest way.
 * Pieces, and codes' heads, come right behind one another. */
static int as_many_steps(int ring, int P, int nodes, int pieces, double said, double counted)
{
	int whole = P & (P - 1) ? 0 : 1;
	if (pieces)
		return said <= counted + (ring ? 1e-9 : 2);
	if (ring)
		return near(said, counted, 1e-9);
	return counted <= 1.5 * said && (said <= counted + (whole ? 1e-9 : 2) || (nodes > 1 && nodes < P));
}

static void check(const char *spec, const layout *l, const char *const *settings)
{
	trial *t = calloc(1, sizeof *t);
	int nodes = 0;
	t->spec = spec;
	t->l = l;
	for (int r = 0; r < l->P; r++)
		nodes = l->nodes[r] >= nodes ? l->nodes[r] + 1 : nodes;
	grid_run(l, settings, body, t);
	if (*t->cannot || !t->plugin || !t->plugin->predict) {
		skip(*t->cannot ? t->cannot : "it has no predict", "%s, %s", spec, l->name);
		free(t);
		return;
	}
	ok(!*t->failed, "%s, %s: all calls %s", spec, l->name, t->failed);
	for (int what = 0; what < PRIMITIVES; what++) {
		int serves = !!(t->plugin->serves & primitives[what].bit), refused = 1, sent = 1, left = 1, path = 1;
		for (int s = 0; s < SIZES; s++) {
			const gradcomp_call_load *said = &t->said[what][s];
			double all = 0, out = 0, longest = 0, messages = said->messages[0] + said->messages[1];
			refused &= t->status[what][s] == (serves ? GRADCOMP_OK : GRADCOMP_ERR_UNSUPPORTED);
			for (int r = 0; serves && r < l->P; r++) {
				all += t->at[what][s][r].sent / l->P;
				out += t->at[what][s][r].left / nodes;
				longest = t->at[what][s][r].longest > longest ? t->at[what][s][r].longest : longest;
			}
			if (!serves)
				continue;
			/* Blocks of whole numbers differ by one; a code has a head of 8 bytes, a run in 64 KiB. */
			double off = 16.0 * l->P +
			             (primitives[what].coded ? 16.0 * l->P * (8 + 2.0 * (double)sizes[s] / 4096) : 0);
			int ring = (!strncmp(spec, "ring", 4) || !strcmp(spec, "sparse")) &&
			           primitives[what].bit != GRADCOMP_CAN_BROADCAST;
			int same = near(said->sent, all, off), as_many = near(said->left, out, off * l->P);
			int steps = as_many_steps(ring, l->P, nodes, sizes[s] > 4096 || primitives[what].coded,
			                          messages, longest);
			if (!same || !as_many || !steps)
				printf("# %s, %s, %s of %llu bytes: sent %.0f (%.0f counted), left %.0f (%.0f), messages %.1f (%.1f)\n",
				       spec, l->name, primitives[what].name, (unsigned long long)sizes[s], said->sent,
				       all, said->left, out, messages, longest);
			sent &= same;
			left &= as_many;
			path &= steps;
		}
		ok(refused, "%s, %s: %s is %s", spec, l->name, primitives[what].name, serves ? "predicted" : "refused");
		if (serves)
			ok(sent && left && path, "%s, %s: %s%s%s%s", spec, l->name, primitives[what].name,
			   sent ? "" : "; bytes sent", left ? "" : "; bytes that leave", path ? "" : "; messages");
	}
	free(t);
}

/* Tries arguments; the conformance kit asks the same of any plugin. */
static void arguments(const char *const *settings)
{
	gradcomp_error err;
	config *c;
	if (config_load(settings, &c, &err))
		return;
	for (int k = 0; k < ncollectives; k++) {
		const plugin *p;
		spec s;
		gradcomp_call_load l = {.struct_size = sizeof l}, again = l;
		if (spec_resolve(c, GRADCOMP_KIND_COLLECTIVE, collectives[k], &p, &s, &err))
			continue;
		if (p->collective->predict) {
			is_int(p->collective->predict(s.values, 4, 5, GRADCOMP_CAN_ALLREDUCE, 4, &l, &err),
			       GRADCOMP_ERR_INVALID, "%s: more nodes than ranks", collectives[k]);
			is_int(p->collective->predict(s.values, 0, 0, GRADCOMP_CAN_ALLREDUCE, 4, &l, NULL),
			       GRADCOMP_ERR_INVALID, "%s: nobody", collectives[k]);
			p->collective->predict(s.values, 16384, 2048, GRADCOMP_CAN_ALLREDUCE, 1 << 26, &l, &err);
			p->collective->predict(s.values, 8, 2, GRADCOMP_CAN_ALLREDUCE, 1 << 26, &again, &err);
			p->collective->predict(s.values, 16384, 2048, GRADCOMP_CAN_ALLREDUCE, 1 << 26, &again, &err);
			ok(!memcmp(&l, &again, sizeof l) && l.sent > 0,
			   "%s: 16,384 ranks, the same again after another group", collectives[k]);
		}
		spec_clear(&s);
	}
	config_free(c);
}

int main(void)
{
	static const layout spread[] = {{"4 nodes", 4, {0, 1, 2, 3}},
	                                {"7 nodes", 7, {0, 1, 2, 3, 4, 5, 6}},
	                                {"9 nodes", 9, {0, 1, 2, 3, 4, 5, 6, 7, 8}}};
	/* The ranks lie on nodes as predict() takes them to, and some hold two shards. */
	static const layout uneven[] = {{"3 + 2 ranks", 5, {0, 0, 0, 1, 1}},
	                                {"2 + 1 ranks", 3, {0, 0, 1}},
	                                {"3 + 2 + 2 ranks", 7, {0, 0, 0, 1, 1, 2, 2}}};
	static const char *const more[] = {
		"ring:small=0", "ring:mode=hop", "ring:mode=direct", "rhd:short=0",
		"auto:fit=5000/6000/7000/9000/20000/70000/260000/30000/33000/37000/44000/88000/260000/970000"};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	for (int a = 0; a < RANKS; a++)
		for (int b = 0; b < RANKS; b++)
			pthread_mutex_init(&lanes[a][b].lock, NULL);
	grid_find(settings);
	for (int k = 0; k < ncollectives; k++) {
		for (int l = 0; l < LAYOUTS; l++)
			if (strcmp(collectives[k], "auto") != 0 && strcmp(layouts[l].name, "3 + 1 ranks") != 0)
				check(collectives[k], &layouts[l], settings);
		for (size_t l = 0; l < sizeof spread / sizeof spread[0]; l++)
			if (strcmp(collectives[k], "auto") != 0)
				check(collectives[k], &spread[l], settings);
	}
	for (size_t l = 0; l < sizeof uneven / sizeof uneven[0]; l++)
		check("hier", &uneven[l], settings);
	for (size_t k = 0; k < sizeof more / sizeof more[0]; k++)
		for (size_t l = 0; l < 2; l++)
			check(more[k], &spread[l], settings);
	arguments(settings);
	return done_testing();
}
