/* Breaks things: values in memory and in the spill file, ranks that die in the midst of an epoch, children whose
 * rank has gone. */
#include "tests/support/dataset_fixture.h"
#include "io/dataset/net/fetch.h"
#include "tests/support/pace.h"
#include "tests/support/tmpdir.h"

#include <errno.h>
#include <sys/stat.h>

enum { SAMPLES = 60 };

static const char *settings[] = {NULL, "transport.timeout=60", "gradcomp.log=error", NULL};
static const int two_nodes[] = {0, 1, 1}, one_node[] = {0, 0};

static gradcomp_dataset *begin(gradcomp_job *job, const gradcomp_dataset_options *o, dataset_result *v)
{
	gradcomp_dataset *ds = NULL;
	v->wrong |= gradcomp_dataset_create(gradcomp_job_world(job), o, &ds, &v->error) != 0;
	return ds;
}

/* get() of all samples, each right. */
static int all_right(gradcomp_dataset *ds, gradcomp_error *err)
{
	gradcomp_value_view view = {.struct_size = sizeof view};
	int wrong = 0;
	for (uint64_t i = 0; i < SAMPLES; i++) {
		wrong |= gradcomp_dataset_get(ds, i, &view, err) || !sample_right(&view, i);
		gradcomp_dataset_release(ds, &view);
	}
	return wrong;
}

static uint64_t damaged(gradcomp_dataset *ds)
{
	gradcomp_dataset_stats s = {.struct_size = sizeof s};
	gradcomp_dataset_get_stats(ds, &s);
	return s.damaged;
}

static void in_memory(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(SAMPLES);
	dataset_result *v = room;
	gradcomp_dataset *ds = begin(job, &o, v);
	uint64_t owned = 0, found = 0;
	(void)b;
	if (!ds)
		return;
	v->wrong |= samples_epoch(ds, 0, 0, &v->error) << 1;
	v->wrong |= (gradcomp_barrier(gradcomp_job_world(job), &v->error) != 0) << 2;
	/* One bit of every third value that the second node owns. */
	for (uint64_t i = 0; i < ds->nslots && rank == 1; i++)
		if ((atomic_load(&ds->slots[i].word) & WORD_STATE) == SLOT_READY && atomic_load(&ds->slots[i].bytes) &&
		    !(owned++ % 3))
			((unsigned char *)ds->head)[atomic_load(&ds->slots[i].offset)] ^= 1, found++;
	v->seconds = (double)found;
	v->wrong |= (gradcomp_barrier(gradcomp_job_world(job), &v->error) != 0) << 3;
	if (rank == 0) {
		v->wrong |= all_right(ds, &v->error) << 4;
		v->stats.damaged = damaged(ds);
		/* Its owner has been told, and has it made again. */
		for (double from = process_now(); in_time(process_now() - from, 20);) {
			uint64_t before = damaged(ds);
			v->wrong |= all_right(ds, &v->error) << 5;
			if (damaged(ds) == before)
				break;
			usleep(10000);
		}
		uint64_t before = damaged(ds);
		v->wrong |= all_right(ds, &v->error) << 6;
		v->wrong |= (damaged(ds) != before) << 7;
	}
	v->wrong |= (gradcomp_dataset_free(ds, v->wrong ? NULL : &v->error) != 0) << 8;
}

static void in_spill(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(SAMPLES);
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)rank;
	(void)b;
	o.spill = tmpdir;
	o.memory = 4096;
	if (!(ds = begin(job, &o, v)))
		return;
	v->wrong |= samples_epoch(ds, 0, 0, &v->error) << 1;
	for (uint64_t i = 0; i < ds->nslots; i++)
		if ((atomic_load(&ds->slots[i].word) & WORD_STATE) == SLOT_SPILLED &&
		    atomic_load(&ds->slots[i].bytes) > 100 && i % 2)
			v->wrong |=
				pwrite(ds->spill_fd, "damage", 6, (off_t)atomic_load(&ds->slots[i].offset) + 50) != 6;
	v->wrong |= samples_epoch(ds, 1, 0, &v->error) << 2;
	v->stats.damaged = damaged(ds);
	v->wrong |= (v->stats.damaged < 10) << 3;
	v->wrong |= samples_epoch(ds, 2, 0, &v->error) << 4;
	v->wrong |= (damaged(ds) != v->stats.damaged) << 5;
	v->wrong |= (gradcomp_dataset_free(ds, v->wrong ? NULL : &v->error) != 0) << 6;
}

static void damage(void)
{
	samples_forget();
	processes_on(two_nodes);
	process_board *b = run_processes(2, settings, in_memory, sizeof(dataset_result));
	const dataset_result *asker = process_room(b, 0), *owner = process_room(b, 1);
	ok(all_well(b), "values damaged in their owner's memory are made again, by who gets them and at the owner");
	is_int(asker->stats.damaged, (int64_t)owner->seconds, "each is counted");
	end_processes(b);
	samples_forget();
	processes_on(NULL);
	b = run_processes(1, settings, in_spill, sizeof(dataset_result));
	ok(all_well(b), "values damaged in the spill file are made again, and right from then on");
	end_processes(b);
}

/* The caller who makes this sample first never gets done. */
static gradcomp_status endless_load(void *ctx, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err)
{
	if (index == atomic_load(&all_samples->go) && !atomic_exchange(&all_samples->step, 1)) {
		alarm(60);
		pause();
	}
	return sample_load(ctx, index, out, err);
}

/* Rank 0 and a child of it wait for a value that rank 1 is making when that is killed. */
static void deadly(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(SAMPLES);
	gradcomp_value_view view = {.struct_size = sizeof view};
	dataset_result *v = room;
	gradcomp_dataset *ds;
	uint64_t index = 0;
	int status = -1;
	o.load = endless_load;
	if (!(ds = begin(job, &o, v)))
		return;
	if (rank == 1) {
		gradcomp_dataset_order(ds, 0, 0, &index, &v->error);
		atomic_store(&all_samples->go, (unsigned)index);
		gradcomp_dataset_next(ds, &view, &v->error);
		v->wrong = 1;
		return;
	}
	while (!atomic_load(&all_samples->step))
		usleep(1000);
	pid_t pid = fork();
	if (!pid) {
		gradcomp_error err = {0};
		gradcomp_status st = gradcomp_dataset_get(ds, atomic_load(&all_samples->go), &view, &err);
		_exit(st == GRADCOMP_ERR_PEER && strstr(err.text, "rank 1") ? 0 : 1);
	}
	pid_t killer = fork();
	if (!killer) {
		usleep(300000);
		kill(b->slot[1].pid, SIGKILL);
		_exit(0);
	}
	v->seconds = process_now();
	v->status = gradcomp_dataset_get(ds, atomic_load(&all_samples->go), &view, &v->error);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	v->wrong |= (status != 0) << 1;
	/* On one node it may have been made in the dead rank's place before the news came. */
	while (!v->status && process_now() - v->seconds < 50 && !gradcomp_dataset_get(ds, 0, &view, NULL))
		usleep(1000);
	v->seconds = process_now() - v->seconds;
	v->wrong |= (gradcomp_dataset_get(ds, 0, &view, NULL) == 0) << 2;
	v->wrong |= (gradcomp_dataset_free(ds, NULL) == 0) << 3;
	waitpid(killer, NULL, 0);
}

static void deaths(void)
{
	for (int nodes = 2; nodes >= 1; nodes--) {
		samples_forget();
		atomic_store(&all_samples->go, ~0u);
		processes_on(nodes == 2 ? two_nodes : one_node);
		process_board *b = run_processes(2, settings, deadly, sizeof(dataset_result));
		const dataset_result *v = process_room(b, 0);
		if (nodes == 2) {
			is_int(v->status, GRADCOMP_ERR_PEER,
			       "another node's rank dies: whoever waits for its value fails");
			like(v->error.text, "rank 1", "by its name,");
			ok(in_time(v->seconds, 9), "after %.1f s,", v->seconds);
		} else {
			ok(in_time(v->seconds, 9), "a rank of the same node dies: after %.1f s nobody waits for it,",
			   v->seconds);
		}
		is_int(v->wrong & ~(nodes == 1 ? 2 : 0), 0, "%severy later call fails",
		       nodes == 2 ? "a forked child as well; and " : "");
		end_processes(b);
	}
}

static void orphan(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(SAMPLES);
	gradcomp_value_view view = {.struct_size = sizeof view};
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)rank;
	(void)b;
	o.load = endless_load;
	if (!(ds = begin(job, &o, v)))
		return;
	if (!fork()) {
		gradcomp_error err = {0};
		gradcomp_status st;
		pid_t busy = fork();
		if (!busy) {
			gradcomp_dataset_get(ds, 7, &view, &err);
			_exit(0);
		}
		while (!atomic_load(&all_samples->step))
			usleep(1000);
		atomic_store(&all_samples->slow_ms, 1);
		st = gradcomp_dataset_get(ds, 7, &view, &err);
		atomic_store(&all_samples->fails, st == GRADCOMP_ERR_PEER && strstr(err.text, "has ended") ? 1 : 2);
		kill(busy, SIGKILL);
		_exit(0);
	}
	while (!atomic_load(&all_samples->slow_ms))
		usleep(1000);
	usleep(50000);
	kill(getpid(), SIGKILL);
}

static void left_behind(void)
{
	samples_forget();
	atomic_store(&all_samples->go, 7);
	processes_on(NULL);
	process_board *b = run_processes(1, settings, orphan, sizeof(dataset_result));
	for (double from = process_now(); !atomic_load(&all_samples->fails) && in_time(process_now() - from, 20);)
		usleep(10000);
	is_int(atomic_load(&all_samples->fails), 1, "a child that waits when its rank dies is told so");
	end_processes(b);
}

static void killed(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(SAMPLES);
	gradcomp_value_view view = {.struct_size = sizeof view};
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)b;
	o.memory = 1 << 20;
	if (!(ds = begin(job, &o, v)))
		return;
	v->wrong |= samples_epoch(ds, 0, 0, &v->error) << 1;
	v->wrong |= (gradcomp_barrier(gradcomp_job_world(job), &v->error) != 0) << 2;
	/* Each takes all that it can have and dies with it. */
	for (int k = 0; k < 5 && rank == 0; k++) {
		pid_t pid = fork();
		if (!pid) {
			for (uint64_t i = 0; i < SAMPLES; i++)
				gradcomp_dataset_get(ds, i, &view, NULL);
			raise(SIGKILL);
		}
		waitpid(pid, NULL, 0);
	}
	uint32_t taken = rank == 0;
	for (double from = process_now(); taken && in_time(process_now() - from, 20);) {
		usleep(10000);
		taken = 0;
		for (uint32_t i = 0; i < ds->head->ntickets; i++)
			taken += atomic_load(&ds->tickets[i].word) != TICKET_FREE;
	}
	v->wrong |= (taken != 0) << 3;
	v->wrong |= samples_epoch(ds, 1, 0, &v->error) << 4;
	v->wrong |= (gradcomp_dataset_free(ds, v->wrong ? NULL : &v->error) != 0) << 5;
}

static void loans_of_the_dead(void)
{
	samples_forget();
	processes_on(two_nodes);
	process_board *b = run_processes(2, settings, killed, sizeof(dataset_result));
	ok(all_well(b), "what killed children had on loan is given back");
	end_processes(b);
}

int main(void)
{
	settings[0] = plugin_path_setting();
	samples_begin();
	tmpdir_make("dataset");
	damage();
	deaths();
	left_behind();
	loans_of_the_dead();
	return done_testing();
}
