/* The same runs in two processes: what ranks make must not hang on what differs between processes. The second
 * has another pid, clock, host name, user and environment, loads another copy of the shared object, has memory at other
 * addresses, and finds other bytes where nobody has written. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "conformance/hooks.h"
#include "conformance/kit.h"

typedef enum made_what { MADE_PAYLOAD, MADE_AVERAGE, MADE_MEMORY, MADE_STATE, MADE_SAVED } made_what;
static const char *const what_names[] = {[MADE_PAYLOAD] = "a payload",
                                         [MADE_AVERAGE] = "the average",
                                         [MADE_MEMORY] = "the error memory",
                                         [MADE_STATE] = "the state arrays",
                                         [MADE_SAVED] = "what save() gives"};

enum { MADE_MAX = 1 << 17 };
/* Hashes of all that the ranks of the first process make, in order. */
struct kit_trace {
	uint32_t n;
	uint64_t made[MADE_MAX];
};

/* These belong to this process. */
static kit *comparing; /* NULL: this is the first */
static kit_trace *list;
static uint32_t at;
static bool differs;
static const char *model_name;

kit_trace *elsewhere_trace_new(void)
{
	void *p = mmap(NULL, sizeof(kit_trace), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

void elsewhere_trace_free(kit_trace *t)
{
	if (t)
		munmap(t, sizeof *t);
}

static void tell(const ranks *s, made_what what, int rank)
{
	const char *function, *asked = hooks_asked(&function);
	kit_fail(comparing, what == MADE_SAVED ? RULE_RESUME : RULE_AGREEMENT,
	         "step %llu of %d ranks, %s: %s of rank %d is another in a process with another pid, clock, host "
	         "name, user, environment and "
	         "addresses, and with other bytes in memory that nobody has written%s%s%s%s\n"
	         "%s",
	         (unsigned long long)s->step, s->P, model_name, what_names[what], rank, asked ? "; it calls " : "",
	         asked ? asked : "", asked ? "() in " : "", asked ? function : "",
	         asked ? "take it from layout->seed, the step and the rank"
	               : "an address is used as a number, or memory is read before it is written");
}

static void make(const ranks *s, made_what what, int rank, const void *data, uint64_t bytes)
{
	uint64_t hash = XXH64(data, bytes, bytes);
	if (at == MADE_MAX || differs)
		return;
	if (!comparing)
		list->made[list->n++] = hash;
	else if (at >= list->n || list->made[at] != hash) {
		differs = true;
		tell(s, what, rank);
	}
	at++;
}

static void make_payload(ranks *s, const gradcomp_bucket *bucket, uint32_t round, int rank, gradcomp_payload *p)
{
	(void)bucket, (void)round;
	make(s, MADE_PAYLOAD, rank, p->data, p->bytes);
}

static void make_saved(ranks *s, int w)
{
	uint64_t bytes = 0;
	if (!s->plugin->save || ranks_call(s, &(call){.which = CALL_SAVE, .rank = w, .bytes = &bytes}))
		return;
	guarded g = guard("the saved state", bytes, 8);
	if (!ranks_call(s, &(call){.which = CALL_SAVE, .rank = w, .to = g.data, .capacity = bytes, .bytes = &bytes}))
		make(s, MADE_SAVED, w, g.data, bytes);
	guard_free(&g);
}

static void trace_run(kit *k, const kit_place *p, int steps)
{
	float *g[RANKS_MAX];
	ranks s;
	model_name = p->m->name;
	if (kit_open_at(k, &s, p, random_check()))
		return;
	s.stale = comparing ? 0xc3 : 0x5a;
	s.made = make_payload;
	s.light = steps >= 100;
	fixture_gradients_new(&s, g);
	for (int n = 0; !differs && n < steps; n++) {
		fixture_fill(&k->fixture, &s, g, KIND_NORMAL);
		if (ranks_step(&s, g, n & 1))
			break;
		make(&s, MADE_AVERAGE, 0, g[0], s.numel * sizeof(float));
		for (int w = 0; w < s.P; w++) {
			make(&s, MADE_MEMORY, w, s.error[w], s.numel * sizeof(float));
			make(&s, MADE_STATE, w, s.state[w], s.numel * s.plugin->state_arrays * sizeof(float));
		}
	}
	for (int w = 0; !differs && w < s.P && w < 3; w++)
		make_saved(&s, w);
	fixture_gradients_free(&s, g);
	ranks_close(&s);
}

static void trace_all(kit *k)
{
	const int P = k->options->ranks_max < 2 ? 1 : 2;
	list = k->trace;
	random_check_seed(k->options->seed);
	trace_run(k, &(kit_place){P == 1 ? 1 : 3, &fixture_models[6], 3000, 0, false}, 4);
	trace_run(k, &(kit_place){P, &fixture_few, UINT64_MAX, 0, false}, REACH_STEPS / 2);
	for (int n = 0; n < KIT_PLACES; n++) {
		kit_place p = kit_reach(k, n);
		trace_run(k, &p, 2);
	}
}

void elsewhere_trace_group(kit *k)
{
	if (!k->trace || !k->options->far)
		return;
	k->trace->n = 0;
	trace_all(k);
}

/* Another copy, with code and data at other addresses; where there can be none, the plugin itself. */
static const struct gradcomp_compressor_v1 *loaded_again(const struct gradcomp_compressor_v1 *plugin)
{
	static struct gradcomp_compressor_v1 copy;
	const struct gradcomp_compressor_v1 *exported = NULL;
	char path[64];
	struct stat of;
	Dl_info info;
	void *so;
	int from = -1, to = -1;
	if (dladdr(plugin->info.name, &info) && info.dli_fname &&
	    (from = open(info.dli_fname, O_RDONLY | O_CLOEXEC)) >= 0 && !fstat(from, &of) &&
	    (to = memfd_create("copy", MFD_CLOEXEC)) >= 0 &&
	    sendfile(to, from, NULL, (size_t)of.st_size) == of.st_size) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", to);
		so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		exported = so ? dlsym(so, "gradcomp_compressor_v1") : NULL;
	}
	if (from >= 0)
		close(from);
	if (to >= 0)
		close(to);
	if (!exported)
		return plugin;
	/* The host does the same: a field that an older plugin lacks is zero. */
	memcpy(&copy, exported, exported->info.struct_size < sizeof copy ? exported->info.struct_size : sizeof copy);
	return &copy;
}

/* Makes all variables, with other values, and some more. */
static char **other_environment(void)
{
	static char *more[] = {"RANK=7", "SLURM_PROCID=7", "HOSTNAME=elsewhere", "USER=somebody", "TZ=Asia/Tokyo"};
	size_t n = 0;
	char **out;
	while (environ[n])
		n++;
	out = calloc(n + sizeof more / sizeof more[0] + 1, sizeof *out);
	for (size_t i = 0; out && i < n; i++)
		if (asprintf(&out[i], "%.*s=elsewhere", (int)strcspn(environ[i], "="), environ[i]) < 0) {
			while (i)
				free(out[--i]);
			free(out);
			return NULL;
		}
	for (size_t i = 0; out && i < sizeof more / sizeof more[0]; i++)
		out[n + i] = more[i];
	return out;
}

/* Traces with so many more pages of the stack in use. */
__attribute__((noinline)) static void trace_deeper(kit *k, int pages)
{
	volatile char page[4096];
	page[0] = (char)pages;
	if (page[0])
		trace_deeper(k, pages - 1);
	else
		trace_all(k);
	page[1] = page[0];
}

void elsewhere_group(kit *k)
{
	char **own = environ, **other = other_environment();
	const struct gradcomp_compressor_v1 *plugin = k->fixture.plugin;
	void *higher;
	if (!k->trace || !k->options->far || !other ||
	    mmap(NULL, (size_t)97 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED)
		return;
	higher = malloc(100003);
	comparing = k;
	at = 0;
	differs = false;
	guard_turn(1);
	hooks_elsewhere = true;
	environ = other;
	k->fixture.plugin = loaded_again(plugin);
	hooks_install(k->fixture.plugin->info.name);
	trace_deeper(k, 1 + getpid() % 16);
	k->fixture.plugin = plugin;
	environ = own;
	hooks_elsewhere = false;
	free(higher);
}
