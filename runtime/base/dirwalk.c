/* Reaching and removing things by directory descriptors. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dirwalk.h"

#define OPEN_STEP (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

void dirwalk_begin(dirwalk *w, int root)
{
	*w = (dirwalk){.root = root, .fd = -1};
}

static void dirwalk_home(dirwalk *w)
{
	if (w->fd >= 0)
		close(w->fd);
	w->fd = -1;
	w->length = 0;
}

void dirwalk_end(dirwalk *w)
{
	dirwalk_home(w);
	free(w->path);
	w->path = NULL;
}

/* One component down; `name` is terminated in place by the caller. */
static int dirwalk_step(dirwalk *w, const char *name)
{
	int next = openat(w->fd >= 0 ? w->fd : w->root, name, OPEN_STEP);
	if (next < 0)
		return -1;
	if (w->fd >= 0)
		close(w->fd);
	w->fd = next;
	return 0;
}

int dirwalk_to(dirwalk *w, const char *path, size_t length)
{
	if (length + 1 > w->capacity) {
		size_t capacity = length + 256;
		char *p = realloc(w->path, capacity);
		if (!p)
			return -1;
		w->path = p;
		w->capacity = capacity;
	}
	/* Below the current directory, or the same: go on from there. */
	bool below = w->length && length >= w->length && !memcmp(path, w->path, w->length) &&
	             (length == w->length || path[w->length] == '/');
	if (!below)
		dirwalk_home(w);
	while (w->length < length) {
		size_t at = w->length ? w->length + 1 : 0;
		const char *slash = memchr(path + at, '/', length - at);
		size_t end = slash ? (size_t)(slash - path) : length;
		if (w->length)
			w->path[w->length] = '/';
		memcpy(w->path + at, path + at, end - at);
		w->path[end] = 0;
		if (dirwalk_step(w, w->path + at) < 0) {
			int e = errno;
			dirwalk_home(w);
			errno = e;
			return -1;
		}
		w->length = end;
	}
	return w->fd >= 0 ? w->fd : w->root;
}

int dirwalk_parent(dirwalk *w, const char *path, const char **base)
{
	const char *slash = strrchr(path, '/');
	*base = slash ? slash + 1 : path;
	return dirwalk_to(w, path, slash ? (size_t)(slash - path) : 0);
}

/* Opens a directory that is to be emptied; its owner is the user, but its modes
 * may deny him everything. */
static int open_for_removal(int parent, const char *name)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	struct stat st;
	int fd = openat(parent, name, flags);
	if (fd < 0 && errno == EACCES && fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
	    fchmodat(parent, name, 0700, 0) == 0)
		fd = openat(parent, name, flags);
	if (fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & 0700) != 0700)
		(void)!fchmod(fd, 0700);
	return fd;
}

/* Removes the entries of the directory up to the first subdirectory, whose name it puts into
 * `sub`. 1: there is one; 0: the directory is empty; -1: errno. */
static int empty_until_dir(int fd, char sub[256])
{
	int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = 0;
	DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
	if (!d) {
		int e = errno;
		if (copy >= 0)
			close(copy);
		errno = e;
		return -1;
	}
	for (struct dirent *de; result == 0 && (errno = 0, de = readdir(d));) {
		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
			continue;
		if (de->d_type != DT_DIR && (unlinkat(fd, de->d_name, 0) == 0 || errno == ENOENT))
			continue;
		result = de->d_type == DT_DIR || errno == EISDIR ? 1 : -1;
		snprintf(sub, 256, "%s", de->d_name);
	}
	int e = errno;
	if (!result && e)
		result = -1;
	closedir(d);
	errno = e;
	return result;
}

/* One descriptor at a time, up again by "..": the tree is the user's own and
 * only he could move it. */
static int remove_once(int parent, const char *name)
{
	char sub[256];
	struct level {
		struct level *up;
		char name[256];
	} *top = NULL;
	int result = -1, fd = -1;
	if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -1;
	if ((fd = open_for_removal(parent, name)) < 0)
		return -1;
	for (;;) {
		int more = empty_until_dir(fd, sub);
		if (more < 0)
			goto done;
		if (more && unlinkat(fd, sub, AT_REMOVEDIR) == 0)
			continue;
		if (!more && !top)
			break;
		int next = more ? open_for_removal(fd, sub) : openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (next < 0)
			goto done;
		close(fd);
		fd = next;
		struct level *l = more ? malloc(sizeof *l) : top;
		if (!l)
			goto done;
		if (more) {
			memcpy(l->name, sub, sizeof sub);
			l->up = top;
			top = l;
		} else {
			top = l->up;
			int gone = unlinkat(fd, l->name, AT_REMOVEDIR);
			free(l);
			if (gone < 0)
				goto done;
		}
	}
	result = unlinkat(parent, name, AT_REMOVEDIR);
done:
	for (int e = errno; top; errno = e) {
		struct level *up = top->up;
		free(top);
		top = up;
	}
	if (fd >= 0) {
		int e = errno;
		close(fd);
		errno = e;
	}
	return result;
}

/* Others may be at it too: what they took from under us is looked for again, and there
 * is less of it each time. */
int dirwalk_remove(int parent, const char *name)
{
	int result = -1;
	for (int i = 0; i < 100000 && (result = remove_once(parent, name)) < 0 && errno == ENOENT; i++)
		;
	return result;
}
