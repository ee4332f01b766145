/* SIGTERM and the report: it is written with what has been reduced so far and what was done with each tensor, also
 * while steps go on, and the process ends by the signal. A handler of the program's own is left alone, a child of
 * rank 0 that is ended is no end of the job, and who waits for a lock for ever is not waited for. */
#include <signal.h>
#include <stdbool.h>

#include "base/term_watch.h"
#include "gradcomp/coder.h"
#include "tests/support/pace.h"
#include "tests/support/process_ranks.h"
#include "tests/support/slurp.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tmpdir.h"

enum { P = 2, N = 1000, STEPS = 7 };
enum { PLAIN, BUSY, OWN_BEFORE, OWN_LATER, CHILD, FREED };

static int kind;
static volatile sig_atomic_t caught;

typedef struct seen {
	int steps, caught, alive, child;
	gradcomp_error err;
} seen;

static void own_handler(int signal_number)
{
	caught = signal_number;
}

static gradcomp_status steps(gradcomp_reducer *r, int n, seen *s)
{
	static float g[N];
	gradcomp_status st = GRADCOMP_OK;
	for (int i = 0; i < n && !st; i++) {
		for (int k = 0; k < N; k++)
			g[k] = (float)(k % 7);
		st = gradcomp_reducer_ready(r, 0, g, &s->err);
		st = st ? st : gradcomp_reducer_wait(r, &s->err);
		s->steps += !st;
	}
	return st;
}

/* A child that inherits the handler, and is ended as a data loader's is. */
static int end_a_child(void)
{
	pid_t child = fork();
	int status = 0;
	/* ThreadSanitizer keeps a signal until the next call: pause() would sleep on it. */
	if (!child)
		for (;;)
			usleep(1000);
	kill(child, SIGTERM);
	waitpid(child, &status, 0);
	return status;
}

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	const uint64_t dims[] = {N};
	const gradcomp_tensor_desc tensor = {"w", dims, 1, GRADCOMP_F32};
	seen *s = room;
	gradcomp_reducer *r = NULL;
	gradcomp_coder *k = NULL;
	(void)board;
	if (gradcomp_reducer_create(gradcomp_job_world(job), &tensor, 1, NULL, &r, &s->err) ||
	    gradcomp_coder_create(gradcomp_job_world(job), "block:bits=4", NULL, &k, &s->err) || steps(r, STEPS, s))
		return;
	if (rank == 0 && kind == CHILD)
		s->child = end_a_child();
	if (rank == 0 && kind == OWN_LATER)
		signal(SIGTERM, own_handler);
	if (kind == FREED) {
		gradcomp_reducer_free(r);
		r = NULL;
	}
	if (rank == 0 && kind != CHILD && kind != BUSY)
		kill(getpid(), SIGTERM);
	double limit = process_now() + 20 * pace();
	while (kind == BUSY && process_now() < limit && !steps(r, 1, s))
		if (rank == 0 && s->steps == 5 * STEPS)
			kill(getpid(), SIGTERM);
	while (rank == 0 && (kind == PLAIN || kind == FREED) && process_now() < limit)
		usleep(1000);
	s->alive = 1;
	s->caught = caught;
	gradcomp_coder_free(k);
	gradcomp_reducer_free(r);
}

static void job_of(int what, const char *spec, const char *choice, const char *title)
{
	char path[300], setting[340], compressor[100];
	snprintf(path, sizeof path, "%s/%d.json", tmpdir, what);
	unlink(path);
	snprintf(setting, sizeof setting, "gradcomp.report=%s", path);
	snprintf(compressor, sizeof compressor, "gradcomp.compressor=%s", spec);
	const char *settings[] = {plugin_path_setting(), setting, compressor, "transport.timeout=20", NULL};
	kind = what;
	printf("# %s\n", title);
	process_board *b = run_processes(P, settings, body, sizeof(seen));
	if (!b) {
		skip("processes cannot be started", "%s", title);
		return;
	}
	const seen *s = process_room(b, 0);
	int status = b->slot[0].status;
	char *text = slurp(path, NULL);
	ok(what == BUSY ? s->steps >= 5 * STEPS : s->steps == STEPS, "%s: %d steps: %s", title, s->steps, s->err.text);
	if (what == BUSY) {
		ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "%s: the exit status is the signal's: %x", title,
		   status);
		ok(strstr(text, "\"failure\": \"ended by signal 15 after step ") != NULL, "%s: the report says so",
		   title);
	} else if (what == PLAIN || what == FREED) {
		ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "%s: the exit status is the signal's: %x", title,
		   status);
		ok(strstr(text, "\"failure\": \"ended by signal 15 after step 7\"") != NULL, "%s: the report says so",
		   title);
		ok(strstr(text, "\"steps\": 7") != NULL, "%s: and has the steps", title);
		ok(strstr(text, "block:bits=4") != NULL, "%s: and the coder", title);
		if (!strncmp(spec, "auto", 4))
			ok(strstr(text, "\"reducers\": [") != NULL, "%s: a reducer", title);
	} else {
		ok(s->alive && b->slot[0].left, "%s: the job goes on to its own end", title);
		ok(what != CHILD || (WIFSIGNALED(s->child) && WTERMSIG(s->child) == SIGTERM), "%s: which it was",
		   title);
		is_int(s->caught, what == CHILD ? 0 : SIGTERM, "%s: whose handler it is", title);
		ok(strstr(text, "\"failure\": null") != NULL, "%s: its report is an ordinary one", title);
	}
	const char *tensor = strstr(text, "\"name\": \"w\"");
	ok(tensor && strstr(tensor, "\"numel\": 1000") && strstr(tensor, choice), "%s: the tensor, with %s", title,
	   choice);
	ok(strstr(text, "\"plan\": \"fixed\"") != NULL, "%s: the schedule", title);
	if (!tensor)
		printf("# %s\n", text);
	free(text);
	end_processes(b);
}

static void never(void *ctx, int signal_number)
{
	(void)ctx, (void)signal_number;
	for (;;)
		pause();
}

static void told(void *ctx, int signal_number)
{
	(void)!write(*(int *)ctx, &signal_number, sizeof signal_number);
}

/* The status of a child that sends itself SIGTERM while it watches; *said: what `last` was told. */
static int watched(void (*last)(void *, int), bool stopped, int *said)
{
	int ends[2], status = 0;
	*said = 0;
	if (pipe(ends))
		return -1;
	pid_t child = fork();
	if (!child) {
		if (!term_watch_start(last, &ends[1]) || term_watch_start(last, NULL))
			_exit(3);
		if (stopped)
			term_watch_stop();
		kill(getpid(), SIGTERM);
		for (;;)
			pause();
	}
	close(ends[1]);
	waitpid(child, &status, 0);
	if (read(ends[0], said, sizeof *said) <= 0)
		*said = 0;
	close(ends[0]);
	return status;
}

int main(void)
{
	int said, status;
	struct sigaction now;
	double start;
	tmpdir_make("term");
	signal(SIGTERM, SIG_DFL); /* which cleans up otherwise */
	status = watched(told, false, &said);
	ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "the signal is the end");
	is_int(said, SIGTERM, "and is told before");
	status = watched(told, true, &said);
	ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "so it is after the watch");
	is_int(said, 0, "and nothing is told");
	start = process_now();
	status = watched(never, false, &said);
	ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "who waits for ever is not waited for");
	ok(process_now() - start < TERM_WATCH_SECONDS + 5 * pace(), "but for a while: %.1f s", process_now() - start);
	signal(SIGTERM, SIG_IGN);
	ok(!term_watch_start(told, NULL), "a program that ignores SIGTERM goes on ignoring it");
	signal(SIGTERM, own_handler);
	ok(!term_watch_start(told, NULL), "a handler is left alone");
	sigaction(SIGTERM, NULL, &now);
	ok(now.sa_handler == own_handler, "it is there afterwards");
	job_of(OWN_BEFORE, "topk:density=0.1", "\"choice\": \"topk\"", "a handler of before");
	signal(SIGTERM, SIG_DFL);
	job_of(OWN_LATER, "none", "\"choice\": \"none\"", "a later handler");
	job_of(CHILD, "none", "\"choice\": \"none\"", "a child that is ended");
	job_of(PLAIN, "topk:density=0.1", "\"choice\": \"topk\"", "a reducer that is there");
	job_of(BUSY, "topk:density=0.1", "\"choice\": \"topk\"", "while steps go on");
	job_of(PLAIN, "auto", "\"choice\": \"", "one of auto");
	job_of(FREED, "none", "\"choice\": \"none\"", "a reducer that was freed");
	return done_testing();
}
