/* Whole buckets: tensors loaded and stored, ranks' pairs added up, against loops that do the same number by
 * number. Every table of this processor. */
#include <math.h>
#include <stdbool.h>

#include "tests/support/magnitudes.h"

enum { N = 20001, TENSORS = 5 };

static float number(uint64_t i)
{
	return (float)(int)(i * 2654435761u % 2001) / 64 - 15;
}

/* Returns true for the numbers that a sampled sum reads. */
static int in_sample(uint64_t i)
{
	return i % GRADCOMP_SAMPLE_EVERY < GRADCOMP_SAMPLE_RUN;
}

static void loads(const char *name, const gradcomp_operators *op)
{
	static float x[TENSORS][N], e[N], plain[N];
	static uint16_t half[N];
	double want[TENSORS] = {0}, squares[TENSORS];
	const float big = 3e38f;
	int bad[TENSORS] = {7, 7, 7, 7, 7}, same = 1;
	for (uint64_t i = 0; i < N; i++) {
		plain[i] = x[0][i] = number(i);
		e[i] = number(i + N);
	}
	op->cast_from_f32(NULL, half, plain, N, GRADCOMP_BF16, 0);
	half[N - 1] = 0x7f80; /* Inf */
	const gradcomp_segment t[TENSORS] = {
		{.x = x[0], .grad = x[0], .error = e, .n = N, .dtype = GRADCOMP_F32, .add = 0},
		{.x = x[1], .grad = plain, .error = e, .n = N, .dtype = GRADCOMP_F32, .add = 1},
		{.x = x[2], .grad = half, .n = N, .dtype = GRADCOMP_BF16},
		{.x = x[3], .grad = plain, .n = 0, .dtype = GRADCOMP_F32},
		{.x = x[4], .grad = (void *)(uintptr_t)&big, .error = &big, .n = 1, .dtype = GRADCOMP_F32, .add = 1},
	};
	void *scratch = aligned_alloc(64, op->tensors_scratch(t, TENSORS) + 64);
	gradcomp_status st = op->load_tensors(NULL, t, TENSORS, bad, squares, scratch);
	for (uint64_t i = 0; i < N; i++) {
		float sum = plain[i] + e[i];
		uint32_t w = (uint32_t)half[i] << 16;
		same &= x[0][i] == plain[i] && x[1][i] == sum && !memcmp(&x[2][i], &w, sizeof w);
		if (in_sample(i)) {
			want[0] += ((double)plain[i] + e[i]) * ((double)plain[i] + e[i]);
			want[1] += (double)sum * sum;
			want[2] += (double)x[2][i] * x[2][i];
		}
	}
	ok(!st && same, "%s: gradients, with error memory and of 16 bits, are loaded", name);
	ok(!bad[0] && !bad[1] && bad[2] == 1 && !bad[3], "%s: the one that is not finite is found", name);
	ok(bad[4] == 1, "%s: and the one that overflows with the error memory", name);
	for (int i = 0; i < 4; i++)
		same &= fabs(squares[i] - want[i]) <= 1e-12 * want[i];
	ok(same, "%s: and sampled", name);
	free(scratch);
}

/* What is not finite becomes 0, and a word is set by it. */
static void loads_finite(const char *name, const gradcomp_operators *op, bool bad)
{
	static float x[2][N], grad[2][N], e[N], want[2][N];
	int found[3] = {7, 7, 7}, any = 0, same = 1;
	double squares[2], sum = 0;
	for (uint64_t i = 0; i < N; i++) {
		const bool odd = bad && i % 1009 == 5;
		grad[0][i] = number(i);
		grad[1][i] = odd ? NAN : number(i);
		e[i] = number(i + N);
		want[0][i] = grad[0][i] + e[i];
		want[1][i] = odd ? 0 : grad[1][i];
		sum += in_sample(i) ? (double)want[1][i] * want[1][i] : 0;
	}
	if (bad) {
		grad[0][N - 1] = e[N - 1] = 3e38f;
		want[0][N - 1] = 0;
	}
	const gradcomp_segment t[] = {
		{.x = x[0],
	         .grad = grad[0],
	         .error = e,
	         .n = N,
	         .dtype = GRADCOMP_F32,
	         .add = GRADCOMP_SEGMENT_ADD | GRADCOMP_SEGMENT_FINITE},
		{.x = grad[1], .grad = grad[1], .n = N, .dtype = GRADCOMP_F32, .add = GRADCOMP_SEGMENT_FINITE},
		{.grad = &any, .add = GRADCOMP_SEGMENT_ANY}};
	void *scratch = aligned_alloc(64, op->tensors_scratch(t, 3) + 64);
	gradcomp_status st = op->load_tensors(NULL, t, 3, found, squares, scratch);
	for (uint64_t i = 0; i < N; i++)
		same &= x[0][i] == want[0][i] && grad[1][i] == want[1][i];
	ok(!st && same && fabs(squares[1] - sum) <= 1e-12 * sum, "%s: %s are loaded", name,
	   bad ? "gradients that are not finite are made so as they" : "finite gradients that would be made so");
	ok(found[0] == bad && found[1] == bad && found[2] == 7 && any == bad, "%s: the word says %d for all", name,
	   any);
	free(scratch);
}

static void stores(const char *name, const gradcomp_operators *op, int poison)
{
	static float x[N], in_place[N], e[N];
	static uint16_t half[N], want[N];
	double squares[3], sum = 0;
	int same = 1;
	for (uint64_t i = 0; i < N; i++) {
		in_place[i] = x[i] = number(i);
		e[i] = number(i + N);
		sum += in_sample(i) ? (double)e[i] * e[i] : 0;
	}
	op->cast_from_f32(NULL, want, x, N, GRADCOMP_F16, 0);
	const gradcomp_segment t[3] = {
		{.x = x, .grad = half, .error = e, .n = N, .dtype = GRADCOMP_F16},
		{.x = in_place, .grad = in_place, .n = N, .dtype = GRADCOMP_F32},
		{.x = x, .n = 0, .dtype = GRADCOMP_F32},
	};
	void *scratch = aligned_alloc(64, op->tensors_scratch(t, 3) + 64);
	gradcomp_status st = op->store_tensors(NULL, t, 3, &poison, squares, scratch);
	for (uint64_t i = 0; i < N; i++)
		same &= poison ? (half[i] & 0x7fff) > 0x7c00 && isnan(in_place[i]) && isnan(x[i])
		               : half[i] == want[i] && in_place[i] == number(i);
	ok(!st && same, "%s: tensors are stored%s", name, poison ? ", poisoned" : "");
	ok(fabs(squares[0] - sum) <= 1e-12 * sum && !squares[1] && !squares[2], "%s: error memory is sampled", name);
	free(scratch);
}

static void fills(const char *name, const gradcomp_operators *op, int word)
{
	static float x[N], y[N];
	/* The kinds 0 and 1 are one, and whatever else stands in them does not count. */
	const gradcomp_act t[3] = {
		{.to = x, .n = N}, {.n = 0}, {.to = y, .by = (int *)16, .n = N - 1, .arg = 9, .kind = 1}};
	int same = 1;
	for (uint64_t i = 0; i < N; i++)
		x[i] = y[i] = number(i);
	op->act_if(NULL, t, 3, -2, &word);
	for (uint64_t i = 0; i < N; i++)
		same &= x[i] == (word ? -2 : number(i)) && y[i] == (word && i < N - 1 ? -2 : number(i));
	ok(same, "%s: tensors are filled %s", name, word ? "as a word says" : "not where it does not");
}

/* Three acts find words, and others go by these or by a word: of one array the later act counts. */
static void acts(const char *name, const gradcomp_operators *op, int first, int second)
{
	static float x[N], y[N], from[N];
	const int words[5] = {first, -1, 0, -1, second}, set = 7, not_set = 0;
	int found[3] = {5, 5, 5}, same = 1;
	const gradcomp_act t[] = {
		{.to = &found[0], .from = words, .n = 2, .arg = 2 * sizeof *words, .kind = GRADCOMP_ACT_FIND},
		{.to = &found[1], .from = words + 4, .n = 1, .kind = GRADCOMP_ACT_FIND},
		{.to = &found[2], .from = words + 2, .n = 1, .kind = GRADCOMP_ACT_FIND_TOO},
		{.to = x, .from = from, .n = N, .arg = 1, .kind = GRADCOMP_ACT_COPY},
		{.to = x, .n = N, .arg = 0, .kind = GRADCOMP_ACT_CLEAR},
		{.to = y, .by = &set, .n = N - 1, .kind = GRADCOMP_ACT_CLEAR},
		{.to = y, .by = &not_set, .from = from, .n = N, .arg = 1, .kind = GRADCOMP_ACT_COPY},
	};
	for (uint64_t i = 0; i < N; i++) {
		x[i] = y[i] = number(i);
		from[i] = number(i) + 1;
	}
	op->act_if(NULL, t, sizeof t / sizeof *t, 3, NULL);
	for (uint64_t i = 0; i < N; i++)
		same &= x[i] == (first ? 0 : second ? from[i] : number(i)) && y[i] == (i < N - 1 ? 0 : number(i));
	ok(same && found[0] == !!first && found[1] == !!second && found[2] == (first || second),
	   "%s: acts go by what others find, %d and %d", name, first, second);
}

static void pairs(const char *name, const gradcomp_operators *op)
{
	enum { RANKS = 5, PARTS = 2, K = 40 };
	static uint32_t idx[RANKS * PARTS][K];
	static float val[RANKS * PARTS][K], y[PARTS][N], want[PARTS][N];
	const gradcomp_sparse to[PARTS] = {{y[0], N}, {y[1], 50}};
	gradcomp_pairs from[RANKS * PARTS];
	int fault = 0;
	memset(want, 0, sizeof want);
	memset(y, 1, sizeof y);
	for (int i = 0; i < RANKS * PARTS; i++) {
		for (uint32_t j = 0; j < K; j++) {
			idx[i][j] = i % PARTS ? j + (uint32_t)i : j * 500 + (uint32_t)i / 4;
			val[i][j] = number(j * 31 + (uint32_t)i);
		}
		from[i] = (gradcomp_pairs){idx[i], val[i], i == 6 ? 0 : K};
		for (uint32_t j = 0; j < from[i].k; j++)
			want[i % PARTS][idx[i][j]] += 0.3f * val[i][j];
	}
	op->sparse_sum(NULL, to, PARTS, from, RANKS, 0.3f, &fault);
	ok(!fault && !memcmp(y[0], want[0], sizeof y[0]) && !memcmp(y[1], want[1], 50 * sizeof(float)),
	   "%s: pairs of all ranks add up", name);
	idx[3][7] = idx[3][6];
	op->sparse_sum(NULL, to, PARTS, from, RANKS, 0.3f, &fault);
	ok(fault, "%s: an index that stands twice is found", name);
}

static void each(const char *name, const gradcomp_operators *op)
{
	const gradcomp_segment odd = {.dtype = GRADCOMP_I64};
	loads(name, op);
	loads_finite(name, op, false);
	loads_finite(name, op, true);
	stores(name, op, 0);
	stores(name, op, 1);
	fills(name, op, 0);
	fills(name, op, 7);
	for (int i = 0; i < 4; i++)
		acts(name, op, i & 1 ? -9 : 0, i & 2);
	pairs(name, op);
	ok(op->load_tensors(NULL, &odd, 1, NULL, NULL, NULL) == GRADCOMP_ERR_UNSUPPORTED &&
	           op->store_tensors(NULL, &odd, 1, NULL, NULL, NULL) == GRADCOMP_ERR_UNSUPPORTED,
	   "%s: integers are refused", name);
	ok(!op->failed(), "%s: nothing has failed", name);
}

int main(void)
{
	test_variants(each);
	each("shared", operators_cpu());
	return done_testing();
}
