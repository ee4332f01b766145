/* The lock of a key's leases: flock(2) on the directory KEY.lease, which ends with its process.
 * It keeps leasing and evicting apart, and is held for a few system calls only. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/outfile.h"
#include "base/text.h"
#include "io/cache/cache.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
/* A process that has the lock may be stopped, or hostile in the shared area. */
#define PATIENCE 10.0

static void lease_dir_name(char out[STAGE_KEY_BYTES + 8], const char *key)
{
	snprintf(out, STAGE_KEY_BYTES + 8, "%s.lease", key);
}

/* Returns true when `lock` is still what KEY.lease names: an empty one is removed by the last to leave, and a lock
 * on the old one keeps nobody out of the new. */
static bool is_there(int area, const char *name, int lock)
{
	struct stat mine, there;
	return fstat(lock, &mine) == 0 && fstatat(area, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
	       mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

static int close_failed(int fd)
{
	int e = errno;
	close(fd);
	errno = e;
	return -1;
}

/* In the shared area the lock is one of an open file description (F_OFD_SETLK) on KEY.gate, which
 * its owner has mode 0644: other users can hold it shared, as long as they live, which they
 * could by a lease, but not exclusively, so they keep nobody from leasing. flock(2) on a
 * directory that they can open would let them. */
static int open_gate(int area, const char *key, bool exclusive)
{
	char name[STAGE_KEY_BYTES + 8];
	snprintf(name, sizeof name, "%s.gate", key);
	int how = (exclusive ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	int fd = openat(area, name, how);
	if (fd >= 0 || errno != ENOENT)
		return fd;
	/* Only the owner can make it. */
	fd = openat(area, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return errno == EEXIST ? openat(area, name, how) : -1;
	return fchmod(fd, 0644) < 0 ? close_failed(fd) : fd;
}

int cache_gate_make(int area, const char *key)
{
	int fd = open_gate(area, key, false);
	if (fd >= 0)
		close(fd);
	return fd < 0 ? -1 : 0;
}

/* 0, or -1 and errno; EWOULDBLOCK when another has it. */
static int lock_gate(int area, const char *key, int gate, bool exclusive)
{
	struct flock l = {.l_type = exclusive ? F_WRLCK : F_RDLCK, .l_whence = SEEK_SET};
	char name[STAGE_KEY_BYTES + 8];
	if (fcntl(gate, F_OFD_SETLK, &l) < 0) {
		errno = errno == EAGAIN || errno == EACCES ? EWOULDBLOCK : errno;
		return -1;
	}
	snprintf(name, sizeof name, "%s.gate", key);
	if (is_there(area, name, gate))
		return 0;
	errno = EINTR; /* it has been replaced */
	return -1;
}

/* Makes one attempt. */
static int try_lock(int area, const char *key, bool exclusive, cache_lease_lock *lock)
{
	char name[STAGE_KEY_BYTES + 8];
	struct stat st;
	lease_dir_name(name, key);
	*lock = (cache_lease_lock){.dir = openat(area, name, OPEN_DIR), .gate = -1};
	if (lock->dir < 0 && errno == ENOENT && (mkdirat(area, name, 0700) == 0 || errno == EEXIST))
		errno = EINTR;
	if (lock->dir < 0 || fstat(lock->dir, &st) < 0)
		goto fail;
	if (!(st.st_mode & S_IWOTH)) {
		if (flock(lock->dir, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) < 0)
			goto fail;
	} else if ((lock->gate = open_gate(area, key, exclusive)) < 0 ||
	           lock_gate(area, key, lock->gate, exclusive) < 0) {
		goto fail;
	}
	if (is_there(area, name, lock->dir))
		return 0;
	errno = EINTR;
fail:
	if (lock->gate >= 0)
		close_failed(lock->gate);
	return lock->dir >= 0 ? close_failed(lock->dir) : -1;
}

int cache_lease_take(int area, const char *key, bool exclusive, cache_lease_lock *lock)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	double begin = clock_now();
	while (try_lock(area, key, exclusive, lock) < 0) {
		if (errno == EINTR)
			continue;
		if (errno != EWOULDBLOCK || exclusive || clock_now() - begin > PATIENCE)
			return -1;
		nanosleep(&pause, NULL);
	}
	return 0;
}

void cache_lease_release(int area, const char *key, cache_lease_lock *lock, bool exclusive)
{
	char name[STAGE_KEY_BYTES + 8], gate[STAGE_KEY_BYTES + 8];
	struct stat st;
	lease_dir_name(name, key);
	snprintf(gate, sizeof gate, "%s.gate", key);
	/* In the shared area users cannot make them again: they stay as long as the copy. */
	if (exclusive && !(lock->gate >= 0 && fstatat(area, key, &st, AT_SYMLINK_NOFOLLOW) == 0)) {
		if (lock->gate >= 0)
			unlinkat(area, gate, 0);
		unlinkat(area, name, AT_REMOVEDIR);
	}
	if (lock->gate >= 0)
		close(lock->gate);
	close(lock->dir);
}

/* Leases: KEY.lease/NAME says who needs the copy. Three lines:
 *
 *     gradcomp-lease 1
 *     pid 4711 start 90210 boot 5f0c... space 4026531836     or    job 12 boot 5f0c...     or    pin
 *     holder job 12.0
 */

#define MAGIC "gradcomp-lease 1\n"
#define LEASE_MAX 512
#define MANY 32

/* A decimal number behind `word`; false when it is none or has more than 18 digits. */
static bool take_number(const char **at, const char *word, uint64_t *out)
{
	size_t n = strlen(word), digits;
	if (strncmp(*at, word, n))
		return false;
	digits = strspn(*at + n, "0123456789");
	if (!digits || digits > 18)
		return false;
	*out = strtoull(*at + n, NULL, 10);
	*at += n + digits;
	return true;
}

static bool take_boot(const char **at, char boot[CACHE_BOOT_BYTES])
{
	if (strncmp(*at, " boot ", 6))
		return false;
	size_t n = strspn(*at + 6, "0123456789abcdef-");
	if (!n || n >= CACHE_BOOT_BYTES)
		return false;
	memcpy(boot, *at + 6, n);
	boot[n] = 0;
	*at += 6 + n;
	return true;
}

static bool parse(const char *text, cache_lease_info *l)
{
	uint64_t n;
	if (strncmp(text, MAGIC, sizeof MAGIC - 1))
		return false;
	text += sizeof MAGIC - 1;
	if (!strncmp(text, "pin\n", 4)) {
		l->pin = true;
		text += 3;
	} else if (take_number(&text, "job ", &n)) {
		l->job = (int64_t)n;
		if (!n || !take_boot(&text, l->boot))
			return false;
	} else {
		if (!take_number(&text, "pid ", &n) || n < 1 || n > INT32_MAX ||
		    !take_number(&text, " start ", &l->start) || !take_boot(&text, l->boot) ||
		    !take_number(&text, " space ", &l->space))
			return false;
		l->pid = (int64_t)n;
	}
	if (strncmp(text, "\nholder ", 8))
		return false;
	text += 8;
	size_t length = strcspn(text, "\n");
	if (text[length] != '\n' || text[length + 1])
		return false;
	char raw[LEASE_MAX];
	memcpy(raw, text, length);
	raw[length] = 0;
	gradcomp_printable(raw, l->holder, sizeof l->holder);
	return true;
}

/* False, with *out a lease of nobody, when there is no such file or it is no lease. */
static bool read_lease(int dir, const char *name, cache_lease_info *out)
{
	char text[LEASE_MAX];
	struct stat st, owner;
	*out = (cache_lease_info){0};
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, text, sizeof text - 1) : -1;
	close(fd);
	if (n <= 0 || fstat(dir, &owner) < 0)
		return false;
	text[n] = 0;
	out->uid = st.st_uid;
	out->written_ns = st.st_mtim.tv_sec * 1000000000LL + st.st_mtim.tv_nsec;
	out->foreign = st.st_uid != 0 && st.st_uid != owner.st_uid;
	/* In the shared area everybody can write leases: pins and the leases of jobs, which need no
	 * process, count from root and the copy's owner only. */
	if (strlen(text) == (size_t)n && parse(text, out) && !(out->foreign && !out->pid) &&
	    snprintf(out->name, sizeof out->name, "%s", name) < (int)sizeof out->name)
		return true;
	*out = (cache_lease_info){0};
	return false;
}

/* Returns true when a lease that another user has written says what he may say: that a process of his needs the
 * copy, or one of root's (his slurmstepd) while he has a process at all. So nobody keeps a copy longer than he is
 * there to use it, whatever he writes. */
static bool may_claim(const cache_lease_info *l, bool here)
{
	char path[32];
	struct stat st;
	if (!l->foreign)
		return true;
	snprintf(path, sizeof path, "/proc/%lld", (long long)l->pid);
	if (here && stat(path, &st) == 0 && st.st_uid != 0)
		return st.st_uid == l->uid;
	return cache_process_of(l->uid);
}

bool cache_lease_alive(const cache_lease_info *l)
{
	char boot[CACHE_BOOT_BYTES];
	if (l->pin)
		return true;
	if (!l->pid && !l->job)
		return false;
	if (strcmp(l->boot, cache_boot(boot)))
		return false;
	if (l->job)
		return true;
	uint64_t space = cache_pid_space();
	if (!space || space != l->space)
		return may_claim(l, false);
	if (kill((pid_t)l->pid, 0) < 0 && errno == ESRCH)
		return false;
	/* Hidden processes (hidepid) have no start that we could see. */
	uint64_t start = cache_process_start(l->pid);
	return (!start || !l->start || start == l->start) && may_claim(l, true);
}

/* Where another user has taken the name, the lease has one that cannot be foreseen. */
static int put(int dir, const char *name, const char *text, size_t n)
{
	char other[24];
	uint64_t random;
	if (outfile_put(dir, name, text, n) == 0)
		return 0;
	if ((errno != EPERM && errno != EACCES) || getrandom(&random, sizeof random, 0) != sizeof random)
		return -1;
	snprintf(other, sizeof other, "lease-%016llx", (unsigned long long)random);
	return outfile_put(dir, other, text, n);
}

gradcomp_status cache_lease_write(int area, const char *key, const cache_lease_info *l, gradcomp_error *err)
{
	char text[LEASE_MAX], holder[CACHE_HOLDER_BYTES];
	int n = snprintf(text, sizeof text, "%s", MAGIC);
	if (l->pin)
		n += snprintf(text + n, sizeof text - (size_t)n, "pin");
	else if (l->job)
		n += snprintf(text + n, sizeof text - (size_t)n, "job %lld boot %s", (long long)l->job, l->boot);
	else
		n += snprintf(text + n, sizeof text - (size_t)n, "pid %lld start %llu boot %s space %llu",
		              (long long)l->pid, (unsigned long long)l->start, l->boot, (unsigned long long)l->space);
	n += snprintf(text + n, sizeof text - (size_t)n, "\nholder %s\n",
	              gradcomp_printable(l->holder, holder, sizeof holder));
	cache_lease_lock lock;
	int got = -1, result = -1;
	/* The directory may go between the two calls when it is empty. */
	for (int i = 0; i < 100; i++) {
		if ((got = cache_lease_take(area, key, false, &lock)) < 0)
			break;
		result = put(lock.dir, l->name, text, (size_t)n);
		int e = errno;
		cache_lease_release(area, key, &lock, false);
		errno = e;
		if (result == 0 || e != ENOENT)
			break;
	}
	if (result == 0)
		return GRADCOMP_OK;
	int e = errno;
	if (got == 0 && cache_lease_take(area, key, true, &lock) == 0) /* a full disk must not leave the directory */
		cache_lease_release(area, key, &lock, true);
	errno = e;
	return got < 0 && errno == EWOULDBLOCK
	               ? error_set(err, GRADCOMP_ERR_IO,
	                           "cannot lease %s: another process has held %s.lease for 10 s (is it stopped?)", key,
	                           key)
	               : text_cannot(err, "write the lease of", key);
}

int cache_lease_each(int area, const char *key,
                     void (*each)(void *ctx, int dir, const char *name, const cache_lease_info *l), void *ctx)
{
	char name[STAGE_KEY_BYTES + 8];
	cache_lease_info l;
	snprintf(name, sizeof name, "%s.lease", key);
	int fd = openat(area, name, OPEN_DIR);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		int e = errno;
		if (fd >= 0)
			close(fd);
		errno = e;
		/* A foreign file has this name: there are no leases in it. */
		return e == ENOENT || e == ENOTDIR || e == ELOOP ? 0 : -1;
	}
	errno = 0;
	for (struct dirent *de; (de = readdir(d)); errno = 0)
		if (strcmp(de->d_name, ".") && strcmp(de->d_name, "..")) {
			read_lease(fd, de->d_name, &l);
			each(ctx, fd, de->d_name, &l);
		}
	int e = errno;
	closedir(d);
	errno = e;
	return e ? -1 : 0;
}

static void drop_dead(void *ctx, int dir, const char *name, const cache_lease_info *l)
{
	(void)ctx;
	if (!cache_lease_alive(l))
		unlinkat(dir, name, 0);
}

void cache_leases_sweep(int area, const char *key)
{
	cache_lease_lock lock;
	if (cache_lease_take(area, key, true, &lock) < 0)
		return;
	(void)!cache_lease_each(area, key, drop_dead, NULL);
	cache_lease_release(area, key, &lock, true);
}

/* A copy that many jobs have used must not keep the leases of them all. */
static bool many_leases(int area, const char *key)
{
	char name[STAGE_KEY_BYTES + 8];
	int n = 0;
	snprintf(name, sizeof name, "%s.lease", key);
	int fd = openat(area, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	while (d && n <= MANY && readdir(d))
		n++;
	if (d)
		closedir(d);
	else if (fd >= 0)
		close(fd);
	return n > MANY;
}

gradcomp_status cache_lease(int area, const char *key, int64_t pid, const char *holder, gradcomp_error *err)
{
	cache_lease_info l = {.pid = pid, .space = cache_pid_space()};
	if (!pid)
		return GRADCOMP_OK;
	if (pid < 1 || pid > INT32_MAX || (kill((pid_t)pid, 0) < 0 && errno == ESRCH))
		return error_set(err, GRADCOMP_ERR_INVALID, "there is no process %lld that could hold a lease",
		                 (long long)pid);
	l.start = cache_process_start(pid);
	cache_boot(l.boot);
	snprintf(l.name, sizeof l.name, "%lld-%llu", (long long)pid, (unsigned long long)l.start);
	if (holder)
		snprintf(l.holder, sizeof l.holder, "%s", holder);
	else
		snprintf(l.holder, sizeof l.holder, "process %lld", (long long)pid);
	gradcomp_status st = cache_lease_write(area, key, &l, err);
	if (!st && many_leases(area, key))
		cache_leases_sweep(area, key);
	return st;
}

int cache_lease_drop(int area, const char *key, const char *name)
{
	char dir[STAGE_KEY_BYTES + 8];
	snprintf(dir, sizeof dir, "%s.lease", key);
	int fd = openat(area, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -1;
	int result = unlinkat(fd, name, 0) == 0 || errno == ENOENT ? 0 : -1, e = errno;
	close(fd);
	cache_lease_lock lock;
	if (!result && cache_lease_take(area, key, true, &lock) == 0)
		cache_lease_release(area, key, &lock, true);
	errno = e;
	return result;
}
