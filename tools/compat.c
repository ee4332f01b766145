/* Which collective carries which payloads, from what the plugins say of themselves. */
#include <string.h>

#include "tools/commands.h"
#include "gradcomp/collective.h"

enum { COLLECTIVES_MAX = 64 };

typedef struct compat {
	const char *name[COLLECTIVES_MAX];
	uint32_t serves[COLLECTIVES_MAX];
	int count;
} compat;

static const char *const patterns[] = {[GRADCOMP_SUMMED] = "summed",
                                       [GRADCOMP_GATHERED] = "gathered",
                                       [GRADCOMP_MERGED] = "merged",
                                       [GRADCOMP_CODED] = "coded"};

static int take_collective(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                           const char *reason)
{
	const struct gradcomp_collective_v1 *c = (const void *)info;
	compat *p = ctx;
	(void)name, (void)path, (void)reason;
	if (!c || p->count == COLLECTIVES_MAX)
		return 0;
	p->name[p->count] = info->name;
	p->serves[p->count++] = c->serves;
	return 0;
}

static int width(const char *name)
{
	return strlen(name) < 3 ? 3 : (int)strlen(name);
}

static void print_cell(const compat *p, int i, const char *text)
{
	printf(" %-*s |", width(p->name[i]), text);
}

static void print_payloads(const compat *p, gradcomp_pattern pattern)
{
	printf("| %-10s |", patterns[pattern]);
	for (int i = 0; i < p->count; i++)
		print_cell(p, i, gradcomp_carries(p->serves[i], GRADCOMP_PATTERN_BIT(pattern)) ? "yes" : "-");
	putchar('\n');
}

static void list_patterns(uint32_t of)
{
	const char *before = " ";
	for (int k = GRADCOMP_SUMMED; k <= GRADCOMP_CODED; k++) {
		if (of & GRADCOMP_PATTERN_BIT(k)) {
			printf("%s%s", before, patterns[k]);
			before = ", ";
		}
	}
}

static int print_compressor(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info,
                            const char *reason)
{
	const struct gradcomp_compressor_v1 *c = (const void *)info;
	const compat *p = ctx;
	(void)path, (void)reason;
	if (!c)
		return 0;
	printf("| %-10s |", name);
	for (int i = 0; i < p->count; i++) {
		uint32_t planned = gradcomp_compatible_patterns(c, p->serves[i]);
		print_cell(p, i, !planned ? "-" : planned == c->patterns ? "yes" : "or");
	}
	list_patterns(c->patterns);
	if (c->instead) {
		fputs("; or", stdout);
		list_patterns(c->instead);
	}
	puts(" |");
	return 0;
}

static void print_head(const compat *p, const char *first, const char *last)
{
	printf("| %-10s |", first);
	for (int i = 0; i < p->count; i++)
		printf(" %-*s |", width(p->name[i]), p->name[i]);
	printf("%s\n| ---------- |", last);
	for (int i = 0; i < p->count; i++)
		printf(" %.*s |", width(p->name[i]),
		       "----------------------------------------------------------------");
	puts(*last ? " --- |" : "");
}

gradcomp_status compat_print(gradcomp_error *err)
{
	compat p = {.count = 0};
	int status = gradcomp_plugin_each(GRADCOMP_KIND_COLLECTIVE, take_collective, &p, err);
	if (status)
		return (gradcomp_status)status;
	print_head(&p, "payloads", "");
	for (int k = GRADCOMP_SUMMED; k <= GRADCOMP_CODED; k++)
		print_payloads(&p, (gradcomp_pattern)k);
	putchar('\n');
	print_head(&p, "compressor", " payloads |");
	return (gradcomp_status)gradcomp_plugin_each(GRADCOMP_KIND_COMPRESSOR, print_compressor, &p, err);
}
