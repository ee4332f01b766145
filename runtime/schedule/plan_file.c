#include "schedule/plan_file.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/record_io.h"
#include "base/number.h"

#define AT(member) offsetof(plan_file, member)
static const field plan_rows[] = {
	{"plan", "model", FIELD_NAME, 1, AT(model), 0, 0, 0, NULL},
	{"plan", "hash", FIELD_HASH, 1, AT(hash), 0, 0, 0, NULL},
	{"plan", "tensors", FIELD_COUNT, 1, AT(tensors), 1, TENSORS_MOST, 0, NULL},
	{"plan", "parameters", FIELD_LONG, 1, AT(parameters), 0, 0, 0, NULL},
	{"plan", "compressor", FIELD_SPEC, 1, AT(compressor), 0, 0, 0, NULL},
	{"plan", "collective", FIELD_SPEC, 1, AT(collective), 0, 0, 0, NULL},
	{"plan", "lag", FIELD_COUNT, 1, AT(plan.lag), 0, 1, 0, NULL},
	{"plan", "predicted", FIELD_NUMBER, 1, AT(plan.predicted), 0, SECONDS_MOST, 0, "seconds"},
};
#undef AT

typedef struct reading {
	plan_file *p;
	record_io keys;
	int in_buckets;
	uint32_t room;
} reading;

uint64_t plan_hash(uint64_t before, uint32_t ndim, const uint64_t *dims)
{
	/* FNV-1a, by words. */
	uint64_t h = before ? before : 0xcbf29ce484222325u;
	h = (h ^ ndim) * 0x100000001b3u;
	for (uint32_t i = 0; i < ndim; i++) {
		h = (h ^ (dims[i] & UINT32_MAX)) * 0x100000001b3u;
		h = (h ^ (dims[i] >> 32)) * 0x100000001b3u;
	}
	return h ? h : 1;
}

static void plan_section(inifile *f, const char *name, size_t n)
{
	reading *r = f->ctx;
	r->in_buckets = n == 7 && !strncmp(name, "buckets", n);
	if (!r->in_buckets && !(n == 4 && !strncmp(name, "plan", n)))
		inifile_fail(f, "unknown section [%.*s]; there are [plan], [buckets]", (int)n, name);
}

/* Reads "0-11", tensors of a bucket that begins with `first`; the number behind the last one, or 0. */
static uint32_t range(const char *text, uint32_t first)
{
	char copy[40], *dash;
	int64_t from, to;
	snprintf(copy, sizeof copy, "%s", text);
	dash = strchr(copy, '-');
	if (!dash)
		return 0;
	*dash = '\0';
	if (number_int(copy, &from) != NUMBER_OK || number_int(dash + 1, &to) != NUMBER_OK || from != first ||
	    to < from || to >= TENSORS_MOST)
		return 0;
	return (uint32_t)to + 1;
}

static int grow(uint32_t **array, uint32_t room)
{
	uint32_t *more = reallocarray(*array, room, sizeof *more);
	if (more)
		*array = more;
	return more != NULL;
}

static void take_bucket(reading *r, inifile *f, const char *key, const char *value)
{
	step_plan *p = &r->p->plan;
	uint32_t first = p->nbuckets ? p->end[p->nbuckets - 1] : 0, end;
	char text[200], *w[3];
	int64_t at;
	if (!record_io_number(f, "bucket", key, p->nbuckets))
		return;
	snprintf(text, sizeof text, "%s", value);
	if (record_io_words(text, w, 3) != 3 || strcmp(w[1], "place") || number_int(w[2], &at) != NUMBER_OK || at < 0 ||
	    at >= TENSORS_MOST) {
		inifile_fail(f, "'%s' is no bucket; write FIRST-LAST place PLACE", value);
		return;
	}
	end = range(w[0], first);
	if (!end) {
		inifile_fail(f, "bucket %s has tensors '%s'; it must be %u-LAST, and LAST at least that", key, w[0],
		             first);
		return;
	}
	if (p->nbuckets == r->room) {
		uint32_t room = r->room ? 2 * r->room : 16;

		if (!grow(&p->end, room) || !grow(&p->position, room)) {
			inifile_nomem(f);
			return;
		}
		r->room = room;
	}
	p->end[p->nbuckets] = end;
	p->position[p->nbuckets++] = (uint32_t)at;
}

static void plan_key(inifile *f, const char *section, const char *key, const char *value)
{
	reading *r = f->ctx;
	if (r->in_buckets)
		take_bucket(r, f, key, value);
	else if (!record_io_take(&r->keys, f, section, key, value))
		record_io_unknown(&r->keys, f, section, key);
}

gradcomp_status plan_file_read(const char *path, plan_file *out, gradcomp_error *err)
{
	plan_file p = {.model = ""};
	reading r = {.p = &p, .keys = {.row = plan_rows, .n = sizeof plan_rows / sizeof *plan_rows, .base = &p}};
	inifile f = {.err = err, .section = plan_section, .key = plan_key, .ctx = &r};
	gradcomp_error why;
	gradcomp_status st = record_io_read(&f, path);
	if (st == GRADCOMP_ERR_NOTFOUND)
		st = error_set(err, st, "there is no plan file %s; gradcomp plan --output FILE writes one", path);
	if (!st)
		st = record_io_complete(&r.keys, &f, "plan", 0);
	if (!st && step_plan_check(&p.plan, p.tensors, &why))
		st = error_set(err, why.status, "%s: %s", path, why.text);
	if (st)
		plan_file_clear(&p);
	else
		*out = p;
	return st;
}

static void print_plan(FILE *out, const void *what)
{
	const plan_file *p = what;
	const record_io t = {.row = plan_rows, .n = sizeof plan_rows / sizeof *plan_rows, .base = (void *)(uintptr_t)p};
	fputs("; Tensors are counted in backward order: 0 is the last one of the model.\n", out);
	record_io_write(out, &t, "plan", "plan");
	fputs("\n[buckets]\n", out);
	for (uint32_t b = 0; b < p->plan.nbuckets; b++)
		fprintf(out, "%u = %u-%u place %u\n", b, b ? p->plan.end[b - 1] : 0, p->plan.end[b] - 1,
		        p->plan.position ? p->plan.position[b] : b);
}

gradcomp_status plan_file_write(const char *path, const plan_file *p, gradcomp_error *err)
{
	const record_io t = {.row = plan_rows, .n = sizeof plan_rows / sizeof *plan_rows, .base = (void *)(uintptr_t)p};
	gradcomp_status st = record_io_check(&t, "plan", err);
	if (!st)
		st = step_plan_check(&p->plan, p->tensors, err);
	return st ? st : record_io_publish("plan", path, print_plan, p, err);
}

void plan_file_clear(plan_file *p)
{
	free(p->compressor);
	free(p->collective);
	step_plan_clear(&p->plan);
	memset(p, 0, sizeof *p);
}
