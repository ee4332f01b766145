/* A rank that dies while the others agree on a plan: they learn which one it was. */
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"
#include "reducer/bucketing/replan_internal.h"

enum { P = 3, N = 12, DIES = 1, STEPS = 3 };

typedef struct seen {
	int status, steps;
	gradcomp_error err;
} seen;

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static float grad[N][500];
	seen *s = room;
	gradcomp_tensor_desc desc[N];
	const uint64_t dims[1] = {500};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = "none", .schedule = "mgwfbp"};
	gradcomp_reducer *r;
	(void)board;
	for (int i = 0; i < N; i++)
		desc[i] = (gradcomp_tensor_desc){.dims = dims, .ndim = 1};
	s->status = gradcomp_reducer_create(gradcomp_job_world(job), desc, N, &o, &r, &s->err);
	if (s->status)
		return;
	if (rank == DIES) { /* it never comes to replan, and then dies */
		pthread_mutex_lock(&reducer_of(r)->lock);
		reducer_of(r)->replan->next = 0;
		pthread_mutex_unlock(&reducer_of(r)->lock);
	}
	while (!s->status && s->steps < 2 * STEPS) {
		if (rank == DIES && s->steps == STEPS) {
			usleep(200000);
			raise(SIGKILL);
		}
		for (int i = N; i-- > 0 && !s->status;)
			s->status = gradcomp_reducer_ready(r, (uint32_t)i, grad[i], &s->err);
		if (!s->status)
			s->status = gradcomp_reducer_wait(r, &s->err);
		s->steps += !s->status;
	}
	gradcomp_reducer_free(r);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "schedule.profile_steps=3", "transport.timeout=5",
	                          "transport.wait_timeout=20", NULL};
	process_board *b = run_processes(P, settings, body, sizeof(seen));
	int named = 0, steps = 0;
	if (!b) {
		skip("processes cannot be started", "the others fail, and name it");
		return done_testing();
	}
	for (int p = 0; p < P; p++) {
		const seen *s = process_room(b, p);
		if (p == DIES)
			continue;
		steps += s->steps;
		named += s->status == GRADCOMP_ERR_PEER && strstr(s->err.text, "rank 1 on ") != NULL;
		printf("# rank %d: %s\n", p, s->err.text);
	}
	is_int(steps, (P - 1) * STEPS, "the steps before it died are whole");
	is_int(named, P - 1, "the others fail, and name it");
	ok(WIFSIGNALED(b->slot[DIES].status), "it was killed");
	end_processes(b);
	return done_testing();
}
