/* Every compressor of this build trains two models with SGD and with Adam: none ends, none learns nothing.
 *
 *     tests/long/trainings [COMPRESSOR|hier]...     these alone */
#include "tests/support/trainings.h"

enum { STEPS = 300, RANKS = 2 };

/* Settings other than a compressor's own, and rates of SGD without momentum in place of 0.01 with momentum 0.9. */
static const struct {
	const char *name, *spec;
	float rate;
} others[] = {
	{"randomk", "randomk:density=0.1", 0.1f},
	{"threshold", "threshold:t=0.001", 0.05f},
	{"dgc", "dgc", 0.01f},
	{"demo", "demo", 0.3f},
	{"dion", "dion", 0.02f},
};

static void all_of(const char *name)
{
	for (int task = 0; task < TASKS; task++)
		for (int optimizer = 0; optimizer < OPTIMIZERS; optimizer++) {
			training t = {.spec = name,
			              .task = task,
			              .optimizer = optimizer,
			              .steps = STEPS,
			              .momentum = 0.9f,
			              .rate = optimizer == ADAM ? 0.002f : 0.01f};
			for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
				if (!strcmp(others[i].name, name)) {
					t.spec = others[i].spec;
					t.momentum = 0;
					t.rate = optimizer == ADAM ? t.rate : others[i].rate;
				}
			train(&t, RANKS, 0.85);
		}
}

/* Shards of two nodes of two ranks. */
static void in_two_levels(const char *spec)
{
	static const int node_of[] = {0, 0, 1, 1};
	training t = {
		.spec = spec, .collective = "hier", .task = CLASSES, .optimizer = ADAM, .steps = STEPS, .rate = 0.002f};
	ranks_on(node_of);
	train(&t, 4, 0.85);
	ranks_on(NULL);
}

static int asked_for(const char *name, char **argv)
{
	int asked = !argv[1];
	for (char **a = argv + 1; *a; a++)
		asked |= !strcmp(*a, name);
	return asked;
}

int main(int argc, char **argv)
{
	(void)argc;
	const char *build = getenv("GRADCOMP_BUILD");
	char pattern[4096];
	glob_t found;
	snprintf(pattern, sizeof pattern, "%s/lib/gradcomp/compressors/*.so", build ? build : ".");
	const int there = train_data() && !glob(pattern, 0, NULL, &found);
	ok(there, "headers to learn from, and compressors");
	if (!there)
		return done_testing();
	for (size_t i = 0; i < found.gl_pathc; i++) {
		char *name = strrchr(found.gl_pathv[i], '/') + 1;
		*strrchr(name, '.') = 0;
		if (asked_for(name, argv))
			all_of(name);
	}
	globfree(&found);
	if (asked_for("hier", argv)) {
		in_two_levels("topk:density=0.03");
		in_two_levels("mstopk:density=0.03");
	}
	return done_testing();
}
