/* Low-rank compressors get these wrong elsewhere: many tensors of one shape, factors that overflow, ranks that gave
 * nothing, quantised factors, dense steps, states of others. */
#include "tests/support/compressor_ranks.h"
#include "tests/contract/double_matrices.h"

#include "gradcomp/sdk/state.h"

enum { ALIKE = 32 };

/* r = 1 and many tensors of one shape, some of them zero: what
 * they share must not mix them. Two ranks: the order of a sum depends on where in a
 * payload it stands. */
static void many_alike(const char *text)
{
	uint64_t dims[ALIKE][2];
	job a, b;
	for (int i = 0; i < ALIKE; i++)
		dims[i][0] = 12, dims[i][1] = i % 5 == 4 ? 7 : 9;
	if (!job_open(&a, text, 2, ALIKE, dims) || !job_open(&b, text, 2, ALIKE, dims))
		return;
	ranks_plan(&b.s, 1); /* every tensor in a bucket of its own */
	uint64_t d = a.s.layout[0].numel;
	int same = 1, zero = 1;
	for (int step = 0; step < 4; step++) {
		for (int w = 0; w < 2; w++)
			for (uint32_t t = 0; t < ALIKE; t++)
				for (uint64_t i = 0; i < a.s.tensors[t].numel; i++) {
					float *at = &a.g[w][a.s.tensors[t].offset + i];
					*at = t % 3 == 2 ? 0 : test_normal();
					b.g[w][a.s.tensors[t].offset + i] = *at;
				}
		if (!job_step(&a) || !job_step(&b))
			break;
		for (int w = 0; w < 2; w++) {
			same &= !memcmp(a.g[w], b.g[w], d * sizeof(float));
			same &= !memcmp(a.s.error[w], b.s.error[w], d * sizeof(float));
		}
		for (uint32_t t = 2; t < ALIKE; t += 3)
			for (uint64_t i = 0; i < a.s.tensors[t].numel; i++)
				zero &= a.g[0][a.s.tensors[t].offset + i] == 0;
	}
	ok(same, "%s: %d small matrices give the same bits together and alone", text, ALIKE);
	ok(zero, "%s: zero matrices among them stay zero", text);
	job_close(&a), job_close(&b);
}

/* Factors of 128 columns beside matrices with fewer rows than that: gradients of rank 100 in the largest come
 * through, the others are sent whole by factors of their own rank, and what is sent and owed adds up. Of acpsgd
 * that holds for every second step: what it owes after the first turns the rows, not the columns. */
static void wide(const char *text)
{
	enum { ROWS = 150, COLUMNS = 140, RANK = 100, LARGE = ROWS * COLUMNS, ALL = LARGE + 40 * 40 + 5 * 5 + 9 };
	static float left[ROWS][RANK], right[RANK][COLUMNS], owed[3][ALL];
	static double u[ALL];
	uint64_t dims[4][2] = {{ROWS, COLUMNS}, {40, 40}, {5, 5}, {9, 0}};
	double off = 0, lost = 0;
	job j;
	for (int i = 0; i < ROWS * RANK; i++)
		left[i / RANK][i % RANK] = test_normal();
	for (int i = 0; i < RANK * COLUMNS; i++)
		right[i / COLUMNS][i % COLUMNS] = test_normal();
	if (!job_open(&j, text, 3, 4, dims))
		return;
	for (int step = 0; step < 4; step++) {
		memset(u, 0, sizeof u);
		for (int w = 0; w < 3; w++) {
			float *g = j.g[w], part[RANK];
			memset(g, 0, LARGE * sizeof *g);
			for (int k = 0; k < RANK; k++)
				part[k] = 1 + 0.3f * (float)((k * 7 + w * 5 + step * 3) % 5 - 2);
			for (int i = 0; i < ROWS; i++)
				for (int k = 0; k < RANK; k++)
					for (int c = 0; c < COLUMNS; c++)
						g[i * COLUMNS + c] += part[k] * left[i][k] * right[k][c];
			for (int i = LARGE; i < ALL; i++)
				g[i] = test_normal();
			memcpy(owed[w], j.s.error[w], sizeof owed[w]);
			for (int i = 0; i < ALL; i++)
				u[i] += (double)g[i] + owed[w][i];
		}
		if (!job_step(&j))
			break;
		for (int i = 0; i < ALL; i++) {
			double errors = (double)j.s.error[0][i] + j.s.error[1][i] + j.s.error[2][i];
			lost = fmax(lost, fabs(u[i] - errors - 3.0 * j.g[0][i]));
			if (step % 2)
				off = fmax(off, fabs(u[i] / 3 - j.g[0][i]));
		}
	}
	ok(off < 0.02, "%s: a gradient of rank 100, and small matrices, come through within %.1e", text, off);
	ok(lost < 1e-3, "%s: what is sent and what is owed is all there was, within %.1e", text, lost);
	job_close(&j);
}

static void leaves_it(void *queue, float *const *A, size_t count, size_t n, size_t r, void *scratch)
{
	(void)queue, (void)A, (void)count, (void)n, (void)r, (void)scratch;
}

/* On a device, and on hosts that were before, the operators take 64 columns. */
static void too_wide(const char *text, uint64_t n, int wanted)
{
	uint64_t dims[1][2] = {{n, 140}};
	gradcomp_operators before;
	gradcomp_layout layout;
	gradcomp_host host;
	void *instance = NULL;
	job j;
	if (!job_open(&j, text, 1, 1, dims))
		return;
	layout = j.s.layout[0], host = j.s.host, before = *host.operators;
	layout.device = GRADCOMP_CUDA;
	is_int(j.s.plugin->create(&host, j.parsed.values, &layout, &instance, &j.s.err), wanted,
	       "%s on %llu rows on a device", text, (unsigned long long)n);
	if (instance)
		j.s.plugin->destroy(instance);
	instance = NULL;
	layout.device = GRADCOMP_HOST;
	before.orthonormalise_split = leaves_it;
	host.operators = &before;
	is_int(j.s.plugin->create(&host, j.parsed.values, &layout, &instance, &j.s.err), wanted,
	       "... on an older host: %s", wanted ? j.s.err.text : "");
	if (instance)
		j.s.plugin->destroy(instance);
	job_close(&j);
}

static uint64_t state_of(job *j, char *out, size_t room)
{
	uint64_t bytes = 0;
	j->s.plugin->save(j->s.instance[0], out, room, &bytes, &j->s.err);
	return bytes;
}

/* Finite gradients whose factors are not: the average is NaN on all ranks, nothing of the bucket is owed, and
 * the next step is ordinary. */
static void overflow(const char *text)
{
	uint64_t dims[2][2] = {{30, 40}, {5, 0}};
	job j;
	if (!job_open(&j, text, 3, 2, dims))
		return;
	for (int w = 0; w < 3; w++)
		for (int i = 0; i < 1205; i++)
			j.g[w][i] = test_normal();
	job_step(&j);
	for (int w = 0; w < 3; w++)
		for (int i = 0; i < 1205; i++)
			j.g[w][i] = i < 1200 ? 3e38f : 1;
	int all = job_step(&j), agreed = 1, cleared = 1;
	for (int i = 0; i < 1200; i++)
		all &= isnan(j.g[0][i]);
	for (int w = 1; w < 3; w++)
		agreed &= !memcmp(j.g[0], j.g[w], 1205 * sizeof(float));
	ok(all && agreed, "%s: 3e38 everywhere comes out as NaN, on all ranks", text);
	for (int w = 0; w < 3; w++)
		for (int i = 0; i < 1205; i++) {
			cleared &= j.s.error[w][i] == 0;
			j.g[w][i] = test_normal();
		}
	ok(cleared, "%s: and leaves no error", text);
	int finite = job_step(&j);
	for (int i = 0; i < 1205; i++)
		finite &= isfinite(j.g[0][i]) && isfinite(j.s.error[2][i]);
	ok(finite, "%s: the next step is well again", text);
	job_close(&j);
}

/* A rank that gave nothing owes nothing: its error is against its own factor, as it
 * was sent. */
static void owes_nothing(const char *text)
{
	uint64_t dims[1][2] = {{N, M}};
	job j;
	if (!job_open(&j, text, 3, 1, dims))
		return;
	int zero = 1;
	for (int step = 0; step < 4; step++) {
		for (int w = 0; w < 3; w++)
			for (int i = 0; i < N * M; i++)
				j.g[w][i] = w == 1 ? 0 : test_normal();
		zero &= job_step(&j);
		for (int i = 0; i < N * M; i++)
			zero &= j.s.error[1][i] == 0;
	}
	ok(zero, "%s: a rank with a gradient of zero keeps an error of zero", text);
	job_close(&j);
}

/* Measures what quantising costs, against powersgd on the same gradients. */
static double with_errors(const char *text, uint64_t *sent)
{
	uint64_t dims[1][2] = {{N, M}};
	static double G[N * M];
	double sigma[N], sum = 0;
	job j;
	if (!job_open(&j, text, 3, 1, dims))
		return INFINITY;
	for (int i = 0; i < N; i++)
		sigma[i] = pow(0.7, i);
	for (int step = 0; step < 30; step++) {
		if (step % 10 == 0)
			spectrum(G, sigma, N);
		for (int w = 0; w < 3; w++)
			for (int i = 0; i < N * M; i++)
				j.g[w][i] = (float)G[i];
		if (!job_step(&j))
			break;
		double s = 0;
		for (int i = 0; i < N * M; i++)
			s += (double)j.s.error[0][i] * j.s.error[0][i];
		sum += sqrt(s) / 30;
	}
	*sent = j.s.sent;
	job_close(&j);
	return sum;
}

static void quantised(void)
{
	uint64_t plain = 0, eight = 0, four = 0, eight_log = 0;
	double a = with_errors("powersgd", &plain), b = with_errors("lqsgd", &eight),
	       c = with_errors("lqsgd:bits=4", &four), logarithmic = with_errors("lqsgd:levels=log", &eight_log);
	is_int((long long)plain, 4 * (N + M) * R, "powersgd sends 4 (n + m) r bytes");
	is_int((long long)eight, (N * R + 4) + (M * R + 8), "lqsgd sends a byte a number and a float a block of 256");
	is_int((long long)four, (N * R / 2 + 4) + (M * R / 2 + 8), "lqsgd:bits=4 half a byte");
	ok(b < 1.1 * a, "lqsgd: 8 bits leave an error of %.3f, floats %.3f", b, a);
	ok(logarithmic < 1.1 * a && eight_log == eight, "lqsgd:levels=log: as many bytes leave %.3f", logarithmic);
	ok(c < 2 * a, "lqsgd: 4 bits leave %.3f", c);
}

/* Before start_step the average is the mean, and older errors go out with it. */
static void starts_dense(const char *text)
{
	uint64_t dims[3][2] = {{4, 0}, {20, 30}, {0, 5}};
	job j;
	if (!job_open(&j, text, 2, 3, dims))
		return;
	int whole = 1, partial = 0;
	for (int step = 0; step < 3; step++) {
		float mean[604];
		for (int i = 0; i < 604; i++) {
			j.g[0][i] = test_normal(), j.g[1][i] = test_normal();
			if (!step)
				j.s.error[0][i] = test_normal(), j.s.error[1][i] = test_normal();
			mean[i] = ((j.g[0][i] + j.s.error[0][i]) + (j.g[1][i] + j.s.error[1][i])) * 0.5f;
		}
		whole &= job_step(&j);
		for (int i = 0; i < 604; i++) {
			int plain = j.g[0][i] == mean[i] && j.s.error[0][i] == 0 && j.s.error[1][i] == 0;
			if (step < 2)
				whole &= plain;
			else
				partial |= !plain;
		}
	}
	ok(whole && partial, "%s: two steps are plain means, the third is not", text);
	job_close(&j);
}

static void refuses(const char *mine, const char *theirs, int P, uint64_t n, const char *word)
{
	uint64_t here[1][2] = {{N, M}}, there[1][2] = {{n, M}};
	char state[16384];
	job a, b;
	if (!job_open(&a, mine, 2, 1, here) || !job_open(&b, theirs, P, 1, there))
		return;
	uint64_t bytes = state_of(&b, state, sizeof state);
	int st = a.s.plugin->load(a.s.instance[0], state, bytes, &a.s.err);
	ok(st < 0 && strstr(a.s.err.text, word), "%s refuses a state of %s, %d ranks, %llu x %d: %s", mine, theirs, P,
	   (unsigned long long)n, M, st < 0 ? a.s.err.text : "(it does not)");
	job_close(&a), job_close(&b);
}

/* The factors are the same on any number of ranks. */
static void takes(const char *spec, int P)
{
	uint64_t shape[1][2] = {{N, M}};
	char state[16384], again[16384];
	job a, b;
	if (!job_open(&a, spec, 2, 1, shape) || !job_open(&b, spec, P, 1, shape))
		return;
	uint64_t bytes = state_of(&b, state, sizeof state);
	int st = a.s.plugin->load(a.s.instance[0], state, bytes, &a.s.err);
	int same = state_of(&a, again, sizeof again) == bytes &&
	           !memcmp(state + sizeof(sdk_state_header), again + sizeof(sdk_state_header),
	                   bytes - sizeof(sdk_state_header));
	ok(!st && same, "%s on 2 ranks takes a state of %d ranks: %s", spec, P, st ? a.s.err.text : "");
	job_close(&a), job_close(&b);
}

static void states(void)
{
	refuses("powersgd", "acpsgd", 2, N, "not a state of powersgd");
	refuses("powersgd", "powersgd", 2, N + 1, "other shapes");
	refuses("powersgd", "powersgd:rank=3", 2, N, "other parameters");
	refuses("powersgd", "powersgd:warm_start=no", 2, N, "other parameters");
	refuses("acpsgd", "lqsgd", 2, N, "not a state of acpsgd");
	takes("powersgd", 3);
	takes("acpsgd", 5);
}

int main(void)
{
	test_seed();
	random_check_seed(test_random());
	many_alike("powersgd:rank=1,min_ratio=0");
	many_alike("powersgd:rank=1,min_ratio=0,restart=2");
	many_alike("acpsgd:rank=1,min_ratio=0");
	many_alike("lqsgd:rank=1,min_ratio=0");
	wide("powersgd:rank=128,min_ratio=0");
	wide("acpsgd:rank=128,min_ratio=0");
	too_wide("powersgd:rank=65,min_ratio=0", 140, GRADCOMP_ERR_UNSUPPORTED);
	too_wide("acpsgd:rank=128,min_ratio=0", 64, GRADCOMP_OK);
	overflow("powersgd");
	overflow("acpsgd");
	overflow("lqsgd");
	owes_nothing("powersgd");
	owes_nothing("acpsgd");
	owes_nothing("lqsgd");
	owes_nothing("lqsgd:bits=4");
	quantised();
	starts_dense("powersgd:start_step=2");
	starts_dense("acpsgd:start_step=2");
	starts_dense("lqsgd:start_step=2");
	starts_dense("threshold:start_step=2");
	states();
	return done_testing();
}
