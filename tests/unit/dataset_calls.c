/* The calls of a dataset: what they refuse, what becomes of failures of load(), resuming,
 * two at once, threads, and values that outlive their dataset. */
#include "tests/support/dataset_fixture.h"

static const char *settings[] = {NULL, "transport.timeout=30", "gradcomp.log=error", NULL};
static const int two_nodes[] = {0, 1};

/* The functions below try what is refused. */

static int text_has(const gradcomp_error *err, const char *part)
{
	if (strstr(err->text, part))
		return 0;
	printf("# '%s' lacks '%s'\n", err->text, part);
	return 1;
}

static void refusing(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_dataset_options o = samples_options(50);
	gradcomp_value_view view = {.struct_size = sizeof view};
	dataset_result *v = room;
	gradcomp_dataset *ds = (void *)&o;
	gradcomp_error *err = &v->error;
	uint64_t index;
	int bad = 0;
	(void)b;
	o.count += (uint64_t)rank;
	bad |= gradcomp_dataset_create(world, &o, &ds, err) != GRADCOMP_ERR_MISMATCH || ds;
	bad |= text_has(err, "50 samples") || text_has(err, "1 (51 samples, seed 11, shuffled)");
	o.count = 50;
	o.load = rank ? NULL : o.load;
	bad |= (gradcomp_dataset_create(world, &o, &ds, err) != GRADCOMP_ERR_INVALID || text_has(err, "load()")) << 1;
	bad |= (!rank && text_has(err, "rank 1 on")) << 2;
	o.load = sample_load;
	o.count = (uint64_t)1 << 63;
	bad |= (gradcomp_dataset_create(world, &o, &ds, err) != GRADCOMP_ERR_RANGE) << 3;
	o.count = (uint64_t)1 << 40;
	bad |= (gradcomp_dataset_create(world, &o, &ds, err) != GRADCOMP_ERR_RANGE || text_has(err, "index")) << 4;
	o.count = 50;
	o.spill = "/no/such/place";
	bad |= (gradcomp_dataset_create(world, &o, &ds, err) != GRADCOMP_ERR_IO || text_has(err, "/no/such/place"))
	       << 5;
	o.spill = NULL;
	o.struct_size = 8;
	bad |= (gradcomp_dataset_create(world, &o, &ds, err) != GRADCOMP_ERR_INVALID) << 6;
	o.struct_size = sizeof o;
	bad |= (gradcomp_dataset_create(NULL, &o, &ds, err) != GRADCOMP_ERR_INVALID) << 7;
	if (gradcomp_dataset_create(world, &o, &ds, err)) {
		v->wrong = -1;
		return;
	}
	bad |= (gradcomp_dataset_get(ds, 50, &view, err) != GRADCOMP_ERR_RANGE || text_has(err, "no sample 50")) << 8;
	bad |= (gradcomp_dataset_order(ds, 0, 25, &index, err) != GRADCOMP_ERR_RANGE) << 9;
	bad |= (gradcomp_dataset_begin(ds, 0, 26, err) != GRADCOMP_ERR_RANGE || gradcomp_dataset_begin(ds, 0, 25, err))
	       << 10;
	bad |= (gradcomp_dataset_next(ds, &view, err) || view.data) << 11;
	index = 50;
	bad |= (gradcomp_dataset_expect(ds, &index, 1, err) != GRADCOMP_ERR_RANGE) << 12;
	view.struct_size = 4;
	bad |= (gradcomp_dataset_get(ds, 1, &view, err) != GRADCOMP_ERR_INVALID) << 13;
	view = (gradcomp_value_view){.struct_size = sizeof view};
	gradcomp_dataset_release(ds, &view);
	gradcomp_dataset_release(ds, NULL);
	bad |= (gradcomp_dataset_free(ds, err) || gradcomp_dataset_free(NULL, err)) << 14;
	v->wrong = bad;
}

static gradcomp_status silent_load(void *ctx, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err)
{
	(void)ctx;
	(void)err;
	if (index == 3)
		return GRADCOMP_OK; /* without room */
	if (index == 4) {
		for (int twice = 0; twice < 2; twice++)
			out->alloc(out, 10);
		return GRADCOMP_OK;
	}
	if (index == 5)
		return (gradcomp_status)17;
	return GRADCOMP_ERR_NOTFOUND;
}

static void failing(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(40);
	gradcomp_value_view view = {.struct_size = sizeof view};
	dataset_result *v = room;
	gradcomp_dataset *ds;
	char name[40];
	for (o.workers = 0; o.workers <= 2; o.workers++) {
		uint64_t index = 0;
		int failed = 0;
		if (gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error)) {
			v->wrong = -1;
			return;
		}
		/* Everybody's sixth. */
		gradcomp_dataset_order(ds, 0, 5, &index, &v->error);
		if (rank == 0)
			atomic_store(&all_samples->fails, (int)index + 1);
		gradcomp_barrier(gradcomp_job_world(job), &v->error);
		for (uint64_t p = 0; p < gradcomp_dataset_length(ds); p++) {
			gradcomp_status st = gradcomp_dataset_next(ds, &view, &v->error);
			if (st && !failed++) {
				snprintf(name, sizeof name, "sample %d: its file is gone", (int)index);
				v->wrong |= p != 5 || rank || st != GRADCOMP_ERR_IO || text_has(&v->error, name);
				/* Still so, then mended. */
				v->wrong |= (gradcomp_dataset_next(ds, &view, &v->error) != GRADCOMP_ERR_IO) << 1;
				atomic_store(&all_samples->fails, 0);
				st = gradcomp_dataset_next(ds, &view, &v->error);
			}
			v->wrong |= (st || !view.data || !sample_right(&view, view.index)) << 2;
			gradcomp_dataset_release(ds, &view);
		}
		v->wrong |= (failed != !rank) << 3;
		v->wrong |= (gradcomp_dataset_free(ds, &v->error) != 0) << 4;
	}
	o.load = silent_load;
	o.workers = 0;
	if (gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error)) {
		v->wrong = -2;
		return;
	}
	for (uint64_t i = 2; i < 6; i++) {
		gradcomp_status st = gradcomp_dataset_get(ds, i, &view, &v->error);
		snprintf(name, sizeof name, "sample %d", (int)i);
		v->wrong |= (st != (i == 2 ? GRADCOMP_ERR_NOTFOUND : GRADCOMP_ERR_INVALID) || text_has(&v->error, name))
		            << 5;
	}
	v->wrong |= (gradcomp_dataset_free(ds, &v->error) != 0) << 6;
	(void)b;
}

static void resuming(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(301);
	gradcomp_value_view view = {.struct_size = sizeof view};
	dataset_result *v = room;
	gradcomp_dataset *ds, *second;
	(void)rank;
	(void)b;
	o.workers = 2;
	o.prefetch = 16;
	if (gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error)) {
		v->wrong = -1;
		return;
	}
	/* Into the midst of an epoch, before any was gone through; then elsewhere, with much under way. */
	v->wrong |= samples_epoch(ds, 4, 100, &v->error);
	for (uint64_t e = 0; e < 6; e++) {
		v->wrong |= (gradcomp_dataset_begin(ds, e, e * 7, &v->error) != 0) << 1;
		for (uint64_t k = 0; k < e + 1; k++) {
			uint64_t index;
			v->wrong |= (gradcomp_dataset_order(ds, e, e * 7 + k, &index, &v->error) != 0) << 2;
			v->wrong |= (gradcomp_dataset_next(ds, &view, &v->error) || !sample_right(&view, index)) << 3;
			gradcomp_dataset_release(ds, &view);
		}
	}
	/* Another beside it, with another order. */
	o.seed = 12;
	o.workers = 0;
	if (gradcomp_dataset_create(gradcomp_job_world(job), &o, &second, &v->error)) {
		v->wrong = -2;
		return;
	}
	for (uint64_t e = 0; e < 2; e++) {
		v->wrong |= samples_epoch(ds, e, 0, &v->error) << 4;
		v->wrong |= samples_epoch(second, e, 0, &v->error) << 5;
	}
	v->wrong |= (gradcomp_dataset_free(ds, &v->error) != 0) << 6;
	v->wrong |= samples_epoch(second, 2, 0, &v->error) << 7;
	v->wrong |= (gradcomp_dataset_free(second, &v->error) != 0) << 8;
}

static void outliving(gradcomp_job *job, int rank, process_board *b, void *room)
{
	enum { KEPT = 20 };
	gradcomp_dataset_options o = samples_options(100);
	gradcomp_value_view view[KEPT];
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)rank;
	(void)b;
	if (gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error)) {
		v->wrong = -1;
		return;
	}
	v->wrong |= samples_epoch(ds, 0, 0, &v->error);
	for (int k = 0; k < KEPT; k++) {
		view[k] = (gradcomp_value_view){.struct_size = sizeof view[k]};
		v->wrong |= (gradcomp_dataset_get(ds, (uint64_t)k * 5, &view[k], &v->error) != 0) << 1;
	}
	v->wrong |= (gradcomp_dataset_free(ds, &v->error) != 0) << 2;
	for (int k = 0; k < KEPT; k++) {
		v->wrong |= !sample_right(&view[k], (uint64_t)k * 5) << 3;
		gradcomp_dataset_release(ds, &view[k]);
		v->wrong |= (view[k].data != NULL) << 4;
	}
}

enum { THREADS = 4 };

typedef struct reader {
	gradcomp_dataset *ds;
	uint64_t from;
	int wrong;
} reader;

/* All samples, some of them together with others, and several on loan at a time. */
static void *reading(void *arg)
{
	reader *r = arg;
	gradcomp_value_view view[3] = {
		{.struct_size = sizeof view[0]}, {.struct_size = sizeof view[0]}, {.struct_size = sizeof view[0]}};
	gradcomp_error err;
	for (uint64_t i = 0; i < 400; i++) {
		gradcomp_value_view *v = &view[i % 3];
		uint64_t index = (i + r->from) % 200;
		gradcomp_dataset_release(r->ds, v);
		r->wrong |= gradcomp_dataset_get(r->ds, index, v, &err) || !sample_right(v, index);
	}
	for (int k = 0; k < 3; k++)
		gradcomp_dataset_release(r->ds, &view[k]);
	return NULL;
}

static void threads(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(200);
	reader readers[THREADS] = {0};
	pthread_t thread[THREADS];
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)rank;
	(void)b;
	o.workers = 1;
	if (gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error)) {
		v->wrong = -1;
		return;
	}
	for (int k = 0; k < THREADS; k++) {
		readers[k] = (reader){.ds = ds, .from = (uint64_t)k / 2 * 50};
		pthread_create(&thread[k], NULL, reading, &readers[k]);
	}
	v->wrong |= samples_epoch(ds, 1, 0, &v->error);
	for (int k = 0; k < THREADS; k++) {
		pthread_join(thread[k], NULL);
		v->wrong |= readers[k].wrong << 1;
	}
	v->wrong |= (gradcomp_dataset_free(ds, &v->error) != 0) << 2;
}

/* The rest of an epoch from `position` on, in batches of 7 and single values in turn. */
static int batches(gradcomp_dataset *ds, uint64_t epoch, uint64_t position, gradcomp_error *err)
{
	enum { MOST = 7, STRIDE = 5120 };
	static unsigned char out[MOST * STRIDE];
	gradcomp_value_view view = {.struct_size = sizeof view};
	int wrong = 0;
	if (gradcomp_dataset_begin(ds, epoch, position, err))
		return 1;
	while (position < gradcomp_dataset_length(ds)) {
		uint64_t index, got = 99, bytes;
		if (gradcomp_dataset_order(ds, epoch, position, &index, err))
			return 1;
		bytes = sample_bytes(index);
		memset(out, 0xa5, sizeof out);
		wrong |= (gradcomp_dataset_next_copies(ds, MOST, bytes, STRIDE, out, &got, err) || !got || got > MOST)
		         << 1;
		for (uint64_t k = 0; k < got && k < MOST; k++, position++) {
			const unsigned char *p = out + k * STRIDE;
			wrong |= (gradcomp_dataset_order(ds, epoch, position, &index, err) ||
			          sample_bytes(index) != bytes)
			         << 2;
			for (uint64_t i = 0; i < STRIDE; i++)
				wrong |= (p[i] != (i < bytes ? sample_byte(index, i) : 0xa5)) << 3;
		}
		/* It ended before a value of another size, which has not been lost. */
		if (got < MOST && position < gradcomp_dataset_length(ds)) {
			wrong |= (gradcomp_dataset_next_copies(ds, MOST, bytes, STRIDE, out, &got, err) || got) << 4;
			wrong |= (gradcomp_dataset_order(ds, epoch, position++, &index, err) ||
			          gradcomp_dataset_next(ds, &view, err) || !sample_right(&view, index) ||
			          view.bytes == bytes)
			         << 5;
			gradcomp_dataset_release(ds, &view);
		}
	}
	return wrong | (gradcomp_dataset_next(ds, &view, err) || view.data) << 6;
}

static void copying(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(120);
	dataset_result *v = room;
	gradcomp_error *err = &v->error;
	uint64_t got;
	unsigned char small[64];
	(void)rank;
	for (uint32_t workers = 0; workers < 2; workers++)
		for (int equal = 0; equal < 2; equal++) {
			gradcomp_dataset *ds;
			o.workers = workers;
			pthread_barrier_wait(&b->barrier);
			all_samples->bytes = equal ? 777 : 0;
			pthread_barrier_wait(&b->barrier);
			if (gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, err)) {
				v->wrong = -1;
				return;
			}
			v->wrong |= batches(ds, 0, 0, err) | batches(ds, 1, 5, err);
			v->wrong |= (gradcomp_dataset_next_copies(ds, 1, 65, 64, small, &got, err) !=
			                     GRADCOMP_ERR_INVALID ||
			             text_has(err, "stride 64"))
			            << 7;
			v->wrong |=
				(gradcomp_dataset_next_copies(ds, 1, 64, 64, NULL, &got, err) != GRADCOMP_ERR_INVALID ||
			         text_has(err, "out is NULL"))
				<< 8;
			v->wrong |= (gradcomp_dataset_next_copies(ds, 9, 64, 64, small, &got, err) || got) << 9;
			v->wrong |= (gradcomp_dataset_free(ds, err) != 0) << 10;
		}
}

static void run(process_body *body, const int *nodes, const char *what)
{
	samples_forget();
	processes_on(nodes);
	process_board *b = run_processes(2, settings, body, sizeof(dataset_result));
	ok(all_well(b), "%s, %s", what, nodes ? "two nodes" : "one node");
	end_processes(b);
}

int main(void)
{
	settings[0] = plugin_path_setting();
	samples_begin();
	for (int nodes = 1; nodes <= 2; nodes++) {
		const int *where = nodes == 2 ? two_nodes : NULL;
		run(refusing, where, "what is refused names what it is, on all ranks");
		run(failing, where,
		    "a load() that fails fails the call, with the sample's number, and may be called again");
		run(resuming, where, "an epoch goes on anywhere; two datasets at once");
		run(threads, where, "four threads by get() and one by next()");
		run(copying, where, "batches are copied, end before a value of another size, and lose none");
		run(outliving, where, "values on loan outlive their dataset");
	}
	return done_testing();
}
