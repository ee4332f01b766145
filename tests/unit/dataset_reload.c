/* Values of other nodes that next() may load instead: it does where that is faster than fetching them, and gets along
 * where it fails. Nodes are those that the ranks' endpoint records name. */
#include "tests/support/dataset_fixture.h"

#include "io/dataset/dataset_internal.h"

#include <time.h>

enum { P = 3, EPOCHS = 4 };

static const int nodes[P] = {0, 1, 2};
static const char *settings[] = {NULL, "transport.timeout=30", "gradcomp.log=error", NULL, NULL};
static uint64_t samples_count, seed;
static uint32_t may, workers;
static bool breaks;

/* After the first epoch a sample of another node cannot be loaded any more. */
static void break_one(gradcomp_dataset *ds, gradcomp_job *job, dataset_result *v)
{
	gradcomp_barrier(gradcomp_job_world(job), &v->error);
	atomic_store(&all_samples->fails, (int)(samples_count / 2) + 1);
	gradcomp_barrier(gradcomp_job_world(job), &v->error);
	(void)ds;
}

static void epochs(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(samples_count);
	gradcomp_dataset *ds = NULL;
	dataset_result *v = room;
	o.reload = may;
	o.workers = workers;
	o.seed = seed;
	o.prefetch = 16;
	(void)rank;
	(void)b;
	v->wrong |= gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0;
	for (uint64_t e = 0; e < EPOCHS && !v->wrong; e++) {
		v->wrong |= samples_epoch(ds, e, 0, &v->error) << (e + 1);
		if (!e && breaks)
			break_one(ds, job, v);
	}
	/* A value that was on its way when it was loaded has come or comes: no ticket stays. */
	v->stats.struct_size = sizeof v->stats;
	gradcomp_dataset_get_stats(ds, &v->stats);
	v->wrong |= (gradcomp_dataset_free(ds, v->wrong ? NULL : &v->error) != 0) << 10;
}

/* How many values were loaded again, and how many fetched. */
static int run(uint64_t *again, uint64_t *fetched)
{
	process_board *b = run_processes(P, settings, epochs, sizeof(dataset_result));
	int well = all_well(b) && samples_each(all_samples->seen, samples_count, EPOCHS);
	*again = *fetched = 0;
	for (uint64_t i = 0; i < samples_count; i++) {
		unsigned made = atomic_load(&all_samples->made[i]);
		well &= made >= 1;
		*again += made - 1;
	}
	for (int r = 0; b && r < P; r++)
		*fetched += ((dataset_result *)process_room(b, r))->stats.remote;
	end_processes(b);
	return well;
}

static void begin(uint64_t count, uint32_t reload, const char *setting)
{
	samples_forget();
	samples_count = count;
	may = reload;
	breaks = false;
	settings[3] = setting;
}

int main(void)
{
	uint64_t again, fetched;
	int well;
	settings[0] = plugin_path_setting();
	samples_begin();
	processes_on(nodes);
	seed = getenv("TEST_SEED") ? strtoull(getenv("TEST_SEED"), NULL, 10) : (uint64_t)time(NULL);
	printf("# seed %llu\n", (unsigned long long)seed);
	for (workers = 0; workers < 3; workers += 2) {
		begin(1500, 1, NULL);
		well = run(&again, &fetched);
		ok(well && again > 0,
		   "%u workers: next() loads again what it may and what comes later: right in %d epochs, %d loaded again, %d fetched",
		   workers, EPOCHS, (int)again, (int)fetched);
		begin(1500, 1, "dataset.reload=no");
		well = run(&again, &fetched);
		ok(well && !again && fetched > 0, "%u workers: dataset.reload=no: each is loaded once", workers);
	}
	begin(600, 0, NULL);
	well = run(&again, &fetched);
	ok(well && !again && fetched > 0, "what the program does not allow is not loaded again");
	begin(1500, 0, "dataset.reload=yes");
	well = run(&again, &fetched);
	ok(well && again > 0, "dataset.reload=yes: it is (%d, and %d fetched)", (int)again, (int)fetched);
	begin(90, 1, NULL);
	atomic_store(&all_samples->slow_ms, 20);
	well = run(&again, &fetched);
	ok(well && fetched > again,
	   "where load() takes longer than fetching, values are fetched: %d, and %d loaded again", (int)fetched,
	   (int)again);
	begin(1500, 1, NULL);
	breaks = true;
	well = run(&again, &fetched);
	ok(well && fetched > 0, "what cannot be loaded any more is fetched from its owner (%d are)", (int)fetched);
	return done_testing();
}
