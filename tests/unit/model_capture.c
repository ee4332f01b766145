/* gradcomp.record: the model that a job leaves, as gradcomp plan reads it; and when there is
 * none. */
#include "tests/support/thread_ranks.h"

#include "tests/support/tmpdir.h"

#include "base/clock.h"
#include "base/error.h"
#include "cost/model_capture.h"
#include "job/job.h"

#include "cost/planning.h"

#include <math.h>
#include <sys/stat.h>

enum { TENSORS = 3, PAUSE_US = 3000 };
static const uint64_t dims[TENSORS][2] = {{8, 4}, {0}, {100, 3}};
static const uint32_t ndim[TENSORS] = {2, 0, 2};
static const char *const names[TENSORS] = {"conv.weight", "scale", "fc.weight"};

/* A small reducer comes and goes too. */
static void body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	int steps = *(const int *)arg;
	gradcomp_tensor_desc t[TENSORS];
	static float grad[MAX_RANKS][TENSORS][300];
	gradcomp_reducer *small, *red;
	gradcomp_error err;
	gradcomp_status st = GRADCOMP_OK;
	(void)nranks;
	for (uint32_t i = 0; i < TENSORS; i++)
		t[i] = (gradcomp_tensor_desc){
			.name = names[i], .dims = dims[i], .ndim = ndim[i], .dtype = GRADCOMP_F32};
	if (gradcomp_reducer_create(gradcomp_job_world(job), t, 1, NULL, &small, &err) ||
	    gradcomp_reducer_create(gradcomp_job_world(job), t, TENSORS, NULL, &red, &err)) {
		ok(0, "rank %d: %s", rank, err.text);
		return;
	}
	for (int s = 0; !st && s < steps; s++) {
		for (uint32_t i = TENSORS; i-- > 0 && !st;) {
			usleep(PAUSE_US);
			st = gradcomp_reducer_ready(red, i, grad[rank][i], &err);
		}
		if (!st)
			st = gradcomp_reducer_wait(red, &err);
	}
	gradcomp_reducer_free(red);
	gradcomp_reducer_free(small);
	if (st)
		ok(0, "rank %d: %s", rank, err.text);
}

/* Gradients that take a while to exchange, and programs that wait for one before they give the next. */
enum { LONG_TENSORS = 4, LONG_NUMBERS = 1 << 18, LONG_STEPS = 64 };
typedef enum waits { WAITS_FOR_STEPS, WAITS_FOR_TENSORS, WAITS_FOR_DONE } waits;
static _Atomic int n_done[MAX_RANKS];

static void count_done(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err)
{
	(void)tensor, (void)status, (void)err;
	n_done[*(const int *)ctx]++;
}

static void long_body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	const waits how = *(const waits *)arg;
	const uint64_t numel = LONG_NUMBERS;
	gradcomp_tensor_desc t[LONG_TENSORS];
	float *grad[LONG_TENSORS];
	gradcomp_reducer_options o = {.struct_size = sizeof o};
	gradcomp_reducer *red = NULL;
	gradcomp_error err;
	gradcomp_status st;
	(void)nranks;
	n_done[rank] = 0;
	if (how == WAITS_FOR_DONE) {
		o.done = count_done;
		o.ctx = &rank;
	}
	for (uint32_t i = 0; i < LONG_TENSORS; i++) {
		t[i] = (gradcomp_tensor_desc){.name = "long", .dims = &numel, .ndim = 1, .dtype = GRADCOMP_F32};
		grad[i] = calloc(numel, sizeof *grad[i]);
	}
	st = gradcomp_reducer_create(gradcomp_job_world(job), t, LONG_TENSORS, &o, &red, &err);
	for (int s = 0; !st && s < LONG_STEPS; s++) {
		for (uint32_t i = LONG_TENSORS; i-- > 0 && !st;) {
			int before = n_done[rank];
			usleep(1000);
			st = gradcomp_reducer_ready(red, i, grad[i], &err);
			if (!st && how == WAITS_FOR_TENSORS)
				st = gradcomp_reducer_wait_for(red, i, &err);
			while (!st && how == WAITS_FOR_DONE && i && n_done[rank] == before)
				usleep(100);
		}
		if (!st)
			st = gradcomp_reducer_wait(red, &err);
	}
	gradcomp_reducer_free(red);
	for (uint32_t i = 0; i < LONG_TENSORS; i++)
		free(grad[i]);
	ok(!st, "rank %d: steps end %s", rank, st ? err.text : "");
}

static char record_setting[220];
static const char *const *settings_for(const char *path)
{
	static const char *settings[] = {NULL, record_setting, "gradcomp.log=error", "transport.timeout=20", NULL};
	settings[0] = plugin_path_setting();
	snprintf(record_setting, sizeof record_setting, "gradcomp.record=%s", path);
	return settings;
}

/* Each tensor in a bucket of its own. */
static const char *const *long_settings_for(const char *path)
{
	static const char *settings[6];
	memcpy(settings, settings_for(path), 4 * sizeof *settings);
	settings[4] = "gradcomp.schedule=wfbp";
	return settings;
}

static void recorded(const char *path)
{
	model_file *m = NULL;
	gradcomp_error err = {0};
	double forward = 0;
	is_int(model_file_read(path, &m, &err), GRADCOMP_OK, "the model is read back %s", err.text);
	if (!m)
		return;
	is_int(m->ntensors, TENSORS, "of the larger reducer");
	for (uint32_t i = 0; i < m->ntensors && i < TENSORS; i++) {
		const model_tensor *t = &m->tensors[i];
		is_str(t->name, names[i], "its name, in forward order");
		ok(t->ndim == ndim[i] && !memcmp(t->dims, dims[i], ndim[i] * sizeof *t->dims), "its dimensions");
		forward += t->forward;
		/* The first gradient comes at the end of what is taken for the forward pass. */
		ok(i + 1 == TENSORS ? t->backward == 0 : t->backward > 0.9e-6 * PAUSE_US, "backward took %.4f s",
		   t->backward);
	}
	ok(forward > 0.9e-6 * PAUSE_US, "forward took %.4f s in all", forward);
	ok(fabs(m->tensors[2].forward - forward * 300 / 333) < 1e-9, "spread over the tensors by their numbers");
	ok(m->batch == 0 && m->update == 0, "and nothing is claimed of what was not measured");
	model_file_free(m);
}

int main(void)
{
	char path[200], text[600];
	int steps = 12;
	gradcomp_error err = {0};
	gradcomp_job job = {0};
	struct stat s;
	tmpdir_make("record");
	snprintf(path, sizeof path, "%s/m.ini", tmpdir);
	run_ranks(2, settings_for(path), body, &steps);
	recorded(path);
	snprintf(path, sizeof path, "%s/few.ini", tmpdir);
	steps = 2;
	run_ranks(2, settings_for(path), body, &steps);
	ok(stat(path, &s) != 0, "too few steps leave no file");

	static const char *const names_of[] = {"for steps", "for tensors", "in done()"};
	for (waits how = WAITS_FOR_STEPS; how <= WAITS_FOR_DONE; how++) {
		model_file *m = NULL;
		snprintf(path, sizeof path, "%s/long%d.ini", tmpdir, (int)how);
		double start = clock_now();
		run_ranks(2, long_settings_for(path), long_body, &how);
		if (how == WAITS_FOR_DONE)
			ok(clock_now() - start > 1.9,
			   "a step that keeps back what the program waits for lets go after 2 s");
		is_int(model_file_read(path, &m, &err), GRADCOMP_OK, "a program that waits %s", names_of[how]);
		/* Passes that sleep lose nothing: what is found is the noise of the machine, or that there is too
		 * much of it. */
		if (m && how == WAITS_FOR_STEPS)
			ok((m->slower_beside_exchange == 0 ||
			    (m->slower_beside_exchange >= 1 && m->slower_beside_exchange < 5)) &&
			           m->exchanging > 0,
			   "exchanges beside %.2f of it, %.2f times as long there", m->exchanging,
			   m->slower_beside_exchange);
		else if (m)
			ok(m->slower_beside_exchange == 0, "whose steps cannot keep exchanges back: nothing is known");
		model_file_free(m);
	}

	snprintf(path, sizeof path, "%s/none/m.ini", tmpdir);
	is_int(model_capture_open(path, &job, &err), GRADCOMP_ERR_IO, "a directory that is not there");
	snprintf(text, sizeof text, "%s/none", tmpdir);
	like(err.text, text, "is named");
	is_int(model_capture_open(tmpdir, &job, &err), GRADCOMP_ERR_IO, "a directory");
	like(err.text, "something of that name that is no file", "is told of before the job runs");
	is_int(model_capture_open("x%q", &job, &err), GRADCOMP_ERR_INVALID, "a name with an unknown letter");
	if (!chdir(tmpdir)) {
		is_int(model_capture_open("here.ini", &job, &err), GRADCOMP_OK, "a relative name");
		model_capture_abandon(job.model_capture);
	}
	model_capture_abandon(NULL);
	model_capture_reducer(NULL, NULL);
	is_int(model_capture_close(NULL, NULL, &err), GRADCOMP_OK, "no record is fine");
	return done_testing();
}
