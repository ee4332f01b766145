/* gradcomp.verify: plugins that break the contract on one rank end the job in words, whatever their
 * payloads are; those that keep it do not, over all collectives, transports and types, with delays and
 * on two levels; NaN in gradients is no fault of theirs. */
#include "tests/support/broken_ranks.h"
#include "tests/support/conservation.h"

#include "config/config.h"
#include "plugin/registry.h"
#include "step/verify.h"
#include "tests/support/delayed_fixture.h"
#include "tests/support/tmpdir.h"

static char path_setting[13000];

/* The functions below try what is broken. */

/* All ranks fail in the first step, with all of these texts. */
static void breaks(const char *spec, const char *collective, uint64_t bucket_bytes, const char *const texts[])
{
	enum { P = 3 };
	char over[80];
	const char *const settings[] = {
		path_setting, "transport.timeout=20", "gradcomp.log=error", "gradcomp.verify=yes", over, NULL};
	const char *const *all[MAX_RANKS] = {settings};
	broken *b = calloc(1, sizeof *b);
	rank_arg left[MAX_RANKS];
	int failed = 0, named = 0, late = 0;
	b->spec = spec;
	b->bucket_bytes = bucket_bytes;
	snprintf(over, sizeof over, "gradcomp.collective=%s", collective);
	run_ranks_with(P, all, left, broken_body, b);
	for (int r = 0; r < P; r++) {
		int has = 1;
		failed += b->status[r] != 0;
		late += b->steps[r] != 0;
		for (int i = 0; texts[i]; i++)
			has &= strstr(b->text[r], texts[i]) != NULL;
		named += has;
	}
	ok(failed == P && named == P && !late, "%s over %s: %d of %d ranks fail, %d in the right words, %d late", spec,
	   collective, failed, P, named, late);
	if (named != P)
		printf("# %s\n", b->text[0]);
	free(b);
}

static void broken_plugins(void)
{
	static const struct {
		const char *name, *collective;
	} of[] = {{"summer", "ring"}, {"collector", "ring"}, {"collector", "direct"},
	          {"merger", "tree"}, {"coder", "ring"},     {"coder", "direct"}};
	char spec[80], name[80];
	for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
		snprintf(name, sizeof name, "'%s:fault=", of[i].name);
		snprintf(spec, sizeof spec, "%s:fault=noise", of[i].name);
		breaks(spec, of[i].collective, 1 << 20,
		       (const char *const[]){"gradcomp.verify: step 0: the averages of '",
		                             " are not the same on all ranks; apart from the majority: rank 1 on ",
		                             name, NULL});
		snprintf(spec, sizeof spec, "%s:fault=melt", of[i].name);
		breaks(spec, of[i].collective, 1 << 20,
		       (const char *const[]){"gradcomp.verify: step 0: compressor ", name,
		                             "has made NaN or Inf of finite gradients, in the average of '",
		                             ": rank 1 on ", NULL});
		snprintf(spec, sizeof spec, "%s:fault=lose", of[i].name);
		breaks(spec, of[i].collective, 1 << 20,
		       (const char *const[]){"gradcomp.verify: step 0: compressor ", name,
		                             " loses a part of the gradient of '", NULL});
	}
	breaks("merger:fault=poison", "tree", 1 << 20,
	       (const char *const[]){"in the error memory of 'w2': rank 1 on ", NULL});
	/* Every tensor a bucket: all of them differ, and the first is named. */
	breaks("collector:fault=noise", "ring", 1,
	       (const char *const[]){
		       "the averages of 'w1' (and of 4 other tensors) are not the same on all ranks; apart from the majority: rank 1 on ",
		       NULL});
	breaks("ranks_differ", "ring", 1 << 20,
	       (const char *const[]){" are not the same on all ranks; there is no majority: rank 0 on ",
	                             "compressor 'ranks_differ' over collective 'ring'", NULL});
	breaks("loses_mass", "ring", 1,
	       (const char *const[]){"compressor 'loses_mass' over collective 'ring' loses a part of the gradient of '",
	                             NULL});
}

/* The functions below try what is not. */

static const char *const *sound(const char *collective)
{
	static char over[80];
	static const char *settings[] = {
		path_setting, "transport.timeout=20", "gradcomp.log=error", "gradcomp.verify=yes", over, NULL};
	snprintf(over, sizeof over, "gradcomp.collective=%s", collective);
	return settings;
}

static int each(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	const struct gradcomp_compressor_v1 *c = (const void *)info;
	const char *const settings[] = {path_setting, "transport.timeout=20", "gradcomp.log=error",
	                                "gradcomp.verify=yes", NULL};
	(void)ctx, (void)reason;
	if (c && strstr(path, "/lib/gradcomp/")) {
		run_spec_on("", name, 3, 5000, -1, settings, apart_of(c));
		run_spec_on("", name, 2, 25 << 20, 2, settings,
		            c->traits & GRADCOMP_TRAIT_PASSES_NONFINITE ? HUGE_VAL : apart_of(c));
	}
	return 0;
}

static void sound_plugins(void)
{
	static const int two_nodes[] = {0, 0, 1, 1};
	const char *const *ring = sound("ring");
	gradcomp_error err;
	config *c;
	if (config_load(ring, &c, &err)) {
		ok(0, "%s", err.text);
		return;
	}
	registry_each(c, GRADCOMP_KIND_COMPRESSOR, each, NULL);
	config_free(c);
	run_spec_on("", "none", 1, 5000, -1, ring, 1e-6);
	run_spec_on("", "topk", 1, 5000, -1, ring, HUGE_VAL);
	run_spec_on("", "onebit", 4, 5000, 2, sound("direct"), HUGE_VAL);
	run_spec_on("", "topk:density=0.1", 3, 5000, -1, sound("sparse"), HUGE_VAL);
	ranks_on(two_nodes);
	run_spec_on(" in two levels", "topk:density=0.1", 4, 5000, -1, sound("hier"), HUGE_VAL);
	run_spec_on(" in two levels", "topk:density=0.1", 4, 1 << 20, 2, sound("hier"), HUGE_VAL);
	run_spec_on(" over tcp", "powersgd", 4, 5000, -1, sound("ring"), HUGE_VAL);
	run_spec_on(" over tcp", "block", 4, 5000, -1, sound("ring"), HUGE_VAL);
	ranks_on(NULL);
}

/* Averages that come late, in any type. */
static void delayed_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	gradcomp_reducer *red;
	values v;
	int done = 0;
	(void)P;
	values_open(&v, run->dtype);
	run->failed[rank] = open_delayed(&red, gradcomp_job_world(job), run->spec, run->dtype, run->delay, &done, &err);
	if (!run->failed[rank]) {
		for (int s = 0; s < 5 && !run->failed[rank]; s++)
			run->failed[rank] = step(red, &v, rank, s, &err);
		gradcomp_reducer_free(red);
	}
	if (err.status)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	values_close(&v);
}

static void delayed(const char *spec, gradcomp_dtype dtype, uint32_t delay)
{
	struct run run = {.spec = spec, .dtype = dtype, .delay = delay};
	run_ranks(3, sound("ring"), delayed_body, &run);
	ok(!run.failed[0] && !run.failed[1] && !run.failed[2], "%s, type %d, a delay of %u steps", spec, (int)dtype,
	   delay);
}

static void auto_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	gradcomp_status st;
	model m;
	(void)P, (void)arg;
	st = model_open(&m, gradcomp_job_world(job), "auto", 5000, &err);
	for (int step = 0; !st && step < 40; step++)
		st = model_step(&m, rank, step, &err);
	is_int(st, GRADCOMP_OK, "rank %d: auto, 40 steps: %s", rank, err.text);
	if (m.red)
		model_close(&m);
}

/* The functions below try who asks for it. */

static void off_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	model m;
	(void)P, (void)arg;
	if (model_open(&m, gradcomp_job_world(job), "summer:fault=noise", 1 << 20, &err)) {
		ok(0, "%s", err.text);
		return;
	}
	ok(!reducer_of(m.red)->eng.checks.verify && !model_step(&m, rank, 0, &err),
	   "rank %d: without the setting nobody looks", rank);
	model_close(&m);
}

static void some(void)
{
	const char *const with[] = {path_setting, "transport.timeout=20", "gradcomp.log=error", "gradcomp.verify=yes",
	                            NULL};
	const char *const without[] = {path_setting, "transport.timeout=20", "gradcomp.log=error", NULL};
	const char *const *all[MAX_RANKS] = {with, without};
	broken *b = calloc(1, sizeof *b);
	rank_arg left[MAX_RANKS];
	b->spec = "topk";
	b->bucket_bytes = 1 << 20;
	run_ranks_with(2, all, left, broken_body, b);
	like(b->text[0], " has gradcomp.verify=no, rank 0 has yes: all ranks must have the same",
	     "one rank without it");
	is_str(b->text[1], b->text[0], "which both say");
	free(b);
	run_ranks(2, without, off_body, NULL);
}

static void faulty(const char *name, const char *build, int n)
{
	char from[4400], to[200];
	snprintf(from, sizeof from, "%.*stests/plugins/faulty/%s.so", n, build, name);
	snprintf(to, sizeof to, "%s/compressors/%s.so", tmpdir, name);
	ok(!symlink(from, to), "%s", name);
}

int main(void)
{
	const char *path = strchr(plugin_path_setting(), '=') + 1;
	int build = (int)(strlen(path) - strlen("lib/gradcomp"));
	char folder[200];
	unsetenv("GRADCOMP_VERIFY");
	model_seed();
	tmpdir_make("verify");
	snprintf(folder, sizeof folder, "%s/compressors", tmpdir);
	mkdir(folder, 0700);
	faulty("ranks_differ", path, build);
	faulty("loses_mass", path, build);
	snprintf(path_setting, sizeof path_setting, "gradcomp.plugin_path=%s:%.*stests/plugins:%s", path, build, path,
	         tmpdir);
	broken_plugins();
	sound_plugins();
	delayed("topk", GRADCOMP_F32, 0);
	delayed("topk", GRADCOMP_F16, 0);
	delayed("none", GRADCOMP_BF16, 0);
	delayed("powersgd", GRADCOMP_BF16, 2);
	run_ranks(2, sound("ring"), auto_body, NULL);
	some();
	return done_testing();
}
