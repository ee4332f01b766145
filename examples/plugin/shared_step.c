/* shared_step: two rounds. In the first every rank tells the largest magnitude that it has; the largest of
 * these gives a step that all ranks share. In the second every rank sends its numbers in that step, as
 * integers from -127 to 127. What a round has brought waits in scratch for the next.
 *
 *     average = step * mean of integers        error = u - step * own integer
 */
#include <gradcomp/compressor.h>

#include <math.h>
#include <string.h>

enum { LEVELS = 127 };
enum { LARGEST, INTEGERS, ROUNDS };

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	(void)values, (void)layout, (void)err;
	*instance = (void *)host;
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	(void)instance;
}

/* Both lengths are known, so they need not be exchanged first. */
static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	plan->nrounds = ROUNDS;
	plan->rounds[LARGEST] =
		(gradcomp_round){.pattern = GRADCOMP_GATHERED, .flags = GRADCOMP_ROUND_FIXED, .bound = sizeof(float)};
	plan->rounds[INTEGERS] =
		(gradcomp_round){.pattern = GRADCOMP_GATHERED, .flags = GRADCOMP_ROUND_FIXED, .bound = bucket->numel};
	plan->scratch_bytes = sizeof(float); /* the step */
	return GRADCOMP_OK;
}

static int8_t integer_of(float u, float step)
{
	float q = step > 0 ? rintf(u / step) : 0;
	return (int8_t)(q > LEVELS ? LEVELS : q < -LEVELS ? -LEVELS : q);
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	uint64_t n = work->bucket->numel;
	float largest = 0;
	(void)instance, (void)err;
	out->bytes = round == LARGEST ? sizeof largest : n;
	if (round == LARGEST) {
		for (uint64_t i = 0; i < n; i++)
			largest = fmaxf(largest, fabsf(work->flat[i]));
		memcpy(out->data, &largest, sizeof largest);
		return GRADCOMP_OK;
	}
	for (uint64_t i = 0; i < n; i++)
		((int8_t *)out->data)[i] = integer_of(work->flat[i], *(const float *)work->scratch);
	return GRADCOMP_OK;
}

static gradcomp_status take_largest(const gradcomp_host *host, const gradcomp_work *work, const gradcomp_payload *in,
                                    uint32_t n, gradcomp_error *err)
{
	float most = 0, largest;
	for (uint32_t r = 0; r < n; r++) {
		memcpy(&largest, in[r].data, sizeof largest);
		if (!isfinite(largest) || largest < 0)
			return host->fail(err, GRADCOMP_ERR_MISMATCH,
			                  "shared_step: rank %u's largest number of bucket %u is %g", r,
			                  work->bucket->index, (double)largest);
		most = fmaxf(most, largest);
	}
	*(float *)work->scratch = most / LEVELS;
	return GRADCOMP_OK;
}

/* u is needed to the end: the error is made before the average takes its place. */
static gradcomp_status take_integers(const gradcomp_host *host, const gradcomp_work *work, const gradcomp_payload *in,
                                     uint32_t n, gradcomp_error *err)
{
	const float step = *(const float *)work->scratch;
	for (uint32_t r = 0; r < n; r++)
		for (uint64_t i = 0; i < work->bucket->numel; i++)
			if (((const int8_t *)in[r].data)[i] < -LEVELS)
				return host->fail(err, GRADCOMP_ERR_MISMATCH,
				                  "shared_step: rank %u sent -128 for bucket %u; %d to %d are right", r,
				                  work->bucket->index, -LEVELS, LEVELS);
	for (uint64_t i = 0; i < work->bucket->numel; i++) {
		int32_t sum = 0;
		for (uint32_t r = 0; r < n; r++)
			sum += ((const int8_t *)in[r].data)[i];
		work->error_flat[i] = work->flat[i] - step * (float)integer_of(work->flat[i], step);
		work->flat[i] = (float)sum / (float)n * step;
	}
	return GRADCOMP_OK;
}

/* Checks all that the others sent: its length first. */
static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err)
{
	const gradcomp_host *host = instance;
	uint64_t right = round == LARGEST ? sizeof(float) : work->bucket->numel;
	for (uint32_t r = 0; r < n; r++)
		if (in[r].bytes != right)
			return host->fail(err, GRADCOMP_ERR_MISMATCH,
			                  "shared_step: %llu bytes of rank %u for bucket %u, %llu are right",
			                  (unsigned long long)in[r].bytes, r, work->bucket->index,
			                  (unsigned long long)right);
	return round == LARGEST ? take_largest(host, work, in, n, err) : take_integers(host, work, in, n, err);
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_compressor_v1,
                 .name = "shared_step",
                 .version = "1.0",
                 .summary = "8-bit integers in a step that all ranks share",
                 .licence = "MIT"},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED),
	.create = create,
	.destroy = destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
};
