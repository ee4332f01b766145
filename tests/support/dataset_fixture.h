/* Samples of a test: their values follow from their index, and how often each was made is
 * counted over all processes. */
#ifndef TESTS_SUPPORT_DATASET_FIXTURE_H
#define TESTS_SUPPORT_DATASET_FIXTURE_H

#include "io/dataset/node/permutation.h"
#include "gradcomp/dataset.h"
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"

#define SAMPLES_MOST 4096

typedef struct samples {
	atomic_uint made[SAMPLES_MOST], seen[SAMPLES_MOST];
	atomic_int wrong, slow_ms, fails; /* load() of sample `fails` - 1 does */
	atomic_uint go, step;
	uint64_t bytes; /* length of each value; 0: they differ */
} samples;

static samples *all_samples; /* shared by all processes */

static uint64_t sample_bytes(uint64_t index)
{
	return all_samples->bytes ? all_samples->bytes : index % 7 == 3 ? 0 : index * 7919 % 5000;
}

static unsigned char sample_byte(uint64_t index, uint64_t i)
{
	return (unsigned char)((index * 0x9e3779b97f4a7c15u >> 32) + i * 31 + (i >> 8));
}

static gradcomp_status sample_load(void *ctx, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err)
{
	uint64_t bytes = sample_bytes(index);
	unsigned char *p;
	(void)ctx;
	if (atomic_load(&all_samples->fails) == (int)index + 1) {
		err->status = GRADCOMP_ERR_IO;
		snprintf(err->text, sizeof err->text, "its file is gone");
		return GRADCOMP_ERR_IO;
	}
	if (atomic_load(&all_samples->slow_ms))
		usleep(1000u * (unsigned)atomic_load(&all_samples->slow_ms));
	if (index < SAMPLES_MOST)
		atomic_fetch_add(&all_samples->made[index], 1);
	p = out->alloc(out, bytes);
	if (!p)
		return GRADCOMP_ERR_NOMEM;
	for (uint64_t i = 0; i < bytes; i++)
		p[i] = sample_byte(index, i);
	return GRADCOMP_OK;
}

static int sample_right(const gradcomp_value_view *v, uint64_t index)
{
	const unsigned char *p = v->data;
	int right = v->index == index && v->bytes == sample_bytes(index) && p && (uintptr_t)p % 64 == 0;
	for (uint64_t i = 0; right && i < v->bytes; i++)
		right = p[i] == sample_byte(index, i);
	return right;
}

static void samples_begin(void)
{
	all_samples = mmap(NULL, sizeof *all_samples, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

__attribute__((unused)) static void samples_forget(void)
{
	memset(all_samples, 0, sizeof *all_samples);
}

__attribute__((unused)) static gradcomp_dataset_options samples_options(uint64_t n)
{
	return (gradcomp_dataset_options){.struct_size = sizeof(gradcomp_dataset_options),
	                                  .count = n,
	                                  .seed = 11,
	                                  .memory = 64 << 20,
	                                  .shuffle = 1,
	                                  .load = sample_load};
}

/* One epoch by next(), from `position` on: 0 when every value was right. */
__attribute__((unused)) static int samples_epoch(gradcomp_dataset *ds, uint64_t epoch, uint64_t position,
                                                 gradcomp_error *err)
{
	gradcomp_value_view v = {.struct_size = sizeof v};
	uint64_t index, n = gradcomp_dataset_length(ds);
	int wrong = gradcomp_dataset_begin(ds, epoch, position, err) != 0;
	for (; !wrong && position < n; position++) {
		wrong |= gradcomp_dataset_order(ds, epoch, position, &index, err) != 0;
		wrong |= gradcomp_dataset_next(ds, &v, err) != 0 || !v.data || !sample_right(&v, index);
		atomic_fetch_add(&all_samples->seen[index], 1);
		gradcomp_dataset_release(ds, &v);
	}
	wrong |= gradcomp_dataset_next(ds, &v, err) != 0 || v.data != NULL;
	return wrong;
}

/* Every one of the first n was counted `times` times. */
__attribute__((unused)) static int samples_each(const atomic_uint *counted, uint64_t n, unsigned times)
{
	for (uint64_t i = 0; i < n; i++)
		if (atomic_load(&counted[i]) != times)
			return 0;
	return 1;
}

/* A rank leaves this for the test. */
typedef struct dataset_result {
	int wrong;
	gradcomp_status status;
	gradcomp_error error;
	gradcomp_dataset_stats stats;
	double seconds;
} dataset_result;

/* Every rank ended in good order with nothing wrong; tells of those that did not. */
__attribute__((unused)) static int all_well(process_board *b)
{
	int well = b != NULL;
	for (int r = 0; b && r < b->P; r++) {
		const dataset_result *v = process_room(b, r);
		if (b->slot[r].status || !b->slot[r].left || v->wrong) {
			printf("# rank %d: wait status %#x, left %d, wrong %d, error '%s' '%s'\n", r,
			       (unsigned)b->slot[r].status, b->slot[r].left, v->wrong, v->error.text,
			       b->slot[r].error.text);
			well = 0;
		}
	}
	return well;
}

#endif
