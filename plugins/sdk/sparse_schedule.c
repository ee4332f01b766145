/* Densities by step: warm-up as in Lin et al., Deep Gradient Compression (2018). */
#include "gradcomp/sdk/sparse.h"

#include <string.h>

const char *sdk_sparse_number(const char *p, double *out)
{
	double value = 0, scale = 1;
	int digits = 0;
	for (; *p >= '0' && *p <= '9'; p++, digits++)
		value = value * 10 + (*p - '0');
	if (*p == '.')
		for (p++; *p >= '0' && *p <= '9' && scale < 1e15; p++, digits++) {
			value = value * 10 + (*p - '0');
			scale *= 10;
		}
	if (digits && *p == 'e' && p[1] == '-' && p[2] >= '1' && p[2] <= '9' && (p[3] < '0' || p[3] > '9')) {
		for (int n = p[2] - '0'; n; n--)
			scale *= 10;
		p += 3;
	}
	*out = digits ? value / scale : 0;
	return p;
}

static gradcomp_status read_list(sdk_sparse_schedule *s, const gradcomp_host *host, const char *text, const char *name,
                                 gradcomp_error *err)
{
	enum { MOST = sizeof s->warmup / sizeof s->warmup[0] };
	for (const char *p = text;; p++) {
		if (s->count == MOST)
			return host->fail(err, GRADCOMP_ERR_INVALID, "%s: warmup=%.80s: at most %d densities", name,
			                  text, MOST);
		double *w = &s->warmup[s->count++];
		p = sdk_sparse_number(p, w);
		if (!(*w >= 1e-9 && *w <= 1) || (*p && *p != '/'))
			return host->fail(err, GRADCOMP_ERR_INVALID,
			                  "%s: warmup=%.80s: must be 'exp' or densities from 1e-9 to 1, as "
			                  "0.25/0.0625",
			                  name, text);
		if (!*p)
			return GRADCOMP_OK;
	}
}

gradcomp_status sdk_sparse_schedule_read(sdk_sparse_schedule *s, const gradcomp_host *host,
                                         const gradcomp_value *values, const char *name, gradcomp_error *err)
{
	const char *text = values[SDK_SPARSE_WARMUP].s;
	*s = (sdk_sparse_schedule){.density = values[SDK_SPARSE_DENSITY].f,
	                           .each = (uint64_t)values[SDK_SPARSE_WARMUP_STEPS].i,
	                           .start_step = (uint64_t)values[SDK_SPARSE_START_STEP].i};
	if (!text || !*text)
		return GRADCOMP_OK;
	if (strcmp(text, "exp"))
		return read_list(s, host, text, name, err);
	/* 4^-15 is less than any density. */
	for (double w = 0.25; w > s->density; w /= 4)
		s->warmup[s->count++] = w;
	return GRADCOMP_OK;
}

double sdk_sparse_density(const sdk_sparse_schedule *s, uint64_t step)
{
	if (step < s->start_step)
		return 1;
	uint64_t at = (step - s->start_step) / s->each;
	return at < s->count ? s->warmup[at] : s->density;
}

uint64_t sdk_sparse_share(double density, uint64_t d)
{
	uint64_t k = (uint64_t)(density * (double)d + 0.5);
	return d == 0 ? 0 : k < 1 ? 1 : k > d ? d : k;
}
