/* Delayed averages: what is refused; ranks that are ahead, give up or die. */
#include "tests/support/delayed_fixture.h"
#include "tests/support/pace.h"
#include "tests/support/process_ranks.h"

/* Rank 0 does `delay` steps before the others have begun; the next one waits for them. */
static void ahead_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	gradcomp_reducer *red;
	int done = 0, bad, D = (int)run->delay;
	values v;
	(void)P;
	values_open(&v, GRADCOMP_F32);
	bad = open_delayed(&red, gradcomp_job_world(job), run->spec, GRADCOMP_F32, run->delay, &done, &err) != 0;
	if (rank)
		ranks_wait();
	for (int s = 0; s < D && !bad; s++)
		bad = step(red, &v, rank, s, &err) != 0;
	if (!bad)
		bad = give(red, &v, rank, D, &err) != 0;
	if (!rank) {
		usleep(50000);
		bad |= __atomic_load_n(&done, __ATOMIC_SEQ_CST) != D * T;
		ranks_wait();
	}
	bad |= gradcomp_reducer_wait(red, &err) != 0;
	gradcomp_reducer_stats st = {.struct_size = sizeof st};
	gradcomp_reducer_get_stats(red, &st);
	bad |= !rank && st.exposed_s < 0.05; /* rank 0 waited so long for the others */
	run->failed[rank] = bad | (done != (D + 1) * T);
	gradcomp_reducer_free(red);
	values_close(&v);
}

static void misuse_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_reducer *red;
	values v;
	void *none[T] = {0};
	char want[64];
	(void)arg;
	values_open(&v, GRADCOMP_F32);
	is_int(open_delayed(&red, w, "none", GRADCOMP_F32, 65, NULL, &err), GRADCOMP_ERR_INVALID, "a delay of 65");
	like(err.text, "a delay of 65 steps: must be 0..64", "is refused with what is possible");
	is_int(open_delayed(&red, w, "none", GRADCOMP_F32, rank == P - 1 ? 2 : 1, NULL, &err), GRADCOMP_ERR_MISMATCH,
	       "ranks with different delays");
	snprintf(want, sizeof want, "rank %d on ", P - 1);
	like(err.text, want, "the one that differs is named");
	is_int(open_delayed(&red, w, "none", GRADCOMP_F32, rank ? 1 : 100, NULL, &err),
	       rank ? GRADCOMP_ERR_PEER : GRADCOMP_ERR_INVALID, "one rank's error is everybody's");
	is_int(open_delayed(&red, w, rank ? "none" : "auto", GRADCOMP_F32, 1, NULL, &err), GRADCOMP_ERR_MISMATCH,
	       "ranks of which one asks for auto");
	like(err.text, "rank 1 on ", "are named too");
	is_int(open_delayed(&red, w, "none", GRADCOMP_I32, 1, NULL, &err), GRADCOMP_ERR_INVALID, "integer gradients");
	gradcomp_tensor_desc desc = {.name = "w", .dims = dims[5], .ndim = 2};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .delay = 1, .device = (gradcomp_device)2};
	is_int(gradcomp_reducer_create(w, &desc, 1, &o, &red, &err), GRADCOMP_ERR_INVALID,
	       "gradients on a device that is none");

	is_int(open_delayed(&red, w, "none", GRADCOMP_F32, 2, NULL, &err), GRADCOMP_OK, "after all of that it works");
	is_int(gradcomp_reducer_ready(red, T, v.at[0], &err), GRADCOMP_ERR_INVALID, "a tensor that is none");
	is_int(gradcomp_reducer_ready(red, 5, NULL, &err), GRADCOMP_ERR_INVALID, "a NULL gradient");
	is_int(gradcomp_reducer_wait_for(red, T, &err), GRADCOMP_ERR_INVALID, "waiting for a tensor that is none");
	is_int(gradcomp_reducer_ready(red, 5, v.at[5], &err), GRADCOMP_OK, "the first tensor");
	is_int(gradcomp_reducer_wait(red, &err), GRADCOMP_ERR_STATE, "waiting for a step that lacks tensors");
	like(err.text, "tensor 4 'conv' is missing", "names one");
	is_int(gradcomp_reducer_wait_for(red, 4, &err), GRADCOMP_ERR_STATE, "so does waiting for one of them");
	is_int(gradcomp_reducer_wait_for(red, 5, &err), GRADCOMP_OK, "not for the one that was given");
	is_int(gradcomp_reducer_drain(red, v.at, NULL, 0, &err), GRADCOMP_ERR_STATE, "drain in the middle of a step");
	uint64_t bytes;
	is_int(gradcomp_reducer_save(red, NULL, 0, &bytes, &err), GRADCOMP_ERR_STATE, "and save");
	for (int t = 4; t >= 0; t--)
		gradcomp_reducer_ready(red, (uint32_t)t, v.at[t], &err);
	is_int(gradcomp_reducer_wait(red, &err), GRADCOMP_OK, "the step ends when they come");
	is_int(gradcomp_reducer_drain(red, NULL, NULL, 0, &err), GRADCOMP_ERR_INVALID, "drain to nowhere");
	is_int(gradcomp_reducer_drain(red, none, NULL, 0, &err), GRADCOMP_ERR_INVALID, "drain to NULL");
	is_int(gradcomp_reducer_drain(red, v.at, v.at, NAN, &err), GRADCOMP_ERR_INVALID, "a rate that is no number");
	is_int(gradcomp_reducer_drain(red, v.at, NULL, 0, &err), GRADCOMP_OK, "drain");
	gradcomp_reducer_free(red);
	values_close(&v);
}

/* The last rank leaves its reducer in the middle of step 2, with two in flight. */
static void leave_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	gradcomp_reducer *red;
	int done = 0, bad;
	values v;
	values_open(&v, GRADCOMP_F32);
	bad = open_delayed(&red, gradcomp_job_world(job), run->spec, GRADCOMP_F32, run->delay, &done, &err) != 0;
	for (int s = 0; s < 2 && !bad; s++)
		bad = step(red, &v, rank, s, &err) != 0;
	ranks_wait();
	if (rank == P - 1) {
		gradcomp_reducer_ready(red, 3, v.at[3], &err);
	} else if (!bad) {
		gradcomp_status st = GRADCOMP_OK;
		for (int s = 2; !st && s < 5; s++)
			st = step(red, &v, rank, s, &err);
		bad |= !st || !strstr(err.text, "gave up its reducer in the middle of a step");
		bad |= gradcomp_reducer_drain(red, v.at, v.at, 1, &err) >= 0;
	}
	gradcomp_reducer_free(red);
	run->failed[rank] = bad;
	values_close(&v);
}

static int draining;

/* Rank 1 ends without a word while steps are in flight: the others' next wait, or their drain, names it,
 * every tensor they gave is done, and freeing does not hang. */
static void die_body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	gradcomp_error err = {0};
	gradcomp_reducer *red;
	gradcomp_status st;
	int done = 0, given = 0, late = 0;
	values v;
	(void)board;
	values_open(&v, GRADCOMP_F32);
	st = open_delayed(&red, gradcomp_job_world(job), "topk:density=0.1", GRADCOMP_F32, 2, &done, &err);
	for (int s = 0; !st && s < 50; s++) {
		if (rank == 1 && s == 5)
			_exit(3);
		st = give(red, &v, rank, s, &err);
		given += st ? 0 : T;
		if (!st)
			st = gradcomp_reducer_wait(red, &err);
		/* The numbers that rank 1 owes of step 5 never come. */
		if (!st && s == 5 && draining) {
			double begin = process_now();
			st = gradcomp_reducer_drain(red, v.at, NULL, 0, &err);
			late = process_now() - begin > 5 * pace();
		}
	}
	if (st && !strstr(err.text, "rank 1"))
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	gradcomp_reducer_free(red);
	/* A tensor done with a failure counts 1000; those of a step that was given up half-way
	 * cannot be told apart from here. */
	*(int *)room = st && strstr(err.text, "rank 1") && done >= given && !late;
	values_close(&v);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error", NULL};
	model_seed();
	check(3, settings, "a rank that is ahead", (struct run){.spec = "none", .delay = 1}, 0, ahead_body);
	check(2, settings, "a rank that is ahead", (struct run){.spec = "topk:density=0.1", .delay = 4}, 0, ahead_body);
	run_ranks(3, settings, misuse_body, NULL);

	const char *const *all[MAX_RANKS] = {settings};
	rank_arg results[3];
	struct run leave = {.spec = "none", .delay = 2};
	ranks_wait_init(3);
	run_ranks_with(3, all, results, leave_body, &leave);
	ranks_wait_end();
	ok(!leave.failed[0] && !leave.failed[1] && !leave.failed[2], "a rank that gives up is named");

	for (draining = 0; draining < 2; draining++) {
		process_board *b = run_processes(4, settings, die_body, sizeof(int));
		for (int r = 0; b && r < 4; r++)
			ok(r == 1 ? WIFEXITED(b->slot[r].status) && WEXITSTATUS(b->slot[r].status) == 3
			          : *(int *)process_room(b, r),
			   r == 1 ? "a rank dies" : "rank %d ends with its name%s", r, draining ? ", in drain" : "");
		if (b)
			end_processes(b);
		else
			ok(0, "ranks start");
	}
	return done_testing();
}
