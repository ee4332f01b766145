/* Two instances side by side share nothing: the first goes on to the bit as if it
 * were alone, and no static data of the shared object changes. */
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/kit.h"

/* A coverage build adds to a plugin what counts in static data; AddressSanitizer forbids reading the gaps it leaves
 * between variables. */
extern void __gcov_exit(void) __attribute__((weak));
extern void __asan_init(void) __attribute__((weak));

typedef struct statics {
	const void *address; /* in the object: not of the descriptor, of which the host has a copy */
	char *from;
	size_t bytes;
	char *copy;
} statics;

/* The writable part of the object that is not made read-only after loading. */
static int find_statics(struct dl_phdr_info *info, size_t size, void *ctx)
{
	statics *s = ctx;
	uintptr_t at = (uintptr_t)s->address, relro_end = 0;
	int here = 0;
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr;
		here |= p->p_type == PT_LOAD && at >= start && at < start + p->p_memsz;
		if (p->p_type == PT_GNU_RELRO)
			relro_end = (start + p->p_memsz) & ~(uintptr_t)4095;
	}
	for (int i = 0; here && i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr, end = start + p->p_memsz;
		if (p->p_type != PT_LOAD || !(p->p_flags & PF_W) || end <= relro_end)
			continue;
		s->from = (char *)(start > relro_end ? start : relro_end);
		s->bytes = (size_t)(end - (uintptr_t)s->from);
	}
	return here;
}

static void changed_statics(kit *k, const statics *s)
{
	for (size_t i = 0; s->copy && i < s->bytes; i++)
		if (s->copy[i] != s->from[i]) {
			kit_fail(k, RULE_GLOBALS,
			         "static data of the plugin changes in a step (byte %zu of %zu that are "
			         "writable)\na static variable",
			         i, s->bytes);
			return;
		}
}

/* Values other than the plugin's own: the first number goes to its upper end. */
static const gradcomp_value *other_values(const fixture *t, gradcomp_value *room)
{
	const gradcomp_plugin_info *info = &t->plugin->info;
	memcpy(room, t->values, info->nparams * sizeof *room);
	for (uint32_t i = 0; i < info->nparams; i++) {
		const gradcomp_param *p = &info->params[i];
		if (p->min == p->max || p->max > 1e6)
			continue;
		if (p->type == GRADCOMP_PARAM_INT)
			room[i].i = (int64_t)p->max;
		if (p->type == GRADCOMP_PARAM_FLOAT)
			room[i].f = p->max;
		if (p->type == GRADCOMP_PARAM_INT || p->type == GRADCOMP_PARAM_FLOAT)
			break;
	}
	gradcomp_host host;
	gradcomp_error err;
	host_services(&host, t->op);
	return t->plugin->check && t->plugin->check(&host, room, &err) ? t->values : room;
}

static void beside(kit *k, const kit_place *p, model *mb, const gradcomp_value *vb, int steps)
{
	const fixture *t = &k->fixture;
	float *g[RANKS_MAX], *h[RANKS_MAX], *o[RANKS_MAX];
	const uint64_t seed = random_check();
	gradcomp_status st;
	ranks a, b, other;
	st = kit_open_at(k, &a, p, seed);
	if (st && !kit_declined(&a, st))
		kit_fail(k, k->crash, "create() fails for %d ranks, %s: %s", p->P, p->m->name, a.err.text);
	if (st)
		return;
	if (kit_open_at(k, &b, p, seed)) {
		ranks_close(&a);
		return;
	}
	if (ranks_open(&other, t->plugin, t->op, vb, 3, mb->n, mb->dims, random_check())) {
		ranks_close(&a), ranks_close(&b);
		return;
	}
	a.light = b.light = other.light = steps >= 100;
	fixture_gradients_new(&a, g), fixture_gradients_new(&b, h), fixture_gradients_new(&other, o);
	for (int step = 0, alike = 1; alike && step < steps; step++) {
		fixture_fill(t, &a, g, KIND_NORMAL);
		for (int w = 0; w < a.P; w++)
			memcpy(h[w], g[w], a.numel * sizeof(float));
		alike = kit_step(k, &a, g, 0); /* alone */
		fixture_fill(t, &other, o, KIND_SCALES);
		alike = alike && kit_step(k, &other, o, 0) && kit_step(k, &b, h, 0) &&
		        kit_alike(k, RULE_GLOBALS, "with another instance at work in between", &a, g, &b, h);
	}
	fixture_gradients_free(&a, g), fixture_gradients_free(&b, h), fixture_gradients_free(&other, o);
	ranks_close(&a), ranks_close(&b), ranks_close(&other);
}

void instances_group(kit *k)
{
	statics s = {.address = k->fixture.plugin->info.name};
	const uint32_t since = k->since;
	gradcomp_value *room = calloc(k->fixture.plugin->info.nparams + 1, sizeof *room);
	if (!room)
		return;
	dl_iterate_phdr(find_statics, &s);
	s.copy = s.bytes && !__gcov_exit && !__asan_init ? malloc(s.bytes) : NULL;
	if (s.copy)
		memcpy(s.copy, s.from, s.bytes);
	beside(k, &(kit_place){2, &fixture_models[6], UINT64_MAX, 0, false}, &fixture_models[7], k->fixture.values, 4);
	k->since = KIT_FURTHER;
	for (int n = 0; n < kit_places(k); n++) {
		kit_place p = kit_reach(k, n);
		beside(k, &p, &fixture_few, k->fixture.values, 2);
	}
	if (k->options->far)
		beside(k, &(kit_place){2, &fixture_few, UINT64_MAX, 0, false}, &fixture_few, k->fixture.values,
		       REACH_STEPS / 2);
	k->since = since;
	changed_statics(k, &s);
	beside(k, &(kit_place){2, &fixture_models[7], UINT64_MAX, 0, false}, &fixture_models[6],
	       other_values(&k->fixture, room), 4);
	kit_ok(k, RULE_GLOBALS, "two instances in turn, each as if alone; %zu bytes of static data stay as they are",
	       s.copy ? s.bytes : 0);
	free(s.copy);
	free(room);
}
