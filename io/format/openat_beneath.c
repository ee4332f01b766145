/* Opening what lies below a directory without ever leaving it, and reading it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/dirwalk.h"
#include "base/fileio.h"
#include "base/text.h"
#include "io/format/samples_internal.h"

#define LINKS_MAX 40 /* the kernel's limit */

/* Puts `head` and a slash before `rest`, which has room for `capacity` bytes. */
static int prepend(char *rest, size_t capacity, const char *head, size_t length)
{
	size_t n = strlen(rest) + 1;
	if (length + 1 + n > capacity) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memmove(rest + length + 1, rest, n);
	memcpy(rest, head, length);
	rest[length] = '/';
	return 0;
}

/* A path that is being resolved: `done` has neither links nor "..", `rest` is still to come. */
struct resolver {
	dirwalk walk;
	char done[PATH_MAX], rest[2 * PATH_MAX];
	int links;
};

static int up(struct resolver *b)
{
	char *slash = strrchr(b->done, '/');
	if (!b->done[0]) {
		errno = EXDEV;
		return -1;
	}
	*(slash ? slash : b->done) = 0;
	return 1;
}

static int down(struct resolver *b, const char *name)
{
	size_t n = strlen(b->done);
	if (n + strlen(name) + 2 > sizeof b->done) {
		errno = ENAMETOOLONG;
		return -1;
	}
	snprintf(b->done + n, sizeof b->done - n, "%s%s", n ? "/" : "", name);
	return 1;
}

static int follow(struct resolver *b, int link)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(link, "", target, sizeof target);
	if (n < 0)
		return -1;
	errno = target[0] == '/' ? EXDEV : (size_t)n == sizeof target ? ENAMETOOLONG : ELOOP;
	if (!n || target[0] == '/' || (size_t)n == sizeof target || ++b->links > LINKS_MAX)
		return -1;
	return prepend(b->rest, sizeof b->rest, target, (size_t)n) < 0 ? -1 : 1;
}

/* The next component: 1 went on, 0 *result is the end of it, -1 errno. */
static int step(struct resolver *b, int flags, int *result)
{
	char name[NAME_MAX + 1];
	struct stat st;
	char *p = b->rest + strspn(b->rest, "/");
	size_t n = strcspn(p, "/");
	int here = dirwalk_to(&b->walk, b->done, strlen(b->done)), next;
	if (here < 0)
		return -1;
	if (!n) {
		*result = openat(here, ".", flags | O_CLOEXEC);
		return *result < 0 ? -1 : 0;
	}
	if (n > NAME_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(name, p, n);
	name[n] = 0;
	memmove(b->rest, p + n, strlen(p + n) + 1);
	if (!strcmp(name, "."))
		return 1;
	if (!strcmp(name, ".."))
		return up(b);
	if ((next = openat(here, name, O_PATH | O_NOFOLLOW | O_CLOEXEC)) < 0)
		return -1;
	int more = fstat(next, &st), last = !b->rest[strspn(b->rest, "/")];
	if (!more && S_ISLNK(st.st_mode))
		more = follow(b, next);
	else if (!more && last)
		more = (*result = openat(here, name, flags | O_NOFOLLOW | O_CLOEXEC)) < 0 ? -1 : 0;
	else if (!more)
		more = down(b, name);
	int e = errno;
	close(next);
	errno = e;
	return more;
}

int openat_beneath_fallback(int root, const char *path, int flags)
{
	struct resolver b = {.links = 0};
	int result = -1, more = 1;
	if (strlen(path) >= PATH_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(b.rest, path);
	dirwalk_begin(&b.walk, root);
	while (more > 0)
		more = step(&b, flags, &result);
	int e = errno;
	dirwalk_end(&b.walk);
	errno = e;
	return more < 0 ? -1 : result;
}

int openat_beneath(int root, const char *path, int flags)
{
#ifdef SYS_openat2
	/* struct open_how; RESOLVE_NO_MAGICLINKS | RESOLVE_BENEATH */
	const uint64_t how[3] = {(uint64_t)(flags | O_CLOEXEC), 0, 0x02 | 0x08};
	long fd = syscall(SYS_openat2, root, *path ? path : ".", how, sizeof how);
	/* EAGAIN: something was renamed meanwhile. EPERM: a filter that does not know the call. */
	if (fd >= 0 || (errno != ENOSYS && errno != EAGAIN && errno != EPERM))
		return (int)fd;
#endif
	return openat_beneath_fallback(root, path, flags);
}

gradcomp_status openat_sample(int root, const char *path, int flags, int *fd, struct stat *st, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	/* Non-blocking, in case a FIFO has replaced the file. */
	*fd = openat_beneath(root, path, flags & O_PATH ? flags : flags | O_NONBLOCK | O_NOCTTY);
	if (*fd < 0 && errno == EXDEV)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "%s: a symbolic link on its way leads out of the dataset by now",
		                 gradcomp_printable(path, name, sizeof name));
	if (*fd < 0)
		return text_cannot(err, "read", path);
	if (fstat(*fd, st) == 0 && S_ISREG(st->st_mode))
		return GRADCOMP_OK;
	close(*fd);
	return error_set(err, GRADCOMP_ERR_STATE, "%s is no file any more",
	                 gradcomp_printable(path, name, sizeof name));
}

int openat_read_whole(int fd, void *buf, uint64_t n, uint64_t at)
{
	int64_t got = fileio_read(fd, buf, n, at);
	return got < 0 ? -1 : (uint64_t)got == n;
}

gradcomp_status openat_range(gradcomp_error *err, const char *name, uint64_t bytes, uint64_t capacity)
{
	char text[TEXT_NAME_MAX];
	return error_set(err, GRADCOMP_ERR_RANGE, "%s has %llu bytes, the buffer %llu",
	                 gradcomp_printable(name, text, sizeof text), (unsigned long long)bytes,
	                 (unsigned long long)capacity);
}
