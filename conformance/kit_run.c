/* Runs the groups, each in its own process, and collects their results. */
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "conformance/crash.h"
#include "conformance/kit_findings.h"
#include "conformance/hooks.h"
#include "conformance/kit.h"
#include "conformance/process.h"

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct group {
	void (*run)(kit *k);
	rule crash;
	int instead;    /* asked again of what the plugin can do instead */
	uint32_t since; /* the ABI that brought it; 0: the first */
} group;

static const group of_compressors[] = {
	{steps_group, RULE_BOUNDS, 1, 0},
	{nonfinite_group, RULE_NONFINITE, 0, 0},
	{unbiased_group, RULE_UNBIASED, 1, 0},
	{unbiased_noise_group, RULE_NOISE, 1, 0},
	{resume_group, RULE_RESUME, 1, 0},
	{instances_group, RULE_GLOBALS, 0, 0},
	{threads_group, RULE_THREADS, 1, 0},
	{parameters_group, RULE_PARAMETERS, 1, 0},
	{saved_state_group, RULE_SAVED_STATE, 0, 0},
	{peers_group, RULE_PEERS, 1, 0},
	{memory_group, RULE_MEMORY, 1, 0},
	{device_group, RULE_DEVICE, 0, 0},
	{steps_large_group, RULE_BOUNDS, 1, 0},
	{nonfinite_overflow_group, RULE_CODE, 1, 2},
	{steps_reach_group, RULE_BOUNDS, 1, 2},
	{elsewhere_trace_group, RULE_BOUNDS, 1, 2},
	{elsewhere_group, RULE_BOUNDS, 1, 2},
	{NULL, RULE_NONE, 0, 0},
};

static const group of_collectives[] = {
	{predict_group, RULE_PREDICT, 0, 0},
	{collective_primitives_group, RULE_PRIMITIVES, 0, 0},
	{collective_memory_group, RULE_MEMORY, 0, 0},
	{NULL, RULE_NONE, 0, 0},
};

/* Says where such a call of a step belongs. */
static const char *instead_of(const char *name)
{
	static const struct {
		const char *names, *instead;
	} list[] = {
		{"malloc calloc realloc free aligned_alloc memalign posix_memalign strdup host->alloc "
	         "host->release mmap",
	         "what a step needs is scratch of its plan, or was allocated in create()"},
		{"rand random drand48 srand srandom getrandom",
	         "random numbers are those of operators, by layout->seed, the step and the rank"},
		{"pthread_mutex_lock pthread_rwlock_rdlock pthread_rwlock_wrlock pthread_cond_wait sem_wait "
	         "sched_yield",
	         "the host runs no two functions of one instance at a time, so a step needs no lock"},
	};

	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
		const char *p = strstr(list[i].names, name);
		if (p && (p == list[i].names || p[-1] == ' '))
			return list[i].instead;
	}
	return "no function blocks, starts anything, opens anything or prints: that is the host's";
}

static void after_group(kit *k, const process_state *before, int printed)
{
	struct stat st = {0};
	const uint32_t since = k->since;
	const char *function, *name;
	char changed[200];
	int count;
	name = hooks_forbidden(&function, &count);
	if (name)
		kit_fail(k, RULE_STEADY, "%s() is called in %s(), %d times in all\n%s", name, function, count,
		         instead_of(name));
	fstat(printed, &st);
	if (st.st_size)
		kit_fail(k, RULE_STEADY, "%lld bytes were written to stdout\nwhat is to be said goes to host->log",
		         (long long)st.st_size);
	if (!name && !st.st_size)
		kit_ok(k, RULE_STEADY,
		       k->collective ? "no sleep, process or output" : "no allocation, lock, sleep, file or output");
	k->since = KIT_FURTHER;
	if (host_spoiled)
		kit_fail(k, RULE_BOUNDS, "bytes beside memory of the instance, a block of %zu bytes, were written",
		         host_spoiled - 1);
	if (!k->collective && !k->failed && (host_allocated || hooks_outstanding()))
		kit_fail(k, RULE_MEMORY,
		         "%d blocks of host->alloc and %d of malloc are left when all instances are "
		         "destroyed\ndestroy() forgets "
		         "a member",
		         host_allocated, hooks_outstanding());
	if (hooks_environment())
		kit_fail(k, RULE_PROCESS,
		         "the environment is read in %s()\nranks have different ones: a setting is a parameter, "
		         "which all ranks compare",
		         hooks_environment());
	k->since = since;
	if (call_now->floats)
		kit_fail(k, RULE_PROCESS, "%s in %s()", process_floats_text(call_now->floats),
		         call_name(call_now->floats_by));
	else if (process_changed(before, changed, sizeof changed))
		kit_fail(k, RULE_PROCESS, "%s", changed);
	else
		kit_ok(k, RULE_PROCESS,
		       "rounding, descriptors, threads, directory, locale, environment and signals stay as they are");
}

/* Parameters that do not apply to the alternative payload type may be refused with an error. */
static bool suits(const kit *k)
{
	const fixture *t = &k->fixture;
	ranks s;
	gradcomp_status st =
		ranks_open(&s, t->plugin, t->op, t->values, 1, fixture_models[6].n, fixture_models[6].dims, 1);
	if (!st)
		ranks_close(&s);
	return st != GRADCOMP_ERR_UNSUPPORTED || !s.err.text[0];
}

/* A plugin may end the process as well as we: only this is the end of a group. */
__attribute__((noreturn)) static void group_done(void)
{
	call_now->done = 1;
	_exit(0);
}

/* Runs in the child. */
static void group_process(kit *k, const group *g, int number)
{
	int printed = memfd_create("stdout", MFD_CLOEXEC);
	process_state before;
	if (printed >= 0)
		dup2(printed, STDOUT_FILENO);
	random_check_seed(k->options->seed * 64 + (uint64_t)number);
	hooks_install((k->collective ? &k->collective->info : &k->fixture.plugin->info)->name);
	k->crash = g->crash;
	k->since = g->since;
	crash_watch(k);
	process_look(&before);
	if (ranks_patterns && !suits(k))
		group_done();
	if (ranks_patterns)
		k->fixture.bytes = NULL; /* a formula of the payloads */
	if (!k->collective && k->fixture.relative <= 0)
		kit_rounding(&k->fixture);
	g->run(k);
	fflush(stdout);
	after_group(k, &before, printed);
	group_done();
}

/* Reads until the child has closed its end. A call that does not return, or a group
 * that takes too long, ends it. Returns 0 when it had to be stopped. */
static int listen_to(int in, pid_t child, const kit_options *o, kit_result *out)
{
	double began = now(), since = began;
	uint64_t count = call_now->count;
	finding m;
	for (;;) {
		struct pollfd p = {.fd = in, .events = POLLIN};

		if (poll(&p, 1, 100) > 0) {
			ssize_t n = read(in, &m, sizeof m);
			if (n != (ssize_t)sizeof m)
				return 1;
			kit_take(out, &m);
			continue;
		}
		if (count != call_now->count) {
			count = call_now->count;
			since = now();
		}
		if (now() - since > o->seconds || now() - began > 20 * o->seconds) {
			int stuck = now() - since > o->seconds && call_now->which;

			kit_note(out, RULE_TIME, RESULT_FAIL,
			         "%s%s has not returned after %.0f s (round %u, rank %d of %d)",
			         stuck ? call_name(call_now->which) : "the group of checks", stuck ? "()" : "",
			         now() - (stuck ? since : began), call_now->round, call_now->rank, call_now->nranks);
			kill(child, SIGKILL);
			return 0;
		}
	}
}

static int run_group(kit *k, const group *g, int number, kit_result *out)
{
	int ends[2], status, finished;
	pid_t child;
	fflush(NULL);
	memset(call_now, 0, sizeof *call_now);
	if (pipe(ends) || (child = fork()) < 0) {
		kit_note(out, g->crash, RESULT_FAIL, "no process could be started: %m");
		return 0;
	}
	if (!child) {
		close(ends[0]);
		k->out = ends[1];
		group_process(k, g, number);
	}
	close(ends[1]);
	out->since = g->since;
	finished = listen_to(ends[0], child, k->options, out);
	close(ends[0]);
	waitpid(child, &status, 0);
	if (finished && !call_now->done && (!WIFEXITED(status) || WEXITSTATUS(status) != CRASH_STATUS))
		kit_note(out, RULE_PROCESS, RESULT_FAIL, "the process ended with %s %d in %s()",
		         WIFSIGNALED(status) ? "signal" : "status",
		         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), call_name(call_now->which));
	return finished;
}

/* Returns true when the run goes on: a call that hangs would do so again. */
static bool run_groups(kit *k, const group *groups, bool instead, kit_result *out)
{
	bool going = true;
	for (int g = 0; groups[g].run && going; g++)
		if (!instead || groups[g].instead)
			going = run_group(k, &groups[g], g, out) != 0;
	return going;
}

static bool shared_calls(void)
{
	void *shared = mmap(NULL, sizeof *call_now, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		return false;
	call_now = shared;
	return true;
}

/* A rule that no group has spoken of was not come to. */
static int sum_up(kit_result *out)
{
	for (int r = RULE_NONE + 1; r < RULES; r++) {
		if (out->result[r] == RESULT_SKIP && !out->text[r][0]) {
			out->result[r] = RESULT_MISSED;
			snprintf(out->text[r], sizeof out->text[r], "not reached: the checks ended before");
		}
		out->rules_kept += out->result[r] == RESULT_OK;
		out->rules_broken += out->result[r] == RESULT_FAIL;
		out->rules_skipped += out->result[r] == RESULT_SKIP;
		out->rules_missed += out->result[r] == RESULT_MISSED;
		out->rules_warned += out->result[r] == RESULT_WARN;
	}
	return out->rules_broken || out->rules_missed;
}

int kit_run_fixture(const kit_options *options, const fixture *t, kit_result *out)
{
	kit k = {.options = options, .fixture = *t};
	bool going;
	for (int r = 0; r < RULES; r++)
		if (out->result[r] != RESULT_WARN) /* the warning came when it was loaded */
			out->result[r] = RESULT_SKIP;
	out->abi = t->plugin->info.abi_version;
	if (!shared_calls())
		return 1;
	kit_note(out, RULE_DESCRIPTOR, RESULT_OK, "fields, functions and %u parameters are what they should be",
	         t->plugin->info.nparams);
	describe_notes(t->plugin, out);
	k.trace = elsewhere_trace_new();
	going = run_groups(&k, of_compressors, false, out);
	ranks_patterns = t->plugin->instead;
	going = going && (!ranks_patterns || run_groups(&k, of_compressors, true, out));
	ranks_patterns = 0;
	elsewhere_trace_free(k.trace);
	if (going)
		kit_note(out, RULE_TIME, RESULT_OK, "every call returned");
	for (rule r = RULE_PREDICT; r < RULES; r++)
		if (r != RULE_PROCESS && r != RULE_NOISE)
			kit_note(out, r, RESULT_SKIP, "of collectives");
	return sum_up(out);
}

int kit_run_collective(const kit_options *options, const struct gradcomp_collective_v1 *plugin,
                       const gradcomp_value *values, kit_result *out)
{
	static const rule asked[] = {RULE_AGREEMENT, RULE_CONSERVATION, RULE_DESCRIPTOR, RULE_BOUNDS,
	                             RULE_MEMORY,    RULE_STEADY,       RULE_TIME,       RULE_PREDICT,
	                             RULE_PROCESS,   RULE_PRIMITIVES,   RULE_LINKS};
	kit k = {.options = options, .collective = plugin, .values = values};
	out->abi = plugin->info.abi_version;
	if (!shared_calls())
		return 1;
	kit_note(out, RULE_DESCRIPTOR, RESULT_OK, "fields and functions are what they should be");
	if (run_groups(&k, of_collectives, false, out))
		kit_note(out, RULE_TIME, RESULT_OK, "every call returned");
	for (int r = RULE_NONE + 1; r < RULES; r++) {
		bool of_these = false;

		for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
			of_these |= (int)asked[i] == r;
		if (!of_these && out->result[r] == RESULT_SKIP)
			kit_note(out, (rule)r, RESULT_SKIP, "of compressors");
	}
	return sum_up(out);
}
