/* The timeline: every task of every rank and step, on one clock though the ranks' own are
 * far apart; bounded; of a job that fails; and what ranks could say that is none. */
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tmpdir.h"
#include "trace/trace_internal.h"

#include <math.h>
#include <sys/syscall.h>

/* In place of libc's: each rank's clock is ahead by some hours of its own. */
static pid_t parent;

int clock_gettime(clockid_t id, struct timespec *t)
{
	long rc = syscall(SYS_clock_gettime, id, t);
	pid_t me = getpid();
	if (id == CLOCK_MONOTONIC && me != parent)
		t->tv_sec += me % 97 * 3600 + 1000;
	return (int)rc;
}

enum { STEPS = 12, TENSORS = 4, NUMEL = 3000 };

static enum { ENDS_WELL, PLANS, GIVES_UP, LIES_KIND, LIES_TIME, LIES_FAR } how;

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static float gradient[TENSORS][NUMEL];
	const uint64_t dims[2] = {50, 60};
	gradcomp_tensor_desc desc[TENSORS];
	gradcomp_reducer_options o = {
		.struct_size = sizeof o, .compressor = "powersgd:rank=2", .bucket_bytes = how != PLANS};
	gradcomp_reducer *red;
	gradcomp_status *st = room;
	gradcomp_error err = {0};
	(void)board;
	for (int t = 0; t < TENSORS; t++)
		desc[t] = (gradcomp_tensor_desc){.name = "w", .dims = dims, .ndim = 2};
	*st = gradcomp_reducer_create(gradcomp_job_world(job), desc, TENSORS, &o, &red, &err);
	for (int s = 0; !*st && s < STEPS; s++) {
		int last = how == GIVES_UP && s == 2;
		int until = last && rank == 1 ? 1 : 0;
		for (int t = TENSORS - 1; t >= until; t--) {
			for (int i = 0; i < NUMEL; i++)
				gradient[t][i] = (float)((rank * 7 + s * 5 + t * 3 + i) % 11) - 5;
			gradcomp_reducer_ready(red, (uint32_t)t, gradient[t], &err);
		}
		if (last && rank == 1)
			break;
		*st = gradcomp_reducer_wait(red, &err);
	}
	gradcomp_reducer_free(red);
	if (how == LIES_KIND && rank == 1)
		job->trace->ring[3].what = TRACE_WHATS;
	if (how == LIES_TIME && rank == 1)
		job->trace->ring[3].end = NAN;
	if (how == LIES_FAR && rank == 1)
		job->trace->ring[3].end = 1e305;
}

static int checked(const char *file, int ranks, int least)
{
	char command[8192];
	const char *src = getenv("GRADCOMP_SRC");
	snprintf(command, sizeof command, "python3 '%s/tests/unit/trace_check.py' '%s' %d %d %d 2 %d", src ? src : ".",
	         file, ranks, STEPS, TENSORS, least);
	return system(command) == 0;
}

/* A run whose timeline is at `file`; the caller ends the board. */
static process_board *traced(int P, const char *file, const char *more)
{
	static char setting[200];
	/* These are for the schedules that measure. */
	const char *settings[] = {plugin_path_setting(),
	                          "gradcomp.log=error",
	                          "transport.timeout=20",
	                          setting,
	                          "schedule.profile_steps=6",
	                          more,
	                          NULL};
	snprintf(setting, sizeof setting, "gradcomp.trace=%s", file);
	return run_processes(P, settings, body, sizeof(gradcomp_status));
}

static int all_well(process_board *b)
{
	int well = b != NULL;
	for (int r = 0; b && r < b->P; r++) {
		well &= !*(gradcomp_status *)process_room(b, r) && b->slot[r].left;
		if (!b->slot[r].left)
			printf("# rank %d: %s\n", r, b->slot[r].error.text);
	}
	return well;
}

static void complete(int P, const char *more, int ranks, int least)
{
	char file[100];
	snprintf(file, sizeof file, "%s/trace.json", tmpdir);
	how = ENDS_WELL;
	process_board *b = traced(P, file, more);
	ok(all_well(b), "%d ranks with a timeline%s%s", P, more ? ", " : "", more ? more : "");
	if (system("command -v python3 >/dev/null"))
		skip("no python3", "what the file has");
	else
		ok(checked(file, ranks, least), "all tasks of %d ranks and steps from %d on, on one clock", ranks,
		   least);
	if (b)
		end_processes(b);
	remove(file);
}

/* Ranks that agree on a new plan. */
static void plans(void)
{
	char file[100], line[400];
	int replans = 0, buckets = 0;
	snprintf(file, sizeof file, "%s/plan.json", tmpdir);
	how = PLANS;
	process_board *b = traced(3, file, "gradcomp.schedule=mgwfbp");
	FILE *f = fopen(file, "r");
	ok(all_well(b) && f, "3 ranks that make a plan");
	while (f && fgets(line, sizeof line, f)) {
		replans += strstr(line, "\"replan\",\"cat\": \"exchange\"") != NULL;
		buckets |= strstr(line, "\"begin\"") && strstr(line, "\"bucket\": 0") ? 1 : 0;
	}
	ok(replans >= 3 && replans % 3 == 0 && buckets, "replanning is in the timeline, of each rank (%d)", replans);
	if (f)
		fclose(f);
	if (b)
		end_processes(b);
}

static void fails(void)
{
	char file[100], line[200] = "", text[4000] = "";
	snprintf(file, sizeof file, "%s/failed.json", tmpdir);
	how = GIVES_UP;
	process_board *b = traced(3, file, NULL);
	FILE *f = fopen(file, "r");
	ok(b && !b->slot[0].left && f, "a job that fails leaves what rank 0 has");
	for (int found = 0; f && !found && fgets(line, sizeof line, f);)
		found = strstr(line, "\"rank 1") != NULL;
	ok(!strstr(line, "\"rank 1"), "of itself alone");
	for (; f && fgets(line, sizeof line, f);)
		;
	if (f) {
		rewind(f);
		fseek(f, -200, SEEK_END);
		text[fread(text, 1, sizeof text - 1, f)] = 0;
		fclose(f);
	}
	like(text, "\"failed\": true", "and says so");
	if (b)
		end_processes(b);
}

static void lies(int which, const char *file)
{
	how = which;
	process_board *b = traced(3, file, NULL);
	ok(b && !b->slot[0].left && b->slot[2].left, "what is no event fails rank 0 at the end, and nobody else");
	like(b ? b->slot[0].error.text : "", "the timeline is not whole: rank 1 has sent 1 events that are none",
	     "and is told");
	if (b)
		end_processes(b);
}

static void records(void)
{
	static const char *const bad[] = {"",
	                                  "T",
	                                  "T/",
	                                  "T1",
	                                  "T1/",
	                                  "T/1",
	                                  "T1/0",
	                                  "T-1/1",
	                                  "T1/1x",
	                                  "X1/1",
	                                  "T1/1/1",
	                                  "T 1/1",
	                                  "T999999999999/1",
	                                  "T1/999999",
	                                  "T11111111111111111111111111111111111111111111/1"};
	trace_options o;
	gradcomp_error err;
	char record[TRACE_OPTIONS_TEXT];
	int refused = 0;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		refused += trace_options_read(bad[i], &o, &err) == GRADCOMP_ERR_INVALID;
	is_int(refused, sizeof bad / sizeof *bad, "records that say nothing of a timeline are refused");
	trace_options_write(&(trace_options){.events = 100000000, .ranks = 65536}, record);
	ok(!trace_options_read(record, &o, &err) && o.events == 100000000 && o.ranks == 65536, "%s is read back",
	   record);
}

/* A ring that is full keeps whole steps. */
static void ring(void)
{
	const trace_options o = {.events = 10, .ranks = 1};
	gradcomp_error err;
	trace *t = NULL;
	int kept = 0, old = 0;
	if (trace_open(&o, NULL, &t, &err)) {
		ok(0, "%s", err.text);
		return;
	}
	is_int(trace_reducer(t), 0, "the first reducer");
	is_int(trace_reducer(t), 1, "the second");
	for (uint64_t i = 0; i < 24; i++)
		trace_add(t, &(trace_event){.step = i / 4, .reducer = i % 4 == 3, .what = TRACE_STEP});
	for (int i = 0; i < 10; i++) {
		kept += trace_whole(t, &t->ring[i]);
		old += trace_whole(t, &t->ring[i]) && t->ring[i].step == 3 && !t->ring[i].reducer;
	}
	/* 14..23 are there: of step 3 the second half, one event of it of the second reducer. */
	is_int(kept, 9, "what is left of a step is not kept");
	is_int(old, 0, "of the reducer that lost a part");
	trace_abandon(t);
}

int main(void)
{
	char file[100];
	parent = getpid();
	tmpdir_make("trace");
	records();
	ring();
	complete(4, NULL, 4, 0);
	/* 4 buckets of 8 tasks, 4 gradients, a step and a wait: 38 events a step. */
	complete(3, "trace.events=100", 3, 10);
	plans();
	fails();
	snprintf(file, sizeof file, "%s/lie.json", tmpdir);
	lies(LIES_KIND, file);
	lies(LIES_TIME, file);
	/* In microseconds it is no number that JSON has. */
	lies(LIES_FAR, file);
	return done_testing();
}
