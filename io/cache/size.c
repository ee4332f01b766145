/* A copy takes this much of the disk. Summing up a tree of a million files takes seconds, so the sum is kept in a
 * file of its own beside the data:
 *
 *     gradcomp-size 1
 *     allocated BYTES INODES      of a published copy
 *     reserved BYTES INODES       of one being made: what it is going to be
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/outfile.h"
#include "io/cache/cache.h"

#define NAME "size"
#define MAGIC "gradcomp-size 1\n"

struct sum {
	cache_size *size;
	char **todo; /* directories, relative to the root */
	size_t n, capacity;
	ino_t *seen; /* inodes of files with several links: open addressing, 0 is free */
	size_t nseen, mask;
};

/* Returns true when the inode is new. Without memory it counts twice. */
static bool first_time(struct sum *s, ino_t ino)
{
	if (2 * s->nseen >= s->mask) {
		size_t mask = s->mask ? 2 * s->mask + 1 : 1023;
		ino_t *seen = calloc(mask + 1, sizeof *seen);
		if (!seen)
			return true;
		for (size_t i = 0; s->mask && i <= s->mask; i++)
			if (s->seen[i]) {
				size_t at = (size_t)s->seen[i] * 0x9e3779b97f4a7c15u & mask;
				while (seen[at])
					at = (at + 1) & mask;
				seen[at] = s->seen[i];
			}
		free(s->seen);
		s->seen = seen;
		s->mask = mask;
	}
	size_t at = (size_t)ino * 0x9e3779b97f4a7c15u & s->mask;
	for (; s->seen[at]; at = (at + 1) & s->mask)
		if (s->seen[at] == ino)
			return false;
	s->seen[at] = ino;
	s->nseen++;
	return true;
}

static int push(struct sum *s, const char *dir, const char *name)
{
	if (s->n == s->capacity) {
		size_t capacity = s->capacity ? 2 * s->capacity : 64;
		char **todo = realloc(s->todo, capacity * sizeof *todo);
		if (!todo)
			return -1;
		s->todo = todo;
		s->capacity = capacity;
	}
	if (asprintf(&s->todo[s->n], "%s%s%s", dir, *dir ? "/" : "", name) < 0)
		return -1;
	s->n++;
	return 0;
}

static int sum_dir(struct sum *s, dirwalk *w, const char *path)
{
	struct stat st;
	int at = dirwalk_to(w, path, strlen(path)), result = 0;
	int fd = at < 0 ? -1 : openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		if (fd >= 0)
			close(fd);
		/* It is being removed; or others closed it, and it counts without what is in it. */
		return errno == ENOENT || errno == EACCES ? 0 : -1;
	}
	for (struct dirent *de; !result && (errno = 0, de = readdir(d));) {
		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
			continue;
		if (fstatat(fd, de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
			result = errno == ENOENT ? 0 : -1; /* it is being removed */
			continue;
		}
		if (S_ISDIR(st.st_mode))
			result = push(s, path, de->d_name);
		else if (st.st_nlink > 1 && !first_time(s, st.st_ino))
			continue;
		s->size->bytes += (uint64_t)st.st_blocks * 512;
		s->size->inodes++;
	}
	int e = errno;
	closedir(d);
	errno = e;
	return result || e ? -1 : 0;
}

int cache_measure(int dir, cache_size *out)
{
	struct sum s = {.size = out};
	struct stat st;
	dirwalk w;
	int result = fstat(dir, &st);
	*out = (cache_size){.bytes = result ? 0 : (uint64_t)st.st_blocks * 512, .inodes = 1};
	dirwalk_begin(&w, dir);
	if (!result)
		result = push(&s, "", "");
	while (!result && s.n) {
		char *path = s.todo[--s.n];
		result = sum_dir(&s, &w, path);
		free(path);
	}
	int e = errno;
	dirwalk_end(&w);
	while (s.n)
		free(s.todo[--s.n]);
	free(s.todo);
	free(s.seen);
	errno = e;
	return result;
}

/* A number beyond the filesystem's size was not written by gradcomp. */
static bool sane(int dir, const cache_size *size)
{
	struct statvfs fs;
	return fstatvfs(dir, &fs) == 0 && fs.f_frsize && size->inodes <= 1ull << 48 &&
	       size->bytes / fs.f_frsize <= (uint64_t)fs.f_blocks;
}

static bool read_note(int dir, const char *word, cache_size *out)
{
	char text[128], form[64], end;
	unsigned long long bytes, inodes;
	struct stat st;
	int fd = openat(dir, NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	ssize_t n = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, text, sizeof text - 1) : -1;
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return false;
	text[n] = 0;
	snprintf(form, sizeof form, MAGIC "%s %%18llu %%18llu%%c", word);
	if (sscanf(text, form, &bytes, &inodes, &end) != 3 || end != '\n')
		return false;
	*out = (cache_size){bytes, inodes};
	return true;
}

static int write_note(int dir, const char *word, const cache_size *size)
{
	char text[128];
	int n = snprintf(text, sizeof text, MAGIC "%s %llu %llu\n", word, (unsigned long long)size->bytes,
	                 (unsigned long long)size->inodes);
	/* Never into a file that is there: it may have another name elsewhere. */
	return outfile_put(dir, NAME, text, (size_t)n);
}

int cache_size_of(int dir, cache_size *out)
{
	if (read_note(dir, "allocated", out) && sane(dir, out))
		return 0;
	if (cache_measure(dir, out) < 0)
		return -1;
	(void)!write_note(dir, "allocated", out); /* on a full disk, or in another's area, it is measured again */
	return 0;
}

int cache_reserve(int dir, const cache_size *all)
{
	return write_note(dir, "reserved", all);
}

bool cache_reserved(int dir, cache_size *out)
{
	return read_note(dir, "reserved", out) && sane(dir, out);
}
