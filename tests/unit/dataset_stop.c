/* stop(): no thread of the library is in load() afterwards, whoever wants a value, and
 * what can be had without load() is refused too. */
#include "tests/support/dataset_fixture.h"

static uint64_t samples_count = 400;
static atomic_int inside, begun; /* this process's */

static gradcomp_status counted_load(void *ctx, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err)
{
	gradcomp_status st;
	atomic_fetch_add(&begun, 1);
	atomic_fetch_add(&inside, 1);
	usleep(3000);
	st = sample_load(ctx, index, out, err);
	atomic_fetch_sub(&inside, 1);
	return st;
}

/* Rank 1 is stopped while its threads are at work: those of its own window, and the one that
 * makes what rank 0, an epoch ahead, wants of it. */
static void stopped(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(samples_count);
	gradcomp_value_view view = {.struct_size = sizeof view};
	dataset_result *v = room;
	gradcomp_dataset *ds;
	int before;
	o.load = counted_load;
	o.workers = 2;
	o.prefetch = 32;
	v->wrong |= gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0;
	if (v->wrong)
		return;
	v->wrong |= (gradcomp_dataset_begin(ds, b->P > 1 && rank == 0, 0, &v->error) != 0) << 1;
	for (int i = 0; rank != 1 && b->P > 1 && i < 40; i++)
		if (gradcomp_dataset_next(ds, &view, NULL) == 0)
			gradcomp_dataset_release(ds, &view);
	if (rank == 1 || b->P == 1) {
		v->wrong |= (gradcomp_dataset_next(ds, &view, &v->error) != 0) << 2;
		while (atomic_load(&begun) < 8)
			usleep(1000);
		gradcomp_dataset_stop(ds);
		before = atomic_load(&begun);
		v->wrong |= (atomic_load(&inside) != 0) << 3;
		usleep(100000);
		v->wrong |= (atomic_load(&begun) != before) << 4;
		v->wrong |= (gradcomp_dataset_get(ds, view.index, &(gradcomp_value_view){.struct_size = sizeof view},
		                                  &v->error) != GRADCOMP_ERR_STATE)
		            << 5;
		v->wrong |= (!sample_right(&view, view.index)) << 6;
		gradcomp_dataset_release(ds, &view);
		gradcomp_dataset_stop(ds);
	}
	v->wrong |= (gradcomp_dataset_free(ds, NULL) != 0) << 7;
}

int main(void)
{
	static const char *settings[] = {NULL, "transport.timeout=30", "gradcomp.log=error", NULL};
	static const int apart[] = {0, 1};
	process_board *b;
	settings[0] = plugin_path_setting();
	samples_begin();
	b = run_processes(1, settings, stopped, sizeof(dataset_result));
	ok(all_well(b), "one rank: nothing is made after stop(), and what was lent can still be read");
	end_processes(b);
	samples_forget();
	processes_on(apart);
	b = run_processes(2, settings, stopped, sizeof(dataset_result));
	ok(all_well(b), "two nodes: nor for the other one");
	end_processes(b);
	return done_testing();
}
