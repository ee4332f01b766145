#include "tools/bench_specs.h"

#include "tools/bench.h"

#include <stdlib.h>
#include <string.h>

typedef struct search {
	const char *wanted; /* a name; NULL: all */
	bench_spec *specs;
	int n, most;
	char why[sizeof ((gradcomp_error *)0)->text]; /* the wanted one cannot be used */
} search;

static int note(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	search *s = ctx;
	if (!info && s->wanted && !strcmp(s->wanted, name))
		snprintf(s->why, sizeof s->why, "%s", reason);
	if (!info || (s->wanted && strcmp(s->wanted, name)) || s->n == s->most)
		return 0;
	bench_spec *found = &s->specs[s->n++];
	snprintf(found->spec, sizeof found->spec, "%s", name);
	snprintf(found->path, sizeof found->path, "%s", path);
	return s->wanted != NULL;
}

int bench_specs_find(gradcomp_plugin_kind kind, const char *list, const char *option, bench_spec *specs, int most,
                     gradcomp_error *err)
{
	search s = {.specs = specs, .most = most};
	char name[64];
	if (!list)
		return gradcomp_plugin_each(kind, note, &s, err) < 0 ? -1 : s.n;
	for (const char *p = list;; p++) {
		size_t n = strcspn(p, ";"), head = strcspn(p, ":;");
		int before = s.n;
		snprintf(name, sizeof name, "%.*s", (int)head, p);
		s.wanted = name;
		if (gradcomp_plugin_each(kind, note, &s, err) < 0)
			return -1;
		if (s.n == before && *s.why)
			return bench_failed(err, GRADCOMP_ERR_ABI, "%s: %s", option, s.why);
		if (s.n == before)
			return bench_failed(err, GRADCOMP_ERR_NOTFOUND, "%s: '%s' is not installed; gradcomp list shows what is%s",
			                    option, name, strpbrk(name, ",=") ? "; SPECs of a list are parted by ';'" : "");
		if (n >= sizeof specs->spec)
			return bench_failed(err, GRADCOMP_ERR_INVALID, "%s: a SPEC of more than %zu characters", option,
			                    sizeof specs->spec - 1);
		snprintf(specs[before].spec, sizeof specs->spec, "%.*s", (int)n, p);
		p += n;
		if (!*p)
			return s.n;
	}
}

char *bench_specs_parted(const char *list)
{
	char *copy = list && strcmp(list, "all") ? strdup(list) : NULL;
	for (char *c = copy; copy && !strchr(list, ';') && (c = strchr(c, '/')); c++)
		*c = ';';
	return copy;
}
