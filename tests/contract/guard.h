/* Memory for plugins under test: every buffer ends at a page that cannot be
 * touched, begins poisoned, and can be made read-only; and the host's services, with
 * an allocator that counts and fails when told. One thread. */
#ifndef CONTRACT_GUARD_H
#define CONTRACT_GUARD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gradcomp/abi.h"

/* ---- memory with a wall behind it ------------------------------------------ */

typedef struct guarded {
	char *map;
	size_t span; /* writable pages; one more follows */
	char *data;
	size_t bytes;
} guarded;

__attribute__((unused)) static guarded guard(size_t bytes, size_t align)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	guarded g = {.bytes = bytes};
	g.span = (bytes + align + page - 1) / page * page;
	g.map = mmap(NULL, g.span + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (g.map == MAP_FAILED || mprotect(g.map + g.span, page, PROT_NONE)) {
		perror("guard");
		exit(1);
	}
	memset(g.map, 0xa5, g.span);
	g.data = g.map + g.span - (bytes + align - 1) / align * align;
	return g;
}

/* Whether the bytes before it and the few between its end and the wall are as
 * they were. */
__attribute__((unused)) static int guard_whole(const guarded *g)
{
	for (const char *p = g->map; p < g->data; p++)
		if (*p != (char)0xa5)
			return 0;
	for (const char *p = g->data + g->bytes; p < g->map + g->span; p++)
		if (*p != (char)0xa5)
			return 0;
	return 1;
}

__attribute__((unused)) static void guard_lock(const guarded *g, int read_only)
{
	if (g->map && mprotect(g->map, g->span, read_only ? PROT_READ : PROT_READ | PROT_WRITE))
		perror("mprotect");
}

__attribute__((unused)) static void guard_free(guarded *g)
{
	if (g->map)
		munmap(g->map, g->span + (size_t)sysconf(_SC_PAGESIZE));
	memset(g, 0, sizeof *g);
}

/* ---- the host ------------------------------------------------------------------- */

static int host_allocated, host_fail_at = -1;

__attribute__((unused)) static void *host_alloc(size_t bytes)
{
	if (host_fail_at == 0)
		return NULL;
	host_fail_at -= host_fail_at > 0;
	void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
	if (p) {
		memset(p, 0, bytes);
		host_allocated++;
	}
	return p;
}

__attribute__((unused)) static void host_release(void *p)
{
	host_allocated -= p != NULL;
	free(p);
}

__attribute__((format(printf, 3, 4), unused)) static gradcomp_status host_fail(gradcomp_error *err,
                                                                               gradcomp_status s, const char *fmt,
                                                                               ...)
{
	va_list ap;
	va_start(ap, fmt);
	if (err) {
		err->status = s;
		vsnprintf(err->text, sizeof err->text, fmt, ap);
	}
	va_end(ap);
	return s;
}

__attribute__((format(printf, 3, 4), unused)) static void host_log(void *ctx, gradcomp_log_level level,
                                                                   const char *fmt, ...)
{
	(void)ctx, (void)level, (void)fmt;
}

#endif
