#include "tools/conformance/hooks.h"

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tools/conformance/call.h"

#define BLOCKS_MAX 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *blocks[BLOCKS_MAX];
static int nblocks, forbidden_count;
static const char *forbidden_name;
static call_which forbidden_where;

void hooks_note(const char *name)
{
	if (!call_in_step())
		return;
	if (!forbidden_count++) {
		forbidden_name = name;
		forbidden_where = call_now->which;
	}
}

const char *hooks_forbidden(const char **function, int *count)
{
	const char *name = forbidden_name;

	*function = call_name(forbidden_where);
	*count = forbidden_count;
	forbidden_name = NULL;
	forbidden_count = 0;
	return name;
}

int hooks_outstanding(void)
{
	return nblocks;
}

static void *taken(void *p, const char *name)
{
	hooks_note(name);
	pthread_mutex_lock(&lock);
	if (p && nblocks < BLOCKS_MAX)
		blocks[nblocks++] = p;
	pthread_mutex_unlock(&lock);
	return p;
}

static void given(void *p)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; p && i < nblocks; i++)
		if (blocks[i] == p) {
			blocks[i] = blocks[--nblocks];
			break;
		}
	pthread_mutex_unlock(&lock);
}

static void *hook_malloc(size_t n)
{
	return taken(malloc(n), "malloc");
}

static void *hook_calloc(size_t n, size_t size)
{
	return taken(calloc(n, size), "calloc");
}

static void *hook_realloc(void *p, size_t n)
{
	void *now;

	given(p);
	now = realloc(p, n);
	return now || !n ? taken(now, "realloc") : (taken(p, "realloc"), NULL);
}

static void *hook_aligned_alloc(size_t align, size_t n)
{
	return taken(aligned_alloc(align, n), "aligned_alloc");
}

static void *hook_memalign(size_t align, size_t n)
{
	return taken(memalign(align, n), "memalign");
}

static int hook_posix_memalign(void **p, size_t align, size_t n)
{
	int status = posix_memalign(p, align, n);

	taken(status ? NULL : *p, "posix_memalign");
	return status;
}

static void hook_free(void *p)
{
	if (p)
		hooks_note("free");
	given(p);
	free(p);
}

static int hook_mutex_lock(pthread_mutex_t *m)
{
	hooks_note("pthread_mutex_lock");
	return pthread_mutex_lock(m);
}

static int hook_thread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *ctx)
{
	hooks_note("pthread_create");
	return pthread_create(t, a, run, ctx);
}

static int hook_nanosleep(const struct timespec *want, struct timespec *left)
{
	hooks_note("nanosleep");
	return nanosleep(want, left);
}

static int hook_usleep(useconds_t us)
{
	hooks_note("usleep");
	return usleep(us);
}

static unsigned hook_sleep(unsigned s)
{
	hooks_note("sleep");
	return sleep(s);
}

static pid_t hook_fork(void)
{
	hooks_note("fork");
	return fork();
}

static int hook_sigaction(int n, const struct sigaction *act, struct sigaction *old)
{
	if (act)
		hooks_note("sigaction");
	return sigaction(n, act, old);
}

static void (*hook_signal(int n, void (*handler)(int)))(int)
{
	hooks_note("signal");
	return signal(n, handler);
}

typedef void (*function)(void);
static const struct {
	const char *name;
	function hook;
} hooks[] = {
	{"malloc", (function)hook_malloc},
	{"calloc", (function)hook_calloc},
	{"realloc", (function)hook_realloc},
	{"aligned_alloc", (function)hook_aligned_alloc},
	{"memalign", (function)hook_memalign},
	{"posix_memalign", (function)hook_posix_memalign},
	{"free", (function)hook_free},
	{"pthread_mutex_lock", (function)hook_mutex_lock},
	{"pthread_create", (function)hook_thread_create},
	{"nanosleep", (function)hook_nanosleep},
	{"usleep", (function)hook_usleep},
	{"sleep", (function)hook_sleep},
	{"fork", (function)hook_fork},
	{"sigaction", (function)hook_sigaction},
	{"signal", (function)hook_signal},
};

/* One word of a table of addresses, which may be read-only by now. */
static int redirect(ElfW(Addr) *slot, const char *name)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *start = (char *)((uintptr_t)slot / page * page);

	for (size_t i = 0; i < sizeof hooks / sizeof hooks[0]; i++) {
		void *real = dlsym(RTLD_DEFAULT, name);

		if (strcmp(hooks[i].name, name) || *slot != (ElfW(Addr))(uintptr_t)real)
			continue;
		if (mprotect(start, page, PROT_READ | PROT_WRITE))
			return 0;
		*slot = (ElfW(Addr))(uintptr_t)hooks[i].hook;
		return 1;
	}
	return 0;
}

/* glibc has made addresses of the offsets in this table on most machines. */
static const void *located(const struct link_map *m, ElfW(Addr) p)
{
	return (const void *)(p < m->l_addr ? p + m->l_addr : p);
}

static int redirect_all(const struct link_map *m)
{
	const ElfW(Rela) *tables[2] = {NULL, NULL};
	size_t bytes[2] = {0, 0};
	const ElfW(Sym) *symbols = NULL;
	const char *strings = NULL;
	int n = 0;

	for (const ElfW(Dyn) *d = m->l_ld; d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_JMPREL)
			tables[0] = located(m, d->d_un.d_ptr);
		if (d->d_tag == DT_PLTRELSZ)
			bytes[0] = d->d_un.d_val;
		if (d->d_tag == DT_RELA)
			tables[1] = located(m, d->d_un.d_ptr);
		if (d->d_tag == DT_RELASZ)
			bytes[1] = d->d_un.d_val;
		if (d->d_tag == DT_SYMTAB)
			symbols = located(m, d->d_un.d_ptr);
		if (d->d_tag == DT_STRTAB)
			strings = located(m, d->d_un.d_ptr);
	}
	for (int t = 0; symbols && strings && t < 2; t++)
		for (size_t i = 0; tables[t] && i < bytes[t] / sizeof(ElfW(Rela)); i++) {
			const ElfW(Rela) *r = &tables[t][i];
			size_t symbol = ELF64_R_SYM(r->r_info);

			if (symbol && !r->r_addend)
				n += redirect((ElfW(Addr) *)(m->l_addr + r->r_offset), strings + symbols[symbol].st_name);
		}
	return n;
}

int hooks_install(const void *address)
{
	static const char *const system[] = {"/libc.so", "/libm.so", "/ld-linux", "/libgradcomp.so", "/libasan",
	                                     "/libubsan", "/libtsan", "/libgcc_s", "linux-vdso", "/libpthread"};
	struct link_map *m = NULL;
	Dl_info info;
	int n = 0;

	if (!dladdr1(address, &info, (void **)&m, RTLD_DL_LINKMAP) || !m)
		return 0;
	for (; m->l_prev; m = m->l_prev)
		;
	for (; m; m = m->l_next) {
		int ours = *m->l_name != '\0';

		for (size_t i = 0; i < sizeof system / sizeof system[0]; i++)
			ours &= !strstr(m->l_name, system[i]);
		if (ours)
			n += redirect_all(m);
	}
	return n;
}
