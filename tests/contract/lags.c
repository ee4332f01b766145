/* lags: densities by tensor, given or measured. */
#include "tests/support/compressor_ranks.h"

static uint64_t dims[4][2] = {{50, 60}, {30, 0}, {20, 40}, {100, 10}};
enum { D = 3000 + 30 + 800 + 1000 };

static int step_randomly(job *j)
{
	for (int w = 0; w < j->s.P; w++)
		for (int i = 0; i < D; i++)
			j->g[w][i] = test_normal();
	return job_step(j);
}

/* How many numbers of a tensor rank w did not keep. */
static int sent_of(const job *j, int w, uint32_t tensor)
{
	int sent = 0;
	for (uint64_t i = 0; i < j->s.tensors[tensor].numel; i++)
		sent += j->s.error[w][j->s.tensors[tensor].offset + i] == 0;
	return sent;
}

/* The list is in the model's order: the reverse of the layout's. */
static void given(void)
{
	static const int want[4] = {3000 / 10, 30 / 2, 800 / 50, 1000 / 4};
	job j;
	if (!job_open(&j, "lags:densities=0.25/0.02/0.5/0.1", 2, 4, dims))
		return;
	if (step_randomly(&j))
		for (uint32_t t = 0; t < 4; t++)
			is_int(sent_of(&j, 1, t), want[t], "densities: tensor %u sends %d of %llu", t, want[t],
			       (unsigned long long)j.s.tensors[t].numel);
	is_int((long long)j.s.sent, 8 * (300 + 15 + 16 + 250), "densities: 8 bytes a number");
	is_str(j.s.plugin->choice(j.s.instance[0], 1), "density 0.5", "densities: the report says which");
	job_close(&j);
}

static void refused(const char *text, const char *word)
{
	static const char *const path = "%s/lib/gradcomp/compressors/lags.so";
	const char *build = getenv("GRADCOMP_BUILD");
	char file[4096];
	gradcomp_error err = {0};
	spec parsed = {0};
	ranks s;
	snprintf(file, sizeof file, path, build ? build : ".");
	void *so = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	const struct gradcomp_compressor_v1 *plugin = so ? dlsym(so, "gradcomp_compressor_v1") : NULL;
	int st = plugin ? spec_parse(&plugin->info, text, &parsed, &err) : -1;
	if (!st) {
		host_services(&s.host, operators_cpu());
		st = plugin->check(&s.host, parsed.values, &err);
		if (!st) {
			st = ranks_open(&s, plugin, operators_cpu(), parsed.values, 2, 4, dims, 7);
			err = s.err;
			if (!st)
				ranks_close(&s);
		}
		spec_clear(&parsed);
	}
	ok(st < 0 && strstr(err.text, word), "%s is refused: %s", text, st < 0 ? err.text : "(it is not)");
	if (so)
		dlclose(so);
}

/* Ranks whose times differ agree on the same densities: every step would fail, or
 * average differently, if one of them did not. */
static void adapts(const char *text, uint64_t most)
{
	static float before[RANKS_MAX][D];
	char state[2][4096];
	uint64_t bytes[2] = {0}, measuring = 0, after = 0;
	int agreed = 1, conserved = 1, one_extra = 1;
	job j;
	if (!job_open(&j, text, 3, 4, dims))
		return;
	ranks_plan(&j.s, most);
	for (int step = 0; step < 12; step++) {
		double sum[D] = {0};
		for (int w = 0; w < 3; w++)
			memcpy(before[w], j.s.error[w], sizeof before[w]);
		for (int w = 0; w < 3; w++)
			for (int i = 0; i < D; i++) {
				j.g[w][i] = test_normal();
				sum[i] += (double)j.g[w][i] + before[w][i];
			}
		uint32_t extra = 0;
		for (uint32_t b = 0; b < j.s.nbuckets; b++) {
			gradcomp_plan plan = {.struct_size = sizeof plan};
			j.s.plugin->plan(j.s.instance[0], &j.s.buckets[b], j.s.step, &plan, &j.s.err);
			extra += plan.nrounds - 1;
		}
		one_extra &= extra == (step == 6 ? j.s.nbuckets : 0);
		if (!job_step(&j))
			break;
		measuring = step == 5 ? j.s.sent : measuring;
		after = j.s.sent;
		for (int w = 0; w < 3; w++)
			agreed &= !memcmp(j.g[0], j.g[w], D * sizeof(float));
		for (int i = 0; i < D; i++) {
			double got = 3.0 * j.g[0][i];
			for (int w = 0; w < 3; w++)
				got += j.s.error[w][i];
			conserved &= got - sum[i] < 1e-4 && got - sum[i] > -1e-4;
		}
	}
	for (int w = 0; w < 3; w++) {
		int k = w > 0;
		j.s.plugin->save(j.s.instance[w], state[k], sizeof state[k], &bytes[k], &j.s.err);
		agreed &= bytes[k] == bytes[0] && !memcmp(state[0], state[k], bytes[0]);
	}
	ok(j.s.step == 12 && agreed && conserved, "%s, %u buckets: 12 steps on 3 ranks, equal densities, nothing lost",
	   text, j.s.nbuckets);
	ok(one_extra, "%s: one step has a round more", text);
	ok(after != measuring, "%s: %llu bytes a step, %llu while measuring", text, (unsigned long long)after,
	   (unsigned long long)measuring);
	job_close(&j);
}

/* Goes on with the same densities after a load, though nothing is measured again. */
static void resumes(void)
{
	job a, b;
	gradcomp_status st = GRADCOMP_OK;
	if (!job_open(&a, "lags:adaptive=yes,measure_steps=4,density=0.1", 2, 4, dims) ||
	    !job_open(&b, "lags:adaptive=yes,measure_steps=4,density=0.1", 2, 4, dims))
		return;
	ranks_plan(&a.s, 1);
	ranks_plan(&b.s, 1);
	for (int step = 0; step < 6; step++)
		step_randomly(&a);
	for (int w = 0; w < 2 && !st; w++)
		st = ranks_carry(&a.s, &b.s, w);
	is_int(st, GRADCOMP_OK, "adaptive: what was agreed is saved and loaded");
	int same = 1;
	for (int step = 0; step < 3; step++) {
		step_randomly(&a);
		step_randomly(&b);
		same &= a.s.sent == b.s.sent;
	}
	ok(same, "adaptive: the same bytes a step after a load");
	job_close(&a), job_close(&b);
}

/* However long the backward pass is, a gather takes no more bytes than the ring of a dense sum. */
static void affords(const char *text, int P, double least)
{
	const double backward[4] = {1e3, 1e3, 1e3, 1e3};
	const gradcomp_measured m = {.struct_size = sizeof m,
	                             .ntensors = 4,
	                             .backward = backward,
	                             .exchange_a = 1e-6,
	                             .exchange_b = 1e-9,
	                             .encode_b = 1e-9};
	job j;
	if (!job_open(&j, text, P, 4, dims))
		return;
	ranks_plan(&j.s, 1);
	step_randomly(&j);
	for (int w = 0; w < P; w++)
		j.s.plugin->measured(j.s.instance[w], &m, 1, &j.s.err);
	step_randomly(&j);
	const double gathered = (double)j.s.sent * (P - 1), ring = 2.0 * (P - 1) / P * 4 * D;
	/* Little is missing: the layer behind which nothing is computed sends one number in max_ratio. */
	ok(gathered <= ring && gathered >= least * ring, "%s, %d ranks: %.0f bytes a rank, a dense ring takes %.0f",
	   text, P, gathered, ring);
	job_close(&j);
}

int main(void)
{
	test_seed();
	random_check_seed(test_random());
	given();
	refused("lags:densities=0.1/0.2", "2 numbers, the model 4 tensors");
	refused("lags:densities=0.1/2/0.1/0.1", "from 1e-9 to 1");
	refused("lags:densities=0.1/0.1/0.1/0.1/", "from 1e-9 to 1");
	refused("lags:densities=0.1/0.1/0.1/0.1,adaptive=yes", "not both");
	adapts("lags:adaptive=yes,measure_steps=6,density=0.1", 1);
	adapts("lags:adaptive=yes,measure_steps=6,density=0.1,indices=auto,max_ratio=50", 2000);
	resumes();
	for (int P = 2; P <= 16; P += 7) {
		affords("lags:adaptive=yes,density=0.1", P, 0.6);
		affords("lags:adaptive=yes,density=0.1,indices=auto", P, 0.6);
		affords("lags:adaptive=yes,density=0.1,values=block4", P, 0);
	}
	return done_testing();
}
