/* An entry as a line of text, and back. What is taken back may come from anywhere:
 * nothing of it is believed before it has been checked. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "io/manifest/manifest.h"

#define HEX (2 * SHA256_BYTES)

/* Text of a name in key and file: no byte of it is a space or a newline. */
static size_t put_name(char *out, const char *name)
{
	static const char hex[] = "0123456789abcdef";
	size_t o = 0;
	for (const unsigned char *s = (const unsigned char *)name; *s; s++) {
		if (*s > 0x20 && *s != 0x7f && *s != '\\') {
			out[o++] = (char)*s;
			continue;
		}
		out[o++] = '\\';
		out[o++] = 'x';
		out[o++] = hex[*s >> 4];
		out[o++] = hex[*s & 15];
	}
	return o;
}

/* Writes decimal digits and what they end with. */
static size_t put_number(char *out, uint64_t value, char end)
{
	char digits[20];
	size_t n = 0, o = 0;
	do
		digits[n++] = (char)('0' + value % 10);
	while (value /= 10);
	while (n)
		out[o++] = digits[--n];
	out[o++] = end;
	return o;
}

static size_t put_signed(char *out, int64_t value, char end)
{
	if (value >= 0)
		return put_number(out, (uint64_t)value, end);
	*out = '-';
	return 1 + put_number(out + 1, -(uint64_t)value, end);
}

ssize_t manifest_entry_line(const stage_entry *e, char **buf, size_t *capacity)
{
	const char *path = *e->path ? e->path : ".";
	size_t need = 80 + 4 * strlen(path) + (e->target ? 4 * strlen(e->target) : 0);
	if (!*buf || need > *capacity) {
		char *p = realloc(*buf, need);
		if (!p)
			return -1;
		*buf = p;
		*capacity = need;
	}
	bool file = e->type == STAGE_FILE;
	char *s = *buf;
	size_t o = 0;
	s[o++] = e->type;
	s[o++] = ' ';
	for (int shift = 9; shift >= 0; shift -= 3)
		s[o++] = (char)('0' + (e->mode >> shift & 7));
	s[o++] = ' ';
	o += put_number(s + o, file ? e->size : 0, ' ');
	o += put_signed(s + o, file ? e->mtime_ns : 0, ' ');
	o += put_name(s + o, path);
	if (e->target) {
		s[o++] = ' ';
		o += put_name(s + o, e->target);
	}
	return (ssize_t)o;
}

size_t manifest_entry_extra(const stage_entry *e, char out[24])
{
	return e->type == STAGE_DIR ? put_signed(out, e->mtime_ns, ' ')
	                            : put_number(out, e->type == STAGE_FILE ? e->stored : 0, ' ');
}

/* The rest of a line, taken from its beginning. */
struct rest {
	char *s, *end;
};

/* The next word, terminated in place; NULL when there is none. */
static char *word(struct rest *r)
{
	char *begin = r->s, *space = begin ? memchr(begin, ' ', (size_t)(r->end - begin)) : NULL;
	if (!begin)
		return NULL;
	r->s = space ? space + 1 : NULL;
	*(space ? space : r->end) = 0;
	return begin;
}

bool manifest_take_number(const char *s, uint64_t *out)
{
	uint64_t value = 0;
	if (!s || !*s || (*s == '0' && s[1]))
		return false;
	for (; *s; s++) {
		if (*s < '0' || *s > '9' || value > (INT64_MAX - (uint64_t)(*s - '0')) / 10)
			return false;
		value = 10 * value + (uint64_t)(*s - '0');
	}
	*out = value;
	return true;
}

static bool take_signed(const char *s, int64_t *out)
{
	uint64_t value;
	bool minus = s && *s == '-';
	if (!manifest_take_number(s + minus, &value) || (minus && !value))
		return false;
	*out = minus ? -(int64_t)value : (int64_t)value;
	return true;
}

bool manifest_take_name(char *s)
{
	char *o = s;
	for (; *s; s++) {
		if ((unsigned char)*s <= 0x20 || *s == 0x7f)
			return false;
		if (*s != '\\') {
			*o++ = *s;
			continue;
		}
		int hi = s[1] == 'x' ? text_hex_digit(s[2]) : -1, lo = hi < 0 ? -1 : text_hex_digit(s[3]);
		if (lo < 0 || !(hi | lo))
			return false;
		*o++ = (char)(hi << 4 | lo);
		s += 3;
	}
	*o = 0;
	return true;
}

/* Returns why `path` cannot be the next entry of m, or NULL: it must be relative, without empty components and
 * dots, in a directory of m. */
static const char *check_path(const stage_manifest *m, const char *path)
{
	const char *last = m->n ? m->entries[m->n - 1].path : NULL, *slash = strrchr(path, '/');
	if (strlen(path) >= PATH_MAX)
		return "it has a path that is too long";
	if (!last)
		return *path ? "its first entry is not the tree itself" : NULL;
	if (strcmp(path, last) <= 0)
		return "its entries are not in order";
	for (const char *s = path;; s++) {
		size_t n = strcspn(s, "/");
		if (!text_is_file_name(s, n))
			return "it has a path that could lead out of the tree";
		if (!*(s += n))
			break;
	}
	if (!slash)
		return NULL;
	size_t n = (size_t)(slash - path);
	if (!strncmp(path, last, n) && last[n] == '/' && !strchr(last + n + 1, '/'))
		return NULL; /* beside the one before */
	const stage_entry *parent = manifest_find(m, path, n);
	return parent && parent->type == STAGE_DIR ? NULL : "it has an entry without a directory";
}

/* SYMLINK and HARDLINK have a target, others have none. */
static const char *take_target(stage_manifest *m, stage_entry *e, char *target)
{
	if ((e->type == STAGE_SYMLINK || e->type == STAGE_HARDLINK) != !!target)
		return "it has an entry with too many words or too few";
	if (!target)
		return NULL;
	if (!*target || strlen(target) >= PATH_MAX || !manifest_take_name(target))
		return "it has a target that is wrong";
	if (e->type == STAGE_SYMLINK)
		return (e->target = manifest_join(m, "", target)) ? NULL : "there is no memory for it";
	const stage_entry *first = manifest_find(m, target, strlen(target));
	if (!first || first->type != STAGE_FILE)
		return "it has a hard link to something that is no file";
	e->target = first->path;
	return NULL;
}

/* Reads the words behind the checksum: [EXTRA] TYPE MODE SIZE MTIME PATH [TARGET]. */
static const char *take_words(stage_manifest *m, stage_entry *e, struct rest r, bool with_extra)
{
	static const char wrong[] = "it has an entry with a wrong value";
	char *extra = with_extra ? word(&r) : NULL, *type = word(&r), *mode = word(&r), *size = word(&r),
	     *mtime = word(&r), *path = word(&r), *target = word(&r);
	if (!path || r.s)
		return "it has an entry with too many words or too few";
	e->type = *type;
	if (!*type || type[1] || !strchr("fdlh", *type) || strlen(mode) != 4 || mode[0] != '0' ||
	    strspn(mode, "01234567") != 4 || !manifest_take_number(size, &e->size) ||
	    !take_signed(mtime, &e->mtime_ns) || !manifest_take_name(path))
		return wrong;
	e->mode = (uint16_t)((mode[1] - '0') << 6 | (mode[2] - '0') << 3 | (mode[3] - '0'));
	if (e->type != STAGE_FILE && (e->size || e->mtime_ns))
		return wrong;
	if ((e->type == STAGE_FILE && !(e->mode & 0400)) || (e->type == STAGE_DIR && (e->mode & 0500) != 0500))
		return wrong;
	e->stored = e->size;
	if (with_extra &&
	    !(e->type == STAGE_DIR ? take_signed(extra, &e->mtime_ns) : manifest_take_number(extra, &e->stored)))
		return wrong;
	if (!*path)
		return wrong;
	if (!strcmp(path, "."))
		*path = 0;
	const char *why = check_path(m, path);
	if (why)
		return why;
	if (!*path && e->type != STAGE_DIR)
		return "its first entry is not the tree itself";
	if (!(e->path = manifest_join(m, "", path)))
		return "there is no memory for it";
	return take_target(m, e, target);
}

const char *manifest_take(stage_manifest *m, char *line, size_t n, bool with_extra)
{
	stage_entry e = {0};
	struct rest r = {line, line + n};
	char *sum = memchr(line, 0, n) ? NULL : word(&r);
	if (!sum)
		return "it has a byte that is zero";
	bool none = !strcmp(sum, "-");
	if (!none && (strlen(sum) != HEX || !text_unhex_sha256(sum, e.sha256)))
		return "it has a checksum that is none";
	const char *why = take_words(m, &e, r, with_extra);
	if (why)
		return why;
	if (e.type == STAGE_FILE ? none && !with_extra : !none)
		return "it has a checksum where none belongs, or none where one does";
	e.sealed = !with_extra || !none;
	if (e.size > INT64_MAX - m->bytes)
		return "it has more bytes than there are numbers";
	stage_entry *slot = manifest_add(m);
	if (!slot)
		return "there is no memory for it";
	m->bytes += e.size;
	*slot = e;
	return NULL;
}

/* Writes the lines before the entries, with their counts. */

char *manifest_head(const stage_manifest *m, const char *first, size_t *bytes)
{
	/* The source has the escape of an entry's path. */
	static const char before[] = "d 0000 0 0 ";
	stage_entry e = {.path = m->source, .type = STAGE_DIR};
	char *line = NULL, *text = NULL;
	size_t capacity = 0;
	ssize_t n = manifest_entry_line(&e, &line, &capacity);
	int len = -1;
	if (n > 0)
		len = asprintf(&text, "%s\nsource %.*s\nentries %zu\nfiles %llu\nbytes %llu\n", first,
		               (int)(n - (ssize_t)sizeof before + 1), line + sizeof before - 1, m->n,
		               (unsigned long long)m->files, (unsigned long long)m->bytes);
	free(line);
	if (len < 0)
		return NULL;
	*bytes = (size_t)len;
	return text;
}

static bool value_of(const char *line, const char *name, uint64_t *out)
{
	size_t n = strlen(name);
	return !strncmp(line, name, n) && line[n] == ' ' && manifest_take_number(line + n + 1, out);
}

bool manifest_head_line(stage_manifest *m, int i, const char *first, char *line, size_t n)
{
	if (memchr(line, 0, n))
		return false;
	line[n] = 0;
	switch (i) {
	case 0:
		return !strcmp(line, first);
	case 1:
		if (strncmp(line, "source ", 7) || !line[7] || !manifest_take_name(line + 7))
			return false;
		m->source = strdup(line + 7);
		return m->source != NULL;
	case 2:
		return value_of(line, "entries", &m->promised.entries);
	case 3:
		return value_of(line, "files", &m->promised.files);
	default:
		return value_of(line, "bytes", &m->promised.bytes);
	}
}
