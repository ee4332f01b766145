/* SPECs of schedules: what each comes to from the first step on, what is refused, and plan
 * files of other models and compressors. */
#include "schedule/plan_file.h"
#include "tests/support/thread_ranks.h"
#include "reducer/reducer.h"
#include "reducer/bucketing/replan_internal.h"

enum { N = 24 };

static const char *settings[8] = {"gradcomp.log=error", NULL};

static uint64_t numel_of(int i)
{
	return 64 + (uint64_t)(i * 97 % 13) * 150;
}

static const char *compressor = "none";

typedef struct asking {
	const char *schedule[MAX_RANKS];
	uint64_t bucket_bytes;
	uint32_t nbuckets[MAX_RANKS], lag[MAX_RANKS];
	gradcomp_status status[MAX_RANKS];
	char text[MAX_RANKS][512];
} asking;

static void ask_body(gradcomp_job *job, int rank, int P, void *arg)
{
	asking *a = arg;
	gradcomp_error err = {0};
	gradcomp_tensor_desc desc[N];
	uint64_t dims[N];
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = compressor,
	                              .schedule = a->schedule[rank],
	                              .bucket_bytes = a->bucket_bytes};
	gradcomp_reducer *r;
	(void)P;
	for (int i = 0; i < N; i++) {
		dims[i] = numel_of(i);
		desc[i] = (gradcomp_tensor_desc){.dims = &dims[i], .ndim = 1};
	}
	a->status[rank] = gradcomp_reducer_create(gradcomp_job_world(job), desc, N, &o, &r, &err);
	memcpy(a->text[rank], err.text, sizeof err.text);
	if (a->status[rank])
		return;
	a->nbuckets[rank] = reducer_of(r)->eng.list.nbuckets;
	a->lag[rank] = reducer_of(r)->schedule.lag;
	gradcomp_reducer_free(r);
}

static const asking *ask_each(const char *first, const char *second, uint64_t bucket_bytes)
{
	static asking a;
	a = (asking){.schedule = {first, second}, .bucket_bytes = bucket_bytes};
	run_ranks(2, settings, ask_body, &a);
	return &a;
}

static const asking *ask(const char *schedule)
{
	return ask_each(schedule, schedule, 0);
}

static int refused(const asking *a, gradcomp_status status, const char *why)
{
	int good = a->status[0] == status && a->status[1] && strstr(a->text[0], why);
	if (!good)
		printf("# %d, %d: %s\n", a->status[0], a->status[1], a->text[0]);
	return good;
}

static void specs(void)
{
	const asking *a;
	ok(refused(ask("mgwfpb"), GRADCOMP_ERR_NOTFOUND, "did you mean 'mgwfbp'"), "a schedule that is none: %s",
	   ask("mgwfpb")->text[0]);
	ok(refused(ask("fixed:bytes=many"), GRADCOMP_ERR_INVALID, "fixed: bytes: 'many' is not a size"),
	   "a size that is none");
	ok(refused(ask("wfbp:bytes=4K"), GRADCOMP_ERR_INVALID, "wfbp: unknown parameter 'bytes'"),
	   "a parameter that is none");
	ok(refused(ask("plan"), GRADCOMP_ERR_INVALID, "missing parameter 'file'"), "a plan without a file");
	ok(refused(ask("plan:file=/nowhere/at.all"), GRADCOMP_ERR_NOTFOUND, "/nowhere/at.all"),
	   "a file that is not there");
	ok(refused(ask_each("mgwfbp", "wfbp", 0), GRADCOMP_ERR_MISMATCH, "schedule wfbp"),
	   "ranks that ask for different ones");
	ok(refused(ask_each("mgwfbp", "mgwfbp", 4096), GRADCOMP_ERR_INVALID, "bucket_bytes=4096"),
	   "a schedule and bucket_bytes");
	a = ask_each("fixed", "fixed", 4096);
	ok(!a->status[0] && a->nbuckets[0] > 10, "fixed and bucket_bytes are one thing: %u messages", a->nbuckets[0]);
	settings[4] = "gradcomp.schedule=wfbp";
	a = ask_each(NULL, NULL, 8192);
	ok(!a->status[0] && a->nbuckets[0] < N, "bucket_bytes wins over the setting");
	a = ask(NULL);
	ok(!a->status[0] && a->nbuckets[0] == N, "without an option the setting counts");
	settings[4] = NULL;
}

/* A compressor that is made for one message a tensor. */
static void compressors_own(void)
{
	const asking *a;
	compressor = "lags:adaptive=yes";
	a = ask(NULL);
	ok(!a->status[0] && a->nbuckets[0] == N, "lags:adaptive=yes: every tensor by itself, %u messages",
	   a->nbuckets[0]);
	a = ask("fixed");
	ok(!a->status[0] && a->nbuckets[0] == 1, "but where another schedule is named: %u", a->nbuckets[0]);
	a = ask_each(NULL, NULL, 8192);
	ok(!a->status[0] && a->nbuckets[0] < N, "or bytes of a bucket: %u", a->nbuckets[0]);
	settings[4] = "gradcomp.schedule=single";
	a = ask(NULL);
	ok(!a->status[0] && a->nbuckets[0] == 1, "or the setting: %u", a->nbuckets[0]);
	settings[4] = NULL;
	compressor = "lags";
	a = ask(NULL);
	ok(!a->status[0] && a->nbuckets[0] == 1, "lags with given densities has fixed buckets: %u", a->nbuckets[0]);
	compressor = "none";
}

/* A plan file of this model, changed. */
static void write_plan(const char *path, const char *compressor, uint64_t more, uint32_t lag)
{
	uint32_t end[3] = {4, 9, N}, position[3] = {0, 1, 2};
	gradcomp_error err = {0};
	char spec[64], ring[64];
	snprintf(spec, sizeof spec, "%s", compressor);
	snprintf(ring, sizeof ring, "ring");
	plan_file f = {.model = "tiny",
	               .tensors = N,
	               .compressor = spec,
	               .collective = ring,
	               .plan = {.nbuckets = 3, .end = end, .position = position, .lag = lag, .predicted = 0.02}};
	for (int i = N; i-- > 0;) {
		uint64_t n = numel_of(i) + (i == 3 ? more : 0);
		f.hash = plan_hash(f.hash, 1, &n);
		f.parameters += n;
	}
	if (plan_file_write(path, &f, &err))
		printf("# %s\n", err.text);
}

static void plan_files(void)
{
	char path[64], spec[96];
	const asking *a;
	snprintf(path, sizeof path, "/tmp/gradcomp-plan-%d", (int)getpid());
	snprintf(spec, sizeof spec, "plan:file=%s", path);
	write_plan(path, "none", 0, 0);
	a = ask(spec);
	ok(!a->status[0] && a->nbuckets[0] == 3 && a->nbuckets[1] == 3 && !a->lag[0] && !a->lag[1],
	   "a plan from a file: %u messages%s", a->nbuckets[0], a->text[0]);
	write_plan(path, "none", 7, 0);
	ok(refused(ask(spec), GRADCOMP_ERR_MISMATCH, "is of another model: 'tiny' has 24 tensors and"),
	   "a plan of another model: %s", ask(spec)->text[0]);
	write_plan(path, "topk:density=0.5", 0, 0);
	ok(refused(ask(spec), GRADCOMP_ERR_MISMATCH, "is for compressor 'topk:density=0.5', this reducer has 'none'"),
	   "a plan for another compressor");
	FILE *f = fopen(path, "w");
	fputs("[plan]\nlag = many\n", f);
	fclose(f);
	ok(ask(spec)->status[0] && strstr(ask(spec)->text[0], ":2: "), "a damaged file: %s", ask(spec)->text[0]);
	unlink(path);
}

static gradcomp_status says_nothing(void *instance, const gradcomp_measured *m, uint64_t step, gradcomp_error *err)
{
	(void)instance, (void)m, (void)step, (void)err;
	return GRADCOMP_ERR_RANGE;
}

static void told_body(gradcomp_job *job, int rank, int P, void *arg)
{
	asking *a = arg;
	double backward[N] = {0};
	plan_msg v = {.backward = backward};
	gradcomp_error err = {0};
	gradcomp_reducer *r;
	(void)P;
	gradcomp_tensor_desc desc[N];
	uint64_t dims[N];
	for (int i = 0; i < N; i++) {
		dims[i] = numel_of(i);
		desc[i] = (gradcomp_tensor_desc){.dims = &dims[i], .ndim = 1};
	}
	if (gradcomp_reducer_create(gradcomp_job_world(job), desc, N, NULL, &r, &err))
		return;
	const struct gradcomp_compressor_v1 *was = reducer_of(r)->eng.compressor;
	struct gradcomp_compressor_v1 mute = *was;
	mute.measured = says_nothing;
	reducer_of(r)->eng.compressor = &mute;
	a->status[rank] = replan_notify_compressor(reducer_of(r), &v, &err);
	memcpy(a->text[rank], err.text, sizeof err.text);
	reducer_of(r)->eng.compressor = was;
	gradcomp_reducer_free(r);
}

static void wordless(void)
{
	static asking a;
	run_ranks(2, settings, told_body, &a);
	ok(refused(&a, GRADCOMP_ERR_RANGE, "compressor 'none' cannot use what was measured: "),
	   "measured() that fails without a word: %s", a.text[0]);
}

int main(void)
{
	settings[1] = plugin_path_setting();
	settings[2] = "transport.timeout=20";
	settings[3] = "schedule.profile_steps=18";
	wordless();
	specs();
	compressors_own();
	plan_files();
	return done_testing();
}
