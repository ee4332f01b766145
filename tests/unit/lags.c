/* lags' arithmetic: the density that hides, against trying all of them; the line
 * through measured exchanges. */
#include <math.h>

#include "plugins/compressors/lags/lags_density.h"
#include "tests/support/operator_input.h"

/* By trying: the smallest c of a fine grid that hides, or max_ratio. */
static double tried(const lags_times *t, double d, double pair, double backward, double max_ratio)
{
	for (double c = 1; c < max_ratio; c *= 1.0001)
		if (t->latency + t->per_byte * pair * d / c + t->per_number * d <= backward)
			return 1 / c;
	return 1 / max_ratio;
}

static void against_trying(void)
{
	double worst = 0;
	int hides = 1, bounded = 1, all = 0, least = 0, between = 0;
	for (int i = 0; i < 500; i++) {
		lags_times t = {pow(10, -6 + 3 * test_uniform()), pow(10, -11 + 4 * test_uniform()),
		                pow(10, -11 + 3 * test_uniform())};
		double d = pow(10, 8 * test_uniform()), backward = pow(10, -6 + 5 * test_uniform());
		double ratio = pow(10, 4 * test_uniform()), pair = 4 + 4 * test_uniform();
		double got = lags_density(&t, d, pair, backward, ratio), want = tried(&t, d, pair, backward, ratio);
		worst = fmax(worst, fabs(got / want - 1));
		bounded &= got >= 1 / ratio && got <= 1;
		all += got == 1, least += got == 1 / ratio, between += got < 1 && got > 1 / ratio;
		if (got > 1 / ratio)
			hides &= t.latency + t.per_byte * pair * d * got + t.per_number * d <= backward * (1 + 1e-12);
	}
	ok(worst < 2e-4, "500 layers: the density of trying all, within %.1e", worst);
	ok(hides && bounded, "it hides, and is within its bounds");
	ok(all && least && between, "%d send all, %d the least, %d something between", all, least, between);
}

static void edges(void)
{
	lags_times t = {1e-4, 1e-9, 1e-9};
	ok(lags_density(&t, 1e6, 8, 0, 100) == 0.01, "the last layer has nothing to hide behind");
	ok(lags_density(&t, 1e6, 8, NAN, 100) == 0.01, "a time that is no number is no time");
	ok(lags_density(&t, 1e6, 8, 1, 1) == 1 && lags_density(&t, 1e6, 8, 0, 1) == 1, "max_ratio=1 sends all");
	ok(lags_density(&t, 0, 8, 1, 100) == 1, "an empty layer");
	t.per_byte = 0;
	ok(lags_density(&t, 1e6, 8, 1, 100) == 1, "bytes that cost nothing");
	t.per_byte = NAN;
	ok(lags_density(&t, 1e6, 8, 1, 100) == 0.01, "bytes of unknown cost");
}

static void fits(void)
{
	double bytes[100], seconds[100], worst = 0;
	lags_times t;
	for (int i = 0; i < 200; i++) {
		double a = pow(10, -6 + 4 * test_uniform()), b = pow(10, -11 + 3 * test_uniform());
		int n = 2 + (int)(test_random() % 99);
		for (int k = 0; k < n; k++) {
			bytes[k] = 1e3 + 1e7 * test_uniform();
			seconds[k] = a + b * bytes[k];
		}
		lags_fit(&t, bytes, seconds, (size_t)n);
		for (int k = 0; k < n; k++)
			worst = fmax(worst, fabs(t.latency + t.per_byte * bytes[k] - seconds[k]) / seconds[k]);
	}
	ok(worst < 1e-6, "200 lines are found again, within %.1e", worst);
	bytes[0] = bytes[1] = 1000, seconds[0] = 1, seconds[1] = 3;
	lags_fit(&t, bytes, seconds, 2);
	ok(t.latency >= 0 && t.latency < 1e-9 && fabs(t.per_byte - 0.002) < 1e-12,
	   "one size: all is put down to the bytes");
	bytes[1] = 2000, seconds[1] = 0.5;
	lags_fit(&t, bytes, seconds, 2);
	ok(t.per_byte == 0 && t.latency == 0.75, "a falling line is flat");
	seconds[0] = 1, seconds[1] = 3;
	lags_fit(&t, bytes, seconds, 2);
	ok(t.latency == 0 && fabs(t.per_byte - 7e6 / 5e9) < 1e-15,
	   "no time before 0: the best line through the origin");
	lags_fit(&t, bytes, seconds, 0);
	ok(t.latency == 0 && t.per_byte == 0, "nothing measured is no time");
}

int main(void)
{
	test_seed();
	against_trying();
	edges();
	fits();
	return done_testing();
}
