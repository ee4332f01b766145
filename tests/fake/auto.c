/* auto of gradients in GPU memory: what it decides from given measurements, so that compressors come and go; that
 * nothing is lost then, on any rank, with a NaN in the step that carries what was owed too; averages, times by the
 * device's clock, a state that is taken up, no waiting but at checks, ranks that die. Linked with
 * --wrap=metrics_fill. */
#include "tests/fake/gpu_model.h"

#include "kinds/autotune/tuner_internal.h"
#include "reducer/bucketing/rebucket.h"

/* The fake's; on a real device there is none, and what needs a fake is passed over. */
__attribute__((weak)) extern long fake_cuda_waits(void);

enum { STEPS = 44, SUM = 22549 /* numbers of the model */ };

typedef struct story {
	const char *spec, *collective;
	gradcomp_dtype dtype;
	int given;                 /* 1: the steps take what the story says: */
	double seconds[4];         /* with each candidate */
	int turns;                 /* from this step on candidates are as slow as dense */
	int poison, resumes, dies; /* in the step after this many of such events; -1: never */
	double within;
} story;

static const story *told;
static int slow;

void __real_metrics_fill(tuner *c);
void __wrap_metrics_fill(tuner *c);

/* Shows what tests/support/tuner_fixture.h says. */
void __wrap_metrics_fill(tuner *c)
{
	metrics *f = &c->choice.metrics;
	__real_metrics_fill(c);
	if (!told || !told->given)
		return;
	for (uint32_t k = 1, n = metrics_steps(c); k <= n; k++) {
		double took =
			c->parts.now.candidate && slow ? 1.5 * told->seconds[0] : told->seconds[c->parts.now.candidate];
		f->took[TUNER_WINDOW - k] = took;
		f->exposed[TUNER_WINDOW - k] = took - 1e-3;
	}
	f->line[0] = 0;
	f->line[1] = 1e-6;
	f->fitted[0] = f->fitted[1] = 0;
	*f->error = c->config.candidate[c->parts.now.candidate].dense ? 0 : 0.3;
	*f->forward = 1e-3;
	memset(f->backward, 0, c->ntensors * sizeof *f->backward);
	for (uint32_t i = 0; i < 4 * f->ncandidates; i++)
		f->cost[i] = 0;
}

static void rest(tuner *c)
{
	pthread_mutex_lock(&c->lock);
	while ((c->turns.busy || c->turns.measuring) && !c->failed)
		pthread_cond_wait(&c->turns.changed, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

/* Compares the sum of all ranks' input less their output with what they hold: by number, after a check. */
static double weigh(gradcomp_group *w, tuner *c, const double *in, const double *out, int P, gradcomp_error *err)
{
	double *held = calloc(SUM, sizeof *held), worst = 0;
	float *of = calloc(SUM, sizeof *of);
	uint64_t at = 0;
	for (int t = 0; t < N_TENSORS; at += tensor_numel(t++)) {
		const partition *p = c->parts.partition;
		memset(of, 0, SUM * sizeof *of);
		if (!tensor_numel(t))
			continue;
		if (residual_carry_copy(c, (uint32_t)t, of, err) ||
		    reducer_residual_copy(p->sub[p->of[t]].r, p->as[t], of, err))
			worst = INFINITY;
		for (uint64_t i = 0; i < tensor_numel(t); i++)
			held[at + i] = in[at + i] - of[i];
	}
	if (gradcomp_allreduce(w, held, SUM, GRADCOMP_F64, GRADCOMP_SUM, err))
		worst = INFINITY;
	for (uint64_t i = 0; i < SUM; i++) {
		double off = fabs(held[i] - P * out[i]);
		worst = off <= worst ? worst : off;
	}
	free(held);
	free(of);
	return worst;
}

/* Where the average is a NaN, what was given is lost, and nothing came out. */
static void account(double *in, double *out, const gpu_model *m, int rank, int step)
{
	uint64_t at = 0;
	for (int t = 0; t < N_TENSORS; t++)
		for (uint64_t i = 0; i < tensor_numel(t); i++, at++)
			if (isfinite(gpu_value(m, t, i))) {
				in[at] += made(rank, step, t, i);
				out[at] += gpu_value(m, t, i);
			}
}

static gradcomp_status resume(gpu_model *m, gradcomp_error *err)
{
	uint64_t bytes = 0;
	gradcomp_status st = gradcomp_reducer_save(m->red, NULL, 0, &bytes, err);
	void *state = malloc(bytes + 1);
	if (!st)
		st = gradcomp_reducer_save(m->red, state, bytes, &bytes, err);
	if (!st)
		st = gradcomp_reducer_load(m->red, state, bytes, err);
	free(state);
	return st;
}

enum { LOST, CHANGES, WAITED, CARRIED, ROUNDED };

/* What a step may lose with a candidate that rounds to bfloat16: in P inputs, their sum, and P times their average, of
 * numbers that are at most a half. */
static double lost_rounding(int P)
{
	return 3 * P * 0.5 * 0x1p-9;
}

/* Whether the step to come keeps nothing back of what it rounds. */
static int rounds(const tuner *c)
{
	const candidate *a = &c->config.candidate[c->parts.now.candidate];
	return a->mixed || (a->dense && c->parts.now.candidate);
}

static void body(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const story *s = told = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gpu_model m;
	double *in = calloc(SUM, sizeof *in), *averages = calloc(SUM, sizeof *averages);
	int carried = 0, poisoned = 0;
	long waits = 0, most = 0;
	gradcomp_status st = gpu_model_open(&m, w, GRADCOMP_CUDA, s->dtype, s->spec, s->collective, 5000, &err);
	tuner *c = st ? NULL : (tuner *)m.red;
	if (st)
		printf("# rank %d: %s\n", rank, err.text);
	for (int step = 0; !st && step < STEPS; step++) {
		int owes = 0, poison, checks = c->next_check == c->steps + 1;
		for (int t = 0; t < N_TENSORS; t++)
			owes |= c->parts.carry[t] != NULL;
		slow = s->turns && step >= s->turns;
		out->number[ROUNDED] += rounds(c);
		carried += owes;
		poison = owes && carried == s->poison && !poisoned;
		poisoned |= poison;
		if (owes && carried == s->resumes)
			st = resume(&m, &err);
		if (step == s->dies && rank == 1)
			raise(SIGKILL);
		waits = fake_cuda_waits ? fake_cuda_waits() : 0;
		if (!st)
			st = gpu_step(&m, rank, step, poison, &err);
		/* One a step is the test's own. */
		if (fake_cuda_waits && !checks && !owes && !c->turns.measuring)
			most = fake_cuda_waits() - waits - 1 > most ? fake_cuda_waits() - waits - 1 : most;
		if (st)
			break;
		rest(c);
		account(in, averages, &m, rank, step);
		out->mark = mixed(out->mark ^ gpu_fingerprint(&m)) + c->parts.now.candidate;
		if (s->dies < 0 && (owes || checks || step + 1 == STEPS))
			out->number[LOST] = fmax(out->number[LOST], weigh(w, c, in, averages, P, &err));
	}
	if (c) {
		gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
		gradcomp_reducer_get_stats(m.red, &stats);
		out->number[CHANGES] = c->choice.nchanges;
		out->number[WAITED] = (double)most;
		out->number[CARRIED] = carried;
		out->failed |= !st && (stats.steps != STEPS || !(stats.exposed_s > 0));
		for (int k = 0; !st && k < STEPS - 4; k++)
			out->failed |= !(c->timer.took[k] > 0 && c->timer.took[k] < 60 && c->timer.exposed[k] >= 0 &&
			                 c->timer.exposed[k] <= c->timer.took[k] + 1e-6);
		for (uint32_t i = 0; rank == 0 && i < c->choice.nchanges; i++)
			printf("# step %llu: %s (%s)\n", (unsigned long long)c->choice.change[i].step,
			       c->choice.change[i].to, tuner_reason_text(c->choice.change[i].reason));
		gpu_model_close(&m);
	}
	free(in);
	free(averages);
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
}

static void tell(const char *what, int P, const story *s, int carried, const char *const *settings)
{
	const outcome *o = run_processes(P, 120, settings, body, (void *)(uintptr_t)s);
	int failed = 0, differ = 0;
	double lost = 0, waited = 0;
	for (int r = 0; r < P; r++) {
		failed |= o[r].failed | o[r].status;
		differ |= o[r].mark != o[0].mark;
		lost = fmax(lost, o[r].number[LOST]);
		waited = fmax(waited, o[r].number[WAITED]);
		if (o[r].status || o[r].failed)
			printf("# rank %d: failed %d, %s\n", r, o[r].failed, o[r].text);
	}
	ok(!failed && !differ && lost <= s->within + o[0].number[ROUNDED] * lost_rounding(P) &&
	           o[0].number[CARRIED] >= carried,
	   "%s, %d ranks: the same bits and decisions on all, %g changes, residuals in %g steps, %.2g lost, %g rounded",
	   what, P, o[0].number[CHANGES], o[0].number[CARRIED], lost, o[0].number[ROUNDED]);
	if (fake_cuda_waits && !s->collective)
		ok(waited == 0, "... no step waits for the device between checks (%g)", waited);
}

/* Where nothing that holds back is faster one line says so, with what was measured, and a dense candidate stays. */
static void tell_dense(const char *what, const story *s, const char *says, const char *const *settings)
{
	char text[4096] = "";
	const int was = dup(2), to = memfd_create("log", MFD_CLOEXEC);
	dup2(to, 2);
	tell(what, 2, s, 0, settings);
	dup2(was, 2);
	close(was);
	ssize_t bytes = pread(to, text, sizeof text - 1, 0);
	close(to);
	const char *at = strstr(text, "auto: nothing pays here");
	ok(bytes > 0 && at && !strncmp(at, says, strlen(says)) && !strstr(at + 1, "auto: nothing"),
	   "... and one line says: %.*s", at ? (int)strcspn(at, "\n") : 200, at ? at : text);
}

#define LIST "auto:interval=20,window=4,candidates=none/topk:density=0.1/powersgd:rank=2"

int main(void)
{
	const char *const settings[] = {"transport.timeout=5", "gradcomp.log=warn", NULL};
	const story quick = {.spec = LIST,
	                     .given = 1,
	                     .seconds = {24e-3, 8e-3, 5e-3, 6e-3},
	                     .turns = 18,
	                     .poison = -1,
	                     .resumes = -1,
	                     .dies = -1,
	                     .within = 2e-3};
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	test_seed_value = getenv("TEST_SEED") ? strtoull(getenv("TEST_SEED"), NULL, 0) : (uint64_t)now.tv_nsec;
	printf("# seed %llu\n", (unsigned long long)test_seed_value);
	story s = quick;
	s.given = 0;
	s.spec = "auto:interval=20,window=4";
	tell("as it is", 2, &s, 0, settings);
	s = quick;
	tell("candidates that win and lose", 3, &s, 1, settings);
	s.poison = 1;
	tell("and a NaN in the step that carries what is owed", 2, &s, 2, settings);
	s.poison = -1;
	s.resumes = 1;
	tell("and a state saved before that step", 2, &s, 1, settings);
	s = quick;
	s.spec = "auto:interval=20,window=4,candidates=none/cast:type=bf16";
	static const char *const informs[] = {"transport.timeout=5", "gradcomp.log=info", NULL};
	s = quick;
	s.turns = 0;
	s.spec = "auto:interval=100,window=4,candidates=none/cast:type=bf16/topk:density=0.1";
	s.seconds[1] = 12e-3;
	s.seconds[2] = s.seconds[3] = 30e-3;
	tell_dense("cast is the fastest", &s,
	           "auto: nothing pays here but a dense one: cast:type=bf16 over nccl leaves 11.0 of 12.0 ms a step to "
	           "communication, none takes 24.0 (",
	           informs);
	s.seconds[0] = 1.02e-3;
	tell_dense(
		"communication is hidden", &s,
		"auto: nothing pays here: none over nccl leaves 0.0 of 1.0 ms a step to communication, less than the "
		"margin of 5 %",
		informs);
	s.seconds[0] = 11.5e-3;
	tell_dense(
		"no trial is faster", &s,
		"auto: nothing pays here: none over nccl leaves 10.5 of 11.5 ms a step to communication; no trial was "
		"faster (",
		informs);
	tell("a candidate that rounds and keeps nothing back", 2, &s, 0, settings);
	s = quick;
	s.dtype = GRADCOMP_BF16;
	s.within = 2;
	tell("with bfloat16", 2, &s, 1, settings);
	s = quick;
	s.collective = "ring";
	tell("through host memory", 2, &s, 1, settings);
	s.collective = NULL;
	s.dies = 8;
	double since = process_clock();
	const outcome *o = run_processes(3, 60, settings, body, &s);
	since = process_clock() - since;
	ok(o[1].failed == -SIGKILL && o[0].status == GRADCOMP_ERR_PEER && o[2].status == GRADCOMP_ERR_PEER &&
	           strstr(o[0].text, "rank 1") && since < 20,
	   "a rank that dies is named, in %.1f s: \"%s\"", since, o[0].text);
	return done_testing();
}
