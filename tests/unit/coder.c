/* Coders: coded reduce-scatter and all-gather against sums in double, for every code, type and cut of
 * blocks; agreement, residuals, several calls in flight. */
#include "tests/support/coder_fixture.h"

#include <stdatomic.h>

typedef struct one_case {
	const char *spec, *collective;
	double code; /* error of one code, as a share of the largest number in it */
	uint64_t n;
	gradcomp_dtype dtype;
	int cut;
	atomic_int wrong;
	uint64_t prints[MAX_RANKS];
} one_case;

static uint64_t print_of(const void *buf, size_t bytes)
{
	const unsigned char *p = buf;
	uint64_t h = bytes;
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ p[i]) * 0x100000001b3u;
	return h;
}

/* The first that is wrong is told. */
static void wrong(one_case *c, int rank, const char *what, uint64_t i, double got, double want, double bound)
{
	if (!atomic_fetch_add(&c->wrong, 1))
		printf("# %s, %s, type %d, cut %d, n %llu, rank %d: %s %llu is %.9g and should be %.9g within "
		       "%.3g\n",
		       c->spec, c->collective, (int)c->dtype, c->cut, (unsigned long long)c->n, rank, what,
		       (unsigned long long)i, got, want, bound);
}

static void scatter_right(one_case *c, gradcomp_coder *k, int rank, int P, const uint64_t *counts, uint64_t total)
{
	const double scale = 0.25;
	uint64_t own = counts[rank], begin = 0;
	void *in = coder_buffer(total, c->dtype), *out = coder_buffer(own, c->dtype);
	gradcomp_error err = {0};
	for (int r = 0; r < rank; r++)
		begin += counts[r];
	coder_fill(in, rank, 0, total, c->dtype, 1);
	gradcomp_status st =
		gradcomp_coder_reduce_scatter(k, in, out, counts, c->dtype, scale, GRADCOMP_CODER_NO_SLOT, &err);
	if (st)
		wrong(c, rank, err.text, 0, st, 0, 0);
	for (uint64_t i = 0; !st && i < own; i++) {
		/* Partial sums are no larger than 2 P; codes of a ring are P - 1. */
		double want = 0, most = 2.0 * P, rounding = 0;
		for (int w = 0; w < P; w++) {
			want += coder_given(w, begin + i, c->dtype, 1);
			rounding += fabs(coder_given(w, begin + i, c->dtype, 1));
		}
		bool hops = !strcmp(c->spec, "none");
		double bound = scale * ((P - 1) * c->code * most +
		                        (P + 1) * rounding * coder_half_ulp(hops ? c->dtype : GRADCOMP_F32)) +
		               (fabs(want * scale) + (P - 1) * c->code * most) * coder_half_ulp(c->dtype) + 1e-30;
		double got = coder_at(out, i, c->dtype);
		if (!(fabs(got - want * scale) <= bound * (1 + 1e-5)))
			wrong(c, rank, "sum", i, got, want * scale, bound);
	}
	if (!coder_wall(in, total, c->dtype) || !coder_wall(out, own, c->dtype))
		wrong(c, rank, "wall", 0, 0, 0, 0);
	free(in), free(out);
}

static void gather_right(one_case *c, gradcomp_coder *k, int rank, int P, const uint64_t *counts, uint64_t total,
                         bool in_place)
{
	uint64_t begin = 0, at = 0;
	size_t size = gradcomp_dtype_bytes(c->dtype);
	for (int r = 0; r < rank; r++)
		begin += counts[r];
	void *out = coder_buffer(total, c->dtype),
	     *in = in_place ? (char *)out + begin * size : coder_buffer(counts[rank], c->dtype);
	gradcomp_error err = {0};
	coder_fill(in, rank, 0, counts[rank], c->dtype, 2);
	gradcomp_status st = gradcomp_coder_all_gather(k, in, out, counts, c->dtype, &err);
	if (st)
		wrong(c, rank, err.text, 0, st, 0, 0);
	for (int w = 0; !st && w < P; at += counts[w++])
		for (uint64_t i = 0; i < counts[w]; i++) {
			double want = coder_given(w, i, c->dtype, 2), got = coder_at(out, at + i, c->dtype);
			double bound = P == 1 ? 0
			                      : c->code * 2 + (c->code > 0) * coder_half_ulp(c->dtype) *
			                                              (fabs(want) + c->code * 2);
			if (!(fabs(got - want) <= bound * (1 + 1e-5)))
				wrong(c, rank, "block number", at + i, got, want, bound);
		}
	c->prints[rank] = print_of(out, total * size);
	ranks_wait();
	for (int w = 0; w < P; w++)
		if (c->prints[w] != c->prints[0])
			wrong(c, rank, "bits of rank", (uint64_t)w, 0, 0, 0);
	ranks_wait();
	if (!coder_wall(out, total, c->dtype))
		wrong(c, rank, "wall", 0, 0, 0, 0);
	if (!in_place)
		free(in);
	free(out);
}

/* All types and cuts with one coder. */
static void every_call(gradcomp_job *job, int rank, int P, void *arg)
{
	static const gradcomp_dtype types[] = {GRADCOMP_F32, GRADCOMP_BF16, GRADCOMP_F16};
	one_case *all = arg;
	gradcomp_error err = {0};
	gradcomp_coder_options o = {.struct_size = sizeof o, .collective = all->collective, .seed = 3};
	gradcomp_coder *k;
	one_case *mine = all; /* shared: ranks go through cases in step */
	if (gradcomp_coder_create(gradcomp_job_world(job), all->spec, &o, &k, &err)) {
		wrong(all, rank, err.text, 0, err.status, 0, 0);
		return;
	}
	for (int t = 0; t < 3; t++)
		for (int cut = 0; cut < CUTS; cut++)
			for (int big = 0; big < 2; big++) {
				uint64_t counts[MAX_RANKS], n = big ? 5003 : 7, total = coder_counts(cut, P, n, counts);
				ranks_wait();
				if (rank == 0) {
					mine->dtype = types[t];
					mine->cut = cut;
					mine->n = n;
				}
				ranks_wait();
				scatter_right(mine, k, rank, P, counts, total);
				gather_right(mine, k, rank, P, counts, total, big);
			}
	gradcomp_coder_free(k);
}

enum { SLOTS = 3, STEPS = 5, NUMBERS = 1777 };

typedef struct conserved {
	const char *spec, *collective;
	float out[MAX_RANKS][NUMBERS], e[2][MAX_RANKS][NUMBERS];
	double off, largest, kept;
	atomic_int failed;
} conserved;

/* sum_w (in_w + e_w) = out / scale + sum_w e'_w, whatever the counts are. */
static void conserve(gradcomp_job *job, int rank, int P, void *arg)
{
	conserved *s = arg;
	const double scale = 1.0 / 3;
	uint64_t counts[MAX_RANKS], total = 0;
	gradcomp_error err = {0};
	gradcomp_coder_options o = {.struct_size = sizeof o, .collective = s->collective};
	gradcomp_coder *k;
	for (int r = 0; r < P; r++)
		total += counts[r] = r < P - 1 ? NUMBERS / (uint64_t)P + (uint64_t)(r % 2) : NUMBERS - total;
	if (gradcomp_coder_create(gradcomp_job_world(job), s->spec, &o, &k, &err)) {
		atomic_fetch_add(&s->failed, 1);
		return;
	}
	float *in = calloc(NUMBERS, sizeof *in), *out = calloc(NUMBERS, sizeof *out);
	if (!in || !out)
		exit(1);
	for (int step = 0; step < STEPS * SLOTS; step++) {
		uint32_t slot = 40 - (uint32_t)(step % SLOTS); /* made in falling order */
		float *mine = s->e[1][rank];
		memset(s->e[0][rank], 0, sizeof s->e[0][rank]);
		for (uint32_t i = 0; i < k->nslots; i++)
			if (k->slots[i]->number == slot)
				memcpy(s->e[0][rank], k->slots[i]->e, sizeof s->e[0][rank]);
		coder_fill(in, rank, 0, NUMBERS, GRADCOMP_F32, step);
		if (gradcomp_coder_reduce_scatter(k, in, out, counts, GRADCOMP_F32, scale, slot, &err))
			atomic_fetch_add(&s->failed, 1);
		memset(mine, 0, sizeof s->e[1][rank]);
		for (uint32_t i = 0; i < k->nslots; i++)
			if (k->slots[i]->number == slot)
				memcpy(mine, k->slots[i]->e, sizeof s->e[1][rank]);
		uint64_t begin = 0;
		for (int r = 0; r < rank; r++)
			begin += counts[r];
		memcpy(s->out[0] + begin, out, counts[rank] * sizeof *out);
		ranks_wait();
		for (uint64_t i = 0; rank == 0 && i < NUMBERS; i++) {
			double u = 0, left = 0, magnitude = 0;
			for (int w = 0; w < P; w++) {
				u += (double)coder_number(w, i, step) + s->e[0][w][i];
				left += s->e[1][w][i];
				magnitude += fabs(coder_number(w, i, step)) + fabs(s->e[0][w][i]);
				s->kept = fmax(s->kept, fabs(s->e[1][w][i]));
			}
			s->off = fmax(s->off, fabs(u - s->out[0][i] / scale - left));
			s->largest = fmax(s->largest, magnitude);
		}
		ranks_wait();
	}
	gradcomp_coder_stats stats = {.struct_size = sizeof stats};
	gradcomp_coder_get_stats(k, &stats);
	if (rank == 0 && P > 1)
		is_int(stats.slots, k->keeps ? SLOTS : 0, "%s over %s, %d ranks: slots", s->spec, s->collective, P);
	if (stats.residual_bytes != stats.slots * sizeof(float) * NUMBERS)
		atomic_fetch_add(&s->failed, 1);
	gradcomp_coder_free(k);
	free(in), free(out);
}

enum { FLIGHT = 24 };

typedef struct flown {
	uint64_t prints[2][MAX_RANKS]; /* one at a time, and all at once */
	atomic_int failed;
} flown;

static uint64_t fly(gradcomp_coder *k, int rank, int P, bool at_once, flown *f)
{
	void *in[FLIGHT], *out[FLIGHT];
	uint64_t counts[FLIGHT][MAX_RANKS], lengths[FLIGHT], h = 0;
	gradcomp_coder_request *q[FLIGHT];
	gradcomp_error err = {0};
	for (int i = 0; i < FLIGHT; i++) {
		gradcomp_dtype t = i % 3 == 2 ? GRADCOMP_BF16 : GRADCOMP_F32;
		uint64_t total = coder_counts(i % CUTS, P, 100 + 333 * (uint64_t)i, counts[i]), own = counts[i][rank];
		bool gathers = i % 2;
		lengths[i] = (gathers ? total : own) * gradcomp_dtype_bytes(t);
		in[i] = coder_buffer(gathers ? own : total, t);
		out[i] = coder_buffer(gathers ? total : own, t);
		coder_fill(in[i], rank, 0, gathers ? own : total, t, i);
		gradcomp_status st =
			gathers ? gradcomp_coder_all_gather_start(k, in[i], out[i], counts[i], t, &q[i], &err)
				: gradcomp_coder_reduce_scatter_start(k, in[i], out[i], counts[i], t, 0.5, (uint32_t)i,
		                                                      &q[i], &err);
		memset(counts[i], 0xff, sizeof counts[i]); /* was read */
		if (!st && !at_once) {
			int done = 0;
			while (!st && !done)
				st = gradcomp_coder_test(q[i], &done, &err);
			st = st ? st : gradcomp_coder_wait(q[i], &err);
		}
		if (st) {
			printf("# rank %d, call %d: %s\n", rank, i, err.text);
			atomic_fetch_add(&f->failed, 1);
		}
	}
	for (int i = FLIGHT; at_once && i--;)
		if (gradcomp_coder_wait(q[i], &err))
			atomic_fetch_add(&f->failed, 1);
	for (int i = 0; i < FLIGHT; i++) {
		h = id_mix(h, print_of(out[i], lengths[i]));
		free(in[i]), free(out[i]);
	}
	return h;
}

static void in_flight(gradcomp_job *job, int rank, int P, void *arg)
{
	flown *f = arg;
	gradcomp_error err = {0};
	gradcomp_coder *a, *b;
	if (gradcomp_coder_create(gradcomp_job_world(job), "block:bits=4,rounding=stochastic", NULL, &a, &err) ||
	    gradcomp_coder_create(gradcomp_job_world(job), "block:bits=4,rounding=stochastic", NULL, &b, &err)) {
		atomic_fetch_add(&f->failed, 1);
		return;
	}
	f->prints[0][rank] = fly(a, rank, P, false, f);
	f->prints[1][rank] = fly(b, rank, P, true, f);
	/* Freed with requests that nobody waited for. */
	static float in[MAX_RANKS][64], out[MAX_RANKS][64];
	uint64_t counts[MAX_RANKS];
	gradcomp_coder_request *left;
	coder_counts(CUT_EQUAL, P, 4, counts);
	for (int i = 0; i < 3; i++)
		if (gradcomp_coder_all_gather_start(a, in[rank], out[rank], counts, GRADCOMP_F32, &left, &err))
			atomic_fetch_add(&f->failed, 1);
	gradcomp_coder_free(a);
	gradcomp_coder_free(b);
	gradcomp_coder_free(NULL);
}

enum { ROUNDS = 6, CODERS = 3 };

typedef struct apart {
	gradcomp_coder *k;
	int rank, P;
	atomic_int *failed;
	uint64_t print;
} apart;

/* Calls of one coder, from a thread of its own. */
static void *go_round(void *arg)
{
	apart *a = arg;
	uint64_t counts[MAX_RANKS], total = coder_counts(CUT_ODD, a->P, 900, counts);
	float *in = coder_buffer(total, GRADCOMP_F32), *out = coder_buffer(total, GRADCOMP_F32);
	gradcomp_error err = {0};
	for (int i = 0; i < ROUNDS; i++) {
		coder_fill(in, a->rank, 0, total, GRADCOMP_F32, i);
		if (gradcomp_coder_all_gather(a->k, in, out, counts, GRADCOMP_F32, &err))
			atomic_fetch_add(a->failed, 1);
		a->print = id_mix(a->print, print_of(out, total * sizeof *out));
	}
	free(in), free(out);
	return NULL;
}

/* Coders do not wait for each other: ranks may start theirs in any order, and from threads. */
static void overtaking(gradcomp_job *job, int rank, int P, void *arg)
{
	static float in[2][MAX_RANKS][ROUNDS][64], out[2][MAX_RANKS][ROUNDS][64];
	flown *f = arg;
	gradcomp_group *world = gradcomp_job_world(job), *part;
	gradcomp_error err = {0};
	gradcomp_coder *k[CODERS] = {NULL};
	gradcomp_coder_request *q[2][ROUNDS];
	pthread_t thread[CODERS];
	apart a[CODERS];
	uint64_t counts[MAX_RANKS];
	coder_counts(CUT_EQUAL, P, 5, counts);
	if (gradcomp_group_split(world, rank % 2, -rank, &part, &err) ||
	    gradcomp_coder_create(world, "block", NULL, &k[0], &err) ||
	    gradcomp_coder_create(world, "block:bits=4", NULL, &k[1], &err) ||
	    gradcomp_coder_create(part, "lossless", NULL, &k[2], &err)) {
		printf("# rank %d: %s\n", rank, err.text);
		atomic_fetch_add(&f->failed, 1);
		return;
	}
	for (int n = 0, c = rank % 2; n < 2; n++, c = !c)
		for (int i = 0; i < ROUNDS; i++)
			if (gradcomp_coder_reduce_scatter_start(k[c], in[c][rank][i], out[c][rank][i], counts,
			                                        GRADCOMP_F32, 1, 0, &q[c][i], &err))
				atomic_fetch_add(&f->failed, 1);
	for (int n = 0, c = rank % 2; n < 2; n++, c = !c)
		for (int i = 0; i < ROUNDS; i++)
			if (gradcomp_coder_wait(q[c][i], &err))
				atomic_fetch_add(&f->failed, 1);
	for (int c = 0; c < CODERS; c++) {
		gradcomp_group *g = c < 2 ? world : part;
		a[c] = (apart){k[c], gradcomp_group_rank(g), gradcomp_group_nranks(g), &f->failed, 0};
		if (pthread_create(&thread[c], NULL, go_round, &a[c]))
			exit(1);
	}
	for (int c = 0; c < CODERS; c++) {
		pthread_join(thread[c], NULL);
		if (c < 2)
			f->prints[c][rank] = a[c].print;
		gradcomp_coder_free(k[c]);
	}
	gradcomp_group_free(part);
}

typedef struct unwell {
	const char *spec;
	atomic_int wrong;
} unwell;

static void expect(unwell *u, bool so, int rank, const char *what)
{
	if (!so && !atomic_fetch_add(&u->wrong, 1))
		printf("# %s, rank %d: %s\n", u->spec, rank, what);
}

static bool nan_all(const void *buf, uint64_t from, uint64_t n, gradcomp_dtype t)
{
	for (uint64_t i = from; i < from + n; i++)
		if (!isnan(coder_at(buf, i, t)))
			return false;
	return true;
}

/* Rank 1 gives a number that is not finite, then all go on. */
static void not_finite(gradcomp_job *job, int rank, int P, void *arg)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	unwell *u = arg;
	gradcomp_error err = {0};
	gradcomp_coder *k;
	gradcomp_coder_stats stats = {.struct_size = sizeof stats};
	uint64_t counts[MAX_RANKS] = {0}, n = 300, total;
	bool passes = !strcmp(u->spec, "lossless") || !strcmp(u->spec, "none") || !strcmp(u->spec, "cast");
	float e[2000] = {0};
	if (gradcomp_coder_create(gradcomp_job_world(job), u->spec, NULL, &k, &err)) {
		expect(u, false, rank, err.text);
		return;
	}
	total = coder_counts(CUT_ODD, P, n, counts);
	uint64_t first = counts[0], own = counts[rank];
	for (int i = 0; i < 6; i++) {
		gradcomp_dtype t = i % 2 ? GRADCOMP_BF16 : GRADCOMP_F32;
		size_t size = gradcomp_dtype_bytes(t);
		void *in = coder_buffer(total, t), *out = coder_buffer(total, t);
		bool well = i == 0; /* the first call fills the slot */
		coder_fill(in, rank, 0, total, t, i);
		if (rank == 1 && !well)
			operators_cpu()->cast_from_f32(NULL, (char *)in + (first + 5) * size, &bad[i % 3], 1, t, 0);
		expect(u, !gradcomp_coder_reduce_scatter(k, in, out, counts, t, 1, 7, &err), rank, err.text);
		if (passes)
			expect(u, rank != 1 || well || !isfinite(coder_at(out, 5, t)), rank, "the sum is as it came");
		else if (well)
			memcpy(e, k->keeps ? k->slots[0]->e : e, total * sizeof *e);
		else
			expect(u, nan_all(out, 0, own, t), rank, "the sum is NaN");
		expect(u, coder_wall(out, own, t), rank, "no more than the block is written");
		expect(u, !k->keeps || !memcmp(e, k->slots[0]->e, total * sizeof *e), rank,
		       "the residual is as it was");
		coder_fill(in, rank, 0, own, t, i);
		if (rank == 1 && !well)
			operators_cpu()->cast_from_f32(NULL, in, &bad[i % 3], 1, t, 0);
		expect(u, !gradcomp_coder_all_gather(k, in, out, counts, t, &err), rank, err.text);
		uint64_t at = 0;
		for (int w = 0; w < P; at += counts[w++]) {
			bool finite = true;
			for (uint64_t j = 0; j < counts[w]; j++)
				finite &= isfinite(coder_at(out, at + j, t)) != 0;
			expect(u, finite == (w != 1 || well), rank, "the other blocks are well");
			if (w == 1 && !well)
				expect(u,
				       passes ? !isfinite(coder_at(out, at, t)) && isfinite(coder_at(out, at + 1, t))
				              : nan_all(out, at, counts[w], t),
				       rank, "the block is NaN");
		}
		free(in), free(out);
	}
	gradcomp_coder_get_stats(k, &stats);
	expect(u, stats.nonfinite == (passes ? 0 : 10) && stats.reduce_scatters == 6 && stats.all_gathers == 6, rank,
	       "counted");
	/* Finite, but their sum is not. */
	float *in = malloc(total * sizeof *in), *out = malloc(total * sizeof *out);
	for (uint64_t i = 0; i < total; i++)
		in[i] = rank == P - 1 ? -1e38f : 3e38f;
	expect(u, in && out && !gradcomp_coder_reduce_scatter(k, in, out, counts, GRADCOMP_F32, 1, 7, &err), rank,
	       err.text);
	for (uint64_t i = 0; i < own; i++)
		expect(u, !isfinite(out[i]), rank, "it shows in the result");
	for (uint64_t i = 0; k->keeps && i < total; i++)
		expect(u, isfinite(k->slots[0]->e[i]), rank, "the residual stays finite");
	coder_fill(in, rank, 0, total, GRADCOMP_F32, 9);
	expect(u, !gradcomp_coder_reduce_scatter(k, in, out, counts, GRADCOMP_F32, 1, 7, &err), rank, err.text);
	for (uint64_t i = 0; i < own; i++)
		expect(u, isfinite(out[i]), rank, "and the next sum is well");
	free(in), free(out);
	gradcomp_coder_free(k);
}

int main(void)
{
	static const char *const collectives[] = {"ring", "direct", "hier:ranks_per_node=2", "auto", "ring:chunk=4096"};
	static const struct {
		const char *spec;
		double code;
	} specs[] = {{"block:bits=8", 0.5 / 127},
	             {"block:bits=4,block=64", 0.5 / 7},
	             {"block:bits=2", 0.5},
	             {"block:bits=4,rounding=stochastic", 1.0 / 7},
	             {"lossless", 0},
	             {"cast", 0x1p-9},
	             {"cast:type=fp16", 0x1p-12},
	             {"none", 0}};
	static const int sizes[] = {1, 2, 3, 5};
	const char *const settings[] = {plugin_path_setting(), NULL};
	for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
		for (size_t p = 0; p < sizeof sizes / sizeof sizes[0]; p++) {
			one_case c = {
				.spec = specs[i].spec, .collective = collectives[(i + p) % 5], .code = specs[i].code};
			run_ranks(sizes[p], settings, every_call, &c);
			is_int(atomic_load(&c.wrong), 0, "%s over %s, %d ranks: right, and the same everywhere", c.spec,
			       c.collective, sizes[p]);
		}
	gradcomp_error none_built = {0};
	setenv("GRADCOMP_PLUGIN_PATH", strchr(plugin_path_setting(), '=') + 1, 1);
	one_case zfp = {.spec = "zfp:rate=16", .collective = "direct", .code = 1e-3};
	if (gradcomp_coder_check(zfp.spec, zfp.collective, &none_built)) {
		skip(none_built.text, "zfp");
	} else {
		run_ranks(3, settings, every_call, &zfp);
		is_int(atomic_load(&zfp.wrong), 0, "%s: right, and the same everywhere", zfp.spec);
	}
	static const char *const lossy[] = {"block:bits=2", "block:bits=4,rounding=stochastic", "block:bits=8",
	                                    "lossless"};
	for (int i = 0; i < 12; i++) {
		/* Two levels of at least two nodes: within one nothing is coded. */
		int P = i % 3 == 2 ? 3 + i / 3 % 2 : 2 + (i + i / 3) % 3;
		conserved *s = calloc(1, sizeof *s);
		if (!s)
			return 1;
		s->spec = lossy[i / 3];
		s->collective = collectives[i % 3];
		run_ranks(P, settings, conserve, s);
		is_int(atomic_load(&s->failed), 0, "%s over %s: calls with slots", s->spec, s->collective);
		ok(s->off <= s->largest * 2e-6, "... what went in came out or is kept: %.3g of %.3g is not", s->off,
		   s->largest);
		ok((i < 9) == (s->kept > 0), "... and some is kept: up to %.3g", s->kept);
		free(s);
	}
	static const char *const unwell_specs[] = {"block:bits=8", "fp8",      "fp8:type=e5m2,scales=e8m0,block=32",
	                                           "natural",      "lossless", "cast",
	                                           "none",         "fp4",      "fp4:type=mx"};
	const char *const quiet[] = {plugin_path_setting(), "gradcomp.log=error", NULL};
	for (size_t i = 0; i < sizeof unwell_specs / sizeof *unwell_specs; i++) {
		unwell u = {.spec = unwell_specs[i]};
		run_ranks(3, quiet, not_finite, &u);
		is_int(atomic_load(&u.wrong), 0, "%s: NaN and Inf", u.spec);
	}
	flown three = {0};
	run_ranks(4, settings, overtaking, &three);
	is_int(atomic_load(&three.failed), 0, "%d coders at work at once, started in another order on other ranks",
	       CODERS);
	for (int r = 1; r < 4; r++)
		ok(three.prints[0][r] == three.prints[0][0] && three.prints[1][r] == three.prints[1][0],
		   "rank %d: the bits of rank 0", r);
	flown f = {0};
	run_ranks(3, settings, in_flight, &f);
	is_int(atomic_load(&f.failed), 0, "%d calls in flight", FLIGHT);
	for (int r = 0; r < 3; r++)
		ok(f.prints[0][r] == f.prints[1][r], "rank %d: the same bits as one at a time", r);
	return done_testing();
}
