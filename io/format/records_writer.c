/* Writing a record file: data as it comes, the index from memory at the end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/checksum.h"
#include "io/format/samples_internal.h"
#include "io/format/records_format.h"
#include "io/format/whole_file.h"

#define TEXT_MAX (1u << 20) /* of a key and of a name */
#define NAMES 8u

/* Bytes that grow. */
struct bytes {
	unsigned char *at;
	size_t n, room;
};

struct gradcomp_records_writer {
	whole_file file;
	bool failed; /* nothing more is taken, and nothing will be published */
	struct bytes rows, parts, classes, text;
	uint64_t records, nparts;
	uint32_t nclasses;
	int32_t label_max;
	uint64_t names[NAMES]; /* of parts, seen last: most records have the same */
	uint32_t nnames;
};

static void *bytes_add(struct bytes *b, size_t n)
{
	if (b->room - b->n < n) {
		size_t room = b->room + b->room / 2 + n + 4096;
		unsigned char *p = realloc(b->at, room);
		if (!p)
			return NULL;
		b->at = p;
		b->room = room;
	}
	b->n += n;
	return b->at + b->n - n;
}

static bool add_text(gradcomp_records_writer *w, const char *text, uint64_t *at)
{
	size_t n = strlen(text) + 1;
	*at = w->text.n;
	char *p = bytes_add(&w->text, n);
	if (p)
		memcpy(p, text, n);
	return p != NULL;
}

static bool add_name(gradcomp_records_writer *w, const char *name, uint64_t *at)
{
	uint32_t known = w->nnames < NAMES ? w->nnames : NAMES;
	for (uint32_t i = 0; i < known; i++)
		if (!strcmp((char *)w->text.at + w->names[i], name)) {
			*at = w->names[i];
			return true;
		}
	if (!add_text(w, name, at))
		return false;
	w->names[w->nnames++ % NAMES] = *at;
	return true;
}

static void writer_free(gradcomp_records_writer *w)
{
	whole_end(&w->file);
	free(w->rows.at);
	free(w->parts.at);
	free(w->classes.at);
	free(w->text.at);
	free(w);
}

static int pad(gradcomp_records_writer *w)
{
	static const unsigned char zeroes[RECORDS_ALIGN];
	return whole_put(&w->file, zeroes, (RECORDS_ALIGN - w->file.at % RECORDS_ALIGN) % RECORDS_ALIGN);
}

static gradcomp_status lost(gradcomp_records_writer *w, gradcomp_status status)
{
	w->failed = true;
	return status;
}

gradcomp_status gradcomp_records_create(const char *path, gradcomp_records_writer **out, gradcomp_error *err)
{
	unsigned char head[RECORDS_HEAD] = {0};
	*out = NULL;
	if (!path || !*path)
		return error_set(err, GRADCOMP_ERR_INVALID, "a record file needs a path");
	gradcomp_records_writer *w = calloc(1, sizeof *w);
	if (!w)
		return error_cannot(err, "create", path);
	gradcomp_status status = whole_begin(&w->file, path, err);
	if (status) {
		free(w);
		return status;
	}
	w->label_max = -1;
	memcpy(head, records_magic, sizeof records_magic);
	put32(head + 8, RECORDS_VERSION);
	/* Into the buffer: nothing can fail. */
	whole_put(&w->file, head, sizeof head);
	*out = w;
	return GRADCOMP_OK;
}

static gradcomp_status usable(gradcomp_records_writer *w, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	if (!w->failed)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_STATE, "%s: an earlier record could not be written",
	                 gradcomp_printable(w->file.path, name, sizeof name));
}

gradcomp_status gradcomp_records_classes(gradcomp_records_writer *w, uint32_t nclasses, const char *const *names,
                                         gradcomp_error *err)
{
	gradcomp_status status = usable(w, err);
	if (status)
		return status;
	if (w->nclasses || nclasses > INT32_MAX)
		return error_set(err, GRADCOMP_ERR_STATE, "the classes of a record file can be given once");
	for (uint32_t i = 0; i < nclasses; i++) {
		uint64_t at;
		unsigned char *row = add_text(w, names[i], &at) ? bytes_add(&w->classes, RECORDS_CLASS) : NULL;
		if (!row)
			return lost(w, error_cannot(err, "keep the classes of", w->file.path));
		put64(row, at);
	}
	w->nclasses = nclasses;
	return GRADCOMP_OK;
}

static gradcomp_status check_record(const char *key, int32_t label, uint32_t nparts, const char *const *names,
                                    gradcomp_error *err)
{
	char shown[TEXT_NAME_MAX];
	if (!key || strlen(key) > TEXT_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "a record needs a key of at most %u bytes", TEXT_MAX);
	gradcomp_printable(key, shown, sizeof shown);
	if (label < -1)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s has the label %d; it can be -1 (none) or more",
		                 shown, label);
	if (!nparts || nparts > RECORDS_PARTS_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s has %u parts; there can be 1 to %u", shown, nparts,
		                 RECORDS_PARTS_MAX);
	for (uint32_t i = 0; names && i < nparts; i++)
		if (!names[i] || strlen(names[i]) > TEXT_MAX)
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "part %u of %s needs a name of at most %u bytes", i, shown, TEXT_MAX);
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_records_add(gradcomp_records_writer *w, const char *key, int32_t label, uint32_t nparts,
                                     const char *const *names, const void *const *data, const uint64_t *bytes,
                                     gradcomp_error *err)
{
	gradcomp_status status = usable(w, err);
	uint64_t key_at, name_at;
	if (!status)
		status = check_record(key, label, nparts, names, err);
	if (status)
		return status;
	unsigned char *row = add_text(w, key, &key_at) ? bytes_add(&w->rows, RECORDS_RECORD) : NULL;
	if (!row)
		goto memory;
	put64(row, key_at);
	put64(row + 8, w->nparts);
	put32(row + 16, nparts);
	put32(row + 20, (uint32_t)label);
	for (uint32_t i = 0; i < nparts; i++) {
		if (pad(w) < 0)
			return lost(w, whole_failed(&w->file, err));
		if (!add_name(w, names ? names[i] : "", &name_at) || !(row = bytes_add(&w->parts, RECORDS_PART)))
			goto memory;
		put64(row, w->file.at);
		put64(row + 8, bytes[i]);
		put64(row + 16, checksum_of(data[i], bytes[i], 0));
		put64(row + 24, name_at);
		if (whole_put(&w->file, data[i], bytes[i]) < 0)
			return lost(w, whole_failed(&w->file, err));
	}
	w->records++;
	w->nparts += nparts;
	w->label_max = label > w->label_max ? label : w->label_max;
	return GRADCOMP_OK;
memory:
	errno = ENOMEM;
	return lost(w, error_cannot(err, "keep the index of", w->file.path));
}

static int put_index(gradcomp_records_writer *w)
{
	const struct bytes *const tables[] = {&w->rows, &w->parts, &w->classes, &w->text};
	unsigned char foot[RECORDS_FOOT] = {0};
	checksum sum;
	if (pad(w) < 0)
		return -1;
	put64(foot, w->file.at);
	checksum_init(&sum, 0);
	for (int i = 0; i < 4; i++) {
		checksum_update(&sum, tables[i]->at, tables[i]->n);
		if (whole_put(&w->file, tables[i]->at, tables[i]->n) < 0)
			return -1;
	}
	put64(foot + 8, w->file.at - get64(foot));
	put64(foot + 16, w->records);
	put64(foot + 24, w->nparts);
	put32(foot + 32, w->nclasses);
	put32(foot + 36, RECORDS_VERSION);
	put64(foot + 40, checksum_final(&sum));
	put64(foot + 48, checksum_of(foot, 48, 0));
	memcpy(foot + 56, records_end, sizeof records_end);
	return whole_put(&w->file, foot, sizeof foot);
}

gradcomp_status gradcomp_records_finish(gradcomp_records_writer *w, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	gradcomp_status status = usable(w, err);
	if (!status && w->nclasses && (int64_t)w->label_max >= w->nclasses)
		status = error_set(err, GRADCOMP_ERR_INVALID, "%s: there is the label %d and there are %u classes",
		                   gradcomp_printable(w->file.path, name, sizeof name), w->label_max, w->nclasses);
	if (!status && put_index(w) < 0)
		status = whole_failed(&w->file, err);
	if (!status)
		status = whole_publish(&w->file, err);
	writer_free(w);
	return status;
}

void gradcomp_records_abandon(gradcomp_records_writer *w)
{
	if (w)
		writer_free(w);
}
