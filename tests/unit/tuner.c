/* auto: what it decides from what was measured, on all ranks alike, and that nothing is lost
 * when reducers change. */
#include "schedule/plan_file.h"
#include "tests/support/tmpdir.h"
#include "tests/support/tuner_fixture.h"

static const char *settings[] = {NULL, "gradcomp.log=error", NULL};
#define CANDIDATES "none/cast:sum=wire/topk:density=0.1/powersgd:rank=2"
enum { NONE, CAST, TOPK, POWERSGD, MIX };
/* 3163 numbers, 12652 bytes: 12.7 ms dense at a microsecond a byte. */
#define SLOW 1e-6

static uint32_t last(const story *t)
{
	return t->with[0][t->steps - 1];
}

static int ever(const story *t, uint32_t k)
{
	int n = 0;
	for (int s = 0; s < t->steps; s++)
		n += t->with[0][s] == k;
	return n;
}

/* The step at which compression ended, or -1. */
static int fell_back(const story *t)
{
	for (int s = 1; s < t->steps; s++)
		if (t->with[0][s] < TOPK && t->with[0][s - 1] >= TOPK)
			return s;
	return -1;
}

static story slow_network(const char *spec, int steps)
{
	return (story){.spec = spec,
	               .seconds = {14e-3, 7.9e-3, 3e-3, 2e-3, 2.5e-3},
	               .exposed = 12.7e-3,
	               .byte = SLOW,
	               .steps = steps,
	               .nan_step = -1,
	               .error = 0.5};
}

static void wins(void)
{
	story t = slow_network("auto:interval=30,candidates=" CANDIDATES, 120);
	tell_story("a slow network", &t, 4, settings);
	ok(last(&t) == POWERSGD, "the faster of the two best predicted stays: %s", t.switches);
	ok(ever(&t, NONE) < 20 && !ever(&t, CAST), "%d of %d steps were dense", ever(&t, NONE), t.steps);
	ok(strstr(t.switches, "compares with dense;") && strstr(t.switches, "still wins;"),
	   "it was compared with dense again");

	t = slow_network("auto:interval=30,candidates=" CANDIDATES, 60);
	t.exposed = 0.4e-3;
	tell_story("all is hidden", &t, 3, settings);
	ok(ever(&t, NONE) == t.steps && !*t.switches, "dense from the first step to the last");

	t = slow_network("auto:interval=30,candidates=" CANDIDATES, 60);
	t.byte = 1e-9;
	tell_story("exposed, but not for want of bandwidth", &t, 3, settings);
	ok(ever(&t, NONE) == t.steps, "nothing is tried that is predicted to gain less than the margin");

	t = slow_network("auto:interval=30", 60);
	for (int k = 1; k < TUNER_CANDIDATES; k++)
		t.seconds[k] = 2e-3;
	tell_story("the candidates of the settings", &t, 3, settings);
	ok(last(&t) != NONE, "%s", t.switches);
	t = slow_network("auto:interval=30,candidates=" CANDIDATES, 1);
	tell_story("one step", &t, 2, settings);
	t = slow_network("auto:interval=30,candidates=" CANDIDATES, 6);
	tell_story("the job ends in a trial", &t, 4, settings);
	ok(last(&t) >= TOPK, "with candidate %u", last(&t));
	t = slow_network("auto:interval=30,candidates=" CANDIDATES, 10);
	tell_story("one rank", &t, 1, settings);
	ok(!*t.switches, "one rank changes nothing");
}

static void loses(void)
{
	story t = slow_network("auto:interval=30,candidates=" CANDIDATES, 40);
	t.seconds[TOPK] = t.seconds[POWERSGD] = 20e-3;
	tell_story("trials that are lost", &t, 4, settings);
	ok(last(&t) == NONE && ever(&t, TOPK) + ever(&t, POWERSGD) <= 10, "each ends after a few steps: %s",
	   t.switches);
	int at = fell_back(&t);
	story again = slow_network(t.spec, 40);
	memcpy(again.seconds, t.seconds, sizeof t.seconds);
	again.nan_step = at;
	tell_story("a NaN in the step that was to carry what is owed", &again, 4, settings);
	ok(at > 0 && again.with[0][at] == NONE && again.with[0][at - 1] >= TOPK, "in step %d", at);

	t = slow_network("auto:interval=30,candidates=" CANDIDATES, 40);
	t.seconds[TOPK] = t.seconds[POWERSGD] = 20e-3;
	t.seconds[CAST] = 13.9e-3;
	tell_story("as fast as dense, but not faster", &t, 2, settings);
	ok(last(&t) == NONE, "dense");
}

static void turns_slow(story *t, tuner *c, int rank, int s)
{
	(void)c;
	if (s == 40 && rank == 0)
		t->seconds[1] = t->seconds[2] = 15e-3;
}

static void turns_wild(story *t, tuner *c, int rank, int s)
{
	(void)c;
	if (s == 40 && rank == 0)
		t->error = 1.2;
}

/* Noise: what is held back stays where it is, above the limit, where numbers wait 200 steps. */
static void stays_high(story *t, tuner *c, int rank, int s)
{
	(void)c;
	if (s >= 40 && rank == 0)
		t->error = 0.9962 + 0.0002 * (s % 3);
}

static void stays_too_high(story *t, tuner *c, int rank, int s)
{
	(void)c;
	if (s >= 40 && rank == 0)
		t->error = 0.998;
}

static void grows(story *t, tuner *c, int rank, int s)
{
	(void)c;
	if (s >= 40 && rank == 0)
		t->error = 1 - 1.0 / (190 + s - 40);
}

static void noise_and_growth(void)
{
	story t = slow_network("auto:interval=30,candidates=" CANDIDATES, 160);
	t.before = stays_high;
	tell_story("more than may be, and no more than before", &t, 3, settings);
	ok(last(&t) >= TOPK && !strstr(t.switches, "too much"), "is borne with: %s", t.switches);
	t = slow_network("auto:interval=30,max_error=0.99,candidates=" CANDIDATES, 100);
	t.before = stays_high;
	tell_story("the same with a smaller max_error", &t, 3, settings);
	ok(last(&t) < TOPK && strstr(t.switches, "too much was held back"), "is more than twice the wait: %s",
	   t.switches);
	t = slow_network("auto:interval=30,candidates=" CANDIDATES, 100);
	t.before = stays_too_high;
	tell_story("numbers that wait more than twice as long", &t, 3, settings);
	ok(last(&t) < TOPK && strstr(t.switches, "too much was held back"), "compression is turned off: %s",
	   t.switches);
	t = slow_network("auto:interval=30,candidates=" CANDIDATES, 180);
	t.before = grows;
	tell_story("numbers that wait a step more in every step", &t, 3, settings);
	ok(last(&t) < TOPK && strstr(t.switches, "too much was held back"), "compression is turned off: %s",
	   t.switches);
}

static linear timed_anew;
static uint32_t timed_bytes;

static void is_timed_anew(story *t, tuner *c, int rank, int s)
{
	(void)t, (void)s;
	if (rank)
		return;
	timed_anew = c->network.fitted;
	timed_bytes = c->network.fit_bytes;
}

/* The line of large messages misleads about small ones. */
static void fits_again(void)
{
	story t = slow_network("auto:interval=30,candidates=" CANDIDATES, 60);
	t.small_message = 20e-3;
	t.rounding = 0.1;
	t.before = is_timed_anew;
	tell_story("small messages that take longer than large ones said", &t, 3, settings);
	ok(ever(&t, NONE) + ever(&t, CAST) == t.steps, "nothing is tried that sends them: %s", t.switches);
	ok(timed_bytes >= TUNER_FIT_MIN && timed_bytes <= 12652 && timed_anew.b > 0, "messages of %u bytes were timed",
	   timed_bytes);

	t = slow_network("auto:interval=30,candidates=none/powersgd:rank=2", 60);
	t.seconds[1] = 2e-3;
	t.message = 20e-3;
	t.small_message = 1e-6;
	tell_story("small messages that take less than large ones said", &t, 3, settings);
	ok(last(&t) == 1, "they are tried, and stay: %s", t.switches);
}

/* Rank 0 notes what it has at work before each step, and if it owed something in a guard's steps. */
static const partition *compressing, *returned;
static int asides, owed_in_guard, nan_in_guard;

static void is_set_aside(story *t, tuner *c, int rank, int s)
{
	if (rank)
		return;
	if (c->parts.aside) {
		asides++;
		compressing = c->parts.aside;
		returned = NULL;
		for (int i = 0; i < T; i++)
			owed_in_guard += c->parts.carry[i] != NULL;
	} else if (asides && c->parts.now.candidate == POWERSGD && !returned) {
		returned = c->parts.partition;
	}
	if (nan_in_guard && c->parts.aside && asides == 1)
		t->nan_step = s;
}

static void sets_aside(void)
{
	for (nan_in_guard = 0; nan_in_guard < 2; nan_in_guard++) {
		story t = slow_network("auto:interval=30,candidates=" CANDIDATES, 60);
		t.before = is_set_aside;
		compressing = returned = NULL;
		asides = owed_in_guard = 0;
		tell_story(nan_in_guard ? "a NaN in a dense step to compare with" : "dense steps to compare with", &t,
		           3, settings);
		ok(asides >= 2 && !owed_in_guard, "what is compared is set aside with what it holds back");
		ok(returned && returned == compressing, "and goes on with it: %s", t.switches);
	}
}

static void guards(void)
{
	story t = slow_network("auto:interval=30,candidates=none/topk:density=0.1/powersgd:rank=2", 160);
	t.seconds[1] = 3e-3, t.seconds[2] = 2e-3;
	t.before = turns_slow;
	tell_story("compression that has become slow", &t, 3, settings);
	ok(last(&t) == NONE && strstr(t.switches, "compares with dense"), "is turned off: %s", t.switches);

	t = slow_network("auto:interval=30,candidates=" CANDIDATES, 100);
	t.before = turns_wild;
	tell_story("more is held back than may be", &t, 3, settings);
	ok(last(&t) < TOPK && strstr(t.switches, "too much was held back"), "compression is turned off: %s",
	   t.switches);
	t = slow_network("auto:interval=30,max_error=2,candidates=" CANDIDATES, 100);
	t.before = turns_wild;
	tell_story("the same with a larger max_error", &t, 3, settings);
	ok(!strstr(t.switches, "too much"), "nothing comes of it");
}

/* Tells a story in which low rank sends less of the largest matrix, and of the others their largest numbers are
 * sent. */
static story of_two(const char *list, double mixed)
{
	story t = slow_network(list, 120);
	memcpy(t.seconds, (double[]){66e-3, 15e-3, 12e-3, mixed}, 4 * sizeof(double));
	t.exposed = 65e-3;
	t.byte = 3 * SLOW;
	t.message = 0.5e-3;
	return t;
}

static void mixes(void)
{
	const char *spec = "auto:interval=30,candidates=none/topk:density=0.07/powersgd:rank=2";
	enum { BOTH = 3 };
	story t = of_two(spec, 10e-3);
	tell_story("tensors that are best off with different compressors", &t, 3, settings);
	ok(last(&t) == BOTH &&
	           strstr(t.switches, "powersgd:rank=2 over ring for 2 of 6 tensors (63 % of the numbers)") &&
	           strstr(t.switches, ", the rest topk:density=0.07"),
	   "each goes with its own: %s", t.switches);
	ok(strstr(t.switches, "compares with dense;") && strstr(t.switches, "still wins;"),
	   "and is compared with dense");

	t = of_two(spec, 10e-3);
	t.before = turns_wild;
	tell_story("a mix that holds back more than may be", &t, 3, settings);
	ok(last(&t) != BOTH && ever(&t, BOTH) && strstr(t.switches, "too much was held back"), "is turned off: %s",
	   t.switches);

	t = of_two(spec, 40e-3);
	tell_story("a mix that is slower than was predicted", &t, 3, settings);
	ok(ever(&t, BOTH) && last(&t) != BOTH && last(&t) != NONE, "loses its trial: %s", t.switches);

	t = of_two("auto:interval=30,candidates=none/cast/topk:density=0.01", 1e-3);
	tell_story("one compressor is the best for all", &t, 3, settings);
	ok(!ever(&t, BOTH) && last(&t) == 2, "there is nothing to mix: %s", t.switches);
}

static void chooses_from(void)
{
	story t = slow_network("auto:interval=30,allow=topk,candidates=" CANDIDATES, 60);
	t.seconds[1] = 3e-3; /* the second candidate now */
	tell_story("allow=topk", &t, 2, settings);
	ok(last(&t) == 1 && strstr(t.switches, "topk") && !strstr(t.switches, "powersgd"), "%s", t.switches);
	t = slow_network("auto:interval=30,deny=powersgd/topk,candidates=" CANDIDATES, 60);
	t.rounding = 0.1;
	tell_story("deny=powersgd/topk", &t, 2, settings);
	ok(last(&t) == CAST, "what is left: %s", t.switches);
	t = slow_network("auto:interval=30,allow=onebit,candidates=" CANDIDATES, 60);
	t.seconds[1] = 3e-3;
	tell_story("allow=onebit, which was no candidate", &t, 2, settings);
	ok(strstr(t.switches, "onebit") != NULL, "%s", t.switches);
	t = slow_network("auto:interval=30,candidates=none/nosuch/dgc/topk:density=0.1", 60);
	t.seconds[1] = t.seconds[2] = 1e-3, t.seconds[3] = 3e-3;
	tell_story("candidates that are not installed, or bring their own momentum", &t, 2, settings);
	ok(last(&t) == 3 && !ever(&t, 1) && !ever(&t, 2), "are left out: %s", t.switches);
}

static void refuses(void)
{
	static const struct {
		const char *spec, *text;
	} bad[] = {
		{"auto:interval=30,rank=4", "auto: unknown parameter 'rank'"},
		{"auto:interval=30,max_error=-1", "is too small"},
		{"auto:interval=30,max_error=nan", "is not a number"},
		{"auto:interval=30,allow=a:b", "is not a compressor's name"},
		{"auto:interval=30,deny=../x", "is not a compressor's name"},
		{"auto:interval=30,candidates=topk/none", "keeps something back"},
		{"auto:interval=30,candidates=none/auto", "chooses and cannot be chosen"},
		{"auto:interval=30,candidates=none/powersgd@.", "cannot be a name"},
		{"auto:interval=30,deny=none,candidates=none", "no candidate is left"},
		{"auto:interval=30,candidates=a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q", "more than 16"},
		{"auto:interval=30,candidates=nosuch", "is not installed"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		story t = {.spec = bad[i].spec, .steps = 1, .nan_step = -1};
		run_ranks(2, settings, story_body, &t);
		ok(t.failed[0] && t.failed[1] && strstr(t.text[0], bad[i].text) && strstr(t.text[1], bad[i].text),
		   "%s: %s", bad[i].spec, t.text[0]);
	}
}

static void one_is_told_otherwise(tuner *c, decision *v, uint8_t *of, void *ctx)
{
	static const struct {
		size_t at, bytes;
		uint64_t value;
	} forged[] = {
#define FORGED(field, with) {offsetof(decision, field), sizeof((decision *)0)->field, with}
		FORGED(magic, 1),
		FORGED(step, 77),
		FORGED(phase, 9),
		FORGED(reason, 99),
		FORGED(candidate, 4),
		FORGED(candidate, 5),
		FORGED(candidate, UINT32_MAX),
		FORGED(candidate, 3),
		FORGED(next, UINT32_MAX),
		FORGED(measure, 2),
		FORGED(fit, 1),
		FORGED(fit, UINT32_MAX),
		FORGED(exposed, 0x7ff8000000000000u),
		FORGED(predicted[3], 0xbff0000000000000u),
	};
	story *t = ctx;
	size_t k = (size_t)t->nan_step;
	if (c->group->me != 1)
		return;
	if (k < sizeof forged / sizeof *forged)
		memcpy((char *)v + forged[k].at, &forged[k].value, forged[k].bytes);
	else
		of[k % T] = k % 2 ? 3 : 4;
}

static void forged(void)
{
	const char *const *all[MAX_RANKS] = {settings};
	for (int k = 0; k < 16; k++) {
		story t = slow_network("auto:interval=30,candidates=" CANDIDATES, 12);
		rank_arg results[MAX_RANKS];
		t.nan_step = k;
		t.on_decision = one_is_told_otherwise;
		run_ranks_with(3, all, results, story_body, &t);
		ok(t.failed[0] && t.failed[1] && t.failed[2] && strstr(t.text[1], "auto: rank 0"),
		   "forged decision %d is refused: %s", k, t.text[1]);
	}
}

/* The functions below check what a step is predicted to take, under the schedule that the job has. */

typedef struct forecast {
	const char *schedule;
	double step;
	int failed;
} forecast;

/* A millisecond a gradient, ten a message, nothing else. */
static void forecast_body(gradcomp_job *job, int rank, int P, void *arg)
{
	forecast *t = arg;
	const gradcomp_reducer_options o = {.struct_size = sizeof o,
	                                    .compressor = "auto:interval=30,candidates=" CANDIDATES,
	                                    .collective = "ring:small=0",
	                                    .schedule = t->schedule,
	                                    .seed = 5};
	gradcomp_error err = {0};
	uint8_t of[T];
	model m;
	(void)P;
	if (model_open_with(&m, gradcomp_job_world(job), &o, &err)) {
		printf("# %s\n", err.text);
		t->failed = 1;
		return;
	}
	if (rank == 0) {
		tuner *c = front_of(&m);
		t->failed = candidate_cost_measure(c, &c->config.candidate[NONE], &err) != 0;
		memset(&c->config.candidate[NONE].cost, 0, sizeof c->config.candidate[NONE].cost);
		for (int i = 0; i < T; i++)
			c->choice.metrics.backward[i] = 1e-3;
		*c->choice.metrics.forward = 0;
		c->choice.metrics.line[0] = 1e-2;
		c->choice.metrics.line[1] = 0;
		t->step = tuner_predict(c, NONE, of, NULL);
	}
	model_close(&m);
}

static double predicted(const char *schedule)
{
	forecast t = {.schedule = schedule};
	run_ranks(2, settings, forecast_body, &t);
	return t.failed ? -1 : t.step;
}

static void forecasts(void)
{
	char file[200], spec[220];
	double single = predicted("single"), wfbp = predicted("wfbp");
	ok(fabs(single - (T * 1e-3 + 1e-2)) < 1e-9, "single: all gradients, then a message: %.1f ms", single * 1e3);
	int messages = 0;
	for (int i = 0; i < T; i++)
		messages += numel(i) > 0;
	ok(fabs(wfbp - (1e-3 + messages * 1e-2)) < 1e-9, "wfbp: the first gradient, then a message each: %.1f ms",
	   wfbp * 1e3);
	ok(fabs(predicted("fixed") - single) < 1e-9, "fixed, in buckets larger than the model: as single");
	ok(fabs(predicted("fixed:bytes=4") - wfbp) < 1e-9, "fixed, in buckets of a number: as wfbp");
	double measured = predicted("auto"), published = predicted("mgwfbp");
	ok(measured > 0 && measured < single * (1 + 1e-6), "auto: what its search would find: %.1f ms", measured * 1e3);
	ok(published > 0 && published < single * 1.03, "mgwfbp likewise: %.1f ms", published * 1e3);

	snprintf(file, sizeof file, "%s/plan", tmpdir);
	snprintf(spec, sizeof spec, "plan:file=%s", file);
	plan_file plan = {
		.model = "small", .tensors = T, .compressor = (char[]){"none"}, .collective = (char[]){"ring"}};
	uint32_t end[T];
	for (int i = 0; i < T; i++)
		end[i] = (uint32_t)i + 1;
	plan.plan = (step_plan){.nbuckets = T, .end = end, .lag = 1};
	for (int i = T - 1; i >= 0; i--) {
		uint64_t whole[4];
		for (uint32_t d = 0; d < ndim[i]; d++)
			whole[d] = (uint64_t)dims[i][d];
		plan.hash = plan_hash(plan.hash, ndim[i], whole);
		plan.parameters += numel(i);
	}
	gradcomp_error err;
	ok(!plan_file_write(file, &plan, &err), "a plan of a message for each tensor");
	ok(fabs(predicted(spec) - wfbp) < 1e-9, "a plan file: as wfbp");
}

int main(void)
{
	settings[0] = plugin_path_setting();
	tmpdir_make("tuner");
	model_seed();
	wins();
	loses();
	guards();
	sets_aside();
	fits_again();
	noise_and_growth();
	mixes();
	chooses_from();
	refuses();
	forged();
	forecasts();
	return done_testing();
}
