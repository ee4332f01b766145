#include "conformance/hooks.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <locale.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "conformance/call_state.h"

#define BLOCKS_MAX 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *blocks[BLOCKS_MAX];
static int nblocks, forbidden_count;
static const char *forbidden_name;
static call_which forbidden_where;

static void note(const char *name, bool forbidden)
{
	if (!forbidden)
		return;
	if (!forbidden_count++) {
		forbidden_name = name;
		forbidden_where = call_now->which;
	}
}

void hooks_note(const char *name)
{
	note(name, call_in_step());
}

/* In create() and destroy(), too. */
static void note_anywhere(const char *name)
{
	note(name, call_now->which != CALL_NONE);
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

int hooks_count(void)
{
	return forbidden_count;
}

void hooks_forget(int before)
{
	forbidden_count = before;
	if (!before)
		forbidden_name = NULL;
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

size_t hooks_most = SIZE_MAX / 4, hooks_refused;

static bool too_much(size_t n, size_t size)
{
	if (!size || n <= hooks_most / size)
		return false;
	hooks_refused = n;
	return true;
}

static void *hook_malloc(size_t n)
{
	return taken(too_much(n, 1) ? NULL : malloc(n), "malloc");
}

static void *hook_calloc(size_t n, size_t size)
{
	return taken(too_much(n, size) ? NULL : calloc(n, size), "calloc");
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

static char *hook_strdup(const char *text)
{
	return taken(strdup(text), "strdup");
}

/* Functions that are called all the same: in a step they may not be, or nowhere. */
#define STEP(type, name, args, pass) \
	static type hook_##name args \
	{ \
		hooks_note(#name); \
		return name pass; \
	}
#define NOWHERE(type, name, args, pass) \
	static type hook_##name args \
	{ \
		note_anywhere(#name); \
		return name pass; \
	}

STEP(int, pthread_mutex_lock, (pthread_mutex_t * m), (m))
STEP(int, pthread_rwlock_rdlock, (pthread_rwlock_t * m), (m))
STEP(int, pthread_rwlock_wrlock, (pthread_rwlock_t * m), (m))
STEP(int, pthread_cond_wait, (pthread_cond_t * c, pthread_mutex_t *m), (c, m))
STEP(int, pthread_join, (pthread_t t, void **out), (t, out))
STEP(int, sem_wait, (sem_t * s), (s))
STEP(int, sched_yield, (void), ())
STEP(int, poll, (struct pollfd * p, nfds_t n, int ms), (p, n, ms))
STEP(int, open, (const char *path, int flags, mode_t mode), (path, flags, mode))
STEP(FILE *, fopen, (const char *path, const char *mode), (path, mode))
STEP(ssize_t, read, (int fd, void *out, size_t n), (fd, out, n))
STEP(ssize_t, write, (int fd, const void *in, size_t n), (fd, in, n))
STEP(ssize_t, getrandom, (void *out, size_t n, unsigned flags), (out, n, flags))
STEP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t from), (at, n, prot, flags, fd, from))
STEP(void *, dlopen, (const char *path, int mode), (path, mode))
STEP(int, socket, (int family, int type, int protocol), (family, type, protocol))
STEP(int, rand, (void), ())
STEP(long, random, (void), ())
STEP(double, drand48, (void), ())
STEP(int, pthread_create, (pthread_t * t, const pthread_attr_t *a, void *(*run)(void *), void *ctx), (t, a, run, ctx))
NOWHERE(int, nanosleep, (const struct timespec *want, struct timespec *left), (want, left))
NOWHERE(int, clock_nanosleep, (clockid_t c, int f, const struct timespec *want, struct timespec *left),
        (c, f, want, left))
NOWHERE(int, usleep, (useconds_t us), (us))
NOWHERE(unsigned, sleep, (unsigned s), (s))
NOWHERE(pid_t, fork, (void), ())
/* NOLINTBEGIN(cert-env33-c): a plugin that calls these is what is looked for */
NOWHERE(int, system, (const char *command), (command))
NOWHERE(FILE *, popen, (const char *command, const char *mode), (command, mode))
/* NOLINTEND(cert-env33-c) */
NOWHERE(int, chdir, (const char *path), (path))
NOWHERE(char *, setlocale, (int what, const char *name), (what, name))
NOWHERE(int, setenv, (const char *name, const char *value, int replace), (name, value, replace))
NOWHERE(int, putenv, (char *assignment), (assignment))
NOWHERE(mode_t, umask, (mode_t mask), (mask))

/* The numbers that follow are the application's. */
static void hook_srand(unsigned seed)
{
	note_anywhere("srand");
	srand(seed);
}

static void hook_srandom(unsigned seed)
{
	note_anywhere("srandom");
	srandom(seed);
}

static int hook_sigaction(int n, const struct sigaction *act, struct sigaction *old)
{
	if (act)
		note_anywhere("sigaction");
	return sigaction(n, act, old);
}

static void (*hook_signal(int n, void (*handler)(int)))(int)
{
	note_anywhere("signal");
	return signal(n, handler);
}

/* The functions below tell another process something else. */

bool hooks_elsewhere;
static const char *asked_name;
static call_which asked_in;

/* Its answer belongs to the process, the machine or the moment. */
static bool ask(const char *name)
{
	if (call_now->which != CALL_NONE && !asked_name) {
		asked_name = name;
		asked_in = call_now->which;
	}
	return hooks_elsewhere;
}

const char *hooks_asked(const char **function)
{
	*function = call_name(asked_in);
	return asked_name;
}

enum { LATER_S = 86400 * 40 + 17, LATER_NS = 123456789 };

static int hook_clock_gettime(clockid_t c, struct timespec *t)
{
	int status = clock_gettime(c, t);
	if (ask("clock_gettime")) {
		t->tv_sec += LATER_S;
		t->tv_nsec = (t->tv_nsec + LATER_NS) % 1000000000;
	}
	return status;
}

static int hook_gettimeofday(struct timeval *t, void *zone)
{
	int status = gettimeofday(t, zone);
	if (ask("gettimeofday")) {
		t->tv_sec += LATER_S;
		t->tv_usec = (t->tv_usec + LATER_NS / 1000) % 1000000;
	}
	return status;
}

static int hook_timespec_get(struct timespec *t, int base)
{
	int status = timespec_get(t, base);
	if (ask("timespec_get"))
		t->tv_sec += LATER_S;
	return status;
}

static time_t hook_time(time_t *out)
{
	time_t t = time(NULL);
	if (ask("time"))
		t += LATER_S;
	if (out)
		*out = t;
	return t;
}

static clock_t hook_clock(void)
{
	return clock() + (ask("clock") ? LATER_S : 0);
}

static int hook_gethostname(char *name, size_t n)
{
	int status = gethostname(name, n);
	if (ask("gethostname") && n)
		snprintf(name, n, "elsewhere");
	return status;
}

static int hook_uname(struct utsname *u)
{
	int status = uname(u);
	if (ask("uname"))
		snprintf(u->nodename, sizeof u->nodename, "elsewhere");
	return status;
}

/* Processes differ in these by themselves, but by little. */
#define OTHER(type, name) \
	static type hook_##name(void) \
	{ \
		return name() + (ask(#name) ? (type)1021 : (type)0); \
	}
OTHER(pid_t, getpid)
OTHER(pid_t, getppid)
OTHER(pid_t, gettid)
OTHER(long, gethostid)
OTHER(uid_t, getuid)
OTHER(uid_t, geteuid)

/* One that there is. */
static int hook_sched_getcpu(void)
{
	int cpu = sched_getcpu();
	return ask("sched_getcpu") ? (cpu + 1) % (int)sysconf(_SC_NPROCESSORS_CONF) : cpu;
}

static call_which environment_in;

const char *hooks_environment(void)
{
	return environment_in == CALL_NONE ? NULL : call_name(environment_in);
}

static char *hook_getenv(const char *name)
{
	if (environment_in == CALL_NONE)
		environment_in = call_now->which;
	return getenv(name);
}

static char *hook_secure_getenv(const char *name)
{
	if (environment_in == CALL_NONE)
		environment_in = call_now->which;
	return secure_getenv(name);
}

typedef void (*function)(void);
#define HOOK(name) \
	{ \
#name, (function)hook_##name \
	}
static const struct {
	const char *name;
	function hook;
} hooks[] = {
	HOOK(malloc),
	HOOK(calloc),
	HOOK(realloc),
	HOOK(aligned_alloc),
	HOOK(memalign),
	HOOK(posix_memalign),
	HOOK(free),
	HOOK(strdup),
	HOOK(pthread_mutex_lock),
	HOOK(pthread_rwlock_rdlock),
	HOOK(pthread_rwlock_wrlock),
	HOOK(pthread_cond_wait),
	HOOK(pthread_join),
	HOOK(sem_wait),
	HOOK(sched_yield),
	HOOK(poll),
	HOOK(open),
	HOOK(fopen),
	HOOK(read),
	HOOK(write),
	HOOK(getrandom),
	HOOK(mmap),
	HOOK(dlopen),
	HOOK(socket),
	HOOK(rand),
	HOOK(random),
	HOOK(drand48),
	HOOK(srand),
	HOOK(srandom),
	HOOK(pthread_create),
	HOOK(nanosleep),
	HOOK(clock_nanosleep),
	HOOK(usleep),
	HOOK(sleep),
	HOOK(fork),
	HOOK(system),
	HOOK(clock_gettime),
	HOOK(gettimeofday),
	HOOK(timespec_get),
	HOOK(time),
	HOOK(clock),
	HOOK(gethostname),
	HOOK(uname),
	HOOK(getpid),
	HOOK(getppid),
	HOOK(gettid),
	HOOK(gethostid),
	HOOK(sched_getcpu),
	HOOK(getuid),
	HOOK(geteuid),
	HOOK(getenv),
	HOOK(secure_getenv),
	HOOK(popen),
	HOOK(chdir),
	HOOK(setlocale),
	HOOK(setenv),
	HOOK(putenv),
	HOOK(umask),
	HOOK(sigaction),
	HOOK(signal),
};

/* One word of a table of addresses, which may be read-only by now. */
static int redirect(ElfW(Addr) * slot, const char *name)
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
	const ElfW(Rela) * tables[2] = {NULL, NULL};
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
				n += redirect((ElfW(Addr) *)(m->l_addr + r->r_offset),
				              strings + symbols[symbol].st_name);
		}
	return n;
}

int hooks_install(const void *address)
{
	static const char *const system[] = {"/libc.so",  "/libm.so", "/ld-linux", "/libgradcomp.so", "/libasan",
	                                     "/libubsan", "/libtsan", "/libgcc_s", "linux-vdso",      "/libpthread"};
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
