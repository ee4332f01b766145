/* Delayed averages: the formula, to the bit against a reducer without delay and in float64; a
 * resumed run; NaN. */
#include "tests/support/delayed_fixture.h"

/* Against a reducer without delay that is given the same: to the bit. And against the mean
 * in float64, where the compressor loses nothing. */
static void formula_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_reducer *delayed, *plain;
	values mean[STEPS], v, want;
	int done = 0, differ = 0, D = (int)run->delay;
	values_open(&v, run->dtype);
	values_open(&want, run->dtype);
	for (int s = 0; s < STEPS; s++)
		values_open(&mean[s], run->dtype);
	run->failed[rank] = open_delayed(&delayed, w, run->spec, run->dtype, run->delay, &done, &err) ||
	                    open_delayed(&plain, w, run->spec, run->dtype, 0, NULL, &err);
	for (int s = 0; s < STEPS && !run->failed[rank]; s++) {
		run->failed[rank] = step(plain, &mean[s], rank, s, &err) || give(delayed, &v, rank, s, &err);
		if (s % 2)
			run->failed[rank] |= gradcomp_reducer_wait_for(delayed, (uint32_t)s % T, &err) != 0;
		run->failed[rank] |= gradcomp_reducer_wait(delayed, &err) != 0;
		for (int t = 0; t < T; t++)
			for (uint64_t i = 0; i < numel(t); i++) {
				float g = own(run, rank, s, t, i);
				double exact = g;
				if (s >= D) {
					float average = get(&mean[s - D], t, i),
					      correction = average - own(run, rank, s - D, t, i);
					put(&want, t, i, D ? g + correction : average);
					for (int r = 0; r < P; r++)
						exact += (double)own(run, r, s - D, t, i) / P;
					exact -= own(run, rank, s - D, t, i);
				} else {
					put(&want, t, i, g);
				}
				if (!(fabs(get(&v, t, i) - exact) <= run->worst[rank]))
					run->worst[rank] = fabs(get(&v, t, i) - exact);
			}
		differ |= values_fingerprint(&v) != values_fingerprint(&want);
	}
	run->failed[rank] |= differ | (done != STEPS * T);
	if (err.status)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	/* With D steps in flight. */
	gradcomp_reducer_free(delayed);
	gradcomp_reducer_free(plain);
	for (int s = 0; s < STEPS; s++)
		values_close(&mean[s]);
	values_close(&v);
	values_close(&want);
}

/* Saved with steps in flight, taken up by another reducer: the same bits from there on. */
static void resume_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0}, why = {0};
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_reducer *a, *b, *longer, *plain;
	values v, u;
	uint64_t bytes = 0, plain_bytes = 0;
	int bad = 0;
	(void)P;
	values_open(&v, run->dtype);
	values_open(&u, run->dtype);
	run->failed[rank] = open_delayed(&a, w, run->spec, run->dtype, run->delay, NULL, &err) ||
	                    open_delayed(&b, w, run->spec, run->dtype, run->delay, NULL, &err) ||
	                    open_delayed(&longer, w, run->spec, run->dtype, run->delay + 1, NULL, &err) ||
	                    open_delayed(&plain, w, run->spec, run->dtype, 0, NULL, &err);
	for (int s = 0; s < 5; s++)
		bad |= step(a, &v, rank, s, &err) != 0;
	for (int s = 0; s < 2; s++) /* the step that it was at must not matter */
		bad |= step(b, &u, rank, 50 + s, &err) != 0;
	bad |= gradcomp_reducer_save(a, NULL, 0, &bytes, &err) != 0;
	char *state = malloc(bytes), *other;
	bad |= gradcomp_reducer_save(a, state, bytes - 1, &bytes, &why) != GRADCOMP_ERR_INVALID;
	bad |= gradcomp_reducer_save(a, state, bytes, &bytes, &err) != 0;
	gradcomp_reducer_save(plain, NULL, 0, &plain_bytes, &err);
	other = malloc(plain_bytes);
	gradcomp_reducer_save(plain, other, plain_bytes, &plain_bytes, &err);

	bad |= gradcomp_reducer_load(longer, state, bytes, &why) != GRADCOMP_ERR_MISMATCH;
	if (rank == 0)
		like(why.text, "a delay of 2 steps, this reducer has 3", "another delay is refused");
	bad |= gradcomp_reducer_load(b, other, plain_bytes, &why) != GRADCOMP_ERR_INVALID;
	if (rank == 0)
		like(why.text, "a state of a reducer was given, and a state of a reducer with a delay is needed",
		     "a state of no delay is refused");
	bad |= gradcomp_reducer_load(plain, state, bytes, &why) != GRADCOMP_ERR_INVALID;
	state[60] ^= 4;
	bad |= gradcomp_reducer_load(b, state, bytes, &why) != GRADCOMP_ERR_INVALID || !strstr(why.text, "damaged");
	state[60] ^= 4;
	state[bytes - 1] ^= 4;
	bad |= gradcomp_reducer_load(b, state, bytes, &why) != GRADCOMP_ERR_INVALID || !strstr(why.text, "damaged");
	state[bytes - 1] ^= 4;
	for (uint64_t cut = 0; cut < bytes; cut += bytes / 7)
		bad |= gradcomp_reducer_load(b, state, cut, &why) != GRADCOMP_ERR_INVALID;
	state[7] = '9';
	bad |= gradcomp_reducer_load(b, state, bytes, &why) != GRADCOMP_ERR_UNSUPPORTED;
	state[7] = '1';
	bad |= gradcomp_reducer_load(b, state, bytes, &err) != 0;
	for (int s = 5; s < STEPS; s++) {
		bad |= step(a, &v, rank, s, &err) || step(b, &u, rank, s, &err);
		bad |= values_fingerprint(&v) != values_fingerprint(&u);
	}
	run->failed[rank] |= bad;
	if (err.status)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	free(state);
	free(other);
	gradcomp_reducer_free(a);
	gradcomp_reducer_free(b);
	gradcomp_reducer_free(longer);
	gradcomp_reducer_free(plain);
	values_close(&v);
	values_close(&u);
}

static int nans(const values *v, int t)
{
	int n = 0;
	for (uint64_t i = 0; i < numel(t); i++)
		n += isnan(get(v, t, i)) != 0;
	return n;
}

/* Rank 1 has a NaN in step 2: all have as many as without a delay in step 2 + D, and none
 * after it. */
static void poison_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	gradcomp_reducer *red;
	gradcomp_reducer_stats st = {.struct_size = sizeof st};
	values v;
	/* `none` passes a NaN on as it is. */
	int bad, D = (int)run->delay, spread = strcmp(run->spec, "none") ? (int)numel(4) : 1;
	(void)P;
	values_open(&v, GRADCOMP_F32);
	bad = open_delayed(&red, gradcomp_job_world(job), run->spec, GRADCOMP_F32, run->delay, NULL, &err) != 0;
	for (int s = 0; s < STEPS && !bad; s++) {
		for (int t = T - 1; t >= 0; t--) {
			for (uint64_t i = 0; i < numel(t); i++)
				put(&v, t, i, gradient(rank, s, t, i));
			if (rank == 1 && s == 2 && t == 4)
				put(&v, t, 7, NAN);
			bad |= gradcomp_reducer_ready(red, (uint32_t)t, v.at[t], &err) != 0;
		}
		bad |= gradcomp_reducer_wait(red, &err) != 0;
		int want = s == 2 + D ? spread : s == 2 && rank == 1 ? 1 : 0;
		bad |= nans(&v, 4) != want;
	}
	gradcomp_reducer_get_stats(red, &st);
	bad |= st.nonfinite_steps != (spread > 1);
	run->failed[rank] = bad;
	gradcomp_reducer_free(red);
	values_close(&v);
}

int main(void)
{
	static const struct {
		const char *spec;
		double within;
	} specs[] = {{"none", 1e-6},
	             {"cast:type=bf16", 2e-2},
	             {"topk:density=0.1", INFINITY},
	             {"powersgd:rank=2", INFINITY},
	             {"dgc:density=0.1", INFINITY}};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error", NULL};
	model_seed();
	for (uint32_t D = 0; D <= 4; D++)
		for (size_t k = 0; k < sizeof specs / sizeof specs[0]; k++)
			check(1 + (int)(D + k) % 5, settings, "formula",
			      (struct run){.spec = specs[k].spec, .delay = D}, specs[k].within, formula_body);
	for (int k = 1; k <= 2; k++)
		check(3, settings, "formula", (struct run){.spec = "none", .dtype = (gradcomp_dtype)k, .delay = 2},
		      k == 1 ? 4e-3 : 3e-2, formula_body);
	check(3, settings, "resumed", (struct run){.spec = "topk:density=0.1", .delay = 2}, 0, resume_body);
	check(2, settings, "resumed", (struct run){.spec = "powersgd:rank=2", .dtype = GRADCOMP_BF16, .delay = 2}, 0,
	      resume_body);
	check(3, settings, "a NaN on one rank", (struct run){.spec = "none", .delay = 0}, 0, poison_body);
	check(3, settings, "a NaN on one rank", (struct run){.spec = "none", .delay = 3}, 0, poison_body);
	check(2, settings, "a NaN on one rank", (struct run){.spec = "topk:density=0.1", .delay = 1}, 0, poison_body);
	return done_testing();
}
