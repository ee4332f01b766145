/* topk and mstopk against plain ones in double: what is chosen, what is sent and what
 * is remembered; and of all sparse compressors codings, warm-up and lies. */
#include "tests/contract/sparse_reference.h"

/* Steps of topk: the places by the definition, what is kept there for each coding. */
static void topk_follows(const char *text, int kind, int layerwise, double density)
{
	static double u[3][D], a[D];
	static char in[D];
	double worst = 0, most = 0;
	int right = 1;
	job j;
	if (!job_open(&j, text, 3, TENSORS, dims))
		return;
	for (int step = 0; step < 3; step++) {
		fresh(&j, u, kind);
		if (!job_step(&j))
			break;
		memset(a, 0, sizeof a);
		for (int w = 0; w < 3; w++) {
			for (int t = 0, at = 0; t < (layerwise ? TENSORS : 1); t++) {
				int d = layerwise ? (int)j.s.tensors[t].numel : D;
				choose(in + at, u[w] + at, d, share_formula(density, (uint64_t)d));
				at += d;
			}
			for (int i = 0; i < D; i++) {
				double sent = u[w][i] - j.s.error[w][i];
				right &= in[i] || sent == 0;
				a[i] += in[i] ? sent / 3 : 0;
				worst = fmax(worst, in[i] ? fabs(j.s.error[w][i]) : 0);
				most = fmax(most, fabs(u[w][i]));
			}
		}
		for (int i = 0; i < D; i++)
			right &= fabs(a[i] - j.g[0][i]) <= 1e-6 * most;
	}
	/* The largest number may lose this: BF16, FP16 and blocks lose something, nothing in F32. */
	double may = strstr(text, "bf16")     ? 0x1p-8
	             : strstr(text, "fp16")   ? 0x1p-11
	             : strstr(text, "block8") ? 1 / 250.0
	             : strstr(text, "block4") ? 1 / 13.0
	                                      : 0;
	ok(right && worst <= may * most && (may == 0 || kind == KIND_TIES || worst > 0),
	   "%s, %s: the largest, lower index first; %.2g of the largest is not sent of them", text,
	   fixture_kind_names[kind], most > 0 ? worst / most : 0);
	job_close(&j);
}

/* However indices are coded, everything else is the same to the bit. */
static void codings_alike(const char *name)
{
	job j[4];
	char text[100];
	int same = 1, opened = 0;
	uint64_t sent[4] = {0};
	for (; opened < 4; opened++) {
		snprintf(text, sizeof text, "%s:density=0.02,indices=%s", name, sdk_sparse_index_codings[opened]);
		if (!job_open(&j[opened], text, 3, TENSORS, dims))
			break;
	}
	for (int step = 0; opened == 4 && step < 4; step++) {
		for (int w = 0; w < 3; w++)
			for (int i = 0; i < D; i++) {
				float v = fixture_gradient(step ? KIND_NORMAL : KIND_TIES, (uint64_t)i, 0);
				for (int c = 0; c < 4; c++)
					j[c].g[w][i] = v;
			}
		for (int c = 0; c < 4; c++) {
			same &= job_step(&j[c]);
			sent[c] = j[c].s.sent;
			for (int w = 0; w < 3; w++)
				same &= !memcmp(j[c].g[w], j[0].g[w], sizeof(float) * D) &&
				        !memcmp(j[c].s.error[w], j[0].s.error[w], sizeof(float) * D);
		}
	}
	uint64_t k = share_formula(0.02, D);
	for (uint32_t c = 0; c < 4; c++)
		same &= sent[c] == 4 * k + index_formula(c, D, k);
	ok(same && sent[SDK_SPARSE_AUTO] < sent[SDK_SPARSE_RAW],
	   "%s: the same to the bit as raw, delta, bitmap and auto, in %d, "
	   "%d, %d and %d bytes",
	   name, (int)sent[0], (int)sent[1], (int)sent[2], (int)sent[3]);
	for (int c = 0; c < opened; c++)
		job_close(&j[c]);
}

static void warms_up(const char *name, uint64_t each)
{
	static const double density[] = {0.25, 0.25, 0.1, 0.1, 0.02, 0.02};
	char text[120];
	int right = 1;
	job j;
	snprintf(text, sizeof text, "%s:density=0.02,warmup=0.25/0.1,warmup_steps=2,start_step=2", name);
	if (!job_open(&j, text, 2, TENSORS, dims))
		return;
	for (int step = 0; step < 8; step++) {
		for (int w = 0; w < 2; w++)
			for (int i = 0; i < D; i++)
				j.g[w][i] = test_normal();
		right &= job_step(&j);
		right &= j.s.sent == (step < 2 ? 4 * D : each * share_formula(density[step - 2], D));
		for (int i = 0; step < 2 && i < D; i++)
			right &= j.s.error[0][i] == 0;
	}
	ok(right, "%s: 2 dense steps, 2 of 0.25, 2 of 0.1, then 0.02, in %d bytes a number", name, (int)each);
	job_close(&j);
}

static uint32_t seen[2][D];
static uint64_t seen_k;

static void look(ranks *s, gradcomp_payload *in, uint32_t n)
{
	(void)s;
	seen_k = in[0].bytes / 8;
	for (uint32_t w = 0; w < n && w < 2; w++)
		memcpy(seen[w], (const float *)in[w].data + seen_k, seen_k * 4);
}

static void mstopk_counts(const char *text, int kind, double density)
{
	static double u[2][D];
	int exact = 1, differ = 0;
	double least = 1;
	job j;
	if (!job_open(&j, text, 2, TENSORS, dims))
		return;
	j.s.tamper = look;
	for (int step = 0; step < 8; step++) {
		static char in[D];
		double best = 0, got = 0;
		fresh(&j, u, kind);
		if (!job_step(&j))
			break;
		exact &= seen_k == share_formula(density, D);
		for (uint64_t i = 1; i < seen_k; i++)
			exact &= seen[0][i] > seen[0][i - 1];
		differ |= memcmp(seen[0], seen[1], seen_k * 4) != 0;
		choose(in, u[0], D, seen_k);
		for (int i = 0; i < D; i++)
			best += in[i] ? fabs(u[0][i]) : 0;
		for (uint64_t i = 0; i < seen_k; i++)
			got += fabs(u[0][seen[0][i]]);
		least = best > 0 ? fmin(least, got / best) : least;
	}
	ok(exact && differ && least > 0.98, "%s, %s: exactly k, %.2f %% of the largest k's mass, each rank its own run",
	   text, fixture_kind_names[kind], 100 * least);
	job_close(&j);
}

/* The last bit of a list of indices: beyond the end of a tensor and of a bit string alike, so
 * that no list is still one. */
static void past_end(ranks *s, gradcomp_payload *in, uint32_t n)
{
	static uint32_t lie[D];
	(void)s, (void)n;
	memcpy(lie, in[1].data, in[1].bytes);
	lie[in[1].bytes / 4 - 1] ^= 1u << 31;
	in[1].data = lie;
}

/* Makes the last index of the words come twice. */
static void twice(ranks *s, gradcomp_payload *in, uint32_t n)
{
	static uint32_t lie[D];
	(void)s, (void)n;
	memcpy(lie, in[1].data, in[1].bytes);
	lie[in[1].bytes / 4 - 1] = lie[in[1].bytes / 4 - 2];
	in[1].data = lie;
}

static void lies(const char *text, void (*tamper)(ranks *, gradcomp_payload *, uint32_t))
{
	job j;
	if (!job_open(&j, text, 3, TENSORS, dims))
		return;
	for (int w = 0; w < 3; w++)
		for (int i = 0; i < D; i++)
			j.g[w][i] = test_normal();
	j.s.tamper = tamper;
	gradcomp_status st = ranks_step(&j.s, j.g, 0);
	int clean = 1;
	for (int i = 0; i < D; i++)
		clean &= j.s.error[0][i] == 0;
	ok(st == GRADCOMP_ERR_MISMATCH && clean && strstr(j.s.err.text, "bucket 0"), "%s: %s", text,
	   st ? j.s.err.text : "a lie is taken");
	job_close(&j);
}

int main(void)
{
	test_seed();
	random_check_seed(test_random());
	for (int kind = 0; kind < KINDS_ALL; kind += KIND_TIES) {
		topk_follows("topk:density=0.02", kind, 0, 0.02);
		topk_follows("topk:density=0.3,layerwise=yes", kind, 1, 0.3);
		topk_follows("topk:density=0.02,indices=auto,layerwise=yes", kind, 1, 0.02);
	}
	topk_follows("topk:density=0.1,values=bf16", KIND_NORMAL, 0, 0.1);
	topk_follows("topk:density=0.1,values=fp16,indices=delta", KIND_NORMAL, 0, 0.1);
	topk_follows("topk:density=0.1,values=block8,indices=auto,layerwise=yes", KIND_NORMAL, 1, 0.1);
	topk_follows("topk:density=0.1,values=block4,indices=bitmap", KIND_NORMAL, 0, 0.1);
	codings_alike("topk");
	codings_alike("mstopk");
	codings_alike("gtopk");
	warms_up("topk", 8);
	warms_up("mstopk", 8);
	warms_up("gtopk", 8);
	warms_up("randomk", 4);
	mstopk_counts("mstopk:density=0.02", KIND_NORMAL, 0.02);
	mstopk_counts("mstopk:density=0.9", KIND_NORMAL, 0.9);
	mstopk_counts("mstopk:density=0.02", KIND_TIES, 0.02);
	mstopk_counts("mstopk:density=0.1", KIND_CONSTANT, 0.1);
	mstopk_counts("mstopk:density=0.1", KIND_ZERO, 0.1);
	lies("topk:density=0.05", past_end);
	lies("topk:density=0.05", twice);
	lies("topk:density=0.05,indices=delta", past_end);
	lies("mstopk:density=0.05,indices=bitmap,values=block4", past_end);
	lies("gtopk:density=0.05,indices=delta", past_end);
	lies("gtopk:density=0.05", twice);
	return done_testing();
}
