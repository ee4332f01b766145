/* topk, mstopk, gtopk and randomk against plain ones in double: what is chosen, what
 * is sent and what is remembered, by every coding, on 1 to 9 ranks. */
#include "contract/job.h"
#include "unit/sparse.h"

enum { TENSORS = 5 };
static uint64_t dims[TENSORS][2] = {{40, 50}, {300, 0}, {0, 3}, {7, 9}, {1, 0}};
enum { D = 2000 + 300 + 0 + 63 + 1 };

/* ---- choosing ------------------------------------------------------------------------- */

/* Whether i comes before j. */
static int larger(const double *u, int i, int j)
{
	return fabs(u[i]) > fabs(u[j]) || (fabs(u[i]) == fabs(u[j]) && i < j);
}

/* in[i] = 1 for the k largest of u. */
static void choose(char *in, const double *u, int d, uint64_t k)
{
	for (int i = 0; i < d; i++) {
		uint64_t before = 0;
		for (int j = 0; before < k && j < d; j++)
			before += larger(u, j, i);
		in[i] = before < k;
	}
}

static void fresh(job *j, double (*u)[D], int kind)
{
	for (int w = 0; w < j->s.P; w++)
		for (int i = 0; i < D; i++) {
			j->g[w][i] = gradient(kind, (uint64_t)i, 0);
			u[w][i] = (double)(j->g[w][i] + j->s.error[w][i]);
		}
}

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
	/* Of the largest: what BF16, FP16 and blocks may lose, nothing in F32. */
	double may = strstr(text, "bf16")     ? 0x1p-8
	             : strstr(text, "fp16")   ? 0x1p-11
	             : strstr(text, "block8") ? 1 / 250.0
	             : strstr(text, "block4") ? 1 / 13.0
	                                      : 0;
	ok(right && worst <= may * most && (may == 0 || kind == KIND_TIES || worst > 0),
	   "%s, %s: the largest, lower index first; %.2g of the largest is not sent of them", text,
	   kind_names[kind], most > 0 ? worst / most : 0);
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
		snprintf(text, sizeof text, "%s:density=0.02,indices=%s", name, sparse_index_codings[opened]);
		if (!job_open(&j[opened], text, 3, TENSORS, dims))
			break;
	}
	for (int step = 0; opened == 4 && step < 4; step++) {
		for (int w = 0; w < 3; w++)
			for (int i = 0; i < D; i++) {
				float v = gradient(step ? KIND_NORMAL : KIND_TIES, (uint64_t)i, 0);
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
	ok(same && sent[SPARSE_AUTO] < sent[SPARSE_RAW],
	   "%s: the same to the bit as raw, delta, bitmap and auto, in %d, "
	   "%d, %d and %d bytes",
	   name, (int)sent[0], (int)sent[1], (int)sent[2], (int)sent[3]);
	for (int c = 0; c < opened; c++)
		job_close(&j[c]);
}

/* ---- bytes by step ------------------------------------------------------------------------ */

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

/* ---- mstopk ---------------------------------------------------------------------------------- */

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
	ok(exact && differ && least > 0.98,
	   "%s, %s: exactly k, %.2f %% of the largest k's mass, each rank its own run", text, kind_names[kind],
	   100 * least);
	job_close(&j);
}

/* ---- gtopk ------------------------------------------------------------------------------------- */

/* Of a and b the k largest of the sum go to a, the rest is added to left. */
static void plain_merge(double *a, const double *b, double *left, uint64_t k)
{
	static char in[D];
	for (int i = 0; i < D; i++)
		a[i] += b[i];
	choose(in, a, D, k);
	for (int i = 0; i < D; i++) {
		left[i] += in[i] ? 0 : a[i];
		a[i] = in[i] ? a[i] : 0;
	}
}

/* The harness merges along a binomial tree. Small whole numbers, so that sums are
 * exact; ties are many. */
static void gtopk_follows(const char *text, int P, double density)
{
	static double u[9][D], top[9][D], left[9][D];
	uint64_t k = share_formula(density, D);
	int right = 1, whole = 1;
	job j;
	if (!job_open(&j, text, P, TENSORS, dims))
		return;
	for (int step = 0; step < 4; step++) {
		static char in[D];
		for (int w = 0; w < P; w++)
			for (int i = 0; i < D; i++) {
				j.g[w][i] = (float)(test_random() % 41) - 20;
				u[w][i] = (double)(j.g[w][i] + j.s.error[w][i]);
			}
		if (!job_step(&j))
			break;
		memset(left, 0, sizeof left);
		for (int w = 0; w < P; w++) {
			choose(in, u[w], D, k);
			for (int i = 0; i < D; i++)
				top[w][i] = in[i] ? u[w][i] : 0;
		}
		for (int far = 1; far < P; far *= 2)
			for (int w = 0; w + far < P; w += 2 * far)
				plain_merge(top[w], top[w + far], left[w], k);
		for (int i = 0; i < D; i++) {
			double in_all = 0, out = 0;
			for (int w = 0; w < P; w++) {
				in_all += u[w][i];
				out += j.s.error[w][i];
			}
			whole &= out + top[0][i] == in_all;
			right &= j.g[0][i] == 1.0f / (float)P * (float)top[0][i];
		}
	}
	uint64_t bytes = 4 * k + index_formula(strstr(text, "auto") ? SPARSE_AUTO : SPARSE_RAW, D, k);
	ok(right && whole && j.s.sent == bytes, "%s, P=%d: the plain one's average%s%s; %d bytes", text, P,
	   right ? "" : " (NOT)", whole ? ", and nothing is lost" : ", SOMETHING IS LOST", (int)bytes);
	job_close(&j);
}

/* Gradients of all sizes: conserved to rounding. */
static void gtopk_conserves(int P, int kind)
{
	static double u[9][D];
	double off = 0, mass = 0;
	job j;
	if (!job_open(&j, "gtopk:density=0.03", P, TENSORS, dims))
		return;
	for (int step = 0; step < 5; step++) {
		fresh(&j, u, kind);
		if (!job_step(&j))
			break;
		for (int i = 0; i < D; i++) {
			double lost = (double)P * j.g[0][i];
			for (int w = 0; w < P; w++) {
				lost += j.s.error[w][i] - u[w][i];
				mass += fabs(u[w][i]);
			}
			off += fabs(lost);
		}
	}
	ok(off <= 3e-8 * mass, "gtopk, P=%d, %s: %.1e of the mass is lost in rounding", P, kind_names[kind],
	   mass > 0 ? off / mass : 0);
	job_close(&j);
}

static void gtopk_overflows(void)
{
	job j;
	int right = 1;
	if (!job_open(&j, "gtopk:density=0.03", 5, TENSORS, dims))
		return;
	for (int w = 0; w < 5; w++)
		for (int i = 0; i < D; i++) {
			j.g[w][i] = i == 77 ? 3e38f : test_normal();
			j.s.error[w][i] = 0.5f;
		}
	if (job_step(&j))
		for (int w = 0; w < 5; w++)
			for (int i = 0; i < D; i++)
				right &= isnan(j.g[w][i]) && j.s.error[w][i] == 0.5f;
	ok(right, "gtopk: a sum that overflows makes the average NaN on all ranks, errors stay");
	job_close(&j);
}

/* ---- randomk ------------------------------------------------------------------------------------ */

/* Statistics of the places over many steps: of each, of pairs of neighbours. */
static void randomk_uniform(uint64_t d, double density, int steps)
{
	uint64_t one[1][2] = {{d, 0}}, k = share_formula(density, d), pairs = 0;
	double count[4096] = {0}, p = (double)k / (double)d, chi = 0;
	char text[60];
	int exact = 1;
	job j;
	snprintf(text, sizeof text, "randomk:density=%g", density);
	if (!job_open(&j, text, 1, 1, one))
		return;
	for (int step = 0; step < steps; step++) {
		uint64_t n = 0;
		for (uint64_t i = 0; i < d; i++) {
			j.g[0][i] = 1;
			j.s.error[0][i] = 0;
		}
		if (!job_step(&j))
			break;
		for (uint64_t i = 0; i < d; i++) {
			n += j.g[0][i] == 1;
			exact &= j.g[0][i] + j.s.error[0][i] == 1;
			count[i] += (double)j.g[0][i];
			pairs += i && j.g[0][i] == 1 && j.g[0][i - 1] == 1;
		}
		exact &= n == k;
	}
	for (uint64_t i = 0; i < d; i++)
		chi += (count[i] - steps * p) * (count[i] - steps * p) / (steps * p * (1 - p));
	/* k of d without putting back: (d - 1) / d times chi has d - 1 degrees of freedom. */
	double free_ = (double)d - 1, z = (chi * free_ / (double)d - free_) / sqrt(2 * free_);
	double expected = steps * (double)k * (double)(k - 1) / (double)d,
	       zp = ((double)pairs - expected) / sqrt(expected + 1);
	ok(exact && fabs(z) < 5 && fabs(zp) < 5,
	   "randomk: %llu of %llu places in %d steps: chi-square %.1f sigma, "
	   "neighbours %.1f sigma off",
	   (unsigned long long)k, (unsigned long long)d, steps, z, zp);
	job_close(&j);
}

/* All subsets of a small set are as likely. */
static void randomk_subsets(void)
{
	uint64_t one[1][2] = {{6, 0}};
	double count[64] = {0}, chi = 0;
	enum { SUBSETS = 20, STEPS = 8000 };
	job j;
	if (!job_open(&j, "randomk:density=0.5", 1, 1, one))
		return;
	for (int step = 0; step < STEPS; step++) {
		int subset = 0;
		for (int i = 0; i < 6; i++) {
			j.g[0][i] = 1;
			j.s.error[0][i] = 0;
		}
		if (!job_step(&j))
			break;
		for (int i = 0; i < 6; i++)
			subset |= (j.g[0][i] == 1) << i;
		count[subset]++;
	}
	for (int m = 0; m < 64; m++)
		if (__builtin_popcount((unsigned)m) == 3)
			chi += (count[m] - STEPS / SUBSETS) * (count[m] - STEPS / SUBSETS) / (STEPS / SUBSETS);
		else if (count[m] > 0)
			chi = INFINITY;
	ok(chi < 19 + 6 * sqrt(38), "randomk: the 20 triples of 6 are as likely: chi-square %.1f of 19 degrees",
	   chi);
	job_close(&j);
}

/* The same places on all ranks, other ones in other steps. */
static void randomk_follows(int P)
{
	static double u[9][D];
	static char before[D], now[D];
	int right = 1, moved = 1;
	job j;
	if (!job_open(&j, "randomk:density=0.05", P, TENSORS, dims))
		return;
	for (int step = 0; step < 4; step++) {
		fresh(&j, u, KIND_NORMAL);
		if (!job_step(&j))
			break;
		for (int i = 0; i < D; i++) {
			double mean = 0;
			now[i] = j.g[0][i] != 0;
			for (int w = 0; w < P; w++) {
				mean += u[w][i] / P;
				right &= j.s.error[w][i] == (now[i] ? 0 : (float)u[w][i]) && j.g[w][i] == j.g[0][i];
			}
			right &= !now[i] || fabs(j.g[0][i] - mean) < 1e-5;
		}
		moved &= !step || memcmp(now, before, D);
		memcpy(before, now, D);
	}
	ok(right && moved, "randomk, P=%d: the mean where all send, the rest remembered; new places every step", P);
	job_close(&j);
}

/* ---- lies --------------------------------------------------------------------------------------- */

static void flip(ranks *s, gradcomp_payload *in, uint32_t n)
{
	static uint32_t lie[D];
	(void)s, (void)n;
	memcpy(lie, in[1].data, in[1].bytes);
	lie[in[1].bytes / 4 - 1] ^= 0xff;
	in[1].data = lie;
}

static void lies(const char *text)
{
	job j;
	if (!job_open(&j, text, 3, TENSORS, dims))
		return;
	for (int w = 0; w < 3; w++)
		for (int i = 0; i < D; i++)
			j.g[w][i] = test_normal();
	j.s.tamper = flip;
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
	check_seed(test_random());
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
	for (int P = 1; P <= 9; P++) {
		gtopk_follows("gtopk:density=0.02", P, 0.02);
		gtopk_follows("gtopk:density=0.5,indices=auto", P, 0.5);
		gtopk_conserves(P, KIND_NORMAL);
		randomk_follows(P);
	}
	gtopk_conserves(6, KIND_SCALES);
	gtopk_conserves(7, KIND_HUGE);
	gtopk_overflows();
	randomk_uniform(1000, 0.037, 3000);
	randomk_uniform(97, 0.5, 3000);
	randomk_uniform(4096, 0.01, 1000);
	randomk_subsets();
	lies("topk:density=0.05");
	lies("topk:density=0.05,indices=delta");
	lies("mstopk:density=0.05,indices=bitmap,values=block4");
	lies("gtopk:density=0.05,indices=delta");
	return done_testing();
}
