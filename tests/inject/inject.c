/* The wrapped calls. `on` and the settings change only while a test has one thread
 * that uses them; counts are atomic. */
#define _GNU_SOURCE
#include "inject.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SEED, SHORT, EAGAIN_P, EINTR_P, DELAY, DELAY_US, RESET, ALLOC, SETTINGS };
static const char *const names[SETTINGS] = {"seed", "short", "eagain", "eintr", "delay", "delay_us", "reset", "alloc"};
static unsigned long value[SETTINGS];
static atomic_int on;
static atomic_ulong allocations, calls, faults;
static __thread unsigned long nth[SETTINGS]; /* asked so far, by kind */

void *__real_malloc(size_t bytes);
void __real_free(void *p);

/* ---- memory that is still held ---- */

#define HELD_MAX (1u << 16)
static void *held[HELD_MAX];
static unsigned long nheld;
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t held_place(const void *p)
{
	return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 48);
}

static void *hold(void *p)
{
	if (!p || !atomic_load(&on))
		return p;
	pthread_mutex_lock(&held_lock);
	size_t at = held_place(p);
	while (held[at % HELD_MAX])
		at++;
	held[at % HELD_MAX] = p;
	nheld++;
	pthread_mutex_unlock(&held_lock);
	return p;
}

/* Linear probing: what follows in the same run moves up, so that no hole parts it. */
static void let_go(void *p)
{
	pthread_mutex_lock(&held_lock);
	size_t at = nheld && p ? held_place(p) : 0;
	while (nheld && p && held[at % HELD_MAX] && held[at % HELD_MAX] != p)
		at++;
	if (nheld && p && held[at % HELD_MAX] == p) {
		nheld--;
		held[at % HELD_MAX] = NULL;
		while (held[++at % HELD_MAX]) {
			void *moved = held[at % HELD_MAX];
			size_t to = held_place(moved);
			held[at % HELD_MAX] = NULL;
			while (held[to % HELD_MAX])
				to++;
			held[to % HELD_MAX] = moved;
		}
	}
	pthread_mutex_unlock(&held_lock);
}

/* ---- what to do ---- */

int inject_set(const char *text)
{
	atomic_store(&on, 0);
	memset(value, 0, sizeof value);
	memset(nth, 0, sizeof nth);
	memset(held, 0, sizeof held);
	nheld = 0;
	atomic_store(&allocations, 0);
	atomic_store(&calls, 0);
	atomic_store(&faults, 0);
	while (text && *text) {
		char name[16], *end;
		int k = 0, n = 0;
		if (sscanf(text, "%15[a-z_]=%n", name, &n) != 1 || !n)
			return -1;
		while (k < SETTINGS && strcmp(names[k], name))
			k++;
		if (k == SETTINGS)
			return -1;
		value[k] = strtoul(text + n, &end, 10);
		if (end == text + n || (*end && *end != ';'))
			return -1;
		text = *end ? end + 1 : end;
	}
	return 0;
}

__attribute__((constructor)) static void from_environment(void)
{
	const char *text = getenv("GRADCOMP_INJECT");
	if (!text)
		return;
	if (inject_set(text)) {
		fprintf(stderr, "GRADCOMP_INJECT='%s' has no meaning: see tests/inject/inject.h\n", text);
		_exit(2);
	}
	inject_on();
}

void inject_on(void)
{
	atomic_store(&on, 1);
}

void inject_off(void)
{
	atomic_store(&on, 0);
}

inject_counts inject_seen(void)
{
	return (inject_counts){atomic_load(&allocations), atomic_load(&calls), atomic_load(&faults), nheld};
}

static uint64_t draw(int kind)
{
	uint64_t z = value[SEED] * 0x9e3779b97f4a7c15u + (uint64_t)kind * 0xd1342543de82ef95u + ++nth[kind];
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Whether the percentage of `kind` hits this call. */
static int hit(int kind)
{
	if (!atomic_load(&on) || !value[kind] || draw(kind) % 100 >= value[kind])
		return 0;
	atomic_fetch_add(&faults, 1);
	return 1;
}

static void late(void)
{
	if (hit(DELAY))
		usleep((useconds_t)value[DELAY_US]);
}

/* Whether this allocation is the one to fail. */
static int refused(void)
{
	if (!atomic_load(&on) || atomic_fetch_add(&allocations, 1) + 1 != value[ALLOC])
		return 0;
	atomic_fetch_add(&faults, 1);
	return 1;
}

/* A read or a write of `bytes` on a socket: 0, or -1 with errno. */
static int spoilt(int fd, size_t bytes)
{
	if (!atomic_load(&on))
		return 0;
	late();
	if (atomic_fetch_add(&calls, 1) + 1 == value[RESET]) {
		atomic_fetch_add(&faults, 1);
		shutdown(fd, SHUT_RDWR);
		errno = ECONNRESET;
		return -1;
	}
	/* One byte is a wake-up: it has room while the peer sleeps. */
	if (bytes > 1 && hit(EAGAIN_P)) {
		errno = EAGAIN;
		return -1;
	}
	if (bytes > 1 && hit(EINTR_P)) {
		errno = EINTR;
		return -1;
	}
	return 0;
}

static size_t cut(size_t bytes)
{
	return bytes > 1 && hit(SHORT) ? 1 + draw(SHORT) % (bytes - 1) : bytes;
}

#define IOV_MAX_HERE 8
/* A copy of the vector that ends where the call is cut short; returns its length. */
static int cut_vector(const struct iovec *from, size_t n, struct iovec to[IOV_MAX_HERE])
{
	size_t bytes = 0, left;
	int k = 0;

	for (size_t i = 0; i < n; i++)
		bytes += from[i].iov_len;
	left = cut(bytes);
	for (; (size_t)k < n && k < IOV_MAX_HERE && (left || !k); k++) {
		to[k] = from[k];
		if (to[k].iov_len > left)
			to[k].iov_len = left;
		left -= to[k].iov_len;
	}
	return k;
}

static size_t vector_bytes(const struct iovec *iov, size_t n)
{
	size_t bytes = 0;
	for (size_t i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	return bytes;
}

/* ---- reads, writes and waits ---- */

ssize_t __real_send(int fd, const void *buf, size_t bytes, int flags);
ssize_t __wrap_send(int fd, const void *buf, size_t bytes, int flags)
{
	return spoilt(fd, bytes) ? -1 : __real_send(fd, buf, cut(bytes), flags);
}

ssize_t __real_recv(int fd, void *buf, size_t bytes, int flags);
ssize_t __wrap_recv(int fd, void *buf, size_t bytes, int flags)
{
	return spoilt(fd, bytes) ? -1 : __real_recv(fd, buf, flags & MSG_PEEK ? bytes : cut(bytes), flags);
}

ssize_t __real_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct iovec iov[IOV_MAX_HERE];
	struct msghdr part = *m;

	if (spoilt(fd, vector_bytes(m->msg_iov, m->msg_iovlen)))
		return -1;
	part.msg_iov = iov;
	part.msg_iovlen = (size_t)cut_vector(m->msg_iov, m->msg_iovlen, iov);
	return __real_sendmsg(fd, &part, flags);
}

ssize_t __real_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *m, int flags)
{
	struct iovec iov[IOV_MAX_HERE], *whole = m->msg_iov;
	size_t n = m->msg_iovlen;
	ssize_t got;

	if (spoilt(fd, vector_bytes(whole, n)))
		return -1;
	if (!n)
		return __real_recvmsg(fd, m, flags);
	m->msg_iov = iov;
	m->msg_iovlen = (size_t)cut_vector(whole, n, iov);
	got = __real_recvmsg(fd, m, flags);
	m->msg_iov = whole;
	m->msg_iovlen = n;
	return got;
}

ssize_t __real_readv(int fd, const struct iovec *iov, int n);
ssize_t __wrap_readv(int fd, const struct iovec *iov, int n)
{
	struct iovec part[IOV_MAX_HERE];

	if (spoilt(fd, vector_bytes(iov, (size_t)n)))
		return -1;
	n = cut_vector(iov, (size_t)n, part);
	return __real_readv(fd, part, n);
}

/* Whole or not at all, as the kernel does it with one piece. */
ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long n, const struct iovec *from,
                                unsigned long m, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long n, const struct iovec *from,
                                unsigned long m, unsigned long flags)
{
	late();
	if (atomic_load(&on) && atomic_fetch_add(&calls, 1) + 1 == value[RESET]) {
		atomic_fetch_add(&faults, 1);
		errno = EFAULT;
		return -1;
	}
	return __real_process_vm_readv(pid, to, n, from, m, flags);
}

int __real_poll(struct pollfd *p, nfds_t n, int ms);
int __wrap_poll(struct pollfd *p, nfds_t n, int ms)
{
	late();
	if (hit(EINTR_P)) {
		errno = EINTR;
		return -1;
	}
	return __real_poll(p, n, ms);
}

int __wrap___poll_chk(struct pollfd *p, nfds_t n, int ms, size_t room);
int __wrap___poll_chk(struct pollfd *p, nfds_t n, int ms, size_t room)
{
	return n * sizeof *p > room ? (abort(), -1) : __wrap_poll(p, n, ms);
}

/* A connect that is interrupted goes on by itself. */
int __real_connect(int fd, const struct sockaddr *sa, socklen_t bytes);
int __wrap_connect(int fd, const struct sockaddr *sa, socklen_t bytes)
{
	int rc;

	late();
	rc = __real_connect(fd, sa, bytes);
	if ((!rc || errno == EINPROGRESS) && hit(EINTR_P)) {
		errno = EINTR;
		return -1;
	}
	return rc;
}

int __real_accept4(int fd, struct sockaddr *sa, socklen_t *bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *sa, socklen_t *bytes, int flags)
{
	if (hit(EAGAIN_P)) {
		errno = EAGAIN;
		return -1;
	}
	if (refused()) {
		errno = EMFILE;
		return -1;
	}
	return __real_accept4(fd, sa, bytes, flags);
}

/* ---- allocations ---- */

#define REFUSE(error, result) \
	do { \
		if (refused()) { \
			errno = error; \
			return result; \
		} \
	} while (0)

void *__wrap_malloc(size_t bytes)
{
	REFUSE(ENOMEM, NULL);
	return hold(__real_malloc(bytes));
}

void __wrap_free(void *p)
{
	let_go(p);
	__real_free(p);
}

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes)
{
	REFUSE(ENOMEM, NULL);
	return hold(__real_calloc(n, bytes));
}

void *__real_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes)
{
	void *q;

	REFUSE(ENOMEM, NULL);
	let_go(p);
	q = __real_realloc(p, bytes);
	return hold(q);
}

void *__wrap_reallocarray(void *p, size_t n, size_t bytes);
void *__wrap_reallocarray(void *p, size_t n, size_t bytes)
{
	size_t all;

	if (__builtin_mul_overflow(n, bytes, &all)) {
		errno = ENOMEM;
		return NULL;
	}
	return __wrap_realloc(p, all);
}

void *__real_aligned_alloc(size_t to, size_t bytes);
void *__wrap_aligned_alloc(size_t to, size_t bytes)
{
	REFUSE(ENOMEM, NULL);
	return hold(__real_aligned_alloc(to, bytes));
}

int __real_posix_memalign(void **p, size_t to, size_t bytes);
int __wrap_posix_memalign(void **p, size_t to, size_t bytes)
{
	int rc;

	REFUSE(ENOMEM, ENOMEM);
	rc = __real_posix_memalign(p, to, bytes);
	if (!rc)
		hold(*p);
	return rc;
}

char *__real_strdup(const char *s);
char *__wrap_strdup(const char *s)
{
	REFUSE(ENOMEM, NULL);
	return hold(__real_strdup(s));
}

char *__real_strndup(const char *s, size_t n);
char *__wrap_strndup(const char *s, size_t n)
{
	REFUSE(ENOMEM, NULL);
	return hold(__real_strndup(s, n));
}

int __wrap___asprintf_chk(char **out, int flag, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int __wrap___asprintf_chk(char **out, int flag, const char *fmt, ...)
{
	va_list ap;
	int n;

	(void)flag;
	REFUSE(ENOMEM, -1);
	va_start(ap, fmt);
	n = vasprintf(out, fmt, ap);
	va_end(ap);
	if (n >= 0)
		hold(*out);
	return n;
}

FILE *__real_open_memstream(char **at, size_t *bytes);
FILE *__wrap_open_memstream(char **at, size_t *bytes)
{
	REFUSE(ENOMEM, NULL);
	return __real_open_memstream(at, bytes);
}

void *__real_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t off)
{
	REFUSE(ENOMEM, MAP_FAILED);
	return __real_mmap(at, bytes, prot, flags, fd, off);
}

int __real_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags)
{
	REFUSE(EMFILE, -1);
	return __real_eventfd(count, flags);
}

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags)
{
	REFUSE(EMFILE, -1);
	return __real_memfd_create(name, flags);
}

int __real_socket(int family, int type, int protocol);
int __wrap_socket(int family, int type, int protocol)
{
	REFUSE(EMFILE, -1);
	return __real_socket(family, type, protocol);
}

int __real_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*main)(void *), void *arg);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*main)(void *), void *arg)
{
	REFUSE(EAGAIN, EAGAIN);
	return __real_pthread_create(out, attr, main, arg);
}
