/* Saved states that no run has made, with a checksum that is right: numbers that are not finite, anywhere in what
 * is kept; and own states of a compressor that differ between ranks. Every compressor of this build that keeps
 * anything. All ranks refuse, nothing has changed, and the right state is taken afterwards. */
#include "tests/support/plugin_pairs.h"
#include "tests/support/small_model.h"

#include "reducer/state/reducer_state.h"
#include "reducer/state/shared_state.h"

#include <math.h>

enum { TRIES = 6, STEPS = 4 };

typedef struct hostile {
	const char *spec, *collective;
	uint32_t delay;
	int skipped, wrong[MAX_RANKS], tried;
	gradcomp_error why[MAX_RANKS];
} hostile;

typedef struct bytes {
	char *at;
	uint64_t n;
} bytes;

static bytes saved(const model *m, int shared, gradcomp_error *err)
{
	bytes b = {NULL, 0};
	gradcomp_status (*save)(gradcomp_reducer *, void *, uint64_t, uint64_t *, gradcomp_error *) =
		shared ? gradcomp_reducer_save_shared : gradcomp_reducer_save;
	if (save(m->red, NULL, 0, &b.n, err))
		return b;
	b.at = malloc(b.n + 1);
	if (save(m->red, b.at, b.n, &b.n, err))
		b.n = 0;
	return b;
}

/* Where a state's reducer's begins, its arrays, and its plugin's own bytes. */
typedef struct places {
	uint64_t begin, arrays, narrays, own, nown;
} places;

static places look(const bytes *b, int shared)
{
	places p = {0};
	char *at = memmem(b->at, b->n, shared ? "GCSHARE" : "GCSTATE", 7);
	p.begin = (uint64_t)(at - b->at);
	if (shared) {
		shared_head h;
		memcpy(&h, at, sizeof h);
		p.arrays = p.begin + sizeof h;
		p.narrays = (h.has_error + h.state_arrays) * h.numel * sizeof(float);
		p.nown = h.plugin_bytes;
	} else {
		state_head h;
		memcpy(&h, at, sizeof h);
		p.arrays = p.begin + sizeof h + 2 * h.nbuckets * sizeof(uint32_t);
		p.narrays = ((h.has_error + h.state_arrays) * h.kept + h.nserver_error) * sizeof(float);
		p.nown = h.plugin_bytes;
	}
	p.own = p.arrays + p.narrays;
	return p;
}

static void put(bytes *b, const places *p, uint64_t at, float v)
{
	memcpy(b->at + at, &v, sizeof v);
	saved_seal(saved_kind_of(b->at + p->begin, b->n - p->begin), b->at + p->begin, b->n - p->begin);
}

/* Rank `rank` has v at `at` of what it loads, all ranks with `all`. */
static int refuses(hostile *h, const model *m, int rank, const bytes *good, const places *p, uint64_t at, float v,
                   int all)
{
	gradcomp_error *err = &h->why[rank], unused;
	const bytes before = saved(m, 0, &unused);
	bytes bad = {malloc(good->n + 1), good->n}, now;
	memcpy(bad.at, good->at, good->n);
	if (rank == 1 || all)
		put(&bad, p, at, v);
	int refused = gradcomp_reducer_load(m->red, bad.at, bad.n, err) != GRADCOMP_OK;
	now = saved(m, 0, &unused);
	refused &= before.n && now.n == before.n && !memcmp(now.at, before.at, now.n);
	free(now.at);
	free(before.at);
	free(bad.at);
	if (!rank)
		h->tried++;
	return refused;
}

static void attack(gradcomp_job *job, int rank, int nranks, void *arg)
{
	static const float none[] = {NAN, INFINITY, -INFINITY};
	hostile *h = arg;
	gradcomp_error *err = &h->why[rank];
	const gradcomp_reducer_options o = {.struct_size = sizeof o,
	                                    .compressor = h->spec,
	                                    .collective = h->collective,
	                                    .bucket_bytes = 5000,
	                                    .seed = 5,
	                                    .delay = h->delay};
	model m;
	(void)nranks;
	if (model_open_with(&m, gradcomp_job_world(job), &o, err)) {
		if (!rank)
			h->skipped = 1;
		return;
	}
	for (int s = 0; s < STEPS; s++)
		h->wrong[rank] |= model_step(&m, rank, s, err) != 0;
	for (int shared = 0; shared <= (h->delay ? 0 : 1) && !h->wrong[rank]; shared++) {
		bytes good = saved(&m, shared, err);
		if (!good.n) {
			h->wrong[rank] |= 2;
			free(good.at);
			break;
		}
		const places p = look(&good, shared);
		for (uint64_t i = 0; p.narrays && i < TRIES; i++) {
			uint64_t at = i == 0   ? 0
			              : i == 1 ? p.narrays / sizeof(float) - 1
			                       : mix(seed + i * 77) % (p.narrays / sizeof(float));
			if (!refuses(h, &m, rank, &good, &p, p.arrays + at * sizeof(float), none[i % 3], shared))
				h->wrong[rank] |= 4;
		}
		/* The last number of the plugin's own. */
		if (p.nown && !refuses(h, &m, rank, &good, &p, p.own + p.nown - sizeof(float), NAN, shared))
			h->wrong[rank] |= 8;
		/* One rank's is another; the plugin itself refuses some of them. */
		for (uint64_t back = sizeof(float); !shared && back <= 8 * sizeof(float) && back <= p.nown;
		     back += sizeof(float))
			if (!refuses(h, &m, rank, &good, &p, p.own + p.nown - back, 0.125f, 0))
				h->wrong[rank] |= 16;
		if (gradcomp_reducer_load(m.red, good.at, good.n, err))
			h->wrong[rank] |= 32;
		free(good.at);
	}
	model_close(&m);
}

static void attacked(const char *spec, const char *collective, int nranks, uint32_t delay, const char *const *settings)
{
	hostile h = {.spec = spec, .collective = collective, .delay = delay};
	unsigned wrong = 0;
	run_ranks(nranks, settings, attack, &h);
	for (int r = 0; r < nranks; r++)
		wrong |= (unsigned)h.wrong[r];
	if (h.skipped || (!h.tried && !wrong))
		skip(h.skipped ? h.why[0].text : "nothing is kept with these parameters", "%s over %s", spec,
		     collective);
	else
		ok(!wrong && h.tried, "%s over %s%s, %d ranks: %d states are refused by all of them (%#x, %s)", spec,
		   collective, delay ? ", delayed" : "", nranks, h.tried, wrong, h.why[1].text);
}

int main(void)
{
	static const char *const over[] = {"ring", "tree"};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	config *c = pairs_find(settings);
	gradcomp_error err;
	int keep = 0;
	model_seed();
	if (!c)
		return done_testing();
	for (int i = 0; i < ncompressors; i++) {
		const struct gradcomp_compressor_v1 *made = NULL;
		const char *collective = over[pair(c, compressors[i], over[0], &made, &err) != 0];
		if (pair(c, compressors[i], collective, &made, &err) ||
		    !(made->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK || made->state_arrays || made->save))
			continue;
		keep++;
		attacked(compressors[i], collective, 2, 0, settings);
		for (uint32_t k = 0; made->save && k < made->info.nparams; k++) {
			char spec[100];
			snprintf(spec, sizeof spec, "%.50s:%.40s=yes", compressors[i], made->info.params[k].name);
			if (made->info.params[k].type == GRADCOMP_PARAM_BOOL)
				attacked(spec, collective, 2, 0, settings);
		}
	}
	attacked("topk", "hier:ranks_per_node=1", 2, 0, settings);
	attacked("topk", "direct", 2, 0, settings);
	attacked("dgc", "ring", 2, 2, settings);
	/* Shards of two nodes; of a node with one rank, which holds two. */
	attacked("lags:adaptive=yes", "hier:ranks_per_node=2", 4, 0, settings);
	attacked("lags:adaptive=yes", "hier:ranks_per_node=2", 3, 0, settings);
	config_free(c);
	ok(keep > 10, "%d compressors keep something", keep);
	return done_testing();
}
