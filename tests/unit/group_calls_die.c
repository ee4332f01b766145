/* A rank is killed while the others wait for it in a call of a group, of each kind: they name it within a second, and
 * what was started ends. Ranks that have forked cannot use their groups in the child. */
#include "tests/support/process_ranks.h"

#include "tests/support/pace.h"
#include "tests/support/tap.h"
#include "tests/support/thread_ranks.h"

#include <signal.h>
#include <stdbool.h>

enum { P = 3, VICTIM = 1, KINDS = GRADCOMP_CALL_RECV + 1 };

typedef struct mourner {
	double at;
	int named, forked;
	gradcomp_status st, started;
} mourner;

static int kind, started;

/* A call that needs the victim. */
static gradcomp_call needing(char *buf, uint64_t n)
{
	gradcomp_call c = {.struct_size = sizeof c,
	                   .kind = (uint32_t)kind,
	                   .dtype = GRADCOMP_F32,
	                   .in = buf,
	                   .out = buf + P * n * sizeof(float),
	                   .count = n};
	c.peer = kind == GRADCOMP_CALL_GATHER || kind == GRADCOMP_CALL_REDUCE ? 0 : VICTIM;
	return c;
}

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	enum { N = 300000 };
	mourner *at = room;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	char *buf = calloc(2 * P * N, sizeof(float));
	gradcomp_call c = needing(buf, N);
	gradcomp_group_request *q = NULL;
	gradcomp_barrier(w, &err);
	pthread_barrier_wait(&board->barrier);
	if (rank == VICTIM) {
		usleep(20000);
		at->at = process_now();
		kill(getpid(), SIGKILL);
	}
	/* A rank that the call lets go without the victim waits for it in the next. */
	for (int i = 0; i < 4 && !at->st; i++) {
		if (started) {
			at->started = gradcomp_group_start(w, &c, &q, &err);
			at->st = at->started ? at->started : gradcomp_group_wait(q, 30, NULL, &err);
			gradcomp_group_request_free(q);
		} else {
			at->st = gradcomp_group_call(w, &c, &err);
		}
		if (!at->st)
			c.kind = GRADCOMP_CALL_BARRIER;
	}
	at->at = process_now();
	at->named = strstr(err.text, "rank 1 on ") != NULL;
	if (!at->named)
		fprintf(stderr, "# rank %d does not name rank %d: %s\n", rank, VICTIM, err.text);
	free(buf);
}

static void forking(gradcomp_job *job, int rank, process_board *board, void *room)
{
	mourner *at = room;
	gradcomp_group *w = gradcomp_job_world(job), *g = NULL;
	gradcomp_error err = {0};
	float x = 1, y = 1;
	gradcomp_call c = {.struct_size = sizeof c, .kind = GRADCOMP_CALL_ALLREDUCE, .out = &x, .count = 1};
	gradcomp_call m = {.struct_size = sizeof m, .kind = GRADCOMP_CALL_RECV, .out = &y, .count = 1, .peer = !rank};
	gradcomp_group_request *q, *r;
	int status = -1;
	(void)board;
	gradcomp_group_split(w, 0, rank, &g, &err);
	gradcomp_group_start(g, &c, &q, &err);
	gradcomp_group_start(g, &m, &r, &err);
	gradcomp_group_wait(q, -1, NULL, &err);
	pid_t child = fork();
	if (!child) {
		int done;
		bool right = gradcomp_group_call(g, &c, &err) == GRADCOMP_ERR_STATE &&
		             gradcomp_group_start(g, &c, &q, &err) == GRADCOMP_ERR_STATE && !q &&
		             gradcomp_group_wait(r, -1, &done, &err) == GRADCOMP_ERR_STATE &&
		             gradcomp_group_test(r, &done, &err) == GRADCOMP_ERR_STATE &&
		             gradcomp_group_abort(g, NULL, &err) == GRADCOMP_ERR_STATE &&
		             strstr(err.text, "forked off");
		gradcomp_group_request_free(r);
		gradcomp_group_free(g);
		_exit(right ? 0 : 1);
	}
	waitpid(child, &status, 0);
	at->forked = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	/* The rank itself goes on. */
	m.kind = GRADCOMP_CALL_SEND;
	m.in = &y;
	at->st = gradcomp_group_call(g, &m, &err);
	at->st = at->st ? at->st : gradcomp_group_wait(r, -1, NULL, &err);
	at->st = at->st ? at->st : gradcomp_group_call(g, &c, &err);
	gradcomp_group_request_free(q);
	gradcomp_group_request_free(r);
	gradcomp_group_free(g);
}

int main(void)
{
	static const char *const names[KINDS] = {"barrier",    "all-reduce", "reduce",  "broadcast",
	                                         "all-gather", "gather",     "scatter", "reduce-scatter",
	                                         "all-to-all", "send",       "receive"};
	const char *shm[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	const char *tcp[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", "transport.allow=tcp",
	                     NULL};
	for (int over = 0; over < 2; over++)
		for (started = 0; started < 2; started++)
			for (kind = 0; kind < KINDS; kind++) {
				process_board *b = run_processes(P, over ? tcp : shm, body, sizeof(mourner));
				const mourner *victim = b ? process_room(b, VICTIM) : NULL;
				for (int r = 0; b && r < P; r++) {
					const mourner *m = process_room(b, r);
					if (r == VICTIM)
						continue;
					case_of("ends with the name of the rank that died",
					        m->named && m->st == GRADCOMP_ERR_PEER, "%s, %s: status %d on rank %d",
					        names[kind], over ? "tcp" : "shm", m->st, r);
					case_of("within a second", in_time(m->at - victim->at, 1),
					        "%s, %s: %.2f s on rank %d", names[kind], over ? "tcp" : "shm",
					        m->at - victim->at, r);
				}
				case_of("is tried", b != NULL, "%s", names[kind]);
				if (b)
					end_processes(b);
			}
	tap_cases("a call of a group");
	process_board *b = run_processes(2, shm, forking, sizeof(mourner));
	for (int r = 0; b && r < 2; r++) {
		const mourner *m = process_room(b, r);
		ok(m->forked, "rank %d: a forked process is refused", r);
		is_int(m->st, GRADCOMP_OK, "rank %d: and the rank goes on", r);
	}
	ok(b != NULL, "ranks are started");
	if (b)
		end_processes(b);
	return done_testing();
}
