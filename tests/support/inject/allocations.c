/* The wrapped allocations: memory, mappings, descriptors, threads. */
#define _GNU_SOURCE
#include "tests/support/inject/inject_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

void *__real_malloc(size_t bytes);
void __real_free(void *p);

#define REFUSE(error, result) \
	do { \
		if (inject_refused()) { \
			errno = error; \
			return result; \
		} \
	} while (0)

void *__wrap_malloc(size_t bytes)
{
	REFUSE(ENOMEM, NULL);
	return inject_track(__real_malloc(bytes));
}

void __wrap_free(void *p)
{
	inject_untrack(p);
	__real_free(p);
}

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes)
{
	REFUSE(ENOMEM, NULL);
	return inject_track(__real_calloc(n, bytes));
}

void *__real_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes)
{
	void *q;
	REFUSE(ENOMEM, NULL);
	inject_untrack(p);
	q = __real_realloc(p, bytes);
	return inject_track(q);
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
	return inject_track(__real_aligned_alloc(to, bytes));
}

int __real_posix_memalign(void **p, size_t to, size_t bytes);
int __wrap_posix_memalign(void **p, size_t to, size_t bytes)
{
	int rc;
	REFUSE(ENOMEM, ENOMEM);
	rc = __real_posix_memalign(p, to, bytes);
	if (!rc)
		inject_track(*p);
	return rc;
}

char *__real_strdup(const char *s);
char *__wrap_strdup(const char *s)
{
	REFUSE(ENOMEM, NULL);
	return inject_track(__real_strdup(s));
}

char *__real_strndup(const char *s, size_t n);
char *__wrap_strndup(const char *s, size_t n)
{
	REFUSE(ENOMEM, NULL);
	return inject_track(__real_strndup(s, n));
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
		inject_track(*out);
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
