/* Samples, the lines through them, and what is said while they are taken. */
#include "tools/probe.h"

#include "tools/bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>

bool probe_wants(const probe_samples *s)
{
	return !s->n || (s->n < 3 && s->spent < 2 * s->most) || (s->n < PROBE_SAMPLES && s->spent < s->most);
}

void probe_add(probe_samples *s, double seconds)
{
	if (s->n < PROBE_SAMPLES)
		s->seconds[s->n++] = seconds;
	s->spent += seconds;
}

double probe_median(probe_samples *s)
{
	return fit_median(s->seconds, (size_t)s->n);
}

gradcomp_status probe_slowest(const probe *p, double *seconds, gradcomp_error *err)
{
	return gradcomp_allreduce(p->world, seconds, 1, GRADCOMP_F64, GRADCOMP_MAX, err);
}

gradcomp_status probe_barrier(const probe *p, gradcomp_error *err)
{
	return gradcomp_barrier(p->world, err);
}

linear probe_line(probe *p, const fit_point *points, int n, const char *what)
{
	linear l = {0, 0};
	double off = fit_line(points, (size_t)n, &l.a, &l.b);
	if (off >= 0) {
		p->off += off;
		p->nlines++;
	}
	if (off > p->noise) {
		p->noise = off;
		snprintf(p->noisy, sizeof p->noisy, "%s", what);
	}
	return l;
}

linear probe_ends(const fit_point *points, int n)
{
	const fit_point *first = &points[0], *last = &points[n - 1];
	double b = n > 1 ? (last->y - first->y) / (last->x - first->x) : 0;
	if (b <= 0)
		return (linear){0, last->y / last->x};
	return (linear){fmax(first->y - b * first->x, 0), b};
}

void probe_nomem(gradcomp_error *err, const char *what)
{
	bench_failed(err, GRADCOMP_ERR_NOMEM, "no memory for %s", what);
}

gradcomp_status probe_leave_out(const probe *p, int named, const char *spec, const char *why, gradcomp_error *err)
{
	why = *why ? why : "another rank cannot use it";
	if (named) {
		bench_failed(err, GRADCOMP_ERR_INVALID, "%s: %s", spec, why);
		return GRADCOMP_ERR_INVALID;
	}
	probe_say(p, "%s is not measured: %s", spec, why);
	return GRADCOMP_OK;
}

void probe_say(const probe *p, const char *fmt, ...)
{
	va_list ap;
	if (p->rank != 0)
		return;
	fputs("gradcomp probe: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	putc('\n', stderr);
}
