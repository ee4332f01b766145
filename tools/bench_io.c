/* gradcomp bench io: a dataset in the memory of this job's nodes, started by srun.
 *
 *   epochs   whole epochs in their order, values copied out: the first makes them
 *   local    values of this node, copied out, beside a memcpy loop over as much memory
 *   remote   values of other nodes, beside an all-gather on the same links
 *   step     a trainer that sleeps: what taking a batch adds to its steps
 *
 * Values are the files of a dataset, or made up. Every value that is copied out is
 * checked once, before anything is timed. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"
#include "tools/bench_io.h"
#include "tools/commands.h"
#include "base/number.h"

static const char usage_text[] =
	"usage: gradcomp bench io [--source PATH | --samples N --bytes SIZE] [--epochs N] [--steps N]\n"
	"                         [--step-ms N] [--batch N] [--memory SIZE] [--json FILE]\n"
	"Started by srun, a rank a task. PATH: a folder or tar shards, as staged.\n"
	"defaults: --samples 4000 --bytes 100K --epochs 3 --steps 60 --step-ms 50 --batch 8\n";

/* Eight bytes that only this place of this sample has. */
static uint64_t pattern(uint64_t index, uint64_t at)
{
	uint64_t x = (index << 32 ^ at) * 0x9e3779b97f4a7c15;
	return x ^ x >> 29;
}

static gradcomp_status load(void *ctx, uint64_t index, gradcomp_value_buffer *buffer, gradcomp_error *err)
{
	const bench_dataset *b = ctx;
	uint64_t bytes = b->bytes;
	gradcomp_status st = GRADCOMP_OK;
	if (b->samples && (st = gradcomp_samples_part(b->samples, index, 0, NULL, &bytes, err)))
		return st;
	unsigned char *data = buffer->alloc(buffer, bytes);
	if (!data)
		return GRADCOMP_ERR_NOMEM;
	if (b->samples)
		return gradcomp_samples_read(b->samples, index, 0, data, bytes, &bytes, err);
	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t x = pattern(index, i);
		memcpy(data + i, &x, bytes - i < 8 ? bytes - i : 8);
	}
	return GRADCOMP_OK;
}

static bool right(const bench_dataset *b, const gradcomp_value_view *v)
{
	uint64_t bytes;
	gradcomp_error err;
	if (b->samples)
		return !gradcomp_samples_read(b->samples, v->index, 0, b->out, b->bytes, &bytes, &err) &&
		       bytes == v->bytes && !memcmp(b->out, v->data, bytes);
	for (uint64_t i = 0; i + 8 <= v->bytes; i += 8) {
		uint64_t x = pattern(v->index, i);
		if (memcmp((const char *)v->data + i, &x, 8))
			return false;
	}
	return v->bytes == b->bytes;
}

static int wrong(const gradcomp_value_view *v, gradcomp_error *err)
{
	return bench_failed(err, GRADCOMP_ERR_INTERNAL, "the value of sample %llu (%llu bytes) is wrong",
	                    (unsigned long long)v->index, (unsigned long long)v->bytes);
}

/* Which samples this rank's node has, and which not. */
static int places(bench_dataset *b, gradcomp_error *err)
{
	uint64_t n = gradcomp_dataset_length(b->ds);
	if (!(b->own = calloc(n + 1, sizeof *b->own)) || !(b->others = calloc(n + 1, sizeof *b->others)))
		return bench_failed(err, GRADCOMP_ERR_NOMEM, "out of memory");
	for (uint64_t i = 0; i < n; i++) {
		gradcomp_value_view v = {.struct_size = sizeof v};
		if (gradcomp_dataset_order(b->ds, 0, i, &b->own[b->nown], err) ||
		    gradcomp_dataset_get(b->ds, b->own[b->nown++], &v, err))
			return -1;
		b->own_bytes += v.bytes;
		gradcomp_dataset_release(b->ds, &v);
		if (gradcomp_dataset_order(b->ds, 1, i, &v.index, err) || gradcomp_dataset_get(b->ds, v.index, &v, err))
			return -1;
		if (v.source == GRADCOMP_VALUE_REMOTE)
			b->others[b->nothers++] = v.index;
		int good = right(b, &v);
		if (!good)
			return wrong(&v, err);
		gradcomp_dataset_release(b->ds, &v);
	}
	return 0;
}

static int open_dataset(bench_dataset *b, const char *source, uint64_t memory, gradcomp_error *err)
{
	gradcomp_dataset_options o = {.struct_size = sizeof o, .load = load, .ctx = b, .shuffle = 1, .workers = 2};
	if (source && gradcomp_samples_open(source, NULL, &b->samples, err))
		return -1;
	if (b->samples) {
		b->count = gradcomp_samples_count(b->samples);
		b->bytes = 0;
	}
	for (uint64_t i = 0; b->samples && i < b->count; i++) {
		uint64_t n;
		if (gradcomp_samples_part(b->samples, i, 0, NULL, &n, err))
			return -1;
		b->bytes = n > b->bytes ? n : b->bytes;
	}
	if (!(b->out = malloc(b->bytes + 1)))
		return bench_failed(err, GRADCOMP_ERR_NOMEM, "no memory for a value of %llu bytes",
		                    (unsigned long long)b->bytes);
	o.count = b->count;
	o.memory = memory;
	o.reload = b->samples != NULL; /* a file of a staged dataset is the same on every node */
	return gradcomp_dataset_create(b->world, &o, &b->ds, err) ? -1 : 0;
}

static int parse(int argc, char **argv, bench_dataset *b, const char **source, const char **json, uint64_t *memory)
{
	const char *samples = "4000", *bytes = "100K", *nepochs = "3", *nsteps = "60", *ms = "50", *batch = "8",
		   *mem = "0";
	const char *word = NULL;
	const command_option options[] = {
		{"--source", source, NULL}, {"--samples", &samples, NULL},
		{"--bytes", &bytes, NULL},  {"--epochs", &nepochs, NULL},
		{"--steps", &nsteps, NULL}, {"--step-ms", &ms, NULL},
		{"--batch", &batch, NULL},  {"--memory", &mem, NULL},
		{"--json", json, NULL},     {0},
	};
	int64_t n = 0, size = 0, room = 0;
	int status = command_take_options(argc, argv, usage_text, options, &word, 0);
	if (status >= 0)
		return status;
	if (number_int(samples, &n) || n < 1 || number_size(bytes, &size) || size < 8 || number_size(mem, &room) ||
	    room < 0 || number_int(nepochs, &b->epochs) || b->epochs < 1 || number_int(nsteps, &b->steps) ||
	    b->steps < 1 || number_int(ms, &b->step_ms) || b->step_ms < 1 || number_int(batch, &b->batch) ||
	    b->batch < 1)
		return command_usage_error(usage_text, "bench io: numbers are whole and positive, sizes like 100K");
	b->count = (uint64_t)n;
	b->bytes = (uint64_t)size;
	*memory = (uint64_t)room;
	return -1;
}

/* -1 with *err filled; the other ranks hear of it by this one's end. */
static int measure(bench_dataset *b, const char *source, const char *json, uint64_t memory, gradcomp_error *err)
{
	jsonw j;
	FILE *file = NULL;
	int status;
	if (json && gradcomp_job_rank(b->job) == 0) {
		if (!(file = fopen(json, "w")))
			return bench_failed(err, GRADCOMP_ERR_IO, "cannot write %s", json);
		json_put_start(&j, file);
		json_put_array(&j, NULL);
		b->json = &j;
	}
	status = open_dataset(b, source, memory, err) || bench_epochs(b, err) || places(b, err) ||
	                         bench_local_values(b, err) || bench_remote_values(b, err) || bench_steps(b, err)
	                 ? -1
	                 : 0;
	if (file) {
		json_put_end(&j);
		json_put_finish(&j);
		if (fclose(file) && !status)
			status = bench_failed(err, GRADCOMP_ERR_IO, "cannot write %s", json);
	}
	b->json = NULL;
	return status;
}

int bench_io(int argc, char **argv)
{
	bench_dataset b = {0};
	gradcomp_error err = {0};
	const char *source = NULL, *json = NULL;
	uint64_t memory = 0;
	int status = parse(argc, argv, &b, &source, &json, &memory);
	if (status >= 0)
		return status;
	if (gradcomp_job_create(NULL, &b.job, &err))
		return command_failed(&err);
	b.world = gradcomp_job_world(b.job);
	status = measure(&b, source, json, memory, &err);
	if (!status && (gradcomp_dataset_free(b.ds, &err) || gradcomp_job_free(b.job, &err)))
		status = -1;
	free(b.own);
	free(b.others);
	if (status)
		return command_failed(&err);
	gradcomp_samples_close(b.samples);
	free(b.out);
	return 0;
}
