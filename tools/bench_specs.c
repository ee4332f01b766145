#include "tools/bench_specs.h"

#include "config/spec.h"
#include "tools/bench.h"

#include <stdlib.h>
#include <string.h>

typedef struct search {
	const char *wanted; /* a name; NULL: all */
	bench_spec *specs;
	int n, most;
	char why[sizeof((gradcomp_error *)0)->text]; /* the wanted one cannot be used */
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
	const char *item;
	char name[64];
	size_t n;
	if (!list || !strcmp(list, "all"))
		return gradcomp_plugin_each(kind, note, &s, err) < 0 ? -1 : s.n;
	while ((item = spec_list_next(&list, &n))) {
		int before = s.n;
		snprintf(name, sizeof name, "%.*s", (int)strcspn(item, ":, "), item);
		s.wanted = name;
		if (gradcomp_plugin_each(kind, note, &s, err) < 0)
			return -1;
		if (s.n == before && *s.why)
			return bench_failed(err, GRADCOMP_ERR_ABI, "%s: %s", option, s.why);
		if (s.n == before)
			return bench_failed(err, GRADCOMP_ERR_NOTFOUND,
			                    "%s: '%s' is not installed; gradcomp list shows what is", option, name);
		if (n >= sizeof specs->spec)
			return bench_failed(err, GRADCOMP_ERR_INVALID, "%s: a SPEC of more than %zu characters", option,
			                    sizeof specs->spec - 1);
		snprintf(specs[before].spec, sizeof specs->spec, "%.*s", (int)n, item);
	}
	return s.n ? s.n : bench_failed(err, GRADCOMP_ERR_INVALID, "%s: a list of nothing", option);
}
