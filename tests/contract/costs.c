/* cost() of every installed collective, against what goes over the links: bytes that a rank
 * sends for an all-reduce, on all layouts; and auto's choice by a fit that is given, which is
 * the same on all ranks when it is measured too. */
#include "tests/support/collective_layouts.h"

#include <math.h>

enum { SIZES = 4 };
static const uint64_t sizes[SIZES] = {64, 8192, 200000, 3 << 20};

typedef struct trial {
	const char *spec;
	int skipped;
	double said[SIZES][RANKS], sent[SIZES][RANKS], messages[SIZES][RANKS];
} trial;

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	trial *t = arg;
	gradcomp_error err = {0};
	coll_ctx p;
	(void)P;
	if (grid_open(job, t->spec, &p, &err)) {
		t->skipped = 1;
		return;
	}
	if (!p.collective->cost || !(p.collective->serves & GRADCOMP_CAN_ALLREDUCE))
		t->skipped = 1;
	float *x = calloc(1, sizes[SIZES - 1]);
	/* The first call may measure. */
	for (int s = -1; !t->skipped && s < SIZES; s++) {
		uint64_t before = channel_sent(p.channel), bytes = sizes[s < 0 ? 0 : s];
		if (s >= 0)
			p.collective->cost(p.instance, bytes, &t->said[s][rank], &t->messages[s][rank]);
		if (p.collective->allreduce(p.instance, x, bytes / 4, GRADCOMP_F32, GRADCOMP_SUM, 1.0, &err))
			ok(0, "%s, rank %d: %s", t->spec, rank, err.text);
		if (s >= 0)
			t->sent[s][rank] = (double)(channel_sent(p.channel) - before);
	}
	free(x);
	group_coll_close(&p);
}

static void check(const char *spec, const layout *l, const char *const *settings)
{
	trial *t = calloc(1, sizeof *t);
	t->spec = spec;
	grid_run(l, settings, body, t);
	for (int s = 0; !t->skipped && s < SIZES; s++) {
		double off = 0;
		int at = 0, same = 1;
		for (int r = 0; r < l->P; r++) {
			/* Blocks of whole numbers differ by one of them each, twice. */
			double d = fmax(fabs(t->said[s][r] - t->sent[s][r]) - 8.0 * l->P, 0) / (t->said[s][r] + 1);
			if (!(d <= off)) {
				off = d;
				at = r;
			}
			same &= t->messages[s][r] == t->messages[s][0];
		}
		ok(off < 0.01 && same, "%s, %s: %llu bytes: cost() says %.0f in %.0f messages, rank %d sends %.0f%s",
		   spec, l->name, (unsigned long long)sizes[s], t->said[s][at], t->messages[s][at], at, t->sent[s][at],
		   same ? "" : "; ranks differ in messages");
	}
	free(t);
}

static void wrong_fit(const char *spec)
{
	gradcomp_error err = {0};
	ok(gradcomp_spec_check("none", spec, &err) == GRADCOMP_ERR_INVALID &&
	           strstr(err.text, "is not 8 or 16 whole numbers of nanoseconds with '/' between them"),
	   "%s is refused: %s", spec, err.text);
}

/* Checks what an all-reduce of `bytes` costs by a fit. */
static void chosen(const char *spec, const layout *l, int s, double sent, double messages, const char *const *settings)
{
	trial *t = calloc(1, sizeof *t);
	t->spec = spec;
	grid_run(l, settings, body, t);
	ok(t->said[s][0] == sent && t->messages[s][0] == messages,
	   "%s, %s: %llu bytes by %.0f in %.1f messages (%.0f, %.1f)", spec, l->name, (unsigned long long)sizes[s],
	   sent, messages, t->said[s][0], t->messages[s][0]);
	free(t);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	setenv("GRADCOMP_PLUGIN_PATH", strchr(settings[0], '=') + 1, 1);
	grid_find(settings);
	for (int l = 0; l < LAYOUTS; l++)
		for (int k = 0; k < ncollectives; k++)
			check(collectives[k], &layouts[l], settings);
	wrong_fit("auto:fit=1");
	wrong_fit("auto:fit=1/2/3/4/5/6/-7");
	wrong_fit("auto:fit=1/2/3/4/5/6/7/");
	wrong_fit("auto:fit=1/2/3/4/5/6/7/8/9");
	wrong_fit("auto:fit=1/2/3/4/5/6/7/1/2/3/4/5/6/7/8");
	wrong_fit("auto:fit=1/2/3/4/5/6/9999999999999");
	/* Nothing but starts counts: a short buffer is doubled, a long one goes down a tree. Nothing
	 * but bytes: around the ring, which wins what is a tie with halving. */
	chosen("auto:fit=1000/1000/1000/1000/1000/1000/1000", &layouts[7], 1, 3.0 * sizes[1], 3, settings);
	chosen("auto:fit=1000/1000/1000/1000/1000/1000/1000", &layouts[7], 3, 3.0 * sizes[3], 6, settings);
	chosen("auto:fit=0/4096/8192/16384/65536/262144/1048576", &layouts[7], 3, 2.0 * 7 / 8 * sizes[3], 14, settings);
	/* 3 + 1 ranks, and only bytes between nodes count: two levels, with three shards, which the rank alone
	 * holds and takes one after another: two rounds in, 3 x 2 across, and out a round and a half, as one copy
	 * does for two ranks. */
	chosen("auto:fit=0/0/0/0/0/0/0/0/4096/8192/16384/65536/262144/1048576", &layouts[11], 3, 5.0 * sizes[3] / 3,
	       9.5, settings);
	return done_testing();
}
