#include "job/site_usage.h"

#include "base/error.h"
#include "base/number.h"
#include "base/outfile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NAME_CHARACTERS "abcdefghijklmnopqrstuvwxyz0123456789_-"
#define NUMBERS 7

/* The name of a SPEC; what it cannot be called is "other". */
static void name_of(const char *spec, char out[SITE_USAGE_NAME_MAX])
{
	size_t n = strcspn(spec, ":");
	if (!n || n >= SITE_USAGE_NAME_MAX || strspn(spec, NAME_CHARACTERS) < n)
		snprintf(out, SITE_USAGE_NAME_MAX, "other");
	else
		snprintf(out, SITE_USAGE_NAME_MAX, "%.*s", (int)n, spec);
}

typedef struct sums {
	double dense, wire, most;
} sums;

/* Returns true when it is the largest so far: the one that gives its name to the job. */
static bool add(sums *s, double dense, double wire)
{
	bool largest = dense > s->most;
	s->dense += dense;
	s->wire += wire;
	s->most = largest ? dense : s->most;
	return largest;
}

bool site_usage_of_job(const report_job *job, site_usage *out)
{
	sums all = {.most = -1};
	*out = (site_usage){.failed = job->failure != NULL};
	for (uint32_t i = 0; i < job->nreducers; i++) {
		const report_reducer *r = &job->reducers[i];

		if (add(&all, r->stats.dense_bytes, r->stats.wire_bytes)) {
			out->steps = r->stats.steps;
			name_of(r->asked, out->compressor);
		}
	}
	for (uint32_t i = 0; i < job->ncoders; i++) {
		const report_coder *c = &job->coders[i];

		if (add(&all, c->stats.dense_bytes, c->stats.wire_bytes)) {
			out->steps = c->stats.reduce_scatters;
			name_of(c->asked, out->compressor);
		}
	}
	out->dense_bytes = (uint64_t)all.dense;
	out->wire_bytes = (uint64_t)all.wire;
	out->held_up = slow_rank_family(job->slow.kind);
	out->lost_steps = (uint64_t)(job->slow.share * (double)out->steps);
	return all.most >= 0;
}

gradcomp_status site_usage_leave(const char *dir, const site_usage *u, gradcomp_error *err)
{
	uint64_t random[2] = {0};
	char *path;
	outfile *f;
	gradcomp_status st;
	if (getrandom(random, sizeof random, 0) != sizeof random)
		return error_errno(err, GRADCOMP_ERR_IO, "report.metrics: no random name");
	if (asprintf(&path, "%s/%016" PRIx64 "%016" PRIx64 SITE_USAGE_SUFFIX, dir, random[0], random[1]) < 0)
		return error_set(err, GRADCOMP_ERR_NOMEM, "report.metrics: no memory");
	st = outfile_open("file of report.metrics", path, 0, &f, err);
	free(path);
	if (st)
		return st;
	fprintf(outfile_stream(f),
	        "gradcomp-usage 1 %s %d %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64,
	        *u->compressor ? u->compressor : "-", u->failed, u->steps, u->dense_bytes, u->wire_bytes, u->stages,
	        u->hits, u->read_bytes);
	/* Readers from before there was this take the line without it. */
	if (u->held_up)
		fprintf(outfile_stream(f), " %d %" PRIu64, (int)u->held_up, u->lost_steps);
	fputc('\n', outfile_stream(f));
	return outfile_close(f, err);
}

/* Reads the next word, of one blank and what follows it, as a number from 0 to 2^53. */
static bool take_number(const char **text, uint64_t *out)
{
	char digits[20];
	size_t n;
	int64_t value;
	if (**text != ' ')
		return false;
	n = strspn(*text + 1, "0123456789");
	if (!n || n >= sizeof digits)
		return false;
	snprintf(digits, sizeof digits, "%.*s", (int)n, *text + 1);
	*text += n + 1;
	if (number_int(digits, &value) != NUMBER_OK || value > INT64_C(1) << 53)
		return false;
	*out = (uint64_t)value;
	return true;
}

bool site_usage_parse(const char *text, site_usage *out)
{
	static const char head[] = "gradcomp-usage 1 ";
	uint64_t failed = 0, held_up = 0;
	uint64_t *const number[NUMBERS] = {&failed,      &out->steps, &out->dense_bytes, &out->wire_bytes,
	                                   &out->stages, &out->hits,  &out->read_bytes};
	size_t n;
	*out = (site_usage){0};
	if (strncmp(text, head, sizeof head - 1))
		return false;
	text += sizeof head - 1;
	n = strspn(text, NAME_CHARACTERS);
	if (!n || n >= SITE_USAGE_NAME_MAX)
		return false;
	if (n > 1 || *text != '-')
		memcpy(out->compressor, text, n);
	text += n;
	for (int i = 0; i < NUMBERS; i++)
		if (!take_number(&text, number[i]))
			return false;
	out->failed = failed;
	if (*text == ' ' && !(take_number(&text, &held_up) && take_number(&text, &out->lost_steps)))
		return false;
	if (held_up >= SLOW_KINDS)
		return false;
	out->held_up = (slow_kind)held_up;
	return failed <= 1 && out->hits <= out->stages && !strcmp(text, "\n");
}
