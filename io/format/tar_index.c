/* Indexing a tar shard: the headers are read, and nothing of the members but labels. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "io/format/samples_internal.h"
#include "io/format/tar_format.h"
#include "io/format/tar_index.h"

/* So much is read at a time: little where members are long, much where they are short. */
#define WINDOW 65536u
#define WINDOW_SMALL 4096u
#define NEAR 32768u
#define LABEL_BYTES 16u

/* Reads a label by the rules of WebDataset for tar shards: a part "cls" holds decimal digits, perhaps a newline;
 * else -1. */
static int32_t parse_label(const unsigned char *p, uint64_t n)
{
	int64_t v = 0;
	while (n && (p[n - 1] == '\n' || p[n - 1] == '\r' || p[n - 1] == ' '))
		n--;
	if (!n)
		return -1;
	for (uint64_t i = 0; i < n; i++) {
		if (p[i] < '0' || p[i] > '9' || (v = 10 * v + (p[i] - '0')) > INT32_MAX)
			return -1;
	}
	return (int32_t)v;
}

/* The key of a member's name of n bytes ends before the first dot behind the last '/', and the
 * part's name begins behind that dot. False: it is no part of a sample. */
static bool split_name(const char *name, size_t n, size_t *key)
{
	const char *slash = memrchr(name, '/', n), *base = slash ? slash + 1 : name;
	const char *first = memchr(name, '/', n), *end = first ? first : name + n;
	/* __name__ is for metadata */
	if (end - name >= 4 && !memcmp(name, "__", 2) && !memcmp(end - 2, "__", 2))
		return false;
	const char *dot = memchr(base, '.', (size_t)(name + n - base));
	if (!dot || dot == base)
		return false;
	*key = (size_t)(dot - name);
	return true;
}

struct indexing {
	int fd;
	const char *shard;
	uint64_t bytes;
	tar_index *x;
	uint64_t samples_room, parts_room, text_room;
	uint64_t first; /* sample of this archive; there may be several in a file */
	/* extended headers say this of the next member */
	tar_pax pax;
	char *pax_data, *long_name;
	unsigned char *window;
	uint64_t window_at, window_bytes;
};

GRADCOMP_PRINTF(5, 6)
static gradcomp_status refuse(const struct indexing *s, gradcomp_status status, uint64_t at, gradcomp_error *err,
                              const char *fmt, ...)
{
	char name[TEXT_NAME_MAX / 2], what[TEXT_NAME_MAX];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	return error_set(err, status, "%s: the block at byte %llu %s", gradcomp_printable(s->shard, name, sizeof name),
	                 (unsigned long long)at, what);
}

#define bad(s, at, err, ...) refuse(s, GRADCOMP_ERR_INVALID, at, err, __VA_ARGS__)
#define unsupported(s, at, err, ...) refuse(s, GRADCOMP_ERR_UNSUPPORTED, at, err, __VA_ARGS__)

static gradcomp_status no_memory(const struct indexing *s, gradcomp_error *err)
{
	errno = ENOMEM;
	return text_cannot(err, "index", s->shard);
}

/* n bytes at `at`, which the file has; NULL and *status when they cannot be read. */
static const unsigned char *look(struct indexing *s, uint64_t at, uint64_t n, gradcomp_status *status,
                                 gradcomp_error *err)
{
	if (at < s->window_at || at + n > s->window_at + s->window_bytes) {
		uint64_t want = at - s->window_at < NEAR ? WINDOW : WINDOW_SMALL;
		if (want > s->bytes - at)
			want = s->bytes - at;
		s->window_bytes = 0;
		int whole = openat_read_whole(s->fd, s->window, want, at);
		if (whole <= 0) {
			char name[TEXT_NAME_MAX];
			*status = whole < 0 ? text_cannot(err, "read", s->shard)
			                    : error_set(err, GRADCOMP_ERR_STATE, "%s became shorter while it was read",
			                                gradcomp_printable(s->shard, name, sizeof name));
			return NULL;
		}
		s->window_at = at;
		s->window_bytes = want;
	}
	return s->window + (at - s->window_at);
}

/* Makes room for one more of `size` bytes behind n. */
static bool grow(void *array, uint64_t n, uint64_t more, uint64_t *room, size_t size)
{
	void **p = array;
	if (n + more <= *room)
		return true;
	uint64_t want = *room ? *room + *room / 2 : 64;
	if (want < n + more)
		want = n + more;
	void *q = reallocarray(*p, want, size);
	if (!q)
		return false;
	*p = q;
	*room = want;
	return true;
}

/* Appends a string of n bytes and its end to the text; what is in `lower` case is. */
static bool add_text(struct indexing *s, const char *text, size_t n, bool lower, uint64_t *at)
{
	tar_index *x = s->x;
	if (!grow(&x->text, x->ntext, n + 1, &s->text_room, 1))
		return false;
	*at = x->ntext;
	for (size_t i = 0; i < n; i++)
		x->text[x->ntext++] = lower && text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] + 32) : text[i];
	x->text[x->ntext++] = 0;
	return true;
}

static gradcomp_status add_part(struct indexing *s, const char *name, size_t n, size_t key, uint64_t at, uint64_t bytes,
                                gradcomp_error *err)
{
	tar_index *x = s->x;
	tar_sample *last = x->nsamples > s->first ? &x->samples[x->nsamples - 1] : NULL;
	tar_part part = {.at = at, .bytes = bytes};
	char shown[TEXT_NAME_MAX / 2];
	/* The same key once more after another one is a new sample. */
	bool same = last && strlen(x->text + last->key) == key && !memcmp(x->text + last->key, name, key);
	if (!same) {
		tar_sample sample = {.first = x->nparts, .label = -1};
		if (!grow(&x->samples, x->nsamples, 1, &s->samples_room, sizeof *x->samples) ||
		    !add_text(s, name, key, false, &sample.key))
			return no_memory(s, err);
		last = &x->samples[x->nsamples];
		*last = sample;
		x->nsamples++;
	}
	if (last->nparts == TAR_PARTS_MAX)
		return bad(s, at - TAR_BLOCK, err, "is part %u of a sample; there may be %u", TAR_PARTS_MAX + 1,
		           TAR_PARTS_MAX);
	if (!grow(&x->parts, x->nparts, 1, &s->parts_room, sizeof *x->parts) ||
	    !add_text(s, name + key + 1, n - key - 1, true, &part.name))
		return no_memory(s, err);
	for (uint64_t i = last->first; i < x->nparts; i++)
		if (!strcmp(x->text + x->parts[i].name, x->text + part.name))
			return bad(s, at - TAR_BLOCK, err, "is %s, which the sample has already",
			           gradcomp_printable(name, shown, sizeof shown));
	if (!strcmp(x->text + part.name, "cls") && bytes <= LABEL_BYTES) {
		gradcomp_status st = GRADCOMP_OK;
		const unsigned char *p = look(s, at, bytes, &st, err);
		if (!p)
			return st;
		last->label = parse_label(p, bytes);
	}
	x->parts[x->nparts++] = part;
	last->nparts++;
	return GRADCOMP_OK;
}

/* Reads the data of an extended header, terminated, in memory of its own. */
static gradcomp_status take_extra(struct indexing *s, uint64_t at, uint64_t n, char **out, gradcomp_error *err)
{
	if (n > TAR_EXTRA_MAX)
		return bad(s, at - TAR_BLOCK, err, "is an extended header of %llu bytes; it may have %u",
		           (unsigned long long)n, TAR_EXTRA_MAX);
	char *p = malloc(n + 1);
	if (!p)
		return no_memory(s, err);
	int whole = openat_read_whole(s->fd, p, n, at);
	if (whole <= 0) {
		free(p);
		errno = whole < 0 ? errno : EIO;
		return text_cannot(err, "read", s->shard);
	}
	p[n] = 0;
	*out = p;
	return GRADCOMP_OK;
}

static void forget_extra(struct indexing *s)
{
	free(s->pax_data);
	free(s->long_name);
	s->pax_data = s->long_name = NULL;
	s->pax = (tar_pax){0};
}

/* Takes a pax header before one member ('x') or before all that follow ('g'). */
static gradcomp_status take_pax(struct indexing *s, uint64_t at, uint64_t n, bool global, gradcomp_error *err)
{
	char *data = NULL;
	gradcomp_status st = take_extra(s, at, n, &data, err);
	tar_pax pax = {0};
	if (st)
		return st;
	const char *why = tar_parse_pax(data, n, &pax);
	if (!why && global && (pax.path || pax.has_size || pax.sparse))
		why = "gives all members one name or size";
	if (!why && pax.path && memchr(pax.path, 0, pax.path_bytes))
		why = "has a name with a zero byte in it";
	if (why)
		st = bad(s, at - TAR_BLOCK, err, "%s", why);
	if (why || global) {
		free(data);
		return st;
	}
	free(s->pax_data);
	s->pax_data = data;
	s->pax = pax;
	return st;
}

static gradcomp_status take_long_name(struct indexing *s, uint64_t at, uint64_t n, gradcomp_error *err)
{
	free(s->long_name);
	s->long_name = NULL;
	return take_extra(s, at, n, &s->long_name, err);
}

/* A member with header `h` at `at`; *size is what its data takes. */
static gradcomp_status take_member(struct indexing *s, uint64_t at, const tar_header *h, uint64_t *size,
                                   gradcomp_error *err)
{
	const char *name = s->pax.path ? s->pax.path : s->long_name ? s->long_name : h->name;
	size_t n = s->pax.path ? s->pax.path_bytes : strlen(name), key = 0;
	bool part = split_name(name, n, &key);
	char shown[TEXT_NAME_MAX / 2];
	gradcomp_status st = GRADCOMP_OK;
	*size = s->pax.has_size && h->type == '0' ? s->pax.size : h->size;
	/* In place of the newline behind it. */
	if (s->pax.path)
		s->pax_data[s->pax.path - s->pax_data + (ptrdiff_t)n] = 0;
	gradcomp_printable(name, shown, sizeof shown);
	if (h->type == 'S' || s->pax.sparse)
		st = unsupported(s, at, err, "is %s, a sparse member: write it without holes (tar without --sparse)",
		                 shown);
	else if (h->type == 'M')
		st = unsupported(s, at, err, "is %s, the rest of a member that began in another volume", shown);
	else if (part && (h->type == '1' || h->type == '2'))
		st = unsupported(s, at, err,
		                 "is %s, a %s link: a part of a sample must be there itself (tar --dereference "
		                 "--hard-dereference)",
		                 shown, h->type == '1' ? "hard" : "symbolic");
	else if (*size > s->bytes - at - TAR_BLOCK)
		st = bad(s, at, err,
		         "is %s with %llu bytes, and the file ends %llu bytes behind it: the archive was cut "
		         "off",
		         shown, (unsigned long long)*size, (unsigned long long)(s->bytes - at - TAR_BLOCK));
	else if (part && h->type == '0')
		st = add_part(s, name, n, key, at + TAR_BLOCK, *size, err);
	forget_extra(s);
	return st;
}

/* Where what follows a block of zeros at `at` begins: a sparse file may have any number. */
static uint64_t behind_hole(const struct indexing *s, uint64_t at)
{
	off_t data = lseek(s->fd, (off_t)at, SEEK_DATA);
	if (data < 0 || (uint64_t)data > s->bytes)
		return data >= 0 || errno == ENXIO ? s->bytes : at;
	return (uint64_t)data > at ? (uint64_t)data - (uint64_t)data % TAR_BLOCK : at;
}

static gradcomp_status refuse_other(struct indexing *s, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	gradcomp_status st = GRADCOMP_OK;
	tar_header h;
	uint64_t n = s->bytes < TAR_BLOCK ? s->bytes : TAR_BLOCK;
	gradcomp_printable(s->shard, name, sizeof name);
	if (!n)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "%s is empty, 0 bytes: it was cut off or never written; fetch or make it again", name);
	const unsigned char *head = look(s, 0, n, &st, err);
	/* A file with a header of tar is tar, whatever its first member is called. */
	const tar_other *other =
		head && (n < TAR_BLOCK || tar_parse_header(head, &h)) ? tar_other_content(head, n) : NULL;
	if (other)
		st = error_set(err, other->archive ? GRADCOMP_ERR_UNSUPPORTED : GRADCOMP_ERR_INVALID, "%s %s: %s", name,
		               other->is, other->remedy);
	return st;
}

static int by_key(const void *a, const void *b, void *ctx)
{
	const tar_index *x = ctx;
	uint64_t i = *(const uint64_t *)a, j = *(const uint64_t *)b;
	int order = strcmp(x->text + x->samples[i].key, x->text + x->samples[j].key);
	return order ? order : i < j ? -1 : 1;
}

/* The parts of a sample stand together. If its key comes again in an archive, that was made of a
 * folder in the order of its directory: each part would be taken for a sample of its own. */
static gradcomp_status refuse_apart(const struct indexing *s, gradcomp_error *err)
{
	const tar_index *x = s->x;
	uint64_t n = x->nsamples - s->first, *order = n > 1 ? reallocarray(NULL, n, sizeof *order) : NULL, again = 0;
	char key[TEXT_NAME_MAX / 4], part[TEXT_NAME_MAX / 4];
	if (n < 2)
		return GRADCOMP_OK;
	if (!order)
		return no_memory(s, err);
	for (uint64_t i = 0; i < n; i++)
		order[i] = s->first + i;
	qsort_r(order, n, sizeof *order, by_key, (void *)x);
	for (uint64_t i = 1; i < n; i++)
		if (!strcmp(x->text + x->samples[order[i - 1]].key, x->text + x->samples[order[i]].key) &&
		    (!again || order[i] < again))
			again = order[i];
	free(order);
	if (!again)
		return GRADCOMP_OK;
	const tar_part *p = &x->parts[x->samples[again].first];
	return bad(s, p->at - TAR_BLOCK, err,
	           "is %s.%s, and other parts of the sample %s stand before it, apart: each would be a sample of its "
	           "own; make the archive anew with tar --sort=name",
	           gradcomp_printable(x->text + x->samples[again].key, key, sizeof key),
	           gradcomp_printable(x->text + p->name, part, sizeof part), key);
}

static gradcomp_status index_all(struct indexing *s, gradcomp_error *err)
{
	bool ended = false; /* the last block was of zeros */
	gradcomp_status st = refuse_other(s, err);
	uint64_t at = 0, size;
	tar_header h;
	while (!st && s->bytes - at >= TAR_BLOCK) {
		const unsigned char *block = look(s, at, TAR_BLOCK, &st, err);
		if (!block)
			return st;
		if (tar_is_zero(block)) {
			if (s->pax_data || s->long_name)
				return bad(s, at, err, "is the end of the archive, where a member was announced");
			if (!ended && (st = refuse_apart(s, err)))
				return st;
			s->first = s->x->nsamples;
			/* Archives may follow each other in a file. Holes are looked for now and then. */
			if (!ended || at % WINDOW == 0)
				at = behind_hole(s, at + TAR_BLOCK);
			else
				at += TAR_BLOCK;
			ended = true;
			continue;
		}
		const char *why = tar_parse_header(block, &h);
		if (why)
			return bad(s, at, err, "%s", why);
		ended = false;
		size = h.size;
		if (strchr("xgXLK", h.type) && size > s->bytes - at - TAR_BLOCK)
			return bad(s, at, err, "announces %llu bytes and the file ends before: the archive was cut off",
			           (unsigned long long)size);
		if (h.type == 'x' || h.type == 'X' || h.type == 'g')
			st = take_pax(s, at + TAR_BLOCK, size, h.type == 'g', err);
		else if (h.type == 'L')
			st = take_long_name(s, at + TAR_BLOCK, size, err);
		else if (h.type != 'K')
			st = take_member(s, at, &h, &size, err);
		at += TAR_BLOCK + size;
		if (at % TAR_BLOCK)
			at += TAR_BLOCK - at % TAR_BLOCK;
		if (!st && at > s->bytes)
			return bad(s, s->bytes, err, "is missing: the archive was cut off");
	}
	if (!st && !ended)
		return bad(s, at, err, "should be the end of the archive: it was cut off or not finished");
	return st;
}

static void shrink(void *array, uint64_t n, size_t size)
{
	void **p = array, *q = n ? reallocarray(*p, n, size) : NULL;
	if (q)
		*p = q;
}

gradcomp_status tar_index_make(int fd, uint64_t bytes, const char *name, tar_index *out, gradcomp_error *err)
{
	struct indexing s = {.fd = fd, .shard = name, .bytes = bytes, .x = out, .window = malloc(WINDOW)};
	*out = (tar_index){0};
	gradcomp_status st = s.window ? index_all(&s, err) : no_memory(&s, err);
	forget_extra(&s);
	free(s.window);
	if (st) {
		tar_index_clear(out);
		return st;
	}
	shrink(&out->samples, out->nsamples, sizeof *out->samples);
	shrink(&out->parts, out->nparts, sizeof *out->parts);
	shrink(&out->text, out->ntext, 1);
	return GRADCOMP_OK;
}

void tar_index_clear(tar_index *x)
{
	free(x->samples);
	free(x->parts);
	free(x->text);
	*x = (tar_index){0};
}
