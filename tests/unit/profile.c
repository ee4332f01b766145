/* Measuring steps and fitting lines, on times that are given: noise, outliers, gradients that
 * come at once, programs that wait for averages or do not. And what the others believe of a
 * plan message. */
#include "base/fit.h"
#include "reducer/bucketing/measure.h"
#include "tests/support/tap.h"
#include "reducer/bucketing/plan_msg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u;

static double uniform(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (double)(state >> 11) / 9007199254740992.0;
}

static void lines(void)
{
	double worst[3] = {0}, a, b;
	fit_point p[300];
	for (int run = 0; run < 300; run++) {
		double ta = pow(10, -6 + 4 * uniform()), tb = pow(10, -11 + 3 * uniform());
		size_t n = 60 + (size_t)(240 * uniform());
		for (int kind = 0; kind < 3; kind++) {
			for (size_t i = 0; i < n; i++) {
				p[i] = (fit_point){1 + (double)(i % 2), 1e3 * pow(10, 4 * uniform()), 0};
				p[i].y = ta * p[i].u + tb * p[i].x;
				if (kind)
					p[i].y *= 0.95 + 0.1 * uniform();
				if (kind == 2 && i % 5 == 0)
					p[i].y *= 1 + 20 * uniform();
			}
			fit_line(p, n, &a, &b);
			for (double x = 1e3; x < 1e7; x *= 4) {
				double off = fabs((a + b * x) / (ta + tb * x) - 1);
				worst[kind] = fmax(worst[kind], off);
			}
		}
	}
	ok(worst[0] < 1e-5, "300 lines are found again, within %.1e", worst[0]);
	ok(worst[1] < 0.05, "with 5 %% of noise, within %.1f %%", worst[1] * 100);
	ok(worst[2] < 0.15, "where every fifth point took up to 20 times as long, within %.1f %%", worst[2] * 100);
}

static void edges(void)
{
	fit_point one[2] = {{1, 1000, 2e-3}, {1, 1000, 2e-3}}, falling[2] = {{1, 1000, 2}, {1, 2000, 1}};
	fit_point origin[2] = {{1, 1000, 1}, {1, 2000, 3}}, still[2] = {{1, 0, 1}, {1, 0, 1}}, none[1] = {{1, 10, 0}};
	double a, b;
	fit_line(one, 2, &a, &b);
	ok(a == 0 && fabs(b - 2e-6) < 1e-12, "one size: all is put down to the bytes");
	fit_line(falling, 2, &a, &b);
	ok(b == 0 && a >= 1 && a <= 2, "a falling line is flat");
	fit_line(origin, 2, &a, &b);
	ok(a == 0 && b > 0, "no time before 0: a line through the origin");
	fit_line(still, 2, &a, &b);
	ok(a == 1 && b == 0, "no bytes: a message costs it all");
	ok(fit_line(none, 1, &a, &b) < 0 && fit_line(none, 0, &a, &b) < 0 && a == 0 && b == 0, "nothing measured");
	double v[5] = {5, 1, 100, 2, 3};
	ok(fit_median(v, 5) == 3 && fit_spread(v, 5) == 1.5, "median and spread");
}

enum { N = 8, B = 2 };

typedef struct fake {
	reducer r;
	gradcomp_tensor tensors[N];
	bucket buckets[B];
	gradcomp_group group;
	gradcomp_job job;
} fake;

static void fake_open(fake *f, uint32_t rows)
{
	gradcomp_error err;
	memset(f, 0, sizeof *f);
	pthread_mutex_init(&f->r.lock, NULL);
	f->r.eng.group = &f->group;
	f->r.eng.job = &f->job;
	f->r.eng.layout.tensors = f->tensors;
	f->r.eng.layout.ntensors = N;
	f->r.eng.layout.nranks = 1;
	f->r.eng.list.nbuckets = B;
	f->r.eng.list.buckets = f->buckets;
	for (int i = 0; i < N; i++)
		f->tensors[i].numel = 100 * (uint64_t)(i + 1);
	for (uint32_t b = 0; b < B; b++) {
		f->buckets[b].pub = (gradcomp_bucket){.index = b, .numel = 1000 * (b + 1)};
		f->buckets[b].plan = (gradcomp_plan){
			.nrounds = 1,
			.rounds[0] = {.pattern = GRADCOMP_SUMMED, .dtype = GRADCOMP_F32, .count = 1000 * (b + 1)}};
	}
	ok(!profile_open(&f->r, rows, &err), "room for %u steps", rows);
}

static void fake_close(fake *f)
{
	profile_close(&f->r);
	pthread_mutex_destroy(&f->r.lock);
}

/* Gradients a second apart, an exchange that ends among them, one that ends later, and some computing. */
static void beside_the_pass(void)
{
	const task exchange = {TASK_EXCHANGE, 0}, encode = {TASK_ENCODE, 0};
	double share[PROFILE_BESIDE];
	fake f;
	fake_open(&f, 8);
	measure_beside(&f.r, share);
	ok(share[PROFILE_EXCHANGING] == 0 && share[PROFILE_COMPRESSING] == 0, "nothing is beside no pass");
	for (int step = 0; step < 5; step++) {
		double now = 100.0 * step;
		for (uint32_t i = 0; i < 4; i++)
			profile_ready(&f.r, i, now + i);
		profile_task(&f.r, &f.buckets[0], &encode, now + 0.5, now + 1);
		profile_task(&f.r, &f.buckets[0], &exchange, now + 1, now + 3);
		for (uint32_t i = 4; i < N; i++)
			profile_ready(&f.r, i, now + i);
		profile_task(&f.r, &f.buckets[1], &exchange, now + 6, now + 9);
		profile_task(&f.r, &f.buckets[1], &encode, now + 9, now + 10);
		profile_step(&f.r, now + 10);
	}
	measure_beside(&f.r, share);
	ok(fabs(share[PROFILE_EXCHANGING] - 3.0 / 7) < 1e-12 && fabs(share[PROFILE_COMPRESSING] - 0.5 / 7) < 1e-12,
	   "exchanges are beside %.3f of a pass, computing beside %.3f", share[PROFILE_EXCHANGING],
	   share[PROFILE_COMPRESSING]);
	fake_close(&f);
}

/* Passes of 8 s by themselves, of which 4 s of work are beside exchanges that make them twice as long and, of the
 * others, 2 s beside computing that makes them half as long again. */
static void kept_back(int steps, double noise, double want_exchange, double want_compute)
{
	const task exchange = {TASK_EXCHANGE, 0}, encode = {TASK_ENCODE, 0};
	double times[PROFILE_BESIDE];
	int holds[4] = {0};
	fake f;
	fake_open(&f, 8);
	profile_try(&f.r);
	for (int step = 0; step < steps; step++) {
		double now = 100.0 * step, pass;
		profile_ready(&f.r, 0, now);
		int exchanges = !profile_holds(&f.r, PROFILE_EXCHANGING),
		    computes = !profile_holds(&f.r, PROFILE_COMPRESSING);
		holds[2 * exchanges + computes]++;
		pass = 8 + (exchanges ? 4 : 0) + (computes ? 1 : 0) + noise * uniform();
		if (exchanges)
			profile_task(&f.r, &f.buckets[0], &exchange, now, now + 8);
		if (computes)
			profile_task(&f.r, &f.buckets[0], &encode, now + pass - 3, now + pass);
		for (uint32_t i = 1; i < N; i++)
			profile_ready(&f.r, i, now + pass * i / (N - 1));
		if (step % 8 == 7)
			ok(!profile_holds(&f.r, PROFILE_EXCHANGING) && profile_held(&f.r) && !exchanges,
			   "nothing is kept back behind the last gradient");
		profile_step(&f.r, now + pass);
	}
	ok(!holds[2] && holds[0] == steps / 16 && holds[1] == (steps + 8) / 16,
	   "of %d steps %d keep all back, %d exchanges", steps, holds[0], holds[1]);
	measure_slower(&f.r, times);
	ok(fabs(times[PROFILE_EXCHANGING] - want_exchange) < 0.1 * want_exchange + 1e-9 &&
	           fabs(times[PROFILE_COMPRESSING] - want_compute) < 0.02 * want_compute + 1e-9,
	   "after %d steps: %.3f times as long beside exchanges, %.3f beside computing", steps,
	   times[PROFILE_EXCHANGING], times[PROFILE_COMPRESSING]);
	profile_ready(&f.r, 0, 1e6);
	ok(profile_let_go(&f.r) == (steps % 16 == 7 || steps % 16 == 15) && !profile_holds(&f.r, PROFILE_EXCHANGING),
	   "a program that waits for a tensor ends it");
	profile_try_no_more(&f.r);
	measure_slower(&f.r, times);
	ok(times[PROFILE_EXCHANGING] == 0 && times[PROFILE_COMPRESSING] == 0, "given up, nothing is known");
	fake_close(&f);
}

/* A step that begins at `now`: gradients a millisecond apart, two at a time; returns its end. */
static double fake_step(fake *f, double now, double gap, double blocked, double slower)
{
	const task tasks[] = {
		{TASK_BEGIN, 0}, {TASK_ENCODE, 0}, {TASK_EXCHANGE, 0}, {TASK_DECODE, 0}, {TASK_FINISH, 0}};
	if (blocked > 0)
		profile_waited(&f->r, blocked, 0);
	now += gap;
	for (uint32_t i = 0; i < N; i++)
		profile_ready(&f->r, i, now + slower * 1e-3 * (double)(i / 2));
	now += slower * 1e-3 * (N / 2 - 1);
	for (uint32_t b = 0; b < B; b++)
		for (int k = 0; k < 5; k++) {
			double took = tasks[k].kind == TASK_EXCHANGE ? 1e-3 + 1e-6 * 4000 * (b + 1) : 1e-4 * (b + 1);
			profile_task(&f->r, &f->buckets[b], &tasks[k], now, now + took);
			now += took;
		}
	profile_step(&f->r, now);
	return now;
}

static int close_to(double x, double y)
{
	return fabs(x - y) < 1e-6 + 1e-3 * fabs(y);
}

static void steps(void)
{
	fake f;
	double now = 10, sum = 0;
	fake_open(&f, 12);
	ok(profile_get(&f.r)->steps == 0, "nothing is known at first");
	now = fake_step(&f, now, 5e-3, 0, 1);
	ok(profile_get(&f.r)->steps == 0, "nor after the first step, which does not count");
	for (int s = 0; s < 12; s++)
		now = fake_step(&f, now, 5e-3, 0, s == 4 ? 30 : 1);
	const profile_summary *p = profile_get(&f.r);
	ok(p->steps == 12 && p->ntensors == N && !p->agreed, "%u steps count", p->steps);
	ok(close_to(p->forward, 5e-3), "5 ms before the first gradient: %g s", p->forward);
	for (int i = 0; i < N; i++)
		sum += p->backward[i];
	ok(close_to(sum, 3e-3), "3 ms of passes, whatever one step took: %g s", sum);
	ok(close_to(p->backward[2], 3e-3 / 7 * 1) && close_to(p->backward[3] / p->backward[2], 4.0 / 3),
	   "two that come at once share by their numbers");
	ok(close_to(p->exchange.a, 1e-3) && close_to(p->exchange.b, 1e-6), "exchanges: %g s + %g s a byte",
	   p->exchange.a, p->exchange.b);
	ok(close_to(p->encode.a + p->encode.b * 1000, 2e-4) && close_to(p->decode.a + p->decode.b * 1000, 2e-4),
	   "a bucket computes 0.2 ms before its exchange and 0.2 ms after it");
	ok(p->noise < 0.01, "no noise: %g", p->noise);
	fake_close(&f);

	fake_open(&f, 12);
	for (int s = 0; s < 13; s++)
		now = fake_step(&f, now, 9e-3, s ? 4e-3 + 15.2e-3 : 0, 1);
	/* From the last gradient to the next one: the reducer's own 15.2 ms, and 9. */
	ok(close_to(profile_get(&f.r)->forward, 9e-3 + 15.2e-3 - 19.2e-3),
	   "what the program waited for averages is no forward pass: %g s", profile_get(&f.r)->forward);
	fake_close(&f);

	fake_open(&f, 12);
	for (int s = 0; s < 13; s++)
		now = fake_step(&f, now, 1e-3, 0, s % 2 ? 1 : 60);
	ok(profile_get(&f.r)->noise > 0.4, "noise is seen: %g", profile_get(&f.r)->noise);
	fake_close(&f);
}

/* A bucket whose rounds were given up says nothing of exchanges. */
static void bad_buckets(void)
{
	fake f;
	double now = 10;
	measure m;
	gradcomp_error err;
	fake_open(&f, 12);
	for (int s = 0; s < 13; s++) {
		f.buckets[1].bad = s % 2;
		now = fake_step(&f, now, 1e-3, 0, 1);
	}
	ok(!measure_take(&f.r, 0, &m, &err) && m.usable == 12 && m.n == MEASURE_HEAD + N + 12 * 3 * B,
	   "three words a bucket and step");
	int none = 0;
	for (size_t i = MEASURE_HEAD + N; i < m.n; i += 3)
		none += m.words[i] == MEASURE_NONE;
	ok(none == 6, "%d exchanges do not count", none);
	/* Words that another rank made up. */
	for (size_t i = 0; i < m.n; i++)
		m.words[i] = i % 2 ? INT64_MAX : INT64_MIN;
	fit x;
	ok(!measure_fit(&f.r, &m, &x, &err) && x.forward >= 0 && x.forward < 1e10 && isfinite(x.exchange.a) &&
	           x.exchange.b >= 0,
	   "words that are no times do no harm");
	measure_fit_clear(&x);
	measure_clear(&m);
	fake_close(&f);
}

static gradcomp_status believe(const int64_t *words, plan_msg *v, const char *why)
{
	gradcomp_error err = {0};
	gradcomp_status st = plan_msg_take(words, N, 20, v, &err);
	if (st && !strstr(err.text, why))
		printf("# %s\n", err.text);
	return st == GRADCOMP_ERR_MISMATCH && strstr(err.text, why) ? st : !st ? GRADCOMP_OK : GRADCOMP_ERR_INTERNAL;
}

static void messages(void)
{
	uint32_t end[3] = {2, 5, N}, position[3] = {1, 0, 2};
	double backward[N] = {0, 1e-3, 2e-3};
	const plan_msg said = {.kind = PLAN_MSG_PLAN,
	                       .step = 20,
	                       .plan = {.nbuckets = 3, .end = end, .position = position, .lag = 1, .predicted = 0.5},
	                       .fixed = 0.6,
	                       .exchange = {1e-3, 1e-9},
	                       .backward = backward};
	size_t n = plan_msg_words(N);
	int64_t *words = calloc(n, sizeof *words), *forged = calloc(n, sizeof *forged);
	plan_msg v = {0};
	plan_msg_put(&said, N, words);
	ok(!believe(words, &v, "") && v.plan.nbuckets == 3 && v.plan.end[1] == 5 && v.plan.position[0] == 1 &&
	           v.plan.lag == 1 && v.plan.predicted == 0.5 && v.exchange.b == 1e-9 && v.backward[2] == 2e-3,
	   "a message arrives as it was");
	plan_msg_clear(&v);
	size_t ends = n - 3 * N;
	const struct forgery {
		size_t word;
		int64_t value;
		const char *why;
	} forgeries[] = {
		{0, 1, "its first word"},
		{1, 21, "after 21 steps, this rank is after 20"},
		{2, 9, "its kind"},
		{2, PLAN_MSG_KEEP, "buckets: 3"},
		{3, 2, "trial: 2"},
		{4, 0, "buckets: 0"},
		{4, N + 1, "buckets: 9"},
		{4, (int64_t)1 << 40, "buckets:"},
		{5, 2, "lag: 2"},
		{6, 7, "lag: 1"},
		{7, (int64_t)0xbff0000000000000, "a time is"},
		{7, 0x7ff8000000000000, "a time is"},
		{7, 0x7ff0000000000000, "a time is"},
		{ends, 0, "bucket 0 ends before"},
		{ends + 1, 2, "bucket 1 ends before"},
		{ends + 2, N - 1, "the last bucket"},
		{ends + 1, -3, "a bucket's end"},
		{ends + 1, (int64_t)1 << 33, "a bucket's end"},
		{ends + N, 0, "both have position"},
		{ends + N, 5, "position 5 of 3"},
		{ends + N, -1, "a bucket's end or position"},
		{ends + 2 * N + 3, -1, "a backward pass"},
	};
	int refused = 0, all = (int)(sizeof forgeries / sizeof *forgeries);
	for (int i = 0; i < all; i++) {
		memcpy(forged, words, n * sizeof *words);
		forged[forgeries[i].word] = forgeries[i].value;
		int got = believe(forged, &v, forgeries[i].why);
		refused += got == GRADCOMP_ERR_MISMATCH;
		if (got != GRADCOMP_ERR_MISMATCH) {
			printf("# forgery %d, '%s': %d\n", i, forgeries[i].why, got);
			plan_msg_clear(&v);
		}
	}
	is_int(refused, all, "a forged message is not believed");
	int crashes = 0;
	for (int i = 0; i < 20000; i++) {
		memcpy(forged, words, n * sizeof *words);
		for (int k = 0; k < 3; k++)
			forged[(size_t)(uniform() * (double)n)] = (int64_t)(uniform() * 40) - 10;
		gradcomp_error err;
		if (!plan_msg_take(forged, N, 20, &v, &err)) {
			crashes += (v.kind == PLAN_MSG_PLAN || v.kind == PLAN_MSG_TRY) &&
			           step_plan_check(&v.plan, N, &err);
			plan_msg_clear(&v);
		}
	}
	is_int(crashes, 0, "20,000 at random: what is believed is a plan");
	free(words);
	free(forged);
}

int main(void)
{
	lines();
	edges();
	beside_the_pass();
	kept_back(40, 1e-3, 0, 0);
	kept_back(63, 1e-3, 2, 1.5);
	kept_back(160, 1e-3, 2, 1.5);
	/* So that lengths vary by half of the pass: what is beside half of it can still be told, what is beside a
	 * quarter cannot. */
	kept_back(63, 8, 2.5, 0);
	steps();
	bad_buckets();
	messages();
	return done_testing();
}
