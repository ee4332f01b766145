/* Runs the groups, each in its own process, and collects their results. */
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/conformance/crash.h"
#include "tools/conformance/hooks.h"
#include "tools/conformance/kit.h"

/* What a group's process writes; less than PIPE_BUF, so it arrives in one piece. */
typedef struct message {
	rule rule;
	rule_result result;
	char text[400];
} message;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void send(kit *k, rule r, rule_result v, const char *fmt, va_list ap)
{
	message m = {.rule = r, .result = v};

	vsnprintf(m.text, sizeof m.text, fmt, ap);
	if (write(k->out, &m, sizeof m) != sizeof m)
		_exit(4);
}

void kit_ok(kit *k, rule r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	send(k, r, RESULT_OK, fmt, ap);
	va_end(ap);
}

void kit_fail(kit *k, rule r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	send(k, r, RESULT_FAIL, fmt, ap);
	va_end(ap);
}

void kit_skip(kit *k, rule r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	send(k, r, RESULT_SKIP, fmt, ap);
	va_end(ap);
}

static void take(kit_result *out, const message *m)
{
	rule_result *v = &out->result[m->rule];

	out->asked[m->rule] += m->result != RESULT_SKIP;
	out->broken[m->rule] += m->result == RESULT_FAIL;
	if (*v == RESULT_FAIL || (*v == RESULT_OK && m->result == RESULT_SKIP))
		return;
	*v = m->result;
	memcpy(out->text[m->rule], m->text, sizeof m->text);
}

void kit_note(kit_result *out, rule r, rule_result v, const char *fmt, ...)
{
	message m = {.rule = r, .result = v};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(m.text, sizeof m.text, fmt, ap);
	va_end(ap);
	take(out, &m);
}

static const struct {
	void (*run)(kit *k);
	rule crash;
	int instead; /* asked again of what the plugin can do instead */
} groups[] = {
	{group_steps, RULE_BOUNDS, 1},       {group_nonfinite, RULE_NONFINITE, 0},     {group_unbiased, RULE_UNBIASED, 1},
	{group_resume, RULE_RESUME, 1},      {group_instances, RULE_GLOBALS, 0},       {group_threads, RULE_THREADS, 1},
	{group_parameters, RULE_PARAMETERS, 1}, {group_saved_state, RULE_SAVED_STATE, 0}, {group_peers, RULE_PEERS, 1},
	{group_memory, RULE_MEMORY, 1},      {group_device, RULE_DEVICE, 0},
};
enum { GROUPS = sizeof groups / sizeof groups[0] };

static void after_steps(kit *k, const struct sigaction *before, int printed)
{
	struct stat st = {0};
	const char *function, *name;
	int count, changed = 0;

	name = hooks_forbidden(&function, &count);
	if (name)
		kit_fail(k, RULE_STEADY, "%s() is called in %s(), %d times in all", name, function, count);
	fstat(printed, &st);
	if (st.st_size)
		kit_fail(k, RULE_STEADY, "%lld bytes were written to stdout", (long long)st.st_size);
	for (int n = 1; n < 32; n++) {
		struct sigaction sa;
		if (!sigaction(n, NULL, &sa) && sa.sa_handler != before[n].sa_handler)
			changed = n;
	}
	if (changed)
		kit_fail(k, RULE_STEADY, "the handler of signal %d was changed", changed);
	if (!name && !st.st_size && !changed)
		kit_ok(k, RULE_STEADY, "no allocation, lock, sleep, output or new signal handler");
}

/* Parameters that do not apply to the alternative payload type may be refused with an error. */
static bool suits(const kit *k)
{
	const fixture *t = &k->fixture;
	ranks s;
	gradcomp_status st = ranks_open(&s, t->plugin, t->op, t->values, 1, fixture_models[6].n, fixture_models[6].dims, 1);

	if (!st)
		ranks_close(&s);
	return st != GRADCOMP_ERR_UNSUPPORTED || !s.err.text[0];
}

/* In the child. */
static void group_process(kit *k, int group)
{
	struct sigaction before[32] = {0};
	int printed = memfd_create("stdout", MFD_CLOEXEC);

	if (printed >= 0)
		dup2(printed, STDOUT_FILENO);
	check_seed(k->options->seed * 64 + (uint64_t)group);
	hooks_install(k->fixture.plugin);
	k->crash = groups[group].crash;
	crash_watch(k);
	for (int n = 1; n < 32; n++)
		sigaction(n, NULL, &before[n]);
	if (ranks_patterns && !suits(k))
		_exit(0);
	if (ranks_patterns)
		k->fixture.bytes = NULL; /* a formula of the payloads */
	if (k->fixture.relative <= 0)
		fixture_rounding(&k->fixture);
	groups[group].run(k);
	fflush(stdout);
	after_steps(k, before, printed);
	_exit(0);
}

/* Reads until the child has closed its end. A call that does not return, or a group
 * that takes too long, ends it. Returns 0 when it had to be stopped. */
static int listen_to(int in, pid_t child, const kit_options *o, kit_result *out)
{
	double began = now(), since = began;
	uint64_t count = call_now->count;
	message m;

	for (;;) {
		struct pollfd p = {.fd = in, .events = POLLIN};

		if (poll(&p, 1, 100) > 0) {
			ssize_t n = read(in, &m, sizeof m);
			if (n != (ssize_t)sizeof m)
				return 1;
			take(out, &m);
			continue;
		}
		if (count != call_now->count) {
			count = call_now->count;
			since = now();
		}
		if (now() - since > o->seconds || now() - began > 20 * o->seconds) {
			int stuck = now() - since > o->seconds && call_now->which;

			kit_note(out, RULE_TIME, RESULT_FAIL, "%s%s has not returned after %.0f s (round %u, rank %d of %d)",
			     stuck ? call_name(call_now->which) : "the group of checks", stuck ? "()" : "",
			     now() - (stuck ? since : began), call_now->round, call_now->rank, call_now->nranks);
			kill(child, SIGKILL);
			return 0;
		}
	}
}

static int run_group(kit *k, int group, kit_result *out)
{
	int ends[2], status, finished;
	pid_t child;

	fflush(NULL);
	memset(call_now, 0, sizeof *call_now);
	if (pipe(ends) || (child = fork()) < 0) {
		kit_note(out, groups[group].crash, RESULT_FAIL, "no process could be started: %m");
		return 0;
	}
	if (!child) {
		close(ends[0]);
		k->out = ends[1];
		group_process(k, group);
	}
	close(ends[1]);
	finished = listen_to(ends[0], child, k->options, out);
	close(ends[0]);
	waitpid(child, &status, 0);
	if (finished && (!WIFEXITED(status) || (WEXITSTATUS(status) && WEXITSTATUS(status) != CRASH_STATUS)))
		kit_note(out, groups[group].crash, RESULT_FAIL, "%s: ended with %s %d in %s()",
		     rule_text(groups[group].crash), WIFSIGNALED(status) ? "signal" : "status",
		     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), call_name(call_now->which));
	return finished;
}

int kit_run_fixture(const kit_options *options, const fixture *t, kit_result *out)
{
	void *shared = mmap(NULL, sizeof *call_now, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	kit k = {.options = options, .fixture = *t};
	int going = 1;

	for (int r = 0; r < RULES; r++)
		out->result[r] = RESULT_SKIP;
	if (shared == MAP_FAILED)
		return 1;
	call_now = shared;
	kit_note(out, RULE_DESCRIPTOR, RESULT_OK, "fields, functions and %u parameters are what they should be",
	     t->plugin->info.nparams);
	descriptor_notes(t->plugin, out);
	for (int g = 0; g < GROUPS && going; g++)
		going = run_group(&k, g, out);
	ranks_patterns = t->plugin->instead;
	for (int g = 0; g < GROUPS && going && ranks_patterns; g++)
		if (groups[g].instead)
			going = run_group(&k, g, out);
	ranks_patterns = 0;
	if (going)
		kit_note(out, RULE_TIME, RESULT_OK, "every call returned");
	for (int r = RULE_NONE + 1; r < RULES; r++) {
		if (out->result[r] == RESULT_SKIP && !out->text[r][0])
			snprintf(out->text[r], sizeof out->text[r], "%s", r == RULE_PREDICT ? "of collectives" : "not reached");
		out->rules_kept += out->result[r] == RESULT_OK;
		out->rules_broken += out->result[r] == RESULT_FAIL;
		out->rules_skipped += out->result[r] == RESULT_SKIP;
	}
	return out->rules_broken != 0;
}
