/* Reading a record file. Its index is read once and checked whole, so that what
 * follows can believe it; the data of a part is checked each time it is read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "base/checksum.h"
#include "io/format/samples_internal.h"
#include "io/format/records_format.h"

struct records {
	gradcomp_samples base;
	int fd;
	unsigned char *index; /* all of it; the tables below lie in it */
	const unsigned char *rows, *parts, *class_rows;
	const char *text;
	uint64_t nparts, ntext, data_end;
};

static gradcomp_status bad(const char *path, uint64_t at, const char *what, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	return error_set(err, GRADCOMP_ERR_INVALID, "%s: %s at byte %llu",
	                 gradcomp_printable(path, name, sizeof name), what, (unsigned long long)at);
}

static void records_free(gradcomp_samples *s)
{
	struct records *r = (struct records *)s;
	close(r->fd);
	free(r->index);
	free((void *)r->base.classes);
	free(r->base.path);
	free(r);
}

static const char *records_key(const gradcomp_samples *s, uint64_t index)
{
	const struct records *r = (const struct records *)s;
	return r->text + get64(r->rows + index * RECORDS_RECORD);
}

static uint32_t records_nparts(const gradcomp_samples *s, uint64_t index)
{
	return get32(((const struct records *)s)->rows + index * RECORDS_RECORD + 16);
}

static int32_t records_label(const gradcomp_samples *s, uint64_t index)
{
	return (int32_t)get32(((const struct records *)s)->rows + index * RECORDS_RECORD + 20);
}

static const unsigned char *part_row(const gradcomp_samples *s, uint64_t index, uint32_t part)
{
	const struct records *r = (const struct records *)s;
	uint64_t first = get64(r->rows + index * RECORDS_RECORD + 8);
	return r->parts + (first + part) * RECORDS_PART;
}

static gradcomp_status records_part(const gradcomp_samples *s, uint64_t index, uint32_t part, const char **name,
                                    uint64_t *bytes, gradcomp_error *err)
{
	const unsigned char *row = part_row(s, index, part);
	(void)err;
	if (name)
		*name = ((const struct records *)s)->text + get64(row + 24);
	if (bytes)
		*bytes = get64(row + 8);
	return GRADCOMP_OK;
}

static gradcomp_status records_read(const gradcomp_samples *s, uint64_t index, uint32_t part, void *buf,
                                    uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	const struct records *r = (const struct records *)s;
	const unsigned char *row = part_row(s, index, part);
	char name[TEXT_NAME_MAX / 2], key[TEXT_NAME_MAX / 2];
	uint64_t at = get64(row);
	*bytes = get64(row + 8);
	if (*bytes > capacity)
		return samples_range(err, records_key(s, index), *bytes, capacity);
	int whole = read_whole(r->fd, buf, *bytes, at);
	if (whole < 0)
		return error_cannot(err, "read", s->path);
	if (!whole)
		return bad(s->path, at, "was cut off after it was opened, in a part", err);
	if (checksum_of(buf, *bytes, 0) == get64(row + 16))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 "%s: part %u of record %llu (%s) at byte %llu is damaged: its checksum does not match",
	                 gradcomp_printable(s->path, name, sizeof name), part, (unsigned long long)index,
	                 gradcomp_printable(records_key(s, index), key, sizeof key), (unsigned long long)at);
}

static const sample_ops records_ops = {
	.close = records_free,
	.key = records_key,
	.label = records_label,
	.nparts = records_nparts,
	.part = records_part,
	.read = records_read,
};

/* The head and the foot, which say where the index is. */
static gradcomp_status read_ends(struct records *r, uint64_t bytes, unsigned char foot[RECORDS_FOOT],
                                 gradcomp_error *err)
{
	unsigned char head[RECORDS_HEAD];
	const char *path = r->base.path;
	char name[TEXT_NAME_MAX];
	int whole = bytes < RECORDS_HEAD ? 0 : read_whole(r->fd, head, sizeof head, 0);
	if (whole < 0)
		return error_cannot(err, "read", path);
	if (!whole || memcmp(head, records_magic, sizeof records_magic))
		return bad(path, 0, "is no record file: there is not its mark", err);
	if (get32(head + 8) != RECORDS_VERSION)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "%s is a record file of version %u; this library reads version %u",
		                 gradcomp_printable(path, name, sizeof name), get32(head + 8), RECORDS_VERSION);
	if (get32(head + 12))
		return bad(path, 12, "has flags that version 1 does not know,", err);
	whole = bytes < RECORDS_HEAD + RECORDS_FOOT ? 0
	                                            : read_whole(r->fd, foot, RECORDS_FOOT, bytes - RECORDS_FOOT);
	if (whole < 0)
		return error_cannot(err, "read", path);
	if (!whole || memcmp(foot + 56, records_end, sizeof records_end))
		return bad(path, bytes, "has no end: the file was cut off", err);
	if (checksum_of(foot, 48, 0) != get64(foot + 48))
		return bad(path, bytes - RECORDS_FOOT, "is damaged: the checksum of its end does not match,", err);
	return GRADCOMP_OK;
}

/* Whether a string of the text begins at the offset; the text ends with a zero. */
static bool is_text(const struct records *r, uint64_t at)
{
	return at < r->ntext;
}

/* The name of the first thing in the index that cannot be, and where it is. */
static const char *check_tables(const struct records *r, uint64_t *where)
{
	uint64_t first = 0, end = RECORDS_HEAD;
	*where = 0;
	if (r->ntext && r->text[r->ntext - 1])
		return "strings without an end";
	for (uint64_t i = 0; i < r->base.count; i++) {
		const unsigned char *row = r->rows + i * RECORDS_RECORD;
		uint32_t n = get32(row + 16);
		int32_t label = (int32_t)get32(row + 20);
		*where = (uint64_t)(row - r->index);
		if (!is_text(r, get64(row)) || get64(row + 8) != first || !n || n > RECORDS_PARTS_MAX ||
		    n > r->nparts - first)
			return "a record that cannot be";
		if (label < -1 || (r->base.nclasses && label >= (int64_t)r->base.nclasses))
			return "a label without a class";
		first += n;
	}
	if (first != r->nparts)
		return "parts without a record";
	for (uint64_t i = 0; i < r->nparts; i++) {
		const unsigned char *row = r->parts + i * RECORDS_PART;
		uint64_t at = get64(row), bytes = get64(row + 8);
		*where = (uint64_t)(row - r->index);
		if (at < end || at % RECORDS_ALIGN || at > r->data_end || bytes > r->data_end - at ||
		    !is_text(r, get64(row + 24)))
			return "a part that cannot be";
		end = at + bytes;
	}
	for (uint64_t i = 0; i < r->base.nclasses; i++) {
		*where = (uint64_t)(r->class_rows + i * RECORDS_CLASS - r->index);
		if (!is_text(r, get64(r->class_rows + i * RECORDS_CLASS)))
			return "a class without a name";
	}
	return NULL;
}

static gradcomp_status read_index(struct records *r, uint64_t bytes, const unsigned char *foot, gradcomp_error *err)
{
	uint64_t at = get64(foot), n = get64(foot + 8), records = get64(foot + 16), parts = get64(foot + 24);
	uint64_t foot_at = bytes - RECORDS_FOOT, where;
	uint32_t classes = get32(foot + 32);
	const char *path = r->base.path, *why;
	/* Each of these is less than the file, so their products cannot wrap. */
	if (at < RECORDS_HEAD || at > foot_at || n != foot_at - at || records > n / RECORDS_RECORD ||
	    parts > n / RECORDS_PART || classes > n / RECORDS_CLASS || classes > INT32_MAX ||
	    records * RECORDS_RECORD + parts * RECORDS_PART + (uint64_t)classes * RECORDS_CLASS > n)
		return bad(path, foot_at, "has an end that does not fit the file,", err);
	if (get32(foot + 36) != RECORDS_VERSION)
		return bad(path, foot_at + 36, "has an end of another version", err);
	if (!(r->index = malloc(n + 1)))
		return error_cannot(err, "read the index of", path);
	int whole = read_whole(r->fd, r->index, n, at);
	if (whole < 0)
		return error_cannot(err, "read", path);
	if (!whole || checksum_of(r->index, n, 0) != get64(foot + 40))
		return bad(path, at, "is damaged: the checksum of the index does not match,", err);
	r->rows = r->index;
	r->parts = r->rows + records * RECORDS_RECORD;
	r->class_rows = r->parts + parts * RECORDS_PART;
	r->text = (const char *)r->class_rows + (uint64_t)classes * RECORDS_CLASS;
	r->ntext = n - (uint64_t)((const unsigned char *)r->text - r->index);
	r->nparts = parts;
	r->data_end = at;
	r->base.count = records;
	r->base.nclasses = classes;
	if ((why = check_tables(r, &where))) {
		char what[100];
		snprintf(what, sizeof what, "has in its index %s,", why);
		return bad(path, at + where, what, err);
	}
	const char **names = calloc((size_t)classes + 1, sizeof *names);
	if (!names)
		return error_cannot(err, "read the index of", path);
	for (uint32_t i = 0; i < classes; i++)
		names[i] = r->text + get64(r->class_rows + (uint64_t)i * RECORDS_CLASS);
	r->base.classes = names;
	return GRADCOMP_OK;
}

gradcomp_status records_open(int fd, char *path, gradcomp_samples **out, gradcomp_error *err)
{
	struct records *r = calloc(1, sizeof *r);
	unsigned char foot[RECORDS_FOOT];
	struct stat st;
	gradcomp_status status;
	if (!r) {
		status = error_cannot(err, "open", path);
		close(fd);
		free(path);
		return status;
	}
	r->fd = fd;
	r->base = (gradcomp_samples){.ops = &records_ops, .format = GRADCOMP_SAMPLES_RECORDS, .path = path};
	if (fstat(fd, &st) < 0)
		status = error_cannot(err, "look at", path);
	else
		status = read_ends(r, (uint64_t)st.st_size, foot, err);
	if (!status)
		status = read_index(r, (uint64_t)st.st_size, foot, err);
	if (status) {
		records_free(&r->base);
		return status;
	}
	*out = &r->base;
	return GRADCOMP_OK;
}
