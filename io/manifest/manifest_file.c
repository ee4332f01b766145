/* The manifest as a file: the content of a published copy with checksums, and a last line with
 * the checksum of all lines before it. The lines are those that the key is made of, so that a
 * manifest is read against a listing by comparing lines. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fileio.h"
#include "io/manifest/manifest.h"

#define HEX (2 * SHA256_BYTES)
#define FIRST "gradcomp-manifest 2"

struct out {
	FILE *f;
	sha256 hash;
};

static void put(struct out *o, const char *text, size_t n)
{
	sha256_update(&o->hash, text, n);
	fwrite(text, 1, n, o->f); /* ferror() is looked at once, at the end */
}

int manifest_write(const stage_manifest *m, int dirfd, const char *name)
{
	char sum[HEX + 2], *line = NULL, *first = NULL;
	unsigned char digest[SHA256_BYTES];
	size_t capacity = 0, bytes;
	struct out o = {0};
	int result = -1;
	int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0 || !(o.f = fdopen(fd, "w")))
		goto done;
	sha256_init(&o.hash);
	if (!(first = manifest_head(m, FIRST, &bytes)))
		goto done;
	put(&o, first, bytes);
	for (size_t i = 0; i < m->n; i++) {
		ssize_t n = manifest_entry_line(&m->entries[i], &line, &capacity);
		if (n < 0)
			goto done;
		if (m->entries[i].type == STAGE_FILE)
			sha256_hex(m->entries[i].sha256, sum);
		else
			strcpy(sum, "-");
		strcat(sum, " ");
		put(&o, sum, strlen(sum));
		line[n] = '\n';
		put(&o, line, (size_t)n + 1);
	}
	sha256_final(&o.hash, digest);
	sha256_hex(digest, sum);
	fprintf(o.f, "end %s\n", sum);
	if (fflush(o.f) == 0 && !ferror(o.f) && fsync(fd) == 0)
		result = 0;
done:;
	int e = errno;
	free(line);
	free(first);
	if (o.f)
		fclose(o.f);
	else if (fd >= 0)
		close(fd);
	errno = e;
	return result;
}

/* The next line is SUM SPACE REST. */
static bool read_entry(FILE *f, sha256 *hash, stage_entry *e, char got[STAGE_LINE_MAX], char **want, size_t *capacity)
{
	int64_t n = fileio_line(f, got, STAGE_LINE_MAX), w = manifest_entry_line(e, want, capacity);
	size_t sum = e->type == STAGE_FILE ? HEX : 1;
	if (w < 0 || n != (int64_t)sum + 1 + w + 1 || got[sum] != ' ' || got[n - 1] != '\n' ||
	    memcmp(got + sum + 1, *want, (size_t)w))
		return false;
	if (e->type == STAGE_FILE && !text_unhex_sha256(got, e->sha256))
		return false;
	e->sealed = true;
	sha256_update(hash, got, (size_t)n);
	return true;
}

bool manifest_read(stage_manifest *m, int dirfd, const char *name, const char **why)
{
	unsigned char digest[SHA256_BYTES], last[SHA256_BYTES];
	char *got = NULL, *want = NULL, *first = NULL;
	size_t capacity = 0, bytes = 0;
	sha256 hash;
	FILE *f = NULL;
	*why = "its manifest cannot be opened";
	int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || !(f = fdopen(fd, "r")))
		goto fail;
	*why = "its manifest is not the one of this source";
	if (!(first = manifest_head(m, FIRST, &bytes)) ||
	    !(got = malloc(bytes > STAGE_LINE_MAX ? bytes : STAGE_LINE_MAX)) || fread(got, 1, bytes, f) != bytes ||
	    memcmp(got, first, bytes))
		goto fail;
	sha256_init(&hash);
	sha256_update(&hash, first, bytes);
	for (size_t i = 0; i < m->n; i++)
		if (!read_entry(f, &hash, &m->entries[i], got, &want, &capacity))
			goto fail;
	sha256_final(&hash, digest);
	*why = "its manifest is damaged";
	if (fileio_line(f, got, STAGE_LINE_MAX) != 4 + HEX + 1 || memcmp(got, "end ", 4) || got[4 + HEX] != '\n' ||
	    !text_unhex_sha256(got + 4, last) || memcmp(last, digest, sizeof digest) || fgetc(f) != EOF)
		goto fail;
	*why = NULL;
fail:
	free(got);
	free(want);
	free(first);
	if (f)
		fclose(f);
	else if (fd >= 0)
		close(fd);
	/* Nothing is proved by what was read of a bad manifest. */
	for (size_t i = 0; *why && i < m->n; i++)
		m->entries[i].sealed = false;
	return !*why;
}

/* The next line, without its newline, which is hashed too. */
static ssize_t next_line(FILE *f, sha256 *hash, char line[STAGE_LINE_MAX])
{
	int64_t n = fileio_line(f, line, STAGE_LINE_MAX);
	if (n < 1 || line[n - 1] != '\n')
		return -1;
	if (hash)
		sha256_update(hash, line, (size_t)n);
	return (ssize_t)(n - 1);
}

static const char *load(stage_manifest *m, FILE *f, char line[STAGE_LINE_MAX])
{
	unsigned char digest[SHA256_BYTES], last[SHA256_BYTES];
	const char *why;
	sha256 hash;
	ssize_t n;
	sha256_init(&hash);
	for (int i = 0; i < STAGE_HEAD_LINES; i++)
		if ((n = next_line(f, &hash, line)) < 0 || !manifest_head_line(m, i, FIRST, line, (size_t)n))
			return "its first lines are wrong";
	while (m->n < m->promised.entries) {
		if ((n = next_line(f, &hash, line)) < 0)
			return "it does not have all its entries";
		if ((why = manifest_take(m, line, (size_t)n, false)))
			return why;
	}
	sha256_final(&hash, digest);
	if (next_line(f, NULL, line) != 4 + HEX || memcmp(line, "end ", 4) || !text_unhex_sha256(line + 4, last) ||
	    memcmp(last, digest, sizeof digest) || fgetc(f) != EOF)
		return "it does not have its checksum";
	return manifest_complete(m);
}

bool manifest_load(stage_manifest *m, int dirfd, const char *name, const char **why)
{
	int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	char *line = malloc(STAGE_LINE_MAX);
	*why = !f ? "it cannot be opened" : line ? load(m, f, line) : "there is no memory for it";
	free(line);
	if (f)
		fclose(f);
	else if (fd >= 0)
		close(fd);
	if (*why)
		manifest_clear(m);
	return !*why;
}

#define LISTING_FIRST "gradcomp-listing 2"

/* SUM EXTRA LINE of one entry at `out`, which has room. */
static ssize_t pack_entry(const stage_entry *e, char *out, char **line, size_t *capacity)
{
	size_t o;
	ssize_t n = manifest_entry_line(e, line, capacity);
	if (n < 0)
		return -1;
	if (e->type == STAGE_FILE && e->sealed) {
		sha256_hex(e->sha256, out);
		o = 2 * SHA256_BYTES;
	} else {
		out[0] = '-';
		o = 1;
	}
	out[o++] = ' ';
	o += manifest_entry_extra(e, out + o);
	memcpy(out + o, *line, (size_t)n);
	o += (size_t)n;
	out[o++] = '\n';
	return (ssize_t)o;
}

ssize_t manifest_pack(const stage_manifest *m, size_t *next, char *buf, size_t capacity)
{
	char *line = NULL;
	size_t line_capacity = 0, used = 0;
	ssize_t n = 0;
	if (*next == 0) {
		char *head = manifest_head(m, LISTING_FIRST, &used);
		if (!head)
			return -1;
		memcpy(buf, head, used);
		free(head);
	}
	while (*next < m->n && capacity - used >= STAGE_LINE_MAX) {
		if ((n = pack_entry(&m->entries[*next], buf + used, &line, &line_capacity)) < 0)
			break;
		used += (size_t)n;
		++*next;
	}
	free(line);
	return n < 0 ? -1 : (ssize_t)used;
}

gradcomp_status manifest_unpack(stage_manifest *m, char *text, size_t n, gradcomp_error *err)
{
	const char *why = NULL;
	for (char *end, *line = text; !why && line < text + n; line = end + 1) {
		if (!(end = memchr(line, '\n', (size_t)(text + n - line))))
			return error_set(err, GRADCOMP_ERR_INVALID, "a listing ends within a line");
		if (m->promised.lines < STAGE_HEAD_LINES) {
			int i = (int)m->promised.lines++;
			if (!manifest_head_line(m, i, LISTING_FIRST, line, (size_t)(end - line)))
				why = "its first lines are wrong";
		} else if (m->n == m->promised.entries) {
			why = "it has more entries than it says";
		} else {
			why = manifest_take(m, line, (size_t)(end - line), true);
		}
	}
	return why ? error_set(err, GRADCOMP_ERR_INVALID, "a listing cannot be taken: %s", why) : GRADCOMP_OK;
}

gradcomp_status manifest_unpacked(stage_manifest *m, gradcomp_error *err)
{
	const char *why = manifest_complete(m);
	return why ? error_set(err, GRADCOMP_ERR_INVALID, "a listing cannot be taken: %s", why) : GRADCOMP_OK;
}
